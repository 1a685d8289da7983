/* quantize_case.c: one quantization with every freedom the contract gives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "quantize_case.h"

#include "guard.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int chance(mxt_random *random, int percent)
{
    return mxt_random_int(random, 0, 99) < percent;
}

static int64_t pick_length(mxt_random *random)
{
    static const int64_t edges[] = {0, 1, 31, 32, 33, 127, 128, 129, 255};
    return chance(random, 60) ? edges[mxt_random_int(random, 0, 8)] : mxt_random_int(random, 0, 70);
}

static int pick_layout(mxt_random *random, const mxattn_tags *tags, mxattn_axis axis)
{
    int layout = (int)mxt_random_int(random, 0, 2);
    while (!mxa_scales_legal(tags, axis, (mxattn_scale_layout)layout)) {
        layout = layout == 2 ? 0 : layout + 1;
    }
    return layout;
}

mxt_quantize_spec mxt_quantize_spec_random(mxt_random *random)
{
    static const int64_t dims[] = {8, 32, 40, 64, 72, 96, 128, 136, 160, 264};
    mxt_quantize_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.jagged = chance(random, 60);
    spec.batch = mxt_random_int(random, 0, 4);
    spec.has_used = chance(random, 40);
    spec.tail = chance(random, 30) ? mxt_random_int(random, 1, 40) : 0;
    for (int b = 0; b < spec.batch; b++) {
        spec.lengths[b] = spec.jagged || b == 0 ? pick_length(random) : spec.lengths[0];
        spec.used[b] = mxt_random_int(random, 0, spec.lengths[b]);
    }
    spec.heads = mxt_random_int(random, 1, 3);
    spec.head_dim = dims[mxt_random_int(random, 0, 9)];
    spec.wide = (mxattn_dtype)mxt_random_int(random, MXATTN_F32, MXATTN_BF16);
    spec.tags.dtype = chance(random, 70) ? MXATTN_E4M3 : MXATTN_E5M2;
    spec.tags.block = (mxattn_block)mxt_random_int(random, MXATTN_BLOCK_ROW, MXATTN_BLOCK_SQUARE);
    spec.tags.rounding = chance(random, 70) ? MXATTN_RCEIL : MXATTN_FLOOR;
    if (chance(random, 25) && spec.tags.block != MXATTN_BLOCK_COLUMN) {
        spec.tags.flags |=
            spec.tags.block == MXATTN_BLOCK_ROW ? MXATTN_FOLDED_TOKEN : MXATTN_FOLDED;
    }
    spec.tags.flags |= chance(random, 25) ? MXATTN_CENTRED : 0;
    int both = spec.tags.block == MXATTN_BLOCK_SQUARE;
    int has_hdim = spec.tags.block == MXATTN_BLOCK_ROW || (both && chance(random, 80));
    int has_seq =
        spec.tags.block == MXATTN_BLOCK_COLUMN || (both && (!has_hdim || chance(random, 80)));
    spec.layouts[MXATTN_HDIM] =
        has_hdim ? pick_layout(random, &spec.tags, MXATTN_HDIM) : MXT_NO_SCALES;
    spec.layouts[MXATTN_SEQ] =
        has_seq ? pick_layout(random, &spec.tags, MXATTN_SEQ) : MXT_NO_SCALES;
    spec.packed = chance(random, 50);
    spec.apart = chance(random, 30);
    spec.given_rows = chance(random, 30);
    spec.transposed = chance(random, 40);
    return spec;
}

const char *mxt_quantize_spec_text(const mxt_quantize_spec *spec)
{
    static char text[512];
    int at = snprintf(text, sizeof text, "%s lengths", spec->jagged ? "jagged" : "dense");
    for (int b = 0; b < spec->batch; b++) {
        at +=
            snprintf(text + at, sizeof text - (size_t)at, " %lld/%lld", (long long)spec->lengths[b],
                     (long long)(spec->has_used ? spec->used[b] : spec->lengths[b]));
    }
    snprintf(text + at, sizeof text - (size_t)at,
             " tail %lld H %lld D %lld %s to %s block %d rounding %d flags %u layouts %d %d "
             "packed %d apart %d given %d transposed %d%s",
             (long long)spec->tail, (long long)spec->heads, (long long)spec->head_dim,
             mxa_dtype_name(spec->wide), mxa_dtype_name(spec->tags.dtype), (int)spec->tags.block,
             (int)spec->tags.rounding, spec->tags.flags, spec->layouts[0], spec->layouts[1],
             spec->packed, spec->apart, spec->given_rows, spec->transposed,
             spec->aligned ? " aligned" : "");
    return text;
}

/* Elements from the first to the last of a view. */
static int64_t span(const mxattn_tensor *tensor)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++) {
        if (tensor->shape[i] == 0) {
            return 0;
        }
        last += (tensor->shape[i] - 1) * tensor->stride[i];
    }
    return last + 1;
}

static int64_t multiple_of(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static mxattn_tensor view(const mxt_quantize_case *c, mxattn_dtype dtype, int64_t gap_factor,
                          int64_t gap)
{
    const mxt_quantize_spec *spec = &c->spec;
    const int64_t unit = spec->aligned ? 16 : 1;
    int64_t rows = spec->jagged ? c->cu_seqlens[spec->batch] + spec->tail : spec->lengths[0];
    mxattn_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.struct_size = sizeof tensor;
    tensor.tags.dtype = dtype;
    tensor.ndim = 4;
    tensor.shape[0] = spec->jagged ? 1 : spec->batch;
    tensor.shape[1] = rows;
    tensor.shape[2] = spec->heads;
    tensor.shape[3] = spec->head_dim;
    tensor.stride[3] = 1;
    tensor.stride[2] = multiple_of(spec->head_dim, unit);
    tensor.stride[1] = multiple_of(spec->heads * tensor.stride[2] * gap_factor + gap, unit);
    tensor.stride[0] = spec->jagged ? 0 : multiple_of(rows * tensor.stride[1] + 2 * gap, unit);
    return tensor;
}

void mxt_quantize_case_make(mxt_quantize_case *c, const mxt_quantize_spec *spec)
{
    memset(c, 0, sizeof *c);
    c->spec = *spec;
    for (int b = 0; b < spec->batch; b++) {
        int32_t length = (int32_t)spec->lengths[b];
        c->cu_seqlens[b + 1] = c->cu_seqlens[b] + length;
        c->seqused[b] = (int32_t)spec->used[b];
        c->cu_scale[b + 1] = c->cu_scale[b] + (length + 127) / 128 * 128 + (b % 2 ? 0 : 128);
    }
    c->batch.batch = spec->batch;
    c->batch.seqlen = spec->jagged ? 0 : spec->lengths[0];
    c->batch.cu_seqlens = spec->jagged ? c->cu_seqlens : NULL;
    c->batch.seqused = spec->has_used ? c->seqused : NULL;
    c->wide = view(c, spec->wide, spec->packed ? 3 : 1, spec->packed ? 5 : 0);
    c->wide_bytes = (size_t)(span(&c->wide) * mxa_dtype_bytes(spec->wide));
    c->wide.data = mxt_guard_end_aligned(c->wide_bytes, spec->aligned ? 16 : 1);
}

void mxt_quantize_case_fill(mxt_quantize_case *c, mxt_kind kind, uint64_t seed)
{
    const mxattn_tensor *wide = &c->wide;
    int64_t dims = wide->shape[3], rows = wide->shape[0] * wide->shape[1] * wide->shape[2];
    if (rows == 0) {
        return;
    }
    float *values = malloc((size_t)(rows * dims) * sizeof *values);
    mxt_fill_f32(values, rows, dims, kind, seed);
    for (int64_t row = 0; row < rows; row++) {
        int64_t head = row % wide->shape[2], token = row / wide->shape[2] % wide->shape[1];
        int64_t outer = row / wide->shape[2] / wide->shape[1];
        int64_t index = outer * wide->stride[0] + token * wide->stride[1] + head * wide->stride[2];
        for (int64_t d = 0; d < dims; d++) {
            mxa_store(wide->data, wide->tags.dtype, index + d, values[row * dims + d]);
        }
    }
    free(values);
}

void mxt_quantize_case_free(mxt_quantize_case *c)
{
    mxt_guard_free(c->wide.data);
}

/* Scale memory with the spec's strides; `apart`: rows and heads have gaps. */
static void make_scales(mxt_quantize_outputs *o, const mxt_quantize_case *c, mxattn_axis axis)
{
    const mxt_quantize_spec *spec = &c->spec;
    mxattn_scales *scales = &o->quantized.scales[axis];
    mxa_scale_extent extent = mxa_scales_extent(&c->batch, spec->heads, spec->head_dim);
    scales->layout = (mxattn_scale_layout)spec->layouts[axis];
    if (scales->layout == MXATTN_TILED && spec->given_rows) {
        scales->cu_scale = c->cu_scale;
        extent.tiled_rows = c->cu_scale[spec->batch];
    }
    mxa_scales_resolve(scales, axis, &extent);
    int64_t bytes = mxa_scales_size(axis, scales->layout, &extent);
    if (spec->apart) {
        bytes = 3 * bytes + 512;
        scales->stride_k *= 3;
        scales->stride_row *= 3;
        scales->stride_head *= 3;
    }
    o->bytes[1 + axis] = (size_t)bytes;
    scales->data = o->memory[1 + axis] =
        mxt_guard_end_aligned((size_t)bytes, spec->aligned ? 512 : 1);
}

void mxt_quantize_outputs_make(mxt_quantize_outputs *o, const mxt_quantize_case *c)
{
    const mxt_quantize_spec *spec = &c->spec;
    memset(o, 0, sizeof *o);
    o->quantized = view(c, spec->tags.dtype, 1, spec->packed ? 3 : 0);
    o->quantized.tags = spec->tags;
    o->bytes[0] = (size_t)span(&o->quantized);
    const size_t alignment = spec->aligned ? 16 : 1;
    o->quantized.data = o->memory[0] = mxt_guard_end_aligned(o->bytes[0], alignment);
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        if (spec->layouts[axis] != MXT_NO_SCALES) {
            make_scales(o, c, axis);
        }
    }
    const int64_t *shape = o->quantized.shape;
    if (spec->transposed) {
        mxattn_tensor *t = &o->transposed;
        *t = o->quantized;
        t->shape[1] = shape[2];
        t->shape[2] = shape[3];
        t->shape[3] = shape[1];
        t->stride[2] = shape[1] + (spec->packed ? 7 : 0);
        t->stride[1] = t->stride[2] * shape[3];
        t->stride[0] = spec->jagged ? 0 : t->stride[1] * shape[2];
        o->bytes[3] = (size_t)span(t);
        t->data = o->memory[3] = mxt_guard_end_aligned(o->bytes[3], alignment);
    }
    if (spec->tags.flags & MXATTN_CENTRED) {
        o->bytes[4] = (size_t)(spec->batch * shape[2] * shape[3]) * sizeof(float);
        o->quantized.centre = o->memory[4] = mxt_guard_end_aligned(o->bytes[4], sizeof(float));
    }
}

void mxt_quantize_outputs_free(mxt_quantize_outputs *o)
{
    for (int i = 0; i < 5; i++) {
        mxt_guard_free(o->memory[i]);
    }
}

void mxt_quantize_reference(const mxt_quantize_case *c, mxt_quantize_outputs *o)
{
    mxa_quantize_tensor(&c->wide, &o->quantized, &c->batch);
    if (!c->spec.transposed) {
        return;
    }
    const mxattn_tensor *from = &o->quantized, *to = &o->transposed;
    const int64_t *shape = from->shape;
    for (int64_t at = 0; at < shape[0] * shape[1] * shape[2] * shape[3]; at++) {
        int64_t d = at % shape[3], head = at / shape[3] % shape[2];
        int64_t s = at / shape[3] / shape[2] % shape[1], b = at / shape[3] / shape[2] / shape[1];
        ((uint8_t *)to->data)[b * to->stride[0] + head * to->stride[1] + d * to->stride[2] + s] =
            ((const uint8_t *)from
                 ->data)[b * from->stride[0] + s * from->stride[1] + head * from->stride[2] + d];
    }
}

mxa_quantize_call mxt_quantize_call_of(const mxt_quantize_case *c, const mxt_quantize_outputs *o)
{
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = c->wide;
    call.quantized = o->quantized;
    call.transposed = o->transposed;
    call.batch = c->batch;
    return call;
}

int mxt_quantize_same(const mxt_quantize_outputs *got, const mxt_quantize_outputs *want)
{
    static const char *const names[] = {"payload", "hdim scales", "seq scales", "transposed",
                                        "centre"};
    int same = 1;
    for (int i = 0; i < 5; i++) {
        const uint8_t *a = got->memory[i], *b = want->memory[i];
        size_t at = 0;
        while (at < want->bytes[i] && a[at] == b[at]) {
            at++;
        }
        if (at < want->bytes[i]) {
            same = CHECK(0, "%s byte %zu of %zu: got 0x%02X, want 0x%02X", names[i], at,
                         want->bytes[i], a[at], b[at]);
        }
    }
    return same;
}
