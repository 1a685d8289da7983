/* math.c: approximations as exact as can be, or as wrong as the ISA allows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/math.h"

_Thread_local uint64_t mxa_emu_approximation_seed;

/* -1, 0 or 1 with a seed, else 0; the same for the same argument. */
static int deviation(uint32_t argument)
{
    if (mxa_emu_approximation_seed == 0) {
        return 0;
    }
    uint64_t h = (mxa_emu_approximation_seed ^ argument) * 0x9E3779B97F4A7C15;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9;
    return (int)((h >> 40) % 3) - 1;
}

static float flush(float x)
{
    return fabsf(x) < 0x1p-126F ? copysignf(0.0F, x) : x;
}

/* A finite result and its neighbours: within 1.5 of the 2 ulp that the ISA allows. */
static float deviate(float y, uint32_t argument)
{
    if (y == 0 || y == 1 || !isfinite(y)) {
        return y;
    }
    const uint32_t bits = bits_f32(y) + (uint32_t)deviation(argument);
    return isfinite(f32_bits(bits)) ? f32_bits(bits) : y;
}

float mxa_emu_exp2(float x)
{
    x = flush(x);
    return flush(deviate((float)exp2((double)x), bits_f32(x)));
}

/* Absolute error below 2^-22 for arguments in (0.5, 2), 2 ulp elsewhere. */
float mxa_emu_log2(float x)
{
    x = flush(x);
    if (x == 0) {
        return -INFINITY;
    }
    return deviate((float)log2((double)x), bits_f32(x));
}

/* Relative error 2^-11. */
float mxa_emu_tanh(float x)
{
    const float y = (float)tanh((double)x);
    return (float)((double)y * (1 + deviation(bits_f32(x)) * 0x1p-12));
}

/* Relative error 2^-9.9: the nearest FP16 or the next one on the other side. */
uint16_t mxa_emu_exp2_f16(uint16_t x)
{
    const double exact = exp2((double)mxa_emu_f32_of_f16(x));
    const uint32_t nearest = mxa_emu_f16_of_f64(exact);
    const double error = exact - (double)mxa_emu_f32_of_f16(nearest);
    if (!isfinite(error) || error == 0 || nearest == 0x7C00 || deviation(x) == 0) {
        return (uint16_t)nearest;
    }
    const uint32_t other = error > 0 ? nearest + 1 : nearest - 1;
    return (uint16_t)(other < 0x7C00 ? other : nearest);
}
