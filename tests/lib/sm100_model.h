/* sm100_model.h: the arithmetic of the Blackwell forward, one row at a time, every rounding where
 * the kernel has it: tensor-core sums of mx/tensor_core.h, FP32 in the kernel's order, exp2 and
 * log2 to nearest where the kernel approximates, its polynomial where it has one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_SM100_MODEL_H
#define MXT_SM100_MODEL_H

#include "mxattn/mxattn.h"

/* One head of one sequence. Codes (tokens, D) with `stride` bytes from token to token; scales by
 * axis: q and k (tokens, D/32), v (blocks of 32 tokens, D). */
typedef struct mxt_sm100_head {
    const uint8_t *q, *k, *v;
    int64_t stride_q, stride_k, stride_v;
    const uint8_t *q_scale, *k_scale, *v_scale;
    mxattn_dtype q_type, k_type, v_type;
    const uint16_t *v_bf16; /* V in BF16 where P is, tokens as far apart as v's; NULL: P in E4M3 */
    int64_t seqlen_q, seqlen_k, head_dim;
    int64_t left, right; /* window; -1: unlimited */
    int64_t diagonal;    /* key on the diagonal of row 0 */
    double softmax_scale, softcap;
    const float *sink; /* of this head, or NULL */
    const float *mean; /* of V, (D), or NULL */
} mxt_sm100_head;

enum { MXT_SM100_ROWS = 128 };

/* O (rows, D) before it is converted, and LSE, of `rows` (at most MXT_SM100_ROWS) from `first` on,
 * each `step` floats after the other. */
void mxt_sm100_rows(const mxt_sm100_head *head, int64_t first, int rows, float *o, int64_t o_step,
                    float *lse);

#endif
