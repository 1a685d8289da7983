/* tensor_core.c: the sum that a tensor core makes, term after term in integers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/tensor_core.h"

#include "mx/e8m0.h"
#include "mx/element.h"

#include <string.h>

enum { MOST_TERMS = 33, NO_EXPONENT = -100000 };

/* significand * 2^unit; exponent is what terms are aligned by. significand 0: no term. */
typedef struct term {
    int64_t significand;
    int unit, exponent;
} term;

/* What a sum is made of. */
typedef struct sum {
    term terms[MOST_TERMS];
    int count;
    int is_nan;
    int infinite[2]; /* of either sign */
} sum;

int mxa_tensor_core_fraction_bits(mxa_tensor_core core)
{
    switch (core) {
    case MXA_TENSOR_CORE_HOPPER_FP8:
        return 13;
    case MXA_TENSOR_CORE_HOPPER_16:
    case MXA_TENSOR_CORE_BLACKWELL:
        return 25;
    case MXA_TENSOR_CORE_EXACT:
        break;
    }
    return 0;
}

int mxa_tensor_core_result_bits(mxa_tensor_core core)
{
    return core == MXA_TENSOR_CORE_HOPPER_FP8 ? 13 : 23;
}

/* ------------------------------------------------------------------------------------------------
 * Terms
 * --------------------------------------------------------------------------------------------- */

/* An operand taken apart. */
typedef struct factor {
    int64_t significand;
    int unit, exponent;
    int sign, is_nan, is_infinite;
} factor;

static factor factor_of(uint32_t bits, mxattn_dtype dtype)
{
    const int width = 8 * mxa_dtype_bytes(dtype);
    const uint32_t code = bits & ~(1U << (width - 1));
    const uint32_t infinity = mxa_dtype_infinity(dtype);
    factor f = {0};
    f.sign = (int)(bits >> (width - 1) & 1);
    f.is_nan = infinity ? code > infinity : code == MXA_FP8_NAN;
    f.is_infinite = infinity != 0 && code == infinity;
    f.significand = (int64_t)mxa_split_code(code, dtype, &f.unit);
    f.exponent = f.unit + mxa_dtype_mantissa_bits(dtype);
    return f;
}

static uint32_t code_at(const void *data, mxattn_dtype dtype, int index)
{
    return mxa_dtype_bytes(dtype) == 1 ? ((const uint8_t *)data)[index]
                                       : ((const uint16_t *)data)[index];
}

/* Adds the term x*y*2^scale. */
static void add_product(sum *s, factor x, factor y, int scale)
{
    const int sign = x.sign ^ y.sign;
    if (x.is_nan || y.is_nan) {
        s->is_nan = 1;
    } else if (x.is_infinite || y.is_infinite) {
        const int zero =
            (x.significand == 0 && !x.is_infinite) || (y.significand == 0 && !y.is_infinite);
        s->is_nan |= zero;
        s->infinite[sign] |= !zero;
    } else {
        const int64_t product = x.significand * y.significand;
        s->terms[s->count++] = (term){sign ? -product : product, x.unit + y.unit + scale,
                                      x.exponent + y.exponent + scale};
    }
}

static void collect(sum *s, const mxa_tensor_core_step *step, const void *a, const void *b,
                    int scale_a, int scale_b, uint32_t c, mxattn_dtype c_type)
{
    static const factor one = {1, 0, 0, 0, 0, 0};
    memset(s, 0, sizeof *s);
    s->is_nan = scale_a == MXA_SCALE_NAN || scale_b == MXA_SCALE_NAN;
    add_product(s, factor_of(c, c_type), one, 0);
    for (int k = 0; k < step->count && k < MOST_TERMS - 1; k++) {
        add_product(s, factor_of(code_at(a, step->a_type, k), step->a_type),
                    factor_of(code_at(b, step->b_type, k), step->b_type), scale_a + scale_b - 254);
    }
    s->is_nan |= s->infinite[0] && s->infinite[1];
}

/* ------------------------------------------------------------------------------------------------
 * The truncated sum
 * --------------------------------------------------------------------------------------------- */

/* x * 2^shift toward zero. */
static int64_t shift_toward_zero(int64_t x, int shift)
{
    if (shift >= 0) {
        return x * ((int64_t)1 << shift);
    }
    return shift <= -63 ? 0 : x / ((int64_t)1 << -shift);
}

/* The sum of truncated terms in units of 2^*unit. */
static int64_t truncated_sum(const sum *s, int fraction_bits, int *unit)
{
    int largest = NO_EXPONENT;
    for (int i = 0; i < s->count; i++) {
        if (s->terms[i].significand != 0 && s->terms[i].exponent > largest) {
            largest = s->terms[i].exponent;
        }
    }
    int64_t total = 0;
    *unit = largest - fraction_bits;
    for (int i = 0; i < s->count; i++) {
        if (s->terms[i].significand != 0) {
            total += shift_toward_zero(s->terms[i].significand, s->terms[i].unit - *unit);
        }
    }
    return total;
}

static int floor_log2(uint64_t n)
{
    int log = 0;
    while (n >>= 1) {
        log++;
    }
    return log;
}

/* magnitude * 2^unit as FP32 bits without sign, toward zero, `fraction` bits of fraction. */
static uint32_t f32_toward_zero(uint64_t magnitude, int unit, int fraction)
{
    if (magnitude == 0) {
        return 0;
    }
    const int exponent = unit + floor_log2(magnitude);
    /* Subnormal results lie on the grid of the smallest normal binade. */
    const int grid = (exponent < -126 ? -126 : exponent) - fraction;
    const int64_t kept = shift_toward_zero((int64_t)magnitude, unit - grid);
    return mxa_round_code((uint64_t)kept, grid, MXATTN_F32); /* exact, or beyond the largest */
}

/* ------------------------------------------------------------------------------------------------
 * The exact sum: a number of 704 bits in digits of 32, digit i worth 2^(32*i - ORIGIN). Products
 * reach from 2^-286 to 2^289, scales included.
 * --------------------------------------------------------------------------------------------- */

enum { DIGITS = 22, ORIGIN = 320 };

/* Adds all terms of one sign. */
static void add_signed(const sum *s, int negative, uint64_t *digits)
{
    for (int i = 0; i < s->count; i++) {
        const int64_t significand = s->terms[i].significand;
        if (significand == 0 || (significand < 0) != negative) {
            continue;
        }
        uint64_t rest = (uint64_t)(negative ? -significand : significand);
        const int at = s->terms[i].unit + ORIGIN;
        uint64_t low = (rest & 0xFFFFFFFF) << (at % 32), high = (rest >> 32) << (at % 32);
        digits[at / 32] += low & 0xFFFFFFFF;
        digits[at / 32 + 1] += (low >> 32) + (high & 0xFFFFFFFF);
        digits[at / 32 + 2] += high >> 32;
    }
    for (int i = 0; i + 1 < DIGITS; i++) {
        digits[i + 1] += digits[i] >> 32;
        digits[i] &= 0xFFFFFFFF;
    }
}

/* |sum| rounded to nearest even as a code of dtype; *negative is its sign. */
static uint32_t exact_code(const sum *s, mxattn_dtype dtype, int *negative)
{
    uint64_t plus[DIGITS] = {0}, minus[DIGITS] = {0};
    add_signed(s, 0, plus);
    add_signed(s, 1, minus);
    int top = DIGITS - 1;
    while (top > 0 && plus[top] == minus[top]) {
        top--;
    }
    *negative = plus[top] < minus[top];
    const uint64_t *large = *negative ? minus : plus, *small = *negative ? plus : minus;
    uint64_t difference[DIGITS], borrow = 0;
    for (int i = 0; i < DIGITS; i++) {
        const uint64_t take = small[i] + borrow;
        borrow = large[i] < take;
        difference[i] = (large[i] + (borrow << 32)) - take;
    }
    while (top > 0 && difference[top] == 0) {
        top--;
    }
    /* The 33 to 52 highest bits, and one more that says whether anything lies below them. */
    const int below = top >= 1 ? top - 1 : 0;
    uint64_t significand = top >= 1 ? difference[top] << 32 | difference[below] : difference[top];
    int unit = 32 * below - ORIGIN, sticky = 0;
    for (int i = 0; i < below; i++) {
        sticky |= difference[i] != 0;
    }
    while (significand >> 51) {
        sticky |= (int)(significand & 1);
        significand >>= 1;
        unit++;
    }
    return mxa_round_code(significand << 1 | (uint64_t)sticky, unit - 1, dtype);
}

/* ------------------------------------------------------------------------------------------------
 * Results
 * --------------------------------------------------------------------------------------------- */

uint32_t mxa_tensor_core_f32(const mxa_tensor_core_step *step, const void *a, const void *b,
                             uint8_t scale_a, uint8_t scale_b, uint32_t c)
{
    sum s;
    collect(&s, step, a, b, scale_a, scale_b, c, MXATTN_F32);
    if (s.is_nan) {
        return MXA_TENSOR_CORE_NAN;
    }
    if (s.infinite[0] || s.infinite[1]) {
        return s.infinite[1] ? 0xFF800000 : 0x7F800000;
    }
    int negative;
    if (step->core == MXA_TENSOR_CORE_EXACT) {
        const uint32_t code = exact_code(&s, MXATTN_F32, &negative);
        return code | (negative ? 0x80000000 : 0);
    }
    int unit;
    const int64_t total = truncated_sum(&s, mxa_tensor_core_fraction_bits(step->core), &unit);
    const uint32_t code = f32_toward_zero((uint64_t)(total < 0 ? -total : total), unit,
                                          mxa_tensor_core_result_bits(step->core));
    return code | (total < 0 ? 0x80000000 : 0);
}

uint16_t mxa_tensor_core_f16(const mxa_tensor_core_step *step, const void *a, const void *b,
                             uint16_t c)
{
    sum s;
    collect(&s, step, a, b, 127, 127, c, MXATTN_F16);
    if (s.is_nan) {
        return MXA_TENSOR_CORE_NAN_F16;
    }
    if (s.infinite[0] || s.infinite[1]) {
        return s.infinite[1] ? 0xFC00 : 0x7C00;
    }
    int negative;
    if (step->core == MXA_TENSOR_CORE_EXACT) {
        const uint32_t code = exact_code(&s, MXATTN_F16, &negative);
        return (uint16_t)(code | (negative ? 0x8000U : 0));
    }
    int unit;
    const int64_t total = truncated_sum(&s, mxa_tensor_core_fraction_bits(step->core), &unit);
    const uint32_t code = mxa_round_code((uint64_t)(total < 0 ? -total : total), unit, MXATTN_F16);
    return (uint16_t)(code | (total < 0 ? 0x8000U : 0));
}
