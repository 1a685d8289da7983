/* operand.h: a caller's tensor as kernels read it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_OPERAND_H
#define MXA_CUDA_COMMON_OPERAND_H

#include "cuda/common/batch.h"

enum { MXA_GPU_ROW = 1, MXA_GPU_COLUMN = 2, MXA_GPU_SQUARE = 3 }; /* mxattn_block */
enum { MXA_GPU_LINEAR = 0, MXA_GPU_COMPACT = 1, MXA_GPU_TILED = 2 };

/* Strides in elements; a wide operand's block says how it is quantized on the way in. */
typedef struct mxa_gpu_operand {
    mxa_global data;
    int64_t stride_outer, stride_token, stride_head;
    mxa_global scales;   /* of an FP8 operand */
    mxa_global cu_scale; /* TILED: first rows, or 0: derived */
    int64_t scale_head, scale_row, scale_k;
    int32_t type, block, rounding;
    int32_t scale_layout, scale_axis; /* axis: mxattn_axis */
    int32_t vector;                   /* 1: base and strides allow 16-byte loads */
} mxa_gpu_operand;

#endif
