/* operand.c: tensors of a call to and from plain float64 arrays, one head of one sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"
#include "ref/ref.h"

#include <math.h>
#include <string.h>

/* Payload, one scale array and a centre of a quantized head. */
int64_t mxa_ref_load_scratch_bytes(int64_t tokens, int64_t head_dim)
{
    mxa_ref_arena arena = {NULL, 0};
    mxa_ref_take(&arena, head_dim * (int64_t)sizeof(float));
    mxa_ref_take(&arena, tokens * head_dim);
    mxa_ref_take(&arena, tokens * mxa_blocks(head_dim) + mxa_blocks(tokens) * head_dim);
    return arena.used;
}

static const float *head_centre(const mxattn_tensor *tensor, int64_t b, int64_t head)
{
    return tensor->centre + (b * tensor->shape[2] + head) * tensor->shape[3];
}

static void decode(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b, int64_t head,
                   double *values, double *centre)
{
    const int64_t head_dim = tensor->shape[3];
    for (int64_t s = 0; s < seq->used; s++)
        for (int64_t d = 0; d < head_dim; d++)
            values[s * head_dim + d] = mxa_tensor_value_uncentred(tensor, seq, b, s, head, d);

    const int centred =
        mxa_dtype_is_fp8(tensor->tags.dtype) && (tensor->tags.flags & MXATTN_CENTRED);
    for (int64_t d = 0; d < head_dim; d++) {
        const double mean = centred ? (double)head_centre(tensor, b, head)[d] : 0;
        centre[d] = isfinite(mean) ? mean : 0;
    }
}

/* Quantizes one head of one sequence by the plan's tags, as if it were a whole tensor: blocks
 * start with the sequence, and no block or centre spans two heads. */
static mxattn_tensor quantize_head(const mxattn_tags *tags, const mxattn_tensor *wide,
                                   const mxa_sequence *seq, int64_t head, void *scratch)
{
    const int64_t tokens = seq->used, head_dim = wide->shape[3];
    const mxa_batch one = {1, tokens, NULL, NULL};
    const mxa_scale_extent extent = {tokens, mxa_blocks(tokens), 0, 1, head_dim};
    const int64_t shape[4] = {1, tokens, 1, head_dim};
    mxa_ref_arena arena = {scratch, 0};

    mxattn_tensor from = *wide;
    const int64_t start = mxa_tensor_index(wide, seq, 0, head, 0);
    from.data = (char *)wide->data + start * mxa_dtype_bytes(wide->tags.dtype);
    memcpy(from.shape, shape, sizeof shape);
    from.stride[0] = 0;

    mxattn_tensor to = *wide;
    to.tags = *tags;
    to.tags.dtype = MXATTN_E4M3;
    memcpy(to.shape, shape, sizeof shape);
    to.stride[0] = 0;
    to.stride[1] = to.stride[2] = head_dim;
    to.stride[3] = 1;
    to.centre = mxa_ref_take(&arena, head_dim * (int64_t)sizeof(float));
    to.data = mxa_ref_take(&arena, tokens * head_dim);

    const mxattn_axis axis = to.tags.block == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM;
    memset(to.scales, 0, sizeof to.scales);
    to.scales[axis].layout = to.tags.block == MXATTN_BLOCK_SQUARE ? MXATTN_COMPACT : MXATTN_LINEAR;
    to.scales[axis].data =
        mxa_ref_take(&arena, mxa_scales_size(axis, to.scales[axis].layout, &extent));
    mxa_scales_resolve(&to.scales[axis], axis, &extent);
    mxa_quantize_tensor(&from, &to, &one);
    return to;
}

void mxa_ref_load(const mxattn_plan *plan, const mxattn_tags *tags, const mxattn_tensor *tensor,
                  const mxa_sequence *seq, int64_t b, int64_t head, void *scratch, double *values,
                  double *centre)
{
    const int quantize = plan->problem.precision != MXATTN_PRECISION_F64 &&
                         mxa_dtype_is_wide(tags->dtype) && tags->block != MXATTN_BLOCK_NONE;
    if (!quantize || seq->used == 0) {
        decode(tensor, seq, b, head, values, centre);
        return;
    }
    const mxattn_tensor quantized = quantize_head(tags, tensor, seq, head, scratch);
    const mxa_sequence alone = {.length = seq->used, .used = seq->used};
    decode(&quantized, &alone, 0, 0, values, centre);
}

void mxa_ref_add_centre(double *values, const double *centre, int64_t tokens, int64_t head_dim)
{
    for (int64_t s = 0; s < tokens; s++)
        for (int64_t d = 0; d < head_dim; d++)
            values[s * head_dim + d] += centre[d];
}

void mxa_ref_transpose(const double *rows, int64_t tokens, int64_t head_dim, double *columns)
{
    for (int64_t s = 0; s < tokens; s++)
        for (int64_t d = 0; d < head_dim; d++)
            columns[d * tokens + s] = rows[s * head_dim + d];
}

int64_t mxa_ref_output_bytes(const mxattn_tags *tags, int64_t rows, int64_t heads, int64_t head_dim)
{
    return mxa_dtype_is_fp8(tags->dtype) ? rows * heads * head_dim * (int64_t)sizeof(float) : 0;
}

mxattn_tensor mxa_ref_output(const mxattn_tensor *tensor, void *wide)
{
    mxattn_tensor output = *tensor;
    if (!mxa_dtype_is_fp8(tensor->tags.dtype))
        return output;
    output.tags = (mxattn_tags){.dtype = MXATTN_F32};
    output.data = wide;
    output.stride[3] = 1;
    output.stride[2] = tensor->shape[3];
    output.stride[1] = tensor->shape[2] * output.stride[2];
    output.stride[0] = tensor->shape[0] == 1 ? 0 : tensor->shape[1] * output.stride[1];
    return output;
}

void mxa_ref_output_clear(const mxattn_tensor *output)
{
    for (int64_t b = 0; b < output->shape[0]; b++)
        for (int64_t s = 0; s < output->shape[1]; s++)
            for (int64_t h = 0; h < output->shape[2]; h++) {
                const int64_t row =
                    b * output->stride[0] + s * output->stride[1] + h * output->stride[2];
                for (int64_t d = 0; d < output->shape[3]; d++)
                    mxa_store(output->data, output->tags.dtype, row + d, 0);
            }
}

void mxa_ref_output_row(const mxattn_tensor *output, const mxa_sequence *seq, int64_t s,
                        int64_t head, const double *row)
{
    const int64_t at = mxa_tensor_index(output, seq, s, head, 0);
    for (int64_t d = 0; d < output->shape[3]; d++)
        mxa_store(output->data, output->tags.dtype, at + d, (float)row[d]);
}

void mxa_ref_output_finish(const mxattn_tensor *output, const mxattn_tensor *tensor,
                           const mxa_batch *batch)
{
    if (mxa_dtype_is_fp8(tensor->tags.dtype))
        mxa_quantize_tensor(output, tensor, batch);
}

float *mxa_ref_row_value(const mxattn_tensor *rows, const mxa_sequence *seq, int64_t head,
                         int64_t s)
{
    return (float *)rows->data + seq->outer * rows->stride[0] + head * rows->stride[1] +
           (seq->first + s) * rows->stride[2];
}
