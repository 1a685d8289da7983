/* prepare_values.cu: v in BF16 for the forward that holds P in BF16.
 *
 * FP8 times a power of two is exact in BF16 but below 2^-133. What is not finite becomes 0 and is
 * marked: 0 times it would be NaN in rows that do not see its token. Rows beyond a sequence are 0.
 *
 * One CTA takes 128 rows of a kv head, a warp 32 of them; a lane holds 8 dims of 4 tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/load.h"
#include "cuda/dev/barrier.h"
#include "cuda/sm100/forward_params.h"

enum { THREADS = 128 };

/* Eight values to BF16; returns whether one is not finite. */
MXA_DEVICE int values_convert(const float *x, uint32_t *w)
{
    int bad = 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        const int low = (bits_f32(x[2 * i]) & 0x7F800000u) == 0x7F800000u;
        const int high = (bits_f32(x[2 * i + 1]) & 0x7F800000u) == 0x7F800000u;
        w[i] = bf16x2_from_f32x2(low ? 0.0f : x[2 * i], high ? 0.0f : x[2 * i + 1]);
        bad |= low | high;
    }
    return bad;
}

/* Grid x: tile of 128 rows; y: kv head. */
MXA_KERNEL_SMALL(mxa_sm100_prepare_values, THREADS, mxa_sm100_values_params, parameters)
{
    const mxa_sm100_values_params *params = &parameters;
    const mxa_gpu_batch *batch = &params->batch;
    const int lane = dev_thread() & 31, warp = dev_thread() >> 5, head = dev_block_y();
    const int lanes = params->head_dim / 8; /* that hold a token */
    const int together = 4 * (32 / lanes);  /* tokens of the warp at a time */
    const int row = dev_block_x() * MXA_SM100_TILE_K + 32 * warp;
    if (batch->status && dev_load_global_u32(batch->status)) {
        return;
    }
    load_place place;
    load_find(batch, 1, row, &place);
    const int64_t first = head * params->tiles * MXA_SM100_TILE_K + row;
    const int d = 8 * (lane % lanes);
    uint32_t nan = 0;
    MXA_NO_UNROLL
    for (int token = 4 * (lane / lanes); token < 32; token += together) {
        const int at = place.position + token, position[4] = {at, at + 1, at + 2, at + 3};
        float x[32];
        load_rows(&params->from, params->from.type, &place, position, head, d, params->head_dim, x);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t w[4];
            nan |= (uint32_t)values_convert(x + 8 * i, w) << (token + i);
            mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
            dev_store_global_u32x4(
                params->values + 2 * (uint64_t)((first + token + i) * params->head_dim + d), v);
        }
    }
    MXA_UNROLL
    for (int step = 1; step < 32; step *= 2) {
        nan |= shuffle_xor_u32(nan, step);
    }
    if (lane == 0) {
        dev_store_global_u32(params->nan + (uint64_t)(first / 8), nan);
    }
}
