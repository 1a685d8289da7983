/* backward_layout.h: what the Hopper backward keeps in its workspace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_BACKWARD_LAYOUT_H
#define MXA_CUDA_BACKWARD_LAYOUT_H

#include "cuda/copies.h"

/* Offsets into the workspace; the forward's copies come first. */
typedef struct mxa_backward_layout {
    mxa_copies copies;
    int64_t partners; /* copies of q_seq, k_seq and v, laid out as the others */
    int64_t query_groups, key_groups, delta, row_top, row_rest, partial, partial_sink;
    int64_t dout_rows, v_rows;
    int64_t factors, dv_factor, far, dq_log2, mean, mean_used;
    int64_t q_t, dout_t, k_t, q_records, k_records;
    int64_t column_sums, dq, order;
    int64_t tiles, tile_count, ranks, turns, taken, cleared, done, zeros;
    int64_t wide[3]; /* of gradients that leave as MXFP8, FP32: dq, dk, dv */
    int64_t bytes;
    int64_t q_tiles, k_tiles; /* of a head; k_tiles: of 128 keys, as the copies are padded */
} mxa_backward_layout;

mxa_backward_layout mxa_backward_lay_out(const mxattn_attention_problem *problem);

/* 1 where a column partner is given: what contracts over tokens is not what P is made of. */
int mxa_backward_has_partners(const mxattn_attention_problem *problem);

/* Head dimension of the kernels that take the problem's: private rows have zeros beyond. */
int64_t mxa_backward_width(const mxattn_attention_problem *problem);

/* The form whose copies backward reads: exponents by groups of 32 tokens. */
const mxa_forward_form *mxa_backward_form(const mxattn_attention_problem *problem);

mxa_kernel mxa_backward_main_kernel(const mxattn_attention_problem *problem);

/* Of kernels that are there for widths 64, 128 and 256, `each` entries apart. */
mxa_kernel mxa_backward_of_width(const mxattn_attention_problem *problem, mxa_kernel d64, int each);

/* Keys of the main kernel's tile. */
int mxa_backward_tile_keys(const mxattn_attention_problem *problem);

/* Its consumer warpgroups; up to width 128 it has 64 keys a tile for each. */
int mxa_backward_warpgroups(const mxattn_attention_problem *problem);

#endif
