/* forward.h: the host side of the Hopper forward: sizes, preparation, launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_FORWARD_H
#define MXA_CUDA_FORWARD_H

#include "backend.h"

/* Entries of the operation table. */
mxattn_status mxa_cuda_plan(mxattn_plan *plan);
mxattn_status mxa_cuda_forward(const mxattn_plan *plan, const mxa_attention_call *call);
mxattn_status mxa_cuda_prepare(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
