/* scale_place.c: where the scale bytes of a strip lie, as a base and strides.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/scale_place.h"

#include "mx/e8m0.h"
#include "mx/scales.h"

#include <string.h>

mxa_scale_place mxa_scale_place_of(const mxattn_scales *scales, mxattn_axis axis,
                                   const mxa_sequence *seq, int64_t b, int64_t block, int64_t head)
{
    mxa_scale_place place = {NULL, 0, 0, 0};
    if (!scales->data) {
        return place;
    }
    place.data = scales->data + mxa_scales_offset(scales, axis, seq, b, block * MXA_BLOCK, head, 0);
    if (scales->layout == MXATTN_TILED) {
        /* 32 rows of a unit are 16 bytes apart; chunks are its columns (HDIM) or row groups. */
        place.stride_4 = 512 * (axis == MXATTN_HDIM ? scales->stride_k : scales->stride_row);
        place.stride_1 = axis == MXATTN_HDIM ? 1 : 4;
        place.stride_within = 16;
    } else {
        int per_dim = axis == MXATTN_SEQ && scales->layout == MXATTN_LINEAR;
        place.stride_1 = scales->stride_k * (per_dim ? MXA_BLOCK : 1);
        place.stride_4 = 4 * place.stride_1;
        place.stride_within = scales->layout == MXATTN_COMPACT ? 0
                              : per_dim                        ? scales->stride_k
                                                               : scales->stride_row;
    }
    return place;
}

void mxa_scales_clear_empty(const mxattn_scales *scales, mxattn_axis axis, const mxa_batch *batch,
                            int64_t heads, int64_t head_dim)
{
    mxa_sequence seq;
    memset(&seq, 0, sizeof seq);
    for (int64_t b = 0; scales->data && b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &seq);
        for (int64_t head = 0; seq.length == 0 && head < heads; head++) {
            mxa_scales_clear(scales, axis, &seq, b, head, head_dim);
        }
    }
}
