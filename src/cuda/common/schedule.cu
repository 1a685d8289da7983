/* schedule.cu: checks a jagged batch on the device and writes its tables.
 *
 * One CTA: validates cu_seqlens and seqused into the status word (docs/api.md, device status),
 * writes a record for each sequence (common/batch.h) and the list of tiles, longest first, so that
 * a persistent grid that deals them out in turn ends evenly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/prepare_params.h"
#include "cuda/common/sequences.h"
#include "cuda/dev/cluster.h"

enum {
    THREADS = 1024,
    BUCKETS = 1024, /* of tile cost, in blocks of 128 keys */
    AT_SCAN = 0,    /* 33 words */
    AT_BUCKETS = 256,
    AT_STATUS = AT_BUCKETS + 4 * BUCKETS
};

/* Keys that the tile's last query sees, in blocks: what the tile costs, near enough. */
MXA_DEVICE int tile_cost(const mxa_schedule_params *params, int first, int q_used, int k_used)
{
    int keys = k_used;
    if (params->causal) {
        int last = first + params->tile_q < q_used ? first + params->tile_q : q_used;
        keys = last + (params->top_left ? 0 : k_used - q_used);
        keys = keys > k_used ? k_used : keys < 0 ? 0 : keys;
    }
    int blocks = ceil_div(keys, 128);
    return blocks < BUCKETS ? blocks : BUCKETS - 1;
}

/* Writes the records; returns the word of the first fault. */
MXA_DEVICE uint32_t write_sequences(const mxa_schedule_params *params, mxa_shared shared)
{
    int q_row = 0, k_row = 0, q_block = 0, k_block = 0, q_tiled = 0, k_tiled = 0;
    if (dev_thread() == 0) {
        dev_store_shared_u32(shared + AT_STATUS, 0);
    }
    for (int base = 0; base < params->batch; base += THREADS) {
        int b = base + dev_thread();
        sequence_side q = {0, 0, 0, 0}, k = {0, 0, 0, 0};
        if (b < params->batch) {
            sequence_read(params->cu_seqlens_q, params->seqused_q, params->seqlen_q,
                          params->total_q, params->max_seqlen_q, b, &q);
            sequence_read(params->cu_seqlens_k, params->seqused_k, params->seqlen_k,
                          params->total_k, params->max_seqlen_k, b, &k);
            uint32_t fault = q.fault ? q.fault : k.fault ? k.fault | MXA_FAULT_SIDE_K : 0;
            if (fault) {
                dev_store_shared_u32(shared + AT_STATUS,
                                     fault | (uint32_t)(b < 0xFFFFFF ? b : 0xFFFFFF) << 8);
            }
        }
        int total;
        mxa_u32x4 rows, numbers;
        rows.x =
            (uint32_t)(q_row + cta_scan(shared + AT_SCAN, ceil_div(q.length, 32) * 32, &total));
        q_row += total;
        rows.y =
            (uint32_t)(k_row + cta_scan(shared + AT_SCAN, ceil_div(k.length, 128) * 128, &total));
        k_row += total;
        numbers.x =
            (uint32_t)(q_block + cta_scan(shared + AT_SCAN, ceil_div(q.length, 32), &total));
        q_block += total;
        numbers.y =
            (uint32_t)(k_block + cta_scan(shared + AT_SCAN, ceil_div(k.length, 32), &total));
        k_block += total;
        numbers.z =
            (uint32_t)(q_tiled + cta_scan(shared + AT_SCAN, ceil_div(q.length, 128) * 128, &total));
        q_tiled += total;
        numbers.w =
            (uint32_t)(k_tiled + cta_scan(shared + AT_SCAN, ceil_div(k.length, 128) * 128, &total));
        k_tiled += total;
        if (b < params->batch) {
            int jagged = params->cu_seqlens_q != 0;
            rows.z = (uint32_t)(jagged ? q.first : b * params->seqlen_q);
            rows.w = (uint32_t)(jagged ? k.first : b * params->seqlen_k);
            mxa_u32x4 q_side = {jagged ? 0u : (uint32_t)b, (uint32_t)q.first, (uint32_t)q.used,
                                (uint32_t)q.length};
            mxa_u32x4 k_side = {jagged ? 0u : (uint32_t)b, (uint32_t)k.first, (uint32_t)k.used,
                                (uint32_t)k.length};
            mxa_global at = params->sequences + 64 * (uint64_t)b;
            dev_store_global_u32x4(at, q_side);
            dev_store_global_u32x4(at + 16, k_side);
            dev_store_global_u32x4(at + 32, rows);
            dev_store_global_u32x4(at + 48, numbers);
        }
    }
    cta_sync();
    return dev_load_shared_u32(shared + AT_STATUS);
}

/* Room for `count` tiles of one cost: the number of the first. The whole warp. */
MXA_DEVICE int take_places(mxa_shared shared, int cost, int count)
{
    int at = 0;
    if ((dev_thread() & 31) == 0) {
        const uint32_t bucket = (uint32_t)(BUCKETS - 1 - cost);
        at = (int)dev_fetch_add_shared_u32(shared + AT_BUCKETS + 4 * bucket, (uint32_t)count);
    }
    return shuffle_i32(at, 0);
}

/* Visits every tile, a warp to a sequence: counts it, or writes it. Without a diagonal a sequence's
 * tiles cost the same and go head by head: neighbours share keys and values in L2. */
MXA_DEVICE void walk_tiles(const mxa_schedule_params *params, mxa_shared shared, int write)
{
    const int lane = dev_thread() & 31, heads = params->heads, step = params->tile_q;
    for (int b = dev_thread() >> 5; b < params->batch; b += THREADS / 32) {
        mxa_global record = params->sequences + 64 * (uint64_t)b;
        int q_used = dev_load_global_i32(record + 8), k_used = dev_load_global_i32(record + 24);
        const int tiles = q_used > 0 ? (q_used + step - 1) / step : 0;
        const int together = params->causal ? 1 : tiles; /* tiles of a head in a row */
        for (int t = 0; t < tiles; t += together) {
            int at =
                take_places(shared, tile_cost(params, t * step, q_used, k_used), heads * together);
            for (int i = lane; write && i < heads * together; i += 32) {
                int first = (t + i % together) * step;
                mxa_u32x4 tile = {(uint32_t)b, (uint32_t)(i / together), (uint32_t)first, 0};
                dev_store_global_u32x4(params->tiles + 16 * (uint64_t)(at + i), tile);
            }
        }
    }
}

/* Turns the counts of the buckets into where each begins; returns their sum. */
MXA_DEVICE int place_buckets(mxa_shared shared)
{
    int total;
    cta_sync();
    int mine = (int)dev_load_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread());
    int before = cta_scan(shared + AT_SCAN, mine, &total);
    cta_sync();
    dev_store_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread(), (uint32_t)before);
    cta_sync();
    return total;
}

MXA_KERNEL_SMALL(mxa_schedule, 1024, mxa_schedule_params, parameters)
{
    const mxa_schedule_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    dev_store_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread(), 0);
    uint32_t status = write_sequences(params, shared);
    if (dev_thread() == 0) {
        dev_store_global_u32(params->status, status);
        if (params->caller_status) {
            dev_store_global_u32(params->caller_status, status);
        }
    }
    if (status) {
        return;
    }
    walk_tiles(params, shared, 0);
    int total = place_buckets(shared);
    walk_tiles(params, shared, 1);
    if (dev_thread() == 0) {
        dev_store_global_u32(params->tile_count, (uint32_t)total);
    }
}

/* Tiles of keys of a sequence and head. */
MXA_DEVICE int key_tiles(const mxa_schedule_params *params, int sequence)
{
    const int used =
        dev_load_global_i32(params->sequences + 64 * (uint64_t)sequence + 24); /* k_used */
    return used > 0 ? ceil_div(used, params->tile_q) : 0;
}

MXA_DEVICE int ranked(const mxa_schedule_params *params, int rank)
{
    return dev_load_global_i32(params->ranks + 8 * (uint64_t)rank);
}

/* Ranks sequences, most queries first: what a tile of keys costs. Writes the sequence of each rank;
 * returns nothing before all have. */
MXA_DEVICE void rank_sequences(const mxa_schedule_params *params, mxa_shared shared)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int b = dev_thread(); b < params->batch; b += THREADS) {
            const int q_used = dev_load_global_i32(params->sequences + 64 * (uint64_t)b + 8);
            const int blocks = q_used > 0 ? ceil_div(q_used, 128) : 0;
            const int bucket = BUCKETS - 1 - (blocks < BUCKETS ? blocks : BUCKETS - 1);
            const uint32_t at =
                dev_fetch_add_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)bucket, 1);
            if (pass) {
                dev_store_global_u32(params->ranks + 8 * (uint64_t)at, (uint32_t)b);
            }
        }
        if (pass == 0) {
            (void)place_buckets(shared);
        }
    }
    cta_sync();
}

/* Where each rank's tiles begin if ranks follow one another; returns how many tiles there are. */
MXA_DEVICE int place_ranks(const mxa_schedule_params *params, mxa_shared shared)
{
    int before = 0;
    for (int base = 0; base < params->batch; base += THREADS) {
        const int rank = base + dev_thread();
        int tiles = 0, total;
        if (rank < params->batch) {
            tiles = key_tiles(params, ranked(params, rank)) * params->heads;
        }
        const int at = before + cta_scan(shared + AT_SCAN, tiles, &total);
        if (rank < params->batch) {
            dev_store_global_u32(params->ranks + 8 * (uint64_t)rank + 4, (uint32_t)at);
        }
        before += total;
    }
    cta_sync();
    return before;
}

MXA_DEVICE void write_key_tile(const mxa_schedule_params *params, int at, int sequence, int head,
                               int t)
{
    const mxa_u32x4 tile = {(uint32_t)sequence, (uint32_t)head, (uint32_t)(t * params->tile_q), 0};
    dev_store_global_u32x4(params->tiles + 16 * (uint64_t)at, tile);
}

/* The place of head 0's tile t of rank `rank` where `width` ranks go together: behind all first
 * tiles of theirs, all second ones.., and the same tile of ranks before it. */
MXA_DEVICE int key_tile_place(const mxa_schedule_params *params, int rank, int width, int t)
{
    const int first = rank - rank % width;
    const int end = first + width < params->batch ? first + width : params->batch;
    int at = dev_load_global_i32(params->ranks + 8 * (uint64_t)first + 4);
    MXA_NO_UNROLL
    for (int r = first; r < end; r++) {
        const int tiles = key_tiles(params, ranked(params, r));
        at += params->heads * ((tiles < t ? tiles : t) + (r < rank && tiles > t));
    }
    return at;
}

/* Which sequence follows each `width` ranks on, and how many tiles of keys the one has that it
 * follows. */
MXA_DEVICE void write_turns(const mxa_schedule_params *params, int width)
{
    for (int rank = dev_thread(); rank < params->batch; rank += THREADS) {
        const int next = rank + width < params->batch ? ranked(params, rank + width) : -1;
        const int before = rank < width ? 0 : key_tiles(params, ranked(params, rank - width));
        dev_store_global_u32x2(params->turns + 8 * (uint64_t)ranked(params, rank), (uint32_t)next,
                               (uint32_t)before);
    }
}

/* The list of key tiles of a batch whose records and status are there; heads: kv heads; tile_q:
 * keys of a tile. The first tiles of `together` (sequence, head) pairs, then their second ones..;
 * of one, all tiles of a pair in a row. */
MXA_DEVICE void schedule_keys(const mxa_schedule_params *params, mxa_shared shared)
{
    const int heads = params->heads, lane = dev_thread() & 31;
    const int many = heads < params->together ? heads : params->together;
    const int width = ceil_div(params->together, heads);
    dev_store_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread(), 0);
    cta_sync();
    if (dev_load_global_u32(params->status)) {
        return;
    }
    rank_sequences(params, shared);
    const int total = place_ranks(params, shared);
    if (params->turns) {
        write_turns(params, width);
    }
    for (int rank = dev_thread() >> 5; rank < params->batch; rank += THREADS / 32) {
        const int sequence = ranked(params, rank), tiles = key_tiles(params, sequence);
        for (int t = lane; t < tiles; t += 32) {
            const int at = key_tile_place(params, rank, width, many == heads ? t : 0);
            MXA_NO_UNROLL
            for (int h = 0; h < heads; h++) {
                const int first = h - h % many;
                const int count = heads - first < many ? heads - first : many;
                const int place =
                    many == heads ? at + h : at + first * tiles + t * count + (h - first);
                write_key_tile(params, place, sequence, h, t);
            }
        }
    }
    if (dev_thread() == 0) {
        dev_store_global_u32(params->tile_count, (uint32_t)total);
    }
}

/* As mxa_clear_rows is launched: the kernel before makes nothing that this one reads. */
MXA_KERNEL_SMALL(mxa_schedule_keys, 1024, mxa_schedule_params, parameters)
{
    grid_dependency_launch();
    schedule_keys(&parameters, dev_shared());
    grid_dependency_wait();
}
