/* attention.h: attention's entries of the operation table: the device's arch says whose they are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_ATTENTION_H
#define MXA_CUDA_ATTENTION_H

#include "backend.h"

mxattn_status mxa_cuda_attention_plan(mxattn_plan *plan);
mxattn_status mxa_cuda_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call);
mxattn_status mxa_cuda_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call);
mxattn_status mxa_cuda_attention_prepare(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
