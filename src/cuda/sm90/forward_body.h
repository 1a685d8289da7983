/* forward_body.h: MXFP8 attention forward on Hopper; included once per instance by forward.cu.
 *
 * Formula: docs/math.md, forward; meaning: ref/attention_forward.c. Scores and values are FP8
 * products of the private copies (forward_params.h); every scale is a power of two and enters
 * through exponents: Q's and K's in the multiplier of the exp2 argument, V's in P's exponent.
 *
 * An instance defines
 *   FORWARD_NAME      entry's name
 *   FORWARD_D         64, 128 or 256; head dims up to it, the copies' rows are read as if padded
 *   FORWARD_SCORES    FORWARD_F16: scores accumulate in FP16 (half the registers)
 *                     FORWARD_F32
 *                     FORWARD_BF16: FP32 scores, each token has its own scale, P and V are BF16
 *   FORWARD_MMA_VALUES  wgmma of values: N = FORWARD_D
 *   FORWARD_CONSUMERS warpgroups of 64 queries
 *   FORWARD_TILE_K    keys of a block: 128, or 64 without FORWARD_F16
 *   FORWARD_STAGES    blocks in flight, a power of two
 * FORWARD_F16 needs |logits| * log2(e) < 2^MXA_FORWARD_BOUND_LOG2, a positive softmax_scale and no
 * softcap: params.pass says which tiles this launch takes.
 *
 * Roles                      warps             registers
 *   producer (one thread)    0..3              32, or 40 beside 2 consumers
 *   consumers                4..4*CONSUMERS+3  232, 160 or 112 for 2, 3 or 4
 *
 * Shared memory (from a multiple of 1024). A matrix of rows longer than 128 bytes lies in chunks of
 * 128 columns.
 *   Q       2 x [chunk][64*CONSUMERS][128 or 64]  over tiles; a warp's rows stage its O
 *   K       STAGES x [chunk][TILE_K][128 or 64]
 *   V       STAGES x [D][TILE_K]; FORWARD_BF16: STAGES x [D/64][TILE_K][64] of BF16
 *   records STAGES x one for each 32 keys
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
 * Launched early, it waits for the kernels before it once its barriers are there (griddepcontrol).
 *
 * Order of a consumer: scores(j+1) are issued before values(j), so that softmax(j+1) runs while
 * the tensor cores multiply P(j) by V(j); once a row has a maximum and nothing is masked
 * (forward_late_body.h), more than two warpgroups issue values(j) when scores(j+1) are there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define FORWARD_PASTE2(a, b) a##_##b
#define FORWARD_PASTE(a, b)  FORWARD_PASTE2(a, b)
#define FORWARD(name)        FORWARD_PASTE(FORWARD_NAME, name)

#define TILE_Q (64 * FORWARD_CONSUMERS)
#define TILE_K FORWARD_TILE_K
#define GROUPS (TILE_K / MXA_FORWARD_GROUP)
#define ROW    (FORWARD_D < 128 ? FORWARD_D : 128) /* bytes of a row of a chunk of Q or K */
#define CHUNKS (FORWARD_D / ROW)
#if FORWARD_SCORES == FORWARD_BF16
#define V_WIDTH       2 /* bytes of an element */
#define RECORD        MXA_FORWARD_TOKEN_RECORD
#define P_REGISTERS   (8 * GROUPS)
#define Q_SCALE_BYTES (4 * TILE_Q)
#else
#define V_WIDTH       1
#define RECORD        MXA_FORWARD_RECORD
#define P_REGISTERS   (4 * GROUPS)
#define Q_SCALE_BYTES (TILE_Q / MXA_FORWARD_GROUP * MXA_FORWARD_RECORD)
#endif
#define Q_HELD (FORWARD_SCORES == FORWARD_F16 && FORWARD_D == 128) /* in registers */
/* FP16 scores: blocks without masks have a loop of their own. VALUES_LATE: there values are issued
 * when the scores are there. WHY: a warp stands while it issues them; where two warpgroups share
 * the tensor cores, those would. CUBICS: so many of each 8 pairs of P are made there without exp2.
 * WHY with four warpgroups: exp2's pipe sets their pace. */
#define LATE_LOOP          (FORWARD_SCORES == FORWARD_F16)
#define VALUES_LATE        (FORWARD_CONSUMERS > 2)
#define CUBICS             (FORWARD_CONSUMERS == 4 ? 1 : 0)
#define PRODUCER_REGISTERS (FORWARD_CONSUMERS > 2 ? 32 : 40)
#define CONSUMER_REGISTERS (FORWARD_CONSUMERS == 4 ? 112 : FORWARD_CONSUMERS == 3 ? 160 : 232)
#define Q_BYTES            (TILE_Q * FORWARD_D)
#define K_BYTES            (TILE_K * FORWARD_D)
#define V_BYTES            (TILE_K * FORWARD_D * V_WIDTH)
#define RECORD_BYTES       (GROUPS * RECORD)
#define STAGES             FORWARD_STAGES
#define STAGE(step)        ((step) & (STAGES - 1))
#define PARITY(step)       ((uint32_t)(step) / STAGES & 1)
#define AT_Q               0
#define AT_K               (AT_Q + 2 * Q_BYTES)
#define AT_V               (AT_K + STAGES * K_BYTES)
#define AT_RECORDS         (AT_V + STAGES * V_BYTES)
#define AT_TILES           (AT_RECORDS + STAGES * RECORD_BYTES)
#define AT_BARRIERS        (AT_TILES + 2 * FORWARD_TILE_BYTES)
#define SHARED_BYTES       (AT_BARRIERS + 8 * (4 + 4 * STAGES) + 1024)
#define TILE(s)            (shared + AT_TILES + (uint32_t)(s)*FORWARD_TILE_BYTES)
#define Q_FULL(s)          (shared + AT_BARRIERS + 8 * (uint32_t)(s))
#define Q_EMPTY(s)         (shared + AT_BARRIERS + 16 + 8 * (uint32_t)(s))
#define K_FULL(s)          (shared + AT_BARRIERS + 32 + 8 * (uint32_t)(s))
#define K_EMPTY(s)         (K_FULL(s) + 8 * STAGES)
#define V_FULL(s)          (K_FULL(s) + 16 * STAGES)
#define V_EMPTY(s)         (K_FULL(s) + 24 * STAGES)
#define RECORDS(s)         (shared + AT_RECORDS + (uint32_t)(s)*RECORD_BYTES)
#define ACCUMULATORS       (FORWARD_D / 2)

MXA_STATIC_ASSERT(FORWARD_D == 64 || FORWARD_D == 128 || FORWARD_D == 256, "head_dim");
MXA_STATIC_ASSERT(TILE_K == 128 || (TILE_K == 64 && FORWARD_SCORES != FORWARD_F16), "keys");
MXA_STATIC_ASSERT((STAGES & (STAGES - 1)) == 0, "STAGE and PARITY take bits");
MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(K_BYTES % 1024 == 0 && Q_BYTES % 1024 == 0, "swizzle atoms start at 1024");
MXA_STATIC_ASSERT(Q_SCALE_BYTES <= FORWARD_TILE_MEAN - FORWARD_TILE_SCALES, "place in the tile");

#if FORWARD_SCORES == FORWARD_F16
#define FORWARD_SCORE          uint32_t
#define SCORES                 32
#define FORWARD_HOLD_SCORES(s) wgmma_hold_u32(s, SCORES)
#define FORWARD_MMA_FIRST      wgmma_ss_m64n128_f16_first
#define FORWARD_MMA            wgmma_ss_m64n128_f16
#else
#define FORWARD_SCORE          float
#define SCORES                 (TILE_K / 2)
#define FORWARD_HOLD_SCORES(s) wgmma_hold_f32(s, SCORES)
#if FORWARD_TILE_K == 128
#define FORWARD_MMA_FIRST wgmma_ss_m64n128_f32_first
#define FORWARD_MMA       wgmma_ss_m64n128_f32
#else
#define FORWARD_MMA_FIRST wgmma_ss_m64n64_f32_first
#define FORWARD_MMA       wgmma_ss_m64n64_f32
#endif
#endif

#include "cuda/sm90/forward_load_body.h"

#if Q_HELD
/* This thread's Q, as wgmma's A operands of all columns. */
MXA_DEVICE void FORWARD(queries)(mxa_shared q, uint32_t *to)
{
    const int thread = dev_thread_again(), c = thread & 3, g = thread >> 2 & 7;
    const int swizzle = ROW == 128 ? g : g >> 1 & 3;
    const mxa_shared at = q + (uint32_t)((16 * (thread >> 5 & 3) + g) * ROW + 16 * swizzle + 4 * c);
    MXA_UNROLL
    for (int i = 0; i < FORWARD_D / 8; i++) { /* register i & 3 of step i / 4 */
        const int byte = 32 * (i >> 2) + 16 * (i >> 1 & 1), chunk = byte / ROW;
        to[i] = dev_load_shared_u32((at ^ (uint32_t)(byte - chunk * ROW)) +
                                    (uint32_t)(8 * ROW * (i & 1) + chunk * TILE_Q * ROW));
    }
}

/* scores: S = Q K^T of one block, issued and committed, not waited for. */
MXA_DEVICE void FORWARD(scores)(FORWARD_SCORE *s, const uint32_t *q, uint64_t b)
{
    wgmma_fence();
    wgmma_rs_m64n128_f16_first(s, q, b);
    MXA_UNROLL
    for (int i = 1; i < FORWARD_D / 32; i++) {
        const int chunk = i * 32 / ROW, inside = i - chunk * (ROW / 32);
        wgmma_rs_m64n128_f16(s, q + 4 * i,
                             wgmma_descriptor_add(b, (uint32_t)(inside * MXA_DESCRIPTOR_K32 +
                                                                chunk * (TILE_K * ROW >> 4))));
    }
    wgmma_commit();
}
#else
MXA_DEVICE void FORWARD(scores)(FORWARD_SCORE *s, mxa_shared q, uint64_t b)
{
    uint64_t a = wgmma_descriptor(q, ROW);
    wgmma_fence();
    FORWARD_MMA_FIRST(s, a, b);
    MXA_UNROLL
    for (int i = 1; i < FORWARD_D / 32; i++) {
        const int chunk = i * 32 / ROW, inside = i - chunk * (ROW / 32);
        FORWARD_MMA(s, a + (uint64_t)(inside * MXA_DESCRIPTOR_K32 + chunk * (TILE_Q * ROW >> 4)),
                    wgmma_descriptor_add(
                        b, (uint32_t)(inside * MXA_DESCRIPTOR_K32 + chunk * (TILE_K * ROW >> 4))));
    }
    wgmma_commit();
}
#endif

#if FORWARD_SCORES == FORWARD_F16
/* Raises the maximum after the fact; a row that jumped too far marks its tile for the second
 * launch.
 */
MXA_DEVICE void FORWARD(mend_codes)(const mxa_forward_params *params, const forward_own *own,
                                    mxa_shared record, FORWARD_SCORE *s, forward_rows *rows,
                                    float *t)
{
    if (!forward_mend_f16(s, rows, record, t)) {
        uint32_t entry = dev_load_shared_u32(own->tile + FORWARD_TILE_OUT + 12);
        dev_store_global_u32(params->redo + 4 * (uint64_t)entry, 1);
    }
}

/* The softmax of rows that have a maximum, in a block that is not seen whole; end: its edges. */
MXA_DEVICE void FORWARD(softmax_late)(const mxa_forward_params *params, const forward_own *own,
                                      mxa_shared record, FORWARD_SCORE *s, uint32_t *scale,
                                      const int *end, forward_rows *rows)
{
    float t[2];
    forward_exp_f16(s, rows->m[0], rows->m[1], record, scale, end, t);
    rows->raised = forward_beyond_f16(t);
    if (rows->raised) {
        FORWARD(mend_codes)(params, own, record, s, rows, t);
    }
    forward_add_f16(rows, t);
}
#endif

/* Descriptors of K and V of a stage. */
#define K_AT(shared, stage)                                                                        \
    wgmma_descriptor_add(wgmma_descriptor((shared) + AT_K, ROW), (uint32_t)(stage) * (K_BYTES >> 4))
#if FORWARD_SCORES == FORWARD_BF16
#define V_AT(shared, stage)                                                                        \
    wgmma_descriptor_add(wgmma_descriptor_rows((shared) + AT_V, TILE_K * 128),                     \
                         (uint32_t)(stage) * (V_BYTES >> 4))
#else
#define V_AT(shared, stage)                                                                        \
    wgmma_descriptor_add(wgmma_descriptor((shared) + AT_V, TILE_K),                                \
                         (uint32_t)(stage) * (V_BYTES >> 4))
#endif

/* softmax: S to P of one block, row maxima and sums moved on. scale: of FP16 scores. */
MXA_DEVICE void FORWARD(softmax)(const mxa_forward_params *params, const forward_own *own,
                                 int block, mxa_shared record, FORWARD_SCORE *s, uint32_t *scale,
                                 forward_rows *rows)
{
    (void)scale;
#if FORWARD_SCORES == FORWARD_BF16
    forward_logits_token(s, GROUPS, record, own->q_scale);
#elif FORWARD_SCORES == FORWARD_F32
    forward_logits_f32(s, GROUPS, record, own->q_scale[0]);
#endif
#if FORWARD_SCORES != FORWARD_F16
    forward_softcap_f32(s, GROUPS, params->softcap_log2e);
#endif
    const int whole = block >= own->full_first && block < own->full_end;
#if FORWARD_SCORES == FORWARD_F16
    /* Every row has a maximum once a block was seen whole. WHY not in a window: the loop of whole
     * blocks leaves only its masked ones to this one, which has no registers for two edges. */
    const int left = params->window_left >= 0;
    const int first = block <= own->full_first || block <= own->own_first ||
                      own->full_end <= own->full_first || left;
    if (!whole) {
        forward_edges edges;
        forward_tile_edges(params, own, block * TILE_K, &edges);
        if (!first) {
            FORWARD(softmax_late)(params, own, record, s, scale, edges.end, rows);
            return;
        }
        forward_mask_f16(s, &edges, left, scale);
        FORWARD_HOLD_SCORES(s);
    }
    forward_softmax_f16(s, rows, record, scale);
#else
    if (!whole) {
        forward_span span;
        forward_tile_span(params, own, block * TILE_K, &span);
        forward_mask_f32(s, GROUPS, &span);
        FORWARD_HOLD_SCORES(s);
    }
#endif
#if FORWARD_SCORES == FORWARD_F32
    forward_softmax_f32(s, GROUPS, rows, record);
#elif FORWARD_SCORES == FORWARD_BF16
    forward_softmax_token(s, GROUPS, rows, record);
#endif
}

/* values: O += P V of one block, issued and committed. */
MXA_DEVICE void FORWARD(values)(float *o, const uint32_t *p, uint64_t b)
{
#if FORWARD_SCORES == FORWARD_BF16
    wgmma_fence();
    MXA_UNROLL
    for (int i = 0; i < TILE_K / 16; i++) {
        FORWARD_MMA_VALUES(o, p + 4 * i,
                           wgmma_descriptor_add(b, (uint32_t)(i * MXA_DESCRIPTOR_ROWS16)));
    }
#else
    wgmma_fence();
    MXA_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        FORWARD_MMA_VALUES(o, p + 4 * g,
                           wgmma_descriptor_add(b, (uint32_t)(g * MXA_DESCRIPTOR_K32)));
    }
#endif
    wgmma_commit();
}

MXA_DEVICE void FORWARD(pack)(const FORWARD_SCORE *s, uint32_t *p)
{
#if FORWARD_SCORES == FORWARD_F16
    forward_pack_f16(s, p);
#elif FORWARD_SCORES == FORWARD_F32
    forward_pack_f32(s, GROUPS, p);
#else
    forward_pack_bf16(s, GROUPS, p);
#endif
}

/* Releases blocks that this warpgroup need not see. */
MXA_DEVICE int FORWARD(pass_over)(mxa_shared shared, int step, int blocks)
{
    MXA_NO_UNROLL
    for (int i = 0; i < blocks; i++, step++) {
        mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
        mbarrier_wait(V_FULL(STAGE(step)), PARITY(step));
        warp_sync(); /* a lane that came later could miss a phase */
        if ((dev_thread() & 31) == 0) {
            mbarrier_arrive(K_EMPTY(STAGE(step)));
            mbarrier_arrive(V_EMPTY(STAGE(step)));
        }
    }
    return step;
}

MXA_DEVICE void FORWARD(rescale)(float *o, const forward_rows *rows)
{
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        o[i] = mul_rn(o[i], rows->rescale[(i >> 1) & 1]);
    }
}

/* What blocks need of each other. */
typedef struct FORWARD(state) {
    FORWARD_SCORE s[SCORES];
    uint32_t p[P_REGISTERS], scale[4], q[FORWARD_D / 8];
} FORWARD(state);

/* The factors of FP16 scores, loaded while the scores are made. */
MXA_DEVICE void FORWARD(factors)(const forward_own *own, mxa_shared record, uint32_t *scale)
{
#if FORWARD_SCORES == FORWARD_F16
    forward_scales_f16(record, own->q_scale[0], scale);
#else
    (void)own, (void)record, (void)scale;
#endif
}

/* Issues the scores of a block, once its K is there; then the values of the one before may be. */
MXA_DEVICE void FORWARD(issue)(mxa_shared shared, mxa_shared q, int step, FORWARD(state) * x,
                               float *o)
{
    mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
    wgmma_hold_u32(x->p, P_REGISTERS);
    wgmma_hold_f32(o, ACCUMULATORS);
#if Q_HELD
    (void)q;
    FORWARD(scores)(x->s, x->q, K_AT(shared, STAGE(step)));
#else
    FORWARD(scores)(x->s, q, K_AT(shared, STAGE(step)));
#endif
    mbarrier_wait(V_FULL(STAGE(step - 1)), PARITY(step - 1));
}

/* The scores and the P of block j, the values of block j - 1. */
MXA_DEVICE void FORWARD(block)(const mxa_forward_params *params, mxa_shared shared,
                               const forward_own *own, mxa_shared q, int j, int step,
                               FORWARD(state) * x, float *o, forward_rows *rows)
{
    const int leader = (dev_thread() & 31) == 0;
    FORWARD(issue)(shared, q, step, x, o);
    FORWARD(values)(o, x->p, V_AT(shared, STAGE(step - 1)));
    FORWARD(factors)(own, RECORDS(STAGE(step)), x->scale);
    wgmma_wait(1);
    FORWARD_HOLD_SCORES(x->s);
    FORWARD(softmax)(params, own, j, RECORDS(STAGE(step)), x->s, x->scale, rows);
    warp_sync(); /* every lane has read its records */
    if (leader) {
        mbarrier_arrive(K_EMPTY(STAGE(step)));
    }
    wgmma_wait(0);
    wgmma_hold_u32(x->p, P_REGISTERS);
    wgmma_hold_f32(o, ACCUMULATORS);
    if (leader) {
        mbarrier_arrive(V_EMPTY(STAGE(step - 1)));
    }
    if (rows->raised) {
        FORWARD(rescale)(o, rows);
    }
    FORWARD(pack)(x->s, x->p);
}

#if LATE_LOOP
#include "cuda/sm90/forward_late_body.h"
#endif

/* softmax, values and the next scores, block after block; the tile's blocks start at `step`. */
MXA_DEVICE void FORWARD(blocks)(const mxa_forward_params *params, mxa_shared shared,
                                const forward_own *own, mxa_shared q, int step, float *o,
                                forward_rows *rows)
{
    const int leader = (dev_thread() & 31) == 0;
    FORWARD(state) x;

    mbarrier_wait(K_FULL(STAGE(step)), PARITY(step));
#if Q_HELD
    FORWARD(queries)(q, x.q);
    FORWARD(scores)(x.s, x.q, K_AT(shared, STAGE(step)));
#else
    FORWARD(scores)(x.s, q, K_AT(shared, STAGE(step)));
#endif
    FORWARD(factors)(own, RECORDS(STAGE(step)), x.scale);
    wgmma_wait(0);
    FORWARD_HOLD_SCORES(x.s);
    FORWARD(softmax)(params, own, own->own_first, RECORDS(STAGE(step)), x.s, x.scale, rows);
    warp_sync(); /* every lane has read its records */
    if (leader) {
        mbarrier_arrive(K_EMPTY(STAGE(step)));
    }
    FORWARD(pack)(x.s, x.p);
    step++;

    int j = own->own_first + 1;
#if LATE_LOOP
    /* Blocks in between have a loop of their own: WHY: shorter, and without branches. Every row has
     * a maximum once a block was seen whole. */
    int late_end = forward_min(own->full_end, own->own_end);
    int plain_end = forward_max(j, own->full_first + 1);
    plain_end = late_end > plain_end ? plain_end : own->own_end;
    MXA_NO_UNROLL
    while (j < own->own_end) {
        MXA_NO_UNROLL
        for (; j < plain_end; j++, step++) {
            FORWARD(block)(params, shared, own, q, j, step, &x, o, rows);
        }
        while (j < late_end) {
            float t[2];
            int raised;
            MXA_NO_UNROLL
            do {
                raised = FORWARD(late)(shared, own, q, step, &x, o, rows, t);
                j++, step++;
            } while (!raised && j < late_end);
            if (raised) {
                FORWARD(mend)(params, shared, own, step - 1, &x, o, rows, t);
            }
        }
        plain_end = own->own_end;
    }
#else
    MXA_NO_UNROLL
    for (; j < own->own_end; j++, step++) {
        FORWARD(block)(params, shared, own, q, j, step, &x, o, rows);
    }
#endif
    mbarrier_wait(V_FULL(STAGE(step - 1)), PARITY(step - 1));
    wgmma_hold_u32(x.p, P_REGISTERS);
    wgmma_hold_f32(o, ACCUMULATORS);
    FORWARD(values)(o, x.p, V_AT(shared, STAGE(step - 1)));
    wgmma_wait(0);
    wgmma_hold_f32(o, ACCUMULATORS);
    wgmma_hold_u32(x.p, P_REGISTERS);
    if (leader) {
        mbarrier_arrive(V_EMPTY(STAGE(step - 1)));
    }
}

/* One tile of one consumer warpgroup, whose queries are at `q`, a place that it gives back through
 * `empty`; returns the count of blocks so far. */
MXA_DEVICE int FORWARD(consume)(const mxa_forward_params *params, mxa_shared shared,
                                const forward_own *own, mxa_shared q, mxa_shared empty, int step)
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
    const mxa_shared stage = q + 16 * ROW * (dev_thread_again() >> 5 & 3);
    float scale[2];
    const int has_mean = forward_finish_rows(params, own, FORWARD_D, o, &rows, scale);
    if (params->o_type == MXA_GPU_BF16) {
        forward_finish(params, own, stage, FORWARD_D, ROW, MXA_GPU_BF16, has_mean, o, scale, empty);
    } else if (params->o_type == MXA_GPU_F16) {
        forward_finish(params, own, stage, FORWARD_D, ROW, MXA_GPU_F16, has_mean, o, scale, empty);
    } else {
        forward_finish(params, own, stage, FORWARD_D, ROW, MXA_GPU_F32, has_mean, o, scale, empty);
    }
    return step;
}

/* A consumer's tiles; its queries start at `offset` of the first and, where tiles differ, 64
 * further on in each next one. WHY: at the end of a sequence the last places are empty, on a
 * diagonal they take longest. */
MXA_DEVICE void FORWARD(attend)(const mxa_forward_params *params, mxa_shared shared, int offset)
{
    int step = 0;
    for (int count = 0;; count++) {
        const int stage = count & 1;
        forward_own own;
        mbarrier_wait(Q_FULL(stage), (uint32_t)(count >> 1) & 1);
        if (!forward_own_read(params, TILE(stage), offset, TILE_K, &own)) {
            break;
        }
#if FORWARD_SCORES == FORWARD_BF16
        forward_own_scale_token(params, offset, &own);
#else
        forward_own_scale(params, offset, &own);
#endif
        step =
            FORWARD(consume)(params, shared, &own, shared + AT_Q + stage * Q_BYTES + offset * ROW,
                             Q_EMPTY(stage), step);
        if (params->taken) {
            offset = offset + 64 < TILE_Q ? offset + 64 : 0;
        }
    }
}

/* Barriers, with their names in the emulator's reports; one thread. */
MXA_DEVICE void FORWARD(begin)(mxa_shared shared)
{
    for (int i = 0; i < 2; i++) {
        mbarrier_init(Q_FULL(i), 1);
        mbarrier_init(Q_EMPTY(i), 4 * FORWARD_CONSUMERS);
        dev_barrier(Q_FULL(i), "q_full", i, "load, TMA", "attend");
        dev_barrier(Q_EMPTY(i), "q_empty", i, "attend", "load");
        dev_region(shared + AT_Q + i * Q_BYTES, Q_BYTES, "Q", i);
        dev_region(TILE(i), FORWARD_TILE_BYTES, "tile", i);
    }
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(K_FULL(i), 1);
        mbarrier_init(V_FULL(i), 1);
        mbarrier_init(K_EMPTY(i), 4 * FORWARD_CONSUMERS);
        mbarrier_init(V_EMPTY(i), 4 * FORWARD_CONSUMERS);
        dev_barrier(K_FULL(i), "k_full", i, "load, TMA", "attend");
        dev_barrier(V_FULL(i), "v_full", i, "load, TMA", "attend");
        dev_barrier(K_EMPTY(i), "k_empty", i, "attend", "load");
        dev_barrier(V_EMPTY(i), "v_empty", i, "attend", "load");
        dev_region(shared + AT_K + i * K_BYTES, K_BYTES, "K", i);
        dev_region(shared + AT_V + i * V_BYTES, V_BYTES, "V", i);
        dev_region(RECORDS(i), RECORD_BYTES, "records", i);
    }
    mbarrier_init_fence();
}

MXA_KERNEL(FORWARD_NAME, 128 * (FORWARD_CONSUMERS + 1), mxa_forward_params, parameters)
{
    const mxa_forward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warpgroup = warp_uniform(dev_thread() >> 7);
    if (dev_thread() == 0) {
        FORWARD(begin)(shared);
        tma_prefetch_map(&params->q_map);
        tma_prefetch_map(&params->k_map);
        tma_prefetch_map(&params->v_map);
    }
    dev_role(warpgroup == 0 ? "load" : "attend");
    cta_sync();
    grid_dependency_wait();
    grid_dependency_launch();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    if (params->pass == MXA_FORWARD_PASS_REDO &&
        !forward_tile_marked(params, forward_tile_count(params, params->tile_q, TILE_Q),
                             (params->tile_q + TILE_Q - 1) / TILE_Q)) {
        return;
    }
    if (warpgroup == 0) {
        setmaxnreg_decrease(PRODUCER_REGISTERS);
        if (dev_thread() == 0) {
            /* WHY one word first: mostly no tile is beyond the bound. */
            FORWARD(load)
            (params, shared,
             params->pass == MXA_FORWARD_PASS_SMALL && dev_load_global_u32(params->wide) != 0);
        }
    } else {
        setmaxnreg_increase(CONSUMER_REGISTERS);
        FORWARD(attend)(params, shared, 64 * (warpgroup - 1));
    }
}

#undef FORWARD_PASTE2
#undef FORWARD_PASTE
#undef FORWARD
#undef TILE_Q
#undef TILE_K
#undef GROUPS
#undef ROW
#undef CHUNKS
#undef V_WIDTH
#undef RECORD
#undef P_REGISTERS
#undef Q_SCALE_BYTES
#undef Q_HELD
#undef LATE_LOOP
#undef VALUES_LATE
#undef CUBICS
#undef PRODUCER_REGISTERS
#undef CONSUMER_REGISTERS
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
#undef K_AT
#undef V_AT
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
#undef RECORDS
#undef ACCUMULATORS
#undef FORWARD_SCORE
#undef SCORES
#undef FORWARD_HOLD_SCORES
#undef FORWARD_MMA_FIRST
#undef FORWARD_MMA
#undef FORWARD_NAME
#undef FORWARD_D
#undef FORWARD_SCORES
#undef FORWARD_CONSUMERS
#undef FORWARD_TILE_K
#undef FORWARD_STAGES
#undef FORWARD_MMA_VALUES
