/* e8m0.c: power-of-two scales and the arithmetic of one block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/e8m0.h"

#include "mx/element.h"

#include <math.h>
#include <string.h>

float mxa_e8m0_to_f32(uint8_t scale)
{
    uint32_t bits = scale == MXA_SCALE_NAN ? 0x7FC00000
                    : scale == 0           ? 0x00400000
                                           : (uint32_t)scale << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double mxa_e8m0_to_f64(uint8_t scale)
{
    return scale == MXA_SCALE_NAN ? (double)NAN : ldexp(1.0, scale - 127);
}

uint8_t mxa_fp8_encode(float x, uint8_t scale, mxattn_dtype dtype)
{
    if (scale == MXA_SCALE_NAN) {
        return MXA_FP8_NAN;
    }
    if (!mxa_f32_is_finite(x)) {
        return dtype == MXATTN_E5M2 ? mxa_e5m2_from_f32(x) : mxa_e4m3_from_f32(x);
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent;
    uint32_t significand = mxa_split_f32(x, &exponent);
    uint32_t code = mxa_round_code(significand, exponent - (scale - 127), dtype);
    return (uint8_t)(bits >> 31 << 7 | code);
}

/* 1 for codes that stand for no finite value. */
static int code_is_special(uint8_t code, mxattn_dtype dtype)
{
    return dtype == MXATTN_E5M2 ? (code & 0x7F) >= 0x7C : (code & 0x7F) == 0x7F;
}

float mxa_fp8_decode(uint8_t code, uint8_t scale, mxattn_dtype dtype)
{
    if (scale == MXA_SCALE_NAN) {
        return mxa_e8m0_to_f32(scale);
    }
    if (code_is_special(code, dtype)) {
        return mxa_load(&code, dtype, 0);
    }
    int exponent;
    uint32_t significand = mxa_split_code(code & 0x7F, dtype, &exponent);
    uint32_t bits = (uint32_t)(code >> 7) << 31 |
                    mxa_round_code(significand, exponent + scale - 127, MXATTN_F32);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double mxa_fp8_decode_f64(uint8_t code, uint8_t scale, mxattn_dtype dtype)
{
    return mxa_f32_to_f64(mxa_load(&code, dtype, 0)) * mxa_e8m0_to_f64(scale);
}
