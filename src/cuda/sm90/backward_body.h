/* backward_body.h: gradients of MXFP8 attention on Hopper; included once per instance by
 * backward.cu.
 *
 * Formula: docs/math.md, backward; meaning: ref/attention_backward.c. All five products are FP8.
 * A CTA owns 128 keys of one kv head and walks the queries that see them, 64 at a time, of every q
 * head of the group; keys lie on the M side, so that P and dS leave the accumulators as the next
 * products' A operands:
 *   scores   S^T  = K Q^T        128 x 64, D deep      registers
 *   dprobs   dP^T = V dO^T       128 x 64, D deep      registers
 *   grads    dV  += P^T dO       128 x D, 64 deep      registers over all steps
 *            dK  += dS^T Q       128 x D, 64 deep      registers over all steps
 *            dQ   = dS K         64 x D, 128 deep      added to global memory
 * Scales are powers of two: the records of backward_params.h bring them in by factors of rows and
 * groups, none of single products.
 *
 * An instance defines
 *   BACKWARD_NAME     entry's name
 *   BACKWARD_D        64, 128 (head_dim = head_dim_v)
 *   BACKWARD_SOFTCAP  1: with a softcap
 *
 * Roles                      warps    registers
 *   consumers (64 keys each) 0..7     240
 *   producer (one thread)    8        24
 *   writers (a thread each)  9, 10    24; one for each consumer warpgroup
 * The two consumers take turns at dQ, one step late: then its D/2 accumulators lie where S and dP
 * were. WHY not halves of D for each: N = 64 was 6% slower.
 *
 * Shared memory (from a multiple of 1024)
 *   K, V     [128][D] each
 *   K^T      [D][128]
 *   stages   STAGES x (Q [64][D], dO [64][D], dO^T [D][64], Q^T [D][64])
 *   dS       2 x [64 queries][128 keys], bytes
 *   dQ       8 warps x 8 KB (FP16: 4): staging of dQ, then of dK and dV
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
 *   ds_full[2]   8          a lane of each consumer warp      the one at dQ    0
 *   ds_empty[2]  4          a lane of each warp at dQ         consumers        1
 *   dq_full[2]   4          a lane of each warp at dQ         writer           0
 *   dq_empty[2]  1          writer                            the one at dQ    1
 *
 * Order of a step, each deviation measured slower (docs/kernels.md): issue S and dP; P; dS; [my
 * turn: dQ of the step before]; dV and dK; only then dS to shared memory. At most six products of a
 * warp are queued: beyond that the warp blocks while it issues.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define BACKWARD_PASTE2(a, b) a##_##b
#define BACKWARD_PASTE(a, b)  BACKWARD_PASTE2(a, b)
#define BACKWARD(name)        BACKWARD_PASTE(BACKWARD_NAME, name)

#define TILE_Q      MXA_BACKWARD_TILE_Q
#define TILE_K      MXA_BACKWARD_TILE_K
#define KV_BYTES    (TILE_K * BACKWARD_D)
#define Q_BYTES     (TILE_Q * BACKWARD_D)
#define STAGE_BYTES (4 * Q_BYTES)
#define STAGES      3
#define RING        8 /* a power of two; a writer may be STAGES + 2 steps behind the producer */
#define TILES                                                                                      \
    4 /* a power of two; the producer finds the next tile while this one's last                    \
       * steps and the one before's end are worked on */
#define DS_BYTES      (TILE_Q * TILE_K)
#define KEYS_BYTES    (TILE_K / MXA_BACKWARD_GROUP * 16) /* a tile's mxa_backward_key_record */
#define STAGING_BYTES (64 * BACKWARD_D)                  /* a warp's 16 rows of dQ in FP32 */
#define ACCUMULATORS  (BACKWARD_D / 2)
#define BACKWARD_LANE (dev_thread_again() & 31) /* WHY again: no register is free for it */

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
#define AT_END       (AT_BARRIERS + 8 * (2 * STAGES + 12))
#define SHARED_BYTES (AT_END + (BACKWARD_D == 128 ? 0 : 1008)) /* WHY 0: dev.h aligns to 1024 */

#define STAGE_AT(s)   (shared + AT_STAGES + (uint32_t)(s)*STAGE_BYTES)
#define RECORD_AT(s)  (shared + AT_RECORDS + (uint32_t)(s)*MXA_BACKWARD_RECORD)
#define STEP_AT(i)    (shared + AT_STEPS + (uint32_t)((i) & (RING - 1)) * BACKWARD_STEP_BYTES)
#define TILE_AT(i)    (shared + AT_TILES + (uint32_t)((i) & (TILES - 1)) * BACKWARD_TILE_BYTES)
#define FULL(s)       (shared + AT_BARRIERS + 8 * (uint32_t)(s))
#define EMPTY(s)      (shared + AT_BARRIERS + 8 * (uint32_t)(STAGES + (s)))
#define KV_FULL       (shared + AT_BARRIERS + 8 * (2 * STAGES))
#define KV_EMPTY      (shared + AT_BARRIERS + 8 * (2 * STAGES + 1))
#define DS_FULL(i)    (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 2 + ((i)&1)))
#define DS_EMPTY(i)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 4 + ((i)&1)))
#define DQ_FULL(w)    (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 6 + (w)))
#define DQ_EMPTY(w)   (shared + AT_BARRIERS + 8 * (uint32_t)(2 * STAGES + 8 + (w)))
#define KT_FULL       (shared + AT_BARRIERS + 8 * (2 * STAGES + 10))
#define KT_EMPTY      (shared + AT_BARRIERS + 8 * (2 * STAGES + 11))
#define STAGING_AT(w) (shared + AT_STAGING + (uint32_t)(w) * (4 * STAGING_BYTES))

MXA_STATIC_ASSERT(BACKWARD_D == 64 || BACKWARD_D == 128, "head_dim of this body");
MXA_STATIC_ASSERT(SHARED_BYTES <= 232448, "shared memory of one CTA");
MXA_STATIC_ASSERT(MXA_BACKWARD_RECORD % 16 == 0, "records are copied in 16 bytes");

#if BACKWARD_D == 128
#define BACKWARD_MMA_KEYS    wgmma_rs_m64n128_f32
#define BACKWARD_MMA_Q_FIRST wgmma_ss_m64n128_f32_first
#define BACKWARD_MMA_Q       wgmma_ss_m64n128_f32
#else
#define BACKWARD_MMA_KEYS    wgmma_rs_m64n64_f32
#define BACKWARD_MMA_Q_FIRST wgmma_ss_m64n64_f32_first
#define BACKWARD_MMA_Q       wgmma_ss_m64n64_f32
#endif

/* A stage of the pipeline of steps. */
typedef struct BACKWARD(place) {
    int step, stage; /* steps so far in this CTA; stage = step % STAGES */
    uint32_t parity; /* of the stage's barriers */
} BACKWARD(place);

MXA_DEVICE void BACKWARD(advance)(BACKWARD(place) * place)
{
    place->step++;
    if (++place->stage == STAGES) {
        place->stage = 0;
        place->parity ^= 1;
    }
}

#include "cuda/sm90/backward_load_body.h"

/* What one consumer thread keeps over a tile's steps. */
typedef struct BACKWARD(own) {
    mxa_shared keys;         /* this warpgroup's rows of K; V's are KV_BYTES further */
    mxa_shared tile;         /* the tile's words */
    int warp;                /* of the CTA's eight consumer warps */
    float scores, dp, delta; /* of the warp's key group: mxa_backward_key_record */
    float sum[2];            /* of P over queries so far, where dO's copy is less a mean */
} BACKWARD(own);

/* scores and dprobs: S^T and dP^T of one step, issued and committed apart, not waited for. */
MXA_DEVICE void BACKWARD(multiply)(float *s, float *dp, mxa_shared keys, mxa_shared stage)
{
    const uint64_t k = wgmma_descriptor(keys, BACKWARD_D);
    const uint64_t v = wgmma_descriptor(keys + KV_BYTES, BACKWARD_D);
    const uint64_t q = wgmma_descriptor(stage, BACKWARD_D);
    const uint64_t dout = wgmma_descriptor(stage + Q_BYTES, BACKWARD_D);
    wgmma_fence();
    wgmma_ss_m64n64_f32_first(s, k, q);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        wgmma_ss_m64n64_f32(s, k + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                            q + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
    wgmma_ss_m64n64_f32_first(dp, v, dout);
    MXA_UNROLL
    for (int i = 1; i < BACKWARD_D / 32; i++) {
        wgmma_ss_m64n64_f32(dp, v + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                            dout + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

/* Pairs that are not seen get P = 0, whatever their scores are. */
MXA_DEVICE void BACKWARD(mask)(const mxa_backward_params *params, const BACKWARD(own) * own,
                               uint32_t flags, mxa_shared words, float *p)
{
    const int key = 16 * own->warp + (BACKWARD_LANE >> 2), c = BACKWARD_LANE & 3;
    const int base = (int)dev_load_shared_u32(words + BACKWARD_STEP_BASE) + key;
    const int queries = (int)(flags / BACKWARD_QUERIES) & 127;
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const int left = (int)counts.z - (int)counts.y - key; /* keys there from this one on */
    uint32_t seen[2];
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        seen[r] = left > 8 * r ? backward_seen(params, base + 8 * r, queries, c) : 0;
        hold_u32(&seen[r]);
    }
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        p[i] = seen[(i >> 1) & 1] >> (2 * (i >> 2) + (i & 1)) & 1 ? p[i] : 0.0f;
    }
}

/* The sums of P over queries that the mean of dO is owed. */
MXA_DEVICE void BACKWARD(add_columns)(BACKWARD(own) * own, mxa_shared record, const float *p)
{
    MXA_UNROLL
    for (int g = 0; g < 2; g++) {
        const float undo = dev_load_shared_f32(record + MXA_BACKWARD_RECORD_SUM + 4 * (uint32_t)g);
        float sum[2] = {0.0f, 0.0f};
        MXA_UNROLL
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            sum[(i >> 1) & 1] = add_rn(sum[(i >> 1) & 1], p[i]);
        }
        own->sum[0] = fma_rn(sum[0], undo, own->sum[0]);
        own->sum[1] = fma_rn(sum[1], undo, own->sum[1]);
    }
}

/* M or D of four of a thread's columns: 8*(2*i) + 2*c and the next, 8 further and the next. */
MXA_DEVICE void BACKWARD(row_terms)(mxa_shared at, int i, float *x)
{
    mxa_u32x4 v = dev_load_shared_u32x4(at + 16 * (uint32_t)i);
    x[0] = x[2] = f32_bits(v.x);
    x[1] = x[3] = f32_bits(v.y);
    x[4] = x[6] = f32_bits(v.z);
    x[5] = x[7] = f32_bits(v.w);
}

#if BACKWARD_SOFTCAP
/* P where the tile is far, in `s` already: held to its largest. WHY no more: tanh is coarser than
 * what is lost. */
MXA_DEVICE void BACKWARD(probs_far)(float *s)
{
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        s[i] = s[i] > 256.0f ? 256.0f : s[i];
    }
    wgmma_hold_f32(s, 32);
}
#else
/* S to P where the tile is far: an LSE of 2^30, say, leaves FP32 no room for its fraction, so M is
 * the row's maximum alone, the logit is rounded as forward rounds it, and what is left is a factor
 * of the row. Before it P is at most 1, also where LSE is a caller's. */
MXA_DEVICE void BACKWARD(probs_far)(const mxa_backward_params *params, mxa_shared words,
                                    mxa_shared terms, const float *scale, float *s)
{
    const mxa_global factors = params->row_factors +
                               256 * (uint64_t)dev_load_shared_u32(words + BACKWARD_STEP_DQ) +
                               8 * (uint64_t)(BACKWARD_LANE & 3);
    MXA_UNROLL
    for (int i = 0; i < 8; i++) {
        const mxa_u32x2 factor = dev_load_global_u32x2(factors + 32 * (uint64_t)i);
        const mxa_u32x2 m = dev_load_shared_u32x2(terms + MXA_BACKWARD_RECORD_M + 8 * (uint32_t)i);
        float *x = s + 4 * i;
        MXA_UNROLL
        for (int e = 0; e < 4; e++) {
            x[e] = mul_rn(x[e], scale[i >> 2]);
            x[e] = exp2_approx(add_rn(x[e], -f32_bits(e & 1 ? m.y : m.x)));
            x[e] = mul_rn(x[e] > 1.0f ? 1.0f : x[e], f32_bits(e & 1 ? factor.y : factor.x));
        }
        wgmma_hold_f32(x, 4); /* WHY: one after another, or they spill */
    }
}
#endif

/* probs: S to P in place, and packed as the A operand of dV. With a softcap the packed P is
 * followed by P times the softcap's slope. */
MXA_DEVICE void BACKWARD(probs)(const mxa_backward_params *params, BACKWARD(own) * own,
                                mxa_shared record, mxa_shared words, float *s, uint32_t *p)
{
    const uint32_t flags = dev_load_shared_u32(words + BACKWARD_STEP_FLAGS);
    const mxa_shared terms = record + MXA_BACKWARD_RECORD_ROW * (uint32_t)(BACKWARD_LANE & 3);
    const mxa_u32x2 q = dev_load_shared_u32x2(record + MXA_BACKWARD_RECORD_Q);
    const float scale[2] = {mul_rn(f32_bits(q.x), own->scores), mul_rn(f32_bits(q.y), own->scores)};
#if BACKWARD_SOFTCAP
    float slope[32];
#else
    if (flags & BACKWARD_FAR) {
        BACKWARD(probs_far)(params, words, terms, scale, s);
    } else
#endif
    {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            float m[8];
            BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_M, i, m);
            MXA_UNROLL
            for (int e = 0; e < 8; e++) {
#if BACKWARD_SOFTCAP
                const float t = tanh_approx(mul_rn(s[8 * i + e], scale[i >> 1]));
                slope[8 * i + e] = fma_rn(-t, t, 1.0f);
                s[8 * i + e] = exp2_approx(fma_rn(t, params->softcap_log2e, -m[e]));
#else
                s[8 * i + e] = exp2_approx(fma_rn(s[8 * i + e], scale[i >> 1], -m[e]));
#endif
            }
        }
    }
#if BACKWARD_SOFTCAP
    if (flags & BACKWARD_FAR) {
        BACKWARD(probs_far)(s);
    }
#endif
    if (flags & BACKWARD_MASKED) {
        BACKWARD(mask)(params, own, flags, words, s);
        wgmma_hold_f32(s, 32); /* WHY: keeps the branch a branch */
    }
    if (flags & BACKWARD_MEAN) {
        BACKWARD(add_columns)(own, record, s);
    }
    MXA_UNROLL
    for (int v = 0; v < 4; v++) {
        const float *x = s + 8 * v;
        p[2 * v] = e4m3x4_from_f32(x[0], x[1], x[4], x[5]);
        p[2 * v + 1] = e4m3x4_from_f32(x[2], x[3], x[6], x[7]);
    }
#if BACKWARD_SOFTCAP
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        s[i] = mul_rn(s[i], slope[i]);
    }
#endif
}

/* dscores: dS = P * (dP - delta) in E4M3: `units` as stmatrix takes it (keys g and g + 8 of a query
 * side by side), `ds` as the A operand of dK. */
MXA_DEVICE void BACKWARD(dscores)(const BACKWARD(own) * own, mxa_shared record, const float *p,
                                  float *dp, uint32_t *units, uint32_t *ds)
{
    const mxa_shared terms = record + MXA_BACKWARD_RECORD_ROW * (uint32_t)(BACKWARD_LANE & 3);
    const mxa_u32x2 q = dev_load_shared_u32x2(record + MXA_BACKWARD_RECORD_DP);
    const float scale[2] = {mul_rn(f32_bits(q.x), own->dp), mul_rn(f32_bits(q.y), own->dp)};
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float *x = dp + 8 * i;
        float d[8];
        BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_D, i, d);
        d[0] = d[2] = mul_rn(d[0], own->delta);
        d[1] = d[3] = mul_rn(d[1], own->delta);
        d[4] = d[6] = mul_rn(d[4], own->delta);
        d[5] = d[7] = mul_rn(d[5], own->delta);
        MXA_UNROLL
        for (int e = 0; e < 8; e++) {
            x[e] = mul_rn(p[8 * i + e], fma_rn(x[e], scale[i >> 1], -d[e]));
        }
        units[2 * i] = e4m3x4_from_f32(x[0], x[2], x[1], x[3]);
        units[2 * i + 1] = e4m3x4_from_f32(x[4], x[6], x[5], x[7]);
        ds[2 * i] = permute_bytes(units[2 * i], units[2 * i + 1], 0x6420);
        ds[2 * i + 1] = permute_bytes(units[2 * i], units[2 * i + 1], 0x7531);
    }
}

/* dS to shared memory for dQ: row query, 128-byte swizzle. */
MXA_DEVICE void BACKWARD(store_dscores)(mxa_shared shared, const BACKWARD(own) * own, int step,
                                        const uint32_t *units)
{
    const mxa_shared at = shared + AT_DS + (uint32_t)(step & 1) * DS_BYTES +
                          (uint32_t)BACKWARD_LANE * TILE_K +
                          (uint32_t)((own->warp ^ (BACKWARD_LANE & 7)) << 4);
    mbarrier_wait(DS_EMPTY(step), ((uint32_t)step >> 1 & 1) ^ 1);
    dev_store_matrix_x4_transposed(at, units);
    dev_store_matrix_x4_transposed(at + 32 * TILE_K, units + 4);
    fence_async_shared();
    warp_sync();
    if (BACKWARD_LANE == 0) {
        mbarrier_arrive(DS_FULL(step));
    }
}

/* grads: dV and dK, issued and committed. */
MXA_DEVICE void BACKWARD(multiply_keys)(float *dk, float *dv, const uint32_t *p, const uint32_t *ds,
                                        mxa_shared stage)
{
    const uint64_t dout = wgmma_descriptor(stage + 2 * Q_BYTES, TILE_Q);
    const uint64_t q = wgmma_descriptor(stage + 3 * Q_BYTES, TILE_Q);
    BACKWARD_MMA_KEYS(dv, p, dout);
    BACKWARD_MMA_KEYS(dv, p + 4, dout + MXA_DESCRIPTOR_K32);
    BACKWARD_MMA_KEYS(dk, ds, q);
    BACKWARD_MMA_KEYS(dk, ds + 4, q + MXA_DESCRIPTOR_K32);
    wgmma_commit();
}

/* dQ of step `step`, issued and committed; waits for both halves of its dS. */
MXA_DEVICE void BACKWARD(multiply_queries)(float *dq, mxa_shared shared, int step)
{
    mbarrier_wait(DS_FULL(step), (uint32_t)step >> 1 & 1);
    const uint64_t ds = wgmma_descriptor(shared + AT_DS + (uint32_t)(step & 1) * DS_BYTES, TILE_K);
    const uint64_t k = wgmma_descriptor(shared + AT_KT, TILE_K);
    wgmma_fence();
    BACKWARD_MMA_Q_FIRST(dq, ds, k);
    MXA_UNROLL
    for (int i = 1; i < TILE_K / 32; i++) {
        BACKWARD_MMA_Q(dq, ds + (uint64_t)(i * MXA_DESCRIPTOR_K32),
                       k + (uint64_t)(i * MXA_DESCRIPTOR_K32));
    }
    wgmma_commit();
}

/* dQ of step `step`, accumulated here, is staged for the writer, times `factor`. */
MXA_DEVICE void BACKWARD(stage_queries)(const mxa_backward_params *params, mxa_shared shared,
                                        const BACKWARD(own) * own, int step, float factor,
                                        const float *dq)
{
    const int warpgroup = own->warp >> 2, lane = BACKWARD_LANE;
    const mxa_shared at = STAGING_AT(warpgroup) + 16 * (uint32_t)lane;
    if (lane == 0) {
        mbarrier_arrive(DS_EMPTY(step));
    }
    mbarrier_wait(DQ_EMPTY(warpgroup), ((uint32_t)step >> 1 & 1) ^ 1);
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
    fence_async_shared();
    warp_sync();
    if (lane == 0) {
        mbarrier_arrive(DQ_FULL(warpgroup));
    }
}

/* The sums of P of this head's queries go to memory: every lane of four has them, each stores and
 * later reads its own. */
MXA_DEVICE void BACKWARD(keep_columns)(const mxa_backward_params *params, BACKWARD(own) * own,
                                       uint32_t flags)
{
    const mxa_u32x4 place = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_PLACE);
    const uint64_t head = (uint64_t)place.x * (uint64_t)params->group + flags / BACKWARD_HEAD;
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        float sum = own->sum[r];
        sum = add_rn(sum, shuffle_xor_f32(sum, 1));
        sum = add_rn(sum, shuffle_xor_f32(sum, 2));
        const uint64_t row =
            (uint64_t)place.y + (uint64_t)(16 * own->warp + (BACKWARD_LANE >> 2) + 8 * r);
        dev_store_global_f32(params->column_sums + 4 * (head * (uint64_t)params->k_rows + row),
                             sum);
        own->sum[r] = 0.0f;
    }
}

/* One lane of the warp arrives. */
MXA_DEVICE void BACKWARD(tell)(mxa_shared barrier)
{
    warp_sync();
    if (BACKWARD_LANE == 0) {
        mbarrier_arrive(barrier);
    }
}

/* All steps of one tile: dK and dV of this warpgroup's 64 keys in accumulators. */
MXA_DEVICE void BACKWARD(steps)(const mxa_backward_params *params, mxa_shared shared,
                                BACKWARD(own) * own, int steps, int count, BACKWARD(place) * place,
                                float *dk, float *dv)
{
    const int warpgroup = own->warp >> 2, half = own->warp >> 1 & 1;
    float factor = 0.0f;
    MXA_NO_UNROLL
    for (int j = 0; j < steps; j++) {
        const int step = place->step;
        const mxa_shared stage = STAGE_AT(place->stage), record = RECORD_AT(place->stage);
        const mxa_shared words = STEP_AT(step);
        float s[32], dp[32];
        uint32_t p[8], ds[8], units[8];
        mbarrier_wait(FULL(place->stage), place->parity);
        BACKWARD(multiply)(s, dp, own->keys, stage);
        wgmma_wait(1);
        wgmma_hold_f32(s, 32);
        BACKWARD(probs)(params, own, record, words, s, p);
        wgmma_wait(0);
        wgmma_hold_f32(dp, 32);
        BACKWARD(dscores)(own, record, s, dp, units, ds);
        if (j == steps - 1) {
            BACKWARD(tell)(KV_EMPTY);
        }
        if (((step ^ warpgroup) & 1) == 0 && j > 0) {
            float dq[ACCUMULATORS];
            BACKWARD(multiply_queries)(dq, shared, step - 1);
            BACKWARD(multiply_keys)(dk, dv, p, ds, stage);
            BACKWARD(store_dscores)(shared, own, step, units);
            wgmma_wait(1);
            wgmma_hold_f32(dq, ACCUMULATORS);
            BACKWARD(stage_queries)(params, shared, own, step - 1, factor, dq);
            wgmma_wait(0);
        } else {
            wgmma_fence();
            BACKWARD(multiply_keys)(dk, dv, p, ds, stage);
            BACKWARD(store_dscores)(shared, own, step, units);
            factor = dev_load_shared_f32(record + MXA_BACKWARD_RECORD_DQ + 4 * (uint32_t)half);
            if (j == 0) {
                mbarrier_wait(KT_FULL, (uint32_t)count & 1); /* before this warpgroup's first dQ */
            }
            wgmma_wait(0);
        }
        wgmma_hold_f32(dk, ACCUMULATORS);
        wgmma_hold_f32(dv, ACCUMULATORS);
        const uint32_t flags = dev_load_shared_u32(words + BACKWARD_STEP_FLAGS);
        if ((flags & (BACKWARD_MEAN | BACKWARD_LAST)) == (BACKWARD_MEAN | BACKWARD_LAST)) {
            BACKWARD(keep_columns)(params, own, flags);
        }
        warp_sync();
        if (BACKWARD_LANE == 0) {
            mbarrier_arrive(EMPTY(place->stage));
        }
        BACKWARD(advance)(place);
    }
    if (((place->step ^ warpgroup) & 1) == 0 && steps > 0) {
        float dq[ACCUMULATORS];
        BACKWARD(multiply_queries)(dq, shared, place->step - 1);
        wgmma_wait(0);
        wgmma_hold_f32(dq, ACCUMULATORS);
        BACKWARD(stage_queries)(params, shared, own, place->step - 1, factor, dq);
    }
}

#include "cuda/sm90/backward_finish_body.h"

/* One tile of keys of one consumer warpgroup, the CTA's `count`th. */
MXA_DEVICE void BACKWARD(consume)(const mxa_backward_params *params, mxa_shared shared,
                                  BACKWARD(own) * own, int count, BACKWARD(place) * place)
{
    const int steps = (int)dev_load_shared_u32(own->tile + BACKWARD_TILE_STEPS);
    const mxa_shared keys =
        own->tile + BACKWARD_TILE_KEYS + 16 * (uint32_t)(own->warp / (MXA_BACKWARD_GROUP / 16));
    float dk[ACCUMULATORS], dv[ACCUMULATORS], dk_factor = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dk[i] = dv[i] = 0.0f;
    }
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
    BACKWARD(steps)(params, shared, own, steps, count, place, dk, dv);
    BACKWARD(tell)(KT_EMPTY);
    /* The writer has read what was staged last; this warpgroup stages steps of the other parity. */
    const uint32_t next = (uint32_t)(place->step + ((place->step ^ own->warp >> 2 ^ 1) & 1));
    mbarrier_wait(DQ_EMPTY(own->warp >> 2), (next >> 1 & 1) ^ 1);
    if (steps > 0) {
        dk_factor = dev_load_shared_f32(keys + 12);
    }
    BACKWARD(finish_keys)
    (params, shared, own, dk_factor, dev_load_shared_f32(own->tile + BACKWARD_TILE_RANGE + 8), dk,
     dv);
}

MXA_KERNEL(BACKWARD_NAME, 384, mxa_backward_params, parameters)
{
    const mxa_backward_params *params = &parameters;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int warp = warp_uniform(dev_thread() >> 5);
    if (dev_thread() == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(FULL(i), 1);
            mbarrier_init(EMPTY(i), 8);
        }
        mbarrier_init(KV_FULL, 1);
        mbarrier_init(KV_EMPTY, 10);
        mbarrier_init(KT_FULL, 1);
        mbarrier_init(KT_EMPTY, 8);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(DQ_FULL(i), 4);
            mbarrier_init(DQ_EMPTY(i), 1);
            mbarrier_init(DS_FULL(i), 8);
            mbarrier_init(DS_EMPTY(i), 4);
        }
        mbarrier_init_fence();
    }
    cta_sync();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    if (warp >= 8) {
        setmaxnreg_decrease(24);
        /* WHY branches of whole warps: by thread numbers ptxas spills. */
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
        BACKWARD(place) place = {0, 0, 0};
        BACKWARD(own) own;
        own.warp = warp;
        own.keys = shared + AT_K + (uint32_t)(warp >> 2) * (64 * BACKWARD_D);
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

#undef BACKWARD_PASTE2
#undef BACKWARD_PASTE
#undef BACKWARD
#undef TILE_Q
#undef TILE_K
#undef KV_BYTES
#undef Q_BYTES
#undef STAGE_BYTES
#undef STAGES
#undef RING
#undef TILES
#undef DS_BYTES
#undef KEYS_BYTES
#undef STAGING_BYTES
#undef ACCUMULATORS
#undef BACKWARD_LANE
#undef AT_K
#undef AT_V
#undef AT_KT
#undef AT_STAGES
#undef AT_DS
#undef AT_STAGING
#undef AT_RECORDS
#undef AT_STEPS
#undef AT_TILES
#undef AT_BARRIERS
#undef AT_END
#undef SHARED_BYTES
#undef STAGE_AT
#undef RECORD_AT
#undef STEP_AT
#undef TILE_AT
#undef FULL
#undef EMPTY
#undef KV_FULL
#undef KV_EMPTY
#undef DS_FULL
#undef DS_EMPTY
#undef DQ_FULL
#undef DQ_EMPTY
#undef KT_FULL
#undef KT_EMPTY
#undef STAGING_AT
#undef BACKWARD_MMA_KEYS
#undef BACKWARD_MMA_Q_FIRST
#undef BACKWARD_MMA_Q
#undef BACKWARD_NAME
#undef BACKWARD_D
#undef BACKWARD_SOFTCAP
