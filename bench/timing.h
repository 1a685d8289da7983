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

/* Runs work(arg, set) with set = 0, 1, ... sets-1, 0, ...: each set is a copy of all buffers, so
 * that none is found in the cache. Once per set apart (warm-up), then at least 5 times (2 where
 * that takes more than 10 s) and for min_seconds. */
mxc_timing mxc_time(void (*work)(void *arg, int set), void *arg, int sets, double min_seconds);

/* One of several pieces of work that take turns, so that a noisy moment meets all of them. */
typedef struct mxc_work {
    void (*run)(void *arg, int set);
    void *arg;
    int sets;
    mxc_timing timing; /* the result */
} mxc_work;

enum { MXC_WORKS_MOST = 4 };

/* mxc_time of each of `count` pieces, min_seconds for each on average. */
void mxc_time_turns(mxc_work *works, int count, double min_seconds);

/* Sets of `bytes` each that together exceed twice the last-level cache, but not memory_limit. */
int mxc_rotation_sets(int64_t bytes, int64_t memory_limit);

/* Bytes of the last-level cache; 32 MiB where the system does not tell. */
int64_t mxc_last_level_cache(void);

/* Bytes of one core's second-level cache; 512 KiB where the system does not tell. */
int64_t mxc_second_cache(void);

/* Runs work(arg, thread) on each of `threads` threads at once. */
void mxc_on_threads(int32_t threads, void (*work)(void *arg, int64_t thread), void *arg);

#endif
