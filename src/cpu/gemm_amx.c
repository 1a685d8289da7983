/* gemm_amx.c: the GEMM's tiles on the matrix products of AMX in BF16.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_amx.h"

enum { GEMM_M = TILE_M, GEMM_N = 2, GEMM_ROWS = 96, GEMM_PART = 256, GEMM_RANGE_COST = 6 };

#include "cpu/gemm_body.h"
