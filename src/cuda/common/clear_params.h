/* clear_params.h: parameters of the kernel that clears rows outside every sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_CLEAR_PARAMS_H
#define MXA_CUDA_COMMON_CLEAR_PARAMS_H

#include "cuda/common/batch.h"

enum { MXA_CLEAR_TOKENS = 32 }; /* of a CTA */

typedef struct mxa_clear_params {
    mxa_gpu_batch batch;
    mxa_global o, lse;                /* lse may be 0 */
    int64_t o_batch, o_token, o_head; /* strides in elements */
    int64_t lse_batch, lse_head, lse_token;
    int32_t o_type, heads, head_dim;
    int32_t tokens;    /* of the tensor, all sequences and what lies between them */
    int32_t seqlen;    /* dense: tokens of each sequence; jagged: 0 */
    int32_t is_k_side; /* tokens of k rather than q */
    mxa_global
        caller_status; /* given the batch's status word, where another call made that; or 0 */
} mxa_clear_params;

#endif
