/* words_avx2.h: vectors of 16-bit words on AVX2 and F16C. Meanings: words_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_WORDS_H
#define MXA_CPU_WORDS_H

#include "cpu/bytes_transpose.h"

#include <immintrin.h>
#include <stdint.h>

#define WORDS_NAME(x) x##_avx2
enum { WORDS_LANES = 16, CHUNK_WORDS = 2, TURN_BLOCKS = 8 };

typedef __m256i words;
typedef __m256i wmask;

static inline words words_load(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void words_store(uint16_t *p, words x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}

static inline words words_set(uint16_t x)
{
    return _mm256_set1_epi16((short)x);
}

/* Two vectors of FP32 bits. Packing works in halves of 128 bits; the permute puts them in order. */
static inline words words_join(__m256i low, __m256i high, int mixed)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i upper = _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
    __m256i lower = _mm256_packus_epi32(_mm256_blend_epi16(low, zero, 0xAA),
                                        _mm256_blend_epi16(high, zero, 0xAA));
    __m256i odd = _mm256_or_si256(upper, _mm256_min_epu16(lower, _mm256_set1_epi16(1)));
    return mixed ? odd : _mm256_permute4x64_epi64(odd, 0xD8);
}

static inline words words_from_f32(const float *p, int mixed)
{
    return words_join(_mm256_loadu_si256((const __m256i *)(const void *)p),
                      _mm256_loadu_si256((const __m256i *)(const void *)(p + 8)), mixed);
}

static inline words words_from_f16(const uint16_t *p, int mixed)
{
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(p + 8));
    return words_join(_mm256_castps_si256(_mm256_cvtph_ps(low)),
                      _mm256_castps_si256(_mm256_cvtph_ps(high)), mixed);
}

static inline words words_and(words a, words b)
{
    return _mm256_and_si256(a, b);
}

static inline words words_or(words a, words b)
{
    return _mm256_or_si256(a, b);
}

static inline words words_xor(words a, words b)
{
    return _mm256_xor_si256(a, b);
}

static inline words words_add(words a, words b)
{
    return _mm256_add_epi16(a, b);
}

static inline words words_select(wmask m, words yes, words no)
{
    return _mm256_blendv_epi8(no, yes, m);
}

static inline words words_max(words a, words b)
{
    return _mm256_max_epu16(a, b);
}

static inline words words_min(words a, words b)
{
    return _mm256_min_epu16(a, b);
}

static inline words words_subtract(words a, words b)
{
    return _mm256_subs_epu16(a, b);
}

static inline words words_shift_left(words x, int n)
{
    return _mm256_slli_epi16(x, n);
}

static inline words words_shift_right(words x, int n)
{
    return _mm256_srli_epi16(x, n);
}

static inline words words_shift_signed(words x, int n)
{
    return _mm256_srai_epi16(x, n);
}

static inline words words_add_bit(words x, words w, int n)
{
    return words_add(x, words_and(words_shift_right(w, n), words_set(1)));
}

static inline words words_pairs(const uint32_t *p)
{
    return _mm256_set1_epi32((int)*p);
}

/* Even and odd words apart, in lanes of 32 bits. */
static inline words words_shift_lanes(words x, words n)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i even =
        _mm256_srlv_epi32(_mm256_blend_epi16(x, zero, 0xAA), _mm256_blend_epi16(n, zero, 0xAA));
    __m256i odd = _mm256_srlv_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(n, 16));
    return _mm256_or_si256(even, _mm256_slli_epi32(odd, 16));
}

static inline wmask words_less(words a, words b)
{
    return _mm256_cmpgt_epi16(b, a);
}

static inline int words_any(words x)
{
    return !_mm256_testz_si256(x, x);
}

static inline uint16_t words_largest(words x)
{
    __m128i largest = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    __m128i flipped = _mm_xor_si128(largest, _mm_set1_epi16(-1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(flipped), 0);
}

/* The larger of the words of a 64 bits apart, beside those of b. */
static inline words words_fold_64(words a, words b)
{
    const __m256d x = _mm256_castsi256_pd(a), y = _mm256_castsi256_pd(b);
    return words_max(_mm256_blend_epi32(a, b, 0xCC),
                     _mm256_castpd_si256(_mm256_shuffle_pd(x, y, 0x5)));
}

static inline words words_fold_chunks(const words largest[4])
{
    const __m256 low = _mm256_castsi256_ps(words_fold_64(largest[0], largest[1]));
    const __m256 high = _mm256_castsi256_ps(words_fold_64(largest[2], largest[3]));
    return words_max(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)),
                     _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD)));
}

static inline words words_fold(const words *w)
{
    return words_fold_chunks((words[]){words_max(w[0], w[1]), words_max(w[2], w[3]),
                                       words_max(w[4], w[5]), words_max(w[6], w[7])});
}

/* Of two folds: two words for each chunk, the second fold's in the upper half. */
static inline words words_fold_halves(words a, words b)
{
    return words_max(_mm256_blend_epi32(a, b, 0xF0), _mm256_permute2x128_si256(a, b, 0x21));
}

static inline void words_maxima(const uint16_t *p, words *out)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    for (int i = 0; i < 2; i++, p += 4 * WORDS_LANES) {
        const words a = words_fold_halves(words_load(p), words_load(p + WORDS_LANES));
        const words b =
            words_fold_halves(words_load(p + 2 * WORDS_LANES), words_load(p + 3 * WORDS_LANES));
        const words x = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
        const words y = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA);
        out[i] = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words_max(x, y), order), 0xD8);
    }
}

static inline void words_store_twice(uint32_t *p, words x)
{
    const __m256i low = _mm256_unpacklo_epi16(x, x), high = _mm256_unpackhi_epi16(x, x);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), _mm256_permute2x128_si256(low, high, 0x31));
}

/* Of each 128 bits of a and b; codes_signed puts them in order. */
typedef __m256i codes;

static inline codes codes_set(uint8_t x)
{
    return _mm256_set1_epi8((char)x);
}

static inline codes codes_join(words a, words b)
{
    return _mm256_packus_epi16(a, b);
}

static inline codes codes_min(codes a, codes b)
{
    return _mm256_min_epu8(a, b);
}

static inline int codes_any_below(codes x, uint8_t n)
{
    codes capped = _mm256_min_epu8(x, codes_set((uint8_t)(n - 1)));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(capped, x)) != 0;
}

/* Signs: saturated to a byte, a word keeps its own. The order: of 64 bits after one packing, of 32
 * after two. */
static inline codes codes_signed(codes x, words a, words b, int mixed)
{
    const __m256i places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const codes signs = _mm256_and_si256(_mm256_packs_epi16(a, b), codes_set(0x80));
    const codes whole = _mm256_or_si256(x, signs);
    return mixed ? _mm256_permutevar8x32_epi32(whole, places)
                 : _mm256_permute4x64_epi64(whole, 0xD8);
}

static inline codes codes_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void codes_store(uint8_t *out, codes x, int stream)
{
    if (stream) {
        _mm256_stream_si256((__m256i *)(void *)out, x);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)out, x);
    }
}

static inline void codes_drain(void)
{
    _mm_sfence();
}

static inline void words_pack(uint8_t *out, const words w[CHUNK_WORDS])
{
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(w[0], w[1]), 0xD8);
    _mm256_storeu_si256((__m256i *)(void *)out, bytes);
}

#endif
