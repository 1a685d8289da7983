/* backward.h: the host side of the Hopper backward: sizes, checks, launches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_BACKWARD_H
#define MXA_CUDA_BACKWARD_H

#include "backend.h"

/* The backward half of planning a TRAINING problem: refuses what has no kernel, names the kernel,
 * sizes the workspace. Before AUTO choices are resolved. */
mxattn_status mxa_cuda_backward_plan(mxattn_plan *plan);

/* Entry of the operation table. */
mxattn_status mxa_cuda_backward(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
