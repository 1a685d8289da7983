/* backward_tile.h: which tile of keys a CTA works on, and which queries see it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_TILE_H
#define MXA_CUDA_SM90_BACKWARD_TILE_H

#include "cuda/dev/barrier.h"
#include "cuda/dev/memory.h"
#include "cuda/sm90/backward_params.h"

/* One tile of keys, as the producer finds it. */
typedef struct backward_tile {
    int sequence, kv_head;
    int first;            /* its first key, from the sequence's start */
    int k_row, q_row;     /* of the tile, and of the sequence's queries, in the private copies */
    int q_tile;           /* the sequence's first query tile */
    int k_outer, k_first; /* of the sequence in the caller's tensors */
    int q_used, k_used;
    int diagonal;             /* key on the diagonal of query 0 */
    int step_first, step_end; /* query tiles of the sequence that see some key */
} backward_tile;

/* The tile in shared memory: consumers read it, and the producer at every step (its registers do
 * not hold it). */
enum {
    BACKWARD_TILE_STEPS = 0,    /* steps (-1: no more tiles), first, k_used, sequence */
    BACKWARD_TILE_PLACE = 16,   /* kv_head, k_row, k_outer, k_first */
    BACKWARD_TILE_QUERIES = 32, /* q_row, q_tile, q_used, diagonal */
    BACKWARD_TILE_RANGE = 48,   /* step_first, step_end */
    BACKWARD_TILE_BYTES = 64
};

/* A step's word in shared memory: four integers. */
enum {
    BACKWARD_STEP_DQ = 0,     /* head * q_tiles + tile */
    BACKWARD_STEP_BASE = 4,   /* key 0 of the tile - diagonal - query 0 of the step */
    BACKWARD_STEP_FLAGS = 8,  /* below */
    BACKWARD_STEP_ORDER = 12, /* tiles of keys that add to this dQ before */
    BACKWARD_STEP_BYTES = 16
};
enum {
    BACKWARD_MASKED = 1,  /* some pair of the step is not seen */
    BACKWARD_MEAN = 2,    /* dO's copy is less a mean: P is summed over queries */
    BACKWARD_LAST = 4,    /* of this head */
    BACKWARD_QUERIES = 8, /* times how many of its queries are there, 1..64 */
    BACKWARD_HEAD = 1024  /* times the head's number in its group */
};

MXA_DEVICE int backward_min(int a, int b)
{
    return a < b ? a : b;
}

MXA_DEVICE int backward_max(int a, int b)
{
    return a > b ? a : b;
}

MXA_DEVICE int backward_tile_count(const mxa_backward_params *params)
{
    return params->batch.tile_count ? dev_load_global_i32(params->batch.tile_count) : params->tiles;
}

/* The CTA's `round`th tile: back and forth, as the forward deals them; in one direction where tiles
 * wait for earlier ones, or their delays would add up. */
MXA_DEVICE int backward_tile_index(const mxa_backward_params *params, int round)
{
    int block = dev_block_x();
    int turned = (round & 1) && !params->order;
    return round * dev_grid_x() + (turned ? dev_grid_x() - 1 - block : block);
}

/* Query tiles that see some key of the tile. */
MXA_DEVICE void backward_steps(const mxa_backward_params *params, backward_tile *tile)
{
    int last_key = backward_min(tile->first + MXA_BACKWARD_TILE_K, tile->k_used) - 1;
    int low = params->window_right < 0
                  ? 0
                  : backward_max(0, tile->first - tile->diagonal - params->window_right);
    int high =
        params->window_left < 0
            ? tile->q_used - 1
            : backward_min(tile->q_used - 1, last_key - tile->diagonal + params->window_left);
    tile->step_first = low / MXA_BACKWARD_TILE_Q;
    tile->step_end =
        high < low || last_key < tile->first ? tile->step_first : high / MXA_BACKWARD_TILE_Q + 1;
}

MXA_DEVICE void backward_tile_find(const mxa_backward_params *params, int index,
                                   backward_tile *tile)
{
    const mxa_gpu_batch *batch = &params->batch;
    if (batch->tiles == 0) {
        int kv_heads = params->heads / params->group, pairs = batch->batch * kv_heads, pair;
        if (params->window_right >= 0 || params->order) {
            /* WHY: with a diagonal the first keys are seen by most queries; they go first. In
             * order, a tile waits for the one before: better of an earlier round. */
            tile->first = index / pairs * MXA_BACKWARD_TILE_K;
            pair = index % pairs;
        } else {
            tile->first = index % batch->tiles_per_sequence * MXA_BACKWARD_TILE_K;
            pair = index / batch->tiles_per_sequence;
        }
        tile->sequence = pair / kv_heads;
        tile->kv_head = pair % kv_heads;
    } else {
        mxa_u32x4 at = dev_load_global_u32x4(batch->tiles + 16 * (uint64_t)index);
        tile->sequence = (int)at.x;
        tile->kv_head = (int)at.y;
        tile->first = (int)at.z;
    }
    if (batch->sequences == 0) {
        tile->k_outer = tile->sequence;
        tile->k_first = 0;
        tile->q_used = batch->seqlen_q;
        tile->k_used = batch->seqlen_k;
        tile->q_row = tile->sequence * batch->padded_q;
        tile->k_row = tile->sequence * batch->padded_k + tile->first;
        tile->q_tile =
            tile->sequence * ((batch->seqlen_q + MXA_BACKWARD_TILE_Q - 1) / MXA_BACKWARD_TILE_Q);
    } else {
        mxa_global record = batch->sequences + 64 * (uint64_t)tile->sequence;
        mxa_u32x4 q = dev_load_global_u32x4(record);
        mxa_u32x4 k = dev_load_global_u32x4(record + 16);
        mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
        tile->k_outer = (int)k.x;
        tile->k_first = (int)k.y;
        tile->q_used = (int)q.z;
        tile->k_used = (int)k.z;
        tile->q_row = (int)rows.x;
        tile->k_row = (int)rows.y + tile->first;
        tile->q_tile = ((int)rows.x / MXA_BACKWARD_GROUP + tile->sequence + 1) / 2;
    }
    tile->diagonal = params->top_left ? 0 : tile->k_used - tile->q_used;
    backward_steps(params, tile);
}

MXA_DEVICE void backward_tile_write(const backward_tile *tile, int steps, mxa_shared at)
{
    mxa_u32x4 counts = {(uint32_t)steps, (uint32_t)tile->first, (uint32_t)tile->k_used,
                        (uint32_t)tile->sequence};
    mxa_u32x4 place = {(uint32_t)tile->kv_head, (uint32_t)tile->k_row, (uint32_t)tile->k_outer,
                       (uint32_t)tile->k_first};
    mxa_u32x4 queries = {(uint32_t)tile->q_row, (uint32_t)tile->q_tile, (uint32_t)tile->q_used,
                         (uint32_t)tile->diagonal};
    dev_store_shared_u32x4(at + BACKWARD_TILE_STEPS, counts);
    dev_store_shared_u32x4(at + BACKWARD_TILE_PLACE, place);
    dev_store_shared_u32x4(at + BACKWARD_TILE_QUERIES, queries);
    dev_store_shared_u32x2(at + BACKWARD_TILE_RANGE, (uint32_t)tile->step_first,
                           (uint32_t)tile->step_end);
}

/* BACKWARD_MASKED unless all 64 queries of step `j` see all 128 keys. */
MXA_DEVICE int backward_masked(const mxa_backward_params *params, mxa_shared at, int j)
{
    mxa_u32x4 counts = dev_load_shared_u32x4(at + BACKWARD_TILE_STEPS);
    mxa_u32x4 queries = dev_load_shared_u32x4(at + BACKWARD_TILE_QUERIES);
    /* The first query's offset to the first key, in keys from the diagonal. */
    int query = j * MXA_BACKWARD_TILE_Q, offset = (int)counts.y - (int)queries.w - query;
    int whole = query + MXA_BACKWARD_TILE_Q <= (int)queries.z &&
                (int)(counts.y + MXA_BACKWARD_TILE_K) <= (int)counts.z;
    if (params->window_right >= 0 && offset + MXA_BACKWARD_TILE_K - 1 > params->window_right) {
        whole = 0;
    }
    if (params->window_left >= 0 && MXA_BACKWARD_TILE_Q - 1 - offset > params->window_left) {
        whole = 0;
    }
    return whole ? 0 : BACKWARD_MASKED;
}

/* The words of step `j`, of head `head` of the group, of the tile at `at`. */
MXA_DEVICE void backward_step_write(const mxa_backward_params *params, mxa_shared at, int head,
                                    int j, mxa_shared to)
{
    int flags = backward_masked(params, at, j) | head * BACKWARD_HEAD;
    mxa_u32x4 counts = dev_load_shared_u32x4(at + BACKWARD_TILE_STEPS);
    mxa_u32x4 queries = dev_load_shared_u32x4(at + BACKWARD_TILE_QUERIES);
    int q_head = (int)dev_load_shared_u32(at + BACKWARD_TILE_PLACE) * params->group + head;
    int query = j * MXA_BACKWARD_TILE_Q, first = (int)counts.y, low = 0;
    uint64_t pair = (uint64_t)((int)counts.w * params->heads + q_head);
    flags |= dev_load_global_u32(params->mean_used + 4 * pair) ? BACKWARD_MEAN : 0;
    flags |= j == (int)dev_load_shared_u32(at + BACKWARD_TILE_RANGE + 4) - 1 ? BACKWARD_LAST : 0;
    flags |= backward_min((int)queries.z - query, MXA_BACKWARD_TILE_Q) * BACKWARD_QUERIES;
    if (params->window_left >= 0) {
        low = backward_max(0, query + (int)queries.w - params->window_left);
    }
    dev_store_shared_u32x2(to, (uint32_t)(q_head * params->q_tiles + (int)queries.y + j),
                           (uint32_t)(first - (int)queries.w - query));
    dev_store_shared_u32x2(to + BACKWARD_STEP_FLAGS, (uint32_t)flags,
                           (uint32_t)(first / MXA_BACKWARD_TILE_K - low / MXA_BACKWARD_TILE_K));
}

/* The bits of queries below `end`: bit 2*j + e is query 8*j + 2*c + e of the step. */
MXA_DEVICE uint32_t backward_queries_below(int end, int c)
{
    int t = end - 2 * c;
    int bits = 2 * (t >> 3) + backward_min(t & 7, 2);
    return bits <= 0 ? 0u : bits >= 16 ? 0xFFFFu : (1u << bits) - 1;
}

/* Which of a thread's queries see a key: offset = key - diagonal - the step's first query; seen
 * when -left <= offset - query <= right, of `queries` that are there. */
MXA_DEVICE uint32_t backward_seen(const mxa_backward_params *params, int offset, int queries, int c)
{
    int first = params->window_right < 0 ? 0 : offset - params->window_right;
    int end =
        params->window_left < 0 ? queries : backward_min(queries, offset + params->window_left + 1);
    return backward_queries_below(end, c) & ~backward_queries_below(first, c);
}

#endif
