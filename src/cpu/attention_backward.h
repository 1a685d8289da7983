/* attention_backward.h: what the backward kernels of every instruction set share.
 *
 * A call runs as parallel loops, one after the other. None of them is cut by the number of threads,
 * and every sum has a fixed order, so gradients have the same bits always.
 *   norms   (dQ reduced in FP16 only) per block of 32 keys: max |k|, max |v_j|_2
 *   rows    per block of 32 queries: q and dO decoded, delta, LSE * log2(e), share of dsink
 *   keys    per (sequence, kv head, split): dK and dV of every splits-th tile of keys, summed over
 *           the q heads of the group and all their queries; dQ of this split
 *   finish  per block of 32 queries: dQ of the splits added, scaled, stored
 * dQ of a split is FP32 memory of its own, so that no two tasks add to the same place. The number
 * of splits is a function of a sequence's length and the heads; the plan's longest sequence bounds
 * it, so the workspace is linear in the tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_BACKWARD_H
#define MXA_CPU_ATTENTION_BACKWARD_H

#include "backend.h"
#include "cpu/attention_forward.h"
#include "cpu/mask.h"
#include "cpu/parallel.h"

enum {
    MXA_BACKWARD_TILE_Q = 64,
    MXA_BACKWARD_TILE_K = 128, /* also the step of dQ's reduction in FP16 */
    /* WHY: rows of operands read as lanes lie this much further apart than their content, since
     * rows of 512 bytes fall into 8 of the 64 sets of a first-level cache. */
    MXA_BACKWARD_PAD = 16
};

/* Sizes that follow from the plan alone. Units: operand_body.h; dimensions are rounded up to whole
 * blocks of 32. */
typedef struct mxa_backward_sizes {
    int64_t blocks_q, blocks_k;       /* of 32 tokens, over all sequences */
    int64_t dims, dims_v;             /* rounded up */
    int64_t row_units, row_units_v;   /* step of a row contracted over dimensions */
    int64_t lane_units, lane_units_v; /* step of rows contracted over tokens */
    int64_t splits;                   /* most of a sequence */
    int64_t scratch_bytes;            /* of one worker */
} mxa_backward_sizes;

/* Where a row of a block lies in the arrays below: token 32*block + s of its q head. */
typedef struct mxa_backward_job {
    const mxattn_plan *plan;
    const mxattn_attention_problem *problem;
    const mxa_attention_call *call;
    mxa_backward_sizes sizes;
    int64_t batch, group;
    int e4m3, fp16;        /* intermediates; dQ's reduction */
    mxattn_tensor q, k, v; /* as the GEMMs read them: FP8 with blocks */
    mxattn_tensor q_lanes; /* for dK: q_seq, or q */
    mxattn_tensor k_lanes; /* for dQ: k_seq, or k */
    mxattn_tensor dout;
    mxattn_tensor dq, dk, dv; /* where gradients are stored: the output, or FP32 in workspace */
    const float *saved_o;     /* (tokens, Hq, Dv) and (Hq, tokens), or NULL */
    const float *saved_lse, *saved_far;
    int64_t tokens_q;
    mxa_sequence *sequences_q, *sequences_k; /* (batch+1) */
    int32_t *order;                          /* (batch): sequences, those with most work first */
    /* (Hq, 32 blocks_q, units); rows and lanes are one array where a unit is one element. */
    void *q_rows, *q_units, *dout_rows, *dout_units;
    float *lse2, *delta;     /* (Hq, 32 blocks_q); lse2 of a far row: its maximum, and */
    float *rest;             /* what LSE is beyond that */
    uint8_t *special;        /* (Hq, blocks_q): q or dO holds a NaN or an infinity */
    double *dsink;           /* (Hq, blocks_q) */
    double *norm_k, *norm_v; /* (Hkv, blocks_k) */
    double *bound;           /* (Hq, blocks_q): of |dQ| / max |k| */
    int32_t *exponent;       /* (B, Hq): dQ is reduced times 2^exponent */
    float *dq_splits;        /* (splits, Hq, 32 blocks_q, dims) */
    uint8_t *unusual;        /* (batch), or NULL: the pass that a sequence belongs to (range.h) */
    uint8_t pass;
    unsigned char *scratch;
} mxa_backward_job;

typedef struct mxa_backward_kernel {
    const char *isa;
    int32_t flushes;    /* its dot products count what is below FP32's normal range as 0 */
    int32_t unit_depth; /* elements along the contracted axis in one unit of four bytes */
    int64_t (*scratch_bytes)(const mxattn_attention_problem *problem);
    /* arg: the job. Tasks: blocks_k * Hkv, blocks_q * Hkv, B * Hkv * splits, blocks_q * Hkv. */
    mxa_parallel_task norms, rows, keys, finish;
} mxa_backward_kernel;

extern const mxa_backward_kernel mxa_backward_portable;
extern const mxa_backward_kernel mxa_backward_avx2;
extern const mxa_backward_kernel mxa_backward_avx512;
extern const mxa_backward_kernel mxa_backward_avx512bf16;
extern const mxa_backward_kernel mxa_backward_amx;

/* The kernel of the strongest instruction set of a mask; exact: of those that do not flush. */
const mxa_backward_kernel *mxa_backward_kernel_of(uint32_t isa, int exact);

/* 1 when another pass computes sequence b. */
static inline int mxa_backward_skips(const mxa_backward_job *job, int64_t b)
{
    return job->unusual && job->unusual[b] != job->pass;
}

/* The sequence that holds block `block` of a batch; table: (batch+1). */
int64_t mxa_backward_sequence_of(const mxa_sequence *table, int64_t batch, int64_t block);

/* How many splits share a sequence's tiles of keys. A function of its own keys and of the heads:
 * the order in which dQ is added depends on no other sequence and on no bound of the plan. */
int64_t mxa_backward_splits_of(int64_t keys, int64_t kv_heads);

static inline int64_t mxa_backward_splits(const mxa_backward_job *job, int64_t b)
{
    return mxa_backward_splits_of(job->sequences_k[b].used, job->problem->kv_heads);
}

/* The larger, where NaN is larger than everything. */
static inline double mxa_backward_max(double a, double b)
{
    return b > a || b != b ? b : a;
}

/* The largest of the numbers kept per block, over the tokens of a sequence that count. */
double mxa_backward_most(const double *blocks, const mxa_sequence *sequence);

/* Memory handed out piece by piece; with base NULL it is only counted, so that the same code sizes
 * memory and carves it. */
typedef struct mxa_arena {
    char *base;
    int64_t used;
} mxa_arena;

static inline void *mxa_arena_take(mxa_arena *arena, int64_t bytes)
{
    char *taken = arena->base ? arena->base + arena->used : NULL;

    arena->used += (bytes + 63) / 64 * 64;
    return taken;
}

/* Fills the backward half of a plan: kernel_backward, workspace_backward_bytes. */
void mxa_cpu_attention_backward_plan(mxattn_plan *plan);

mxattn_status mxa_cpu_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
