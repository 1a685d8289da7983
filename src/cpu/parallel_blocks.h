/* parallel_blocks.h: runs a function over every block of 32 tokens of a batch, in parallel.
 *
 * The tasks are ranges of blocks times groups of heads. They depend on the batch and the shape,
 * never on the number of threads. No memory is allocated: one walk over the sequences finds where
 * each of at most 128 ranges begins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_PARALLEL_BLOCKS_H
#define MXA_CPU_PARALLEL_BLOCKS_H

#include "backend.h"
#include "mx/sequences.h"

/* One block of one sequence. */
typedef struct mxa_block_at {
    mxa_sequence sequence;
    int64_t b;
    int64_t block;        /* counted from the start of its sequence: tokens block*32 ... */
    int64_t range;        /* below MXA_RANGES_MOST; the same for the same batch */
    int32_t worker;       /* slot of the thread, which chooses its scratch */
    int64_t before, left; /* blocks of the task in front of this one, and from it on */
} mxa_block_at;

enum { MXA_RANGES_MOST = 128 };

/* Handles heads [head, head_end) of a block. */
typedef void (*mxa_block_fn)(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end);

/* Calls fn for every block and head, each once; blocks of a task in order. Sequences without tokens
 * have no block. Arithmetic inside is IEEE whatever the calling thread has set. */
void mxa_parallel_blocks(const mxattn_context *context, const mxa_batch *batch, int64_t heads,
                         int64_t head_dim, mxa_block_fn fn, void *arg);

/* The same; the ranges of a large batch are multiples of `together` blocks. 2 without it: 64
 * tokens, a line of bytes. */
void mxa_parallel_runs(const mxattn_context *context, const mxa_batch *batch, int64_t together,
                       int64_t heads, int64_t head_dim, mxa_block_fn fn, void *arg);

/* The same, but fn is called only for blocks that are a multiple of `walk` in their sequence, and
 * sees to those up to the next one itself, whichever task they are in. */
void mxa_parallel_walks(const mxattn_context *context, const mxa_batch *batch, int64_t walk,
                        int64_t heads, int64_t head_dim, mxa_block_fn fn, void *arg);

#endif
