/* backward_walk_body.h: the producer's walk over tiles and steps, its loads of keys, and dQ's sums
 * in order; part of backward_body.h and backward_wide_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* load_keys: K, V and their factors of tile `index` of the list, and what is to know of it. */
MXA_DEVICE void BACKWARD(load_keys)(const mxa_backward_params *params, mxa_shared shared, int index,
                                    int count)
{
    const mxa_shared at = TILE_AT(count);
    backward_tile_find(params, TILE_K, index, at);
    backward_tile_write_factors(params, at);
    mbarrier_wait(KV_EMPTY, (uint32_t)(count & 1) ^ 1);
    if (dev_load_shared_u32(at + BACKWARD_TILE_STEPS) == 0) {
        mbarrier_arrive(KV_FULL);
        return;
    }
    const mxa_u32x2 place = dev_load_shared_u32x2(at + BACKWARD_TILE_PLACE); /* kv_head, k_row */
    const uint64_t group = (uint64_t)place.x * (uint64_t)(params->k_rows / MXA_BACKWARD_GROUP) +
                           (uint64_t)(place.y / MXA_BACKWARD_GROUP);
    mbarrier_arrive_expect(KV_FULL, 2 * KV_BYTES + KEYS_BYTES);
    BACKWARD(load_rows)(shared + AT_K, &params->k_map, (int)place.y, (int)place.x, KV_FULL);
    bulk_load(at + BACKWARD_TILE_KEYS, params->k_records + 16 * group, KEYS_BYTES, KV_FULL);
    BACKWARD(load_rows)(shared + AT_V, &params->v_map, (int)place.y, (int)place.x, KV_FULL);
}

/* load: the producer walks the tiles and their steps, and ends with a tile of -1 steps. Queries
 * come last ones first: with a diagonal that is where all tiles of keys begin, so that those of one
 * head read and add to the same queries at the same time. WHY so little in variables: it has 24
 * registers. */
MXA_DEVICE void BACKWARD(load)(const mxa_backward_params *params, mxa_shared shared)
{
    int count = 0, step = 0;
    for (;; count++) {
        const int index = backward_tile_take(params);
        if (index >= backward_tile_count(params)) {
            break;
        }
        const int begin = step;
        BACKWARD(load_keys)(params, shared, index, count);
        if (dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS) == 0) {
            BACKWARD(load_turned)(params, shared, count);
        }
        MXA_NO_UNROLL
        for (int head = 0; head < params->group; head++) {
            MXA_NO_UNROLL
            for (int j = (int)dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_RANGE + 4) - 1;
                 j >= (int)dev_load_shared_u32(TILE_AT(count) + BACKWARD_TILE_RANGE); j--) {
                BACKWARD(load_step)(params, shared, TILE_AT(count), head, j, step++);
                if (step == begin + 1) {
                    BACKWARD(load_turned)(params, shared, count);
                }
            }
        }
    }
    mbarrier_wait(KV_EMPTY, (uint32_t)(count & 1) ^ 1);
    dev_store_shared_u32(TILE_AT(count) + BACKWARD_TILE_STEPS, 0xFFFFFFFFu);
    mbarrier_arrive(KV_FULL);
}

/* Until every tile of keys before this one has added to `block` of dQ, which is of the step. */
MXA_DEVICE void BACKWARD(acquire)(const mxa_backward_params *params, mxa_shared words,
                                  uint64_t block)
{
    const uint32_t before = dev_load_shared_u32(words + BACKWARD_STEP_ORDER);
    while (dev_load_acquire_global_u32(params->order + 4 * block) != before) {
    }
    fence_async_global();
}

/* What this thread has added to `block` of dQ is seen: the next tile of keys may add. */
MXA_DEVICE void BACKWARD(release)(const mxa_backward_params *params, uint64_t block)
{
    bulk_wait(0);
    dev_add_release_global_u32(params->order + 4 * block, 1);
}
