/* test_convert.c: the emulator's conversions and arithmetic against src/mx: all codes of narrow
 * types, FP32 at every boundary; and the stated bounds of its approximations.
 *
 * Argument: "all" converts every FP32 there is (minutes).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/convert.h"
#include "cuda/dev/f32x8.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "emu/launch.h"
#include "fill.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <string.h>

/* Every sign, exponent and upper 10 bits of the mantissa, with the lower 13 at and beside what
 * decides a rounding to FP16 (coarser types decide in the upper bits); by an argument, with all of
 * them. */
static const uint32_t boundaries[] = {0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF};
static int all;

static uint32_t lower_count(void)
{
    return all ? 1U << 13 : sizeof boundaries / sizeof boundaries[0];
}

static uint32_t lower(uint32_t i)
{
    return all ? i : boundaries[i];
}

static int is_nan(float x)
{
    return x != x;
}

static void from_f32(void)
{
    mxt_case("from FP32");
    for (uint32_t upper = 0; upper < 1U << 19; upper++) {
        for (uint32_t l = 0; l < lower_count(); l++) {
            const float x = f32_bits(upper << 13 | lower(l));
            const uint32_t e4m3 = is_nan(x) ? 0x7F : mxa_e4m3_from_f32(x);
            const uint32_t e5m2 = is_nan(x) ? 0x7F : mxa_e5m2_from_f32(x);
            const uint32_t f16 = is_nan(x) ? 0x7FFF : mxa_f16_from_f32(x);
            const uint32_t bf16 = is_nan(x) ? 0x7FFF : mxa_bf16_from_f32(x);
            const uint32_t a = e4m3x4_from_f32(x, 0, 0, x), b = e5m2x4_from_f32(0, x, x, 0);
            const uint32_t c = f16x2_from_f32(x), d = bf16x2_from_f32x2(x, 1);
            if (a != (e4m3 | e4m3 << 24) || b != (e5m2 << 8 | e5m2 << 16) ||
                c != (f16 | f16 << 16) || d != (bf16 | 0x3F800000)) {
                CHECK(0, "%a (%08x): e4m3 %08x, e5m2 %08x, f16 %08x, bf16 %08x", (double)x,
                      bits_f32(x), a, b, c, d);
            }
        }
    }
}

static void from_narrow(void)
{
    mxt_case("from FP16 and FP8");
    for (uint32_t h = 0; h < 1U << 16; h++) {
        const float x = mxa_f16_to_f32((uint16_t)h);
        const uint32_t pair = h | 0x3C000000;
        const float low = f32_from_f16_low(pair), high = f32_from_f16_high(pair << 16 | pair >> 16);
        CHECK(is_nan(x) ? bits_f32(low) == 0x7FFFFFFF : bits_f32(low) == bits_f32(x), "low %04x",
              h);
        CHECK(bits_f32(high) == bits_f32(low) && f32_from_f16_high(pair) == 1, "high %04x", h);
        const uint32_t code = is_nan(x) ? 0x7F : mxa_e4m3_from_f32(x);
        CHECK(e4m3x4_from_f16x2(pair, h << 16) == (code | 0x3800 | code << 24), "e4m3 of %04x", h);
    }
    for (uint32_t code = 0; code < 256; code++) {
        for (int e5m2 = 0; e5m2 < 2; e5m2++) {
            const float x = e5m2 ? mxa_e5m2_to_f32((uint8_t)code) : mxa_e4m3_to_f32((uint8_t)code);
            const uint32_t want = is_nan(x) ? 0x7FFF : mxa_f16_from_f32(x);
            const uint32_t got = f16x2_from_fp8x2(code | code << 8, e5m2);
            CHECK(got == (want | want << 16), "code %02x, e5m2 %d: %08x", code, e5m2, got);
            CHECK(e5m2 || (f16x2_from_e4m3x2_low(0x38380000 | code << 8 | code) == got &&
                           f16x2_from_e4m3x2_high(code << 24 | code << 16 | 0x3838) == got),
                  "code %02x of four", code);
        }
    }
}

/* E8M0 by its definition: the smallest power that is no smaller; the largest that is no larger. */
static void scales(void)
{
    mxt_case("E8M0");
    for (uint32_t upper = 0; upper < 1U << 19; upper++) {
        for (uint32_t l = 0; l < lower_count(); l++) {
            const float x = f32_bits(upper << 13 | lower(l));
            const double a = fabs((double)x);
            int e;
            const double m = frexp(a, &e); /* a = m * 2^e, 0.5 <= m < 1 */
            int up = (m == 0.5 ? e - 1 : e) + 127, down = e - 1 + 127;
            up = a == 0 || up < 0 ? 0 : a > 0x1p127 || up > 254 ? 254 : up;
            down = a < 0x1p-126 ? 0 : down > 254 ? 254 : down;
            if (!isfinite(x)) {
                up = down = is_nan(x) ? 0xFF : 0xFE;
            }
            const uint32_t ceil = e8m0x2_ceil_from_f32x2(x, 1);
            const uint32_t floor = e8m0x2_floor_from_f32x2(1, x);
            if (ceil != ((uint32_t)up | 127 << 8) || floor != (127 | (uint32_t)down << 8)) {
                CHECK(0, "%a: %04x (want %02x), %04x (want %02x)", (double)x, ceil, (unsigned)up,
                      floor, (unsigned)down);
            }
        }
    }
    for (uint32_t code = 0; code < 256; code++) {
        const uint32_t pair = bf16x2_from_e8m0x2(code | 127 << 8);
        const float want = mxa_e8m0_to_f32((uint8_t)code);
        CHECK(code == 255 ? (pair & 0xFFFF) == 0x7FFF : f32_bits(pair << 16) == want, "byte %u",
              code);
        CHECK(pair >> 16 == 0x3F80, "byte %u: high %08x", code, pair);
    }
}

/* Rounded once, to nearest even: against wider arithmetic, or bits known from the definition. */
static void arithmetic(void)
{
    mxt_random random = {11};
    mxt_case("arithmetic of one number");
    for (int round = 0; round < 100000; round++) {
        const float a = f32_bits((uint32_t)mxt_random_u64(&random) >> 4 & 0xBFFFFFFF);
        const float b = f32_bits((uint32_t)mxt_random_u64(&random) & 0xBF7FFFFF);
        const double product = (double)a * (double)b, root = sqrt(fabs((double)b));
        CHECK(mul_rn(a, b) == (float)product, "%a * %a", (double)a, (double)b);
        CHECK(sqrt_rn(fabsf(b)) == (float)root, "sqrt %a", (double)b);
        if (fabsf(b) >= 0x1p-100F && fabsf(b) <= 0x1p100F) {
            /* A product with the divisor has 48 bits: the quotient's error shows exactly. */
            const float q = reciprocal_rn(b);
            const double error = fabs(fma((double)q, (double)b, -1) / (double)b);
            CHECK(error <= ldexp(0.5, ilogbf(q) - 23), "1 / %a is %a", (double)b, (double)q);
        }
        const uint64_t c = mxt_random_u64(&random);
        const uint32_t x = (uint32_t)c, n = (uint32_t)(c >> 32) % 48;
        CHECK(shift_left_u32(x, n) == (uint32_t)((uint64_t)x << n), "%08x << %u", x, n);
        CHECK(f16x2_from_f32x2(a, b) == ((f16x2_from_f32(a) & 0xFFFF) | f16x2_from_f32(b) << 16),
              "%a, %a to FP16", (double)a, (double)b);
    }
    CHECK(add_rn(1, 0x1p-24F) == 1 && add_rn(0x1.000002p0F, 0x1p-24F) == 0x1.000004p0F, "to even");
    CHECK(add_rn(0x1p-149F, 0x1p-149F) == 0x1p-148F && is_nan(add_rn(INFINITY, -INFINITY)),
          "subnormals, NaN");
    CHECK(add_rn_f64(1, 0x1p-53) == 1 && add_rn_f64(1, 0x1.8p-53) == 0x1.0000000000001p0, "FP64");
    CHECK(mul_rn_f64(0x1.0000000000001p0, 0x1.0000000000001p0) == 0x1.0000000000002p0,
          "FP64 product");
    CHECK(fabs(exp_f64(1) / 2.718281828459045 - 1) < 0x1p-51 &&
              fabs(log_f64(10) / 2.302585092994046 - 1) < 0x1p-51 && exp_f64(-INFINITY) == 0,
          "e^x, ln x");
}

__extension__ typedef __int128 wide;

/* A finite FP16 in units of 2^-24. */
static int64_t units(uint32_t h)
{
    int unit;
    const int64_t significand = (int64_t)mxa_split_code(h & 0x7FFF, MXATTN_F16, &unit);
    const int64_t value = significand * ((int64_t)1 << (unit + 24));
    return h & 0x8000 ? -value : value;
}

/* x * 2^-48 to FP16, once. */
static uint32_t round_units(wide x)
{
    const uint32_t sign = x < 0 ? 0x8000 : 0;
    wide magnitude = x < 0 ? -x : x;
    int unit = -48, sticky = 0;
    while (magnitude >> 50) {
        sticky |= (int)(magnitude & 1);
        magnitude >>= 1;
        unit++;
    }
    return sign | mxa_round_code((uint64_t)magnitude << 1 | (uint64_t)sticky, unit - 1, MXATTN_F16);
}

static void halves(void)
{
    mxt_random random = {31};
    mxt_case("FP16 arithmetic");
    for (int round = 0; round < 1000000; round++) {
        uint64_t u = mxt_random_u64(&random);
        uint32_t a = (uint32_t)u & 0xBFFF, b = (uint32_t)(u >> 16) & 0xBFFF;
        uint32_t c = (uint32_t)(u >> 32) & 0xBFFF; /* below 2, all finite */
        if (round & 1) {                           /* and anything finite */
            a |= (a & 0x3C00) != 0x3C00 ? (uint32_t)(u >> 48 & 0x4000) : 0;
            c |= (c & 0x3C00) != 0x3C00 ? (uint32_t)(u >> 49 & 0x4000) : 0;
        }
        const wide one = (wide)1 << 24;
        const uint32_t product = round_units((wide)units(a) * units(b));
        const uint32_t sum = round_units((units(a) + (wide)units(b)) * one);
        const uint32_t fma = round_units((wide)units(a) * units(b) + units(c) * one);
        const uint32_t got_product = mul_f16x2(a, b), got_sum = add_f16x2(a, b);
        const uint32_t got_fma = fma_f16x2(a << 16, b << 16, c << 16) >> 16;
        const uint32_t less = fma_less_relu_f16x2(a | a << 16, b | (b ^ 0x8000) << 16, c | c << 16);
        const uint32_t want = fma_f16x2(a, b ^ 0x8000, c) & 0xFFFF;
        CHECK((less & 0xFFFF) == (want & 0x8000 ? 0 : want), "max(%04x - %04x * %04x, 0): %08x", c,
              a, b, less);
        CHECK(less >> 16 == (got_fma & 0x8000 ? 0 : got_fma), "max(%04x + %04x * %04x, 0): %08x", c,
              a, b, less);
        CHECK(add_abs_f16x2(a, b) == add_f16x2(a, b & 0x7FFF), "%04x + |%04x|", a, b);
        /* zeros may have either sign here */
        CHECK(((got_product ^ product) & (product & 0x7FFF ? 0xFFFF : 0x7FFF)) == 0,
              "%04x * %04x: %04x, want %04x", a, b, got_product, product);
        CHECK(((got_sum ^ sum) & (sum & 0x7FFF ? 0xFFFF : 0x7FFF)) == 0,
              "%04x + %04x: %04x, want %04x", a, b, got_sum, sum);
        CHECK(((got_fma ^ fma) & (fma & 0x7FFF ? 0xFFFF : 0x7FFF)) == 0,
              "%04x * %04x + %04x: %04x, want %04x", a, b, c, got_fma, fma);
    }
    CHECK(mul_f16x2(0x80000000, 0x3C000000) == 0x80000000, "-0 * 1");
    CHECK(max_f16x2(0x80007C01, 0x00003C00) == 0x00003C00, "a NaN loses, -0 < +0");
    CHECK(fma_less_relu_f16x2(0x7E013C00, 0x3C00FC00, 0x3C003C00) == 0x7FFF7C00, "a NaN stays one");
    CHECK(fma_less_relu_f16x2(0x7C003C00, 0x3C003C00, 0x7C003C00) == 0x7FFF0000,
          "Inf - Inf, 1 - 1");
}

/* Packed products: what FP32 holds, rounded once. */
static void products_bf16(void)
{
    mxt_random random = {12};
    mxt_case("bf16 products");
    for (int i = 0; i < 200000; i++) {
        const uint32_t u = (uint32_t)mxt_random_u64(&random), v = (uint32_t)mxt_random_u64(&random);
        const uint32_t got = mul_bf16x2(u, v);
        const float low = f32_bits(u << 16) * f32_bits(v << 16);
        const float high = f32_bits(u & 0xFFFF0000u) * f32_bits(v & 0xFFFF0000u);
        const uint32_t want = bf16x2_from_f32x2(low, high);
        CHECK(got == want, "%08x * %08x: %08x, want %08x", u, v, got, want);
    }
    CHECK(mul_bf16x2(0x3F813FC0, 0x3F813F81) == 0x3F823FC2, "down, and a tie to even");
    CHECK(mul_bf16x2(0x8001BF80, 0x40003F00) == 0x8002BF00, "subnormal * 2, -1 / 2");
}

/* The packed maxima against the FP32 ones, NaN apart. */
static void packed_maxima(void)
{
    mxt_random random = {11};
    mxt_case("packed maxima");
    for (int i = 0; i < 200000; i++) {
        const uint32_t u = (uint32_t)mxt_random_u64(&random), v = (uint32_t)mxt_random_u64(&random);
        const uint32_t most = max_nan_bf16x2(u, v), least = min_nan_bf16x2(u, v);
        const uint32_t bf16 = max_abs_nan_bf16x2(u, v), f16 = max_abs_nan_f16x2(u, v);
        const uint32_t least_f16 = min_nan_f16x2(u, v);
        const float a = f32_bits(u << 16), b = f32_bits(v << 16);
        const float c = f32_from_f16_high(u), d = f32_from_f16_high(v);
        if (a != a || b != b) {
            CHECK((most & 0xFFFF) == 0x7FFF && (least & 0xFFFF) == 0x7FFF, "%08x %08x", u, v);
            CHECK((bf16 & 0x7FFF) == 0x7FFF, "%08x %08x", u, v);
        } else {
            CHECK(most << 16 == bits_f32(max_f32(a, b)), "max of %08x %08x", u, v);
            CHECK(least << 16 == (bits_f32(max_f32(-a, -b)) ^ 0x80000000u), "min of %08x %08x", u,
                  v);
            CHECK((bf16 << 16 & 0x7FFFFFFF) == bits_f32(max_f32(fabsf(a), fabsf(b))),
                  "largest of %08x %08x", u, v);
        }
        if (c != c || d != d) {
            CHECK((f16 >> 16 & 0x7FFF) == 0x7FFF && least_f16 >> 16 == 0x7FFF, "%08x %08x", u, v);
        } else {
            CHECK(f32_from_f16_high(f16 & 0x7FFF0000u) == max_f32(fabsf(c), fabsf(d)),
                  "largest of %08x %08x", u, v);
            CHECK(bits_f32(f32_from_f16_high(least_f16)) ==
                      (bits_f32(max_f32(-c, -d)) ^ 0x80000000u),
                  "min of %08x %08x", u, v);
        }
    }
}

static void maxima(void)
{
    const float nan = f32_bits(0x7FC00001);
    mxt_case("maxima and bytes");
    CHECK(bits_f32(max_f32(f32_bits(0x80000000), 0)) == 0, "-0, +0");
    CHECK(bits_f32(max_f32(0, f32_bits(0x80000000))) == 0, "+0, -0");
    CHECK(max_f32(nan, -3) == -3 && max_f32(-3, nan) == -3, "a NaN loses");
    CHECK(bits_f32(max_f32(nan, nan)) == 0x7FFFFFFF, "two of them");
    CHECK(bits_f32(max_nan_f32(nan, 1)) == 0x7FFFFFFF, "a NaN wins");
    CHECK(max_abs_nan_f32(1, -2) == 2 && is_nan(max_abs_nan_f32(1, nan)), "magnitude of b");
    CHECK(max3_f32(1, nan, -1) == 1 && max3_f32(-5, -4, -6) == -4, "of three");
    CHECK(max3_abs_nan_f32(1, -7, 3) == 7 && is_nan(max3_abs_nan_f32(1, 2, nan)), "magnitudes");
    CHECK(is_nan(max3_nan_f32(nan, 1, 2)) && max3_nan_f32(1, 2, 3) == 3, "of three, NaN wins");
    CHECK(permute_bytes(0x33221100, 0x77665544, 0x7531) == 0x77553311, "bytes");
    CHECK(permute_bytes(0x000070FF, 0, 0x9810) == 0x00FF70FF, "signs");
    CHECK(permute_bytes(0x1234ABCD, 0x5678EF01, 0x5410) == 0xEF01ABCD, "low halves");
    CHECK(ceil_f32(-0.5F) == 0 && ceil_f32(2.01F) == 3 && ceil_f32(-INFINITY) == -INFINITY, "ceil");
    mxa_f32x2 x = f32x2_from(1.5F, -2), y = f32x2_from(3, 5);
    CHECK(f32x2_low(x) == 1.5F && f32x2_high(x) == -2, "two FP32");
    const mxa_f32x2 z[] = {fma_f32x2(x, y, y), mul_f32x2(x, y), add_f32x2(x, y)};
    CHECK(f32x2_low(z[0]) == 7.5F && f32x2_high(z[0]) == -5 && f32x2_low(z[1]) == 4.5F &&
              f32x2_high(z[1]) == -10 && f32x2_low(z[2]) == 4.5F && f32x2_high(z[2]) == 3,
          "arithmetic of two");
    /* rounded once: (1 + 2^-23)^2 - (1 + 2^-22) = 2^-46 */
    CHECK(fma_rn(0x1.000002p0F, 0x1.000002p0F, -0x1.000004p0F) == 0x1p-46F, "fma");
    CHECK(bits_f32(max_f32(-0.0F, 0)) == 0 && bits_f32(max_nan_f32(0, -0.0F)) == 0, "zeros");
}

/* A number of any kind: a logit, any code, halfway between two of E4M3, zeros, infinities, NaN of
 * both signs, FP32's edges. */
static float any_number(mxt_random *random)
{
    static const uint32_t edges[] = {0,          0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001,
                                     0xFFC00001, 0x00000001, 0x807FFFFF, 0xC2FC0000, 0xC2FC0001,
                                     0x42FFFFFF, 0x43000000, 0xC3800001, 0x43E80000, 0x3A800000};
    const uint64_t u = mxt_random_u64(random);
    const float x = (float)mxt_random_gaussian(random);
    switch (u & 3) {
    case 0:
        return f32_bits(edges[(u >> 8) % (sizeof edges / sizeof edges[0])]);
    case 1:
        return u & 4 ? f32_bits((uint32_t)(u >> 32))
                     : ldexpf((float)(17 + 2 * (u >> 8) % 16), (int)(u >> 16) % 18 - 13);
    default:
        return u & 4 ? x * 100 : x;
    }
}

static int equal(float a, float b)
{
    return bits_f32(a) == bits_f32(b) || (a != a && b != b);
}

/* Eight and thirty-two numbers as one by one. */
static void eights(uint64_t seed)
{
    mxt_random random = {47 + seed};
    mxt_case("eights, seed %llu", (unsigned long long)seed);
    mxa_emu_approximate(seed);
    for (int round = 0; round < 4000; round++) {
        float x[32];
        uint32_t bits[32], codes[2];
        const int plain = round & 1; /* no NaN, which would be eight that is seen */
        for (int i = 0; i < 32; i++) {
            x[i] = any_number(&random);
            x[i] = plain && x[i] != x[i] ? 0 : x[i];
            if (round % 16 == 1) { /* the largest are zeros, one of them +0 */
                x[i] = i == round % 31 ? 0 : i % 2 ? -fabsf(x[i]) : -0.0F;
            }
            bits[i] = bits_f32(x[i]);
        }
        const mxa_f32x2 b = f32x2_from(x[8], x[9]), c = f32x2_from(x[10], x[11]);
        const mxa_f32x8 eight = f32x8_bits(bits), sums = fma_f32x8(eight, b, c);
        const mxa_f32x8 powers = exp2_approx_f32x8(eight);
        const mxa_f32x8 turned = f32x8_from(f32x8_pair(eight, 3), f32x8_pair(eight, 2),
                                            f32x8_pair(eight, 1), f32x8_pair(eight, 0));
        e4m3x8_from_f32x8(eight, codes);
        float most = x[0];
        for (int i = 0; i < 32; i++) {
            most = max_nan_f32(most, x[i]);
        }
        CHECK(equal(max_nan_f32x32(bits), most), "round %d: the largest is %a", round,
              (double)most);
        for (int i = 0; i < 8; i += 2) {
            const mxa_f32x2 two = f32x8_pair(eight, i / 2), sum = f32x8_pair(sums, i / 2);
            const mxa_f32x2 power = f32x8_pair(powers, i / 2), back = f32x8_pair(turned, 3 - i / 2);
            const mxa_f32x2 larger = max_f32x2(two, b), scaled = add_exponent_f32x2(two, b);
            const float low = x[i], high = x[i + 1];
            CHECK(equal(f32x2_low(sum), fma_rn(low, x[8], x[10])) &&
                      equal(f32x2_high(sum), fma_rn(high, x[9], x[11])),
                  "round %d: fma of (%a, %a)", round, (double)low, (double)high);
            CHECK(bits_f32(f32x2_low(power)) == bits_f32(exp2_approx(low)) &&
                      bits_f32(f32x2_high(power)) == bits_f32(exp2_approx(high)),
                  "round %d: exp2 of (%a, %a)", round, (double)low, (double)high);
            CHECK(bits_f32(f32x2_low(back)) == bits[i] && bits_f32(f32x2_high(back)) == bits[i + 1],
                  "round %d: pair %d", round, i / 2);
            CHECK(equal(f32x2_low(larger), max_f32(low, x[8])) &&
                      equal(f32x2_high(larger), max_f32(high, x[9])),
                  "round %d: the larger of (%a, %a) and (%a, %a)", round, (double)low, (double)high,
                  (double)x[8], (double)x[9]);
            CHECK(bits_f32(f32x2_low(scaled)) == bits[i] + (bits[8] << 23) &&
                      bits_f32(f32x2_high(scaled)) == bits[i + 1] + (bits[9] << 23),
                  "round %d: (%08x, %08x) and exponents", round, bits[i], bits[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            const uint32_t want = e4m3x4_from_f32(x[i], x[i + 1], x[i + 2], x[i + 3]);
            CHECK(codes[i / 4] == want, "round %d: %08x, not %08x", round, codes[i / 4], want);
        }
    }
    mxa_emu_approximate(0);
}

/* fma_rn for products and sums that lie together, some of them halfway between two FP32. */
static void fused(void)
{
    mxt_random random = {43};
    mxt_case("fma");
    for (int round = 0; round < 400000; round++) {
        const uint64_t u = mxt_random_u64(&random), v = mxt_random_u64(&random);
        const uint32_t few = round & 1 ? 0xFFFFF000U : 0xFFFFFFFFU; /* bits that make ties */
        float a = f32_bits(((uint32_t)u & 0x807FFFFF & few) | 0x3F800000);
        const float b = f32_bits(((uint32_t)(u >> 32) & 0x807FFFFF & few) | 0x3F800000);
        const int e = (int)(v % 64) - 40, small = (v >> 8 & 63) == 0;
        float c = ldexpf(f32_bits(((uint32_t)(v >> 32) & 0x807FFFFF) | 0x3F800000), e);
        if (small) { /* where FP32 has no normal numbers */
            a = ldexpf(a, -130);
            c = ldexpf(c, -130);
        }
        const float y = fma_rn(a, b, c), want = fmaf(a, b, c);
        CHECK(bits_f32(y) == bits_f32(want), "%a * %a + %a: %a, not %a", (double)a, (double)b,
              (double)c, (double)y, (double)want);
    }
    CHECK(bits_f32(fma_rn(1, -1, 1)) == 0 && bits_f32(fma_rn(-0.0F, 1, -0.0F)) == 0x80000000 &&
              fma_rn(INFINITY, 2, 1) == INFINITY && is_nan(fma_rn(INFINITY, 0, 1)),
          "fma at the edges");
}

/* The bounds of the ISA, as it states them; with a seed some result must differ from the nearest.
 */
static void approximations(void)
{
    for (uint64_t seed = 0; seed <= 2; seed++) {
        mxt_random random = {41 + seed};
        double exp2_ulp = 0, log2_error = 0, tanh_error = 0, half_error = 0;
        int differs = 0;
        mxt_case("approximations, seed %llu", (unsigned long long)seed);
        for (int round = 0; round < 200000; round++) {
            const float x = (float)(mxt_random_uniform(&random) * 250 - 125);
            mxa_emu_approximate(seed);
            const float y = exp2_approx(x);
            const double exact = exp2((double)x), ulp = ldexp(1, ilogb(exact) - 23);
            exp2_ulp = fmax(exp2_ulp, fabs((double)y - exact) / ulp);
            differs += y != (float)exact;
            CHECK(y == exp2_approx(x), "exp2(%a) differs from itself", (double)x);
            const float z = (float)(mxt_random_uniform(&random) * 1.5 + 0.5);
            const mxa_f32x2 both = exp2_approx_f32x2(f32x2_from(x, z));
            CHECK(f32x2_low(both) == y && f32x2_high(both) == exp2_approx(z), "exp2 of (%a, %a)",
                  (double)x, (double)z);
            log2_error = fmax(log2_error, fabs((double)log2_approx(z) - log2((double)z)));
            const float t = (float)mxt_random_gaussian(&random);
            tanh_error = fmax(tanh_error, fabs((double)tanh_approx(t) / tanh((double)t) - 1));
        }
        for (uint32_t h = 0; h < 1U << 16; h++) {
            const float x = mxa_f16_to_f32((uint16_t)h);
            const double exact = exp2((double)x), y = (double)f32_from_f16_low(exp2_f16x2(h));
            if (is_nan(x) || exact >= 65520) {
                CHECK(is_nan(x) ? is_nan((float)y) : y == INFINITY || y == 65504, "2^%g",
                      (double)x);
            } else if (exact >= 0x1p-14) {
                half_error = fmax(half_error, fabs(y / exact - 1));
            } else {
                CHECK(fabs(y - exact) <= 0x1p-24, "2^%g is %g", (double)x, y);
            }
        }
        CHECK(exp2_ulp <= 2, "exp2 is off by %.2f ulp", exp2_ulp);
        CHECK(log2_error <= 0x1p-22, "log2 is off by %.3g", log2_error);
        CHECK(tanh_error <= 0x1p-11, "tanh is off by %.3g", tanh_error);
        CHECK(half_error <= 0x1.13p-10, "exp2 of FP16 is off by %.3g", half_error); /* 2^-9.9 */
        CHECK((differs > 0) == (seed > 0), "%d differ from the nearest", differs);
    }
    mxa_emu_approximate(3);
    CHECK(exp2_approx(0) == 1 && exp2_approx(-INFINITY) == 0 && exp2_approx(0x1p-140F) == 1,
          "exp2");
    CHECK(exp2_approx(-127) == 0 && exp2_approx(200) == INFINITY, "exp2 beyond");
    CHECK(log2_approx(0) == -INFINITY && log2_approx(0x1p-130F) == -INFINITY && log2_approx(1) == 0,
          "log2");
    const float rare[] = {0, -INFINITY, -127, 200, 0x1p-140F, 126, NAN};
    for (int i = 0; i < 7; i++) {
        const mxa_f32x2 both = exp2_approx_f32x2(f32x2_from(rare[i], 1));
        const mxa_f32x2 turned = exp2_approx_f32x2(f32x2_from(1, rare[i]));
        const uint32_t want = bits_f32(exp2_approx(rare[i]));
        CHECK(bits_f32(f32x2_low(both)) == want && bits_f32(f32x2_high(turned)) == want &&
                  f32x2_high(both) == exp2_approx(1) && f32x2_low(turned) == f32x2_high(both),
              "exp2 of a pair with %g", (double)rare[i]);
    }
    CHECK(is_nan(exp2_approx(NAN)) && is_nan(log2_approx(-1)), "NaN");
    mxa_emu_approximate(0);
}

typedef struct exp2_params {
    mxa_global results; /* 2^(-i/32) of thread i */
} exp2_params;

MXA_KERNEL(exp2_of_threads, 32, exp2_params, p)
{
    dev_store_global_f32(p.results + 4 * (uint64_t)dev_thread(),
                         exp2_approx((float)-dev_thread() * 0.03125F));
}

/* A launch chooses: the nearest numbers, or others by its seed, whatever the schedule. */
static void launches(void)
{
    static const uint64_t approximations[] = {0, 0, 7, 7, 8};
    float results[5][32];
    for (int run = 0; run < 5; run++) {
        const exp2_params p = {(mxa_global)(uintptr_t)results[run]};
        const int grid[3] = {1, 1, 1};
        mxa_emu_options options;
        mxa_emu_result result;
        mxa_emu_options_init(&options);
        options.seed = (uint64_t)run;
        options.approximations = approximations[run];
        mxt_case("launch %d", run);
        CHECK(mxa_emu_launch(&exp2_of_threads_kernel, grid, 32, 0, &p, &options, &result) == 0,
              "%s", result.text ? result.text : "");
        mxa_emu_result_free(&result);
    }
    mxt_case("launches");
    for (int i = 0; i < 32; i++) {
        CHECK(results[0][i] == (float)exp2(-i * 0.03125), "2^(-%d/32): %a", i,
              (double)results[0][i]);
    }
    CHECK(memcmp(results[0], results[1], sizeof results[0]) == 0, "nearest, under two schedules");
    CHECK(memcmp(results[2], results[3], sizeof results[0]) == 0, "one seed, two schedules");
    CHECK(memcmp(results[0], results[2], sizeof results[0]) != 0, "nearest and seed 7");
    CHECK(memcmp(results[2], results[4], sizeof results[0]) != 0, "seeds 7 and 8");
}

int main(int argc, char **argv)
{
    all = argc > 1 && strcmp(argv[1], "all") == 0;
    from_f32();
    arithmetic();
    from_narrow();
    scales();
    halves();
    products_bf16();
    packed_maxima();
    maxima();
    fused();
    eights(0);
    eights(3);
    approximations();
    launches();
    return mxt_finish();
}
