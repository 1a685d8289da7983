/* test_parallel.c: every task once, slots exclusive, nested and concurrent calls, the caller's
 * parallel_for, fork.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/parallel.h"
#include "report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TASKS = 1000, WORKERS_MOST = 16, CALLERS = 4, CALLS = 50 };

typedef struct record {
    const mxattn_context *context;
    atomic_int runs[TASKS];
    atomic_int busy[WORKERS_MOST];
    atomic_int clashes; /* two tasks at once in one slot, or a slot out of range */
    atomic_int nested;
    int nest;
} record;

static mxattn_context context_with(int32_t threads)
{
    mxattn_context context;

    memset(&context, 0, sizeof(context));
    context.options.struct_size = sizeof(context.options);
    context.options.threads = threads;
    return context;
}

static void count_nested(void *arg, int64_t task, int32_t worker)
{
    record *r = arg;

    (void)task;
    (void)worker;
    atomic_fetch_add(&r->nested, 1);
}

static void count(void *arg, int64_t task, int32_t worker)
{
    record *r = arg;

    if (worker < 0 || worker >= mxa_parallel_workers(r->context) ||
        atomic_exchange(&r->busy[worker], 1))
        atomic_fetch_add(&r->clashes, 1);
    atomic_fetch_add(&r->runs[task], 1);
    if (r->nest && task % 100 == 0)
        mxa_parallel_for(r->context, 7, count_nested, r);
    atomic_store(&r->busy[worker], 0);
}

/* Runs `tasks` tasks; 0 when all went by the rules. */
static int faults_of_call(const mxattn_context *context, int64_t tasks, int nest)
{
    record *r = calloc(1, sizeof(*r));
    int faults = 0;

    r->context = context;
    r->nest = nest;
    mxa_parallel_for(context, tasks, count, r);
    for (int64_t i = 0; i < TASKS; i++)
        faults += atomic_load(&r->runs[i]) != (i < tasks);
    faults += atomic_load(&r->clashes);
    if (nest)
        faults += atomic_load(&r->nested) != 7 * (int)((tasks + 99) / 100);
    free(r);
    return faults;
}

static void *caller(void *arg)
{
    intptr_t faults = 0;

    for (int i = 0; i < CALLS; i++)
        faults += faults_of_call(arg, 100 + i, 0);
    return (void *)faults;
}

static void test_concurrent_callers(const mxattn_context *context)
{
    pthread_t threads[CALLERS];
    intptr_t faults = 0;

    for (int i = 0; i < CALLERS; i++)
        pthread_create(&threads[i], NULL, caller, (void *)(intptr_t)context);
    for (int i = 0; i < CALLERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        faults += (intptr_t)result;
    }
    CHECK(faults == 0, "%d faults", (int)faults);
}

static void user_parallel_for(void *user, int64_t count, mxattn_task task, void *arg)
{
    *(int64_t *)user += count;
    for (int64_t i = count - 1; i >= 0; i--)
        task(arg, i);
}

static void test_fork(const mxattn_context *context)
{
#if defined(__SANITIZE_THREAD__)
    (void)context;
    mxt_skip("ThreadSanitizer does not follow a fork of a threaded process");
#else
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(faults_of_call(context, TASKS, 1) + faults_of_call(context, TASKS, 0) ? 1 : 0);
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child's status 0x%x", (unsigned)status);
#endif
}

int main(void)
{
    static const int64_t tasks[] = {0, 1, 2, 3, 16, TASKS};

    for (int32_t threads = 1; threads <= 7; threads += 2) {
        mxattn_context context = context_with(threads);
        int64_t user_calls = 0;

        for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++)
            for (int nest = 0; nest < 2; nest++) {
                mxt_case("%d threads, %d tasks, nested %d", (int)threads, (int)tasks[i], nest);
                int faults = faults_of_call(&context, tasks[i], nest);
                CHECK(faults == 0, "%d faults", faults);
            }
        mxt_case("%d threads, %d calls at once", (int)threads, (int)CALLERS);
        test_concurrent_callers(&context);
        mxt_case("%d threads, in a forked child", (int)threads);
        test_fork(&context);

        mxt_case("%d threads, the caller's parallel_for", (int)threads);
        context.options.parallel_for = user_parallel_for;
        context.options.parallel_user = &user_calls;
        int faults = faults_of_call(&context, TASKS, 0);
        CHECK(faults == 0, "%d faults", faults);
        CHECK(user_calls == (threads > 1 ? threads : 0), "asked for %d slots", (int)user_calls);
    }
    return mxt_finish();
}
