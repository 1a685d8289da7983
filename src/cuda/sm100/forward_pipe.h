/* forward_pipe.h: the account that the scores role keeps of the tensor pipe and its barriers.
 *
 * Counts tell the parity of each wait: the n-th wait on a barrier (from 0) is for phase n.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_PIPE_H
#define MXA_CUDA_SM100_FORWARD_PIPE_H

#include "cuda/sm100/forward_map.h"

/* A block whose scores are issued and whose values are not. */
typedef struct forward_block {
    int pending;
    int step;        /* its stage of V */
    int keys;        /* 1..128 */
    int first, last; /* of the tile's blocks in its item */
} forward_block;

/* Indexed by tile. */
typedef struct forward_pipe {
    forward_block block[2];
    int scores[2];  /* issued */
    int loaded[2];  /* of them seen in registers: waits on s_loaded */
    int ready[2];   /* waits on p_ready */
    int queries[2]; /* items with Q done */
    int out[2];     /* O given to finish */
    int step;       /* blocks so far: stages of K and V */
    int v_seen;     /* stages of V waited for */
    uint32_t clean; /* bit of a stage: parity of its next wait on v_clean */
    int released;   /* stages of V given back */
} forward_pipe;

MXA_DEVICE void forward_pipe_init(forward_pipe *pipe)
{
    MXA_UNROLL
    for (int t = 0; t < 2; t++) {
        pipe->block[t].pending = 0;
        pipe->scores[t] = pipe->loaded[t] = pipe->ready[t] = pipe->queries[t] = pipe->out[t] = 0;
    }
    pipe->step = pipe->v_seen = pipe->released = 0;
    pipe->clean = 0;
}

/* After this every column of S[t] is dead but those that its softmax writes. */
MXA_DEVICE void forward_pipe_loaded(mxa_shared shared, forward_pipe *pipe, int t)
{
    if (pipe->loaded[t] < pipe->scores[t]) {
        mbarrier_wait(BARRIER(S_LOADED + t), (uint32_t)pipe->loaded[t]++ & 1);
    }
}

/* Everything values(t) waits for: P and V, and for its first block, O. `stages`: of V. */
MXA_DEVICE void forward_pipe_values(mxa_shared shared, forward_pipe *pipe, int t, int cleans,
                                    int stages)
{
    const forward_block *block = &pipe->block[t];
    if (block->step == pipe->v_seen) {
        const int stage = block->step & (stages - 1);
        pipe->v_seen++;
        mbarrier_wait(BARRIER(V_FULL + stage), (uint32_t)(block->step / stages) & 1);
        if (cleans && block->keys % 32 != 0) {
            mbarrier_wait(BARRIER(V_CLEAN + stage), pipe->clean >> stage & 1);
            pipe->clean ^= 1u << stage;
        }
    }
    if (block->first) {
        mbarrier_wait(BARRIER(O_EMPTY + t), ((uint32_t)pipe->out[t] & 1) ^ 1);
    }
    forward_pipe_loaded(shared, pipe, t);
    mbarrier_wait(BARRIER(P_READY + t), (uint32_t)pipe->ready[t]++ & 1);
}

/* Block j of tile t, whose scores have just been issued. */
MXA_DEVICE void forward_pipe_block(forward_pipe *pipe, const forward_tile *tile, int t, int j)
{
    pipe->block[t].pending = 1;
    pipe->block[t].step = pipe->step;
    pipe->block[t].keys = forward_tile_keys(tile, j);
    pipe->block[t].first = j == tile->block_first[t];
    pipe->block[t].last = j == tile->block_end[t] - 1;
}

/* Queries that see no key: nothing to multiply, and still an O to write. */
MXA_DEVICE int forward_pipe_blind(const forward_tile *tile, int t)
{
    return forward_tile_present(tile, t) && tile->block_first[t] == tile->block_end[t];
}

MXA_DEVICE void forward_pipe_skip(mxa_shared shared, forward_pipe *pipe, const forward_tile *tile,
                                  int t)
{
    if (forward_pipe_blind(tile, t)) {
        mbarrier_wait(BARRIER(O_EMPTY + t), ((uint32_t)pipe->out[t]++ & 1) ^ 1);
        tcgen05_commit(BARRIER(O_FULL + t));
    }
}

#endif
