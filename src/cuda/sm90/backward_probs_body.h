/* backward_probs_body.h: from S and dP to P and dS, in registers; part of backward_body.h and
 * backward_wide_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* One lane of the warp arrives. */
MXA_DEVICE void BACKWARD(tell)(mxa_shared barrier)
{
    warp_sync();
    if (BACKWARD_LANE == 0) {
        mbarrier_arrive(barrier);
    }
}

/* Which of a thread's queries see its two keys: backward_seen. */
MXA_DEVICE void BACKWARD(find_seen)(const mxa_backward_params *params, const BACKWARD(own) * own,
                                    uint32_t flags, mxa_shared words, uint32_t *seen)
{
    const int key = 16 * own->warp + (BACKWARD_LANE >> 2), c = BACKWARD_LANE & 3;
    const int base = (int)dev_load_shared_u32(words + BACKWARD_STEP_BASE) + key;
    const int queries = (int)(flags / BACKWARD_QUERIES) & 127;
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const int left = (int)counts.z - (int)counts.y - key; /* keys there from this one on */
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        seen[r] = left > 8 * r ? backward_seen(params, base + 8 * r, queries, c) : 0;
        hold_u32(&seen[r]);
    }
}

/* Pairs that are not seen get P = 0, whatever their scores are. */
MXA_DEVICE void BACKWARD(mask)(const mxa_backward_params *params, const BACKWARD(own) * own,
                               uint32_t flags, mxa_shared words, float *p)
{
    uint32_t seen[2];
    BACKWARD(find_seen)(params, own, flags, words, seen);
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

/* probs: S, waited for, to P in place, and packed as the A operand of dV. With a softcap the packed
 * P is followed by P times the softcap's slope. far: as for steps. WHY the first terms before the
 * wait, and no more of them: it hides their latency, and registers are free for no more. */
MXA_DEVICE void BACKWARD(probs)(const mxa_backward_params *params, BACKWARD(own) * own, int far,
                                uint32_t flags, mxa_shared record, mxa_shared words, float *s,
                                uint32_t *p)
{
    const mxa_shared terms = record + BACKWARD_TERMS(own);
    const mxa_u32x2 q = dev_load_shared_u32x2(record + MXA_BACKWARD_RECORD_Q);
    const float scale[2] = {mul_rn(f32_bits(q.x), own->scores), mul_rn(f32_bits(q.y), own->scores)};
    float m[8];
    BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_M, 0, m);
    wgmma_wait(BACKWARD_APART ? 0 : 1);
    wgmma_hold_f32(s, 32);
#if BACKWARD_SOFTCAP
    float slope[32];
#else
    if (far && flags & BACKWARD_FAR) {
        BACKWARD(probs_far)(params, words, terms, scale, s);
    } else
#endif
    {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            if (i > 0) {
                BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_M, i, m);
            }
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
    if (far && flags & BACKWARD_FAR) {
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

#if BACKWARD_APART /* P in pairs of BF16 */
#define BACKWARD_P(p, i) f32_bits((i)&1 ? (p)[(i) / 2] & 0xFFFF0000u : (p)[(i) / 2] << 16)
#define BACKWARD_P_TYPE  uint32_t
#else
#define BACKWARD_P(p, i) (p)[i]
#define BACKWARD_P_TYPE  float
#endif

/* dscores: dP is waited for; dS = P * (dP - delta) in E4M3: `units` as stmatrix takes it (keys g
 * and g + 8 of a query side by side), `ds` as the A operand of dK. */
MXA_DEVICE void BACKWARD(dscores)(const BACKWARD(own) * own, mxa_shared record,
                                  const BACKWARD_P_TYPE *p, float *dp, uint32_t *units,
                                  uint32_t *ds)
{
    const mxa_shared terms = record + BACKWARD_TERMS(own);
    const mxa_u32x2 q = dev_load_shared_u32x2(record + MXA_BACKWARD_RECORD_DP);
    float d[8];
    BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_D, 0, d);
    wgmma_wait(0);
    wgmma_hold_f32(dp, 32);
#if BACKWARD_WARPGROUPS == 3
    if (own->delta == 0.0f) { /* V's rows are of the next sequence, finite or not; P is 0 */
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            dp[i] = 0.0f;
        }
        wgmma_hold_f32(dp, 32);
    }
#endif
    const float scale[2] = {mul_rn(f32_bits(q.x), own->dp), mul_rn(f32_bits(q.y), own->dp)};
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float *x = dp + 8 * i;
        if (i > 0) {
            BACKWARD(row_terms)(terms + MXA_BACKWARD_RECORD_D, i, d);
        }
        d[0] = d[2] = mul_rn(d[0], own->delta);
        d[1] = d[3] = mul_rn(d[1], own->delta);
        d[4] = d[6] = mul_rn(d[4], own->delta);
        d[5] = d[7] = mul_rn(d[5], own->delta);
        MXA_UNROLL
        for (int e = 0; e < 8; e++) {
            x[e] = mul_rn(BACKWARD_P(p, 8 * i + e), fma_rn(x[e], scale[i >> 1], -d[e]));
        }
        units[2 * i] = e4m3x4_from_f32(x[0], x[2], x[1], x[3]);
        units[2 * i + 1] = e4m3x4_from_f32(x[4], x[6], x[5], x[7]);
        ds[2 * i] = permute_bytes(units[2 * i], units[2 * i + 1], 0x6420);
        ds[2 * i + 1] = permute_bytes(units[2 * i], units[2 * i + 1], 0x7531);
    }
}

/* The sums of P of this head's queries go to memory: every lane of four has them, each stores and
 * later reads its own. */
MXA_DEVICE void BACKWARD(keep_columns)(const mxa_backward_params *params, BACKWARD(own) * own,
                                       uint32_t flags)
{
    const mxa_u32x4 place = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_PLACE);
    const uint64_t head = BACKWARD_SUMS_HEAD(params, own, place.x, flags / BACKWARD_HEAD);
    if (own->delta == 0.0f) {
        return;
    }
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
