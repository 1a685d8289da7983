/* convert.h: conversions between element types (PTX ISA 9.7.9.21).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_CONVERT_H
#define MXA_CUDA_DEV_CONVERT_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

/* Four FP32 to E4M3 bytes, a in the lowest; nearest even, saturating, NaN to 0x7F. */
MXA_DEVICE uint32_t e4m3x4_from_f32(float a, float b, float c, float d)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(y)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return y;
}

/* Four FP16, two packed pairs, to E4M3 bytes. */
MXA_DEVICE uint32_t e4m3x4_from_f16x2(uint32_t ab, uint32_t cd)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 low, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 high, %2;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(y)
        : "r"(ab), "r"(cd));
    return y;
}

/* Two FP8 bytes, the low 16 bits of `pair`, to FP16; exact. */
MXA_DEVICE uint32_t f16x2_from_fp8x2(uint32_t pair, int e5m2)
{
    uint32_t y;
    if (e5m2) {
        asm("{\n.reg .b16 low;\ncvt.u16.u32 low, %1;\ncvt.rn.f16x2.e5m2x2 %0, low;\n}"
            : "=r"(y)
            : "r"(pair));
    } else {
        asm("{\n.reg .b16 low;\ncvt.u16.u32 low, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}"
            : "=r"(y)
            : "r"(pair));
    }
    return y;
}

/* Two of four E4M3 bytes to FP16. */
MXA_DEVICE uint32_t f16x2_from_e4m3x2_low(uint32_t word)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}"
        : "=r"(y)
        : "r"(word));
    return y;
}

MXA_DEVICE uint32_t f16x2_from_e4m3x2_high(uint32_t word)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}"
        : "=r"(y)
        : "r"(word));
    return y;
}

/* Both halves set to x, nearest even. */
MXA_DEVICE uint32_t f16x2_from_f32(float x)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(y) : "f"(x));
    return y;
}

MXA_DEVICE uint32_t f16x2_from_f32x2(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(y) : "f"(low), "f"(high));
    return y;
}

MXA_DEVICE uint32_t bf16x2_from_f32x2(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(y) : "f"(low), "f"(high));
    return y;
}

MXA_DEVICE float f32_from_f16_low(uint32_t pair)
{
    float y;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
        : "=f"(y)
        : "r"(pair));
    return y;
}

MXA_DEVICE float f32_from_f16_high(uint32_t pair)
{
    float y;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}"
        : "=f"(y)
        : "r"(pair));
    return y;
}

/* Four FP32 to E5M2 bytes, a in the lowest; nearest even, saturating. */
MXA_DEVICE uint32_t e5m2x4_from_f32(float a, float b, float c, float d)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(y)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return y;
}

/* Two magnitudes to E8M0 bytes, the exponent rounded up (a power of two keeps its own), low in the
 * low byte; 0 and what is at most 2^-127 give 0, infinity 0xFE, NaN 0xFF. sm_100a */
MXA_DEVICE uint32_t e8m0x2_ceil_from_f32x2(float low, float high)
{
    uint32_t y;
    asm("{\n.reg .b16 pair;\ncvt.rp.satfinite.ue8m0x2.f32 pair, %2, %1;\ncvt.u32.u16 %0, pair;\n}"
        : "=r"(y)
        : "f"(low), "f"(high));
    return y;
}

/* The same, the exponent rounded down: the exponent field. sm_100a */
MXA_DEVICE uint32_t e8m0x2_floor_from_f32x2(float low, float high)
{
    uint32_t y;
    asm("{\n.reg .b16 pair;\ncvt.rz.satfinite.ue8m0x2.f32 pair, %2, %1;\ncvt.u32.u16 %0, pair;\n}"
        : "=r"(y)
        : "f"(low), "f"(high));
    return y;
}

/* Two E8M0 bytes, the low 16 bits of `pair`, to BF16; byte 0 is 2^-127, subnormal. sm_100a */
MXA_DEVICE uint32_t bf16x2_from_e8m0x2(uint32_t pair)
{
    uint32_t y;
    asm("{\n.reg .b16 bytes;\ncvt.u16.u32 bytes, %1;\ncvt.rn.bf16x2.ue8m0x2 %0, bytes;\n}"
        : "=r"(y)
        : "r"(pair));
    return y;
}

#else
#include "emu/convert.h"
#endif
#endif
