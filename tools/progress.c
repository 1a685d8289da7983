/* progress.c: how far long work is, on a terminal; and the threads that do it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *progress_what; /* NULL: nothing to tell, or no terminal */
static int line_shown;

/* One parallel_for. */
typedef struct loop {
    mxattn_task task;
    void *arg;
    int64_t count;
    atomic_llong next, done;
} loop;

double mxa_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mxa_progress_begin(const char *what)
{
    progress_what = isatty(STDERR_FILENO) ? what : NULL;
}

void mxa_progress_end(void)
{
    if (line_shown)
        (void)fprintf(stderr, "\r\033[K");
    line_shown = 0;
    progress_what = NULL;
}

static void show(const loop *work, double elapsed)
{
    double share = (double)atomic_load(&work->done) / (double)work->count;
    (void)fprintf(stderr, "\r\033[K%s: %.0f%%", progress_what, 100 * share);
    if (share > 0)
        (void)fprintf(stderr, ", %.0f s left", elapsed * (1 - share) / share);
    line_shown = 1;
}

static void *work_on(void *memory)
{
    loop *work = memory;
    for (;;) {
        int64_t index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count)
            return NULL;
        work->task(work->arg, index);
        atomic_fetch_add(&work->done, 1);
    }
}

/* The same on the calling thread, which also tells how far all of them are. */
static void work_and_show(loop *work)
{
    double start = mxa_seconds(), shown = start + 0.8; /* short work shows nothing */
    for (;;) {
        int64_t index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count)
            return;
        work->task(work->arg, index);
        atomic_fetch_add(&work->done, 1);
        double now = mxa_seconds();
        if (progress_what && now - shown > 0.2) {
            show(work, now - start);
            shown = now;
        }
    }
}

void mxa_progress_parallel_for(void *user, int64_t count, mxattn_task task, void *arg)
{
    loop work = {.task = task, .arg = arg, .count = count};
    int64_t threads = *(const int32_t *)user, started = 0;
    if (threads > count)
        threads = count;
    pthread_t *others = threads > 1 ? malloc((size_t)(threads - 1) * sizeof *others) : NULL;
    while (others && started < threads - 1 &&
           pthread_create(&others[started], NULL, work_on, &work) == 0)
        started++;
    work_and_show(&work);
    for (int64_t i = 0; i < started; i++)
        (void)pthread_join(others[i], NULL);
    free(others);
}
