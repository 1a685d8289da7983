/* math.h: arithmetic with a fixed rounding, and packed halves (PTX ISA 9.7.3, 9.7.4).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_MATH_H
#define MXA_CUDA_DEV_MATH_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

/* Two FP32 in one register pair, element 0 in the low word; each is rounded once. sm_100a; 9.7.3 */
typedef uint64_t mxa_f32x2;

/* 2^x within 2 ulp; subnormal results are 0; -inf gives 0. 9.7.3.21 */
MXA_DEVICE float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2(x), absolute error below 2^-22 around 1; 0 gives -inf. 9.7.3.20 */
MXA_DEVICE float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh(x), relative error 2^-11. 9.7.3.22 */
MXA_DEVICE float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MXA_DEVICE float reciprocal_rn(float x)
{
    float y;
    asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MXA_DEVICE float sqrt_rn(float x)
{
    float y;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MXA_DEVICE float fma_rn(float a, float b, float c)
{
    float y;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

MXA_DEVICE float add_rn(float a, float b)
{
    float y;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

MXA_DEVICE float mul_rn(float a, float b)
{
    float y;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* The larger; a NaN loses. */
MXA_DEVICE float max_f32(float a, float b)
{
    float y;
    asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* The larger; a NaN wins. */
MXA_DEVICE float max_nan_f32(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* max(a, |b|); a NaN wins. */
MXA_DEVICE float max_abs_nan_f32(float a, float b)
{
    float y;
    asm("{\n.reg .f32 t;\nabs.f32 t, %2;\nmax.NaN.f32 %0, %1, t;\n}" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

MXA_DEVICE float ceil_f32(float x)
{
    float y;
    asm("cvt.rpi.f32.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MXA_DEVICE uint32_t bits_f32(float x)
{
    uint32_t y;
    asm("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* x << n; 0 from n = 32 on. 9.7.7.8 */
MXA_DEVICE uint32_t shift_left_u32(uint32_t x, uint32_t n)
{
    uint32_t y;
    asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(n));
    return y;
}

/* Byte i of the result is byte (selector >> 4*i) & 7 of b:a, a the low word. 9.7.9.7 */
MXA_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
    return y;
}

MXA_DEVICE float f32_bits(uint32_t x)
{
    float y;
    asm("mov.b32 %0, %1;" : "=f"(y) : "r"(x));
    return y;
}

/* FP64: never contracted into a fused multiply-add. */
MXA_DEVICE double add_rn_f64(double a, double b)
{
    double y;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(y) : "d"(a), "d"(b));
    return y;
}

MXA_DEVICE double mul_rn_f64(double a, double b)
{
    double y;
    asm("mul.rn.f64 %0, %1, %2;" : "=d"(y) : "d"(a), "d"(b));
    return y;
}

/* e^x and ln(x) within 2 ulp: no instructions, but the compiler's own code. */
MXA_DEVICE double exp_f64(double x)
{
    return exp(x);
}

MXA_DEVICE double log_f64(double x)
{
    return log(x);
}

/* Packed halves: element 0 in the low 16 bits. 9.7.4 */
MXA_DEVICE uint32_t max_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* The larger magnitude of each half; a NaN wins. NOTE: its sign is that of the product. */
MXA_DEVICE uint32_t max_abs_nan_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t max_abs_nan_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* The larger and the smaller of each half; a NaN wins. */
MXA_DEVICE uint32_t max_nan_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t min_nan_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* a + |b| */
MXA_DEVICE uint32_t add_abs_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("{\n.reg .b32 t;\nabs.f16x2 t, %2;\nadd.rn.f16x2 %0, %1, t;\n}" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

MXA_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

/* max(c - a * b, 0), rounded once; a NaN stays one. */
MXA_DEVICE uint32_t fma_less_relu_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("{\n.reg .b32 t;\nneg.f16x2 t, %1;\nfma.rn.relu.f16x2 %0, t, %2, %3;\n}"
        : "=r"(y)
        : "r"(a), "r"(b), "r"(c));
    return y;
}

/* The smaller of each half; a NaN wins. */
MXA_DEVICE uint32_t min_nan_f16x2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* 2^x in both halves, relative error 2^-9.9. WHY not ex2.approx.f16x2: it packs its result once
 * for each use; widened halves and one prmt halve that (1040 -> 1084 TFLOP/s in a forward). */
MXA_DEVICE uint32_t exp2_f16x2(uint32_t x)
{
    uint32_t y;
    asm("{\n.reg .b16 low, high;\n.reg .b32 a, b;\n"
        "mov.b32 {low, high}, %1;\n"
        "ex2.approx.f16 low, low;\n"
        "ex2.approx.f16 high, high;\n"
        "cvt.u32.u16 a, low;\n"
        "cvt.u32.u16 b, high;\n"
        "prmt.b32 %0, a, b, 0x5410;\n}"
        : "=r"(y)
        : "r"(x));
    return y;
}

/* The largest of three; a NaN loses. sm_100a */
MXA_DEVICE float max3_f32(float a, float b, float c)
{
    float y;
    asm("max.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

/* The same; a NaN wins. sm_100a */
MXA_DEVICE float max3_nan_f32(float a, float b, float c)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

/* The largest magnitude of three; a NaN wins. sm_100a */
MXA_DEVICE float max3_abs_nan_f32(float a, float b, float c)
{
    float y;
    asm("max.NaN.abs.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

MXA_DEVICE mxa_f32x2 f32x2_from(float low, float high)
{
    mxa_f32x2 y;
    asm("mov.b64 %0, {%1, %2};" : "=l"(y) : "f"(low), "f"(high));
    return y;
}

MXA_DEVICE float f32x2_low(mxa_f32x2 x)
{
    float low;
    asm("mov.b64 {%0, _}, %1;" : "=f"(low) : "l"(x));
    return low;
}

MXA_DEVICE float f32x2_high(mxa_f32x2 x)
{
    float high;
    asm("mov.b64 {_, %0}, %1;" : "=f"(high) : "l"(x));
    return high;
}

/* exp2_approx of both. */
MXA_DEVICE mxa_f32x2 exp2_approx_f32x2(mxa_f32x2 x)
{
    return f32x2_from(exp2_approx(f32x2_low(x)), exp2_approx(f32x2_high(x)));
}

MXA_DEVICE mxa_f32x2 fma_f32x2(mxa_f32x2 a, mxa_f32x2 b, mxa_f32x2 c)
{
    mxa_f32x2 y;
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(y) : "l"(a), "l"(b), "l"(c));
    return y;
}

MXA_DEVICE mxa_f32x2 mul_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    mxa_f32x2 y;
    asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(y) : "l"(a), "l"(b));
    return y;
}

MXA_DEVICE mxa_f32x2 add_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    mxa_f32x2 y;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(y) : "l"(a), "l"(b));
    return y;
}

/* max_f32 of both. */
MXA_DEVICE mxa_f32x2 max_f32x2(mxa_f32x2 a, mxa_f32x2 b)
{
    return f32x2_from(max_f32(f32x2_low(a), f32x2_low(b)), max_f32(f32x2_high(a), f32x2_high(b)));
}

/* The bits of both, plus 2^23 times those of n: a number times 2^n, for small integers n. */
MXA_DEVICE mxa_f32x2 add_exponent_f32x2(mxa_f32x2 x, mxa_f32x2 n)
{
    return f32x2_from(f32_bits(bits_f32(f32x2_low(x)) + (bits_f32(f32x2_low(n)) << 23)),
                      f32_bits(bits_f32(f32x2_high(x)) + (bits_f32(f32x2_high(n)) << 23)));
}

#else
#include "emu/math.h"
#endif
#endif
