/* error.h: how the command gives up: one sentence, exit status 2, nothing half-written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_ERROR_H
#define MXA_TOOLS_ERROR_H

#include "mxattn/mxattn.h"

#include <stddef.h>

/* The exit statuses of every verb. */
enum { MXA_EXIT_OK = 0, MXA_EXIT_THRESHOLD = 1, MXA_EXIT_REFUSED = 2 };

/* The name in front of each sentence, e.g. "mxattn forward". Static storage. */
void mxa_error_name(const char *name);

/* Prints "name: sentence" to stderr, removes unfinished outputs and exits with 2. */
_Noreturn void mxa_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Dies with the library's sentence unless status is MXATTN_OK. */
void mxa_need(mxattn_status status);

/* Memory aligned to 256 bytes; dies when there is none. bytes may be 0. Freed with free. */
void *mxa_tool_alloc(size_t bytes);

#endif
