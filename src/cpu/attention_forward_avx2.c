/* attention_forward_avx2.c: forward attention on AVX2 and FMA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_avx2.h"

enum { FORWARD_GROUPS = 16 };

#include "cpu/attention_forward_body.h"
