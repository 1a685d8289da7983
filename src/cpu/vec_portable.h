/* vec_portable.h: the vector vocabulary in plain C with GCC's vector extension, and its meanings.
 *
 * One header of this family is included by each file that instantiates a body for an instruction
 * set (attention_forward_avx2.c and so on); all give the same names:
 *
 *   VEC_ISA, VEC_NAME(x)   the instruction set, and x with its suffix
 *   vec, ivec, vmask       VEC_LANES of float, int32 and conditions
 *   vec_max, vec_min       b when either of a, b is a NaN
 *   vec_ceil               to an integer, up
 *   vec_split(x, &whole)   whole = x rounded down, returns the rest; |x| < 2^22. NaN stays NaN
 *   vec_select(m, x, y)    x where m, else y
 *   vec_bits, vec_from_bits   the same 32 bits as the other type
 *   vec_from_e4m3          VEC_LANES codes times 2^-8, exact; NaN codes give a finite value
 *   vec_block_from_e4m3    the same for 32 codes; flags gain those that are a NaN
 *   code_flags             a set of flags, any of which code_flags_any sees
 *   vec_from_e5m2          VEC_LANES codes, exact, infinity and NaN included
 *   vec_store_f16          rounds to nearest even
 *   ivec_store_high16      the high half of each lane
 *   vec_sums(r)            lane i: the sum of all lanes of r[i]
 *   run_load               a run of RUN_CODES codes of E4M3. Into the run_flags goes what tells, in
 *                          run_flags_any, whether one was a NaN. Only with VEC_RUNS
 *   run_vector(run, i)     VEC_LANES of them times 2^RUN_LOG2, exact, all of block
 *                          i % (RUN_CODES / 32); element j of all vectors is code run_code(j)
 *   VEC_SIXTEEN            defined where VEC_LANES is 16
 *   RUN_SUMS               sums in registers at a time where such vectors are added to them
 *   vec_swap(x, step)      lane i: lane i ^ step of x, a power of two below VEC_LANES. Only with
 *   vec_repeat(p, each)    lane i: p[i / each], a power of two; reads VEC_LANES     VEC_RUNS
 *   vec_transpose(r)       VEC_LANES x VEC_LANES lanes of 32 bits, whatever they hold
 *
 * Operands of the GEMMs are held in units of four bytes: UNIT_DEPTH elements that follow each other
 * along the contracted axis, one FP32 or two BF16.
 *
 *   UNIT_IS_F32            1: UNIT_DEPTH is 1; 0: a vocabulary has a unit_decoder of its own
 *   unit, uvec             one unit, VEC_LANES units
 *   unit_store_pieces      x in pieces of TILE_M units, `step` apart; whole if it is no longer
 *   unit_join(part)        lane l: the unit of part[0][l] (and part[1][l])
 *   unit_pack(part)        VEC_LANES units of consecutive elements, those of part[0] first
 *   unit_along(p)          the same from memory
 *   unit_clear(u, i)       sets element i of a unit to 0
 *   unit_part(u, i)        element i of a unit
 *   UNIT_ROUNDS            1: unit_join rounds to BF16, nearest even; 0: it keeps FP32
 *   vec_dot(sum, a, b)     sum + a*b, per lane, over the UNIT_DEPTH elements
 *   TILE_M, TILE_N         the register tile: TILE_M broadcast rows x TILE_N vectors (vec_tile.h)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_H
#define MXA_CPU_VEC_H

#include "mx/element.h"

#include <stdint.h>
#include <string.h>

#define VEC_ISA     "portable"
#define VEC_FLUSHES 0
#define VEC_NAME(x) x##_portable
enum { VEC_LANES = 4, UNIT_DEPTH = 1, UNIT_ROUNDS = 0, TILE_M = 2, TILE_N = 4 };

typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
typedef ivec vmask;
#define UNIT_IS_F32 1
typedef float unit;
typedef vec uvec;

static inline vec vec_load(const float *p)
{
    vec x;

    memcpy(&x, p, sizeof(x));
    return x;
}

static inline void vec_store(float *p, vec x)
{
    memcpy(p, &x, sizeof(x));
}

static inline vec vec_set(float x)
{
    return (vec){x, x, x, x};
}

static inline ivec ivec_load(const int32_t *p)
{
    ivec x;

    memcpy(&x, p, sizeof(x));
    return x;
}

static inline ivec ivec_set(int32_t x)
{
    return (ivec){x, x, x, x};
}

static inline vec vec_add(vec a, vec b)
{
    return a + b;
}

static inline vec vec_sub(vec a, vec b)
{
    return a - b;
}

static inline vec vec_mul(vec a, vec b)
{
    return a * b;
}

static inline vec vec_div(vec a, vec b)
{
    return a / b;
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

static inline ivec vec_bits(vec x)
{
    return (ivec)x;
}

static inline vec vec_from_bits(ivec x)
{
    return (vec)x;
}

static inline vec vec_split(vec x, ivec *whole)
{
    const vec magic = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};
    const vec near = x + magic - magic;
    const ivec above = near > x;
    const vec floor = near - (vec)(above & (ivec)vec_set(1.0f));

    *whole = (ivec)(floor + magic);
    return x - floor;
}

static inline vec vec_select(vmask m, vec yes, vec no)
{
    return (vec)(((ivec)yes & m) | ((ivec)no & ~m));
}

static inline vmask vec_less(vec a, vec b)
{
    return (vmask)(a < b);
}

static inline vmask vec_is_nan(vec x)
{
    return (vmask)(x != x);
}

static inline vec vec_max(vec a, vec b)
{
    return vec_select((vmask)(a > b), a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return vec_select((vmask)(a < b), a, b);
}

static inline vmask mask_and(vmask a, vmask b)
{
    return a & b;
}

static inline int mask_any(vmask m)
{
    return (m[0] | m[1] | m[2] | m[3]) != 0;
}

static inline ivec ivec_add(ivec a, ivec b)
{
    return a + b;
}

static inline ivec ivec_and(ivec a, ivec b)
{
    return a & b;
}

static inline ivec ivec_or(ivec a, ivec b)
{
    return a | b;
}

typedef uint32_t vec_unsigned __attribute__((vector_size(16)));

#define ivec_shl(x, n) ((ivec)((vec_unsigned)(x) << (n)))
#define ivec_shr(x, n) ((ivec)((vec_unsigned)(x) >> (n)))

static inline vmask ivec_less(ivec a, ivec b)
{
    return a < b;
}

/* Adding and subtracting 1.5 * 2^23 rounds what is smaller than 2^22 to an integer. */
static inline vec vec_round(vec x)
{
    const vec magic = vec_set(0x1.8p23f);
    const vec magnitude = vec_from_bits(vec_bits(x) & ivec_set(0x7fffffff));

    return vec_select(vec_less(magnitude, vec_set(0x1p22f)), (x + magic) - magic, x);
}

static inline vec vec_ceil(vec x)
{
    const vec near = vec_round(x);

    return near + vec_select(vec_less(near, x), vec_set(1.0f), vec_set(0.0f));
}

/* Places sign and magnitude of FP8 codes with `mantissa` mantissa bits and exponent bias `bias` in
 * FP32. Subnormal codes come from a difference of normals, so that no FP32 subnormal is met. */
static inline vec vec_from_fp8(const uint8_t *p, int mantissa, int bias)
{
    const ivec code = {p[0], p[1], p[2], p[3]};
    const ivec magnitude = ivec_shl(code & ivec_set(0x7f), 23 - mantissa);
    const ivec sign = ivec_shl(code & ivec_set(0x80), 24);
    const ivec normal = magnitude + ivec_set((127 - bias) << 23);
    const ivec one = ivec_set((128 - bias) << 23);
    const vec subnormal = vec_from_bits(magnitude + one) - vec_from_bits(one);
    const vec value =
        vec_select(ivec_less(magnitude, ivec_set(1 << 23)), subnormal, vec_from_bits(normal));

    return vec_from_bits(vec_bits(value) | sign);
}

static inline vec vec_from_e4m3(const uint8_t *p)
{
    return vec_from_fp8(p, 3, 15);
}

typedef int code_flags;

static inline code_flags code_flags_none(void)
{
    return 0;
}

static inline int code_flags_any(code_flags flags)
{
    return flags;
}

static inline void vec_block_from_e4m3(const uint8_t *p, vec block[32 / VEC_LANES],
                                       code_flags *nans)
{
    for (int i = 0; i < 32; i++)
        *nans |= (p[i] & 0x7f) == 0x7f;
    for (int i = 0; i < 32 / VEC_LANES; i++)
        block[i] = vec_from_e4m3(p + i * VEC_LANES);
}

static inline vec vec_from_e5m2(const uint8_t *p)
{
    const vec x = vec_from_fp8(p, 2, 15);
    const ivec magnitude = vec_bits(x) & ivec_set(0x7fffffff);
    const vmask finite = magnitude < ivec_set((127 + 16) << 23);

    return vec_from_bits(vec_bits(x) | (~finite & ivec_set(0x7f800000)));
}

static inline void vec_store_f16(uint16_t *p, vec x)
{
    for (int i = 0; i < VEC_LANES; i++)
        p[i] = mxa_f16_from_f32(x[i]);
}

static inline void ivec_store_high16(uint16_t *p, ivec x)
{
    for (int i = 0; i < VEC_LANES; i++)
        p[i] = (uint16_t)((uint32_t)x[i] >> 16);
}

static inline void vec_transpose(vec r[VEC_LANES])
{
    for (int i = 0; i < VEC_LANES; i++)
        for (int j = i + 1; j < VEC_LANES; j++) {
            const float upper = r[i][j];

            r[i][j] = r[j][i];
            r[j][i] = upper;
        }
}

static inline vec vec_sums(const vec r[VEC_LANES])
{
    vec turned[VEC_LANES] = {r[0], r[1], r[2], r[3]};

    vec_transpose(turned);
    return (turned[0] + turned[1]) + (turned[2] + turned[3]);
}

static inline uvec unit_load(const unit *p)
{
    return vec_load(p);
}

static inline void unit_store(unit *p, uvec x)
{
    vec_store(p, x);
}

static inline void unit_store_pieces(unit *p, int64_t step, uvec x)
{
    memcpy(p, &x, 2 * sizeof(unit));
    memcpy(p + step, (const char *)&x + 2 * sizeof(unit), 2 * sizeof(unit));
}

static inline uvec unit_broadcast(const unit *p)
{
    return vec_set(*p);
}

static inline uvec unit_join(const vec part[UNIT_DEPTH])
{
    return part[0];
}

static inline uvec unit_pack(const vec part[UNIT_DEPTH])
{
    return part[0];
}

static inline uvec unit_along(const float *row)
{
    return vec_load(row);
}

static inline void unit_clear(unit *u, int part)
{
    (void)part;
    *u = 0.0f;
}

static inline float unit_part(unit u, int part)
{
    (void)part;
    return u;
}

static inline vec vec_dot(vec sum, uvec a, uvec b)
{
    return a * b + sum;
}

#endif
