/* pool.h: threads that share the iterations of a loop.
 *
 * The same pool serves the network's layers and, as parallel_for, the mxattn library, so that the
 * two never compete for processors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_POOL_H
#define TRAIN_LM_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct pool pool;

/* threads counts the caller; 0: the processors this process may run on. */
pool *pool_create(int threads);
void pool_destroy(pool *p);
int pool_threads(const pool *p);

/* Runs task(arg, i) once for each i in [0, count) and returns when all are done. Never call it
 * from a task. p == NULL: a plain loop. */
void pool_for(pool *p, int64_t count, void (*task)(void *arg, int64_t index), void *arg);

/* Runs rows(arg, first, last) on slices of [0, count). Slices hold POOL_ROWS rows (the last may be
 * shorter) whatever the number of threads. */
enum { POOL_ROWS = 64 };
void pool_rows(pool *p, int64_t count, void (*rows)(void *arg, int64_t first, int64_t last),
               void *arg);

/* malloc and calloc that end the program with a sentence instead of returning NULL. */
void *allocate(size_t bytes);
void *allocate_zero(size_t bytes);

#endif
