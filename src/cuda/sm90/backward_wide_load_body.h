/* backward_wide_load_body.h: the producer and the writers of the Hopper backward of wide heads;
 * part of backward_wide_body.h, which has the roles, the memory map and the barriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* 64 tokens of one head, in two boxes. */
MXA_DEVICE void BACKWARD(load_rows)(mxa_shared to, const mxa_device_map *map, int row, int head,
                                    mxa_shared barrier)
{
    tma_load_3d(to, map, 0, row, head, barrier);
    tma_load_3d(to + BOX_BYTES, map, PART, row, head, barrier);
}

/* load_keys: K^T of the CTA's `count`th tile, needed later than K and V, and its place is free
 * later. */
MXA_DEVICE void BACKWARD(load_turned)(const mxa_backward_params *params, mxa_shared shared,
                                      int count)
{
    const mxa_u32x2 at = dev_load_shared_u32x2(TILE_AT(count) + BACKWARD_TILE_PLACE);
    const uint64_t block = (uint64_t)at.x * (uint64_t)(params->k_rows / TILE_K) + at.y / TILE_K;
    mbarrier_wait(KT_EMPTY, (uint32_t)(count & 1) ^ 1);
    if (dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS) == 0) {
        mbarrier_arrive(KT_FULL);
        return;
    }
    mbarrier_arrive_expect(KT_FULL, KV_BYTES);
    bulk_load(shared + AT_KT, params->k_t + block * KV_BYTES, KV_BYTES, KT_FULL);
}

/* load_step: the operands of query tile `j` of one head of the group, the CTA's `step`th. */
MXA_DEVICE void BACKWARD(load_step)(const mxa_backward_params *params, mxa_shared shared,
                                    mxa_shared at, int head, int j, int step)
{
    const int index = (int)((uint32_t)step % STAGES);
    backward_step_write(params, TILE_K, at, head, j, STEP_AT(step));
    mbarrier_wait(EMPTY(index), ((uint32_t)step / STAGES & 1) ^ 1);
    const mxa_shared stage = STAGE_AT(index), full = FULL(index);
    const int q_head = (int)dev_load_shared_u32(at + BACKWARD_TILE_PLACE) * params->group + head;
    const uint64_t block = dev_load_shared_u32(STEP_AT(step) + BACKWARD_STEP_DQ);
    uint32_t bytes;
    const mxa_global record = BACKWARD(find_record)(params, at, block, &bytes);
    mbarrier_arrive_expect(full, STAGE_BYTES + bytes);
    const mxa_u32x2 first = dev_load_shared_u32x2(at + BACKWARD_TILE_QUERIES);
    BACKWARD(load_rows)(stage, &params->q_map, (int)first.x + j * TILE_Q, q_head, full);
    BACKWARD(load_rows)
    (stage + Q_BYTES, &params->dout_map, ((int)first.y + j) * TILE_Q, q_head, full);
    bulk_load(RECORD_AT(index), record, bytes, full);
    bulk_load(stage + 2 * Q_BYTES, params->dout_t + block * Q_BYTES, Q_BYTES, full);
    bulk_load(stage + 3 * Q_BYTES, params->q_t + block * Q_BYTES, Q_BYTES, full);
}

#include "cuda/sm90/backward_walk_body.h"

/* Half `part` of a step's dQ from its staging to memory, issued and committed; `half`: its number
 * in params->dq. FP32: `piece`, of each warp's accumulators one half, then the other. */
MXA_DEVICE void BACKWARD(add_half)(const mxa_backward_params *params, mxa_shared shared, int part,
                                   uint64_t half, uint32_t piece)
{
    if (!params->dq_f32) {
        bulk_add_f16(params->dq + half * (4 * STAGING_BYTES), STAGING_AT(part), 4 * STAGING_BYTES);
    } else {
        MXA_NO_UNROLL
        for (uint32_t warp = 0; warp < 4; warp++) {
            bulk_add_f32(params->dq + half * (8 * STAGING_BYTES) +
                             (2 * warp + piece) * STAGING_BYTES,
                         STAGING_AT(part) + warp * STAGING_BYTES, STAGING_BYTES);
        }
    }
    bulk_commit();
}

/* Whether a writer takes both halves of dQ of every other step, not one of every step. WHY where
 * sums come in order: an addition has to be seen in memory before the next is told of it, which
 * takes longer than a step. Not in FP32, whose halves come in two pieces: a writer would hold both.
 */
MXA_DEVICE int BACKWARD(by_step)(const mxa_backward_params *params)
{
    return params->order && !params->dq_f32;
}

/* What writer `writer` adds of dQ of step `step`. */
MXA_DEVICE void BACKWARD(add_step)(const mxa_backward_params *params, mxa_shared shared, int step,
                                   int writer)
{
    const mxa_shared words = STEP_AT(step);
    const int first = BACKWARD(by_step)(params) ? 0 : writer;
    const int last = BACKWARD(by_step)(params) ? 1 : writer;
    MXA_NO_UNROLL
    for (int piece = 0; piece <= params->dq_f32; piece++) {
        const uint32_t parity = BACKWARD(dq_parity)(params, step >> 1, piece);
        MXA_NO_UNROLL
        for (int part = first; part <= last; part++) {
            mbarrier_wait(DQ_FULL(step, part), parity);
            fence_async_shared(); /* WHY here: consumers need not wait for it */
            const uint64_t half =
                2 * (uint64_t)dev_load_shared_u32(words + BACKWARD_STEP_DQ) + (uint64_t)part;
            if (params->order && piece == 0 && part == first) {
                BACKWARD(acquire)(params, words, half);
            }
            BACKWARD(add_half)(params, shared, part, half, (uint32_t)piece);
        }
        bulk_wait_read(0);
        mbarrier_arrive(DQ_EMPTY(last));
        if (first < last) {
            mbarrier_arrive(DQ_EMPTY(first));
        }
    }
    if (params->order) { /* WHY last: it waits until memory has it */
        BACKWARD(release)
        (params, 2 * (uint64_t)dev_load_shared_u32(words + BACKWARD_STEP_DQ) + (uint64_t)first);
    }
}

/* write: adds dQ of the CTA's steps, as staged, to global memory; with params->order, each after
 * those of earlier keys. */
MXA_DEVICE void BACKWARD(write)(const mxa_backward_params *params, mxa_shared shared, int writer)
{
    int step = BACKWARD(by_step)(params) ? writer : 0, end = 0;
    for (int count = 0;; count++) {
        mbarrier_wait(KV_FULL, (uint32_t)count & 1);
        const int steps = (int)dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS);
        if (steps < 0) {
            break;
        }
        end += steps;
        mbarrier_arrive(KV_EMPTY);
        MXA_NO_UNROLL
        for (; step < end; step += 1 + BACKWARD(by_step)(params)) {
            BACKWARD(add_step)(params, shared, step, writer);
        }
    }
    bulk_wait(0);
}
