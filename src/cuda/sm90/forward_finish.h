/* forward_finish.h: the finish stage of the Hopper forward: O, LSE and what backward wants.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_FORWARD_FINISH_H
#define MXA_CUDA_SM90_FORWARD_FINISH_H

#include "cuda/sm90/forward_tile.h"

/* What a row's maximum and sum come to. */
typedef struct forward_row_result {
    float scale;  /* accumulator to O */
    float weight; /* sum of P: 1 without a sink */
    float lse;
    float m, sum; /* for backward: sum of 2^(x - m) */
    int empty;    /* no key seen: O is 0 */
} forward_row_result;

MXA_DEVICE void forward_finish_row(const mxa_forward_params *params, int head, float v_scale,
                                   float m, float l, forward_row_result *result)
{
    const float ln2 = 0.69314718055994531f, log2e = 1.44269504088896341f;
    result->empty = m == FORWARD_MINUS_INF && l == 0.0f;
    result->weight = 1.0f;
    result->m = m;
    float total = l;
    if (params->sink) {
        float sink = mul_rn(dev_load_global_f32(params->sink + 4 * (uint64_t)head), log2e);
        float top = max_f32(m, ceil_f32(sink));
        float shrink = m == FORWARD_MINUS_INF ? 0.0f : exp2_approx(m - top);
        l = mul_rn(l, shrink);
        total = add_rn(l, exp2_approx(sink - top + (float)FORWARD_P_LOG2));
        result->weight = l / total;
        result->scale = mul_rn(v_scale, shrink) / total;
        result->lse = mul_rn(top + log2_approx(total) - (float)FORWARD_P_LOG2, ln2);
        result->m = top;
    } else {
        result->scale = v_scale / total;
        result->lse = result->empty ? FORWARD_MINUS_INF
                                    : mul_rn(m + log2_approx(total) - (float)FORWARD_P_LOG2, ln2);
    }
    result->sum = mul_rn(total, 1.0f / (1 << FORWARD_P_LOG2));
    if (result->empty && !params->sink) {
        result->m = FORWARD_INF; /* backward's 2^(x - m) is 0 */
        result->sum = 1.0f;
    }
}

/* Row of the private q of query `row` of the tile's sequence. */
MXA_DEVICE int64_t forward_private_row(const mxa_forward_params *params, int sequence, int row)
{
    const mxa_gpu_batch *batch = &params->batch;
    int first = batch->sequences
                    ? dev_load_global_i32(batch->sequences + 64 * (uint64_t)sequence + 32)
                    : sequence * batch->padded_q;
    return first + row;
}

/* O's factors of this thread's two rows; writes LSE, and m and sum where backward wants them. */
MXA_DEVICE void forward_finish_rows(const mxa_forward_params *params, const forward_own *own,
                                    const forward_rows *rows, forward_row_result *result)
{
    mxa_u32x4 blocks = dev_load_shared_u32x4(own->tile + FORWARD_TILE_BLOCKS);
    mxa_u32x4 visible = dev_load_shared_u32x4(own->tile + FORWARD_TILE_VISIBLE);
    mxa_u32x4 out = dev_load_shared_u32x4(own->tile + FORWARD_TILE_OUT);
    const int head = (int)visible.w;
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        float l = rows->l[r];
        l = add_rn(l, shuffle_xor_f32(l, 1));
        l = add_rn(l, shuffle_xor_f32(l, 2));
        forward_finish_row(params, head, f32_bits(out.z), rows->m[r], l, &result[r]);
        int row = forward_row(own) + 8 * r;
        if ((dev_thread_again() & 3) != 0 || row >= (int)blocks.w) {
            continue;
        }
        if (params->lse) {
            int64_t index = (int)out.x * params->lse_batch +
                            ((int)out.y + (int64_t)row) * params->lse_token +
                            head * params->lse_head;
            dev_store_global_f32(params->lse + 4 * (uint64_t)index, result[r].lse);
        }
        if (params->row_max) {
            uint64_t at = 4 * (uint64_t)(head * params->q_rows +
                                         forward_private_row(params, (int)visible.z, row));
            dev_store_global_f32(params->row_max + at, result[r].m);
            dev_store_global_f32(params->row_sum + at, result[r].sum);
        }
    }
}

/* O. A warp stages row_bytes (128 or 64) of its 16 rows at a time where its queries were (`stage`),
 * its 16-byte units permuted by the row, and stores 16 bytes a lane. WHY: 5.5 microseconds a tile
 * went to stores of 4 bytes and to the mean's loads, one after another. d: columns of o. */
MXA_DEVICE void forward_finish(const mxa_forward_params *params, const forward_own *own,
                               mxa_shared stage, int d, int row_bytes, int type, const float *o,
                               const forward_rows *rows)
{
    const int units = row_bytes / 16, wide = type == MXA_GPU_F32, bytes = wide ? 4 : 2;
    const int columns = row_bytes / bytes, passes = (d * bytes + row_bytes - 1) / row_bytes;
    const int lane = dev_thread_again() & 31, c = lane & 3, g = lane >> 2;
    const int row = lane / units, unit = lane % units;
    forward_row_result result[2];
    forward_finish_rows(params, own, rows, result);
    mxa_u32x4 visible = dev_load_shared_u32x4(own->tile + FORWARD_TILE_VISIBLE);
    mxa_u32x2 out = dev_load_shared_u32x2(own->tile + FORWARD_TILE_OUT);
    const int first = own->first + 16 * (dev_thread_again() >> 5 & 3);
    const int rows_left = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_BLOCKS + 12) - first;
    mxa_global at =
        params->o +
        (uint64_t)bytes * (uint64_t)((int)out.x * params->o_batch +
                                     ((int)out.y + (int64_t)first + row) * params->o_token +
                                     (int)visible.w * params->o_head) +
        16 * (uint64_t)unit;
    MXA_UNROLL
    for (int pass = 0; pass < passes; pass++) {
        MXA_UNROLL
        for (int k = 0; k < columns / 8; k++) {
            const int i = pass * (columns / 8) + k;
            if (i >= d / 8) {
                break;
            }
            mxa_u32x2 mean = {0, 0};
            if (params->v_mean) {
                mean = dev_load_shared_u32x2(own->tile + FORWARD_TILE_MEAN +
                                             4 * (uint32_t)(8 * i + 2 * c));
            }
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                float x = fma_rn(o[4 * i + 2 * r], result[r].scale,
                                 mul_rn(f32_bits(mean.x), result[r].weight));
                float y = fma_rn(o[4 * i + 2 * r + 1], result[r].scale,
                                 mul_rn(f32_bits(mean.y), result[r].weight));
                x = result[r].empty ? 0.0f : x;
                y = result[r].empty ? 0.0f : y;
                const int to = g + 8 * r, turn = to / (8 / units) & (units - 1);
                const mxa_shared staged = stage + (uint32_t)(to * row_bytes);
                if (wide) {
                    dev_store_shared_u32x2(
                        staged + (uint32_t)(((2 * k + (c >> 1)) ^ turn) * 16 + 8 * (c & 1)),
                        bits_f32(x), bits_f32(y));
                } else {
                    dev_store_shared_u32(staged + (uint32_t)((k ^ turn) * 16 + 4 * c),
                                         type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x, y)
                                                              : f16x2_from_f32x2(x, y));
                }
            }
        }
        warp_sync();
        const int seen = pass * columns + unit * (16 / bytes) < params->head_dim_v;
        MXA_UNROLL
        for (int k = 0; k < units / 2; k++) {
            const int from = row + k * (32 / units), turn = from / (8 / units) & (units - 1);
            mxa_u32x4 v =
                dev_load_shared_u32x4(stage + (uint32_t)(from * row_bytes + (unit ^ turn) * 16));
            if (seen && from < rows_left) {
                dev_store_global_u32x4(
                    at + (uint64_t)bytes * (uint64_t)(k * (32 / units) * params->o_token) +
                        (uint64_t)(pass * row_bytes),
                    v);
            }
        }
        warp_sync();
    }
}

#endif
