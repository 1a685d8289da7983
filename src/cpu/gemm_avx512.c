/* gemm_avx512.c: the GEMM's tiles on AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512.h"

/* A part of A, 396 KiB, and two of a panel stay in a second cache of 1 MiB. */
enum { GEMM_M = 12, GEMM_N = 2, GEMM_ROWS = 192, GEMM_PART = 512, GEMM_RANGE_COST = 18 };

#include "cpu/gemm_body.h"
