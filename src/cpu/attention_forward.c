/* attention_forward.c: forward attention on the CPU: workspace, the job, the rows nobody attends
 * from. The arithmetic is in attention_forward_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/attention_forward.h"

#include "cpu/operand.h"
#include "cpu/operand_quantize.h"
#include "cpu/operations.h"
#include "cpu/range.h"
#include "cpu/rows_tensor.h"
#include "mx/element.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 256, LANES_LEAST = 96, TASKS_A_WORKER = 4, KEYS_FEW = 32 };

/* Offsets into the workspace. */
typedef struct layout {
    int64_t sequences_q, sequences_k, first_tile, first_part;
    int64_t q, k, v; /* wide operands, quantized */
    int64_t o_wide;  /* an FP8 O before it is quantized, when it is not saved */
    int64_t unusual;
    int64_t parts, parts_q;
    int64_t scratch;
    int64_t bytes;
} layout;

const mxa_forward_kernel *mxa_forward_kernel_of(uint32_t isa, int exact)
{
    const mxa_forward_kernel *kernel = &mxa_forward_portable;

#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        kernel = &mxa_forward_avx2;
#endif
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        kernel = &mxa_forward_avx512;
#endif
#if defined(MXA_BUILD_AVX512BF16)
    if (!exact && (isa & MXATTN_ISA_AVX512_BF16) && (isa & MXATTN_ISA_AVX512_VBMI))
        kernel = &mxa_forward_avx512bf16;
#endif
#if defined(MXA_BUILD_AMX)
    if (!exact && (isa & MXATTN_ISA_AMX_BF16))
        kernel = &mxa_forward_amx;
#endif
    (void)isa;
    (void)exact;
    return kernel;
}

/* WHY causal_strict is exact: the choice between kernels looks at a whole sequence, later tokens
 * included. */
static const mxa_forward_kernel *kernel_of(const mxattn_plan *plan, int exact)
{
    return mxa_forward_kernel_of(plan->context->isa, exact || plan->problem.causal_strict);
}

/* ------------------------------------------------------------------------------------------------
 * plan
 * --------------------------------------------------------------------------------------------- */

/* Most tokens of a side of the problem. */
static int64_t tokens_most(const mxattn_attention_problem *problem, int keys)
{
    if (problem->format == MXATTN_JAGGED)
        return keys ? problem->total_k : problem->total_q;
    return problem->batch * (keys ? problem->max_seqlen_k : problem->max_seqlen_q);
}

static mxa_scale_extent extent_most(const mxattn_attention_problem *problem, int keys,
                                    int64_t heads, int64_t head_dim)
{
    const int64_t tokens = tokens_most(problem, keys);
    /* Each sequence adds less than one block, or 128 rows, to what its tokens fill. */
    const mxa_scale_extent extent = {
        .tokens = tokens,
        .blocks = tokens / 32 + problem->batch,
        .tiled_rows = tokens + 128 * problem->batch,
        .heads = heads,
        .head_dim = head_dim,
    };

    return extent;
}

static int64_t take(int64_t *at, int64_t bytes)
{
    const int64_t place = *at;

    *at += mxa_round_up(bytes, ALIGNMENT);
    return place;
}

/* The tags of what PV reads: the column partner of v where the plan has one. */
static const mxattn_tags *value_tags(const mxattn_attention_problem *problem)
{
    return problem->v_seq.dtype != MXATTN_DTYPE_NONE ? &problem->v_seq : &problem->v;
}

static int o_is_fp8(const mxattn_attention_problem *problem)
{
    return mxa_dtype_is_fp8(problem->o.dtype);
}

/* Most lanes of a sequence that is computed in parts; 0: none is. WHY none under causal_strict: a
 * row's bits would depend on how many queries follow it. */
static int64_t decode_lanes_most(const mxattn_plan *plan)
{
    const mxattn_attention_problem *p = &plan->problem;
    const int64_t lanes = p->max_seqlen_q * (p->heads / p->kv_heads);
    const int64_t most = kernel_of(plan, 0)->decode_lanes;

    if (p->causal_strict)
        return 0;
    return lanes < most ? lanes : most;
}

static layout layout_of(const mxattn_plan *plan)
{
    const mxattn_attention_problem *p = &plan->problem;
    int64_t place;
    const int64_t scratch = kernel_of(plan, 0)->scratch_bytes(p->head_dim, p->head_dim_v, &place);
    const int64_t exact = kernel_of(plan, 1)->scratch_bytes(p->head_dim, p->head_dim_v, &place);
    const int64_t part = mxa_forward_part_floats(decode_lanes_most(plan), p->head_dim_v);
    const int64_t parts = tokens_most(p, 1) / MXA_PART_KEYS + p->batch;
    const mxa_scale_extent q = extent_most(p, 0, p->heads, p->head_dim);
    const mxa_scale_extent k = extent_most(p, 1, p->kv_heads, p->head_dim);
    const mxa_scale_extent v = extent_most(p, 1, p->kv_heads, p->head_dim_v);
    const int64_t o_elements = tokens_most(p, 0) * p->heads * p->head_dim_v;
    const int64_t table = (p->batch + 1) * (int64_t)sizeof(mxa_sequence);
    layout l = {0};

    l.sequences_q = take(&l.bytes, table);
    l.sequences_k = take(&l.bytes, table);
    l.first_tile = take(&l.bytes, (p->batch + 1) * (int64_t)sizeof(int64_t));
    l.first_part = take(&l.bytes, (p->batch + 1) * (int64_t)sizeof(int64_t));
    l.parts_q =
        take(&l.bytes, p->batch * p->kv_heads *
                           mxa_forward_parts_q_floats(decode_lanes_most(plan), p->head_dim) *
                           (int64_t)sizeof(float));
    l.parts = take(&l.bytes, parts * p->kv_heads * part * (int64_t)sizeof(float));
    l.q = take(&l.bytes, mxa_operand_quantized_bytes(&p->q, p->batch, &q));
    l.k = take(&l.bytes, mxa_operand_quantized_bytes(&p->k, p->batch, &k));
    l.v = take(&l.bytes, mxa_operand_quantized_bytes(value_tags(p), p->batch, &v));
    l.o_wide = take(&l.bytes, o_is_fp8(p) ? o_elements * (int64_t)sizeof(float) : 0);
    l.unusual = take(&l.bytes, p->batch);
    l.scratch =
        take(&l.bytes, (scratch > exact ? scratch : exact) * mxa_parallel_workers(plan->context));
    return l;
}

/* Lanes of a tile. A large tile decodes K and V less often; a small problem is better served by
 * enough tasks to share out. Bits do not depend on it, so it may follow the number of workers. */
static int64_t tile_q_of(const mxattn_plan *plan, const mxa_forward_kernel *kernel)
{
    const mxattn_attention_problem *p = &plan->problem;
    const int64_t workers = mxa_parallel_workers(plan->context);
    const int64_t tasks_enough = workers > 1 ? workers * TASKS_A_WORKER : 1;
    const int64_t sequences = p->format == MXATTN_JAGGED ? 1 : p->batch;
    const int64_t lanes =
        tokens_most(p, 0) / (sequences ? sequences : 1) * (p->heads / p->kv_heads);
    int64_t groups = kernel->groups_most;

    while (groups / 2 * kernel->lanes >= LANES_LEAST) {
        const int64_t tile = groups * kernel->lanes;

        if ((lanes + tile - 1) / tile * sequences * p->kv_heads >= tasks_enough)
            break;
        groups /= 2;
    }
    return groups * kernel->lanes;
}

void mxa_cpu_attention_forward_plan(mxattn_plan *plan)
{
    const mxattn_attention_problem *p = &plan->problem;
    const mxa_forward_kernel *kernel = kernel_of(plan, 0);
    const int64_t rows = tokens_most(p, 0) * p->heads;

    const int decode = p->max_seqlen_k > KEYS_FEW &&
                       p->max_seqlen_q * (p->heads / p->kv_heads) <= decode_lanes_most(plan);
    const int64_t tile_q = decode ? decode_lanes_most(plan) : tile_q_of(plan, kernel);

    snprintf(plan->kernel_forward, sizeof(plan->kernel_forward),
             "mxa_%s_attention_%s_%s_%lldx%d_d%lld%s%s", kernel->isa, decode ? "decode" : "forward",
             plan->info.intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16",
             (long long)tile_q, decode ? MXA_PART_KEYS : (int)kernel->tile_k,
             (long long)p->head_dim, p->window[1] >= 0 ? "_causal" : "",
             p->format == MXATTN_JAGGED ? "_jagged" : "");
    plan->info.workspace_forward_bytes = layout_of(plan).bytes;
    if (p->mode == MXATTN_TRAINING)
        plan->info.saved_bytes = rows * (p->head_dim_v + 2) * (int64_t)sizeof(float);
}

/* ------------------------------------------------------------------------------------------------
 * run
 * --------------------------------------------------------------------------------------------- */

int64_t mxa_cpu_tokens_q(const mxa_attention_call *call)
{
    return call->q.shape[0] * call->q.shape[1];
}

mxa_saved_view mxa_cpu_saved_view(const mxattn_attention_problem *problem, void *saved,
                                  int64_t tokens_q)
{
    mxa_saved_view view = {.o = saved};

    if (saved) {
        view.lse = view.o + tokens_q * problem->heads * problem->head_dim_v;
        view.far = view.lse + tokens_q * problem->heads;
    }
    return view;
}

static int64_t lanes_of(const mxa_forward_job *job, int64_t b)
{
    return job->sequences_q[b].used * job->group;
}

/* 1 where a sequence is computed in parts. WHY not of few keys: setting a part up then costs more
 * than idle lanes. */
static int is_decoded(const mxa_forward_job *job, int64_t b)
{
    const int64_t lanes = lanes_of(job, b), keys = job->sequences_k[b].used;

    return lanes > 0 && lanes <= job->lanes_most && keys > KEYS_FEW;
}

static int64_t part_prefix(mxa_forward_job *job, int64_t *first_part)
{
    first_part[0] = 0;
    for (int64_t b = 0; b < job->batch; b++)
        first_part[b + 1] =
            first_part[b] + (is_decoded(job, b) ? mxa_forward_parts(job->sequences_k[b].used) : 0);
    job->first_part = first_part;
    return first_part[job->batch];
}

/* Of the sequences that are not computed in parts. */
static int64_t tile_prefix(mxa_forward_job *job, int64_t *first_tile)
{
    first_tile[0] = 0;
    for (int64_t b = 0; b < job->batch; b++) {
        const int64_t lanes = is_decoded(job, b) ? 0 : lanes_of(job, b);

        first_tile[b + 1] = first_tile[b] + (lanes + job->tile_q - 1) / job->tile_q;
    }
    job->first_tile = first_tile;
    return first_tile[job->batch];
}

/* O = 0 and LSE = -inf for tokens [first, end) of a sequence. */
static void clear_rows(const mxa_forward_job *job, const mxa_sequence *sequence, int64_t first,
                       int64_t end)
{
    const mxattn_tensor *o = &job->call->o, *lse = &job->call->lse;
    const int64_t heads = job->problem->heads, dims = job->problem->head_dim_v;
    const int64_t width = mxa_dtype_bytes(o->tags.dtype);

    for (int64_t row = first; row < end; row++)
        for (int64_t head = 0; head < heads; head++) {
            const int64_t place = sequence->first + row, token = sequence->token + row;

            if (!o_is_fp8(job->problem))
                memset((char *)o->data + (sequence->outer * o->stride[0] + place * o->stride[1] +
                                          head * o->stride[2]) *
                                             width,
                       0, (size_t)(dims * width));
            if (lse->ndim)
                ((float *)lse->data)[sequence->outer * lse->stride[0] + head * lse->stride[1] +
                                     place * lse->stride[2]] = -INFINITY;
            if (job->o_wide)
                memset(job->o_wide + (token * heads + head) * dims, 0,
                       (size_t)dims * sizeof(float));
            if (job->lse_wide) {
                job->lse_wide[head * job->tokens_q + token] = -INFINITY;
                job->far_wide[head * job->tokens_q + token] = 0.0f;
            }
        }
}

/* Rows beyond seqused, and those after the last sequence. */
static void clear_unused(const mxa_forward_job *job)
{
    const mxa_batch *batch = &job->call->batch_q;

    for (int64_t b = 0; b < job->batch; b++)
        clear_rows(job, &job->sequences_q[b], job->sequences_q[b].used, job->sequences_q[b].length);
    if (batch->cu_seqlens) {
        const mxa_sequence start = {0};

        clear_rows(job, &start, batch->cu_seqlens[job->batch], job->tokens_q);
    }
}

/* An FP8 O is quantized when it is whole: its blocks span rows of several tiles. */
static mxattn_status finish_o(const mxa_forward_job *job, const mxattn_context *context)
{
    const mxattn_tensor *o = &job->call->o;
    mxa_quantize_call call = {.wide = *o, .quantized = *o, .batch = job->call->batch_q};

    call.wide.tags = (mxattn_tags){.dtype = MXATTN_F32};
    call.wide.data = job->o_wide;
    call.wide.stride[2] = o->shape[3];
    call.wide.stride[1] = o->shape[2] * o->shape[3];
    call.wide.stride[0] = call.batch.cu_seqlens ? 0 : o->shape[1] * call.wide.stride[1];
    if (job->call->o_wide.ndim)
        mxa_cpu_narrow_tensor(context, &call.wide, &job->call->o_wide);
    return mxa_cpu_quantize(context, &call);
}

static void set_arithmetic(mxa_forward_job *job, const mxattn_plan *plan)
{
    const double scale = job->problem->softmax_scale;

    job->q_factor = (float)((scale > 0.0) - (scale < 0.0));
    job->scale_log2 = (float)(fabs(scale) * M_LOG2E);
    if (job->scale_log2 == 0.0f) { /* masked scores are -inf, which 0 would turn into NaN */
        job->q_factor = 0.0f;
        job->scale_log2 = 1.0f;
    }
    job->softcap_log2 = (float)(job->problem->softcap * M_LOG2E);
    job->e4m3 = plan->info.intermediates == MXATTN_INTERMEDIATES_E4M3;
}

static mxattn_status set_operands(mxa_forward_job *job, const mxattn_plan *plan,
                                  unsigned char *workspace, const layout *l)
{
    const mxa_attention_call *call = job->call;
    const mxattn_tensor *v = value_tags(job->problem) == &job->problem->v ? &call->v : &call->v_seq;
    mxattn_status status =
        mxa_operand_quantized(plan->context, &call->q, &call->batch_q, workspace + l->q, &job->q);

    if (status == MXATTN_OK)
        status = mxa_operand_quantized(plan->context, &call->k, &call->batch_k, workspace + l->k,
                                       &job->k);
    if (status == MXATTN_OK)
        status = mxa_operand_quantized(plan->context, v, &call->batch_k, workspace + l->v, &job->v);
    return status;
}

/* Marks the sequences that a flushing kernel leaves to the exact one; 1 when there are any. */
static int mark_unusual(mxa_forward_job *job, uint8_t *unusual)
{
    int any = 0;

    for (int64_t b = 0; b < job->batch; b++) {
        mxa_range qk = mxa_range_of(&job->q, &job->sequences_q[b], b);
        const mxa_range k = mxa_range_of(&job->k, &job->sequences_k[b], b);
        const mxa_range v = mxa_range_of(&job->v, &job->sequences_k[b], b);

        mxa_range_join(&k, &qk);
        unusual[b] = !mxa_range_usual(&qk, &v, NULL);
        any |= unusual[b];
    }
    job->unusual = unusual;
    return any;
}

static void run_tiles(const mxattn_plan *plan, mxa_forward_job *job,
                      const mxa_forward_kernel *kernel, int64_t *first_tile)
{
    const mxattn_attention_problem *p = &plan->problem;

    job->tile_q = tile_q_of(plan, kernel);
    job->scratch_bytes = kernel->scratch_bytes(p->head_dim, p->head_dim_v, &job->part_scratch);
    mxa_parallel_for(plan->context, tile_prefix(job, first_tile) * p->kv_heads, kernel->task, job);
}

static void run_parts(const mxattn_plan *plan, mxa_forward_job *job, int64_t *first_part)
{
    const mxattn_attention_problem *p = &plan->problem;
    const mxa_forward_kernel *kernel = kernel_of(plan, 0);
    const int64_t parts = part_prefix(job, first_part);

    if (parts == 0)
        return;
    job->scratch_bytes = kernel->scratch_bytes(p->head_dim, p->head_dim_v, &job->part_scratch);
    mxa_parallel_for(plan->context, job->batch * p->kv_heads, kernel->decode_start_task, job);
    mxa_parallel_for(plan->context, parts, kernel->decode_task, job);
    mxa_parallel_for(plan->context, job->batch * p->kv_heads, kernel->decode_finish_task, job);
}

mxattn_status mxa_cpu_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const layout l = layout_of(plan);
    unsigned char *workspace = call->workspace;
    mxa_sequence *sequences_q = (void *)(workspace + l.sequences_q);
    mxa_sequence *sequences_k = (void *)(workspace + l.sequences_k);
    mxa_forward_job job = {
        .problem = &plan->problem,
        .call = call,
        .sequences_q = sequences_q,
        .sequences_k = sequences_k,
        .batch = call->batch_q.batch,
        .group = plan->problem.heads / plan->problem.kv_heads,
        .tokens_q = mxa_cpu_tokens_q(call),
        .parts_q = (void *)(workspace + l.parts_q),
        .parts = (void *)(workspace + l.parts),
        .lanes_most = decode_lanes_most(plan),
        .workers = mxa_parallel_workers(plan->context),
        .scratch = workspace + l.scratch,
    };

    if (job.tokens_q == 0)
        return MXATTN_OK;
    if (call->saved && plan->problem.mode == MXATTN_TRAINING) {
        const mxa_saved_view saved = mxa_cpu_saved_view(&plan->problem, call->saved, job.tokens_q);

        job.o_wide = saved.o;
        job.lse_wide = saved.lse;
        job.far_wide = saved.far;
    } else if (o_is_fp8(&plan->problem)) {
        job.o_wide = (float *)(void *)(workspace + l.o_wide);
    }
    mxa_sequence_table(&call->batch_q, sequences_q);
    mxa_sequence_table(&call->batch_k, sequences_k);
    set_arithmetic(&job, plan);
    const mxattn_status status = set_operands(&job, plan, workspace, &l);
    if (status != MXATTN_OK)
        return status;
    clear_unused(&job);
    run_parts(plan, &job, (void *)(workspace + l.first_part));
    const int exact_too =
        kernel_of(plan, 0)->flushes && mark_unusual(&job, (void *)(workspace + l.unusual));
    run_tiles(plan, &job, kernel_of(plan, 0), (void *)(workspace + l.first_tile));
    if (exact_too) {
        job.pass = 1;
        run_tiles(plan, &job, kernel_of(plan, 1), (void *)(workspace + l.first_tile));
    }
    return o_is_fp8(&plan->problem) ? finish_o(&job, plan->context) : MXATTN_OK;
}
