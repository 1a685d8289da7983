/* forward_params.h: what host and device share about the Blackwell forward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_PARAMS_H
#define MXA_CUDA_SM100_FORWARD_PARAMS_H

#include "cuda/common/operand.h"
#include "cuda/dev/map.h"

enum {
    MXA_SM100_TILE_Q = 128, /* queries of one score tile; a CTA works on two at a time */
    MXA_SM100_TILE_K = 128, /* keys of a block */
    MXA_SM100_UNIT = 512    /* bytes of a unit of tiled scales: 128 rows by 4 blocks of 32 */
};

/* Dynamic shared memory of a forward of head_dim d: 25 KiB of staging, scales, rows and barriers,
 * and twelve tiles (forward_map.h). */
#define MXA_SM100_FORWARD_SHARED(d) (25 * 1024 + 12 * 128 * (d) + 1024)

/* Tiled scales of one operand, strides in units. Row tile R of head h is unit h*head + R*step; its
 * sequence b starts at row cu[b], or at the row that the batch's record derives. q and k: scales
 * along the head dimension, R counts 128 tokens. v: along the sequence, R counts 128 keys (4 blocks
 * of 32), all d in one unit. */
typedef struct mxa_sm100_scales {
    mxa_global data, cu;
    int64_t head, step;
} mxa_sm100_scales;

/* Where FP8 outputs' scales go; data 0: not wanted. layout: MXA_GPU_LINEAR, ... */
typedef struct mxa_sm100_out_scales {
    mxa_global data, cu;
    int64_t head, row, k;
    int32_t layout, reserved;
} mxa_sm100_out_scales;

/* q, k, v: maps of rank 4 {D, heads, tokens, outer} over the caller's payload, boxes of one head
 * and 128 tokens; v in BF16: {2 * D bytes, kv_heads, rows, 1} over the private copy, boxes of 64 d.
 * All memory is global. */
typedef struct mxa_sm100_forward_params {
    mxa_device_map q_map, k_map, v_map;
    mxa_gpu_batch batch;
    mxa_sm100_scales q_scales, k_scales, v_scales;
    mxa_global v_mean; /* FP32 [sequence][kv_head][D], or 0 */
    mxa_global v_nan;  /* P in BF16: a bit for each row of the private v, 16 bytes for
                        * 128, [kv_head][v_tiles] */
    mxa_global sink;   /* FP32 [head], or 0 */
    mxa_global o;      /* F32, F16, BF16, E4M3 or E5M2 */
    mxa_global lse;    /* FP32, or 0 */
    mxa_sm100_out_scales o_scales[2]; /* by mxattn_axis */
    int64_t o_batch, o_token, o_head; /* strides in elements */
    int64_t lse_batch, lse_head, lse_token;
    int64_t v_tiles;
    int32_t heads, group; /* q heads; q heads per kv head */
    int32_t o_type, o_block, o_rounding;
    int32_t q_e5m2, k_e5m2, v_e5m2;    /* 1: E5M2, 0: E4M3 */
    int32_t window_left, window_right; /* -1: unlimited */
    int32_t top_left;                  /* alignment of the diagonal */
    int32_t tiles;                     /* a dense batch's work items */
    float scale_log2e;                 /* softmax_scale * log2(e) */
    float softcap_log2e;               /* softcap * log2(e); 0: off */
    float softcap_inverse;             /* of it; 0: off */
} mxa_sm100_forward_params;

/* prepare_values.cu: v in FP8, with any scales, to BF16. */
typedef struct mxa_sm100_values_params {
    mxa_gpu_operand from;
    mxa_gpu_batch batch;
    mxa_global values; /* BF16 [kv_head][tiles * 128][head_dim] */
    mxa_global nan;    /* as mxa_sm100_forward_params has it */
    int64_t tiles;
    int32_t head_dim, reserved;
} mxa_sm100_values_params;

/* clear_scales.cu: heads and head_dim of O. */
typedef struct mxa_sm100_clear_params {
    mxa_gpu_batch batch;
    mxa_sm100_out_scales scales[2]; /* by mxattn_axis */
    int32_t heads, head_dim;
} mxa_sm100_clear_params;

#endif
