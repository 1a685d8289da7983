/* backward_half.h: which heads the Hopper backward may take with S and dP in FP16, and their
 * records.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_HALF_H
#define MXA_CUDA_SM90_BACKWARD_HALF_H

#include "cuda/dev/barrier.h"
#include "cuda/sm90/backward_place.h"

/* What FP16 is to hold, in logarithms. dP's factor is that of its query group, at most 2^-4 since
 * dO's rows go up to 14 at least, times 2^HALF_RANGE, times that of its key group. */
enum {
    HALF_RANGE = 14, /* dO^T's exponents below the largest: P is 2^(8-14) at most, dP 2^15 */
    HALF_QUERY_LEAST = -10,
    HALF_KEY_LEAST = -14,
    HALF_KEY_MOST = 5,
    HALF_DELTA_MOST = 10 /* a key group's factor of delta, which is held to 2^-25 */
};
#define HALF_SCORE_MOST 60000.0f /* largest factor of a score */

/* Whether a key group's factors of dP and of delta, powers `dp` and `delta`, are beyond that. */
MXA_DEVICE int half_keys_wide(int dp, int delta)
{
    return dp < HALF_KEY_LEAST || dp > HALF_KEY_MOST || delta > HALF_DELTA_MOST;
}

/* M and D of row `row` of a tile, negated; all rows, in pairs of lanes. */
MXA_DEVICE void half_write_row(mxa_global record, int row, float m, float d)
{
    const float next_m = shuffle_xor_f32(m, 1), next_d = shuffle_xor_f32(d, 1);
    const mxa_global to =
        record + (uint64_t)(MXA_BACKWARD_HALF_ROW * (row >> 1 & 3) + 4 * (row >> 3));
    if (row % 2 == 0) {
        dev_store_global_u32(to + MXA_BACKWARD_HALF_M, f16x2_from_f32x2(-m, -next_m));
        dev_store_global_u32(to + MXA_BACKWARD_HALF_D, f16x2_from_f32x2(-d, -next_d));
    }
}

/* The factors of group `half` of a tile. `dp` of a group whose dO is 0 is to be 0: FP16 may hold
 * no other. */
MXA_DEVICE void half_write_group(mxa_global record, int half, float q, float dp, float dq,
                                 float sum)
{
    const mxa_global to = record + 4 * (uint64_t)half;
    dev_store_global_f32(to + MXA_BACKWARD_HALF_Q, q);
    dev_store_global_f32(to + MXA_BACKWARD_HALF_Q + 8, dp);
    dev_store_global_f32(to + MXA_BACKWARD_HALF_DQ, dq);
    dev_store_global_f32(to + MXA_BACKWARD_HALF_SUM, sum);
}

#endif
