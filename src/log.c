/* log.c: formats a sentence only when somebody listens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "log.h"
#include "backend.h"

#include <stdarg.h>
#include <stdio.h>

void mxa_log(const mxattn_context *context, mxattn_log_level level, const char *format, ...)
{
    if (!context->options.log)
        return;
    char sentence[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    context->options.log(context->options.log_user, level, sentence);
}
