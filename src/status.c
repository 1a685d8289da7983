/* status.c: statuses and the sentence of this thread's last fault.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[1024];

mxattn_status mxa_fail(mxattn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char *mxattn_last_error(void)
{
    return last_error;
}
