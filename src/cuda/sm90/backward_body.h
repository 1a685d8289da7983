/* backward_body.h: gradients of MXFP8 attention on Hopper; included once per instance by
 * backward.cu.
 *
 * Formula: docs/math.md, backward; meaning: ref/attention_backward.c. All five products are FP8.
 * A CTA owns 64 keys a consumer warpgroup, TILE_K in all, of one kv head and walks the queries that
 * see them, 64 at a time, of every q head of the group; keys lie on the M side, so that P and dS
 * leave the accumulators as the next products' A operands:
 *   scores   S^T  = K Q^T        TILE_K x 64, D deep   registers
 *   dprobs   dP^T = V dO^T       TILE_K x 64, D deep   registers
 *   grads    dV  += P^T dO       TILE_K x D, 64 deep   registers over all steps
 *            dK  += dS^T Q       TILE_K x D, 64 deep   registers over all steps
 *            dQ   = dS K         64 x D, TILE_K deep   added to global memory
 * Scales are powers of two: the records of backward_params.h bring them in by factors of rows and
 * groups, none of single products.
 *
 * An instance defines
 *   BACKWARD_NAME        entry's name
 *   BACKWARD_D           64, 128 (head_dim = head_dim_v)
 *   BACKWARD_SOFTCAP     1: with a softcap
 *   BACKWARD_WARPGROUPS  consumers: 2, or 3 where registers allow it (MXA_BACKWARD_WARPGROUPS)
 *
 * Roles, W consumers         warps            registers, W = 2 (3)
 *   consumers (64 keys each) 0..4W-1          240 (160)
 *   producer (one thread)    4W               24 (32)
 *   writers (a warp each)    4W+1..4W+W       24 (32); one for each consumer
 * Consumers take turns at dQ, one step late: then its D/2 accumulators lie where S and dP were. WHY
 * not a share of D for each: N = 64 was 6% slower.
 *
 * Shared memory (from a multiple of 1024)
 *   K, V     [TILE_K][D] each
 *   K^T      W x [D][64]
 *   stages   STAGES x (Q [64][D], dO [64][D], dO^T [D][64], Q^T [D][64])
 *   dS       W x W x [64 queries][64 keys], bytes
 *   dQ       4W warps x 64 D bytes (FP16: 32 D): staging of dQ
 *   records  STAGES x MXA_BACKWARD_RECORD
 *   steps    RING x BACKWARD_STEP_BYTES; tiles TILES x BACKWARD_TILE_BYTES
 *   barriers
 *
 * Barriers       count      arrives                           waits            first parity
 *   full[S]      1 + bytes  producer, TMA (a step's operands) consumers        0
 *   empty[S]     4W         a lane of each consumer warp      producer         1
 *   kv_full      1 + bytes  producer, TMA (K, V, factors)     consumers, writers 0
 *   kv_empty     5W         a lane of each consumer warp; the producer         1
 *                           writers, once they know the tile
 *   kt_full      1 + bytes  producer, TMA (K^T)               consumers        0
 *   kt_empty     4W         a lane of each consumer warp      producer         1
 *   ds_full[W]   4W         a lane of each consumer warp      the one at dQ    0
 *   ds_empty[W]  4          a lane of each warp at dQ         consumers        1
 *   dq_full[W]   4          a lane of each warp at dQ         its writer       0
 *   dq_empty[W]  1          its writer                        the one at dQ    1
 *
 * Order of a step, each deviation measured slower (docs/kernels/hopper_backward.md): issue S and
 * dP; P and dS; [my turn: dV, dQ of the step before, dK; else dV and dK]; only then dS to shared
 * memory. At most six products of a warp are queued: beyond that the warp blocks while it issues.
 * Stores to dS and staging are fenced for the asynchronous proxy by who waits for them, not by who
 * stored: a fence waits for all that its warp has under way, and the consumers' own instructions
 * are what a step takes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define TILE_Q        MXA_BACKWARD_TILE_Q
#define WARPGROUPS    BACKWARD_WARPGROUPS
#define KEYS          MXA_BACKWARD_KEYS
#define TILE_K        (KEYS * WARPGROUPS)
#define KV_BYTES      (TILE_K * BACKWARD_D)
#define Q_BYTES       (TILE_Q * BACKWARD_D)
#define STAGE_BYTES   (4 * Q_BYTES)
#define STAGES        3
#define DS_BYTES      (TILE_Q * TILE_K)
#define KEYS_BYTES    (TILE_K / MXA_BACKWARD_GROUP * 16) /* a tile's mxa_backward_key_record */
#define STAGING_BYTES (64 * BACKWARD_D)                  /* a warp's 16 rows of dQ in FP32 */
#define ACCUMULATORS  (BACKWARD_D / 2)

#define AT_K         0
#define AT_V         (AT_K + KV_BYTES)
#define AT_KT        (AT_V + KV_BYTES)
#define AT_STAGES    (AT_KT + KV_BYTES)
#define AT_DS        (AT_STAGES + STAGES * STAGE_BYTES)
#define AT_STAGING   (AT_DS + WARPGROUPS * DS_BYTES)
#define AT_RECORDS   (AT_STAGING + 4 * WARPGROUPS * STAGING_BYTES)
#define AT_STEPS     (AT_RECORDS + STAGES * MXA_BACKWARD_RECORD)
#define AT_TILES     (AT_STEPS + RING * BACKWARD_STEP_BYTES)
#define AT_BARRIERS  (AT_TILES + TILES * BACKWARD_TILE_BYTES)
#define AT_END       (AT_BARRIERS + 8 * (2 * STAGES + 4 * WARPGROUPS + 4))
#define SHARED_BYTES (AT_END + (BACKWARD_D == 128 ? 0 : 1008)) /* WHY 0: dev.h aligns to 1024 */

#define DS_FULL(i)    (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + (i)))
#define DS_EMPTY(i)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + WARPGROUPS + (i)))
#define DQ_FULL(w)    (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + 2 * WARPGROUPS + (w)))
#define DQ_EMPTY(w)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + 3 * WARPGROUPS + (w)))
#define DS_AT(i)      (shared + AT_DS + (uint32_t)(i)*DS_BYTES)
#define STAGING_AT(w) (shared + AT_STAGING + (uint32_t)(w) * (4 * STAGING_BYTES))

#include "cuda/sm90/backward_pipeline_body.h"

MXA_STATIC_ASSERT(BACKWARD_D == 64 || BACKWARD_D == 128, "head_dim of this body");
MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(SHARED_BYTES == MXA_BACKWARD_SHARED(BACKWARD_D, WARPGROUPS), "the host's number");
MXA_STATIC_ASSERT(MXA_BACKWARD_RECORD % 16 == 0, "records are copied in 16 bytes");
MXA_STATIC_ASSERT(BACKWARD_TILE_KEYS + KEYS_BYTES <= BACKWARD_TILE_BYTES, "a tile's records");
MXA_STATIC_ASSERT(WARPGROUPS == 2 || WARPGROUPS == STAGES, "a turn is a stage, or a step's parity");

/* Whether a step's stage is waited for while the products of the step before run, which hides the
 * wait. In 160 registers that spills. */
#define EARLY (WARPGROUPS == 2)

/* Whether the loop for other tiles makes S and dP one after the other, and P waits for dP in BF16:
 * in 160 registers two loops spill otherwise. */
#define BACKWARD_APART (BACKWARD_HALF && BACKWARD_WARPGROUPS == 3)

#if BACKWARD_WARPGROUPS == 3
#define CONSUMER_REGISTERS 160
#define PRODUCER_REGISTERS 32
#else
#define CONSUMER_REGISTERS 240
#define PRODUCER_REGISTERS 24
#endif

#if BACKWARD_D == 128
#define BACKWARD_MMA_KEYS    wgmma_rs_m64n128_f32
#define BACKWARD_MMA_Q_FIRST wgmma_ss_m64n128_f32_first
#define BACKWARD_MMA_Q       wgmma_ss_m64n128_f32
#else
#define BACKWARD_MMA_KEYS    wgmma_rs_m64n64_f32
#define BACKWARD_MMA_Q_FIRST wgmma_ss_m64n64_f32_first
#define BACKWARD_MMA_Q       wgmma_ss_m64n64_f32
#endif

/* Warpgroups take turns, and so do buffers of dS: a step's number is its dS's and that of the
 * warpgroup that makes dQ of the step before. `round`: the parity of what is used once a round. */
typedef struct BACKWARD(turn) {
    int number;
    uint32_t round;
} BACKWARD(turn);

MXA_DEVICE BACKWARD(turn) BACKWARD(turn_of)(const BACKWARD(place) * place)
{
    BACKWARD(turn)
    turn = {WARPGROUPS == 2 ? place->step & 1 : place->stage,
            WARPGROUPS == 2 ? (uint32_t)place->step >> 1 & 1 : place->parity};
    return turn;
}

/* The turn before, where this one is number `number`. */
MXA_DEVICE BACKWARD(turn) BACKWARD(turn_before)(const BACKWARD(place) * place, int number)
{
    BACKWARD(turn) turn = BACKWARD(turn_of)(place);
    turn.round ^= number == 0;
    turn.number = number == 0 ? WARPGROUPS - 1 : number - 1;
    return turn;
}

#include "cuda/sm90/backward_load_body.h"

/* What one consumer thread keeps over a tile's steps. */
typedef struct BACKWARD(own) {
    /* Descriptors: this warpgroup's rows of K, V's KV_BYTES further; Q's rows and dO^T of stage 0,
     * dO's rows and Q^T Q_BYTES further; K^T; the first dS. */
    uint64_t keys, rows, turned, keys_turned, dscores;
    mxa_shared tile;         /* the tile's words */
    uint32_t terms;          /* where in a record the thread's terms of rows are */
    mxa_shared store;        /* where the thread stores of the first dS */
    int warp;                /* of the CTA's consumer warps */
    float scores, dp, delta; /* of the warp's key group: mxa_backward_key_record; delta 0: the
                              * sequence ends before it */
    float sum[2];            /* of P over queries so far, where dO's copy is less a mean */
} BACKWARD(own);

/* Which of the TILES places the own tile has: its number's last bits. WHY from there: no register
 * is free for it. */
MXA_DEVICE int BACKWARD(tile_number)(mxa_shared shared, const BACKWARD(own) * own)
{
    return (int)((own->tile - TILE_AT(0)) / BACKWARD_TILE_BYTES);
}

#define BACKWARD_STORE_OF(warp, lane)                                                              \
    (DS_AT(0) + (uint32_t)((warp) >> 2) * (TILE_Q * KEYS) + (uint32_t)(lane)*KEYS +                \
     (uint32_t)((((warp) ^ (lane) >> 1) & 3) << 4))
#if BACKWARD_WARPGROUPS == 3 /* no registers for them */
#define BACKWARD_HALF_TERMS(own) BACKWARD_HALF_OF(BACKWARD_LANE)
#define BACKWARD_TERMS(own)      BACKWARD_TERMS_OF(BACKWARD_LANE)
#define BACKWARD_STORE(own)      BACKWARD_STORE_OF((own)->warp, BACKWARD_LANE)
#else
#define BACKWARD_HALF_TERMS(own) (own)->terms
#define BACKWARD_TERMS(own)      (BACKWARD_HALF ? BACKWARD_TERMS_OF(BACKWARD_LANE) : (own)->terms)
#define BACKWARD_STORE(own)      (own)->store
#endif

/* A descriptor to be kept over a loop. WHY nothing of its bits is known to the compiler: it then
 * steps from it by one 64-bit addition, where it would make both halves of each anew. */
MXA_DEVICE uint64_t BACKWARD(descriptor)(mxa_shared at, uint32_t row_bytes)
{
    const uint64_t descriptor = wgmma_descriptor(at, row_bytes);
    return descriptor >> 32 << 32 | (uint32_t)warp_uniform((int)(uint32_t)descriptor);
}

/* What of it is the same for all tiles. */
MXA_DEVICE void BACKWARD(own_init)(mxa_shared shared, int warp, BACKWARD(own) * own)
{
    const mxa_shared keys = shared + AT_K + (uint32_t)(warp >> 2) * (64 * BACKWARD_D);
    const int lane = BACKWARD_LANE;
    own->warp = warp;
    own->keys = BACKWARD(descriptor)(keys, BACKWARD_D);
    own->rows = BACKWARD(descriptor)(shared + AT_STAGES, BACKWARD_D);
    own->turned = BACKWARD(descriptor)(shared + AT_STAGES + 2 * Q_BYTES, TILE_Q);
    own->keys_turned = BACKWARD(descriptor)(shared + AT_KT, KEYS);
    own->dscores = BACKWARD(descriptor)(DS_AT(0), KEYS);
    own->terms = BACKWARD_HALF ? BACKWARD_HALF_OF(lane) : BACKWARD_TERMS_OF(lane);
    own->store = BACKWARD_STORE_OF(warp, lane);
    hold_u32(&own->terms); /* WHY: else they are made anew at each step */
    hold_u32(&own->store);
}

/* Of dK, dV and dQ: the first dimension of a warpgroup. */
#define BACKWARD_FIRST_DIM(own) 0
/* Row of params->column_sums of the `h`th head of the group. */
#define BACKWARD_SUMS_HEAD(params, own, kv_head, h)                                                \
    ((uint64_t)(kv_head) * (uint64_t)(params)->group + (uint64_t)(h))

/* WHY made anew at each step: stepped to, terms are read before the products, 1% slower. */
#define BACKWARD_RECORD(place) RECORD_AT((place)->stage)

/* A stage's distance from the first, in descriptors. */
#define BACKWARD_STAGE_STEP(place) ((uint64_t)((uint32_t)(place)->stage * (STAGE_BYTES >> 4)))

/* S^T or dP^T of one step, issued and committed, not waited for. */
MXA_DEVICE void BACKWARD(multiply)(float *s, uint64_t k, uint64_t q)
{
    wgmma_ss_m64n64_f32_first(s, k, q);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        wgmma_ss_m64n64_f32(s, k + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                            q + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

/* The same in FP16, packed pairs. */
MXA_DEVICE void BACKWARD(multiply_half)(uint32_t *s, uint64_t k, uint64_t q)
{
    wgmma_ss_m64n64_f16_first(s, k, q);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        wgmma_ss_m64n64_f16(s, k + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                            q + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

/* scores, and in FP16. */
MXA_DEVICE void BACKWARD(scores)(mxa_shared shared, const BACKWARD(own) * own,
                                 const BACKWARD(place) * place, float *s)
{
    (void)shared;
    BACKWARD(multiply)(s, own->keys, own->rows + BACKWARD_STAGE_STEP(place));
}

MXA_DEVICE void BACKWARD(scores_half)(mxa_shared shared, const BACKWARD(own) * own,
                                      const BACKWARD(place) * place, uint32_t *s)
{
    (void)shared;
    BACKWARD(multiply_half)(s, own->keys, own->rows + BACKWARD_STAGE_STEP(place));
}

/* dprobs, and in FP16. */
MXA_DEVICE void BACKWARD(dprobs)(mxa_shared shared, const BACKWARD(own) * own,
                                 const BACKWARD(place) * place, float *dp)
{
    (void)shared;
    BACKWARD(multiply)
    (dp, own->keys + (KV_BYTES >> 4), own->rows + BACKWARD_STAGE_STEP(place) + (Q_BYTES >> 4));
}

MXA_DEVICE void BACKWARD(dprobs_half)(mxa_shared shared, const BACKWARD(own) * own,
                                      const BACKWARD(place) * place, uint32_t *dp)
{
    (void)shared;
    BACKWARD(multiply_half)
    (dp, own->keys + (KV_BYTES >> 4), own->rows + BACKWARD_STAGE_STEP(place) + (Q_BYTES >> 4));
}

#include "cuda/sm90/backward_probs_body.h"

#include "cuda/sm90/backward_half_body.h"

#include "cuda/sm90/backward_make_body.h"

/* dS to shared memory for dQ: this warpgroup's block, row query, 64-byte swizzle. */
MXA_DEVICE void BACKWARD(store_dscores)(mxa_shared shared, const BACKWARD(own) * own,
                                        BACKWARD(turn) turn, const uint32_t *units)
{
    const mxa_shared at = BACKWARD_STORE(own) + (uint32_t)turn.number * DS_BYTES;
    mbarrier_wait(DS_EMPTY(turn.number), turn.round ^ 1);
    dev_store_matrix_x4_transposed(at, units);
    dev_store_matrix_x4_transposed(at + 32 * KEYS, units + 4);
    BACKWARD(tell)(DS_FULL(turn.number));
}

/* grads: dV, issued. */
MXA_DEVICE void BACKWARD(multiply_values)(float *dv, const uint32_t *p, uint64_t dout)
{
    wgmma_fence();
    BACKWARD_MMA_KEYS(dv, p, dout);
    BACKWARD_MMA_KEYS(dv, p + 4, dout + MXA_DESCRIPTOR_K32);
}

/* grads: dK, issued behind dV. */
MXA_DEVICE void BACKWARD(multiply_rows)(float *dk, const uint32_t *ds, uint64_t dout)
{
    const uint64_t q = dout + (Q_BYTES >> 4);
    BACKWARD_MMA_KEYS(dk, ds, q);
    BACKWARD_MMA_KEYS(dk, ds + 4, q + MXA_DESCRIPTOR_K32);
}

/* grads: both, committed. */
MXA_DEVICE void BACKWARD(multiply_keys)(float *dk, float *dv, const uint32_t *p, const uint32_t *ds,
                                        uint64_t dout)
{
    BACKWARD(multiply_values)(dv, p, dout);
    BACKWARD(multiply_rows)(dk, ds, dout);
    wgmma_commit();
}

/* dQ of the step of `turn`, issued and committed; waits for all of its dS. */
MXA_DEVICE void BACKWARD(multiply_queries)(const BACKWARD(own) * own, float *dq, mxa_shared shared,
                                           BACKWARD(turn) turn)
{
    mbarrier_wait(DS_FULL(turn.number), turn.round);
    fence_async_shared(); /* WHY here and not by who stored: half as often, and nothing is under way
                           */
    const uint64_t ds = own->dscores + (uint64_t)((uint32_t)turn.number * (DS_BYTES >> 4));
    const uint64_t k = own->keys_turned;
    wgmma_fence();
    BACKWARD_MMA_Q_FIRST(dq, ds, k);
    MXA_UNROLL
    for (int i = 1; i < TILE_K / 32; i++) {
        const int block = i / (KEYS / 32), inside = i % (KEYS / 32) * MXA_DESCRIPTOR_K32;
        BACKWARD_MMA_Q(dq, ds + (uint64_t)(block * (TILE_Q * KEYS >> 4) + inside),
                       k + (uint64_t)(block * (BACKWARD_D * KEYS >> 4) + inside));
    }
    wgmma_commit();
}

/* dQ of the step of `turn`, accumulated here, is staged for the writer, times `factor`. */
MXA_DEVICE void BACKWARD(stage_queries)(const mxa_backward_params *params, mxa_shared shared,
                                        const BACKWARD(own) * own, BACKWARD(turn) turn,
                                        float factor, const float *dq)
{
    const int warpgroup = own->warp >> 2, lane = BACKWARD_LANE;
    const mxa_shared at = STAGING_AT(warpgroup) + 16 * (uint32_t)lane;
    if (lane == 0) {
        mbarrier_arrive(DS_EMPTY(turn.number));
    }
    mbarrier_wait(DQ_EMPTY(warpgroup), turn.round ^ 1);
    if (params->dq_f32) {
        const mxa_shared mine = at + (uint32_t)(own->warp & 3) * STAGING_BYTES;
        MXA_UNROLL
        for (int i = 0; i < ACCUMULATORS / 4; i++) {
            mxa_u32x4 v = {
                bits_f32(mul_rn(dq[4 * i], factor)), bits_f32(mul_rn(dq[4 * i + 1], factor)),
                bits_f32(mul_rn(dq[4 * i + 2], factor)), bits_f32(mul_rn(dq[4 * i + 3], factor))};
            dev_store_shared_u32x4(mine + 512 * (uint32_t)i, v);
        }
    } else {
        const mxa_shared mine = at + (uint32_t)(own->warp & 3) * (STAGING_BYTES / 2);
        MXA_UNROLL
        for (int i = 0; i < ACCUMULATORS / 8; i++) {
            const float *x = dq + 8 * i;
            mxa_u32x4 v = {f16x2_from_f32x2(mul_rn(x[0], factor), mul_rn(x[1], factor)),
                           f16x2_from_f32x2(mul_rn(x[2], factor), mul_rn(x[3], factor)),
                           f16x2_from_f32x2(mul_rn(x[4], factor), mul_rn(x[5], factor)),
                           f16x2_from_f32x2(mul_rn(x[6], factor), mul_rn(x[7], factor))};
            dev_store_shared_u32x4(mine + 512 * (uint32_t)i, v);
        }
    }
    BACKWARD(tell)(DQ_FULL(warpgroup));
}

/* All steps of one tile: dK and dV of this warpgroup's 64 keys in accumulators. far: a constant;
 * 1: some step of the tile may be far. */
MXA_DEVICE void BACKWARD(steps)(const mxa_backward_params *params, mxa_shared shared,
                                BACKWARD(own) * own, int far, int steps, BACKWARD(place) * place,
                                float *dk, float *dv)
{
    const int warpgroup = own->warp >> 2, half = own->warp >> 1 & 1;
    const int small = BACKWARD_HALF && !far; /* S and dP are FP16 */
    float factor = 0.0f;
    if (EARLY && steps > 0) {
        mbarrier_wait(FULL(place->stage), place->parity);
    }
    MXA_NO_UNROLL
    for (int j = 0; j < steps; j++) {
        const BACKWARD(turn) turn = BACKWARD(turn_of)(place);
        const mxa_shared record = BACKWARD_RECORD(place);
        const uint64_t stage = BACKWARD_STAGE_STEP(place);
        uint32_t p[8], ds[8], units[8], flags;
        if (!EARLY) {
            mbarrier_wait(FULL(place->stage), place->parity);
        }
        if (small) {
            flags = BACKWARD(make_half)(params, shared, own, place, p, units, ds);
        } else {
            flags = BACKWARD(make)(params, shared, own, far, place, p, units, ds);
        }
        if (turn.number == warpgroup && j > 0) {
            const BACKWARD(turn) before = BACKWARD(turn_before)(place, warpgroup);
            float dq[ACCUMULATORS];
            /* WHY dV first: the other warpgroup's dS may not be there yet. Of three, they spill. */
            if (WARPGROUPS == 2) {
                BACKWARD(multiply_values)(dv, p, own->turned + stage);
                wgmma_commit();
                BACKWARD(multiply_queries)(own, dq, shared, before);
                BACKWARD(multiply_rows)(dk, ds, own->turned + stage);
                wgmma_commit();
            } else {
                BACKWARD(multiply_queries)(own, dq, shared, before);
                BACKWARD(multiply_keys)(dk, dv, p, ds, own->turned + stage);
            }
            BACKWARD(store_dscores)(shared, own, turn, units);
            wgmma_wait(1);
            wgmma_hold_f32(dq, ACCUMULATORS);
            BACKWARD(stage_queries)(params, shared, own, before, factor, dq);
        } else {
            BACKWARD(multiply_keys)(dk, dv, p, ds, own->turned + stage);
            BACKWARD(store_dscores)(shared, own, turn, units);
            factor = dev_load_shared_f32(record +
                                         (small ? MXA_BACKWARD_HALF_DQ : MXA_BACKWARD_RECORD_DQ) +
                                         4 * (uint32_t)half);
            if (j == 0) {
                /* before this warpgroup's first dQ */
                mbarrier_wait(KT_FULL, (uint32_t)BACKWARD(tile_number)(shared, own) & 1);
            }
        }
        if ((flags & (BACKWARD_MEAN | BACKWARD_LAST)) == (BACKWARD_MEAN | BACKWARD_LAST)) {
            BACKWARD(keep_columns)(params, own, flags);
        }
        const mxa_shared empty = EMPTY(place->stage);
        BACKWARD(advance)(place);
        if (j == steps - 1) {
            BACKWARD(tell)(KV_EMPTY);
        } else if (EARLY) {
            mbarrier_wait(FULL(place->stage), place->parity);
        }
        wgmma_wait(0);
        wgmma_hold_f32(dk, ACCUMULATORS);
        wgmma_hold_f32(dv, ACCUMULATORS);
        BACKWARD(tell)(empty);
    }
    if (BACKWARD(turn_of)(place).number == warpgroup && steps > 0) {
        const BACKWARD(turn) before = BACKWARD(turn_before)(place, warpgroup);
        float dq[ACCUMULATORS];
        BACKWARD(multiply_queries)(own, dq, shared, before);
        wgmma_wait(0);
        wgmma_hold_f32(dq, ACCUMULATORS);
        BACKWARD(stage_queries)(params, shared, own, before, factor, dq);
    }
}

#include "cuda/sm90/backward_finish_body.h"

/* One tile of keys of one consumer warpgroup. */
MXA_DEVICE void BACKWARD(consume)(const mxa_backward_params *params, mxa_shared shared,
                                  BACKWARD(own) * own, BACKWARD(place) * place)
{
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const int steps = (int)counts.x;
    const mxa_shared keys =
        own->tile + BACKWARD_TILE_KEYS + 16 * (uint32_t)(own->warp / (MXA_BACKWARD_GROUP / 16));
    float dk[ACCUMULATORS], dv[ACCUMULATORS], dk_factor = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dk[i] = dv[i] = 0.0f;
    }
    own->scores = own->dp = own->delta = 0.0f;
    if (steps > 0) {
        const int group = own->warp / (MXA_BACKWARD_GROUP / 16) * MXA_BACKWARD_GROUP;
        if ((int)counts.y + group < (int)counts.z) {
            const mxa_u32x4 key = dev_load_shared_u32x4(keys);
            own->scores = f32_bits(key.x);
            own->dp = f32_bits(key.y);
            own->delta = f32_bits(key.z);
        }
    } else {
        BACKWARD(tell)(KV_EMPTY);
        /* nothing comes, but its phase passes */
        mbarrier_wait(KT_FULL, (uint32_t)BACKWARD(tile_number)(shared, own) & 1);
    }
    own->sum[0] = own->sum[1] = 0.0f;
    wgmma_hold_f32(dk, ACCUMULATORS);
    wgmma_hold_f32(dv, ACCUMULATORS);
    /* WHY two loops: one more branch a step, rarely taken, cost 3% (D = 128, 8,192 tokens). In 160
     * registers two loops spill. */
    if (!BACKWARD_HALF ||
        (dev_load_shared_u32(own->tile + BACKWARD_TILE_RANGE + 12) & BACKWARD_TILE_FAR)) {
        BACKWARD(steps)(params, shared, own, 1, steps, place, dk, dv);
    } else {
        BACKWARD(steps)(params, shared, own, 0, steps, place, dk, dv);
    }
    BACKWARD(tell)(KT_EMPTY);
    if (steps > 0) {
        dk_factor = dev_load_shared_f32(keys + 12);
    }
    BACKWARD(finish_keys)
    (params, own, dk_factor, dev_load_shared_f32(own->tile + BACKWARD_TILE_RANGE + 8), dk, dv);
}

MXA_KERNEL(BACKWARD_NAME, 128 * WARPGROUPS + 128, mxa_backward_params, parameters)
{
    const mxa_backward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warp = warp_uniform(dev_thread() >> 5);
    if (dev_thread() == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(FULL(i), 1);
            mbarrier_init(EMPTY(i), 4 * WARPGROUPS);
        }
        mbarrier_init(KV_FULL, 1);
        mbarrier_init(KV_EMPTY, 5 * WARPGROUPS);
        mbarrier_init(KT_FULL, 1);
        mbarrier_init(KT_EMPTY, 4 * WARPGROUPS);
        for (int i = 0; i < WARPGROUPS; i++) {
            mbarrier_init(DQ_FULL(i), 4);
            mbarrier_init(DQ_EMPTY(i), 1);
            mbarrier_init(DS_FULL(i), 4 * WARPGROUPS);
            mbarrier_init(DS_EMPTY(i), 4);
        }
        mbarrier_init_fence();
    }
    cta_sync();
    grid_dependency_wait();
    /* WHY after the wait: what comes next reads words that kernels before this one cleared. */
    grid_dependency_launch();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    if (warp >= 4 * WARPGROUPS) {
        setmaxnreg_decrease(PRODUCER_REGISTERS);
        /* WHY branches of whole warps: by thread numbers ptxas spills. */
        if (warp == 4 * WARPGROUPS) {
            if (BACKWARD_LANE == 0) {
                BACKWARD(load)(params, shared);
            }
        } else if (warp <= 5 * WARPGROUPS) {
            BACKWARD(write)(params, shared, warp - 4 * WARPGROUPS - 1);
        }
    } else {
        setmaxnreg_increase(CONSUMER_REGISTERS);
        BACKWARD(place) place = {0, 0, 0, 0};
        BACKWARD(own) own;
        BACKWARD(own_init)(shared, warp, &own);
        for (own.tile = TILE_AT(-1);;) {
            const int count = BACKWARD(tile_number)(shared, &own) + 1;
            mbarrier_wait(KV_FULL, (uint32_t)count & 1);
            own.tile = TILE_AT(count);
            if ((int)dev_load_shared_u32(own.tile + BACKWARD_TILE_STEPS) < 0) {
                break;
            }
            BACKWARD(consume)(params, shared, &own, &place);
        }
    }
}

#include "cuda/sm90/backward_end.h"
