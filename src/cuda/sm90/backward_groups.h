/* backward_groups.h: what the Hopper backward knows of groups of 32 tokens, and exponents from it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_GROUPS_H
#define MXA_CUDA_SM90_BACKWARD_GROUPS_H

#include "cuda/common/prepare_params.h"
#include "cuda/sm90/backward_place.h"
#include "cuda/sm90/prepare_fold.h"

enum {
    COPY_MOST_LOG2 = 4 /* q's and k's copies are at most 15: four binades up is within E4M3 */
};

MXA_DEVICE int max_i32(int a, int b)
{
    return a > b ? a : b;
}

/* a_g: what |dS| / |V's factor| of the group's rows is at most. */
MXA_DEVICE float query_factor(float dout_norm, float dlse, float dlse_norm)
{
    return dlse_norm > 0.0f ? add_rn(dout_norm, dlse / dlse_norm) : dout_norm;
}

/* b_j. */
MXA_DEVICE float key_factor(float v_norm, float o_norm, float dlse_norm)
{
    return add_rn(add_rn(v_norm, o_norm), dlse_norm);
}

/* A query group's record and what else is asked of it. */
typedef struct query_group {
    float dout_norm, o_norm, dlse, squares, dout_most;
    int exponent, sum_log2, far;
} query_group;

MXA_DEVICE void read_query_group(const mxa_backward_prepare_params *params, uint64_t index,
                                 query_group *g)
{
    mxa_u32x4 a = dev_load_global_u32x4(params->query_groups + 32 * index);
    mxa_u32x4 b = dev_load_global_u32x4(params->query_groups + 32 * index + 16);
    g->dout_norm = f32_bits(a.x);
    g->o_norm = f32_bits(a.y);
    g->dlse = f32_bits(a.z);
    g->squares = f32_bits(a.w);
    g->dout_most = f32_bits(b.x);
    g->exponent = (int)b.y;
    g->sum_log2 = (int)b.z;
    g->far = (int)b.w;
}

/* Exponent of a group of q's copy at row q_row; *finite: it is one. */
MXA_DEVICE int q_exponent(const mxa_backward_prepare_params *params, int head, int q_row,
                          int *finite)
{
    uint64_t at = (uint64_t)(head * (params->q_rows / MXA_BACKWARD_GROUP) +
                             (int64_t)(q_row / MXA_BACKWARD_GROUP));
    uint32_t scale = dev_load_global_u32(params->q_scale + 16 * at);
    *finite = scale < NOT_FINITE;
    return *finite ? backward_log2(scale) : 0;
}

/* Exponent of dO^T's copy of a group, with the power that P's normalisation takes from dO. `mean`:
 * the largest |mean| of the head. */
MXA_DEVICE int dout_exponent(const query_group *g, float mean)
{
    if (g->exponent == MXA_EXPONENT_NONE) {
        return -g->sum_log2;
    }
    return (mean > 0.0f ? fold_exponent(bits_f32(add_rn(g->dout_most, mean)), 1) : g->exponent) -
           g->sum_log2;
}

#endif
