/* dequantize_avx2.c: the dequantizer's kernel for AVX2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx2.h"

#include "cpu/dequantize_body.h"
