/* forward_softmax.h: the softmax stage of the Hopper forward, on FP16 and on FP32 scores.
 *
 * A thread holds scores of two rows, g and g + 8 of its warp's 16 (row index 0 and 1 below), in
 * wgmma's accumulator order: 128 keys, columns 8*k + 2*c and the next, c = lane % 4. Scores are
 * payload products; x = score * q_scale * k_scale * softmax_scale * log2(e).
 *
 * INVARIANT: rows.m is -inf or an integer no smaller than any x seen; it is raised to ceil(max) +
 * HEADROOM, so that P = 2^(x - m + 8) stays within E4M3 and every rescale is a power of two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_FORWARD_SOFTMAX_H
#define MXA_CUDA_SM90_FORWARD_SOFTMAX_H

#include "cuda/dev/barrier.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"

enum {
    FORWARD_P_LOG2 = 8,  /* P is held times 2^8 */
    FORWARD_HEADROOM = 3 /* WHY 3: 26% of warp tiles rescale without, 0.3% with */
};

#define FORWARD_MINUS_INF f32_bits(0xFF800000u)

/* Two rows of one thread; l is this thread's share of the row sum, in units of 2^-8. */
typedef struct forward_rows {
    float m[2], l[2];
    float rescale[2]; /* 2^(old m - new m), valid when raised */
    int raised;       /* the same in the whole warp */
} forward_rows;

/* Which of a thread's 32 scores of each row are seen: bit 2*k + e is column 8*k + 2*c + e. */
typedef struct forward_span {
    uint32_t seen[2];
} forward_span;

/* The bits of columns below `end`. */
MXA_DEVICE uint32_t forward_columns_below(int end, int c)
{
    int t = end - 2 * c; /* columns 8*k + e < t */
    int pairs = t >> 3, rest = t & 7;
    int bits = 2 * pairs + (rest < 2 ? rest : 2);
    return bits <= 0 ? 0 : bits >= 32 ? 0xFFFFFFFFu : (1u << bits) - 1;
}

/* m >= t for both rows; t is this thread's maximum. Shuffles only when some row of the warp must
 * rise. */
MXA_DEVICE void forward_raise(forward_rows *rows, float t0, float t1)
{
    rows->raised = warp_any(t0 > rows->m[0] || t1 > rows->m[1]);
    if (rows->raised) {
        t0 = max_f32(t0, shuffle_xor_f32(t0, 1));
        t1 = max_f32(t1, shuffle_xor_f32(t1, 1));
        t0 = max_f32(t0, shuffle_xor_f32(t0, 2));
        t1 = max_f32(t1, shuffle_xor_f32(t1, 2));
        float m0 = t0 > rows->m[0] ? ceil_f32(t0) + (float)FORWARD_HEADROOM : rows->m[0];
        float m1 = t1 > rows->m[1] ? ceil_f32(t1) + (float)FORWARD_HEADROOM : rows->m[1];
        rows->rescale[0] = m0 == rows->m[0] ? 1.0f : exp2_approx(rows->m[0] - m0);
        rows->rescale[1] = m1 == rows->m[1] ? 1.0f : exp2_approx(rows->m[1] - m1);
        rows->l[0] = mul_rn(rows->l[0], rows->rescale[0]);
        rows->l[1] = mul_rn(rows->l[1], rows->rescale[1]);
        rows->m[0] = m0;
        rows->m[1] = m1;
    }
}

/* 8 - m, and 0 for a row that has seen no key: exp2(-inf + 0) is 0, -inf - -inf would be NaN. */
MXA_DEVICE float forward_base(float m)
{
    return m == FORWARD_MINUS_INF ? 0.0f : (float)FORWARD_P_LOG2 - m;
}

/* Factor from a score to a logit in log2 units, for each key group. q_scale includes softmax_scale
 * * log2(e) and is positive. */
MXA_DEVICE void forward_scales_f16(mxa_shared record, float q_scale, uint32_t *scale)
{
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        scale[g] = f16x2_from_f32(mul_rn(q_scale, dev_load_shared_f32(record + 16 * (uint32_t)g)));
    }
}

/* Scores become logits (the factors 1) and masked ones -inf. NOTE: the factor comes first; one that
 * FP16 rounds to 0 would turn -inf into NaN. */
MXA_DEVICE void forward_mask_f16(uint32_t *s, const forward_span *span, uint32_t *scale)
{
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        uint32_t seen = span->seen[r & 1] >> (r & ~1);
        uint32_t keep = (seen & 1 ? 0xFFFFu : 0u) | (seen & 2 ? 0xFFFF0000u : 0u);
        s[r] = (mul_f16x2(s[r], scale[r >> 3]) & keep) | (0xFC00FC00u & ~keep);
        hold_u32(&s[r]); /* WHY: one element after another; overlapped, they spill */
    }
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        scale[g] = 0x3C003C00u;
    }
}

/* Scores to P, in place. record: of the block's first key group; three more follow it. */
MXA_DEVICE void forward_softmax_f16(uint32_t *s, forward_rows *rows, mxa_shared record,
                                    const uint32_t *scale)
{
    uint32_t top0 = 0xFC00FC00u, top1 = 0xFC00FC00u;
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        const uint32_t *x = s + 8 * g;
        uint32_t a = max_f16x2(max_f16x2(x[0], x[2]), max_f16x2(x[4], x[6]));
        uint32_t b = max_f16x2(max_f16x2(x[1], x[3]), max_f16x2(x[5], x[7]));
        top0 = max_f16x2(top0, mul_f16x2(a, scale[g]));
        top1 = max_f16x2(top1, mul_f16x2(b, scale[g]));
    }
    forward_raise(rows, max_f32(f32_from_f16_low(top0), f32_from_f16_high(top0)),
                  max_f32(f32_from_f16_low(top1), f32_from_f16_high(top1)));

    uint32_t base0 = f16x2_from_f32(forward_base(rows->m[0]));
    uint32_t base1 = f16x2_from_f32(forward_base(rows->m[1]));
    uint32_t sum0 = 0, sum1 = 0;
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        uint32_t *x = s + 8 * g;
        mxa_u32x2 v = dev_load_shared_u32x2(record + 16 * (uint32_t)g + 8);
        uint32_t c0 = add_f16x2(base0, v.x);
        uint32_t c1 = add_f16x2(base1, v.x);
        MXA_UNROLL
        for (int r = 0; r < 8; r++) {
            x[r] = exp2_f16x2(fma_f16x2(x[r], scale[g], r & 1 ? c1 : c0));
        }
        uint32_t a = add_f16x2(add_f16x2(x[0], x[2]), add_f16x2(x[4], x[6]));
        uint32_t b = add_f16x2(add_f16x2(x[1], x[3]), add_f16x2(x[5], x[7]));
        sum0 = g == 0 ? mul_f16x2(a, v.y) : fma_f16x2(a, v.y, sum0);
        sum1 = g == 0 ? mul_f16x2(b, v.y) : fma_f16x2(b, v.y, sum1);
    }
    rows->l[0] = add_rn(rows->l[0], add_rn(f32_from_f16_low(sum0), f32_from_f16_high(sum0)));
    rows->l[1] = add_rn(rows->l[1], add_rn(f32_from_f16_low(sum1), f32_from_f16_high(sum1)));
}

/* P to A operands: register i of group g, in the key order of the private V. */
MXA_DEVICE void forward_pack_f16(const uint32_t *s, uint32_t *p)
{
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        int from = 8 * (i >> 2) + 4 * ((i >> 1) & 1) + (i & 1);
        p[i] = e4m3x4_from_f16x2(s[from], s[from + 2]);
    }
}

MXA_DEVICE void forward_mask_f32(float *s, const forward_span *span)
{
    MXA_UNROLL
    for (int r = 0; r < 64; r++) {
        int bit = 2 * (r >> 2) + (r & 1);
        if (!(span->seen[(r >> 1) & 1] >> bit & 1)) {
            s[r] = FORWARD_MINUS_INF;
        }
    }
}

/* Scores to logits in log2 units; softcap > 0 caps them. q_scale includes softmax_scale *
 * log2(e). */
MXA_DEVICE void forward_logits_f32(float *s, mxa_shared record, float q_scale, float softcap_log2e)
{
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        float scale = mul_rn(q_scale, dev_load_shared_f32(record + 16 * (uint32_t)g));
        MXA_UNROLL
        for (int r = 0; r < 16; r++) {
            s[16 * g + r] = mul_rn(s[16 * g + r], scale);
        }
    }
    if (softcap_log2e > 0.0f) {
        float inverse = reciprocal_rn(softcap_log2e);
        MXA_UNROLL
        for (int r = 0; r < 64; r++) {
            s[r] = mul_rn(softcap_log2e, tanh_approx(mul_rn(s[r], inverse)));
        }
    }
}

/* Logits to P, in place. */
MXA_DEVICE void forward_softmax_f32(float *s, forward_rows *rows, mxa_shared record)
{
    float t0 = FORWARD_MINUS_INF, t1 = FORWARD_MINUS_INF;
    MXA_UNROLL
    for (int r = 0; r < 64; r += 4) {
        t0 = max_f32(t0, max_f32(s[r], s[r + 1]));
        t1 = max_f32(t1, max_f32(s[r + 2], s[r + 3]));
    }
    forward_raise(rows, t0, t1);
    float base0 = forward_base(rows->m[0]), base1 = forward_base(rows->m[1]);
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        float *x = s + 16 * g;
        float shift = dev_load_shared_f32(record + 16 * (uint32_t)g + 4);
        float undo = f32_from_f16_low(dev_load_shared_u32(record + 16 * (uint32_t)g + 12));
        float c0 = add_rn(base0, shift), c1 = add_rn(base1, shift);
        float sum0 = 0.0f, sum1 = 0.0f;
        MXA_UNROLL
        for (int r = 0; r < 16; r += 4) {
            x[r] = exp2_approx(add_rn(x[r], c0));
            x[r + 1] = exp2_approx(add_rn(x[r + 1], c0));
            x[r + 2] = exp2_approx(add_rn(x[r + 2], c1));
            x[r + 3] = exp2_approx(add_rn(x[r + 3], c1));
            sum0 = add_rn(sum0, add_rn(x[r], x[r + 1]));
            sum1 = add_rn(sum1, add_rn(x[r + 2], x[r + 3]));
        }
        rows->l[0] = fma_rn(sum0, undo, rows->l[0]);
        rows->l[1] = fma_rn(sum1, undo, rows->l[1]);
    }
}

MXA_DEVICE void forward_pack_f32(const float *s, uint32_t *p)
{
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        const float *x = s + 16 * (i >> 2) + 8 * ((i >> 1) & 1) + 2 * (i & 1);
        p[i] = e4m3x4_from_f32(x[0], x[1], x[4], x[5]);
    }
}

#endif
