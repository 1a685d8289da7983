/* api_producers.c: front door of quantize, dequantize and scales: validates, never computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <string.h>

/* A tensor of shape (B, S, H, D), (T, H, D) or (rows, cols), like `like`; NULL like: any. */
static mxattn_status take_payload(const char *name, const mxattn_tensor *user,
                                  const mxattn_tensor *like, int written, const mxa_batch *batch,
                                  const mxa_scale_extent *extent, mxa_sight sight,
                                  mxattn_tensor *out)
{
    mxa_tensor_rule rule = {.name = name,
                            .letters = "the shape of the other tensor",
                            .ndim = like->ndim,
                            .written = written,
                            .batch = batch,
                            .extent = extent,
                            .sight = sight};
    memcpy(rule.shape, like->shape, sizeof rule.shape);
    mxattn_status status = mxa_tensor_read(user, name, 2, 4, out);
    if (!status)
        status = mxa_tensor_take(&rule, out);
    return status;
}

/* The payload once more as (B, H, D, S) or (H, D, T). */
static mxattn_status take_transposed(const mxattn_tensor *user, const mxattn_tensor *payload,
                                     mxattn_tensor *out)
{
    const int dense = payload->ndim == 4;
    const int64_t *s = payload->shape;
    mxa_tensor_rule rule = {.name = "transposed",
                            .letters = dense ? "(B, H, D, S)" : "(H, D, T)",
                            .ndim = dense ? 4 : 3,
                            .written = 1,
                            .bare = 1};
    const int64_t of_dense[4] = {s[0], s[2], s[3], s[1]};
    const int64_t of_jagged[4] = {s[1], s[2], s[0], 0};
    const int64_t of_matrix[4] = {1, s[1], s[0], 0};
    memcpy(rule.shape,
           dense                ? of_dense
           : payload->ndim == 3 ? of_jagged
                                : of_matrix,
           sizeof rule.shape);
    mxattn_status status = mxa_tensor_read(user, "transposed", 3, 4, out);
    if (status)
        return status;
    if (out->tags.dtype != payload->tags.dtype)
        return mxa_fail(MXATTN_DTYPE, "transposed.dtype is %s; it must be %s, as quantized is",
                        mxa_dtype_name(out->tags.dtype), mxa_dtype_name(payload->tags.dtype));
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        if (out->scales[axis].data)
            return mxa_fail(MXATTN_LAYOUT,
                            "transposed.scales[%d] is set; the scales are those of "
                            "quantized",
                            axis);
    }
    return mxa_tensor_take(&rule, out);
}

static mxattn_status read_pair(const mxattn_quantize_args *args, mxattn_tensor *quantized,
                               mxattn_tensor *wide)
{
    mxattn_status status = mxa_tensor_read(args->quantized, "quantized", 2, 4, quantized);
    if (!status)
        status = mxa_check_tags("quantized", &quantized->tags);
    if (!status && !mxa_dtype_is_fp8(quantized->tags.dtype))
        status = mxa_fail(MXATTN_DTYPE, "quantized.dtype is %s; it must be e4m3 or e5m2",
                          mxa_dtype_name(quantized->tags.dtype));
    if (!status)
        status = mxa_tensor_read(args->wide, "wide", 2, 4, wide);
    if (!status)
        status = mxa_check_wide("wide", &wide->tags);
    return status;
}

/* What the host can see of a batch taken from args on this backend. */
static mxa_sight sight_of(const mxa_taken_batch *taken, const mxa_backend *backend)
{
    return taken->unseen ? MXA_SEES_NOTHING : backend->on_device ? MXA_SEES_LENGTHS : MXA_SEES_ALL;
}

static mxattn_status take_quantize(const mxattn_quantize_args *args, int quantizing,
                                   const mxa_backend *backend, mxa_quantize_call *call)
{
    mxattn_tensor quantized, wide;
    mxa_taken_batch taken;
    memset(call, 0, sizeof *call);
    mxattn_status status = read_pair(args, &quantized, &wide);
    if (status)
        return status;
    const int jagged = quantized.ndim < 4;
    if (!jagged && quantized.shape[0] > MXA_MAX_COUNT)
        return mxa_fail(MXATTN_SHAPE, "quantized.shape[0] is %lld; it must be 0 to %lld",
                        (long long)quantized.shape[0], (long long)MXA_MAX_COUNT);
    status =
        mxa_take_sequences_of(backend, &args->sequences, jagged, jagged ? 1 : quantized.shape[0],
                              quantized.shape[jagged ? 0 : 1], &taken);
    if (status)
        return status;
    call->batch = taken.batch;
    const mxa_scale_extent extent = mxa_scales_extent(&taken.seen, 0, 0);
    status = take_payload("quantized", args->quantized, &quantized, quantizing, &taken.seen,
                          &extent, sight_of(&taken, backend), &call->quantized);
    if (!status)
        status = take_payload("wide", args->wide, &quantized, !quantizing, NULL, NULL, MXA_SEES_ALL,
                              &call->wide);
    if (!status && args->transposed && !quantizing)
        status = mxa_fail(MXATTN_ARGUMENT, "transposed is set; only quantize writes it");
    if (!status && args->transposed)
        status = take_transposed(args->transposed, &quantized, &call->transposed);
    call->device = args->device;
    call->workspace = args->workspace;
    call->device_status = args->device_status;
    call->stream = args->stream;
    return status;
}

/* Reads the arguments and finds the backend of a quantize, dequantize or workspace call. */
static mxattn_status begin_quantize(const mxattn_quantize_args *user, int quantizing,
                                    const mxa_backend **backend, mxa_quantize_call *call)
{
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, backend);
    if (!status)
        status = take_quantize(&args, quantizing, *backend, call);
    if (!status)
        call->device += (*backend)->first_device;
    return status;
}

/* On the host everything was checked; a device's word is for its kernels to write. */
static void clear_device_status(const mxa_backend *backend, uint32_t *device_status)
{
    if (device_status && !backend->on_device)
        *device_status = 0;
}

/* Tokens that the call touches: with none there is nothing to do. */
static int is_empty(const mxattn_tensor *tensor)
{
    return tensor->shape[0] == 0 || tensor->shape[1] == 0 || tensor->shape[2] == 0 ||
           tensor->shape[3] == 0;
}

mxattn_status mxattn_quantize(const mxattn_context *context, const mxattn_quantize_args *args)
{
    const mxa_backend *backend = NULL;
    mxa_quantize_call call;
    mxattn_status status = begin_quantize(args, 1, &backend, &call);
    if (status)
        return status;
    if (!backend->quantize)
        return mxa_backend_lacks(backend, "quantize");
    clear_device_status(backend, call.device_status);
    if (is_empty(&call.quantized) && !backend->on_device) {
        const mxattn_tensor *out = &call.quantized;
        if (out->centre) /* of no token: 0 */
            memset(out->centre, 0,
                   (size_t)(call.batch.batch * out->shape[2] * out->shape[3]) * sizeof(float));
        return MXATTN_OK;
    }
    return backend->quantize(mxa_context_or_default(context), &call);
}

mxattn_status mxattn_dequantize(const mxattn_context *context, const mxattn_quantize_args *args)
{
    const mxa_backend *backend = NULL;
    mxa_quantize_call call;
    mxattn_status status = begin_quantize(args, 0, &backend, &call);
    if (status)
        return status;
    if (!backend->dequantize)
        return mxa_backend_lacks(backend, "dequantize");
    clear_device_status(backend, call.device_status);
    if (is_empty(&call.quantized) && !backend->on_device)
        return MXATTN_OK;
    return backend->dequantize(mxa_context_or_default(context), &call);
}

mxattn_status mxattn_quantize_workspace(const mxattn_context *context,
                                        const mxattn_quantize_args *args, size_t *workspace_bytes)
{
    const mxa_backend *backend = NULL;
    mxa_quantize_call call;
    if (!workspace_bytes)
        return mxa_fail(MXATTN_ARGUMENT, "workspace_bytes is NULL; it is required");
    mxattn_status status = begin_quantize(args, 1, &backend, &call);
    if (status)
        return status;
    *workspace_bytes = 0;
    if (!backend->quantize_workspace)
        return MXATTN_OK;
    return backend->quantize_workspace(mxa_context_or_default(context), &call, workspace_bytes);
}

/* ---- scales -------------------------------------------------------------------------------- */

static mxattn_status check_scale_sizes(int64_t batch, int64_t seqlen, int64_t heads,
                                       int64_t head_dim)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", batch}, {"seqlen", seqlen}, {"heads", heads}, {"head_dim", head_dim}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < 0 || sizes[i].value > MXA_MAX_COUNT)
            return mxa_fail(MXATTN_SHAPE, "%s is %lld; it must be 0 to %lld", sizes[i].name,
                            (long long)sizes[i].value, (long long)MXA_MAX_COUNT);
    }
    int64_t elements = 0;
    if (__builtin_mul_overflow(batch * seqlen, heads * head_dim, &elements) ||
        elements > MXA_MAX_ELEMENTS)
        return mxa_fail(MXATTN_SHAPE,
                        "heads is %lld; with %lld x %lld tokens and head_dim %lld a tensor holds "
                        "more than 2^56 elements",
                        (long long)heads, (long long)batch, (long long)seqlen, (long long)head_dim);
    return MXATTN_OK;
}

static mxattn_status check_axis(const char *name, mxattn_axis axis)
{
    if ((unsigned)axis > MXATTN_SEQ)
        return mxa_fail(MXATTN_ARGUMENT, "%s is %d; it must be HDIM (0) or SEQ (1)", name,
                        (int)axis);
    return MXATTN_OK;
}

static mxattn_status check_block_scaled(const mxattn_tags *tags)
{
    mxattn_status status = mxa_check_tags("tags", tags);
    if (!status && !mxa_dtype_is_fp8(tags->dtype))
        status = mxa_fail(MXATTN_DTYPE, "tags.dtype is %s; only e4m3 and e5m2 have scales",
                          mxa_dtype_name(tags->dtype));
    return status;
}

mxattn_status mxattn_scales_bytes(const mxattn_tags *tags, mxattn_axis axis,
                                  mxattn_scale_layout layout, int64_t batch, int64_t seqlen,
                                  const int32_t *cu_seqlens, int64_t heads, int64_t head_dim,
                                  int64_t *bytes)
{
    if (!tags || !bytes)
        return mxa_fail(MXATTN_ARGUMENT, "%s is NULL; it is required", tags ? "bytes" : "tags");
    mxattn_status status = check_block_scaled(tags);
    if (!status)
        status = check_axis("axis", axis);
    if (!status)
        status = check_scale_sizes(batch, cu_seqlens ? 1 : seqlen, heads, head_dim);
    if (status)
        return status;
    const mxa_batch whole = {
        .batch = batch, .seqlen = cu_seqlens ? 0 : seqlen, .cu_seqlens = cu_seqlens};
    status = mxa_check_batch(&whole, MXA_MAX_COUNT, -1, "");
    if (status)
        return status;
    const mxa_scale_extent extent = mxa_scales_extent(&whole, heads, head_dim);
    mxattn_scales scales = {.layout = layout};
    status = mxa_scales_take("scales", tags, axis, &whole, &extent, MXA_SEES_ALL, 0, &scales);
    if (!status)
        *bytes = mxa_scales_size(axis, layout, &extent);
    return status;
}

static mxattn_status take_scale_array(const char *name, const mxa_scales_call *call,
                                      mxattn_axis axis, const mxa_taken_batch *taken,
                                      mxa_sight sight, int written, mxattn_scales *scales)
{
    const mxa_scale_extent whole = mxa_scales_extent(&taken->seen, call->heads, call->head_dim);
    const mxa_scale_extent *extent = &whole;
    const int empty = extent->tokens == 0 || extent->heads == 0 || extent->head_dim == 0;
    mxattn_status status = mxa_check_array(name, scales->data, 1, !empty);
    if (!status)
        status =
            mxa_scales_take(name, &call->tags, axis, &taken->seen, extent, sight, written, scales);
    return status;
}

static mxattn_status take_scales(const mxattn_scales_args *args, int transform,
                                 const mxa_backend *backend, mxa_scales_call *call)
{
    mxa_taken_batch taken = {.unseen = 0};
    const int jagged = args->sequences.cu_seqlens != NULL;
    *call = (mxa_scales_call){.tags = args->tags,
                              .from_axis = args->from_axis,
                              .to_axis = args->to_axis,
                              .from = args->from,
                              .to = args->to,
                              .heads = args->heads,
                              .head_dim = args->head_dim,
                              .device = args->device,
                              .device_status = args->device_status,
                              .stream = args->stream};
    mxattn_status status = check_block_scaled(&args->tags);
    if (!status)
        status = check_axis("from_axis", args->from_axis);
    if (!status)
        status = check_axis("to_axis", args->to_axis);
    if (!status)
        status = check_scale_sizes(jagged ? 1 : args->sequences.batch, args->seqlen, args->heads,
                                   args->head_dim);
    if (!status)
        status = mxa_take_sequences_of(backend, &args->sequences, jagged, args->sequences.batch,
                                       args->seqlen, &taken);
    call->batch = taken.batch;
    if (status)
        return status;
    if (transform && args->from_axis == args->to_axis)
        return mxa_fail(MXATTN_ARGUMENT,
                        "to_axis is %d, as from_axis is; a transform goes from one "
                        "axis to the other",
                        (int)args->to_axis);
    if (!transform && args->from_axis != args->to_axis)
        return mxa_fail(MXATTN_ARGUMENT,
                        "to_axis is %d and from_axis %d; a scatter stays on one "
                        "axis",
                        (int)args->to_axis, (int)args->from_axis);
    if (transform && args->tags.block != MXATTN_BLOCK_SQUARE)
        return mxa_fail(MXATTN_LAYOUT,
                        "tags.block is %s; only square blocks have scales on both "
                        "axes",
                        mxa_block_name(args->tags.block));
    if (!transform && args->from.layout == MXATTN_TILED)
        return mxa_fail(MXATTN_LAYOUT, "from.layout is tiled; a scatter reads linear or compact");
    const mxa_sight sight = sight_of(&taken, backend);
    call->tokens = taken.unseen ? args->seqlen : mxa_scales_extent(&taken.seen, 0, 0).tokens;
    status = take_scale_array("from", call, args->from_axis, &taken, sight, 0, &call->from);
    if (!status)
        status = take_scale_array("to", call, args->to_axis, &taken, sight, 1, &call->to);
    return status;
}

static mxattn_status move_scales(const mxattn_context *context, const mxattn_scales_args *user,
                                 int transform)
{
    const mxa_backend *backend = NULL;
    mxattn_scales_args args;
    mxa_scales_call call;
    mxattn_scales_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, &backend);
    if (!status)
        status = take_scales(&args, transform, backend, &call);
    if (status)
        return status;
    call.device += backend->first_device;
    mxattn_status (*const operation)(const mxattn_context *, const mxa_scales_call *) =
        transform ? backend->scales_transform : backend->scales_scatter;
    if (!operation)
        return mxa_backend_lacks(backend, transform ? "scales_transform" : "scales_scatter");
    clear_device_status(backend, call.device_status);
    const int empty = call.tokens == 0 || call.heads == 0 || call.head_dim == 0;
    if (empty && !backend->on_device)
        return MXATTN_OK;
    return operation(mxa_context_or_default(context), &call);
}

mxattn_status mxattn_scales_scatter(const mxattn_context *context, const mxattn_scales_args *args)
{
    return move_scales(context, args, 0);
}

mxattn_status mxattn_scales_transform(const mxattn_context *context, const mxattn_scales_args *args)
{
    return move_scales(context, args, 1);
}
