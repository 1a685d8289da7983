/* prepare_finish_bf16.cu: what follows prepare_bf16.cu (prepare_finish.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm90/prepare_bf16.h"
#include "cuda/sm90/prepare_finish.h"

/* Largest magnitude of the lane's values less their means, as bits. WHY by the extremes of its
 * tokens: rounding keeps order, so that no other difference is larger, and they are found two at a
 * time. */
MXA_DEVICE uint32_t lane_largest(group_shape s, const uint32_t *raw, mxa_global means)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int n = 0; n < 4; n++) {
        uint32_t most = raw[n], least = raw[n];
        float x[4], mean[2];
        mean_pair(means, 2 * n, mean);
        MXA_UNROLL
        for (int i = 1; i < group_lanes(s); i++) {
            most = max_nan_bf16x2(most, raw[4 * i + n]);
            least = min_nan_bf16x2(least, raw[4 * i + n]);
        }
        widen_pair(most, x);
        widen_pair(least, x + 2);
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            top = max_abs_nan_f32(top, add_rn(x[m], -mean[m & 1]));
        }
    }
    return bits_f32(top);
}

MXA_DEVICE int values_again(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            const prepare_group *g, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    uint32_t raw[BF16_WORDS];
    group_load(&p->from, g, s, 1, 1, head, raw);
    const mxa_global means = means_of_lane(p, s, g->place.sequence, head);
    const uint32_t top =
        g->left > 0 ? group_largest(s, shared, warp_max_u32(lane_largest(s, raw, means))) : 0;
    values_note(p, shared, g, s, head, 4 * item + group_number(s), top);
    if (top < NOT_FINITE) {
        values_fold(shared, s, 1, g, raw, means, inverse_power(fold_exponent(top, 1)));
    } else {
        values_not_finite(shared, s);
    }
    return columns_end_again(all, shared, s, head, item);
}

PREPARE_FINISH(mxa_sm90_prepare_finish_bf16_d64, 64, 8, 1, 8)
PREPARE_FINISH(mxa_sm90_prepare_finish_bf16_d128, 128, 8, 1, 4)
PREPARE_FINISH(mxa_sm90_prepare_finish_bf16_d256, 256, 8, 2, 2)
