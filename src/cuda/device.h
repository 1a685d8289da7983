/* device.h: CUDA devices of this process, and the kernels loaded on each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEVICE_H
#define MXA_CUDA_DEVICE_H

#include "cuda/driver.h"

/* Every kernel of the library; device.c lists file, entry and shared memory of each. */
typedef enum mxa_kernel {
    MXA_KERNEL_SCHEDULE,
    MXA_KERNEL_SCHEDULE_KEYS,
    MXA_KERNEL_CLEAR_ROWS,
    MXA_KERNEL_QUANTIZE_MEAN,
    MXA_KERNEL_QUANTIZE_ANY,
    MXA_KERNEL_QUANTIZE_F32_ROW, /* by wide type, then block, in the order of their enums */
    MXA_KERNEL_QUANTIZE_F32_COLUMN,
    MXA_KERNEL_QUANTIZE_F32_SQUARE,
    MXA_KERNEL_QUANTIZE_F16_ROW,
    MXA_KERNEL_QUANTIZE_F16_COLUMN,
    MXA_KERNEL_QUANTIZE_F16_SQUARE,
    MXA_KERNEL_QUANTIZE_BF16_ROW,
    MXA_KERNEL_QUANTIZE_BF16_COLUMN,
    MXA_KERNEL_QUANTIZE_BF16_SQUARE,
    MXA_KERNEL_QUANTIZE_BF16_FOLDED,
    MXA_KERNEL_DEQUANTIZE,
    MXA_KERNEL_DEQUANTIZE_F32, /* in the order of mxattn_dtype */
    MXA_KERNEL_DEQUANTIZE_F16,
    MXA_KERNEL_DEQUANTIZE_BF16,
    MXA_KERNEL_SCALES_MOVE,
    MXA_KERNEL_SCALES_SPREAD,
    MXA_KERNEL_SCALES_REPEAT,
    MXA_KERNEL_SCALES_RUNS,
    MXA_KERNEL_SCALES_SEQ,
    MXA_KERNEL_STATES_MERGE,
    MXA_KERNEL_PREPARE_OPERANDS,
    MXA_KERNEL_PREPARE_MEAN,
    MXA_KERNEL_PREPARE_VALUES,
    MXA_KERNEL_PREPARE_ZERO,
    MXA_KERNEL_PREPARE_RECORDS,
    MXA_KERNEL_PREPARE_TOKENS,
    MXA_KERNEL_PREPARE_BF16_D64, /* by type, then head dim */
    MXA_KERNEL_PREPARE_BF16_D128,
    MXA_KERNEL_PREPARE_BF16_D256,
    MXA_KERNEL_PREPARE_BF16_SQUARE_D64, /* BF16 in square blocks */
    MXA_KERNEL_PREPARE_BF16_SQUARE_D128,
    MXA_KERNEL_PREPARE_BF16_SQUARE_D256,
    MXA_KERNEL_PREPARE_E4M3_D64,
    MXA_KERNEL_PREPARE_E4M3_D128,
    MXA_KERNEL_PREPARE_E4M3_D256,
    MXA_KERNEL_PREPARE_SQUARE_D64, /* E4M3 in square blocks */
    MXA_KERNEL_PREPARE_SQUARE_D128,
    MXA_KERNEL_PREPARE_SQUARE_D256,
    MXA_KERNEL_PREPARE_FINISH_BF16_D64,
    MXA_KERNEL_PREPARE_FINISH_BF16_D128,
    MXA_KERNEL_PREPARE_FINISH_BF16_D256,
    MXA_KERNEL_PREPARE_FINISH_E4M3_D64,
    MXA_KERNEL_PREPARE_FINISH_E4M3_D128,
    MXA_KERNEL_PREPARE_FINISH_E4M3_D256,
    MXA_KERNEL_FORWARD_F16_D64,
    MXA_KERNEL_FORWARD_F16_D128,
    MXA_KERNEL_FORWARD_F16_D256,
    MXA_KERNEL_FORWARD_F32_D64,
    MXA_KERNEL_FORWARD_F32_D128,
    MXA_KERNEL_FORWARD_F32_D256,
    MXA_KERNEL_FORWARD_BF16_D64,
    MXA_KERNEL_FORWARD_BF16_D128,
    MXA_KERNEL_FORWARD_BF16_D256,
    MXA_KERNEL_SM100_FORWARD_D64,
    MXA_KERNEL_SM100_FORWARD_D128,
    MXA_KERNEL_SM100_FORWARD_BF16_D64,
    MXA_KERNEL_SM100_FORWARD_BF16_D128,
    MXA_KERNEL_SM100_PREPARE_VALUES,
    MXA_KERNEL_SM100_CLEAR_SCALES,
    MXA_KERNEL_BACKWARD_ROWS_D64, /* each for D = 64, 128, 256 in this order */
    MXA_KERNEL_BACKWARD_ROWS_D128,
    MXA_KERNEL_BACKWARD_ROWS_D256,
    MXA_KERNEL_BACKWARD_ROWS_BF16_D64,
    MXA_KERNEL_BACKWARD_ROWS_BF16_D128,
    MXA_KERNEL_BACKWARD_ROWS_BF16_D256,
    MXA_KERNEL_BACKWARD_FACTORS_D64,
    MXA_KERNEL_BACKWARD_FACTORS_D128,
    MXA_KERNEL_BACKWARD_FACTORS_D256,
    MXA_KERNEL_BACKWARD_TILES_D64,
    MXA_KERNEL_BACKWARD_TILES_D128,
    MXA_KERNEL_BACKWARD_TILES_D256,
    MXA_KERNEL_BACKWARD_D64,
    MXA_KERNEL_BACKWARD_D64_SOFTCAP,
    MXA_KERNEL_BACKWARD_D128,
    MXA_KERNEL_BACKWARD_D128_SOFTCAP,
    MXA_KERNEL_BACKWARD_D256,
    MXA_KERNEL_BACKWARD_D256_SOFTCAP,
    MXA_KERNEL_BACKWARD_FINISH_D64,
    MXA_KERNEL_BACKWARD_FINISH_D128,
    MXA_KERNEL_BACKWARD_FINISH_D256,
    MXA_KERNEL_BACKWARD_SINKS,
    MXA_KERNELS
} mxa_kernel;

typedef struct mxa_cuda_device {
    const mxa_driver *driver;
    mxa_cu_device handle;
    mxa_cu_context context; /* the primary one, which runtimes in this process share */
    int arch;               /* 90, 100 */
    int multiprocessors;
    mxa_cu_function functions[MXA_KERNELS];
} mxa_cuda_device;

/* Ordinals of the emulated devices, beyond any real one's. */
enum { MXA_CUDA_EMULATED_SM90 = 64, MXA_CUDA_EMULATED_SM100 = 65, MXA_CUDA_ORDINALS = 66 };

/* Device `ordinal`, its kernels loaded; first use opens it and may take a while. */
mxattn_status mxa_cuda_device_take(int32_t ordinal, const mxa_cuda_device **device);

const char *mxa_kernel_entry(mxa_kernel kernel);

/* The same on a device of this arch, which may have a kernel of its own. */
const char *mxa_kernel_entry_on(mxa_kernel kernel, int arch);
int mxa_kernel_shared_bytes(mxa_kernel kernel); /* dynamic */

/* Makes the device's context current, and puts back what was. */
mxattn_status mxa_cuda_enter(const mxa_cuda_device *device);
void mxa_cuda_leave(const mxa_cuda_device *device);

/* Queues one kernel; `params` is its only parameter. */
mxattn_status mxa_cuda_launch(const mxa_cuda_device *device, mxa_kernel kernel, unsigned grid_x,
                              unsigned grid_y, unsigned threads, void *stream, const void *params);

mxattn_status mxa_cuda_launch_3d(const mxa_cuda_device *device, mxa_kernel kernel,
                                 const int64_t grid[3], unsigned threads, void *stream,
                                 const void *params);

/* The same; the kernel may start before the one before it in the stream has ended, and waits for it
 * itself: every path of it calls grid_dependency_wait (dev/cluster.h). */
mxattn_status mxa_cuda_launch_early_3d(const mxa_cuda_device *device, mxa_kernel kernel,
                                       const int64_t grid[3], unsigned threads, void *stream,
                                       const void *params);
mxattn_status mxa_cuda_launch_early(const mxa_cuda_device *device, mxa_kernel kernel,
                                    unsigned grid_x, unsigned grid_y, unsigned threads,
                                    void *stream, const void *params);

/* A rank 3 map of bytes with rows of sizes[0], box as given, swizzled as wide as the box's row (64
 * or 128 bytes). Strides in bytes, multiples of 16. */
mxattn_status mxa_cuda_map_3d(const mxa_cuda_device *device, mxa_tensor_map *map, mxa_cu_pointer at,
                              const uint64_t sizes[3], const uint64_t strides_bytes[2],
                              const uint32_t box[3]);

/* The same of rank 4. */
mxattn_status mxa_cuda_map_4d(const mxa_cuda_device *device, mxa_tensor_map *map, mxa_cu_pointer at,
                              const uint64_t sizes[4], const uint64_t strides_bytes[3],
                              const uint32_t box[4]);

/* Kernels built in: cubin images, empty where the build had no nvcc. Defined by a generated file.
 */
typedef struct mxa_cubin {
    const char *name; /* folder and stem of the source: "sm90/forward" */
    int arch;         /* 90, 100 */
    const void *image;
    size_t bytes;
} mxa_cubin;

extern const mxa_cubin mxa_cubins[];
extern const int mxa_cubin_count;

#endif
