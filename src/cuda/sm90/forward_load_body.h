/* forward_load_body.h: the producer of the Hopper forward; part of forward_body.h, which has the
 * roles, the memory map and the barriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* load_queries: Q, the tile and what belongs to its rows. */
MXA_DEVICE void FORWARD(load_queries)(const mxa_forward_params *params, mxa_shared shared,
                                      const forward_tile *tile, int count)
{
    const int stage = count & 1;
#if FORWARD_SCORES == FORWARD_BF16
    const int64_t scale_at = 4 * (tile->head * params->q_rows + tile->q_row);
#else
    const int64_t scale_at =
        (tile->head * params->q_rows + tile->q_row) / MXA_FORWARD_GROUP * MXA_FORWARD_RECORD;
#endif
    const uint32_t mean_bytes = params->v_mean ? 4 * (uint32_t)params->head_dim_v : 0;
    mbarrier_wait(Q_EMPTY(stage), (uint32_t)(count >> 1 & 1) ^ 1);
    forward_tile_write(params, tile, TILE(stage));
    mbarrier_arrive_expect(Q_FULL(stage), Q_BYTES + Q_SCALE_BYTES + mean_bytes);
    MXA_UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        tma_load_3d(shared + AT_Q + stage * Q_BYTES + c * TILE_Q * ROW, &params->q_map, c * ROW,
                    tile->q_row, tile->head, Q_FULL(stage));
    }
    bulk_load(TILE(stage) + FORWARD_TILE_SCALES, params->q_scale + (uint64_t)scale_at,
              Q_SCALE_BYTES, Q_FULL(stage));
    if (params->v_mean) {
        bulk_load(TILE(stage) + FORWARD_TILE_MEAN,
                  params->v_mean + (uint64_t)(tile->sequence * (params->heads / params->group) +
                                              tile->head / params->group) *
                                       mean_bytes,
                  mean_bytes, Q_FULL(stage));
    }
}

/* load_block: K with its records, and V, of the block at row `row` of the copies. */
MXA_DEVICE void FORWARD(load_block)(const mxa_forward_params *params, mxa_shared shared, int row,
                                    int kv_head, int step)
{
    const int stage = STAGE(step);
    mbarrier_wait(K_EMPTY(stage), PARITY(step) ^ 1);
    mbarrier_arrive_expect(K_FULL(stage), K_BYTES + RECORD_BYTES);
    MXA_UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        tma_load_3d(shared + AT_K + stage * K_BYTES + c * TILE_K * ROW, &params->k_map, c * ROW,
                    row, kv_head, K_FULL(stage));
    }
    bulk_load(RECORDS(stage),
              params->records +
                  (uint64_t)((kv_head * params->k_rows + row) / MXA_FORWARD_GROUP * RECORD),
              RECORD_BYTES, K_FULL(stage));
    mbarrier_wait(V_EMPTY(stage), PARITY(step) ^ 1);
    mbarrier_arrive_expect(V_FULL(stage), V_BYTES);
#if FORWARD_SCORES == FORWARD_BF16
    MXA_UNROLL
    for (int c = 0; c < FORWARD_D / 64; c++) {
        tma_load_3d(shared + AT_V + stage * V_BYTES + c * TILE_K * 128, &params->v_map, c * 128,
                    row, kv_head, V_FULL(stage));
    }
#else
    tma_load_3d(shared + AT_V + stage * V_BYTES, &params->v_map, row, 0, kv_head, V_FULL(stage));
#endif
}

/* load: the producer walks the tiles and their blocks, and ends with a tile of no queries. */
MXA_DEVICE void FORWARD(load)(const mxa_forward_params *params, mxa_shared shared, int wide)
{
    const int pieces = forward_tile_count(params, params->tile_q, TILE_Q);
    int count = 0, step = 0;
    MXA_NO_UNROLL
    for (int index = dev_block_x(); index < pieces; index = forward_tile_next(params, index)) {
        forward_tile tile;
        if (!forward_tile_find(params, index, params->tile_q, TILE_Q, TILE_K, &tile) ||
            !forward_tile_taken(params, wide, &tile)) {
            continue;
        }
        FORWARD(load_queries)(params, shared, &tile, count++);
        MXA_NO_UNROLL
        for (int j = tile.block_first; j < tile.block_end; j++, step++) {
            FORWARD(load_block)
            (params, shared, tile.k_row + j * TILE_K, tile.head / params->group, step);
        }
    }
    mbarrier_wait(Q_EMPTY(count & 1), (uint32_t)(count >> 1 & 1) ^ 1);
    const mxa_u32x4 end = {0, 0, 0xFFFFFFFFu, 0};
    dev_store_shared_u32x4(TILE(count & 1) + FORWARD_TILE_BLOCKS, end);
    dev_store_shared_u32x4(TILE(count & 1) + FORWARD_TILE_VISIBLE, end);
    mbarrier_arrive(Q_FULL(count & 1));
}
