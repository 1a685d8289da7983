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

/* One parallel_for. */
typedef struct loop {
    mxattn_task task;
    void *arg;
    int64_t count;
    atomic_llong next;
} loop;

/* The piece of work that a thread tells about while it lasts. */
static struct teller {
    const char *what;
    double from, to, start; /* start: of the piece whose share begins at 0 */
    atomic_llong done, count;
    pthread_t thread;
    int running, ended;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} teller = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

double mxc_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void show(void)
{
    double elapsed = mxc_seconds() - teller.start;
    double count = (double)atomic_load(&teller.count), done = (double)atomic_load(&teller.done);
    double share = teller.from + (teller.to - teller.from) * (count > 0 ? done / count : 0);
    if (elapsed < 1)
        return; /* short work shows nothing */
    (void)fprintf(stderr, "\r\033[K%s: %.0f%%, %.0f s", teller.what, 100 * share, elapsed);
    if (share > 0)
        (void)fprintf(stderr, ", %.0f s left", elapsed * (1 - share) / share);
}

static void *tell(void *unused)
{
    (void)pthread_mutex_lock(&teller.lock);
    while (!teller.ended) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 250000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&teller.wake, &teller.lock, &until);
        if (!teller.ended)
            show();
    }
    (void)pthread_mutex_unlock(&teller.lock);
    return unused;
}

void mxc_progress_begin(const char *what, double from, double to)
{
    if (!isatty(STDERR_FILENO))
        return;
    teller.what = what;
    teller.from = from;
    teller.to = to;
    if (from <= 0)
        teller.start = mxc_seconds();
    atomic_store(&teller.done, 0);
    atomic_store(&teller.count, 0);
    teller.ended = 0;
    teller.running = pthread_create(&teller.thread, NULL, tell, NULL) == 0;
}

void mxc_progress_end(void)
{
    if (!teller.running)
        return;
    (void)pthread_mutex_lock(&teller.lock);
    teller.ended = 1;
    (void)pthread_cond_signal(&teller.wake);
    (void)pthread_mutex_unlock(&teller.lock);
    (void)pthread_join(teller.thread, NULL);
    teller.running = 0;
    (void)fprintf(stderr, "\r\033[K");
}

static void *work_on(void *memory)
{
    loop *work = memory;
    for (;;) {
        int64_t index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count)
            return NULL;
        work->task(work->arg, index);
        atomic_fetch_add(&teller.done, 1);
    }
}

void mxc_progress_parallel_for(void *user, int64_t count, mxattn_task task, void *arg)
{
    loop work = {.task = task, .arg = arg, .count = count};
    int64_t threads = *(const int32_t *)user, started = 0;
    if (threads > count)
        threads = count;
    atomic_store(&teller.done, 0);
    atomic_store(&teller.count, count);
    pthread_t *others = threads > 1 ? malloc((size_t)(threads - 1) * sizeof *others) : NULL;
    while (others && started < threads - 1 &&
           pthread_create(&others[started], NULL, work_on, &work) == 0)
        started++;
    (void)work_on(&work);
    for (int64_t i = 0; i < started; i++)
        (void)pthread_join(others[i], NULL);
    free(others);
}
