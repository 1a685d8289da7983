/* progress.h: how far long work is, on a terminal; and the threads that do it.
 *
 * The command gives the library this parallel_for, so that every task that ends is counted. Results
 * have the same bits as with the library's own threads. On a terminal a line on stderr says the
 * share done and the time left; elsewhere nothing is written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_PROGRESS_H
#define MXA_TOOLS_PROGRESS_H

#include "mxattn/mxattn.h"

/* Names what starts now, e.g. "forward". Static storage until mxa_progress_end. */
void mxa_progress_begin(const char *what);

/* Clears the line. */
void mxa_progress_end(void);

/* mxattn_context_options.parallel_for; user points to the number of threads, an int32_t. */
void mxa_progress_parallel_for(void *user, int64_t count, mxattn_task task, void *arg);

/* Seconds of a clock that never goes back. */
double mxa_seconds(void);

#endif
