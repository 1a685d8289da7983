/* block.h: the scale of a block, and its elements in FP8: docs/format.md, on Blackwell.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_BLOCK_H
#define MXA_CUDA_SM100_BLOCK_H

#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"

/* E8M0 byte of a block whose largest magnitude is amax (not negative, or NaN).
 * rceil: the smallest 2^e with amax / 2^e <= 1.75 * 2^range. WHY the subtraction: less 0.75 of its
 * binade, amax's exponent rounded up is the exponent plus 1 exactly where the mantissa is beyond
 * 1.75; a division by 1.75 would have to be correctly rounded to say the same. WHY the half: the
 * conversion ends at 0xFE, one short of the last binade rounded up; what halving loses of
 * subnormals is far below the range. */
MXA_DEVICE uint32_t block_scale_byte(float amax, int e5m2, int floor_rule)
{
    const uint32_t bits = bits_f32(amax), range = e5m2 ? 15 : 8;
    const float less = f32_bits(bits < 0x600000u ? 0 : bits - 0x600000u);
    const uint32_t half = 0xFFu & (floor_rule ? e8m0x2_floor_from_f32x2(mul_rn(amax, 0.5f), 0.0f)
                                              : e8m0x2_ceil_from_f32x2(mul_rn(less, 0.5f), 0.0f));
    const uint32_t byte = half + 1 < range ? 0 : half + 1 - range;
    return bits > 0x7F800000u ? 255 : bits == 0x7F800000u ? 254 : byte;
}

/* 2^(127 - byte): a product with it rounds only what FP8 holds as 0. */
MXA_DEVICE float block_inverse(uint32_t byte)
{
    return f32_bits(byte >= 254 ? 0x00400000u : (254 - byte) << 23);
}

/* Four elements of a block in FP8, x[0] in the lowest byte; all NaN where the scale is. */
MXA_DEVICE uint32_t block_codes(const float *x, const float *inverse, uint32_t byte, int e5m2)
{
    float a = mul_rn(x[0], inverse[0]), b = mul_rn(x[1], inverse[1]);
    float c = mul_rn(x[2], inverse[2]), d = mul_rn(x[3], inverse[3]);
    uint32_t codes = e5m2 ? e5m2x4_from_f32(a, b, c, d) : e4m3x4_from_f32(a, b, c, d);
    return byte == 255 ? 0x7F7F7F7Fu : codes;
}

#endif
