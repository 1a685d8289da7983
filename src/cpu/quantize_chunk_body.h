/* quantize_chunk_body.h: elements of one chunk (32 dims of one token) as words, and the encoder for
 * what the quantizer's fast loops leave: codes below the smallest normal one, scales near either
 * end of their range, NaN and infinity.
 *
 * Included by quantize_batch_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_QUANTIZE_CHUNK_BODY_H
#define MXA_CPU_QUANTIZE_CHUNK_BODY_H

#include "cpu/quantize.h"

#include "mx/e8m0.h"
#include "mx/element.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before each short loop over vectors; unrolled early, they stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { FAST_SCALE_LEAST = 32, FAST_SCALE_MOST = 0xF7 };

/* What loops are instantiated for; constants once inlined. */
typedef struct format {
    mxattn_dtype wide;
    mxattn_dtype narrow;
    int plain; /* no centre, and dims are a multiple of 64 */
    int mixed; /* words of two vectors of FP32 in the order in which they are packed fastest */
    int cut;   /* words are cut (words_portable.h) */
} format;

ALWAYS_INLINE int dropped_bits(format f)
{
    return f.narrow == MXATTN_E5M2 ? 5 : 4;
}

ALWAYS_INLINE int narrow_bias(format f)
{
    return f.narrow == MXATTN_E5M2 ? 15 : 7;
}

/* The smallest normal code. */
ALWAYS_INLINE int narrow_normal(format f)
{
    return 1 << (7 - dropped_bits(f));
}

ALWAYS_INLINE int narrow_most(format f)
{
    return f.narrow == MXATTN_E5M2 ? 0x7B : 0x7E;
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

ALWAYS_INLINE words words_from(const void *wide, format f, int64_t index)
{
    if (f.wide == MXATTN_F32) {
        return words_from_f32((const float *)wide + index, f.mixed);
    }
    const uint16_t *half = (const uint16_t *)wide + index;
    return f.wide == MXATTN_BF16 ? words_load(half) : words_from_f16(half, f.mixed);
}

/* The elements of one chunk that are quantized, exactly; for what is rare. */
ALWAYS_INLINE void chunk_floats(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                                float x[MXA_BLOCK])
{
    int64_t left = strip->dims - d;
    int64_t count = left < MXA_BLOCK ? left : MXA_BLOCK;
    load_floats(strip->wide, f, token * strip->wide_stride + d, count, x);
    for (int64_t i = 0; strip->centre && i < count; i++) {
        x[i] -= strip->centre[d + i];
    }
}

ALWAYS_INLINE void chunk_words(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                               words w[CHUNK_WORDS])
{
    int64_t left = strip->dims - d;
    int64_t index = token * strip->wide_stride + d;
    if (!f.plain && (strip->centre || left < MXA_BLOCK)) {
        float x[MXA_BLOCK];
        chunk_floats(strip, f, token, d, x);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = words_from_f32(x + i * WORDS_LANES, 0);
        }
        return;
    }
    UNROLL
    for (int i = 0; i < CHUNK_WORDS; i++) {
        w[i] = words_from(strip->wide, f, index + i * WORDS_LANES);
    }
}

ALWAYS_INLINE words magnitude(words w)
{
    return words_and(w, words_set(0x7FFF));
}

/* Largest word of one token over all dims. */
ALWAYS_INLINE uint16_t token_largest(const mxa_quantize_strip *strip, format f, int64_t token)
{
    words largest = words_set(0);
    for (int64_t d = 0; d < strip->dims; d += MXA_BLOCK) {
        words w[CHUNK_WORDS];
        chunk_words(strip, f, token, d, w);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            largest = words_max(largest, magnitude(w[i]));
        }
    }
    return words_largest(largest);
}

/* x / 2^drop to nearest even; no lane overflows. */
ALWAYS_INLINE words round_even(words x, int drop)
{
    words even = words_and(words_shift_right(x, drop), words_set(1));
    words half = words_set((uint16_t)((1 << (drop - 1)) - 1));
    return words_shift_right(words_add(words_add(x, half), even), drop);
}

/* Codes under the scale of each lane, which is from FAST_SCALE_LEAST on. Normal ones: the rounded
 * word loses the scale, but for the bias, in the exponent's place. Below the smallest normal code,
 * whose exponent in FP32 is scale - bias + 1, the significand, its 8 bits on top of a word, is
 * shifted right by one more than the binades the value lies below, then rounded. */
ALWAYS_INLINE words encode_words(words w, words scale, format f)
{
    words a = magnitude(w);
    words below = words_subtract(scale, words_set((uint16_t)narrow_bias(f)));
    words shift = words_subtract(words_add(below, words_set(1)), words_shift_right(a, 7));
    words significand = words_or(words_shift_left(a, 8), words_set(0x8000));
    words rest = words_shift_lanes(significand, words_min(shift, words_set(15)));
    words tiny = round_even(rest, dropped_bits(f) + 8);
    words normal = words_subtract(round_even(a, dropped_bits(f)),
                                  words_shift_left(below, 7 - dropped_bits(f)));
    words code = words_select(words_less(words_set(0), shift), tiny, normal);
    words sign = words_and(words_shift_right(w, 8), words_set(0x80));
    return words_or(words_min(code, words_set((uint16_t)narrow_most(f))), sign);
}

/* The code of each of the 32 elements from dim d on, whatever they hold, under scale[i * step]. */
static __attribute__((noinline)) void encode_chunk(const mxa_quantize_strip *strip, format f,
                                                   int64_t token, int64_t d, const uint8_t *scale,
                                                   int step, uint8_t *out)
{
    float x[MXA_BLOCK];
    uint8_t encoded[MXA_BLOCK];
    uint16_t wide_scale[MXA_BLOCK];
    words w[CHUNK_WORDS];
    int slow = 0;
    for (int i = 0; i < MXA_BLOCK; i++) {
        slow |= scale[i * step] < FAST_SCALE_LEAST || scale[i * step] > FAST_SCALE_MOST;
        wide_scale[i] = scale[i * step];
    }
    f.plain = f.mixed = 0;
    if (slow) {
        chunk_floats(strip, f, token, d, x);
        for (int i = 0; i < MXA_BLOCK; i++) {
            encoded[i] = mxa_fp8_encode(x[i], scale[i * step], f.narrow);
        }
    } else {
        chunk_words(strip, f, token, d, w);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = encode_words(w[i], words_load(wide_scale + i * WORDS_LANES), f);
        }
        words_pack(encoded, w);
    }
    int64_t left = strip->dims - d;
    memcpy(out, encoded, (size_t)(left < MXA_BLOCK ? left : MXA_BLOCK));
}

#endif
