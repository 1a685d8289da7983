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

/* 2^(i/64) */
static const double roots[64] = {
    0x1.0000000000000p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
    0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
    0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
    0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
    0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
    0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
    0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
    0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5585p+0, 0x1.6623882552225p+0,
    0x1.6a09e667f3bcdp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
    0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce13p+0, 0x1.868d99b4492edp+0,
    0x1.8ace5422aa0dbp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
    0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255dp+0, 0x1.a9e6b5579fdbfp+0,
    0x1.ae89f995ad3adp+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
    0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
    0x1.d5818dcfba487p+0, 0x1.da9e603db3285p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
    0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0,
};

/* 2^x within 2^-52 of its value, a third of the C library's time. x is i/64 + r, |r| <= 1/128, and
 * 2^r its Taylor series. */
static double power_of_two(double x)
{
    const double shift = 0x1.8p46; /* its last bit is worth 1/64 */
    const double nearest = x + shift;
    int64_t i;
    memcpy(&i, &nearest, sizeof i);
    const double r = (x - (nearest - shift)) * 0x1.62e42fefa39efp-1;
    const double high = 1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720)));
    const double root = roots[i & 63], y = root + root * (r + r * r * (0.5 + r * high));
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (uint64_t)(i >> 6) << 52;
    double scaled;
    memcpy(&scaled, &bits, sizeof scaled);
    return scaled;
}

float mxa_emu_exp2(float x)
{
    x = flush(x);
    if (!(fabsf(x) < 200)) {
        return x != x ? f32_bits(0x7FFFFFFF) : x > 0 ? INFINITY : 0;
    }
    const float y = (float)power_of_two((double)x);
    return flush(mxa_emu_approximation_seed ? deviate(y, bits_f32(x)) : y);
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
