/* attention_backward_avx2.c: gradients of attention on AVX2 and FMA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#if defined(__x86_64__)

#include "cpu/vec_avx2.h"

#include "cpu/attention_backward_body.h"

#else

typedef int mxa_no_x86;

#endif
