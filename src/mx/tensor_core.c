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

/* What a type's codes mean: sign, exponent field, mantissa. */
typedef struct layout {
    int width, mantissa_bits, least; /* bits; 2^least is the unit of subnormal numbers */
    uint32_t infinity, nan;          /* codes: infinity or 0, the first NaN */
} layout;

static layout layout_of(mxattn_dtype dtype)
{
    layout l = {8 * mxa_dtype_bytes(dtype), mxa_dtype_mantissa_bits(dtype), 0,
                mxa_dtype_infinity(dtype), MXA_FP8_NAN};
    (void)mxa_split_code(0, dtype, &l.least);
    l.nan = l.infinity ? l.infinity + 1 : l.nan;
    return l;
}

/* An operand taken apart. */
typedef struct factor {
    int64_t significand;
    int unit, exponent;
    int sign, is_nan, is_infinite;
} factor;

static factor factor_of(uint32_t bits, const layout *l)
{
    const uint32_t code = bits & ~(1U << (l->width - 1)), one = 1U << l->mantissa_bits;
    const uint32_t field = code >> l->mantissa_bits;
    factor f;
    f.sign = (int)(bits >> (l->width - 1) & 1);
    f.is_nan = code >= l->nan;
    f.is_infinite = l->infinity != 0 && code == l->infinity;
    f.significand = field ? (code & (one - 1)) | one : code;
    f.unit = l->least + (field ? (int)field - 1 : 0);
    f.exponent = f.unit + l->mantissa_bits;
    return f;
}

static uint32_t code_at(const void *data, const layout *l, int index)
{
    return l->width == 8 ? ((const uint8_t *)data)[index] : ((const uint16_t *)data)[index];
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
    const layout of_a = layout_of(step->a_type), of_b = layout_of(step->b_type);
    const layout of_c = layout_of(c_type);
    s->count = 0;
    s->infinite[0] = s->infinite[1] = 0;
    s->is_nan = scale_a == MXA_SCALE_NAN || scale_b == MXA_SCALE_NAN;
    add_product(s, factor_of(c, &of_c), one, 0);
    for (int k = 0; k < step->count && k < MOST_TERMS - 1; k++) {
        add_product(s, factor_of(code_at(a, &of_a, k), &of_a),
                    factor_of(code_at(b, &of_b, k), &of_b), scale_a + scale_b - 254);
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
