/* producers.c: quantize, dequantize, and scale bytes from one arrangement to another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"
#include "mx/tensor.h"
#include "ref/ref.h"

/* Payload bytes of (B, S, H, D) once more as (B, H, D, S). */
static void transpose_payload(const mxattn_tensor *quantized, const mxattn_tensor *transposed)
{
    const int64_t *from = quantized->stride, *to = transposed->stride;
    for (int64_t b = 0; b < quantized->shape[0]; b++)
        for (int64_t s = 0; s < quantized->shape[1]; s++)
            for (int64_t h = 0; h < quantized->shape[2]; h++)
                for (int64_t d = 0; d < quantized->shape[3]; d++)
                    ((uint8_t *)transposed->data)[b * to[0] + h * to[1] + d * to[2] + s * to[3]] =
                        ((const uint8_t *)
                             quantized->data)[b * from[0] + s * from[1] + h * from[2] + d];
}

mxattn_status mxa_ref_quantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    (void)context;
    mxa_quantize_tensor(&call->wide, &call->quantized, &call->batch);
    if (call->transposed.ndim)
        transpose_payload(&call->quantized, &call->transposed);
    return MXATTN_OK;
}

mxattn_status mxa_ref_dequantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    (void)context;
    mxa_dequantize_tensor(&call->quantized, &call->wide, &call->batch);
    return MXATTN_OK;
}

mxattn_status mxa_ref_quantize_workspace(const mxattn_context *context,
                                         const mxa_quantize_call *call, size_t *workspace_bytes)
{
    (void)context;
    (void)call;
    *workspace_bytes = 0;
    return MXATTN_OK;
}

/* Scatter and transform alike: every element's scale byte, from where one arrangement keeps it to
 * where the other does. */
mxattn_status mxa_ref_scales_rewrite(const mxattn_context *context, const mxa_scales_call *call)
{
    (void)context;
    mxa_sequence seq = {0};
    for (int64_t b = 0; b < call->batch.batch; b++) {
        mxa_sequence_next(&call->batch, b, &seq);
        for (int64_t h = 0; h < call->heads; h++) {
            mxa_scales_clear(&call->to, call->to_axis, &seq, b, h, call->head_dim);
            for (int64_t s = 0; s < seq.length; s++)
                for (int64_t d = 0; d < call->head_dim; d++)
                    call->to.data[mxa_scales_offset(&call->to, call->to_axis, &seq, b, s, h, d)] =
                        call->from.data[mxa_scales_offset(&call->from, call->from_axis, &seq, b, s,
                                                          h, d)];
        }
    }
    return MXATTN_OK;
}
