/* scales.c: scale arrays: sizes, default strides, and the place of one byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"

#include "mx/e8m0.h"

#include <string.h>

enum { UNIT_BYTES = 512, UNIT_BLOCKS = 4 };

mxa_scale_extent mxa_scales_extent(const mxa_batch *batch, int64_t heads, int64_t head_dim)
{
    mxa_scale_extent extent = {0, 0, 0, heads, head_dim};
    if (!batch->cu_seqlens) { /* at once: a size not checked yet must not cost its time */
        extent.tokens = batch->batch * batch->seqlen;
        extent.blocks = batch->batch * mxa_blocks(batch->seqlen);
        extent.tiled_rows = batch->batch * mxa_tiles(batch->seqlen) * MXA_TILE_ROWS;
        return extent;
    }
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &sequence);
        extent.tokens += sequence.length;
        extent.blocks += mxa_blocks(sequence.length);
        extent.tiled_rows += mxa_tiles(sequence.length) * MXA_TILE_ROWS;
    }
    return extent;
}

int mxa_scales_legal(const mxattn_tags *tags, mxattn_axis axis, mxattn_scale_layout layout)
{
    int has_axis = tags->block == MXATTN_BLOCK_SQUARE ||
                   (tags->block == MXATTN_BLOCK_ROW && axis == MXATTN_HDIM) ||
                   (tags->block == MXATTN_BLOCK_COLUMN && axis == MXATTN_SEQ);
    int has_layout = layout == MXATTN_LINEAR || layout == MXATTN_TILED ||
                     (layout == MXATTN_COMPACT && tags->block == MXATTN_BLOCK_SQUARE);
    return has_axis && has_layout;
}

/* Row tiles and block tiles of TILED scales. */
static void tile_counts(mxattn_axis axis, const mxa_scale_extent *extent, int64_t *rows,
                        int64_t *blocks)
{
    int64_t token_tiles = mxa_tiles(extent->tiled_rows), dim_tiles = mxa_tiles(extent->head_dim);
    *rows = axis == MXATTN_HDIM ? token_tiles : dim_tiles;
    *blocks = axis == MXATTN_HDIM ? dim_tiles : token_tiles;
}

/* Bytes per head of one row of LINEAR or COMPACT scales. */
static int64_t row_bytes(mxattn_axis axis, mxattn_scale_layout layout, int64_t head_dim)
{
    int per_element = axis == MXATTN_SEQ && layout == MXATTN_LINEAR;
    return per_element ? head_dim : mxa_blocks(head_dim);
}

void mxa_scales_resolve(mxattn_scales *scales, mxattn_axis axis, const mxa_scale_extent *extent)
{
    if (scales->stride_head || scales->stride_row || scales->stride_k) {
        return;
    }
    scales->stride_k = 1;
    if (scales->layout == MXATTN_TILED) {
        int64_t rows, blocks;
        tile_counts(axis, extent, &rows, &blocks);
        scales->stride_row = blocks;
        scales->stride_head = blocks * rows;
    } else {
        scales->stride_head = row_bytes(axis, scales->layout, extent->head_dim);
        scales->stride_row = scales->stride_head * extent->heads;
    }
}

int64_t mxa_scales_size(mxattn_axis axis, mxattn_scale_layout layout,
                        const mxa_scale_extent *extent)
{
    if (layout == MXATTN_TILED) {
        int64_t rows, blocks;
        tile_counts(axis, extent, &rows, &blocks);
        return extent->heads * rows * blocks * UNIT_BYTES;
    }
    int per_token = axis == MXATTN_HDIM && layout == MXATTN_LINEAR;
    int64_t rows = per_token ? extent->tokens : extent->blocks;
    return rows * extent->heads * row_bytes(axis, layout, extent->head_dim);
}

/* First row of sequence b in TILED scales. */
static int64_t tiled_start(const mxattn_scales *scales, const mxa_sequence *seq, int64_t b)
{
    return scales->cu_scale ? scales->cu_scale[b] : seq->tiled_row;
}

int64_t mxa_scales_offset(const mxattn_scales *scales, mxattn_axis axis, const mxa_sequence *seq,
                          int64_t b, int64_t s, int64_t head, int64_t d)
{
    if (scales->layout == MXATTN_TILED) {
        int64_t token = tiled_start(scales, seq, b) + s;
        int64_t r = axis == MXATTN_HDIM ? token : d;
        int64_t k = (axis == MXATTN_HDIM ? d : token) / MXA_BLOCK;
        int64_t unit = head * scales->stride_head + r / MXA_TILE_ROWS * scales->stride_row +
                       k / UNIT_BLOCKS * scales->stride_k;
        return unit * UNIT_BYTES + r % 32 * 16 + r % MXA_TILE_ROWS / 32 * 4 + k % UNIT_BLOCKS;
    }
    int per_token = axis == MXATTN_HDIM && scales->layout == MXATTN_LINEAR;
    int per_dim = axis == MXATTN_SEQ && scales->layout == MXATTN_LINEAR;
    int64_t row = per_token ? seq->token + s : seq->block + s / MXA_BLOCK;
    int64_t k = per_dim ? d : d / MXA_BLOCK;
    return row * scales->stride_row + head * scales->stride_head + k * scales->stride_k;
}

void mxa_scales_clear(const mxattn_scales *scales, mxattn_axis axis, const mxa_sequence *seq,
                      int64_t b, int64_t head, int64_t head_dim)
{
    if (scales->layout != MXATTN_TILED) {
        return;
    }
    int64_t first = tiled_start(scales, seq, b);
    int64_t end =
        scales->cu_scale ? scales->cu_scale[b + 1] : first + mxa_tiles(seq->length) * MXA_TILE_ROWS;
    int64_t stride_token = axis == MXATTN_HDIM ? scales->stride_row : scales->stride_k;
    int64_t stride_dim = axis == MXATTN_HDIM ? scales->stride_k : scales->stride_row;
    for (int64_t t = first / MXA_TILE_ROWS; t < end / MXA_TILE_ROWS; t++) {
        for (int64_t d = 0; d < mxa_tiles(head_dim); d++) {
            int64_t unit = head * scales->stride_head + t * stride_token + d * stride_dim;
            memset(scales->data + unit * UNIT_BYTES, 0, UNIT_BYTES);
        }
    }
}
