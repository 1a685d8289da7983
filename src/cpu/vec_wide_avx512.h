/* vec_wide_avx512.h: what rows need beyond vec_avx512.h. Meanings: vec_wide_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_WIDE_H
#define MXA_CPU_VEC_WIDE_H

#include "cpu/vec_avx512.h"

typedef struct dvec {
    __m512d low, high;
} dvec;

static inline vec vec_from_bf16(const uint16_t *p)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline vec vec_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline vec vec_fused(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_sqrt(vec x)
{
    return _mm512_sqrt_ps(x);
}

static inline dvec dvec_zero(void)
{
    return (dvec){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline __m512d vec_low_f64(vec x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

static inline __m512d vec_high_f64(vec x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

static inline dvec dvec_add_product(dvec sum, vec a, vec b)
{
    sum.low = _mm512_fmadd_pd(vec_low_f64(a), vec_low_f64(b), sum.low);
    sum.high = _mm512_fmadd_pd(vec_high_f64(a), vec_high_f64(b), sum.high);
    return sum;
}

static inline void dvec_store(double *p, dvec x)
{
    _mm512_storeu_pd(p, x.low);
    _mm512_storeu_pd(p + 8, x.high);
}

#endif
