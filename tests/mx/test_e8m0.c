/* test_e8m0.c: scales: the cases from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/e8m0.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <string.h>

static uint8_t scale_of(float amax, mxattn_rounding rounding)
{
    uint32_t bits;
    memcpy(&bits, &amax, sizeof bits);
    return mxa_e8m0_from_amax(bits, MXATTN_E4M3, rounding);
}

static void check(const char *what, float amax, mxattn_rounding rounding, uint8_t want)
{
    uint8_t got = scale_of(amax, rounding);
    CHECK(got == want, "%s: amax %a gives %d, want %d", what, (double)amax, got, want);
}

static void b61_zero(void)
{
    mxt_case("B61 B81 amax 0");
    check("rceil", 0, MXATTN_RCEIL, 0);
    check("floor", 0, MXATTN_FLOOR, 0);
}

static void b65_values(void)
{
    mxt_case("B65 values of scale bytes");
    CHECK(mxa_e8m0_to_f32(0x00) == 0x1p-127F, "0x00");
    CHECK(mxa_e8m0_to_f32(0x01) == 0x1p-126F, "0x01");
    CHECK(mxa_e8m0_to_f32(0xFE) == 0x1p127F, "0xFE");
    CHECK(isnan(mxa_e8m0_to_f32(0xFF)) && isnan(mxa_e8m0_to_f64(0xFF)), "0xFF");
    CHECK(mxa_e8m0_to_f64(0x00) == 0x1p-127, "0x00 in float64");
    CHECK(mxa_fp8_decode(0x38, 0, MXATTN_E4M3) == 0x1p-127F, "1.0 under byte 0");
}

static void b68_smallest_and_largest(void)
{
    mxt_case("B68 smallest and largest amax");
    check("rceil", 0x1p-119F, MXATTN_RCEIL, 0);
    check("rceil", 0x1p-118F, MXATTN_RCEIL, 1);
    check("rceil", 0x1.fffffep127F, MXATTN_RCEIL, 247);
    check("floor", 0x1.fffffep127F, MXATTN_FLOOR, 246);
    CHECK(mxa_fp8_encode(0x1p-119F, 0, MXATTN_E4M3) == 0x78, "2^-119 under byte 0 is 256");
}

static void b79_specials(void)
{
    mxt_case("B79 NaN, infinity and the largest amax");
    check("NaN", NAN, MXATTN_RCEIL, 0xFF);
    check("NaN", NAN, MXATTN_FLOOR, 0xFF);
    check("infinity", INFINITY, MXATTN_RCEIL, 0xFE);
    check("infinity", INFINITY, MXATTN_FLOOR, 0xFE);
    uint8_t code = mxa_fp8_encode(0x1.fffffep127F, 247, MXATTN_E4M3);
    CHECK(code == 0x78, "FLT_MAX gives code 0x%02X", code);
    CHECK(isinf(mxa_fp8_decode(0x78, 247, MXATTN_E4M3)), "256 * 2^120 is infinite in FP32");
    CHECK(mxa_fp8_decode_f64(0x78, 247, MXATTN_E4M3) == 0x1p128, "and exact in float64");
    CHECK(mxa_fp8_encode(INFINITY, 0xFE, MXATTN_E4M3) == 0x7E, "+infinity saturates");
    CHECK(mxa_fp8_encode(-INFINITY, 0xFE, MXATTN_E5M2) == 0xFB, "-infinity saturates");
    CHECK(mxa_fp8_encode(1, 0xFF, MXATTN_E4M3) == 0x7F, "under a NaN scale");
}

static void b83_floor_clips(void)
{
    mxt_case("B83 amax 960");
    check("floor", 960, MXATTN_FLOOR, 128);
    check("rceil", 960, MXATTN_RCEIL, 129);
    CHECK(mxa_fp8_encode(957, 128, MXATTN_E4M3) == 0x7E, "957 under byte 128");
    CHECK(mxa_fp8_decode(0x7E, 128, MXATTN_E4M3) == 896, "0x7E under byte 128");
    CHECK(mxa_fp8_encode(957, 129, MXATTN_E4M3) == 0x77, "957 under byte 129");
    CHECK(mxa_fp8_decode(0x77, 129, MXATTN_E4M3) == 960, "0x77 under byte 129");
}

static void b84_modes(void)
{
    mxt_case("B84 modes by name");
    check("rceil", 150, MXATTN_RCEIL, 126);
    check("floor", 150, MXATTN_FLOOR, 126);
    check("rceil", 448, MXATTN_RCEIL, 127);
    check("rceil", nextafterf(448, INFINITY), MXATTN_RCEIL, 128);
    check("floor", 448, MXATTN_FLOOR, 127);
}

static void b86_no_logarithm(void)
{
    mxt_case("B86 next to a power of two");
    check("rceil", 448 * 0x1.000002p20F, MXATTN_RCEIL, 148);
    check("rceil", 448 * 0x1p20F, MXATTN_RCEIL, 147);
    check("floor", 0x1.000002p20F, MXATTN_FLOOR, 139);
    check("floor", nextafterf(0x1p10F, 0), MXATTN_FLOOR, 128);
    check("floor", 0x1p10F, MXATTN_FLOOR, 129);
}

static void b87_below_one(void)
{
    mxt_case("B87 scales below 1");
    check("rceil: 0.3 needs 2^-1", 0.3F * 448, MXATTN_RCEIL, 126);
    check("floor: 0.3 has 2^-2", 0.3F * 256, MXATTN_FLOOR, 125);
}

static void b88_source_types(void)
{
    static const float values[] = {1.5F, 3.0F, 6.0F, 3.5F, 7.0F};
    static const uint8_t rceil[] = {119, 120, 121, 120, 121};
    mxt_case("B88 the source type does not matter");
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        check("f32", values[i], MXATTN_RCEIL, rceil[i]);
        check("bf16", mxa_bf16_to_f32(mxa_bf16_from_f32(values[i])), MXATTN_RCEIL, rceil[i]);
        check("f16", mxa_f16_to_f32(mxa_f16_from_f32(values[i])), MXATTN_RCEIL, rceil[i]);
    }
}

int main(void)
{
    b61_zero();
    b65_values();
    b68_smallest_and_largest();
    b79_specials();
    b83_floor_clips();
    b84_modes();
    b86_no_logarithm();
    b87_below_one();
    b88_source_types();
    return mxt_finish();
}
