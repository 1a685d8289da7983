/* producers_launch.h: what a producer's call becomes: kernel, grid, threads, parameters.
 *
 * Pure: device.c launches it, and tests run it on the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_PRODUCERS_LAUNCH_H
#define MXA_CUDA_PRODUCERS_LAUNCH_H

#include "backend.h"
#include "cuda/common/producers_params.h"
#include "cuda/device.h"

typedef struct mxa_producer_launch {
    mxa_kernel kernel;
    int64_t grid[3];
    unsigned threads;
    union {
        mxa_quantize_params quantize;
        mxa_scales_params scales;
        mxa_merge_params merge;
    } params;
} mxa_producer_launch;

/* Refuse what the kernels cannot address: alignment, a grid too large. At most two launches. */
mxattn_status mxa_launch_of_quantize(const mxa_quantize_call *call, mxa_producer_launch launches[2],
                                     int *count);
mxattn_status mxa_launch_of_dequantize(const mxa_quantize_call *call, mxa_producer_launch *launch);
mxattn_status mxa_launch_of_scales(const mxa_scales_call *call, mxa_producer_launch *launch);
mxattn_status mxa_launch_of_merge(const mxa_merge_call *call, mxa_producer_launch *launch);

#endif
