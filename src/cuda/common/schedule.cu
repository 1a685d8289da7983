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

/* Queries that see the tile of keys from `first` on, in blocks. */
MXA_DEVICE int key_tile_cost(const mxa_schedule_params *params, int first, int q_used, int k_used)
{
    int queries = q_used;
    if (params->causal) {
        int hidden = first - (params->top_left ? 0 : k_used - q_used);
        queries -= hidden < 0 ? 0 : hidden > q_used ? q_used : hidden;
    }
    int blocks = ceil_div(queries, 128);
    return params->ordered ? 0 : blocks < BUCKETS ? blocks : BUCKETS - 1;
}

/* The same as walk_tiles, of tiles of keys and kv heads. WHY a thread keeps whole sequences: with
 * `ordered` there is one bucket, and the tiles of a sequence and head come in their order. */
MXA_DEVICE void walk_key_tiles(const mxa_schedule_params *params, mxa_shared shared, int write)
{
    for (int b = dev_thread(); b < params->batch; b += THREADS) {
        mxa_global record = params->sequences + 64 * (uint64_t)b;
        int q_used = dev_load_global_i32(record + 8), k_used = dev_load_global_i32(record + 24);
        for (int first = 0; first < k_used; first += params->tile_q) {
            int bucket = BUCKETS - 1 - key_tile_cost(params, first, q_used, k_used);
            uint32_t at = dev_fetch_add_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)bucket,
                                                   (uint32_t)params->heads);
            for (int h = 0; write && h < params->heads; h++) {
                mxa_u32x4 tile = {(uint32_t)b, (uint32_t)h, (uint32_t)first, 0};
                dev_store_global_u32x4(params->tiles + 16 * (uint64_t)(at + (uint32_t)h), tile);
            }
        }
    }
}

/* The list of key tiles of a batch whose records and status are there; heads: kv heads; tile_q:
 * keys of a tile. */
MXA_KERNEL_SMALL(mxa_schedule_keys, 1024, mxa_schedule_params, parameters)
{
    const mxa_schedule_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    dev_store_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread(), 0);
    cta_sync();
    if (dev_load_global_u32(params->status)) {
        return;
    }
    walk_key_tiles(params, shared, 0);
    int total = place_buckets(shared);
    walk_key_tiles(params, shared, 1);
    if (dev_thread() == 0) {
        dev_store_global_u32(params->tile_count, (uint32_t)total);
    }
}
