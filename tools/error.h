/* error.h: how the command gives up: one sentence, exit status 2, nothing half-written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_ERROR_H
#define MXC_TOOLS_ERROR_H

#include "mxattn/mxattn.h"

#include <stddef.h>

/* The exit statuses of every verb. */
enum { MXC_EXIT_OK = 0, MXC_EXIT_THRESHOLD = 1, MXC_EXIT_REFUSED = 2 };

/* The name in front of each sentence, e.g. "mxattn forward". Static storage. */
void mxc_error_name(const char *name);

/* Prints "name: sentence" to stderr, removes unfinished outputs and exits with 2. */
_Noreturn void mxc_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Dies with the library's sentence unless status is MXATTN_OK. */
void mxc_need(mxattn_status status);

/* Memory aligned to 256 bytes; dies when there is none. bytes may be 0. Freed with free. */
void *mxc_tool_alloc(size_t bytes);

#endif
