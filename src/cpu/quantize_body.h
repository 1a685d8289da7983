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
 * That is all the loops do. Chunks with codes below the smallest normal one, and chunks whose scale
 * byte is under 32 (there FP32 subnormals may count) or that hold NaN or infinity, are noted and
 * encoded again after the loop: rare, and a call within it would cost every iteration its
 * registers.
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

/* What loops are instantiated for; constants once inlined. */
typedef struct format {
    mxattn_dtype wide;
    mxattn_dtype narrow;
    int plain; /* no centre, and no chunk is short */
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
    if (!f.plain && strip->centre) {
        float x[MXA_BLOCK];
        chunk_floats(strip, f, token, chunk, x);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = words_from_f32(x + i * WORDS_LANES);
        }
        return;
    }
    if (!f.plain && left < MXA_BLOCK) {
        size_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
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

/* 1 where words do not hold all that counts. Of zeros they do under any scale. */
ALWAYS_INLINE int scale_is_slow(uint8_t scale, uint16_t amax)
{
    return amax != 0 && (scale < FAST_SCALE_LEAST || scale > FAST_SCALE_MOST);
}

/* What a rounded word's exponent loses: the scale, but for the bias. Any scale will do for zeros.
 */
ALWAYS_INLINE uint16_t subtrahend(uint8_t scale, format f)
{
    int least = scale > FAST_SCALE_LEAST ? scale : FAST_SCALE_LEAST;
    return (uint16_t)((least - narrow_bias(f)) << (7 - dropped_bits(f)));
}

/* x / 2^drop to nearest even; no lane overflows. */
ALWAYS_INLINE words round_even(words x, int drop)
{
    words even = words_and(words_shift_right(x, drop), words_set(1));
    words half = words_set((uint16_t)((1 << (drop - 1)) - 1));
    return words_shift_right(words_add(words_add(x, half), even), drop);
}

/* Saturates, and puts the sign of w back. */
ALWAYS_INLINE words finish_code(words code, words w, format f)
{
    words sign = words_and(words_shift_right(w, 8), words_set(0x80));
    return words_or(words_min(code, words_set(f.narrow == MXATTN_E5M2 ? 0x7B : 0x7E)), sign);
}

/* Codes of words that give zeros or normal codes; *small gains the lanes that give others. */
ALWAYS_INLINE words encode_words(words w, words subtract, format f, wmask *small)
{
    words rounded = round_even(magnitude(w), dropped_bits(f));
    words normal = words_add(subtract, words_set((uint16_t)(1 << (7 - dropped_bits(f)))));
    wmask below = wmask_and(words_less(rounded, normal), words_less(words_set(0), rounded));
    *small = wmask_or(*small, below);
    return finish_code(words_subtract(rounded, subtract), w, f);
}

/* Stores the codes of one chunk. */
ALWAYS_INLINE void store_codes(const mxa_quantize_strip *strip, format f, int64_t token,
                               int64_t chunk, const words code[CHUNK_WORDS])
{
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    uint8_t *out = strip->payload + token * strip->payload_stride + d;
    if (f.plain || left >= MXA_BLOCK) {
        words_pack(out, code);
        return;
    }
    uint8_t codes[MXA_BLOCK];
    words_pack(codes, code);
    memcpy(out, codes, (size_t)left);
}

/* Writes one chunk; returns 1 when it has to be encoded again. */
ALWAYS_INLINE int encode_chunk(const mxa_quantize_strip *strip, format f, int64_t token,
                               int64_t chunk, const words w[CHUNK_WORDS],
                               const words subtract[CHUNK_WORDS])
{
    words code[CHUNK_WORDS];
    wmask small = words_less(w[0], w[0]);
    for (int i = 0; i < CHUNK_WORDS; i++) {
        code[i] = encode_words(w[i], subtract[i], f, &small);
    }
    store_codes(strip, f, token, chunk, code);
    return wmask_any(small);
}

/* Codes below the smallest normal one, whose exponent in FP32 is `normal`: the significand, its 8
 * bits on top of a word, is shifted right by one more than the binades the value lies below, then
 * rounded. */
ALWAYS_INLINE words encode_small_words(words w, words scale, format f)
{
    words a = magnitude(w), ignored = words_set(0);
    words below = words_subtract(scale, words_set((uint16_t)narrow_bias(f)));
    words normal = words_add(below, words_set(1));
    words shift = words_subtract(normal, words_shift_right(a, 7));
    words significand = words_or(words_shift_left(a, 8), words_set(0x8000));
    words rest = words_shift_lanes(significand, words_min(shift, words_set(15)));
    words tiny = finish_code(round_even(rest, dropped_bits(f) + 8), w, f);
    wmask small = words_less(ignored, ignored);
    words usual = encode_words(w, words_shift_left(below, 7 - dropped_bits(f)), f, &small);
    return words_select(words_less(words_set(0), shift), tiny, usual);
}

/* One chunk again, whatever it holds, under the scale of each lane. */
static __attribute__((noinline)) void encode_chunk_again(const mxa_quantize_strip *strip, format f,
                                                         int64_t token, int64_t chunk,
                                                         const uint8_t scale[MXA_BLOCK])
{
    float x[MXA_BLOCK];
    uint8_t codes[MXA_BLOCK];
    uint16_t wide_scale[MXA_BLOCK];
    words w[CHUNK_WORDS];
    int slow = 0;
    for (int i = 0; i < MXA_BLOCK; i++) {
        slow |= scale[i] < FAST_SCALE_LEAST || scale[i] > FAST_SCALE_MOST;
        wide_scale[i] = scale[i];
    }
    f.plain = 0;
    if (slow) {
        chunk_floats(strip, f, token, chunk, x);
        for (int i = 0; i < MXA_BLOCK; i++) {
            codes[i] = mxa_fp8_encode(x[i], scale[i], f.narrow);
        }
    } else {
        chunk_words(strip, f, token, chunk, w);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            w[i] = encode_small_words(w[i], words_load(wide_scale + i * WORDS_LANES), f);
        }
        words_pack(codes, w);
    }
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    memcpy(strip->payload + token * strip->payload_stride + d, codes,
           (size_t)(left < MXA_BLOCK ? left : MXA_BLOCK));
}

/* Largest word of one token over all dims. */
ALWAYS_INLINE uint16_t token_largest(const mxa_quantize_strip *strip, format f, int64_t token)
{
    words largest = words_set(0);
    for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
        words w[CHUNK_WORDS];
        chunk_words(strip, f, token, chunk, w);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            largest = words_max(largest, magnitude(w[i]));
        }
    }
    return words_largest(largest);
}

ALWAYS_INLINE void set_all(words lanes[CHUNK_WORDS], uint16_t x)
{
    for (int i = 0; i < CHUNK_WORDS; i++) {
        lanes[i] = words_set(x);
    }
}

/* Up to 32 chunks of one token, from `first`. amax: of the token where folded. */
ALWAYS_INLINE void encode_row(const mxa_quantize_strip *strip, format f, int64_t token,
                              int64_t first, int64_t count, int folded, uint16_t amax)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    uint8_t scales[MXA_BLOCK];
    uint32_t again = 0;
    for (int64_t i = 0; i < count; i++) {
        words w[CHUNK_WORDS], m[CHUNK_WORDS], subtract[CHUNK_WORDS];
        chunk_words(strip, f, token, first + i, w);
        if (!folded) {
            for (int j = 0; j < CHUNK_WORDS; j++) {
                m[j] = magnitude(w[j]);
            }
            amax = chunk_largest(m);
        }
        scales[i] = scale_from(amax, strip, f);
        set_all(subtract, subtrahend(scales[i], f));
        int redo = encode_chunk(strip, f, token, first + i, w, subtract);
        again |= (uint32_t)(redo | scale_is_slow(scales[i], amax)) << i;
    }
    for (int64_t i = 0; place->data && i < count; i++) {
        *mxa_scale_place_at(place, first + i, token) = scales[i];
    }
    for (int64_t i = 0; again; i++, again >>= 1) {
        if (again & 1) {
            uint8_t scale[MXA_BLOCK];
            memset(scale, scales[i], sizeof scale);
            encode_chunk_again(strip, f, token, first + i, scale);
        }
    }
}

ALWAYS_INLINE void strip_rows(const mxa_quantize_strip *strip, format f)
{
    int folded = (strip->tags.flags & MXATTN_FOLDED_TOKEN) != 0;
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    int64_t chunks = mxa_blocks(strip->dims);
    for (int64_t token = 0; token < strip->used; token++) {
        uint16_t amax = folded ? token_largest(strip, f, token) : 0;
        for (int64_t first = 0; first < chunks; first += MXA_BLOCK) {
            int64_t count = chunks - first < MXA_BLOCK ? chunks - first : MXA_BLOCK;
            encode_row(strip, f, token, first, count, folded, amax);
        }
    }
    for (int64_t token = strip->used; place->data && token < strip->tokens; token++) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
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
    set_all(largest, 0);
    for (int64_t token = 0; token < strip->used; token++) {
        chunk_words(strip, f, token, chunk, tile[token]);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            largest[i] = words_max(largest[i], magnitude(tile[token][i]));
        }
    }
}

/* Encodes the used tokens of one chunk under the scale of each lane. */
ALWAYS_INLINE void encode_tile(const mxa_quantize_strip *strip, format f, int64_t chunk,
                               words tile[MXA_BLOCK][CHUNK_WORDS],
                               const words subtract[CHUNK_WORDS], int slow,
                               const uint8_t scale[MXA_BLOCK])
{
    uint32_t again = slow ? ~(uint32_t)0 : 0;
    for (int64_t token = 0; token < strip->used; token++) {
        again |= (uint32_t)encode_chunk(strip, f, token, chunk, tile[token], subtract) << token;
    }
    for (int64_t token = 0; token < strip->used && again; token++, again >>= 1) {
        if (again & 1) {
            encode_chunk_again(strip, f, token, chunk, scale);
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
        words tile[MXA_BLOCK][CHUNK_WORDS], largest[CHUNK_WORDS], subtract[CHUNK_WORDS];
        uint8_t scale[MXA_BLOCK];
        load_tile(strip, f, chunk, tile, largest);
        if (!folded) {
            amax = chunk_largest(largest);
        }
        memset(scale, scale_from(amax, strip, f), sizeof scale);
        set_all(subtract, subtrahend(scale[0], f));
        encode_tile(strip, f, chunk, tile, subtract, scale_is_slow(scale[0], amax), scale);
        store_square_scale(strip, chunk, scale[0]);
    }
}

ALWAYS_INLINE void strip_columns(const mxa_quantize_strip *strip, format f)
{
    const mxa_scale_place *place = &strip->places[MXATTN_SEQ];
    for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
        words tile[MXA_BLOCK][CHUNK_WORDS], largest[CHUNK_WORDS], subtract[CHUNK_WORDS];
        uint16_t amax[MXA_BLOCK], lost[MXA_BLOCK];
        uint8_t scale[MXA_BLOCK];
        int slow = 0;
        load_tile(strip, f, chunk, tile, largest);
        for (int i = 0; i < CHUNK_WORDS; i++) {
            words_store(amax + i * WORDS_LANES, largest[i]);
        }
        for (int i = 0; i < MXA_BLOCK; i++) {
            scale[i] = scale_from(amax[i], strip, f);
            lost[i] = subtrahend(scale[i], f);
            slow |= scale_is_slow(scale[i], amax[i]);
        }
        for (int i = 0; i < CHUNK_WORDS; i++) {
            subtract[i] = words_load(lost + i * WORDS_LANES);
        }
        encode_tile(strip, f, chunk, tile, subtract, slow, scale);
        for (int64_t i = 0; place->data && i < MXA_BLOCK; i++) {
            if (chunk * MXA_BLOCK + i < strip->dims) {
                *mxa_scale_place_at(place, chunk, i) = scale[i];
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

/* WHY the copy: stores of bytes may alias *strip, whose fields would be read again after each. */
#define DEFINE_STRIP(name, wide, narrow)                                                           \
    static __attribute__((noinline)) void name(const mxa_quantize_strip *strip)                    \
    {                                                                                              \
        const mxa_quantize_strip copy = *strip;                                                    \
        if (copy.centre || copy.dims % MXA_BLOCK) {                                                \
            strip_typed(&copy, (format){wide, narrow, 0});                                         \
        } else {                                                                                   \
            strip_typed(&copy, (format){wide, narrow, 1});                                         \
        }                                                                                          \
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
        load_floats(wide, (format){wide_dtype, MXATTN_E4M3, 0}, token * wide_stride, dims, x);
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
