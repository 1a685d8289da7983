/* forward_softmax.h: the softmax stage of the Blackwell forward: one thread, one row, 128 keys.
 *
 * Scores come out of the tensor cores with every block's scales applied; x = score * softmax_scale
 * * log2(e). P is held times 2^8 in E4M3 (or BF16), so a row's sum and O are in units of 2^-8 as
 * well, and the factor cancels.
 *
 * INVARIANT: row.m is -inf, NaN, or an integer no smaller than any x seen; it is raised to
 * ceil(max) + HEADROOM, so that P = 2^(x - m + 8) stays within E4M3 and every rescale is an exact
 * power of two. A row that has seen a NaN or an infinite score has m = NaN for good.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_SOFTMAX_H
#define MXA_CUDA_SM100_FORWARD_SOFTMAX_H

#include "cuda/dev/barrier.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/f32x8.h"
#include "cuda/dev/math.h"
#include "cuda/dev/tmem.h"
#include "cuda/sm100/forward_tile.h"

enum {
    FORWARD_P_LOG2 = 8,  /* P is held times 2^8 */
    FORWARD_HEADROOM = 3 /* WHY 3: 26% of warp tiles rescale without, 0.3% with */
};

#define FORWARD_MINUS_INF f32_bits(0xFF800000u)
#define FORWARD_MAGIC     12582912.0f /* 1.5 * 2^23: adding it leaves x's nearest integer low */

/* One row of one thread; l in units of 2^-8. */
typedef struct forward_row {
    float m, l;
    float rescale; /* 2^(old m - new m), valid when raised */
    int raised;    /* some row of the warp rose */
} forward_row;

/* 2^d for an integer d <= 0; 0 below -126, and for what is no number. */
MXA_DEVICE float forward_power(float d)
{
    uint32_t t = bits_f32(add_rn(max_f32(d, -127.0f), FORWARD_MAGIC));
    return f32_bits((t << 23) + 0x3F800000u);
}

/* 2^x of two columns by multiply-adds: x = n + f, |f| <= 1/2, 2^f by a polynomial of degree 3
 * (relative error below 7.5e-5, minimax), n added to the exponent. Below -126 it
 * stays where it is, at 2^-126 or a little less: P is 0 and the row's sum, at least 2^4, does not
 * move. A NaN counts as the least: the row's maximum has seen it. */
MXA_DEVICE mxa_f32x2 forward_exp2_polynomial(mxa_f32x2 x)
{
    const mxa_f32x2 magic = f32x2_from(FORWARD_MAGIC, FORWARD_MAGIC);
    const mxa_f32x2 minus = f32x2_from(-1.0f, -1.0f);
    x = max_f32x2(x, f32x2_from(-126.0f, -126.0f));
    mxa_f32x2 t = add_f32x2(x, magic);
    mxa_f32x2 f = add_f32x2(x, fma_f32x2(t, minus, magic));
    const mxa_f32x2 c0 = f32x2_from(0.999928057f, 0.999928057f);
    const mxa_f32x2 c1 = f32x2_from(0.693260968f, 0.693260968f);
    const mxa_f32x2 c2 = f32x2_from(0.242611125f, 0.242611125f);
    const mxa_f32x2 c3 = f32x2_from(0.0551716685f, 0.0551716685f);
    return add_exponent_f32x2(fma_f32x2(fma_f32x2(fma_f32x2(c3, f, c2), f, c1), f, c0), t);
}

/* Scores to logits in log2 units, where they are not simply scaled: a softcap, or a scale that is
 * not positive (the largest score would not be the largest logit). */
MXA_DEVICE void forward_logits(uint32_t *s, float scale_log2e, float softcap_log2e, float inverse)
{
    MXA_UNROLL
    for (int i = 0; i < MXA_SM100_TILE_K; i++) {
        float x = mul_rn(f32_bits(s[i]), scale_log2e);
        if (softcap_log2e > 0.0f) {
            x = mul_rn(softcap_log2e, tanh_approx(mul_rn(x, inverse)));
        }
        s[i] = bits_f32(x);
    }
}

/* Columns outside low..high become -inf. */
MXA_DEVICE void forward_mask(uint32_t *s, int low, int high)
{
    MXA_UNROLL
    for (int i = 0; i < MXA_SM100_TILE_K; i++) {
        s[i] = i >= low && i <= high ? s[i] : 0xFF800000u;
    }
}

/* What one thread's row sees: keys low..high; blocks from full_first to full_end are seen whole by
 * every row of the tile. */
typedef struct forward_span {
    int low, high;
    int full_first, full_end;
} forward_span;

MXA_DEVICE void forward_span_find(const mxa_sm100_forward_params *params, const forward_tile *tile,
                                  int t, forward_span *span)
{
    const int first = tile->first + t * MXA_SM100_TILE_Q, row = first + (dev_thread() & 127);
    int low, high;
    forward_visible(params, tile->diagonal, tile->k_used, row, row, &span->low, &span->high);
    /* Keys that all rows see: the last row's first to the first row's last. */
    forward_visible(params, tile->diagonal, tile->k_used, first + MXA_SM100_TILE_Q - 1, first, &low,
                    &high);
    span->full_first = (low + MXA_SM100_TILE_K - 1) / MXA_SM100_TILE_K;
    span->full_end = forward_max(high + 1, 0) / MXA_SM100_TILE_K;
}

/* Scores of block j to what softmax takes; returns the factor to logits in log2 units. */
MXA_DEVICE float forward_scores(const mxa_sm100_forward_params *params, const forward_span *span,
                                int j, uint32_t *s)
{
    float scale = params->scale_log2e;
    if (params->softcap_log2e > 0.0f || !(scale > 0.0f)) {
        forward_logits(s, scale, params->softcap_log2e, params->softcap_inverse);
        scale = 1.0f;
    }
    if (j < span->full_first || j >= span->full_end) {
        const int key = j * MXA_SM100_TILE_K;
        forward_mask(s, span->low - key, span->high - key);
    }
    return scale;
}

/* m >= x for every x of the block; scale > 0. */
MXA_DEVICE void forward_raise(const uint32_t *s, float scale, forward_row *row)
{
    float top[4];
    MXA_UNROLL
    for (int c = 0; c < 4; c++) {
        top[c] = max_nan_f32x32(s + c * 32);
    }
    float most = max3_nan_f32(max_nan_f32(top[0], top[1]), top[2], top[3]);
    most = max_nan_f32(mul_rn(most, scale), row->m);
    const int rises = !(most <= row->m);
    float m = rises ? add_rn(ceil_f32(most), (float)FORWARD_HEADROOM) : row->m;
    m = rises ? fma_rn(m, 0.0f, m) : m; /* an infinity turns into NaN */
    row->rescale = rises ? forward_power(add_rn(row->m, -m)) : 1.0f;
    row->l = mul_rn(row->l, row->rescale);
    row->m = m;
    row->raised = warp_any(rises);
}

/* Keys of the block whose V is not finite, where P is BF16 (prepare_values.cu). */
typedef struct forward_marks {
    mxa_global at; /* one bit a key, 4 words */
    uint32_t any;  /* not 0: there are some */
} forward_marks;

/* P of 32 keys becomes NaN at marked ones that the row sees. WHY not V itself: a row before the
 * mask would multiply it with 0, and be NaN. */
MXA_DEVICE void forward_poison(const forward_marks *marks, const forward_span *span, int j,
                               int group, uint32_t *p)
{
    const int key = j * MXA_SM100_TILE_K + 32 * group;
    const int from = forward_min(forward_max(span->low - key, 0), 32);
    const int to = forward_min(forward_max(span->high + 1 - key, 0), 32);
    const uint64_t one = 1;
    const uint32_t seen = (uint32_t)(((one << to) - 1) & ~((one << from) - 1));
    const uint32_t nan = dev_load_global_u32(marks->at + 4 * (uint64_t)group) & seen;
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        p[i] |= (nan >> (2 * i) & 1 ? 0x7FFFu : 0) | (nan >> (2 * i + 1) & 1 ? 0x7FFF0000u : 0);
    }
}

/* Logits (scores, times scale) to P in tensor memory, a column of 4 keys each, or of 2 in BF16
 * (marks not NULL, a constant); the row's sum moves on. A row that has seen no key: exp2(-inf + 0)
 * is 0, -inf - -inf would be NaN. WHY no polynomial in BF16: what lies at 2^-126 is not 0 there. */
MXA_DEVICE void forward_exponentials(const uint32_t *s, float scale, const forward_marks *marks,
                                     const forward_span *span, int j, forward_row *row, mxa_tmem to)
{
    const float base = row->m == FORWARD_MINUS_INF ? 0.0f : add_rn((float)FORWARD_P_LOG2, -row->m);
    const mxa_f32x2 scales = f32x2_from(scale, scale), bases = f32x2_from(base, base);
    mxa_f32x2 sum[2] = {f32x2_from(0.0f, 0.0f), f32x2_from(0.0f, 0.0f)};
    MXA_UNROLL
    for (int group = 0; group < 4; group++) {
        uint32_t p[16];
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            const mxa_f32x8 x = fma_f32x8(f32x8_bits(s + 32 * group + 8 * i), scales, bases);
            mxa_f32x8 e = exp2_approx_f32x8(x);
            const mxa_f32x2 e0 = f32x8_pair(e, 0), e1 = f32x8_pair(e, 1), e2 = f32x8_pair(e, 2);
            mxa_f32x2 e3 = f32x8_pair(e, 3);
            if (!marks) { /* WHY: of 16 exponentials a clock and 128 multiply-adds, a quarter */
                e3 = forward_exp2_polynomial(f32x8_pair(x, 3));
                e = f32x8_from(e0, e1, e2, e3);
            }
            sum[0] = add_f32x2(add_f32x2(sum[0], e0), e2);
            sum[1] = add_f32x2(add_f32x2(sum[1], e1), e3);
            if (marks) {
                p[4 * i] = bf16x2_from_f32x2(f32x2_low(e0), f32x2_high(e0));
                p[4 * i + 1] = bf16x2_from_f32x2(f32x2_low(e1), f32x2_high(e1));
                p[4 * i + 2] = bf16x2_from_f32x2(f32x2_low(e2), f32x2_high(e2));
                p[4 * i + 3] = bf16x2_from_f32x2(f32x2_low(e3), f32x2_high(e3));
            } else {
                e4m3x8_from_f32x8(e, &p[2 * i]);
            }
        }
        if (!marks) {
            tmem_store_x8(to + 8 * (uint32_t)group, p);
            continue;
        }
        if (marks->any) {
            forward_poison(marks, span, j, group, p);
        }
        tmem_store_x16(to + 16 * (uint32_t)group, p);
    }
    const mxa_f32x2 both = add_f32x2(sum[0], sum[1]);
    row->l = add_rn(row->l, add_rn(f32x2_low(both), f32x2_high(both)));
}

/* O of this warp's rows times their factors. INVARIANT: no product reads or writes O now: scores of
 * this block are complete, hence all before them, and P of this block is not yet ready. */
MXA_DEVICE void forward_rescale(mxa_tmem o, int columns, float factor)
{
    const mxa_f32x2 factors = f32x2_from(factor, factor);
    MXA_NO_UNROLL
    for (int c = 0; c < columns; c += 16) {
        uint32_t x[16];
        tmem_load_x16(x, o + (uint32_t)c);
        tmem_wait_load();
        MXA_UNROLL
        for (int i = 0; i < 16; i += 2) {
            mxa_f32x2 y = mul_f32x2(f32x2_from(f32_bits(x[i]), f32_bits(x[i + 1])), factors);
            x[i] = bits_f32(f32x2_low(y));
            x[i + 1] = bits_f32(f32x2_high(y));
        }
        tmem_store_x16(o + (uint32_t)c, x);
    }
}

#endif
