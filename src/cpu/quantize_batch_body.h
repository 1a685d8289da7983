/* quantize_batch_body.h: the quantizer's fast loops: quads of a batch are loaded and folded, get
 * their scales, and are encoded. What a quad and a key are: quantize_body.h, which includes this
 * file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_QUANTIZE_BATCH_BODY_H
#define MXA_CPU_QUANTIZE_BATCH_BODY_H

#include "cpu/quantize_chunk_body.h"

enum {
    PAIR = 2 * MXA_BLOCK,      /* dims */
    QUAD = 2 * PAIR,           /* dims */
    CHUNKS = QUAD / MXA_BLOCK, /* of a quad */
    PAIR_VECTORS = PAIR / WORDS_LANES,
    VECTORS = QUAD / WORDS_LANES,
    TOGETHER = 2 * WORDS_LANES, /* codes that leave at once */
    GROUP = MXA_BLOCK / CHUNKS, /* quads whose scales are made at once: 32 chunks */
    BATCH = MXA_BLOCK,          /* quads between load and encode */
    ABSENT = 0x7F00,            /* a word so large that its code does not seem small */
    UNUSED = 0x3F               /* either byte of a maximum that is never slow */
};

/* Quads under way: the words of their pairs, and the scale and key of each chunk. */
typedef struct batch {
    const uint16_t *words[2 * BATCH];    /* of pairs: in `space`, or where they came from */
    uint8_t *codes[2 * BATCH];           /* of pairs: where they go, in `whole` or for good */
    uint16_t folded[BATCH][WORDS_LANES]; /* words_fold of the magnitudes */
    uint16_t amax[BATCH * CHUNKS];
    uint32_t key[BATCH * CHUNKS]; /* twice in each */
    uint8_t scale[BATCH * CHUNKS];
    uint16_t space[2 * BATCH][PAIR];
    _Alignas(64) uint8_t whole[2 * BATCH][PAIR]; /* kept, or streamed to */
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

ALWAYS_INLINE int width_of(const mxa_quantize_strip *strip, format f, int64_t d)
{
    const int64_t left = strip->dims - d;
    return f.plain || left > PAIR ? PAIR : (int)left;
}

/* Magnitudes of pair p of a batch, zeros beyond its width; puts down where its words and codes lie.
 */
ALWAYS_INLINE void load_pair(const mxa_quantize_strip *strip, format f, const target *to,
                             int64_t token, int64_t d, batch *b, int p, words pair[PAIR_VECTORS])
{
    const int width = width_of(strip, f, d);
    UNROLL
    for (int c = 0; c < PAIR / MXA_BLOCK; c++) {
        words *chunk = pair + c * CHUNK_WORDS;
        if (c * MXA_BLOCK < width) {
            chunk_words(strip, f, token, d + c * MXA_BLOCK, chunk);
            continue;
        }
        UNROLL
        for (int i = 0; i < CHUNK_WORDS; i++) {
            chunk[i] = words_set(0);
        }
    }
    if (f.plain && f.wide == MXATTN_BF16) {
        b->words[p] = (const uint16_t *)strip->wide + token * strip->wide_stride + d;
    } else {
        b->words[p] = b->space[p];
        UNROLL
        for (int i = 0; i < PAIR_VECTORS; i++) {
            const int absent = i * WORDS_LANES >= width;
            words_store(b->space[p] + i * WORDS_LANES, absent ? words_set(ABSENT) : pair[i]);
        }
    }
    b->codes[p] = f.plain ? to->at + token * to->stride + d : b->whole[p];
    UNROLL
    for (int i = 0; i < PAIR_VECTORS; i++) {
        pair[i] = magnitude(pair[i]);
    }
}

/* The same for a quad at `from` of a plain strip, whose codes go to `out`. */
ALWAYS_INLINE void load_quad(format f, const void *from, uint8_t *out, batch *b, int p,
                             words quad[VECTORS])
{
    uint16_t *space = &b->space[0][0] + p * PAIR;
    b->words[p] = f.wide == MXATTN_BF16 ? from : space;
    b->codes[p] = out;
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        quad[i] = words_from(from, f, i * WORDS_LANES);
        if (f.wide != MXATTN_BF16) {
            words_store(space + i * WORDS_LANES, quad[i]);
        }
        quad[i] = magnitude(quad[i]);
    }
}

/* A pair that is not there. */
ALWAYS_INLINE void load_absent(batch *b, int p, words pair[PAIR_VECTORS])
{
    b->words[p] = b->space[p];
    b->codes[p] = b->whole[p];
    UNROLL
    for (int i = 0; i < PAIR_VECTORS; i++) {
        pair[i] = words_set(ABSENT);
        words_store(b->space[p] + i * WORDS_LANES, pair[i]);
    }
}

/* Memory that is asked for while quads are encoded, when nothing else is read from afar: what the
 * next batch or strip loads. */
typedef struct asked {
    const char *at; /* NULL: nothing */
    int bytes;      /* of a quad, 256 or 512 */
    int64_t skip;   /* from the end of a row to the next one */
    int quads;      /* of a row */
    int left;       /* of this row */
} asked;

ALWAYS_INLINE void ask(asked *a)
{
    enum { LINE = 64, HALVES = 2 * QUAD };
    if (!a->at) {
        return;
    }
    for (int i = 0; i < HALVES; i += LINE) {
        __builtin_prefetch(a->at + i);
    }
    for (int i = HALVES; a->bytes > HALVES && i < 2 * HALVES; i += LINE) {
        __builtin_prefetch(a->at + i);
    }
    a->at += a->bytes;
    if (--a->left == 0) {
        a->left = a->quads;
        a->at += a->skip;
    }
}

/* What the caller wants from dim d of a token on, for `quads` quads of each. */
ALWAYS_INLINE asked asked_of(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                             int quads)
{
    const int bytes = QUAD * (f.wide == MXATTN_F32 ? 4 : 2);
    asked a = {NULL, bytes, strip->ahead_stride - quads * bytes, quads, quads};
    if (strip->ahead) {
        a.at = strip->ahead + token * strip->ahead_stride + d / QUAD * bytes;
    }
    return a;
}

/* ------------------------------------------------------------------------------------------------
 * scales
 * --------------------------------------------------------------------------------------------- */

/* Scales and keys of 32 maxima; returns 1 when one is slow, words then not holding all that counts,
 * or 0 (of zeros they do under any scale; cut ones may stand for other numbers). */
ALWAYS_INLINE int scales_of(mxattn_rounding rounding, format f, const words amax[CHUNK_WORDS],
                            uint8_t scale[MXA_BLOCK], words key[CHUNK_WORDS])
{
    const int top = f.narrow == MXATTN_E5M2 ? 15 : 8;
    const int half = (1 << (dropped_bits(f) - 1)) - !f.cut;
    const uint16_t above = f.cut ? 0x20 : 0x1F; /* 0x60 */
    const words up = words_set(rounding == MXATTN_RCEIL ? above : 0);
    words exponent[CHUNK_WORDS], slow = words_set(0);
    UNROLL
    for (int i = 0; i < CHUNK_WORDS; i++) {
        const words e = words_shift_right(words_add(amax[i], up), 7);
        const words low = words_subtract(words_set((uint16_t)(FAST_SCALE_LEAST + top)), e);
        slow = words_or(slow, f.cut ? low : words_min(low, amax[i]));
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

/* Maxima, scales and keys of the chunks of `count` quads that were folded; given: maxima are there.
 */
ALWAYS_INLINE int scales_of_batch(mxattn_rounding rounding, format f, int count, int given,
                                  batch *b)
{
    int slow = 0;
    for (int q = 0; q < count; q += GROUP) {
        const int c = q * CHUNKS;
        words amax[CHUNK_WORDS], key[CHUNK_WORDS];
        words_maxima(b->folded[q], amax);
        for (int i = 0; given && i < CHUNK_WORDS; i++) {
            amax[i] = words_load(b->amax + c + i * WORDS_LANES);
        }
        const int special = scales_of(rounding, f, amax, b->scale + c, key);
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

/* The scales of squares, `width` dims from d on, into both arrays. */
ALWAYS_INLINE void store_square_scales(const mxa_scale_place places[2], int64_t tokens, int64_t d,
                                       int width, const uint8_t scale[CHUNKS])
{
    const mxa_scale_place *seq = &places[MXATTN_SEQ], *hdim = &places[MXATTN_HDIM];
    const int64_t rows = hdim->stride_within ? tokens : 1;
    const int whole = hdim->stride_1 == 1 && width == QUAD;
    for (int64_t token = 0; hdim->data && token < rows; token++) {
        uint8_t *to = mxa_scale_place_at(hdim, d / MXA_BLOCK, token);
        if (whole) {
            memcpy(to, scale, CHUNKS);
            continue;
        }
        for (int c = 0; c * MXA_BLOCK < width; c++) {
            to[c * hdim->stride_1] = scale[c];
        }
    }
    for (int c = 0; seq->data && c * MXA_BLOCK < width; c++) {
        const int behind = width - c * MXA_BLOCK, within = behind < MXA_BLOCK ? behind : MXA_BLOCK;
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
    const words up = words_add(magnitude(w), key);
    return words_shift_signed(f.cut ? up : words_add_bit(up, w, dropped_bits(f)), dropped_bits(f));
}

/* Keys: one for each chunk, twice in each, or one for each lane. */
typedef struct keys {
    const uint32_t *of_chunk;
    const uint16_t *of_lane; /* NULL: of_chunk */
} keys;

/* Codes of quad i, or of its first pair. apart: its pairs are, else the second follows the first.
 * Returns 1 when one may be below the smallest normal code; if codes pass by the caches, these are
 * kept in b->whole.
 * WHY: what went past them would be read from memory to write some of it again. One quad in 60 of
 * Gaussian data has such codes: quantizing took 1.1 times as long, and the norm (Zen 3). */
ALWAYS_INLINE uint32_t encode_quad(format f, batch *b, int i, int pairs, int apart, keys key,
                                   int stream)
{
    const uint16_t *const words_at[2] = {b->words[2 * i], b->words[2 * i + apart]};
    uint8_t *const codes_at[2] = {b->codes[2 * i], b->codes[2 * i + apart]};
    codes quad[QUAD / TOGETHER], least = codes_set(0xFF);
    UNROLL
    for (int at = 0; at < pairs * PAIR; at += TOGETHER) {
        const uint16_t *from = words_at[at / PAIR] + (apart ? at % PAIR : at);
        const words x = words_load(from), y = words_load(from + WORDS_LANES);
        words key_x, key_y;
        if (key.of_lane) {
            key_x = words_load(key.of_lane + at);
            key_y = words_load(key.of_lane + at + WORDS_LANES);
        } else {
            key_x = words_pairs(key.of_chunk + at / MXA_BLOCK);
            key_y = words_pairs(key.of_chunk + (at + WORDS_LANES) / MXA_BLOCK);
        }
        const codes magnitudes = codes_join(code_of(x, key_x, f), code_of(y, key_y, f));
        least = codes_min(least, magnitudes);
        quad[at / TOGETHER] =
            codes_signed(codes_min(magnitudes, codes_set((uint8_t)narrow_most(f))), x, y, f.mixed);
        if (!stream) {
            codes_store(codes_at[at / PAIR] + (apart ? at % PAIR : at), quad[at / TOGETHER], 0);
        }
    }
    const int small = codes_any_below(least, (uint8_t)narrow_normal(f));
    if (stream && small) {
        UNROLL
        for (int at = 0; at < pairs * PAIR; at += TOGETHER) {
            codes_store(b->whole[2 * i] + at, quad[at / TOGETHER], 0);
        }
    } else if (stream) {
        UNROLL
        for (int at = 0; at < pairs * PAIR; at += TOGETHER) {
            uint8_t *out = codes_at[at / PAIR] + (apart ? at % PAIR : at);
            codes_store(out, quad[at / TOGETHER], 1);
        }
    }
    return (uint32_t)small;
}

/* Of `count` quads, `next` keys apart; a bit for each that returned 1. */
ALWAYS_INLINE uint32_t encode_batch(format f, batch *b, int count, int pairs, int apart, keys key,
                                    int next, int stream, asked ahead)
{
    uint32_t again = 0;
    if (stream) {
        for (int i = 0; i < count; i++, key.of_chunk += next) {
            ask(&ahead);
            again |= encode_quad(f, b, i, pairs, apart, key, 1) << i;
        }
        return again;
    }
    for (int i = 0; i < count; i++, key.of_chunk += next) {
        ask(&ahead);
        again |= encode_quad(f, b, i, pairs, apart, key, 0) << i;
    }
    return again;
}

/* `width` codes that were kept go where they belong. */
ALWAYS_INLINE void codes_leave(uint8_t *out, const uint8_t *kept, int width)
{
    for (int at = 0; at < width; at += TOGETHER) {
        codes_store(out + at, codes_load(kept + at), 1);
    }
}

/* The smallest words of normal codes. */
ALWAYS_INLINE words smallest_normal(words scale, format f)
{
    const words fast = words_max(scale, words_set(FAST_SCALE_LEAST));
    return words_shift_left(words_subtract(fast, words_set((uint16_t)(narrow_bias(f) - 1))), 7);
}

/* 1 where a chunk has codes below the smallest normal one and above 0. */
ALWAYS_INLINE int has_small(const uint16_t chunk[MXA_BLOCK], format f, const uint8_t *scale,
                            int step)
{
    words small = words_set(0);
    for (int i = 0; i < MXA_BLOCK; i += WORDS_LANES) {
        uint16_t wide[WORDS_LANES];
        for (int j = 0; step && j < WORDS_LANES; j++) {
            wide[j] = scale[i + j];
        }
        const words normal = smallest_normal(step ? words_load(wide) : words_set(scale[0]), f);
        const words a = magnitude(words_load(chunk + i));
        small = words_or(small, words_min(words_subtract(normal, a), a));
    }
    return words_any(small);
}

/* The chunks of a pair that hold codes below the smallest normal one and above 0, and those that
 * are slow, again. step: 1 where each lane has a scale; else each chunk. */
ALWAYS_INLINE void encode_again(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                                const uint16_t *pair, const uint8_t *scale, const uint16_t *amax,
                                int step, uint8_t *out)
{
    const int width = width_of(strip, f, d);
    for (int c = 0; c < width; c += MXA_BLOCK) {
        const int first = step ? c : c / MXA_BLOCK, count = step ? MXA_BLOCK : 1;
        int again = has_small(pair + c, f, scale + first, step);
        for (int i = first; i < first + count; i++) {
            again |= scale_is_slow(scale[i], amax[i]);
        }
        if (again) {
            encode_chunk(strip, f, token, d + c, scale + first, step, out + c);
        }
    }
}

static __attribute__((noinline)) void
encode_again_chunks(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                    const uint16_t *pair, const uint8_t *scale, const uint16_t *amax, uint8_t *out)
{
    encode_again(strip, f, token, d, pair, scale, amax, 0, out);
}

static __attribute__((noinline)) void encode_again_lanes(const mxa_quantize_strip *strip, format f,
                                                         int64_t token, int64_t d,
                                                         const uint16_t *pair, const uint8_t *scale,
                                                         const uint16_t *amax, uint8_t *out)
{
    encode_again(strip, f, token, d, pair, scale, amax, 1, out);
}

/* A bit for each of the first `count` quads of a batch. */
ALWAYS_INLINE uint32_t all_quads(int count)
{
    return (uint32_t)((UINT64_C(1) << count) - 1);
}

/* What pair p still needs behind the loop over its batch. WHY behind: a loop that calls holds no
 * constants in registers. small, slow: a bit for each quad to look at; scale: the pair's first. */
ALWAYS_INLINE void finish_pair(const mxa_quantize_strip *strip, format f, const target *to,
                               int64_t token, int64_t d, batch *b, int p, int apart, uint32_t small,
                               uint32_t slow, int scale, int step)
{
    const int first = apart ? p : p & ~1, behind = apart ? 0 : p % 2 * PAIR;
    const int kept = to->stream && small >> p / 2 & 1;
    uint8_t *out = kept ? b->whole[p] : b->codes[first] + behind;
    if ((small | slow) >> p / 2 & 1) {
        (step ? encode_again_lanes : encode_again_chunks)(
            strip, f, token, d, b->words[first] + behind, b->scale + scale, b->amax + scale, out);
    }
    if (kept) {
        codes_leave(b->codes[first] + behind, out, PAIR);
    }
    if (!f.plain) {
        memcpy(to->at + token * to->stride + d, out, (size_t)width_of(strip, f, d));
    }
}

#endif
