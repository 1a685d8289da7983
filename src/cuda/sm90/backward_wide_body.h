/* backward_wide_body.h: gradients of MXFP8 attention on Hopper for head dims up to 256; included
 * once per instance by backward_wide.cu.
 *
 * Formula and meaning: backward_body.h. There dK and dV of 64 keys fill a warpgroup's registers at
 * D = 128; here two warpgroups share 64 keys, each with half of the dimensions of dK, dV and dQ:
 *   scores   S^T  = K Q^T        64 x 64, 256 deep     registers of both
 *   dprobs   dP^T = V dO^T       64 x 64, 256 deep     registers of both
 *   grads    dV  += P^T dO       64 x 128, 64 deep     registers over all steps
 *            dK  += dS^T Q       64 x 128, 64 deep     registers over all steps
 *            dQ   = dS K         64 x 128, 64 deep     added to global memory
 * WHY both make S, P and dS: their registers hold them anyway, as the A operands of dV and dK; half
 * of it each, exchanged through shared memory, moves as many bytes there.
 *
 * An instance defines
 *   BACKWARD_NAME     entry's name
 *   BACKWARD_SOFTCAP  1: with a softcap
 *
 * Roles                       warps    registers
 *   consumers (128 dims each) 0..7     240
 *   producer (one thread)     8        24
 *   writers (a thread each)   9, 10    24; one for each consumer, or every other step
 *
 * Shared memory (from a multiple of 1024)
 *   K, V     2 x [64][128] each
 *   K^T      [256][64]
 *   stages   STAGES x (Q 2 x [64][128], dO 2 x [64][128], dO^T [256][64], Q^T [256][64])
 *   dS       2 x [64 queries][64 keys], bytes; each warpgroup writes 32 queries
 *   dQ       8 warps x 4 KB: staging of dQ (FP32: half of it at a time)
 *   records  STAGES x MXA_BACKWARD_RECORD
 *   steps    RING x BACKWARD_STEP_BYTES; tiles TILES x BACKWARD_TILE_BYTES
 *   barriers
 *
 * Barriers       count      arrives                           waits            first parity
 *   full[S]      1 + bytes  producer, TMA (a step's operands) consumers        0
 *   empty[S]     8          a lane of each consumer warp      producer         1
 *   kv_full      1 + bytes  producer, TMA (K, V, factors)     consumers, writers 0
 *   kv_empty     10         a lane of each consumer warp; the producer         1
 *                           writers, once they know the tile
 *   kt_full      1 + bytes  producer, TMA (K^T)               consumers        0
 *   kt_empty     8          a lane of each consumer warp      producer         1
 *   ds_full[2]   8          a lane of each consumer warp      consumers        0
 *   ds_empty[2]  8          a lane of each consumer warp      consumers        1
 *   dq_full[2x2] 4          a lane of each warp of a consumer a writer         0
 *   dq_empty[2]  1          a writer                          a consumer       1
 *
 * Order of a step: issue S and dP; P; dS; dQ of the step before; dV and dK; dS to shared memory; dQ
 * to its staging.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define BACKWARD_D          256
#define BACKWARD_WARPGROUPS 2
#define TILE_Q              MXA_BACKWARD_TILE_Q
#define TILE_K              64
#define PART                128         /* dimensions of a warpgroup; bytes of a row in a box */
#define BOX_BYTES           (64 * PART) /* 64 tokens of half of the dimensions */
#define KV_BYTES            (2 * BOX_BYTES)
#define Q_BYTES             (2 * BOX_BYTES)
#define STAGE_BYTES         (4 * Q_BYTES)
#define STAGES              2
#define DS_BYTES            (TILE_Q * TILE_K)
#define KEYS_BYTES          (TILE_K / MXA_BACKWARD_GROUP * 16)
#define STAGING_BYTES       (32 * PART) /* a warp's 16 rows of dQ in FP16 */
#define ACCUMULATORS        (PART / 2)

#define AT_K         0
#define AT_V         (AT_K + KV_BYTES)
#define AT_KT        (AT_V + KV_BYTES)
#define AT_STAGES    (AT_KT + KV_BYTES)
#define AT_DS        (AT_STAGES + STAGES * STAGE_BYTES)
#define AT_STAGING   (AT_DS + 2 * DS_BYTES)
#define AT_RECORDS   (AT_STAGING + 8 * STAGING_BYTES)
#define AT_STEPS     (AT_RECORDS + STAGES * MXA_BACKWARD_RECORD)
#define AT_TILES     (AT_STEPS + RING * BACKWARD_STEP_BYTES)
#define AT_BARRIERS  (AT_TILES + TILES * BACKWARD_TILE_BYTES)
#define AT_END       (AT_BARRIERS + 8 * (2 * STAGES + 14))
#define SHARED_BYTES (AT_END + 1008)

#define DS_FULL(i)    (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + ((i)&1)))
#define DS_EMPTY(i)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 6 + ((i)&1)))
#define DQ_FULL(i, w) (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 8 + 2 * ((i)&1) + (w)))
#define DQ_EMPTY(w)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 12 + (w)))
#define DS_AT(i)      (shared + AT_DS + (uint32_t)((i)&1) * DS_BYTES)
#define STAGING_AT(w) (shared + AT_STAGING + (uint32_t)(w) * (4 * STAGING_BYTES))

#include "cuda/sm90/backward_pipeline_body.h"

MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(SHARED_BYTES == MXA_BACKWARD_SHARED_WIDE, "the host's number");
MXA_STATIC_ASSERT(MXA_BACKWARD_RECORD % 16 == 0, "records are copied in 16 bytes");

/* What one consumer thread keeps over a tile's steps. */
typedef struct BACKWARD(own) {
    mxa_shared tile;         /* the tile's words */
    int warp, part;          /* of the four that share the keys; which half of the dimensions */
    float scores, dp, delta; /* of the warp's key group: mxa_backward_key_record */
    float sum[2];            /* of P over queries so far, where dO's copy is less a mean */
} BACKWARD(own);

#define BACKWARD_FIRST_DIM(own) (PART * (own)->part)
/* WHY one for each part: each thread reads what it stored. */
#define BACKWARD_SUMS_HEAD(params, own, kv_head, h)                                                \
    ((uint64_t)(kv_head) * (uint64_t)(params)->group + (uint64_t)(h) +                             \
     (uint64_t)((own)->part * (params)->heads))

#define BACKWARD_APART           0 /* P waits for dP in FP32 */
#define BACKWARD_HALF_TERMS(own) BACKWARD_HALF_OF(BACKWARD_LANE)
#define BACKWARD_TERMS(own)      BACKWARD_TERMS_OF(BACKWARD_LANE)

/* WHY stepped to: made anew at each step, it is there late, and terms are read behind the products,
 * when shared memory is busy; 2% slower. */
#define BACKWARD_RECORD(place) ((place)->record)

/* 64 x 64 of two operands that lie in two boxes each, issued and committed. */
MXA_DEVICE void BACKWARD(multiply)(float *d, mxa_shared a, mxa_shared b)
{
    const uint64_t x = wgmma_descriptor(a, PART), y = wgmma_descriptor(b, PART);
    wgmma_ss_m64n64_f32_first(d, x, y);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        const uint64_t at = (uint64_t)((i >> 2) * (BOX_BYTES >> 4) + (i & 3) * MXA_DESCRIPTOR_K32);
        wgmma_ss_m64n64_f32(d, x + at, y + at);
    }
    wgmma_commit();
}

/* The same in FP16, packed pairs. */
MXA_DEVICE void BACKWARD(multiply_half)(uint32_t *d, mxa_shared a, mxa_shared b)
{
    const uint64_t x = wgmma_descriptor(a, PART), y = wgmma_descriptor(b, PART);
    wgmma_ss_m64n64_f16_first(d, x, y);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        const uint64_t at = (uint64_t)((i >> 2) * (BOX_BYTES >> 4) + (i & 3) * MXA_DESCRIPTOR_K32);
        wgmma_ss_m64n64_f16(d, x + at, y + at);
    }
    wgmma_commit();
}

/* scores, and in FP16. */
MXA_DEVICE void BACKWARD(scores)(mxa_shared shared, const BACKWARD(own) * own,
                                 const BACKWARD(place) * place, float *s)
{
    (void)own;
    BACKWARD(multiply)(s, shared + AT_K, STAGE_AT(place->stage));
}

MXA_DEVICE void BACKWARD(scores_half)(mxa_shared shared, const BACKWARD(own) * own,
                                      const BACKWARD(place) * place, uint32_t *s)
{
    (void)own;
    BACKWARD(multiply_half)(s, shared + AT_K, STAGE_AT(place->stage));
}

/* dprobs, and in FP16. */
MXA_DEVICE void BACKWARD(dprobs)(mxa_shared shared, const BACKWARD(own) * own,
                                 const BACKWARD(place) * place, float *dp)
{
    (void)own;
    BACKWARD(multiply)(dp, shared + AT_V, STAGE_AT(place->stage) + Q_BYTES);
}

MXA_DEVICE void BACKWARD(dprobs_half)(mxa_shared shared, const BACKWARD(own) * own,
                                      const BACKWARD(place) * place, uint32_t *dp)
{
    (void)own;
    BACKWARD(multiply_half)(dp, shared + AT_V, STAGE_AT(place->stage) + Q_BYTES);
}

#include "cuda/sm90/backward_probs_body.h"

#include "cuda/sm90/backward_half_body.h"

#include "cuda/sm90/backward_make_body.h"

/* grads: dV and dK, issued and committed. */
MXA_DEVICE void BACKWARD(multiply_keys)(float *dk, float *dv, const uint32_t *p, const uint32_t *ds,
                                        mxa_shared stage, int part)
{
    const mxa_shared half = stage + (uint32_t)part * BOX_BYTES;
    const uint64_t dout = wgmma_descriptor(half + 2 * Q_BYTES, TILE_Q);
    const uint64_t q = wgmma_descriptor(half + 3 * Q_BYTES, TILE_Q);
    wgmma_rs_m64n128_f32(dv, p, dout);
    wgmma_rs_m64n128_f32(dv, p + 4, dout + MXA_DESCRIPTOR_K32);
    wgmma_rs_m64n128_f32(dk, ds, q);
    wgmma_rs_m64n128_f32(dk, ds + 4, q + MXA_DESCRIPTOR_K32);
    wgmma_commit();
}

/* dQ of step `step`, issued and committed; waits for both halves of its dS. */
MXA_DEVICE void BACKWARD(multiply_queries)(float *dq, mxa_shared shared, int part, int step)
{
    mbarrier_wait(DS_FULL(step), (uint32_t)step >> 1 & 1);
    fence_async_shared(); /* WHY here: who stored would wait for its stores first */
    const uint64_t ds = wgmma_descriptor(DS_AT(step), TILE_K);
    const uint64_t k = wgmma_descriptor(shared + AT_KT + (uint32_t)part * BOX_BYTES, TILE_K);
    wgmma_fence();
    wgmma_ss_m64n128_f32_first(dq, ds, k);
    wgmma_ss_m64n128_f32(dq, ds + MXA_DESCRIPTOR_K32, k + MXA_DESCRIPTOR_K32);
    wgmma_commit();
}

/* This warpgroup's queries of dS to shared memory: row query, 64-byte swizzle. */
MXA_DEVICE void BACKWARD(store_dscores)(mxa_shared shared, const BACKWARD(own) * own, int step,
                                        const uint32_t *units)
{
    const int lane = BACKWARD_LANE;
    const mxa_shared at = DS_AT(step) + (uint32_t)((32 * own->part + lane) * TILE_K +
                                                   ((own->warp ^ (lane >> 1 & 3)) << 4));
    uint32_t mine[4];
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        mine[i] = own->part ? units[4 + i] : units[i];
    }
    mbarrier_wait(DS_EMPTY(step), ((uint32_t)step >> 1 & 1) ^ 1);
    dev_store_matrix_x4_transposed(at, mine);
    BACKWARD(tell)(DS_FULL(step));
}

/* Parity of a barrier of dQ for `piece` of the `step`th dQ that it is for: FP16 has one, FP32 two.
 */
MXA_DEVICE uint32_t BACKWARD(dq_parity)(const mxa_backward_params *params, int step, int piece)
{
    return params->dq_f32 ? (uint32_t)piece : (uint32_t)step & 1;
}

/* Half of dQ in FP32: `dq` are 32 accumulators. */
MXA_DEVICE void BACKWARD(stage_f32)(mxa_shared at, float factor, const float *dq)
{
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS / 8; i++) {
        const float *x = dq + 4 * i;
        const mxa_u32x4 v = {bits_f32(mul_rn(x[0], factor)), bits_f32(mul_rn(x[1], factor)),
                             bits_f32(mul_rn(x[2], factor)), bits_f32(mul_rn(x[3], factor))};
        dev_store_shared_u32x4(at + 512 * (uint32_t)i, v);
    }
}

MXA_DEVICE void BACKWARD(stage_f16)(mxa_shared at, float factor, const float *dq)
{
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS / 8; i++) {
        const float *x = dq + 8 * i;
        const mxa_u32x4 v = {f16x2_from_f32x2(mul_rn(x[0], factor), mul_rn(x[1], factor)),
                             f16x2_from_f32x2(mul_rn(x[2], factor), mul_rn(x[3], factor)),
                             f16x2_from_f32x2(mul_rn(x[4], factor), mul_rn(x[5], factor)),
                             f16x2_from_f32x2(mul_rn(x[6], factor), mul_rn(x[7], factor))};
        dev_store_shared_u32x4(at + 512 * (uint32_t)i, v);
    }
}

/* dQ of step `step`, accumulated here, is staged for the writer, times `factor`. */
MXA_DEVICE void BACKWARD(stage_queries)(const mxa_backward_params *params, mxa_shared shared,
                                        const BACKWARD(own) * own, int step, float factor,
                                        const float *dq)
{
    const mxa_shared at =
        STAGING_AT(own->part) + (uint32_t)own->warp * STAGING_BYTES + 16 * (uint32_t)BACKWARD_LANE;
    BACKWARD(tell)(DS_EMPTY(step));
    mbarrier_wait(DQ_EMPTY(own->part), BACKWARD(dq_parity)(params, step, 0) ^ 1);
    if (params->dq_f32) {
        BACKWARD(stage_f32)(at, factor, dq);
        BACKWARD(tell)(DQ_FULL(step, own->part));
        mbarrier_wait(DQ_EMPTY(own->part), BACKWARD(dq_parity)(params, step, 1) ^ 1);
        BACKWARD(stage_f32)(at, factor, dq + ACCUMULATORS / 2);
    } else {
        BACKWARD(stage_f16)(at, factor, dq);
    }
    BACKWARD(tell)(DQ_FULL(step, own->part));
}

/* All steps of one tile: this warpgroup's half of dK and dV of its 64 keys in accumulators. far: a
 * constant; 1: some step of the tile may be far. */
MXA_DEVICE void BACKWARD(steps)(const mxa_backward_params *params, mxa_shared shared,
                                BACKWARD(own) * own, int far, int steps, int count,
                                BACKWARD(place) * place, float *dk, float *dv)
{
    const int small = BACKWARD_HALF && !far; /* S and dP are FP16 */
    const uint32_t dq_factor =
        (small ? MXA_BACKWARD_HALF_DQ : MXA_BACKWARD_RECORD_DQ) + 4 * (uint32_t)(own->warp >> 1);
    float factor = 0.0f;
    MXA_NO_UNROLL
    for (int j = 0; j < steps; j++) {
        const int step = place->step;
        const mxa_shared stage = STAGE_AT(place->stage), record = BACKWARD_RECORD(place);
        uint32_t p[8], ds[8], units[8], flags;
        mbarrier_wait(FULL(place->stage), place->parity);
        if (small) {
            flags = BACKWARD(make_half)(params, shared, own, place, p, units, ds);
        } else {
            flags = BACKWARD(make)(params, shared, own, far, place, p, units, ds);
        }
        if (j == steps - 1) {
            BACKWARD(tell)(KV_EMPTY);
        }
        if (j > 0) {
            float dq[ACCUMULATORS];
            BACKWARD(multiply_queries)(dq, shared, own->part, step - 1);
            BACKWARD(multiply_keys)(dk, dv, p, ds, stage, own->part);
            BACKWARD(store_dscores)(shared, own, step, units);
            wgmma_wait(1);
            wgmma_hold_f32(dq, ACCUMULATORS);
            BACKWARD(stage_queries)(params, shared, own, step - 1, factor, dq);
        } else {
            wgmma_fence();
            BACKWARD(multiply_keys)(dk, dv, p, ds, stage, own->part);
            BACKWARD(store_dscores)(shared, own, step, units);
            mbarrier_wait(KT_FULL, (uint32_t)count & 1); /* before this tile's first dQ */
        }
        factor = dev_load_shared_f32(record + dq_factor);
        wgmma_wait(0);
        wgmma_hold_f32(dk, ACCUMULATORS);
        wgmma_hold_f32(dv, ACCUMULATORS);
        if ((flags & (BACKWARD_MEAN | BACKWARD_LAST)) == (BACKWARD_MEAN | BACKWARD_LAST)) {
            BACKWARD(keep_columns)(params, own, flags);
        }
        BACKWARD(tell)(EMPTY(place->stage));
        BACKWARD(advance)(place);
    }
    if (steps > 0) {
        float dq[ACCUMULATORS];
        BACKWARD(multiply_queries)(dq, shared, own->part, place->step - 1);
        wgmma_wait(0);
        wgmma_hold_f32(dq, ACCUMULATORS);
        BACKWARD(stage_queries)(params, shared, own, place->step - 1, factor, dq);
    }
}

#include "cuda/sm90/backward_finish_body.h"
#include "cuda/sm90/backward_wide_load_body.h"

/* One tile of keys of one consumer warpgroup, the CTA's `count`th. */
MXA_DEVICE void BACKWARD(consume)(const mxa_backward_params *params, mxa_shared shared,
                                  BACKWARD(own) * own, int count, BACKWARD(place) * place)
{
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const int steps = (int)counts.x, group = own->warp / (MXA_BACKWARD_GROUP / 16);
    const mxa_shared keys = own->tile + BACKWARD_TILE_KEYS + 16 * (uint32_t)group;
    float dk[ACCUMULATORS], dv[ACCUMULATORS], dk_factor = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dk[i] = dv[i] = 0.0f;
    }
    own->scores = own->dp = own->delta = 0.0f;
    if (steps > 0) {
        const mxa_u32x4 key = dev_load_shared_u32x4(keys);
        own->scores = f32_bits(key.x);
        own->dp = f32_bits(key.y);
        own->delta = f32_bits(key.z);
    } else {
        BACKWARD(tell)(KV_EMPTY);
        mbarrier_wait(KT_FULL, (uint32_t)count & 1); /* nothing comes, but its phase passes */
    }
    own->sum[0] = own->sum[1] = 0.0f;
    wgmma_hold_f32(dk, ACCUMULATORS);
    wgmma_hold_f32(dv, ACCUMULATORS);
    if (!BACKWARD_HALF ||
        (dev_load_shared_u32(own->tile + BACKWARD_TILE_RANGE + 12) & BACKWARD_TILE_FAR)) {
        BACKWARD(steps)(params, shared, own, 1, steps, count, place, dk, dv);
    } else {
        BACKWARD(steps)(params, shared, own, 0, steps, count, place, dk, dv);
    }
    BACKWARD(tell)(KT_EMPTY);
    if (steps > 0) {
        dk_factor = dev_load_shared_f32(keys + 12);
    }
    BACKWARD(finish_keys)
    (params, own, dk_factor, dev_load_shared_f32(own->tile + BACKWARD_TILE_RANGE + 8), dk, dv);
}

MXA_DEVICE void BACKWARD(init)(mxa_shared shared)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(FULL(i), 1);
        mbarrier_init(EMPTY(i), 8);
    }
    mbarrier_init(KV_FULL, 1);
    mbarrier_init(KV_EMPTY, 10);
    mbarrier_init(KT_FULL, 1);
    mbarrier_init(KT_EMPTY, 8);
    for (int i = 0; i < 2; i++) {
        mbarrier_init(DQ_FULL(0, i), 4);
        mbarrier_init(DQ_FULL(1, i), 4);
        mbarrier_init(DQ_EMPTY(i), 1);
        mbarrier_init(DS_FULL(i), 8);
        mbarrier_init(DS_EMPTY(i), 8);
    }
    mbarrier_init_fence();
}

MXA_KERNEL(BACKWARD_NAME, 384, mxa_backward_params, parameters)
{
    const mxa_backward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warp = warp_uniform(dev_thread() >> 5);
    if (dev_thread() == 0) {
        BACKWARD(init)(shared);
    }
    cta_sync();
    grid_dependency_wait();
    grid_dependency_launch();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    if (warp >= 8) {
        setmaxnreg_decrease(24);
        if (warp == 8) {
            if (BACKWARD_LANE == 0) {
                BACKWARD(load)(params, shared);
            }
        } else if (warp <= 10) {
            if (BACKWARD_LANE == 0) {
                BACKWARD(write)(params, shared, warp - 9);
            }
        }
    } else {
        setmaxnreg_increase(240);
        BACKWARD(place) place = {0, 0, 0, RECORD_AT(0)};
        hold_u32(&place.record); /* WHY: else it is made of the stage */
        BACKWARD(own) own;
        own.warp = warp & 3;
        own.part = warp >> 2;
        for (int count = 0;; count++) {
            mbarrier_wait(KV_FULL, (uint32_t)count & 1);
            own.tile = TILE_AT(count);
            if ((int)dev_load_shared_u32(own.tile + BACKWARD_TILE_STEPS) < 0) {
                break;
            }
            BACKWARD(consume)(params, shared, &own, count, &place);
        }
    }
}

#include "cuda/sm90/backward_end.h"
