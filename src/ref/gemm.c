/* gemm.c: the GEMM that quantizes: what it means. Stages: load, product, epilogue, finish.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "mx/tensor.h"
#include "ref/fused.h"
#include "ref/ref.h"

#include <math.h>
#include <string.h>

/* A (M, K) and B (N, K) in float64, C in FP32. */
typedef struct memory {
    double *a, *b;
    float *c;
} memory;

static memory carve(const mxa_gemm_call *call, mxa_ref_arena *arena)
{
    memory m;
    m.a = mxa_ref_take_f64(arena, call->m * call->k);
    m.b = mxa_ref_take_f64(arena, call->n * call->k);
    m.c = mxa_ref_take(arena, call->m * call->n * (int64_t)sizeof(float));
    return m;
}

int64_t mxa_ref_gemm_workspace(const mxattn_context *context, const mxa_gemm_call *call)
{
    mxa_ref_arena arena = {NULL, 0};
    (void)context;
    (void)carve(call, &arena);
    return arena.used;
}

/* Tokens that are not in use count as 0. */
static void load(const mxattn_tensor *tensor, const mxa_batch *batch, int transposed, int64_t rows,
                 int64_t k, double *values)
{
    const int64_t dims = tensor->shape[3], columns = tensor->shape[2] * dims;
    mxa_sequence seq = {0};
    memset(values, 0, (size_t)(rows * k) * sizeof *values);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &seq);
        for (int64_t s = 0; s < seq.used; s++)
            for (int64_t i = 0; i < columns; i++)
                values[transposed ? i * k + seq.first + s : (seq.first + s) * k + i] =
                    mxa_tensor_value(tensor, &seq, b, s, i / dims, i % dims);
    }
}

static double activate(mxattn_activation activation, double x)
{
    const double root = 0.79788456080286535588; /* sqrt(2/pi) */
    switch (activation) {
    case MXATTN_ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case MXATTN_ACTIVATION_GELU:
        return 0.5 * x * (1 + tanh(root * (x + 0.044715 * x * x * x)));
    case MXATTN_ACTIVATION_SILU:
        return x / (1 + exp(-x));
    case MXATTN_ACTIVATION_RELU_SQUARED:
        return x < 0 ? 0 : x * x;
    case MXATTN_ACTIVATION_NONE:
        break;
    }
    return x;
}

/* The derivative in FP32, from what the activation gave. */
static float slope(mxattn_activation activation, float activated)
{
    if (isnan(activated))
        return activated;
    if (!(activated > 0))
        return 0;
    return activation == MXATTN_ACTIVATION_RELU ? 1 : 2 * sqrtf(activated);
}

/* Token s of a sequence, whose FP32 row is c. */
static void epilogue(const mxa_gemm_call *call, const memory *m, const mxa_sequence *seq, int64_t b,
                     int64_t s)
{
    const int64_t row = seq->first + s, dims = call->c.shape[3];
    float *c = m->c + row * call->n;
    for (int64_t n = 0; n < call->n; n++) {
        double sum = 0;
        for (int64_t k = 0; k < call->k; k++)
            sum += m->a[row * call->k + k] * m->b[n * call->k + k];
        sum += call->bias ? (double)call->bias[n] : 0;
        if (!call->activated.ndim)
            sum = activate(call->activation, sum);
        c[n] = mxa_f32_from_f64(sum);
        if (call->activated.ndim)
            c[n] *= slope(call->activation, mxa_f32_from_f64(mxa_tensor_value(
                                                &call->activated, seq, b, s, n / dims, n % dims)));
    }
    for (int64_t h = 0; h < call->norm_heads; h++) {
        if (call->head_norm) {
            const float rstd =
                mxa_ref_rms_row(c + h * dims, dims, call->norm_weight, call->norm_eps);
            if (call->norm_rstd)
                call->norm_rstd[row * call->norm_heads + h] = rstd;
        }
        mxa_ref_rotate_f32(&call->rope, s, c + h * dims);
    }
}

mxattn_status mxa_ref_gemm_quantize(const mxattn_context *context, const mxa_gemm_call *call)
{
    mxa_ref_arena arena = {call->workspace, 0};
    const memory m = carve(call, &arena);
    const mxattn_tensor c = mxa_ref_wide_like(&call->c, m.c);
    mxa_sequence seq = {0};
    (void)context;
    load(&call->a, &call->batch_a, call->transpose_a, call->m, call->k, m.a);
    load(&call->b, &call->batch_b, call->transpose_b, call->n, call->k, m.b);
    memset(m.c, 0, (size_t)(call->m * call->n) * sizeof *m.c);
    for (int64_t i = 0; call->norm_rstd && i < call->m * call->norm_heads; i++)
        call->norm_rstd[i] = 0.0F;
    for (int64_t b = 0; b < call->batch_c.batch; b++) {
        mxa_sequence_next(&call->batch_c, b, &seq);
        for (int64_t s = 0; s < seq.used; s++)
            epilogue(call, &m, &seq, b, s);
    }
    if (call->c_wide.ndim)
        mxa_ref_store_wide(&c, &call->batch_c, 0, &call->c_wide);
    if (mxa_dtype_is_fp8(call->c.tags.dtype))
        mxa_quantize_tensor(&c, &call->c, &call->batch_c);
    else
        mxa_ref_store_wide(&c, &call->batch_c, call->accumulate, &call->c);
    return MXATTN_OK;
}
