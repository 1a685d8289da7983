/* vec_avx512.h: the vector vocabulary on AVX-512 F, BW, DQ and VL: sixteen lanes. Operand units are
 * FP32, or BF16 pairs where vec_avx512bf16.h includes this file. Meanings: vec_portable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_H
#define MXA_CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>

#if defined(VEC_MATRIX)
#define VEC_ISA     "amx"
#define VEC_FLUSHES 1
#define VEC_NAME(x) x##_amx
enum { UNIT_DEPTH = 2, UNIT_ROUNDS = 1, TILE_M = 32, TILE_N = 2, MATRIX_UNITS = 16 };
#elif defined(VEC_BF16_UNITS)
#define VEC_ISA     "avx512bf16"
#define VEC_FLUSHES 1
#define VEC_NAME(x) x##_avx512bf16
enum { UNIT_DEPTH = 2, UNIT_ROUNDS = 1, TILE_M = 8, TILE_N = 2 };
#else
#define VEC_ISA     "avx512"
#define VEC_FLUSHES 0
#define VEC_NAME(x) x##_avx512
enum { UNIT_DEPTH = 1, UNIT_ROUNDS = 0, TILE_M = 8, TILE_N = 3 };
#endif
enum { VEC_LANES = 16 };

typedef __m512 vec;
typedef __m512i ivec;
typedef __mmask16 vmask;
#if defined(VEC_BF16_UNITS)
#define UNIT_IS_F32 0
typedef uint32_t unit;
typedef __m512i uvec;
#else
#define UNIT_IS_F32 1
typedef float unit;
typedef __m512 uvec;
#endif

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}

static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

static inline vec vec_ceil(vec x)
{
    return _mm512_roundscale_ps(x, (_MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
}

static inline vmask vec_less(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vmask vec_is_nan(vec x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

static inline vec vec_select(vmask m, vec yes, vec no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

static inline vmask mask_and(vmask a, vmask b)
{
    return (vmask)(a & b);
}

static inline int mask_any(vmask m)
{
    return m != 0;
}

static inline ivec vec_bits(vec x)
{
    return _mm512_castps_si512(x);
}

static inline vec vec_from_bits(ivec x)
{
    return _mm512_castsi512_ps(x);
}

static inline ivec ivec_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline ivec ivec_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline ivec ivec_add(ivec a, ivec b)
{
    return _mm512_add_epi32(a, b);
}

static inline ivec ivec_and(ivec a, ivec b)
{
    return _mm512_and_si512(a, b);
}

static inline ivec ivec_or(ivec a, ivec b)
{
    return _mm512_or_si512(a, b);
}

static inline vec vec_split(vec x, ivec *whole)
{
    *whole = _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

#define ivec_shl(x, n) _mm512_slli_epi32((x), (unsigned)(n))
#define ivec_shr(x, n) _mm512_srli_epi32((x), (unsigned)(n))

static inline vmask ivec_less(ivec a, ivec b)
{
    return _mm512_cmplt_epi32_mask(a, b);
}

static inline vec vec_from_e4m3(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
    __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7f)), 7);

    return _mm512_cvtph_ps(_mm256_or_si256(sign, magnitude));
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

static inline void vec_block_from_e4m3(const uint8_t *p, vec block[2], code_flags *nans)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    /* Codes in the upper bytes; an arithmetic shift makes room for binary16's wider exponent. */
    const __m512i wide = _mm512_slli_epi16(_mm512_cvtepu8_epi16(x), 8);
    const __m512i half =
        _mm512_and_si512(_mm512_srai_epi16(wide, 1), _mm512_set1_epi16((int16_t)0xbf80));

    block[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    block[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    *nans = _mm256_or_si256(*nans, _mm256_add_epi8(magnitude, _mm256_set1_epi8(1)));
}

static inline vec vec_from_e5m2(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));

    return _mm512_cvtph_ps(_mm256_slli_epi16(x, 8));
}

static inline void vec_store_f16(uint16_t *p, vec x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void ivec_store_high16(uint16_t *p, ivec x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
}

static inline vec vec_sums(const vec r[VEC_LANES])
{
    vec t[8], u[4];

    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                             _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        u[i] = _mm512_add_ps(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        t[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88),
                         _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
}

#define VEC_RUNS
#define VEC_SIXTEEN
enum { RUN_CODES = 64, RUN_LOG2 = -8, RUN_SUMS = 16 };

typedef __m512i run_flags;

static inline run_flags run_flags_none(void)
{
    return _mm512_setzero_si512();
}

static inline int run_flags_any(run_flags most)
{
    return _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8(0x7f)) != 0;
}

typedef __m512i run;

static inline run run_load(const uint8_t *p, run_flags *most)
{
    const __m512i codes = _mm512_loadu_si512(p);

    *most = _mm512_max_epu8(*most, _mm512_and_si512(codes, _mm512_set1_epi8(0x7f)));
    return codes;
}

/* E4M3 is binary16 shifted right by one: even codes, then odd ones. */
static inline vec run_vector(run codes, int i)
{
    const __m512i top = i < 2 ? _mm512_slli_epi16(codes, 8) : codes;
    const __m512i half =
        _mm512_and_si512(_mm512_srai_epi16(top, 1), _mm512_set1_epi16((int16_t)0xbf80));

    return _mm512_cvtph_ps(i % 2 ? _mm512_extracti64x4_epi64(half, 1)
                                 : _mm512_castsi512_si256(half));
}

static inline int run_code(int i)
{
    return i % 32 * 2 + i / 32;
}

/* step, each: constants once inlined. */
static inline vec vec_swap(vec x, int step)
{
    return step == 8   ? _mm512_shuffle_f32x4(x, x, 0x4e)
           : step == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
           : step == 2 ? _mm512_permute_ps(x, 0x4e)
                       : _mm512_permute_ps(x, 0xb1);
}

static inline vec vec_repeat(const float *p, int each)
{
    if (each == VEC_LANES)
        return vec_set(p[0]);
    const unsigned by = each == 8 ? 3 : each == 4 ? 2 : each == 2 ? 1 : 0;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    return _mm512_permutexvar_ps(_mm512_srli_epi32(lane, by), _mm512_loadu_ps(p));
}

static inline void vec_transpose(vec r[VEC_LANES])
{
    vec t[16], u[16];

    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#if defined(VEC_BF16_UNITS)

static inline uvec unit_load(const unit *p)
{
    return _mm512_loadu_si512(p);
}

static inline void unit_store(unit *p, uvec x)
{
    _mm512_storeu_si512(p, x);
}

#if defined(VEC_MATRIX)
static inline void unit_store_pieces(unit *p, int64_t step, uvec x)
{
    (void)step;
    _mm512_storeu_si512(p, x);
}
#else
static inline void unit_store_pieces(unit *p, int64_t step, uvec x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(x));
    _mm256_storeu_si256((__m256i *)(void *)(p + step), _mm512_extracti64x4_epi64(x, 1));
}
#endif

static inline uvec unit_broadcast(const unit *p)
{
    return _mm512_set1_epi32((int32_t)*p);
}

/* cvtne2ps leaves the first part's elements in the low half of the register. */
static inline uvec unit_join(const vec part[UNIT_DEPTH])
{
    const __m512i pairs =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(part[1], part[0]));
}

/* Decoding E4M3 straight to BF16: a normal code is the same bits, shifted, plus a difference of the
 * exponents' biases, to which the scale is added; the seven subnormal ones are looked up. Exact
 * for scales from UNIT_SCALE_LEAST on. */
enum { UNIT_SCALE_LEAST = 10 };

typedef struct unit_decoder {
    __m512i bias, table, most; /* most: the largest magnitude so far; 0x7f is a NaN */
} unit_decoder;

static inline void unit_decoder_scale(unit_decoder *decoder, uint8_t scale)
{
    /* Multiples of 2^-9 in BF16. */
    const __m512i table =
        _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         0x3c60, 0x3c40, 0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00, 0);
    const __m512i up = _mm512_set1_epi16((int16_t)((scale - 127) * 128));

    decoder->bias = _mm512_add_epi16(up, _mm512_set1_epi16(120 * 128));
    decoder->table = _mm512_mask_add_epi16(table, 0xfe, table, up);
}

static inline __m512i units_from_words(unit_decoder *decoder, __m512i words)
{
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), decoder->bias);
    const __m512i value = _mm512_mask_permutexvar_epi16(
        normal, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude,
        decoder->table);

    decoder->most = _mm512_max_epu16(decoder->most, magnitude);
    /* 0xf8: the first, or the second where the third is set. */
    return _mm512_ternarylogic_epi32(value, _mm512_slli_epi16(words, 8), _mm512_set1_epi16(-0x8000),
                                     0xf8);
}

static inline void unit_decoder_start(unit_decoder *decoder)
{
    decoder->most = _mm512_setzero_si512();
}

static inline int unit_decoder_special(const unit_decoder *decoder)
{
    return _mm512_cmpeq_epi16_mask(decoder->most, _mm512_set1_epi16(0x7f)) != 0;
}

/* 32 codes along a row. */
static inline void units_from_codes(unit_decoder *decoder, const uint8_t *codes, uvec out[1])
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)codes);

    out[0] = units_from_words(decoder, _mm512_cvtepu8_epi16(x));
}

/* 32 codes in each of two rows, as units across them: fours are set apart first, so that what the
 * two unpack instructions interleave comes out in order. */
static inline void units_from_two(unit_decoder *first, const uint8_t *codes, unit_decoder *second,
                                  const uint8_t *codes_second, uvec out[2])
{
    const __m256i fours = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)codes_second);
    const __m512i a =
        units_from_words(first, _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(x, fours)));
    const __m512i b =
        units_from_words(second, _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(y, fours)));

    out[0] = _mm512_unpacklo_epi16(a, b);
    out[1] = _mm512_unpackhi_epi16(a, b);
}

static inline uvec unit_pack(const vec part[UNIT_DEPTH])
{
    return (__m512i)_mm512_cvtne2ps_pbh(part[1], part[0]);
}

static inline uvec unit_along(const float *row)
{
    const vec part[UNIT_DEPTH] = {_mm512_loadu_ps(row), _mm512_loadu_ps(row + VEC_LANES)};

    return unit_pack(part);
}

static inline void unit_clear(unit *u, int part)
{
    *u &= part ? 0x0000ffffu : 0xffff0000u;
}

static inline float unit_part(unit u, int part)
{
    const union {
        uint32_t bits;
        float value;
    } x = {part ? u & 0xffff0000u : u << 16};

    return x.value;
}

/* NOTE: VDPBF16PS adds the products of the high elements, then those of the low ones, each fused
 * and rounded to nearest even; subnormals count as zero. */
static inline vec vec_dot(vec sum, uvec a, uvec b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#else

static inline uvec unit_load(const unit *p)
{
    return _mm512_loadu_ps(p);
}

static inline void unit_store(unit *p, uvec x)
{
    _mm512_storeu_ps(p, x);
}

static inline void unit_store_pieces(unit *p, int64_t step, uvec x)
{
    _mm256_storeu_ps(p, _mm512_castps512_ps256(x));
    _mm256_storeu_ps(p + step, _mm512_extractf32x8_ps(x, 1));
}

static inline uvec unit_broadcast(const unit *p)
{
    return _mm512_set1_ps(*p);
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
    return _mm512_loadu_ps(row);
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
    return _mm512_fmadd_ps(a, b, sum);
}

#endif

#endif
