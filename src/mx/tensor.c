/* tensor.c: one element of any tensor, and the meaning of quantization.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/tensor.h"

#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/scales.h"

#include <string.h>

int64_t mxa_tensor_index(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s,
                         int64_t head, int64_t d)
{
    return seq->outer * tensor->stride[0] + (seq->first + s) * tensor->stride[1] +
           head * tensor->stride[2] + d * tensor->stride[3];
}

/* The centre as used: one that is not finite counts as 0. */
static float centre_value(const mxattn_tensor *tensor, int64_t b, int64_t head, int64_t d)
{
    if (!(tensor->tags.flags & MXATTN_CENTRED) || !tensor->centre) {
        return 0.0F;
    }
    float mean = tensor->centre[(b * tensor->shape[2] + head) * tensor->shape[3] + d];
    return mxa_f32_is_finite(mean) ? mean : 0.0F;
}

/* Scale byte of an element, from whichever array is present. */
static uint8_t scale_of(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b, int64_t s,
                        int64_t head, int64_t d)
{
    mxattn_axis axis = tensor->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const mxattn_scales *scales = &tensor->scales[axis];
    return scales->data[mxa_scales_offset(scales, axis, seq, b, s, head, d)];
}

double mxa_tensor_value_uncentred(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b,
                                  int64_t s, int64_t head, int64_t d)
{
    int64_t index = mxa_tensor_index(tensor, seq, s, head, d);
    if (!mxa_dtype_is_fp8(tensor->tags.dtype)) {
        return mxa_f32_to_f64(mxa_load(tensor->data, tensor->tags.dtype, index));
    }
    uint8_t code = ((const uint8_t *)tensor->data)[index];
    return mxa_fp8_decode_f64(code, scale_of(tensor, seq, b, s, head, d), tensor->tags.dtype);
}

double mxa_tensor_value(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b, int64_t s,
                        int64_t head, int64_t d)
{
    double value = mxa_tensor_value_uncentred(tensor, seq, b, s, head, d);
    if (!mxa_dtype_is_fp8(tensor->tags.dtype)) {
        return value;
    }
    return value + mxa_f32_to_f64(centre_value(tensor, b, head, d));
}

/* a + b in FP32 whatever the FP environment flushes. The sum in float64 may round too, but its 53
 * bits are more than twice 24 + 1, so rounding again gives what one rounding gives. */
static float add_f32(float a, float b)
{
    return mxa_f32_from_f64(mxa_f32_to_f64(a) + mxa_f32_to_f64(b));
}

/* Writes the mean over the used tokens of one (sequence, head), 0 where it is not finite. */
static void write_centre(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                         const mxa_sequence *seq, int64_t b, int64_t head)
{
    int64_t head_dim = wide->shape[3];
    for (int64_t d = 0; d < head_dim; d++) {
        double sum = 0.0;
        for (int64_t s = 0; s < seq->used; s++) {
            sum += mxa_tensor_value_uncentred(wide, seq, b, s, head, d);
        }
        float mean = seq->used ? mxa_f32_from_f64(sum / (double)seq->used) : 0.0F;
        quantized->centre[(b * wide->shape[2] + head) * head_dim + d] =
            mxa_f32_is_finite(mean) ? mean : 0.0F;
    }
}

/* The element that is quantized: centred; 0 past seqused. */
static float element(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                     const mxa_sequence *seq, int64_t b, int64_t s, int64_t head, int64_t d)
{
    if (s >= seq->used) {
        return 0.0F;
    }
    float x = mxa_load(wide->data, wide->tags.dtype, mxa_tensor_index(wide, seq, s, head, d));
    if (!(quantized->tags.flags & MXATTN_CENTRED)) {
        return x;
    }
    return add_f32(x, -centre_value(quantized, b, head, d));
}

/* The elements that share one scale: tokens [s, s_end) by dims [d, d_end) of one head. */
typedef struct block {
    int64_t s, s_end, d, d_end;
} block;

static void quantize_block(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                           const mxa_sequence *seq, int64_t b, int64_t head, block at)
{
    mxattn_dtype dtype = quantized->tags.dtype;
    uint32_t amax = 0;
    for (int64_t s = at.s; s < at.s_end; s++) {
        for (int64_t d = at.d; d < at.d_end; d++) {
            float x = element(wide, quantized, seq, b, s, head, d);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            bits &= 0x7FFFFFFF;
            amax = bits > amax ? bits : amax;
        }
    }
    uint8_t scale = mxa_e8m0_from_amax(amax, dtype, quantized->tags.rounding);
    uint8_t *payload = quantized->data;
    for (int64_t s = at.s; s < at.s_end; s++) {
        for (int64_t d = at.d; d < at.d_end; d++) {
            float x = element(wide, quantized, seq, b, s, head, d);
            payload[mxa_tensor_index(quantized, seq, s, head, d)] =
                s < seq->used ? mxa_fp8_encode(x, scale, dtype) : 0;
            for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
                const mxattn_scales *scales = &quantized->scales[axis];
                if (scales->data) {
                    scales->data[mxa_scales_offset(scales, axis, seq, b, s, head, d)] = scale;
                }
            }
        }
    }
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void quantize_head(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                          const mxa_sequence *seq, int64_t b, int64_t head)
{
    const mxattn_tags *tags = &quantized->tags;
    int64_t head_dim = wide->shape[3];
    int64_t tokens = tags->block == MXATTN_BLOCK_ROW ? 1 : MXA_BLOCK;
    int64_t dims = tags->block == MXATTN_BLOCK_COLUMN ? 1 : MXA_BLOCK;
    if (tags->flags & (MXATTN_FOLDED | MXATTN_FOLDED_TOKEN)) {
        dims = head_dim;
    }
    if (tags->flags & MXATTN_CENTRED) {
        write_centre(wide, quantized, seq, b, head);
    }
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        if (quantized->scales[axis].data) {
            mxa_scales_clear(&quantized->scales[axis], axis, seq, b, head, head_dim);
        }
    }
    for (int64_t s = 0; s < seq->length; s += tokens) {
        for (int64_t d = 0; d < head_dim; d += dims) {
            block at = {s, smaller(s + tokens, seq->length), d, smaller(d + dims, head_dim)};
            quantize_block(wide, quantized, seq, b, head, at);
        }
    }
}

/* Writes 0 to tokens [s, s_end) of a sequence in every head. */
static void write_zeros(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s,
                        int64_t s_end)
{
    int64_t bytes = mxa_dtype_bytes(tensor->tags.dtype);
    for (; s < s_end; s++) {
        for (int64_t head = 0; head < tensor->shape[2]; head++) {
            for (int64_t d = 0; d < tensor->shape[3]; d++) {
                int64_t index = mxa_tensor_index(tensor, seq, s, head, d);
                memset((char *)tensor->data + index * bytes, 0, (size_t)bytes);
            }
        }
    }
}

/* Writes 0 to the rows behind the last sequence of a jagged batch. */
static void write_tail(const mxattn_tensor *tensor, const mxa_batch *batch)
{
    if (batch->cu_seqlens) {
        mxa_sequence tail;
        memset(&tail, 0, sizeof tail);
        write_zeros(tensor, &tail, batch->cu_seqlens[batch->batch], tensor->shape[1]);
    }
}

void mxa_quantize_tensor(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                         const mxa_batch *batch)
{
    mxa_sequence seq;
    memset(&seq, 0, sizeof seq);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &seq);
        for (int64_t head = 0; head < wide->shape[2]; head++) {
            quantize_head(wide, quantized, &seq, b, head);
        }
    }
    write_tail(quantized, batch);
}

/* One element, in FP32. */
static float dequantized(const mxattn_tensor *quantized, const mxa_sequence *seq, int64_t b,
                         int64_t s, int64_t head, int64_t d)
{
    const mxattn_tags *tags = &quantized->tags;
    uint8_t code = ((const uint8_t *)quantized->data)[mxa_tensor_index(quantized, seq, s, head, d)];
    float x = mxa_fp8_decode(code, scale_of(quantized, seq, b, s, head, d), tags->dtype);
    return tags->flags & MXATTN_CENTRED ? add_f32(x, centre_value(quantized, b, head, d)) : x;
}

void mxa_dequantize_tensor(const mxattn_tensor *quantized, const mxattn_tensor *wide,
                           const mxa_batch *batch)
{
    mxa_sequence seq;
    memset(&seq, 0, sizeof seq);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &seq);
        for (int64_t s = 0; s < seq.used; s++) {
            for (int64_t head = 0; head < wide->shape[2]; head++) {
                for (int64_t d = 0; d < wide->shape[3]; d++) {
                    mxa_store(wide->data, wide->tags.dtype,
                              mxa_tensor_index(wide, &seq, s, head, d),
                              dequantized(quantized, &seq, b, s, head, d));
                }
            }
        }
        write_zeros(wide, &seq, seq.used, seq.length);
    }
    write_tail(wide, batch);
}
