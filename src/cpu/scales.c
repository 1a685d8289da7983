/* scales.c: moving scale bytes between arrangements.
 *
 * Scatter (same axis) and transform (the other axis of square blocks) are one job: for each byte of
 * the target, the source byte of the same element. A unit of tiled scales, 128 tokens by 128 dims,
 * is put together whole, padding and all, from the 4 x 4 blocks it describes; other targets are
 * written block by block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"
#include "cpu/operations.h"
#include "cpu/parallel_blocks.h"
#include "cpu/scale_place.h"
#include "mx/e8m0.h"

#include <string.h>

enum { UNIT_BYTES = 512, UNIT_BLOCKS = 4, UNIT_ROW = 16 };

static int64_t at_most_block(int64_t n)
{
    return n < MXA_BLOCK ? n : MXA_BLOCK;
}

static int64_t at_least_0(int64_t n)
{
    return n < 0 ? 0 : n;
}

/* ---- units of tiled targets ---------------------------------------------------------------- */

/* The blocks of one unit: how many elements each has along both axes, and where the source has
 * their bytes. */
typedef struct unit_blocks {
    int64_t tokens[UNIT_BLOCKS];
    int64_t dims[UNIT_BLOCKS];
    mxa_scale_place from[UNIT_BLOCKS]; /* of each block of tokens */
    int64_t chunk;                     /* the first of dims */
} unit_blocks;

/* 1 where a block has one byte in the source, whichever of its elements is asked for. */
static int is_uniform(const mxa_scales_call *call)
{
    return call->from_axis != call->to_axis || call->from.layout == MXATTN_COMPACT;
}

/* Source byte of element i (a token for HDIM, a dim for SEQ) of a block. */
static uint8_t source_byte(const unit_blocks *u, int64_t token_block, int64_t chunk, int64_t i)
{
    if (u->tokens[token_block] == 0 || u->dims[chunk] == 0)
        return 0;
    return *mxa_scale_place_at(&u->from[token_block], u->chunk + chunk, i);
}

/* Rows r of a unit repeat while all of its four groups have them. */
static void write_uniform(const unit_blocks *u, mxattn_axis axis, uint8_t *unit)
{
    uint8_t row[UNIT_ROW];
    const int64_t *within = axis == MXATTN_HDIM ? u->tokens : u->dims;
    for (int g = 0; g < UNIT_BLOCKS; g++)
        for (int k = 0; k < UNIT_BLOCKS; k++)
            row[g * UNIT_BLOCKS + k] =
                axis == MXATTN_HDIM ? source_byte(u, g, k, 0) : source_byte(u, k, g, 0);
    int64_t shortest = MXA_BLOCK;
    for (int g = 0; g < UNIT_BLOCKS; g++)
        shortest = within[g] > 0 && within[g] < shortest ? within[g] : shortest;
    for (int64_t r = 0; r < MXA_BLOCK; r++) {
        if (r == shortest) /* from here on some group is over: that of the last block */
            for (int g = 0; g < UNIT_BLOCKS; g++)
                if (within[g] == shortest)
                    memset(row + g * UNIT_BLOCKS, 0, UNIT_BLOCKS);
        memcpy(unit + r * UNIT_ROW, row, UNIT_ROW);
    }
}

/* HDIM scales of tokens: four bytes of a token lie side by side. */
static void write_tokens(const unit_blocks *u, uint8_t *unit)
{
    const int together = u->dims[UNIT_BLOCKS - 1] > 0 && u->from[0].stride_1 == 1 &&
                         u->from[0].stride_4 == UNIT_BLOCKS;
    for (int g = 0; g < UNIT_BLOCKS; g++) {
        uint8_t *to = unit + g * UNIT_BLOCKS;
        for (int64_t r = 0; r < u->tokens[g]; r++) {
            if (together) {
                memcpy(to + r * UNIT_ROW, mxa_scale_place_at(&u->from[g], u->chunk, r),
                       UNIT_BLOCKS);
                continue;
            }
            for (int k = 0; k < UNIT_BLOCKS; k++)
                to[r * UNIT_ROW + k] = source_byte(u, g, k, r);
        }
        for (int64_t r = u->tokens[g]; r < MXA_BLOCK; r++)
            memset(to + r * UNIT_ROW, 0, UNIT_BLOCKS);
    }
}

/* SEQ scales of dims. */
static void write_dims(const unit_blocks *u, uint8_t *unit)
{
    for (int g = 0; g < UNIT_BLOCKS; g++)
        for (int64_t r = 0; r < MXA_BLOCK; r++)
            for (int k = 0; k < UNIT_BLOCKS; k++)
                unit[r * UNIT_ROW + g * UNIT_BLOCKS + k] =
                    r < u->dims[g] ? source_byte(u, k, g, r) : (uint8_t)0;
}

/* The units of 128 tokens of one head; at is the first of their blocks. */
static void write_units(const mxa_scales_call *call, const mxa_block_at *at, int64_t head)
{
    const mxa_sequence *seq = &at->sequence;
    unit_blocks u = {.chunk = 0};
    for (int64_t i = 0; i < UNIT_BLOCKS; i++) {
        const int64_t block = at->block + i;
        u.tokens[i] = at_most_block(at_least_0(seq->length - block * MXA_BLOCK));
        if (u.tokens[i])
            u.from[i] = mxa_scale_place_of(&call->from, call->from_axis, seq, at->b, block, head);
    }
    const int64_t first =
        mxa_scales_offset(&call->to, call->to_axis, seq, at->b, at->block * MXA_BLOCK, head, 0);
    const int64_t step =
        UNIT_BYTES * (call->to_axis == MXATTN_HDIM ? call->to.stride_k : call->to.stride_row);
    uint8_t *unit = call->to.data + first;
    for (; u.chunk * MXA_BLOCK < call->head_dim; u.chunk += UNIT_BLOCKS, unit += step) {
        for (int64_t i = 0; i < UNIT_BLOCKS; i++)
            u.dims[i] = at_most_block(at_least_0(call->head_dim - (u.chunk + i) * MXA_BLOCK));
        if (is_uniform(call))
            write_uniform(&u, call->to_axis, unit);
        else if (call->to_axis == MXATTN_HDIM)
            write_tokens(&u, unit);
        else
            write_dims(&u, unit);
    }
}

static void tile_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    for (; at->block % UNIT_BLOCKS == 0 && head < head_end; head++)
        write_units(arg, at, head);
}

/* Units beyond the tokens of a sequence, where the caller's cu_scale leaves room. */
static void clear_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const mxa_scales_call *call = arg;
    for (; at->block == 0 && head < head_end; head++)
        mxa_scales_clear(&call->to, call->to_axis, &at->sequence, at->b, head, call->head_dim);
}

/* ---- other targets ------------------------------------------------------------------------- */

/* Bytes of an array that one chunk of one block has: tokens (HDIM) or dims (SEQ), or one. */
static int64_t bytes_within(const mxattn_scales *scales, mxattn_axis axis, int64_t tokens,
                            int64_t dims)
{
    if (scales->layout == MXATTN_COMPACT)
        return 1;
    return axis == MXATTN_HDIM ? tokens : dims;
}

static void move_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const mxa_scales_call *call = arg;
    const int64_t tokens = at_most_block(at->sequence.length - at->block * MXA_BLOCK);
    const int uniform = is_uniform(call);
    for (; head < head_end; head++) {
        const mxa_scale_place from =
            mxa_scale_place_of(&call->from, call->from_axis, &at->sequence, at->b, at->block, head);
        const mxa_scale_place to =
            mxa_scale_place_of(&call->to, call->to_axis, &at->sequence, at->b, at->block, head);
        for (int64_t chunk = 0; chunk * MXA_BLOCK < call->head_dim; chunk++) {
            const int64_t dims = at_most_block(call->head_dim - chunk * MXA_BLOCK);
            const int64_t count = bytes_within(&call->to, call->to_axis, tokens, dims);
            const uint8_t *source = mxa_scale_place_at(&from, chunk, 0);
            uint8_t *target = mxa_scale_place_at(&to, chunk, 0);
            if (uniform && to.stride_within == 1) {
                memset(target, *source, (size_t)count);
                continue;
            }
            for (int64_t i = 0; i < count; i++)
                target[i * to.stride_within] = source[uniform ? 0 : i * from.stride_within];
        }
    }
}

static void move(const mxattn_context *context, const mxa_scales_call *call)
{
    mxa_scales_call copy = *call;
    if (call->to.layout != MXATTN_TILED) {
        mxa_parallel_blocks(context, &call->batch, call->heads, call->head_dim, move_block, &copy);
        return;
    }
    if (call->to.cu_scale) {
        mxa_scales_clear_empty(&call->to, call->to_axis, &call->batch, call->heads, call->head_dim);
        mxa_parallel_blocks(context, &call->batch, call->heads, call->head_dim, clear_block, &copy);
    }
    mxa_parallel_blocks(context, &call->batch, call->heads, call->head_dim, tile_block, &copy);
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
