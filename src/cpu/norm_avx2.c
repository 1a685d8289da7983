/* norm_avx2.c: rows divided and quantized at once, for AVX2, FMA and F16C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_avx2.h"
#include "cpu/words_avx2.h"

#include "cpu/norm_body.h"
