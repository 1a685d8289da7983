/* producers_params.h: parameters of the kernels that quantize, dequantize and move scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_PRODUCERS_PARAMS_H
#define MXA_CUDA_COMMON_PRODUCERS_PARAMS_H

#include "cuda/common/operand.h"
#include "cuda/common/sequences_params.h"

/* A tensor (B, S, H, D), jagged (1, T, H, D). Strides in elements. */
typedef struct mxa_gpu_view {
    mxa_global data;
    int64_t stride_outer, stride_token, stride_head;
} mxa_gpu_view;

/* One scale array; data 0: absent. Strides as mxattn_scales has them. */
typedef struct mxa_gpu_scales {
    mxa_global data;
    int64_t stride_head, stride_row, stride_k;
    int32_t layout; /* MXA_GPU_LINEAR .. TILED */
    int32_t reserved;
} mxa_gpu_scales;

/* One CTA takes 128 tokens of a sequence by 128 dims of a head: a unit of tiled scales on either
 * axis. Grid x: head * chunks + chunk; y and z: tile. */
typedef struct mxa_quantize_params {
    mxa_gpu_sequences batch;
    mxa_gpu_view wide, payload;
    mxa_gpu_scales scales[2]; /* by axis */
    mxa_global transposed;    /* (B, H, D, S), or 0 */
    int64_t transposed_outer, transposed_head, transposed_dim;
    mxa_global centre;  /* FP32 (B, H, D), or 0 */
    mxa_divisor chunks; /* of 128 dims */
    int32_t heads, head_dim;
    int32_t type, wide_type; /* E4M3 or E5M2; F32, F16, BF16 */
    int32_t block, floor_rule, folded;
} mxa_quantize_params;

/* Sixteen units of the same 128 tokens make a CTA. Grid x: tile, group of units, the last fastest.
 */
enum { MXA_SCALES_UNITS = 16, MXA_SCALES_REPEATED = 32 /* of mxa_scales_repeat */ };

typedef struct mxa_scales_params {
    mxa_gpu_sequences batch;
    mxa_gpu_scales from, to;
    int32_t from_axis, to_axis;
    mxa_divisor chunks; /* of 128 dims */
    int32_t head_dim;
    int32_t units; /* heads * chunks */
    int32_t
        rows_of_units; /* 1: sixteen units lie side by side in each row of `from`, aligned to 16 */
    int32_t reserved;
} mxa_scales_params;

/* o = a and b weighed by their LSE. One warp a row. */
typedef struct mxa_merge_params {
    mxa_gpu_view a, b, o;
    mxa_gpu_view lse_a, lse_b, lse; /* lse.data may be 0 */
    int32_t type_a, type_b, type_o;
    int32_t heads, head_dim;
    int64_t seqlen, rows; /* rows: batch * seqlen * heads */
} mxa_merge_params;

#endif
