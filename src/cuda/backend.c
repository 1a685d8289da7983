/* backend.c: the operation table of the CUDA backend, and its devices.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backend.h"
#include "cuda/attention.h"
#include "cuda/device.h"
#include "cuda/producers.h"
#include "status.h"

#define HOPPER_KERNELS                                                                             \
    "mxa_sm90_forward_e4m3_256x128_d64\n"                                                          \
    "mxa_sm90_forward_e4m3_192x128_d128\n"                                                         \
    "mxa_sm90_forward_e4m3_128x128_d256\n"                                                         \
    "mxa_sm90_forward_e4m3_128x128_d64\n"                                                          \
    "mxa_sm90_forward_e4m3_128x128_d128\n"                                                         \
    "mxa_sm90_forward_e4m3_128x64_d256\n"                                                          \
    "mxa_sm90_forward_bf16_128x64_d64\n"                                                           \
    "mxa_sm90_forward_bf16_128x64_d128\n"                                                          \
    "mxa_sm90_forward_bf16_128x64_d256\n"                                                          \
    "mxa_sm90_backward_e4m3_64x192_d64\n"                                                          \
    "mxa_sm90_backward_e4m3_64x128_d64_softcap\n"                                                  \
    "mxa_sm90_backward_e4m3_64x128_d128\n"                                                         \
    "mxa_sm90_backward_e4m3_64x128_d128_softcap\n"                                                 \
    "mxa_sm90_backward_e4m3_64x64_d256\n"                                                          \
    "mxa_sm90_backward_e4m3_64x64_d256_softcap\n"

#define BLACKWELL_KERNELS                                                                          \
    "mxa_sm100_forward_e4m3_256x128_d64\n"                                                         \
    "mxa_sm100_forward_e4m3_256x128_d128\n"

static void cuda_query(const mxattn_context *context, mxattn_backend_info *info)
{
    (void)context;
    const char *reason;
    const mxa_driver *driver = mxa_cuda_driver(&reason);
    info->isa_name = "";
    info->kernels = "";
    info->devices = mxa_cuda_device_count();
    info->available = driver != NULL && mxa_cubin_count > 0;
    info->reason = !driver                ? reason
                   : mxa_cubin_count == 0 ? "this build has no kernels: nvcc was not present"
                                          : "";
    if (info->available) {
        info->kernels = HOPPER_KERNELS BLACKWELL_KERNELS;
    }
}

static mxattn_status cuda_device_query(const mxattn_context *context, int32_t ordinal,
                                       mxattn_device_info *info)
{
    (void)context;
    const mxa_cuda_device *device;
    size_t bytes = 0;
    mxattn_status status = mxa_cuda_device_take(ordinal, &device);
    if (!status) {
        status = mxa_cuda_check(device->driver->device_total_mem(&bytes, device->handle),
                                "cuDeviceTotalMem");
    }
    if (!status) {
        status = mxa_cuda_check(
            device->driver->device_get_name(info->name, (int)sizeof info->name, device->handle),
            "cuDeviceGetName");
    }
    if (!status) {
        info->arch = device->arch;
        info->multiprocessors = device->multiprocessors;
        info->memory_bytes = (int64_t)bytes;
    }
    return status;
}

static mxa_cu_pointer pointer(const void *memory)
{
    return (mxa_cu_pointer)(uintptr_t)memory;
}

/* What the next functions share: one driver call in the device's context. */
#define IN_DEVICE(ordinal, call, what)                                                             \
    const mxa_cuda_device *device;                                                                 \
    mxattn_status status = mxa_cuda_device_take(ordinal, &device);                                 \
    if (!status) {                                                                                 \
        status = mxa_cuda_enter(device);                                                           \
    }                                                                                              \
    if (!status) {                                                                                 \
        status = mxa_cuda_check(device->driver->call, what);                                       \
        mxa_cuda_leave(device);                                                                    \
    }                                                                                              \
    (void)context

static mxattn_status cuda_alloc(const mxattn_context *context, int32_t ordinal, size_t bytes,
                                void **memory)
{
    mxa_cu_pointer at = 0;
    IN_DEVICE(ordinal, mem_alloc(&at, bytes ? bytes : 1), "cuMemAlloc");
    if (!status) {
        *memory = (void *)(uintptr_t)at;
    }
    return status;
}

static mxattn_status cuda_free(const mxattn_context *context, int32_t ordinal, void *memory)
{
    IN_DEVICE(ordinal, mem_free(pointer(memory)), "cuMemFree");
    return status;
}

static mxattn_status cuda_synchronise(const mxattn_context *context, int32_t ordinal, void *stream)
{
    IN_DEVICE(ordinal, stream_synchronize(stream), "cuStreamSynchronize");
    return status;
}

/* WHY synchronised: cuMemcpy from pageable memory returns once that was read, maybe before it is
 * written on the device, and streams that do not block do not wait for it. */
static mxattn_status cuda_copy(const mxattn_context *context, int32_t ordinal, void *to,
                               const void *from, size_t bytes)
{
    IN_DEVICE(ordinal, memcpy(pointer(to), pointer(from), bytes), "cuMemcpy");
    return status ? status : cuda_synchronise(context, ordinal, NULL);
}

static mxattn_status cuda_clear(const mxattn_context *context, int32_t ordinal, void *memory,
                                size_t bytes, void *stream)
{
    IN_DEVICE(ordinal, memset_async(pointer(memory), 0, bytes, stream), "cuMemsetD8Async");
    return status;
}

static mxattn_status cuda_stream_create(const mxattn_context *context, int32_t ordinal,
                                        void **stream)
{
    mxa_cu_stream made = NULL;
    IN_DEVICE(ordinal, stream_create(&made, MXA_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (!status) {
        *stream = made;
    }
    return status;
}

static mxattn_status cuda_stream_destroy(const mxattn_context *context, int32_t ordinal,
                                         void *stream)
{
    IN_DEVICE(ordinal, stream_destroy(stream), "cuStreamDestroy");
    return status;
}

/* What devices do, real and emulated ones. */
#define OPERATIONS                                                                                 \
    .device_query = cuda_device_query, .device_alloc = cuda_alloc, .device_free = cuda_free,       \
    .device_copy = cuda_copy, .device_clear = cuda_clear, .stream_create = cuda_stream_create,     \
    .stream_destroy = cuda_stream_destroy, .synchronise = cuda_synchronise,                        \
    .plan = mxa_cuda_attention_plan, .forward = mxa_cuda_attention_forward,                        \
    .backward = mxa_cuda_attention_backward, .prepare = mxa_cuda_attention_prepare,                \
    .quantize = mxa_cuda_quantize, .dequantize = mxa_cuda_dequantize,                              \
    .quantize_workspace = mxa_cuda_quantize_workspace, .scales_scatter = mxa_cuda_scales_scatter,  \
    .scales_transform = mxa_cuda_scales_transform, .states_merge = mxa_cuda_states_merge

const mxa_backend mxa_cuda_backend = {
    .name = "cuda",
    .id = MXATTN_BACKEND_CUDA,
    .on_device = 1,
    .query = cuda_query,
    OPERATIONS,
};

/* ---- emulated devices: the same functions on the emulator's driver ---- */

static void emulated_query(mxattn_backend_info *info, const char *kernels)
{
    info->isa_name = "";
    info->devices = 1;
    info->kernels = kernels;
#if defined(MXA_EMULATOR)
    info->available = 1;
    info->reason = "";
#else
    info->reason = "this build has no emulator (MXA_EMU=OFF)";
#endif
}

static void emu_sm90_query(const mxattn_context *context, mxattn_backend_info *info)
{
    (void)context;
    emulated_query(info, HOPPER_KERNELS);
}

static void emu_sm100_query(const mxattn_context *context, mxattn_backend_info *info)
{
    (void)context;
    emulated_query(info, BLACKWELL_KERNELS);
}

const mxa_backend mxa_emu_sm90_backend = {
    .name = "emu-sm90",
    .id = MXATTN_BACKEND_EMU_SM90,
    .on_device = 1,
    .first_device = MXA_CUDA_EMULATED_SM90,
    .query = emu_sm90_query,
    OPERATIONS,
};

const mxa_backend mxa_emu_sm100_backend = {
    .name = "emu-sm100",
    .id = MXATTN_BACKEND_EMU_SM100,
    .on_device = 1,
    .first_device = MXA_CUDA_EMULATED_SM100,
    .query = emu_sm100_query,
    OPERATIONS,
};
