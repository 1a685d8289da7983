/* quantize_body.h: the quantizer's kernels, one body for every instruction set.
 *
 * Meaning: mxa_quantize_tensor (mx/tensor.c), equalled byte for byte. Elements become 16-bit words
 * (words_portable.h), 32 of them a chunk; the scale comes from the largest word; a code is the word
 * rounded to the mantissa bits that stay, minus the scale in the exponent's place:
 *
 *   word   s eeeeeeee mmmmmmm          a = word without s
 *   E4M3   rounded = a + 7 + (bit 4 of a), >> 4    = eeeeeeee mmm
 *          code    = rounded - 8*(scale - 7)       since its exponent is e - scale + 7
 *   E5M2   one bit less, and 15 for 7.
 *
 * Results below the smallest normal code are rounded again from the significand, shifted by how far
 * they lie below. Blocks whose scale byte is under 32 (there FP32 subnormals may count) and blocks
 * with NaN or infinity are encoded one element at a time, by mxa_fp8_encode.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/quantize.h"

#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/sequences.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { FAST_SCALE_LEAST = 32, FAST_SCALE_MOST = 0xF7 };

/* What follows from element types; constants once inlined. */
typedef struct format {
    mxattn_dtype wide;
    mxattn_dtype narrow;
} format;

ALWAYS_INLINE int dropped_bits(format f)
{
    return f.narrow == MXATTN_E5M2 ? 5 : 4;
}

ALWAYS_INLINE int narrow_bias(format f)
{
    return f.narrow == MXATTN_E5M2 ? 15 : 7;
}

/* `count` <= 32 elements as FP32, zeros behind. */
ALWAYS_INLINE void load_floats(const void *wide, format f, int64_t index, int64_t count,
                               float x[MXA_BLOCK])
{
    memset(x, 0, MXA_BLOCK * sizeof x[0]);
    if (f.wide == MXATTN_F32) {
        memcpy(x, (const float *)wide + index, (size_t)count * sizeof x[0]);
        return;
    }
    const uint16_t *half = (const uint16_t *)wide + index;
    for (int64_t i = 0; i < count; i++) {
        x[i] = f.wide == MXATTN_BF16 ? mxa_bf16_to_f32(half[i]) : mxa_f16_to_f32(half[i]);
    }
}

ALWAYS_INLINE words words_from(const void *wide, mxattn_dtype dtype, int64_t index)
{
    if (dtype == MXATTN_F32) {
        return words_from_f32((const float *)wide + index);
    }
    const uint16_t *half = (const uint16_t *)wide + index;
    return dtype == MXATTN_BF16 ? words_from_bf16(half) : words_from_f16(half);
}

/* The elements of one chunk that are quantized, exactly; for what is rare. */
ALWAYS_INLINE void chunk_floats(const mxa_quantize_strip *strip, format f, int64_t token,
                                int64_t chunk, float x[MXA_BLOCK])
{
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    int64_t count = left < MXA_BLOCK ? left : MXA_BLOCK;
    load_floats(strip->wide, f, token * strip->wide_stride + d, count, x);
    for (int64_t i = 0; strip->centre && i < count; i++) {
        x[i] -= strip->centre[d + i];
    }
}

ALWAYS_INLINE void chunk_words(const mxa_quantize_strip *strip, format f, int64_t token,
                               int64_t chunk, words w[CHUNK_WORDS])
{
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    int64_t index = token * strip->wide_stride + d;
    size_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
    if (strip->centre) {
        float x[MXA_BLOCK];
        chunk_floats(strip, f, token, chunk, x);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = words_from_f32(x + i * WORDS_LANES);
        }
        return;
    }
    if (left < MXA_BLOCK) {
        union {
            float f32[MXA_BLOCK];
            uint16_t half[MXA_BLOCK];
        } padded = {{0}};
        memcpy(&padded, (const char *)strip->wide + (size_t)index * bytes, (size_t)left * bytes);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = words_from(&padded, f.wide, i * WORDS_LANES);
        }
        return;
    }
    for (int i = 0; i < CHUNK_WORDS; i++) {
        w[i] = words_from(strip->wide, f.wide, index + i * WORDS_LANES);
    }
}

ALWAYS_INLINE words magnitude(words w)
{
    return words_and(w, words_set(0x7FFF));
}

ALWAYS_INLINE uint16_t chunk_largest(const words m[CHUNK_WORDS])
{
    words largest = m[0];
    for (int i = 1; i < CHUNK_WORDS; i++) {
        largest = words_max(largest, m[i]);
    }
    return words_largest(largest);
}

ALWAYS_INLINE uint8_t scale_from(uint16_t amax, const mxa_quantize_strip *strip, format f)
{
    return mxa_e8m0_from_amax((uint32_t)amax << 16, f.narrow, strip->tags.rounding);
}

/* 1 where encode_words does not hold. Of zeros it holds under any scale. */
ALWAYS_INLINE int scale_is_slow(uint8_t scale, uint16_t amax)
{
    return amax != 0 && (scale < FAST_SCALE_LEAST || scale > FAST_SCALE_MOST);
}

/* What encode_words needs of the scale of each lane. */
typedef struct lane_scales {
    words subtract; /* narrow_bias less than scale, in the place of the exponent */
    words normal;   /* rounded words from here on are normal codes */
    words exponent; /* exponent of the smallest normal code */
} lane_scales;

ALWAYS_INLINE lane_scales lane_scales_make(words scale, format f)
{
    int mantissa_bits = 7 - dropped_bits(f);
    scale = words_max(scale, words_set(FAST_SCALE_LEAST));
    words below = words_subtract(scale, words_set((uint16_t)narrow_bias(f)));
    words least = words_add(below, words_set(1));
    return (lane_scales){words_shift_left(below, mantissa_bits),
                         words_shift_left(least, mantissa_bits), least};
}

/* Codes below the smallest normal: the significand with its 8 bits on top of a word, shifted right
 * by one more than the binades it lies below, then rounded to nearest even. */
static __attribute__((noinline)) words subnormal_codes(words a, words exponent, words code,
                                                       int dropped)
{
    words significand = words_or(words_shift_left(a, 8), words_set(0x8000));
    words shift = words_subtract(exponent, words_shift_right(a, 7));
    shift = words_min(shift, words_set(15));
    words rest = words_shift_lanes(significand, shift);
    int drop = dropped + 8;
    words even = words_and(words_shift_right(rest, drop), words_set(1));
    words half = words_set((uint16_t)((1 << (drop - 1)) - 1));
    words rounded = words_shift_right(words_add(words_add(rest, half), even), drop);
    return words_select(words_less(words_set(0), shift), rounded, code);
}

ALWAYS_INLINE words encode_words(words w, const lane_scales *scales, format f)
{
    int dropped = dropped_bits(f);
    words a = magnitude(w);
    words even = words_and(words_shift_right(a, dropped), words_set(1));
    words half = words_set((uint16_t)((1 << (dropped - 1)) - 1));
    words rounded = words_shift_right(words_add(words_add(a, half), even), dropped);
    words code = words_subtract(rounded, scales->subtract);
    wmask small = wmask_and(words_less(rounded, scales->normal), words_less(words_set(0), rounded));
    if (__builtin_expect(wmask_any(small), 0)) {
        code = subnormal_codes(a, scales->exponent, code, dropped);
    }
    code = words_min(code, words_set(f.narrow == MXATTN_E5M2 ? 0x7B : 0x7E));
    return words_or(code, words_and(words_shift_right(w, 8), words_set(0x80)));
}

/* Stores the codes of one chunk. */
ALWAYS_INLINE void store_codes(const mxa_quantize_strip *strip, int64_t token, int64_t chunk,
                               const uint8_t codes[MXA_BLOCK])
{
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    uint8_t *out = strip->payload + token * strip->payload_stride + d;
    memcpy(out, codes, (size_t)(left < MXA_BLOCK ? left : MXA_BLOCK));
}

ALWAYS_INLINE void encode_chunk(const mxa_quantize_strip *strip, format f, int64_t token,
                                int64_t chunk, const words w[CHUNK_WORDS],
                                const lane_scales scales[CHUNK_WORDS])
{
    words code[CHUNK_WORDS];
    for (int i = 0; i < CHUNK_WORDS; i++) {
        code[i] = encode_words(w[i], &scales[i], f);
    }
    if (strip->dims - chunk * MXA_BLOCK >= MXA_BLOCK) {
        words_pack(strip->payload + token * strip->payload_stride + chunk * MXA_BLOCK, code);
        return;
    }
    uint8_t codes[MXA_BLOCK];
    words_pack(codes, code);
    store_codes(strip, token, chunk, codes);
}

/* One chunk, one element at a time. scale_step 0: one scale for all, 1: one for each. */
ALWAYS_INLINE void encode_chunk_slowly(const mxa_quantize_strip *strip, format f, int64_t token,
                                       int64_t chunk, const uint8_t *scale, int scale_step)
{
    float x[MXA_BLOCK];
    uint8_t codes[MXA_BLOCK];
    chunk_floats(strip, f, token, chunk, x);
    for (int i = 0; i < MXA_BLOCK; i++) {
        codes[i] = mxa_fp8_encode(x[i], scale[i * scale_step], f.narrow);
    }
    store_codes(strip, token, chunk, codes);
}

ALWAYS_INLINE void encode_uniform(const mxa_quantize_strip *strip, format f, int64_t token,
                                  int64_t chunk, const words w[CHUNK_WORDS], uint8_t scale,
                                  const lane_scales *lanes, int slow)
{
    if (__builtin_expect(slow, 0)) {
        encode_chunk_slowly(strip, f, token, chunk, &scale, 0);
        return;
    }
    lane_scales same[CHUNK_WORDS];
    for (int i = 0; i < CHUNK_WORDS; i++) {
        same[i] = *lanes;
    }
    encode_chunk(strip, f, token, chunk, w, same);
}

/* Largest word of one token over all dims. */
ALWAYS_INLINE uint16_t token_largest(const mxa_quantize_strip *strip, format f, int64_t token)
{
    words largest = words_set(0);
    for (int64_t chunk = 0; chunk < mxa_blocks(strip->dims); chunk++) {
        words w[CHUNK_WORDS];
        chunk_words(strip, f, token, chunk, w);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            largest = words_max(largest, magnitude(w[i]));
        }
    }
    return words_largest(largest);
}

ALWAYS_INLINE void strip_rows(const mxa_quantize_strip *strip, format f)
{
    int folded = (strip->tags.flags & MXATTN_FOLDED_TOKEN) != 0;
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    for (int64_t token = 0; token < strip->used; token++) {
        uint16_t amax = folded ? token_largest(strip, f, token) : 0;
        for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
            words w[CHUNK_WORDS], m[CHUNK_WORDS];
            chunk_words(strip, f, token, chunk, w);
            if (!folded) {
                for (int i = 0; i < CHUNK_WORDS; i++) {
                    m[i] = magnitude(w[i]);
                }
                amax = chunk_largest(m);
            }
            uint8_t scale = scale_from(amax, strip, f);
            lane_scales lanes = lane_scales_make(words_set(scale), f);
            encode_uniform(strip, f, token, chunk, w, scale, &lanes, scale_is_slow(scale, amax));
            if (place->data) {
                *mxa_scale_place_at(place, chunk, token) = scale;
            }
        }
    }
    for (int64_t token = strip->used; place->data && token < strip->tokens; token++) {
        for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
            *mxa_scale_place_at(place, chunk, token) = 0;
        }
    }
}

/* The scale of one chunk's square, into both arrays. */
ALWAYS_INLINE void store_square_scale(const mxa_quantize_strip *strip, int64_t chunk, uint8_t scale)
{
    int64_t left = strip->dims - chunk * MXA_BLOCK;
    int64_t within[2] = {strip->tokens, left < MXA_BLOCK ? left : MXA_BLOCK};
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        const mxa_scale_place *place = &strip->places[axis];
        for (int64_t i = 0; place->data && i < within[axis]; i++) {
            *mxa_scale_place_at(place, chunk, i) = scale;
        }
    }
}

/* Loads the used tokens of one chunk, and the largest magnitude of each lane. */
ALWAYS_INLINE void load_tile(const mxa_quantize_strip *strip, format f, int64_t chunk,
                             words tile[MXA_BLOCK][CHUNK_WORDS], words largest[CHUNK_WORDS])
{
    for (int i = 0; i < CHUNK_WORDS; i++) {
        largest[i] = words_set(0);
    }
    for (int64_t token = 0; token < strip->used; token++) {
        chunk_words(strip, f, token, chunk, tile[token]);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            largest[i] = words_max(largest[i], magnitude(tile[token][i]));
        }
    }
}

ALWAYS_INLINE void strip_squares(const mxa_quantize_strip *strip, format f)
{
    int folded = (strip->tags.flags & MXATTN_FOLDED) != 0;
    uint16_t amax = 0;
    for (int64_t token = 0; folded && token < strip->used; token++) {
        uint16_t largest = token_largest(strip, f, token);
        amax = largest > amax ? largest : amax;
    }
    for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
        words tile[MXA_BLOCK][CHUNK_WORDS], largest[CHUNK_WORDS];
        load_tile(strip, f, chunk, tile, largest);
        if (!folded) {
            amax = chunk_largest(largest);
        }
        uint8_t scale = scale_from(amax, strip, f);
        int slow = scale_is_slow(scale, amax);
        lane_scales lanes = lane_scales_make(words_set(scale), f);
        for (int64_t token = 0; token < strip->used; token++) {
            encode_uniform(strip, f, token, chunk, tile[token], scale, &lanes, slow);
        }
        store_square_scale(strip, chunk, scale);
    }
}

ALWAYS_INLINE void strip_columns(const mxa_quantize_strip *strip, format f)
{
    const mxa_scale_place *place = &strip->places[MXATTN_SEQ];
    for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
        words tile[MXA_BLOCK][CHUNK_WORDS], largest[CHUNK_WORDS];
        load_tile(strip, f, chunk, tile, largest);
        uint16_t amax[MXA_BLOCK], wide_scale[MXA_BLOCK];
        uint8_t scale[MXA_BLOCK];
        int slow = 0;
        for (int i = 0; i < CHUNK_WORDS; i++) {
            words_store(amax + i * WORDS_LANES, largest[i]);
        }
        for (int64_t i = 0; i < MXA_BLOCK; i++) {
            scale[i] = scale_from(amax[i], strip, f);
            wide_scale[i] = scale[i];
            slow |= scale_is_slow(scale[i], amax[i]);
            if (place->data && chunk * MXA_BLOCK + i < strip->dims) {
                *mxa_scale_place_at(place, chunk, i) = scale[i];
            }
        }
        lane_scales lanes[CHUNK_WORDS];
        for (int i = 0; i < CHUNK_WORDS; i++) {
            lanes[i] = lane_scales_make(words_load(wide_scale + i * WORDS_LANES), f);
        }
        for (int64_t token = 0; token < strip->used; token++) {
            if (slow) {
                encode_chunk_slowly(strip, f, token, chunk, scale, 1);
            } else {
                encode_chunk(strip, f, token, chunk, tile[token], lanes);
            }
        }
    }
}

/* The payload of a strip, transposed; short rows and columns by single bytes. */
static void strip_transpose(const mxa_quantize_strip *strip)
{
    for (int64_t d = 0; d < strip->dims; d += MXA_BLOCK) {
        const uint8_t *from = strip->payload + d;
        uint8_t *to = strip->transposed + d * strip->transposed_stride;
        if (strip->tokens == MXA_BLOCK && strip->dims - d >= MXA_BLOCK) {
            bytes_transpose(from, strip->payload_stride, to, strip->transposed_stride);
            continue;
        }
        for (int64_t j = 0; j < MXA_BLOCK && d + j < strip->dims; j++) {
            for (int64_t token = 0; token < strip->tokens; token++) {
                to[j * strip->transposed_stride + token] = from[token * strip->payload_stride + j];
            }
        }
    }
}

ALWAYS_INLINE void strip_typed(const mxa_quantize_strip *strip, format f)
{
    switch (strip->tags.block) {
    case MXATTN_BLOCK_ROW:
        strip_rows(strip, f);
        return;
    case MXATTN_BLOCK_COLUMN:
        strip_columns(strip, f);
        return;
    case MXATTN_BLOCK_SQUARE:
        strip_squares(strip, f);
        return;
    case MXATTN_BLOCK_NONE:
        return;
    }
}

#define DEFINE_STRIP(name, wide, narrow)                                                           \
    static __attribute__((noinline)) void name(const mxa_quantize_strip *strip)                    \
    {                                                                                              \
        strip_typed(strip, (format){wide, narrow});                                                \
    }

DEFINE_STRIP(strip_f32_e4m3, MXATTN_F32, MXATTN_E4M3)
DEFINE_STRIP(strip_f16_e4m3, MXATTN_F16, MXATTN_E4M3)
DEFINE_STRIP(strip_bf16_e4m3, MXATTN_BF16, MXATTN_E4M3)
DEFINE_STRIP(strip_f32_e5m2, MXATTN_F32, MXATTN_E5M2)
DEFINE_STRIP(strip_f16_e5m2, MXATTN_F16, MXATTN_E5M2)
DEFINE_STRIP(strip_bf16_e5m2, MXATTN_BF16, MXATTN_E5M2)

static void quantize_strip(const mxa_quantize_strip *strip)
{
    int e5m2 = strip->tags.dtype == MXATTN_E5M2;
    if (strip->wide_dtype == MXATTN_F32) {
        (e5m2 ? strip_f32_e5m2 : strip_f32_e4m3)(strip);
    } else if (strip->wide_dtype == MXATTN_F16) {
        (e5m2 ? strip_f16_e5m2 : strip_f16_e4m3)(strip);
    } else {
        (e5m2 ? strip_bf16_e5m2 : strip_bf16_e4m3)(strip);
    }
    for (int64_t token = strip->used; token < strip->tokens; token++) {
        memset(strip->payload + token * strip->payload_stride, 0, (size_t)strip->dims);
    }
    if (strip->transposed) {
        strip_transpose(strip);
    }
}

static void quantize_mean(const void *wide, int64_t wide_stride, mxattn_dtype wide_dtype,
                          int64_t tokens, int64_t dims, float *mean)
{
    double sum[MXA_BLOCK] = {0};
    for (int64_t token = 0; token < tokens; token++) {
        float x[MXA_BLOCK];
        load_floats(wide, (format){wide_dtype, MXATTN_E4M3}, token * wide_stride, dims, x);
        for (int i = 0; i < MXA_BLOCK; i++) {
            sum[i] += (double)x[i];
        }
    }
    for (int64_t i = 0; i < dims; i++) {
        float x = tokens ? (float)(sum[i] / (double)tokens) : 0.0F;
        mean[i] = mxa_f32_is_finite(x) ? x : 0.0F;
    }
}

const mxa_quantize_kernels WORDS_NAME(mxa_quantize_kernels) = {quantize_strip, quantize_mean};
