/* batch_ranges.h: a batch cut into a few ranges of blocks of 32 tokens, for tasks.
 *
 * The cut depends on the batch only, never on the number of threads, and needs no memory beyond the
 * caller's table: one walk over the sequences finds where every range begins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_BATCH_RANGES_H
#define MXA_CPU_BATCH_RANGES_H

#include "mx/sequences.h"

enum { MXA_RANGES_MOST = 128 };

/* Blocks that follow each other, over the ends of sequences. */
typedef struct mxa_block_range {
    mxa_sequence sequence; /* of the first block */
    int64_t b;
    int64_t block; /* first block, counted from the start of its sequence */
    int64_t count; /* of blocks */
} mxa_block_range;

/* Fills ranges and returns how many there are: 0 when the batch has no tokens. */
int mxa_batch_ranges(const mxa_batch *batch, mxa_block_range ranges[MXA_RANGES_MOST]);

/* Moves a copy of a range to its next block; returns 0 when there is none. */
int mxa_block_range_next(const mxa_batch *batch, mxa_block_range *range);

/* Tasks over ranges x groups of heads, of about `least` elements or more each. */
typedef struct mxa_task_grid {
    int64_t tasks;
    int64_t groups;
    int64_t heads; /* of a group; the last may have fewer */
} mxa_task_grid;

mxa_task_grid mxa_task_grid_make(int ranges, int64_t blocks_of_range, int64_t heads,
                                 int64_t head_dim);

#endif
