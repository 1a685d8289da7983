/* attention_backward_avx2.c: gradients of attention on AVX2 and FMA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx2.h"

#include "cpu/attention_backward_body.h"
