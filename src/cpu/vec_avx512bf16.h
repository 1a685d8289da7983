/* vec_avx512bf16.h: the vector vocabulary on AVX-512 with BF16 dot products: operands and P are
 * held in BF16, two to a unit. Values below 2^-126 count as zero there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_BF16_H
#define MXA_CPU_VEC_BF16_H

#define VEC_BF16_UNITS
#include "cpu/vec_avx512.h"

#endif
