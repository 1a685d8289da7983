/* norm_body.h: rows divided by their root mean square and quantized at once, one body for every
 * instruction set.
 *
 * A quad, 128 dims of a token, is divided into cut words (words_portable.h), which never leave the
 * first cache; then the quantizer's steps follow (quantize_batch_body.h): up to 8 quads, of a row
 * or of several short ones, or a quad of each token of a square, get their scales at once and are
 * encoded. Chunks that cut
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
 * encode: functions of their own, as what a code is made of does not depend on x's type
 * --------------------------------------------------------------------------------------------- */

/* Quads side by side in a square, where the payload passes by the caches. WHY: each row lies on a
 * page of its own, of x and of the payload, 64 pages of which a core knows no more at once, and
 * memory is written faster by 256 bytes: encoding alone by two 0.96 to 0.98 of the time (Zen 3, two
 * threads), division too 0.96 of that (Skylake). In the caches the words of two leave the first
 * one, and it would take longer. */
enum { ASIDE = 2 };

/* Encodes `count` quads of each of `batches` batches, their keys `next` apart; small: a bit for
 * each that may need it again. */
ALWAYS_INLINE void encode_of(mxattn_dtype narrow, batch *b, int batches, int count, int next,
                             int stream, uint32_t small[ASIDE])
{
    const format f = {MXATTN_F32, narrow, 1, 0, 1};
    if (batches == 1) {
        const keys key = {b->key, NULL};
        small[0] = encode_batch(f, b, count, 2, 0, key, next, stream, (asked){0});
        return;
    }
    small[0] = small[1] = 0;
    for (int i = 0; i < count; i++) {
        for (int q = 0; q < ASIDE; q++) {
            small[q] |= encode_quad(f, &b[q], i, 2, 0, (keys){b[q].key, NULL}, 1) << i;
        }
    }
}

#define DEFINE_ENCODE(name, narrow)                                                                \
    static __attribute__((noinline)) void name(batch *b, int batches, int count, int next,         \
                                               int stream, uint32_t small[ASIDE])                  \
    {                                                                                              \
        encode_of(narrow, b, batches, count, next, stream, small);                                 \
    }

DEFINE_ENCODE(encode_e4m3, MXATTN_E4M3)
DEFINE_ENCODE(encode_e5m2, MXATTN_E5M2)

ALWAYS_INLINE void encode(format f, batch *b, int batches, int count, int next, int stream,
                          uint32_t small[ASIDE])
{
    (f.narrow == MXATTN_E5M2 ? encode_e5m2 : encode_e4m3)(b, batches, count, next, stream, small);
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

/* Where the words of the first `quads` quads of a batch lie. */
ALWAYS_INLINE void batch_begin(batch *b, int quads)
{
    memset(b->folded, UNUSED, GROUP * sizeof b->folded[0]);
    for (int i = 0; i < quads; i++) {
        b->words[2 * i] = b->space[2 * i];
    }
}

/* Divides the quads at dim d of a token, which become those from `first` on of a batch. */
ALWAYS_INLINE void divide_row(const mxa_norm_strip *strip, format f, int64_t token, int64_t d,
                              int quads, int first, batch *b)
{
    uint8_t *out = strip->payload + token * strip->payload_stride + d;
    const int whole = strip->dims - d < quads * QUAD ? quads - 1 : quads;
    row_end end;
    for (int i = first; i < first + quads; i++, d += QUAD) {
        words largest[CHUNKS];
        ask_ahead(strip, f.wide, token, d);
        if (divide_quad(quad_at(strip, f.wide, token, d, &end), f.wide, b->space[2 * i], 1,
                        largest)) {
            none_so_far(largest);
            largest_of(b->space[2 * i], largest);
        }
        words_store(b->folded[i], words_fold_chunks(largest));
    }
    for (int q = 0; q < quads; q++) {
        b->codes[2 * (first + q)] = q < whole ? out + q * QUAD : b->whole[2 * (first + q)];
    }
}

/* What quads of a row, from quad `first` of a batch on, still need behind the loop over it; again,
 * small: a bit for each quad. */
ALWAYS_INLINE void finish_row(const mxa_norm_strip *strip, format f, int64_t token, int64_t d,
                              int width, int first, uint32_t again, uint32_t small, batch *b)
{
    const int whole = width / QUAD;
    for (int q = 0; again && q * QUAD < width; q++) {
        const int i = first + q;
        if (again >> i & 1) {
            finish_quad(strip, f, token, d + q * QUAD, b, i, b->scale + i * CHUNKS,
                        strip->stream && small >> i & 1);
        }
    }
    if (width % QUAD != 0) {
        memcpy(strip->payload + token * strip->payload_stride + d + whole * QUAD,
               b->whole[2 * (first + whole)], (size_t)(width % QUAD));
    }
}

/* Up to GROUP_DIMS dims from d on of each of `tokens` tokens, a group of quads altogether. */
ALWAYS_INLINE void row_group(const mxa_norm_strip *strip, format f, int64_t first, int tokens,
                             int64_t d, batch *b)
{
    const int64_t left = strip->dims - d;
    const int width = left < GROUP_DIMS ? (int)left : GROUP_DIMS;
    const int quads = (width + QUAD - 1) / QUAD;
    for (int t = 0; t < tokens; t++) {
        divide_row(strip, f, first + t, d, quads, t * quads, b);
    }
    const int special = scales_of_batch(strip->tags.rounding, f, tokens * quads, 0, b);
    for (int t = 0; t < tokens; t++) {
        store_row_scales(&strip->places[MXATTN_HDIM], first + t, d / MXA_BLOCK, width / MXA_BLOCK,
                         b->scale + t * quads * CHUNKS);
    }
    uint32_t small[ASIDE];
    encode(f, b, 1, tokens * quads, CHUNKS, strip->stream, small);
    const uint32_t again = special ? 0xFFFFFFFF : small[0];
    for (int t = 0; (again || width % QUAD != 0) && t < tokens; t++) {
        finish_row(strip, f, first + t, d, width, t * quads, again, small[0], b);
    }
}

/* Rows of which `most` make a group, or 1 each of which makes some. */
ALWAYS_INLINE void strip_rows(const mxa_norm_strip *strip, format f, int most)
{
    batch b;
    batch_begin(&b, GROUP);
    for (int64_t token = 0; token < strip->used; token += most) {
        const int64_t left = strip->used - token;
        const int tokens = left < most ? (int)left : most;
        for (int64_t d = 0; d < strip->dims; d += GROUP_DIMS) {
            row_group(strip, f, token, most == 1 ? 1 : tokens, d, &b);
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

/* `count` quads of every token are divided, side by side, and get their scales; sets slow[q] where
 * one is slow. */
ALWAYS_INLINE void divide_square(const mxa_norm_strip *strip, format f, int64_t d, int count,
                                 batch *b, uint32_t *slow)
{
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
        slow[q] = scales_of_batch(strip->tags.rounding, f, 1, 0, &b[q]) ? 0xFFFFFFFF : 0;
        store_square_scales(strip->places, strip->tokens, at, left < QUAD ? (int)left : QUAD,
                            b[q].scale);
    }
}

/* `count` quads of every token. */
ALWAYS_INLINE void square_quads(const mxa_norm_strip *strip, format f, int64_t d, int count,
                                batch b[ASIDE])
{
    const int used = (int)strip->used;
    uint32_t slow[ASIDE], small[ASIDE];
    divide_square(strip, f, d, count, b, slow);
    encode(f, b, count, used, 0, strip->stream, small);
    for (int q = 0; q < count; q++) {
        const int64_t at = d + q * QUAD, left = strip->dims - at;
        for (int token = 0; (slow[q] | small[q]) && token < used; token++) {
            if ((slow[q] | small[q]) >> token & 1) {
                finish_quad(strip, f, token, at, &b[q], token, b[q].scale,
                            strip->stream && small[q] >> token & 1);
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
        batch_begin(&b[q], (int)strip->used);
    }
    for (; strip->stream && d + (ASIDE - 1) * QUAD < strip->dims; d += ASIDE * QUAD) {
        square_quads(strip, f, d, ASIDE, b);
    }
    for (; d < strip->dims; d += QUAD) {
        square_quads(strip, f, d, 1, b);
    }
}

/* ------------------------------------------------------------------------------------------------
 * a strip
 * --------------------------------------------------------------------------------------------- */

/* WHY a copy of the strip: stores of bytes may alias it, and its fields would be read again after
 * each. WHY a function for each kind: constants of all of them would not stay in registers. */
#define DEFINE_STRIP(name, wide)                                                                   \
    static __attribute__((noinline)) void name##_row(const mxa_norm_strip *strip)                  \
    {                                                                                              \
        const mxa_norm_strip copy = *strip;                                                        \
        strip_rows(&copy, (format){wide, copy.tags.dtype, 1, 0, 1}, 1);                            \
    }                                                                                              \
    static __attribute__((noinline)) void name##_short(const mxa_norm_strip *strip)                \
    {                                                                                              \
        const mxa_norm_strip copy = *strip;                                                        \
        const int quads = (int)((copy.dims + QUAD - 1) / QUAD);                                    \
        strip_rows(&copy, (format){wide, copy.tags.dtype, 1, 0, 1}, GROUP / quads);                \
    }                                                                                              \
    static __attribute__((noinline)) void name##_square(const mxa_norm_strip *strip)               \
    {                                                                                              \
        const mxa_norm_strip copy = *strip;                                                        \
        strip_squares(&copy, (format){wide, copy.tags.dtype, 1, 0, 1});                            \
    }

DEFINE_STRIP(strip_f32, MXATTN_F32)
DEFINE_STRIP(strip_f16, MXATTN_F16)
DEFINE_STRIP(strip_bf16, MXATTN_BF16)

void WORDS_NAME(mxa_norm_strip)(const mxa_norm_strip *given)
{
    static const mxa_norm_kernel of[3][3] = {{strip_f32_row, strip_f32_short, strip_f32_square},
                                             {strip_f16_row, strip_f16_short, strip_f16_square},
                                             {strip_bf16_row, strip_bf16_short, strip_bf16_square}};
    mxa_norm_strip strip = *given;
    const int wide = strip.x_dtype == MXATTN_F32 ? 0 : strip.x_dtype == MXATTN_F16 ? 1 : 2;
    const int row = strip.tags.block == MXATTN_BLOCK_ROW;
    /* Whole lines only: a part of one would be read before it is written. */
    strip.stream &= strip.dims % 64 == 0 && strip.payload_stride % 64 == 0 &&
                    (uintptr_t)strip.payload % 64 == 0;
    of[wide][row ? strip.dims <= GROUP_DIMS / 2 : 2](&strip);
    for (int64_t token = strip.used; token < strip.tokens; token++) {
        memset(strip.payload + token * strip.payload_stride, 0, (size_t)strip.dims);
    }
}
