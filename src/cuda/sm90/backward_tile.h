/* backward_tile.h: which tile of keys a CTA works on, and which queries see it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_TILE_H
#define MXA_CUDA_SM90_BACKWARD_TILE_H

#include "cuda/dev/barrier.h"
#include "cuda/dev/memory.h"
#include "cuda/sm90/backward_params.h"

/* One tile of keys in shared memory: consumers read it, and the producer, which finds it, at every
 * step (its registers do not hold it). Places are of the private copies, k_outer and k_first (of
 * the sequence) of the caller's tensors; first: the tile's first key, from the sequence's start;
 * q_row and q_tile: the sequence's first; diagonal: the key on the diagonal of query 0. */
enum {
    BACKWARD_TILE_STEPS = 0,    /* steps (-1: no more tiles), first, k_used, sequence */
    BACKWARD_TILE_PLACE = 16,   /* kv_head, k_row, k_outer, k_first */
    BACKWARD_TILE_QUERIES = 32, /* q_row, q_tile, q_used, diagonal */
    BACKWARD_TILE_RANGE = 48,   /* step_first, step_end, dV's factor, flags below */
    BACKWARD_TILE_KEYS = 64,    /* mxa_backward_key_record of its groups, at most six */
    BACKWARD_TILE_BYTES = 160
};

/* Of a tile: a mean is used when another bit is not 0. */
#define BACKWARD_TILE_FAR 0x80000000u /* some record of its queries may be far */

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
    BACKWARD_FAR = 1024,  /* of the record */
    BACKWARD_HEAD = 2048  /* times the head's number in its group */
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

/* The next tile that no CTA has taken. WHY not dealt beforehand: CTAs that are early take more, and
 * a tile is taken after all before it, so that one that waits for them (`order`) waits for tiles
 * that are worked on. */
MXA_DEVICE int backward_tile_take(const mxa_backward_params *params)
{
    return (int)dev_fetch_add_global_u32(params->taken, 1);
}

/* Sequence, head and first key of tile `index` of a dense batch. WHY pairs together: with a
 * diagonal the first keys are seen by most queries and go first; in order, a tile waits for the one
 * before, better of an earlier round. Of too many pairs, queries and dQ would not stay in L2 until
 * the next tile of keys reads them. */
MXA_DEVICE void backward_tile_place(const mxa_backward_params *params, int tile_k, int index,
                                    int *sequence, int *kv_head, int *first)
{
    const mxa_gpu_batch *batch = &params->batch;
    const int kv_heads = params->heads / params->group, pairs = batch->batch * kv_heads;
    const int each = params->together * batch->tiles_per_sequence, part = index / each;
    const int rest = pairs - part * params->together, in_part = index - part * each;
    const int width = rest < params->together ? rest : params->together;
    const int pair = part * params->together + in_part % width;
    *first = in_part / width * tile_k;
    *sequence = pair / kv_heads;
    *kv_head = pair % kv_heads;
}

/* Writes step_first and step_end, the query tiles that see some key of the tile from `first` on,
 * and how many steps the tile has. */
MXA_DEVICE void backward_tile_write_steps(const mxa_backward_params *params, int tile_k, int first,
                                          int q_used, int k_used, int diagonal, mxa_shared at)
{
    const int last_key = backward_min(first + tile_k, k_used) - 1;
    const int low =
        params->window_right < 0 ? 0 : backward_max(0, first - diagonal - params->window_right);
    const int high = params->window_left < 0
                         ? q_used - 1
                         : backward_min(q_used - 1, last_key - diagonal + params->window_left);
    const int step_first = low / MXA_BACKWARD_TILE_Q;
    const int step_end =
        high < low || last_key < first ? step_first : high / MXA_BACKWARD_TILE_Q + 1;
    dev_store_shared_u32x2(at + BACKWARD_TILE_RANGE, (uint32_t)step_first, (uint32_t)step_end);
    dev_store_shared_u32(at + BACKWARD_TILE_STEPS,
                         (uint32_t)((step_end - step_first) * params->group));
}

/* Writes tile `index` of the list, `tile_k` keys, to shared memory. WHY a value at a time: the
 * producer has few registers. */
MXA_DEVICE void backward_tile_find(const mxa_backward_params *params, int tile_k, int index,
                                   mxa_shared at)
{
    const mxa_gpu_batch *batch = &params->batch;
    int sequence, kv_head, first, q_used = batch->seqlen_q, k_used = batch->seqlen_k;
    if (batch->tiles == 0) {
        backward_tile_place(params, tile_k, index, &sequence, &kv_head, &first);
    } else {
        const mxa_u32x4 tile = dev_load_global_u32x4(batch->tiles + 16 * (uint64_t)index);
        sequence = (int)tile.x;
        kv_head = (int)tile.y;
        first = (int)tile.z;
    }
    dev_store_shared_u32(at + BACKWARD_TILE_STEPS + 4, (uint32_t)first);
    dev_store_shared_u32(at + BACKWARD_TILE_STEPS + 12, (uint32_t)sequence);
    dev_store_shared_u32(at + BACKWARD_TILE_PLACE, (uint32_t)kv_head);
    if (batch->sequences == 0) {
        const int q_tiles = (q_used + MXA_BACKWARD_TILE_Q - 1) / MXA_BACKWARD_TILE_Q;
        dev_store_shared_u32(at + BACKWARD_TILE_PLACE + 4,
                             (uint32_t)(sequence * batch->padded_k + first));
        dev_store_shared_u32x2(at + BACKWARD_TILE_PLACE + 8, (uint32_t)sequence, 0);
        dev_store_shared_u32x2(at + BACKWARD_TILE_QUERIES, (uint32_t)(sequence * batch->padded_q),
                               (uint32_t)(sequence * q_tiles));
    } else {
        const mxa_global record = batch->sequences + 64 * (uint64_t)sequence;
        const mxa_u32x2 rows = dev_load_global_u32x2(record + 32);
        dev_store_shared_u32(at + BACKWARD_TILE_PLACE + 4, rows.y + (uint32_t)first);
        dev_store_shared_u32x2(at + BACKWARD_TILE_QUERIES, rows.x,
                               (uint32_t)(((int)rows.x / MXA_BACKWARD_GROUP + sequence + 1) / 2));
        const mxa_u32x2 k = dev_load_global_u32x2(record + 16);
        dev_store_shared_u32x2(at + BACKWARD_TILE_PLACE + 8, k.x, k.y);
        q_used = dev_load_global_i32(record + 8);
        k_used = dev_load_global_i32(record + 24);
    }
    const int diagonal = params->top_left ? 0 : k_used - q_used;
    dev_store_shared_u32(at + BACKWARD_TILE_STEPS + 8, (uint32_t)k_used);
    dev_store_shared_u32x2(at + BACKWARD_TILE_QUERIES + 8, (uint32_t)q_used, (uint32_t)diagonal);
    backward_tile_write_steps(params, tile_k, first, q_used, k_used, diagonal, at);
}

/* What consumers need of the tile's head besides. */
MXA_DEVICE void backward_tile_write_factors(const mxa_backward_params *params, mxa_shared at)
{
    const uint64_t pair = (uint64_t)dev_load_shared_u32(at + BACKWARD_TILE_STEPS + 12) *
                              (uint64_t)(params->heads / params->group) +
                          dev_load_shared_u32(at + BACKWARD_TILE_PLACE);
    const mxa_global used = params->mean_used + 4 * pair * (uint64_t)params->group;
    /* WHY all before any is looked at: one latency of memory, not three. */
    const uint32_t far = dev_load_global_u32(params->far + 4 * pair);
    const uint32_t factor = dev_load_global_u32(params->dv_factor + 4 * pair);
    uint32_t means = dev_load_global_u32(used);
    MXA_NO_UNROLL
    for (int h = 1; h < params->group; h++) {
        means |= dev_load_global_u32(used + 4 * (uint64_t)h);
    }
    dev_store_shared_u32x2(at + BACKWARD_TILE_RANGE + 8, factor,
                           far ? means | BACKWARD_TILE_FAR : means);
}

/* BACKWARD_MASKED unless all 64 queries of step `j` see all `tile_k` keys. */
MXA_DEVICE int backward_masked(const mxa_backward_params *params, int tile_k, mxa_shared at, int j)
{
    mxa_u32x4 counts = dev_load_shared_u32x4(at + BACKWARD_TILE_STEPS);
    mxa_u32x4 queries = dev_load_shared_u32x4(at + BACKWARD_TILE_QUERIES);
    /* The first query's offset to the first key, in keys from the diagonal. */
    int query = j * MXA_BACKWARD_TILE_Q, offset = (int)counts.y - (int)queries.w - query;
    int whole =
        query + MXA_BACKWARD_TILE_Q <= (int)queries.z && (int)counts.y + tile_k <= (int)counts.z;
    if (params->window_right >= 0 && offset + tile_k - 1 > params->window_right) {
        whole = 0;
    }
    if (params->window_left >= 0 && MXA_BACKWARD_TILE_Q - 1 - offset > params->window_left) {
        whole = 0;
    }
    return whole ? 0 : BACKWARD_MASKED;
}

/* The words of step `j`, of head `head` of the group, of the tile at `at`. */
MXA_DEVICE void backward_step_write(const mxa_backward_params *params, int tile_k, mxa_shared at,
                                    int head, int j, mxa_shared to)
{
    int flags = backward_masked(params, tile_k, at, j) | head * BACKWARD_HEAD;
    mxa_u32x4 counts = dev_load_shared_u32x4(at + BACKWARD_TILE_STEPS);
    mxa_u32x4 queries = dev_load_shared_u32x4(at + BACKWARD_TILE_QUERIES);
    int q_head = (int)dev_load_shared_u32(at + BACKWARD_TILE_PLACE) * params->group + head;
    int query = j * MXA_BACKWARD_TILE_Q, first = (int)counts.y, low = 0;
    uint64_t pair = (uint64_t)((int)counts.w * params->heads + q_head);
    uint64_t block = (uint64_t)(q_head * params->q_tiles + (int)queries.y + j);
    const uint32_t rare = dev_load_shared_u32(at + BACKWARD_TILE_RANGE + 12);
    if (rare & BACKWARD_TILE_FAR) {
        flags |= dev_load_global_u32(params->q_records + block * MXA_BACKWARD_RECORDS +
                                     MXA_BACKWARD_RECORD_FAR)
                     ? BACKWARD_FAR
                     : 0;
    }
    if (rare & ~BACKWARD_TILE_FAR) {
        flags |= dev_load_global_u32(params->mean_used + 4 * pair) ? BACKWARD_MEAN : 0;
    }
    flags |= j == (int)dev_load_shared_u32(at + BACKWARD_TILE_RANGE) ? BACKWARD_LAST : 0;
    flags |= backward_min((int)queries.z - query, MXA_BACKWARD_TILE_Q) * BACKWARD_QUERIES;
    if (params->window_left >= 0) {
        low = backward_max(0, query + (int)queries.w - params->window_left);
    }
    dev_store_shared_u32x2(to, (uint32_t)block, (uint32_t)(first - (int)queries.w - query));
    dev_store_shared_u32x2(to + BACKWARD_STEP_FLAGS, (uint32_t)flags,
                           (uint32_t)(first / tile_k - low / tile_k));
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
