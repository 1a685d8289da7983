/* attention_backward.c: gradients of attention on the CPU: sizes, workspace, and the loops of a
 * call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/attention_backward.h"

#include "cpu/attention_forward.h"
#include "cpu/fpenv.h"
#include "cpu/operand_quantize.h"
#include "cpu/operations.h"
#include "cpu/range.h"
#include "cpu/rows_tensor.h"
#include "mx/e8m0.h"
#include "mx/element.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    /* WHY 16 tasks of a long sequence: 8 threads stay busy with one sequence of few heads. More
     * splits cost memory: 4 bytes per element of dQ each. */
    TASKS_WANTED = 16,
    SPLITS_MOST = 8,
    SPLIT_KEYS = 512,
    /* Larger exponents need factors beyond FP32; a bound below 2^-234 does not need them. */
    EXPONENT_MOST = 250
};

const mxa_backward_kernel *mxa_backward_kernel_of(uint32_t isa, int exact)
{
#if defined(MXA_BUILD_AMX)
    if (!exact && (isa & MXATTN_ISA_AMX_BF16))
        return &mxa_backward_amx;
#endif
#if defined(MXA_BUILD_AVX512BF16)
    if (!exact && (isa & MXATTN_ISA_AVX512_BF16) && (isa & MXATTN_ISA_AVX512_VBMI))
        return &mxa_backward_avx512bf16;
#endif
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return &mxa_backward_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return &mxa_backward_avx2;
#endif
    (void)isa;
    (void)exact;
    return &mxa_backward_portable;
}

static const mxa_backward_kernel *kernel_of(const mxattn_plan *plan, int exact)
{
    return mxa_backward_kernel_of(plan->context->isa, exact);
}

int64_t mxa_backward_sequence_of(const mxa_sequence *table, int64_t batch, int64_t block)
{
    int64_t low = 0, high = batch; /* table[low].block <= block < table[high].block */

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (table[middle].block <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

double mxa_backward_most(const double *blocks, const mxa_sequence *sequence)
{
    double most = 0;

    for (int64_t i = 0; i * MXA_BLOCK < sequence->used; i++)
        most = mxa_backward_max(most, blocks[sequence->block + i]);
    return most;
}

/* ------------------------------------------------------------------------------------------------
 * Sizes and workspace
 * --------------------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Upper bounds of a plan's tokens and blocks of 32. */
static mxa_scale_extent bound_of(const mxattn_attention_problem *problem, int64_t total,
                                 int64_t longest, int64_t heads, int64_t dims)
{
    mxa_scale_extent extent = {.heads = heads, .head_dim = dims};

    if (problem->format == MXATTN_JAGGED) {
        extent.tokens = total;
        extent.blocks = total / MXA_BLOCK + problem->batch;
    } else {
        extent.tokens = problem->batch * longest;
        extent.blocks = problem->batch * divide_up(longest, MXA_BLOCK);
    }
    return extent;
}

static mxa_scale_extent bound_q(const mxattn_attention_problem *problem, int64_t dims)
{
    return bound_of(problem, problem->total_q, problem->max_seqlen_q, problem->heads, dims);
}

static mxa_scale_extent bound_k(const mxattn_attention_problem *problem, int64_t dims)
{
    return bound_of(problem, problem->total_k, problem->max_seqlen_k, problem->kv_heads, dims);
}

int64_t mxa_backward_splits_of(int64_t keys, int64_t kv_heads)
{
    const int64_t wanted = divide_up(TASKS_WANTED, kv_heads), splits = divide_up(keys, SPLIT_KEYS);
    const int64_t most = wanted < SPLITS_MOST ? wanted : SPLITS_MOST;

    return splits < most ? splits : most;
}

static mxa_backward_sizes sizes_of(const mxattn_attention_problem *problem,
                                   const mxa_backward_kernel *kernel)
{
    const int64_t depth = kernel->unit_depth;
    const int64_t splits = mxa_backward_splits_of(problem->max_seqlen_k, problem->kv_heads);
    mxa_backward_sizes sizes = {
        .blocks_q = bound_q(problem, 0).blocks,
        .blocks_k = bound_k(problem, 0).blocks,
        .dims = divide_up(problem->head_dim, MXA_BLOCK) * MXA_BLOCK,
        .dims_v = divide_up(problem->head_dim_v, MXA_BLOCK) * MXA_BLOCK,
        .splits = splits > 1 ? splits : 1,
        .scratch_bytes = kernel->scratch_bytes(problem),
    };

    sizes.row_units = sizes.dims / depth + MXA_BACKWARD_PAD;
    sizes.row_units_v = sizes.dims_v / depth + MXA_BACKWARD_PAD;
    sizes.lane_units = sizes.dims + MXA_BACKWARD_PAD;
    sizes.lane_units_v = sizes.dims_v + MXA_BACKWARD_PAD;
    return sizes;
}

/* Memory of operands that the call quantizes and of outputs that it quantizes at the end. */
typedef struct conversions {
    void *q, *k, *v, *q_seq, *k_seq, *dout;
    void *dq, *dk, *dv;
} conversions;

static void *take_operand(mxa_arena *arena, const mxattn_attention_problem *problem,
                          const mxattn_tags *tags, mxa_scale_extent extent)
{
    return mxa_arena_take(arena, mxa_operand_quantized_bytes(tags, problem->batch, &extent));
}

static void *take_output(mxa_arena *arena, const mxattn_tags *tags, mxa_scale_extent extent)
{
    const int64_t count = extent.tokens * extent.heads * extent.head_dim;

    return mxa_arena_take(arena,
                          mxa_dtype_is_fp8(tags->dtype) ? count * (int64_t)sizeof(float) : 0);
}

/* What does not depend on the kernel. */
static void carve_call(const mxattn_plan *plan, mxa_arena *arena, mxa_backward_job *job,
                       conversions *memory)
{
    const mxattn_attention_problem *p = &plan->problem;
    const int64_t blocks_q = p->heads * bound_q(p, 0).blocks;

    job->sequences_q = mxa_arena_take(arena, (p->batch + 1) * (int64_t)sizeof(mxa_sequence));
    job->sequences_k = mxa_arena_take(arena, (p->batch + 1) * (int64_t)sizeof(mxa_sequence));
    job->order = mxa_arena_take(arena, p->batch * (int64_t)sizeof(int32_t));
    job->unusual = mxa_arena_take(arena, p->batch);
    job->dsink = mxa_arena_take(arena, blocks_q * (int64_t)sizeof(double));
    memory->q = take_operand(arena, p, &p->q, bound_q(p, p->head_dim));
    memory->q_seq = take_operand(arena, p, &p->q_seq, bound_q(p, p->head_dim));
    memory->dout = take_operand(arena, p, &p->dout, bound_q(p, p->head_dim_v));
    memory->k = take_operand(arena, p, &p->k, bound_k(p, p->head_dim));
    memory->k_seq = take_operand(arena, p, &p->k_seq, bound_k(p, p->head_dim));
    memory->v = take_operand(arena, p, &p->v, bound_k(p, p->head_dim_v));
    memory->dq = take_output(arena, &p->dq, bound_q(p, p->head_dim));
    memory->dk = take_output(arena, &p->dk, bound_k(p, p->head_dim));
    memory->dv = take_output(arena, &p->dv, bound_k(p, p->head_dim_v));
}

/* The arrays of one pass. */
static void carve_pass(const mxattn_plan *plan, const mxa_backward_kernel *kernel, mxa_arena *arena,
                       mxa_backward_job *job)
{
    const mxattn_attention_problem *p = &plan->problem;
    const mxa_backward_sizes sizes = sizes_of(p, kernel);
    const int64_t rows = p->heads * sizes.blocks_q * MXA_BLOCK, word = (int64_t)sizeof(float);
    const int64_t blocks_q = p->heads * sizes.blocks_q, blocks_k = p->kv_heads * sizes.blocks_k;
    const int64_t number = (int64_t)sizeof(double);
    const int64_t joined = rows / kernel->unit_depth;
    const int fp16 = plan->info.dq_reduce == MXATTN_DQ_REDUCE_FP16;
    const int one = kernel->unit_depth == 1; /* rows and lanes are the same units */

    job->sizes = sizes;
    job->q_rows = job->q_units = mxa_arena_take(arena, rows * sizes.row_units * word);
    if (!one || p->q_seq.dtype)
        job->q_units = mxa_arena_take(arena, joined * sizes.lane_units * word);
    job->dout_rows = job->dout_units = mxa_arena_take(arena, rows * sizes.row_units_v * word);
    if (!one)
        job->dout_units = mxa_arena_take(arena, joined * sizes.lane_units_v * word);
    job->lse2 = mxa_arena_take(arena, rows * word);
    job->delta = mxa_arena_take(arena, rows * word);
    job->rest = mxa_arena_take(arena, rows * word);
    job->special = mxa_arena_take(arena, blocks_q);
    job->norm_k = mxa_arena_take(arena, fp16 ? blocks_k * number : 0);
    job->norm_v = mxa_arena_take(arena, fp16 ? blocks_k * number : 0);
    job->bound = mxa_arena_take(arena, fp16 ? blocks_q * number : 0);
    job->exponent = mxa_arena_take(arena, fp16 ? p->batch * p->heads * word : 0);
    job->dq_splits = mxa_arena_take(arena, sizes.splits * rows * sizes.dims * word);
    job->scratch = mxa_arena_take(arena, sizes.scratch_bytes * mxa_parallel_workers(plan->context));
}

void mxa_cpu_attention_backward_plan(mxattn_plan *plan)
{
    const mxa_backward_kernel *kernel = kernel_of(plan, 0);
    mxa_backward_job job;
    conversions memory;
    mxa_arena arena = {NULL, 0};

    carve_call(plan, &arena, &job, &memory);
    mxa_arena usual = arena, exact = arena;
    carve_pass(plan, kernel, &usual, &job);
    carve_pass(plan, kernel_of(plan, 1), &exact, &job);
    plan->info.workspace_backward_bytes = usual.used > exact.used ? usual.used : exact.used;
    (void)snprintf(plan->kernel_backward, sizeof(plan->kernel_backward),
                   "mxa_%s_attention_backward_%s_%dx%d", kernel->isa,
                   plan->info.intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16",
                   MXA_BACKWARD_TILE_Q, MXA_BACKWARD_TILE_K);
}

/* ------------------------------------------------------------------------------------------------
 * Operands and outputs of a call
 * --------------------------------------------------------------------------------------------- */

static mxattn_status open_operands(mxa_backward_job *job, const conversions *memory)
{
    const mxattn_context *context = job->plan->context;
    const mxa_attention_call *call = job->call;
    const mxa_batch *q = &call->batch_q, *k = &call->batch_k;
    mxattn_status status = mxa_operand_quantized(context, &call->q, q, memory->q, &job->q);

    if (!status)
        status = mxa_operand_quantized(context, &call->k, k, memory->k, &job->k);
    if (!status)
        status = mxa_operand_quantized(context, &call->v, k, memory->v, &job->v);
    if (!status)
        status = mxa_operand_quantized(context, &call->dout, q, memory->dout, &job->dout);
    job->q_lanes = job->q;
    job->k_lanes = job->k;
    if (!status && call->q_seq.ndim)
        status = mxa_operand_quantized(context, &call->q_seq, q, memory->q_seq, &job->q_lanes);
    if (!status && call->k_seq.ndim)
        status = mxa_operand_quantized(context, &call->k_seq, k, memory->k_seq, &job->k_lanes);
    return status;
}

/* The output itself, or FP32 of the same shape in workspace. */
static mxattn_tensor open_output(const mxattn_tensor *tensor, void *memory)
{
    mxattn_tensor output = *tensor;

    if (!mxa_dtype_is_fp8(tensor->tags.dtype))
        return output;
    output.tags = (mxattn_tags){.dtype = MXATTN_F32};
    output.data = memory;
    output.stride[2] = tensor->shape[3];
    output.stride[1] = tensor->shape[2] * output.stride[2];
    output.stride[0] = tensor->shape[1] * output.stride[1];
    return output;
}

static void clear_tokens(const mxattn_tensor *output, int64_t outer, int64_t first, int64_t end)
{
    const int64_t bytes = mxa_dtype_bytes(output->tags.dtype);

    for (int64_t s = first; s < end; s++)
        for (int64_t h = 0; h < output->shape[2]; h++) {
            const int64_t at =
                outer * output->stride[0] + s * output->stride[1] + h * output->stride[2];

            memset((char *)output->data + at * bytes, 0, (size_t)(output->shape[3] * bytes));
        }
}

/* Rows that no task writes: those not in use, and those behind the last sequence. */
static void clear_outside(const mxattn_tensor *output, const mxa_sequence *table, int64_t batch,
                          int jagged)
{
    for (int64_t b = 0; b < batch; b++)
        clear_tokens(output, table[b].outer, table[b].first + table[b].used,
                     table[b].first + table[b].length);
    if (jagged)
        clear_tokens(output, 0, table[batch].token, output->shape[1]);
}

static mxattn_status finish_output(const mxattn_context *context, const mxattn_tensor *output,
                                   const mxattn_tensor *tensor, const mxa_batch *batch)
{
    const mxa_quantize_call call = {.wide = *output, .quantized = *tensor, .batch = *batch};

    return mxa_dtype_is_fp8(tensor->tags.dtype) ? mxa_cpu_quantize(context, &call) : MXATTN_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The call
 * --------------------------------------------------------------------------------------------- */

/* The largest e with bound * 2^(e+1) <= 65504, FP16's largest: the spare binade is for roundings.
 */
static int32_t exponent_of(double bound)
{
    int e;

    if (!(bound > 0) || isinf(bound))
        return 0;
    e = ilogb(65504 / bound) - 1;
    while (ldexp(bound, e + 1) > 65504)
        e--;
    return e;
}

static int64_t work_of(const mxa_backward_job *job, int32_t b)
{
    return job->sequences_q[b].used * job->sequences_k[b].used;
}

/* Shell sort: the longest sequences first, so that none is left for the end. */
static void order_sequences(const mxa_backward_job *job)
{
    for (int64_t b = 0; b < job->batch; b++)
        job->order[b] = (int32_t)b;
    for (int64_t gap = job->batch / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < job->batch; i++) {
            const int32_t b = job->order[i];
            int64_t j = i;

            for (; j >= gap && work_of(job, job->order[j - gap]) < work_of(job, b); j -= gap)
                job->order[j] = job->order[j - gap];
            job->order[j] = b;
        }
}

/* |dQ_i| <= (2 |dO_i| max|V_j| + |dLSE_i|) max|K|, before softmax_scale. */
static void choose_exponents(const mxa_backward_job *job)
{
    const mxattn_attention_problem *problem = job->problem;

    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < problem->heads; head++) {
            int32_t e = problem->dq_scale_log2;

            if (e == MXATTN_DQ_SCALE_AUTO)
                e = exponent_of(
                    mxa_backward_most(job->bound + head * job->sizes.blocks_q,
                                      &job->sequences_q[b]) *
                    mxa_backward_most(job->norm_k + head / job->group * job->sizes.blocks_k,
                                      &job->sequences_k[b]));
            if (e > EXPONENT_MOST)
                e = EXPONENT_MOST;
            if (e < -EXPONENT_MOST)
                e = -EXPONENT_MOST;
            job->exponent[b * problem->heads + head] = e;
        }
}

static void sum_dsink(const mxa_backward_job *job)
{
    const int64_t blocks = job->sequences_q[job->batch].block;

    for (int64_t head = 0; head < job->problem->heads; head++) {
        double sum = 0;

        for (int64_t block = 0; block < blocks; block++)
            sum += job->dsink[head * job->sizes.blocks_q + block];
        job->call->dsink[head] = (float)sum;
    }
}

/* Marks the sequences that a flushing kernel leaves to the exact one; 1 when there are any. In a
 * causal_strict problem that is all of them: forward took it for all. */
static int mark_unusual(const mxa_backward_job *job)
{
    int any = 0;

    for (int64_t b = 0; b < job->batch; b++) {
        const mxa_sequence *q = &job->sequences_q[b], *k = &job->sequences_k[b];
        mxa_range qk = mxa_range_of(&job->q, q, b), of_k = mxa_range_of(&job->k, k, b);
        const mxa_range v = mxa_range_of(&job->v, k, b), dout = mxa_range_of(&job->dout, q, b);

        mxa_range_join(&of_k, &qk);
        of_k = mxa_range_of(&job->k_lanes, k, b);
        mxa_range_join(&of_k, &qk);
        of_k = mxa_range_of(&job->q_lanes, q, b);
        mxa_range_join(&of_k, &qk);
        job->unusual[b] = job->problem->causal_strict || !mxa_range_usual(&qk, &v, &dout);
        any |= job->unusual[b];
    }
    return any;
}

/* One loop of a pass. */
typedef struct loop {
    mxa_parallel_task task;
    mxa_backward_job *job;
} loop;

static void loop_task(void *arg, int64_t task, int32_t worker)
{
    const loop *l = arg;
    const mxa_fpenv before = mxa_fpenv_enter();

    l->task(l->job, task, worker);
    mxa_fpenv_leave(before);
}

static void run_loop(mxa_backward_job *job, int64_t tasks, mxa_parallel_task task)
{
    loop l = {task, job};

    mxa_parallel_for(job->plan->context, tasks, loop_task, &l);
}

/* Everything between operands and finished gradients, for the sequences of one pass. */
static void run_pass(const mxattn_plan *plan, const mxa_backward_kernel *kernel, mxa_arena arena,
                     mxa_backward_job *job)
{
    const int64_t kv_heads = plan->problem.kv_heads;
    const int64_t blocks_q = job->sequences_q[job->batch].block * kv_heads;
    const int64_t blocks_k = job->sequences_k[job->batch].block * kv_heads;

    carve_pass(plan, kernel, &arena, job);
    if (job->fp16)
        run_loop(job, blocks_k, kernel->norms);
    run_loop(job, blocks_q, kernel->rows);
    if (job->fp16)
        choose_exponents(job);
    run_loop(job, job->batch * kv_heads * job->sizes.splits, kernel->keys);
    run_loop(job, blocks_q, kernel->finish);
}

mxattn_status mxa_cpu_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_attention_problem *problem = &plan->problem;
    const int jagged = problem->format == MXATTN_JAGGED;
    mxa_arena arena = {call->workspace, 0};
    conversions memory;
    mxa_backward_job job = {
        .plan = plan,
        .problem = problem,
        .call = call,
        .batch = call->batch_q.batch,
        .group = problem->heads / problem->kv_heads,
        .e4m3 = plan->info.intermediates == MXATTN_INTERMEDIATES_E4M3,
        .fp16 = plan->info.dq_reduce == MXATTN_DQ_REDUCE_FP16,
        .tokens_q = mxa_cpu_tokens_q(call),
    };

    carve_call(plan, &arena, &job, &memory);
    mxa_sequence_table(&call->batch_q, job.sequences_q);
    mxa_sequence_table(&call->batch_k, job.sequences_k);
    order_sequences(&job);
    if (call->saved) {
        const mxa_saved_view saved = mxa_cpu_saved_view(problem, call->saved, job.tokens_q);

        job.saved_o = saved.o;
        job.saved_lse = saved.lse;
        job.saved_far = saved.far;
    }
    mxattn_status status = open_operands(&job, &memory);
    if (status)
        return status;
    job.dq = open_output(&call->dq, memory.dq);
    job.dk = open_output(&call->dk, memory.dk);
    job.dv = open_output(&call->dv, memory.dv);
    clear_outside(&job.dq, job.sequences_q, job.batch, jagged);
    clear_outside(&job.dk, job.sequences_k, job.batch, jagged);
    clear_outside(&job.dv, job.sequences_k, job.batch, jagged);

    const int exact_too = kernel_of(plan, 0)->flushes && mark_unusual(&job);
    job.unusual = exact_too ? job.unusual : NULL;
    run_pass(plan, kernel_of(plan, 0), arena, &job);
    if (exact_too) {
        job.pass = 1;
        run_pass(plan, kernel_of(plan, 1), arena, &job);
    }
    if (call->dsink)
        sum_dsink(&job);
    mxa_cpu_rotate_tensor(plan->context, &job.dq, &call->batch_q, &call->rope_q);
    mxa_cpu_rotate_tensor(plan->context, &job.dk, &call->batch_k, &call->rope_k);
    status = finish_output(plan->context, &job.dq, &call->dq, &call->batch_q);
    if (!status)
        status = finish_output(plan->context, &job.dk, &call->dk, &call->batch_k);
    if (!status)
        status = finish_output(plan->context, &job.dv, &call->dv, &call->batch_k);
    return status;
}
