/* operand.c: where the codes and scales of one head of one sequence lie.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operand.h"

#include "mx/e8m0.h"
#include "mx/scales.h"

static int64_t offset(const mxa_operand *operand, int64_t token, int64_t d)
{
    return mxa_scales_offset(operand->scales, operand->axis, operand->sequence, operand->b, token,
                             operand->head, d);
}

static int64_t dims_per_scale(const mxa_operand *operand)
{
    return operand->axis == MXATTN_HDIM ? MXA_BLOCK : 1;
}

void mxa_operand_open(mxa_operand *operand, const mxattn_tensor *tensor,
                      const mxa_sequence *sequence, int64_t b, int64_t head)
{
    const int hdim = tensor->tags.block == MXATTN_BLOCK_ROW ||
                     (tensor->tags.block == MXATTN_BLOCK_SQUARE && tensor->scales[0].data);

    operand->payload = (const uint8_t *)tensor->data + sequence->outer * tensor->stride[0] +
                       sequence->first * tensor->stride[1] + head * tensor->stride[2];
    operand->token_stride = tensor->stride[1];
    operand->dtype = tensor->tags.dtype;
    operand->dims = (int32_t)tensor->shape[3];
    operand->scales = &tensor->scales[hdim ? MXATTN_HDIM : MXATTN_SEQ];
    operand->axis = hdim || operand->scales->layout == MXATTN_COMPACT ? MXATTN_HDIM : MXATTN_SEQ;
    operand->sequence = sequence;
    operand->b = b;
    operand->head = head;
    operand->scale_first = NULL;
    if (operand->scales->layout == MXATTN_TILED)
        return;
    const int64_t first = offset(operand, 0, 0);
    operand->scale_first = operand->scales->data + first;
    operand->scale_block = offset(operand, MXA_BLOCK, 0) - first;
    /* The bytes of a square block are equal: any token's will do. */
    operand->scale_token =
        tensor->tags.block == MXATTN_BLOCK_SQUARE ? 0 : offset(operand, 1, 0) - first;
    operand->scale_k = offset(operand, 0, dims_per_scale(operand)) - first;
}

void mxa_operand_scales(const mxa_operand *operand, int64_t token, uint8_t *scales)
{
    const int64_t step = dims_per_scale(operand);

    if (operand->scale_first) {
        const uint8_t *at = operand->scale_first + token / MXA_BLOCK * operand->scale_block +
                            token % MXA_BLOCK * operand->scale_token;

        for (int64_t d = 0; d < operand->dims; d += step, at += operand->scale_k)
            *scales++ = *at;
        return;
    }
    for (int64_t d = 0; d < operand->dims; d += step)
        *scales++ = operand->scales->data[offset(operand, token, d)];
}
