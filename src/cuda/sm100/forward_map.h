/* forward_map.h: where things are in the Blackwell forward: barriers, shared and tensor memory.
 * The tables that say what they mean: forward_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_MAP_H
#define MXA_CUDA_SM100_FORWARD_MAP_H

#include "cuda/dev/mbarrier.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/sm100/forward_finish.h"

enum {
    STAGES = 4, /* of K and of V in FP8, a power of two */
    WARP_LOAD = 12,
    WARP_SCORES = 13,
    WARP_CLEAN = 14,
    THREADS = 512
};

#define STAGE(step)  ((step) & (STAGES - 1))
#define PARITY(step) ((uint32_t)(step) / STAGES & 1)

/* Barriers, in order; t: the tile. */
enum {
    ITEM_FULL = 0,
    ITEM_EMPTY = ITEM_FULL + 2,
    Q_FULL = ITEM_EMPTY + 2, /* slot: 2 * t + buffer */
    Q_EMPTY = Q_FULL + 4,
    K_FULL = Q_EMPTY + 4,
    K_EMPTY = K_FULL + STAGES,
    V_FULL = K_EMPTY + STAGES,
    V_EMPTY = V_FULL + STAGES,
    V_CLEAN = V_EMPTY + STAGES,
    S_FULL = V_CLEAN + STAGES,
    S_LOADED = S_FULL + 2,
    P_READY = S_LOADED + 2,
    O_FULL = P_READY + 2,
    O_EMPTY = O_FULL + 2,
    BARRIERS = O_EMPTY + 2
};

/* Shared memory; what depends on D follows AT_Q. */
enum {
    AT_STAGE = 0,
    AT_Q_SCALES = AT_STAGE + FORWARD_STAGE_BYTES,
    AT_K_SCALES = AT_Q_SCALES + 4 * MXA_SM100_UNIT,
    AT_V_SCALES = AT_K_SCALES + STAGES * MXA_SM100_UNIT,
    AT_P_SCALES = AT_V_SCALES + STAGES * MXA_SM100_UNIT,
    AT_ROWS = AT_P_SCALES + MXA_SM100_UNIT,
    ROWS_BYTES = MXA_SM100_TILE_Q * 8,
    AT_ITEMS = AT_ROWS + 2 * ROWS_BYTES,
    AT_BARRIERS = AT_ITEMS + 2 * FORWARD_TILE_BYTES,
    AT_TMEM = AT_BARRIERS + 8 * BARRIERS,
    AT_Q = (AT_TMEM + 4 + 1023) / 1024 * 1024
};

#define BARRIER(i) (shared + AT_BARRIERS + 8 * (uint32_t)(i))
#define ITEM(s)    (shared + AT_ITEMS + (uint32_t)((s)*FORWARD_TILE_BYTES))

/* Tensor memory columns; tile 1's follow tile 0's. */
enum {
    S_COLUMN = 0,
    S_COLUMNS = 128,
    O_COLUMN = 256,
    O_COLUMNS = 128,
    VALUES_SCALES =
        64, /* in S[t]: P's and V's for values t; P itself from 0. In BF16 P ends here */
    SCORES_SCALES = 96, /* in S[t]: Q's and K's for scores of the other tile */
    TMEM_COLUMNS = 512
};

MXA_STATIC_ASSERT(VALUES_SCALES >= MXA_SM100_TILE_K / 4, "P ends before its scales");
MXA_STATIC_ASSERT(SCORES_SCALES >= MXA_SM100_TILE_K / 2, "and in BF16 before the others");
MXA_STATIC_ASSERT(SCORES_SCALES >= VALUES_SCALES + 8 && SCORES_SCALES + 8 <= S_COLUMNS, "columns");
MXA_STATIC_ASSERT(AT_Q_SCALES % 128 == 0 && AT_P_SCALES % 128 == 0, "bulk copies, descriptors");
MXA_STATIC_ASSERT(AT_ITEMS % 16 == 0 && AT_BARRIERS % 8 == 0, "vector loads, barriers");

/* A unit of scales as tcgen05_copy_scales reads it: 8 rows of 16 bytes after one another. */
MXA_DEVICE uint64_t forward_scales_descriptor(mxa_shared units, int index)
{
    return matrix_descriptor(units + (uint32_t)(index * MXA_SM100_UNIT), 0, 128,
                             MATRIX_SWIZZLE_NONE);
}

/* Puts an item into the mailbox, its `count`th. */
MXA_DEVICE void forward_tile_post(mxa_shared shared, const forward_tile *tile, int count)
{
    mbarrier_wait(BARRIER(ITEM_EMPTY + (count & 1)), (uint32_t)(count >> 1 & 1) ^ 1);
    forward_tile_write(tile, ITEM(count & 1));
    mbarrier_arrive(BARRIER(ITEM_FULL + (count & 1)));
}

/* Takes it out again; 0: there is no more. `warp`: the whole warp does, else one lane. */
MXA_DEVICE int forward_tile_take(mxa_shared shared, int count, int warp, forward_tile *tile)
{
    mbarrier_wait(BARRIER(ITEM_FULL + (count & 1)), (uint32_t)(count >> 1 & 1));
    forward_tile_read(ITEM(count & 1), tile);
    if (warp) {
        warp_sync();
    }
    if (!warp || (dev_thread() & 31) == 0) {
        mbarrier_arrive(BARRIER(ITEM_EMPTY + (count & 1)));
    }
    return tile->first >= 0;
}

/* Phase 0 of every barrier. One thread. cleans: the clean role runs. */
MXA_DEVICE void forward_barriers_init(mxa_shared shared, int cleans)
{
    MXA_NO_UNROLL
    for (int i = 0; i < BARRIERS; i++) {
        uint32_t count = 1;
        count = i >= S_LOADED && i < O_FULL ? 4 : count;
        count = i >= O_FULL ? (i < O_EMPTY ? 5 : 4) : count;
        count = i >= ITEM_EMPTY && i < Q_FULL ? 13 + (uint32_t)cleans : count;
        count = i >= V_EMPTY && i < V_CLEAN ? 1 + (uint32_t)cleans : count;
        mbarrier_init(BARRIER(i), count);
    }
    mbarrier_init_fence();
}

/* Names for reports and pictures. */
MXA_DEVICE void forward_names(mxa_shared shared)
{
    for (int i = 0; i < 2; i++) {
        dev_barrier(BARRIER(ITEM_FULL + i), "item_full", i, "load", "all");
        dev_barrier(BARRIER(ITEM_EMPTY + i), "item_empty", i, "all", "load");
        dev_barrier(BARRIER(S_FULL + i), "s_full", i, "scores", "softmax");
        dev_barrier(BARRIER(S_LOADED + i), "s_loaded", i, "softmax", "scores");
        dev_barrier(BARRIER(P_READY + i), "p_ready", i, "softmax", "scores");
        dev_barrier(BARRIER(O_FULL + i), "o_full", i, "softmax, scores", "finish");
        dev_barrier(BARRIER(O_EMPTY + i), "o_empty", i, "finish", "scores, softmax");
        dev_region(shared + AT_ROWS + (uint32_t)(i * ROWS_BYTES), ROWS_BYTES, "rows", i);
        dev_region(ITEM(i), FORWARD_TILE_BYTES, "item", i);
    }
    for (int i = 0; i < 4; i++) {
        dev_barrier(BARRIER(Q_FULL + i), "q_full", i, "load", "scores");
        dev_barrier(BARRIER(Q_EMPTY + i), "q_empty", i, "scores", "load");
        dev_barrier(BARRIER(K_FULL + i), "k_full", i, "load", "scores");
        dev_barrier(BARRIER(K_EMPTY + i), "k_empty", i, "scores", "load");
        dev_barrier(BARRIER(V_FULL + i), "v_full", i, "load", "scores, clean");
        dev_barrier(BARRIER(V_EMPTY + i), "v_empty", i, "scores, clean", "load");
        dev_barrier(BARRIER(V_CLEAN + i), "v_clean", i, "clean", "scores");
    }
    dev_region(shared + AT_STAGE, FORWARD_STAGE_BYTES, "stage", 0);
    dev_region(shared + AT_Q_SCALES, 4 * MXA_SM100_UNIT, "scales of Q", 0);
    dev_region(shared + AT_K_SCALES, STAGES * MXA_SM100_UNIT, "scales of K", 0);
    dev_region(shared + AT_V_SCALES, STAGES * MXA_SM100_UNIT, "scales of V", 0);
    dev_region(shared + AT_P_SCALES, MXA_SM100_UNIT, "scales of P", 0);
    for (int t = 0; t < 2; t++) {
        dev_tensor_region((uint32_t)(S_COLUMN + S_COLUMNS * t), S_COLUMNS, "S", t);
        dev_tensor_region((uint32_t)(O_COLUMN + O_COLUMNS * t), O_COLUMNS, "O", t);
    }
    (void)shared;
}

/* A row's maximum and sum, from softmax to finish. */
MXA_DEVICE void forward_row_write(mxa_shared shared, int t, const forward_row *row)
{
    dev_store_shared_u32x2(shared + AT_ROWS + (uint32_t)(t * ROWS_BYTES) +
                               8 * (uint32_t)(dev_thread() & 127),
                           bits_f32(row->m), bits_f32(row->l));
}

/* What they come to, for the row of this thread in a warp's 32 from `first`; writes LSE. */
MXA_DEVICE void forward_row_read(const mxa_sm100_forward_params *params, mxa_shared shared, int t,
                                 const forward_tile *tile, int first, forward_result *result)
{
    const int position = first + (dev_thread() & 31);
    mxa_u32x2 row = dev_load_shared_u32x2(shared + AT_ROWS + (uint32_t)(t * ROWS_BYTES) +
                                          8 * (uint32_t)(dev_thread() & 127));
    forward_finish_row(params, tile->head, f32_bits(row.x), f32_bits(row.y), result);
    if (params->lse && position < tile->q_end) {
        int64_t index = tile->q_outer * params->lse_batch +
                        (tile->q_first + (int64_t)position) * params->lse_token +
                        tile->head * params->lse_head;
        dev_store_global_f32(params->lse + 4 * (uint64_t)index, result->lse);
    }
}

#endif
