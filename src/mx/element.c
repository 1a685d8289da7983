/* element.c: element types, one value at a time, exactly.
 *
 * Every value is taken apart into an integer significand and a power of two, and every narrower
 * code is made by one function, mxa_round_code. No step depends on flush-to-zero modes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"

#include <string.h>

/* A binary floating-point format. Codes are magnitudes: the sign bit is apart. */
typedef struct format {
    int mantissa_bits;
    int exponent_min;      /* of the smallest normal number */
    uint32_t max_code;     /* largest finite */
    uint32_t above;        /* what a larger value becomes: max_code, or infinity */
    uint32_t infinity;     /* code of infinity; 0: the format has none */
    uint32_t exponent_all; /* exponent field all ones, as a code */
} format;

static format format_of(mxattn_dtype dtype)
{
    switch (dtype) {
    case MXATTN_E4M3:
        return (format){3, -6, 0x7E, 0x7E, 0, 0x78};
    case MXATTN_E5M2:
        return (format){2, -14, 0x7B, 0x7B, 0x7C, 0x7C};
    case MXATTN_BF16:
        return (format){7, -126, 0x7F7F, 0x7F80, 0x7F80, 0x7F80};
    case MXATTN_F16:
        return (format){10, -14, 0x7BFF, 0x7C00, 0x7C00, 0x7C00};
    case MXATTN_F32:
    case MXATTN_DTYPE_NONE:
        break;
    }
    return (format){23, -126, 0x7F7FFFFF, 0x7F800000, 0x7F800000, 0x7F800000};
}

static uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^exponent, -1022 <= exponent <= 1023. */
static double power_of_two(int exponent)
{
    return f64_from_bits((uint64_t)(exponent + 1023) << 52);
}

static int floor_log2(uint64_t n)
{
    int log = 0;
    while (n >>= 1) {
        log++;
    }
    return log;
}

/* n / 2^shift to nearest even; n < 2^62. */
static uint64_t shift_right_even(uint64_t n, int shift)
{
    if (shift <= 0) {
        return n << -shift;
    }
    if (shift > 62) {
        return 0;
    }
    uint64_t quotient = n >> shift;
    uint64_t rest = n - (quotient << shift);
    uint64_t half = (uint64_t)1 << (shift - 1);
    return quotient + (rest > half || (rest == half && (quotient & 1)));
}

uint32_t mxa_round_code(uint64_t significand, int exponent, mxattn_dtype dtype)
{
    if (significand == 0) {
        return 0;
    }
    format f = format_of(dtype);
    int top = exponent + floor_log2(significand);
    int binade = top > f.exponent_min ? top : f.exponent_min;
    if (binade - f.exponent_min >= 1 << 9) {
        return f.above;
    }
    /* In the binade of 2^binade codes are 2^(binade - mantissa_bits) apart, and counting in that
     * unit makes a carry out of the mantissa step into the next exponent. */
    uint64_t units = shift_right_even(significand, binade - f.mantissa_bits - exponent);
    uint64_t code = ((uint64_t)(binade - f.exponent_min) << f.mantissa_bits) + units;
    return code > f.max_code ? f.above : (uint32_t)code;
}

uint32_t mxa_split_f32(float x, int *exponent)
{
    uint32_t field = f32_bits(x) >> 23 & 0xFF;
    uint32_t mantissa = f32_bits(x) & 0x7FFFFF;
    *exponent = field == 0 ? -149 : (int)field - 150;
    return field == 0 ? mantissa : mantissa | 0x800000;
}

uint32_t mxa_split_code(uint32_t code, mxattn_dtype dtype, int *exponent)
{
    format f = format_of(dtype);
    uint32_t field = code >> f.mantissa_bits;
    uint32_t mantissa = code & ((1U << f.mantissa_bits) - 1);
    *exponent = f.exponent_min - f.mantissa_bits + (field == 0 ? 0 : (int)field - 1);
    return field == 0 ? mantissa : mantissa | 1U << f.mantissa_bits;
}

static uint64_t split_f64(double x, int *exponent)
{
    uint64_t field = f64_bits(x) >> 52 & 0x7FF;
    uint64_t mantissa = f64_bits(x) & 0xFFFFFFFFFFFFF;
    *exponent = field == 0 ? -1074 : (int)field - 1075;
    return field == 0 ? mantissa : mantissa | (uint64_t)1 << 52;
}

static int f32_is_nan(float x)
{
    return (f32_bits(x) & 0x7FFFFFFF) > 0x7F800000;
}

static int f32_is_infinite(float x)
{
    return (f32_bits(x) & 0x7FFFFFFF) == 0x7F800000;
}

int mxa_f32_is_finite(float x)
{
    return (f32_bits(x) & 0x7FFFFFFF) < 0x7F800000;
}

double mxa_f32_to_f64(float x)
{
    uint64_t sign = (uint64_t)(f32_bits(x) >> 31) << 63;
    if (!mxa_f32_is_finite(x)) {
        uint64_t mantissa = (uint64_t)(f32_bits(x) & 0x7FFFFF) << 29;
        return f64_from_bits(sign | 0x7FF0000000000000 | mantissa);
    }
    int exponent;
    double magnitude = (double)mxa_split_f32(x, &exponent);
    return f64_from_bits(sign | f64_bits(magnitude * power_of_two(exponent)));
}

/* Magnitude of x as a code, x not NaN. */
static uint32_t code_from_f32(float x, mxattn_dtype dtype)
{
    if (f32_is_infinite(x)) {
        return format_of(dtype).above;
    }
    int exponent;
    uint32_t significand = mxa_split_f32(x, &exponent);
    return mxa_round_code(significand, exponent, dtype);
}

static uint8_t fp8_from_f32(float x, mxattn_dtype dtype)
{
    uint32_t sign = f32_bits(x) >> 31 << 7;
    return (uint8_t)(sign | (f32_is_nan(x) ? 0x7F : code_from_f32(x, dtype)));
}

uint8_t mxa_e4m3_from_f32(float x)
{
    return fp8_from_f32(x, MXATTN_E4M3);
}

uint8_t mxa_e5m2_from_f32(float x)
{
    return fp8_from_f32(x, MXATTN_E5M2);
}

/* A finite code as FP32, exactly: F16, E4M3 and E5M2 have no value outside FP32's normals. */
static float f32_from_code(uint32_t sign, uint32_t code, mxattn_dtype dtype)
{
    int exponent;
    uint32_t significand = mxa_split_code(code, dtype, &exponent);
    return f32_from_bits(sign << 31 | mxa_round_code(significand, exponent, MXATTN_F32));
}

float mxa_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = code >> 7, magnitude = code & 0x7F;
    return magnitude == 0x7F ? f32_from_bits(sign << 31 | 0x7FC00000)
                             : f32_from_code(sign, magnitude, MXATTN_E4M3);
}

/* E5M2 and FP16 share this: infinity and NaN keep their mantissa, NaN made quiet. */
static float f32_from_ieee(uint32_t sign, uint32_t code, mxattn_dtype dtype)
{
    format f = format_of(dtype);
    if (code < f.infinity) {
        return f32_from_code(sign, code, dtype);
    }
    uint32_t mantissa = (code - f.infinity) << (23 - f.mantissa_bits);
    return f32_from_bits(sign << 31 | 0x7F800000 | mantissa | (mantissa ? 0x400000 : 0));
}

float mxa_e5m2_to_f32(uint8_t code)
{
    return f32_from_ieee(code >> 7, code & 0x7F, MXATTN_E5M2);
}

/* BF16 and FP16 from FP32; a NaN stays quiet and keeps the top bits of its payload. */
static uint16_t half_from_f32(float x, mxattn_dtype dtype)
{
    format f = format_of(dtype);
    uint32_t sign = f32_bits(x) >> 31 << 15;
    if (f32_is_nan(x)) {
        uint32_t payload = (f32_bits(x) & 0x7FFFFF) >> (23 - f.mantissa_bits);
        return (uint16_t)(sign | f.infinity | payload | 1U << (f.mantissa_bits - 1));
    }
    return (uint16_t)(sign | code_from_f32(x, dtype));
}

uint16_t mxa_bf16_from_f32(float x)
{
    return half_from_f32(x, MXATTN_BF16);
}

float mxa_bf16_to_f32(uint16_t bits)
{
    return f32_from_bits((uint32_t)bits << 16);
}

uint16_t mxa_f16_from_f32(float x)
{
    return half_from_f32(x, MXATTN_F16);
}

float mxa_f16_to_f32(uint16_t bits)
{
    return f32_from_ieee(bits >> 15, bits & 0x7FFF, MXATTN_F16);
}

static int f64_is_finite(double x)
{
    return (f64_bits(x) & 0x7FFFFFFFFFFFFFFF) < 0x7FF0000000000000;
}

uint8_t mxa_e4m3_from_f64(double x)
{
    uint32_t sign = (uint32_t)(f64_bits(x) >> 63) << 7;
    if (!f64_is_finite(x)) {
        return (uint8_t)(sign | (x != x ? 0x7F : 0x7E));
    }
    int exponent;
    uint64_t significand = split_f64(x, &exponent);
    return (uint8_t)(sign | mxa_round_code(significand, exponent, MXATTN_E4M3));
}

static double round_f64(double x, mxattn_dtype dtype)
{
    if (!f64_is_finite(x)) {
        return x;
    }
    format f = format_of(dtype);
    uint64_t sign = f64_bits(x) & 0x8000000000000000;
    int exponent;
    uint64_t significand = split_f64(x, &exponent);
    uint32_t code = mxa_round_code(significand, exponent, dtype);
    if (code == f.infinity) {
        return f64_from_bits(sign | 0x7FF0000000000000);
    }
    double magnitude = (double)mxa_split_code(code, dtype, &exponent) * power_of_two(exponent);
    return f64_from_bits(sign | f64_bits(magnitude));
}

double mxa_round_bf16(double x)
{
    return round_f64(x, MXATTN_BF16);
}

double mxa_round_f16(double x)
{
    return round_f64(x, MXATTN_F16);
}

double mxa_round_f32(double x)
{
    return round_f64(x, MXATTN_F32);
}

float mxa_f32_from_f64(double x)
{
    uint32_t sign = (uint32_t)(f64_bits(x) >> 63) << 31;
    if (!f64_is_finite(x)) {
        uint32_t payload = (uint32_t)(f64_bits(x) >> 29) & 0x7FFFFF;
        return f32_from_bits(sign | 0x7F800000 | payload | (x != x ? 0x400000 : 0));
    }
    int exponent;
    uint64_t significand = split_f64(x, &exponent);
    return f32_from_bits(sign | mxa_round_code(significand, exponent, MXATTN_F32));
}

int mxa_dtype_bytes(mxattn_dtype dtype)
{
    switch (dtype) {
    case MXATTN_F32:
        return 4;
    case MXATTN_F16:
    case MXATTN_BF16:
        return 2;
    case MXATTN_E4M3:
    case MXATTN_E5M2:
        return 1;
    case MXATTN_DTYPE_NONE:
        break;
    }
    return 0;
}

int mxa_dtype_mantissa_bits(mxattn_dtype dtype)
{
    return format_of(dtype).mantissa_bits;
}

uint32_t mxa_dtype_infinity(mxattn_dtype dtype)
{
    return format_of(dtype).infinity;
}

int mxa_dtype_is_fp8(mxattn_dtype dtype)
{
    return dtype == MXATTN_E4M3 || dtype == MXATTN_E5M2;
}

int mxa_dtype_is_wide(mxattn_dtype dtype)
{
    return dtype == MXATTN_F32 || dtype == MXATTN_F16 || dtype == MXATTN_BF16;
}

const char *mxa_dtype_name(mxattn_dtype dtype)
{
    switch (dtype) {
    case MXATTN_DTYPE_NONE:
        return "none";
    case MXATTN_F32:
        return "f32";
    case MXATTN_F16:
        return "f16";
    case MXATTN_BF16:
        return "bf16";
    case MXATTN_E4M3:
        return "e4m3";
    case MXATTN_E5M2:
        return "e5m2";
    }
    return "?";
}

float mxa_load(const void *data, mxattn_dtype dtype, int64_t index)
{
    switch (dtype) {
    case MXATTN_F32:
        return ((const float *)data)[index];
    case MXATTN_F16:
        return mxa_f16_to_f32(((const uint16_t *)data)[index]);
    case MXATTN_BF16:
        return mxa_bf16_to_f32(((const uint16_t *)data)[index]);
    case MXATTN_E4M3:
        return mxa_e4m3_to_f32(((const uint8_t *)data)[index]);
    case MXATTN_E5M2:
        return mxa_e5m2_to_f32(((const uint8_t *)data)[index]);
    case MXATTN_DTYPE_NONE:
        break;
    }
    return 0.0F;
}

void mxa_store(void *data, mxattn_dtype dtype, int64_t index, float x)
{
    switch (dtype) {
    case MXATTN_F32:
        ((float *)data)[index] = x;
        return;
    case MXATTN_F16:
        ((uint16_t *)data)[index] = mxa_f16_from_f32(x);
        return;
    case MXATTN_BF16:
        ((uint16_t *)data)[index] = mxa_bf16_from_f32(x);
        return;
    case MXATTN_E4M3:
        ((uint8_t *)data)[index] = mxa_e4m3_from_f32(x);
        return;
    case MXATTN_E5M2:
        ((uint8_t *)data)[index] = mxa_e5m2_from_f32(x);
        return;
    case MXATTN_DTYPE_NONE:
        return;
    }
}
