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

/* Shared memory of a main kernel, which must agree with sm90/backward_body.h. */
enum { MXA_BACKWARD_SHARED_D64 = 1664 * 64 + 19856, MXA_BACKWARD_SHARED_D128 = 1664 * 128 + 18848 };

#endif
