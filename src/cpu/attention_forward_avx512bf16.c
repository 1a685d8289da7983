/* attention_forward_avx512bf16.c: forward attention on AVX-512 with BF16 dot products.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512bf16.h"

enum { FORWARD_GROUPS = 16 };

#include "cpu/attention_forward_body.h"
