/* forward_params.h: what host and device share about the Hopper forward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_FORWARD_PARAMS_H
#define MXA_CUDA_SM90_FORWARD_PARAMS_H

#include "cuda/common/batch.h"
#include "cuda/dev/map.h"

enum {
    MXA_FORWARD_GROUP = 32,         /* tokens that share a scale in the private copies */
    MXA_FORWARD_RECORD = 16,        /* bytes of a group's record: q_scale, mxa_key_record */
    MXA_FORWARD_TOKEN_RECORD = 144, /* and of the BF16 form: mxa_token_record */
    MXA_FORWARD_BOUND_LOG2 = 7 /* |logit| * log2(e) below 2^7: FP16 scores are accurate enough */
};

/* Which tiles a launch takes. */
enum {
    MXA_FORWARD_PASS_SMALL = 0, /* those within the FP16 bound; marks the others in `redo` */
    MXA_FORWARD_PASS_REDO = 1,  /* those marked, also by a row whose maximum jumped too far */
    MXA_FORWARD_PASS_ALL = 2    /* softcap, a softmax_scale that is not positive, BF16 P */
};

/* The private copies of the operands (docs/kernels/hopper_forward.md). Rows are padded tokens:
 * sequence b's token s is row mxa_gpu_sequence.q_row + s or .k_row + s. All memory is global.
 *   q, k     E4M3 [head][row][D], one exponent per 32 rows across D, payload at most 15 so that
 *            FP16 scores cannot overflow (D * 15^2 < 65504)
 *   v        E4M3 [kv_head][Dv][row], keys permuted inside each 16 (slot 4c+b holds key
 *            8*(b>>1) + 2c + (b&1)), exponents per 32 rows relative to the sequence's largest
 *   q_scale  FP32, one in 16 bytes, [head][row/32]: 2^exponent
 *   records  [kv_head][row/32]: mxa_key_record
 *   q_norm   FP32 [sequence][head]: largest |q_i|
 *   k_norm   FP32 [sequence][kv_head]: largest |k_j|
 * With P in BF16 (causal_strict, intermediates BF16) nothing is shared between tokens:
 *   q, k     E4M3 [head][row][D], one exponent per row, payload at most 448
 *   v        BF16 [kv_head][row][Dv], a NaN as 0
 *   q_scale  FP32 [head][row]: 2^exponent
 *   records  [kv_head][row/32]: mxa_token_record */
typedef struct mxa_forward_params {
    mxa_device_map q_map, k_map, v_map;
    mxa_gpu_batch batch;
    mxa_global q_scale, q_norm, records, k_norm;
    mxa_global wide;                  /* uint32: 0 when every tile is within the FP16 bound */
    mxa_global redo;                  /* uint32 of each entry of the work list */
    mxa_global taken;                 /* uint32, zeroed before: pieces that CTAs took beyond their
                                       * first, or 0: pieces are dealt */
    mxa_global v_scale;               /* FP32 [sequence][kv_head]: 2^(largest exponent of V) */
    mxa_global v_mean;                /* FP32 [sequence][kv_head][Dv], or 0 */
    mxa_global sink;                  /* FP32 [head], or 0 */
    mxa_global o;                     /* BF16 or FP16 or FP32 */
    mxa_global lse;                   /* FP32, or 0 */
    mxa_global row_max, row_sum;      /* for backward: FP32 [head][row of the private q], or 0: m
                                       * and sum of 2^(x - m); no key seen: +inf and 1 */
    int64_t o_batch, o_token, o_head; /* strides in elements */
    int64_t lse_batch, lse_head, lse_token;
    int64_t q_rows, k_rows; /* of the private copies */
    int32_t heads, group;   /* q heads; q heads per kv head */
    int32_t head_dim_v;
    int32_t o_type;                    /* mxattn_dtype */
    int32_t window_left, window_right; /* -1: unlimited */
    int32_t top_left;                  /* alignment of the diagonal */
    int32_t tiles;                     /* entries of a dense batch's work list */
    int32_t tile_q;                    /* queries of an entry */
    int32_t together;                  /* dense, with a diagonal: heads whose tiles are mixed */
    int32_t pass;                      /* MXA_FORWARD_PASS_ */
    float scale_log2e;                 /* softmax_scale * log2(e) */
    float softcap_log2e;               /* softcap * log2(e); 0: off */
} mxa_forward_params;

/* A key group's factors as the softmax uses them; pairs are two equal FP16 halves. */
typedef struct mxa_key_record {
    float k_scale; /* 2^exponent of K */
    float v_shift; /* exponent of V minus the sequence's largest: added to P's exponent */
    uint32_t v_shift_f16;
    uint32_t v_undo_f16; /* 2^-v_shift: the row sum does not see V's exponents */
} mxa_key_record;

/* 32 keys of the BF16 form. */
typedef struct mxa_token_record {
    float k_scale[32];
    uint32_t v_nan; /* bit i: key i's V has a NaN */
    uint32_t reserved[3];
} mxa_token_record;

#endif
