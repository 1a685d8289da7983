/* product_avx2.c: products in vectors of 32 bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <immintrin.h>

#define PRODUCT_BYTES       32
#define PRODUCT_NAME        mxa_emu_product_avx2
#define PRODUCT_MAX8(a, b)  ((int8s)_mm256_max_epi8((__m256i)(a), (__m256i)(b)))
#define PRODUCT_MAX16(a, b) ((int16s)_mm256_max_epi16((__m256i)(a), (__m256i)(b)))
#define PRODUCT_MAX32(a, b) ((ints)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define PRODUCT_MIN32(a, b) ((ints)_mm256_min_epi32((__m256i)(a), (__m256i)(b)))
#define PRODUCT_F64(ints)   ((doubles)_mm256_cvtepi32_pd((__m128i)(ints)))
#define PRODUCT_I64(ints)   ((int64s)_mm256_cvtepi32_epi64((__m128i)(ints)))
#define PRODUCT_F16(x)      ((ints)_mm256_cvtepu16_epi32(_mm256_cvtps_ph((__m256)(x), 0)))
#define PRODUCT_HAS_F16
#define PRODUCT_INTEGERS
#include "emu/product_body.h"
