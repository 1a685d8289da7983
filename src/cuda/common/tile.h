/* tile.h: the 128 tokens by 128 dims that a CTA of a producer takes, and its 32 x 32 blocks.
 *
 * A warp takes a block. Lane 4*q + j holds tokens 4*q .. 4*q+3 by dims 8*j .. 8*j+7: each of its
 * loads is 16 bytes of a row, four of them in flight, and no block needs another warp. Values stay
 * as they were read (raw), 4 words a token of a 16-bit type and 8 of FP32, and are widened whenever
 * they are looked at. WHY: half the registers, so that half as many warps again have loads in
 * flight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_TILE_H
#define MXA_CUDA_COMMON_TILE_H

#include "cuda/common/load.h"
#include "cuda/common/scale_unit.h"

/* A warp for each block that a tile can have: 128 threads for each 32 dims. */
enum { TILE_THREADS = 512 };

MXA_DEVICE int tile_warps(void)
{
    return dev_threads() / 32;
}

typedef struct tile {
    sequence_tile at;
    int head, chunk;
    int tokens, used;         /* with storage; that count */
    int dims;                 /* 1 to 128 */
    int columns;              /* blocks of 32 dims */
    mxa_global wide, payload; /* of token 0 and dim 0 */
} tile;

MXA_DEVICE int bytes_of(int type)
{
    return type == MXA_GPU_F32 ? 4 : 2;
}

/* Address of token 0 and dim 0 of the tile. */
MXA_DEVICE mxa_global tile_address(const mxa_gpu_view *view, const tile *t, int bytes)
{
    return view->data + (uint64_t)(bytes * (t->at.outer * view->stride_outer +
                                            (t->at.first + t->at.position) * view->stride_token +
                                            t->head * view->stride_head + 128 * t->chunk));
}

/* The tile once its sequence is known. type: of the wide tensor. */
MXA_DEVICE void tile_place(const mxa_quantize_params *p, int type, tile *t)
{
    t->head = divide(dev_block_x(), p->chunks);
    t->chunk = dev_block_x() - t->head * (int)p->chunks.divisor;
    t->dims = smaller(p->head_dim - 128 * t->chunk, 128);
    t->columns = ceil_div(t->dims, 32);
    t->tokens = t->at.sequence < 0 ? 0 : smaller(t->at.length - t->at.position, 128);
    t->used = smaller(t->at.used - t->at.position, t->tokens);
    t->used = t->used < 0 ? 0 : t->used;
    t->wide = tile_address(&p->wide, t, bytes_of(type));
    t->payload = tile_address(&p->payload, t, 1);
}

/* Finds the CTA's tile; 0: nothing may be written. A tile of no sequence has no tokens. */
MXA_DEVICE int tile_begin(const mxa_quantize_params *p, mxa_shared shared, int type, tile *t)
{
    if (!sequence_find(&p->batch, shared, sequence_tile_number(&p->batch), &t->at)) {
        return 0;
    }
    tile_place(p, type, t);
    return 1;
}

/* Block n of 16: those with dims first, then those that only pad units. */
MXA_DEVICE void tile_block(const tile *t, int n, int *g, int *c)
{
    const int there = 4 * t->columns, width = n < there ? t->columns : 4 - t->columns;
    const int i = n < there ? n : n - there;
    *g = width == 4 ? i >> 2 : width == 2 ? i >> 1 : width == 3 ? i * 11 >> 5 : i;
    *c = i - *g * width + (n < there ? 0 : t->columns);
}

MXA_DEVICE float tile_element(mxa_global at, int type)
{
    if (type == MXA_GPU_F32) {
        return dev_load_global_f32(at);
    }
    const uint32_t half = dev_load_global_u16(at);
    return type == MXA_GPU_BF16 ? f32_bits(half << 16) : f32_from_f16_low(half);
}

/* Some of the 8 elements from d on exist: one at a time. */
MXA_DEVICE void tile_load_part(mxa_global at, int type, int count, float *x)
{
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        x[n] = n < count ? tile_element(at + (uint64_t)(n * bytes_of(type)), type) : 0.0f;
    }
}

enum { TILE_RAW = 32 }; /* words of a lane; 16 of them for a 16-bit type */

/* Token i's 8 values of this lane. `type` is that of `raw`. */
MXA_DEVICE void tile_widen(const uint32_t *raw, int type, int i, float *x)
{
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        if (type == MXA_GPU_F32) {
            x[n] = f32_bits(raw[8 * i + n]);
        } else if (type == MXA_GPU_BF16) {
            x[n] = f32_bits(n & 1 ? raw[4 * i + n / 2] & 0xFFFF0000u : raw[4 * i + n / 2] << 16);
        } else {
            x[n] = n & 1 ? f32_from_f16_high(raw[4 * i + n / 2])
                         : f32_from_f16_low(raw[4 * i + n / 2]);
        }
    }
}

/* This lane's values of block (g, c) as they lie, tokens clamped to those used (one at least), dims
 * beyond the tile's to its first. WHY clamped addresses: all loads are in flight before one is
 * looked at. */
MXA_DEVICE void tile_load(const mxa_quantize_params *p, const tile *t, int type, int g, int c,
                          uint32_t *raw)
{
    const int lane = dev_thread() & 31, last = t->used - 1, first = 32 * g + lane / 4 * 4;
    int d = 32 * c + lane % 4 * 8;
    d = d < t->dims ? d : 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        mxa_global at = t->wide + (uint64_t)((smaller(first + i, last) * p->wide.stride_token + d) *
                                             bytes_of(type));
        const int words = type == MXA_GPU_F32 ? 8 : 4;
        MXA_UNROLL
        for (int n = 0; n < words; n += 4) {
            mxa_u32x4 v = dev_load_global_u32x4(at + 4 * (uint64_t)n);
            raw[words * i + n] = v.x;
            raw[words * i + n + 1] = v.y;
            raw[words * i + n + 2] = v.z;
            raw[words * i + n + 3] = v.w;
        }
    }
}

/* Writes 0 to the rows of no sequence, this CTA's head, dims and share of them. */
MXA_DEVICE void tile_clear_rows(const mxa_quantize_params *p, const tile *t,
                                const mxa_gpu_view *view, int bytes)
{
    const int width = t->dims * bytes, lane = dev_thread() & 31, warp = dev_thread() / 32;
    const int step = tile_warps() * t->at.shares;
    MXA_NO_UNROLL
    for (int row = t->at.tail + tile_warps() * t->at.share + warp; row < p->batch.total;
         row += step) {
        mxa_global at =
            view->data +
            (uint64_t)((row * view->stride_token + t->head * view->stride_head + 128 * t->chunk) *
                       bytes);
        MXA_NO_UNROLL
        for (int i = 8 * lane; i + 8 <= width; i += 256) {
            dev_store_global_u32x2(at + (uint64_t)i, 0, 0);
        }
        if (lane < (width & 7)) {
            dev_store_global_u8(at + (uint64_t)((width & ~7) + lane), 0);
        }
    }
}

#endif
