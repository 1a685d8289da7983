/* row_pairs_body.h: rows divided by their root mean square two vectors at a time, the elements of
 * even places beside those of odd ones: what rows_body.h and norm_body.h share.
 *
 * The arithmetic: mx/rms.h. Included after one vec_wide_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ROW_PAIRS_BODY_H
#define MXA_CPU_ROW_PAIRS_BODY_H

#include "cpu/vec_math.h"
#include "mx/rms.h"

#include <string.h>

enum { PAIR_LANES = 2 * VEC_LANES };

/* PAIR_LANES elements from i on. */
VEC_INLINE vec_pair pair_load(const void *x, mxattn_dtype dtype, int64_t i)
{
    if (dtype == MXATTN_BF16)
        return vec_pair_bf16((const uint16_t *)x + i);
    if (dtype == MXATTN_F32)
        return vec_pair_of((const float *)x + i);
    float wide[PAIR_LANES];
    const uint16_t *half = (const uint16_t *)x + i;
    vec_store(wide, vec_from_f16(half));
    vec_store(wide + VEC_LANES, vec_from_f16(half + VEC_LANES));
    return vec_pair_of(wide);
}

/* The factors of a row, in every lane. */
typedef struct divisor {
    vec hi, lo;
} divisor;

VEC_INLINE divisor divisor_of(const mxa_rms_scale *scale)
{
    return (divisor){vec_set(scale->hi), vec_set(scale->lo)};
}

VEC_INLINE vec divided(vec x, divisor by)
{
    return vec_fused(x, by.hi, vec_mul(x, by.lo));
}

/* weight: PAIR_LANES of them, those of even places first. */
VEC_INLINE vec_pair divide_pair(vec_pair x, divisor by, const float *weight)
{
    return (vec_pair){vec_mul(divided(x.even, by), vec_load(weight)),
                      vec_mul(divided(x.odd, by), vec_load(weight + VEC_LANES))};
}

#endif
