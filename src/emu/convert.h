/* convert.h: the emulator's body of cuda/dev/convert.h.
 *
 * Written for speed; src/mx says what they mean (tests/emu/test_convert.c compares all inputs). A
 * NaN becomes the one that PTX names, where mx keeps its sign.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_CONVERT_H
#define MXA_EMU_CONVERT_H

#include "cuda/dev/math.h"
#include "emu/dev.h"

/* To FP8 of `mantissa_bits` with exponents from 2^least on; nearest even, `most` at the most. */
MXA_DEVICE uint32_t mxa_emu_fp8(float x, int mantissa_bits, int least, uint32_t most)
{
    const uint32_t bits = bits_f32(x), u = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
    if (u > 0x7F800000) {
        return 0x7F;
    }
    if (u < (uint32_t)(least + 127) << 23) { /* a power whose step is that of subnormals */
        const uint32_t step = (uint32_t)(least - mantissa_bits + 23 + 127) << 23;
        return sign | (bits_f32(f32_bits(u) + f32_bits(step)) - step);
    }
    const int cut = 23 - mantissa_bits;
    const uint32_t rounded = u + ((1U << (cut - 1)) - 1) + (u >> cut & 1);
    const uint32_t code = (rounded >> cut) - ((uint32_t)(least + 126) << mantissa_bits);
    return sign | (code < most ? code : most);
}

#if defined(__AVX2__)
/* mxa_emu_fp8 of four. */
MXA_DEVICE uint32_t mxa_emu_fp8x4(__m128 x, int mantissa_bits, int least, int most)
{
    const __m128i bits = _mm_castps_si128(x);
    const __m128i u = _mm_and_si128(bits, _mm_set1_epi32(0x7FFFFFFF));
    const __m128i step = _mm_set1_epi32((least - mantissa_bits + 23 + 127) << 23);
    const __m128i small = _mm_sub_epi32(
        _mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(u), _mm_castsi128_ps(step))), step);
    const int cut = 23 - mantissa_bits;
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(u, cut), _mm_set1_epi32(1));
    const __m128i rounded =
        _mm_add_epi32(_mm_add_epi32(u, _mm_set1_epi32((1 << (cut - 1)) - 1)), odd);
    const __m128i normal = _mm_min_epi32(
        _mm_sub_epi32(_mm_srli_epi32(rounded, cut), _mm_set1_epi32((least + 126) << mantissa_bits)),
        _mm_set1_epi32(most));
    const __m128i is_small = _mm_cmpgt_epi32(_mm_set1_epi32((least + 127) << 23), u);
    const __m128i sign = _mm_and_si128(_mm_srli_epi32(bits, 24), _mm_set1_epi32(0x80));
    const __m128i number = _mm_or_si128(_mm_blendv_epi8(normal, small, is_small), sign);
    const __m128i is_nan = _mm_cmpgt_epi32(u, _mm_set1_epi32(0x7F800000));
    const __m128i code = _mm_blendv_epi8(number, _mm_set1_epi32(0x7F), is_nan);
    return (uint32_t)_mm_cvtsi128_si32(_mm_shuffle_epi8(code, _mm_set1_epi32(0x0C080400)));
}
#define MXA_EMU_FP8X4(a, b, c, d, mantissa_bits, least, most)                                      \
    mxa_emu_fp8x4(_mm_setr_ps(a, b, c, d), mantissa_bits, least, most)
#else
#define MXA_EMU_FP8X4(a, b, c, d, mantissa_bits, least, most)                                      \
    (mxa_emu_fp8(a, mantissa_bits, least, most) |                                                  \
     mxa_emu_fp8(b, mantissa_bits, least, most) << 8 |                                             \
     mxa_emu_fp8(c, mantissa_bits, least, most) << 16 |                                            \
     mxa_emu_fp8(d, mantissa_bits, least, most) << 24)
#endif

MXA_DEVICE uint32_t e4m3x4_from_f32(float a, float b, float c, float d)
{
    return MXA_EMU_FP8X4(a, b, c, d, 3, -6, 0x7E);
}

MXA_DEVICE uint32_t e5m2x4_from_f32(float a, float b, float c, float d)
{
    return MXA_EMU_FP8X4(a, b, c, d, 2, -14, 0x7B);
}

MXA_DEVICE uint32_t e4m3x4_from_f16x2(uint32_t ab, uint32_t cd)
{
    return e4m3x4_from_f32(MXA_EMU_LOW(ab), MXA_EMU_HIGH(ab), MXA_EMU_LOW(cd), MXA_EMU_HIGH(cd));
}

MXA_DEVICE uint32_t f16x2_from_f32x2(float low, float high)
{
    return mxa_emu_f16_of_f32(low) | mxa_emu_f16_of_f32(high) << 16;
}

MXA_DEVICE uint32_t f16x2_from_f32(float x)
{
    return f16x2_from_f32x2(x, x);
}

/* E5M2 is the upper byte of FP16; E4M3 has every value in FP16. */
MXA_DEVICE uint32_t mxa_emu_f16_of_fp8(uint32_t code, int e5m2)
{
    const uint32_t magnitude = code & 0x7F, sign = (code & 0x80) << 8;
    if (magnitude > (e5m2 ? 0x7CU : 0x7EU)) {
        return 0x7FFF;
    }
    if (e5m2) {
        return sign | magnitude << 8;
    }
    const uint32_t field = magnitude >> 3, mantissa = magnitude & 7;
    return sign | (field ? (field + 8) << 10 | mantissa << 7
                         : mxa_emu_f16_of_f32((float)mantissa * 0x1p-9F));
}

MXA_DEVICE uint32_t f16x2_from_fp8x2(uint32_t pair, int e5m2)
{
    return mxa_emu_f16_of_fp8(pair & 0xFF, e5m2) | mxa_emu_f16_of_fp8(pair >> 8 & 0xFF, e5m2) << 16;
}

MXA_DEVICE uint32_t f16x2_from_e4m3x2_low(uint32_t word)
{
    return f16x2_from_fp8x2(word, 0);
}

MXA_DEVICE uint32_t f16x2_from_e4m3x2_high(uint32_t word)
{
    return f16x2_from_fp8x2(word >> 16, 0);
}

MXA_DEVICE uint32_t bf16x2_from_f32x2(float low, float high)
{
    return mxa_emu_bf16(low) | mxa_emu_bf16(high) << 16;
}

MXA_DEVICE float f32_from_f16_low(uint32_t pair)
{
    return MXA_EMU_LOW(pair);
}

MXA_DEVICE float f32_from_f16_high(uint32_t pair)
{
    return MXA_EMU_HIGH(pair);
}

/* Up: 2^-127 is 0, and so is all below it; above 2^127 is 0xFE. */
MXA_DEVICE uint32_t mxa_emu_e8m0(float x, int up)
{
    const uint32_t u = bits_f32(x) & 0x7FFFFFFF;
    if (u > 0x7F800000) {
        return 0xFF;
    }
    const uint32_t field = u >> 23, mantissa = u & 0x7FFFFF;
    const uint32_t code = field + (up && (field ? mantissa != 0 : mantissa > 0x400000));
    return code < 0xFE ? code : 0xFE;
}

MXA_DEVICE uint32_t e8m0x2_ceil_from_f32x2(float low, float high)
{
    return mxa_emu_e8m0(low, 1) | mxa_emu_e8m0(high, 1) << 8;
}

MXA_DEVICE uint32_t e8m0x2_floor_from_f32x2(float low, float high)
{
    return mxa_emu_e8m0(low, 0) | mxa_emu_e8m0(high, 0) << 8;
}

MXA_DEVICE uint32_t mxa_emu_bf16_of_e8m0(uint32_t code)
{
    return code == 0xFF ? 0x7FFF : code == 0 ? 0x40 : code << 7;
}

MXA_DEVICE uint32_t bf16x2_from_e8m0x2(uint32_t pair)
{
    return mxa_emu_bf16_of_e8m0(pair & 0xFF) | mxa_emu_bf16_of_e8m0(pair >> 8 & 0xFF) << 16;
}

#endif
