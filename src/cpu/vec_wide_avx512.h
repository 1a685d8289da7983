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

typedef struct vec_pair {
    vec even, odd;
} vec_pair;

static inline vec_pair vec_pair_of(const float *p)
{
    const __m512i from =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    return (vec_pair){
        _mm512_permutex2var_ps(low, from, high),
        _mm512_permutex2var_ps(low, _mm512_add_epi32(from, _mm512_set1_epi32(1)), high)};
}

static inline vec_pair vec_pair_bf16(const uint16_t *p)
{
    const __m512i x = _mm512_loadu_si512(p);
    const __m512i odd = _mm512_and_si512(x, _mm512_set1_epi32(-0x10000));
    return (vec_pair){_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), _mm512_castsi512_ps(odd)};
}

/* Bits of b where `mask` has them, of a elsewhere. */
static inline __m512i vec_mix(__m512i a, __m512i b, int mask)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(mask), 0xD8);
}

static inline ivec vec_pair_high(vec_pair x)
{
    const __m512i even = _mm512_castps_si512(x.even), odd = _mm512_castps_si512(x.odd);
    return vec_mix(_mm512_srli_epi32(even, 16), odd, -0x10000);
}

static inline ivec vec_pair_low(vec_pair x)
{
    const __m512i even = _mm512_castps_si512(x.even), odd = _mm512_castps_si512(x.odd);
    return vec_mix(even, _mm512_slli_epi32(odd, 16), -0x10000);
}

static inline __m512i vec_bits_bf16(vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), even);
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                _mm512_set1_epi32(0x400000));
}

static inline void vec_pair_store_bf16(uint16_t *p, vec_pair x, int stream)
{
    const __m512i even = _mm512_srli_epi32(vec_bits_bf16(x.even), 16);
    const __m512i words = vec_mix(even, vec_bits_bf16(x.odd), -0x10000);
    if (stream)
        _mm512_stream_si512((void *)p, words);
    else
        _mm512_storeu_si512(p, words);
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
