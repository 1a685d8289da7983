/* operand_quantize.c: wide operands of attention, quantized in the call into workspace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operand_quantize.h"

#include "cpu/operations.h"
#include "mx/element.h"

enum { ALIGNMENT = 64 };

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static mxattn_axis axis_of(mxattn_block block)
{
    return block == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM;
}

static mxattn_scale_layout layout_of(mxattn_block block)
{
    return block == MXATTN_BLOCK_SQUARE ? MXATTN_COMPACT : MXATTN_LINEAR;
}

static int64_t centre_bytes(const mxattn_tags *tags, int64_t batch, int64_t heads, int64_t dims)
{
    if (!(tags->flags & MXATTN_CENTRED))
        return 0;
    return aligned(batch * heads * dims * (int64_t)sizeof(float));
}

int64_t mxa_operand_quantized_bytes(const mxattn_tags *tags, int64_t batch,
                                    const mxa_scale_extent *extent)
{
    if (!mxa_dtype_is_wide(tags->dtype))
        return 0;
    return centre_bytes(tags, batch, extent->heads, extent->head_dim) +
           aligned(extent->tokens * extent->heads * extent->head_dim) +
           aligned(mxa_scales_size(axis_of(tags->block), layout_of(tags->block), extent));
}

mxattn_status mxa_operand_quantized(const mxattn_context *context, const mxattn_tensor *tensor,
                                    const mxa_batch *batch, void *memory, mxattn_tensor *operand)
{
    const mxattn_axis axis = axis_of(tensor->tags.block);
    const int64_t *shape = tensor->shape;
    const mxa_scale_extent extent = mxa_scales_extent(batch, shape[2], shape[3]);
    unsigned char *at = memory;

    *operand = *tensor;
    if (!mxa_dtype_is_wide(tensor->tags.dtype))
        return MXATTN_OK;
    operand->tags.dtype = MXATTN_E4M3;
    operand->stride[3] = 1;
    operand->stride[2] = shape[3];
    operand->stride[1] = shape[2] * shape[3];
    operand->stride[0] = batch->cu_seqlens ? 0 : shape[1] * operand->stride[1];
    operand->centre = (float *)(void *)at;
    at += centre_bytes(&tensor->tags, batch->batch, shape[2], shape[3]);
    operand->data = at;
    at += aligned(shape[0] * shape[1] * shape[2] * shape[3]);
    operand->scales[1 - axis] = (mxattn_scales){0};
    operand->scales[axis] = (mxattn_scales){.data = at, .layout = layout_of(tensor->tags.block)};
    mxa_scales_resolve(&operand->scales[axis], axis, &extent);
    const mxa_quantize_call call = {.wide = *tensor, .quantized = *operand, .batch = *batch};
    return mxa_cpu_quantize(context, &call);
}
