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
enum { WORDS_LANES = 32, CHUNK_WORDS = 1, TURN_BLOCKS = 2 };

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

/* FP32 bits, the lowest of the upper half set when anything in the lower half is: adding 0xFFFF
 * then carries into it, unless it is set and stays so. */
static inline __m512i words_sticky(__m512i x)
{
    const __m512i sum = _mm512_add_epi32(x, _mm512_set1_epi32(0xFFFF));
    return _mm512_srli_epi32(_mm512_ternarylogic_epi32(x, sum, _mm512_set1_epi32(0x10000), 0xF8),
                             16);
}

/* Two vectors of FP32 bits. Packing works in quarters of a vector; the permutation puts them in
 * order. */
static inline words words_join(__m512i low, __m512i high, int mixed)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const words packed = _mm512_packus_epi32(words_sticky(low), words_sticky(high));
    return mixed ? packed : _mm512_permutexvar_epi64(order, packed);
}

static inline words words_from_f32(const float *p, int mixed)
{
    return words_join(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 16), mixed);
}

static inline words words_from_f16(const uint16_t *p, int mixed)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(p + 16));
    return words_join(_mm512_castps_si512(_mm512_cvtph_ps(low)),
                      _mm512_castps_si512(_mm512_cvtph_ps(high)), mixed);
}

static inline words words_and(words a, words b)
{
    return _mm512_and_si512(a, b);
}

static inline words words_or(words a, words b)
{
    return _mm512_or_si512(a, b);
}

static inline words words_xor(words a, words b)
{
    return _mm512_xor_si512(a, b);
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

static inline words words_shift_signed(words x, int n)
{
    return _mm512_srav_epi16(x, words_set((uint16_t)n));
}

static inline words words_add_bit(words x, words w, int n)
{
    const wmask set = _mm512_test_epi16_mask(w, words_set((uint16_t)(1 << n)));
    return _mm512_mask_add_epi16(x, set, x, words_set(1));
}

static inline words words_pairs(const uint32_t *p)
{
    return _mm512_set1_epi32((int)*p);
}

static inline words words_shift_lanes(words x, words n)
{
    return _mm512_srlv_epi16(x, n);
}

static inline wmask words_less(words a, words b)
{
    return _mm512_cmplt_epu16_mask(a, b);
}

static inline int words_any(words x)
{
    return _mm512_test_epi16_mask(x, x) != 0;
}

static inline uint16_t words_largest(words x)
{
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i largest =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i flipped = _mm_xor_si128(largest, _mm_set1_epi16(-1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(flipped), 0);
}

/* The larger of the words of a 64 bits apart, beside those of b. */
static inline words words_fold_64(words a, words b)
{
    const __m512d x = _mm512_castsi512_pd(a), y = _mm512_castsi512_pd(b);
    return words_max(_mm512_mask_blend_epi64(0xAA, a, b),
                     _mm512_castpd_si512(_mm512_shuffle_pd(x, y, 0x55)));
}

static inline words words_fold_chunks(const words w[4])
{
    const __m512 low = _mm512_castsi512_ps(words_fold_64(w[0], w[1]));
    const __m512 high = _mm512_castsi512_ps(words_fold_64(w[2], w[3]));
    return words_max(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                     _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xDD)));
}

static inline words words_fold(const words *w)
{
    return words_fold_chunks(w);
}

/* Of two folds: half a vector for the chunks of each. */
static inline words words_fold_256(words a, words b)
{
    return words_max(_mm512_mask_blend_epi64(0xF0, a, b), _mm512_shuffle_i64x2(a, b, 0x4E));
}

/* Of four folds: a quarter of a vector for the chunks of each, two words a chunk. */
static inline words words_fold_quarters(const uint16_t *p)
{
    const __m512i other = _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13);
    const words a = words_fold_256(words_load(p), words_load(p + 2 * WORDS_LANES));
    const words b = words_fold_256(words_load(p + WORDS_LANES), words_load(p + 3 * WORDS_LANES));
    return words_max(_mm512_mask_blend_epi64(0xCC, a, b), _mm512_permutex2var_epi64(a, other, b));
}

static inline void words_maxima(const uint16_t *p, words *out)
{
    const __m512i even =
        _mm512_setr_epi32(0x00020000, 0x00060004, 0x000A0008, 0x000E000C, 0x00120010, 0x00160014,
                          0x001A0018, 0x001E001C, 0x00220020, 0x00260024, 0x002A0028, 0x002E002C,
                          0x00320030, 0x00360034, 0x003A0038, 0x003E003C);
    const words a = words_fold_quarters(p), b = words_fold_quarters(p + 4 * WORDS_LANES);
    out[0] = words_max(
        _mm512_permutex2var_epi16(a, even, b),
        _mm512_permutex2var_epi16(a, _mm512_add_epi32(even, _mm512_set1_epi32(0x00010001)), b));
}

static inline void words_store_twice(uint32_t *p, words x)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1));
    _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(low, 16)));
    _mm512_storeu_si512(p + 16, _mm512_or_si512(high, _mm512_slli_epi32(high, 16)));
}

/* Of each 128 bits of a and b; codes_signed puts them in order. */
typedef __m512i codes;

static inline codes codes_set(uint8_t x)
{
    return _mm512_set1_epi8((char)x);
}

static inline codes codes_join(words a, words b)
{
    return _mm512_packus_epi16(a, b);
}

static inline codes codes_min(codes a, codes b)
{
    return _mm512_min_epu8(a, b);
}

static inline int codes_any_below(codes x, uint8_t n)
{
    return _mm512_cmplt_epu8_mask(x, codes_set(n)) != 0;
}

/* Signs: saturated to a byte, a word keeps its own. The order: of 64 bits after one packing, of 32
 * after two. */
static inline codes codes_signed(codes x, words a, words b, int mixed)
{
    const __m512i once = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i twice = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const codes signs = _mm512_packs_epi16(a, b);
    const codes whole = _mm512_ternarylogic_epi32(x, signs, codes_set(0x80), 0xF8);
    return mixed ? _mm512_permutexvar_epi32(twice, whole) : _mm512_permutexvar_epi64(once, whole);
}

static inline codes codes_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void codes_store(uint8_t *out, codes x, int stream)
{
    if (stream) {
        _mm512_stream_si512((void *)out, x);
    } else {
        _mm512_storeu_si512(out, x);
    }
}

static inline void codes_drain(void)
{
    _mm_sfence();
}

static inline void words_pack(uint8_t *out, const words w[CHUNK_WORDS])
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi16_epi8(w[0]));
}

#endif
