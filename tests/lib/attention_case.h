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
    int pairs; /* v_seq, and for training q_seq and k_seq: column partners */
    mxattn_scale_layout layout;
    mxattn_axis square_axis;          /* which array of square blocks is given */
    int64_t extra_stride;             /* elements between heads beyond head_dim; a multiple of 1 */
    float spread;                     /* inputs are multiplied with this */
    int no_saved;                     /* backward from O and LSE alone */
    int dlse;                         /* backward is given a gradient of LSE */
    mxattn_attention_problem problem; /* mask, scale, softcap, sink, o and so on */
} mxt_attention_spec;

typedef struct mxt_attention_case {
    mxt_attention_spec spec;
    mxattn_tensor q, k, v, q_seq, k_seq, v_seq, dout;
    float *dlse;
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

/* Gradients: as FP32, as stored; freed by mxt_gradients_free. */
typedef struct mxt_gradients {
    mxattn_status status;
    float *d[3]; /* dq, dk, dv */
    void *bytes[3];
    size_t size[3];
    float *dsink; /* (heads), or NULL without a sink */
} mxt_gradients;

/* Forward on the same backend, then backward. The problem's mode must be TRAINING; dout, dq, dk and
 * dv are what its tags say. */
mxt_gradients mxt_attention_case_backward(mxt_attention_case *c, const mxattn_context *context,
                                          mxattn_backend backend, mxattn_precision precision);
void mxt_gradients_free(mxt_gradients *gradients);

/* Elements of dq, dk, dv as (tokens, heads, dim). */
void mxt_gradient_shape(const mxt_attention_case *c, int which, int64_t shape[3]);

/* A context with some instruction sets and threads; NULL when the machine or build lacks one of
 * them. */
mxattn_context *mxt_context(uint32_t isa, int32_t threads);

/* The masks whose kernels this machine has, weakest first; returns how many. */
int mxt_isas(uint32_t isas[8]);
const char *mxt_isa_name(uint32_t isa);

#endif
