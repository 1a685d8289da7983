/* norm.c: RMSNorm and quantization, and RMSNorm backward: what they mean.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "mx/tensor.h"
#include "ref/fused.h"
#include "ref/ref.h"

#include <string.h>

int64_t mxa_ref_rmsnorm_workspace(const mxattn_context *context, const mxa_rmsnorm_call *call)
{
    (void)context;
    return mxa_ref_wide_bytes(&call->x);
}

/* y of one token and head, into the FP32 row. */
static void normalise(const mxa_rmsnorm_call *call, const mxa_sequence *seq, int64_t s,
                      int64_t head, float *row)
{
    const int64_t heads = call->x.shape[2], dims = call->x.shape[3];
    float rstd = 0.0F;
    if (s < seq->used) {
        for (int64_t d = 0; d < dims; d++)
            row[d] = mxa_load(call->x.data, call->x.tags.dtype,
                              mxa_tensor_index(&call->x, seq, s, head, d));
        rstd = mxa_ref_rms_row(row, dims, call->weight, call->eps);
        mxa_ref_rotate_f32(&call->rope, s, row);
    } else {
        memset(row, 0, (size_t)dims * sizeof *row);
    }
    if (call->rstd)
        call->rstd[(seq->token + s) * heads + head] = rstd;
}

mxattn_status mxa_ref_rmsnorm_quantize(const mxattn_context *context, const mxa_rmsnorm_call *call)
{
    const mxattn_tensor y = mxa_ref_wide_like(&call->x, call->workspace);
    const int64_t heads = y.shape[2], count = y.shape[0] * y.shape[1] * heads * y.shape[3];
    float *values = y.data;
    mxa_sequence seq = {0};
    (void)context;
    memset(values, 0, (size_t)count * sizeof *values);
    for (int64_t b = 0; b < call->batch.batch; b++) {
        mxa_sequence_next(&call->batch, b, &seq);
        for (int64_t s = 0; s < seq.length; s++)
            for (int64_t h = 0; h < heads; h++)
                normalise(call, &seq, s, h, values + mxa_tensor_index(&y, &seq, s, h, 0));
    }
    const int64_t tail = call->batch.cu_seqlens ? call->batch.cu_seqlens[call->batch.batch]
                                                : y.shape[0] * y.shape[1];
    for (int64_t i = tail * heads; call->rstd && i < y.shape[0] * y.shape[1] * heads; i++)
        call->rstd[i] = 0.0F;
    if (call->y_wide.ndim)
        mxa_ref_store_wide(&y, &call->batch, 0, &call->y_wide);
    for (int64_t i = 0; call->round_to_bf16 && i < count; i++)
        values[i] = mxa_bf16_to_f32(mxa_bf16_from_f32(values[i]));
    if (call->y.ndim)
        mxa_quantize_tensor(&y, &call->y, &call->batch);
    return MXATTN_OK;
}

/* ---- backward ------------------------------------------------------------------------------ */

/* dx of the whole tensor in FP32, then three rows and the sum of dweight in float64. */
typedef struct memory {
    float *dx;
    double *x, *dy, *dweight;
} memory;

static memory carve(const mxa_rmsnorm_backward_call *call, mxa_ref_arena *arena)
{
    memory m;
    m.dx = mxa_ref_take(arena, mxa_ref_wide_bytes(&call->x));
    m.x = mxa_ref_take_f64(arena, call->x.shape[3]);
    m.dy = mxa_ref_take_f64(arena, call->x.shape[3]);
    m.dweight = mxa_ref_take_f64(arena, call->x.shape[3]);
    return m;
}

int64_t mxa_ref_rmsnorm_backward_workspace(const mxattn_context *context,
                                           const mxa_rmsnorm_backward_call *call)
{
    mxa_ref_arena arena = {NULL, 0};
    (void)context;
    (void)carve(call, &arena);
    return arena.used;
}

/* One token and head. m->x becomes u, the normalised row. */
static void row_backward(const mxa_rmsnorm_backward_call *call, const mxa_sequence *seq, int64_t b,
                         int64_t s, int64_t head, const memory *m, float *dx)
{
    const int64_t heads = call->x.shape[2], dims = call->x.shape[3];
    const double rstd = (double)call->rstd[(seq->token + s) * heads + head];
    double mean = 0.0;
    for (int64_t d = 0; d < dims; d++) {
        m->x[d] = mxa_tensor_value(&call->x, seq, b, s, head, d);
        m->dy[d] = mxa_tensor_value(&call->dy, seq, b, s, head, d);
    }
    mxa_ref_rotate_f64(&call->rope, s, m->dy);
    if (call->normalised)
        mxa_ref_rotate_f64(&call->rope, s, m->x);
    for (int64_t d = 0; d < dims; d++) {
        m->x[d] *= call->normalised ? 1.0 : rstd;
        m->dweight[d] += m->dy[d] * m->x[d];
        m->dy[d] *= call->weight ? (double)call->weight[d] : 1.0;
        mean += m->dy[d] * m->x[d] / (double)dims;
    }
    for (int64_t d = 0; d < dims; d++) {
        double value = rstd * (m->dy[d] - m->x[d] * mean);
        if (call->accumulate)
            value += mxa_tensor_value(&call->dx, seq, b, s, head, d);
        dx[d] = mxa_f32_from_f64(value);
    }
}

mxattn_status mxa_ref_rmsnorm_backward(const mxattn_context *context,
                                       const mxa_rmsnorm_backward_call *call)
{
    mxa_ref_arena arena = {call->workspace, 0};
    const memory m = carve(call, &arena);
    const mxattn_tensor dx = mxa_ref_wide_like(&call->x, m.dx);
    const int64_t heads = dx.shape[2], dims = dx.shape[3];
    mxa_sequence seq = {0};
    (void)context;
    memset(m.dx, 0, (size_t)mxa_ref_wide_bytes(&dx));
    for (int64_t d = 0; d < dims; d++)
        m.dweight[d] = call->accumulate && call->dweight ? (double)call->dweight[d] : 0.0;
    for (int64_t b = 0; b < call->batch.batch; b++) {
        mxa_sequence_next(&call->batch, b, &seq);
        for (int64_t s = 0; s < seq.used; s++)
            for (int64_t h = 0; h < heads; h++)
                row_backward(call, &seq, b, s, h, &m, m.dx + mxa_tensor_index(&dx, &seq, s, h, 0));
    }
    if (call->dx_quantized.ndim)
        mxa_quantize_tensor(&dx, &call->dx_quantized, &call->batch);
    if (call->dx.ndim && !call->accumulate)
        mxa_ref_store_wide(&dx, &call->batch, 0, &call->dx);
    seq = (mxa_sequence){0};
    for (int64_t b = 0; call->accumulate && b < call->batch.batch; b++) {
        mxa_sequence_next(&call->batch, b, &seq); /* rows in use hold the sum; others stay */
        for (int64_t i = 0; i < seq.used * heads * dims; i++) {
            const int64_t s = i / dims / heads, h = i / dims % heads, d = i % dims;
            mxa_store(call->dx.data, call->dx.tags.dtype,
                      mxa_tensor_index(&call->dx, &seq, s, h, d),
                      m.dx[mxa_tensor_index(&dx, &seq, s, h, d)]);
        }
    }
    for (int64_t d = 0; call->dweight && d < dims; d++)
        call->dweight[d] = mxa_f32_from_f64(m.dweight[d]);
    return MXATTN_OK;
}
