/* prepare_finish_codes.cu: what follows prepare_codes.cu (prepare_finish.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm90/prepare_codes.h"
#include "cuda/sm90/prepare_finish.h"

/* Four codes as FP32. */
MXA_DEVICE void widen_codes(uint32_t word, float *x)
{
    const uint32_t low = f16x2_from_e4m3x2_low(word), high = f16x2_from_e4m3x2_high(word);
    x[0] = f32_from_f16_low(low);
    x[1] = f32_from_f16_high(low);
    x[2] = f32_from_f16_low(high);
    x[3] = f32_from_f16_high(high);
}

/* Largest magnitude of the lane's values less their means, as bits. power: each load's scale. */
MXA_DEVICE uint32_t lane_largest(group_shape s, uint32_t *raw, const float *power, mxa_global means)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int n = 0; n < 4; n++) {
        float mean[4];
        mean_pair(means, 4 * n, mean);
        mean_pair(means, 4 * n + 2, mean + 2);
        MXA_UNROLL
        for (int i = 0; i < group_lanes(s); i++) {
            float x[4];
            widen_codes(raw[4 * i + n], x);
            MXA_UNROLL
            for (int m = 0; m < 4; m++) {
                top = max_abs_nan_f32(top, fma_rn(x[m], power[i], -mean[m]));
            }
        }
    }
    return bits_f32(top);
}

/* The group into the tile, turned. WHY one fused step: scaled by a power of two,
 * the difference is rounded as it is unscaled, or so small that E4M3 holds it as 0. */
MXA_DEVICE void values_fold(mxa_shared shared, group_shape s, const prepare_group *g, uint32_t *raw,
                            const float *power, mxa_global means, float inverse)
{
    const mxa_shared tile = tile_of_lane(shared, s);
    const int loads = group_lanes(s);
    MXA_UNROLL
    for (int n = 0; n < 4; n++) { /* dims 4n.. of 16 */
        uint32_t w[4][CODES_LOADS / 4];
        float mean[4];
        mean_pair(means, 4 * n, mean);
        mean_pair(means, 4 * n + 2, mean + 2);
        MXA_UNROLL
        for (int i = 0; i < loads; i += 4) {
            const uint32_t there = group_there(g, s, i);
            float x[4][4];
            MXA_UNROLL
            for (int t = 0; t < 4; t++) {
                const float by = mul_rn(power[i + t], inverse);
                hold_u32(&raw[4 * (i + t) + n]); /* nothing of them before: registers */
                widen_codes(raw[4 * (i + t) + n], x[t]);
                MXA_UNROLL
                for (int m = 0; m < 4; m++) {
                    x[t][m] = fma_rn(x[t][m], by, -mul_rn(mean[m], inverse));
                }
            }
            MXA_UNROLL
            for (int m = 0; m < 4; m++) {
                w[m][i / 4] = e4m3x4_from_f32(x[0][m], x[1][m], x[2][m], x[3][m]) & there;
            }
        }
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            tile_store(s, tile + 128 * (uint32_t)(4 * n + m), w[m]);
        }
    }
}

MXA_DEVICE int values_again(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            const prepare_group *g, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    uint32_t raw[CODES_WORDS], scale[CODES_LOADS];
    float power[CODES_LOADS];
    group_load(&p->from, g, s, 1, 1, head, raw);
    codes_scales(&p->from, g, s, 1, 0, head, scale);
    const mxa_global means = means_of_lane(p, s, g->place.sequence, head);
    MXA_UNROLL
    for (int i = 0; i < group_lanes(s); i++) {
        power[i] = load_power(scale[i]);
    }
    const uint32_t top =
        g->left > 0 ? group_largest(s, shared, warp_max_u32(lane_largest(s, raw, power, means)))
                    : 0;
    values_note(p, shared, g, s, head, 4 * item + group_number(s), top);
    if (top < NOT_FINITE) {
        values_fold(shared, s, g, raw, power, means, inverse_power(fold_exponent(top, 1)));
    } else {
        values_not_finite(shared, s);
    }
    return columns_end_again(all, shared, s, head, item);
}

PREPARE_FINISH(mxa_sm90_prepare_finish_e4m3_d64, 64, 16, 1, 8)
PREPARE_FINISH(mxa_sm90_prepare_finish_e4m3_d128, 128, 16, 1, 4)
PREPARE_FINISH(mxa_sm90_prepare_finish_e4m3_d256, 256, 16, 2, 2)
