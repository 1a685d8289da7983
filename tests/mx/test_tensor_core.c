/* test_tensor_core.c: the tensor core's sum against hand-made cases and float64.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fill.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/tensor_core.h"
#include "report.h"

#include <math.h>
#include <string.h>

enum { K8 = 32, K16 = 16 };

static const mxa_tensor_core_step hopper = {MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3,
                                            K8};
static const mxa_tensor_core_step blackwell = {MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, MXATTN_E4M3,
                                               K8};
static const mxa_tensor_core_step exact = {MXA_TENSOR_CORE_EXACT, MXATTN_E4M3, MXATTN_E4M3, K8};

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float value(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Up to four products of E4M3 values at scales a and b. */
static uint32_t sum(const mxa_tensor_core_step *step, const float *a, const float *b, int count,
                    uint8_t scale_a, uint8_t scale_b, float c)
{
    uint8_t x[K8] = {0}, y[K8] = {0};
    for (int k = 0; k < count; k++) {
        x[k] = mxa_e4m3_from_f32(a[k]);
        y[k] = mxa_e4m3_from_f32(b[k]);
    }
    return mxa_tensor_core_f32(step, x, y, scale_a, scale_b, bits(c));
}

static void check(const char *what, uint32_t got, uint32_t want)
{
    CHECK(got == want, "%s: got %08x (%a), want %08x (%a)", what, got, (double)value(got), want,
          (double)value(want));
}

static void truncation(void)
{
    static const float big[] = {256, 0x1p-9F}, ones[] = {1, 1};
    static const float opposed[] = {256, 0x1p-9F, -256}, three[] = {1, 1, 1};
    mxt_case("small terms beside a large one");
    /* 2^8 fixes the grid: 2^(8 - 13) on Hopper, 2^(8 - 25) on Blackwell. */
    check("hopper drops 2^-9", sum(&hopper, big, ones, 2, 127, 127, 0), bits(256));
    check("blackwell keeps 2^-9", sum(&blackwell, big, ones, 2, 127, 127, 0), bits(256 + 0x1p-9F));
    check("hopper: gone though 256 cancels", sum(&hopper, opposed, three, 3, 127, 127, 0), 0);
    check("blackwell: what is left", sum(&blackwell, opposed, three, 3, 127, 127, 0),
          bits(0x1p-9F));
    /* C fixes the grid too. */
    check("blackwell under a large C", sum(&blackwell, big + 1, ones, 1, 127, 127, 0x1p17F),
          bits(0x1p17F));
    check("C truncated, not rounded", sum(&hopper, big, ones, 1, 127, 127, -0x1.ffffp-6F),
          bits(256));
    check("toward zero", sum(&hopper, big, ones, 1, 127, 127, -0x1.8p-5F), bits(256 - 0x1p-5F));
    static const float far[] = {256, 0x1p-9F, -256}, near[] = {256, 1, 256};
    check("blackwell keeps 2^-9 beside 2^16", sum(&blackwell, far, near, 3, 127, 127, 0),
          bits(0x1p-9F));
    static const float farther[] = {-256, 0x1p-9F, -256};
    check("and drops it beside 2^17", sum(&blackwell, farther, near, 3, 127, 127, 0x1p17F), 0);
    mxt_case("results");
    check("hopper keeps 13 fraction bits", sum(&hopper, big, ones, 1, 127, 127, 0x1p13F - 1),
          bits(0x1p13F + 255));
    check("and truncates the fourteenth", sum(&hopper, big, ones, 1, 127, 127, 0x1p14F - 1),
          bits(0x1p14F + 254));
    check("exact rounds to nearest", sum(&exact, big, ones, 1, 127, 127, 0x1.ffffffp0F), bits(258));
    static const float tie[] = {64, 0x1p-9F}, tie_by[] = {1, 0x1p-9F},
                       long_tie_by[] = {128, 0x1p-9F};
    check("a tie to even", sum(&exact, tie, tie_by, 2, 127, 127, 0), bits(64));
    check("a little more", sum(&exact, tie, tie_by, 2, 127, 127, 0x1p-149F), bits(64 + 0x1p-17F));
    check("a little less", sum(&exact, tie, tie_by, 2, 127, 127, -0x1p-149F), bits(64));
    check("2^31 + 2^7 + 2^-26", sum(&exact, big, long_tie_by, 2, 127 - 8, 127, 0x1p31F),
          bits(0x1p31F + 0x1p8F));
    check("exact", sum(&exact, opposed, three, 3, 127, 127, 0x1p-149F), bits(0x1p-9F));
}

static void scales(void)
{
    static const float one[] = {1}, third[] = {1.5F};
    mxt_case("scale bytes");
    for (int a = 0; a <= 254; a++) {
        for (int b = 0; b <= 254; b++) {
            const uint32_t got = sum(&blackwell, one, third, 1, (uint8_t)a, (uint8_t)b, 0);
            const double want = ldexp(1.5, a + b - 254);
            /* 1.5 * 2^-149 is cut to 2^-149, what is less is 0, what is beyond is infinite. */
            const double cut = want >= 0x1p128 ? INFINITY : floor(ldexp(want, 149)) * 0x1p-149;
            const float expected = want < 0x1p-100   ? (float)cut
                                   : want >= 0x1p128 ? INFINITY
                                                     : (float)want;
            CHECK(got == bits(expected), "scales %d, %d: got %a, want %a", a, b, (double)value(got),
                  (double)expected);
        }
    }
    check("NaN scale of a", sum(&blackwell, one, one, 1, 0xFF, 127, 0), MXA_TENSOR_CORE_NAN);
    check("NaN scale of b, zero data", sum(&blackwell, one, one, 0, 127, 0xFF, 0),
          MXA_TENSOR_CORE_NAN);
    check("a scaled product under C", sum(&blackwell, one, one, 1, 127 + 20, 127, 0x1p-6F),
          bits(0x1p20F)); /* 2^-6 is below 2^(20 - 25) */
    check("and just above", sum(&blackwell, one, one, 1, 127 + 18, 127, 0x1.8p-6F),
          bits(0x1p18F + 0x1p-5F - 0x1p-5F)); /* kept in the sum, cut by FP32 */
}

static void specials(void)
{
    const mxa_tensor_core_step e5m2 = {MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E5M2, MXATTN_E5M2, K8};
    uint8_t a[K8] = {0}, b[K8] = {0};
    mxt_case("NaN, infinity, zero");
    a[3] = 0x7F;
    check("E4M3 NaN * 0", mxa_tensor_core_f32(&hopper, a, b, 127, 127, 0), MXA_TENSOR_CORE_NAN);
    a[3] = 0x80;
    check("-0 * 0", mxa_tensor_core_f32(&hopper, a, b, 127, 127, 0x80000000), 0);
    check("C NaN", mxa_tensor_core_f32(&hopper, a, b, 127, 127, 0xFFC00000), MXA_TENSOR_CORE_NAN);
    check("C -inf", mxa_tensor_core_f32(&hopper, a, b, 127, 127, 0xFF800000), 0xFF800000);
    a[0] = 0x7C; /* E5M2 infinity */
    check("inf * 0", mxa_tensor_core_f32(&e5m2, a, b, 127, 127, 0), MXA_TENSOR_CORE_NAN);
    b[0] = 0xBC; /* -1 */
    check("inf * -1", mxa_tensor_core_f32(&e5m2, a, b, 127, 127, bits(5)), 0xFF800000);
    check("-inf + inf", mxa_tensor_core_f32(&e5m2, a, b, 127, 127, 0x7F800000),
          MXA_TENSOR_CORE_NAN);
    CHECK(mxa_tensor_core_f16(&e5m2, a, b, 0) == 0xFC00, "FP16 result of -inf");
    a[0] = b[0] = 0x7E;
    CHECK(mxa_tensor_core_f16(&e5m2, a, b, 0) == MXA_TENSOR_CORE_NAN_F16, "FP16 NaN");
    a[0] = b[0] = 0x7B; /* 57344^2 = 0x1.88p31 */
    CHECK(mxa_tensor_core_f16(&e5m2, a, b, 0) == 0x7C00, "beyond FP16");
    check("57344^2", mxa_tensor_core_f32(&e5m2, a, b, 127, 127, 0), bits(0x1.88p31F));
    a[0] = b[0] = 1; /* 2^-16 squared */
    check("subnormals", mxa_tensor_core_f32(&e5m2, a, b, 127, 127, 0), bits(0x1p-32F));
}

/* The largest exponent of a value's type that is no larger than the value; subnormals share one. */
static int exponent_of(double x, int smallest)
{
    int e;
    (void)frexp(x, &e);
    return e - 1 < smallest ? smallest : e - 1;
}

/* The definition in float64, whose 53 bits hold each step exactly for the inputs used. */
static double definition(const mxa_tensor_core_step *step, const double *a, const double *b,
                         int smallest, int scale, double c, int c_smallest, int *largest)
{
    const int f = mxa_tensor_core_fraction_bits(step->core);
    double total = 0;
    *largest = c == 0 ? -100000 : exponent_of(c, c_smallest);
    for (int k = 0; k < step->count; k++) {
        if (a[k] * b[k] != 0) {
            const int e = exponent_of(a[k], smallest) + exponent_of(b[k], smallest) + scale;
            *largest = e > *largest ? e : *largest;
        }
    }
    if (*largest == -100000) {
        return 0;
    }
    for (int k = 0; k < step->count; k++) {
        total += trunc(ldexp(a[k] * b[k], scale + f - *largest));
    }
    return total + trunc(ldexp(c, f - *largest));
}

static float toward_zero(double total, int unit, int fraction)
{
    if (total == 0) {
        return 0;
    }
    const int grid = exponent_of(ldexp(total, unit), -126) - fraction;
    return (float)ldexp(trunc(ldexp(total, unit - grid)), grid);
}

/* A code of the type; seldom NaN or infinite. */
static uint32_t random_code(mxt_random *random, mxattn_dtype dtype, double *out)
{
    for (;;) {
        const int width = 8 * mxa_dtype_bytes(dtype);
        uint16_t code = (uint16_t)(mxt_random_u64(random) >> (64 - width));
        if (dtype == MXATTN_BF16) { /* so that float64 holds the sum */
            code = (uint16_t)((code & 0x83FF) | 0x3E00);
        }
        uint8_t byte = (uint8_t)code;
        const float x = width == 8 ? mxa_load(&byte, dtype, 0) : mxa_load(&code, dtype, 0);
        if (isfinite(x)) {
            *out = (double)x;
            return code;
        }
    }
}

static void random_sums(void)
{
    static const struct {
        mxa_tensor_core_step step;
        int smallest;
    } kinds[] = {
        {{MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3, K8}, -6},
        {{MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E5M2, MXATTN_E5M2, K8}, -14},
        {{MXA_TENSOR_CORE_HOPPER_16, MXATTN_F16, MXATTN_F16, K16}, -14},
        {{MXA_TENSOR_CORE_HOPPER_16, MXATTN_BF16, MXATTN_BF16, K16}, -126},
        {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, MXATTN_E4M3, K8}, -6},
        {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E5M2, MXATTN_E5M2, K8}, -14},
        {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_BF16, MXATTN_BF16, K16}, -126},
    };
    mxt_random random = {11};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const mxa_tensor_core_step *step = &kinds[i].step;
        const int smallest = kinds[i].smallest;
        mxt_case("random sums, core %d, %s", (int)step->core, mxa_dtype_name(step->a_type));
        for (int round = 0; round < 4000; round++) {
            uint8_t a8[K8], b8[K8];
            uint16_t a16[K16], b16[K16];
            double a[K8], b[K8];
            for (int k = 0; k < step->count; k++) {
                const uint32_t x = random_code(&random, step->a_type, &a[k]);
                const uint32_t y = random_code(&random, step->b_type, &b[k]);
                if (step->count == K8) {
                    a8[k] = (uint8_t)x;
                    b8[k] = (uint8_t)y;
                } else {
                    a16[k] = (uint16_t)x;
                    b16[k] = (uint16_t)y;
                }
            }
            const void *at = step->count == K8 ? (void *)a8 : (void *)a16;
            const void *bt = step->count == K8 ? (void *)b8 : (void *)b16;
            int scale_a = 127, scale_b = 127, unit;
            if (step->core == MXA_TENSOR_CORE_BLACKWELL && step->count == K8) {
                scale_a = (int)mxt_random_int(&random, 0, 254);
                scale_b = (int)mxt_random_int(&random, 0, 254);
            }
            const int scale = scale_a + scale_b - 254;
            float c = (float)ldexp(mxt_random_gaussian(&random),
                                   scale + (int)mxt_random_int(&random, -30, 40));
            c = round % 8 == 0 || !isfinite(c) ? 0 : c;
            const uint32_t got =
                mxa_tensor_core_f32(step, at, bt, (uint8_t)scale_a, (uint8_t)scale_b, bits(c));
            double total = definition(step, a, b, smallest, scale, (double)c, -126, &unit);
            unit -= mxa_tensor_core_fraction_bits(step->core);
            const float want = toward_zero(total, unit, mxa_tensor_core_result_bits(step->core));
            CHECK(value(got) == want, "round %d: got %a, want %a", round, (double)value(got),
                  (double)want);
            uint16_t half = mxa_f16_from_f32((float)mxt_random_gaussian(&random) * 64);
            const uint16_t got16 = mxa_tensor_core_f16(step, at, bt, half);
            total = definition(step, a, b, smallest, 0, (double)mxa_f16_to_f32(half), -14, &unit);
            const double want16 =
                mxa_round_f16(ldexp(total, unit - mxa_tensor_core_fraction_bits(step->core)));
            CHECK((double)mxa_f16_to_f32(got16) == want16, "round %d: FP16 got %a, want %a", round,
                  (double)mxa_f16_to_f32(got16), want16);
        }
    }
}

/* Products of E4M3 add exactly in float64; the exact core rounds that once. */
static void exact_sums(void)
{
    mxt_random random = {12};
    mxt_case("exact sums");
    for (int round = 0; round < 4000; round++) {
        uint8_t a[K8], b[K8];
        double x, y, total = 0;
        for (int k = 0; k < K8; k++) {
            a[k] = (uint8_t)random_code(&random, MXATTN_E4M3, &x);
            b[k] = (uint8_t)random_code(&random, MXATTN_E4M3, &y);
            total += x * y;
        }
        const float c = (float)mxt_random_int(&random, -1000, 1000) * 0x1p-18F;
        const uint32_t got = mxa_tensor_core_f32(&exact, a, b, 127, 127, bits(c));
        CHECK(value(got) == (float)(total + (double)c), "round %d: got %a, want %a", round,
              (double)value(got), total + (double)c);
        const uint32_t far = mxa_tensor_core_f32(&exact, a, b, 127 - 60, 127, bits(1));
        CHECK(value(far) == 1, "round %d: %a beside 1", round, (double)value(far));
    }
}

int main(void)
{
    truncation();
    scales();
    specials();
    random_sums();
    exact_sums();
    return mxt_finish();
}
