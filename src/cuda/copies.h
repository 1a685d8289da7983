/* copies.h: the private operand copies of the Hopper forward: where they lie and how they are made.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COPIES_H
#define MXA_CUDA_COPIES_H

#include "backend.h"
#include "cuda/common/batch.h"
#include "cuda/device.h"
#include "cuda/forms.h"

/* Offsets into prepared memory, or into the workspace when the caller brings none; `bytes` is its
 * size. */
typedef struct mxa_copies {
    int64_t q, k, v;
    int64_t v_exponent;
    int64_t q_scale, records, v_scale;
    int64_t zeroed; /* the next ones: cleared before preparation */
    int64_t mean, q_norm, k_norm, top, wide, taken, sums_made, values_made, leaning, zeroed_end;
    int64_t sequences, tiles, tile_count, status;
    int64_t partial, partial_norm;
    int64_t bytes;
    int64_t q_rows, k_rows;
    int64_t tiles_most;
} mxa_copies;

mxa_copies mxa_copies_lay_out(const mxattn_attention_problem *problem,
                              const mxa_forward_form *form);

/* Of the values: v_seq where the problem has one, since values contract over tokens. */
const mxattn_tags *mxa_copies_v_tags(const mxattn_attention_problem *problem);

/* Rows of the private q. */
int64_t mxa_copies_q_rows(const mxattn_attention_problem *problem);

/* Everything one run needs to know. */
typedef struct mxa_forward_run {
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_cuda_device *device;
    const mxa_forward_form *form;
    const mxattn_tensor *v; /* or v_seq */
    int v_has_mean;         /* made by preparation */
    mxa_copies at;
    mxa_global base; /* of the copies */
    mxa_gpu_batch batch;
} mxa_forward_run;

/* 1 when preparation makes a mean of v and copies v without it; forward and backward agree on it,
 * since either may read what the other prepared. WHY not of a short MXFP8 v: no column could
 * lean (MXA_PREPARE_SLANT). */
int mxa_copies_v_has_mean(const mxattn_attention_problem *problem, const mxattn_tensor *v);

/* Queues 0 for the caller's status word, unless this run makes the batch's tables, which say what
 * to write there. In the device's context. */
mxattn_status mxa_copies_clear_status(const mxa_forward_run *r, int makes_tables);

/* Makes the copies, and the tables of a batch that has some. In the device's context. */
mxattn_status mxa_copies_make(const mxa_forward_run *run);

/* The same of other operands of the batch: its tables are there. */
mxattn_status mxa_copies_make_again(const mxa_forward_run *run);

mxa_global mxa_address(const void *memory);

#endif
