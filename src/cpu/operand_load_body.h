/* operand_load_body.h: tiles of an operand as units for the GEMMs, in the two orders they read.
 *
 * Tokens are taken in chunks that lie in one block of 32. A usual chunk (whole blocks of E4M3 codes
 * with one scale each, all of which fold) is decoded without a branch among its elements; where its
 * tokens share their scales, as those of square blocks do, a scale is set once for 32 x 32
 * elements. Any other chunk is decoded token by token in FP32 (operand_body.h), to the same bits
 * wherever both ways are exact.
 *
 * Included after one vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_OPERAND_LOAD_BODY_H
#define MXA_CPU_OPERAND_LOAD_BODY_H

#include "cpu/operand_body.h"

enum {
    ALONG_VECTORS = MXA_BLOCK / (VEC_LANES * UNIT_DEPTH), /* of 32 elements of a token */
    ACROSS_VECTORS = MXA_BLOCK / VEC_LANES, /* of 32 dimensions of UNIT_DEPTH tokens */
    PIECE = (int)TILE_M < (int)VEC_LANES
                ? (int)TILE_M
                : (int)VEC_LANES /* of a vector that is stored as a whole */
};

#if UNIT_IS_F32
/* Codes as units: what a scale was folded into, and whether a NaN has been among them. Where units
 * are BF16 the vocabulary has its own. */
typedef struct unit_decoder {
    vec factor;
    code_flags nans;
} unit_decoder;

enum { UNIT_SCALE_LEAST = 0 };

static inline void unit_decoder_start(unit_decoder *decoder)
{
    decoder->nans = code_flags_none();
}

static inline void unit_decoder_scale(unit_decoder *decoder, uint8_t scale)
{
    decoder->factor = vec_set(scale_factor(scale, MXATTN_E4M3));
}

static inline int unit_decoder_special(const unit_decoder *decoder)
{
    return code_flags_any(decoder->nans);
}

VEC_INLINE void units_from_codes(unit_decoder *decoder, const uint8_t *codes,
                                 uvec out[ALONG_VECTORS])
{
    vec_block_from_e4m3(codes, out, &decoder->nans);
    VEC_UNROLL
    for (int i = 0; i < ALONG_VECTORS; i++)
        out[i] = vec_mul(out[i], decoder->factor);
}

/* A unit is one token's. */
VEC_INLINE void units_from_two(unit_decoder *first, const uint8_t *codes, unit_decoder *second,
                               const uint8_t *codes_second, uvec out[ACROSS_VECTORS])
{
    (void)second;
    (void)codes_second;
    units_from_codes(first, codes, out);
}
#endif

/* ------------------------------------------------------------------------------------------------
 * usual chunks
 * --------------------------------------------------------------------------------------------- */

/* Tokens of one block of 32; the scale byte of token t and dimension block b is at
 * scales[t*scale_token + b*scale_k]. */
typedef struct chunk {
    const uint8_t *codes, *scales;
    int64_t token_stride, scale_token, scale_k;
    int64_t count;
    int32_t blocks;
    uint8_t gathered[MXA_BLOCK][MXA_DIM_BLOCKS_MOST];
} chunk;

/* 1 where the chunk is usual, codes apart. */
static int chunk_open(chunk *c, const mxa_operand *operand, int64_t first, int64_t count)
{
    const int lowest = UNIT_SCALE_LEAST;
    int shared = 1, usual = 1;

    if (operand->dtype != MXATTN_E4M3 || operand->axis != MXATTN_HDIM ||
        operand->dims % MXA_BLOCK != 0)
        return 0;
    c->codes = operand->payload + first * operand->token_stride;
    c->token_stride = operand->token_stride;
    c->count = count;
    c->blocks = operand->dims / MXA_BLOCK;
    if (operand->scale_first) {
        c->scales = operand->scale_first + first / MXA_BLOCK * operand->scale_block +
                    first % MXA_BLOCK * operand->scale_token;
        c->scale_token = operand->scale_token;
        c->scale_k = operand->scale_k;
    } else {
        for (int64_t t = 0; t < count; t++)
            mxa_operand_scales(operand, first + t, c->gathered[t]);
        c->scales = c->gathered[0];
        c->scale_token = MXA_DIM_BLOCKS_MOST;
        c->scale_k = 1;
    }
    for (int32_t b = 0; b < c->blocks; b++) {
        const uint8_t *scales = c->scales + b * c->scale_k;
        uint8_t least = *scales, most = *scales;

        for (int64_t t = 1; t < count && c->scale_token; t++) {
            const uint8_t scale = scales[t * c->scale_token];

            least = scale < least ? scale : least;
            most = scale > most ? scale : most;
        }
        shared &= least == most;
        usual &= least >= lowest && !scale_is_unusual(most, MXATTN_E4M3);
    }
    if (shared)
        c->scale_token = 0;
    return usual;
}

/* Token t as units along the head dimension at out + t*step; 0 where a code was a NaN. */
static VEC_NOINLINE int chunk_rows(const chunk *c, unit *out, int64_t step)
{
    unit_decoder decoder;

    unit_decoder_start(&decoder);
    for (int32_t b = 0; b < c->blocks; b++) {
        const uint8_t *codes = c->codes + b * MXA_BLOCK, *scale = c->scales + b * c->scale_k;
        unit *to = out + b * (MXA_BLOCK / UNIT_DEPTH);

        unit_decoder_scale(&decoder, *scale);
        for (int64_t t = 0; t < c->count; t++, codes += c->token_stride, to += step) {
            uvec units[ALONG_VECTORS];

            if (c->scale_token)
                unit_decoder_scale(&decoder, scale[t * c->scale_token]);
            units_from_codes(&decoder, codes, units);
            VEC_UNROLL
            for (int i = 0; i < ALONG_VECTORS; i++)
                unit_store(to + i * VEC_LANES, units[i]);
        }
    }
    return !unit_decoder_special(&decoder);
}

/* Units across UNIT_DEPTH tokens: that of token t and dimension d at
 * out[t/UNIT_DEPTH*token_step + d/PIECE*piece_step + d%PIECE]. count: a multiple of UNIT_DEPTH. */
static VEC_NOINLINE int chunk_across(const chunk *c, unit *out, int64_t token_step,
                                     int64_t piece_step)
{
    unit_decoder first, second;

    unit_decoder_start(&first);
    unit_decoder_start(&second);
    for (int32_t b = 0; b < c->blocks; b++) {
        const uint8_t *codes = c->codes + b * MXA_BLOCK, *scale = c->scales + b * c->scale_k;
        unit *to = out + b * (MXA_BLOCK / PIECE) * piece_step;

        unit_decoder_scale(&first, *scale);
        unit_decoder_scale(&second, *scale);
        for (int64_t t = 0; t < c->count; t += UNIT_DEPTH, to += token_step) {
            const int64_t last = t + UNIT_DEPTH - 1;
            uvec units[ACROSS_VECTORS];

            if (c->scale_token) {
                unit_decoder_scale(&first, scale[t * c->scale_token]);
                unit_decoder_scale(&second, scale[last * c->scale_token]);
            }
            units_from_two(&first, codes + t * c->token_stride, &second,
                           codes + last * c->token_stride, units);
            VEC_UNROLL
            for (int i = 0; i < ACROSS_VECTORS; i++)
                unit_store_pieces(to + i * (VEC_LANES / PIECE) * piece_step, piece_step, units[i]);
        }
    }
    return !unit_decoder_special(&first) && !unit_decoder_special(&second);
}

/* ------------------------------------------------------------------------------------------------
 * loads
 * --------------------------------------------------------------------------------------------- */

/* Load, rows: tokens [first, first+count) as operand contracted over the head dimension: unit
 * (token, d) at out[token*step + d/UNIT_DEPTH], for d up to whole blocks. Rows up to `rows` are
 * zero. Returns 1 when an element is a NaN or an infinity. */
static inline int operand_load_rows(const mxa_operand *operand, int64_t first, int64_t count,
                                    int64_t rows, unit *out, int64_t step)
{
    operand_reader reader;
    float space[MXA_DIMS_MOST];
    int special = 0;

    operand_read(&reader, operand);
    for (int64_t t = 0, next; t < count; t = next) {
        chunk c;

        next = mxa_round_up(first + t + 1, MXA_BLOCK) - first;
        next = next < count ? next : count;
        if (chunk_open(&c, operand, first + t, next - t) && chunk_rows(&c, out + t * step, step))
            continue;
        for (; t < next; t++) {
            float *row = row_space(out + t * step, space);

            special |= operand_row(&reader, first + t, row);
            if (UNIT_DEPTH > 1)
                units_from_row(row, operand->dims, out + t * step);
        }
    }
    for (int64_t t = count; t < rows; t++)
        memset(out + t * step, 0, (size_t)units_along_dims(operand->dims) * sizeof(unit));
    return special;
}

/* UNIT_DEPTH tokens from `first` on, those from `end` on zero. */
static int across_slow(operand_reader *reader, int64_t first, int64_t end, int64_t dims, unit *out,
                       int64_t piece_step)
{
    float space[UNIT_DEPTH][MXA_DIMS_MOST];
    int special = 0;

    for (int i = 0; i < UNIT_DEPTH; i++)
        if (first + i < end)
            special |= operand_row(reader, first + i, space[i]);
        else
            memset(space[i], 0, sizeof(space[i]));
    for (int64_t d = 0; d < dims; d += VEC_LANES) {
        vec part[UNIT_DEPTH];
        unit whole[VEC_LANES];

        for (int i = 0; i < UNIT_DEPTH; i++)
            part[i] = vec_load(space[i] + d);
        unit_store(whole, unit_join(part));
        for (int piece = 0; piece < VEC_LANES && d + piece < dims; piece += PIECE)
            memcpy(out + (d + piece) / PIECE * piece_step, whole + piece, PIECE * sizeof(unit));
    }
    return special;
}

/* Load, across: tokens as operand contracted over tokens, as chunk_across places them; those from
 * count to `rows`, and dimensions from the last to `dims`, are zero. first, rows: even; dims: a
 * multiple of PIECE. Returns 1 when an element is a NaN or an infinity. */
static inline int operand_load_across(const mxa_operand *operand, int64_t first, int64_t count,
                                      int64_t rows, int64_t dims, unit *out, int64_t token_step,
                                      int64_t piece_step)
{
    operand_reader reader;
    int special = 0;

    operand_read(&reader, operand);
    for (int64_t t = 0; t < rows;) {
        int64_t next = mxa_round_up(first + t + 1, MXA_BLOCK) - first;

        next = next < rows ? next : rows;
        const int64_t usual = (next < count ? next : count) - t;
        const int64_t whole = usual > 0 ? usual / UNIT_DEPTH * UNIT_DEPTH : 0;
        chunk c;

        if (whole && chunk_open(&c, operand, first + t, whole) &&
            chunk_across(&c, out + t / UNIT_DEPTH * token_step, token_step, piece_step))
            t += whole;
        for (; t < next; t += UNIT_DEPTH)
            special |= across_slow(&reader, first + t, first + count, dims,
                                   out + t / UNIT_DEPTH * token_step, piece_step);
    }
    return special;
}

/* Panels: TILE_M dimensions of all tokens follow each other. WHY: read down a column of a row-major
 * tile, the lines of TILE_M dimensions would fall into a few sets of the first cache; one line
 * between panels keeps them apart too. */
enum { PANEL_GAP = 64 / (int)sizeof(unit) };

#if defined(VEC_MATRIX)
/* A matrix product reads rows: dimension d of all tokens lies side by side. */
static inline int64_t panel_step(int64_t rows)
{
    return rows / UNIT_DEPTH + PANEL_GAP;
}

static inline int64_t panel_unit(int64_t token, int64_t d, int64_t rows)
{
    return d * panel_step(rows) + token / UNIT_DEPTH;
}
#else
static inline int64_t panel_step(int64_t rows)
{
    (void)rows;
    return TILE_M;
}

/* Place of unit (token, d) when there is room for `rows` tokens, a multiple of UNIT_DEPTH. */
static inline int64_t panel_unit(int64_t token, int64_t d, int64_t rows)
{
    const int64_t panel = rows / UNIT_DEPTH * TILE_M + PANEL_GAP;

    return d / TILE_M * panel + token / UNIT_DEPTH * TILE_M + d % TILE_M;
}
#endif

static inline int64_t panel_units(int64_t dims, int64_t rows)
{
    return panel_unit(0, mxa_round_up(dims, TILE_M), rows);
}

/* Tokens [first, first+count) as panels; up to rows, and dimensions beyond the last, are zero.
 * Returns 1 when an element is a NaN or an infinity. */
static inline int operand_load_panels(const mxa_operand *operand, int64_t first, int64_t count,
                                      int64_t rows, unit *out)
{
    const int64_t dims = mxa_round_up(operand->dims, TILE_M);
#if defined(VEC_MATRIX)
    enum { STEP_TOKENS = VEC_LANES * UNIT_DEPTH };
    unit across[VEC_LANES][MXA_DIMS_MOST];
    int special = 0;

    for (int64_t t = 0; t < rows; t += STEP_TOKENS) {
        special |= operand_load_across(operand, first + t, count - t, STEP_TOKENS, dims, across[0],
                                       MXA_DIMS_MOST, PIECE);
        units_transpose(across[0], MXA_DIMS_MOST, dims, out + panel_unit(t, 0, rows),
                        panel_step(rows));
    }
    return special;
#else
    return operand_load_across(operand, first, count, rows, dims, out, TILE_M,
                               panel_unit(0, TILE_M, rows));
#endif
}

#endif
