/* vec_avx2.h: the vector vocabulary on AVX2, FMA and F16C: eight lanes, FP32 operand units.
 * Meanings: vec_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_H
#define MXA_CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VEC_ISA     "avx2"
#define VEC_FLUSHES 0
#define VEC_NAME(x) x##_avx2
enum { VEC_LANES = 8, UNIT_DEPTH = 1, UNIT_ROUNDS = 0, TILE_M = 4, TILE_N = 3 };

typedef __m256 vec;
typedef __m256i ivec;
typedef __m256 vmask;
#define UNIT_IS_F32 1
typedef float unit;
typedef __m256 uvec;

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}

static inline vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

static inline vec vec_ceil(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}

static inline vmask vec_less(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline vmask vec_is_nan(vec x)
{
    return _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
}

static inline vec vec_select(vmask m, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, m);
}

static inline vmask mask_and(vmask a, vmask b)
{
    return _mm256_and_ps(a, b);
}

static inline int mask_any(vmask m)
{
    return _mm256_movemask_ps(m) != 0;
}

static inline ivec vec_bits(vec x)
{
    return _mm256_castps_si256(x);
}

static inline vec vec_from_bits(ivec x)
{
    return _mm256_castsi256_ps(x);
}

static inline ivec ivec_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline ivec ivec_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}

static inline ivec ivec_add(ivec a, ivec b)
{
    return _mm256_add_epi32(a, b);
}

static inline ivec ivec_and(ivec a, ivec b)
{
    return _mm256_and_si256(a, b);
}

static inline ivec ivec_or(ivec a, ivec b)
{
    return _mm256_or_si256(a, b);
}

static inline vec vec_split(vec x, ivec *whole)
{
    const vec floor = _mm256_floor_ps(x);

    *whole = _mm256_cvtps_epi32(floor);
    return _mm256_sub_ps(x, floor);
}

#define ivec_shl(x, n) _mm256_slli_epi32((x), (n))
#define ivec_shr(x, n) _mm256_srli_epi32((x), (n))

static inline vmask ivec_less(ivec a, ivec b)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a));
}

static inline vec vec_from_e4m3(const uint8_t *p)
{
    __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
    __m128i magnitude = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7f)), 7);

    return _mm256_cvtph_ps(_mm_or_si128(sign, magnitude));
}

typedef __m256i code_flags;

static inline code_flags code_flags_none(void)
{
    return _mm256_setzero_si256();
}

static inline int code_flags_any(code_flags flags)
{
    return _mm256_movemask_epi8(flags) != 0;
}

static inline void vec_block_from_e4m3(const uint8_t *p, vec block[4], code_flags *nans)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    const __m256i keep = _mm256_set1_epi16((int16_t)0xbf80);
    /* Codes in the upper bytes; an arithmetic shift makes room for binary16's wider exponent. */
    __m256i even = _mm256_unpacklo_epi8(_mm256_setzero_si256(), x); /* 0..7, 16..23 */
    __m256i odd = _mm256_unpackhi_epi8(_mm256_setzero_si256(), x);  /* 8..15, 24..31 */

    even = _mm256_and_si256(_mm256_srai_epi16(even, 1), keep);
    odd = _mm256_and_si256(_mm256_srai_epi16(odd, 1), keep);
    block[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(even));
    block[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(odd));
    block[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1));
    block[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1));
    *nans = _mm256_or_si256(*nans, _mm256_add_epi8(magnitude, _mm256_set1_epi8(1)));
}

static inline vec vec_from_e5m2(const uint8_t *p)
{
    __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));

    return _mm256_cvtph_ps(_mm_slli_epi16(x, 8));
}

static inline void vec_store_f16(uint16_t *p, vec x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void ivec_store_high16(uint16_t *p, ivec x)
{
    __m256i high = _mm256_srli_epi32(x, 16);
    __m256i packed = _mm256_packus_epi32(high, high);

    packed = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}

static inline vec vec_sums(const vec r[VEC_LANES])
{
    vec t[4], u[2];

    for (int i = 0; i < 4; i++)
        t[i] = _mm256_add_ps(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                             _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = _mm256_add_ps(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_permute2f128_ps(u[0], u[1], 0x20),
                         _mm256_permute2f128_ps(u[0], u[1], 0x31));
}

#define VEC_RUNS
enum { RUN_CODES = 32, RUN_LOG2 = -120, RUN_SUMS = 8 };

typedef __m256i run_flags;

static inline run_flags run_flags_none(void)
{
    return _mm256_setzero_si256();
}

static inline int run_flags_any(run_flags most)
{
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_set1_epi8(0x7f))) != 0;
}

typedef __m256i run;

static inline run run_load(const uint8_t *p, run_flags *most)
{
    const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)p);

    *most = _mm256_max_epu8(*most, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    return codes;
}

/* Four codes to a lane. Exponent and mantissa of E4M3 are those of an FP32 2^120 times smaller,
 * subnormals included; an arithmetic shift makes room for its wider exponent. */
static inline vec run_vector(run codes, int i)
{
    const __m256i top = i == 3 ? codes : _mm256_slli_epi32(codes, 24 - 8 * i);

    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32((int32_t)0x87f00000)));
}

static inline int run_code(int i)
{
    return i % 8 * 4 + i / 8;
}

/* step, each: constants once inlined. */
static inline vec vec_swap(vec x, int step)
{
    return step == 4   ? _mm256_permute2f128_ps(x, x, 1)
           : step == 2 ? _mm256_permute_ps(x, 0x4e)
                       : _mm256_permute_ps(x, 0xb1);
}

static inline vec vec_repeat(const float *p, int each)
{
    if (each == VEC_LANES)
        return vec_set(p[0]);
    const int by = each == 4 ? 2 : each == 2 ? 1 : 0;
    const __m256i order = _mm256_srli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), by);

    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), order);
}

static inline void vec_transpose(vec r[VEC_LANES])
{
    vec t[8], u[8];

    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

static inline uvec unit_load(const unit *p)
{
    return _mm256_loadu_ps(p);
}

static inline void unit_store(unit *p, uvec x)
{
    _mm256_storeu_ps(p, x);
}

static inline void unit_store_pieces(unit *p, int64_t step, uvec x)
{
    _mm_storeu_ps(p, _mm256_castps256_ps128(x));
    _mm_storeu_ps(p + step, _mm256_extractf128_ps(x, 1));
}

static inline uvec unit_broadcast(const unit *p)
{
    return _mm256_broadcast_ss(p);
}

static inline uvec unit_join(const vec part[UNIT_DEPTH])
{
    return part[0];
}

static inline uvec unit_pack(const vec part[UNIT_DEPTH])
{
    return part[0];
}

static inline uvec unit_along(const float *row)
{
    return _mm256_loadu_ps(row);
}

static inline void unit_clear(unit *u, int part)
{
    (void)part;
    *u = 0.0f;
}

static inline float unit_part(unit u, int part)
{
    (void)part;
    return u;
}

static inline vec vec_dot(vec sum, uvec a, uvec b)
{
    return _mm256_fmadd_ps(a, b, sum);
}

#endif
