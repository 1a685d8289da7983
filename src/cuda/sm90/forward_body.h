/* forward_body.h: MXFP8 attention forward on Hopper; included once per instance by forward.cu.
 *
 * Formula: docs/math.md, forward; meaning: ref/attention_forward.c. Scores and values are FP8
 * products of the private copies (forward_params.h); every scale is a power of two and enters
 * through exponents: Q's and K's in the multiplier of the exp2 argument, V's in P's exponent.
 *
 * An instance defines
 *   FORWARD_NAME      entry's name
 *   FORWARD_D         64, 128 (head_dim = head_dim_v)
 *   FORWARD_F16       1: scores accumulate in FP16 (half the registers); 0: in FP32
 *   FORWARD_CONSUMERS warpgroups of 64 queries: 3 with FORWARD_F16, 2 without
 * FORWARD_F16 needs |logits| * log2(e) < 2^MXA_FORWARD_BOUND_LOG2, a positive softmax_scale and no
 * softcap: params.pass says which tiles this launch takes.
 *
 * Roles                      warps             registers
 *   producer (one thread)    0..3              32 or 40
 *   consumers                4..4*CONSUMERS+3  160 (3 warpgroups) or 232 (2)
 *
 * Shared memory (from a multiple of 1024)
 *   Q       2 x [64*CONSUMERS][D]   double-buffered over tiles; a warp's rows stage its O
 *   K       STAGES x [128][D]
 *   V       STAGES x [D][128]
 *   records STAGES x 4 x 16
 *   tiles   2 x FORWARD_TILE_BYTES  beside Q
 *   barriers
 *
 * Barriers       count          arrives                        waits       first parity
 *   q_full[2]    1 + bytes      producer, TMA (Q and tile)     consumers   0
 *   q_empty[2]   4*CONSUMERS    a lane of each consumer warp   producer    1
 *   k_full[S]    1 + bytes      producer, TMA (K and records)  consumers   0
 *   k_empty[S]   4*CONSUMERS    a lane of each consumer warp   producer    1
 *   v_full[S], v_empty[S]       as K
 *
 * Order of a consumer: scores(j+1) are issued before values(j), so that softmax(j+1) runs while
 * the tensor cores multiply P(j) by V(j).
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define FORWARD_PASTE2(a, b) a##_##b
#define FORWARD_PASTE(a, b)  FORWARD_PASTE2(a, b)
#define FORWARD(name)        FORWARD_PASTE(FORWARD_NAME, name)

#define TILE_Q (64 * FORWARD_CONSUMERS)
#if FORWARD_F16
#define ENTRY_Q TILE_Q
#else
#define ENTRY_Q params->tile_q
#endif
#define TILE_K       MXA_FORWARD_TILE_K
#define Q_BYTES      (TILE_Q * FORWARD_D)
#define K_BYTES      (TILE_K * FORWARD_D)
#define V_BYTES      (TILE_K * FORWARD_D)
#define RECORD_BYTES (TILE_K / MXA_FORWARD_GROUP * MXA_FORWARD_RECORD)
#define STAGES       4 /* a power of two */
#define STAGE(step)  ((step) & (STAGES - 1))
#define PARITY(step) ((uint32_t)(step) / STAGES & 1)
#define AT_Q         0
#define AT_K         (AT_Q + 2 * Q_BYTES)
#define AT_V         (AT_K + STAGES * K_BYTES)
#define AT_RECORDS   (AT_V + STAGES * V_BYTES)
#define AT_TILES     (AT_RECORDS + STAGES * RECORD_BYTES)
#define AT_BARRIERS  (AT_TILES + 2 * FORWARD_TILE_BYTES)
#define SHARED_BYTES (AT_BARRIERS + 8 * (4 + 4 * STAGES) + 1024)
#define TILE(s)      (shared + AT_TILES + (uint32_t)(s)*FORWARD_TILE_BYTES)
#define Q_FULL(s)    (shared + AT_BARRIERS + 8 * (uint32_t)(s))
#define Q_EMPTY(s)   (shared + AT_BARRIERS + 16 + 8 * (uint32_t)(s))
#define K_FULL(s)    (shared + AT_BARRIERS + 32 + 8 * (uint32_t)(s))
#define K_EMPTY(s)   (K_FULL(s) + 8 * STAGES)
#define V_FULL(s)    (K_FULL(s) + 16 * STAGES)
#define V_EMPTY(s)   (K_FULL(s) + 24 * STAGES)
#define ACCUMULATORS (FORWARD_D / 2)

MXA_STATIC_ASSERT(FORWARD_D == 64 || FORWARD_D == 128, "head_dim of this body");
MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(K_BYTES % 1024 == 0 && Q_BYTES % 1024 == 0, "swizzle atoms start at 1024");

#if FORWARD_F16
#define FORWARD_SCORE          uint32_t
#define FORWARD_SCORES         32
#define FORWARD_HOLD_SCORES(s) wgmma_hold_u32(s, FORWARD_SCORES)
#define FORWARD_MMA_FIRST      wgmma_ss_m64n128_f16_first
#define FORWARD_MMA            wgmma_ss_m64n128_f16
#else
#define FORWARD_SCORE          float
#define FORWARD_SCORES         64
#define FORWARD_HOLD_SCORES(s) wgmma_hold_f32(s, FORWARD_SCORES)
#define FORWARD_MMA_FIRST      wgmma_ss_m64n128_f32_first
#define FORWARD_MMA            wgmma_ss_m64n128_f32
#endif
#if FORWARD_D == 64
#define FORWARD_MMA_VALUES wgmma_rs_m64n64_f32
#else
#define FORWARD_MMA_VALUES wgmma_rs_m64n128_f32
#endif

/* load_queries: Q, the tile and what belongs to its rows. */
MXA_DEVICE void FORWARD(load_queries)(const mxa_forward_params *params, mxa_shared shared,
                                      const forward_tile *tile, int count)
{
    const int stage = count & 1;
    const uint32_t scale_bytes = TILE_Q / MXA_FORWARD_GROUP * MXA_FORWARD_RECORD;
    mbarrier_wait(Q_EMPTY(stage), (uint32_t)(count >> 1 & 1) ^ 1);
    forward_tile_write(params, tile, TILE(stage));
    mbarrier_arrive_expect(Q_FULL(stage),
                           Q_BYTES + scale_bytes + (params->v_mean ? 4 * FORWARD_D : 0));
    tma_load_3d(shared + AT_Q + (uint32_t)stage * Q_BYTES, &params->q_map, 0, tile->q_row,
                tile->head, Q_FULL(stage));
    bulk_load(TILE(stage) + FORWARD_TILE_SCALES,
              params->q_scale + ((uint64_t)(tile->head * (params->q_rows / MXA_FORWARD_GROUP)) +
                                 (uint64_t)(tile->q_row / MXA_FORWARD_GROUP)) *
                                    MXA_FORWARD_RECORD,
              scale_bytes, Q_FULL(stage));
    if (params->v_mean) {
        bulk_load(TILE(stage) + FORWARD_TILE_MEAN,
                  params->v_mean + (uint64_t)(tile->sequence * (params->heads / params->group) +
                                              tile->head / params->group) *
                                       (4 * FORWARD_D),
                  4 * FORWARD_D, Q_FULL(stage));
    }
}

/* load: the producer walks the tiles and their blocks, and ends with a tile of no queries. */
MXA_DEVICE void FORWARD(load)(const mxa_forward_params *params, mxa_shared shared, int wide)
{
    const int pieces = forward_tile_count(params, ENTRY_Q, TILE_Q);
    int count = 0, step = 0;
    for (int round = 0; round * dev_grid_x() < pieces; round++) {
        const int index = forward_tile_index(round);
        forward_tile tile;
        if (index >= pieces || !forward_tile_find(params, index, ENTRY_Q, TILE_Q, wide, &tile)) {
            continue;
        }
        int kv_head = tile.head / params->group;
        FORWARD(load_queries)(params, shared, &tile, count++);
        mxa_global records =
            params->records + ((uint64_t)(kv_head * (params->k_rows / MXA_FORWARD_GROUP)) +
                               (uint64_t)(tile.k_row / MXA_FORWARD_GROUP)) *
                                  MXA_FORWARD_RECORD;
        MXA_NO_UNROLL
        for (int j = tile.block_first; j < tile.block_end; j++, step++) {
            const int stage = STAGE(step);
            mbarrier_wait(K_EMPTY(stage), PARITY(step) ^ 1);
            mbarrier_arrive_expect(K_FULL(stage), K_BYTES + RECORD_BYTES);
            tma_load_3d(shared + AT_K + (uint32_t)stage * K_BYTES, &params->k_map, 0,
                        tile.k_row + j * TILE_K, kv_head, K_FULL(stage));
            bulk_load(shared + AT_RECORDS + (uint32_t)stage * RECORD_BYTES,
                      records + (uint64_t)j * RECORD_BYTES, RECORD_BYTES, K_FULL(stage));
            mbarrier_wait(V_EMPTY(stage), PARITY(step) ^ 1);
            mbarrier_arrive_expect(V_FULL(stage), V_BYTES);
            tma_load_3d(shared + AT_V + (uint32_t)stage * V_BYTES, &params->v_map,
                        tile.k_row + j * TILE_K, 0, kv_head, V_FULL(stage));
        }
    }
    mbarrier_wait(Q_EMPTY(count & 1), (uint32_t)(count >> 1 & 1) ^ 1);
    dev_store_shared_u32(TILE(count & 1) + FORWARD_TILE_BLOCKS + 8, 0xFFFFFFFFu);
    mbarrier_arrive(Q_FULL(count & 1));
}

/* scores: S = Q K^T of one block, issued and committed, not waited for. */
MXA_DEVICE void FORWARD(scores)(FORWARD_SCORE *s, mxa_shared q, mxa_shared k)
{
    uint64_t a = wgmma_descriptor(q, FORWARD_D), b = wgmma_descriptor(k, FORWARD_D);
    wgmma_fence();
    FORWARD_MMA_FIRST(s, a, b);
    MXA_UNROLL
    for (int i = 1; i < FORWARD_D / 32; i++) {
        FORWARD_MMA(s, a + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                    b + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

/* softmax: S to P of one block, row maxima and sums moved on. */
MXA_DEVICE void FORWARD(softmax)(const mxa_forward_params *params, const forward_own *own,
                                 int block, mxa_shared record, FORWARD_SCORE *s, forward_rows *rows)
{
#if FORWARD_F16
    uint32_t scale[4];
    forward_scales_f16(record, own->q_scale, scale);
#else
    forward_logits_f32(s, record, own->q_scale, params->softcap_log2e);
#endif
    if (block < own->full_first || block >= own->full_end) {
        forward_span span;
        forward_tile_span(params, own, block * TILE_K, &span);
#if FORWARD_F16
        forward_mask_f16(s, &span, scale);
#else
        forward_mask_f32(s, &span);
#endif
        FORWARD_HOLD_SCORES(s);
    }
#if FORWARD_F16
    forward_softmax_f16(s, rows, record, scale);
#else
    forward_softmax_f32(s, rows, record);
#endif
}

/* values: O += P V of one block, issued and committed. */
MXA_DEVICE void FORWARD(values)(float *o, const uint32_t *p, mxa_shared v)
{
    uint64_t b = wgmma_descriptor(v, TILE_K);
    wgmma_fence();
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        FORWARD_MMA_VALUES(o, p + 4 * g, b + (uint64_t)(g * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

MXA_DEVICE void FORWARD(pack)(const FORWARD_SCORE *s, uint32_t *p)
{
#if FORWARD_F16
    forward_pack_f16(s, p);
#else
    forward_pack_f32(s, p);
#endif
}

/* finish_rows: O's factors of this thread's two rows, and their LSE. */
MXA_DEVICE void FORWARD(finish_rows)(const mxa_forward_params *params, const forward_own *own,
                                     const forward_rows *rows, forward_row_result *result)
{
    mxa_u32x4 blocks = dev_load_shared_u32x4(own->tile + FORWARD_TILE_BLOCKS);
    mxa_u32x4 visible = dev_load_shared_u32x4(own->tile + FORWARD_TILE_VISIBLE);
    mxa_u32x4 out = dev_load_shared_u32x4(own->tile + FORWARD_TILE_OUT);
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        float l = rows->l[r];
        l = add_rn(l, shuffle_xor_f32(l, 1));
        l = add_rn(l, shuffle_xor_f32(l, 2));
        forward_finish_row(params, (int)visible.w, f32_bits(out.z), rows->m[r], l, &result[r]);
        int row = forward_row(own) + 8 * r;
        if (params->lse && (dev_thread_again() & 3) == 0 && row < (int)blocks.w) {
            int64_t index = (int)out.x * params->lse_batch +
                            ((int)out.y + (int64_t)row) * params->lse_token +
                            (int)visible.w * params->lse_head;
            dev_store_global_f32(params->lse + 4 * (uint64_t)index, result[r].lse);
        }
    }
}

/* finish: O and LSE. A warp stages FORWARD_D bytes of its 16 rows at a time where its queries were
 * (`stage`), its 16-byte units permuted by the row, and stores 16 bytes a lane. WHY: 5.5
 * microseconds a tile went to stores of 4 bytes and to the mean's loads, one after another. */
MXA_DEVICE void FORWARD(finish)(const mxa_forward_params *params, const forward_own *own,
                                mxa_shared stage, int type, float *o, const forward_rows *rows)
{
    enum { UNITS = FORWARD_D / 16 }; /* a staged row */
    const int wide = type == MXA_GPU_F32, bytes = wide ? 4 : 2;
    const int lane = dev_thread_again() & 31, c = lane & 3, g = lane >> 2;
    const int row = lane / UNITS, unit = lane % UNITS;
    forward_row_result result[2];
    FORWARD(finish_rows)(params, own, rows, result);
    mxa_u32x4 visible = dev_load_shared_u32x4(own->tile + FORWARD_TILE_VISIBLE);
    mxa_u32x2 out = dev_load_shared_u32x2(own->tile + FORWARD_TILE_OUT);
    const int first = own->first + 16 * (dev_thread_again() >> 5 & 3);
    const int rows_left = (int)dev_load_shared_u32(own->tile + FORWARD_TILE_BLOCKS + 12) - first;
    mxa_global at =
        params->o +
        (uint64_t)bytes * (uint64_t)((int)out.x * params->o_batch +
                                     ((int)out.y + (int64_t)first + row) * params->o_token +
                                     (int)visible.w * params->o_head) +
        16 * (uint64_t)unit;
    MXA_UNROLL
    for (int pass = 0; pass < bytes; pass++) {
        const int columns = FORWARD_D / bytes;
        MXA_UNROLL
        for (int k = 0; k < columns / 8; k++) {
            const int i = pass * (columns / 8) + k;
            mxa_u32x2 mean = {0, 0};
            if (params->v_mean) {
                mean = dev_load_shared_u32x2(own->tile + FORWARD_TILE_MEAN +
                                             4 * (uint32_t)(8 * i + 2 * c));
            }
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                float x = fma_rn(o[4 * i + 2 * r], result[r].scale,
                                 mul_rn(f32_bits(mean.x), result[r].weight));
                float y = fma_rn(o[4 * i + 2 * r + 1], result[r].scale,
                                 mul_rn(f32_bits(mean.y), result[r].weight));
                x = result[r].empty ? 0.0f : x;
                y = result[r].empty ? 0.0f : y;
                const int to = g + 8 * r, turn = to / (8 / UNITS) & (UNITS - 1);
                const mxa_shared staged = stage + (uint32_t)(to * FORWARD_D);
                if (wide) {
                    dev_store_shared_u32x2(
                        staged + (uint32_t)(((2 * k + (c >> 1)) ^ turn) * 16 + 8 * (c & 1)),
                        bits_f32(x), bits_f32(y));
                } else {
                    dev_store_shared_u32(staged + (uint32_t)((k ^ turn) * 16 + 4 * c),
                                         type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x, y)
                                                              : f16x2_from_f32x2(x, y));
                }
            }
        }
        warp_sync();
        MXA_UNROLL
        for (int k = 0; k < UNITS / 2; k++) {
            const int from = row + k * (32 / UNITS), turn = from / (8 / UNITS) & (UNITS - 1);
            mxa_u32x4 v =
                dev_load_shared_u32x4(stage + (uint32_t)(from * FORWARD_D + (unit ^ turn) * 16));
            if (from < rows_left) {
                dev_store_global_u32x4(
                    at + (uint64_t)bytes * (uint64_t)(k * (32 / UNITS) * params->o_token) +
                        (uint64_t)(pass * FORWARD_D),
                    v);
            }
        }
        warp_sync();
    }
}

/* Releases blocks that this warpgroup need not see. */
MXA_DEVICE int FORWARD(pass_over)(mxa_shared shared, int step, int blocks)
{
    MXA_NO_UNROLL
    for (int i = 0; i < blocks; i++, step++) {
        mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
        mbarrier_wait(V_FULL(STAGE(step)), PARITY(step));
        if ((dev_thread() & 31) == 0) {
            mbarrier_arrive(K_EMPTY(STAGE(step)));
            mbarrier_arrive(V_EMPTY(STAGE(step)));
        }
    }
    return step;
}

/* softmax, values and the next scores, block after block; the tile's blocks start at `step`. */
MXA_DEVICE void FORWARD(blocks)(const mxa_forward_params *params, mxa_shared shared,
                                const forward_own *own, mxa_shared q, int step, float *o,
                                forward_rows *rows)
{
    const int leader = (dev_thread() & 31) == 0;
    FORWARD_SCORE s[FORWARD_SCORES];
    uint32_t p[16];

    mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
    FORWARD(scores)(s, q, shared + AT_K + STAGE(step) * K_BYTES);
    wgmma_wait(0);
    FORWARD_HOLD_SCORES(s);
    FORWARD(softmax)
    (params, own, own->own_first, shared + AT_RECORDS + STAGE(step) * RECORD_BYTES, s, rows);
    warp_sync(); /* NOTE: an arrive releases its own lane's reads only; the others read records too
                  */
    if (leader) {
        mbarrier_arrive(K_EMPTY(STAGE(step)));
    }
    FORWARD(pack)(s, p);
    step++;

    MXA_NO_UNROLL
    for (int j = own->own_first + 1; j < own->own_end; j++, step++) {
        mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
        wgmma_hold_u32(p, 16);
        wgmma_hold_f32(o, ACCUMULATORS);
        FORWARD(scores)(s, q, shared + AT_K + STAGE(step) * K_BYTES);
        mbarrier_wait(V_FULL(STAGE(step - 1)), PARITY(step - 1));
        FORWARD(values)(o, p, shared + AT_V + STAGE(step - 1) * V_BYTES);
        wgmma_wait(1);
        FORWARD_HOLD_SCORES(s);
        FORWARD(softmax)
        (params, own, j, shared + AT_RECORDS + STAGE(step) * RECORD_BYTES, s, rows);
        warp_sync();
        if (leader) {
            mbarrier_arrive(K_EMPTY(STAGE(step)));
        }
        wgmma_wait(0);
        wgmma_hold_u32(p, 16);
        wgmma_hold_f32(o, ACCUMULATORS);
        if (leader) {
            mbarrier_arrive(V_EMPTY(STAGE(step - 1)));
        }
        if (rows->raised) {
            MXA_UNROLL
            for (int i = 0; i < ACCUMULATORS; i++) {
                o[i] = mul_rn(o[i], rows->rescale[(i >> 1) & 1]);
            }
        }
        FORWARD(pack)(s, p);
    }
    mbarrier_wait(V_FULL(STAGE(step - 1)), PARITY(step - 1));
    wgmma_hold_u32(p, 16);
    wgmma_hold_f32(o, ACCUMULATORS);
    FORWARD(values)(o, p, shared + AT_V + STAGE(step - 1) * V_BYTES);
    wgmma_wait(0);
    wgmma_hold_f32(o, ACCUMULATORS);
    wgmma_hold_u32(p, 16);
    if (leader) {
        mbarrier_arrive(V_EMPTY(STAGE(step - 1)));
    }
}

/* One tile of one consumer warpgroup, whose queries are at `q`; returns the count of blocks so far.
 */
MXA_DEVICE int FORWARD(consume)(const mxa_forward_params *params, mxa_shared shared,
                                const forward_own *own, mxa_shared q, int step)
{
    float o[ACCUMULATORS];
    forward_rows rows;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        o[i] = 0.0f;
    }
    rows.m[0] = rows.m[1] = FORWARD_MINUS_INF;
    rows.l[0] = rows.l[1] = 0.0f;
    rows.rescale[0] = rows.rescale[1] = 1.0f;
    rows.raised = 0;
    step = FORWARD(pass_over)(shared, step, own->own_first - own->block_first);
    if (own->own_first < own->own_end) {
        FORWARD(blocks)(params, shared, own, q, step, o, &rows);
        step += own->own_end - own->own_first;
    }
    step = FORWARD(pass_over)(shared, step, own->block_end - own->own_end);
    const mxa_shared stage = q + 16 * FORWARD_D * (dev_thread_again() >> 5 & 3);
    if (params->o_type == MXA_GPU_BF16) {
        FORWARD(finish)(params, own, stage, MXA_GPU_BF16, o, &rows);
    } else if (params->o_type == MXA_GPU_F16) {
        FORWARD(finish)(params, own, stage, MXA_GPU_F16, o, &rows);
    } else {
        FORWARD(finish)(params, own, stage, MXA_GPU_F32, o, &rows);
    }
    return step;
}

MXA_KERNEL(FORWARD_NAME, 128 * (FORWARD_CONSUMERS + 1), mxa_forward_params, parameters)
{
    const mxa_forward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warpgroup = warp_uniform(dev_thread() >> 7);
    if (dev_thread() == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(Q_FULL(i), 1);
            mbarrier_init(Q_EMPTY(i), 4 * FORWARD_CONSUMERS);
        }
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(K_FULL(i), 1);
            mbarrier_init(V_FULL(i), 1);
            mbarrier_init(K_EMPTY(i), 4 * FORWARD_CONSUMERS);
            mbarrier_init(V_EMPTY(i), 4 * FORWARD_CONSUMERS);
        }
        mbarrier_init_fence();
    }
    cta_sync();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    /* WHY one word first: a launch with no tile to take ends at once. */
    const int wide = params->pass != MXA_FORWARD_PASS_ALL && dev_load_global_u32(params->wide) != 0;
    if (params->pass == MXA_FORWARD_PASS_WIDE && !wide) {
        return;
    }
    if (warpgroup == 0) {
#if FORWARD_CONSUMERS == 3
        setmaxnreg_decrease(32);
#else
        setmaxnreg_decrease(40);
#endif
        if (dev_thread() == 0) {
            FORWARD(load)(params, shared, wide);
        }
    } else {
#if FORWARD_CONSUMERS == 3
        setmaxnreg_increase(160);
#else
        setmaxnreg_increase(232);
#endif
        const int offset = 64 * (warpgroup - 1);
        int step = 0;
        for (int count = 0;; count++) {
            const int stage = count & 1;
            forward_own own;
            mbarrier_wait(Q_FULL(stage), (uint32_t)(count >> 1) & 1);
            if (!forward_own_read(params, TILE(stage), offset, &own)) {
                break;
            }
            step = FORWARD(consume)(
                params, shared, &own,
                shared + AT_Q + (uint32_t)stage * Q_BYTES + (uint32_t)offset * FORWARD_D, step);
            fence_async_shared(); /* O was staged where TMA writes the next queries */
            warp_sync();
            if ((dev_thread() & 31) == 0) {
                mbarrier_arrive(Q_EMPTY(stage));
            }
        }
    }
}

#undef FORWARD_PASTE2
#undef FORWARD_PASTE
#undef FORWARD
#undef TILE_Q
#undef ENTRY_Q
#undef TILE_K
#undef Q_BYTES
#undef K_BYTES
#undef V_BYTES
#undef RECORD_BYTES
#undef STAGES
#undef STAGE
#undef PARITY
#undef AT_Q
#undef AT_K
#undef AT_V
#undef AT_RECORDS
#undef AT_TILES
#undef TILE
#undef AT_BARRIERS
#undef SHARED_BYTES
#undef Q_FULL
#undef Q_EMPTY
#undef K_FULL
#undef K_EMPTY
#undef V_FULL
#undef V_EMPTY
#undef ACCUMULATORS
#undef FORWARD_SCORE
#undef FORWARD_SCORES
#undef FORWARD_HOLD_SCORES
#undef FORWARD_MMA_FIRST
#undef FORWARD_MMA
#undef FORWARD_MMA_VALUES
#undef FORWARD_NAME
#undef FORWARD_D
#undef FORWARD_F16
#undef FORWARD_CONSUMERS
