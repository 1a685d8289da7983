/* scales.c: moving scale bytes between arrangements.
 *
 * Scatter (same axis) and transform (the other axis of square blocks) are one loop: for each byte
 * of the target, the source byte of the same element.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"
#include "cpu/operations.h"
#include "cpu/parallel_blocks.h"
#include "cpu/scale_place.h"
#include "mx/e8m0.h"

#include <string.h>

/* Bytes of an array that one chunk of one block has: tokens (HDIM) or dims (SEQ), or one. */
static int64_t bytes_within(const mxattn_scales *scales, mxattn_axis axis, int64_t tokens,
                            int64_t dims)
{
    if (scales->layout == MXATTN_COMPACT) {
        return 1;
    }
    return axis == MXATTN_HDIM ? tokens : dims;
}

static int64_t at_most_block(int64_t n)
{
    return n < MXA_BLOCK ? n : MXA_BLOCK;
}

static void clear_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const mxa_scales_call *call = arg;
    for (; at->block == 0 && head < head_end; head++) {
        mxa_scales_clear(&call->to, call->to_axis, &at->sequence, at->b, head, call->head_dim);
    }
}

static void move_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const mxa_scales_call *call = arg;
    int64_t tokens = at_most_block(at->sequence.length - at->block * MXA_BLOCK);
    for (; head < head_end; head++) {
        mxa_scale_place from =
            mxa_scale_place_of(&call->from, call->from_axis, &at->sequence, at->b, at->block, head);
        mxa_scale_place to =
            mxa_scale_place_of(&call->to, call->to_axis, &at->sequence, at->b, at->block, head);
        for (int64_t chunk = 0; chunk * MXA_BLOCK < call->head_dim; chunk++) {
            int64_t dims = at_most_block(call->head_dim - chunk * MXA_BLOCK);
            int64_t count = bytes_within(&call->to, call->to_axis, tokens, dims);
            int same_axis = call->from_axis == call->to_axis;
            for (int64_t i = 0; i < count; i++) {
                *mxa_scale_place_at(&to, chunk, i) =
                    *mxa_scale_place_at(&from, chunk, same_axis ? i : 0);
            }
        }
    }
}

static void move(const mxattn_context *context, const mxa_scales_call *call)
{
    mxa_scales_call copy = *call;
    if (call->to.layout == MXATTN_TILED) {
        mxa_scales_clear_empty(&call->to, call->to_axis, &call->batch, call->heads, call->head_dim);
        mxa_parallel_blocks(context, &call->batch, call->heads, call->head_dim, clear_block, &copy);
    }
    mxa_parallel_blocks(context, &call->batch, call->heads, call->head_dim, move_block, &copy);
}

mxattn_status mxa_cpu_scales_scatter(const mxattn_context *context, const mxa_scales_call *call)
{
    move(context, call);
    return MXATTN_OK;
}

mxattn_status mxa_cpu_scales_transform(const mxattn_context *context, const mxa_scales_call *call)
{
    move(context, call);
    return MXATTN_OK;
}
