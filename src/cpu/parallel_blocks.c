/* parallel_blocks.c: runs a function over every block of 32 tokens of a batch, in parallel.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/parallel_blocks.h"

#include "cpu/parallel.h"
#include "mx/e8m0.h"

#include <string.h>

enum {
    TASKS_MOST = 1024,
    /* WHY: a task of fewer elements costs less than handing it to another thread. */
    TASK_ELEMENTS = 16384
};

/* Blocks that follow each other, over the ends of sequences. */
typedef struct range {
    mxa_block_at first;
    int64_t count;
} range;

typedef struct job {
    const mxa_batch *batch;
    mxa_block_fn fn;
    void *arg;
    int64_t heads;
    int64_t walk;  /* fn is called for blocks that are a multiple of it in their sequence */
    int64_t group; /* heads of a task; the last group may have fewer */
    int64_t groups;
    range ranges[MXA_RANGES_MOST];
} job;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t total_blocks(const mxa_batch *batch)
{
    int64_t blocks = 0;
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &sequence);
        blocks += mxa_blocks(sequence.length);
    }
    return blocks;
}

static int64_t make_ranges(const mxa_batch *batch, int64_t together, range ranges[MXA_RANGES_MOST])
{
    int64_t total = total_blocks(batch), count = 0, next = 0;
    int64_t size = (total + MXA_RANGES_MOST - 1) / MXA_RANGES_MOST;
    if (size > 1) {
        size = (size + together - 1) / together * together;
    }
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &sequence);
        for (; next < sequence.block + mxa_blocks(sequence.length); next += size) {
            ranges[count++] =
                (range){{.sequence = sequence, .b = b, .block = next - sequence.block},
                        smaller(size, total - next)};
        }
    }
    return count;
}

/* On to the next walk, or the next sequence; gives the blocks passed. */
static int64_t step(const mxa_batch *batch, int64_t walk, mxa_block_at *at)
{
    const int64_t to_walk = walk > 1 ? walk - at->block % walk : 1;
    const int64_t passed = smaller(to_walk, mxa_blocks(at->sequence.length) - at->block);
    at->block += passed;
    while (at->block * MXA_BLOCK >= at->sequence.length && at->b + 1 < batch->batch) {
        at->block = 0;
        at->b++;
        mxa_sequence_next(batch, at->b, &at->sequence);
    }
    return passed;
}

static void run_task(void *arg, int64_t task, int32_t worker)
{
    const job *j = arg;
    const range *r = &j->ranges[task / j->groups];
    mxa_block_at at = r->first;
    at.range = task / j->groups;
    at.worker = worker;
    int64_t head = task % j->groups * j->group;
    int64_t head_end = smaller(head + j->group, j->heads);
    for (int64_t i = 0; i < r->count; i += step(j->batch, j->walk, &at)) {
        if (j->walk > 1 && at.block % j->walk != 0) {
            continue;
        }
        at.before = i;
        at.left = r->count - i;
        j->fn(j->arg, &at, head, head_end);
    }
}

static void run(const mxattn_context *context, int64_t together, int64_t head_dim, job *j)
{
    int64_t ranges = make_ranges(j->batch, together, j->ranges);
    if (ranges == 0 || j->heads == 0) {
        return;
    }
    int64_t elements_of_head = j->ranges[0].count * MXA_BLOCK * head_dim;
    int64_t enough = larger(TASK_ELEMENTS / elements_of_head, 1);
    int64_t groups_most = larger(TASKS_MOST / ranges, 1);
    j->group = larger(smaller(enough, j->heads), (j->heads + groups_most - 1) / groups_most);
    j->groups = (j->heads + j->group - 1) / j->group;
    mxa_parallel_for(context, ranges * j->groups, run_task, j);
}

void mxa_parallel_blocks(const mxattn_context *context, const mxa_batch *batch, int64_t heads,
                         int64_t head_dim, mxa_block_fn fn, void *arg)
{
    mxa_parallel_runs(context, batch, 2, heads, head_dim, fn, arg);
}

void mxa_parallel_runs(const mxattn_context *context, const mxa_batch *batch, int64_t together,
                       int64_t heads, int64_t head_dim, mxa_block_fn fn, void *arg)
{
    job j = {.batch = batch, .fn = fn, .arg = arg, .heads = heads, .walk = 1};
    run(context, together, head_dim, &j);
}

void mxa_parallel_walks(const mxattn_context *context, const mxa_batch *batch, int64_t walk,
                        int64_t heads, int64_t head_dim, mxa_block_fn fn, void *arg)
{
    job j = {.batch = batch, .fn = fn, .arg = arg, .heads = heads, .walk = walk};
    run(context, walk, head_dim, &j);
}
