/* backend.c: the operation table of ref, and its plans.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "host_device.h"
#include "ref/ref.h"
#include "status.h"

#include <stdio.h>

enum { ARENA_ALIGNMENT = 64 };

void *mxa_ref_take(mxa_ref_arena *arena, int64_t bytes)
{
    char *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return memory;
}

double *mxa_ref_take_f64(mxa_ref_arena *arena, int64_t count)
{
    return mxa_ref_take(arena, count * (int64_t)sizeof(double));
}

int64_t mxa_ref_workers(const mxattn_plan *plan, int64_t items)
{
    const mxattn_context_options *options = &plan->context->options;
    const int64_t threads = options->parallel_for ? options->threads : 1;
    return threads < items ? threads : items > 0 ? items : 1;
}

void mxa_ref_parallel(const mxattn_context *context, int64_t workers, mxattn_task task, void *arg)
{
    if (workers > 1)
        context->options.parallel_for(context->options.parallel_user, workers, task, arg);
    else
        task(arg, 0);
}

int64_t mxa_ref_rows_q(const mxattn_attention_problem *problem)
{
    return problem->format == MXATTN_JAGGED ? problem->total_q
                                            : problem->batch * problem->max_seqlen_q;
}

int64_t mxa_ref_rows_k(const mxattn_attention_problem *problem)
{
    return problem->format == MXATTN_JAGGED ? problem->total_k
                                            : problem->batch * problem->max_seqlen_k;
}

static mxa_ref_saved carve_saved(const mxattn_attention_problem *problem, mxa_ref_arena *arena)
{
    const int64_t rows = mxa_ref_rows_q(problem) * problem->heads;
    mxa_ref_saved saved;
    saved.o = mxa_ref_take_f64(arena, rows * problem->head_dim_v);
    saved.lse = mxa_ref_take_f64(arena, rows);
    return saved;
}

int64_t mxa_ref_saved_bytes(const mxattn_attention_problem *problem)
{
    mxa_ref_arena arena = {NULL, 0};
    carve_saved(problem, &arena);
    return arena.used;
}

mxa_ref_saved mxa_ref_saved_at(const mxattn_attention_problem *problem, void *saved)
{
    mxa_ref_arena arena = {saved, 0};
    return carve_saved(problem, &arena);
}

/* Equal for plans whose saved memory has the same places. */
static uint64_t saved_id(const mxattn_attention_problem *problem)
{
    const int64_t parts[] = {MXATTN_BACKEND_REF, mxa_ref_rows_q(problem), problem->heads,
                             problem->head_dim_v};
    uint64_t id = 0xcbf29ce484222325; /* FNV-1a over words */
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        id = (id ^ (uint64_t)parts[i]) * 0x100000001b3;
    return id;
}

static mxattn_status ref_plan(mxattn_plan *plan)
{
    mxattn_attention_problem *problem = &plan->problem;
    mxattn_plan_info *info = &plan->info;
    const int training = problem->mode == MXATTN_TRAINING;
    const char *precision = problem->precision == MXATTN_PRECISION_F64 ? "f64" : "model";

    if (problem->intermediates == MXATTN_INTERMEDIATES_AUTO)
        problem->intermediates = MXATTN_INTERMEDIATES_BF16;
    if (problem->dq_reduce == MXATTN_DQ_REDUCE_AUTO)
        problem->dq_reduce = MXATTN_DQ_REDUCE_FP32;
    (void)snprintf(plan->kernel_forward, sizeof plan->kernel_forward,
                   "mxa_ref_attention_forward_%s", precision);
    if (training)
        (void)snprintf(plan->kernel_backward, sizeof plan->kernel_backward,
                       "mxa_ref_attention_backward_%s", precision);
    info->isa_name = "float64";
    info->intermediates = problem->intermediates;
    info->dq_reduce = problem->dq_reduce;
    info->max_headroom_log2 = 0;
    info->threads = (int32_t)mxa_ref_workers(plan, problem->batch * problem->heads);
    info->workspace_forward_bytes = mxa_ref_forward_workspace_bytes(plan);
    info->workspace_backward_bytes = training ? mxa_ref_backward_workspace_bytes(plan) : 0;
    info->saved_bytes = training ? mxa_ref_saved_bytes(problem) : 0;
    info->prepared_bytes = 0;
    info->saved_id = saved_id(problem);
    return MXATTN_OK;
}

static void ref_query(const mxattn_context *context, mxattn_backend_info *info)
{
    info->available = 1;
    info->reason = "";
    info->devices = 1;
    info->threads = context->options.parallel_for ? context->options.threads : 1;
    info->isa = MXATTN_ISA_PORTABLE;
    info->isa_name = "float64";
    info->kernels = "mxa_ref_attention_forward_f64\n"
                    "mxa_ref_attention_forward_model\n"
                    "mxa_ref_attention_backward_f64\n"
                    "mxa_ref_attention_backward_model\n";
}

const mxa_backend mxa_ref_backend = {
    .name = "ref",
    .id = MXATTN_BACKEND_REF,
    .query = ref_query,
    .device_query = mxa_host_device_query,
    .device_alloc = mxa_host_device_alloc,
    .device_free = mxa_host_device_free,
    .device_copy = mxa_host_device_copy,
    .device_clear = mxa_host_device_clear,
    .stream_create = mxa_host_stream_create,
    .stream_destroy = mxa_host_stream_destroy,
    .synchronise = mxa_host_synchronise,
    .plan = ref_plan,
    .forward = mxa_ref_attention_forward,
    .backward = mxa_ref_attention_backward,
    .quantize = mxa_ref_quantize,
    .dequantize = mxa_ref_dequantize,
    .quantize_workspace = mxa_ref_quantize_workspace,
    .scales_scatter = mxa_ref_scales_rewrite,
    .scales_transform = mxa_ref_scales_rewrite,
    .states_merge = mxa_ref_states_merge,
    .rmsnorm_quantize = mxa_ref_rmsnorm_quantize,
    .rmsnorm_quantize_workspace = mxa_ref_rmsnorm_workspace,
    .rmsnorm_backward = mxa_ref_rmsnorm_backward,
    .rmsnorm_backward_workspace = mxa_ref_rmsnorm_backward_workspace,
    .gemm_quantize = mxa_ref_gemm_quantize,
    .gemm_quantize_workspace = mxa_ref_gemm_workspace,
};
