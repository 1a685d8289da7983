/* attention_forward_portable.c: forward attention in plain C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_portable.h"

enum { FORWARD_GROUPS = 24 };

#include "cpu/attention_forward_body.h"
