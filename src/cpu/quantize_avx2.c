/* quantize_avx2.c: the quantizer's kernels for AVX2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/words_avx2.h"

#include "cpu/quantize_body.h"
