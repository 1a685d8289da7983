/* attention_backward_portable.c: gradients of attention in plain C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_portable.h"

#include "cpu/attention_backward_body.h"
