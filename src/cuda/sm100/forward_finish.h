/* forward_finish.h: the finish stage of the Blackwell forward: O and LSE of one tile.
 *
 * One thread, one row. O leaves tensor memory 32 columns at a time, is divided by the row's sum and
 * converted, then staged in shared memory so that a warp writes whole lines. O in MXFP8: a row's 32
 * columns are a row block; the warp's 32 rows start at a multiple of 32, so a square or a column
 * block is the warp's own too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_FINISH_H
#define MXA_CUDA_SM100_FORWARD_FINISH_H

#include "cuda/common/operand.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/sm100/block.h"
#include "cuda/sm100/forward_softmax.h"

enum { FORWARD_STAGE_BYTES = 128 * 128 }; /* 128 bytes of each of 128 rows */

/* What a row's maximum and sum come to. */
typedef struct forward_result {
    float inverse; /* of the sum: accumulator to O */
    float weight;  /* sum of P: 1 without a sink */
    float lse;
    int empty; /* no key seen: O is 0 */
} forward_result;

MXA_DEVICE void forward_finish_row(const mxa_sm100_forward_params *params, int head, float m,
                                   float l, forward_result *result)
{
    const float ln2 = 0.69314718055994531f, log2e = 1.44269504088896341f;
    const float unit = (float)FORWARD_P_LOG2;
    result->empty = m == FORWARD_MINUS_INF;
    result->weight = 1.0f;
    if (params->sink) {
        float sink = mul_rn(dev_load_global_f32(params->sink + 4 * (uint64_t)head), log2e);
        float top = max_nan_f32(m, ceil_f32(sink));
        float shrink = result->empty ? 0.0f : exp2_approx(add_rn(m, -top));
        float own = mul_rn(l, shrink);
        float total = add_rn(own, exp2_approx(add_rn(add_rn(sink, -top), unit)));
        result->weight = own / total;
        result->inverse = shrink / total;
        result->lse = mul_rn(add_rn(add_rn(top, log2_approx(total)), -unit), ln2);
    } else {
        result->inverse = 1.0f / l;
        result->lse = result->empty ? FORWARD_MINUS_INF
                                    : mul_rn(add_rn(add_rn(m, log2_approx(l)), -unit), ln2);
    }
}

/* 32 columns of O from accumulators: times the row's factor, and V's mean added. */
MXA_DEVICE void forward_finish_values(uint32_t *x, const forward_result *result, mxa_global mean)
{
    MXA_UNROLL
    for (int i = 0; i < 32; i += 4) {
        mxa_u32x4 four = {0, 0, 0, 0};
        if (mean) {
            four = dev_load_global_u32x4(mean + 4 * (uint64_t)i);
        }
        uint32_t means[4] = {four.x, four.y, four.z, four.w};
        MXA_UNROLL
        for (int j = 0; j < 4; j++) {
            /* A mean that is not finite counts as 0. */
            uint32_t bits = (means[j] & 0x7F800000u) == 0x7F800000u ? 0 : means[j];
            float y =
                fma_rn(f32_bits(x[i + j]), result->inverse, mul_rn(f32_bits(bits), result->weight));
            x[i + j] = result->empty ? 0 : bits_f32(y);
        }
    }
}

/* 32 columns of O to FP8, in place, x[0..7]; *byte is this row's scale (row and square blocks), or
 * that of column dev_thread() % 32 (column blocks). */
MXA_DEVICE void forward_finish_block(const mxa_sm100_forward_params *params, int e5m2, uint32_t *x,
                                     uint32_t *byte)
{
    const int lane = dev_thread() & 31;
    float v[32];
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        v[i] = f32_bits(x[i]);
    }
    if (params->o_block == MXA_GPU_COLUMN) {
        float most = 0.0f; /* of column `lane` */
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            float amax = warp_max_abs_nan_f32(v[i]);
            most = lane == i ? amax : most;
        }
        *byte = block_scale_byte(most, e5m2, params->o_rounding);
        MXA_UNROLL
        for (int i = 0; i < 32; i += 4) {
            float inverse[4];
            uint32_t nan = 0;
            MXA_UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t of = (uint32_t)shuffle_i32((int)*byte, i + j);
                inverse[j] = block_inverse(of);
                nan |= of == 255 ? 0xFFu << (8 * j) : 0;
            }
            x[i / 4] = (block_codes(v + i, inverse, 0, e5m2) & ~nan) | (0x7F7F7F7Fu & nan);
            hold_u32(&x[i / 4]); /* WHY: one word after another; overlapped, they spill */
        }
        return;
    }
    float amax = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < 32; i += 2) {
        amax = max3_abs_nan_f32(amax, v[i], v[i + 1]);
    }
    if (params->o_block == MXA_GPU_SQUARE) {
        amax = warp_max_abs_nan_f32(amax);
    }
    *byte = block_scale_byte(amax, e5m2, params->o_rounding);
    const float one = block_inverse(*byte);
    const float inverse[4] = {one, one, one, one};
    MXA_UNROLL
    for (int i = 0; i < 32; i += 4) {
        x[i / 4] = block_codes(v + i, inverse, *byte, e5m2);
        hold_u32(&x[i / 4]);
    }
}

/* The scale bytes of a row's (hdim) and of a warp's (seq) blocks; byte g: of columns 32*g... A
 * tile writes whole units of tiled scales: rows beyond the sequence, and columns beyond D, 0. A row
 * of it beyond seqused has its square block's byte all the same. */
MXA_DEVICE void forward_finish_scales(const mxa_sm100_forward_params *params,
                                      const forward_tile *tile, int position, int groups,
                                      uint32_t bytes)
{
    const int lane = dev_thread() & 31;
    const int there = position < tile->q_length, some = position - lane < tile->q_end;
    MXA_UNROLL
    for (int axis = 0; axis < 2; axis++) {
        const mxa_sm100_out_scales *to = &params->o_scales[axis];
        if (to->data == 0) {
            continue;
        }
        mxa_global at = to->data + (uint64_t)(tile->head * to->head);
        if (to->layout == MXA_GPU_TILED) {
            int first = to->cu ? dev_load_global_i32(to->cu + 4 * (uint64_t)tile->sequence)
                               : tile->q_tiled_row;
            int row = first + position;
            at = to->data +
                 512 * (uint64_t)(tile->head * to->head + row / 128 * (axis ? to->k : to->row));
            if (axis == 0) {
                dev_store_global_u32(at + (uint64_t)(row % 32 * 16 + row % 128 / 32 * 4),
                                     there ? bytes : 0);
            } else {
                MXA_UNROLL
                for (int g = 0; g < 4; g++) {
                    dev_store_global_u8(at + (uint64_t)(lane * 16 + g * 4 + row % 128 / 32),
                                        bytes >> (8 * g) & 0xFF);
                }
            }
        } else if (to->layout == MXA_GPU_COMPACT || axis == 1) {
            at += (uint64_t)((tile->q_block + position / 32) * to->row);
            MXA_UNROLL
            for (int g = 0; g < groups; g++) {
                if (to->layout == MXA_GPU_LINEAR && some) {
                    dev_store_global_u8(at + (uint64_t)((32 * g + lane) * to->k),
                                        bytes >> (8 * g) & 0xFF);
                } else if (some && lane == 0) {
                    dev_store_global_u8(at + (uint64_t)(g * to->k), bytes >> (8 * g) & 0xFF);
                }
            }
        } else if (there) {
            at += (uint64_t)((int64_t)(tile->q_token + position) * to->row);
            MXA_UNROLL
            for (int g = 0; g < groups; g++) {
                dev_store_global_u8(at + (uint64_t)(g * to->k), bytes >> (8 * g) & 0xFF);
            }
        }
    }
}

/* 128 (UNITS 8) or 64 bytes of each of this warp's rows from the stage to global memory. */
MXA_DEVICE void forward_finish_store(mxa_shared stage, mxa_global at, uint64_t token_bytes,
                                     int units, int rows)
{
    const int lane = dev_thread() & 31, row = lane / units, unit = lane % units;
    warp_sync();
    MXA_UNROLL
    for (int k = 0; k < units; k++) {
        const int from = row + k * (32 / units);
        mxa_u32x4 v = dev_load_shared_u32x4(
            stage + (uint32_t)(from * 128 + ((unit ^ from) & (units - 1)) * 16));
        if (from < rows) {
            dev_store_global_u32x4(at + (uint64_t)from * token_bytes + 16 * (uint64_t)unit, v);
        }
    }
    warp_sync();
}

/* Writes the O of this warp's 32 rows. type: a constant; BF16 for both types of 16 bits.
 * o: tensor memory of this warp's quarter; seen 0: nothing is there, the rows are empty. When it is
 * all in registers, one arrival on `empty`. */
MXA_DEVICE void forward_finish(const mxa_sm100_forward_params *params, const forward_tile *tile,
                               int first, int type, int head_dim, mxa_tmem o, int seen,
                               mxa_shared stage, const forward_result *result, mxa_shared empty)
{
    const int bytes = type == MXA_GPU_F32 ? 4 : type >= MXA_GPU_E4M3 ? 1 : 2;
    const int columns = head_dim < 128 / bytes ? head_dim : 128 / bytes; /* of a pass */
    const int lane = dev_thread() & 31, units = columns * bytes / 16;
    const int kv_heads = params->heads / params->group;
    const mxa_global mean =
        params->v_mean == 0 ? 0
                            : params->v_mean + 4 *
                                                   ((uint64_t)tile->sequence * (uint64_t)kv_heads +
                                                    (uint64_t)(tile->head / params->group)) *
                                                   (uint64_t)head_dim;
    const mxa_global at =
        params->o +
        (uint64_t)bytes * (uint64_t)(tile->q_outer * params->o_batch +
                                     (tile->q_first + (int64_t)first) * params->o_token +
                                     tile->head * params->o_head);
    uint32_t scales = 0; /* byte g: of columns 32*g.. */
    MXA_NO_UNROLL
    for (int column = 0; column < head_dim; column += 32) {
        const int first_unit = column % columns * bytes / 16;
        uint32_t x[32];
        if (seen) {
            tmem_load_x32(x, o + (uint32_t)column);
            tmem_wait_load();
        } else {
            MXA_UNROLL
            for (int i = 0; i < 32; i++) {
                x[i] = 0;
            }
        }
        if (column + 32 == head_dim) {
            tcgen05_fence_before();
            warp_sync();
            if (lane == 0) {
                mbarrier_arrive(empty);
            }
        }
        forward_finish_values(x, result, mean ? mean + 4 * (uint64_t)column : 0);
        if (type >= MXA_GPU_E4M3) {
            uint32_t byte = 0;
            MXA_UNROLL
            for (int i = 0; i < 32; i++) {
                x[i] = first + lane < tile->q_end ? x[i] : 0;
            }
            forward_finish_block(params, type == MXA_GPU_E5M2, x, &byte);
            scales |= byte << (column / 4);
        } else if (type != MXA_GPU_F32) {
            MXA_UNROLL
            for (int i = 0; i < 16; i++) {
                float low = f32_bits(x[2 * i]), high = f32_bits(x[2 * i + 1]);
                x[i] = params->o_type == MXA_GPU_BF16 ? bf16x2_from_f32x2(low, high)
                                                      : f16x2_from_f32x2(low, high);
            }
        }
        MXA_UNROLL
        for (int i = 0; i < 2 * bytes; i++) {
            mxa_u32x4 v = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
            const int unit = ((first_unit + i) ^ lane) & (units - 1);
            dev_store_shared_u32x4(stage + (uint32_t)(lane * 128 + unit * 16), v);
        }
        if ((column + 32) % columns == 0) {
            forward_finish_store(stage, at + (uint64_t)((column + 32 - columns) * bytes),
                                 (uint64_t)bytes * (uint64_t)params->o_token, units,
                                 tile->q_end - first);
        }
    }
    if (type >= MXA_GPU_E4M3) {
        forward_finish_scales(params, tile, first + lane, head_dim / 32, scales);
    }
}

#endif
