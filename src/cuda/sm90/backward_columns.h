/* backward_columns.h: which dimension a column of dK, dV and dQ is, and eight of them to memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_COLUMNS_H
#define MXA_CUDA_SM90_BACKWARD_COLUMNS_H

#include "cuda/common/batch.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"

/* Of each 32 columns of an accumulator, thread t of four holds 8*c + 2*t + e. Column 8*c + 2*t + e
 * is dimension 8*t + 2*c + e, so that what a thread holds is eight dimensions in a row, one store
 * of 16 bytes, and a gradient goes from registers to memory. Row n of dO^T, Q^T and K^T, as the
 * main kernel's shared memory holds them, is column n. */
MXA_DEVICE int backward_dimension(int column)
{
    return (column & ~30) | (column & 6) << 2 | (column >> 2 & 6);
}

/* Block `block` of 32 columns of an accumulator's row r (0, or 1: eight further down), in the
 * order of dimensions, from 32*block + 8*t on. */
MXA_DEVICE void backward_eight(const float *accumulator, int block, int r, float *x)
{
    MXA_UNROLL
    for (int c = 0; c < 4; c++) {
        x[2 * c] = accumulator[16 * block + 4 * c + 2 * r];
        x[2 * c + 1] = accumulator[16 * block + 4 * c + 2 * r + 1];
    }
}

/* Eight elements, BF16, FP16 or FP32; at is a multiple of 16. */
MXA_DEVICE void backward_store_eight(mxa_global at, int type, const float *x)
{
    uint32_t w[8];
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        w[j] = bits_f32(x[j]);
    }
    if (type != MXA_GPU_F32) {
        MXA_UNROLL
        for (int j = 0; j < 4; j++) {
            w[j] = type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x[2 * j], x[2 * j + 1])
                                        : f16x2_from_f32x2(x[2 * j], x[2 * j + 1]);
        }
    }
    const mxa_u32x4 low = {w[0], w[1], w[2], w[3]}, high = {w[4], w[5], w[6], w[7]};
    dev_store_global_u32x4(at, low);
    if (type == MXA_GPU_F32) {
        dev_store_global_u32x4(at + 16, high);
    }
}

#endif
