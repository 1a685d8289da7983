/* attention_forward_avx512.c: forward attention on AVX-512, FP32 operands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512.h"

enum { FORWARD_GROUPS = 8 };

#include "cpu/attention_forward_body.h"
