/* vec_wide_portable.h: what rows need beyond vec_portable.h, in plain C, and the meanings.
 *
 *   vec_from_bf16, vec_from_f16   VEC_LANES elements, exact
 *   vec_fused(a, b, c)            a*b + c with one rounding
 *   vec_sqrt                      correctly rounded
 *   dvec                          VEC_LANES of float64
 *   dvec_zero, dvec_store
 *   dvec_add_product(s, a, b)     s + a*b in float64, where the product is exact
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_WIDE_H
#define MXA_CPU_VEC_WIDE_H

#include "cpu/vec_portable.h"

#include <math.h>

typedef struct dvec {
    double lane[VEC_LANES];
} dvec;

static inline vec vec_from_bf16(const uint16_t *p)
{
    const ivec bits = {p[0], p[1], p[2], p[3]};
    return vec_from_bits(ivec_shl(bits, 16));
}

static inline vec vec_from_f16(const uint16_t *p)
{
    return (vec){mxa_f16_to_f32(p[0]), mxa_f16_to_f32(p[1]), mxa_f16_to_f32(p[2]),
                 mxa_f16_to_f32(p[3])};
}

static inline vec vec_fused(vec a, vec b, vec c)
{
    return (vec){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]),
                 fmaf(a[3], b[3], c[3])};
}

static inline vec vec_sqrt(vec x)
{
    return (vec){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])};
}

static inline dvec dvec_zero(void)
{
    return (dvec){{0}};
}

static inline dvec dvec_add_product(dvec sum, vec a, vec b)
{
    for (int i = 0; i < VEC_LANES; i++)
        sum.lane[i] += (double)a[i] * (double)b[i];
    return sum;
}

static inline void dvec_store(double *p, dvec x)
{
    memcpy(p, x.lane, sizeof(x.lane));
}

#endif
