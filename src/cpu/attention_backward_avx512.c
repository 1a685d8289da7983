/* attention_backward_avx512.c: gradients of attention on AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx512.h"

#include "cpu/attention_backward_body.h"
