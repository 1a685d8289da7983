/* log.h: sentences worth keeping, handed to the context's log callback.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_LOG_H
#define MXA_LOG_H

#include "status.h"

void mxa_log(const mxattn_context *context, mxattn_log_level level, const char *format, ...)
    MXA_PRINTF(3, 4);

#endif
