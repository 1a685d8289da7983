/* forward_softmax.h: the softmax stage of the Hopper forward, on FP16 and on FP32 scores.
 *
 * A thread holds scores of two rows, g and g + 8 of its warp's 16 (row index 0 and 1 below), in
 * wgmma's accumulator order: columns 8*k + 2*c and the next, c = lane % 4, of 32 keys a group.
 * Scores are payload products; x = score * q_scale * k_scale * softmax_scale * log2(e).
 *
 * INVARIANT: rows.m is -inf or an integer, and every P = 2^(x - m) that leaves this stage is, times
 * 2^8, within E4M3. m is raised to ceil(max) + HEADROOM, so every rescale is a power of two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_FORWARD_SOFTMAX_H
#define MXA_CUDA_SM90_FORWARD_SOFTMAX_H

#include "cuda/dev/barrier.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "cuda/sm90/forward_params.h"

enum {
    FORWARD_P_LOG2 = 8,  /* P is given to the tensor cores times 2^8; as FP16 it is held as it is */
    FORWARD_HEADROOM = 3 /* WHY 3: 26% of warp tiles rescale without, 0.3% with */
};

#define FORWARD_MINUS_INF f32_bits(0xFF800000u)
#define FORWARD_INF       f32_bits(0x7F800000u)
#define FORWARD_P_MOST    1.75f /* the largest E4M3, in units of 2^8 */

/* Two rows of one thread; l is this thread's share of the row sum, in units of 2^-8. */
typedef struct forward_rows {
    float m[2], l[2];
    float rescale[2]; /* 2^(old m - new m), valid when raised */
    int raised;       /* the same in the whole warp */
} forward_rows;

/* Which of a thread's scores of each row are seen: bit 2*k + e is column 8*k + 2*c + e. */
typedef struct forward_span {
    uint32_t seen[2];
} forward_span;

/* The same as edges: of each row columns from `from` to before `end` are seen, in bits of packed
 * pairs (16 a column), less this thread's 2*c columns; within 0..2048. */
typedef struct forward_edges {
    int from[2], end[2];
} forward_edges;

/* The bits of columns below `end`. */
MXA_DEVICE uint32_t forward_columns_below(int end, int c)
{
    int t = end - 2 * c; /* columns 8*k + e < t */
    int pairs = t >> 3, rest = t & 7;
    int bits = 2 * pairs + (rest < 2 ? rest : 2);
    return bits <= 0 ? 0 : bits >= 32 ? 0xFFFFFFFFu : (1u << bits) - 1;
}

/* Row r's maximum becomes `m`. */
MXA_DEVICE void forward_rise(forward_rows *rows, int r, float m)
{
    rows->rescale[r] = m == rows->m[r] ? 1.0f : exp2_approx(rows->m[r] - m);
    rows->l[r] = mul_rn(rows->l[r], rows->rescale[r]);
    rows->m[r] = m;
}

/* Largest t of the four lanes that share a row. */
MXA_DEVICE float forward_row_max(float t)
{
    t = max_f32(t, shuffle_xor_f32(t, 1));
    return max_f32(t, shuffle_xor_f32(t, 2));
}

/* m >= t for both rows; t is this thread's maximum. Shuffles only when some row of the warp must
 * rise. */
MXA_DEVICE void forward_raise(forward_rows *rows, float t0, float t1)
{
    rows->raised = warp_any(t0 > rows->m[0] || t1 > rows->m[1]);
    if (rows->raised) {
        t0 = forward_row_max(t0);
        t1 = forward_row_max(t1);
        forward_rise(rows, 0, t0 > rows->m[0] ? ceil_f32(t0) + FORWARD_HEADROOM : rows->m[0]);
        forward_rise(rows, 1, t1 > rows->m[1] ? ceil_f32(t1) + FORWARD_HEADROOM : rows->m[1]);
    }
}

/* log2 - m, and 0 for a row that has seen no key: exp2(-inf + 0) is 0, -inf - -inf would be NaN. */
MXA_DEVICE float forward_base(float m, int log2)
{
    return m == FORWARD_MINUS_INF ? 0.0f : (float)log2 - m;
}

/* Beyond this magnitude of m FP32 does not hold 8 - m and what is added to it. */
#define FORWARD_FAR 4194304.0f

/* What both rows' logits get to become P's exponents. Where m is far, it is taken off the logits
 * here, exactly near it, and what is left to add is small. WHY not always: an addition more for
 * each score. */
MXA_DEVICE void forward_bases_f32(float *s, int groups, const forward_rows *rows, float *base)
{
    int far = 0;
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        base[r] = forward_base(rows->m[r], FORWARD_P_LOG2);
        far |= base[r] > FORWARD_FAR || base[r] < -FORWARD_FAR;
    }
    if (warp_any(far)) {
        const float off[2] = {forward_base(rows->m[0], 0), forward_base(rows->m[1], 0)};
        MXA_UNROLL
        for (int i = 0; i < 16 * groups; i++) {
            s[i] = add_rn(s[i], off[(i >> 1) & 1]);
        }
        base[0] = base[1] = (float)FORWARD_P_LOG2;
    }
}

/* Factor from a score to a logit in log2 units, for each of four key groups. q_scale includes
 * softmax_scale * log2(e) and is positive. */
MXA_DEVICE void forward_scales_f16(mxa_shared record, float q_scale, uint32_t *scale)
{
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        scale[g] = f16x2_from_f32(mul_rn(q_scale, dev_load_shared_f32(record + 16 * (uint32_t)g)));
    }
}

/* Ones where the columns of register r, packed pairs, are at or beyond `edge`. */
MXA_DEVICE uint32_t forward_beyond(int edge, int r)
{
    const int bits = edge - 128 * (r >> 1);
    return shift_left_u32(0xFFFFFFFFu, (uint32_t)(bits > 0 ? bits : 0));
}

/* Scores become logits (the factors 1) and masked ones -inf. NOTE: the factor comes first; one that
 * FP16 rounds to 0 would turn -inf into NaN. left: a window has a left edge. */
MXA_DEVICE void forward_mask_f16(uint32_t *s, const forward_edges *edges, int left, uint32_t *scale)
{
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        uint32_t hidden = forward_beyond(edges->end[r & 1], r);
        s[r] = (mul_f16x2(s[r], scale[r >> 3]) & ~hidden) | (0xFC00FC00u & hidden);
        hold_u32(&s[r]); /* WHY: one element after another; overlapped, they spill */
    }
    if (left) {
        MXA_UNROLL
        for (int r = 0; r < 32; r++) {
            uint32_t seen = forward_beyond(edges->from[r & 1], r);
            s[r] = (s[r] & seen) | (0xFC00FC00u & ~seen);
            hold_u32(&s[r]);
        }
    }
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        scale[g] = 0x3C003C00u;
    }
}

/* m >= every logit of the block. */
MXA_DEVICE void forward_raise_f16(const uint32_t *s, forward_rows *rows, const uint32_t *scale)
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
}

/* P's code before it is cut out, and back; pairs. FP16 has the exponents of E4M3 times 2^-8, its
 * subnormals too: the code is the bits less seven of the fraction, here 8..15 of each half. A tie
 * goes up: exp2 in FP16 gives the number below, so that what looks like one lies above it. WHY it
 * matters: P that rounds to another code than the exact one is most of the forward's error. A NaN
 * may become a number; the row's sum has it. */
#define FORWARD_HALF 0x00400040u /* of an E4M3 unit, each column */

MXA_DEVICE uint32_t forward_code_f16(uint32_t p)
{
    return 2 * p + 2 * FORWARD_HALF;
}

MXA_DEVICE uint32_t forward_decode_f16(uint32_t code)
{
    return (code - 2 * FORWARD_HALF) >> 1;
}

/* P of group g's columns at and beyond the edges `end` becomes 0. */
MXA_DEVICE void forward_hide_f16(uint32_t *x, int g, const int *end)
{
    MXA_UNROLL
    for (int r = 0; r < 8; r++) {
        x[r] &= ~forward_beyond(end[r & 1] - 512 * g, r);
        hold_u32(&x[r]);
    }
}

/* 2^x without exp2 of x = s * scale - m, where above = 11 + m. Of i + f, f within 1/2, 2^f is a
 * cubic (off by 0.03%) times 2^-5, and 2^(i + 5) is made of the bits of i + 20: what is below
 * 2^-19.5 is 0, and from 2^10.5 on it is infinity. A NaN stays one. WHY not a parabola: off by
 * 0.3%, it had more P rounded to another code than exp2 has. WHY f of s again: FP16 holds 11 - x to
 * 2^-7 only. */
MXA_DEVICE uint32_t forward_exp2_f16(uint32_t s, uint32_t scale, uint32_t above)
{
    const uint32_t minus_one = 0xBC00BC00, thirty_one = 0x4FC04FC0;
    const uint32_t bias = 0x641F641F; /* 1024 + 31; between 1024 and 2048 FP16 has integers only */
    uint32_t y = min_nan_f16x2(fma_less_relu_f16x2(s, scale, above), thirty_one); /* 11 - x */
    uint32_t z = fma_f16x2(y, minus_one, bias);                                   /* 1044 + i */
    uint32_t f = fma_f16x2(s, scale, fma_f16x2(z, minus_one, fma_f16x2(above, minus_one, bias)));
    uint32_t cubic = fma_f16x2(fma_f16x2(f, 0x17301730, 0x1FBA1FBA), f, 0x258B258B);
    cubic = fma_f16x2(cubic, f, 0x28002800);
    /* The shift leaves 0x6400 >> 6 of the low half in the high one. */
    return mul_f16x2(cubic, (z << 10) - 0x01900000);
}

/* Logits of a key group to P of rows of maxima `max` (pairs), times 2^shift: V's exponent. without:
 * pairs that are left alone, as bits. */
MXA_DEVICE void forward_exps_f16(uint32_t *x, uint32_t scale, const uint32_t *max, uint32_t shift,
                                 int without)
{
    const uint32_t minus_one = 0xBC00BC00;
    const uint32_t c0 = fma_f16x2(max[0], minus_one, shift);
    const uint32_t c1 = fma_f16x2(max[1], minus_one, shift);
    MXA_UNROLL
    for (int r = 0; r < 8; r++) {
        if (!(without >> r & 1)) {
            x[r] = exp2_f16x2(fma_f16x2(x[r], scale, r & 1 ? c1 : c0));
        }
    }
}

/* Adds a key group's P to the two rows' sums, or begins them; undo: 2^-shift. without: 6, 7, both
 * or none, as bits. */
MXA_DEVICE void forward_sum_f16(const uint32_t *x, uint32_t undo, int begin, int without,
                                uint32_t *sum)
{
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        uint32_t a = add_f16x2(x[r], x[r + 2]);
        uint32_t b = without >> (6 + r) & 1 ? x[r + 4] : add_f16x2(x[r + 4], x[r + 6]);
        a = add_f16x2(a, b);
        sum[r] = begin ? mul_f16x2(a, undo) : fma_f16x2(a, undo, sum[r]);
    }
}

/* Both of a group of which pairs 6 or 7 or both (`without`, as bits) are made without exp2. WHY
 * their sum apart: what is 0 below 2^-19.5 is little of P, but not of P times 2^-14. */
MXA_DEVICE void forward_exps_mixed_f16(uint32_t *x, int without, uint32_t scale,
                                       const uint32_t *max, mxa_u32x2 v, int begin, uint32_t *sum)
{
    const uint32_t eleven = 0x49804980, exponents = 0x78007800; /* of 2^shift and 2^-shift, added */
    uint32_t p[2] = {0, 0};
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        if (without >> (6 + r) & 1) {
            p[r] = forward_exp2_f16(x[6 + r], scale, add_f16x2(max[r], eleven));
        }
    }
    forward_exps_f16(x, scale, max, v.x, without);
    forward_sum_f16(x, v.y, begin, without, sum);
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        if (without >> (6 + r) & 1) {
            sum[r] = add_f16x2(sum[r], p[r]);
            x[6 + r] = mul_f16x2(p[r], exponents - v.y);
        }
    }
}

/* A key group's P to codes. */
MXA_DEVICE void forward_codes_f16(uint32_t *x)
{
    MXA_UNROLL
    for (int r = 0; r < 8; r++) {
        x[r] = forward_code_f16(x[r]);
        hold_u32(&x[r]);
    }
}

MXA_DEVICE void forward_sums_f16(const uint32_t *sum, float *t)
{
    t[0] = add_rn(f32_from_f16_low(sum[0]), f32_from_f16_high(sum[0]));
    t[1] = add_rn(f32_from_f16_low(sum[1]), f32_from_f16_high(sum[1]));
}

/* V's exponent and its inverse of a key group. */
MXA_DEVICE mxa_u32x2 forward_shift_f16(mxa_shared record, int g)
{
    return dev_load_shared_u32x2(record + 16 * (uint32_t)g + 8);
}

/* Logits to codes of P of the maximum as it stands, in place; t: this thread's sums of the block.
 * record: of the block's first key group; three more follow it. end: edges of a block that is not
 * seen whole (forward_edges), or NULL. */
MXA_DEVICE void forward_exp_f16(uint32_t *s, float m0, float m1, mxa_shared record,
                                const uint32_t *scale, const int *end, float *t)
{
    const uint32_t max[2] = {f16x2_from_f32(m0), f16x2_from_f32(m1)};
    uint32_t sum[2] = {0, 0};
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        uint32_t *x = s + 8 * g;
        if (end && !warp_any(end[0] > 512 * g || end[1] > 512 * g)) {
            MXA_UNROLL
            for (int r = 0; r < 8; r++) {
                x[r] = forward_code_f16(0);
                hold_u32(&x[r]);
            }
            continue;
        }
        mxa_u32x2 v = forward_shift_f16(record, g);
        forward_exps_f16(x, scale[g], max, v.x, 0);
        if (end && warp_any(end[0] < 512 * (g + 1) || end[1] < 512 * (g + 1))) {
            forward_hide_f16(x, g, end);
        }
        forward_sum_f16(x, v.y, g == 0 && !end, 0, sum);
        forward_codes_f16(x);
    }
    forward_sums_f16(sum, t);
}

MXA_DEVICE void forward_add_f16(forward_rows *rows, const float *t)
{
    const float one = (float)(1 << FORWARD_P_LOG2);
    rows->l[0] = fma_rn(t[0], one, rows->l[0]);
    rows->l[1] = fma_rn(t[1], one, rows->l[1]);
}

/* Scores to codes of P, in place, the maximum raised first. */
MXA_DEVICE void forward_softmax_f16(uint32_t *s, forward_rows *rows, mxa_shared record,
                                    const uint32_t *scale)
{
    float t[2];
    forward_raise_f16(s, rows, scale);
    /* A row that has seen no key: 2^(-inf - 0) is 0, -inf - -inf would be NaN. */
    const float m0 = rows->m[0] == FORWARD_MINUS_INF ? 0.0f : rows->m[0];
    const float m1 = rows->m[1] == FORWARD_MINUS_INF ? 0.0f : rows->m[1];
    forward_exp_f16(s, m0, m1, record, scale, NULL, t);
    forward_add_f16(rows, t);
}

/* Moves row r down by `binades` >= 0: the maximum up, this block's P and sum to the new one. */
MXA_DEVICE void forward_lower_f16(uint32_t *s, forward_rows *rows, float *t, int r, float binades)
{
    uint32_t factor = f16x2_from_f32(exp2_approx(-binades));
    forward_rise(rows, r, add_rn(rows->m[r], binades));
    t[r] = mul_rn(t[r], rows->rescale[r]);
    MXA_UNROLL
    for (int i = r; i < 32; i += 2) {
        s[i] = forward_code_f16(mul_f16x2(s[i], factor));
    }
}

/* Where some P may be beyond E4M3: raises the maximum after the fact, which changes each P by an
 * exact power of two. Returns 0 when FP16 could not hold one: a jump of more than 15 binades. */
MXA_DEVICE int forward_mend_f16(uint32_t *s, forward_rows *rows, mxa_shared record, float *t)
{
    uint32_t top0 = 0, top1 = 0;
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        s[i] = forward_decode_f16(s[i]);
    }
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        const uint32_t *x = s + 8 * g;
        uint32_t undo = dev_load_shared_u32(record + 16 * (uint32_t)g + 12);
        uint32_t a = max_f16x2(max_f16x2(x[0], x[2]), max_f16x2(x[4], x[6]));
        uint32_t b = max_f16x2(max_f16x2(x[1], x[3]), max_f16x2(x[5], x[7]));
        top0 = max_f16x2(top0, mul_f16x2(a, undo));
        top1 = max_f16x2(top1, mul_f16x2(b, undo));
    }
    const int held = !(t[0] == FORWARD_INF || t[1] == FORWARD_INF);
    float most0 = forward_row_max(max_f32(f32_from_f16_low(top0), f32_from_f16_high(top0)));
    float most1 = forward_row_max(max_f32(f32_from_f16_low(top1), f32_from_f16_high(top1)));
    float up0 = ceil_f32(log2_approx(most0)) + (float)FORWARD_HEADROOM;
    float up1 = ceil_f32(log2_approx(most1)) + (float)FORWARD_HEADROOM;
    forward_lower_f16(s, rows, t, 0, most0 > 1.0f && most0 < FORWARD_INF ? up0 : 0.0f);
    forward_lower_f16(s, rows, t, 1, most1 > 1.0f && most1 < FORWARD_INF ? up1 : 0.0f);
    return held;
}

/* Whether some row's sum t of P made with the maximum as it was is beyond E4M3: a sum that it holds
 * has no term that it does not. WHY such a P: finding the maximum first takes a tenth of the
 * instructions, and exp2 waits for it. forward_mend_f16 must follow. A NaN stays one. */
MXA_DEVICE int forward_beyond_f16(const float *t)
{
    return warp_any(t[0] > FORWARD_P_MOST || t[1] > FORWARD_P_MOST);
}

/* Codes to A operands: register i of group g, in the key order of the private V. */
MXA_DEVICE void forward_pack_f16(const uint32_t *s, uint32_t *p)
{
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        int from = 8 * (i >> 2) + 4 * ((i >> 1) & 1) + (i & 1);
        p[i] = permute_bytes(s[from], s[from + 2], 0x7531);
    }
}

/* FP32 scores, `groups` groups of 32 keys (16 scores each). */
MXA_DEVICE void forward_mask_f32(float *s, int groups, const forward_span *span)
{
    MXA_UNROLL
    for (int r = 0; r < 16 * groups; r++) {
        int bit = 2 * (r >> 2) + (r & 1);
        if (!(span->seen[(r >> 1) & 1] >> bit & 1)) {
            s[r] = FORWARD_MINUS_INF;
        }
    }
}

/* Caps logits in log2 units. */
MXA_DEVICE void forward_softcap_f32(float *s, int groups, float softcap_log2e)
{
    if (softcap_log2e > 0.0f) {
        float inverse = reciprocal_rn(softcap_log2e);
        MXA_UNROLL
        for (int r = 0; r < 16 * groups; r++) {
            s[r] = mul_rn(softcap_log2e, tanh_approx(mul_rn(s[r], inverse)));
        }
    }
}

/* Scores to logits in log2 units. q_scale includes softmax_scale * log2(e). */
MXA_DEVICE void forward_logits_f32(float *s, int groups, mxa_shared record, float q_scale)
{
    MXA_UNROLL
    for (int g = 0; g < groups; g++) {
        float scale = mul_rn(q_scale, dev_load_shared_f32(record + 16 * (uint32_t)g));
        MXA_UNROLL
        for (int r = 0; r < 16; r++) {
            s[16 * g + r] = mul_rn(s[16 * g + r], scale);
        }
    }
}

/* The same where each token has its scale; q_scale of the two rows. */
MXA_DEVICE void forward_logits_token(float *s, int groups, mxa_shared record, const float *q_scale)
{
    const uint32_t c = (uint32_t)(dev_thread_again() & 3);
    MXA_UNROLL
    for (int k = 0; k < 4 * groups; k++) {
        mxa_u32x2 of =
            dev_load_shared_u32x2(record + (uint32_t)(k >> 2) * MXA_FORWARD_TOKEN_RECORD +
                                  32 * (uint32_t)(k & 3) + 8 * c);
        MXA_UNROLL
        for (int e = 0; e < 2; e++) {
            float k_scale = f32_bits(e ? of.y : of.x);
            s[4 * k + e] = mul_rn(s[4 * k + e], mul_rn(q_scale[0], k_scale));
            s[4 * k + 2 + e] = mul_rn(s[4 * k + 2 + e], mul_rn(q_scale[1], k_scale));
        }
    }
}

MXA_DEVICE void forward_raise_f32(const float *s, int groups, forward_rows *rows)
{
    float t0 = FORWARD_MINUS_INF, t1 = FORWARD_MINUS_INF;
    MXA_UNROLL
    for (int r = 0; r < 16 * groups; r += 4) {
        t0 = max_f32(t0, max_f32(s[r], s[r + 1]));
        t1 = max_f32(t1, max_f32(s[r + 2], s[r + 3]));
    }
    forward_raise(rows, t0, t1);
}

/* 16 logits to P, in place; adds their sums, times `undo`, to l. */
MXA_DEVICE void forward_exp_f32(float *x, forward_rows *rows, float c0, float c1, float undo)
{
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

/* Logits to P, in place. */
MXA_DEVICE void forward_softmax_f32(float *s, int groups, forward_rows *rows, mxa_shared record)
{
    forward_raise_f32(s, groups, rows);
    float base[2];
    forward_bases_f32(s, groups, rows, base);
    MXA_UNROLL
    for (int g = 0; g < groups; g++) {
        float shift = dev_load_shared_f32(record + 16 * (uint32_t)g + 4);
        float undo = f32_from_f16_low(dev_load_shared_u32(record + 16 * (uint32_t)g + 12));
        forward_exp_f32(s + 16 * g, rows, add_rn(base[0], shift), add_rn(base[1], shift), undo);
    }
}

/* A row that sees a key whose V has a NaN gets a NaN P, a row that does not see it gets none.
 * `nan`: keys of the group as bits. */
MXA_DEVICE void forward_poison(float *x, uint32_t nan, uint32_t seen)
{
    const int c = dev_thread_again() & 3;
    MXA_UNROLL
    for (int r = 0; r < 16; r++) {
        int key = 8 * (r >> 2) + (r & 1) + 2 * c;
        if ((nan >> key & 1) && (seen >> r & 1)) {
            x[r] = f32_bits(0x7FFFFFFFu);
        }
    }
}

/* The same without exponents of V. */
MXA_DEVICE void forward_softmax_token(float *s, int groups, forward_rows *rows, mxa_shared record)
{
    forward_raise_f32(s, groups, rows);
    float base[2];
    forward_bases_f32(s, groups, rows, base);
    MXA_UNROLL
    for (int g = 0; g < groups; g++) {
        float *x = s + 16 * g;
        uint32_t nan = dev_load_shared_u32(record + (uint32_t)g * MXA_FORWARD_TOKEN_RECORD + 128);
        uint32_t seen = 0;
        if (nan) {
            MXA_UNROLL
            for (int r = 0; r < 16; r++) {
                seen |= x[r] == FORWARD_MINUS_INF ? 0u : 1u << r;
            }
        }
        forward_exp_f32(x, rows, base[0], base[1], 1.0f);
        if (nan) {
            forward_poison(x, nan, seen);
        }
    }
}

MXA_DEVICE void forward_pack_f32(const float *s, int groups, uint32_t *p)
{
    MXA_UNROLL
    for (int i = 0; i < 4 * groups; i++) {
        const float *x = s + 16 * (i >> 2) + 8 * ((i >> 1) & 1) + 2 * (i & 1);
        p[i] = e4m3x4_from_f32(x[0], x[1], x[4], x[5]);
    }
}

/* The same in BF16, keys in their order. */
MXA_DEVICE void forward_pack_bf16(const float *s, int groups, uint32_t *p)
{
    MXA_UNROLL
    for (int i = 0; i < 8 * groups; i++) {
        p[i] = bf16x2_from_f32x2(s[2 * i], s[2 * i + 1]);
    }
}

#endif
