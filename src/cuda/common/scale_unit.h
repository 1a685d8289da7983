/* scale_unit.h: the scale bytes of 128 tokens by 128 dims, as a 512-byte unit in shared memory, and
 * their way to and from arrays of any layout, by one warp.
 *
 * A unit is what tiled scales are made of (docs/format.md): byte (r%32)*16 + (r/32)*4 + k, with
 *   hdim  r = token, k = block of 32 dims
 *   seq   r = dim,   k = block of 32 tokens
 * so that lane l's 16 bytes are rows l, l+32, l+64, l+96. Bytes of no element are 0. Fences between
 * writing and reading a unit are the caller's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_SCALE_UNIT_H
#define MXA_CUDA_COMMON_SCALE_UNIT_H

#include "cuda/common/producers_params.h"
#include "cuda/common/sequences.h"
#include "cuda/common/turn.h"
#include "cuda/dev/math.h"

enum { UNIT_BYTES = 512 };

typedef struct scale_unit {
    mxa_shared at;
    int head, chunk;         /* of 128 dims */
    int tokens;              /* of the tile, 1 to 128 */
    int dims;                /* of the chunk, 1 to 128 */
    int token;               /* number of its first token in scale arrays */
    int block;               /* of its first block of 32 tokens */
    int tile_hdim, tile_seq; /* of its 128 rows in tiled scales */
} scale_unit;

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

/* Unit `number` (head * chunks + chunk) of a tile of tokens. */
MXA_DEVICE void scale_unit_begin(scale_unit *u, const mxa_gpu_sequences *batch,
                                 const sequence_tile *at, mxa_shared shared, int number,
                                 mxa_divisor chunks, int head_dim)
{
    u->at = shared;
    u->head = divide(number, chunks);
    u->chunk = number - u->head * (int)chunks.divisor;
    u->dims = smaller(head_dim - 128 * u->chunk, 128);
    u->tokens = smaller(at->length - at->position, 128);
    u->token = at->token + at->position;
    u->block = at->block + at->position / 32;
    u->tile_hdim = (scale_tiled_row(batch, 0, at) + at->position) / 128;
    u->tile_seq = (scale_tiled_row(batch, 1, at) + at->position) / 128;
}

/* Tiled: this lane's 16 bytes. */
MXA_DEVICE mxa_global scale_tiled_at(const scale_unit *u, const mxa_gpu_scales *scales, int axis,
                                     int lane)
{
    const int64_t of_token =
        (axis ? u->tile_seq : u->tile_hdim) * (axis ? scales->stride_k : scales->stride_row);
    const int64_t of_dim = u->chunk * (axis ? scales->stride_row : scales->stride_k);
    return scales->data +
           (uint64_t)(UNIT_BYTES * (u->head * scales->stride_head + of_token + of_dim) + 16 * lane);
}

/* Linear and compact: four neighbouring bytes. hdim: the blocks of token lane + 32*j. seq: dims
 * 4*lane.. of block j; compact: the block that holds them, once. */
MXA_DEVICE mxa_global scale_word_at(const scale_unit *u, const mxa_gpu_scales *scales, int axis,
                                    int lane, int j, int *count, int64_t *step)
{
    const int compact = scales->layout == MXA_GPU_COMPACT;
    const int by_block = axis || compact;
    const int row = by_block ? u->block + j : u->token + lane + 32 * j;
    const int k = !axis     ? 4 * u->chunk
                  : compact ? 4 * u->chunk + lane / 8
                            : 128 * u->chunk + 4 * lane;
    const int there = axis ? 32 * j < u->tokens : lane + 32 * j < u->tokens;
    *count = there ? smaller(axis ? u->dims - 4 * lane : (u->dims + 31) / 32, 4) : 0;
    *step = axis && compact ? 0 : scales->stride_k;
    return scales->data + (uint64_t)(row * scales->stride_row + u->head * scales->stride_head +
                                     k * scales->stride_k);
}

/* Bytes of `count` rows, from a word of four. */
MXA_DEVICE uint32_t scale_mask(int count)
{
    return count >= 4 ? 0xFFFFFFFFu : count <= 0 ? 0 : ((uint32_t)1 << (8 * count)) - 1;
}

/* Word of row r. */
MXA_DEVICE mxa_shared scale_row_at(const scale_unit *u, int r)
{
    return u->at + (uint32_t)(r % 32 * 16 + r / 32 * 4);
}

/* This lane's four words of an array. WHY apart from scale_unit_put: those of several units are in
 * flight at once. */
MXA_DEVICE void scale_unit_fetch(const scale_unit *u, const mxa_gpu_scales *scales, int axis,
                                 uint32_t *w)
{
    const int lane = dev_thread_again() & 31;
    if (scales->layout == MXA_GPU_TILED) {
        mxa_u32x4 v = dev_load_global_u32x4(scale_tiled_at(u, scales, axis, lane));
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
        return;
    }
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        int count;
        int64_t step;
        mxa_global from = scale_word_at(u, scales, axis, lane, j, &count, &step);
        w[j] = 0;
        if (count == 4 && step == 1 && from % 4 == 0) {
            w[j] = dev_load_global_u32(from);
        } else {
            MXA_NO_UNROLL
            for (int i = 0; i < count; i++) {
                w[j] |= (uint32_t)dev_load_global_u8(from + (uint64_t)(i * step)) << (8 * i);
            }
        }
    }
}

/* What was fetched, into the unit. */
MXA_DEVICE void scale_unit_put(const scale_unit *u, const mxa_gpu_scales *scales, int axis,
                               uint32_t *w)
{
    const int lane = dev_thread_again() & 31;
    if (scales->layout == MXA_GPU_TILED) { /* its padding may hold anything */
        const uint32_t mask = scale_mask(((axis ? u->tokens : u->dims) + 31) / 32);
        const int rows = axis ? u->dims : u->tokens;
        MXA_UNROLL
        for (int j = 0; j < 4; j++) {
            w[j] = lane + 32 * j < rows ? w[j] & mask : 0;
        }
    } else if (axis) {
        turn_bytes(w);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            dev_store_shared_u32(scale_row_at(u, 4 * lane + i), w[i]);
        }
        return;
    }
    mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
    dev_store_shared_u32x4(u->at + 16 * (uint32_t)lane, v);
}

/* The unit to an array. */
MXA_DEVICE void scale_unit_store(const scale_unit *u, const mxa_gpu_scales *scales, int axis)
{
    const int lane = dev_thread_again() & 31, compact = scales->layout == MXA_GPU_COMPACT;
    uint32_t w[4];
    if (axis && scales->layout != MXA_GPU_TILED) {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            w[i] = dev_load_shared_u32(scale_row_at(u, 4 * lane + i));
        }
        turn_bytes(w);
    } else {
        mxa_u32x4 v = dev_load_shared_u32x4(u->at + 16 * (uint32_t)lane);
        if (scales->layout == MXA_GPU_TILED) {
            dev_store_global_u32x4(scale_tiled_at(u, scales, axis, lane), v);
            return;
        }
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
    }
    /* Compact: one lane has a block's bytes for all. */
    if (compact && lane % (axis ? 8 : 32)) {
        return;
    }
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        int count;
        int64_t step;
        mxa_global to = scale_word_at(u, scales, axis, lane, j, &count, &step);
        count = compact && axis ? smaller(count, 1) : count;
        if (count == 4 && step == 1 && to % 4 == 0) {
            dev_store_global_u32(to, w[j]);
            continue;
        }
        MXA_NO_UNROLL
        for (int i = 0; i < count; i++) {
            dev_store_global_u8(to + (uint64_t)(i * step), w[j] >> (8 * i));
        }
    }
}

/* Square blocks: the unit of the other axis at `to`, from this one of `axis`. */
MXA_DEVICE void scale_unit_turn(const scale_unit *u, int axis, mxa_shared to)
{
    const int lane = dev_thread_again() & 31, rows = axis ? u->tokens : u->dims;
    uint32_t w[4];
    MXA_UNROLL
    for (int k = 0; k < 4; k++) {
        w[k] = dev_load_shared_u32(scale_row_at(u, 32 * k)); /* bytes: blocks of the other axis */
    }
    turn_bytes(w);
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        w[j] = lane + 32 * j < rows ? w[j] : 0;
    }
    mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
    dev_store_shared_u32x4(to + 16 * (uint32_t)lane, v);
}

/* Tiled arrays whose places the caller gave may leave room between sequences: units of 0. Those
 * behind the tile's sequence by its last tile, those of sequences without tokens by the first tile
 * that belongs to none. */
MXA_DEVICE void scale_gaps_clear(const scale_unit *u, const mxa_gpu_sequences *batch,
                                 const mxa_gpu_scales *scales, int axis, const sequence_tile *at)
{
    mxa_global cu_scale = batch->cu_scale[axis];
    const mxa_u32x4 zeros = {0, 0, 0, 0};
    const int is_none = at->sequence < 0;
    if (!cu_scale || !scales->data || scales->layout != MXA_GPU_TILED ||
        (is_none ? at->share != 0 : at->position + 128 < at->length)) {
        return;
    }
    scale_unit gap = *u;
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
            dev_store_global_u32x4(scale_tiled_at(&gap, scales, axis, dev_thread_again() & 31),
                                   zeros);
        }
    }
}

#endif
