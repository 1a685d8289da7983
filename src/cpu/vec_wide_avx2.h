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

typedef struct vec_pair {
    vec even, odd;
} vec_pair;

static inline vec_pair vec_pair_of(const float *p)
{
    const __m256 low = _mm256_loadu_ps(p), high = _mm256_loadu_ps(p + 8);
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xDD));
    return (vec_pair){_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8)),
                      _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8))};
}

static inline vec_pair vec_pair_bf16(const uint16_t *p)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i odd = _mm256_and_si256(x, _mm256_set1_epi32(-0x10000));
    return (vec_pair){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(odd)};
}

static inline ivec vec_pair_high(vec_pair x)
{
    const __m256i even = _mm256_castps_si256(x.even), odd = _mm256_castps_si256(x.odd);
    return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
}

static inline ivec vec_pair_low(vec_pair x)
{
    const __m256i even = _mm256_castps_si256(x.even), odd = _mm256_castps_si256(x.odd);
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
}

static inline __m256i vec_bits_bf16(vec x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(half, even)),
                                                _mm256_castsi256_ps(quiet),
                                                _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

static inline void vec_pair_store_bf16(uint16_t *p, vec_pair x, int stream)
{
    const __m256i even = _mm256_srli_epi32(vec_bits_bf16(x.even), 16);
    const __m256i words = _mm256_blend_epi16(even, vec_bits_bf16(x.odd), 0xAA);
    if (stream)
        _mm256_stream_si256((__m256i *)(void *)p, words);
    else
        _mm256_storeu_si256((__m256i *)(void *)p, words);
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
