/* gemm_portable.c: the GEMM's tiles on any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_portable.h"

enum { GEMM_M = 4, GEMM_N = 2, GEMM_ROWS = 96, GEMM_PART = 256, GEMM_RANGE_COST = 18 };

#include "cpu/gemm_body.h"
