/* sm100_forward.h: the host side of the Blackwell forward: sizes, preparation, launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_H
#define MXA_CUDA_SM100_FORWARD_H

#include "backend.h"
#include "cuda/device.h"

mxattn_status mxa_sm100_plan(mxattn_plan *plan, const mxa_cuda_device *device);
mxattn_status mxa_sm100_forward(const mxattn_plan *plan, const mxa_attention_call *call,
                                const mxa_cuda_device *device);
mxattn_status mxa_sm100_prepare(const mxattn_plan *plan, const mxa_attention_call *call,
                                const mxa_cuda_device *device);

#endif
