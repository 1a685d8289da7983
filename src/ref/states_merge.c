/* states_merge.c: one result out of two over disjoint sets of keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "mx/tensor.h"
#include "ref/ref.h"

#include <math.h>

/* The weights of both sides: e^LSE_side / (e^LSE_a + e^LSE_b), and the merged LSE. A side that saw
 * no key (-inf) has weight exactly 0; two of them merge to another. */
typedef struct merge_weights {
    double a, b, lse;
} merge_weights;

static merge_weights weigh(double lse_a, double lse_b)
{
    if (lse_b == -INFINITY && !isnan(lse_a))
        return (merge_weights){lse_a == -INFINITY ? 0 : 1, 0, lse_a};
    if (lse_a == -INFINITY && !isnan(lse_b))
        return (merge_weights){0, 1, lse_b};
    const double max = lse_a > lse_b ? lse_a : lse_b;
    const double a = exp(lse_a - max), b = exp(lse_b - max);
    return (merge_weights){a / (a + b), b / (a + b), max + log(a + b)};
}

/* Element (b, s, h, d) of the merged O. A side of weight 0 is not read: it may hold anything. */
static double merged(const mxa_merge_call *call, merge_weights weights, const mxa_sequence *seq,
                     int64_t s, int64_t h, int64_t d)
{
    double o = 0;
    if (weights.a != 0)
        o += weights.a * mxa_tensor_value(&call->o_a, seq, seq->outer, s, h, d);
    if (weights.b != 0)
        o += weights.b * mxa_tensor_value(&call->o_b, seq, seq->outer, s, h, d);
    return o;
}

static void merge_row(const mxa_merge_call *call, int64_t b, int64_t s, int64_t h)
{
    const mxa_sequence seq = {.outer = b};
    const merge_weights weights = weigh((double)*mxa_ref_row_value(&call->lse_a, &seq, h, s),
                                        (double)*mxa_ref_row_value(&call->lse_b, &seq, h, s));
    for (int64_t d = 0; d < call->o.shape[3]; d++)
        mxa_store(call->o.data, call->o.tags.dtype, mxa_tensor_index(&call->o, &seq, s, h, d),
                  (float)merged(call, weights, &seq, s, h, d));
    if (call->lse.ndim)
        *mxa_ref_row_value(&call->lse, &seq, h, s) = (float)weights.lse;
}

mxattn_status mxa_ref_states_merge(const mxattn_context *context, const mxa_merge_call *call)
{
    (void)context;
    for (int64_t b = 0; b < call->o.shape[0]; b++)
        for (int64_t s = 0; s < call->o.shape[1]; s++)
            for (int64_t h = 0; h < call->o.shape[2]; h++)
                merge_row(call, b, s, h);
    return MXATTN_OK;
}
