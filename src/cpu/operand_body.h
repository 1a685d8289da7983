/* operand_body.h: decodes the tokens of an operand into FP32, exactly, and what turns rows of FP32
 * into units for the GEMMs.
 *
 * A block's scale is folded into its elements by one multiplication. Where that would not be exact,
 * or a code is a NaN or an infinity, the same 32 elements are decoded one by one instead
 * (mxa_fp8_decode); both ways give the same bits wherever both are exact, so an unusual block never
 * changes how its neighbours are decoded. With BF16 units every decoded value is exact too (E4M3
 * has 4 significant bits), apart from those below 2^-126, which count as zero.
 *
 * Included after one vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_OPERAND_BODY_H
#define MXA_CPU_OPERAND_BODY_H

#include "cpu/operand.h"
#include "cpu/vec_tile.h"
#include "mx/e8m0.h"

#include <math.h>
#include <string.h>

/* Decodes the tokens of one operand in any order; ascending order reads SEQ scales once a block. */
typedef struct operand_reader {
    const mxa_operand *operand;
    int64_t block;                        /* whose SEQ scales are held; -1: none */
    uint8_t scales[MXA_DIMS_MOST];        /* as mxa_operand_scales gives them */
    float factor[MXA_DIMS_MOST];          /* SEQ: per dimension */
    uint8_t unusual[MXA_DIM_BLOCKS_MOST]; /* SEQ: a scale among these 32 needs the slow way */
} operand_reader;

static inline void operand_read(operand_reader *reader, const mxa_operand *operand)
{
    reader->operand = operand;
    reader->block = -1;
}

/* Scales outside this range are folded element by element. Above, a product may overflow or the
 * factor itself would; E5M2 under byte 0 has a factor (2^-127) that is subnormal. */
static inline int scale_is_unusual(uint8_t scale, mxattn_dtype dtype)
{
    return dtype == MXATTN_E4M3 ? scale > 246 : scale > 239 || scale == 0;
}

/* What a loaded code (vec_from_e4m3, vec_from_e5m2) is multiplied with. */
static inline float scale_factor(uint8_t scale, mxattn_dtype dtype)
{
    const uint32_t bits = (uint32_t)(scale + (dtype == MXATTN_E4M3 ? 8 : 0)) << 23;
    float factor;

    memcpy(&factor, &bits, sizeof(factor));
    return factor;
}

/* 1 when one of 32 E5M2 codes is a NaN or an infinity: adding to the magnitude carries into the top
 * bit of its byte just for those, from 0x7c on. */
static inline int e5m2_are_special(const uint8_t *codes)
{
    uint64_t carry = 0;

    for (int i = 0; i < MXA_BLOCK; i += 8) {
        uint64_t x;

        memcpy(&x, codes + i, sizeof(x));
        carry |= (x & 0x7f7f7f7f7f7f7f7fu) + 0x0404040404040404u;
    }
    return (carry & 0x8080808080808080u) != 0;
}

/* 32 codes; 1 when one is a NaN or an infinity. */
VEC_INLINE int vec_block_from_codes(const uint8_t *codes, mxattn_dtype dtype, vec *block)
{
    if (dtype == MXATTN_E4M3) {
        code_flags nans = code_flags_none();

        vec_block_from_e4m3(codes, block, &nans);
        return code_flags_any(nans);
    }
    VEC_UNROLL
    for (int i = 0; i < MXA_BLOCK / VEC_LANES; i++)
        block[i] = vec_from_e5m2(codes + i * VEC_LANES);
    return e5m2_are_special(codes);
}

/* A block times one factor, or times one for each element. */
VEC_INLINE void operand_block(const vec *block, const float *factors, int factor_step, float *out)
{
    const vec same = vec_set(factors[0]);

    VEC_UNROLL
    for (int i = 0; i < MXA_BLOCK / VEC_LANES; i++) {
        const vec factor = factor_step ? vec_load(factors + i * VEC_LANES) : same;

        vec_store(out + i * VEC_LANES, vec_mul(block[i], factor));
    }
}

/* The slow way: 32 elements one by one. scale_step: 0 or 1. */
static inline int operand_block_slow(const uint8_t *codes, mxattn_dtype dtype,
                                     const uint8_t *scales, int scale_step, int count, float *out)
{
    int special = 0;

    for (int i = 0; i < count; i++) {
        out[i] = mxa_fp8_decode(codes[i], scales[i * scale_step], dtype);
        special |= !isfinite(out[i]);
    }
    for (int i = count; i < MXA_BLOCK; i++)
        out[i] = 0.0f;
    return special;
}

static inline void operand_reader_turn(operand_reader *reader, int64_t token)
{
    const mxa_operand *operand = reader->operand;

    if (operand->axis == MXATTN_HDIM) {
        mxa_operand_scales(operand, token, reader->scales);
        return;
    }
    if (reader->block == token / MXA_BLOCK)
        return;
    reader->block = token / MXA_BLOCK;
    mxa_operand_scales(operand, token, reader->scales);
    memset(reader->unusual, 0, sizeof(reader->unusual));
    memset(reader->factor, 0, sizeof(reader->factor));
    for (int32_t d = 0; d < operand->dims; d++) {
        if (scale_is_unusual(reader->scales[d], operand->dtype))
            reader->unusual[d / MXA_BLOCK] = 1;
        else
            reader->factor[d] = scale_factor(reader->scales[d], operand->dtype);
    }
}

/* One token in FP32, for one element type (a constant where this is inlined). */
VEC_INLINE int operand_row_of(operand_reader *reader, mxattn_dtype dtype, int64_t token, float *out)
{
    const mxa_operand *operand = reader->operand;
    const int hdim = operand->axis == MXATTN_HDIM;
    const uint8_t *codes = operand->payload + token * operand->token_stride;
    uint8_t tail[MXA_BLOCK];
    int special = 0;

    for (int32_t d = 0; d < operand->dims; d += MXA_BLOCK, codes += MXA_BLOCK, out += MXA_BLOCK) {
        const int count = operand->dims - d < MXA_BLOCK ? operand->dims - d : MXA_BLOCK;
        const uint8_t *scales = hdim ? &reader->scales[d / MXA_BLOCK] : &reader->scales[d];
        vec block[MXA_BLOCK / VEC_LANES];
        const int unusual =
            hdim ? scale_is_unusual(*scales, dtype) : reader->unusual[d / MXA_BLOCK];

        if (count < MXA_BLOCK) {
            memset(tail, 0, sizeof(tail));
            codes = memcpy(tail, codes, (size_t)count);
        }
        if (vec_block_from_codes(codes, dtype, block) || unusual) {
            special |= operand_block_slow(codes, dtype, scales, !hdim, count, out);
        } else if (hdim) {
            const float factor = scale_factor(*scales, dtype);

            operand_block(block, &factor, 0, out);
        } else {
            operand_block(block, &reader->factor[d], 1, out);
        }
    }
    return special;
}

/* One token in FP32: out[0 .. dims rounded up to 32), zeros beyond dims. Returns 1 when an element
 * is a NaN or an infinity. */
static inline int operand_row(operand_reader *reader, int64_t token, float *out)
{
    operand_reader_turn(reader, token);
    if (reader->operand->dtype == MXATTN_E4M3)
        return operand_row_of(reader, MXATTN_E4M3, token, out);
    return operand_row_of(reader, MXATTN_E5M2, token, out);
}

/* The common case, with no branch among the elements: tokens [first, first+count) of whole E4M3
 * blocks with one scale each, token t at out + t*step. Returns how many of them came before one
 * that needs the slow way (0 where the tensor is of another kind); the row after them may be
 * written. */
static VEC_NOINLINE int64_t operand_rows_usual(const mxa_operand *operand, int64_t first,
                                               int64_t count, float *out, int64_t step)
{
    const int32_t blocks = operand->dims / MXA_BLOCK;
    uint8_t gathered[MXA_DIM_BLOCKS_MOST];

    if (operand->dtype != MXATTN_E4M3 || operand->axis != MXATTN_HDIM ||
        operand->dims % MXA_BLOCK != 0)
        return 0;
    for (int64_t t = 0; t < count; t++) {
        const int64_t token = first + t;
        const uint8_t *codes = operand->payload + token * operand->token_stride;
        const uint8_t *scales = gathered;
        code_flags nans = code_flags_none();
        int64_t scale_step = 1;
        int unusual = 0;

        if (operand->scale_first) {
            scales = operand->scale_first + token / MXA_BLOCK * operand->scale_block +
                     token % MXA_BLOCK * operand->scale_token;
            scale_step = operand->scale_k;
        } else {
            mxa_operand_scales(operand, token, gathered);
        }
        for (int32_t b = 0; b < blocks; b++, scales += scale_step) {
            const float factor = scale_factor(*scales, MXATTN_E4M3);
            vec block[MXA_BLOCK / VEC_LANES];

            vec_block_from_e4m3(codes + b * MXA_BLOCK, block, &nans);
            unusual |= scale_is_unusual(*scales, MXATTN_E4M3);
            operand_block(block, &factor, 0, out + t * step + b * MXA_BLOCK);
        }
        if (unusual || code_flags_any(nans))
            return t;
    }
    return count;
}

/* Tokens [first, first+count) in FP32, token t at out + t*step as operand_row leaves it. Returns 1
 * when an element is a NaN or an infinity. */
static inline int operand_rows(operand_reader *reader, int64_t first, int64_t count, float *out,
                               int64_t step)
{
    int special = 0;

    for (int64_t t = 0; t < count; t++) {
        t += operand_rows_usual(reader->operand, first + t, count - t, out + t * step, step);
        if (t < count)
            special |= operand_row(reader, first + t, out + t * step);
    }
    return special;
}

/* Units of one row that a head dimension needs, padded to whole blocks. */
static inline int64_t units_along_dims(int64_t dims)
{
    return mxa_round_up(dims, MXA_BLOCK) / UNIT_DEPTH;
}

/* Where to decode a row that ends as units in out: there, where a unit is an FP32. */
static inline float *row_space(unit *out, float *row)
{
    return UNIT_DEPTH == 1 ? (float *)(void *)out : row;
}

/* A decoded row as units along the head dimension: the last step for an operand whose contracted
 * axis is the head dimension. */
VEC_INLINE void units_from_row(const float *row, int64_t dims, unit *out)
{
    const int64_t padded = mxa_round_up(dims, MXA_BLOCK);

    for (int64_t d = 0; d < padded; d += VEC_LANES * UNIT_DEPTH)
        unit_store(out + d / UNIT_DEPTH, unit_along(row + d));
}

/* VEC_LANES rows of units (row l at rows + l*step) turned into lanes: unit (k, l) at
 * out[k*out_step + l], for k in [0, units). units: a multiple of VEC_LANES. */
static inline void units_transpose(const unit *rows, int64_t step, int64_t units, unit *out,
                                   int64_t out_step)
{
    for (int64_t k = 0; k < units; k += VEC_LANES) {
        vec tile[VEC_LANES];

        for (int l = 0; l < VEC_LANES; l++)
            tile[l] = vec_load((const float *)(const void *)(rows + l * step + k));
        vec_transpose(tile);
        for (int i = 0; i < VEC_LANES; i++)
            vec_store((float *)(void *)(out + (k + i) * out_step), tile[i]);
    }
}

#endif
