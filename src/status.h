/* status.h: how a fault is reported: a status, and one sentence kept per thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_STATUS_H
#define MXA_STATUS_H

#include "mxattn/mxattn.h"

#if defined(__GNUC__)
#define MXA_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define MXA_PRINTF(f, a)
#endif

/* Keeps the sentence for mxattn_last_error and returns status:
 *     return mxa_fail(MXATTN_SHAPE, "heads is %lld; it must be a multiple of kv_heads (%lld)",
 * ...); Every sentence names the argument, its value and the rule. */
mxattn_status mxa_fail(mxattn_status status, const char *format, ...) MXA_PRINTF(2, 3);

#endif
