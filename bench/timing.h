/* timing.h: how long a piece of work takes, and on how many threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TIMING_H
#define MXC_TIMING_H

#include <stddef.h>
#include <stdint.h>

typedef struct mxc_timing {
    double median, min, max; /* seconds */
    int repetitions;
} mxc_timing;

/* One of several pieces of work that take turns, so that a noisy moment meets all of them. run(arg,
 * set) is called with set = 0, 1, ... sets-1, 0, ...: each set is a copy of all buffers, so that
 * none is found in the cache. */
typedef struct mxc_work {
    void (*run)(void *arg, int set);
    void *arg;
    int sets;
    double seconds;    /* of a call, where that is known: a long one is not warmed up again */
    mxc_timing timing; /* the result */
    double *times;     /* of each turn, for mxc_time_over */
} mxc_work;

enum { MXC_WORKS_MOST = 12 };

/* Once per set apart (warm-up), then each in turn: at least 5 turns (2 without min_seconds, or
 * where they take more than 10 s each) and min_seconds for each piece on average. A piece shorter
 * than a millisecond is called as often in a turn as fills one. */
void mxc_time_turns(mxc_work *works, int count, double min_seconds);

/* a's time over b's: the median over the turns. WHY not the ratio of medians: a machine that others
 * share runs at one speed for a while, then at another; both are met in the same turn. */
double mxc_time_over(const mxc_work *a, const mxc_work *b);

void mxc_works_free(mxc_work *works, int count);

/* Sets of `bytes` each that together exceed twice the last-level cache, but not memory_limit. */
int mxc_rotation_sets(int64_t bytes, int64_t memory_limit);

/* Bytes of the last-level cache; 32 MiB where the system does not tell. */
int64_t mxc_last_level_cache(void);

/* Bytes of one core's second-level cache; 512 KiB where the system does not tell. */
int64_t mxc_second_cache(void);

/* Runs work(arg, thread) on each of `threads` threads at once. */
void mxc_on_threads(int32_t threads, void (*work)(void *arg, int64_t thread), void *arg);

#endif
