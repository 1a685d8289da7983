/* forward_body.h: MXFP8 attention forward on Blackwell; included once per instance by forward.cu.
 *
 * Formula: docs/math.md, forward; meaning: ref/attention_forward.c.
 *   S = (Q, scales along d) (K, scales along d)^T         block-scaled product, FP32
 *   P = 2^(S * softmax_scale * log2(e) - m + 8) in E4M3   constant scale
 *   O = P (V, scales along keys) / l                      block-scaled product, FP32
 * or, where nothing may be shared between tokens (causal_strict) or P is to be more exact,
 *   P in BF16, O = P V / l with V in BF16                 plain product, FP32
 *
 * An instance defines
 *   FORWARD_NAME  entry's name
 *   FORWARD_D     64, 128 (head_dim = head_dim_v)
 *   FORWARD_BF16  0; 1: P and V in BF16
 *   FORWARD_SHARED_BYTES, FORWARD_TMEM_COLUMNS  what a CTA takes (build/cubins.json)
 *   FORWARD_MMA_PER_TILE  products of a full tile of scores and its values: the least there are
 * q, k, v: E4M3 or E5M2, tiled scales: q's and k's along the head dimension (row or square blocks),
 * v's along the sequence (column or square). BF16: v is a private copy, [kv_head][row][d] as tiled
 * scales count rows, 0 where it is not finite or nobody's (prepare_values.cu). Dense and jagged,
 * any mask of causal and window, GQA, softcap, sink, V's mean. O in F32, F16, BF16 or FP8 with any
 * block.
 *
 * A CTA takes work items of two tiles of 128 queries, t = 0 and 1, and walks their key blocks;
 * while the softmax of one tile runs, the tensor cores work for the other. No pause between items:
 * the last block's values of one are issued next to the first scores of the next (unroll_kv).
 *
 * Roles          warps   threads             registers
 *   softmax 0    0..3    thread = row        184
 *   softmax 1    4..7    thread = row        184
 *   finish       8..11   thread = row        88
 *   load         12      one lane            56
 *   scores       13      one lane            56    (issues scores and values: the tensor pipe)
 *   clean        14      the warp            56
 *                15      none
 *
 * Shared memory (from a multiple of 1024; forward_map.h); TILE = 128 * D bytes
 *   stage     16384          finish: 128 bytes of each of 128 rows
 *   scales    4 x 512 of Q, K and V each; 512 of P (all 2^0)
 *   rows      2 x 128 x 8    m and l of each row, from softmax t to finish
 *   items     2 x 64         the mailbox (forward_tile.h)
 *   barriers, and the address of tensor memory
 *   Q         4 x TILE       [tile t][its count of items & 1], rows of D bytes, swizzled as wide
 *   K, V      4 x TILE each  as stored: [key][d]; V in BF16: 2 x 2 TILE, 64 dims after 64 dims
 *
 * Tensor memory, columns:
 *   0    S0   0..127: scores of tile 0; once softmax 0 has them in registers:
 *             0..31 P0, 64..67 scales of P, 68..71 scales of V, both for values 0,
 *             96..99 scales of Q1, 100..103 scales of K, both for scores 1
 *             (P in BF16: 0..63, no scales for values)
 *   128  S1   the same for tile 1; 96..103 of it: scales of Q0 and K for scores 0
 *   256  O0   D columns
 *   384  O1   D columns
 * Over time, j the block (| ends at what the column waits for):
 *   S0   S0(j)..........| P0(j), scales of values 0 (j), of scores 1 (j) | S0(j+1)...
 *   S1   ...P1(j-1), scales of values 1 (j-1), of scores 0 (j) | S1(j)..........| P1(j)
 *   O0   += values 0 (j-1)              rescaled by softmax 0, rarely; += values 0 (j)
 *
 * Order of the tensor pipe, block by block (PV = values, QK = scores):
 *   PV0(j-1) QK0(j) PV1(j-1) QK1(j) | PV0(j) QK0(j+1) PV1(j) QK1(j+1) | ...
 *
 * Barriers       count        arrives                        waits             first parity
 *   item_full[2]   1          load                           all others        0
 *   item_empty[2]  14         scores, clean, a lane of each  load              1
 *                             warp of softmax and finish     (13: no clean)
 *   q_full[4]      1 + bytes  load, TMA (Q, its scales)      scores            0
 *   q_empty[4]     1          scores: commit                 load              1
 *   k_full[4]      1 + bytes  load, TMA (K, its scales)      scores            0
 *   k_empty[4]     1          scores: commit                 load              1
 *   v_full[4]      1 + bytes  load, TMA (V, its scales)      scores, clean     0
 *   v_empty[4]     1 or 2     scores: commit; clean          load              1
 *   v_clean[4]     1          clean, where rows became 0     scores            0
 *   s_full[t]      1          scores: commit                 softmax t         0
 *   s_loaded[t]    4          a lane of each warp of         scores            0
 *                             softmax t
 *   p_ready[t]     4          the same                       scores            0
 *   o_full[t]      5          the same; scores: commit       finish            0
 *   o_empty[t]     4          a lane of each finish warp     scores, softmax t 1
 *
 * What the scale factors in dead columns need, beyond a forward with columns to spare:
 *   s_loaded[t]: scores of the other tile and values of this one copy scales into S[t], so every
 *   warp of softmax t must have its scores in registers (tcgen05.wait::ld before the arrival). P's
 *   own place in S[t] is its softmax's to write. Nothing else: the copies of one pair of columns
 *   follow products that read them before only after a commit which those barriers imply
 *   (p_ready[t] follows s_full[t] follows every earlier product of the pipe), and a product that
 *   writes S[t] follows in the pipe all products that read scales or P there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define FORWARD_PASTE2(a, b) a##_##b
#define FORWARD_PASTE(a, b)  FORWARD_PASTE2(a, b)
#define FORWARD(name)        FORWARD_PASTE(FORWARD_NAME, name)

#define TILE_BYTES   (MXA_SM100_TILE_K * FORWARD_D)
#define V_BYTES      (FORWARD_BF16 ? 2 * TILE_BYTES : TILE_BYTES)
#define V_STAGES     (FORWARD_BF16 ? STAGES / 2 : STAGES)
#define V_STAGE(n)   ((n) & (V_STAGES - 1))
#define V_PARITY(n)  ((uint32_t)(n) / V_STAGES & 1)
#define AT_K         (AT_Q + 4 * TILE_BYTES)
#define AT_V         (AT_K + STAGES * TILE_BYTES)
#define SHARED_BYTES (AT_V + V_STAGES * V_BYTES + 1024)
#define CLEANS       (!FORWARD_BF16 && params->batch.sequences != 0)
#define SWIZZLE      (FORWARD_D == 128 ? MATRIX_SWIZZLE_128 : MATRIX_SWIZZLE_64)

MXA_STATIC_ASSERT(FORWARD_D == 64 || FORWARD_D == 128, "head_dim of this body");
MXA_STATIC_ASSERT(FORWARD_BF16 == 0 || FORWARD_BF16 == 1, "form of this body");
MXA_STATIC_ASSERT(SHARED_BYTES == MXA_SM100_FORWARD_SHARED(FORWARD_D), "what the host gives");
MXA_STATIC_ASSERT(SHARED_BYTES == FORWARD_SHARED_BYTES && TMEM_COLUMNS == FORWARD_TMEM_COLUMNS,
                  "what the report says");
MXA_STATIC_ASSERT(FORWARD_MMA_PER_TILE ==
                      FORWARD_D / 32 + MXA_SM100_TILE_K / (FORWARD_BF16 ? 16 : 32),
                  "one product for 32 dims of scores, and for 32 keys of values, or 16 in BF16");
MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(TILE_BYTES % 1024 == 0 && AT_Q % 1024 == 0, "swizzle patterns start at 1024");
MXA_STATIC_ASSERT(O_COLUMN + O_COLUMNS + FORWARD_D <= TMEM_COLUMNS, "tensor memory");
MXA_STATIC_ASSERT(FORWARD_D % 32 == 0, "whole blocks along d");

/* load_queries: Q of tile t and its scales; its `count`th. */
MXA_DEVICE void FORWARD(load_queries)(const mxa_sm100_forward_params *params, mxa_shared shared,
                                      const forward_tile *tile, int t, int count)
{
    const int slot = 2 * t + (count & 1), first = tile->first + t * MXA_SM100_TILE_Q;
    const mxa_sm100_scales *scales = &params->q_scales;
    int row = scales->cu ? dev_load_global_i32(scales->cu + 4 * (uint64_t)tile->sequence)
                         : tile->q_tiled_row;
    row = (row + first) / MXA_SM100_TILE_Q;
    mbarrier_wait(BARRIER(Q_EMPTY + slot), (uint32_t)(count >> 1 & 1) ^ 1);
    mbarrier_arrive_expect(BARRIER(Q_FULL + slot), TILE_BYTES + MXA_SM100_UNIT);
    tma_load_4d(shared + AT_Q + (uint32_t)(slot * TILE_BYTES), &params->q_map, 0, tile->head,
                tile->q_first + first, tile->q_outer, BARRIER(Q_FULL + slot));
    bulk_load(shared + AT_Q_SCALES + (uint32_t)(slot * MXA_SM100_UNIT),
              scales->data +
                  MXA_SM100_UNIT * (uint64_t)(tile->head * scales->head + row * scales->step),
              MXA_SM100_UNIT, BARRIER(Q_FULL + slot));
}

/* One block of K or V and its scales into a stage. */
MXA_DEVICE void FORWARD(load_block)(const mxa_device_map *map, const mxa_sm100_scales *scales,
                                    const forward_tile *tile, int kv_head, int row, int j,
                                    mxa_shared to, mxa_shared scales_to, mxa_shared full)
{
    mbarrier_arrive_expect(full, TILE_BYTES + MXA_SM100_UNIT);
    tma_load_4d(to, map, 0, kv_head, tile->k_first + j * MXA_SM100_TILE_K, tile->k_outer, full);
    bulk_load(scales_to,
              scales->data +
                  MXA_SM100_UNIT * (uint64_t)(kv_head * scales->head + (row + j) * scales->step),
              MXA_SM100_UNIT, full);
}

/* The same of a V in BF16, 64 dims a copy. */
MXA_DEVICE void FORWARD(load_values)(const mxa_device_map *map, int kv_head, int row, mxa_shared to,
                                     mxa_shared full)
{
    mbarrier_arrive_expect(full, V_BYTES);
    MXA_UNROLL
    for (int d = 0; d < FORWARD_D; d += 64) {
        tma_load_4d(to + (uint32_t)(2 * d * MXA_SM100_TILE_K), map, 2 * d, kv_head,
                    row * MXA_SM100_TILE_K, 0, full);
    }
}

/* Until everything brought has been read. WHY: no commit may be under way when tensor memory is
 * freed and the CTA ends. */
MXA_DEVICE void FORWARD(load_end)(mxa_shared shared, int step, const int *queries)
{
    MXA_NO_UNROLL
    for (int i = 0; i < STAGES; i++, step++) {
        mbarrier_wait(BARRIER(K_EMPTY + STAGE(step)), PARITY(step) ^ 1);
        if (i < V_STAGES) {
            mbarrier_wait(BARRIER(V_EMPTY + V_STAGE(step)), V_PARITY(step) ^ 1);
        }
    }
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        const int t = i >> 1, count = queries[t] + (i & 1);
        mbarrier_wait(BARRIER(Q_EMPTY + 2 * t + (count & 1)), (uint32_t)(count >> 1 & 1) ^ 1);
    }
}

/* load: finds the items, leaves them in the mailbox and brings their tiles; ends with an item of no
 * queries. One lane. */
MXA_DEVICE void FORWARD(load)(const mxa_sm100_forward_params *params, mxa_shared shared)
{
    const int items = forward_tile_count(params);
    int count = 0, step = 0, queries[2] = {0, 0};
    dev_role("load");
    for (int round = 0; round * dev_grid_x() < items; round++) {
        const int index = forward_tile_index(round);
        forward_tile tile;
        if (index >= items) {
            continue;
        }
        forward_tile_find(params, index, &tile);
        forward_tile_post(shared, &tile, count++);
        const int kv_head = tile.head / params->group;
        const int k_row = forward_tile_unit(&params->k_scales, &tile);
        const int v_row = forward_tile_unit(&params->v_scales, &tile);
        int first, end;
        forward_tile_union(&tile, &first, &end);
        MXA_UNROLL
        for (int t = 0; t < 2; t++) {
            if (tile.block_first[t] < tile.block_end[t]) {
                FORWARD(load_queries)(params, shared, &tile, t, queries[t]++);
            }
        }
        MXA_NO_UNROLL
        for (int j = first; j < end; j++, step++) {
            const int stage = STAGE(step);
            mbarrier_wait(BARRIER(K_EMPTY + stage), PARITY(step) ^ 1);
            FORWARD(load_block)
            (&params->k_map, &params->k_scales, &tile, kv_head, k_row, j,
             shared + AT_K + (uint32_t)(stage * TILE_BYTES),
             shared + AT_K_SCALES + (uint32_t)(stage * MXA_SM100_UNIT), BARRIER(K_FULL + stage));
            const mxa_shared v = shared + AT_V + (uint32_t)(V_STAGE(step) * V_BYTES);
            const mxa_shared v_full = BARRIER(V_FULL + V_STAGE(step));
            mbarrier_wait(BARRIER(V_EMPTY + V_STAGE(step)), V_PARITY(step) ^ 1);
            if (FORWARD_BF16) {
                FORWARD(load_values)(&params->v_map, kv_head, v_row + j, v, v_full);
            } else {
                FORWARD(load_block)
                (&params->v_map, &params->v_scales, &tile, kv_head, v_row, j, v,
                 shared + AT_V_SCALES + (uint32_t)(stage * MXA_SM100_UNIT), v_full);
            }
        }
    }
    forward_tile none = {0};
    none.first = -1;
    forward_tile_post(shared, &none, count);
    FORWARD(load_end)(shared, step, queries);
}

/* clean: in a sequence's last block, rows of V beyond its keys become 0 up to the end of their
 * block of 32. WHY: a jagged payload goes on with the next sequence, P is 0 there, and 0 times NaN
 * is NaN. The whole warp. */
MXA_DEVICE void FORWARD(clean)(mxa_shared shared)
{
    const int lane = dev_thread() & 31;
    int step = 0;
    dev_role("clean");
    for (int count = 0;; count++) {
        forward_tile tile;
        if (!forward_tile_take(shared, count, 1, &tile)) {
            break;
        }
        int first, end;
        forward_tile_union(&tile, &first, &end);
        MXA_NO_UNROLL
        for (int j = first; j < end; j++, step++) {
            const int stage = STAGE(step), keys = forward_tile_keys(&tile, j);
            mbarrier_wait(BARRIER(V_FULL + stage), PARITY(step));
            if (keys % 32 != 0) {
                const mxa_u32x4 zero = {0, 0, 0, 0};
                const mxa_shared v = shared + AT_V + (uint32_t)(stage * TILE_BYTES);
                for (int at = keys * FORWARD_D + 16 * lane; at < (keys + 31) / 32 * 32 * FORWARD_D;
                     at += 16 * 32) {
                    dev_store_shared_u32x4(v + (uint32_t)at, zero);
                }
                fence_async_shared();
            }
            warp_sync();
            if (lane == 0) {
                if (keys % 32 != 0) {
                    mbarrier_arrive(BARRIER(V_CLEAN + stage));
                }
                mbarrier_arrive(BARRIER(V_EMPTY + stage));
            }
        }
    }
}

/* scores: S[t] = Q K^T of one block, its scales in the dead columns of the other tile's S. */
MXA_DEVICE void FORWARD(scores)(const mxa_sm100_forward_params *params, mxa_shared shared,
                                mxa_tmem tmem, forward_pipe *pipe, int t, int slot, int stage)
{
    const mxa_tmem scales = tmem + S_COLUMNS * (uint32_t)(t ^ 1) + SCORES_SCALES;
    const uint64_t q = matrix_descriptor(shared + AT_Q + (uint32_t)(slot * TILE_BYTES), 16,
                                         8 * FORWARD_D, SWIZZLE);
    const uint64_t k = matrix_descriptor(shared + AT_K + (uint32_t)(stage * TILE_BYTES), 16,
                                         8 * FORWARD_D, SWIZZLE);
    const uint32_t instruction =
        MATRIX_INSTRUCTION_MXF8(params->q_e5m2, params->k_e5m2, 0, MXA_SM100_TILE_K);
    forward_pipe_loaded(shared, pipe, t ^ 1);
    tcgen05_fence_after();
    tcgen05_copy_scales(scales, forward_scales_descriptor(shared + AT_Q_SCALES, slot));
    tcgen05_copy_scales(scales + 4, forward_scales_descriptor(shared + AT_K_SCALES, stage));
    MXA_UNROLL
    for (int i = 0; i < FORWARD_D / 32; i++) {
        tcgen05_mma_mxf8_ss(tmem + S_COLUMNS * (uint32_t)t, matrix_advance(q, (uint32_t)(32 * i)),
                            matrix_advance(k, (uint32_t)(32 * i)), instruction | MATRIX_SCALES(i),
                            scales, scales + 4, i > 0);
    }
    tcgen05_commit(BARRIER(S_FULL + t));
    pipe->scores[t]++;
}

/* values: O[t] += P V of the block whose scores came last; blocks of 32 keys (in BF16 of 16) that
 * are not there are left out. */
MXA_DEVICE void FORWARD(values)(const mxa_sm100_forward_params *params, mxa_shared shared,
                                mxa_tmem tmem, forward_pipe *pipe, int t)
{
    const forward_block *block = &pipe->block[t];
    const int stage = V_STAGE(block->step);
    const mxa_tmem o = tmem + O_COLUMN + O_COLUMNS * (uint32_t)t;
    const mxa_tmem s = tmem + S_COLUMNS * (uint32_t)t, scales = s + VALUES_SCALES;
    const mxa_shared at = shared + AT_V + (uint32_t)(stage * V_BYTES);
    forward_pipe_values(shared, pipe, t, CLEANS, V_STAGES);
    tcgen05_fence_after();
    if (FORWARD_BF16) {
        const uint64_t v =
            matrix_descriptor(at, 128 * MXA_SM100_TILE_K, 8 * 128, MATRIX_SWIZZLE_128);
        MXA_UNROLL
        for (int i = 0; i < 8; i++) {
            if (16 * i < block->keys) {
                tcgen05_mma_f16_ts(o, s + (uint32_t)(8 * i),
                                   matrix_advance(v, (uint32_t)(16 * i * 128)),
                                   MATRIX_INSTRUCTION_F32(MATRIX_BF16, MATRIX_BF16, 1, FORWARD_D),
                                   !block->first || i > 0);
            }
        }
    } else {
        const uint64_t v = matrix_descriptor(at, 0, 8 * FORWARD_D, SWIZZLE);
        const uint32_t instruction =
            MATRIX_INSTRUCTION_MXF8(MATRIX_E4M3, params->v_e5m2, 1, FORWARD_D);
        tcgen05_copy_scales(scales, forward_scales_descriptor(shared + AT_P_SCALES, 0));
        tcgen05_copy_scales(scales + 4, forward_scales_descriptor(shared + AT_V_SCALES, stage));
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            if (32 * i < block->keys) {
                tcgen05_mma_mxf8_ts(
                    o, s + (uint32_t)(8 * i), matrix_advance(v, (uint32_t)(32 * i * FORWARD_D)),
                    instruction | MATRIX_SCALES(i), scales, scales + 4, !block->first || i > 0);
            }
        }
    }
    if (block->last) {
        tcgen05_commit(BARRIER(O_FULL + t));
        pipe->out[t]++;
    }
    pipe->block[t].pending = 0;
}

/* Both tiles' outstanding values, and V's stage given back. */
MXA_DEVICE void FORWARD(drain)(const mxa_sm100_forward_params *params, mxa_shared shared,
                               mxa_tmem tmem, forward_pipe *pipe)
{
    if (pipe->block[0].pending) {
        FORWARD(values)(params, shared, tmem, pipe, 0);
    }
    if (pipe->block[1].pending) {
        FORWARD(values)(params, shared, tmem, pipe, 1);
    }
    if (pipe->step > pipe->released) {
        tcgen05_commit(BARRIER(V_EMPTY + V_STAGE(pipe->released++)));
    }
}

/* The tensor pipe: values of the last block and scores of the next, tile by tile, across items.
 * INVARIANT: what is pending at block `step` is of block step - 1. One lane. */
MXA_DEVICE void FORWARD(issue)(const mxa_sm100_forward_params *params, mxa_shared shared,
                               mxa_tmem tmem)
{
    forward_pipe pipe;
    forward_pipe_init(&pipe);
    dev_role("scores");
    for (int count = 0;; count++) {
        forward_tile tile;
        if (!forward_tile_take(shared, count, 0, &tile)) {
            break;
        }
        int first, end;
        forward_tile_union(&tile, &first, &end);
        if (forward_pipe_blind(&tile, 0) || forward_pipe_blind(&tile, 1)) {
            FORWARD(drain)(params, shared, tmem, &pipe);
            forward_pipe_skip(shared, &pipe, &tile, 0);
            forward_pipe_skip(shared, &pipe, &tile, 1);
        }
        MXA_NO_UNROLL
        for (int j = first; j < end; j++) {
            const int stage = STAGE(pipe.step), last_values = pipe.block[1].pending;
            const int last_scores = j >= tile.block_first[1] && j < tile.block_end[1];
            int k_waited = 0;
            MXA_UNROLL
            for (int t = 0; t < 2; t++) {
                if (pipe.block[t].pending) {
                    FORWARD(values)(params, shared, tmem, &pipe, t);
                }
                if (pipe.step > pipe.released && t == last_values) {
                    tcgen05_commit(BARRIER(V_EMPTY + V_STAGE(pipe.released++)));
                }
                if (j >= tile.block_first[t] && j < tile.block_end[t]) {
                    const int slot = 2 * t + (pipe.queries[t] & 1);
                    if (!k_waited) {
                        mbarrier_wait(BARRIER(K_FULL + stage), PARITY(pipe.step));
                        k_waited = 1;
                    }
                    if (j == tile.block_first[t]) {
                        mbarrier_wait(BARRIER(Q_FULL + slot), (uint32_t)pipe.queries[t] >> 1 & 1);
                    }
                    FORWARD(scores)(params, shared, tmem, &pipe, t, slot, stage);
                    forward_pipe_block(&pipe, &tile, t, j);
                    if (j == tile.block_end[t] - 1) {
                        tcgen05_commit(BARRIER(Q_EMPTY + slot));
                        pipe.queries[t]++;
                    }
                }
                if (t == last_scores) {
                    tcgen05_commit(BARRIER(K_EMPTY + stage));
                }
            }
            pipe.step++;
        }
    }
    FORWARD(drain)(params, shared, tmem, &pipe);
}

/* softmax: S to P of tile t, block after block; one thread a row. */
MXA_DEVICE void FORWARD(softmax)(const mxa_sm100_forward_params *params, mxa_shared shared,
                                 mxa_tmem tmem, int t)
{
    const int warp = warp_uniform(dev_thread() >> 5), leader = (dev_thread() & 31) == 0;
    const mxa_tmem s_at = tmem_quarter(tmem + S_COLUMNS * (uint32_t)t, warp);
    const mxa_tmem o_at = tmem_quarter(tmem + O_COLUMN + O_COLUMNS * (uint32_t)t, warp);
    int blocks = 0, items = 0;
    dev_role(t == 0 ? "softmax 0" : "softmax 1");
    for (int count = 0;; count++) {
        forward_tile tile;
        if (!forward_tile_take(shared, count, 1, &tile)) {
            break;
        }
        if (!forward_tile_present(&tile, t)) {
            continue;
        }
        forward_span span;
        forward_span_find(params, &tile, t, &span);
        forward_row row = {FORWARD_MINUS_INF, 0.0f, 1.0f, 0};
        const int end = tile.block_end[t];
        const mxa_global nan =
            params->v_nan + 16 * (uint64_t)((int64_t)(tile.head / params->group) * params->v_tiles +
                                            tile.k_tiled_row / MXA_SM100_TILE_K);
        MXA_NO_UNROLL
        for (int j = tile.block_first[t]; j < end; j++, blocks++) {
            uint32_t s[MXA_SM100_TILE_K];
            forward_marks marks;
            if (FORWARD_BF16) {
                marks.at = nan + 16 * (uint64_t)j;
                const mxa_u32x4 words = dev_load_global_u32x4(marks.at);
                marks.any = words.x | words.y | words.z | words.w;
            }
            mbarrier_wait(BARRIER(S_FULL + t), (uint32_t)blocks & 1);
            tcgen05_fence_after();
            MXA_UNROLL
            for (int c = 0; c < MXA_SM100_TILE_K; c += 32) {
                tmem_load_x32(s + c, s_at + (uint32_t)c);
            }
            tmem_wait_load();
            tcgen05_fence_before();
            warp_sync();
            if (leader) {
                mbarrier_arrive(BARRIER(S_LOADED + t));
            }
            const float scale = forward_scores(params, &span, j, s);
            forward_raise(s, scale, &row);
            if (row.raised && j > tile.block_first[t]) {
                forward_rescale(o_at, FORWARD_D, row.rescale);
            }
            forward_exponentials(s, scale, FORWARD_BF16 ? &marks : 0, &span, j, &row, s_at);
            if (j == end - 1) {
                mbarrier_wait(BARRIER(O_EMPTY + t), ((uint32_t)items & 1) ^ 1);
                forward_row_write(shared, t, &row);
            }
            tmem_wait_store();
            tcgen05_fence_before();
            warp_sync();
            if (leader) {
                if (j == end - 1) {
                    mbarrier_arrive(BARRIER(O_FULL + t));
                }
                mbarrier_arrive(BARRIER(P_READY + t));
            }
        }
        if (forward_pipe_blind(&tile, t)) {
            mbarrier_wait(BARRIER(O_EMPTY + t), ((uint32_t)items & 1) ^ 1);
            forward_row_write(shared, t, &row);
            warp_sync();
            if (leader) {
                mbarrier_arrive(BARRIER(O_FULL + t));
            }
        }
        items++;
    }
}

/* finish: O and LSE of both tiles, as they become ready; one thread a row. */
MXA_DEVICE void FORWARD(finish)(const mxa_sm100_forward_params *params, mxa_shared shared,
                                mxa_tmem tmem)
{
    const int warp = warp_uniform(dev_thread() >> 5) & 3;
    const mxa_shared stage = shared + AT_STAGE + (uint32_t)(warp * (FORWARD_STAGE_BYTES / 4));
    uint32_t parity = 0; /* bit t */
    dev_role("finish");
    for (int count = 0;; count++) {
        forward_tile tile;
        if (!forward_tile_take(shared, count, 1, &tile)) {
            break;
        }
        MXA_NO_UNROLL
        for (int t = 0; t < 2; t++) {
            if (!forward_tile_present(&tile, t)) {
                continue;
            }
            const int first = tile.first + t * MXA_SM100_TILE_Q + 32 * warp;
            const mxa_tmem o = tmem_quarter(tmem + O_COLUMN + O_COLUMNS * (uint32_t)t, warp);
            const int seen = t ? tile.block_first[1] < tile.block_end[1]
                               : tile.block_first[0] < tile.block_end[0];
            forward_result result;
            mbarrier_wait(BARRIER(O_FULL + t), parity >> t & 1);
            parity ^= 1u << t;
            tcgen05_fence_after();
            forward_row_read(params, shared, t, &tile, first, &result);
            if (params->o_type == MXA_GPU_F32) {
                forward_finish(params, &tile, first, MXA_GPU_F32, FORWARD_D, o, seen, stage,
                               &result, BARRIER(O_EMPTY + t));
            } else if (params->o_type <= MXA_GPU_BF16) {
                forward_finish(params, &tile, first, MXA_GPU_BF16, FORWARD_D, o, seen, stage,
                               &result, BARRIER(O_EMPTY + t));
            } else if (params->o_type == MXA_GPU_E5M2) {
                forward_finish(params, &tile, first, MXA_GPU_E5M2, FORWARD_D, o, seen, stage,
                               &result, BARRIER(O_EMPTY + t));
            } else {
                forward_finish(params, &tile, first, MXA_GPU_E4M3, FORWARD_D, o, seen, stage,
                               &result, BARRIER(O_EMPTY + t));
            }
        }
    }
}

MXA_KERNEL(FORWARD_NAME, THREADS, mxa_sm100_forward_params, parameters)
{
    const mxa_sm100_forward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warp = warp_uniform(dev_thread() >> 5), cleans = CLEANS;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    if (dev_thread() == 0) {
        forward_barriers_init(shared, cleans);
        forward_names(shared);
    }
    if (warp == WARP_SCORES) {
        tmem_alloc(shared + AT_TMEM, TMEM_COLUMNS);
        tmem_relinquish();
    }
    if (!FORWARD_BF16 && dev_thread() < MXA_SM100_UNIT / 4) {
        dev_store_shared_u32(shared + AT_P_SCALES + 4 * (uint32_t)dev_thread(), 0x7F7F7F7Fu);
        fence_async_shared();
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    const mxa_tmem tmem = dev_load_shared_u32(shared + AT_TMEM);
    if (warp < 8) {
        setmaxnreg_increase(184);
        if (warp < 4) {
            FORWARD(softmax)(params, shared, tmem, 0);
        } else {
            FORWARD(softmax)(params, shared, tmem, 1);
        }
    } else if (warp < WARP_LOAD) {
        setmaxnreg_decrease(88);
        FORWARD(finish)(params, shared, tmem);
    } else {
        setmaxnreg_decrease(56);
        if (warp == WARP_LOAD) {
            if (warp_elect()) {
                FORWARD(load)(params, shared);
            }
        } else if (warp == WARP_SCORES) {
            if (warp_elect()) {
                FORWARD(issue)(params, shared, tmem);
            }
        } else if (warp == WARP_CLEAN && cleans) {
            FORWARD(clean)(shared);
        }
    }
    warp_sync();
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    if (warp == WARP_SCORES) {
        tmem_free(tmem, TMEM_COLUMNS);
    }
}

#undef FORWARD_PASTE2
#undef FORWARD_PASTE
#undef FORWARD
#undef TILE_BYTES
#undef AT_K
#undef CLEANS
#undef V_PARITY
#undef V_STAGE
#undef V_STAGES
#undef V_BYTES
#undef AT_V
#undef SHARED_BYTES
#undef SWIZZLE
#undef FORWARD_NAME
#undef FORWARD_D
#undef FORWARD_BF16
#undef FORWARD_SHARED_BYTES
#undef FORWARD_TMEM_COLUMNS
#undef FORWARD_MMA_PER_TILE
