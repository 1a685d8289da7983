/* api_attention.c: front door of attention: validates, never computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

enum { WORKSPACE_ALIGNMENT = 256 };

/* A call without a token, whose tensors have no element: what is not a tensor of tokens is written
 * all the same, dsink as the sum over none. */
static mxattn_status run_empty(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxa_backend *backend = plan->backend;
    const int32_t device = plan->problem.device;
    mxattn_status status = MXATTN_OK;
    if (call->device_status)
        status = backend->device_clear(plan->context, device, call->device_status,
                                       sizeof *call->device_status, call->stream);
    if (!status && call->dsink)
        status =
            backend->device_clear(plan->context, device, call->dsink,
                                  (size_t)plan->problem.heads * sizeof *call->dsink, call->stream);
    return status;
}

static mxattn_status run(const mxattn_plan *plan, const mxattn_attention_args *args,
                         mxa_direction direction)
{
    mxa_attention_call call;
    int nothing = 0;
    mxattn_status status = mxa_attention_take(plan, args, direction, &call, &nothing);
    if (status)
        return status;
    if (nothing)
        return run_empty(plan, &call);
    if (call.device_status && !plan->backend->on_device)
        *call.device_status = 0; /* on the host everything was checked */
    if (direction == MXA_FORWARD)
        return plan->backend->forward(plan, &call);
    if (direction == MXA_PREPARE)
        return call.prepared ? plan->backend->prepare(plan, &call) : MXATTN_OK;
    if (!plan->backend->backward)
        return mxa_backend_lacks(plan->backend, "attention_backward");
    return plan->backend->backward(plan, &call);
}

mxattn_status mxattn_attention_forward(const mxattn_plan *plan, const mxattn_attention_args *args)
{
    return run(plan, args, MXA_FORWARD);
}

mxattn_status mxattn_attention_backward(const mxattn_plan *plan, const mxattn_attention_args *args)
{
    return run(plan, args, MXA_BACKWARD);
}

mxattn_status mxattn_prepare(const mxattn_plan *plan, const mxattn_attention_args *args)
{
    return run(plan, args, MXA_PREPARE);
}

/* The longest sequence of offsets that the run has yet to check: no more than there are tokens, so
 * that garbage asks for no memory; 0 where the offsets cannot even be read. */
static int64_t longest(const int32_t *cu_seqlens, int64_t batch, int64_t tokens)
{
    int64_t most = 0;
    if (!cu_seqlens || (uintptr_t)cu_seqlens % sizeof *cu_seqlens != 0)
        return 0;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = (int64_t)cu_seqlens[b + 1] - cu_seqlens[b];
        if (length > most)
            most = length;
    }
    return most < tokens ? most : tokens;
}

static void fill(int64_t *bound, int64_t actual)
{
    if (*bound == 0)
        *bound = actual;
}

/* Bounds from the tensors; what is wrong with those, the run finds. */
static mxattn_status fill_bounds(const mxattn_attention_args *args,
                                 mxattn_attention_problem *problem)
{
    mxattn_tensor q, k, v;
    const int jagged = problem->format == MXATTN_JAGGED;
    const int32_t ndim = jagged ? 3 : 4;
    mxattn_status status = mxa_tensor_read(args->q, "q", ndim, ndim, &q);
    if (!status)
        status = mxa_tensor_read(args->k, "k", ndim, ndim, &k);
    if (!status)
        status = mxa_tensor_read(args->v, "v", ndim, ndim, &v);
    if (status)
        return status;
    if (jagged) {
        if (args->batch >= 0)
            problem->batch = args->batch;
        problem->total_q = q.shape[0];
        problem->total_k = k.shape[0];
        fill(&problem->max_seqlen_q, longest(args->cu_seqlens_q, problem->batch, q.shape[0]));
        fill(&problem->max_seqlen_k, longest(args->cu_seqlens_k, problem->batch, k.shape[0]));
    } else {
        problem->batch = q.shape[0];
        fill(&problem->max_seqlen_q, q.shape[1]);
        fill(&problem->max_seqlen_k, k.shape[1]);
    }
    fill(&problem->heads, q.shape[ndim - 2]);
    fill(&problem->kv_heads, k.shape[ndim - 2]);
    fill(&problem->head_dim, q.shape[ndim - 1]);
    fill(&problem->head_dim_v, v.shape[ndim - 1]);
    return MXATTN_OK;
}

/* Runs a plan in workspace of its own. */
static mxattn_status run_alone(const mxattn_plan *plan, mxattn_attention_args *args,
                               mxa_direction direction)
{
    const int64_t bytes = direction == MXA_FORWARD ? plan->info.workspace_forward_bytes
                                                   : plan->info.workspace_backward_bytes;
    void *workspace = NULL;
    if (bytes > 0) {
        workspace = mxa_alloc(plan->context, (size_t)bytes, WORKSPACE_ALIGNMENT);
        if (!workspace)
            return mxa_fail(MXATTN_MEMORY,
                            "context's alloc gave NULL for a workspace of %lld bytes",
                            (long long)bytes);
    }
    args->workspace = workspace;
    args->workspace_bytes = (size_t)bytes;
    mxattn_status status = run(plan, args, direction);
    if (workspace)
        mxa_free(plan->context, workspace);
    return status;
}

static mxattn_status once(const mxattn_context *context, const mxattn_attention_problem *problem,
                          const mxattn_attention_args *args, mxa_direction direction)
{
    mxattn_attention_problem filled;
    mxattn_attention_args copy;
    mxattn_plan *plan = NULL;
    mxattn_attention_problem_init(&filled);
    mxattn_attention_args_init(&copy);
    mxattn_status status = mxa_struct_read(&filled, sizeof filled, problem, "problem");
    if (!status)
        status = mxa_struct_read(&copy, sizeof copy, args, "args");
    if (!status)
        status = fill_bounds(&copy, &filled);
    if (!status)
        status = mxattn_plan_create(context, &filled, &plan);
    if (!status)
        status = run_alone(plan, &copy, direction);
    mxattn_plan_destroy(plan);
    return status;
}

mxattn_status mxattn_attention_forward_once(const mxattn_context *context,
                                            const mxattn_attention_problem *problem,
                                            const mxattn_attention_args *args)
{
    return once(context, problem, args, MXA_FORWARD);
}

mxattn_status mxattn_attention_backward_once(const mxattn_context *context,
                                             const mxattn_attention_problem *problem,
                                             const mxattn_attention_args *args)
{
    return once(context, problem, args, MXA_BACKWARD);
}
