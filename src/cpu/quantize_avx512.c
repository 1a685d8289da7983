/* quantize_avx512.c: the quantizer's kernels for AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/words_avx512.h"

#include "cpu/quantize_body.h"
