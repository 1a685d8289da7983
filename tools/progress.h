/* progress.h: how far long work is, on a terminal; and the threads that do it.
 *
 * The command gives the library this parallel_for, so that every task that ends is counted. Results
 * have the same bits as with the library's own threads. On a terminal a line on stderr says the
 * share done and the time left; elsewhere nothing is written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_PROGRESS_H
#define MXC_PROGRESS_H

#include "mxattn/mxattn.h"

/* Starts a piece of work, e.g. "forward", that is the share [from, to] of all that the verb does
 * since the piece that started at 0. what must live until mxc_progress_end. */
void mxc_progress_begin(const char *what, double from, double to);

/* Ends the piece and clears the line. */
void mxc_progress_end(void);

/* mxattn_context_options.parallel_for; user points to the number of threads, an int32_t. */
void mxc_progress_parallel_for(void *user, int64_t count, mxattn_task task, void *arg);

/* Seconds of a clock that never goes back. */
double mxc_seconds(void);

#endif
