/* attention_backward_avx512.c: gradients of attention on AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#if defined(__x86_64__)

#include "cpu/vec_avx512.h"

#include "cpu/attention_backward_body.h"

#else

typedef int mxa_no_x86;

#endif
