/* attention_forward_amx.c: forward attention on the matrix products of AMX in BF16.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_amx.h"

enum { FORWARD_GROUPS = 16 };

#include "cpu/attention_forward_body.h"
