/* validate.h: what the front door checks and normalises before a backend sees a call.
 *
 * Every function returns MXATTN_OK, or a status whose sentence names the argument, its value and
 * the rule. None computes, and none writes through a caller's pointer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_VALIDATE_H
#define MXA_VALIDATE_H

#include "backend.h"
#include "mx/scales.h"

/* The largest count the library takes: tokens are numbered by int32 offsets, and element offsets
 * stay far from the end of int64. */
#define MXA_MAX_COUNT    INT64_C(0x7fffffff)
#define MXA_MAX_ELEMENTS (INT64_C(1) << 56)

/* validate_tags.c ----------------------------------------------------------------------------- */

/* Known values, and block and flags that fit one another and the dtype. */
mxattn_status mxa_check_tags(const char *name, const mxattn_tags *tags);

/* A tensor's own tags against those asked for. A wide tensor that its call quantizes may leave its
 * block NONE. */
mxattn_status mxa_check_tags_equal(const char *name, const mxattn_tags *tags,
                                   const mxattn_tags *asked);

/* Any of F32, F16, BF16, without a block. */
mxattn_status mxa_check_wide(const char *name, const mxattn_tags *tags);

const char *mxa_block_name(mxattn_block block);

/* validate_sequences.c ------------------------------------------------------------------------ */

/* cu_seqlens (NULL: dense) and seqused of a batch against `total` tokens and, unless negative,
 * max_seqlen. `side` completes the names: "_q", "_k" or "". */
mxattn_status mxa_check_batch(const mxa_batch *batch, int64_t total, int64_t max_seqlen,
                              const char *side);

/* A batch, and what the host can see of it: where the lengths lie on a device and the caller gave
 * no host copy, `seen` is one sequence of all tokens, and `unseen` says so. */
typedef struct mxa_taken_batch {
    mxa_batch batch, seen;
    int unseen;
} mxa_taken_batch;

/* mxattn_sequences with the batch of a tensor: dense_batch x tokens, or, jagged, `tokens` in all.
 */
mxattn_status mxa_take_sequences(const mxattn_sequences *sequences, int jagged, int64_t dense_batch,
                                 int64_t tokens, mxa_batch *batch);

/* The same for a backend whose memory may be a device's. */
mxattn_status mxa_take_sequences_of(const mxa_backend *backend, const mxattn_sequences *sequences,
                                    int jagged, int64_t dense_batch, int64_t tokens,
                                    mxa_taken_batch *taken);

/* validate_tensor.c --------------------------------------------------------------------------- */

/* What of a call the host can look at: everything; on a device not cu_scale; and not the lengths
 * either, where there is no host copy. */
typedef enum mxa_sight { MXA_SEES_ALL, MXA_SEES_LENGTHS, MXA_SEES_NOTHING } mxa_sight;

/* What a tensor of a call must be. */
typedef struct mxa_tensor_rule {
    const char *name;
    const char *letters; /* its shape in words: "(B, S, H, D)" */
    int32_t ndim;
    int64_t shape[4];
    int written;                    /* an output */
    int any_stride;                 /* the last dimension's stride is free (LSE) */
    int bare;                       /* payload whose scales another tensor carries */
    const mxa_batch *batch;         /* for scales; NULL where the tensor can have none */
    const mxa_scale_extent *extent; /* of batch */
    mxa_sight sight;
} mxa_tensor_rule;

/* Copies a caller's tensor: struct_size, ndim within [least, most], no negative size. */
mxattn_status mxa_tensor_read(const mxattn_tensor *user, const char *name, int32_t least,
                              int32_t most, mxattn_tensor *tensor);

/* Checks a copied tensor, tags apart, and normalises it to (B, S, H, D); 3 dimensions and 2 become
 * (1, T, H, D), and with any_stride (B, H, S) or (1, H, T). */
mxattn_status mxa_tensor_take(const mxa_tensor_rule *rule, mxattn_tensor *tensor);

/* Strides and scale arrays that are there, for a scale array on its own. */
mxattn_status mxa_scales_take(const char *name, const mxattn_tags *tags, mxattn_axis axis,
                              const mxa_batch *batch, const mxa_scale_extent *extent,
                              mxa_sight sight, int written, mxattn_scales *scales);

/* NULL (when required) and alignment of a plain array. */
enum { MXA_NAME_BYTES = 64 };

/* "whole" and "part" together, for a sentence that is rarely said: a call checks a dozen names. */
void mxa_name_join(char name[MXA_NAME_BYTES], const char *whole, const char *part);

mxattn_status mxa_check_array(const char *name, const void *data, size_t alignment, int required);

/* validate_producers.c ------------------------------------------------------------------------ */

/* A tensor of a fused producer: which types, which shape (ndim 0: any), which sequences its rows
 * form. */
typedef struct mxa_operand_rule {
    const char *name;
    const char *letters;
    int32_t ndim;
    int64_t shape[4];
    int fp8, wide; /* types it may have */
    int written;
    const mxa_batch *batch;
} mxa_operand_rule;

mxattn_status mxa_take_operand(const mxa_operand_rule *rule, const mxattn_tensor *user,
                               mxattn_tensor *out);

/* A rotation of heads of head_dim, over the tokens in use of a batch; dims resolved. */
mxattn_status mxa_take_rope(const mxattn_rope *user, int64_t head_dim, const mxa_batch *batch,
                            const char *name, mxattn_rope *rope);

/* Fails where an output shares memory with another tensor; either may be absent. */
mxattn_status mxa_check_apart(const char *written_name, const mxattn_tensor *written,
                              const char *name, const mxattn_tensor *other);

mxattn_status mxa_check_workspace(const void *workspace, size_t bytes, int64_t need);

mxattn_status mxa_rmsnorm_take(const mxattn_rmsnorm_quantize_args *args, mxa_rmsnorm_call *call);
mxattn_status mxa_rmsnorm_backward_take(const mxattn_rmsnorm_backward_args *args,
                                        mxa_rmsnorm_backward_call *call);

/* validate_gemm.c ----------------------------------------------------------------------------- */

mxattn_status mxa_gemm_take(const mxattn_gemm_quantize_args *args, mxa_gemm_call *call);

/* validate_problem.c -------------------------------------------------------------------------- */

/* Reads, checks and resolves a problem as struct mxattn_plan promises it. */
mxattn_status mxa_problem_take(const mxattn_attention_problem *user, const mxa_backend **backend,
                               mxattn_attention_problem *problem);

/* validate_attention.c ------------------------------------------------------------------------ */

typedef enum mxa_direction { MXA_FORWARD, MXA_BACKWARD, MXA_PREPARE } mxa_direction;

/* Reads and checks the arguments of a run. *nothing is set when there is nothing to do. */
mxattn_status mxa_attention_take(const mxattn_plan *plan, const mxattn_attention_args *user,
                                 mxa_direction direction, mxa_attention_call *call, int *nothing);

#endif
