/* prepare_params.h: parameters of the kernels that make Hopper's private operand copies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_PREPARE_PARAMS_H
#define MXA_CUDA_COMMON_PREPARE_PARAMS_H

#include "cuda/common/operand.h"

enum {
    MXA_PREPARE_GROUP = 32,
    MXA_PREPARE_CHUNK = 128,
    /* v is centred where |mean| / root of the mean square * keys is more, the second where there
     * are more than `LONG` keys; a wide one already where |sum| is as many norms
     * (sm90/prepare_values.h). */
    MXA_PREPARE_SLANT = 512,
    MXA_PREPARE_SLANT_LONG = 640,
    MXA_PREPARE_LONG = 4096,
    MXA_PREPARE_NORMS = 8
};

/* One operand. Layouts of the outputs: sm90/forward_params.h. */
typedef struct mxa_prepare_params {
    mxa_gpu_operand from;
    mxa_gpu_batch batch;
    int32_t is_k_side; /* rows, lengths and numbers of k rather than q */
    int32_t heads, head_dim;
    int32_t groups;      /* of 32 rows that this run fills */
    int64_t rows;        /* of the private copy, a multiple of 32 (q) or 128 (k, v) */
    mxa_global payload;  /* q, k: [head][row][D up to a multiple of 16]; v: [head][D][row] */
    mxa_global scale;    /* q, k: FP32 2^exponent, one in 16 bytes, [head][row/32] */
    mxa_global exponent; /* v: int32 [head][row/32], or MXA_EXPONENT_NONE */
    mxa_global norm;     /* q, k: FP32 bits [sequence][head], largest |row|; zeroed before */
    mxa_global top;      /* v: uint32 [sequence][head], largest exponent + 1024; zeroed before; 0 in
                          * the first pass */
    mxa_global mean;     /* v: FP32 [sequence][head][D], or 0 */
    mxa_global partial;  /* v: FP32 [row/128][head][D] column sums of v, then of its copy, or 0 */
    mxa_global partial_norm; /* v: the same of the roots of sums of squares, first pass */
} mxa_prepare_params;

/* A group whose values are all zero, or not all finite. */
enum { MXA_EXPONENT_NONE = 0x7FFF };

/* q, k and, where its mean is made, v. */
typedef struct mxa_prepare_all_params {
    mxa_prepare_params q, k, v;
    /* uint32, zeroed before: of each [sequence][kv head], items that added up v's columns (one
     * more: some lean) and that were copied again; 1 where the columns of some v lean. */
    mxa_global sums_made, values_made, leaning;
    int32_t group; /* q heads of a kv head */
} mxa_prepare_all_params;

/* Memory that the kernels after it find zeroed; bytes: a multiple of 16. */
typedef struct mxa_prepare_zero_params {
    mxa_global at;
    int64_t bytes;
} mxa_prepare_zero_params;

/* Adds V's exponents to the records, and decides which kernel takes the tiles. */
typedef struct mxa_record_params {
    mxa_gpu_batch batch;
    int32_t q_heads, kv_heads, head_dim_v;
    int64_t rows;
    mxa_global v_exponent; /* int32 [kv_head][row/32] */
    mxa_global top;
    mxa_global v;              /* payload, shifted where a group lies 2^14 below the largest */
    mxa_global records;        /* mxa_key_record */
    mxa_global v_scale;        /* FP32 [sequence][kv_head] */
    mxa_global q_norm, k_norm; /* largest |row| of each sequence and head */
    mxa_global wide;           /* uint32, zeroed before: 1 where scores may exceed `bound` */
    float scale_log2e, bound;
} mxa_record_params;

/* What follows the copies: v again where it leans, and the records. */
typedef struct mxa_prepare_finish_params {
    mxa_prepare_all_params all;
    mxa_record_params records;
} mxa_prepare_finish_params;

/* Most (sequence, kv head) pairs whose tiles of keys are worked on together, where their order
 * matters: of eight CTAs on one pair seven find its queries in L2, on a device of 132. */
enum { MXA_KEYS_TOGETHER = 16 };

/* Builds the tables of a batch that is not plainly dense, and checks it. */
typedef struct mxa_schedule_params {
    mxa_global cu_seqlens_q, cu_seqlens_k; /* int32 [batch+1], or 0 when dense */
    mxa_global seqused_q, seqused_k;       /* int32 [batch], or 0 */
    int32_t batch, heads;
    int32_t seqlen_q, seqlen_k; /* dense lengths */
    int32_t total_q, total_k;   /* jagged: tokens with storage */
    int32_t max_seqlen_q, max_seqlen_k;
    int32_t tile_q;
    int32_t causal, top_left; /* for the order of the tiles only */
    int32_t together;         /* of keys: as in mxa_backward_params */
    mxa_global sequences, tiles, tile_count;
    mxa_global ranks;         /* of keys: scratch, 8 bytes a sequence */
    mxa_global turns;         /* of keys: int32 [batch][2], written; or 0 (backward_params.h) */
    mxa_global status;        /* uint32, written: a device status word (status.h) */
    mxa_global caller_status; /* the caller's device_status, or 0 */
} mxa_schedule_params;

#endif
