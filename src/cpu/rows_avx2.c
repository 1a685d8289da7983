/* rows_avx2.c: arithmetic on rows for AVX2, FMA and F16C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_avx2.h"

#include "cpu/rows_body.h"
