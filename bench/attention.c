/* attention.c: attention, verified, then timed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"
#include "compare.h"
#include "device_time.h"
#include "error.h"
#include "progress.h"
#include "tensors.h"
#include "thresholds.h"
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LIMITS_MOST = 2 };

static const int64_t memory_limit = (int64_t)1 << 30; /* of all sets */

typedef struct timed {
    mxc_bench *bench;
    mxattn_attention_problem problem;
    mxattn_plan *plan;
    mxattn_plan_info info;
    int backward, in_call, sets, on_device;
    mxc_bench_row row;
    mxc_limit limits[LIMITS_MOST];
    int limit_count;
    double seconds;      /* of the first call */
    mxc_tensor_set host; /* the first set, or on a device what it is a copy of */
    mxc_tensor_set *set;
    mxattn_attention_args *args; /* of each set */
} timed;

static void run_forward(void *memory, int set)
{
    timed *t = memory;
    mxc_need(mxattn_attention_forward(t->plan, &t->args[set]));
}

static void run_backward(void *memory, int set)
{
    timed *t = memory;
    mxc_need(mxattn_attention_backward(t->plan, &t->args[set]));
}

static void set_problem(const mxc_bench *b, timed *t)
{
    const int backward = t->backward;
    mxc_options_problem(b->options, t->in_call ? MXATTN_BF16 : MXATTN_E4M3, &t->problem);
    mxc_sizes_problem(b->sizes, &t->problem);
    t->problem.mode = backward ? MXATTN_TRAINING : MXATTN_INFERENCE;
    /* Backward takes O in float32 from forward, so that it needs no saved memory; results leave as
     * BF16, as in training. */
    t->problem.o = (mxattn_tags){.dtype = backward ? MXATTN_F32 : MXATTN_BF16};
    t->problem.dq = t->problem.dk = t->problem.dv = (mxattn_tags){.dtype = MXATTN_BF16};
    mxattn_plan_info_init(&t->info);
    mxc_need(mxattn_plan_create(b->context, &t->problem, &t->plan));
    mxc_need(mxattn_plan_query(t->plan, &t->info));
}

/* Where the copy of a set in memory of its own has what is at `at` in the set. */
static void *moved(const void *at, const mxc_tensor_set *from, const mxc_tensor_set *to)
{
    return at ? (char *)to->memory + ((const char *)at - (const char *)from->memory) : NULL;
}

/* A copy of the first set. */
static void copy_set(const timed *t, int64_t bytes, mxc_tensor_set *set)
{
    *set = t->host;
    if (t->on_device) {
        set->memory = mxc_device_memory(t->host.memory, (size_t)bytes);
    } else {
        set->memory = mxc_tool_alloc((size_t)bytes);
        memcpy(set->memory, t->host.memory, (size_t)bytes);
    }
    for (int i = 0; i < MXC_TENSORS; i++) {
        mxattn_tensor *tensor = &set->t[i];
        tensor->data = moved(tensor->data, &t->host, set);
        tensor->scales[MXATTN_HDIM].data = moved(tensor->scales[MXATTN_HDIM].data, &t->host, set);
    }
}

/* All sets, filled; the workspace is shared, for it is scratch that stays warm in use too. */
static void make_sets(const mxc_bench *b, timed *t)
{
    int64_t bytes = mxc_tensor_set_bytes(b->sizes, &t->problem);
    int64_t workspace = t->info.workspace_forward_bytes;
    if (t->info.workspace_backward_bytes > workspace)
        workspace = t->info.workspace_backward_bytes;
    t->sets = b->cached ? 1 : mxc_rotation_sets(bytes, memory_limit);
    t->set = mxc_tool_alloc((size_t)t->sets * sizeof *t->set);
    t->args = mxc_tool_alloc((size_t)t->sets * sizeof *t->args);
    void *scratch = t->on_device ? mxc_device_memory(NULL, (size_t)workspace)
                                 : mxc_tool_alloc((size_t)workspace);
    const int32_t *cu_seqlens = b->sizes->cu_seqlens;
    if (t->on_device && cu_seqlens)
        cu_seqlens =
            mxc_device_memory(cu_seqlens, (size_t)(b->sizes->batch + 1) * sizeof *cu_seqlens);
    mxc_tensor_set_make(b->sizes, &t->problem, &t->host);
    mxc_tensor_set_fill(b->context, b->sizes, &t->problem, b->options->seed, &t->host);
    for (int i = 0; i < t->sets; i++) {
        mxc_tensor_set *set = &t->set[i];
        mxattn_attention_args *args = &t->args[i];
        if (i == 0 && !t->on_device)
            *set = t->host;
        else
            copy_set(t, bytes, set);
        mxattn_attention_args_init(args);
        args->q = &set->t[MXC_Q];
        args->k = &set->t[MXC_K];
        args->v = &set->t[MXC_V];
        args->o = &set->t[MXC_O];
        args->lse = &set->t[MXC_LSE];
        if (t->backward) {
            args->dout = &set->t[MXC_DOUT];
            args->dq = &set->t[MXC_DQ];
            args->dk = &set->t[MXC_DK];
            args->dv = &set->t[MXC_DV];
        }
        args->batch = b->sizes->cu_seqlens ? b->sizes->batch : -1;
        args->cu_seqlens_q = args->cu_seqlens_k = cu_seqlens;
        args->workspace = scratch;
        args->workspace_bytes = (size_t)workspace;
        const double start = mxc_seconds();
        if (i == 0 || (t->backward && t->on_device)) /* else O and LSE come with the copy */
            run_forward(t, i);
        if (i == 0)
            t->seconds = mxc_seconds() - start;
    }
}

static void release(timed *t)
{
    void (*const give)(void *memory) = t->on_device ? mxc_device_release : free;
    give(t->args[0].workspace);
    for (int i = 0; i < t->sets; i++)
        give(t->set[i].memory);
    if (t->on_device) {
        if (t->args[0].cu_seqlens_q)
            give((void *)(uintptr_t)t->args[0].cu_seqlens_q);
        free(t->host.memory);
    }
    free(t->set);
    free(t->args);
    mxattn_plan_destroy(t->plan);
}

typedef struct timed_baseline {
    void (*run)(const mxc_baseline_problem *problem);
    mxc_baseline_problem problem;
} timed_baseline;

static void run_baseline(void *memory, int set)
{
    const timed_baseline *t = memory;
    (void)set;
    t->run(&t->problem);
}

/* Packed offsets of a dense batch. */
static int32_t *dense_offsets(int64_t batch, int64_t seqlen)
{
    int32_t *offsets = mxc_tool_alloc((size_t)(batch + 1) * sizeof *offsets);
    for (int64_t i = 0; i <= batch; i++)
        offsets[i] = (int32_t)(i * seqlen);
    return offsets;
}

static float *floats(int64_t count)
{
    return mxc_tool_alloc((size_t)count * sizeof(float));
}

/* What the baseline computes must be what the kernel computes, but for MXFP8's intermediates. */
static void compare_baseline(const mxc_bench *b, const timed *t, const mxc_baseline *baseline,
                             const mxc_baseline_problem *p)
{
    const mxc_sizes *s = b->sizes;
    const int which = t->backward ? MXC_DQ : MXC_O;
    float *ours = mxc_tensor_values(b->context, s, &t->host.t[which]);
    int64_t count = s->total_q * s->heads * (t->backward ? s->head_dim : s->head_dim_v);
    mxc_error error = mxc_compare(ours, t->backward ? p->dq : p->o, count);
    if (!(error.rms <= (t->backward ? MXC_LIMIT_DQ_DK : MXC_LIMIT_O_E4M3)))
        mxc_die("the baseline %s computes something else: rms %.3g of %s", baseline->name,
                error.rms, t->backward ? "dQ" : "O");
    free(ours);
}

/* A problem for baselines out of the first set, and its memory. */
typedef struct baseline_memory {
    mxc_baseline_problem problem;
    int32_t *offsets_q, *offsets_k; /* NULL: the sizes' own */
    float *operands[4];
} baseline_memory;

static void baseline_problem_make(const mxc_bench *b, const timed *t, baseline_memory *m)
{
    const mxc_sizes *s = b->sizes;
    const mxattn_attention_problem *problem = &t->problem;
    *m = (baseline_memory){0};
    if (!s->cu_seqlens) {
        m->offsets_q = dense_offsets(s->batch, s->seqlen_q);
        m->offsets_k = dense_offsets(s->batch, s->seqlen_k);
    }
    for (int i = MXC_Q; i <= MXC_DOUT; i++)
        m->operands[i] = mxc_tensor_values(b->context, s, &t->host.t[i]);
    m->problem =
        (mxc_baseline_problem){.batch = s->batch,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .head_dim = s->head_dim,
                               .head_dim_v = s->head_dim_v,
                               .cu_seqlens_q = s->cu_seqlens ? s->cu_seqlens : m->offsets_q,
                               .cu_seqlens_k = s->cu_seqlens ? s->cu_seqlens : m->offsets_k,
                               .left = problem->window[0],
                               .right = problem->causal ? 0 : problem->window[1],
                               .softmax_scale = t->info.softmax_scale,
                               .threads = b->threads,
                               .q = m->operands[MXC_Q],
                               .k = m->operands[MXC_K],
                               .v = m->operands[MXC_V],
                               .dout = m->operands[MXC_DOUT],
                               .o = floats(s->total_q * s->heads * s->head_dim_v),
                               .lse = floats(s->total_q * s->heads),
                               .dq = floats(s->total_q * s->heads * s->head_dim),
                               .dk = floats(s->total_k * s->kv_heads * s->head_dim),
                               .dv = floats(s->total_k * s->kv_heads * s->head_dim_v)};
}

static void baseline_problem_release(baseline_memory *m)
{
    for (int i = 0; i < 4; i++)
        free(m->operands[i]);
    free(m->problem.o);
    free(m->problem.lse);
    free(m->problem.dq);
    free(m->problem.dk);
    free(m->problem.dv);
    free(m->offsets_q);
    free(m->offsets_k);
}

static mxc_work work_of(timed *t)
{
    return (mxc_work){.run = t->backward ? run_backward : run_forward, .arg = t, .sets = t->sets};
}

/* Where few queries meet many keys, reading those (and their scales) may be what takes longest. */
static double bytes_read(const mxc_bench *b)
{
    const mxc_sizes *s = b->sizes;
    return (double)(s->total_k * s->kv_heads * (s->head_dim + s->head_dim_v)) * 33 / 32;
}

static void set_limits(const mxc_bench *b, timed *t)
{
    enum { FEW_QUERIES = 64 };
    t->limits[t->limit_count++] =
        mxc_arithmetic_limit(t->info.isa_name, b->threads, mxc_limit_seconds(b, t->seconds));
    if (!b->cached && !t->backward && !t->in_call && b->sizes->seqlen_q <= FEW_QUERIES)
        t->limits[t->limit_count++] = mxc_read_limit(b->threads);
}

/* The row's time, and its share of the limit that it comes nearest to; limits: their turns. */
static void set_row_time(timed *t, const mxc_work *ours, const mxc_work *limits)
{
    const double flops = t->row.flops;
    t->row.timing = ours->timing;
    for (int i = 0; i < t->limit_count; i++) {
        const mxc_limit *limit = &t->limits[i];
        const double work = limit->counts_flops ? flops : bytes_read(t->bench);
        const double share = work / limit->amount * mxc_time_over(&limits[i], ours);
        if (share <= t->row.share)
            continue;
        t->row.share = share;
        t->row.ceiling = mxc_limit_ceiling(limit, &limits[i]);
        t->row.flops = limit->counts_flops ? work : 0;
        t->row.bytes = limit->counts_flops ? 0 : work;
    }
}

static int add_limits(const timed *t, mxc_work *works)
{
    for (int i = 0; i < t->limit_count; i++)
        works[i] = t->limits[i].work;
    return t->limit_count;
}

/* Ours, what limits it, and each baseline in turns. */
static void time_in_turns(mxc_bench *b, timed *t, double *ratios)
{
    baseline_memory memory;
    timed_baseline other[MXC_BASELINES_MOST];
    mxc_work works[1 + LIMITS_MOST + MXC_BASELINES_MOST] = {work_of(t)};
    const int baselines = t->in_call ? 0 : b->baseline_count, first = 1 + add_limits(t, works + 1);
    if (baselines)
        baseline_problem_make(b, t, &memory);
    for (int i = 0; i < baselines; i++) {
        const mxc_baseline *baseline = b->baselines[i];
        if (baseline->begin)
            baseline->begin(&memory.problem);
        baseline->forward(&memory.problem);
        if (t->backward)
            baseline->backward(&memory.problem);
        compare_baseline(b, t, baseline, &memory.problem);
        other[i] =
            (timed_baseline){t->backward ? baseline->backward : baseline->forward, memory.problem};
        works[first + i] = (mxc_work){.run = run_baseline, .arg = &other[i], .sets = 1};
    }
    mxc_time_turns(works, first + baselines, b->min_seconds);
    set_row_time(t, &works[0], &works[1]);
    for (int i = 0; i < baselines; i++) {
        b->baseline_seconds[t->backward][i] = works[first + i].timing.median;
        ratios[i] = mxc_time_over(&works[first + i], &works[0]);
        if (b->baselines[i]->end)
            b->baselines[i]->end();
    }
    if (baselines) {
        t->row.baseline_ratios = ratios;
        baseline_problem_release(&memory);
    }
    mxc_works_free(works, first + baselines);
}

static void set_row(const mxc_bench *b, timed *t)
{
    static const char *const backends[] = {"auto", "ref", "cpu", "cuda"};
    static const char *const blocks[] = {"none", "row", "column", "square"};
    static const char *const ops[2][2] = {{"forward", "forward_with_quantize"},
                                          {"backward", "backward_with_quantize"}};
    const mxc_sizes *s = b->sizes;
    const int backward = t->backward;
    const double pairs = mxc_sizes_visible_pairs(s, &t->problem) * (double)s->heads;
    const double d = (double)s->head_dim, dv = (double)s->head_dim_v;
    t->row = (mxc_bench_row){
        .op = b->cached ? "forward_cached" : ops[backward][t->in_call],
        .operands = t->in_call ? "bf16" : "e4m3",
        .block = t->problem.q.flags & MXATTN_FOLDED ? "folded" : blocks[t->problem.q.block],
        .backend = backends[t->info.backend],
        .kernel = backward ? t->info.kernel_backward : t->info.kernel_forward,
        .isa = t->info.isa_name,
        .flops = 2 * pairs * (backward ? 3 * d + 2 * dv : d + dv),
        .workspace =
            (double)(backward ? t->info.workspace_backward_bytes : t->info.workspace_forward_bytes),
        .baseline_seconds = b->baseline_seconds[backward]};
}

/* Ready to be timed, and verified. */
static void open_timed(mxc_bench *b, int backward, int in_call, timed *t)
{
    *t = (timed){.bench = b,
                 .backward = backward,
                 .in_call = in_call,
                 .on_device = mxc_bench_on_device(b->options->backend)};
    set_problem(b, t);
    make_sets(b, t);
    if (backward) {
        const double start = mxc_seconds();
        run_backward(t, 0);
        t->seconds = mxc_seconds() - start;
    }
    if (t->on_device)
        mxc_device_fetch(t->host.memory, t->set[0].memory,
                         (size_t)mxc_tensor_set_bytes(b->sizes, &t->problem));
    mxc_verify_attention(b->checker, b->sizes, &t->problem, &t->info, &t->host, backward);
    set_row(b, t);
    if (!t->on_device)
        set_limits(b, t);
}

static void close_timed(timed *t)
{
    mxc_bench_report(t->bench, &t->problem, &t->row);
    for (int i = 0; i < t->limit_count; i++)
        mxc_limit_free(&t->limits[i]);
    release(t);
}

void mxc_bench_attention(mxc_bench *b, int backward, int in_call)
{
    double ratios[MXC_BASELINES_MOST];
    timed t;
    open_timed(b, backward, in_call, &t);
    if (t.on_device)
        t.row.timing = mxc_device_time(backward ? run_backward : run_forward, &t, t.sets);
    else
        time_in_turns(b, &t, ratios);
    close_timed(&t);
}

void mxc_bench_pair(mxc_bench *first, mxc_bench *second, const char *against)
{
    mxc_work works[2 * (1 + LIMITS_MOST)];
    timed a, b;
    open_timed(first, 0, 0, &a);
    open_timed(second, 0, 0, &b);
    works[0] = work_of(&a);
    works[1] = work_of(&b);
    const double rates = b.row.flops / a.row.flops;
    const int limits_a = 2, limits_b = limits_a + add_limits(&a, works + limits_a);
    const int count = limits_b + add_limits(&b, works + limits_b);
    mxc_time_turns(works, count, first->min_seconds);
    set_row_time(&a, &works[0], &works[limits_a]);
    set_row_time(&b, &works[1], &works[limits_b]);
    b.row.against = against;
    b.row.over = rates * mxc_time_over(&works[0], &works[1]);
    mxc_works_free(works, count);
    mxc_bench_head(first);
    close_timed(&a);
    mxc_bench_head(second);
    close_timed(&b);
}
