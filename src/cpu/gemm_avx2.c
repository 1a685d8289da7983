/* gemm_avx2.c: the GEMM's tiles on AVX2 and FMA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx2.h"

/* A part of A, 102 KiB, and C beside it stay in a second cache of 512 KiB. */
enum { GEMM_M = 6, GEMM_N = 2, GEMM_ROWS = 96, GEMM_PART = 256, GEMM_RANGE_COST = 18 };

#include "cpu/gemm_body.h"
