/* backend.h: the operation table every backend fills, and what the front door hands to it.
 *
 * api.c and plan.c validate everything; a backend computes and need not check again what is
 * promised here. An operation a backend lacks is NULL, and the front door says so.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_BACKEND_H
#define MXA_BACKEND_H

#include "mx/sequences.h"
#include "mxattn/mxattn.h"

/* Options with every default resolved. */
struct mxattn_context {
    mxattn_context_options options; /* threads >= 1, alloc and free set */
    uint32_t isa;                   /* machine, build and isa_mask agree */
};

/* A validated problem and what its backend made of it. */
struct mxattn_plan {
    const mxattn_context *context;
    const struct mxa_backend *backend;
    mxattn_attention_problem problem; /* resolved: no AUTO, no NAN, head_dim_v set, causal folded
                                       * into window[1], dout and gradients NONE in inference */
    mxattn_plan_info info;            /* the backend fills what is its own */
    char kernel_forward[128];
    char kernel_backward[128];
    int64_t private_i64[16]; /* the backend's choices: tile sizes, workspace offsets */
};

/* A validated attention call. Tensors are normalised copies: q, k, v, o, dout, dq, dk, dv (and
 * _seq) have shape (B, S, H, D), jagged (1, T, H, D) with stride[0] = 0; lse and dlse (B, H, S),
 * jagged (1, H, T); scale strides resolved; tags are the problem's, so that a wide operand names
 * the block it is to be quantized to. Absent: ndim == 0. */
typedef struct mxa_attention_call {
    mxattn_tensor q, k, v;
    mxattn_tensor q_seq, k_seq, v_seq;
    mxattn_tensor o, lse;
    mxattn_tensor dout, dlse;
    mxattn_tensor dq, dk, dv;
    mxattn_tensor o_wide;       /* forward: a second, wide O where o is MXFP8 */
    mxattn_rope rope_q, rope_k; /* backward: that turn dq and dk back; cosine NULL: none */
    const float *sink;
    float *dsink;
    mxa_batch batch_q, batch_k; /* equal .batch; within the plan's bounds */
    int64_t total_q, total_k;   /* jagged: tokens with storage, from the shapes */
    const void *prepared;
    void *saved;
    void *workspace; /* at least the plan's bytes, aligned to 256 */
    uint32_t *device_status;
    void *stream;
} mxa_attention_call;

/* A validated quantize or dequantize call; tensors normalised as above. */
typedef struct mxa_quantize_call {
    mxattn_tensor wide, quantized;
    mxattn_tensor transposed; /* (B, H, D, S), jagged (1, H, D, T); absent: ndim == 0 */
    mxa_batch batch;
    int32_t device;
    void *workspace;
    uint32_t *device_status;
    void *stream;
} mxa_quantize_call;

typedef struct mxa_scales_call {
    mxattn_tags tags;
    mxattn_axis from_axis, to_axis;
    mxattn_scales from, to; /* strides resolved */
    mxa_batch batch;
    int64_t tokens; /* rows of the arrays, in tokens */
    int64_t heads, head_dim;
    int32_t device;
    uint32_t *device_status;
    void *stream;
} mxa_scales_call;

typedef struct mxa_merge_call {
    mxattn_tensor o_a, lse_a, o_b, lse_b, o, lse; /* normalised; lse may be absent */
    int32_t device;
    void *stream;
} mxa_merge_call;

/* A validated norm; tensors normalised to (B, S, H, D) or (1, T, H, D), absent ones have ndim 0.
 * rope.dims is resolved; rope.cosine NULL: none. */
typedef struct mxa_rmsnorm_call {
    mxattn_tensor x, y, y_wide; /* y or y_wide, or both */
    const float *weight;
    double eps;
    mxattn_rope rope;
    float *rstd; /* (tokens, H) */
    int round_to_bf16;
    mxa_batch batch;
    int32_t device;
    void *workspace;
    uint32_t *device_status;
    void *stream;
} mxa_rmsnorm_call;

typedef struct mxa_rmsnorm_backward_call {
    mxattn_tensor x, dy, dx, dx_quantized; /* dx or dx_quantized, or both */
    const float *weight, *rstd;
    float *dweight;   /* may be NULL */
    mxattn_rope rope; /* that turns dy back: forward's, inverted */
    int normalised, accumulate;
    mxa_batch batch;
    int32_t device;
    void *workspace;
    uint32_t *device_status;
    void *stream;
} mxa_rmsnorm_backward_call;

/* A validated GEMM. Tensors are (1, rows, heads, dims) as stored: a is (1, M, ., .), transposed
 * (1, K, ., .); its columns are heads * dims. batch_a, batch_b, batch_c: the sequences of their
 * rows. head_norm and rope are for the first norm_heads heads of c. */
typedef struct mxa_gemm_call {
    mxattn_tensor a, b, c, c_wide, activated;
    int64_t m, n, k;
    int transpose_a, transpose_b, accumulate, head_norm;
    const float *bias;
    mxattn_activation activation;
    mxattn_rope rope;
    const float *norm_weight;
    double norm_eps;
    float *norm_rstd; /* (M, norm_heads) */
    int64_t norm_heads;
    mxa_batch batch_a, batch_b, batch_c;
    int32_t device;
    void *workspace;
    uint32_t *device_status;
    void *stream;
} mxa_gemm_call;

typedef struct mxa_backend {
    const char *name;
    mxattn_backend id;
    int32_t first_device; /* added to a caller's device before the functions below see it */
    int on_device;        /* pointers of a call are device memory: cu_seqlens cannot be read here */

    /* Fills available, reason, devices, threads, isa, isa_name, kernels. */
    void (*query)(const mxattn_context *context, mxattn_backend_info *info);
    mxattn_status (*device_query)(const mxattn_context *context, int32_t device,
                                  mxattn_device_info *info);
    mxattn_status (*device_alloc)(const mxattn_context *context, int32_t device, size_t bytes,
                                  void **memory);
    mxattn_status (*device_free)(const mxattn_context *context, int32_t device, void *memory);
    mxattn_status (*device_copy)(const mxattn_context *context, int32_t device, void *to,
                                 const void *from, size_t bytes);
    /* Zeros, in the order of a stream. */
    mxattn_status (*device_clear)(const mxattn_context *context, int32_t device, void *memory,
                                  size_t bytes, void *stream);
    mxattn_status (*stream_create)(const mxattn_context *context, int32_t device, void **stream);
    mxattn_status (*stream_destroy)(const mxattn_context *context, int32_t device, void *stream);
    mxattn_status (*synchronise)(const mxattn_context *context, int32_t device, void *stream);

    /* Refuses what it has no kernel for (UNSUPPORTED and a sentence), resolves AUTO choices, fills
     * plan->info (kernel names, sizes, saved_id's share) and private_i64. Pure but for the plan. */
    mxattn_status (*plan)(mxattn_plan *plan);
    mxattn_status (*forward)(const mxattn_plan *plan, const mxa_attention_call *call);
    mxattn_status (*backward)(const mxattn_plan *plan, const mxa_attention_call *call);
    mxattn_status (*prepare)(const mxattn_plan *plan, const mxa_attention_call *call);

    mxattn_status (*quantize)(const mxattn_context *context, const mxa_quantize_call *call);
    mxattn_status (*dequantize)(const mxattn_context *context, const mxa_quantize_call *call);
    mxattn_status (*quantize_workspace)(const mxattn_context *context,
                                        const mxa_quantize_call *call, size_t *workspace_bytes);
    mxattn_status (*scales_scatter)(const mxattn_context *context, const mxa_scales_call *call);
    mxattn_status (*scales_transform)(const mxattn_context *context, const mxa_scales_call *call);
    mxattn_status (*states_merge)(const mxattn_context *context, const mxa_merge_call *call);

    /* The _workspace functions give the bytes that the call needs. */
    mxattn_status (*rmsnorm_quantize)(const mxattn_context *context, const mxa_rmsnorm_call *call);
    int64_t (*rmsnorm_quantize_workspace)(const mxattn_context *context,
                                          const mxa_rmsnorm_call *call);
    mxattn_status (*rmsnorm_backward)(const mxattn_context *context,
                                      const mxa_rmsnorm_backward_call *call);
    int64_t (*rmsnorm_backward_workspace)(const mxattn_context *context,
                                          const mxa_rmsnorm_backward_call *call);
    mxattn_status (*gemm_quantize)(const mxattn_context *context, const mxa_gemm_call *call);
    int64_t (*gemm_quantize_workspace)(const mxattn_context *context, const mxa_gemm_call *call);
} mxa_backend;

extern const mxa_backend mxa_ref_backend;
extern const mxa_backend mxa_cpu_backend;
extern const mxa_backend mxa_cuda_backend;
extern const mxa_backend mxa_emu_sm90_backend;
extern const mxa_backend mxa_emu_sm100_backend;

/* The table of a backend; AUTO gives the CPU. NULL for an unknown or absent one. */
const mxa_backend *mxa_backend_find(mxattn_backend id);

/* The same for an argument of a call: checks id and device, and says what is wrong. */
mxattn_status mxa_backend_take(mxattn_backend id, int32_t device, const mxa_backend **backend);

/* UNSUPPORTED with a sentence, for an operation that is NULL in the table. */
mxattn_status mxa_backend_lacks(const mxa_backend *backend, const char *operation);

#endif
