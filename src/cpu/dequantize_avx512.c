/* dequantize_avx512.c: the dequantizer's kernel for AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512.h"

#include "cpu/dequantize_body.h"
