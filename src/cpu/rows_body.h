/* rows_body.h: arithmetic on one row of FP32, one body for every instruction set. Meanings: rows.h;
 * the arithmetic of a root mean square: mx/rms.h. Included after one vec_wide_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/row_pairs_body.h"
#include "cpu/rows.h"

#include <string.h>

enum { SUM_VECS = MXA_RMS_LANES / VEC_LANES, LINE_LANES = 64 };

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

/* Asks for what lies `ahead` bytes behind LINE_LANES elements; 0: for nothing new. */
VEC_INLINE void ask_ahead(const void *x, int64_t i, int64_t bytes, int64_t ahead)
{
    enum { LINE = 64, SECOND_CACHE = 2 };
    const uintptr_t at = (uintptr_t)x + (uintptr_t)(i * bytes + ahead);
    VEC_UNROLL
    for (uintptr_t j = 0; j < LINE_LANES * (uintptr_t)bytes; j += LINE)
        __builtin_prefetch((const void *)(at + j), 0, SECOND_CACHE);
}

VEC_INLINE double fold(const dvec sum[SUM_VECS])
{
    double lanes[MXA_RMS_LANES];
    for (int j = 0; j < SUM_VECS; j++)
        dvec_store(lanes + j * VEC_LANES, sum[j]);
    return mxa_rms_fold(lanes);
}

/* Of pairs that are as long as the partial sums are many. */
VEC_INLINE double fold_pairs(dvec even, dvec odd)
{
    double halves[2][VEC_LANES], lanes[MXA_RMS_LANES];
    dvec_store(halves[0], even);
    dvec_store(halves[1], odd);
    for (int l = 0; l < MXA_RMS_LANES; l++)
        lanes[l] = halves[l % 2][l / 2 % VEC_LANES];
    return mxa_rms_fold(lanes);
}

VEC_INLINE double squares_of(const void *x, mxattn_dtype dtype, int64_t count, int64_t ahead)
{
    const int64_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    const int by_pairs =
        dtype == MXATTN_BF16 && (int)PAIR_LANES == (int)MXA_RMS_LANES && count % LINE_LANES == 0;
    dvec sum[SUM_VECS], even = dvec_zero(), odd = dvec_zero();
    int64_t i = 0;
    for (int j = 0; j < SUM_VECS; j++)
        sum[j] = dvec_zero();
    for (; i + LINE_LANES <= count; i += LINE_LANES) {
        ask_ahead(x, i, bytes, ahead);
        VEC_UNROLL
        for (int64_t k = i; k < i + LINE_LANES; k += MXA_RMS_LANES) {
            if (by_pairs) {
                const vec_pair v = pair_load(x, dtype, k);
                even = dvec_add_product(even, v.even, v.even);
                odd = dvec_add_product(odd, v.odd, v.odd);
                continue;
            }
            VEC_UNROLL
            for (int j = 0; j < SUM_VECS; j++) {
                const vec v = load_as(x, dtype, k + j * VEC_LANES);
                sum[j] = dvec_add_product(sum[j], v, v);
            }
        }
    }
    for (; i < count; i += MXA_RMS_LANES)
        for (int j = 0; j < SUM_VECS && i + j * VEC_LANES < count; j++) {
            const vec v = load_any(x, dtype, i + j * VEC_LANES, count);
            sum[j] = dvec_add_product(sum[j], v, v);
        }
    return by_pairs ? fold_pairs(even, odd) : fold(sum);
}

static double squares(const void *x, mxattn_dtype dtype, int64_t count, int64_t ahead)
{
    if (dtype == MXATTN_F32)
        return squares_of(x, MXATTN_F32, count, ahead);
    return dtype == MXATTN_BF16 ? squares_of(x, MXATTN_BF16, count, ahead)
                                : squares_of(x, MXATTN_F16, count, ahead);
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

/* The last elements of a row, fewer than a pair of vectors; zeros behind. */
VEC_INLINE vec_pair load_end(const void *x, mxattn_dtype dtype, int64_t i, int64_t count)
{
    float padded[PAIR_LANES] = {0}; /* of whichever dtype */
    const size_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    memcpy(padded, (const char *)x + (size_t)i * bytes, (size_t)(count - i) * bytes);
    return pair_load(padded, dtype, 0);
}

static void pair_weights(const float *weight, int64_t count, float *paired)
{
    const int64_t end = (count + MXA_NORM_PAIRED - 1) / MXA_NORM_PAIRED * MXA_NORM_PAIRED;
    for (int64_t i = 0; i < end; i += PAIR_LANES) {
        vec_pair w = {vec_set(1.0F), vec_set(1.0F)};
        if (weight && i < count)
            w = count - i < PAIR_LANES ? load_end(weight, MXATTN_F32, i, count)
                                       : pair_load(weight, MXATTN_F32, i);
        vec_store(paired + i, w.even);
        vec_store(paired + i + VEC_LANES, w.odd);
    }
}

VEC_INLINE void divide_bf16_of(const void *x, mxattn_dtype dtype, int64_t count,
                               const mxa_rms_scale *scale, const float *paired, int64_t ahead,
                               uint16_t *out, int stream)
{
    const int64_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    const divisor by = divisor_of(scale);
    int64_t i = 0;
    for (; i + LINE_LANES <= count; i += LINE_LANES) {
        ask_ahead(x, i, bytes, ahead);
        VEC_UNROLL
        for (int j = 0; j < LINE_LANES; j += PAIR_LANES)
            vec_pair_store_bf16(
                out + i + j, divide_pair(pair_load(x, dtype, i + j), by, paired + i + j), stream);
    }
    for (; i < count; i += PAIR_LANES) {
        uint16_t end[PAIR_LANES];
        const int64_t left = count - i < PAIR_LANES ? count - i : PAIR_LANES;
        const vec_pair u =
            left < PAIR_LANES ? load_end(x, dtype, i, count) : pair_load(x, dtype, i);
        vec_pair_store_bf16(end, divide_pair(u, by, paired + i), 0);
        memcpy(out + i, end, (size_t)left * sizeof *end);
    }
}

static void divide_bf16(const void *x, mxattn_dtype dtype, int64_t count,
                        const mxa_rms_scale *scale, const float *paired, int64_t ahead,
                        uint16_t *out, int stream)
{
#define DIVIDE_BF16(type)                                                                          \
    if (stream)                                                                                    \
        divide_bf16_of(x, type, count, scale, paired, ahead, out, 1);                              \
    else                                                                                           \
        divide_bf16_of(x, type, count, scale, paired, ahead, out, 0)
    EACH_DTYPE(dtype, DIVIDE_BF16);
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
    .divide_bf16 = divide_bf16,
    .pair_weights = pair_weights,
    .divide_backward = divide_backward,
    .rotate = rotate,
    .activate = activate,
    .activate_backward = activate_backward,
};
