/* timing.c: how long a piece of work takes, and on how many threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "timing.h"

#include "error.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_TURNS = 5, FEW_TURNS = 2, MOST_TURNS = 2000, LONG_SECONDS = 10, MOST_CALLS = 10000 };

/* Of one piece in one turn. WHY as many: the first call behind the ceilings is the fastest, on 16
 * threads of AMX by a tenth to a third; where that was all of a turn, the GEMM with quantization
 * had 1.22 and 1.14 times the time of the one without, and has 1.11 and 1.02 of eight. */
static const double least_seconds = 8e-3;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static mxc_timing timing_of(const double *times, int n)
{
    static double sorted[MOST_TURNS];
    memcpy(sorted, times, (size_t)n * sizeof *times);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    double median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return (mxc_timing){median, sorted[0], sorted[n - 1], n};
}

/* Every set once; gives the calls of a turn. */
static int warm_up(const mxc_work *work, double min_seconds)
{
    const double start = mxc_seconds();
    double last = work->seconds;
    if (work->seconds >= 1)
        return 1;
    for (int set = 0; set < work->sets && mxc_seconds() - start < min_seconds + 1; set++) {
        const double before = mxc_seconds();
        work->run(work->arg, set);
        last = mxc_seconds() - before;
    }
    if (min_seconds <= 0 || last >= least_seconds)
        return 1;
    return last * MOST_CALLS > least_seconds ? (int)ceil(least_seconds / last) : MOST_CALLS;
}

void mxc_time_turns(mxc_work *works, int count, double min_seconds)
{
    int calls[MXC_WORKS_MOST], set[MXC_WORKS_MOST] = {0}, n = 0;
    const int least = min_seconds > 0 ? LEAST_TURNS : FEW_TURNS;
    for (int i = 0; i < count; i++) {
        calls[i] = warm_up(&works[i], min_seconds);
        works[i].times = mxc_tool_alloc(MOST_TURNS * sizeof *works[i].times);
    }
    const double start = mxc_seconds();
    while (n < MOST_TURNS) {
        for (int i = 0; i < count; i++) {
            const double before = mxc_seconds();
            for (int call = 0; call < calls[i]; call++) {
                works[i].run(works[i].arg, set[i]);
                set[i] = set[i] + 1 < works[i].sets ? set[i] + 1 : 0;
            }
            works[i].times[n] = (mxc_seconds() - before) / calls[i];
        }
        n++;
        const double spent = mxc_seconds() - start;
        if (n >= least && spent >= min_seconds * count)
            break;
        if (n >= FEW_TURNS && spent >= LONG_SECONDS * count) /* each takes seconds */
            break;
    }
    for (int i = 0; i < count; i++)
        works[i].timing = timing_of(works[i].times, n);
}

double mxc_time_over(const mxc_work *a, const mxc_work *b)
{
    static double ratios[MOST_TURNS];
    for (int i = 0; i < a->timing.repetitions; i++)
        ratios[i] = a->times[i] / b->times[i];
    return timing_of(ratios, a->timing.repetitions).median;
}

void mxc_works_free(mxc_work *works, int count)
{
    for (int i = 0; i < count; i++) {
        free(works[i].times);
        works[i].times = NULL;
    }
}

/* What Linux says of a level above the first, in bytes; 0 where it does not. WHY before sysconf:
 * that gives the sum over a host's sockets on some virtual machines. */
static long cache_level(int level)
{
    char path[64];
    long kib = 0;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ldK", &kib) != 1)
        kib = 0;
    if (file)
        (void)fclose(file);
    return kib * 1024;
}

int64_t mxc_last_level_cache(void)
{
    long bytes = cache_level(3);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? bytes : (int64_t)32 << 20;
}

int64_t mxc_second_cache(void)
{
    long bytes = cache_level(2);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? bytes : (int64_t)512 << 10;
}

int mxc_rotation_sets(int64_t bytes, int64_t memory_limit)
{
    enum { MOST_SETS = 256 };
    int64_t sets = 2 * mxc_last_level_cache() / (bytes > 0 ? bytes : 1) + 1;
    int64_t fit = memory_limit / (bytes > 0 ? bytes : 1);
    sets = sets > MOST_SETS ? MOST_SETS : sets;
    sets = sets > fit ? fit : sets;
    return sets > 1 ? (int)sets : 1;
}

typedef struct job {
    void (*work)(void *arg, int64_t thread);
    void *arg;
} job;

static void run_job(void *memory, int64_t index)
{
    const job *j = memory;
    j->work(j->arg, index);
}

void mxc_on_threads(int32_t threads, void (*work)(void *arg, int64_t thread), void *arg)
{
    job j = {work, arg};
    mxc_progress_parallel_for(&threads, threads, run_job, &j);
}
