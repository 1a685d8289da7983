/* parallel.h: runs the tasks of one call on several threads.
 *
 * The tasks of a call are the same for any number of threads, and each writes its own outputs, so
 * bits never depend on how many run. A task is told its worker slot, which chooses its scratch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_PARALLEL_H
#define MXA_CPU_PARALLEL_H

#include "backend.h"

#include <stdint.h>

typedef void (*mxa_parallel_task)(void *arg, int64_t task, int32_t worker);

/* Worker slots a call of this context may use: worker < mxa_parallel_workers(context). */
int32_t mxa_parallel_workers(const mxattn_context *context);

/* Runs fn(arg, task, worker) once for each task in [0, tasks), low numbers first, and returns when
 * all are done. No two tasks that run at once share a worker slot. Any thread may call it at any
 * time, from inside a task too; a call that finds the pool taken runs its tasks itself. */
void mxa_parallel_for(const mxattn_context *context, int64_t tasks, mxa_parallel_task fn,
                      void *arg);

#endif
