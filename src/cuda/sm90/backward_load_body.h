/* backward_load_body.h: the producer and the writer of the Hopper backward; part of
 * backward_body.h, which has the roles, the memory map and the barriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* Tokens of one head, a box of them. */
MXA_DEVICE void BACKWARD(load_rows)(mxa_shared to, const mxa_device_map *map, int row, int head,
                                    mxa_shared barrier)
{
    tma_load_3d(to, map, 0, row, head, barrier);
}

/* load_keys: K^T of the CTA's `count`th tile. WHY apart: it is needed later than K and V, and its
 * place is free later. */
MXA_DEVICE void BACKWARD(load_turned)(const mxa_backward_params *params, mxa_shared shared,
                                      int count)
{
    const mxa_u32x2 at = dev_load_shared_u32x2(TILE_AT(count) + BACKWARD_TILE_PLACE);
    const uint64_t block = (uint64_t)at.x * (uint64_t)(params->k_rows / KEYS) + at.y / KEYS;
    mbarrier_wait(KT_EMPTY, (uint32_t)(count & 1) ^ 1);
    if (dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS) == 0) {
        mbarrier_arrive(KT_FULL);
        return;
    }
    mbarrier_arrive_expect(KT_FULL, KV_BYTES);
    const mxa_u32x4 counts = dev_load_shared_u32x4(TILE_AT(count) + BACKWARD_TILE_STEPS);
    MXA_UNROLL
    for (int i = 0; i < WARPGROUPS; i++) {
        const int there = (int)counts.y + KEYS * i < (int)counts.z;
        bulk_load(shared + AT_KT + (uint32_t)(i * KEYS * BACKWARD_D),
                  there ? params->k_t + (block + (uint64_t)i) * (KEYS * BACKWARD_D) : params->zeros,
                  KEYS * BACKWARD_D, KT_FULL);
    }
}

/* load_step: the operands of query tile `j` of one head of the group, the CTA's `step`th. */
MXA_DEVICE void BACKWARD(load_step)(const mxa_backward_params *params, mxa_shared shared,
                                    mxa_shared at, int head, int j, int step)
{
    const int index = (int)((uint32_t)step % STAGES);
    backward_step_write(params, TILE_K, at, head, j, STEP_AT(step));
    mbarrier_wait(EMPTY(index), ((uint32_t)step / STAGES & 1) ^ 1);
    const mxa_shared stage = STAGE_AT(index), full = FULL(index);
    const mxa_u32x2 first = dev_load_shared_u32x2(at + BACKWARD_TILE_QUERIES);
    const int q_head = (int)dev_load_shared_u32(at + BACKWARD_TILE_PLACE) * params->group + head;
    const int q_tile = (int)first.y + j;
    const uint64_t block = (uint64_t)(q_head * params->q_tiles + q_tile);
    uint32_t bytes;
    const mxa_global record = BACKWARD(find_record)(params, at, block, &bytes);
    mbarrier_arrive_expect(full, STAGE_BYTES + bytes);
    BACKWARD(load_rows)(stage, &params->q_map, (int)first.x + j * TILE_Q, q_head, full);
    bulk_load(RECORD_AT(index), record, bytes, full);
    BACKWARD(load_rows)(stage + Q_BYTES, &params->dout_map, q_tile * TILE_Q, q_head, full);
    bulk_load(stage + 2 * Q_BYTES, params->dout_t + block * Q_BYTES, Q_BYTES, full);
    bulk_load(stage + 3 * Q_BYTES, params->q_t + block * Q_BYTES, Q_BYTES, full);
}

#include "cuda/sm90/backward_walk_body.h"

/* The tile's (sequence, kv head). */
MXA_DEVICE int BACKWARD(pair)(const mxa_backward_params *params, mxa_shared tile)
{
    return (int)dev_load_shared_u32(tile + BACKWARD_TILE_STEPS + 12) *
               (params->heads / params->group) +
           (int)dev_load_shared_u32(tile + BACKWARD_TILE_PLACE);
}

/* Zeros for a share of dQ's sums of a pair further on, as much as this tile of keys is of its pair,
 * and word of it. Whole warp. */
MXA_DEVICE void BACKWARD(clear_ahead)(const mxa_backward_params *params, mxa_shared tile)
{
    const int kv_heads = params->heads / params->group;
    int pair = BACKWARD(pair)(params, tile) + params->ahead, q_used = params->batch.seqlen_q,
        q_tile;
    if (params->turns) {
        const int next = dev_load_global_i32(params->turns + 8 * (uint64_t)(pair / kv_heads));
        pair = next < 0 ? params->batch.batch * kv_heads : next * kv_heads + pair % kv_heads;
    }
    if (pair >= params->batch.batch * kv_heads) {
        return;
    }
    q_tile = pair / kv_heads * ((q_used + TILE_Q - 1) / TILE_Q);
    if (params->turns) {
        const mxa_global record = params->batch.sequences + 64 * (uint64_t)(pair / kv_heads);
        q_used = dev_load_global_i32(record + 8);
        q_tile = (dev_load_global_i32(record + 32) / MXA_BACKWARD_GROUP + pair / kv_heads + 1) / 2;
    }
    const int tiles = (q_used + TILE_Q - 1) / TILE_Q;
    const int share = (int)dev_load_shared_u32(tile + BACKWARD_TILE_STEPS + 4) / TILE_K;
    const int shares =
        ((int)dev_load_shared_u32(tile + BACKWARD_TILE_STEPS + 8) + TILE_K - 1) / TILE_K;
    const int first = tiles * share / shares, count = tiles * (share + 1) / shares - first;
    const int units = count * (params->dq_f32 ? 4 * STAGING_BYTES / 512 : 2 * STAGING_BYTES / 512);
    const mxa_u32x4 zero = {0, 0, 0, 0};
    MXA_NO_UNROLL
    for (int h = 0; h < params->group; h++) {
        const int64_t block =
            (int64_t)(pair % kv_heads * params->group + h) * params->q_tiles + q_tile + first;
        mxa_global at = params->dq + (uint64_t)(block * (params->dq_f32 ? 4 * STAGING_BYTES
                                                                        : 2 * STAGING_BYTES) +
                                                16 * BACKWARD_LANE);
        MXA_NO_UNROLL
        for (int i = 0; i < units; i++, at += 512) {
            dev_store_global_u32x4(at, zero);
        }
    }
    warp_sync();
    if (BACKWARD_LANE == 0) {
        dev_add_release_global_u32(params->cleared + 4 * (uint64_t)pair, 1);
    }
}

/* Until dQ's sums of the tile's pair are cleared. */
MXA_DEVICE void BACKWARD(wait_cleared)(const mxa_backward_params *params, mxa_shared tile)
{
    const int pair = BACKWARD(pair)(params, tile);
    int shares = pair < params->ahead ? 0 : params->batch.tiles_per_sequence;
    if (params->turns) {
        shares = dev_load_global_i32(
            params->turns + 8 * (uint64_t)dev_load_shared_u32(tile + BACKWARD_TILE_STEPS + 12) + 4);
    }
    if (shares == 0) {
        return; /* by the pass before */
    }
    const mxa_global word = params->cleared + 4 * (uint64_t)pair;
    while ((int)dev_load_acquire_global_u32(word) != shares) {
    }
    fence_async_global();
}

/* The staged dQ of one step is added to global memory. WHY the next may be staged before this one
 * is told of: that waits until memory has it. */
MXA_DEVICE void BACKWARD(add_step)(const mxa_backward_params *params, mxa_shared shared,
                                   int warpgroup, mxa_shared words)
{
    const uint64_t block = dev_load_shared_u32(words + BACKWARD_STEP_DQ);
    if (params->order) {
        BACKWARD(acquire)(params, words, block);
    }
    if (params->dq_f32) {
        bulk_add_f32(params->dq + block * (4 * STAGING_BYTES), STAGING_AT(warpgroup),
                     4 * STAGING_BYTES);
    } else {
        bulk_add_f16(params->dq + block * (2 * STAGING_BYTES), STAGING_AT(warpgroup),
                     2 * STAGING_BYTES);
    }
    bulk_commit();
    bulk_wait_read(0);
    mbarrier_arrive(DQ_EMPTY(warpgroup));
    if (params->order) {
        BACKWARD(release)(params, block);
    }
}

/* write: adds the dQ tiles that warpgroup `warpgroup` stages, once a round of steps, to
 * global memory; with params->order, each after those of earlier keys. WHY threads of their own:
 * consumers have no registers for it, and one addition of a whole tile replaces four. WHY one for
 * each warpgroup: in order, an addition has to be seen in memory before the next is told of it,
 * which takes longer than a step. */
MXA_DEVICE void BACKWARD(write)(const mxa_backward_params *params, mxa_shared shared, int warpgroup)
{
    uint32_t round = 0;
    int step = warpgroup == 0 ? WARPGROUPS - 1 : warpgroup - 1, end = 0;
    for (int count = 0;; count++) {
        mbarrier_wait(KV_FULL, (uint32_t)count & 1);
        const int steps = (int)dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS);
        if (steps < 0) {
            break;
        }
        end += steps;
        if ((params->ahead || params->turns) && warpgroup == 0) {
            BACKWARD(clear_ahead)(params, TILE_AT(count));
        }
        warp_sync(); /* WHY: a lane that has not seen the phase would never see it */
        if (BACKWARD_LANE == 0) {
            if (params->ahead || params->turns) {
                BACKWARD(wait_cleared)(params, TILE_AT(count));
            }
            mbarrier_arrive(KV_EMPTY);
            MXA_NO_UNROLL
            for (; step < end; step += WARPGROUPS, round ^= 1) {
                mbarrier_wait(DQ_FULL(warpgroup), round);
                fence_async_shared(); /* WHY here: consumers need not wait for it */
                BACKWARD(add_step)(params, shared, warpgroup, STEP_AT(step));
            }
            if (params->done) {
                bulk_wait(0);
                dev_add_release_global_u32(
                    params->done + 4 * (uint64_t)BACKWARD(pair)(params, TILE_AT(count)), 1);
            }
        }
        warp_sync();
    }
    if (BACKWARD_LANE == 0) {
        bulk_wait(0);
    }
}
