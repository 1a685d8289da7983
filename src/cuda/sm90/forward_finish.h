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

/* Writes LSE, and m and sum where backward wants them, of query `row`. */
MXA_DEVICE void forward_finish_state(const mxa_forward_params *params, const forward_own *own,
                                     int head, int row, const forward_row_result *result)
{
    mxa_u32x2 out = dev_load_shared_u32x2(own->tile + FORWARD_TILE_OUT);
    if (params->lse) {
        int64_t index = (int)out.x * params->lse_batch +
                        ((int)out.y + (int64_t)row) * params->lse_token + head * params->lse_head;
        dev_store_global_f32(params->lse + 4 * (uint64_t)index, result->lse);
    }
    if (params->row_max) {
        int sequence = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_VISIBLE + 8);
        uint64_t at =
            4 * (uint64_t)(head * params->q_rows + forward_private_row(params, sequence, row));
        dev_store_global_f32(params->row_max + at, result->m);
        dev_store_global_f32(params->row_sum + at, result->sum);
    }
}

/* O's factors of this thread's two rows; writes what goes with each row. Lanes 0 and 1 of the four
 * that share two rows work one out each. Where a row's weight is not 1, O is made whole here.
 * Returns whether V's mean is still to be added. */
MXA_DEVICE int forward_finish_rows(const mxa_forward_params *params, const forward_own *own, int d,
                                   float *o, const forward_rows *rows, float *scale)
{
    const int c = dev_thread_again() & 3, r = c & 1, row = forward_row(own) + 8 * r;
    const int head = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_VISIBLE + 12);
    const float v_scale = dev_load_shared_f32(own->tile + FORWARD_TILE_OUT + 8);
    const int row_end = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_BLOCKS + 12);
    forward_row_result own_row;
    float l = add_rn(r ? rows->l[1] : rows->l[0], shuffle_xor_f32(r ? rows->l[0] : rows->l[1], 1));
    l = add_rn(l, shuffle_xor_f32(l, 2));
    forward_finish_row(params, head, v_scale, r ? rows->m[1] : rows->m[0], l, &own_row);
    if (c < 2 && row < row_end) {
        forward_finish_state(params, own, head, row, &own_row);
    }
    const float scale_other = shuffle_xor_f32(own_row.scale, 1);
    scale[0] = r ? scale_other : own_row.scale;
    scale[1] = r ? own_row.scale : scale_other;
    if (!params->sink && !warp_any(own_row.empty)) {
        return params->v_mean != 0;
    }
    const float weight = own_row.empty ? -1.0f : own_row.weight; /* -1: O is 0 */
    const float weight_other = shuffle_xor_f32(weight, 1);
    const float weights[2] = {r ? weight_other : weight, r ? weight : weight_other};
    MXA_UNROLL
    for (int i = 0; i < d / 8; i++) {
        mxa_u32x2 mean = {0, 0};
        if (params->v_mean) {
            mean = dev_load_shared_u32x2(own->tile + FORWARD_TILE_MEAN +
                                         4 * (uint32_t)(8 * i + 2 * c));
        }
        MXA_UNROLL
        for (int j = 0; j < 4; j++) {
            const float w = weights[j >> 1];
            const float x =
                fma_rn(o[4 * i + j], scale[j >> 1], mul_rn(f32_bits(j & 1 ? mean.y : mean.x), w));
            o[4 * i + j] = w < 0.0f ? 0.0f : x;
        }
    }
    scale[0] = scale[1] = 1.0f;
    return 0;
}

/* Columns 8*first.. of a warp's 16 rows, `count` times 8 of them, as `type` to `stage`, whose
 * 16-byte units are permuted by the row. */
MXA_DEVICE void forward_finish_stage(const forward_own *own, mxa_shared stage, int row_bytes,
                                     int type, int first, int count, int has_mean, const float *o,
                                     const float *scale)
{
    const int units = row_bytes / 16, c = dev_thread_again() & 3, g = dev_thread_again() >> 2 & 7;
    const uint32_t turn = (uint32_t)(g / (8 / units) & (units - 1)); /* the same of row g + 8 */
    const int wide = type == MXA_GPU_F32;
    const mxa_shared at = (stage + (uint32_t)(g * row_bytes) + 16 * turn) ^
                          (uint32_t)(wide ? 16 * (c >> 1) + 8 * (c & 1) : 4 * c);
    mxa_u32x2 mean[8]; /* WHY an array: one load after another, not one for each use */
    MXA_UNROLL
    for (int k = 0; k < count; k++) {
        mean[k].x = mean[k].y = 0;
    }
    if (has_mean) {
        MXA_UNROLL
        for (int k = 0; k < count; k++) {
            mean[k] = dev_load_shared_u32x2(own->tile + FORWARD_TILE_MEAN +
                                            4 * (uint32_t)(8 * (first + k) + 2 * c));
        }
    }
    MXA_UNROLL
    for (int k = 0; k < count; k++) {
        MXA_UNROLL
        for (int r = 0; r < 2; r++) {
            const float *from = o + 4 * (first + k) + 2 * r;
            const float x = fma_rn(from[0], scale[r], f32_bits(mean[k].x));
            const float y = fma_rn(from[1], scale[r], f32_bits(mean[k].y));
            const mxa_shared to =
                (at ^ (uint32_t)((wide ? 32 : 16) * k)) + (uint32_t)(8 * r * row_bytes);
            if (wide) {
                dev_store_shared_u32x2(to, bits_f32(x), bits_f32(y));
            } else {
                dev_store_shared_u32(to, type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x, y)
                                                              : f16x2_from_f32x2(x, y));
            }
        }
    }
}

/* O. A warp stages row_bytes (128 or 64) of its 16 rows at a time where its queries were (`stage`)
 * and reads 16 bytes a lane; then it gives the place back (`empty`), and only then stores. WHY: the
 * fence before would wait for the stores. d: columns of o. */
MXA_DEVICE void forward_finish(const mxa_forward_params *params, const forward_own *own,
                               mxa_shared stage, int d, int row_bytes, int type, int has_mean,
                               const float *o, const float *scale, mxa_shared empty)
{
    const int units = row_bytes / 16, bytes = type == MXA_GPU_F32 ? 4 : 2;
    const int columns = row_bytes / bytes, passes = d / columns, loads = units / 2;
    const int lane = dev_thread_again() & 31, row = lane / units, unit = lane % units;
    mxa_u32x2 out = dev_load_shared_u32x2(own->tile + FORWARD_TILE_OUT);
    const int head = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_VISIBLE + 12);
    const int first = own->first + 16 * (dev_thread_again() >> 5 & 3);
    const int rows_left = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_BLOCKS + 12) - first;
    const mxa_global at =
        params->o +
        (uint64_t)bytes * (uint64_t)((int)out.x * params->o_batch +
                                     ((int)out.y + (int64_t)first + row) * params->o_token +
                                     head * params->o_head) +
        16 * (uint64_t)unit;
    const uint64_t step = (uint64_t)bytes * (uint64_t)(32 / units * params->o_token);
    mxa_u32x4 v[32];
    MXA_UNROLL
    for (int pass = 0; pass < passes; pass++) {
        forward_finish_stage(own, stage, row_bytes, type, pass * (columns / 8), columns / 8,
                             has_mean, o, scale);
        warp_sync();
        MXA_UNROLL
        for (int k = 0; k < loads; k++) {
            const int from = row + k * (32 / units), turn = from / (8 / units) & (units - 1);
            v[pass * loads + k] =
                dev_load_shared_u32x4(stage + (uint32_t)(from * row_bytes + (unit ^ turn) * 16));
        }
        if (pass + 1 == passes) {
            fence_async_shared(); /* O was staged where TMA writes the next queries */
        }
        warp_sync();
    }
    if (lane == 0) {
        mbarrier_arrive(empty);
    }
    MXA_UNROLL
    for (int pass = 0; pass < passes; pass++) {
        const int seen = pass * columns + unit * (16 / bytes) < params->head_dim_v;
        MXA_UNROLL
        for (int k = 0; k < loads; k++) {
            if (seen && row + k * (32 / units) < rows_left) {
                dev_store_global_u32x4(at + (uint64_t)k * step + (uint64_t)(pass * row_bytes),
                                       v[pass * loads + k]);
            }
        }
    }
}

#endif
