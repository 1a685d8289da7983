/* backward_prepare_params.h: parameters of the kernels around the Hopper backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_PREPARE_PARAMS_H
#define MXA_CUDA_SM90_BACKWARD_PREPARE_PARAMS_H

#include "cuda/common/operand.h"

/* What the first pass finds in a group of 32 queries; 32 bytes. A group with a value that is not
 * finite has `exponent` MXA_EXPONENT_NONE (prepare_params.h) and zeros. */
typedef struct mxa_backward_query_group {
    float dout_norm;  /* largest |dO_i| */
    float o_norm;     /* largest |O_i - mean of V| */
    float dlse;       /* largest |dLSE_i| */
    float squares;    /* sum of |dO_i|^2 */
    float dout_most;  /* largest |dO_id| */
    int32_t exponent; /* of dO's row copy */
    int32_t sum_log2; /* L: P times 2^L is at most 1 */
    int32_t far;      /* 2: some |row_top| is beyond MXA_BACKWARD_FAR; 1: beyond _WIDE */
} mxa_backward_query_group;

/* And in a group of 32 keys. */
typedef struct mxa_backward_key_group {
    float v_norm;     /* largest |V_j - mean| */
    int32_t exponent; /* of V's copy */
    int32_t reserved[2];
} mxa_backward_key_group;

/* What a (sequence, kv head) agrees on: exponents that its copies and sums are relative to. */
typedef struct mxa_backward_factors {
    float v_norm, o_norm; /* largest of their groups */
    float dlse_norm;      /* 0 without dLSE; else what dLSE is measured against */
    int32_t dout_log2;    /* of P dO: dV is its accumulators times 2^(this - 8) */
    int32_t q_log2;       /* of Q^T's copy */
    int32_t k_log2;       /* of K^T's copy */
    int32_t reserved[2];
} mxa_backward_factors;

/* Of all kernels around the main one; layouts: backward_params.h. Tiles of queries and keys are
 * numbered there. */
typedef struct mxa_backward_prepare_params {
    mxa_gpu_operand dout, o;
    mxa_gpu_batch batch;
    /* Inputs beside dO and O. */
    mxa_global row_max, row_sum; /* FP32 [head][q_row + s], what forward saved; or 0 and: */
    mxa_global lse;              /* FP32, with the strides below */
    mxa_global dlse;             /* FP32, or 0 */
    int64_t lse_batch, lse_head, lse_token;
    int64_t dlse_batch, dlse_head, dlse_token;
    mxa_global sink;               /* FP32 [head], or 0 */
    mxa_global q, k, v;            /* the forward's copies, or those of q_seq, k_seq and, beside
                                    * v_seq, of v: what dK, dQ and dP are made of */
    mxa_global q_scale, k_records; /* and their exponents */
    mxa_global score_q, score_k;   /* the forward's exponents of q and k: what P is made of */
    mxa_global v_scale, v_mean;    /* v_mean: FP32 [sequence][kv_head][D], or 0 */
    /* First pass. */
    mxa_global query_groups; /* [head][2 * tile + half] */
    mxa_global key_groups;   /* [kv_head][k_row/32] */
    mxa_global delta;        /* FP32 [head][64 * tile + s] */
    mxa_global row_top;  /* the same: LSE in log2 units is row_top + row_rest; +inf: sees no key */
    mxa_global row_rest; /* the same; then, in tiles that are far, the row's factor of P */
    mxa_global partial;  /* FP32 [head][2 * tile + half][D] column sums of dO */
    mxa_global partial_sink; /* FP32 [head][2 * tile + half], or 0 */
    mxa_global dout_rows;    /* dO's row copy */
    mxa_global v_rows;       /* V's row copy */
    /* Factors. */
    mxa_global factors;         /* [sequence][kv_head] */
    mxa_global dv_factor;       /* FP32 [sequence][kv_head] */
    mxa_global far;             /* uint32 [sequence][kv_head]: some query group's `far` */
    mxa_global dq_log2;         /* int32 [sequence][head]: dQ is added up times 2^this */
    mxa_global mean, mean_used; /* FP32 [sequence][head][D]; [sequence][head]: its largest */
    /* Second pass. */
    mxa_global q_t, dout_t, k_t, q_records, backward_k_records;
    mxa_global dq, order; /* cleared; order may be 0 */
    mxa_global taken;     /* cleared */
    mxa_global zeros;     /* cleared: a block of k_t */
    mxa_global cleared;   /* cleared: uint32 [sequence][kv_head] */
    mxa_global done;      /* cleared, likewise; or 0: dQ waits for all of the main kernel */
    mxa_global turns;     /* of a batch with tables: which dQ the main kernel clears; or 0: none */
    /* Last. */
    mxa_global dq_out, dsink;
    int64_t dq_batch, dq_token, dq_head;
    int32_t dq_type;

    int64_t q_rows, k_rows;
    int32_t q_tiles;      /* of a head: room for */
    int32_t q_tiles_most; /* that this batch can have */
    int32_t k_tiles;      /* k_rows / 128 */
    int32_t heads, group;
    int32_t head_dim, head_dim_v; /* the caller's: multiples of 8, at most the instance's, whose
                                   * private rows have zeros beyond */
    int32_t dq_f32;
    int32_t tile_keys, done_each; /* keys of a tile of the main kernel; what one adds to `done` */
    int32_t clear_pairs;          /* dq is cleared of the first ones (sequence, kv head) alone */
    int32_t dq_log2_given;        /* INT32_MIN: from the bound */
    float scale, scale_log2e;     /* softmax_scale; times log2(e) */
    float softcap;                /* 0: off */
    int32_t window_left, window_right, top_left;
} mxa_backward_prepare_params;

#endif
