/* vec_wide_avx2.h: what rows need beyond vec_avx2.h. Meanings: vec_wide_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_WIDE_H
#define MXA_CPU_VEC_WIDE_H

#include "cpu/vec_avx2.h"

typedef struct dvec {
    __m256d low, high;
} dvec;

static inline vec vec_from_bf16(const uint16_t *p)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline vec vec_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vec vec_fused(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_sqrt(vec x)
{
    return _mm256_sqrt_ps(x);
}

static inline dvec dvec_zero(void)
{
    return (dvec){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

static inline __m256d vec_low_f64(vec x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

static inline __m256d vec_high_f64(vec x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

static inline dvec dvec_add_product(dvec sum, vec a, vec b)
{
    sum.low = _mm256_fmadd_pd(vec_low_f64(a), vec_low_f64(b), sum.low);
    sum.high = _mm256_fmadd_pd(vec_high_f64(a), vec_high_f64(b), sum.high);
    return sum;
}

static inline void dvec_store(double *p, dvec x)
{
    _mm256_storeu_pd(p, x.low);
    _mm256_storeu_pd(p + 4, x.high);
}

#endif
