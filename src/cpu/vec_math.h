/* vec_math.h: functions over the vector vocabulary: exp2, tanh, the roundings of P and outputs.
 * Included after one vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_MATH_H
#define MXA_CPU_VEC_MATH_H

#include "mxattn/mxattn.h"

#include <math.h>

/* VEC_UNROLL: before each short loop over a register tile; unrolled early, the tile stays in
 * registers. */
#if defined(__clang__)
#define VEC_UNROLL       _Pragma("clang loop unroll(full)")
#define VEC_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#elif defined(__GNUC__)
#define VEC_UNROLL       _Pragma("GCC unroll 16")
#define VEC_UNROLL_TWICE _Pragma("GCC unroll 2")
#else
#define VEC_UNROLL
#define VEC_UNROLL_TWICE
#endif
#if defined(__GNUC__)
#define VEC_INLINE   static inline __attribute__((always_inline))
#define VEC_NOINLINE __attribute__((noinline)) /* keeps a micro-kernel's registers its own */
#else
#define VEC_INLINE static inline
#define VEC_NOINLINE
#endif

VEC_INLINE void vec_prefetch(const void *p)
{
#if defined(__GNUC__)
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}

/* Into the second cache: more than the first holds is asked for at a time. */
VEC_INLINE void vec_prefetch_second(const void *p)
{
#if defined(__GNUC__)
    __builtin_prefetch(p, 0, 2);
#else
    (void)p;
#endif
}

VEC_INLINE vec vec_abs(vec x)
{
    return vec_from_bits(ivec_and(vec_bits(x), ivec_set(0x7fffffff)));
}

/* The largest lane, NaNs passed over; -inf when there is none. */
static inline float vec_highest(vec x)
{
    float lanes[VEC_LANES], most = -INFINITY;

    vec_store(lanes, x);
    for (int i = 0; i < VEC_LANES; i++)
        most = lanes[i] > most ? lanes[i] : most;
    return most;
}

/* The sum of all lanes, pairs first. */
static inline float vec_total(vec x)
{
    float lanes[VEC_LANES];

    vec_store(lanes, x);
    for (int step = VEC_LANES / 2; step >= 1; step /= 2)
        for (int i = 0; i < step; i++)
            lanes[i] += lanes[i + step];
    return lanes[0];
}

/* 2^x for x <= 0 and a little above. Exact for integers from -126; arguments below -126 give
 * something in [0, 2^-126], from -127 on exactly 0; NaN stays NaN.
 *
 * Adding 1.5*2^23 rounds x to the nearest integer n and leaves n in the low bits; 2^f of
 * f = x - n in [-1/2, 1/2] is a polynomial of degree 5 with p(0) = 1 (minimax of the relative
 * error, 9e-8; its FP32 coefficients were then searched for the least error in ulp, 1.92 with
 * fused steps); 2^n is added to its exponent. */
VEC_INLINE vec vec_exp2(vec x)
{
    const vec magic = vec_set(0x1.8p23f);
    const vec y = vec_max(vec_set(-127.0f), x);
    const vec shifted = vec_add(y, magic);
    const vec f = vec_sub(y, vec_sub(shifted, magic));
    vec p = vec_set(0x1.5bc432p-10f);

    p = vec_fma(p, f, vec_set(0x1.3ce9dp-7f));
    p = vec_fma(p, f, vec_set(0x1.c6b758p-5f));
    p = vec_fma(p, f, vec_set(0x1.ebf9b6p-3f));
    p = vec_fma(p, f, vec_set(0x1.62e428p-1f));
    p = vec_fma(p, f, vec_set(1.0f));
    return vec_from_bits(ivec_add(vec_bits(p), ivec_shl(vec_bits(shifted), 23)));
}

/* The same, about as exact (2.1 ulp), and *rounded: the result rounded to BF16, ties to even.
 *
 * Here n is rounded down, so that p(f) is in [1, 2] and one addition of 1.5*2^16 rounds it at 2^-7,
 * BF16's last place there; 2^n changes nothing about that. */
VEC_INLINE vec vec_exp2_rounded(vec x, vec *rounded)
{
    const vec magic = vec_set(0x1.8p16f);
    ivec n;
    const vec f = vec_split(vec_max(vec_set(-127.0f), x), &n);
    vec p = vec_set(0x1.e97566p-10f);

    p = vec_fma(p, f, vec_set(0x1.277838p-7f));
    p = vec_fma(p, f, vec_set(0x1.c91cecp-5f));
    p = vec_fma(p, f, vec_set(0x1.ebdb58p-3f));
    p = vec_fma(p, f, vec_set(0x1.62e4bap-1f));
    p = vec_fma(p, f, vec_set(1.0f));
    const vec near = vec_sub(vec_add(p, magic), magic);
    const ivec exponent = ivec_shl(n, 23);

    *rounded = vec_from_bits(ivec_add(vec_bits(near), exponent));
    return vec_from_bits(ivec_add(vec_bits(p), exponent));
}

/* tanh(x): odd Taylor polynomial of degree 9 below 1/4 (relative error 1e-8), else
 * (1 - t) / (1 + t) with t = exp(-2|x|). */
VEC_INLINE vec vec_tanh(vec x)
{
    const vec magnitude = vec_abs(x);
    const ivec sign = ivec_and(vec_bits(x), ivec_set(INT32_MIN));
    const vec t = vec_exp2(vec_mul(magnitude, vec_set(-2.88539008f)));
    const vec large = vec_div(vec_sub(vec_set(1.0f), t), vec_add(vec_set(1.0f), t));
    const vec square = vec_mul(x, x);
    vec p = vec_set(62.0f / 2835.0f);

    p = vec_fma(p, square, vec_set(-17.0f / 315.0f));
    p = vec_fma(p, square, vec_set(2.0f / 15.0f));
    p = vec_fma(p, square, vec_set(-1.0f / 3.0f));
    p = vec_fma(vec_mul(p, square), x, x);
    return vec_select(vec_less(magnitude, vec_set(0.25f)), p,
                      vec_from_bits(ivec_or(vec_bits(large), sign)));
}

/* To the nearest BF16, ties to even. A NaN must have its top mantissa bit set (arithmetic's own
 * have). */
VEC_INLINE vec vec_round_bf16(vec x)
{
    const ivec bits = vec_bits(x);
    const ivec odd = ivec_and(ivec_shr(bits, 16), ivec_set(1));
    const ivec rounded = ivec_add(ivec_add(bits, ivec_set(0x7fff)), odd);

    return vec_from_bits(ivec_and(rounded, ivec_set(-0x10000)));
}

/* E4M3(p * 2^8) * 2^-8 for p in [0, 1]: with e the power of two of p, at least E4M3's smallest
 * normal, adding and subtracting 1.5*2^20*e leaves 3 mantissa bits. */
VEC_INLINE vec vec_round_e4m3(vec p)
{
    const vec exponent = vec_from_bits(ivec_and(vec_bits(p), ivec_set(0x7f800000)));
    const vec magic = vec_mul(vec_max(vec_set(0x1p-14f), exponent), vec_set(0x1.8p20f));

    return vec_sub(vec_add(p, magic), magic);
}

/* Any FP32, NaN payloads included. */
VEC_INLINE void vec_store_bf16(uint16_t *p, vec x)
{
    const vec quiet = vec_from_bits(ivec_or(vec_bits(x), ivec_set(0x00400000)));

    ivec_store_high16(p, vec_bits(vec_select(vec_is_nan(x), quiet, vec_round_bf16(x))));
}

#endif
