/* sequences.h: which sequence a tile of 128 tokens belongs to, found by every CTA for itself.
 *
 * A producer has no workspace to keep a table in, and needs none: each CTA adds up the lengths on
 * its own and checks them on the way, so all CTAs agree on whether anything may be written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_SEQUENCES_H
#define MXA_CUDA_COMMON_SEQUENCES_H

#include "cuda/common/sequences_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/memory.h"
#include "status.h"

MXA_DEVICE int ceil_div(int a, int b)
{
    return (int)((uint32_t)a + (uint32_t)b - 1) / b;
}

/* Words of shared memory that a scan over at most 1024 threads takes. */
enum { SCAN_WORDS = 32 };

/* Sum of x over the threads before this one; *total over all. The whole CTA. */
MXA_DEVICE int cta_scan(mxa_shared words, int x, int *total)
{
    int lane = dev_thread() & 31, warp = dev_thread() >> 5, sum = x;
    for (int delta = 1; delta < 32; delta <<= 1) {
        int below = shuffle_up_i32(sum, delta);
        sum += lane >= delta ? below : 0;
    }
    cta_sync();
    if (lane == 31) {
        dev_store_shared_u32(words + 4 * (uint32_t)warp, (uint32_t)sum);
    }
    cta_sync();
    int before = 0;
    *total = 0;
    MXA_NO_UNROLL
    for (int w = 0; w < dev_threads() / 32; w++) {
        int of_warp = (int)dev_load_shared_u32(words + 4 * (uint32_t)w);
        before += w < warp ? of_warp : 0;
        *total += of_warp;
    }
    return before + sum - x;
}

/* One sequence of one side of a batch. */
typedef struct sequence_side {
    int first, length, used;
    uint32_t fault; /* 0, or MXA_FAULT_ */
} sequence_side;

/* Reads and checks sequence b. cu 0: dense sequences of `dense` tokens. seqused may be 0. */
MXA_DEVICE void sequence_read(mxa_global cu, mxa_global seqused, int dense, int total, int most,
                              int b, sequence_side *s)
{
    s->fault = 0;
    if (cu) {
        int begin = dev_load_global_i32(cu + 4 * (uint64_t)b);
        int end = dev_load_global_i32(cu + 4 * (uint64_t)b + 4);
        s->first = begin;
        s->length = (int)((uint32_t)end - (uint32_t)begin);
        if (b == 0 && begin != 0) {
            s->fault = MXA_FAULT_CU_START;
        } else if (end < begin) {
            s->fault = MXA_FAULT_CU_ORDER;
        } else if (end > total) {
            s->fault = MXA_FAULT_CU_TOTAL;
        }
    } else {
        s->first = 0;
        s->length = dense;
    }
    s->used = s->length;
    if (seqused) {
        s->used = dev_load_global_i32(seqused + 4 * (uint64_t)b);
        if (!s->fault && (s->used < 0 || s->used > s->length)) {
            s->fault = MXA_FAULT_SEQUSED;
        }
    }
    if (!s->fault && s->length > most) {
        s->fault = MXA_FAULT_CU_LENGTH;
    }
}

/* n / d, for n below 2^31. */
MXA_DEVICE int divide(int n, mxa_divisor d)
{
    return (int)((uint64_t)(uint32_t)n * d.multiplier >> d.shift);
}

/* The CTA's tile: beyond the last one in the grid's last rows. */
MXA_DEVICE int sequence_tile_number(const mxa_gpu_sequences *batch)
{
    return dev_block_z() * batch->rows + dev_block_y();
}

/* A tile of 128 tokens, or, behind the last one of a jagged batch, a share of the rows that belong
 * to no sequence: then sequence is -1. */
typedef struct sequence_tile {
    int sequence;
    int outer, first; /* the sequence in a tensor: [outer][first + s] */
    int length, used;
    int position;            /* of the tile's first token within its sequence */
    int token, block;        /* numbers of the sequence's first token and block in scale arrays */
    int tiled_row;           /* its first row in tiled scales, where cu_scale is not given */
    int tail, share, shares; /* sequence -1: first row of none; this tile's part of them */
} sequence_tile;

/* Shared memory of sequence_find. */
enum {
    SEQUENCE_FOUND = 4 * SCAN_WORDS,
    SEQUENCE_FAULT = SEQUENCE_FOUND + 32,
    SEQUENCE_BYTES = 192
};

/* Fault of sequence b: its lengths, then where its tiled scales begin. */
MXA_DEVICE uint32_t sequence_fault(const mxa_gpu_sequences *batch, int b, sequence_side *s)
{
    sequence_read(batch->cu_seqlens, batch->seqused, batch->seqlen, batch->total, 0x7FFFFFFF, b, s);
    for (int axis = 0; axis < 2 && !s->fault; axis++) {
        if (batch->cu_scale[axis]) {
            int at = dev_load_global_i32(batch->cu_scale[axis] + 4 * (uint64_t)b);
            int end = dev_load_global_i32(batch->cu_scale[axis] + 4 * (uint64_t)b + 4);
            if (at % 128 || end % 128 || at < 0 || (end - at) / 128 < ceil_div(s->length, 128)) {
                s->fault = MXA_FAULT_CU_SCALE;
            }
        }
    }
    return s->fault;
}

/* Adds up the batch, `tile` being one of its tiles of 128 tokens; the thread whose sequence has it
 * leaves word in shared memory, as does one that meets a fault. */
MXA_DEVICE void sequence_walk(const mxa_gpu_sequences *batch, mxa_shared shared, int tile)
{
    const int threads = dev_threads();
    int tiles = 0, blocks = 0, total;
    MXA_NO_UNROLL
    for (int base = 0; base < batch->batch; base += threads) {
        const int b = base + dev_thread();
        sequence_side s = {0, 0, 0, 0};
        if (b < batch->batch && sequence_fault(batch, b, &s)) {
            (void)dev_fetch_add_shared_u32(shared + SEQUENCE_FAULT, 1);
            s.length = 0;
        }
        const int my_tiles = ceil_div(s.length, 128);
        const int first = tiles + cta_scan(shared, my_tiles, &total);
        tiles += total;
        const int block = blocks + cta_scan(shared, ceil_div(s.length, 32), &total);
        blocks += total;
        if (tile >= first && tile < first + my_tiles) {
            mxa_u32x4 a = {(uint32_t)b, (uint32_t)s.first, (uint32_t)s.length, (uint32_t)s.used};
            mxa_u32x4 z = {(uint32_t)(128 * (tile - first)), (uint32_t)block,
                           (uint32_t)(128 * first), 0};
            dev_store_shared_u32x4(shared + SEQUENCE_FOUND, a);
            dev_store_shared_u32x4(shared + SEQUENCE_FOUND + 16, z);
        }
    }
    if (tile >= tiles && dev_thread() == 0) {
        mxa_u32x4 none = {0xFFFFFFFFu, (uint32_t)(tile - tiles), (uint32_t)tiles, 0};
        mxa_u32x4 zeros = {0, 0, 0, 0};
        dev_store_shared_u32x4(shared + SEQUENCE_FOUND, none);
        dev_store_shared_u32x4(shared + SEQUENCE_FOUND + 16, zeros);
    }
    cta_sync();
}

/* The status word of the first fault, by one thread. */
MXA_DEVICE uint32_t sequence_first_fault(const mxa_gpu_sequences *batch)
{
    MXA_NO_UNROLL
    for (int b = 0; b < batch->batch; b++) {
        sequence_side s;
        uint32_t fault = sequence_fault(batch, b, &s);
        if (fault) {
            return fault | MXA_FAULT_PLAIN | (uint32_t)(b < 0xFFFFFF ? b : 0xFFFFFF) << 8;
        }
    }
    return 0;
}

/* What sequence_find left in shared memory (or arithmetic, for a dense batch). Cheap, so that a
 * kernel need not keep it in registers. */
MXA_DEVICE void sequence_again(const mxa_gpu_sequences *batch, mxa_shared shared, int tile,
                               sequence_tile *at)
{
    at->tail = at->share = 0;
    at->shares = 1;
    if (!batch->walk) {
        const int tiles = (int)batch->tiles_each.divisor, b = divide(tile, batch->tiles_each);
        at->sequence = at->outer = b;
        at->first = 0;
        at->length = at->used = batch->seqlen;
        at->position = 128 * (tile - b * tiles);
        at->token = b * batch->seqlen;
        at->block = b * ceil_div(batch->seqlen, 32);
        at->tiled_row = b * tiles * 128;
        return;
    }
    const mxa_u32x4 a = dev_load_shared_u32x4(shared + SEQUENCE_FOUND);
    const mxa_u32x4 z = dev_load_shared_u32x4(shared + SEQUENCE_FOUND + 16);
    const int jagged = batch->cu_seqlens != 0;
    at->sequence = (int)a.x;
    if (at->sequence < 0) {
        at->tail = jagged && batch->batch
                       ? dev_load_global_i32(batch->cu_seqlens + 4 * (uint64_t)batch->batch)
                       : 0;
        at->share = (int)a.y;
        at->shares = batch->tiles - (int)a.z;
    }
    at->outer = jagged ? 0 : (int)a.x;
    at->first = jagged ? (int)a.y : 0;
    at->length = (int)a.z;
    at->used = (int)a.w;
    at->position = (int)z.x;
    at->token = jagged ? (int)a.y : (int)a.x * batch->seqlen;
    at->block = (int)z.y;
    at->tiled_row = (int)z.z;
}

/* Finds tile `tile`; 0 when the batch is malformed, and nothing may be written. The first CTA says
 * so in the caller's status word. The whole CTA; `shared`: SEQUENCE_BYTES, aligned to 16. */
MXA_DEVICE int sequence_find(const mxa_gpu_sequences *batch, mxa_shared shared, int tile,
                             sequence_tile *at)
{
    const int first_thread = dev_block_x() == 0 && tile == 0 && dev_thread() == 0;
    uint32_t fault = 0;
    if (tile >= batch->tiles) {
        return 0; /* the grid's last row is not full */
    }
    if (batch->walk) {
        if (dev_thread() == 0) {
            dev_store_shared_u32(shared + SEQUENCE_FAULT, 0);
        }
        cta_sync();
        sequence_walk(batch, shared, tile);
        fault = dev_load_shared_u32(shared + SEQUENCE_FAULT);
    }
    if (first_thread && batch->status) {
        dev_store_global_u32(batch->status, fault ? sequence_first_fault(batch) : 0);
    }
    sequence_again(batch, shared, tile, at);
    return fault == 0;
}

#endif
