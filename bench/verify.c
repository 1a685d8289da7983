/* verify.c: results are compared with the model before anything is timed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "verify.h"

#include "compare.h"
#include "error.h"
#include "run.h"
#include "thresholds.h"

#include <stdlib.h>

enum { BLOCK = 32, PART = 64 };

/* The part: tokens [first, first + count) of one sequence, and some heads. */
typedef struct part {
    int64_t first_q, count_q, first_k, count_k; /* places in the whole tensors */
    int64_t head, heads, kv_head;
} part;

/* Which tokens and heads of the tensor a part has. */
static void part_of(const part *p, int tensor, int64_t *first, int64_t *count, int64_t *head,
                    int64_t *heads)
{
    int of_k = tensor == MXC_K || tensor == MXC_V || tensor == MXC_DK || tensor == MXC_DV;
    *first = of_k ? p->first_k : p->first_q;
    *count = of_k ? p->count_k : p->count_q;
    *head = of_k ? p->kv_head : p->head;
    *heads = of_k ? 1 : p->heads;
}

/* A view of a part of an operand, as a dense tensor of one sequence. */
static mxattn_tensor view(const mxc_sizes *s, const mxattn_attention_problem *problem,
                          const mxc_tensor_set *set, const part *p, int tensor)
{
    mxc_tensor_kind kind = mxc_tensor_kind_of(s, problem, tensor);
    const mxattn_tensor *whole = &set->t[tensor];
    int64_t first, count, head, heads, blocks = (kind.dim + BLOCK - 1) / BLOCK;
    part_of(p, tensor, &first, &count, &head, &heads);
    int64_t at = first * kind.heads + head;
    int64_t bytes = kind.tags.dtype == MXATTN_F32 ? 4 : kind.tags.dtype == MXATTN_BF16 ? 2 : 1;
    mxattn_tensor t;
    mxattn_tensor_view(&t, kind.tags.dtype, (char *)whole->data + at * kind.dim * bytes, 4,
                       (int64_t[]){1, count, heads, kind.dim});
    t.tags = kind.tags;
    t.stride[1] = kind.heads * kind.dim;
    t.stride[0] = count * t.stride[1];
    if (whole->scales[MXATTN_HDIM].data) {
        mxattn_scales *scales = &t.scales[MXATTN_HDIM];
        scales->data = whole->scales[MXATTN_HDIM].data + at * blocks;
        scales->stride_row = kind.heads * blocks;
        scales->stride_head = blocks;
        scales->stride_k = 1;
    }
    return t;
}

/* A part's values out of a whole result, float32 or BF16, contiguous. */
static float *gather(const mxc_sizes *s, const mxattn_attention_problem *problem,
                     const mxc_tensor_set *set, const part *p, int tensor)
{
    mxc_tensor_kind kind = mxc_tensor_kind_of(s, problem, tensor);
    const mxattn_tensor *whole = &set->t[tensor];
    int64_t first, count, head, heads;
    part_of(p, tensor, &first, &count, &head, &heads);
    float *values = mxc_tool_alloc((size_t)(count * heads * kind.dim) * sizeof *values),
          *to = values;
    for (int64_t r = first; r < first + count; r++)
        for (int64_t h = head; h < head + heads; h++)
            for (int64_t d = 0; d < kind.dim; d++) {
                int64_t at = (r * kind.heads + h) * kind.dim + d;
                *to++ = kind.tags.dtype == MXATTN_BF16
                            ? mxc_from_bf16(((const uint16_t *)whole->data)[at])
                            : ((const float *)whole->data)[at];
            }
    return values;
}

/* LSE of a part as (heads, rows): of (B, H, S), or (H, T) when jagged. */
static float *gather_lse(const mxc_sizes *s, const mxc_tensor_set *set, const part *p)
{
    float *values = mxc_tool_alloc((size_t)(p->count_q * p->heads) * sizeof *values), *to = values;
    int64_t row = s->cu_seqlens ? s->total_q : s->seqlen_q;
    int64_t b = s->cu_seqlens ? 0 : p->first_q / s->seqlen_q;
    int64_t first = s->cu_seqlens ? p->first_q : p->first_q % s->seqlen_q;
    const float *lse = set->t[MXC_LSE].data;
    for (int64_t h = p->head; h < p->head + p->heads; h++)
        for (int64_t i = first; i < first + p->count_q; i++)
            *to++ = lse[(b * s->heads + h) * row + i];
    return values;
}

/* The whole of the longest sequence, and the last kv head with its query heads. */
static part longest(const mxc_sizes *s)
{
    int64_t ratio = s->heads / s->kv_heads, b = s->batch - 1;
    part p = {.head = s->heads - ratio, .heads = ratio, .kv_head = s->kv_heads - 1};
    for (int64_t i = 0; s->cu_seqlens && i < s->batch; i++)
        if (s->cu_seqlens[i + 1] - s->cu_seqlens[i] == s->seqlen_q)
            b = i;
    p.first_q = s->cu_seqlens ? s->cu_seqlens[b] : b * s->seqlen_q;
    p.first_k = s->cu_seqlens ? s->cu_seqlens[b] : b * s->seqlen_k;
    p.count_q = s->seqlen_q;
    p.count_k = s->seqlen_k;
    return p;
}

/* Leaves the last tokens, from a multiple of 32 on. */
static void keep_last(int64_t *first, int64_t *count)
{
    int64_t skip = *count > PART ? (*count - PART) / BLOCK * BLOCK : 0;
    *first += skip;
    *count -= skip;
}

static mxattn_attention_problem part_problem(const mxattn_attention_problem *whole,
                                             const mxattn_plan_info *info, const part *p)
{
    mxattn_attention_problem problem = *whole;
    problem.backend = MXATTN_BACKEND_REF;
    problem.precision = MXATTN_PRECISION_MODEL;
    problem.format = MXATTN_DENSE;
    problem.batch = 1;
    problem.max_seqlen_q = p->count_q;
    problem.max_seqlen_k = p->count_k;
    problem.heads = p->heads;
    problem.kv_heads = 1;
    problem.intermediates = info->intermediates;
    problem.dq_reduce = info->dq_reduce;
    problem.o = problem.dq = problem.dk = problem.dv = (mxattn_tags){.dtype = MXATTN_F32};
    return problem;
}

static void require(const char *name, float *got, const float *right, int64_t count, double limit)
{
    mxc_error error = mxc_compare(got, right, count);
    if (!(error.rms <= limit))
        mxc_die(
            "%s is wrong: rms %.3g against the model, where %.3g is the limit; nothing is timed",
            name, error.rms, limit);
    free(got);
}

/* Share of what is allowed against float64 that is allowed against the model; and LSE's limit. A
 * device rounds elsewhere than the model: tools/thresholds.h. */
static double share(const mxattn_plan_info *info)
{
    return info->backend == MXATTN_BACKEND_CUDA ? MXC_DEVICE_SHARE : MXC_MODEL_SHARE;
}

static double limit_lse(const mxattn_plan_info *info)
{
    return info->backend == MXATTN_BACKEND_CUDA ? MXC_DEVICE_LIMIT_MODEL : MXC_LIMIT_LSE_MODEL;
}

static mxattn_tensor result(int64_t tokens, int64_t heads, int64_t dim)
{
    mxattn_tensor t;
    mxattn_tensor_view(&t, MXATTN_F32,
                       mxc_tool_alloc((size_t)(tokens * heads * dim) * sizeof(float)), 4,
                       (int64_t[]){1, tokens, heads, dim});
    return t;
}

/* O, LSE and dQ of the last rows. */
static void verify_rows(const mxattn_context *checker, const mxc_sizes *s,
                        const mxattn_attention_problem *problem, const mxattn_plan_info *info,
                        const mxc_tensor_set *set, int backward)
{
    part p = longest(s);
    keep_last(&p.first_q, &p.count_q);
    mxc_run run = {.problem = part_problem(problem, info, &p)};
    run.problem.mode = backward ? MXATTN_TRAINING : MXATTN_INFERENCE;
    run.q = view(s, problem, set, &p, MXC_Q);
    run.k = view(s, problem, set, &p, MXC_K);
    run.v = view(s, problem, set, &p, MXC_V);
    run.dout = view(s, problem, set, &p, MXC_DOUT);
    run.o = result(p.count_q, p.heads, s->head_dim_v);
    run.lse = result(p.heads, p.count_q, 1);
    run.lse.ndim = 3;
    run.dq = result(p.count_q, p.heads, s->head_dim);
    run.dk = result(p.count_k, 1, s->head_dim);
    run.dv = result(p.count_k, 1, s->head_dim_v);
    mxc_run_attention(checker, &run);
    int64_t rows = p.count_q * p.heads;
    require("O", gather(s, problem, set, &p, MXC_O), run.o.data, rows * s->head_dim_v,
            share(info) * MXC_LIMIT_O_BF16 + MXC_BF16_OUTPUT);
    require("LSE", gather_lse(s, set, &p), run.lse.data, rows, limit_lse(info));
    if (backward)
        require("dQ", gather(s, problem, set, &p, MXC_DQ), run.dq.data, rows * s->head_dim,
                share(info) * MXC_LIMIT_DQ_DK + MXC_BF16_OUTPUT);
    free(run.o.data);
    free(run.lse.data);
    free(run.dq.data);
    free(run.dk.data);
    free(run.dv.data);
}

/* dK and dV of the last keys: their backward with the O and LSE of all keys. */
static void verify_keys(const mxattn_context *checker, const mxc_sizes *s,
                        const mxattn_attention_problem *problem, const mxattn_plan_info *info,
                        const mxc_tensor_set *set)
{
    part p = longest(s);
    keep_last(&p.first_k, &p.count_k);
    mxattn_attention_problem choices = part_problem(problem, info, &p);
    choices.mode = MXATTN_TRAINING;
    mxattn_tensor q = view(s, problem, set, &p, MXC_Q), k = view(s, problem, set, &p, MXC_K);
    mxattn_tensor v = view(s, problem, set, &p, MXC_V), o = view(s, problem, set, &p, MXC_O);
    mxattn_tensor dout = view(s, problem, set, &p, MXC_DOUT), lse;
    mxattn_tensor dq = result(p.count_q, p.heads, s->head_dim);
    mxattn_tensor dk = result(p.count_k, 1, s->head_dim);
    mxattn_tensor dv = result(p.count_k, 1, s->head_dim_v);
    mxattn_tensor_view(&lse, MXATTN_F32, gather_lse(s, set, &p), 3,
                       (int64_t[]){1, p.heads, p.count_q});
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.o = &o;
    args.lse = &lse;
    args.dout = &dout;
    args.dq = &dq;
    args.dk = &dk;
    args.dv = &dv;
    mxattn_plan *plan;
    mxattn_plan_info sizes;
    mxattn_plan_info_init(&sizes);
    mxc_need(mxattn_plan_create(checker, &choices, &plan));
    mxc_need(mxattn_plan_query(plan, &sizes));
    args.workspace_bytes = (size_t)sizes.workspace_backward_bytes;
    args.workspace = mxc_tool_alloc(args.workspace_bytes);
    mxc_need(mxattn_attention_backward(plan, &args));
    require("dK", gather(s, problem, set, &p, MXC_DK), dk.data, p.count_k * s->head_dim,
            share(info) * MXC_LIMIT_DQ_DK + MXC_BF16_OUTPUT);
    require("dV", gather(s, problem, set, &p, MXC_DV), dv.data, p.count_k * s->head_dim_v,
            share(info) * MXC_LIMIT_DV + MXC_BF16_OUTPUT);
    mxattn_plan_destroy(plan);
    free(args.workspace);
    free(lse.data);
    free(dq.data);
    free(dk.data);
    free(dv.data);
}

void mxc_verify_attention(const mxattn_context *checker, const mxc_sizes *sizes,
                          const mxattn_attention_problem *problem, const mxattn_plan_info *info,
                          const mxc_tensor_set *set, int backward)
{
    verify_rows(checker, sizes, problem, info, set, backward);
    if (backward)
        verify_keys(checker, sizes, problem, info, set);
}
