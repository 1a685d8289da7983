/* tensor_core.h: the sum that a tensor core makes, as measured on silicon by bit-exact studies.
 *
 * One output element adds its products and the incoming accumulator in one fused sum:
 *   1. every term but zero has an exponent: the sum of its factors' (a subnormal's is that of the
 *      smallest normal number), scales included; the largest is emax;
 *   2. every term is truncated toward zero to a multiple of 2^(emax - F); products are exact
 * before;
 *   3. what remains is added exactly;
 *   4. the sum is rounded once: to FP32 toward zero (Hopper's FP8 to 13 fraction bits, the others
 *      to 23), to FP16 to nearest even.
 * A NaN operand, a NaN scale, 0 * infinity and infinity - infinity give NaN (0x7FFFFFFF, 0x7FFF); a
 * sum beyond FP32's largest gives infinity.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_TENSOR_CORE_H
#define MXA_MX_TENSOR_CORE_H

#include "mxattn/mxattn.h"

#include <stdint.h>

typedef enum mxa_tensor_core {
    MXA_TENSOR_CORE_EXACT,      /* the true sum, rounded once to nearest even */
    MXA_TENSOR_CORE_HOPPER_FP8, /* F = 13 */
    MXA_TENSOR_CORE_HOPPER_16,  /* FP16 and BF16 operands: F = 25 */
    MXA_TENSOR_CORE_BLACKWELL   /* all types, block scales too: F = 25 */
} mxa_tensor_core;

enum { MXA_TENSOR_CORE_NAN = 0x7FFFFFFF, MXA_TENSOR_CORE_NAN_F16 = 0x7FFF };

/* One step of a product: how it adds, what its operands are. */
typedef struct mxa_tensor_core_step {
    mxa_tensor_core core;
    mxattn_dtype a_type, b_type; /* E4M3, E5M2, F16, BF16; bytes with bytes, halves with halves */
    int count;                   /* products of one sum: 32 bytes or 16 halves on every core */
} mxa_tensor_core_step;

/* F, and the fraction bits of an FP32 result. 0 and 23 for EXACT. */
int mxa_tensor_core_fraction_bits(mxa_tensor_core core);
int mxa_tensor_core_result_bits(mxa_tensor_core core);

/* c + 2^(scale_a + scale_b - 254) * sum of a[k]*b[k]; a and b are arrays of `count` elements, the
 * scales E8M0 bytes, 127 where there are none. FP32 accumulators as bits. */
uint32_t mxa_tensor_core_f32(const mxa_tensor_core_step *step, const void *a, const void *b,
                             uint8_t scale_a, uint8_t scale_b, uint32_t c);
uint16_t mxa_tensor_core_f16(const mxa_tensor_core_step *step, const void *a, const void *b,
                             uint16_t c);

#endif
