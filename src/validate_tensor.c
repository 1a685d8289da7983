/* validate_tensor.c: one tensor or scale array of a call: shape, strides, memory, scales; and its
 * normal form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <stdio.h>
#include <string.h>

void mxa_name_join(char name[MXA_NAME_BYTES], const char *whole, const char *part)
{
    size_t at = 0;
    for (; *whole && at + 1 < MXA_NAME_BYTES; whole++)
        name[at++] = *whole;
    for (; *part && at + 1 < MXA_NAME_BYTES; part++)
        name[at++] = *part;
    name[at] = 0;
}

mxattn_status mxa_check_array(const char *name, const void *data, size_t alignment, int required)
{
    if (!data && required)
        return mxa_fail(MXATTN_ARGUMENT, "%s is NULL; it is required", name);
    if ((uintptr_t)data % alignment != 0)
        return mxa_fail(MXATTN_ALIGNMENT, "%s is %p; it must be a multiple of %zu bytes", name,
                        (const void *)data, alignment);
    return MXATTN_OK;
}

mxattn_status mxa_tensor_read(const mxattn_tensor *user, const char *name, int32_t least,
                              int32_t most, mxattn_tensor *tensor)
{
    if (!user || user->struct_size < sizeof *tensor) /* else all of it is read */
        mxattn_tensor_init(tensor);
    mxattn_status status = mxa_struct_read(tensor, sizeof *tensor, user, name);
    if (status)
        return status;
    if (tensor->ndim < least || tensor->ndim > most) {
        char range[16];
        (void)snprintf(range, sizeof range, least == most ? "%d" : "%d to %d", (int)least,
                       (int)most);
        return mxa_fail(MXATTN_SHAPE, "%s.ndim is %d; it must be %s", name, (int)tensor->ndim,
                        range);
    }
    if (tensor->reserved != 0)
        return mxa_fail(MXATTN_ARGUMENT, "%s.reserved is %d; it must be 0", name,
                        (int)tensor->reserved);
    int64_t elements = 1; /* an empty tensor's too: sizes of it are multiplied elsewhere */
    int overflow = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < 0)
            return mxa_fail(MXATTN_SHAPE, "%s.shape[%d] is %lld; it must not be negative", name,
                            (int)i, (long long)tensor->shape[i]);
        const int64_t size = tensor->shape[i] ? tensor->shape[i] : 1;
        overflow |= __builtin_mul_overflow(elements, size, &elements);
        overflow |= elements > MXA_MAX_ELEMENTS;
    }
    if (overflow)
        return mxa_fail(MXATTN_SHAPE, "%s.shape holds more than 2^56 elements", name);
    return MXATTN_OK;
}

/* Extents with their strides, checked together. */
typedef struct {
    const char *name;
    const char *part; /* "stride[%d]" of the sentence: "stride" or "scales" */
    int count;
    int64_t size[4];
    int64_t stride[4];
    int64_t unit_bytes;
    int written;
} view;

/* No negative stride, no offset near the end of int64, and in outputs no two elements at one place
 * (shown by strides that each clear the dimensions below). */
static mxattn_status check_view(const view *v)
{
    int64_t last = 0;
    int empty = 0; /* nothing is there to overlap; default strides may be 0 then */
    for (int i = 0; i < v->count; i++) {
        int64_t reach = 0;
        empty |= v->size[i] == 0;
        if (v->size[i] <= 1)
            continue;
        if (v->stride[i] < 0)
            return mxa_fail(MXATTN_LAYOUT, "%s.%s[%d] is %lld; strides must not be negative",
                            v->name, v->part, i, (long long)v->stride[i]);
        /* WHY products alone: of a short call's time a division for each stride was a twentieth. */
        if (__builtin_mul_overflow(v->size[i] - 1, v->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last) ||
            __builtin_mul_overflow(last, 2 * v->unit_bytes, &reach))
            return mxa_fail(MXATTN_LAYOUT,
                            "%s.%s[%d] is %lld; with %lld entries it passes the 64-bit range",
                            v->name, v->part, i, (long long)v->stride[i], (long long)v->size[i]);
    }
    if (!v->written || empty)
        return MXATTN_OK;
    int64_t clear = 1;
    int taken[4] = {0, 0, 0, 0};
    for (int n = 0; n < v->count; n++) {
        int least = -1;
        for (int i = 0; i < v->count; i++) {
            if (!taken[i] && (least < 0 || v->stride[i] < v->stride[least] ||
                              (v->stride[i] == v->stride[least] && v->size[i] < v->size[least])))
                least = i;
        }
        taken[least] = 1;
        if (v->size[least] <= 1)
            continue;
        if (v->stride[least] < clear)
            return mxa_fail(MXATTN_LAYOUT,
                            "%s.%s[%d] is %lld; outputs must not overlap, which takes at least "
                            "%lld here",
                            v->name, v->part, least, (long long)v->stride[least], (long long)clear);
        clear = v->stride[least] * (v->size[least] - 1) + clear;
    }
    return MXATTN_OK;
}

static int64_t elements_of(const mxattn_tensor *tensor)
{
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return 0;
        elements *= tensor->shape[i];
    }
    return elements;
}

static mxattn_status check_shape(const mxa_tensor_rule *rule, const mxattn_tensor *tensor)
{
    if (tensor->ndim != rule->ndim)
        return mxa_fail(MXATTN_SHAPE, "%s.ndim is %d; it must be %d, %s", rule->name,
                        (int)tensor->ndim, (int)rule->ndim, rule->letters);
    for (int32_t i = 0; i < rule->ndim; i++) {
        if (tensor->shape[i] != rule->shape[i])
            return mxa_fail(MXATTN_SHAPE, "%s.shape[%d] is %lld; it must be %lld, %s", rule->name,
                            (int)i, (long long)tensor->shape[i], (long long)rule->shape[i],
                            rule->letters);
    }
    return MXATTN_OK;
}

static mxattn_status check_memory(const mxa_tensor_rule *rule, const mxattn_tensor *tensor)
{
    const int32_t last = tensor->ndim - 1;
    const int bytes = mxa_dtype_bytes(tensor->tags.dtype);
    if (!rule->any_stride && tensor->shape[last] > 1 && tensor->stride[last] != 1)
        return mxa_fail(MXATTN_LAYOUT, "%s.stride[%d] is %lld; the last dimension's stride is 1",
                        rule->name, (int)last, (long long)tensor->stride[last]);
    view v; /* WHY not initialised whole: a clear of such a size costs more than the check */
    v.name = rule->name;
    v.part = "stride";
    v.count = tensor->ndim;
    v.unit_bytes = bytes;
    v.written = rule->written;
    memcpy(v.size, tensor->shape, sizeof v.size);
    memcpy(v.stride, tensor->stride, sizeof v.stride);
    mxattn_status status = check_view(&v);
    if (status || (tensor->data && ((uintptr_t)tensor->data & ((size_t)bytes - 1)) == 0))
        return status;
    char name[MXA_NAME_BYTES];
    mxa_name_join(name, rule->name, ".data");
    return mxa_check_array(name, tensor->data, (size_t)bytes, 1);
}

/* First rows of the sequences in TILED scales, where the caller places them. */
static mxattn_status check_cu_scale(const char *name, const int32_t *cu_scale,
                                    const mxa_batch *batch)
{
    char full[MXA_NAME_BYTES];
    mxa_name_join(full, name, ".cu_scale");
    mxattn_status status = mxa_check_array(full, cu_scale, sizeof(int32_t), 1);
    if (status)
        return status;
    mxa_sequence sequence = {0};
    int64_t need = 0; /* where the sequence before ends */
    for (int64_t b = 0; b <= batch->batch; b++) {
        if (cu_scale[b] % MXA_TILE_ROWS != 0 || cu_scale[b] < need)
            return mxa_fail(MXATTN_LAYOUT,
                            "%s[%lld] is %d; it must be a multiple of 128 and at least %lld, past "
                            "the sequence before",
                            full, (long long)b, (int)cu_scale[b], (long long)need);
        if (b < batch->batch) {
            mxa_sequence_next(batch, b, &sequence);
            need = cu_scale[b] + mxa_tiles(sequence.length) * MXA_TILE_ROWS;
        }
    }
    return MXATTN_OK;
}

mxattn_status mxa_scales_take(const char *name, const mxattn_tags *tags, mxattn_axis axis,
                              const mxa_batch *batch, const mxa_scale_extent *extent,
                              mxa_sight sight, int written, mxattn_scales *scales)
{
    static const char *const layouts[] = {"linear", "compact", "tiled"};
    if ((unsigned)scales->layout > MXATTN_TILED)
        return mxa_fail(MXATTN_LAYOUT,
                        "%s.layout is %d; it must be a mxattn_scale_layout (0 to %d)", name,
                        (int)scales->layout, MXATTN_TILED);
    if (!mxa_scales_legal(tags, axis, scales->layout))
        return mxa_fail(MXATTN_LAYOUT, "%s is a %s array; a tensor of %s blocks has none", name,
                        layouts[scales->layout], mxa_block_name(tags->block));
    if (scales->reserved != 0)
        return mxa_fail(MXATTN_ARGUMENT, "%s.reserved is %d; it must be 0", name,
                        (int)scales->reserved);
    mxa_scale_extent whole = *extent;
    if (scales->layout != MXATTN_TILED && scales->cu_scale)
        return mxa_fail(MXATTN_LAYOUT, "%s.cu_scale is set; %s scales take none", name,
                        layouts[scales->layout]);
    if (scales->cu_scale && sight == MXA_SEES_ALL) {
        mxattn_status status = check_cu_scale(name, scales->cu_scale, batch);
        if (status)
            return status;
        whole.tiled_rows = scales->cu_scale[batch->batch];
    } else if (scales->layout == MXATTN_TILED && (scales->cu_scale || sight == MXA_SEES_NOTHING)) {
        mxattn_status status = mxa_check_array(name, scales->cu_scale, sizeof(int32_t), 0);
        if (status)
            return status;
        if (!scales->stride_head && !scales->stride_row && !scales->stride_k)
            return mxa_fail(
                MXATTN_LAYOUT,
                "%s has strides 0; where sequences lie is written on the device only%s, "
                "and the default strides of tiled scales depend on it: give all three",
                name, scales->cu_scale ? " (cu_scale)" : " (no host_cu_seqlens)");
    }
    mxa_scales_resolve(scales, axis, &whole);
    const int tiled = scales->layout == MXATTN_TILED;
    const int per_token = axis == MXATTN_HDIM && scales->layout == MXATTN_LINEAR;
    const int per_dim = axis == MXATTN_SEQ && scales->layout == MXATTN_LINEAR;
    const int64_t token_tiles = mxa_tiles(whole.tiled_rows), dim_tiles = mxa_tiles(whole.head_dim);
    /* In the order of the struct's members: stride_head, stride_row, stride_k. */
    view v;
    v.name = name;
    v.part = "strides";
    v.count = 3;
    v.stride[0] = scales->stride_head;
    v.stride[1] = scales->stride_row;
    v.stride[2] = scales->stride_k;
    v.unit_bytes = tiled ? 512 : 1;
    v.written = written;
    v.size[0] = whole.heads;
    v.size[1] = tiled ? (axis == MXATTN_HDIM ? token_tiles : dim_tiles)
                      : (per_token ? whole.tokens : whole.blocks);
    v.size[2] = tiled ? (axis == MXATTN_HDIM ? dim_tiles : token_tiles)
                      : (per_dim ? whole.head_dim : mxa_blocks(whole.head_dim));
    return check_view(&v);
}

/* WHY the extent's tokens too: rows of no sequence have a payload and no scale. */
static mxattn_status take_scales(const mxa_tensor_rule *rule, mxattn_tensor *tensor, int empty)
{
    static const char *const axes[] = {".scales[hdim]", ".scales[seq]"};
    const int no_scale = empty || rule->extent->tokens == 0;
    int present = 0;
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        char name[MXA_NAME_BYTES];
        if (!tensor->scales[axis].data)
            continue;
        mxa_name_join(name, rule->name, axes[axis]);
        mxa_scale_extent extent = *rule->extent;
        extent.heads = tensor->shape[2];
        extent.head_dim = tensor->shape[3];
        mxattn_status status =
            mxa_scales_take(name, &tensor->tags, (mxattn_axis)axis, rule->batch, &extent,
                            rule->sight, rule->written, &tensor->scales[axis]);
        if (status)
            return status;
        present = 1;
    }
    if (!present && !no_scale)
        return mxa_fail(MXATTN_ARGUMENT, "%s.scales holds no data; %s blocks need a scale array",
                        rule->name, mxa_block_name(tensor->tags.block));
    const int centred = (tensor->tags.flags & MXATTN_CENTRED) != 0;
    if (!tensor->centre && !centred)
        return MXATTN_OK;
    char name[MXA_NAME_BYTES];
    mxa_name_join(name, rule->name, ".centre");
    if (tensor->centre && !centred)
        return mxa_fail(MXATTN_LAYOUT, "%s is set; its tags lack MXATTN_CENTRED", name);
    return mxa_check_array(name, tensor->centre, sizeof(float),
                           centred && !empty && rule->batch->batch > 0);
}

/* (B, S, H, D) as it is; (T, H, D) and (rows, cols) gain dimensions of size 1. */
static void normalise(const mxa_tensor_rule *rule, mxattn_tensor *tensor)
{
    const int32_t full = rule->any_stride ? 3 : 4;
    int64_t *shape = tensor->shape, *stride = tensor->stride;
    if (tensor->ndim == 2 && !rule->any_stride) { /* (T, D) -> (T, 1, D) */
        shape[2] = shape[1];
        stride[2] = stride[1];
        shape[1] = 1;
        stride[1] = 0;
        tensor->ndim = 3;
    }
    if (tensor->ndim == full - 1) {
        memmove(shape + 1, shape, (size_t)tensor->ndim * sizeof *shape);
        memmove(stride + 1, stride, (size_t)tensor->ndim * sizeof *stride);
        shape[0] = 1;
        stride[0] = 0;
        tensor->ndim = full;
    }
}

mxattn_status mxa_tensor_take(const mxa_tensor_rule *rule, mxattn_tensor *tensor)
{
    const int empty = elements_of(tensor) == 0;
    const int blocks = mxa_dtype_is_fp8(tensor->tags.dtype);
    mxattn_status status = check_shape(rule, tensor);
    if (!status && !empty)
        status = check_memory(rule, tensor);
    if (status)
        return status;
    normalise(rule, tensor);
    if (rule->bare)
        return MXATTN_OK;
    if (blocks)
        return take_scales(rule, tensor, empty);
    if (tensor->scales[MXATTN_HDIM].data || tensor->scales[MXATTN_SEQ].data || tensor->centre)
        return mxa_fail(MXATTN_LAYOUT, "%s.%s is set; %s is not block-scaled", rule->name,
                        tensor->centre ? "centre" : "scales", mxa_dtype_name(tensor->tags.dtype));
    tensor->tags = (mxattn_tags){.dtype = tensor->tags.dtype};
    return MXATTN_OK;
}
