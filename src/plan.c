/* plan.c: a problem becomes a plan: validated, its kernels chosen by the backend, its sizes known.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "log.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <string.h>

/* FNV-1a, 64 bits. */
static uint64_t hash(uint64_t state, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        state = (state ^ at[i]) * UINT64_C(0x100000001b3);
    return state;
}

/* Names what a forward leaves for backward: everything of the resolved problem that decides the
 * content or the places of saved memory. Gradient tags and dQ's reduction do not. */
static uint64_t saved_id(const mxattn_plan *plan)
{
    const mxattn_attention_problem *p = &plan->problem;
    const mxattn_tags *tags[] = {&p->q, &p->k, &p->v, &p->v_seq};
    const int64_t numbers[] = {
        (int64_t)p->backend,
        p->device,
        (int64_t)p->format,
        (int64_t)p->precision,
        p->batch,
        p->total_q,
        p->total_k,
        p->max_seqlen_q,
        p->max_seqlen_k,
        p->heads,
        p->kv_heads,
        p->head_dim,
        p->head_dim_v,
        p->window[0],
        p->window[1],
        (int64_t)p->alignment,
        p->has_sink,
        p->causal_strict,
        (int64_t)plan->info.intermediates,
        plan->info.saved_bytes,
        (int64_t)plan->info.saved_id, /* the backend's share */
    };
    uint64_t state = UINT64_C(0xcbf29ce484222325);
    state = hash(state, numbers, sizeof numbers);
    state = hash(state, &p->softmax_scale, sizeof p->softmax_scale);
    state = hash(state, &p->softcap, sizeof p->softcap);
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        state = hash(state, tags[i], sizeof *tags[i]);
    return state;
}

/* What holds only once AUTO is resolved. */
static mxattn_status check_made(const mxattn_plan *plan)
{
    if (plan->problem.dq_scale_log2 != MXATTN_DQ_SCALE_AUTO &&
        plan->info.dq_reduce != MXATTN_DQ_REDUCE_FP16)
        return mxa_fail(MXATTN_ARGUMENT,
                        "problem.dq_scale_log2 is %d; it needs dq_reduce FP16, and this plan "
                        "reduces in FP32",
                        (int)plan->problem.dq_scale_log2);
    return MXATTN_OK;
}

static mxattn_status make(mxattn_plan *plan)
{
    mxattn_plan_info *info = &plan->info;
    mxattn_plan_info_init(info);
    info->backend = plan->backend->id;
    info->threads = plan->context->options.threads;
    info->softmax_scale = plan->problem.softmax_scale;
    info->intermediates = plan->problem.intermediates;
    info->dq_reduce = plan->problem.dq_reduce;
    mxattn_status status = plan->backend->plan(plan);
    if (!status)
        status = check_made(plan);
    if (status)
        return status;
    info->kernel_forward = plan->kernel_forward;
    info->kernel_backward = plan->kernel_backward;
    info->saved_id = plan->problem.mode == MXATTN_TRAINING ? saved_id(plan) : 0;
    return MXATTN_OK;
}

mxattn_status mxattn_plan_create(const mxattn_context *context,
                                 const mxattn_attention_problem *problem, mxattn_plan **plan)
{
    const mxa_backend *backend = NULL;
    mxattn_attention_problem resolved;
    if (!plan)
        return mxa_fail(MXATTN_ARGUMENT, "plan is NULL; it must point to a pointer");
    mxattn_status status = mxa_problem_take(problem, &backend, &resolved);
    if (status)
        return status;
    if (!backend->plan)
        return mxa_backend_lacks(backend, "attention");
    context = mxa_context_or_default(context);
    mxattn_plan *made = mxa_alloc(context, sizeof *made, _Alignof(mxattn_plan));
    if (!made)
        return mxa_fail(MXATTN_MEMORY, "context's alloc gave NULL for a plan of %zu bytes",
                        sizeof *made);
    memset(made, 0, sizeof *made);
    made->context = context;
    made->backend = backend;
    made->problem = resolved;
    status = make(made);
    if (status) {
        mxa_free(context, made);
        return status;
    }
    mxa_log(context, MXATTN_LOG_DEBUG, "plan: %s %s, workspace %lld and %lld bytes",
            made->kernel_forward, made->kernel_backward,
            (long long)made->info.workspace_forward_bytes,
            (long long)made->info.workspace_backward_bytes);
    *plan = made;
    return MXATTN_OK;
}

void mxattn_plan_destroy(mxattn_plan *plan)
{
    if (plan)
        mxa_free(plan->context, plan);
}

mxattn_status mxattn_plan_query(const mxattn_plan *plan, mxattn_plan_info *info)
{
    if (!plan)
        return mxa_fail(MXATTN_ARGUMENT, "plan is NULL; it is required");
    return mxa_struct_write(info, &plan->info, sizeof plan->info, "info");
}
