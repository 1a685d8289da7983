/* backward_half_body.h: from S and dP in FP16 to P and dS, in packed pairs; part of
 * backward_body.h and backward_wide_body.h.
 *
 * Register r of S, dP, P and dS holds key g + 8*(r & 1) and queries 8*(r >> 1) + 2*c and the next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* Terms of a step that are read before S is there. WHY: while products read shared memory, a load
 * takes a hundred clocks and more. */
typedef struct BACKWARD(terms) {
    mxa_u32x4 factors; /* MXA_BACKWARD_HALF_Q */
    mxa_u32x4 m[2];    /* MXA_BACKWARD_HALF_M */
} BACKWARD(terms);

MXA_DEVICE void BACKWARD(read_terms)(const BACKWARD(own) * own, mxa_shared record,
                                     BACKWARD(terms) * terms)
{
    (void)own;
    const mxa_shared at = record + BACKWARD_HALF_TERMS(own) + MXA_BACKWARD_HALF_M;
    terms->factors = dev_load_shared_u32x4(record + MXA_BACKWARD_HALF_Q);
    terms->m[0] = dev_load_shared_u32x4(at);
    terms->m[1] = dev_load_shared_u32x4(at + 16);
}

/* Pairs that are not seen get P = 0, whatever their scores are. */
MXA_DEVICE void BACKWARD(mask_half)(const mxa_backward_params *params, const BACKWARD(own) * own,
                                    uint32_t flags, mxa_shared words, uint32_t *p)
{
    uint32_t seen[2];
    BACKWARD(find_seen)(params, own, flags, words, seen);
    MXA_UNROLL
    for (int r = 0; r < 16; r++) {
        const uint32_t two = seen[r & 1] >> (r & 14);
        p[r] &= (two & 1) * 0x0000FFFFu | (two >> 1 & 1) * 0xFFFF0000u;
    }
}

/* The sums of P over queries that the mean of dO is owed. */
MXA_DEVICE void BACKWARD(add_columns_half)(BACKWARD(own) * own, mxa_shared record,
                                           const uint32_t *p)
{
    MXA_UNROLL
    for (int g = 0; g < 2; g++) {
        const float undo = dev_load_shared_f32(record + MXA_BACKWARD_HALF_SUM + 4 * (uint32_t)g);
        float sum[2] = {0.0f, 0.0f};
        MXA_UNROLL
        for (int r = 8 * g; r < 8 * g + 8; r++) {
            sum[r & 1] =
                add_rn(sum[r & 1], add_rn(f32_from_f16_low(p[r]), f32_from_f16_high(p[r])));
        }
        own->sum[0] = fma_rn(sum[0], undo, own->sum[0]);
        own->sum[1] = fma_rn(sum[1], undo, own->sum[1]);
    }
}

/* probs and dscores; S is there. `edge`, a constant: 0 where all pairs are seen and no sums are
 * owed. WHY at once: exp2 has an eighth of the instruction slots, and dS's arithmetic, with no
 * branch between the two, runs in the others. */
MXA_DEVICE void BACKWARD(both)(const mxa_backward_params *params, BACKWARD(own) * own, int edge,
                               uint32_t flags, mxa_shared record, mxa_shared words,
                               const BACKWARD(terms) * terms, uint32_t *s, uint32_t *dp,
                               uint32_t *p, uint32_t *units, uint32_t *ds)
{
    const mxa_shared at = record + BACKWARD_HALF_TERMS(own) + MXA_BACKWARD_HALF_D;
    const mxa_u32x4 f = terms->factors;
    const uint32_t scale[2] = {f16x2_from_f32(mul_rn(f32_bits(f.x), own->scores)),
                               f16x2_from_f32(mul_rn(f32_bits(f.y), own->scores))};
    const uint32_t factor[2] = {f16x2_from_f32(mul_rn(f32_bits(f.z), own->dp)),
                                f16x2_from_f32(mul_rn(f32_bits(f.w), own->dp))};
    const uint32_t delta = f16x2_from_f32(own->delta);
    MXA_UNROLL
    for (int r = 0; r < 16; r++) {
        const mxa_u32x4 m = terms->m[r >> 3];
        const uint32_t term[4] = {m.x, m.y, m.z, m.w};
        s[r] = fma_f16x2(s[r], scale[r >> 3], term[r >> 1 & 3]);
    }
    MXA_UNROLL
    for (int r = 0; r < 8; r++) {
        s[r] = exp2_f16x2(s[r]);
    }
    wgmma_wait(0);
    wgmma_hold_u32(dp, 16);
    if (BACKWARD_WARPGROUPS == 3 && own->delta == 0.0f) { /* V's rows are of the next sequence */
        MXA_UNROLL
        for (int r = 0; r < 16; r++) {
            dp[r] = 0;
        }
        wgmma_hold_u32(dp, 16);
    }
    MXA_UNROLL
    for (int r = 8; r < 16; r++) {
        s[r] = exp2_f16x2(s[r]);
    }
    if (edge && flags & BACKWARD_MASKED) {
        BACKWARD(mask_half)(params, own, flags, words, s);
    }
    if (edge && flags & BACKWARD_MEAN) {
        BACKWARD(add_columns_half)(own, record, s);
    }
    MXA_UNROLL
    for (int v = 0; v < 4; v++) {
        p[2 * v] = e4m3x4_from_f16x2(s[4 * v], s[4 * v + 2]);
        p[2 * v + 1] = e4m3x4_from_f16x2(s[4 * v + 1], s[4 * v + 3]);
    }
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const mxa_u32x4 d = dev_load_shared_u32x4(at + 16 * (uint32_t)i);
        const uint32_t term[4] = {mul_f16x2(d.x, delta), mul_f16x2(d.y, delta),
                                  mul_f16x2(d.z, delta), mul_f16x2(d.w, delta)};
        MXA_UNROLL
        for (int r = 8 * i; r < 8 * i + 8; r++) {
            dp[r] = mul_f16x2(s[r], fma_f16x2(dp[r], factor[i], term[r >> 1 & 3]));
        }
    }
    MXA_UNROLL
    for (int v = 0; v < 4; v++) {
        ds[2 * v] = e4m3x4_from_f16x2(dp[4 * v], dp[4 * v + 2]);
        ds[2 * v + 1] = e4m3x4_from_f16x2(dp[4 * v + 1], dp[4 * v + 3]);
        units[2 * v] = permute_bytes(ds[2 * v], ds[2 * v + 1], 0x5140);
        units[2 * v + 1] = permute_bytes(ds[2 * v], ds[2 * v + 1], 0x7362);
    }
}
