/* prepare_bf16.h: BF16 values of a lane, packed as they were read, and a group of v made of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_BF16_H
#define MXA_CUDA_SM90_PREPARE_BF16_H

#include "cuda/sm90/prepare_columns.h"

enum {
    BF16_LOADS = 16, /* of a lane at most */
    BF16_WORDS = 4 * BF16_LOADS,
    BF16_QUADS = BF16_LOADS / 4
};

/* Two values as FP32. */
MXA_DEVICE void widen_pair(uint32_t pair, float *x)
{
    x[0] = f32_bits(pair << 16);
    x[1] = f32_bits(pair & 0xFFFF0000u);
}

/* A group of v into the tile, turned, less its means where the copy is `centred`; else the sums of
 * the lane's columns, of values and of squares, in units of the group's exponent. WHY FP16: a
 * group's are at most 32 * 448, and they only decide whether a column leans and what is taken from
 * it. WHY one fused step: scaled by a power of two, the difference is rounded as it is unscaled, or
 * so small that E4M3 holds it as 0. */
MXA_DEVICE void values_fold(mxa_shared shared, group_shape s, int centred, const prepare_group *g,
                            uint32_t *raw, mxa_global means, float inverse)
{
    const mxa_shared tile = tile_of_lane(shared, s), sums = sums_of_lane(shared, s);
    const int quads = group_lanes(s) / 4;
    MXA_UNROLL
    for (int n = 0; n < 4; n++) { /* dims 2n and 2n + 1 of 8 */
        uint32_t sum = 0, squares = 0, low[BF16_QUADS], high[BF16_QUADS];
        float mean[2] = {0, 0};
        if (centred) {
            mean_pair(means, 2 * n, mean);
            mean[0] = mul_rn(mean[0], inverse);
            mean[1] = mul_rn(mean[1], inverse);
        }
        MXA_UNROLL
        for (int k = 0; k < quads; k++) {
            float x[8];
            MXA_UNROLL
            for (int t = 0; t < 4; t++) {
                hold_u32(&raw[16 * k + 4 * t + n]); /* nothing of them before: registers */
                widen_pair(raw[16 * k + 4 * t + n], x + 2 * t);
                if (centred) {
                    x[2 * t] = fma_rn(x[2 * t], inverse, -mean[0]);
                    x[2 * t + 1] = fma_rn(x[2 * t + 1], inverse, -mean[1]);
                    continue;
                }
                x[2 * t] = mul_rn(x[2 * t], inverse);
                x[2 * t + 1] = mul_rn(x[2 * t + 1], inverse);
                const uint32_t h = f16x2_from_f32x2(x[2 * t], x[2 * t + 1]);
                add_to_sums(h, &sum, &squares);
            }
            low[k] = e4m3x4_from_f32(x[0], x[2], x[4], x[6]);
            high[k] = e4m3x4_from_f32(x[1], x[3], x[5], x[7]);
            if (centred) {
                low[k] &= group_there(g, s, 4 * k);
                high[k] &= group_there(g, s, 4 * k);
            }
        }
        tile_store(s, tile + 256 * (uint32_t)n, low);
        tile_store(s, tile + 256 * (uint32_t)n + 128, high);
        if (!centred) {
            sums_of_pair(s, sums, n, sum, squares);
        }
    }
}

#endif
