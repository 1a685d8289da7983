/* attention.h: one attention problem with all its tensors between guard pages, run through the
 * public API. What a test has to say is the shape, the options and the values.
 *
 *     mxt_attention a;
 *     mxt_attention_dense(&a, batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim);
 *     a.problem.causal = 1;
 *     mxt_attention_configure(&a, &mxt_configs[c]);
 *     mxt_attention_alloc(&a);
 *     mxt_attention_fill(&a, MXT_EXACT, seed);
 *     CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
 *     CHECK(a.o[0] == 1.0f, ...);
 *     mxt_attention_free(&a);
 *
 * Operands are FP32 with square blocks (quantized in the call, unless the precision is F64), O and
 * gradients FP32, unless the test changes the problem's tags before alloc. Outputs, workspace and
 * saved memory are NaN before every run. Where the backend is a device's, a run copies everything
 * there and back (device_args.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_ATTENTION_H
#define MXT_ATTENTION_H

#include "fill.h"
#include "mxattn/mxattn.h"

/* What runs a case. */
typedef struct mxt_config {
    const char *name;
    mxattn_backend backend;
    mxattn_precision precision;
    mxattn_intermediates intermediates;
    mxattn_dq_reduce dq_reduce;
    uint32_t isa_mask; /* 0: every instruction set of the machine */
} mxt_config;

/* Exact first, then the models, then backends that compute fast. A configuration is present when
 * mxt_config_missing returns NULL; otherwise the reason. With MXATTN_TEST_BACKEND in the
 * environment
 * ("cpu", "cuda", "emu-sm90", ...) only those of that backend; emulated ones with it only. */
enum { MXT_CONFIGS = 12 };
extern const mxt_config mxt_configs[MXT_CONFIGS];
const char *mxt_config_missing(const mxt_config *config);
int mxt_config_exact(const mxt_config *config); /* nothing is rounded */
/* NULL, or one with the configuration's instruction sets; lives as long as the program. */
const mxattn_context *mxt_config_context(const mxt_config *config);

typedef struct mxt_attention {
    mxattn_attention_problem problem;
    const mxattn_context *context;     /* NULL: the default one */
    int64_t batch, seqlen_q, seqlen_k; /* dense */
    int64_t rows_q, rows_k;            /* tokens with storage, all sequences */
    const int32_t *cu_q, *cu_k;        /* jagged; the test's own memory */
    const int32_t *used_q, *used_k;    /* optional */
    int with_dlse;                     /* set before alloc */
    int without_saved;                 /* backward from O and LSE alone */
    int host_lengths;                  /* a device's call gets host copies of cu_q and cu_k too */

    /* Dense (B, S, H, D), jagged (T, H, D), contiguous; LSE (B, H, S) or (H, T). */
    float *q, *k, *v, *dout, *dlse, *sink;
    float *o, *lse, *dq, *dk, *dv, *dsink;
    /* What the calls are given; a test may alter it after alloc. */
    mxattn_tensor tensor_q, tensor_k, tensor_v, tensor_o, tensor_lse, tensor_dout, tensor_dlse;
    mxattn_tensor tensor_dq, tensor_dk, tensor_dv;
    mxattn_tensor tensor_q_seq, tensor_k_seq, tensor_v_seq; /* where the problem has partners */
    void *saved;
    int64_t saved_bytes;
} mxt_attention;

void mxt_attention_dense(mxt_attention *a, int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
                         int64_t heads, int64_t kv_heads, int64_t head_dim);

/* rows_q and rows_k: tokens with storage; -1: as many as cu_q and cu_k name. */
void mxt_attention_jagged(mxt_attention *a, int64_t batch, const int32_t *cu_q, int64_t rows_q,
                          const int32_t *cu_k, int64_t rows_k, int64_t heads, int64_t kv_heads,
                          int64_t head_dim);

/* Backend, precision, intermediates, reduction of dQ, and the context. */
void mxt_attention_configure(mxt_attention *a, const mxt_config *config);

/* Memory and tensors. After this the shape and the tags are fixed. */
void mxt_attention_alloc(mxt_attention *a);
void mxt_attention_free(mxt_attention *a);

/* q, k, v, dout (and dlse) of one kind; sink between -1 and 1. */
void mxt_attention_fill(mxt_attention *a, mxt_kind kind, uint64_t seed);

/* Number of elements. */
int64_t mxt_size_q(const mxt_attention *a);   /* also dq */
int64_t mxt_size_k(const mxt_attention *a);   /* also dk */
int64_t mxt_size_v(const mxt_attention *a);   /* also dv */
int64_t mxt_size_o(const mxt_attention *a);   /* also dout */
int64_t mxt_size_lse(const mxt_attention *a); /* also dlse */

/* Row of head h and token (b, s) in LSE; jagged: b = 0 and s counts from the batch's start. */
float mxt_lse_at(const mxt_attention *a, int64_t b, int64_t h, int64_t s);

/* First element of row (b, s, h) of an array of `heads` heads of `dim`; jagged as above. */
float *mxt_row(const mxt_attention *a, float *array, int64_t b, int64_t s, int64_t h);

/* Sets every element of an array. */
void mxt_set(float *array, int64_t count, float value);

/* Plan, workspace, run. A training forward keeps `saved` for backward. Backward without a forward
 * before it reads a->o and a->lse as they are. */
mxattn_status mxt_attention_forward(mxt_attention *a);
mxattn_status mxt_attention_backward(mxt_attention *a);

/* An operand (a->tensor_q, tensor_k, tensor_v or tensor_dout) quantized to E4M3 by its tags, with
 * one scale array on `axis`; put it in the operand's place, with tags that name E4M3 in the
 * problem. Memory between guard pages, freed by mxt_quantized_free. */
mxattn_tensor mxt_quantized(const mxt_attention *a, const mxattn_tensor *wide, mxattn_axis axis,
                            mxattn_scale_layout layout);
void mxt_quantized_free(mxattn_tensor *quantized);

/* What a dense operand stands for once it is quantized by its tags. */
void mxt_requantize(const mxt_attention *a, const mxattn_tensor *wide, float *values);

/* FP32 values of a quantized tensor of the shape and the sequences of `like`, one of a's. */
void mxt_dequantized(const mxt_attention *a, const mxattn_tensor *quantized,
                     const mxattn_tensor *like, float *values);

/* The same problem, inputs and options in float64 without quantization, with outputs of its own. */
mxattn_status mxt_attention_exact(const mxt_attention *a, mxt_attention *exact, int backward);

#endif
