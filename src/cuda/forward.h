/* forward.h: the host side of the Hopper forward: sizes, preparation, launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_FORWARD_H
#define MXA_CUDA_FORWARD_H

#include "backend.h"

/* What a training forward leaves for backward: offsets into saved memory of FP32 [head][q_rows], m
 * and the sum of 2^(x - m) of each row (sm90/forward_params.h, row_max). Rows are those of the
 * private q: a sequence starts at a multiple of 32. */
typedef struct mxa_cuda_saved {
    int64_t q_rows;
    int64_t row_max, row_sum;
    int64_t bytes;
} mxa_cuda_saved;

mxa_cuda_saved mxa_cuda_saved_lay_out(const mxattn_attention_problem *problem);

/* Entries of the operation table. */
mxattn_status mxa_cuda_plan(mxattn_plan *plan);
mxattn_status mxa_cuda_forward(const mxattn_plan *plan, const mxa_attention_call *call);
mxattn_status mxa_cuda_prepare(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
