/* attention_case.h: one attention problem with its data, run on any backend and instruction set.
 *
 * Inputs are drawn in FP32, quantized by mx (not by the backend under test) and placed between
 * guard pages; outputs and workspace are NaN-filled before every run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_ATTENTION_CASE_H
#define MXT_ATTENTION_CASE_H

#include "fill.h"
#include "mxattn/mxattn.h"

enum { MXT_SEQUENCES_MOST = 8, MXT_BUFFERS_MOST = 64 };

/* What to build. Start from mxt_attention_spec(). */
typedef struct mxt_attention_spec {
    uint64_t seed;
    mxt_kind kind;
    int jagged;
    int64_t batch;
    int64_t seqlen_q[MXT_SEQUENCES_MOST], seqlen_k[MXT_SEQUENCES_MOST]; /* dense: [0] of each */
    int64_t unused_q[MXT_SEQUENCES_MOST], unused_k[MXT_SEQUENCES_MOST]; /* tokens beyond seqused */
    int64_t tail; /* jagged: tokens of storage after the last sequence */
    int64_t heads, kv_heads, head_dim, head_dim_v;
    mxattn_tags q, k, v;
    int pairs; /* v_seq: a column partner of v */
    mxattn_scale_layout layout;
    mxattn_axis square_axis;          /* which array of square blocks is given */
    int64_t extra_stride;             /* elements between heads beyond head_dim; a multiple of 1 */
    float spread;                     /* inputs are multiplied with this */
    mxattn_attention_problem problem; /* mask, scale, softcap, sink, o and so on */
} mxt_attention_spec;

typedef struct mxt_attention_case {
    mxt_attention_spec spec;
    mxattn_tensor q, k, v, v_seq;
    int32_t cu_q[MXT_SEQUENCES_MOST + 1], cu_k[MXT_SEQUENCES_MOST + 1];
    int32_t used_q[MXT_SEQUENCES_MOST], used_k[MXT_SEQUENCES_MOST];
    int has_unused;
    int64_t tokens_q, tokens_k; /* with storage */
    float *sink;
    int64_t o_elements, lse_elements;
    void *buffers[MXT_BUFFERS_MOST];
    int buffer_count;
} mxt_attention_case;

/* Results, as FP32 in the shapes of the public header; freed by mxt_attention_result_free. */
typedef struct mxt_attention_result {
    mxattn_status status;
    float *o, *lse;
    void *o_bytes; /* as stored */
    size_t o_size;
    mxattn_tensor o_tensor;
} mxt_attention_result;

/* B 1, Sq Sk 64, 2 heads of 32 over 1 kv head, row blocks, linear scales, O in FP32. */
mxt_attention_spec mxt_attention_spec_make(void);

void mxt_attention_case_make(mxt_attention_case *c, const mxt_attention_spec *spec);
void mxt_attention_case_free(mxt_attention_case *c);

mxt_attention_result mxt_attention_case_forward(mxt_attention_case *c,
                                                const mxattn_context *context,
                                                mxattn_backend backend, mxattn_precision precision);
void mxt_attention_result_free(mxt_attention_result *result);

/* A context with some instruction sets and threads; NULL when the machine or build lacks one of
 * them. */
mxattn_context *mxt_context(uint32_t isa, int32_t threads);

/* The masks whose kernels this machine has, weakest first; returns how many. */
int mxt_isas(uint32_t isas[8]);
const char *mxt_isa_name(uint32_t isa);

#endif
