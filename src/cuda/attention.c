/* attention.c: attention's entries of the operation table: the device's arch says whose they are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/attention.h"

#include "cuda/backward.h"
#include "cuda/forward.h"
#include "cuda/sm100_forward.h"

mxattn_status mxa_cuda_attention_plan(mxattn_plan *plan)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(plan->problem.device, &device);
    if (status) {
        return status;
    }
    return device->arch == 100 ? mxa_sm100_plan(plan, device) : mxa_cuda_plan(plan);
}

mxattn_status mxa_cuda_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(plan->problem.device, &device);
    if (status) {
        return status;
    }
    return device->arch == 100 ? mxa_sm100_forward(plan, call, device)
                               : mxa_cuda_forward(plan, call);
}

mxattn_status mxa_cuda_attention_prepare(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(plan->problem.device, &device);
    if (status) {
        return status;
    }
    return device->arch == 100 ? mxa_sm100_prepare(plan, call, device)
                               : mxa_cuda_prepare(plan, call);
}

mxattn_status mxa_cuda_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(plan->problem.device, &device);
    if (status) {
        return status;
    }
    return device->arch == 100 ? mxa_backend_lacks(plan->backend, "attention_backward for sm_100")
                               : mxa_cuda_backward(plan, call);
}
