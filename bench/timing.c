/* timing.c: how long a piece of work takes, and on how many threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "timing.h"

#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEAST_REPETITIONS = 5, FEW_REPETITIONS = 2, MOST_REPETITIONS = 2000, LONG_SECONDS = 10 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static mxc_timing timing_of(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, compare_doubles);
    double median = n % 2 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
    return (mxc_timing){median, times[0], times[n - 1], n};
}

void mxc_time_turns(mxc_work *works, int count, double min_seconds)
{
    static double times[MXC_WORKS_MOST][MOST_REPETITIONS];
    int n = 0;
    for (int i = 0; i < count; i++) {
        double start = mxc_seconds();
        for (int set = 0; set < works[i].sets && mxc_seconds() - start < min_seconds + 1; set++)
            works[i].run(works[i].arg, set);
    }
    double start = mxc_seconds();
    while (n < MOST_REPETITIONS) {
        for (int i = 0; i < count; i++) {
            double before = mxc_seconds();
            works[i].run(works[i].arg, n % works[i].sets);
            times[i][n] = mxc_seconds() - before;
        }
        n++;
        double spent = mxc_seconds() - start;
        if (n >= LEAST_REPETITIONS && spent >= min_seconds * count)
            break;
        if (n >= FEW_REPETITIONS && spent >= LONG_SECONDS * count) /* each takes seconds */
            break;
    }
    for (int i = 0; i < count; i++)
        works[i].timing = timing_of(times[i], n);
}

mxc_timing mxc_time(void (*work)(void *arg, int set), void *arg, int sets, double min_seconds)
{
    mxc_work one = {.run = work, .arg = arg, .sets = sets};
    mxc_time_turns(&one, 1, min_seconds);
    return one.timing;
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
