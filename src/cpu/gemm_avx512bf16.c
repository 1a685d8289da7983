/* gemm_avx512bf16.c: the GEMM's tiles on AVX-512 with BF16 dot products.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512bf16.h"

enum { GEMM_M = 8, GEMM_N = 2, GEMM_ROWS = 96, GEMM_PART = 256, GEMM_RANGE_COST = 60 };

#include "cpu/gemm_body.h"
