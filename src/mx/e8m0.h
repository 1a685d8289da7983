/* e8m0.h: power-of-two scales and the arithmetic of one block.
 *
 * Formulas: docs/format.md. RCEIL: byte = e - 8 + (mantissa > 0x600000), FLOOR: byte = e - 8, for
 * E4M3 (15 instead of 8 for E5M2), clamped to [0, 254], where e and mantissa are the fields of the
 * FP32 amax. NaN: 0xFF; infinity: 0xFE.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_E8M0_H
#define MXA_MX_E8M0_H

#include "mxattn/mxattn.h"

#include <stdint.h>

enum { MXA_BLOCK = 32, MXA_SCALE_NAN = 0xFF, MXA_FP8_NAN = 0x7F };

/* amax_bits: the FP32 bits of |x|, largest of the block as integers (NaN above infinity). The low
 * 16 bits matter only in being zero or not. */
static inline uint8_t mxa_e8m0_from_amax(uint32_t amax_bits, mxattn_dtype dtype,
                                         mxattn_rounding rounding)
{
    if (amax_bits >= 0x7F800000) {
        return amax_bits == 0x7F800000 ? 0xFE : MXA_SCALE_NAN;
    }
    /* Both types end at 1.75 * 2^top: mantissas above 0x600000 need the next power of two. */
    int top = dtype == MXATTN_E5M2 ? 15 : 8;
    int above = rounding == MXATTN_RCEIL && (amax_bits & 0x7FFFFF) > 0x600000;
    int scale = (int)(amax_bits >> 23) - top + above;
    return (uint8_t)(scale < 0 ? 0 : scale);
}

float mxa_e8m0_to_f32(uint8_t scale); /* byte 0: 2^-127, a subnormal; 0xFF: NaN */
double mxa_e8m0_to_f64(uint8_t scale);

/* One element under its block's scale: x / 2^(scale-127), rounded once, saturated; 0x7F for every
 * element when scale is 0xFF. */
uint8_t mxa_fp8_encode(float x, uint8_t scale, mxattn_dtype dtype);

/* And back: exact in float64. The FP32 form may overflow to infinity (IEEE). */
float mxa_fp8_decode(uint8_t code, uint8_t scale, mxattn_dtype dtype);
double mxa_fp8_decode_f64(uint8_t code, uint8_t scale, mxattn_dtype dtype);

#endif
