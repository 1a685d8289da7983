/* scale_units_avx2.c: units of tiled scales for AVX2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define UNITS_NAME(x) x##_avx2

#include "cpu/scale_units_body.h"
