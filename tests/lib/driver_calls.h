/* driver_calls.h: functions of the CUDA driver that the library does not use and tests of graphs
 * and contexts do. All return 0 for success.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_DRIVER_CALLS_H
#define MXT_DRIVER_CALLS_H

typedef struct mxt_driver_calls {
    int (*primary_context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*context_get)(void **context);
    int (*begin_capture)(void *stream, int mode); /* 0: global, 1: of this thread */
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
} mxt_driver_calls;

/* NULL when all are there; otherwise the name of the first that is missing. */
const char *mxt_driver_load(mxt_driver_calls *calls);

#endif
