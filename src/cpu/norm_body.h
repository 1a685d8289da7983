/* norm_body.h: rows divided by their root mean square and quantized at once, one body for every
 * instruction set.
 *
 * A quad, 128 dims of a token, is divided into cut words (words_portable.h), which never leave the
 * first cache; then the quantizer's steps follow (quantize_batch_body.h): up to 8 quads of a row,
 * or a quad of each token of a square, get their scales at once and are encoded. Chunks that cut
 * words do not hold enough of (codes below the smallest normal one, scales near either end, NaN and
 * infinity) are divided and encoded again in FP32: rare, but for zeros.
 * Included after one vec_wide_*.h and its words_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/norm.h"

#include "cpu/quantize_batch_body.h"
#include "cpu/row_pairs_body.h"

enum { QUAD_PAIRS = QUAD / PAIR_LANES, GROUP_DIMS = GROUP * QUAD };

_Static_assert((int)PAIR_LANES == (int)WORDS_LANES, "a pair of vectors makes a vector of words");

/* ------------------------------------------------------------------------------------------------
 * divide
 * --------------------------------------------------------------------------------------------- */

/* Dims of one token. */
typedef struct row_at {
    const char *x;
    const float *paired;
    divisor by;
} row_at;

ALWAYS_INLINE vec_pair pair_of(row_at row, mxattn_dtype dtype, int i)
{
    return divide_pair(pair_load(row.x, dtype, i), row.by, row.paired + i);
}

/* Where nothing was cut off, halves must not go up to an odd code, of either format, and
 * 1.75 * 2^e must not seem more than it is: the word is one less. */
ALWAYS_INLINE words cut_exactly(vec_pair y)
{
    const words one = words_set(1), high = (words)vec_pair_high(y);
    const words lost = words_min((words)vec_pair_low(y), one);
    const words half_e4m3 = words_xor(words_and(high, words_set(0x1F)), words_set(0x08));
    const words half_e5m2 = words_xor(words_and(high, words_set(0x3F)), words_set(0x10));
    const words top = words_xor(words_and(high, words_set(0x7F)), words_set(0x60));
    const words other = words_min(words_min(half_e4m3, half_e5m2), words_min(top, one));
    return words_subtract(high, words_subtract(one, words_or(lost, other)));
}

static __attribute__((noinline)) void divide_exactly(row_at row, mxattn_dtype dtype, uint16_t *out)
{
    for (int i = 0; i < QUAD; i += PAIR_LANES) {
        words_store(out + i, cut_exactly(pair_of(row, dtype, i)));
    }
}

/* 1 where the lower half of some FP32 was 0; least: of the lower and of the upper halves. */
ALWAYS_INLINE int some_exact(words least)
{
    const uint32_t upper = 0xFFFF0000;
    return words_any(words_subtract(words_set(1), words_or(least, words_pairs(&upper))));
}

/* The magnitudes of a quad of words, or what is larger in `largest`, by chunk. */
ALWAYS_INLINE void largest_of(const uint16_t *quad, words largest[CHUNKS])
{
    UNROLL
    for (int i = 0; i < QUAD_PAIRS; i++) {
        words *of_chunk = &largest[i * CHUNKS / QUAD_PAIRS];
        *of_chunk = words_max(*of_chunk, magnitude(words_load(quad + i * PAIR_LANES)));
    }
}

/* A quad to cut words, and their magnitudes, or what is larger in `largest` unless it is the first,
 * by chunk. Returns 1 where nothing was cut off some: `largest` may then be too large. */
ALWAYS_INLINE int divide_quad(row_at row, mxattn_dtype dtype, uint16_t *out, int first,
                              words largest[CHUNKS])
{
    words least = words_set(0xFFFF);
    UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        UNROLL
        for (int i = c * MXA_BLOCK; i < (c + 1) * MXA_BLOCK; i += PAIR_LANES) {
            const vec_pair y = pair_of(row, dtype, i);
            const words w = (words)vec_pair_high(y);
            least = words_min(least, (words)vec_bits(y.even));
            least = words_min(least, (words)vec_bits(y.odd));
            words_store(out + i, w);
            const int alone = first && i == c * MXA_BLOCK;
            largest[c] = alone ? magnitude(w) : words_max(largest[c], magnitude(w));
        }
    }
    if (some_exact(least)) {
        divide_exactly(row, dtype, out);
        return 1;
    }
    return 0;
}

ALWAYS_INLINE void none_so_far(words largest[CHUNKS])
{
    UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        largest[c] = words_set(0);
    }
}

/* The last dims of a row, fewer than a quad; others behind. */
typedef struct row_end {
    float x[QUAD];
} row_end;

/* The quad at dim d of a token; one that the row ends in lies in `end` afterwards. */
ALWAYS_INLINE row_at quad_at(const mxa_norm_strip *strip, mxattn_dtype dtype, int64_t token,
                             int64_t d, row_end *end)
{
    const int bytes = dtype == MXATTN_F32 ? 4 : 2;
    row_at row = {(const char *)strip->x + (token * strip->x_stride + d) * bytes, strip->paired + d,
                  divisor_of(&strip->scales[token])};
    if (strip->dims - d < QUAD) {
        const size_t left = (size_t)(strip->dims - d);
        memset(end->x, 0x3C, sizeof end->x); /* whichever dtype: about a hundredth, or one */
        memcpy(end->x, row.x, left * (size_t)bytes);
        row.x = (const char *)end->x;
    }
    return row;
}

ALWAYS_INLINE void ask_ahead(const mxa_norm_strip *strip, mxattn_dtype dtype, int64_t token,
                             int64_t d)
{
    enum { SECOND_CACHE = 2 };
    const int bytes = dtype == MXATTN_F32 ? 4 : 2;
    const char *at = (const char *)strip->x + (token * strip->x_stride + d) * bytes + strip->ahead;
    if (!strip->ahead) {
        return;
    }
    for (int i = 0; i < QUAD * bytes; i += 64) {
        __builtin_prefetch(at + i, 0, SECOND_CACHE);
    }
}

/* ------------------------------------------------------------------------------------------------
 * what is rare
 * --------------------------------------------------------------------------------------------- */

/* The codes of the chunk at dim d of a token, from FP32. */
static __attribute__((noinline)) void chunk_again(const mxa_norm_strip *strip, format f,
                                                  int64_t token, int64_t d, const uint8_t *scale,
                                                  uint8_t *out)
{
    const mxa_rms_scale *by = &strip->scales[token];
    const int64_t index = token * strip->x_stride + d;
    float x[MXA_BLOCK];
    load_floats(strip->x, f, index, MXA_BLOCK, x);
    for (int i = 0; i < MXA_BLOCK; i += VEC_LANES) {
        vec y = divided(vec_load(x + i), divisor_of(by));
        if (strip->weight) {
            y = vec_mul(y, vec_load(strip->weight + d + i));
        }
        vec_store(x + i, y);
    }
    const mxa_quantize_strip chunk = {.wide = x, .dims = MXA_BLOCK};
    encode_chunk(&chunk, (format){MXATTN_F32, f.narrow, 1, 0, 0}, 0, 0, scale, 0, out);
}

/* Of a quad's chunks those that need it. */
static __attribute__((noinline)) void quad_again(const mxa_norm_strip *strip, format f,
                                                 int64_t token, int64_t d, const uint16_t *quad,
                                                 const uint8_t *scale, uint8_t *out)
{
    const int64_t left = strip->dims - d;
    for (int c = 0; c < QUAD && c < left; c += MXA_BLOCK) {
        const uint8_t *of_chunk = scale + c / MXA_BLOCK;
        if (*of_chunk < FAST_SCALE_LEAST || *of_chunk > FAST_SCALE_MOST ||
            has_small(quad + c, f, of_chunk, 0)) {
            chunk_again(strip, f, token, d + c, of_chunk, out + c);
        }
    }
}

/* Encodes `count` quads, their keys `next` apart; a bit for each that may need it again. */
ALWAYS_INLINE uint32_t encode_quads(format f, batch *b, int count, int next, int stream)
{
    return encode_batch(f, b, count, 2, 0, (keys){b->key, NULL}, next, stream, (asked){0});
}

/* Quad i of a batch, which may need it again; kept: it lies in b->whole. */
ALWAYS_INLINE void finish_quad(const mxa_norm_strip *strip, format f, int64_t token, int64_t d,
                               batch *b, int i, const uint8_t *scale, int kept)
{
    uint8_t *at = kept ? b->whole[2 * i] : b->codes[2 * i];
    quad_again(strip, f, token, d, b->space[2 * i], scale, at);
    if (at != b->codes[2 * i]) {
        codes_leave(b->codes[2 * i], at, QUAD);
    }
}

/* ------------------------------------------------------------------------------------------------
 * rows
 * --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE void store_row_scales(const mxa_scale_place *place, int64_t token, int64_t chunk,
                                    int chunks, const uint8_t *scale)
{
    if (!place->data) {
        return;
    }
    if (place->stride_1 == 1 && place->stride_4 == CHUNKS && chunks == MXA_BLOCK) {
        memcpy(mxa_scale_place_at(place, chunk, token), scale, MXA_BLOCK);
        return;
    }
    for (int first = 0; first < chunks; first += CHUNKS) { /* chunk % 4 is 0, or chunks 1 */
        uint8_t *to = mxa_scale_place_at(place, chunk + first, token);
        for (int c = first; c < first + CHUNKS && c < chunks; c++, to += place->stride_1) {
            *to = scale[c];
        }
    }
}

/* Where the quads of a group lie. */
ALWAYS_INLINE void point(batch *b, int quads, uint8_t *out)
{
    for (int q = 0; q < quads; q++) {
        b->words[2 * q] = &b->space[2 * q][0];
        b->codes[2 * q] = out + q * QUAD;
    }
}

/* Up to GROUP_DIMS dims of a token. */
ALWAYS_INLINE void row_group(const mxa_norm_strip *strip, format f, int64_t token, int64_t d,
                             const mxa_quantize_strip *tags, batch *b)
{
    const int64_t left = strip->dims - d;
    const int width = left < GROUP_DIMS ? (int)left : GROUP_DIMS;
    const int quads = (width + QUAD - 1) / QUAD, whole = width / QUAD;
    uint8_t *out = strip->payload + token * strip->payload_stride + d;
    row_end end;
    for (int q = 0; q < quads; q++) {
        const int64_t at = d + q * QUAD;
        ask_ahead(strip, f.wide, token, at);
        words largest[CHUNKS];
        if (divide_quad(quad_at(strip, f.wide, token, at, &end), f.wide, b->space[2 * q], 1,
                        largest)) {
            none_so_far(largest);
            largest_of(b->space[2 * q], largest);
        }
        words_store(b->folded[q], words_fold_chunks(largest));
    }
    point(b, quads, out);
    if (whole < quads) {
        b->codes[2 * whole] = b->whole[2 * whole];
    }
    const uint32_t slow = scales_of_batch(tags, f, quads, 0, b) ? 0xFFFFFFFF : 0;
    store_row_scales(&strip->places[MXATTN_HDIM], token, d / MXA_BLOCK, width / MXA_BLOCK,
                     b->scale);
    const uint32_t small = encode_quads(f, b, quads, CHUNKS, strip->stream), again = slow | small;
    for (int q = 0; again && q < quads; q++) {
        if (again >> q & 1) {
            finish_quad(strip, f, token, d + q * QUAD, b, q, b->scale + q * CHUNKS,
                        strip->stream && small >> q & 1);
        }
    }
    if (whole < quads) {
        memcpy(out + whole * QUAD, b->whole[2 * whole], (size_t)(width - whole * QUAD));
    }
}

ALWAYS_INLINE void strip_rows(const mxa_norm_strip *strip, format f)
{
    const mxa_quantize_strip tags = {.tags = strip->tags};
    batch b;
    memset(b.folded, UNUSED, GROUP * sizeof b.folded[0]);
    for (int64_t token = 0; token < strip->used; token++) {
        for (int64_t d = 0; d < strip->dims; d += GROUP_DIMS) {
            row_group(strip, f, token, d, &tags, &b);
        }
    }
    for (int64_t token = strip->used; token < strip->tokens; token++) {
        for (int64_t d = 0; d < strip->dims; d += MXA_BLOCK) {
            const uint8_t zeros[MXA_BLOCK] = {0}; /* WHY 32: gcc sees a copy of that many */
            store_row_scales(&strip->places[MXATTN_HDIM], token, d / MXA_BLOCK, 1, zeros);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * squares
 * --------------------------------------------------------------------------------------------- */

/* Quads side by side, where the payload passes by the caches. WHY: each row lies on a page of its
 * own, of x and of the payload, 64 pages of which a core knows no more at once, and memory is
 * written faster by 256 bytes: encoding alone by two 0.96 to 0.98 of the time (Zen 3, two threads),
 * division too 0.96 of that (Skylake). In the caches the words of two leave the first one, and it
 * would take longer. */
enum { ASIDE = 2 };

/* `count` quads of every token are divided, side by side, and get their scales; sets slow[q] where
 * one is slow. */
ALWAYS_INLINE void divide_square(const mxa_norm_strip *strip, format f, int64_t d, int count,
                                 batch *b, uint32_t *slow)
{
    const mxa_quantize_strip tags = {.tags = strip->tags};
    const int used = (int)strip->used;
    words largest[ASIDE][CHUNKS];
    int exact[ASIDE] = {0};
    row_end end;
    UNROLL
    for (int q = 0; q < count; q++) {
        none_so_far(largest[q]);
    }
    for (int token = 0; token < used; token++) {
        UNROLL
        for (int q = 0; q < count; q++) {
            const int64_t at = d + q * QUAD;
            const int whole = strip->dims - at >= QUAD;
            exact[q] |= divide_quad(quad_at(strip, f.wide, token, at, &end), f.wide,
                                    b[q].space[2 * token], 0, largest[q]);
            b[q].words[2 * token] = b[q].space[2 * token];
            b[q].codes[2 * token] =
                whole ? strip->payload + token * strip->payload_stride + at : b[q].whole[2 * token];
        }
    }
    UNROLL
    for (int q = 0; q < count; q++) {
        const int64_t at = d + q * QUAD, left = strip->dims - at;
        if (exact[q]) {
            none_so_far(largest[q]);
            for (int token = 0; token < used; token++) {
                largest_of(b[q].space[2 * token], largest[q]);
            }
        }
        words_store(b[q].folded[0], words_fold_chunks(largest[q]));
        slow[q] = scales_of_batch(&tags, f, 1, 0, &b[q]) ? 0xFFFFFFFF : 0;
        store_square_scales(strip->places, strip->tokens, at, left < QUAD ? (int)left : QUAD,
                            b[q].scale);
    }
}

ALWAYS_INLINE void encode_aside(format f, batch *b, int count, int used, int stream,
                                uint32_t small[ASIDE])
{
    for (int token = 0; token < used; token++) {
        for (int q = 0; q < count; q++) {
            small[q] |= encode_quad(f, &b[q], token, 2, 0, (keys){b[q].key, NULL}, stream) << token;
        }
    }
}

/* `count` quads of every token. */
ALWAYS_INLINE void square_quads(const mxa_norm_strip *strip, format f, int64_t d, int count,
                                int stream, batch b[ASIDE])
{
    const int used = (int)strip->used;
    uint32_t slow[ASIDE], small[ASIDE] = {0};
    divide_square(strip, f, d, count, b, slow);
    encode_aside(f, b, count, used, stream, small);
    for (int q = 0; q < count; q++) {
        const int64_t at = d + q * QUAD, left = strip->dims - at;
        for (int token = 0; (slow[q] | small[q]) && token < used; token++) {
            if ((slow[q] | small[q]) >> token & 1) {
                finish_quad(strip, f, token, at, &b[q], token, b[q].scale,
                            stream && small[q] >> token & 1);
            }
        }
        for (int token = 0; left < QUAD && token < used; token++) {
            memcpy(strip->payload + token * strip->payload_stride + at, b[q].whole[2 * token],
                   (size_t)left);
        }
    }
}

ALWAYS_INLINE void strip_squares(const mxa_norm_strip *strip, format f)
{
    batch b[ASIDE];
    int64_t d = 0;
    for (int q = 0; q < ASIDE; q++) {
        memset(b[q].folded, UNUSED, GROUP * sizeof b[q].folded[0]);
    }
    for (; strip->stream && d + (ASIDE - 1) * QUAD < strip->dims; d += ASIDE * QUAD) {
        square_quads(strip, f, d, ASIDE, 1, b);
    }
    for (; d < strip->dims; d += QUAD) {
        if (strip->stream) {
            square_quads(strip, f, d, 1, 1, b);
        } else {
            square_quads(strip, f, d, 1, 0, b);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * a strip
 * --------------------------------------------------------------------------------------------- */

/* WHY the copy: stores of bytes may alias *strip, whose fields would be read again after each. */
ALWAYS_INLINE void strip_of(const mxa_norm_strip *strip, format f)
{
    mxa_norm_strip copy = *strip;
    /* Whole lines only: a part of one would be read before it is written. */
    copy.stream &=
        copy.dims % 64 == 0 && copy.payload_stride % 64 == 0 && (uintptr_t)copy.payload % 64 == 0;
    if (copy.tags.block == MXATTN_BLOCK_ROW) {
        strip_rows(&copy, f);
    } else {
        strip_squares(&copy, f);
    }
}

#define DEFINE_STRIP(name, wide, narrow)                                                           \
    static __attribute__((noinline)) void name(const mxa_norm_strip *strip)                        \
    {                                                                                              \
        strip_of(strip, (format){wide, narrow, 1, 0, 1});                                          \
    }

DEFINE_STRIP(strip_f32_e4m3, MXATTN_F32, MXATTN_E4M3)
DEFINE_STRIP(strip_f16_e4m3, MXATTN_F16, MXATTN_E4M3)
DEFINE_STRIP(strip_bf16_e4m3, MXATTN_BF16, MXATTN_E4M3)
DEFINE_STRIP(strip_f32_e5m2, MXATTN_F32, MXATTN_E5M2)
DEFINE_STRIP(strip_f16_e5m2, MXATTN_F16, MXATTN_E5M2)
DEFINE_STRIP(strip_bf16_e5m2, MXATTN_BF16, MXATTN_E5M2)

void WORDS_NAME(mxa_norm_strip)(const mxa_norm_strip *strip)
{
    const int e5m2 = strip->tags.dtype == MXATTN_E5M2;
    if (strip->x_dtype == MXATTN_F32) {
        (e5m2 ? strip_f32_e5m2 : strip_f32_e4m3)(strip);
    } else if (strip->x_dtype == MXATTN_F16) {
        (e5m2 ? strip_f16_e5m2 : strip_f16_e4m3)(strip);
    } else {
        (e5m2 ? strip_bf16_e5m2 : strip_bf16_e4m3)(strip);
    }
    for (int64_t token = strip->used; token < strip->tokens; token++) {
        memset(strip->payload + token * strip->payload_stride, 0, (size_t)strip->dims);
    }
}
