/* norm_avx512.c: rows divided and quantized at once, for AVX-512 F, BW, DQ and VL.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_avx512.h"
#include "cpu/words_avx512.h"

#include "cpu/norm_body.h"
