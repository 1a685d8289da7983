/* test_forward_exp2.c: 2^x by a cubic, as the Hopper forward makes some of P, against exact
 * powers; the largest error is the one that docs/numerics.md states.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm90/forward_softmax.h"
#include "report.h"

#include <math.h>
#include <stdio.h>

/* 2^(s * scale - m) of a pair whose other half is `other`. */
static float power(uint32_t s, uint32_t other, float scale, float m)
{
    const uint32_t above = add_f16x2(f16x2_from_f32(m), 0x49804980);
    const uint32_t pair = forward_exp2_f16(s | other << 16, f16x2_from_f32(scale), above);
    const uint32_t turned = forward_exp2_f16(s << 16 | other, f16x2_from_f32(scale), above);
    CHECK((pair & 0xFFFF) == turned >> 16, "%04x beside %04x: %08x, %08x", s, other, pair, turned);
    return f32_from_f16_low(pair);
}

/* NaN, and every FP16 score that the bound of FP16 scores lets in: |x| is at most twice 2^7, and
 * what a maximum is raised by. */
static void powers(float scale, float m, uint32_t other)
{
    const double rounded = (double)f32_from_f16_low(f16x2_from_f32(scale));
    double error = 0;
    mxt_case("2^(s * %g - %g)", (double)scale, (double)m);
    for (uint32_t s = 0; s < 1U << 16; s++) {
        const float score = f32_from_f16_low(s), y = power(s, other, scale, m);
        const double x = (double)score * rounded - (double)m, exact = exp2(x);
        if (score != score) {
            CHECK(y != y, "s %04x: %g, not NaN", s, (double)y);
        } else if (fabs(x) > 264) {
            continue;
        } else if (x < -19.52) {
            CHECK(y == 0, "2^%g is %g", x, (double)y);
        } else if (x >= 10.51) {
            CHECK(y == INFINITY, "2^%g is %g", x, (double)y);
        } else if (x >= -14 && x < 10.49) {
            error = fmax(error, fabs((double)y / exact - 1));
        } else if (x < -14) {
            CHECK(fabs((double)y - exact) <= 0x1.8p-20, "2^%g is %g", x, (double)y);
        }
    }
    (void)printf("relative error %.2e\n", error);
    CHECK(error <= 0.00075, "relative error %.3e", error);
}

int main(void)
{
    static const uint32_t others[] = {0, 0x7C00, 0xFC00, 0x7E00, 0x4248};
    static const float maxima[] = {0, 3, -4, 40, -100};
    static const float scales[] = {1, 0.5F, 0.0123F, 0.0361F, 0.27F};
    for (int i = 0; i < 5; i++) {
        powers(scales[i], maxima[i], others[i] == 0x7E00 ? 0 : others[i]);
    }
    mxt_case("beside a NaN");
    const uint32_t pair = forward_exp2_f16(0x7E000000, 0x3C003C00, 0x49804980);
    CHECK((pair >> 16 & 0x7FFF) > 0x7C00 && (pair & 0xFFFF) == 0x3C00, "%08x", pair);
    return mxt_finish();
}
