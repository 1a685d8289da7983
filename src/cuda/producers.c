/* producers.c: queues a producer's kernels on the caller's stream.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/producers.h"

#include "cuda/producers_launch.h"
#include "status.h"

/* Host memory where the driver can tell: not known to it, or its own. NULL passes. */
static mxattn_status check_pointer(const mxa_cuda_device *device, const char *name,
                                   const void *memory)
{
    int type = MXA_CU_MEMORY_HOST;
    if (!memory || !device->driver->pointer_get_attribute) {
        return MXATTN_OK;
    }
    const mxa_cu_result result = device->driver->pointer_get_attribute(
        &type, MXA_CU_POINTER_MEMORY_TYPE, (mxa_cu_pointer)(uintptr_t)memory);
    if (result == 0 && type != MXA_CU_MEMORY_HOST) {
        return MXATTN_OK;
    }
    return mxa_fail(MXATTN_ARGUMENT,
                    "%s is at %p, host memory; all pointers of a call on cuda are the device's",
                    name, memory);
}

/* The two tensors of a quantizer's call. */
static mxattn_status check_pair(const mxa_quantize_call *call)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(call->device, &device);
    if (!status) {
        status = check_pointer(device, "wide.data", call->wide.data);
    }
    if (!status) {
        status = check_pointer(device, "quantized.data", call->quantized.data);
    }
    return status;
}

/* Queues `count` launches. Nothing to do still clears the caller's status word. */
static mxattn_status queue(int32_t ordinal, const mxa_producer_launch *launches, int count,
                           uint32_t *device_status, void *stream)
{
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(ordinal, &device);
    if (!status) {
        status = mxa_cuda_enter(device);
    }
    if (status) {
        return status;
    }
    const int64_t *grid = launches[count - 1].grid;
    if (device_status && (grid[0] == 0 || grid[1] == 0)) {
        status =
            mxa_cuda_check(device->driver->memset_async((mxa_cu_pointer)(uintptr_t)device_status, 0,
                                                        sizeof *device_status, stream),
                           "cuMemsetD8Async");
    }
    for (int i = 0; i < count && !status; i++) {
        status = mxa_cuda_launch_3d(device, launches[i].kernel, launches[i].grid,
                                    launches[i].threads, stream, &launches[i].params);
    }
    mxa_cuda_leave(device);
    return status;
}

mxattn_status mxa_cuda_quantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    (void)context;
    mxa_producer_launch launches[2];
    int count = 0;
    mxattn_status status = check_pair(call);
    if (!status) {
        status = mxa_launch_of_quantize(call, launches, &count);
    }
    return status ? status
                  : queue(call->device, launches, count, call->device_status, call->stream);
}

mxattn_status mxa_cuda_dequantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    (void)context;
    mxa_producer_launch launch;
    mxattn_status status = check_pair(call);
    if (!status) {
        status = mxa_launch_of_dequantize(call, &launch);
    }
    return status ? status : queue(call->device, &launch, 1, call->device_status, call->stream);
}

mxattn_status mxa_cuda_quantize_workspace(const mxattn_context *context,
                                          const mxa_quantize_call *call, size_t *workspace_bytes)
{
    (void)context;
    (void)call;
    *workspace_bytes = 0; /* each CTA adds up the lengths for itself: common/sequences.h */
    return MXATTN_OK;
}

static mxattn_status move(const mxa_scales_call *call)
{
    mxa_producer_launch launch;
    mxattn_status status = mxa_launch_of_scales(call, &launch);
    return status ? status : queue(call->device, &launch, 1, call->device_status, call->stream);
}

mxattn_status mxa_cuda_scales_scatter(const mxattn_context *context, const mxa_scales_call *call)
{
    (void)context;
    return move(call);
}

mxattn_status mxa_cuda_scales_transform(const mxattn_context *context, const mxa_scales_call *call)
{
    (void)context;
    return move(call);
}

mxattn_status mxa_cuda_states_merge(const mxattn_context *context, const mxa_merge_call *call)
{
    (void)context;
    mxa_producer_launch launch;
    mxattn_status status = mxa_launch_of_merge(call, &launch);
    return status ? status : queue(call->device, &launch, 1, NULL, call->stream);
}
