/* backward_params.h: what host and device share about the Hopper backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_PARAMS_H
#define MXA_CUDA_SM90_BACKWARD_PARAMS_H

#include "cuda/common/batch.h"
#include "cuda/dev/map.h"

enum {
    MXA_BACKWARD_TILE_Q = 64, /* queries of a step */
    MXA_BACKWARD_KEYS = 64,   /* keys of a warpgroup: a CTA's tile has 128, or 192 */
    MXA_BACKWARD_GROUP = 32,  /* tokens that share exponents */
    /* LSE in log2 units beyond which FP32 holds its fraction too coarsely: 2^-10 and more. */
    MXA_BACKWARD_FAR = 1 << 14,
    /* And beyond which FP16 does: 2^-5. */
    MXA_BACKWARD_WIDE = 1 << 6
};

/* Consumer warpgroups of a main kernel. */
#define MXA_BACKWARD_WARPGROUPS(head_dim, softcap) ((head_dim) == 64 && !(softcap) ? 3 : 2)

/* Shared memory of a main kernel of `w` of them: operands and staging, dS, the rest. */
#define MXA_BACKWARD_SHARED(d, w)                                                                  \
    ((448 * (w) + 768) * (d) + 4096 * (w) * (w) + 32 * (w) + 2528 + ((d) == 128 ? 0 : 1008))

/* The same of head dims beyond 128, whose two warpgroups share 64 keys. */
enum { MXA_BACKWARD_SHARED_WIDE = 224224 };

/* A query tile's record. M and D are FP32 of its 64 queries, sorted for threads that hold columns
 * 8*j + 2*c + e: float 2*j + e of row c (144 bytes from row to row: no bank is hit twice). In the
 * gaps after the first two, FP32 pairs of its two groups of 32; after the third, whether some row's
 * LSE is far: then (without a softcap) M is the row's top alone, and the rest a factor in
 * row_factors. */
enum {
    MXA_BACKWARD_RECORD_ROW = 144,
    MXA_BACKWARD_RECORD_M = 0,     /* P's payload is 2^(score * q_scale * k_scale - M) */
    MXA_BACKWARD_RECORD_D = 64,    /* delta in the units of dS */
    MXA_BACKWARD_RECORD_Q = 128,   /* 2^exponent of Q */
    MXA_BACKWARD_RECORD_DP = 136,  /* dP's factor */
    MXA_BACKWARD_RECORD_DQ = 272,  /* dQ's factor */
    MXA_BACKWARD_RECORD_SUM = 280, /* P's payload to P */
    MXA_BACKWARD_RECORD_FAR = 416, /* uint32 */
    MXA_BACKWARD_RECORD = 560
};

/* The same for tiles whose S and dP are FP16, behind it: pair j of row c, of columns 8*j + 2*c and
 * the next, is word j (80 bytes from row to row). The gaps have the factors, in FP32. */
enum {
    MXA_BACKWARD_HALF_ROW = 80,
    MXA_BACKWARD_HALF_M = 0,
    MXA_BACKWARD_HALF_D = 32,
    MXA_BACKWARD_HALF_Q = 64, /* two of them, then two of dP */
    MXA_BACKWARD_HALF_DQ = 144,
    MXA_BACKWARD_HALF_SUM = 152,
    MXA_BACKWARD_HALF = 320,
    MXA_BACKWARD_RECORDS = MXA_BACKWARD_RECORD + MXA_BACKWARD_HALF /* from tile to tile */
};

/* A key group's factors. */
typedef struct mxa_backward_key_record {
    float scores; /* 2^exponent of K * softmax_scale * log2(e) (softcap: / softcap instead) */
    float dp;     /* dP's factor */
    float delta;  /* delta's */
    float dk;     /* accumulator to dK */
} mxa_backward_key_record;

/* Query tiles: sequence b's begin at tile (q_row/32 + b + 1)/2 of a head where tables say q_row, at
 * b * ceil(seqlen_q/64) in a dense batch.
 *   q         E4M3 [head][q_row + s][D], of the forward's copies
 *   dout      E4M3 [head][64*tile + s][D]
 *   k, v      E4M3 [kv_head][k_row + s][D]
 *   q_t       E4M3 [head][tile][D][64]: transposed, dimensions as backward_dimension says, tokens
 *   dout_t    permuted in each 16 (slot 4c+b holds token 8*(b>>1) + 2c + (b&1)), rows of 64 bytes
 *             swizzled as shared memory holds them
 *   k_t       E4M3 [kv_head][k_row/64][D][64]: dimensions and rows like these; slot 16w + 2g + h
 *             holds key 16w + g + 8h
 *   dq        FP16 or FP32 [head][tile][half][warp 4][i][lane 32][16 bytes], accumulator order;
 *             halves of 128 dimensions where D = 256, and so `order`, of whose two words sums in
 *             FP16 use the first
 * What the payloads stand for: docs/kernels/hopper_backward.md. */
typedef struct mxa_backward_params {
    mxa_device_map q_map, dout_map, k_map, v_map;
    mxa_gpu_batch batch; /* tiles: of keys; tiles_per_sequence: of keys */
    mxa_global q_t, dout_t, k_t;
    mxa_global zeros;       /* a block of k_t beyond a sequence's end */
    mxa_global q_records;   /* [head][tile] */
    mxa_global row_factors; /* FP32 [head][64*tile + s], where a tile is far: 2^(score - M) to P */
    mxa_global k_records;   /* [kv_head][k_row/32] */
    mxa_global dv_factor;   /* FP32 [sequence][kv_head] */
    mxa_global far;         /* uint32 [sequence][kv_head]: some record may be far */
    mxa_global mean;        /* FP32 [sequence][head][D]: of dO, what dout_t was made less */
    mxa_global mean_used;   /* FP32 [sequence][head]: its largest magnitude; 0: none is used */
    mxa_global column_sums; /* FP32 [half][head][k_row], halves where D = 256: scratch for sums of P
                             * over queries */
    mxa_global dq;
    mxa_global order;   /* uint32 [head][tile], 0 before: additions made; or 0: in any order */
    mxa_global taken;   /* uint32, 0 before: tiles of keys that some CTA has taken */
    mxa_global done;    /* uint32 [sequence][kv_head], 0 before: tiles whose dQ is added up, told by
                         * each    writer; or 0 */
    mxa_global cleared; /* uint32 [sequence][kv_head], 0 before: shares of its dQ that are zeros */
    mxa_global dk, dv;
    int64_t dk_batch, dk_token, dk_head; /* strides in elements */
    int64_t dv_batch, dv_token, dv_head;
    int32_t dk_type, dv_type; /* mxattn_dtype */
    int32_t q_tiles;          /* of a head */
    int64_t q_rows, k_rows;
    int32_t heads, group; /* q heads; q heads per kv head */
    int32_t head_dim, head_dim_v;
    int32_t window_left, window_right;
    int32_t top_left;
    int32_t tiles;    /* entries of a dense batch's work list */
    int32_t together; /* (sequence, kv head) pairs whose tiles go one after another: the first of
                       * each, the second of each; 1: all tiles of a pair in a row */
    mxa_global turns; /* int32 [sequence][2] of a batch with tables, or 0: what `ahead` is of a
                       * dense one. The sequence whose dQ this one's tiles of keys clear a share of,
                       * each of its own head, or -1; how many shares are cleared so of this one's,
                       * 0: all of it was cleared before */
    int32_t ahead;    /* a tile of keys clears a share of dQ of the pair this much further on; dQ of
                       * the first ones was cleared before. 0: all of it was */
    int32_t dq_f32;
    float softcap_log2e; /* softcap * log2(e); 0: off */
} mxa_backward_params;

#endif
