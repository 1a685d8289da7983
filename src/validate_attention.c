/* validate_attention.c: the arguments of a run against its plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <stdio.h>
#include <string.h>

enum { MEMORY_ALIGNMENT = 256 };

/* What the tensors of one run have in common. */
typedef struct {
    const mxattn_plan *plan;
    const mxattn_attention_problem *problem;
    const mxattn_attention_args *args;
    int jagged;
    int64_t batch, tokens_q, tokens_k; /* dense: tokens of each sequence; jagged: of all */
    mxa_scale_extent extent_q, extent_k;
    mxa_sight sight;
} run;

/* The tokens a tensor brings: its S when dense, its T when jagged. */
static mxattn_status read_tokens(const run *r, const mxattn_tensor *user, const char *name,
                                 int64_t most, const char *bound, int64_t *batch, int64_t *tokens)
{
    mxattn_tensor tensor;
    const int32_t ndim = r->jagged ? 3 : 4;
    mxattn_status status = mxa_tensor_read(user, name, ndim, ndim, &tensor);
    if (status)
        return status;
    *tokens = tensor.shape[r->jagged ? 0 : 1];
    *batch = tensor.shape[0];
    if (*tokens > most)
        return mxa_fail(MXATTN_SHAPE, "%s.shape[%d] is %lld; the plan's %s is %lld", name,
                        r->jagged ? 0 : 1, (long long)*tokens, bound, (long long)most);
    return MXATTN_OK;
}

/* One side's lengths as the host can see them. On a device they may be out of sight (no host
 * copy): the backend's first kernel checks them, and one sequence of all tokens stands in here. */
static mxattn_status check_seen(const run *r, mxa_batch *seen, const int32_t *cu_seqlens,
                                const int32_t *seqused, const char *side)
{
    const int of_k = side[1] == 'k';
    const int64_t tokens = of_k ? r->tokens_k : r->tokens_q;
    const int64_t most = of_k ? r->problem->max_seqlen_k : r->problem->max_seqlen_q;
    mxattn_status status = MXATTN_OK;
    if (cu_seqlens || seqused) {
        char name[MXA_NAME_BYTES];
        mxa_name_join(name, "cu_seqlens", side);
        status = mxa_check_array(name, cu_seqlens, sizeof(int32_t), 0);
        mxa_name_join(name, "seqused", side);
        if (!status)
            status = mxa_check_array(name, seqused, sizeof(int32_t), 0);
    }
    if (status)
        return status;
    if (r->jagged && r->batch > 0 && !seen->cu_seqlens) {
        *seen = (mxa_batch){.batch = 1, .seqlen = tokens};
        return MXATTN_OK;
    }
    return mxa_check_batch(seen, tokens, most, side);
}

static mxattn_status take_batch(run *r, mxa_attention_call *call)
{
    const mxattn_attention_problem *problem = r->problem;
    const mxattn_attention_args *args = r->args;
    int64_t batch_q = 0, batch_k = 0;
    mxattn_status status =
        read_tokens(r, args->q, "q", r->jagged ? problem->total_q : problem->max_seqlen_q,
                    r->jagged ? "total_q" : "max_seqlen_q", &batch_q, &r->tokens_q);
    if (!status)
        status = read_tokens(r, args->k, "k", r->jagged ? problem->total_k : problem->max_seqlen_k,
                             r->jagged ? "total_k" : "max_seqlen_k", &batch_k, &r->tokens_k);
    if (status)
        return status;
    r->batch = args->batch;
    if (r->jagged && args->batch == -1)
        r->batch = problem->batch;
    if (!r->jagged) {
        r->batch = batch_q;
        if (args->batch != -1 && args->batch != batch_q)
            return mxa_fail(MXATTN_SHAPE, "args.batch is %lld; q.shape[0] says %lld",
                            (long long)args->batch, (long long)batch_q);
        if (args->cu_seqlens_q || args->cu_seqlens_k)
            return mxa_fail(MXATTN_ARGUMENT,
                            "cu_seqlens_%c is set; the plan is dense and takes "
                            "none",
                            args->cu_seqlens_q ? 'q' : 'k');
    }
    if (r->batch < 0 || r->batch > problem->batch)
        return mxa_fail(MXATTN_SHAPE, "%s is %lld; it must be 0 to the plan's batch, %lld",
                        r->jagged ? "args.batch" : "q.shape[0]", (long long)r->batch,
                        (long long)problem->batch);
    call->batch_q = (mxa_batch){.batch = r->batch, .seqused = args->seqused_q};
    call->batch_k = (mxa_batch){.batch = r->batch, .seqused = args->seqused_k};
    call->total_q = r->jagged ? r->tokens_q : r->batch * r->tokens_q;
    call->total_k = r->jagged ? r->tokens_k : r->batch * r->tokens_k;
    if (!r->jagged) {
        call->batch_q.seqlen = r->tokens_q;
        call->batch_k.seqlen = r->tokens_k;
    } else if (r->batch > 0) {
        if (!args->cu_seqlens_q || !args->cu_seqlens_k)
            return mxa_fail(MXATTN_ARGUMENT,
                            "cu_seqlens_%c is NULL; the plan is jagged and needs "
                            "it",
                            args->cu_seqlens_q ? 'k' : 'q');
        call->batch_q.cu_seqlens = args->cu_seqlens_q;
        call->batch_k.cu_seqlens = args->cu_seqlens_k;
    } else { /* jagged all the same: every row belongs to no sequence */
        static const int32_t no_sequence[1] = {0};
        call->batch_q.cu_seqlens = call->batch_k.cu_seqlens = no_sequence;
    }
    mxa_batch seen_q = call->batch_q, seen_k = call->batch_k;
    if (r->plan->backend->on_device) {
        seen_q.cu_seqlens = args->host_cu_seqlens_q;
        seen_k.cu_seqlens = args->host_cu_seqlens_k;
        seen_q.seqused = args->host_seqused_q;
        seen_k.seqused = args->host_seqused_k;
        r->sight = r->jagged && (!args->host_cu_seqlens_q || !args->host_cu_seqlens_k)
                       ? MXA_SEES_NOTHING
                       : MXA_SEES_LENGTHS;
    }
    status = check_seen(r, &seen_q, args->cu_seqlens_q, args->seqused_q, "_q");
    if (!status)
        status = check_seen(r, &seen_k, args->cu_seqlens_k, args->seqused_k, "_k");
    if (status)
        return status;
    r->extent_q = mxa_scales_extent(&seen_q, 0, 0);
    r->extent_k = mxa_scales_extent(&seen_k, 0, 0);
    return MXATTN_OK;
}

/* One (B, S, heads, dim) or (T, heads, dim) tensor with the plan's tags. */
static mxattn_status take(const run *r, const mxa_attention_call *call, const char *name,
                          const mxattn_tensor *user, const mxattn_tags *tags, int of_k,
                          int64_t heads, int64_t dim, int written, mxattn_tensor *out)
{
    const int64_t tokens = of_k ? r->tokens_k : r->tokens_q;
    mxa_tensor_rule rule = {.name = name,
                            .letters = r->jagged ? "(T, heads, dim)" : "(B, S, heads, dim)",
                            .ndim = r->jagged ? 3 : 4,
                            .shape = {r->batch, tokens, heads, dim},
                            .written = written,
                            .batch = of_k ? &call->batch_k : &call->batch_q,
                            .extent = of_k ? &r->extent_k : &r->extent_q,
                            .sight = r->sight};
    if (r->jagged) {
        const int64_t shape[4] = {tokens, heads, dim, 0};
        memcpy(rule.shape, shape, sizeof shape);
    }
    mxattn_status status = mxa_tensor_read(user, name, rule.ndim, rule.ndim, out);
    if (!status)
        status = mxa_check_tags_equal(name, &out->tags, tags);
    if (!status)
        status = mxa_tensor_take(&rule, out);
    if (!status)
        out->tags = *tags; /* a wide operand keeps the block it is to be quantized to */
    return status;
}

/* One number per row: (B, H, S) or (H, T). */
static mxattn_status take_rows(const run *r, const char *name, const mxattn_tensor *user,
                               int written, mxattn_tensor *out)
{
    const mxattn_tags f32 = {.dtype = MXATTN_F32};
    const int64_t heads = r->problem->heads;
    mxa_tensor_rule rule = {.name = name,
                            .letters = r->jagged ? "(H, T)" : "(B, H, S)",
                            .ndim = r->jagged ? 2 : 3,
                            .shape = {r->batch, heads, r->tokens_q},
                            .written = written,
                            .any_stride = 1};
    if (r->jagged) {
        rule.shape[0] = heads;
        rule.shape[1] = r->tokens_q;
    }
    if (!user)
        return MXATTN_OK;
    mxattn_status status = mxa_tensor_read(user, name, rule.ndim, rule.ndim, out);
    if (!status)
        status = mxa_check_tags_equal(name, &out->tags, &f32);
    if (!status)
        status = mxa_tensor_take(&rule, out);
    return status;
}

static mxattn_status take_operands(const run *r, mxa_direction direction, mxa_attention_call *call)
{
    const mxattn_attention_problem *p = r->problem;
    const mxattn_attention_args *a = r->args;
    const int backward = direction != MXA_FORWARD;
    mxattn_status status = take(r, call, "q", a->q, &p->q, 0, p->heads, p->head_dim, 0, &call->q);
    if (!status)
        status = take(r, call, "k", a->k, &p->k, 1, p->kv_heads, p->head_dim, 0, &call->k);
    if (!status)
        status = take(r, call, "v", a->v, &p->v, 1, p->kv_heads, p->head_dim_v, 0, &call->v);
    if (!status && p->q_seq.dtype && backward)
        status =
            take(r, call, "q_seq", a->q_seq, &p->q_seq, 0, p->heads, p->head_dim, 0, &call->q_seq);
    if (!status && p->k_seq.dtype && backward)
        status = take(r, call, "k_seq", a->k_seq, &p->k_seq, 1, p->kv_heads, p->head_dim, 0,
                      &call->k_seq);
    if (!status && p->v_seq.dtype)
        status = take(r, call, "v_seq", a->v_seq, &p->v_seq, 1, p->kv_heads, p->head_dim_v, 0,
                      &call->v_seq);
    return status;
}

static mxattn_status take_sink(const run *r, mxa_attention_call *call)
{
    const mxattn_attention_args *args = r->args;
    if (!r->problem->has_sink && (args->sink || args->dsink))
        return mxa_fail(MXATTN_ARGUMENT, "%s is set; the plan has no sink (has_sink is 0)",
                        args->sink ? "sink" : "dsink");
    call->sink = args->sink;
    return mxa_check_array("sink", args->sink, sizeof(float), r->problem->has_sink);
}

/* O once more, wide, where the plan's is MXFP8. */
static mxattn_status take_o_wide(const run *r, const mxa_attention_call *call, int written,
                                 mxattn_tensor *out)
{
    const mxattn_attention_problem *p = r->problem;
    if (!r->args->o_wide)
        return MXATTN_OK;
    if (!mxa_dtype_is_fp8(p->o.dtype))
        return mxa_fail(MXATTN_ARGUMENT,
                        "o_wide is set and the plan's o is %s; only an MXFP8 o has it beside",
                        mxa_dtype_name(p->o.dtype));
    if (r->plan->backend->on_device)
        return mxa_fail(MXATTN_UNSUPPORTED, "o_wide is set; backend %s does not write it",
                        r->plan->backend->name);
    mxa_operand_rule rule = {.name = "o_wide",
                             .letters = r->jagged ? "(T, heads, dim)" : "(B, S, heads, dim)",
                             .ndim = r->jagged ? 3 : 4,
                             .shape = {r->batch, r->tokens_q, p->heads, p->head_dim_v},
                             .wide = 1,
                             .written = written};
    if (r->jagged)
        memmove(rule.shape, rule.shape + 1, 3 * sizeof rule.shape[0]);
    mxattn_status status = mxa_take_operand(&rule, r->args->o_wide, out);
    if (!status && written)
        status = mxa_check_apart("o_wide", out, "o", &call->o);
    return status;
}

/* A rotation of dq or dk. */
static mxattn_status take_turn(const run *r, const char *name, const mxattn_rope *user,
                               const mxa_batch *batch, const mxattn_tags *gradient,
                               mxattn_rope *rope)
{
    if (!user)
        return MXATTN_OK;
    if (r->plan->backend->on_device)
        return mxa_fail(MXATTN_UNSUPPORTED, "%s is set; backend %s does not rotate", name,
                        r->plan->backend->name);
    if (gradient->dtype != MXATTN_F32 && !mxa_dtype_is_fp8(gradient->dtype))
        return mxa_fail(MXATTN_DTYPE, "%s is set and its gradient is %s; it must be f32 or MXFP8",
                        name, mxa_dtype_name(gradient->dtype));
    mxattn_status status = mxa_take_rope(user, r->problem->head_dim, batch, name, rope);
    rope->inverse = !rope->inverse;
    return status;
}

static mxattn_status take_forward(const run *r, mxa_attention_call *call)
{
    const mxattn_attention_problem *p = r->problem;
    const mxattn_attention_args *a = r->args;
    mxattn_status status = take(r, call, "o", a->o, &p->o, 0, p->heads, p->head_dim_v, 1, &call->o);
    if (!status)
        status = take_rows(r, "lse", a->lse, 1, &call->lse);
    if (!status)
        status = take_o_wide(r, call, 1, &call->o_wide);
    if (!status && r->plan->info.saved_bytes > 0 && mxa_dtype_is_fp8(p->o.dtype) && !call->saved &&
        !call->o_wide.ndim)
        status = mxa_fail(MXATTN_WORKSPACE,
                          "saved is NULL and so is o_wide; a training forward whose o is %s needs "
                          "one of them for backward",
                          mxa_dtype_name(p->o.dtype));
    return status;
}

static mxattn_status take_backward(const run *r, mxa_attention_call *call)
{
    const mxattn_attention_problem *p = r->problem;
    const mxattn_attention_args *a = r->args;
    mxattn_status status = MXATTN_OK;
    if (!call->saved && !a->o_wide && mxa_dtype_is_fp8(p->o.dtype))
        return mxa_fail(
            MXATTN_WORKSPACE,
            "saved is NULL and so is o_wide; backward with an o of %s needs one of them",
            mxa_dtype_name(p->o.dtype));
    if (!call->saved && !a->lse)
        return mxa_fail(MXATTN_ARGUMENT, "lse is NULL; backward without saved needs it");
    if (a->o_wide && !call->saved)
        status = take_o_wide(r, call, 0, &call->o);
    else if (!call->saved || a->o)
        status = take(r, call, "o", a->o, &p->o, 0, p->heads, p->head_dim_v, 0, &call->o);
    if (!status)
        status = take_rows(r, "lse", a->lse, 0, &call->lse);
    if (!status)
        status =
            take(r, call, "dout", a->dout, &p->dout, 0, p->heads, p->head_dim_v, 0, &call->dout);
    if (!status)
        status = take_rows(r, "dlse", a->dlse, 0, &call->dlse);
    if (!status)
        status = take(r, call, "dq", a->dq, &p->dq, 0, p->heads, p->head_dim, 1, &call->dq);
    if (!status)
        status = take(r, call, "dk", a->dk, &p->dk, 1, p->kv_heads, p->head_dim, 1, &call->dk);
    if (!status)
        status = take(r, call, "dv", a->dv, &p->dv, 1, p->kv_heads, p->head_dim_v, 1, &call->dv);
    if (!status)
        status = take_turn(r, "rope_q", a->rope_q, &call->batch_q, &p->dq, &call->rope_q);
    if (!status)
        status = take_turn(r, "rope_k", a->rope_k, &call->batch_k, &p->dk, &call->rope_k);
    if (!status)
        status = mxa_check_array("dsink", a->dsink, sizeof(float), 0);
    call->dsink = a->dsink;
    return status;
}

/* Workspace, saved and prepared. What the plan sizes 0 is not read. */
static mxattn_status take_memory(const mxattn_plan *plan, const mxattn_attention_args *args,
                                 mxa_direction direction, mxa_attention_call *call)
{
    const int64_t need = direction == MXA_FORWARD    ? plan->info.workspace_forward_bytes
                         : direction == MXA_BACKWARD ? plan->info.workspace_backward_bytes
                                                     : 0;
    mxattn_status status = MXATTN_OK;
    if (need > 0 && (!args->workspace || args->workspace_bytes < (uint64_t)need))
        return mxa_fail(MXATTN_WORKSPACE, "%s is %s%zu; the plan needs %lld bytes",
                        args->workspace ? "workspace_bytes" : "workspace",
                        args->workspace ? "" : "NULL, workspace_bytes ", args->workspace_bytes,
                        (long long)need);
    if (need > 0)
        status = mxa_check_array("workspace", args->workspace, MEMORY_ALIGNMENT, 1);
    if (!status)
        status = mxa_check_array("saved", call->saved, MEMORY_ALIGNMENT, 0);
    if (!status && plan->info.prepared_bytes > 0)
        status =
            mxa_check_array("prepared", args->prepared, MEMORY_ALIGNMENT, direction == MXA_PREPARE);
    if (!status && args->device_status)
        status = mxa_check_array("device_status", args->device_status, sizeof(uint32_t), 0);
    call->workspace = need > 0 ? args->workspace : NULL;
    call->prepared = plan->info.prepared_bytes > 0 ? args->prepared : NULL;
    call->device_status = args->device_status;
    call->stream = args->stream;
    return status;
}

mxattn_status mxa_attention_take(const mxattn_plan *plan, const mxattn_attention_args *user,
                                 mxa_direction direction, mxa_attention_call *call, int *nothing)
{
    if (!plan)
        return mxa_fail(MXATTN_ARGUMENT, "plan is NULL; it is required");
    mxattn_attention_args args;
    if (!user || user->struct_size < sizeof args) /* else all of it is read */
        mxattn_attention_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (status)
        return status;
    if (direction == MXA_BACKWARD && plan->problem.mode != MXATTN_TRAINING)
        return mxa_fail(MXATTN_ARGUMENT, "problem.mode is INFERENCE; backward needs a plan made "
                                         "for TRAINING");
    run r = {.plan = plan,
             .problem = &plan->problem,
             .args = &args,
             .jagged = plan->problem.format == MXATTN_JAGGED};
    memset(call, 0, sizeof *call);
    call->saved = plan->info.saved_bytes > 0 ? args.saved : NULL;
    status = take_batch(&r, call);
    if (!status)
        status = take_operands(&r, direction, call);
    if (!status && direction != MXA_PREPARE)
        status = take_sink(&r, call);
    if (!status && direction == MXA_FORWARD)
        status = take_forward(&r, call);
    if (!status && direction == MXA_BACKWARD)
        status = take_backward(&r, call);
    if (!status)
        status = take_memory(plan, &args, direction, call);
    *nothing = call->total_q == 0 && call->total_k == 0;
    return status;
}
