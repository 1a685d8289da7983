/* batch_ranges.c: a batch cut into a few ranges of blocks of 32 tokens, for tasks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/batch_ranges.h"

#include "mx/e8m0.h"

#include <string.h>

enum {
    /* WHY: a task of fewer elements costs less than handing it to another thread. */
    TASK_ELEMENTS_LEAST = 16384,
    TASKS_MOST = 1024
};

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

int mxa_batch_ranges(const mxa_batch *batch, mxa_block_range ranges[MXA_RANGES_MOST])
{
    int64_t total = total_blocks(batch);
    if (total == 0) {
        return 0;
    }
    int64_t size = (total + MXA_RANGES_MOST - 1) / MXA_RANGES_MOST;
    int count = 0;
    int64_t next = 0; /* where the next range begins, in blocks of the batch */
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &sequence);
        for (; next < sequence.block + mxa_blocks(sequence.length); next += size) {
            ranges[count++] =
                (mxa_block_range){sequence, b, next - sequence.block, smaller(size, total - next)};
        }
    }
    return count;
}

int mxa_block_range_next(const mxa_batch *batch, mxa_block_range *range)
{
    if (--range->count == 0) {
        return 0;
    }
    range->block++;
    while (range->block * MXA_BLOCK >= range->sequence.length) {
        range->block = 0;
        range->b++;
        mxa_sequence_next(batch, range->b, &range->sequence);
    }
    return 1;
}

mxa_task_grid mxa_task_grid_make(int ranges, int64_t blocks_of_range, int64_t heads,
                                 int64_t head_dim)
{
    if (ranges == 0 || heads == 0) {
        return (mxa_task_grid){0, 0, 0};
    }
    int64_t elements = larger(blocks_of_range * MXA_BLOCK * head_dim, 1);
    int64_t group = larger(smaller(TASK_ELEMENTS_LEAST / elements, heads), 1);
    int64_t groups = smaller((heads + group - 1) / group, larger(TASKS_MOST / ranges, 1));
    group = (heads + groups - 1) / groups;
    groups = (heads + group - 1) / group;
    return (mxa_task_grid){ranges * groups, groups, group};
}
