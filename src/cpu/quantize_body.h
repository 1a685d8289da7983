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
 * token. They load quads and find maxima, then make scales and keys of many at once, then encode.
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
    BATCH = MXA_BLOCK             /* quads between load and encode */
};

/* Quads under way: their words, and the scale and key of each chunk. */
typedef struct batch {
    const uint16_t *words[BATCH]; /* in `space`, or where they came from */
    uint32_t key[BATCH * CHUNKS]; /* twice in each */
    uint32_t amax[BATCH * CHUNKS];
    uint8_t scale[BATCH * CHUNKS];
    uint16_t space[BATCH][QUAD];
} batch;

/* Where codes go: rows of quads. */
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
    const int64_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
    const char *next = (const char *)strip->wide + (token * strip->wide_stride + d) * bytes;
    if (strip->ahead) {
        for (int64_t i = 0; i < width * bytes; i += 64) {
            __builtin_prefetch(next + strip->ahead + i);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * scales
 * --------------------------------------------------------------------------------------------- */

/* Scales and keys of `count` maxima; returns 1 when one is slow: words then do not hold all that
 * counts. Of zeros they do under any scale. */
ALWAYS_INLINE int scales_of(const mxa_quantize_strip *strip, format f, int count,
                            const uint32_t *restrict amax, uint8_t *restrict scale,
                            uint32_t *restrict key)
{
    const int up = strip->tags.rounding == MXATTN_RCEIL ? 0x1F : 0; /* mantissas above 0x60 carry */
    const int top = f.narrow == MXATTN_E5M2 ? 15 : 8;
    const int half = (1 << (dropped_bits(f) - 1)) - 1;
    int slow = 0;
    for (int i = 0; i < count; i++) {
        const int a = (int)amax[i];
        int s = ((a + up) >> 7) - top;
        s = s > 0 ? s : 0;
        s = a >= 0x7F80 ? 0xFE + (a > 0x7F80) : s;
        const int least = s > FAST_SCALE_LEAST ? s : FAST_SCALE_LEAST;
        const uint32_t k = (uint32_t)(half - (least - narrow_bias(f)) * 128) & 0xFFFF;
        slow |= (a != 0) & ((s < FAST_SCALE_LEAST) | (s > FAST_SCALE_MOST));
        scale[i] = (uint8_t)s;
        key[i] = k | k << 16;
    }
    return slow;
}

ALWAYS_INLINE int scale_is_slow(uint8_t scale, uint32_t amax)
{
    return amax != 0 && (scale < FAST_SCALE_LEAST || scale > FAST_SCALE_MOST);
}

/* ------------------------------------------------------------------------------------------------
 * encode
 * --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE words code_of(words w, words key, format f)
{
    const words a = magnitude(w);
    const words even = words_and(words_shift_right(a, dropped_bits(f)), words_set(1));
    return words_shift_signed(words_add(words_add(a, key), even), dropped_bits(f));
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
        codes_put(out + i, codes_min(magnitudes, codes_set((uint8_t)narrow_most(f))), a, b, stream);
    }
    return codes_any_below(least, (uint8_t)narrow_normal(f));
}

/* The chunks of a quad that hold codes below the smallest normal one and above 0, and those that
 * are slow, again. step: 1 where each lane has a scale; else each chunk. */
static __attribute__((noinline)) void encode_again(const mxa_quantize_strip *strip, format f,
                                                   int64_t token, int64_t d, int width,
                                                   const uint16_t *quad, const uint8_t *scale,
                                                   const uint32_t *amax, int step, uint8_t *out)
{
    for (int c = 0; c < width; c += MXA_BLOCK) {
        int again = 0;
        for (int i = c; i < c + MXA_BLOCK; i++) {
            const int at = step ? i : c / MXA_BLOCK;
            const int smallest =
                (scale[at] > FAST_SCALE_LEAST ? scale[at] : FAST_SCALE_LEAST) - narrow_bias(f) + 1;
            const int a = quad[i] & 0x7FFF;
            again |= scale_is_slow(scale[at], amax[at]) | ((a != 0) & (a < smallest << 7));
        }
        if (again) {
            encode_chunk(strip, f, token, d + c, scale + (step ? c : c / MXA_BLOCK), step, out + c);
        }
    }
}

/* One quad, all of it. slow: one of its chunks may be. */
ALWAYS_INLINE void put_quad(const mxa_quantize_strip *strip, format f, int64_t token, int64_t d,
                            int width, const uint16_t *quad, const void *key, int key_step,
                            const uint8_t *scale, const uint32_t *amax, int slow, uint8_t *out,
                            int stream)
{
    uint8_t whole[QUAD];
    uint8_t *to = f.plain ? out : whole;
    const int small = width == QUAD || !f.plain
                          ? encode_quad(quad, f, QUAD, key, key_step, to, stream)
                          : encode_quad(quad, f, QUAD / 2, key, key_step, to, stream);
    if (small || slow) {
        encode_again(strip, f, token, d, width, quad, scale, amax, key_step != 0, to);
    }
    if (!f.plain) {
        memcpy(out, whole, (size_t)width);
    }
}

/* ------------------------------------------------------------------------------------------------
 * rows
 * --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE int width_of(const mxa_quantize_strip *strip, int64_t d)
{
    const int64_t left = strip->dims - d;
    return left < QUAD ? (int)left : QUAD;
}

/* The scale bytes of one quad of one token. */
ALWAYS_INLINE void store_row_scales(const mxa_scale_place *place, int64_t token, int64_t d,
                                    int width, const uint8_t scale[CHUNKS])
{
    if (!place->data) {
        return;
    }
    uint8_t *to = mxa_scale_place_at(place, d / MXA_BLOCK, token);
    if (place->stride_1 == 1 && width == QUAD) {
        memcpy(to, scale, CHUNKS);
        return;
    }
    for (int c = 0; c * MXA_BLOCK < width; c++) {
        to[c * place->stride_1] = scale[c];
    }
}

/* Quads [first, first + count) of a strip, token by token. */
ALWAYS_INLINE void row_batch(const mxa_quantize_strip *strip, format f, const target *to,
                             int64_t first, int count, batch *b)
{
    const int64_t quads = (strip->dims + QUAD - 1) / QUAD;
    const int folded = (strip->tags.flags & MXATTN_FOLDED_TOKEN) != 0;
    int64_t token = first / quads, d = first % quads * QUAD;
    for (int i = 0; i < count; i++) {
        const int width = width_of(strip, d);
        words quad[VECTORS];
        if (f.plain && width == QUAD) {
            b->words[i] = load_quad(strip, f, token, d, QUAD, quad, b->space[i]);
        } else {
            b->words[i] = load_quad(strip, f, token, d, width, quad, b->space[i]);
        }
        load_ahead(strip, f, token, d, width);
        UNROLL
        for (int j = 0; j < VECTORS; j++) {
            quad[j] = magnitude(quad[j]);
        }
        words_largest_4(quad, b->amax + i * CHUNKS);
        if (folded) {
            const uint16_t amax = token_largest(strip, f, token);
            for (int c = 0; c < CHUNKS; c++) {
                b->amax[i * CHUNKS + c] = amax;
            }
        }
        d += QUAD;
        token += d >= strip->dims;
        d = d >= strip->dims ? 0 : d;
    }
    const int slow = scales_of(strip, f, count * CHUNKS, b->amax, b->scale, b->key);
    token = first / quads, d = first % quads * QUAD;
    for (int i = 0; i < count; i++) {
        const int width = width_of(strip, d);
        const uint8_t *scale = b->scale + i * CHUNKS;
        store_row_scales(&strip->places[MXATTN_HDIM], token, d, width, scale);
        put_quad(strip, f, token, d, width, b->words[i], b->key + i * CHUNKS, 0, scale,
                 b->amax + i * CHUNKS, slow, to->at + token * to->stride + d, to->stream);
        d += QUAD;
        token += d >= strip->dims;
        d = d >= strip->dims ? 0 : d;
    }
}

ALWAYS_INLINE void strip_rows(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_HDIM];
    const int64_t total = strip->used * ((strip->dims + QUAD - 1) / QUAD);
    batch b;
    for (int64_t first = 0; first < total; first += BATCH) {
        row_batch(strip, f, to, first, total - first < BATCH ? (int)(total - first) : BATCH, &b);
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
ALWAYS_INLINE void load_quads(const mxa_quantize_strip *strip, format f, int64_t d, int width,
                              batch *b, words largest[VECTORS])
{
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        largest[i] = words_set(0);
    }
    for (int64_t token = 0; token < strip->used; token++) {
        words quad[VECTORS];
        b->words[token] = load_quad(strip, f, token, d, width, quad, b->space[token]);
        load_ahead(strip, f, token, d, width);
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
        store_row_scales(hdim, token, d, width, scale);
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
    load_quads(strip, f, d, width, b, largest);
    words_largest_4(largest, b->amax);
    for (int c = 0; c < CHUNKS && (strip->tags.flags & MXATTN_FOLDED); c++) {
        b->amax[c] = folded;
    }
    const int slow = scales_of(strip, f, CHUNKS, b->amax, b->scale, b->key);
    for (int64_t token = 0; token < strip->used; token++) {
        put_quad(strip, f, token, d, width, b->words[token], b->key, 0, b->scale, b->amax, slow,
                 to->at + token * to->stride + d, to->stream);
    }
    store_square_scales(strip, d, width, b->scale);
}

ALWAYS_INLINE void strip_squares(const mxa_quantize_strip *strip, format f, const target *to)
{
    const int folded = (strip->tags.flags & MXATTN_FOLDED) != 0;
    uint16_t amax = 0;
    batch b;
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

ALWAYS_INLINE void strip_columns(const mxa_quantize_strip *strip, format f, const target *to)
{
    const mxa_scale_place *place = &strip->places[MXATTN_SEQ];
    batch b;
    for (int64_t d = 0; d < strip->dims; d += QUAD) {
        const int width = width_of(strip, d);
        words largest[VECTORS];
        uint16_t lanes[QUAD];
        uint32_t amax[QUAD], twice[QUAD];
        uint8_t scale[QUAD];
        load_quads(strip, f, d, width, &b, largest);
        for (int i = 0; i < VECTORS; i++) {
            words_store(lanes + i * WORDS_LANES, largest[i]);
        }
        for (int i = 0; i < QUAD; i++) {
            amax[i] = lanes[i];
        }
        const int slow = scales_of(strip, f, QUAD, amax, scale, twice);
        for (int i = 0; i < QUAD; i++) {
            lanes[i] = (uint16_t)twice[i];
        }
        for (int64_t token = 0; token < strip->used; token++) {
            put_quad(strip, f, token, d, width, b.words[token], lanes, 1, scale, amax, slow,
                     to->at + token * to->stride + d, to->stream);
        }
        for (int c = 0; place->data && c < width; c += MXA_BLOCK) {
            const int left = width - c, within = left < MXA_BLOCK ? left : MXA_BLOCK;
            uint8_t *out = mxa_scale_place_at(place, (d + c) / MXA_BLOCK, 0);
            for (int i = 0; i < within; i++) {
                out[i * place->stride_within] = scale[c + i];
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * a strip
 * --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE void strip_typed(const mxa_quantize_strip *strip, format f, const target *to)
{
    switch (strip->tags.block) {
    case MXATTN_BLOCK_ROW:
        strip_rows(strip, f, to);
        return;
    case MXATTN_BLOCK_COLUMN:
        strip_columns(strip, f, to);
        return;
    case MXATTN_BLOCK_SQUARE:
        strip_squares(strip, f, to);
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
#define DEFINE_STRIP(name, wide, narrow)                                                           \
    static __attribute__((noinline)) void name(const mxa_quantize_strip *strip)                    \
    {                                                                                              \
        const mxa_quantize_strip copy = *strip;                                                    \
        const target to = {copy.payload, copy.payload_stride, codes_may_stream(&copy)};            \
        if (copy.centre || copy.dims % 64) {                                                       \
            strip_typed(&copy, (format){wide, narrow, 0}, &to);                                    \
        } else {                                                                                   \
            strip_typed(&copy, (format){wide, narrow, 1}, &to);                                    \
        }                                                                                          \
    }

DEFINE_STRIP(strip_f32_e4m3, MXATTN_F32, MXATTN_E4M3)
DEFINE_STRIP(strip_f16_e4m3, MXATTN_F16, MXATTN_E4M3)
DEFINE_STRIP(strip_bf16_e4m3, MXATTN_BF16, MXATTN_E4M3)
DEFINE_STRIP(strip_f32_e5m2, MXATTN_F32, MXATTN_E5M2)
DEFINE_STRIP(strip_f16_e5m2, MXATTN_F16, MXATTN_E5M2)
DEFINE_STRIP(strip_bf16_e5m2, MXATTN_BF16, MXATTN_E5M2)

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

const mxa_quantize_kernels WORDS_NAME(mxa_quantize_kernels) = {quantize_strip, quantize_mean,
                                                               codes_drain};
