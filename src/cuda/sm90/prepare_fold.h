/* prepare_fold.h: exponents of blocks and of folds, and rounding to a block (docs/format.md).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_FOLD_H
#define MXA_CUDA_SM90_PREPARE_FOLD_H

#include "cuda/common/load.h"
#include "cuda/dev/barrier.h"

#define NOT_FINITE 0x7F800000u

MXA_DEVICE uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

MXA_DEVICE uint32_t warp_max(uint32_t x)
{
    for (int mask = 1; mask < 32; mask <<= 1) {
        x = max_u32(x, shuffle_xor_u32(x, mask));
    }
    return x;
}

MXA_DEVICE float fold_abs(float x)
{
    return f32_bits(bits_f32(x) & 0x7FFFFFFFu);
}

/* Bits of the largest magnitude of `count` values; above NOT_FINITE when one is NaN. */
MXA_DEVICE uint32_t largest(const float *x, int count)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        top = max_abs_nan_f32(top, x[i]);
    }
    return bits_f32(top);
}

/* E8M0 byte of a block of E4M3: docs/format.md, rounding. */
MXA_DEVICE uint32_t scale_byte(uint32_t amax, int floor_rule)
{
    if (amax > NOT_FINITE) {
        return 255;
    }
    if (amax == NOT_FINITE) {
        return 254;
    }
    int byte = (int)(amax >> 23) - 8 + (!floor_rule && (amax & 0x7FFFFF) > 0x600000);
    return byte < 0 ? 0 : (uint32_t)byte;
}

/* 2^-exponent, exponent in [-127, 127]: a product with it rounds only what E4M3 holds as 0. */
MXA_DEVICE float inverse_power(int exponent)
{
    return load_power((uint32_t)(127 - exponent));
}

/* Smallest exponent e with amax / 2^e <= 1.75 * 2^8 (v), or <= 1.875 * 2^3 = 15 (q, k). */
MXA_DEVICE int fold_exponent(uint32_t amax, int is_v)
{
    int e = (int)(amax >> 23) - 127;
    e += is_v ? -8 + ((amax & 0x7FFFFF) > 0x600000) : -3 + ((amax & 0x7FFFFF) > 0x700000);
    return e < -126 ? -126 : e;
}

/* A block's exponent, and the factor onto E4M3's range; *most is its largest magnitude after
 * rounding: rounding keeps order, so that is its largest value's. */
MXA_DEVICE int block_scale(uint32_t amax, int floor_rule, float *inverse, uint32_t *most)
{
    uint32_t byte = scale_byte(amax, floor_rule);
    int exponent = (int)byte - 127;
    *inverse = byte == 255 ? f32_bits(0x7FC00000u) : inverse_power(exponent);
    float top = mul_rn(f32_bits(amax), *inverse);
    float code = f32_from_f16_low(f16x2_from_fp8x2(e4m3x4_from_f32(top, top, top, top), 0));
    *most = bits_f32(mul_rn(code, load_power(byte))) & 0x7FFFFFFFu;
    return exponent;
}

/* 2^(from - to) in both halves. WHY at most 2^15: only zeros have a scale that far above the
 * group's, and they must stay zeros. */
MXA_DEVICE uint32_t fold_factor(int from, int to)
{
    int shift = from - to;
    shift = shift < -126 ? -126 : shift > 15 ? 15 : shift;
    return f16x2_from_f32(f32_bits((uint32_t)(shift + 127) << 23));
}

/* Four codes times a factor, in FP16. */
MXA_DEVICE void codes_widen(uint32_t word, uint32_t factor, uint32_t *h)
{
    h[0] = mul_f16x2(f16x2_from_e4m3x2_low(word), factor);
    h[1] = mul_f16x2(f16x2_from_e4m3x2_high(word), factor);
}

/* Eight values as E4M3 codes of a block, held in FP16. */
MXA_DEVICE void block_round(const float *x, float inverse, uint32_t *h)
{
    MXA_UNROLL
    for (int j = 0; j < 8; j += 4) {
        uint32_t codes = e4m3x4_from_f32(mul_rn(x[j], inverse), mul_rn(x[j + 1], inverse),
                                         mul_rn(x[j + 2], inverse), mul_rn(x[j + 3], inverse));
        h[j / 2] = f16x2_from_fp8x2(codes, 0);
        h[j / 2 + 1] = f16x2_from_fp8x2(codes >> 16, 0);
    }
}

#endif
