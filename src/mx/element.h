/* element.h: element types, one value at a time, exactly.
 *
 * Every conversion to a narrower type rounds to nearest even. FP8 saturates (infinities become
 * +-max), keeps NaN (0x7F | sign) and the sign of zero. BF16 and FP16 overflow to infinity; their
 * NaN is quiet and keeps the sign and the top bits of the payload. None depends on the FP
 * environment's flush-to-zero bits: subnormals are handled as integers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_ELEMENT_H
#define MXA_MX_ELEMENT_H

#include "mxattn/mxattn.h"

#include <stdint.h>

uint8_t mxa_e4m3_from_f32(float x);
uint8_t mxa_e5m2_from_f32(float x);
float mxa_e4m3_to_f32(uint8_t code);
float mxa_e5m2_to_f32(uint8_t code);
uint16_t mxa_bf16_from_f32(float x);
float mxa_bf16_to_f32(uint16_t bits);
uint16_t mxa_f16_from_f32(float x);
float mxa_f16_to_f32(uint16_t bits);

/* From float64 with one rounding, for the models in ref/. */
uint8_t mxa_e4m3_from_f64(double x);
double mxa_round_bf16(double x); /* to the nearest BF16 value, FP32 range */
double mxa_round_f16(double x);  /* to the nearest FP16 value; overflow gives infinity */
double mxa_round_f32(double x);

/* Between FP32 and FP64 when the FP environment may flush subnormals: exact up, one rounding down.
 */
double mxa_f32_to_f64(float x);
float mxa_f32_from_f64(double x);
int mxa_f32_is_finite(float x);

/* The parts these are made of. A code is a bit pattern of dtype without its sign.
 * mxa_round_code: significand * 2^exponent to nearest even, significand < 2^53; FP8 saturates,
 * others overflow to infinity.
 * mxa_split_*: the significand of a finite value, which is it times 2^*exponent exactly. */
uint32_t mxa_round_code(uint64_t significand, int exponent, mxattn_dtype dtype);
uint32_t mxa_split_code(uint32_t code, mxattn_dtype dtype, int *exponent);
uint32_t mxa_split_f32(float x, int *exponent);

int mxa_dtype_bytes(mxattn_dtype dtype); /* 0 for none or unknown */
int mxa_dtype_mantissa_bits(mxattn_dtype dtype);
uint32_t mxa_dtype_infinity(mxattn_dtype dtype); /* its code; 0: the type has none */
int mxa_dtype_is_fp8(mxattn_dtype dtype);
int mxa_dtype_is_wide(mxattn_dtype dtype); /* F32, F16, BF16 */
const char *mxa_dtype_name(mxattn_dtype dtype);

/* Element `index` of a typed array as FP32 (exact for every type), and the rounding store. */
float mxa_load(const void *data, mxattn_dtype dtype, int64_t index);
void mxa_store(void *data, mxattn_dtype dtype, int64_t index, float x);

#endif
