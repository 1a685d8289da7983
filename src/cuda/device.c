/* device.c: opens devices, loads kernels, launches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/device.h"

#include "cuda/forms.h"
#include "cuda/sm100/forward_params.h"
#include "cuda/sm90/backward_params.h"
#include "status.h"

#include <pthread.h>
#include <string.h>

enum {
    DEVICES_MOST = MXA_CUDA_EMULATED_SM90,
    QUANTIZE_BYTES = 256 + 2048 + 1024 + 4 * 33 * 128,
    PREPARE_SUMS_BYTES = 1056 + 4 * 8 * 256,
    PREPARE_VALUES_BYTES = 1056 + 4 * (33 * 256 + 16),
    BACKWARD_ROWS_BYTES = 512 + 16928,
    BACKWARD_FACTORS_BYTES = 256 + 4 * 1024,
    BACKWARD_TILES_BYTES = 16 + 4 * (17 * 128 + 8),
    BACKWARD_ROWS_BYTES_D256 = 512 + 33856,
    BACKWARD_TILES_BYTES_D256 = 16 + 4 * (17 * 256 + 16)
};

/* sm90/prepare_columns.h: the tile, `gap` words more for each of the lanes that share a token, and
 * rows of sums; `lanes` of them in one warp. */
#define PREPARE_BYTES(dims, columns, gap, lanes)                                                   \
    (80 + 4 * (32 * (dims) + (gap) * (columns) + 64 / (lanes) * ((dims) + 2 * (lanes))))

/* File, entry, and dynamic shared memory in bytes (asserted in the kernels' files). */
static const struct {
    const char *cubin, *entry;
    int shared_bytes;
} kernels[MXA_KERNELS] = {
    [MXA_KERNEL_SCHEDULE] = {"common/schedule", "mxa_schedule", 256 + 4 * 1024 + 16},
    [MXA_KERNEL_SCHEDULE_KEYS] = {"common/schedule", "mxa_schedule_keys", 256 + 4 * 1024 + 16},
    [MXA_KERNEL_CLEAR_ROWS] = {"common/clear", "mxa_clear_rows", 0},
    [MXA_KERNEL_QUANTIZE_MEAN] = {"common/quantize", "mxa_quantize_mean", 256},
    [MXA_KERNEL_QUANTIZE_ANY] = {"common/quantize", "mxa_quantize_any", QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F32_ROW] = {"common/quantize", "mxa_quantize_f32_row", QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F32_COLUMN] = {"common/quantize", "mxa_quantize_f32_column",
                                        QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F32_SQUARE] = {"common/quantize", "mxa_quantize_f32_square",
                                        QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F16_ROW] = {"common/quantize", "mxa_quantize_f16_row", QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F16_COLUMN] = {"common/quantize", "mxa_quantize_f16_column",
                                        QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_F16_SQUARE] = {"common/quantize", "mxa_quantize_f16_square",
                                        QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_BF16_ROW] = {"common/quantize", "mxa_quantize_bf16_row", QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_BF16_COLUMN] = {"common/quantize", "mxa_quantize_bf16_column",
                                         QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_BF16_SQUARE] = {"common/quantize", "mxa_quantize_bf16_square",
                                         QUANTIZE_BYTES},
    [MXA_KERNEL_QUANTIZE_BF16_FOLDED] = {"common/quantize", "mxa_quantize_bf16_folded",
                                         QUANTIZE_BYTES},
    [MXA_KERNEL_DEQUANTIZE] = {"common/dequantize", "mxa_dequantize", 256},
    [MXA_KERNEL_DEQUANTIZE_F32] = {"common/dequantize", "mxa_dequantize_f32", 256},
    [MXA_KERNEL_DEQUANTIZE_F16] = {"common/dequantize", "mxa_dequantize_f16", 256},
    [MXA_KERNEL_DEQUANTIZE_BF16] = {"common/dequantize", "mxa_dequantize_bf16", 256},
    [MXA_KERNEL_SCALES_MOVE] = {"common/scales", "mxa_scales_move", 256 + 2 * 512 * 16},
    [MXA_KERNEL_SCALES_SPREAD] = {"common/scales", "mxa_scales_spread", 256},
    [MXA_KERNEL_SCALES_REPEAT] = {"common/scales", "mxa_scales_repeat", 256},
    [MXA_KERNEL_SCALES_RUNS] = {"common/scales", "mxa_scales_runs", 256},
    [MXA_KERNEL_SCALES_SEQ] = {"common/scales", "mxa_scales_seq", 256 + 512 * 16},
    [MXA_KERNEL_STATES_MERGE] = {"common/merge", "mxa_states_merge", 0},
    [MXA_KERNEL_PREPARE_OPERANDS] = {"sm90/prepare", "mxa_sm90_prepare_operands",
                                     PREPARE_SUMS_BYTES},
    [MXA_KERNEL_PREPARE_MEAN] = {"sm90/prepare", "mxa_sm90_prepare_mean", 0},
    [MXA_KERNEL_PREPARE_VALUES] = {"sm90/prepare", "mxa_sm90_prepare_values", PREPARE_VALUES_BYTES},
    [MXA_KERNEL_PREPARE_ZERO] = {"sm90/prepare", "mxa_sm90_prepare_zero", 0},
    [MXA_KERNEL_PREPARE_RECORDS] = {"sm90/prepare", "mxa_sm90_prepare_records", 0},
    [MXA_KERNEL_PREPARE_TOKENS] = {"sm90/prepare_token", "mxa_sm90_prepare_tokens", 0},
    [MXA_KERNEL_PREPARE_BF16_D64] = {"sm90/prepare_bf16", "mxa_sm90_prepare_bf16_d64",
                                     PREPARE_BYTES(64, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_BF16_D128] = {"sm90/prepare_bf16", "mxa_sm90_prepare_bf16_d128",
                                      PREPARE_BYTES(128, 16, 4, 16)},
    [MXA_KERNEL_PREPARE_BF16_D256] = {"sm90/prepare_bf16", "mxa_sm90_prepare_bf16_d256",
                                      PREPARE_BYTES(256, 32, 4, 16)},
    [MXA_KERNEL_PREPARE_BF16_SQUARE_D64] = {"sm90/prepare_bf16", "mxa_sm90_prepare_bf16_square_d64",
                                            PREPARE_BYTES(64, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_BF16_SQUARE_D128] = {"sm90/prepare_bf16",
                                             "mxa_sm90_prepare_bf16_square_d128",
                                             PREPARE_BYTES(128, 16, 4, 16)},
    [MXA_KERNEL_PREPARE_BF16_SQUARE_D256] = {"sm90/prepare_bf16",
                                             "mxa_sm90_prepare_bf16_square_d256",
                                             PREPARE_BYTES(256, 32, 4, 16)},
    [MXA_KERNEL_PREPARE_E4M3_D64] = {"sm90/prepare_codes", "mxa_sm90_prepare_e4m3_d64",
                                     PREPARE_BYTES(64, 4, 8, 4)},
    [MXA_KERNEL_PREPARE_E4M3_D128] = {"sm90/prepare_codes", "mxa_sm90_prepare_e4m3_d128",
                                      PREPARE_BYTES(128, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_E4M3_D256] = {"sm90/prepare_codes", "mxa_sm90_prepare_e4m3_d256",
                                      PREPARE_BYTES(256, 16, 4, 8)},
    [MXA_KERNEL_PREPARE_SQUARE_D64] = {"sm90/prepare_codes", "mxa_sm90_prepare_square_d64",
                                       PREPARE_BYTES(64, 4, 8, 4)},
    [MXA_KERNEL_PREPARE_SQUARE_D128] = {"sm90/prepare_codes", "mxa_sm90_prepare_square_d128",
                                        PREPARE_BYTES(128, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_SQUARE_D256] = {"sm90/prepare_codes", "mxa_sm90_prepare_square_d256",
                                        PREPARE_BYTES(256, 16, 4, 8)},
    [MXA_KERNEL_PREPARE_FINISH_BF16_D64] = {"sm90/prepare_finish_bf16",
                                            "mxa_sm90_prepare_finish_bf16_d64",
                                            PREPARE_BYTES(64, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_FINISH_BF16_D128] = {"sm90/prepare_finish_bf16",
                                             "mxa_sm90_prepare_finish_bf16_d128",
                                             PREPARE_BYTES(128, 16, 4, 16)},
    [MXA_KERNEL_PREPARE_FINISH_BF16_D256] = {"sm90/prepare_finish_bf16",
                                             "mxa_sm90_prepare_finish_bf16_d256",
                                             PREPARE_BYTES(256, 32, 4, 16)},
    [MXA_KERNEL_PREPARE_FINISH_E4M3_D64] = {"sm90/prepare_finish_codes",
                                            "mxa_sm90_prepare_finish_e4m3_d64",
                                            PREPARE_BYTES(64, 4, 8, 4)},
    [MXA_KERNEL_PREPARE_FINISH_E4M3_D128] = {"sm90/prepare_finish_codes",
                                             "mxa_sm90_prepare_finish_e4m3_d128",
                                             PREPARE_BYTES(128, 8, 4, 8)},
    [MXA_KERNEL_PREPARE_FINISH_E4M3_D256] = {"sm90/prepare_finish_codes",
                                             "mxa_sm90_prepare_finish_e4m3_d256",
                                             PREPARE_BYTES(256, 16, 4, 8)},
    [MXA_KERNEL_FORWARD_F16_D64] = {"sm90/forward", "mxa_sm90_forward_e4m3_256x128_d64", 0},
    [MXA_KERNEL_FORWARD_F16_D128] = {"sm90/forward", "mxa_sm90_forward_e4m3_192x128_d128", 0},
    [MXA_KERNEL_FORWARD_F16_D256] = {"sm90/forward", "mxa_sm90_forward_e4m3_128x128_d256", 0},
    [MXA_KERNEL_FORWARD_F32_D64] = {"sm90/forward", "mxa_sm90_forward_e4m3_128x128_d64", 0},
    [MXA_KERNEL_FORWARD_F32_D128] = {"sm90/forward", "mxa_sm90_forward_e4m3_128x128_d128", 0},
    [MXA_KERNEL_FORWARD_F32_D256] = {"sm90/forward", "mxa_sm90_forward_e4m3_128x64_d256", 0},
    [MXA_KERNEL_FORWARD_BF16_D64] = {"sm90/forward", "mxa_sm90_forward_bf16_128x64_d64", 0},
    [MXA_KERNEL_FORWARD_BF16_D128] = {"sm90/forward", "mxa_sm90_forward_bf16_128x64_d128", 0},
    [MXA_KERNEL_FORWARD_BF16_D256] = {"sm90/forward", "mxa_sm90_forward_bf16_128x64_d256", 0},
    [MXA_KERNEL_SM100_FORWARD_D64] = {"sm100/forward", "mxa_sm100_forward_e4m3_256x128_d64",
                                      MXA_SM100_FORWARD_SHARED(64)},
    [MXA_KERNEL_SM100_FORWARD_D128] = {"sm100/forward", "mxa_sm100_forward_e4m3_256x128_d128",
                                       MXA_SM100_FORWARD_SHARED(128)},
    [MXA_KERNEL_SM100_FORWARD_BF16_D64] = {"sm100/forward", "mxa_sm100_forward_bf16_256x128_d64",
                                           MXA_SM100_FORWARD_SHARED(64)},
    [MXA_KERNEL_SM100_FORWARD_BF16_D128] = {"sm100/forward", "mxa_sm100_forward_bf16_256x128_d128",
                                            MXA_SM100_FORWARD_SHARED(128)},
    [MXA_KERNEL_SM100_PREPARE_VALUES] = {"sm100/prepare_values", "mxa_sm100_prepare_values", 0},
    [MXA_KERNEL_SM100_CLEAR_SCALES] = {"sm100/clear_scales", "mxa_sm100_clear_scales", 0},
    [MXA_KERNEL_BACKWARD_ROWS_D64] = {"sm90/backward_rows", "mxa_sm90_backward_rows_d64",
                                      BACKWARD_ROWS_BYTES},
    [MXA_KERNEL_BACKWARD_ROWS_D128] = {"sm90/backward_rows", "mxa_sm90_backward_rows_d128",
                                       BACKWARD_ROWS_BYTES},
    [MXA_KERNEL_BACKWARD_ROWS_D256] = {"sm90/backward_rows", "mxa_sm90_backward_rows_d256",
                                       BACKWARD_ROWS_BYTES_D256},
    [MXA_KERNEL_BACKWARD_ROWS_BF16_D256] = {"sm90/backward_rows",
                                            "mxa_sm90_backward_rows_bf16_d256",
                                            BACKWARD_ROWS_BYTES_D256},
    [MXA_KERNEL_BACKWARD_FACTORS_D256] = {"sm90/backward_factors", "mxa_sm90_backward_factors_d256",
                                          BACKWARD_FACTORS_BYTES},
    [MXA_KERNEL_BACKWARD_TILES_D256] = {"sm90/backward_tiles", "mxa_sm90_backward_tiles_d256",
                                        BACKWARD_TILES_BYTES_D256},
    [MXA_KERNEL_BACKWARD_D256] = {"sm90/backward_wide", "mxa_sm90_backward_e4m3_64x64_d256",
                                  MXA_BACKWARD_SHARED_WIDE},
    [MXA_KERNEL_BACKWARD_D256_SOFTCAP] = {"sm90/backward_wide",
                                          "mxa_sm90_backward_e4m3_64x64_d256_softcap",
                                          MXA_BACKWARD_SHARED_WIDE},
    [MXA_KERNEL_BACKWARD_FINISH_D256] = {"sm90/backward_finish", "mxa_sm90_backward_finish_d256",
                                         0},
    [MXA_KERNEL_BACKWARD_ROWS_BF16_D64] = {"sm90/backward_rows", "mxa_sm90_backward_rows_bf16_d64",
                                           BACKWARD_ROWS_BYTES},
    [MXA_KERNEL_BACKWARD_ROWS_BF16_D128] = {"sm90/backward_rows",
                                            "mxa_sm90_backward_rows_bf16_d128",
                                            BACKWARD_ROWS_BYTES},
    [MXA_KERNEL_BACKWARD_FACTORS_D64] = {"sm90/backward_factors", "mxa_sm90_backward_factors_d64",
                                         BACKWARD_FACTORS_BYTES},
    [MXA_KERNEL_BACKWARD_FACTORS_D128] = {"sm90/backward_factors", "mxa_sm90_backward_factors_d128",
                                          BACKWARD_FACTORS_BYTES},
    [MXA_KERNEL_BACKWARD_TILES_D64] = {"sm90/backward_tiles", "mxa_sm90_backward_tiles_d64",
                                       BACKWARD_TILES_BYTES},
    [MXA_KERNEL_BACKWARD_TILES_D128] = {"sm90/backward_tiles", "mxa_sm90_backward_tiles_d128",
                                        BACKWARD_TILES_BYTES},
    [MXA_KERNEL_BACKWARD_D64] = {"sm90/backward", "mxa_sm90_backward_e4m3_64x192_d64",
                                 MXA_BACKWARD_SHARED(64, 3)},
    [MXA_KERNEL_BACKWARD_D64_SOFTCAP] = {"sm90/backward",
                                         "mxa_sm90_backward_e4m3_64x128_d64_softcap",
                                         MXA_BACKWARD_SHARED(64, 2)},
    [MXA_KERNEL_BACKWARD_D128] = {"sm90/backward", "mxa_sm90_backward_e4m3_64x128_d128",
                                  MXA_BACKWARD_SHARED(128, 2)},
    [MXA_KERNEL_BACKWARD_D128_SOFTCAP] = {"sm90/backward",
                                          "mxa_sm90_backward_e4m3_64x128_d128_softcap",
                                          MXA_BACKWARD_SHARED(128, 2)},
    [MXA_KERNEL_BACKWARD_FINISH_D64] = {"sm90/backward_finish", "mxa_sm90_backward_finish_d64", 0},
    [MXA_KERNEL_BACKWARD_FINISH_D128] = {"sm90/backward_finish", "mxa_sm90_backward_finish_d128",
                                         0},
    [MXA_KERNEL_BACKWARD_SINKS] = {"sm90/backward_finish", "mxa_sm90_backward_sinks", 4 * 256},
};

/* Kernels of sm100/quantize that take the place of common ones there. */
static const char *const on_sm100[MXA_KERNELS] = {
    [MXA_KERNEL_QUANTIZE_ANY] = "mxa_sm100_quantize_any",
    [MXA_KERNEL_QUANTIZE_F32_ROW] = "mxa_sm100_quantize_f32_row",
    [MXA_KERNEL_QUANTIZE_F32_COLUMN] = "mxa_sm100_quantize_f32_column",
    [MXA_KERNEL_QUANTIZE_F32_SQUARE] = "mxa_sm100_quantize_f32_square",
    [MXA_KERNEL_QUANTIZE_F16_ROW] = "mxa_sm100_quantize_f16_row",
    [MXA_KERNEL_QUANTIZE_F16_COLUMN] = "mxa_sm100_quantize_f16_column",
    [MXA_KERNEL_QUANTIZE_F16_SQUARE] = "mxa_sm100_quantize_f16_square",
    [MXA_KERNEL_QUANTIZE_BF16_ROW] = "mxa_sm100_quantize_bf16_row",
    [MXA_KERNEL_QUANTIZE_BF16_COLUMN] = "mxa_sm100_quantize_bf16_column",
    [MXA_KERNEL_QUANTIZE_BF16_SQUARE] = "mxa_sm100_quantize_bf16_square",
    [MXA_KERNEL_QUANTIZE_BF16_FOLDED] = "mxa_sm100_quantize_bf16_folded",
};

static mxa_cuda_device devices[MXA_CUDA_ORDINALS];
static int opened[MXA_CUDA_ORDINALS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *mxa_kernel_entry(mxa_kernel kernel)
{
    return kernels[kernel].entry;
}

const char *mxa_kernel_entry_on(mxa_kernel kernel, int arch)
{
    return arch == 100 && on_sm100[kernel] ? on_sm100[kernel] : kernels[kernel].entry;
}

static const char *cubin_on(mxa_kernel kernel, int arch)
{
    return arch == 100 && on_sm100[kernel] ? "sm100/quantize" : kernels[kernel].cubin;
}

int mxa_kernel_shared_bytes(mxa_kernel kernel)
{
    const int forward = mxa_forward_shared_bytes(kernel);
    return forward ? forward : kernels[kernel].shared_bytes;
}

mxattn_status mxa_cuda_enter(const mxa_cuda_device *device)
{
    return mxa_cuda_check(device->driver->context_push(device->context), "cuCtxPushCurrent");
}

void mxa_cuda_leave(const mxa_cuda_device *device)
{
    mxa_cu_context popped;
    (void)device->driver->context_pop(&popped);
}

static mxattn_status load_kernels(mxa_cuda_device *device)
{
    const mxa_driver *driver = device->driver;
    for (int i = 0; i < mxa_cubin_count; i++) {
        if (mxa_cubins[i].arch != device->arch) {
            continue;
        }
        mxa_cu_module module = NULL;
        mxattn_status status = mxa_cuda_check(
            driver->module_load_data(&module, mxa_cubins[i].image), "cuModuleLoadData");
        for (int k = 0; k < MXA_KERNELS && !status; k++) {
            const char *entry = mxa_kernel_entry_on((mxa_kernel)k, device->arch);
            if (strcmp(cubin_on((mxa_kernel)k, device->arch), mxa_cubins[i].name) != 0) {
                continue;
            }
            status = mxa_cuda_check(
                driver->module_get_function(&device->functions[k], module, entry), entry);
            if (!status && mxa_kernel_shared_bytes((mxa_kernel)k) > 48 * 1024) {
                status =
                    mxa_cuda_check(driver->function_set_attribute(
                                       device->functions[k], MXA_CU_FUNCTION_DYNAMIC_SHARED_BYTES,
                                       mxa_kernel_shared_bytes((mxa_kernel)k)),
                                   "cuFuncSetAttribute");
            }
        }
        if (status) {
            return status;
        }
    }
    return MXATTN_OK;
}

static mxattn_status open_device(int32_t ordinal, mxa_cuda_device *device)
{
    const mxa_driver *driver = device->driver;
    int major = 0, minor = 0;
    mxattn_status status =
        mxa_cuda_check(driver->device_get(&device->handle, ordinal), "cuDeviceGet");
    if (!status) {
        status = mxa_cuda_check(
            driver->device_get_attribute(&major, MXA_CU_ATTRIBUTE_MAJOR, device->handle),
            "cuDeviceGetAttribute");
    }
    if (!status) {
        status = mxa_cuda_check(
            driver->device_get_attribute(&minor, MXA_CU_ATTRIBUTE_MINOR, device->handle),
            "cuDeviceGetAttribute");
    }
    if (!status) {
        status = mxa_cuda_check(driver->device_get_attribute(&device->multiprocessors,
                                                             MXA_CU_ATTRIBUTE_MULTIPROCESSORS,
                                                             device->handle),
                                "cuDeviceGetAttribute");
    }
    if (status) {
        return status;
    }
    device->arch = 10 * major + minor;
    if (device->arch != 90 && device->arch != 100) {
        return mxa_fail(MXATTN_NO_BACKEND,
                        "device %d is sm_%d; this version has kernels for sm_90 and sm_100",
                        (int)ordinal, device->arch);
    }
    status = mxa_cuda_check(driver->primary_context_retain(&device->context, device->handle),
                            "cuDevicePrimaryCtxRetain");
    if (!status) {
        status = mxa_cuda_enter(device);
    }
    if (!status) {
        status = load_kernels(device);
        mxa_cuda_leave(device);
    }
    return status;
}

/* Emulated devices know kernels by name; one without some of them can still run the others. */
static mxattn_status open_emulated(int32_t ordinal, mxa_cuda_device *device)
{
#if defined(MXA_EMULATOR)
    const mxa_driver *driver = mxa_emu_driver();
    const char *lacks = mxa_emu_lacks();
    if (lacks) {
        return mxa_fail(MXATTN_NO_BACKEND,
                        "the emulator's kernels in this build need %s, which this processor lacks",
                        lacks);
    }
    device->driver = driver;
    device->handle = ordinal == MXA_CUDA_EMULATED_SM90 ? 90 : 100;
    device->arch = device->handle;
    for (int k = 0; k < MXA_KERNELS; k++) {
        (void)driver->module_get_function(&device->functions[k], NULL,
                                          mxa_kernel_entry_on((mxa_kernel)k, device->arch));
    }
    return mxa_cuda_check(driver->device_get_attribute(&device->multiprocessors,
                                                       MXA_CU_ATTRIBUTE_MULTIPROCESSORS,
                                                       device->handle),
                          "cuDeviceGetAttribute");
#else
    (void)ordinal;
    (void)device;
    return mxa_fail(MXATTN_NO_BACKEND, "this build has no emulator (MXA_EMU=OFF)");
#endif
}

/* The driver of a real device, or why there is none. */
static mxattn_status check_real(int32_t ordinal, const mxa_driver **driver)
{
    const char *reason;
    *driver = mxa_cuda_driver(&reason);
    if (!*driver) {
        return mxa_fail(MXATTN_NO_BACKEND, "backend is cuda; %s", reason);
    }
    if (mxa_cubin_count == 0) {
        return mxa_fail(MXATTN_NO_BACKEND, "backend is cuda; this build has no kernels (no nvcc)");
    }
    if (ordinal < 0 || ordinal >= mxa_cuda_device_count() || ordinal >= DEVICES_MOST) {
        return mxa_fail(MXATTN_NO_BACKEND, "device is %d; there are %d", (int)ordinal,
                        mxa_cuda_device_count());
    }
    return MXATTN_OK;
}

mxattn_status mxa_cuda_device_take(int32_t ordinal, const mxa_cuda_device **device)
{
    const int emulated = ordinal == MXA_CUDA_EMULATED_SM90 || ordinal == MXA_CUDA_EMULATED_SM100;
    const mxa_driver *driver = NULL;
    mxattn_status status = emulated ? MXATTN_OK : check_real(ordinal, &driver);
    if (status) {
        return status;
    }
    pthread_mutex_lock(&lock);
    if (!opened[ordinal]) {
        devices[ordinal].driver = driver;
        status = emulated ? open_emulated(ordinal, &devices[ordinal])
                          : open_device(ordinal, &devices[ordinal]);
        opened[ordinal] = !status;
    }
    pthread_mutex_unlock(&lock);
    *device = &devices[ordinal];
    return status;
}

static mxattn_status check_compiled(const mxa_cuda_device *device, mxa_kernel kernel)
{
    return device->functions[kernel]
               ? MXATTN_OK
               : mxa_fail(MXATTN_UNSUPPORTED, "kernel %s is not compiled for sm_%d",
                          kernels[kernel].entry, device->arch);
}

mxattn_status mxa_cuda_launch_3d(const mxa_cuda_device *device, mxa_kernel kernel,
                                 const int64_t grid[3], unsigned threads, void *stream,
                                 const void *params)
{
    /* The driver copies the parameter while the call lasts; it takes a pointer to non-const. */
    void *parameters[1];
    memcpy(&parameters[0], &params, sizeof params);
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
        return MXATTN_OK;
    }
    const mxattn_status status = check_compiled(device, kernel);
    return status ? status
                  : mxa_cuda_check(device->driver->launch_kernel(
                                       device->functions[kernel], (unsigned)grid[0],
                                       (unsigned)grid[1], (unsigned)grid[2], threads, 1, 1,
                                       (unsigned)mxa_kernel_shared_bytes(kernel), stream,
                                       parameters, NULL),
                                   kernels[kernel].entry);
}

mxattn_status mxa_cuda_launch_early(const mxa_cuda_device *device, mxa_kernel kernel,
                                    unsigned grid_x, unsigned grid_y, unsigned threads,
                                    void *stream, const void *params)
{
    const int64_t grid[3] = {grid_x, grid_y, 1};
    return mxa_cuda_launch_early_3d(device, kernel, grid, threads, stream, params);
}

mxattn_status mxa_cuda_launch_early_3d(const mxa_cuda_device *device, mxa_kernel kernel,
                                       const int64_t grid[3], unsigned threads, void *stream,
                                       const void *params)
{
    void *parameters[1];
    memcpy(&parameters[0], &params, sizeof params);
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
        return MXATTN_OK;
    }
    mxa_launch_attribute early = {MXA_CU_LAUNCH_EARLY, 0, {1}};
    const mxa_launch_config config = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]},
                                      {threads, 1, 1},
                                      (unsigned)mxa_kernel_shared_bytes(kernel),
                                      stream,
                                      &early,
                                      1};
    const mxattn_status status = check_compiled(device, kernel);
    return status ? status
                  : mxa_cuda_check(device->driver->launch_kernel_ex(
                                       &config, device->functions[kernel], parameters, NULL),
                                   kernels[kernel].entry);
}

mxattn_status mxa_cuda_launch(const mxa_cuda_device *device, mxa_kernel kernel, unsigned grid_x,
                              unsigned grid_y, unsigned threads, void *stream, const void *params)
{
    const int64_t grid[3] = {grid_x, grid_y, 1};
    return mxa_cuda_launch_3d(device, kernel, grid, threads, stream, params);
}

static mxattn_status map_bytes(const mxa_cuda_device *device, mxa_tensor_map *map, uint32_t rank,
                               mxa_cu_pointer at, const uint64_t *sizes,
                               const uint64_t *strides_bytes, const uint32_t *box)
{
    static const uint32_t ones[4] = {1, 1, 1, 1};
    void *address;
    memcpy(&address, &at, sizeof address);
    const int swizzle =
        box[0] == 128 ? MXA_CU_TENSOR_MAP_SWIZZLE_128B : MXA_CU_TENSOR_MAP_SWIZZLE_64B;
    return mxa_cuda_check(device->driver->tensor_map_encode(
                              map, MXA_CU_TENSOR_MAP_UINT8, rank, address, sizes, strides_bytes,
                              box, ones, MXA_CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                              MXA_CU_TENSOR_MAP_L2_256B, MXA_CU_TENSOR_MAP_FILL_ZERO),
                          "cuTensorMapEncodeTiled");
}

mxattn_status mxa_cuda_map_3d(const mxa_cuda_device *device, mxa_tensor_map *map, mxa_cu_pointer at,
                              const uint64_t sizes[3], const uint64_t strides_bytes[2],
                              const uint32_t box[3])
{
    return map_bytes(device, map, 3, at, sizes, strides_bytes, box);
}

mxattn_status mxa_cuda_map_4d(const mxa_cuda_device *device, mxa_tensor_map *map, mxa_cu_pointer at,
                              const uint64_t sizes[4], const uint64_t strides_bytes[3],
                              const uint32_t box[4])
{
    return map_bytes(device, map, 4, at, sizes, strides_bytes, box);
}
