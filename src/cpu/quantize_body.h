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
 * So a key says all about a scale. The loops work on pairs of chunks, up to 64 dims of one token,
 * and on quads, two pairs. They load quads and fold the magnitudes of each into one vector, then
 * make maxima, scales and keys of 8 quads at once, then encode. No step is of one chunk, so none is
 * of one number. That is all they do: quads with codes below the smallest normal one that are not
 * zeros, and chunks whose scale byte is under 32 (there FP32 subnormals may count) or that hold NaN
 * or infinity, are noticed and encoded again by encode_chunk: rare, and exact for whatever they
 * hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/quantize_batch_body.h"

/* ------------------------------------------------------------------------------------------------
 * encode: functions of their own. WHY: what a code is made of does not depend on where its word
 * came from, and loops inlined for every element type and block took a minute to compile.
 * --------------------------------------------------------------------------------------------- */

/* encode_batch, for each way in which quads lie. */
ALWAYS_INLINE uint32_t encode_any(format f, batch *b, int count, int pairs, int apart, keys key,
                                  int next, int stream, asked ahead)
{
    const keys of_chunk = {key.of_chunk, NULL};
    if (!f.mixed && key.of_lane) {
        uint16_t copy[PAIR]; /* codes cannot alias it */
        memcpy(copy, key.of_lane, sizeof copy);
        return encode_batch(f, b, count, 1, 0, (keys){NULL, copy}, 0, stream, ahead);
    }
    if (pairs == 1) {
        return encode_batch(f, b, count, 1, 0, of_chunk, next, stream, ahead);
    }
    if (apart) {
        return encode_batch(f, b, count, 2, 1, of_chunk, next, stream, ahead);
    }
    return encode_batch(f, b, count, 2, 0, of_chunk, next, stream, ahead);
}

#define DEFINE_ENCODE(name, narrow, mixed)                                                         \
    static __attribute__((noinline)) uint32_t name(batch *b, int count, int pairs, int apart,      \
                                                   keys key, int next, int stream, asked ahead)    \
    {                                                                                              \
        return encode_any((format){MXATTN_F32, narrow, 1, mixed, 0}, b, count, pairs, apart, key,  \
                          next, stream, ahead);                                                    \
    }

DEFINE_ENCODE(encode_e4m3, MXATTN_E4M3, 0)
DEFINE_ENCODE(encode_e5m2, MXATTN_E5M2, 0)
DEFINE_ENCODE(encode_e4m3_mixed, MXATTN_E4M3, 1)
DEFINE_ENCODE(encode_e5m2_mixed, MXATTN_E5M2, 1)

ALWAYS_INLINE uint32_t encode(format f, batch *b, int count, int pairs, int apart, keys key,
                              int next, int stream, asked ahead)
{
    if (f.narrow == MXATTN_E5M2) {
        return (f.mixed ? encode_e5m2_mixed : encode_e5m2)(b, count, pairs, apart, key, next,
                                                           stream, ahead);
    }
    return (f.mixed ? encode_e4m3_mixed : encode_e4m3)(b, count, pairs, apart, key, next, stream,
                                                       ahead);
}

/* ------------------------------------------------------------------------------------------------
 * rows
 * --------------------------------------------------------------------------------------------- */

/* A pair of a strip; a walk goes token by token. */
typedef struct pair_at {
    int64_t token, d;
} pair_at;

ALWAYS_INLINE void pair_next(const mxa_quantize_strip *strip, pair_at *at)
{
    at->d += PAIR;
    if (at->d >= strip->dims) {
        at->d = 0;
        at->token++;
    }
}

ALWAYS_INLINE void pair_skip(const mxa_quantize_strip *strip, pair_at *at, int pairs)
{
    const int64_t row = (strip->dims + PAIR - 1) / PAIR * PAIR;
    for (at->d += pairs * PAIR; at->d >= row; at->d -= row) {
        at->token++;
    }
}

/* The scale bytes of `count` pairs from `at` on. */
ALWAYS_INLINE void store_row_scales(const mxa_quantize_strip *strip, pair_at at, int count,
                                    const uint8_t *scale)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    if (!place->data) {
        return;
    }
    if (place->stride_1 == 1 && strip->dims % QUAD == 0) {
        const int64_t quads = strip->dims / QUAD;
        int64_t token = at.token, quad = at.d / QUAD;
        for (int p = 0; p < count; p += 2) {
            memcpy(place->data + token * place->stride_within + quad * place->stride_4,
                   scale + 2 * p, CHUNKS);
            quad++;
            token += quad == quads;
            quad = quad == quads ? 0 : quad;
        }
        return;
    }
    for (int p = 0; p < count; pair_next(strip, &at), p++) {
        uint8_t *to = mxa_scale_place_at(place, at.d / MXA_BLOCK, at.token);
        to[0] = scale[2 * p];
        if (at.d + MXA_BLOCK < strip->dims) {
            to[place->stride_1] = scale[2 * p + 1]; /* a pair lies within a unit's four */
        }
    }
}

/* The next pair of a walk. */
ALWAYS_INLINE void load_next(const mxa_quantize_strip *strip, format f, const target *to,
                             pair_at *at, batch *b, int p, words pair[PAIR_VECTORS])
{
    load_pair(strip, f, to, at->token, at->d, b, p, pair);
    pair_next(strip, at);
}

/* Quads of a plain strip whose rows are whole quads: `count` pairs from `at` on. */
ALWAYS_INLINE void load_quads(const mxa_quantize_strip *strip, format f, const target *to,
                              pair_at *at, int count, batch *b)
{
    const int64_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
    const int64_t next = (strip->wide_stride - strip->dims) * bytes,
                  next_out = to->stride - strip->dims;
    const char *from = (const char *)strip->wide + (at->token * strip->wide_stride + at->d) * bytes;
    uint8_t *out = to->at + at->token * to->stride + at->d;
    int64_t left = strip->dims - at->d;
    for (int p = 0; p < count; p += 2) {
        words quad[VECTORS];
        load_quad(f, from, out, b, p, quad);
        words_store(b->folded[p / 2], words_fold(quad));
        from += QUAD * bytes;
        out += QUAD;
        left -= QUAD;
        if (left == 0) {
            left = strip->dims;
            from += next;
            out += next_out;
            at->token++;
        }
    }
    at->d = strip->dims - left;
}

/* What is asked for while rows are encoded: those from `next` on, or what the caller wants. */
ALWAYS_INLINE asked asked_of_rows(const mxa_quantize_strip *strip, format f, pair_at next)
{
    const int bytes = f.wide == MXATTN_F32 ? 4 : 2;
    const int quads = (int)((strip->dims + QUAD - 1) / QUAD);
    if (next.token >= strip->used) {
        return asked_of(strip, f, 0, 0, quads);
    }
    return (asked){(const char *)strip->wide + (next.token * strip->wide_stride + next.d) * bytes,
                   QUAD * bytes, (strip->wide_stride - quads * QUAD) * bytes, quads,
                   quads - (int)(next.d / QUAD)};
}

/* The maxima of `count` pairs from `at` on where each is its token's. */
static __attribute__((noinline)) void tokens_largest(const mxa_quantize_strip *strip, format f,
                                                     pair_at at, int count, batch *b)
{
    uint16_t largest = 0;
    memset(b->amax, 0, sizeof b->amax);
    f.mixed = 0;
    for (int p = 0; p < count; p++) {
        if (p == 0 || at.d == 0) {
            largest = token_largest(strip, f, at.token);
        }
        b->amax[2 * p] = b->amax[2 * p + 1] = largest;
        pair_next(strip, &at);
    }
}

/* `count` pairs from `at` on; apart: those of a quad may be. */
ALWAYS_INLINE void row_batch(const mxa_quantize_strip *strip, format f, const target *to,
                             pair_at *at, int count, int apart, batch *b)
{
    const int folded = (strip->tags.flags & MXATTN_FOLDED_TOKEN) != 0;
    const int quads = (count + 1) / 2;
    pair_at from = *at;
    if (!apart) {
        load_quads(strip, f, to, &from, count, b);
    }
    for (int p = 0; apart && p < count; p += 2) {
        words quad[VECTORS];
        load_next(strip, f, to, &from, b, p, quad);
        if (p + 1 < count) {
            load_next(strip, f, to, &from, b, p + 1, quad + PAIR_VECTORS);
        } else {
            load_absent(b, p + 1, quad + PAIR_VECTORS);
        }
        words_store(b->folded[p / 2], words_fold(quad));
    }
    if (folded) {
        tokens_largest(strip, f, *at, count, b);
    }
    const uint32_t slow =
        scales_of_batch(strip->tags.rounding, f, quads, folded, b) ? all_quads(quads) : 0;
    store_row_scales(strip, *at, count, b->scale);
    const uint32_t small = encode(f, b, quads, 2, apart, (keys){b->key, NULL}, CHUNKS, to->stream,
                                  asked_of_rows(strip, f, from));
    int p = 0;
    for (uint32_t look = f.plain ? small | slow : all_quads(quads); look; look &= look - 1) {
        const int first = 2 * __builtin_ctz(look);
        pair_skip(strip, at, first - p);
        for (p = first; p < first + 2 && p < count; pair_next(strip, at), p++) {
            finish_pair(strip, f, to, at->token, at->d, b, p, apart, small, slow, 2 * p, 0);
        }
    }
    *at = from;
}

ALWAYS_INLINE void strip_rows(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    const int64_t total = strip->used * ((strip->dims + PAIR - 1) / PAIR);
    const int apart = !f.plain || strip->dims % QUAD != 0;
    pair_at at = {0, 0};
    batch b;
    memset(b.folded, 0, sizeof b.folded);
    for (int64_t first = 0; first < total; first += 2 * BATCH) {
        const int64_t left = total - first;
        const int count = left < 2 * BATCH ? (int)left : 2 * BATCH;
        if (apart) {
            row_batch(strip, f, to, &at, count, 1, &b);
        } else {
            row_batch(strip, f, to, &at, count, 0, &b);
        }
    }
    for (int64_t token = strip->used; place->data && token < strip->tokens; token++) {
        for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
            *mxa_scale_place_at(place, chunk, token) = 0;
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * squares and columns: a batch is `pairs` pairs, side by side, of every token
 * --------------------------------------------------------------------------------------------- */

/* Loads the used tokens, and the largest magnitude of each lane. */
ALWAYS_INLINE void load_tokens(const mxa_quantize_strip *strip, format f, const target *to,
                               int64_t d, int pairs, batch *b, words largest[VECTORS])
{
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        largest[i] = words_set(0);
    }
    const int64_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
    for (int token = 0; token < strip->used; token++) {
        words quad[VECTORS];
        if (f.plain && pairs == 2) {
            const int64_t index = token * strip->wide_stride + d;
            load_quad(f, (const char *)strip->wide + index * bytes, to->at + token * to->stride + d,
                      b, 2 * token, quad);
        } else {
            UNROLL
            for (int h = 0; h < pairs; h++) {
                load_pair(strip, f, to, token, d + h * PAIR, b, 2 * token + h,
                          quad + h * PAIR_VECTORS);
            }
        }
        UNROLL
        for (int i = 0; i < pairs * PAIR_VECTORS; i++) {
            largest[i] = words_max(largest[i], quad[i]);
        }
    }
}

/* scale_step: 1 where each lane has a scale; else each chunk. */
ALWAYS_INLINE void put_tokens(const mxa_quantize_strip *strip, format f, const target *to,
                              int64_t d, int pairs, batch *b, keys key, int scale_step,
                              int some_slow)
{
    const int used = (int)strip->used, scales = scale_step ? PAIR : PAIR / MXA_BLOCK;
    const uint32_t slow = some_slow ? all_quads(used) : 0;
    const uint32_t small =
        encode(f, b, used, pairs, 0, key, 0, to->stream, asked_of(strip, f, 0, d, 1));
    for (uint32_t look = f.plain ? small | slow : all_quads(used); look; look &= look - 1) {
        const int token = __builtin_ctz(look);
        for (int h = 0; h < pairs; h++) {
            finish_pair(strip, f, to, token, d + h * PAIR, b, 2 * token + h, 0, small, slow,
                        h * scales, scale_step);
        }
    }
}

ALWAYS_INLINE void squares(const mxa_quantize_strip *strip, format f, const target *to, int64_t d,
                           int pairs, uint16_t folded, batch *b)
{
    words largest[VECTORS];
    load_tokens(strip, f, to, d, pairs, b, largest);
    words_store(b->folded[0],
                strip->tags.flags & MXATTN_FOLDED ? words_set(folded) : words_fold(largest));
    const int slow = scales_of_batch(strip->tags.rounding, f, 1, 0, b);
    put_tokens(strip, f, to, d, pairs, b, (keys){b->key, NULL}, 0, slow);
    const int64_t left = strip->dims - d;
    const int width = left < pairs * PAIR ? (int)left : pairs * PAIR;
    store_square_scales(strip->places, strip->tokens, d, width, b->scale);
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
    int64_t d = 0;
    for (; d + PAIR < strip->dims; d += QUAD) {
        squares(strip, f, to, d, 2, amax, &b);
    }
    if (d < strip->dims) {
        squares(strip, f, to, d, 1, amax, &b);
    }
}

/* One pair at a time. Each lane has a scale: elements stay in order. */
ALWAYS_INLINE void strip_columns(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_SEQ];
    batch b;
    for (int64_t d = 0; d < strip->dims; d += PAIR) {
        const int width = width_of(strip, f, d);
        words largest[VECTORS];
        uint16_t key[PAIR];
        int slow = 0;
        load_tokens(strip, f, to, d, 1, &b, largest);
        for (int c = 0; c < PAIR; c += MXA_BLOCK) {
            words of_chunk[CHUNK_WORDS];
            const words *amax = largest + c / WORDS_LANES;
            const int special = scales_of(strip->tags.rounding, f, amax, b.scale + c, of_chunk);
            for (int i = 0; i < CHUNK_WORDS; i++) {
                words_store(key + c + i * WORDS_LANES, of_chunk[i]);
                words_store(b.amax + c + i * WORDS_LANES, amax[i]);
            }
            if (special) {
                scales_of_special(b.amax + c, b.scale + c);
            }
            slow |= special;
        }
        put_tokens(strip, f, to, d, 1, &b, (keys){b.key, key}, 1, slow);
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

#define DEFINE_STRIP(name, wide)                                                                   \
    static __attribute__((noinline)) void name(const mxa_quantize_strip *strip)                    \
    {                                                                                              \
        strip_of(strip, (format){wide, strip->tags.dtype, 1, 0, 0});                               \
    }

DEFINE_STRIP(strip_f32, MXATTN_F32)
DEFINE_STRIP(strip_f16, MXATTN_F16)
DEFINE_STRIP(strip_bf16, MXATTN_BF16)

/* The rest: a centre, or dims that are no multiple of 64. */
static __attribute__((noinline)) void strip_any(const mxa_quantize_strip *strip)
{
    strip_of(strip, (format){strip->wide_dtype, strip->tags.dtype, 0, 0, 0});
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
    if (strip->centre || strip->dims % 64) {
        strip_any(strip);
    } else if (strip->wide_dtype == MXATTN_F32) {
        strip_f32(strip);
    } else if (strip->wide_dtype == MXATTN_F16) {
        strip_f16(strip);
    } else {
        strip_bf16(strip);
    }
    for (int64_t token = strip->used; token < strip->tokens; token++) {
        memset(strip->payload + token * strip->payload_stride, 0, (size_t)strip->dims);
    }
    if (strip->transposed) {
        strip_transpose(strip);
    }
}

static void quantize_turn(const mxa_quantize_turn *turn)
{
    bytes_copy_lines(turn->codes, 2 * PAIR, turn->tokens, turn->dims, turn->payload,
                     turn->payload_stride);
    bytes_transpose_lines(turn->codes, 2 * PAIR, turn->tokens, turn->dims, turn->transposed,
                          turn->transposed_stride);
}

static void quantize_mean(const void *wide, int64_t wide_stride, mxattn_dtype wide_dtype,
                          int64_t tokens, int64_t dims, float *mean)
{
    double sum[MXA_BLOCK] = {0};
    for (int64_t token = 0; token < tokens; token++) {
        float x[MXA_BLOCK];
        load_floats(wide, (format){wide_dtype, MXATTN_E4M3, 0, 0, 0}, token * wide_stride, dims, x);
        for (int i = 0; i < MXA_BLOCK; i++) {
            sum[i] += (double)x[i];
        }
    }
    for (int64_t i = 0; i < dims; i++) {
        float x = tokens ? (float)(sum[i] / (double)tokens) : 0.0F;
        mean[i] = mxa_f32_is_finite(x) ? x : 0.0F;
    }
}

const mxa_quantize_kernels WORDS_NAME(mxa_quantize_kernels) = {
    quantize_strip, quantize_turn, quantize_mean, codes_drain, TURN_BLOCKS};
