/* math.h: the emulator's body of cuda/dev/math.h: IEEE arithmetic, and approximations.
 *
 * Included by cuda/dev/math.h, which has the types. NaN payloads are those of this machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_MATH_H
#define MXA_EMU_MATH_H

#include "cuda/dev/math.h"
#include "emu/dev.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* What ex2, lg2 and tanh return. 0: the nearest number. Else a number within the bound that the ISA
 * gives, chosen by this seed and the argument. Of the launch that this OS thread is in. */
void mxa_emu_approximate(uint64_t seed);
/* How many OS threads have a seed other than 0. */
extern atomic_int mxa_emu_approximate_threads;

float mxa_emu_exp2(float x);
float mxa_emu_fma(float a, float b, float c);
extern const double mxa_emu_roots[256]; /* 2^(i/256) */
float mxa_emu_log2(float x);
float mxa_emu_tanh(float x);
uint16_t mxa_emu_exp2_f16(uint16_t x);

MXA_DEVICE uint32_t bits_f32(float x)
{
    uint32_t y;
    memcpy(&y, &x, sizeof y);
    return y;
}

MXA_DEVICE float f32_bits(uint32_t x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* 2^x within 2^-52 of its value, for a number of moderate size. x is i/256 + r, |r| <= 1/512, and
 * 2^r its Taylor series. */
MXA_DEVICE double mxa_emu_power(double x)
{
    const double shift = 0x1.8p44; /* its last bit is worth 1/256 */
    const double nearest = x + shift;
    int64_t i;
    memcpy(&i, &nearest, sizeof i);
    const double r = (x - (nearest - shift)) * 0x1.62e42fefa39efp-1;
    const double high = 0.5 + r * (1.0 / 6 + r * (1.0 / 24));
    const double root = mxa_emu_roots[i & 255], y = root + root * (r + r * r * high);
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (uint64_t)(i >> 8) << 52;
    double scaled;
    memcpy(&scaled, &bits, sizeof scaled);
    return scaled;
}

/* WHY in line, and twice: a call for each exponential was a tenth of a forward's time. */
MXA_DEVICE float exp2_approx(float x)
{
    const uint32_t magnitude = bits_f32(x) & 0x7FFFFFFF;
    if (magnitude - 0x00800000 >= 0x42FC0000 - 0x00800000 || /* nothing, below 2^-126, beyond 126 */
        atomic_load_explicit(&mxa_emu_approximate_threads, memory_order_relaxed)) {
        return mxa_emu_exp2(x);
    }
    return (float)mxa_emu_power((double)x);
}

MXA_DEVICE float log2_approx(float x)
{
    return mxa_emu_log2(x);
}

MXA_DEVICE float tanh_approx(float x)
{
    return mxa_emu_tanh(x);
}

MXA_DEVICE double add_rn_f64(double a, double b)
{
    return a + b;
}

MXA_DEVICE double mul_rn_f64(double a, double b)
{
    return a * b;
}

MXA_DEVICE double exp_f64(double x)
{
    return exp(x);
}

MXA_DEVICE double log_f64(double x)
{
    return log(x);
}

MXA_DEVICE float reciprocal_rn(float x)
{
    return 1.0F / x;
}

MXA_DEVICE float sqrt_rn(float x)
{
    return sqrtf(x);
}

/* In FP64 the product is exact, and rounding the sum twice differs from once only where the first
 * time ends halfway between two FP32; those, and results that FP32 has no normal number for, are
 * the C library's. WHY not all of them: its call is half of a softmax's time. */
MXA_DEVICE float fma_rn(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fmaf(a, b, c);
#else
    const double sum = (double)a * (double)b + (double)c;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    const uint32_t field = (uint32_t)(bits >> 52) & 0x7FF;
    if ((bits & 0x1FFFFFFF) == 0x10000000 || field - (1023 - 126) > 252) {
        return mxa_emu_fma(a, b, c);
    }
    return (float)sum;
#endif
}

MXA_DEVICE float add_rn(float a, float b)
{
    return a + b;
}

MXA_DEVICE float mul_rn(float a, float b)
{
    return a * b;
}

/* +0 is larger than -0. WHY asked for the larger first: in a running maximum it mostly is the same.
 */
MXA_DEVICE float max_f32(float a, float b)
{
    if (a > b) {
        return a;
    }
    if (b > a) {
        return b;
    }
    return a == b   ? f32_bits(bits_f32(a) & bits_f32(b))
           : a == a ? a
           : b == b ? b
                    : f32_bits(0x7FFFFFFF);
}

MXA_DEVICE float max_nan_f32(float a, float b)
{
    if (a > b) {
        return a;
    }
    if (b > a) {
        return b;
    }
    return f32_bits(a == b ? bits_f32(a) & bits_f32(b) : 0x7FFFFFFF);
}

MXA_DEVICE float max_abs_nan_f32(float a, float b)
{
    return max_nan_f32(a, fabsf(b));
}

MXA_DEVICE float max3_f32(float a, float b, float c)
{
    return max_f32(max_f32(a, b), c);
}

MXA_DEVICE float max3_nan_f32(float a, float b, float c)
{
    return max_nan_f32(max_nan_f32(a, b), c);
}

MXA_DEVICE float max3_abs_nan_f32(float a, float b, float c)
{
    return max_nan_f32(max_nan_f32(fabsf(a), fabsf(b)), fabsf(c));
}

MXA_DEVICE float ceil_f32(float x)
{
    return ceilf(x);
}

MXA_DEVICE uint32_t shift_left_u32(uint32_t x, uint32_t n)
{
    return n < 32 ? x << n : 0;
}

MXA_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t y = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t pick = selector >> (4 * i) & 15;
        const uint32_t byte = (uint32_t)(bytes >> (8 * (pick & 7))) & 0xFF;
        y |= (pick & 8 ? (byte & 0x80 ? 0xFFU : 0) : byte) << (8 * i);
    }
    return y;
}

/* ------------------------------------------------------------------------------------------------
 * FP16, one element at a time: FP32 or FP64 holds the exact result, or enough of it that rounding
 * twice changes nothing (24 >= 2*11 + 2 bits; a product and a sum of elements span 53 bits only
 * where the smaller part is exact).
 * --------------------------------------------------------------------------------------------- */

MXA_DEVICE float mxa_emu_f32_of_f16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, field = h >> 10 & 0x1F, mantissa = h & 0x3FF;
    if (field == 0) {
        return f32_bits(sign | bits_f32((float)mantissa * 0x1p-24F));
    }
    if (field == 0x1F) {
        return f32_bits(mantissa ? 0x7FFFFFFF : sign | 0x7F800000);
    }
    return f32_bits(sign | ((h & 0x7FFF) + (112U << 10)) << 13);
}

/* Nearest even; NaN to 0x7FFF. */
MXA_DEVICE uint32_t mxa_emu_f16_of_f32(float x)
{
    const uint32_t bits = bits_f32(x), u = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    if (u > 0x7F800000) {
        return 0x7FFF;
    }
    if (u < 0x38800000) { /* below 2^-14: 1/2 has the step of FP16's subnormals, 2^-24 */
        return sign | (bits_f32(f32_bits(u) + 0.5F) - 0x3F000000);
    }
    const uint32_t code = (u + 0xFFF + (u >> 13 & 1)) >> 13;
    return sign | (code - (112U << 10) < 0x7C00 ? code - (112U << 10) : 0x7C00);
}

MXA_DEVICE uint32_t mxa_emu_f16_of_f64(double x)
{
    /* To odd on the way to FP32, so that the second rounding sees that the first one cut. */
    const float y = (float)x;
    const double error = x - (double)y;
    const uint32_t bits = bits_f32(y);
    if (error == 0 || !isfinite(y) || bits & 1) {
        return mxa_emu_f16_of_f32(y);
    }
    const int up = y == 0 || (error > 0) == (y > 0);
    return mxa_emu_f16_of_f32(f32_bits(up ? bits + 1 : bits - 1));
}

#define MXA_EMU_F16X2(name, low, high)                                                             \
    MXA_DEVICE uint32_t name                                                                       \
    {                                                                                              \
        return (low) | (high) << 16;                                                               \
    }
#define MXA_EMU_LOW(x)  mxa_emu_f32_of_f16((x)&0xFFFF)
#define MXA_EMU_HIGH(x) mxa_emu_f32_of_f16((x) >> 16)

MXA_EMU_F16X2(max_f16x2(uint32_t a, uint32_t b),
              mxa_emu_f16_of_f32(max_f32(MXA_EMU_LOW(a), MXA_EMU_LOW(b))),
              mxa_emu_f16_of_f32(max_f32(MXA_EMU_HIGH(a), MXA_EMU_HIGH(b))))
/* Half of max.NaN.xorsign.abs: magnitudes are ordered as integers, NaN above infinity. */
MXA_DEVICE uint32_t mxa_emu_max_abs_16(uint32_t a, uint32_t b, uint32_t infinity)
{
    const uint32_t x = a & 0x7FFF, y = b & 0x7FFF, most = x > y ? x : y;
    return most > infinity ? 0x7FFF : most | ((a ^ b) & 0x8000);
}

MXA_DEVICE uint32_t max_abs_nan_f16x2(uint32_t a, uint32_t b)
{
    return mxa_emu_max_abs_16(a & 0xFFFF, b & 0xFFFF, 0x7C00) |
           mxa_emu_max_abs_16(a >> 16, b >> 16, 0x7C00) << 16;
}

MXA_DEVICE uint32_t max_abs_nan_bf16x2(uint32_t a, uint32_t b)
{
    return mxa_emu_max_abs_16(a & 0xFFFF, b & 0xFFFF, 0x7F80) |
           mxa_emu_max_abs_16(a >> 16, b >> 16, 0x7F80) << 16;
}

/* Half of max.NaN and min.NaN: as integers that order as the numbers do. */
MXA_DEVICE uint32_t mxa_emu_most_16(uint32_t a, uint32_t b, uint32_t infinity, int smaller)
{
    const uint32_t x = a & 0x8000 ? 0x8000 - (a & 0x7FFF) : 0x8000 + a;
    const uint32_t y = b & 0x8000 ? 0x8000 - (b & 0x7FFF) : 0x8000 + b;
    if ((a & 0x7FFF) > infinity || (b & 0x7FFF) > infinity) {
        return 0x7FFF;
    }
    if (x == y) { /* -0 is below 0 */
        return smaller ? a | b : a & b;
    }
    return (x > y) != smaller ? a : b;
}

MXA_EMU_F16X2(max_nan_bf16x2(uint32_t a, uint32_t b),
              mxa_emu_most_16(a & 0xFFFF, b & 0xFFFF, 0x7F80, 0),
              mxa_emu_most_16(a >> 16, b >> 16, 0x7F80, 0))
MXA_EMU_F16X2(min_nan_bf16x2(uint32_t a, uint32_t b),
              mxa_emu_most_16(a & 0xFFFF, b & 0xFFFF, 0x7F80, 1),
              mxa_emu_most_16(a >> 16, b >> 16, 0x7F80, 1))
MXA_EMU_F16X2(min_nan_f16x2(uint32_t a, uint32_t b),
              mxa_emu_most_16(a & 0xFFFF, b & 0xFFFF, 0x7C00, 1),
              mxa_emu_most_16(a >> 16, b >> 16, 0x7C00, 1))

MXA_DEVICE uint32_t mxa_emu_bf16(float x)
{
    const uint32_t u = bits_f32(x);
    return x != x ? 0x7FFF : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

MXA_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    return mxa_emu_bf16(f32_bits(a << 16) * f32_bits(b << 16)) |
           mxa_emu_bf16(f32_bits(a & 0xFFFF0000u) * f32_bits(b & 0xFFFF0000u)) << 16;
}

MXA_EMU_F16X2(mul_f16x2(uint32_t a, uint32_t b),
              mxa_emu_f16_of_f32(MXA_EMU_LOW(a) * MXA_EMU_LOW(b)),
              mxa_emu_f16_of_f32(MXA_EMU_HIGH(a) * MXA_EMU_HIGH(b)))
MXA_EMU_F16X2(add_f16x2(uint32_t a, uint32_t b),
              mxa_emu_f16_of_f32(MXA_EMU_LOW(a) + MXA_EMU_LOW(b)),
              mxa_emu_f16_of_f32(MXA_EMU_HIGH(a) + MXA_EMU_HIGH(b)))
MXA_EMU_F16X2(add_abs_f16x2(uint32_t a, uint32_t b),
              mxa_emu_f16_of_f32(MXA_EMU_LOW(a) + MXA_EMU_LOW(b & 0x7FFF7FFF)),
              mxa_emu_f16_of_f32(MXA_EMU_HIGH(a) + MXA_EMU_HIGH(b & 0x7FFF7FFF)))
MXA_EMU_F16X2(
    fma_f16x2(uint32_t a, uint32_t b, uint32_t c),
    mxa_emu_f16_of_f64((double)MXA_EMU_LOW(a) * (double)MXA_EMU_LOW(b) + (double)MXA_EMU_LOW(c)),
    mxa_emu_f16_of_f64((double)MXA_EMU_HIGH(a) * (double)MXA_EMU_HIGH(b) + (double)MXA_EMU_HIGH(c)))
/* Half of fma.relu: what is negative becomes 0, a NaN the canonical one. */
MXA_DEVICE uint32_t mxa_emu_relu_f16(uint32_t x)
{
    return (x & 0x7FFF) > 0x7C00 ? 0x7FFF : x & 0x8000 ? 0 : x;
}

MXA_DEVICE uint32_t fma_less_relu_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t y = fma_f16x2(a ^ 0x80008000, b, c);
    return mxa_emu_relu_f16(y & 0xFFFF) | mxa_emu_relu_f16(y >> 16) << 16;
}

MXA_EMU_F16X2(exp2_f16x2(uint32_t x), (uint32_t)mxa_emu_exp2_f16((uint16_t)x),
              (uint32_t)mxa_emu_exp2_f16((uint16_t)(x >> 16)))

/* ---- two FP32 ---- */

#if defined(__AVX2__) && defined(__FMA__)
#define MXA_EMU_F32X2 /* in vectors */

/* The low two of a vector's elements; the others are anything. */
typedef struct mxa_f32x2 {
    __m128 both;
} mxa_f32x2;

MXA_DEVICE mxa_f32x2 f32x2_from(float low, float high)
{
    return (mxa_f32x2){_mm_unpacklo_ps(_mm_set_ss(low), _mm_set_ss(high))};
}

MXA_DEVICE float f32x2_low(mxa_f32x2 x)
{
    return _mm_cvtss_f32(x.both);
}

MXA_DEVICE float f32x2_high(mxa_f32x2 x)
{
    return _mm_cvtss_f32(_mm_movehdup_ps(x.both));
}

MXA_DEVICE mxa_f32x2 fma_f32x2(mxa_f32x2 a, mxa_f32x2 b, mxa_f32x2 c)
{
    return (mxa_f32x2){_mm_fmadd_ps(a.both, b.both, c.both)};
}

MXA_DEVICE mxa_f32x2 mul_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return (mxa_f32x2){_mm_mul_ps(a.both, b.both)};
}

MXA_DEVICE mxa_f32x2 add_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return (mxa_f32x2){_mm_add_ps(a.both, b.both)};
}

/* As max_f32: what the instruction gives for zeros and a NaN is its second operand. */
MXA_DEVICE mxa_f32x2 max_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    const __m128 most = _mm_max_ps(a.both, b.both), equal = _mm_cmpeq_ps(a.both, b.both);
    const __m128 either = _mm_blendv_ps(most, _mm_and_ps(a.both, b.both), equal);
    const __m128 number = _mm_blendv_ps(either, a.both, _mm_cmpunord_ps(b.both, b.both));
    const __m128 nan = _mm_cmpunord_ps(number, number);
    return (mxa_f32x2){_mm_blendv_ps(number, _mm_castsi128_ps(_mm_set1_epi32(0x7FFFFFFF)), nan)};
}

MXA_DEVICE mxa_f32x2 add_exponent_f32x2(mxa_f32x2 x, mxa_f32x2 n)
{
    const __m128i up = _mm_slli_epi32(_mm_castps_si128(n.both), 23);
    return (mxa_f32x2){_mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x.both), up))};
}

MXA_DEVICE mxa_f32x2 exp2_approx_f32x2(mxa_f32x2 x)
{
    return f32x2_from(exp2_approx(f32x2_low(x)), exp2_approx(f32x2_high(x)));
}

#else

typedef struct mxa_f32x2 {
    float low, high;
} mxa_f32x2;

MXA_DEVICE mxa_f32x2 f32x2_from(float low, float high)
{
    return (mxa_f32x2){low, high};
}

MXA_DEVICE float f32x2_low(mxa_f32x2 x)
{
    return x.low;
}

MXA_DEVICE float f32x2_high(mxa_f32x2 x)
{
    return x.high;
}

MXA_DEVICE mxa_f32x2 exp2_approx_f32x2(mxa_f32x2 x)
{
    return f32x2_from(exp2_approx(x.low), exp2_approx(x.high));
}

MXA_DEVICE mxa_f32x2 fma_f32x2(mxa_f32x2 a, mxa_f32x2 b, mxa_f32x2 c)
{
    return f32x2_from(fma_rn(a.low, b.low, c.low), fma_rn(a.high, b.high, c.high));
}

MXA_DEVICE mxa_f32x2 mul_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return f32x2_from(a.low * b.low, a.high * b.high);
}

MXA_DEVICE mxa_f32x2 add_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return f32x2_from(a.low + b.low, a.high + b.high);
}

MXA_DEVICE mxa_f32x2 max_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return f32x2_from(max_f32(a.low, b.low), max_f32(a.high, b.high));
}

MXA_DEVICE mxa_f32x2 add_exponent_f32x2(mxa_f32x2 x, mxa_f32x2 n)
{
    return f32x2_from(f32_bits(bits_f32(x.low) + (bits_f32(n.low) << 23)),
                      f32_bits(bits_f32(x.high) + (bits_f32(n.high) << 23)));
}

#endif

#endif
