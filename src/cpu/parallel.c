/* parallel.c: a small pool of threads that sleep between calls.
 *
 * One pool serves the process. The calling thread publishes a job, works on it in slot 0 and leaves
 * when no task is left and every thread that joined has finished; threads that wake late find the
 * job closed, so nobody waits for a thread that was not scheduled. Threads start on first need, at
 * most as many as the largest call asked for, spin briefly between jobs, then sleep.
 *
 * After fork the child has no pool threads and starts its own on first use. When the library is
 * unloaded or the process exits, the threads are joined; later calls run in their caller.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/parallel.h"

#include "cpu/fpenv.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum {
    POOL_THREADS_MOST = 1023,
    /* WHY: a wake-up through the kernel costs tens of microseconds on virtual machines, and the
     * calls of one training step follow each other more closely than that. */
    SPIN_ROUNDS = 2000
};

typedef struct job {
    mxa_parallel_task fn;
    void *arg;
    int64_t tasks;
    atomic_llong next;
    int32_t workers; /* slots in all */
    int32_t joined;  /* slots given out; under pool.lock */
} job;

typedef struct pool_state {
    pthread_mutex_t owner; /* held by the call whose job runs */
    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t wake;   /* a job was published, or stop */
    pthread_cond_t idle;   /* active became 0 */
    job *open;             /* job that may be joined */
    atomic_int active;     /* pool threads inside the job; written under lock */
    atomic_uint published; /* jobs so far; written under lock */
    int32_t threads;
    int stop;
} pool_state;

#define POOL_START                                                                                 \
    {                                                                                              \
        .owner = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,                     \
        .wake = PTHREAD_COND_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER                         \
    }

static pool_state pool = POOL_START;
static pthread_t pool_thread[POOL_THREADS_MOST];
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(job *j, int32_t worker)
{
    /* A pool's thread has other modes than the caller: bits would follow from who ran a task. */
    mxa_fpenv before = mxa_fpenv_enter();
    for (;;) {
        int64_t task = atomic_fetch_add(&j->next, 1);
        if (task >= j->tasks)
            break;
        j->fn(j->arg, task, worker);
    }
    mxa_fpenv_leave(before);
}

/* Under pool.lock. */
static int can_join(void)
{
    return pool.open && pool.open->joined < pool.open->workers;
}

static void *pool_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    while (!pool.stop) {
        if (can_join()) {
            job *j = pool.open;
            int32_t worker = j->joined++;

            atomic_fetch_add(&pool.active, 1);
            pthread_mutex_unlock(&pool.lock);
            work(j, worker);
            pthread_mutex_lock(&pool.lock);
            if (atomic_fetch_sub(&pool.active, 1) == 1)
                pthread_cond_signal(&pool.idle);
            continue;
        }
        unsigned seen = atomic_load(&pool.published);
        pthread_mutex_unlock(&pool.lock);
        for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool.published) == seen; i++)
            relax();
        pthread_mutex_lock(&pool.lock);
        if (!can_join() && !pool.stop && atomic_load(&pool.published) == seen)
            pthread_cond_wait(&pool.wake, &pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static void pool_after_fork(void)
{
    static const pool_state start = POOL_START;

    pool = start;
}

static void pool_register(void)
{
    pthread_atfork(NULL, NULL, pool_after_fork);
}

__attribute__((destructor)) static void pool_stop(void)
{
    pthread_mutex_lock(&pool.lock);
    int32_t threads = pool.threads;
    pool.threads = 0;
    pool.stop = 1;
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    for (int32_t i = 0; i < threads; i++)
        pthread_join(pool_thread[i], NULL);
}

/* Under pool.lock: as many threads as wanted, or as many as the system gives. */
static void pool_grow(int32_t wanted)
{
    sigset_t all, before;

    if (pool.threads >= wanted || pool.stop)
        return;
    sigfillset(&all); /* the host program's signals are not for these threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.threads < wanted &&
           pthread_create(&pool_thread[pool.threads], NULL, pool_main, NULL) == 0)
        pool.threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* With pool.owner held. */
static void pool_run(job *j)
{
    pthread_once(&pool_once, pool_register);
    pthread_mutex_lock(&pool.lock);
    pool_grow(j->workers - 1);
    pool.open = j;
    atomic_fetch_add(&pool.published, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);

    work(j, 0);

    pthread_mutex_lock(&pool.lock);
    pool.open = NULL;
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool.active) != 0; i++)
        relax();
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.active) != 0)
        pthread_cond_wait(&pool.idle, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

static void user_slot(void *arg, int64_t index)
{
    work(arg, (int32_t)index);
}

int32_t mxa_parallel_workers(const mxattn_context *context)
{
    int32_t threads = context->options.threads;

    return threads > POOL_THREADS_MOST + 1 ? POOL_THREADS_MOST + 1 : threads;
}

void mxa_parallel_for(const mxattn_context *context, int64_t tasks, mxa_parallel_task fn, void *arg)
{
    const mxattn_context_options *options = &context->options;
    int32_t workers = mxa_parallel_workers(context);
    job j = {.fn = fn, .arg = arg, .tasks = tasks, .joined = 1};

    j.workers = tasks < workers ? (int32_t)tasks : workers;
    if (j.workers <= 1) {
        work(&j, 0);
    } else if (options->parallel_for) {
        options->parallel_for(options->parallel_user, j.workers, user_slot, &j);
    } else if (pthread_mutex_trylock(&pool.owner) == 0) {
        pool_run(&j);
        pthread_mutex_unlock(&pool.owner);
    } else {
        work(&j, 0);
    }
}
