/* rows_body.h: arithmetic on one row of FP32, one body for every instruction set. Meanings: rows.h;
 * the arithmetic of a root mean square: mx/rms.h. Included after one vec_wide_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/rows.h"
#include "cpu/vec_math.h"

#include <string.h>

enum { SUM_VECS = MXA_RMS_LANES / VEC_LANES };

/* A row is walked in vectors; the last, short one through a copy with zeros behind. */
typedef struct piece {
    float x[VEC_LANES];
} piece;

VEC_INLINE vec load_as(const void *x, mxattn_dtype dtype, int64_t i)
{
    if (dtype == MXATTN_F32)
        return vec_load((const float *)x + i);
    const uint16_t *half = (const uint16_t *)x + i;
    return dtype == MXATTN_BF16 ? vec_from_bf16(half) : vec_from_f16(half);
}

VEC_INLINE vec load_short(const void *x, mxattn_dtype dtype, int64_t i, int64_t count)
{
    union {
        float f32[VEC_LANES];
        uint16_t half[VEC_LANES];
    } padded = {{0}};
    const size_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    memcpy(&padded, (const char *)x + (size_t)i * bytes, (size_t)(count - i) * bytes);
    return load_as(&padded, dtype, 0);
}

VEC_INLINE vec load_f32(const float *x, int64_t i, int64_t count)
{
    return count - i >= VEC_LANES ? vec_load(x + i) : load_short(x, MXATTN_F32, i, count);
}

VEC_INLINE void store_f32(float *out, int64_t i, int64_t count, vec x)
{
    if (count - i >= VEC_LANES) {
        vec_store(out + i, x);
        return;
    }
    piece p;
    vec_store(p.x, x);
    memcpy(out + i, p.x, (size_t)(count - i) * sizeof(float));
}

/* Calls body(dtype) with the dtype a constant. */
#define EACH_DTYPE(dtype, body)                                                                    \
    do {                                                                                           \
        if ((dtype) == MXATTN_F32) {                                                               \
            body(MXATTN_F32);                                                                      \
        } else if ((dtype) == MXATTN_BF16) {                                                       \
            body(MXATTN_BF16);                                                                     \
        } else {                                                                                   \
            body(MXATTN_F16);                                                                      \
        }                                                                                          \
    } while (0)

VEC_INLINE vec load_any(const void *x, mxattn_dtype dtype, int64_t i, int64_t count)
{
    return count - i >= VEC_LANES ? load_as(x, dtype, i) : load_short(x, dtype, i, count);
}

static void widen(const void *x, mxattn_dtype dtype, int64_t count, float *out)
{
#define WIDEN(type)                                                                                \
    for (int64_t i = 0; i < count; i += VEC_LANES)                                                 \
    store_f32(out, i, count, load_any(x, type, i, count))
    EACH_DTYPE(dtype, WIDEN);
}

VEC_INLINE void store_as(void *out, mxattn_dtype dtype, int64_t i, int64_t count, vec x)
{
    if (dtype == MXATTN_F32) {
        store_f32(out, i, count, x);
        return;
    }
    uint16_t half[VEC_LANES], *to = (uint16_t *)out + i;
    const int whole = count - i >= VEC_LANES;
    if (dtype == MXATTN_BF16)
        vec_store_bf16(whole ? to : half, x);
    else
        vec_store_f16(whole ? to : half, x);
    if (!whole)
        memcpy(to, half, (size_t)(count - i) * sizeof(*half));
}

static void narrow(const float *x, int64_t count, mxattn_dtype dtype, void *out, int accumulate)
{
#define NARROW(type)                                                                               \
    for (int64_t i = 0; i < count; i += VEC_LANES) {                                               \
        vec value = load_f32(x, i, count);                                                         \
        if (accumulate)                                                                            \
            value = vec_add(load_any(out, type, i, count), value);                                 \
        store_as(out, type, i, count, value);                                                      \
    }
    EACH_DTYPE(dtype, NARROW);
}

static void round_bf16(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += VEC_LANES) {
        const vec value = load_f32(x, i, count);
        const vec quiet = vec_from_bits(ivec_or(vec_bits(value), ivec_set(0x00400000)));
        const vec rounded = vec_round_bf16(value);
        store_f32(x, i, count, vec_select(vec_is_nan(value), quiet, rounded));
    }
}

VEC_INLINE double fold(const dvec sum[SUM_VECS])
{
    double lanes[MXA_RMS_LANES];
    for (int j = 0; j < SUM_VECS; j++)
        dvec_store(lanes + j * VEC_LANES, sum[j]);
    return mxa_rms_fold(lanes);
}

VEC_INLINE double squares_of(const void *x, mxattn_dtype dtype, int64_t count)
{
    dvec sum[SUM_VECS];
    int64_t i = 0;
    for (int j = 0; j < SUM_VECS; j++)
        sum[j] = dvec_zero();
    for (; i + MXA_RMS_LANES <= count; i += MXA_RMS_LANES)
        VEC_UNROLL
    for (int j = 0; j < SUM_VECS; j++) {
        const vec v = load_as(x, dtype, i + j * VEC_LANES);
        sum[j] = dvec_add_product(sum[j], v, v);
    }
    for (int j = 0; i < count; j++, i += VEC_LANES) {
        const vec v = load_any(x, dtype, i, count);
        sum[j] = dvec_add_product(sum[j], v, v);
    }
    return fold(sum);
}

static double squares(const void *x, mxattn_dtype dtype, int64_t count)
{
    if (dtype == MXATTN_F32)
        return squares_of(x, MXATTN_F32, count);
    return dtype == MXATTN_BF16 ? squares_of(x, MXATTN_BF16, count)
                                : squares_of(x, MXATTN_F16, count);
}

static double products(const float *a, float factor, const float *b, const float *weight,
                       int64_t count)
{
    dvec sum[SUM_VECS];
    for (int j = 0; j < SUM_VECS; j++)
        sum[j] = dvec_zero();
    for (int64_t i = 0, j = 0; i < count; i += VEC_LANES, j = (j + 1) % SUM_VECS) {
        const vec u = vec_mul(load_f32(a, i, count), vec_set(factor));
        vec g = load_f32(b, i, count);
        if (weight)
            g = vec_mul(g, load_f32(weight, i, count));
        sum[j] = dvec_add_product(sum[j], u, g);
    }
    return fold(sum);
}

static void divide(const void *x, mxattn_dtype dtype, int64_t count, const mxa_rms_scale *scale,
                   const float *weight, float *out)
{
    const vec prescale = vec_set(scale->prescale), hi = vec_set(scale->hi), lo = vec_set(scale->lo);
#define DIVIDE(type)                                                                               \
    for (int64_t i = 0; i < count; i += VEC_LANES) {                                               \
        const vec v = vec_mul(load_any(x, type, i, count), prescale);                              \
        vec y = vec_fused(v, hi, vec_mul(v, lo));                                                  \
        if (weight)                                                                                \
            y = vec_mul(y, load_f32(weight, i, count));                                            \
        store_f32(out, i, count, y);                                                               \
    }
    EACH_DTYPE(dtype, DIVIDE);
}

VEC_INLINE vec_pair load_pair(const void *x, mxattn_dtype dtype, int64_t i)
{
    if (dtype == MXATTN_BF16)
        return vec_pair_bf16((const uint16_t *)x + i);
    if (dtype == MXATTN_F32)
        return vec_pair_of((const float *)x + i);
    float wide[2 * VEC_LANES];
    vec_store(wide, load_as(x, dtype, i));
    vec_store(wide + VEC_LANES, load_as(x, dtype, i + VEC_LANES));
    return vec_pair_of(wide);
}

VEC_INLINE vec divided(vec x, const mxa_rms_scale *scale)
{
    return vec_fused(x, vec_set(scale->hi), vec_mul(x, vec_set(scale->lo)));
}

/* 2 * VEC_LANES elements from i on. */
VEC_INLINE vec_pair divide_pair(const void *x, mxattn_dtype dtype, int64_t i,
                                const mxa_rms_scale *scale, const float *weight)
{
    vec_pair y = load_pair(x, dtype, i);
    y.even = divided(y.even, scale);
    y.odd = divided(y.odd, scale);
    if (weight) {
        const vec_pair w = vec_pair_of(weight + i);
        y.even = vec_mul(y.even, w.even);
        y.odd = vec_mul(y.odd, w.odd);
    }
    return y;
}

VEC_INLINE void store_pair(uint16_t *out, vec_pair y, int to_bf16, int stream)
{
    if (to_bf16)
        vec_pair_store_bf16(out, y, stream);
    else
        vec_pair_store_odd(out, y);
}

VEC_INLINE void divide_words_of(const void *x, mxattn_dtype dtype, int64_t count,
                                const mxa_rms_scale *scale, const float *weight,
                                const mxa_words_out *out, int to_bf16, int stream)
{
    enum { STEP = 2 * VEC_LANES };
    const size_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    const mxa_words_out to = *out;
    const uintptr_t ahead = (uintptr_t)x + (uintptr_t)to.ahead;
    int64_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        __builtin_prefetch((const void *)(ahead + ((uintptr_t)i * bytes >> to.ahead_half)));
        store_pair(to.words + i, divide_pair(x, dtype, i, scale, weight), to_bf16, stream);
    }
    if (i == count)
        return;
    const size_t left = (size_t)(count - i);
    union {
        float f32[STEP];
        uint16_t half[STEP];
    } x_end = {{0}};
    float weight_end[STEP] = {0};
    uint16_t words_end[STEP];
    memcpy(&x_end, (const char *)x + (size_t)i * bytes, left * bytes);
    if (weight)
        memcpy(weight_end, weight + i, left * sizeof *weight);
    store_pair(words_end, divide_pair(&x_end, dtype, 0, scale, weight ? weight_end : NULL), to_bf16,
               0);
    memcpy(to.words + i, words_end, left * sizeof *words_end);
}

static void divide_words(const void *x, mxattn_dtype dtype, int64_t count,
                         const mxa_rms_scale *scale, const float *weight, const mxa_words_out *out)
{
#define DIVIDE_WORDS(type)                                                                         \
    if (!out->to_bf16)                                                                             \
        divide_words_of(x, type, count, scale, weight, out, 0, 0);                                 \
    else if (out->stream)                                                                          \
        divide_words_of(x, type, count, scale, weight, out, 1, 1);                                 \
    else                                                                                           \
        divide_words_of(x, type, count, scale, weight, out, 1, 0)
    EACH_DTYPE(dtype, DIVIDE_WORDS);
}

static void divide_backward(const float *x, float factor, float *dy, const float *weight,
                            float mean, float rstd, float *dweight, int64_t count)
{
    for (int64_t i = 0; i < count; i += VEC_LANES) {
        const vec u = vec_mul(load_f32(x, i, count), vec_set(factor));
        const vec d = load_f32(dy, i, count);
        const vec g = weight ? vec_mul(d, load_f32(weight, i, count)) : d;
        if (dweight)
            store_f32(dweight, i, count, vec_add(load_f32(dweight, i, count), vec_mul(d, u)));
        store_f32(dy, i, count, vec_mul(vec_set(rstd), vec_sub(g, vec_mul(u, vec_set(mean)))));
    }
}

static void rotate(float *row, const float *cosine, const float *sine, const mxattn_rope *rope)
{
    const int64_t half = rope->dims / 2, step = rope->interleaved ? 2 : 1;
    const int64_t apart = rope->interleaved ? 1 : half;
    const vec sign = vec_set(rope->inverse ? -1.0F : 1.0F);
    int64_t i = 0;
    for (; step == 1 && i + VEC_LANES <= half; i += VEC_LANES) {
        const vec c = vec_load(cosine + i), s = vec_mul(vec_load(sine + i), sign);
        const vec a = vec_load(row + i), b = vec_load(row + i + apart);
        vec_store(row + i, vec_sub(vec_mul(a, c), vec_mul(b, s)));
        vec_store(row + i + apart, vec_add(vec_mul(b, c), vec_mul(a, s)));
    }
    for (; i < half; i++) {
        const float c = cosine[i], s = rope->inverse ? -sine[i] : sine[i];
        const float a = row[i * step], b = row[i * step + apart];
        row[i * step] = a * c - b * s;
        row[i * step + apart] = b * c + a * s;
    }
}

/* 1 / (1 + e^-x), from t = e^-|x|. */
VEC_INLINE vec sigmoid(vec x)
{
    const vec one = vec_set(1.0F), t = vec_exp2(vec_mul(vec_abs(x), vec_set(-1.44269504F)));
    return vec_div(vec_select(vec_less(x, vec_set(0.0F)), t, one), vec_add(one, t));
}

VEC_INLINE vec activated(vec x, mxattn_activation activation)
{
    const vec zero = vec_set(0.0F);
    const vec positive = vec_select(vec_less(x, zero), zero, x); /* a NaN stays */
    if (activation == MXATTN_ACTIVATION_RELU)
        return positive;
    if (activation == MXATTN_ACTIVATION_RELU_SQUARED)
        return vec_mul(positive, positive);
    if (activation == MXATTN_ACTIVATION_SILU)
        return vec_mul(x, sigmoid(x));
    if (activation == MXATTN_ACTIVATION_GELU) { /* (1 + tanh(z)) / 2 = sigmoid(2z) */
        const vec cube = vec_mul(vec_mul(x, x), x);
        const vec z = vec_mul(vec_fma(cube, vec_set(0.044715F), x), vec_set(1.59576912F));
        return vec_mul(x, sigmoid(z));
    }
    return x;
}

static void activate(float *x, const float *bias, mxattn_activation activation, int64_t count)
{
    for (int64_t i = 0; i < count; i += VEC_LANES) {
        vec v = load_f32(x, i, count);
        if (bias)
            v = vec_add(v, load_f32(bias, i, count));
        store_f32(x, i, count, activated(v, activation));
    }
}

static void activate_backward(float *x, const float *bias, const float *given,
                              mxattn_activation activation, int64_t count)
{
    const vec zero = vec_set(0.0F), two = vec_set(2.0F);
    for (int64_t i = 0; i < count; i += VEC_LANES) {
        vec v = load_f32(x, i, count);
        const vec y = load_f32(given, i, count);
        const vec rise =
            activation == MXATTN_ACTIVATION_RELU ? vec_set(1.0F) : vec_mul(two, vec_sqrt(y));
        vec slope = vec_select(vec_less(zero, y), rise, zero);
        slope = vec_select(vec_is_nan(y), y, slope);
        if (bias)
            v = vec_add(v, load_f32(bias, i, count));
        store_f32(x, i, count, vec_mul(v, slope));
    }
}

const mxa_row_kernels VEC_NAME(mxa_row_kernels) = {
    .widen = widen,
    .narrow = narrow,
    .round_bf16 = round_bf16,
    .squares = squares,
    .products = products,
    .divide = divide,
    .divide_words = divide_words,
    .divide_backward = divide_backward,
    .rotate = rotate,
    .activate = activate,
    .activate_backward = activate_backward,
};
