/* operand.c: where the codes and scales of one head of one sequence lie.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operand.h"

#include "mx/e8m0.h"
#include "mx/scales.h"

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
    operand->axis = hdim ? MXATTN_HDIM : MXATTN_SEQ;
    operand->scales = &tensor->scales[operand->axis];
    operand->sequence = sequence;
    operand->b = b;
    operand->head = head;
}

void mxa_operand_scales(const mxa_operand *operand, int64_t token, uint8_t *scales)
{
    const int32_t step = operand->axis == MXATTN_HDIM ? MXA_BLOCK : 1;

    for (int32_t d = 0; d < operand->dims; d += step) {
        int64_t offset = mxa_scales_offset(operand->scales, operand->axis, operand->sequence,
                                           operand->b, token, operand->head, d);
        *scales++ = operand->scales->data[offset];
    }
}
