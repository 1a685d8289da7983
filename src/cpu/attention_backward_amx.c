/* attention_backward_amx.c: gradients of attention on the matrix products of AMX in BF16.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_amx.h"

#include "cpu/attention_backward_body.h"
