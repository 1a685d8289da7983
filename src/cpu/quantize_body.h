/* quantize_body.h: the quantizer's kernels, one body for every instruction set.
 *
 * Meaning: mxa_quantize_tensor (mx/tensor.c), equalled byte for byte. Elements become 16-bit words
 * (words_portable.h); a scale comes from the largest word; a code is the word rounded to the
 * mantissa bits that stay, minus the scale in the exponent's place:
 *
 *   word   s eeeeeeee mmmmmmm                a = word without s
 *   E4M3   code = (a + key + even) >> 4      even = bit 4 of a: ties go to even
 *          key  = 7 - 128*(scale - 7)        its exponent is e - scale + 7
 *   E5M2   one bit less, and 15 for both 7.
 *
 * So a key says all about a scale. The loops work on quads: up to 128 dims (4 chunks of 32) of one
 * token. They load quads and fold the magnitudes of each into one vector, then make maxima, scales
 * and keys of 8 quads at once, then encode. No step is of one chunk, so none is of one number.
 * That is all they do: quads with codes below the smallest normal one that are not zeros, and
 * chunks whose scale byte is under 32 (there FP32 subnormals may count) or that hold NaN or
 * infinity, are noticed and encoded again by encode_chunk: rare, and exact for whatever they hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/quantize_chunk_body.h"

enum {
    QUAD = 128,                   /* dims */
    CHUNKS = QUAD / MXA_BLOCK,    /* of a quad */
    VECTORS = QUAD / WORDS_LANES, /* of a quad */
    TOGETHER = 2 * WORDS_LANES,   /* codes that leave at once */
    GROUP = MXA_BLOCK / CHUNKS,   /* quads whose scales are made at once: 32 chunks */
    BATCH = MXA_BLOCK             /* quads between load and encode */
};

/* Quads under way: their words, and the scale and key of each chunk. */
typedef struct batch {
    const uint16_t *words[BATCH];        /* in `space`, or where they came from */
    uint8_t *codes[BATCH];               /* where they go, in `whole` or for good */
    uint8_t *scales[BATCH];              /* where those of rows go; NULL: nowhere */
    uint16_t folded[BATCH][WORDS_LANES]; /* words_fold of the magnitudes */
    uint16_t amax[BATCH * CHUNKS];
    uint32_t key[BATCH * CHUNKS]; /* twice in each */
    uint8_t scale[BATCH * CHUNKS];
    uint16_t space[BATCH][QUAD];
    uint8_t whole[BATCH][QUAD];
} batch;

/* Where codes go. */
typedef struct target {
    uint8_t *at;
    int64_t stride;
    int stream; /* past the caches */
} target;

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

/* A quad's words, zeros beyond `width`, and where they can be read again. */
ALWAYS_INLINE const uint16_t *load_quad(const mxa_quantize_strip *strip, format f, int64_t token,
                                        int64_t d, int width, words quad[VECTORS],
                                        uint16_t space[QUAD])
{
    const int64_t index = token * strip->wide_stride + d;
    const int direct = f.plain && f.wide == MXATTN_BF16;
    UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        words *chunk = quad + c * CHUNK_WORDS;
        if (c * MXA_BLOCK < width) {
            chunk_words(strip, f, token, d + c * MXA_BLOCK, chunk);
        } else {
            UNROLL
            for (int i = 0; i < CHUNK_WORDS; i++) {
                chunk[i] = words_set(0);
            }
        }
    }
    if (direct) {
        return (const uint16_t *)strip->wide + index;
    }
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        const int beyond = i * WORDS_LANES >= width; /* large, so that no code there seems small */
        words_store(space + i * WORDS_LANES, beyond ? words_set(0x7F00) : quad[i]);
    }
    return space;
}

/* Asks for what the next strip will read: its rows lie apart, which the machine's own prefetching
 * does not foresee. */
ALWAYS_INLINE void load_ahead(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                              int width)
{
    const int bytes = f.wide == MXATTN_F32 ? 4 : 2;
    const char *next = (const char *)strip->wide + (token * strip->wide_stride + d) * bytes;
    if (strip->ahead) {
        UNROLL
        for (int i = 0; i < QUAD * bytes; i += 64) {
            if (i < width * bytes) {
                __builtin_prefetch(next + strip->ahead + i);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * scales
 * --------------------------------------------------------------------------------------------- */

/* Scales and keys of 32 maxima; returns 1 when one is slow, words then not holding all that counts,
 * or 0 (of zeros they do under any scale). */
ALWAYS_INLINE int scales_of(const mxa_quantize_strip *strip, format f,
                            const words amax[CHUNK_WORDS], uint8_t scale[MXA_BLOCK],
                            words key[CHUNK_WORDS])
{
    const int top = f.narrow == MXATTN_E5M2 ? 15 : 8;
    const int half = (1 << (dropped_bits(f) - 1)) - 1;
    const words up = words_set(strip->tags.rounding == MXATTN_RCEIL ? 0x1F : 0); /* above 0x60 */
    words exponent[CHUNK_WORDS], slow = words_set(0);
    UNROLL
    for (int i = 0; i < CHUNK_WORDS; i++) {
        const words e = words_shift_right(words_add(amax[i], up), 7);
        const words low = words_subtract(words_set((uint16_t)(FAST_SCALE_LEAST + top)), e);
        slow = words_or(slow, words_min(low, amax[i]));
        slow = words_or(slow, words_subtract(e, words_set(0xFE)));
        exponent[i] = words_subtract(e, words_set((uint16_t)top));
        const words places =
            words_shift_left(words_max(exponent[i], words_set(FAST_SCALE_LEAST)), 7);
        /* -places + half + bias in the exponent's place, as ~x is -x - 1. */
        key[i] = words_add(words_subtract(words_set(0xFFFF), places),
                           words_set((uint16_t)(1 + half + narrow_bias(f) * 128)));
    }
    words_pack(scale, exponent);
    return words_any(slow);
}

/* The scales of infinity and NaN, which scales_of calls slow. */
static __attribute__((noinline)) void scales_of_special(const uint16_t amax[MXA_BLOCK],
                                                        uint8_t scale[MXA_BLOCK])
{
    for (int i = 0; i < MXA_BLOCK; i++) {
        if (amax[i] >= 0x7F80) {
            scale[i] = (uint8_t)(0xFE + (amax[i] > 0x7F80));
        }
    }
}

/* Maxima, scales and keys of the chunks of `count` quads that were folded. */
ALWAYS_INLINE int scales_of_batch(const mxa_quantize_strip *strip, format f, int count, batch *b)
{
    int slow = 0;
    for (int q = 0; q < count; q += GROUP) {
        const int c = q * CHUNKS;
        words amax[CHUNK_WORDS], key[CHUNK_WORDS];
        words_maxima(b->folded[q], amax);
        const int special = scales_of(strip, f, amax, b->scale + c, key);
        UNROLL
        for (int i = 0; i < CHUNK_WORDS; i++) {
            words_store(b->amax + c + i * WORDS_LANES, amax[i]);
            words_store_twice(b->key + c + i * WORDS_LANES, key[i]);
        }
        if (special) {
            scales_of_special(b->amax + c, b->scale + c);
        }
        slow |= special;
    }
    return slow;
}

ALWAYS_INLINE int scale_is_slow(uint8_t scale, uint16_t amax)
{
    return amax != 0 && (scale < FAST_SCALE_LEAST || scale > FAST_SCALE_MOST);
}

/* ------------------------------------------------------------------------------------------------
 * encode
 * --------------------------------------------------------------------------------------------- */

/* Negative where the value lies below the smallest normal code by a binade or more. */
ALWAYS_INLINE words code_of(words w, words key, format f)
{
    const words rounded = words_add_bit(words_add(magnitude(w), key), w, dropped_bits(f));
    return words_shift_signed(rounded, dropped_bits(f));
}

/* `width` codes of a quad; key_step: words of `key` from one vector to the next, 0 where a chunk
 * has one key, twice in each. Returns 1 when one may be below the smallest normal code. */
ALWAYS_INLINE int encode_quad(const uint16_t *quad, format f, int width, const void *key,
                              int key_step, uint8_t *out, int stream)
{
    const uint32_t *of_chunk = key;
    const uint16_t *of_lane = key;
    codes least = codes_set(0xFF);
    UNROLL
    for (int i = 0; i < width; i += TOGETHER) {
        const words a = words_load(quad + i), b = words_load(quad + i + WORDS_LANES);
        words key_a, key_b;
        if (key_step) {
            key_a = words_load(of_lane + i);
            key_b = words_load(of_lane + i + WORDS_LANES);
        } else {
            key_a = words_pairs(of_chunk + i / MXA_BLOCK);
            key_b = words_pairs(of_chunk + (i + WORDS_LANES) / MXA_BLOCK);
        }
        const codes magnitudes = codes_join(code_of(a, key_a, f), code_of(b, key_b, f));
        least = codes_min(least, magnitudes);
        codes_put(out + i, codes_min(magnitudes, codes_set((uint8_t)narrow_most(f))), a, b, f.mixed,
                  stream);
    }
    return codes_any_below(least, (uint8_t)narrow_normal(f));
}

/* 1 where a chunk has codes below the smallest normal one and above 0. */
ALWAYS_INLINE int has_small(const uint16_t chunk[MXA_BLOCK], format f, const uint8_t *scale,
                            int step)
{
    words small = words_set(0);
    for (int i = 0; i < MXA_BLOCK; i += WORDS_LANES) {
        uint16_t normal[WORDS_LANES]; /* the smallest word of a normal code */
        for (int j = 0; j < WORDS_LANES; j++) {
            const int s = scale[(i + j) * step];
            const int fast = s > FAST_SCALE_LEAST ? s : FAST_SCALE_LEAST;
            normal[j] = (uint16_t)((fast - narrow_bias(f) + 1) << 7);
        }
        const words a = magnitude(words_load(chunk + i));
        small = words_or(small, words_min(words_subtract(words_load(normal), a), a));
    }
    return words_any(small);
}

/* The chunks of a quad that hold codes below the smallest normal one and above 0, and those that
 * are slow, again. step: 1 where each lane has a scale; else each chunk. */
static __attribute__((noinline)) void encode_again(const mxa_quantize_strip *strip, format f,
                                                   int64_t token, int64_t d, int width,
                                                   const uint16_t *quad, const uint8_t *scale,
                                                   const uint16_t *amax, int step, uint8_t *out)
{
    for (int c = 0; c < width; c += MXA_BLOCK) {
        const int first = step ? c : c / MXA_BLOCK, count = step ? MXA_BLOCK : 1;
        int again = has_small(quad + c, f, scale + first, step);
        for (int i = first; i < first + count; i++) {
            again |= scale_is_slow(scale[i], amax[i]);
        }
        if (again) {
            encode_chunk(strip, f, token, d + c, scale + first, step, out + c);
        }
    }
}

/* Quad i of a batch; returns 1 when a code may be below the smallest normal one. */
ALWAYS_INLINE uint32_t put_quad(format f, int width, const batch *b, int i, const void *key,
                                int key_step, int stream)
{
    const int all = width == QUAD || !f.plain;
    return (
        uint32_t)(all ? encode_quad(b->words[i], f, QUAD, key, key_step, b->codes[i], stream)
                      : encode_quad(b->words[i], f, QUAD / 2, key, key_step, b->codes[i], stream));
}

ALWAYS_INLINE int width_of(const mxa_quantize_strip *strip, int64_t d)
{
    const int64_t left = strip->dims - d;
    return left < QUAD ? (int)left : QUAD;
}

/* A quad of a strip; a walk goes token by token. */
typedef struct quad_at {
    int64_t token, d;
} quad_at;

ALWAYS_INLINE void quad_next(const mxa_quantize_strip *strip, quad_at *at)
{
    at->d += QUAD;
    if (at->d >= strip->dims) {
        at->d = 0;
        at->token++;
    }
}

/* What a batch still needs after its quads, which are those from `at` on, or of one column. WHY
 * apart: a loop that calls holds no constants in registers. again: a bit for each quad to look at;
 * scale_step: from the scales of a quad to the next one's. */
ALWAYS_INLINE void finish_batch(const mxa_quantize_strip *strip, format f, const target *to,
                                quad_at at, int count, int down, uint32_t again, int scale_step,
                                int step, const batch *b)
{
    if (!again && f.plain) {
        return;
    }
    for (int i = 0; i < count; i++) {
        const int width = width_of(strip, at.d);
        if (again >> i & 1) {
            encode_again(strip, f, at.token, at.d, width, b->words[i], b->scale + i * scale_step,
                         b->amax + i * scale_step, step, b->codes[i]);
        }
        if (!f.plain) {
            memcpy(to->at + at.token * to->stride + at.d, b->codes[i], (size_t)width);
        }
        if (down) {
            at.token++;
        } else {
            quad_next(strip, &at);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * rows
 * --------------------------------------------------------------------------------------------- */

/* The scale bytes of one quad of one token. */
ALWAYS_INLINE void store_row_scales(const mxa_scale_place *place, int width,
                                    const uint8_t scale[CHUNKS], uint8_t *to)
{
    if (!place->data) {
        return;
    }
    if (place->stride_1 == 1 && width == QUAD) {
        memcpy(to, scale, CHUNKS);
        return;
    }
    for (int c = 0; c * MXA_BLOCK < width; c++) {
        to[c * place->stride_1] = scale[c];
    }
}

/* `count` quads from `at` on. */
ALWAYS_INLINE void row_batch(const mxa_quantize_strip *strip, format f, const target *to,
                             quad_at *at, int count, batch *b)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    quad_at from = *at;
    for (int i = 0; i < count; i++) {
        const int64_t token = from.token, d = from.d;
        const int width = width_of(strip, d);
        words quad[VECTORS];
        if (f.plain && width == QUAD) {
            b->words[i] = load_quad(strip, f, token, d, QUAD, quad, b->space[i]);
            load_ahead(strip, f, token, d, QUAD);
        } else {
            b->words[i] = load_quad(strip, f, token, d, width, quad, b->space[i]);
            load_ahead(strip, f, token, d, width);
        }
        b->codes[i] = f.plain ? to->at + token * to->stride + d : b->whole[i];
        b->scales[i] = mxa_scale_place_at(place, d / MXA_BLOCK, token);
        UNROLL
        for (int j = 0; j < VECTORS; j++) {
            quad[j] = magnitude(quad[j]);
        }
        words folded = words_fold(quad);
        if (strip->tags.flags & MXATTN_FOLDED_TOKEN) {
            folded = words_set(token_largest(strip, f, token));
        }
        words_store(b->folded[i], folded);
        quad_next(strip, &from);
    }
    uint32_t again = scales_of_batch(strip, f, count, b) ? 0xFFFFFFFF : 0;
    quad_at now = *at;
    for (int i = 0; i < count; i++) {
        const int width = width_of(strip, now.d);
        store_row_scales(place, width, b->scale + i * CHUNKS, b->scales[i]);
        again |= put_quad(f, width, b, i, b->key + i * CHUNKS, 0, to->stream) << i;
        quad_next(strip, &now);
    }
    finish_batch(strip, f, to, *at, count, 0, again, CHUNKS, 0, b);
    *at = now;
}

ALWAYS_INLINE void strip_rows(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    const int64_t total = strip->used * ((strip->dims + QUAD - 1) / QUAD);
    quad_at at = {0, 0};
    batch b;
    memset(b.folded, 0, sizeof b.folded);
    for (int64_t first = 0; first < total; first += BATCH) {
        row_batch(strip, f, to, &at, total - first < BATCH ? (int)(total - first) : BATCH, &b);
    }
    for (int64_t token = strip->used; place->data && token < strip->tokens; token++) {
        for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
            *mxa_scale_place_at(place, chunk, token) = 0;
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * squares and columns
 * --------------------------------------------------------------------------------------------- */

/* Loads the used tokens of a quad, and the largest magnitude of each lane. */
ALWAYS_INLINE void load_quads(const mxa_quantize_strip *strip, format f, const target *to,
                              int64_t d, int width, batch *b, words largest[VECTORS])
{
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        largest[i] = words_set(0);
    }
    for (int64_t token = 0; token < strip->used; token++) {
        words quad[VECTORS];
        b->words[token] = load_quad(strip, f, token, d, width, quad, b->space[token]);
        load_ahead(strip, f, token, d, width);
        b->codes[token] = f.plain ? to->at + token * to->stride + d : b->whole[token];
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            largest[i] = words_max(largest[i], magnitude(quad[i]));
        }
    }
}

/* The scales of a quad's squares, into both arrays. */
ALWAYS_INLINE void store_square_scales(const mxa_quantize_strip *strip, int64_t d, int width,
                                       const uint8_t scale[CHUNKS])
{
    const mxa_scale_place *seq = &strip->places[MXATTN_SEQ], *hdim = &strip->places[MXATTN_HDIM];
    const int64_t rows = hdim->stride_within ? strip->tokens : 1;
    for (int64_t token = 0; token < rows; token++) {
        store_row_scales(hdim, width, scale, mxa_scale_place_at(hdim, d / MXA_BLOCK, token));
    }
    for (int c = 0; seq->data && c * MXA_BLOCK < width; c++) {
        const int left = width - c * MXA_BLOCK, within = left < MXA_BLOCK ? left : MXA_BLOCK;
        uint8_t *to = mxa_scale_place_at(seq, d / MXA_BLOCK + c, 0);
        if (seq->stride_within == 1 && within == MXA_BLOCK) {
            memset(to, scale[c], MXA_BLOCK);
            continue;
        }
        for (int i = 0; i < within; i++) {
            to[i * seq->stride_within] = scale[c];
        }
    }
}

ALWAYS_INLINE void square_quad(const mxa_quantize_strip *strip, format f, const target *to,
                               int64_t d, int width, uint16_t folded, batch *b)
{
    words largest[VECTORS];
    load_quads(strip, f, to, d, width, b, largest);
    words_store(b->folded[0],
                strip->tags.flags & MXATTN_FOLDED ? words_set(folded) : words_fold(largest));
    const int count = (int)strip->used;
    uint32_t again = scales_of_batch(strip, f, 1, b) ? 0xFFFFFFFF : 0;
    for (int token = 0; token < count; token++) {
        again |= put_quad(f, width, b, token, b->key, 0, to->stream) << token;
    }
    finish_batch(strip, f, to, (quad_at){0, d}, count, 1, again, 0, 0, b);
    store_square_scales(strip, d, width, b->scale);
}

ALWAYS_INLINE void strip_squares(const mxa_quantize_strip *strip, format f, const target *to)
{
    const int folded = (strip->tags.flags & MXATTN_FOLDED) != 0;
    uint16_t amax = 0;
    batch b;
    memset(b.folded, 0, GROUP * sizeof b.folded[0]);
    for (int64_t token = 0; folded && token < strip->used; token++) {
        uint16_t largest = token_largest(strip, f, token);
        amax = largest > amax ? largest : amax;
    }
    for (int64_t d = 0; d < strip->dims; d += QUAD) {
        const int width = width_of(strip, d);
        if (f.plain && width == QUAD) {
            square_quad(strip, f, to, d, QUAD, amax, &b);
        } else {
            square_quad(strip, f, to, d, width, amax, &b);
        }
    }
}

/* Each lane has a scale: elements stay in order. */
ALWAYS_INLINE void strip_columns(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_SEQ];
    const int count = (int)strip->used;
    batch b;
    for (int64_t d = 0; d < strip->dims; d += QUAD) {
        const int width = width_of(strip, d);
        words largest[VECTORS];
        uint16_t key[QUAD];
        int slow = 0;
        load_quads(strip, f, to, d, width, &b, largest);
        for (int c = 0; c < CHUNKS; c++) {
            words of_chunk[CHUNK_WORDS];
            const words *amax = largest + c * CHUNK_WORDS;
            const int special = scales_of(strip, f, amax, b.scale + c * MXA_BLOCK, of_chunk);
            for (int i = 0; i < CHUNK_WORDS; i++) {
                words_store(key + c * MXA_BLOCK + i * WORDS_LANES, of_chunk[i]);
                words_store(b.amax + c * MXA_BLOCK + i * WORDS_LANES, amax[i]);
            }
            if (special) {
                scales_of_special(b.amax + c * MXA_BLOCK, b.scale + c * MXA_BLOCK);
            }
            slow |= special;
        }
        uint32_t again = slow ? 0xFFFFFFFF : 0;
        for (int token = 0; token < count; token++) {
            again |= put_quad(f, width, &b, token, key, 1, to->stream) << token;
        }
        finish_batch(strip, f, to, (quad_at){0, d}, count, 1, again, 0, 1, &b);
        for (int c = 0; place->data && c < width; c += MXA_BLOCK) {
            const int left = width - c, within = left < MXA_BLOCK ? left : MXA_BLOCK;
            uint8_t *out = mxa_scale_place_at(place, (d + c) / MXA_BLOCK, 0);
            for (int i = 0; i < within; i++) {
                out[i * place->stride_within] = b.scale[c + i];
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * a strip
 * --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE void strip_typed(const mxa_quantize_strip *strip, format f, const target *to)
{
    format any_order = f;
    any_order.mixed = f.plain && f.wide != MXATTN_BF16;
    switch (strip->tags.block) {
    case MXATTN_BLOCK_ROW:
        strip_rows(strip, any_order, to);
        return;
    case MXATTN_BLOCK_COLUMN:
        strip_columns(strip, f, to);
        return;
    case MXATTN_BLOCK_SQUARE:
        strip_squares(strip, any_order, to);
        return;
    case MXATTN_BLOCK_NONE:
        return;
    }
}

/* Whole lines only: a part of one would be read before it is written. */
static int codes_may_stream(const mxa_quantize_strip *strip)
{
    return strip->stream && !strip->centre && strip->dims % 64 == 0 &&
           strip->payload_stride % 64 == 0 && (uintptr_t)strip->payload % 64 == 0 &&
           !strip->transposed;
}

/* WHY the copy: stores of bytes may alias *strip, whose fields would be read again after each. */
ALWAYS_INLINE void strip_of(const mxa_quantize_strip *strip, format f)
{
    const mxa_quantize_strip copy = *strip;
    const target to = {copy.payload, copy.payload_stride, codes_may_stream(&copy)};
    strip_typed(&copy, f, &to);
}

#define DEFINE_STRIP(name, wide, narrow)                                                           \
    static __attribute__((noinline)) void name(const mxa_quantize_strip *strip)                    \
    {                                                                                              \
        strip_of(strip, (format){wide, narrow, 1, 0});                                             \
    }

DEFINE_STRIP(strip_f32_e4m3, MXATTN_F32, MXATTN_E4M3)
DEFINE_STRIP(strip_f16_e4m3, MXATTN_F16, MXATTN_E4M3)
DEFINE_STRIP(strip_bf16_e4m3, MXATTN_BF16, MXATTN_E4M3)
DEFINE_STRIP(strip_f32_e5m2, MXATTN_F32, MXATTN_E5M2)
DEFINE_STRIP(strip_f16_e5m2, MXATTN_F16, MXATTN_E5M2)
DEFINE_STRIP(strip_bf16_e5m2, MXATTN_BF16, MXATTN_E5M2)

/* The rest: a centre, or dims that are no multiple of 64. */
static __attribute__((noinline)) void strip_any(const mxa_quantize_strip *strip)
{
    strip_of(strip, (format){strip->wide_dtype, strip->tags.dtype, 0, 0});
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

static void quantize_strip(const mxa_quantize_strip *strip)
{
    const int e5m2 = strip->tags.dtype == MXATTN_E5M2;
    if (strip->centre || strip->dims % 64) {
        strip_any(strip);
    } else if (strip->wide_dtype == MXATTN_F32) {
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
        load_floats(wide, (format){wide_dtype, MXATTN_E4M3, 0, 0}, token * wide_stride, dims, x);
        for (int i = 0; i < MXA_BLOCK; i++) {
            sum[i] += (double)x[i];
        }
    }
    for (int64_t i = 0; i < dims; i++) {
        float x = tokens ? (float)(sum[i] / (double)tokens) : 0.0F;
        mean[i] = mxa_f32_is_finite(x) ? x : 0.0F;
    }
}

const mxa_quantize_kernels WORDS_NAME(mxa_quantize_kernels) = {quantize_strip, quantize_mean,
                                                               codes_drain};
