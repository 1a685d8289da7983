/* attention_backward_avx512bf16.c: gradients of attention on AVX-512 with BF16 dot products.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512bf16.h"

#include "cpu/attention_backward_body.h"
