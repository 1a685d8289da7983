/* matrix.c: a tensor for tests of the fused producers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "matrix.h"

#include "guard.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t scale_bytes(const mxattn_tensor *t, int axis, int layout,
                          const mxattn_sequences *sequences)
{
    int64_t bytes = 0;
    const int dense = t->ndim == 4, heads = t->ndim - 2;
    const int64_t tokens = t->shape[dense];
    const int64_t batch = dense                                ? t->shape[0]
                          : sequences && sequences->cu_seqlens ? sequences->batch
                                                               : 1;
    const mxattn_status status =
        mxattn_scales_bytes(&t->tags, (mxattn_axis)axis, (mxattn_scale_layout)layout, batch, tokens,
                            dense || !sequences ? NULL : sequences->cu_seqlens,
                            t->ndim == 2 ? 1 : t->shape[heads], t->shape[t->ndim - 1], &bytes);
    CHECK(status == MXATTN_OK, "scales: %s", mxattn_last_error());
    return (size_t)bytes;
}

void mxt_matrix_make(mxt_matrix *m, mxattn_tags tags, const int layouts[2], int32_t ndim,
                     const int64_t *shape, int64_t gap, const mxattn_sequences *sequences)
{
    memset(m, 0, sizeof *m);
    mxattn_tensor_view(&m->t, tags.dtype, NULL, ndim, shape);
    m->t.tags = tags;
    const int token = ndim == 4;
    m->t.stride[token] += gap;
    if (ndim == 4)
        m->t.stride[0] = m->t.stride[1] * shape[1];
    const int64_t rows = ndim == 4 ? shape[0] * shape[1] : shape[0];
    m->bytes = (size_t)(rows * m->t.stride[token]) * (size_t)mxa_dtype_bytes(tags.dtype);
    m->memory = mxt_guard_end(m->bytes ? m->bytes : 1);
    m->t.data = m->memory;
    for (int axis = 0; axis < 2; axis++) {
        if (!mxa_dtype_is_fp8(tags.dtype) || layouts[axis] == MXT_ABSENT)
            continue;
        m->scale_bytes[axis] = scale_bytes(&m->t, axis, layouts[axis], sequences);
        m->t.scales[axis].layout = (mxattn_scale_layout)layouts[axis];
        m->t.scales[axis].data = mxt_guard_end(m->scale_bytes[axis] ? m->scale_bytes[axis] : 1);
    }
}

void mxt_matrix_free(mxt_matrix *m)
{
    mxt_guard_free(m->memory);
    mxt_guard_free(m->t.scales[0].data);
    mxt_guard_free(m->t.scales[1].data);
}

void mxt_matrix_make_random(mxt_matrix *m, mxt_random *random, int blocks, int32_t ndim,
                            const int64_t *shape, const mxattn_sequences *sequences)
{
    mxattn_tags tags = {.dtype = mxt_random_int(random, 0, 3) ? MXATTN_E4M3 : MXATTN_E5M2,
                        .rounding = (mxattn_rounding)mxt_random_int(random, 0, 1)};
    int layouts[2] = {MXT_ABSENT, MXT_ABSENT};
    do
        tags.block = (mxattn_block)mxt_random_int(random, 1, 3);
    while (!(blocks & 1 << tags.block));
    for (int axis = 0; axis < 2; axis++) {
        const mxattn_block only = axis == MXATTN_HDIM ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_COLUMN;
        if (tags.block == only)
            layouts[axis] = mxt_random_int(random, 0, 1) ? MXATTN_LINEAR : MXATTN_TILED;
        else if (tags.block == MXATTN_BLOCK_SQUARE)
            layouts[axis] = (int)mxt_random_int(random, axis ? MXT_ABSENT : 0, 2);
    }
    if (tags.block == MXATTN_BLOCK_SQUARE && mxt_random_int(random, 0, 7) == 0)
        tags.flags = MXATTN_FOLDED;
    mxt_matrix_make(m, tags, layouts, ndim, shape, mxt_random_int(random, 0, 1) * 24, sequences);
}

void mxt_matrix_fill(mxt_matrix *m, mxt_kind kind, uint64_t seed, const mxattn_sequences *sequences)
{
    const mxattn_tensor *t = &m->t;
    const int token = t->ndim == 4;
    const int64_t rows = (token ? t->shape[0] : 1) * t->shape[token];
    const int64_t columns = t->ndim == 2 ? t->shape[1] : t->shape[token + 1] * t->shape[token + 2];
    float *values = malloc((size_t)(rows * columns + 1) * sizeof *values);
    mxt_fill_f32(values, rows, columns, kind, seed);
    if (mxa_dtype_is_fp8(t->tags.dtype)) {
        mxattn_tensor wide;
        mxattn_quantize_args args;
        mxattn_tensor_view(&wide, MXATTN_F32, values, t->ndim, t->shape);
        mxattn_quantize_args_init(&args);
        args.backend = MXATTN_BACKEND_REF;
        args.wide = &wide;
        args.quantized = t;
        if (sequences && !token)
            args.sequences = *sequences;
        args.sequences.seqused = NULL; /* tokens behind hold something too */
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                mxa_store(t->data, t->tags.dtype, r * t->stride[token] + c,
                          values[r * columns + c]);
    }
    free(values);
}

void mxt_matrix_like(mxt_matrix *m, const mxt_matrix *other)
{
    *m = *other;
    m->memory = m->t.data = mxt_guard_end(m->bytes ? m->bytes : 1);
    for (int axis = 0; axis < 2; axis++)
        if (other->t.scales[axis].data)
            m->t.scales[axis].data = mxt_guard_end(m->scale_bytes[axis] ? m->scale_bytes[axis] : 1);
}

double mxt_matrix_wide(const mxt_matrix *m, int64_t offset)
{
    return (double)mxa_load(m->memory, m->t.tags.dtype, offset);
}

int mxt_matrix_same(const char *what, const mxt_matrix *got, const mxt_matrix *want)
{
    const int size = mxa_dtype_bytes(want->t.tags.dtype);
    const uint8_t *a = got->memory, *b = want->memory;
    for (size_t i = 0; i < want->bytes; i++) {
        const int64_t element = (int64_t)i / size;
        if (a[i] == b[i] || (size > 1 && isnan(mxt_matrix_wide(got, element)) &&
                             isnan(mxt_matrix_wide(want, element))))
            continue;
        CHECK(0, "%s: element %lld (row %lld) is %02x.. (%g), not %02x.. (%g)", what,
              (long long)element, (long long)(element / want->t.stride[want->t.ndim == 4]), a[i],
              size > 1 ? mxt_matrix_wide(got, element) : 0, b[i],
              size > 1 ? mxt_matrix_wide(want, element) : 0);
        return 0;
    }
    for (int axis = 0; axis < 2; axis++)
        for (size_t i = 0; i < want->scale_bytes[axis]; i++)
            if (got->t.scales[axis].data[i] != want->t.scales[axis].data[i]) {
                CHECK(0, "%s: scale byte %zu of axis %d is %02x, not %02x", what, i, axis,
                      got->t.scales[axis].data[i], want->t.scales[axis].data[i]);
                return 0;
            }
    return 1;
}

double mxt_matrix_distance(const mxt_matrix *got, const mxt_matrix *want)
{
    const int64_t count = (int64_t)want->bytes / mxa_dtype_bytes(want->t.tags.dtype);
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double a = mxt_matrix_wide(got, i), b = mxt_matrix_wide(want, i);
        if (isnan(a) && isnan(b))
            continue; /* a gap */
        error += (a - b) * (a - b);
        size += b * b;
    }
    return size > 0 ? sqrt(error / size) : error > 0 ? INFINITY : 0;
}
