/* rows_avx512.c: arithmetic on rows for AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_avx512.h"

#include "cpu/rows_body.h"
