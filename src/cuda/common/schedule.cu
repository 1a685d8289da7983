/* schedule.cu: checks a jagged batch on the device and writes its tables.
 *
 * One CTA: validates cu_seqlens and seqused into the status word (docs/api.md, device status),
 * writes a record for each sequence (common/batch.h) and the list of tiles, longest first, so that
 * a persistent grid that deals them out in turn ends evenly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/memory.h"
#include "status.h"

enum {
    THREADS = 1024,
    BUCKETS = 1024, /* of tile cost, in blocks of 128 keys */
    AT_SCAN = 0,    /* 33 words */
    AT_BUCKETS = 256,
    AT_STATUS = AT_BUCKETS + 4 * BUCKETS
};

/* Sum of x over the threads before this one; *total over all. */
MXA_DEVICE int scan(mxa_shared shared, int x, int *total)
{
    int lane = dev_thread() & 31, warp = dev_thread() >> 5, sum = x;
    for (int delta = 1; delta < 32; delta <<= 1) {
        int below = shuffle_up_i32(sum, delta);
        sum += lane >= delta ? below : 0;
    }
    cta_sync();
    if (lane == 31) {
        dev_store_shared_u32(shared + AT_SCAN + 4 * (uint32_t)warp, (uint32_t)sum);
    }
    cta_sync();
    int before = 0;
    *total = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        int of_warp = (int)dev_load_shared_u32(shared + AT_SCAN + 4 * (uint32_t)w);
        before += w < warp ? of_warp : 0;
        *total += of_warp;
    }
    return before + sum - x;
}

/* One side (q or k) of one sequence. */
typedef struct side {
    int first, length, used;
    uint32_t fault; /* 0, or MXA_FAULT_ */
} side;

MXA_DEVICE void read_side(mxa_global cu, mxa_global seqused, int dense, int total, int most, int b,
                          side *s)
{
    s->fault = 0;
    if (cu) {
        int begin = dev_load_global_i32(cu + 4 * (uint64_t)b);
        int end = dev_load_global_i32(cu + 4 * (uint64_t)b + 4);
        s->first = begin;
        s->length = end - begin;
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

MXA_DEVICE int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

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
        side q = {0, 0, 0, 0}, k = {0, 0, 0, 0};
        if (b < params->batch) {
            read_side(params->cu_seqlens_q, params->seqused_q, params->seqlen_q, params->total_q,
                      params->max_seqlen_q, b, &q);
            read_side(params->cu_seqlens_k, params->seqused_k, params->seqlen_k, params->total_k,
                      params->max_seqlen_k, b, &k);
            uint32_t fault = q.fault ? q.fault : k.fault ? k.fault | MXA_FAULT_SIDE_K : 0;
            if (fault) {
                dev_store_shared_u32(shared + AT_STATUS,
                                     fault | (uint32_t)(b < 0xFFFFFF ? b : 0xFFFFFF) << 8);
            }
        }
        int total;
        mxa_u32x4 rows, numbers;
        rows.x = (uint32_t)(q_row + scan(shared, ceil_div(q.length, 32) * 32, &total));
        q_row += total;
        rows.y = (uint32_t)(k_row + scan(shared, ceil_div(k.length, 128) * 128, &total));
        k_row += total;
        numbers.x = (uint32_t)(q_block + scan(shared, ceil_div(q.length, 32), &total));
        q_block += total;
        numbers.y = (uint32_t)(k_block + scan(shared, ceil_div(k.length, 32), &total));
        k_block += total;
        numbers.z = (uint32_t)(q_tiled + scan(shared, ceil_div(q.length, 128) * 128, &total));
        q_tiled += total;
        numbers.w = (uint32_t)(k_tiled + scan(shared, ceil_div(k.length, 128) * 128, &total));
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

/* Visits every tile of this thread's sequences: counts it, or writes its heads. */
MXA_DEVICE void walk_tiles(const mxa_schedule_params *params, mxa_shared shared, int write)
{
    for (int b = dev_thread(); b < params->batch; b += THREADS) {
        mxa_global record = params->sequences + 64 * (uint64_t)b;
        int q_used = dev_load_global_i32(record + 8), k_used = dev_load_global_i32(record + 24);
        for (int first = 0; first < q_used; first += params->tile_q) {
            int bucket = BUCKETS - 1 - tile_cost(params, first, q_used, k_used);
            uint32_t at = dev_fetch_add_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)bucket,
                                                   (uint32_t)params->heads);
            for (int h = 0; write && h < params->heads; h++) {
                mxa_u32x4 tile = {(uint32_t)b, (uint32_t)h, (uint32_t)first, 0};
                dev_store_global_u32x4(params->tiles + 16 * (uint64_t)(at + (uint32_t)h), tile);
            }
        }
    }
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
    cta_sync();
    int total;
    int mine = (int)dev_load_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread());
    int before = scan(shared, mine, &total);
    cta_sync();
    dev_store_shared_u32(shared + AT_BUCKETS + 4 * (uint32_t)dev_thread(), (uint32_t)before);
    cta_sync();
    walk_tiles(params, shared, 1);
    if (dev_thread() == 0) {
        dev_store_global_u32(params->tile_count, (uint32_t)total);
    }
}
