/* words_avx512.h: vectors of 16-bit words on AVX-512 F, BW, DQ and VL. Meanings: words_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_WORDS_H
#define MXA_CPU_WORDS_H

#include "cpu/bytes_transpose.h"

#include <immintrin.h>
#include <stdint.h>

#define WORDS_NAME(x) x##_avx512
enum { WORDS_LANES = 32, CHUNK_WORDS = 1 };

typedef __m512i words;
typedef __mmask32 wmask;

static inline words words_load(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void words_store(uint16_t *p, words x)
{
    _mm512_storeu_si512(p, x);
}

static inline words words_set(uint16_t x)
{
    return _mm512_set1_epi16((short)x);
}

/* Two vectors of FP32 bits; their halves are taken apart by narrowing, which keeps the order. */
static inline words words_join(__m512i low, __m512i high)
{
    __m512i upper = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16))),
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)), 1);
    __m512i lower = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)),
                                       _mm512_cvtepi32_epi16(high), 1);
    return _mm512_or_si512(upper, _mm512_min_epu16(lower, _mm512_set1_epi16(1)));
}

static inline words words_from_f32(const float *p)
{
    return words_join(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 16));
}

static inline words words_from_bf16(const uint16_t *p)
{
    return words_load(p);
}

static inline words words_from_f16(const uint16_t *p)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(p + 16));
    return words_join(_mm512_castps_si512(_mm512_cvtph_ps(low)),
                      _mm512_castps_si512(_mm512_cvtph_ps(high)));
}

static inline words words_and(words a, words b)
{
    return _mm512_and_si512(a, b);
}

static inline words words_or(words a, words b)
{
    return _mm512_or_si512(a, b);
}

static inline words words_add(words a, words b)
{
    return _mm512_add_epi16(a, b);
}

static inline words words_select(wmask m, words yes, words no)
{
    return _mm512_mask_blend_epi16(m, no, yes);
}

static inline words words_max(words a, words b)
{
    return _mm512_max_epu16(a, b);
}

static inline words words_min(words a, words b)
{
    return _mm512_min_epu16(a, b);
}

static inline words words_subtract(words a, words b)
{
    return _mm512_subs_epu16(a, b);
}

/* WHY: lane shifts cost the same, and the forms with an immediate do not compile unoptimized. */
static inline words words_shift_left(words x, int n)
{
    return _mm512_sllv_epi16(x, words_set((uint16_t)n));
}

static inline words words_shift_right(words x, int n)
{
    return _mm512_srlv_epi16(x, words_set((uint16_t)n));
}

static inline words words_shift_lanes(words x, words n)
{
    return _mm512_srlv_epi16(x, n);
}

static inline wmask words_less(words a, words b)
{
    return _mm512_cmplt_epu16_mask(a, b);
}

static inline wmask wmask_and(wmask a, wmask b)
{
    return a & b;
}

static inline wmask wmask_or(wmask a, wmask b)
{
    return a | b;
}

static inline int wmask_any(wmask m)
{
    return m != 0;
}

static inline uint16_t words_largest(words x)
{
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i largest =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i flipped = _mm_xor_si128(largest, _mm_set1_epi16(-1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(flipped), 0);
}

static inline void words_pack(uint8_t *out, const words w[CHUNK_WORDS])
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi16_epi8(w[0]));
}

#endif
