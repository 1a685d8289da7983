/* vec_wide_portable.h: what rows need beyond vec_portable.h, in plain C, and the meanings.
 *
 *   vec_from_bf16, vec_from_f16   VEC_LANES elements, exact
 *   vec_fused(a, b, c)            a*b + c with one rounding
 *   vec_sqrt                      correctly rounded
 *   vec_pair                      2 * VEC_LANES elements: those of even places and of odd ones
 *   vec_pair_of, _bf16            from 2 * VEC_LANES elements in order
 *   vec_pair_high, vec_pair_low   the upper and lower halves of all, in order
 *   vec_pair_store_bf16           rounded to nearest even, NaN made quiet; stream: past the caches,
 *                                 where p is a multiple of 64
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

typedef struct vec_pair {
    vec even, odd;
} vec_pair;

static inline vec_pair vec_pair_of(const float *p)
{
    return (vec_pair){{p[0], p[2], p[4], p[6]}, {p[1], p[3], p[5], p[7]}};
}

static inline vec_pair vec_pair_bf16(const uint16_t *p)
{
    const vec low = vec_from_bf16(p), high = vec_from_bf16(p + 4);
    return (vec_pair){{low[0], low[2], high[0], high[2]}, {low[1], low[3], high[1], high[3]}};
}

/* Upper halves of `even` below those of `odd`. */
static inline ivec vec_join_high(ivec even, ivec odd)
{
    return (odd & ivec_set(-0x10000)) | ivec_shr(even, 16);
}

static inline ivec vec_pair_high(vec_pair x)
{
    return vec_join_high(vec_bits(x.even), vec_bits(x.odd));
}

static inline ivec vec_pair_low(vec_pair x)
{
    return (vec_bits(x.even) & ivec_set(0xFFFF)) | ivec_shl(vec_bits(x.odd), 16);
}

static inline ivec vec_bits_bf16(vec x)
{
    const ivec bits = vec_bits(x);
    const ivec rounded = bits + ivec_set(0x7FFF) + (ivec_shr(bits, 16) & ivec_set(1));
    return vec_bits(vec_select(vec_is_nan(x), vec_from_bits(bits | ivec_set(0x400000)),
                               vec_from_bits(rounded)));
}

static inline void vec_pair_store_bf16(uint16_t *p, vec_pair x, int stream)
{
    (void)stream;
    const ivec joined = vec_join_high(vec_bits_bf16(x.even), vec_bits_bf16(x.odd));
    memcpy(p, &joined, sizeof joined);
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
