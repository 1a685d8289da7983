/* fused.c: what ref's RMSNorm and GEMM share: rows of FP32 between arithmetic and quantization.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ref/fused.h"

#include "mx/element.h"
#include "mx/rms.h"
#include "mx/tensor.h"

#include <math.h>

float mxa_ref_rms_row(float *row, int64_t count, const float *weight, double eps)
{
    double lanes[MXA_RMS_LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        lanes[i % MXA_RMS_LANES] += (double)row[i] * (double)row[i];
    const mxa_rms_scale scale = mxa_rms_scale_of(mxa_rms_fold(lanes), count, eps);
    for (int64_t i = 0; i < count; i++) {
        const float x = row[i] * scale.prescale;
        const float low = x * scale.lo;
        row[i] = fmaf(x, scale.hi, low);
        if (weight)
            row[i] *= weight[i];
    }
    return scale.rstd;
}

/* Places of pair i. */
static void pair_of(const mxattn_rope *rope, int64_t i, int64_t *first, int64_t *second)
{
    *first = rope->interleaved ? 2 * i : i;
    *second = rope->interleaved ? 2 * i + 1 : i + rope->dims / 2;
}

void mxa_ref_rotate_f32(const mxattn_rope *rope, int64_t position, float *row)
{
    const int64_t half = rope->dims / 2;
    for (int64_t i = 0; rope->cosine && i < half; i++) {
        int64_t first, second;
        pair_of(rope, i, &first, &second);
        const float cosine = rope->cosine[(rope->offset + position) * half + i];
        const float sine = rope->sine[(rope->offset + position) * half + i];
        const float signed_sine = rope->inverse ? -sine : sine;
        const float a = row[first], b = row[second];
        const float ac = a * cosine, bs = b * signed_sine, bc = b * cosine, as = a * signed_sine;
        row[first] = ac - bs;
        row[second] = bc + as;
    }
}

void mxa_ref_rotate_f64(const mxattn_rope *rope, int64_t position, double *row)
{
    const int64_t half = rope->dims / 2;
    for (int64_t i = 0; rope->cosine && i < half; i++) {
        int64_t first, second;
        pair_of(rope, i, &first, &second);
        const double cosine = (double)rope->cosine[(rope->offset + position) * half + i];
        const double sine =
            (double)rope->sine[(rope->offset + position) * half + i] * (rope->inverse ? -1.0 : 1.0);
        const double a = row[first], b = row[second];
        row[first] = a * cosine - b * sine;
        row[second] = b * cosine + a * sine;
    }
}

mxattn_tensor mxa_ref_wide_like(const mxattn_tensor *like, float *memory)
{
    mxattn_tensor wide = *like;
    wide.tags = (mxattn_tags){.dtype = MXATTN_F32};
    wide.data = memory;
    wide.stride[3] = 1;
    wide.stride[2] = like->shape[3];
    wide.stride[1] = like->shape[2] * wide.stride[2];
    wide.stride[0] = like->shape[1] * wide.stride[1];
    return wide;
}

int64_t mxa_ref_wide_bytes(const mxattn_tensor *like)
{
    return like->shape[0] * like->shape[1] * like->shape[2] * like->shape[3] *
           (int64_t)sizeof(float);
}

/* One token, all heads. */
static void store_token(const mxattn_tensor *values, const mxa_sequence *seq, int64_t s, int used,
                        int accumulate, const mxattn_tensor *to)
{
    for (int64_t h = 0; h < to->shape[2]; h++)
        for (int64_t d = 0; d < to->shape[3]; d++) {
            const int64_t at = mxa_tensor_index(to, seq, s, h, d);
            float x = 0.0F;
            if (used)
                x = ((const float *)values->data)[mxa_tensor_index(values, seq, s, h, d)];
            if (accumulate && used)
                x += mxa_load(to->data, to->tags.dtype, at);
            if (used || !accumulate)
                mxa_store(to->data, to->tags.dtype, at, x);
        }
}

void mxa_ref_store_wide(const mxattn_tensor *values, const mxa_batch *batch, int accumulate,
                        const mxattn_tensor *to)
{
    mxa_sequence seq = {0};
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &seq);
        for (int64_t s = 0; s < seq.length; s++)
            store_token(values, &seq, s, s < seq.used, accumulate, to);
    }
    const mxa_sequence start = {0};
    for (int64_t s = batch->cu_seqlens ? batch->cu_seqlens[batch->batch] : to->shape[1];
         s < to->shape[1]; s++)
        store_token(values, &start, s, 0, accumulate, to);
}
