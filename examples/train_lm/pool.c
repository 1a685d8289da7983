/* pool.c: threads that share the iterations of a loop.
 *
 * A job is open from the moment it is published until its caller has found no iteration left. A
 * worker joins an open job, takes iterations from a shared counter, and leaves; the caller then
 * waits for those that joined. A worker that wakes too late finds the job closed and costs nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPINS = 4000 }; /* looks at the job counter before a worker sleeps, some 50 microseconds */

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t *workers;
    int worker_count;
    int sleeping; /* under lock */
    int stop;     /* under lock */
    int open;     /* under lock: a job may be joined */
    atomic_uint job;
    atomic_int inside; /* workers that joined the job; rises only under lock */
    atomic_int_fast64_t next;
    int64_t count;
    void (*task)(void *arg, int64_t index);
    void *arg;
};

void *allocate(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "train_lm: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

void *allocate_zero(size_t bytes)
{
    void *memory = calloc(bytes > 0 ? bytes : 1, 1);
    if (!memory) {
        fprintf(stderr, "train_lm: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

static void pause_a_moment(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void take_iterations(pool *p)
{
    int64_t i;
    while ((i = atomic_fetch_add(&p->next, 1)) < p->count)
        p->task(p->arg, i);
}

/* Waits until the job counter differs from `seen`, spinning first. Returns the new counter. */
static unsigned wait_for_job(pool *p, unsigned seen)
{
    for (int spin = 0; spin < SPINS; spin++) {
        unsigned job = atomic_load(&p->job);
        if (job != seen)
            return job;
        pause_a_moment();
    }
    pthread_mutex_lock(&p->lock);
    p->sleeping++;
    while (atomic_load(&p->job) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    p->sleeping--;
    unsigned job = atomic_load(&p->job);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *work(void *argument)
{
    pool *p = argument;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_job(p, seen);
        pthread_mutex_lock(&p->lock);
        int stop = p->stop, join = p->open;
        if (join)
            atomic_fetch_add(&p->inside, 1);
        pthread_mutex_unlock(&p->lock);
        if (stop)
            return NULL;
        if (join) {
            take_iterations(p);
            atomic_fetch_sub(&p->inside, 1);
        }
    }
}

static int processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    return 1;
}

pool *pool_create(int threads)
{
    pool *p = allocate_zero(sizeof(*p));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    int wanted = (threads > 0 ? threads : processors()) - 1;
    p->workers = allocate((size_t)wanted * sizeof(pthread_t));
    for (int i = 0; i < wanted; i++) {
        if (pthread_create(&p->workers[i], NULL, work, p) != 0)
            break; /* fewer threads compute the same thing */
        p->worker_count++;
    }
    return p;
}

/* Publishes a new job counter and wakes those who sleep. Call under lock. */
static void publish(pool *p)
{
    atomic_fetch_add(&p->job, 1);
    if (p->sleeping > 0)
        pthread_cond_broadcast(&p->wake);
}

void pool_destroy(pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    publish(p);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->worker_count; i++)
        pthread_join(p->workers[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int pool_threads(const pool *p)
{
    return p ? p->worker_count + 1 : 1;
}

void pool_for(pool *p, int64_t count, void (*task)(void *arg, int64_t index), void *arg)
{
    if (!p || p->worker_count == 0 || count <= 1) {
        for (int64_t i = 0; i < count; i++)
            task(arg, i);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->arg = arg;
    p->count = count;
    atomic_store(&p->next, 0);
    p->open = 1;
    publish(p);
    pthread_mutex_unlock(&p->lock);

    take_iterations(p);

    pthread_mutex_lock(&p->lock);
    p->open = 0;
    pthread_mutex_unlock(&p->lock);
    for (int spin = 0; atomic_load(&p->inside) > 0; spin++) {
        if (spin < SPINS)
            pause_a_moment();
        else
            sched_yield();
    }
}

struct rows_job {
    int64_t count;
    void (*rows)(void *arg, int64_t first, int64_t last);
    void *arg;
};

static void rows_task(void *arg, int64_t index)
{
    const struct rows_job *job = arg;
    int64_t first = index * POOL_ROWS;
    int64_t last = first + POOL_ROWS < job->count ? first + POOL_ROWS : job->count;
    job->rows(job->arg, first, last);
}

void pool_rows(pool *p, int64_t count, void (*rows)(void *arg, int64_t first, int64_t last),
               void *arg)
{
    struct rows_job job = {count, rows, arg};
    pool_for(p, (count + POOL_ROWS - 1) / POOL_ROWS, rows_task, &job);
}
