/* scale_units.h: scale bytes of 128 tokens by 128 dims, as 512-byte units in shared memory, and
 * their way to and from arrays of any layout.
 *
 * A unit is what tiled scales are made of (docs/format.md): byte (r%32)*16 + (r/32)*4 + k, with
 *   hdim  r = token, k = block of 32 dims
 *   seq   r = dim,   k = block of 32 tokens
 * Units of one call share their 128 tokens; unit u of them is head (first + u) / chunks, chunk
 * (first + u) % chunks. Bytes of no element are 0. All functions: every thread of the CTA; cta_sync
 * between them is the caller's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_SCALE_UNITS_H
#define MXA_CUDA_COMMON_SCALE_UNITS_H

#include "cuda/common/producers_params.h"
#include "cuda/common/sequences.h"

enum { UNIT_BYTES = 512 };

typedef struct scale_units {
    mxa_shared at;
    int first, count; /* units: head * chunks + chunk */
    int chunks, head_dim;
    int tokens;              /* of the tile, 1 to 128 */
    int token;               /* number of its first token in scale arrays */
    int block;               /* of its first block of 32 tokens */
    int tile_hdim, tile_seq; /* of its 128 rows in tiled scales */
} scale_units;

MXA_DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* First row of sequence b in tiled scales. */
MXA_DEVICE int scale_tiled_row(const mxa_gpu_sequences *batch, int axis, const sequence_tile *at)
{
    mxa_global cu_scale = at->sequence < 0 ? 0 : batch->cu_scale[axis];
    return cu_scale ? dev_load_global_i32(cu_scale + 4 * (uint64_t)at->sequence) : at->tiled_row;
}

MXA_DEVICE void scale_units_begin(scale_units *u, const mxa_gpu_sequences *batch,
                                  const sequence_tile *at, mxa_shared shared, int first, int count,
                                  int chunks, int head_dim)
{
    u->at = shared;
    u->first = first;
    u->count = count;
    u->chunks = chunks;
    u->head_dim = head_dim;
    u->tokens = smaller(at->length - at->position, 128);
    u->token = at->token + at->position;
    u->block = at->block + at->position / 32;
    u->tile_hdim = (scale_tiled_row(batch, 0, at) + at->position) / 128;
    u->tile_seq = (scale_tiled_row(batch, 1, at) + at->position) / 128;
}

/* One to four neighbouring bytes of an array, and the word of shared memory they belong to. */
typedef struct scale_item {
    int head, row, k; /* in the array */
    int count;        /* bytes that exist; 0: none */
    int unit, r, column;
} scale_item;

/* Item i of 128 in each unit. hdim: 4 blocks of dims of one token; neighbouring threads take
 * neighbouring heads. seq: 4 dims of one block of tokens. */
MXA_DEVICE void scale_item_of(const scale_units *u, int axis, int i, scale_item *item)
{
    item->unit = axis ? i / 128 : i % u->count;
    const int within = axis ? i % 128 : i / u->count;
    const int head = (u->first + item->unit) / u->chunks;
    const int chunk = u->first + item->unit - head * u->chunks;
    const int dims = smaller(u->head_dim - 128 * chunk, 128);
    item->head = head;
    item->r = axis ? within % 32 * 4 : within;
    item->column = axis ? within / 32 : 0;
    item->row = axis ? u->block + item->column : u->token + item->r;
    item->k = axis ? 128 * chunk + item->r : 4 * chunk;
    const int there = axis ? 32 * item->column < u->tokens : item->r < u->tokens;
    item->count = smaller(axis ? dims - item->r : ceil_div(dims, 32), 4);
    item->count = there && item->count > 0 ? item->count : 0;
}

MXA_DEVICE mxa_shared scale_byte_at(const scale_units *u, int unit, int r, int k)
{
    return u->at + (uint32_t)(UNIT_BYTES * unit + r % 32 * 16 + r / 32 * 4 + k);
}

/* Tiled: 16 bytes i (of 32) of a unit, in the array. */
MXA_DEVICE mxa_global scale_unit_part(const scale_units *u, const mxa_gpu_scales *scales, int axis,
                                      int unit, int part)
{
    const int head = (u->first + unit) / u->chunks, chunk = u->first + unit - head * u->chunks;
    const int64_t of_token =
        (axis ? u->tile_seq : u->tile_hdim) * (axis ? scales->stride_k : scales->stride_row);
    const int64_t of_dim = chunk * (axis ? scales->stride_row : scales->stride_k);
    return scales->data +
           (uint64_t)(UNIT_BYTES * (head * scales->stride_head + of_token + of_dim) + 16 * part);
}

/* Compact: block (g, c) of a unit, in the array. */
MXA_DEVICE mxa_global scale_block_at(const scale_units *u, const mxa_gpu_scales *scales, int unit,
                                     int g, int c)
{
    const int head = (u->first + unit) / u->chunks, chunk = u->first + unit - head * u->chunks;
    return scales->data +
           (uint64_t)((u->block + g) * scales->stride_row + head * scales->stride_head +
                      (4 * chunk + c) * scales->stride_k);
}

/* 1 when block (g, c) of the unit has elements. */
MXA_DEVICE int scale_block_exists(const scale_units *u, int unit, int g, int c)
{
    return 32 * g < u->tokens && 128 * ((u->first + unit) % u->chunks) + 32 * c < u->head_dim;
}

/* Units to an array. */
MXA_DEVICE void scale_units_store(const scale_units *u, const mxa_gpu_scales *scales, int axis)
{
    const int thread = dev_thread_again(), threads = dev_threads();
    if (scales->layout == MXA_GPU_TILED) {
        MXA_NO_UNROLL
        for (int i = thread; i < 32 * u->count; i += threads) {
            mxa_u32x4 v = dev_load_shared_u32x4(u->at + 16 * (uint32_t)i);
            dev_store_global_u32x4(scale_unit_part(u, scales, axis, i / 32, i % 32), v);
        }
        return;
    }
    if (scales->layout == MXA_GPU_COMPACT) {
        MXA_NO_UNROLL
        for (int i = thread; i < 16 * u->count; i += threads) {
            const int unit = i / 16, g = i / 4 % 4, c = i % 4;
            if (scale_block_exists(u, unit, g, c)) {
                mxa_shared at = scale_byte_at(u, unit, axis ? 32 * c : 32 * g, axis ? g : c);
                dev_store_global_u8(scale_block_at(u, scales, unit, g, c), dev_load_shared_u8(at));
            }
        }
        return;
    }
    MXA_NO_UNROLL
    for (int i = thread; i < 128 * u->count; i += threads) {
        scale_item item;
        scale_item_of(u, axis, i, &item);
        mxa_shared from = scale_byte_at(u, item.unit, item.r, item.column);
        const uint32_t step =
            axis ? 16 : 1; /* four dims from a multiple of 4 share a group of 32 */
        mxa_global to =
            scales->data + (uint64_t)(item.row * scales->stride_row +
                                      item.head * scales->stride_head + item.k * scales->stride_k);
        if (item.count == 4 && scales->stride_k == 1 && to % 4 == 0) {
            uint32_t word = 0;
            if (axis) {
                for (uint32_t j = 0; j < 4; j++) {
                    word |= (uint32_t)dev_load_shared_u8(from + step * j) << (8 * j);
                }
            } else {
                word = dev_load_shared_u32(from);
            }
            dev_store_global_u32(to, word);
            continue;
        }
        MXA_NO_UNROLL
        for (uint32_t j = 0; j < (uint32_t)item.count; j++) {
            dev_store_global_u8(to + (uint64_t)(j * scales->stride_k),
                                dev_load_shared_u8(from + step * j));
        }
    }
}

/* An array to units: what lies outside every element is 0. */
MXA_DEVICE void scale_units_load(const scale_units *u, const mxa_gpu_scales *scales, int axis)
{
    const int thread = dev_thread_again(), threads = dev_threads();
    if (scales->layout == MXA_GPU_TILED) {
        MXA_NO_UNROLL
        for (int i = thread; i < 128 * u->count; i += threads) {
            const int unit = i / 128, r = i % 128 / 4 + 32 * (i % 4);
            const int chunk = (u->first + unit) % u->chunks;
            const int dims = smaller(u->head_dim - 128 * chunk, 128);
            const int columns = ceil_div(axis ? u->tokens : dims, 32);
            mxa_global from = scale_unit_part(u, scales, axis, unit, 0) + 4 * (uint64_t)(i % 128);
            uint32_t word = r < (axis ? dims : u->tokens) ? dev_load_global_u32(from) : 0;
            word &= columns >= 4 ? 0xFFFFFFFFu : ((uint32_t)1 << (8 * columns)) - 1;
            dev_store_shared_u32(scale_byte_at(u, unit, r, 0), word);
        }
        return;
    }
    const int compact = scales->layout == MXA_GPU_COMPACT;
    MXA_NO_UNROLL
    for (int i = thread; i < 128 * u->count; i += threads) {
        scale_item item;
        scale_item_of(u, axis, i, &item);
        const int64_t step = compact && axis ? 0 : scales->stride_k;
        const int64_t row = compact ? u->block + (axis ? item.column : item.r / 32) : item.row;
        const int64_t k = compact && axis ? item.k / 32 : item.k;
        mxa_global from =
            scales->data + (uint64_t)(row * scales->stride_row + item.head * scales->stride_head +
                                      k * scales->stride_k);
        uint32_t word = 0;
        if (item.count == 4 && step == 1 && from % 4 == 0) {
            word = dev_load_global_u32(from);
        } else {
            MXA_NO_UNROLL
            for (int j = 0; j < item.count; j++) {
                word |= (uint32_t)dev_load_global_u8(from + (uint64_t)(j * step)) << (8 * j);
            }
        }
        mxa_shared to = scale_byte_at(u, item.unit, item.r, item.column);
        if (axis) {
            for (uint32_t j = 0; j < 4; j++) {
                dev_store_shared_u8(to + 16 * j, word >> (8 * j));
            }
        } else {
            dev_store_shared_u32(to, word);
        }
    }
}

/* Square blocks: units of the other axis from units of `axis`. */
MXA_DEVICE void scale_units_turn(const scale_units *u, int axis, mxa_shared to)
{
    MXA_NO_UNROLL
    for (int i = dev_thread_again(); i < 128 * u->count; i += dev_threads()) {
        const int unit = i / 128, r = i % 128 / 4 + 32 * (i % 4), block = r / 32;
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) {
            /* The byte of the block's first row, or dim. */
            mxa_shared from = scale_byte_at(u, unit, 32 * k, block);
            word |= (uint32_t)dev_load_shared_u8(from) << (8 * k);
        }
        const int chunk = (u->first + unit) % u->chunks;
        const int rows = axis ? u->tokens : smaller(u->head_dim - 128 * chunk, 128);
        dev_store_shared_u32(to + (uint32_t)(UNIT_BYTES * unit) + 4 * (uint32_t)(i % 128),
                             r < rows ? word : 0);
    }
}

/* Tiled arrays whose places the caller gave may leave room between sequences: units of 0. Those
 * behind the tile's sequence by its last tile, those of sequences without tokens by the first tile
 * that belongs to none. */
MXA_DEVICE void scale_gaps_clear(const scale_units *u, const mxa_gpu_sequences *batch,
                                 const mxa_gpu_scales *scales, int axis, const sequence_tile *at)
{
    mxa_global cu_scale = batch->cu_scale[axis];
    const mxa_u32x4 zeros = {0, 0, 0, 0};
    const int is_none = at->sequence < 0;
    if (!scales->data || scales->layout != MXA_GPU_TILED || !cu_scale ||
        (is_none ? at->share != 0 : at->position + 128 < at->length)) {
        return;
    }
    scale_units gap = *u;
    const int first = is_none ? 0 : at->sequence, last = is_none ? batch->batch - 1 : at->sequence;
    MXA_NO_UNROLL
    for (int b = first; b <= last; b++) {
        const int begin = dev_load_global_i32(cu_scale + 4 * (uint64_t)b);
        const int end = dev_load_global_i32(cu_scale + 4 * (uint64_t)b + 4);
        int length = at->length;
        if (is_none) {
            length = batch->seqlen;
            if (batch->cu_seqlens) {
                length = dev_load_global_i32(batch->cu_seqlens + 4 * (uint64_t)b + 4) -
                         dev_load_global_i32(batch->cu_seqlens + 4 * (uint64_t)b);
            }
            if (length) {
                continue;
            }
        }
        MXA_NO_UNROLL
        for (int tile = begin / 128 + ceil_div(length, 128); tile < end / 128; tile++) {
            gap.tile_hdim = gap.tile_seq = tile;
            MXA_NO_UNROLL
            for (int i = dev_thread_again(); i < 32 * u->count; i += dev_threads()) {
                dev_store_global_u32x4(scale_unit_part(&gap, scales, axis, i / 32, i % 32), zeros);
            }
        }
    }
}

#endif
