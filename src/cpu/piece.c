/* piece.c: part of a block of 32 tokens of one head, in FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/piece.h"

#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/tensor.h"

#include <string.h>

mxa_scale_place mxa_piece_scales(const mxattn_tensor *tensor, mxattn_axis axis,
                                 const mxa_piece *piece)
{
    const mxa_block_at *at = piece->at;
    mxa_scale_place place = mxa_scale_place_of(&tensor->scales[axis], axis, &at->sequence, at->b,
                                               at->block, piece->head);
    if (place.data)
        place.data =
            mxa_scale_place_at(&place, piece->dim / MXA_BLOCK,
                               axis == MXATTN_HDIM ? piece->token : piece->dim % MXA_BLOCK);
    return place;
}

static void quantize_piece(const mxa_quantize_kernels *kernels, const mxa_piece *piece,
                           const mxattn_tensor *to, mxattn_dtype wide_dtype, int stream)
{
    const mxa_block_at *at = piece->at;
    const int64_t s = at->block * MXA_BLOCK + piece->token;
    mxa_quantize_strip strip = {
        .wide = piece->values,
        .wide_stride = piece->stride,
        .payload =
            (uint8_t *)to->data + mxa_tensor_index(to, &at->sequence, s, piece->head, piece->dim),
        .payload_stride = to->stride[1],
        .tokens = piece->tokens,
        .used = piece->used,
        .dims = piece->dims,
        .wide_dtype = wide_dtype,
        .tags = to->tags,
        .stream = stream,
    };
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        strip.places[axis] = mxa_piece_scales(to, axis, piece);
    kernels->strip(&strip);
}

void mxa_quantize_piece(const mxa_quantize_kernels *kernels, const mxa_piece *piece,
                        const mxattn_tensor *to)
{
    quantize_piece(kernels, piece, to, MXATTN_F32, 0);
}

void mxa_quantize_piece_bf16(const mxa_quantize_kernels *kernels, const mxa_piece *piece,
                             const mxattn_tensor *to, int stream)
{
    quantize_piece(kernels, piece, to, MXATTN_BF16, stream);
}

const void *mxa_element_of(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s,
                           int64_t head, int64_t d)
{
    return (const char *)tensor->data +
           mxa_tensor_index(tensor, seq, s, head, d) * mxa_dtype_bytes(tensor->tags.dtype);
}

void mxa_load_piece(mxa_dequantize_kernel dequantize, const mxa_row_kernels *rows,
                    const mxattn_tensor *tensor, const mxa_piece *piece)
{
    const mxa_block_at *at = piece->at;
    const int64_t s = at->block * MXA_BLOCK + piece->token;
    if (!mxa_dtype_is_fp8(tensor->tags.dtype)) {
        for (int64_t t = 0; t < piece->used; t++)
            rows->widen(mxa_element_of(tensor, &at->sequence, s + t, piece->head, piece->dim),
                        tensor->tags.dtype, piece->dims, piece->values + t * piece->stride);
        return;
    }
    const mxattn_axis axis = tensor->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const mxa_dequantize_strip strip = {
        .payload = mxa_element_of(tensor, &at->sequence, s, piece->head, piece->dim),
        .payload_stride = tensor->stride[1],
        .wide = piece->values,
        .wide_stride = piece->stride,
        .tokens = piece->used,
        .dims = piece->dims,
        .axis = axis,
        .place = mxa_piece_scales(tensor, axis, piece),
        .dtype = tensor->tags.dtype,
        .wide_dtype = MXATTN_F32,
    };
    /* Rows lie apart, which the machine's own prefetching does not foresee. */
    for (int64_t t = 0; t < piece->used; t++)
        for (int64_t d = 0; d < piece->dims; d += 64)
            __builtin_prefetch(strip.payload + t * strip.payload_stride + d);
    dequantize(&strip);
}

void mxa_clear_row(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s, int64_t head)
{
    if (tensor->ndim)
        memset((void *)mxa_element_of(tensor, seq, s, head, 0), 0,
               (size_t)(tensor->shape[3] * mxa_dtype_bytes(tensor->tags.dtype)));
}

/* Rows behind the last sequence of a jagged batch. */
void mxa_clear_rows_behind(const mxattn_tensor *tensor, const mxa_batch *batch)
{
    const mxa_sequence start = {0};
    for (int64_t s = batch->cu_seqlens && tensor->ndim ? batch->cu_seqlens[batch->batch]
                                                       : tensor->shape[1];
         s < tensor->shape[1]; s++)
        for (int64_t head = 0; head < tensor->shape[2]; head++)
            mxa_clear_row(tensor, &start, s, head);
}
