/* sm100_case.h: cases of the Blackwell forward: operands quantized by the CPU, with tiled scales
 * whose padding is NaN and payload tails that are NaN, run on the emulated device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_SM100_CASE_H
#define MXT_SM100_CASE_H

#include "fill.h"
#include "mxattn/mxattn.h"

enum { MXT_SM100_SEQUENCES = 12, EXTRA = 7 /* tokens of storage behind the last sequence */ };

/* Layouts of O's scales along the head dimension and the sequence. */
enum { MXT_SM100_O_TILED_LINEAR, MXT_SM100_O_LINEAR_TILED, MXT_SM100_O_COMPACT };

typedef struct mxt_sm100_case {
    const char *name;
    int32_t lengths_q[MXT_SM100_SEQUENCES],
        lengths_k[MXT_SM100_SEQUENCES]; /* ends with -1; one: may be dense */
    int jagged;
    int64_t heads, kv_heads, head_dim;
    int causal, top_left;
    int64_t left, right;
    double scale, softcap; /* scale 0: the default */
    int sink, centred;
    mxattn_block block; /* SQUARE, or ROW: q and k row, v column */
    mxattn_dtype type, o;
    mxattn_block o_block;
    mxt_kind kind;
    int bf16;              /* P and V in BF16 */
    int strict;            /* causal_strict: so are they, and blocks are row */
    const int32_t *used_q; /* of each sequence; NULL: all */
    int o_layouts;         /* of scales of o: MXT_SM100_O_TILED_LINEAR, ... */
} mxt_sm100_case;

/* One operand or output on the host, in both of its arrangements, and on the device. */
typedef struct mxt_sm100_operand {
    mxattn_tensor tensor; /* tiled scales, as the kernel reads them: host memory */
    mxattn_tensor linear; /* the same payload with linear scales */
    mxattn_tensor device;
    int64_t tokens, heads, head_dim;
    mxattn_axis axis;
    int64_t payload_bytes, tiled_bytes;
} mxt_sm100_operand;

typedef struct mxt_sm100_setup {
    const mxt_sm100_case *c;
    int64_t batch;
    int32_t cu_q[MXT_SM100_SEQUENCES + 1], cu_k[MXT_SM100_SEQUENCES + 1];
    float *wide[3], *centre, sink[8];
    mxt_sm100_operand q, k, v;
    mxattn_attention_problem problem;
} mxt_sm100_setup;

/* O (with tiled and linear scales where it is FP8) and LSE. */
typedef struct mxt_sm100_result {
    uint8_t *o, *o_scales[2];
    int64_t o_bytes, o_scales_bytes[2];
    float *lse;
    int64_t rows;
} mxt_sm100_result;

/* Memory of NaN. */
void *mxt_sm100_take(int64_t bytes);

/* Queries of sequence b that count. */
int64_t mxt_sm100_used_q(const mxt_sm100_case *c, int64_t b);

/* cu_seqlens of an operand's side, or NULL: dense. */
const int32_t *mxt_sm100_cu(const mxt_sm100_setup *s, const mxt_sm100_operand *p);

void mxt_sm100_build(mxt_sm100_setup *s, const mxt_sm100_case *c, uint64_t seed);
void mxt_sm100_free(mxt_sm100_setup *s);

void mxt_sm100_result_take(const mxt_sm100_setup *s, mxt_sm100_result *r);
void mxt_sm100_result_free(mxt_sm100_result *r);

/* O of a result as a tensor. */
mxattn_tensor mxt_sm100_output(const mxt_sm100_setup *s, const mxt_sm100_result *r);

/* Copies to the device, runs, copies back. */
mxattn_status mxt_sm100_run(mxt_sm100_setup *s, mxt_sm100_result *r);

#endif
