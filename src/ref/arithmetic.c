/* arithmetic.c: mask, scores, and the sums that both directions of attention share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "ref/ref.h"

#include <math.h>

static const double log2_e = 1.4426950408889634074;

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

mxa_ref_range mxa_ref_visible(const mxattn_attention_problem *problem, int64_t seqlen_q,
                              int64_t seqlen_k, int64_t i)
{
    const int64_t diagonal =
        problem->alignment == MXATTN_BOTTOM_RIGHT ? i + seqlen_k - seqlen_q : i;
    const int64_t left = problem->window[0], right = problem->window[1];
    mxa_ref_range range = {0, seqlen_k};
    /* Compared before they are added, so that no window overflows. */
    if (left >= 0 && left < diagonal)
        range.first = clamp(diagonal - left, 0, seqlen_k);
    if (right >= 0 && right < seqlen_k - diagonal)
        range.end = clamp(diagonal + right + 1, range.first, seqlen_k);
    return range;
}

mxa_ref_hold mxa_ref_hold_of(const mxattn_plan *plan)
{
    if (plan->problem.precision == MXATTN_PRECISION_F64)
        return MXA_REF_HOLD_EXACT;
    return plan->info.intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXA_REF_HOLD_E4M3
                                                                 : MXA_REF_HOLD_BF16;
}

double mxa_ref_round_p(mxa_ref_hold hold, double p)
{
    switch (hold) {
    case MXA_REF_HOLD_BF16:
        return mxa_round_bf16(p);
    case MXA_REF_HOLD_E4M3: /* p <= 1, so p * 2^8 is far from the maximum, 448 */
        return (double)mxa_e4m3_to_f32(mxa_e4m3_from_f64(p * 0x1p8)) * 0x1p-8;
    case MXA_REF_HOLD_EXACT:
        break;
    }
    return p;
}

void mxa_ref_scores(const mxattn_plan *plan, const double *q, const double *k_columns,
                    int64_t seqlen_k, mxa_ref_range range, double *y, double *slope)
{
    const mxattn_attention_problem *problem = &plan->problem;
    const int64_t count = range.end - range.first;
    const double scale = problem->softmax_scale, cap = problem->softcap;

    for (int64_t j = 0; j < count; j++)
        y[j] = 0;
    mxa_ref_weighted_sum(y, count, q, k_columns + range.first, seqlen_k, problem->head_dim);
    for (int64_t j = 0; j < count; j++)
        y[j] *= scale;
    if (cap > 0) {
        for (int64_t j = 0; j < count; j++) {
            const double t = tanh(y[j] / cap);
            y[j] = cap * t;
            if (slope)
                slope[j] = 1 - t * t;
        }
    }
    for (int64_t j = 0; j < count; j++)
        y[j] *= log2_e;
}

/* Four terms at a time, so that y is read and written once for four: the order stays that of t. */
void mxa_ref_weighted_sum(double *restrict y, int64_t n, const double *restrict weights,
                          const double *restrict rows, int64_t stride, int64_t count)
{
    int64_t t = 0;
    for (; t + 4 <= count; t += 4) {
        const double w0 = weights[t], w1 = weights[t + 1], w2 = weights[t + 2], w3 = weights[t + 3];
        const double *r0 = rows + t * stride, *r1 = r0 + stride, *r2 = r1 + stride,
                     *r3 = r2 + stride;
        for (int64_t i = 0; i < n; i++)
            y[i] = (((y[i] + w0 * r0[i]) + w1 * r1[i]) + w2 * r2[i]) + w3 * r3[i];
    }
    for (; t < count; t++) {
        const double w = weights[t];
        const double *r = rows + t * stride;
        for (int64_t i = 0; i < n; i++)
            y[i] += w * r[i];
    }
}
