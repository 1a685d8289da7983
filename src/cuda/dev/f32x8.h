/* f32x8.h: eight FP32 as four pairs, thirty-two registers of them: groups of math.h's and
 * convert.h's.
 *
 * WHY groups: they are one vector where the machine that emulates has vectors of eight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_F32X8_H
#define MXA_CUDA_DEV_F32X8_H

#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"

#if defined(__CUDACC__) || !defined(MXA_EMU_F32X2)

typedef struct mxa_f32x8 {
    mxa_f32x2 pair[4];
} mxa_f32x8;

MXA_DEVICE mxa_f32x2 f32x8_pair(mxa_f32x8 x, int i)
{
    return x.pair[i];
}

MXA_DEVICE mxa_f32x8 f32x8_from(mxa_f32x2 a, mxa_f32x2 b, mxa_f32x2 c, mxa_f32x2 d)
{
    mxa_f32x8 y;
    y.pair[0] = a;
    y.pair[1] = b;
    y.pair[2] = c;
    y.pair[3] = d;
    return y;
}

/* The FP32 that eight registers hold. */
MXA_DEVICE mxa_f32x8 f32x8_bits(const uint32_t *x)
{
    return f32x8_from(
        f32x2_from(f32_bits(x[0]), f32_bits(x[1])), f32x2_from(f32_bits(x[2]), f32_bits(x[3])),
        f32x2_from(f32_bits(x[4]), f32_bits(x[5])), f32x2_from(f32_bits(x[6]), f32_bits(x[7])));
}

/* a times b's pair plus c's, pair by pair. */
MXA_DEVICE mxa_f32x8 fma_f32x8(mxa_f32x8 a, mxa_f32x2 b, mxa_f32x2 c)
{
    return f32x8_from(fma_f32x2(a.pair[0], b, c), fma_f32x2(a.pair[1], b, c),
                      fma_f32x2(a.pair[2], b, c), fma_f32x2(a.pair[3], b, c));
}

MXA_DEVICE mxa_f32x8 exp2_approx_f32x8(mxa_f32x8 x)
{
    return f32x8_from(exp2_approx_f32x2(x.pair[0]), exp2_approx_f32x2(x.pair[1]),
                      exp2_approx_f32x2(x.pair[2]), exp2_approx_f32x2(x.pair[3]));
}

/* The largest of the FP32 that 32 registers hold; a NaN wins. */
MXA_DEVICE float max_nan_f32x32(const uint32_t *x)
{
    float most = max_nan_f32(f32_bits(x[0]), f32_bits(x[1]));
    MXA_UNROLL
    for (int i = 2; i < 32; i += 2) {
        most = max3_nan_f32(most, f32_bits(x[i]), f32_bits(x[i + 1]));
    }
    return most;
}

/* Eight FP32 to E4M3 bytes, the first four in the first word. */
MXA_DEVICE void e4m3x8_from_f32x8(mxa_f32x8 x, uint32_t *to)
{
    to[0] = e4m3x4_from_f32(f32x2_low(x.pair[0]), f32x2_high(x.pair[0]), f32x2_low(x.pair[1]),
                            f32x2_high(x.pair[1]));
    to[1] = e4m3x4_from_f32(f32x2_low(x.pair[2]), f32x2_high(x.pair[2]), f32x2_low(x.pair[3]),
                            f32x2_high(x.pair[3]));
}

#else
#include "emu/f32x8.h"
#endif
#endif
