/* validate_producers.c: what the fused producers check alike: tensors, rotation, memory that must
 * not be shared, workspace; and the two calls of RMSNorm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <math.h>
#include <string.h>

enum { WORKSPACE_ALIGNMENT = 256 };

mxattn_status mxa_take_operand(const mxa_operand_rule *rule, const mxattn_tensor *user,
                               mxattn_tensor *out)
{
    const char *name = rule->name;
    mxattn_status status = mxa_tensor_read(user, name, 2, 4, out);
    if (!status)
        status = mxa_check_tags(name, &out->tags);
    if (status)
        return status;
    const int fp8 = mxa_dtype_is_fp8(out->tags.dtype);
    if (fp8 && !rule->fp8)
        return mxa_check_wide(name, &out->tags);
    if (!fp8 && !rule->wide)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is %s; it must be e4m3 or e5m2", name,
                        mxa_dtype_name(out->tags.dtype));
    if (!fp8)
        status = mxa_check_wide(name, &out->tags);
    if (status)
        return status;
    if (out->tags.flags & MXATTN_CENTRED)
        return mxa_fail(MXATTN_LAYOUT,
                        "%s.flags has MXATTN_CENTRED; a mean over a sequence is not known to one "
                        "pass: mxattn_quantize takes it",
                        name);
    mxa_scale_extent extent = {0};
    if (rule->batch)
        extent = mxa_scales_extent(rule->batch, 0, 0);
    mxa_tensor_rule shape = {.name = name,
                             .letters = rule->letters,
                             .ndim = rule->ndim ? rule->ndim : out->ndim,
                             .written = rule->written,
                             .batch = rule->batch,
                             .extent = &extent};
    memcpy(shape.shape, rule->ndim ? rule->shape : out->shape, sizeof shape.shape);
    return mxa_tensor_take(&shape, out);
}

mxattn_status mxa_take_rope(const mxattn_rope *user, int64_t head_dim, const mxa_batch *batch,
                            const char *name, mxattn_rope *rope)
{
    *rope = *user;
    if (!user->cosine && !user->sine)
        return MXATTN_OK;
    if (!user->cosine || !user->sine)
        return mxa_fail(MXATTN_ARGUMENT, "%s.%s is NULL; a rotation needs both tables", name,
                        user->cosine ? "sine" : "cosine");
    mxattn_status status = mxa_check_array("rope.cosine", user->cosine, sizeof(float), 1);
    if (!status)
        status = mxa_check_array("rope.sine", user->sine, sizeof(float), 1);
    if (status)
        return status;
    rope->dims = user->dims ? user->dims : head_dim;
    if (rope->dims < 0 || rope->dims > head_dim || rope->dims % 2 != 0)
        return mxa_fail(MXATTN_SHAPE,
                        "%s.dims is %lld; it must be even and at most head_dim, which is %lld",
                        name, (long long)rope->dims, (long long)head_dim);
    if (user->offset < 0 || user->offset > MXA_MAX_COUNT)
        return mxa_fail(MXATTN_ARGUMENT, "%s.offset is %lld; it must be 0 to %lld", name,
                        (long long)user->offset, (long long)MXA_MAX_COUNT);
    mxa_sequence sequence = {0};
    int64_t longest = 0;
    const int alike = !batch->cu_seqlens && !batch->seqused; /* the first tells of all */
    for (int64_t b = 0; b < (alike && batch->batch > 1 ? 1 : batch->batch); b++) {
        mxa_sequence_next(batch, b, &sequence);
        longest = sequence.used > longest ? sequence.used : longest;
    }
    if (longest > 0 && user->positions < user->offset + longest)
        return mxa_fail(MXATTN_SHAPE,
                        "%s.positions is %lld; a sequence of %lld tokens at offset %lld needs %lld",
                        name, (long long)user->positions, (long long)longest,
                        (long long)user->offset, (long long)(user->offset + longest));
    return MXATTN_OK;
}

/* Bytes from the first element of a normalised tensor to behind its last; 0: none. */
static int64_t reach_bytes(const mxattn_tensor *tensor)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++) {
        if (tensor->shape[i] == 0)
            return 0;
        last += (tensor->shape[i] - 1) * tensor->stride[i];
    }
    return (last + 1) * mxa_dtype_bytes(tensor->tags.dtype);
}

/* Bytes that one token reaches. */
static int64_t token_bytes(const mxattn_tensor *tensor)
{
    mxattn_tensor token = *tensor;
    token.shape[0] = token.shape[1] = 1;
    return reach_bytes(&token);
}

/* 1 when a and b share bytes, as far as their extents and token strides tell: views of one packed
 * buffer, such as q and k, are apart. */
static int share_memory(const mxattn_tensor *a, const mxattn_tensor *b)
{
    const uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data;
    const int64_t a_bytes = reach_bytes(a), b_bytes = reach_bytes(b);
    if (a_bytes == 0 || b_bytes == 0 || a0 + (uintptr_t)a_bytes <= b0 ||
        b0 + (uintptr_t)b_bytes <= a0)
        return 0;
    const int64_t row = a->stride[1] * mxa_dtype_bytes(a->tags.dtype);
    if (row <= 0 || row != b->stride[1] * mxa_dtype_bytes(b->tags.dtype))
        return 1;
    const int64_t ahead = (int64_t)((b0 + (uintptr_t)row - a0 % (uintptr_t)row) % (uintptr_t)row);
    return ahead < token_bytes(a) || ahead + token_bytes(b) > row;
}

mxattn_status mxa_check_apart(const char *written_name, const mxattn_tensor *written,
                              const char *name, const mxattn_tensor *other)
{
    if (!written->ndim || !other->ndim || !share_memory(written, other))
        return MXATTN_OK;
    return mxa_fail(MXATTN_ARGUMENT,
                    "%s.data is %p, inside the memory of %s, which begins at %p; an output must "
                    "lie apart",
                    written_name, written->data, name, other->data);
}

mxattn_status mxa_check_workspace(const void *workspace, size_t bytes, int64_t need)
{
    if (need > 0 && (!workspace || bytes < (uint64_t)need))
        return mxa_fail(MXATTN_WORKSPACE, "%s is %s%zu; this call needs %lld bytes",
                        workspace ? "workspace_bytes" : "workspace",
                        workspace ? "" : "NULL, workspace_bytes ", bytes, (long long)need);
    return need > 0 ? mxa_check_array("workspace", workspace, WORKSPACE_ALIGNMENT, 1) : MXATTN_OK;
}

/* ---- RMSNorm ------------------------------------------------------------------------------- */

static const char norm_letters[] = "the shape of x";

/* x, and the batch its tokens form. */
static mxattn_status take_x(const mxattn_tensor *user, const mxattn_sequences *sequences, int fp8,
                            mxattn_tensor *x, mxa_batch *batch, mxa_operand_rule *like)
{
    mxattn_tensor shape;
    mxattn_status status = mxa_tensor_read(user, "x", 2, 4, &shape);
    if (status)
        return status;
    const int jagged = shape.ndim < 4;
    if (!jagged && shape.shape[0] > MXA_MAX_COUNT)
        return mxa_fail(MXATTN_SHAPE, "x.shape[0] is %lld; it must be 0 to %lld",
                        (long long)shape.shape[0], (long long)MXA_MAX_COUNT);
    status = mxa_take_sequences(sequences, jagged, jagged ? 1 : shape.shape[0],
                                shape.shape[jagged ? 0 : 1], batch);
    if (status)
        return status;
    *like = (mxa_operand_rule){.name = "x",
                               .letters = norm_letters,
                               .ndim = shape.ndim,
                               .fp8 = fp8,
                               .wide = 1,
                               .batch = batch};
    memcpy(like->shape, shape.shape, sizeof like->shape);
    return mxa_take_operand(like, user, x);
}

/* An optional tensor of x's shape. */
static mxattn_status take_like(mxa_operand_rule rule, const char *name, int fp8, int wide,
                               int written, const mxattn_tensor *user, mxattn_tensor *out)
{
    if (!user)
        return MXATTN_OK;
    rule.name = name;
    rule.fp8 = fp8;
    rule.wide = wide;
    rule.written = written;
    return mxa_take_operand(&rule, user, out);
}

mxattn_status mxa_rmsnorm_take(const mxattn_rmsnorm_quantize_args *args, mxa_rmsnorm_call *call)
{
    mxa_operand_rule like;
    memset(call, 0, sizeof *call);
    mxattn_status status = take_x(args->x, &args->sequences, 0, &call->x, &call->batch, &like);
    if (status)
        return status;
    if (!args->y && !args->y_wide)
        return mxa_fail(MXATTN_ARGUMENT, "y is NULL, and so is y_wide; one of them is required");
    status = take_like(like, "y", 1, 0, 1, args->y, &call->y);
    if (!status)
        status = take_like(like, "y_wide", 0, 1, 1, args->y_wide, &call->y_wide);
    if (!status && !(args->eps >= 0 && isfinite(args->eps)))
        status =
            mxa_fail(MXATTN_ARGUMENT, "eps is %g; it must be finite and not negative", args->eps);
    if (!status && (unsigned)args->round_to_bf16 > 1)
        status = mxa_fail(MXATTN_ARGUMENT, "round_to_bf16 is %d; it must be 0 or 1",
                          (int)args->round_to_bf16);
    if (!status)
        status = mxa_check_array("weight", args->weight, sizeof(float), 0);
    if (!status)
        status = mxa_check_array("rstd", args->rstd, sizeof(float), 0);
    if (!status)
        status = mxa_take_rope(&args->rope, call->x.shape[3], &call->batch, "rope", &call->rope);
    if (!status)
        status = mxa_check_apart("y", &call->y, "x", &call->x);
    if (!status)
        status = mxa_check_apart("y_wide", &call->y_wide, "x", &call->x);
    if (!status)
        status = mxa_check_apart("y_wide", &call->y_wide, "y", &call->y);
    call->weight = args->weight;
    call->eps = args->eps;
    call->rstd = args->rstd;
    call->round_to_bf16 = args->round_to_bf16;
    call->device = args->device;
    call->workspace = args->workspace;
    call->device_status = args->device_status;
    call->stream = args->stream;
    return status;
}

static mxattn_status take_backward_tensors(const mxattn_rmsnorm_backward_args *args,
                                           mxa_rmsnorm_backward_call *call)
{
    mxa_operand_rule like;
    mxattn_status status = take_x(args->x, &args->sequences, 1, &call->x, &call->batch, &like);
    if (status)
        return status;
    if (!args->dy)
        return mxa_fail(MXATTN_ARGUMENT, "dy is NULL; it is required");
    if (!args->dx && !args->dx_quantized)
        return mxa_fail(MXATTN_ARGUMENT,
                        "dx is NULL, and so is dx_quantized; one of them is required");
    status = take_like(like, "dy", 1, 1, 0, args->dy, &call->dy);
    if (!status)
        status = take_like(like, "dx", 0, 1, 1, args->dx, &call->dx);
    if (!status)
        status = take_like(like, "dx_quantized", 1, 0, 1, args->dx_quantized, &call->dx_quantized);
    if (!status)
        status = mxa_check_apart("dx", &call->dx, "x", &call->x);
    if (!status)
        status = mxa_check_apart("dx", &call->dx, "dy", &call->dy);
    if (!status)
        status = mxa_check_apart("dx_quantized", &call->dx_quantized, "x", &call->x);
    if (!status)
        status = mxa_check_apart("dx_quantized", &call->dx_quantized, "dy", &call->dy);
    if (!status)
        status = mxa_check_apart("dx_quantized", &call->dx_quantized, "dx", &call->dx);
    return status;
}

mxattn_status mxa_rmsnorm_backward_take(const mxattn_rmsnorm_backward_args *args,
                                        mxa_rmsnorm_backward_call *call)
{
    memset(call, 0, sizeof *call);
    mxattn_status status = take_backward_tensors(args, call);
    if (!status && ((unsigned)args->normalised > 1 || (unsigned)args->accumulate > 1))
        status =
            mxa_fail(MXATTN_ARGUMENT, "%s is %d; it must be 0 or 1",
                     (unsigned)args->normalised > 1 ? "normalised" : "accumulate",
                     (int)((unsigned)args->normalised > 1 ? args->normalised : args->accumulate));
    if (!status && args->normalised && args->weight)
        status = mxa_fail(MXATTN_ARGUMENT, "weight is set and normalised is 1; x is taken for the "
                                           "normalised row, which it is without a weight only");
    if (!status && args->accumulate && !args->dx)
        status = mxa_fail(MXATTN_ARGUMENT, "accumulate is 1 and dx is NULL; there is nothing to "
                                           "add to");
    if (!status)
        status = mxa_check_array("weight", args->weight, sizeof(float), 0);
    if (!status)
        status = mxa_check_array("dweight", args->dweight, sizeof(float), 0);
    if (!status)
        status = mxa_check_array("rstd", args->rstd, sizeof(float),
                                 call->x.shape[0] * call->x.shape[1] * call->x.shape[2] > 0);
    if (!status)
        status = mxa_take_rope(&args->rope, call->x.shape[3], &call->batch, "rope", &call->rope);
    call->rope.inverse = !call->rope.inverse;
    call->weight = args->weight;
    call->rstd = args->rstd;
    call->dweight = args->dweight;
    call->normalised = args->normalised;
    call->accumulate = args->accumulate;
    call->device = args->device;
    call->workspace = args->workspace;
    call->device_status = args->device_status;
    call->stream = args->stream;
    return status;
}
