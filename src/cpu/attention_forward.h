/* attention_forward.h: what the forward kernels of every instruction set share.
 *
 * A tile is a run of lanes of one sequence and kv head: lane l stands for query l / group and q
 * head kv_head*group + l % group, so that the heads which share keys and values share their decode,
 * and a decode step with few queries still fills its lanes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_FORWARD_H
#define MXA_CPU_ATTENTION_FORWARD_H

#include "backend.h"
#include "cpu/parallel.h"

/* One forward call, ready to run. Task t is kv head t % kv_heads of tile tiles-1 - t / kv_heads:
 * last tiles first, since they see most keys under causal masks. */
typedef struct mxa_forward_job {
    const mxattn_attention_problem *problem;
    const mxa_attention_call *call;
    mxattn_tensor q, k,
        v; /* as the GEMMs read them: FP8 with blocks; v its column partner if any */
    const mxa_sequence *sequences_q, *sequences_k; /* (batch) */
    const int64_t *first_tile;                     /* (batch+1) */
    const int64_t *first_part;                     /* (batch+1), of sequences with few queries */
    int64_t batch;
    int64_t group;      /* q heads of one kv head */
    int64_t tile_q;     /* lanes of a tile; every lane's bits are the same for any */
    float q_factor;     /* -1, 0 or 1: q is multiplied with it, so that scale_log2 is positive */
    float scale_log2;   /* y = scale_log2 * (q_factor*q).k, before softcap */
    float softcap_log2; /* softcap in log2 units; 0: off */
    int e4m3;           /* P is rounded to E4M3 rather than BF16 */
    float *o_wide;      /* (tokens, Hq, Dv) FP32, or NULL */
    float *lse_wide;    /* (Hq, tokens), or NULL; so is the next */
    float *far_wide;
    int64_t tokens_q;
    const uint8_t *unusual; /* (batch), or NULL: the pass that a sequence belongs to (range.h) */
    uint8_t pass;
    unsigned char *scratch; /* of worker w: scratch + w*scratch_bytes */
    int64_t scratch_bytes;
    int64_t part_scratch; /* offset in it of what a part needs */
    float *parts_q;       /* (batch, Hkv, mxa_forward_parts_q_floats) q decoded */
    float *parts;         /* partial results (attention_forward_decode_body.h) */
    int64_t lanes_most;   /* of a sequence that is computed in parts; 0: none is */
    int32_t workers;      /* that take parts in turns */
} mxa_forward_job;

/* Sequences with few queries: a part is MXA_PART_KEYS keys for all lanes. */
enum { MXA_PART_KEYS = 256, MXA_DECODE_LANES_MOST = 16 };

static inline int64_t mxa_forward_parts(int64_t keys)
{
    return keys > MXA_PART_KEYS ? (keys + MXA_PART_KEYS - 1) / MXA_PART_KEYS : 1;
}

/* From a row of q, or of a part's O, to the next. */
static inline int64_t mxa_forward_q_step(int64_t head_dim)
{
    return (head_dim + 63) / 64 * 64;
}

static inline int64_t mxa_forward_o_step(int64_t head_dim_v)
{
    return (head_dim_v + 63) / 64 * 64;
}

/* 0 or a power of two. */
static inline int64_t mxa_forward_lanes_padded(int64_t lanes)
{
    int64_t padded = lanes > 0;

    while (padded < lanes)
        padded *= 2;
    return padded;
}

/* A head's rows of q twice, as they are and as the kernel wants them, and a flag: whole lines. */
static inline int64_t mxa_forward_parts_q_floats(int64_t lanes, int64_t head_dim)
{
    return 2 * mxa_forward_lanes_padded(lanes) * mxa_forward_q_step(head_dim) + 16;
}

/* O, m and l of each lane, and a flag: whole lines. */
static inline int64_t mxa_forward_part_floats(int64_t lanes, int64_t head_dim_v)
{
    const int64_t o = mxa_forward_lanes_padded(lanes) * mxa_forward_o_step(head_dim_v);

    return o + 2 * MXA_DECODE_LANES_MOST + 16;
}

typedef struct mxa_forward_kernel {
    const char *isa;
    int32_t lanes;       /* of a register tile; a tile's are a multiple */
    int32_t groups_most; /* that multiple at most */
    int32_t tile_k;      /* keys decoded at a time */
    int32_t flushes;     /* its dot products count what is below FP32's normal range as 0 */
    int64_t (*scratch_bytes)(int64_t head_dim, int64_t head_dim_v, int64_t *part_scratch);
    mxa_parallel_task task; /* arg: the job */
    int32_t decode_lanes;   /* a sequence with no more is computed in parts */
    mxa_parallel_task decode_start_task, decode_task, decode_finish_task;
} mxa_forward_kernel;

/* Those this build lacks are never referred to. */
extern const mxa_forward_kernel mxa_forward_portable;
extern const mxa_forward_kernel mxa_forward_avx2;
extern const mxa_forward_kernel mxa_forward_avx512;
extern const mxa_forward_kernel mxa_forward_avx512bf16;
extern const mxa_forward_kernel mxa_forward_amx;

/* The strongest kernel of a mask; exact: of those that do not flush. */
const mxa_forward_kernel *mxa_forward_kernel_of(uint32_t isa, int exact);

/* LSE in log2 units beyond which FP32 holds its fraction too coarsely: 2^-10 and more. */
enum { MXA_SAVED_FAR = 1 << 14 };

/* What a training forward leaves in saved memory: O unrounded and LSE, over all tokens. */
typedef struct mxa_saved_view {
    float *o;   /* (tokens, Hq, Dv) */
    float *lse; /* (Hq, tokens); of a row that is far, log2 of its sum */
    float *far; /* (Hq, tokens): 0, or the row's maximum in log2 units */
} mxa_saved_view;

mxa_saved_view mxa_cpu_saved_view(const mxattn_attention_problem *problem, void *saved,
                                  int64_t tokens_q);

/* Tokens of q with storage in this call. */
int64_t mxa_cpu_tokens_q(const mxa_attention_call *call);

/* Fills the forward half of a plan: kernel_forward, workspace_forward_bytes, saved_bytes. */
void mxa_cpu_attention_forward_plan(mxattn_plan *plan);

mxattn_status mxa_cpu_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call);

#endif
