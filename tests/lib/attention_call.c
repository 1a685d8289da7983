/* attention_call.c: builds the call of attention_call.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

enum { HQ = 4, HKV = 2, D = 32, DV = 16, WORKSPACE = 1 << 22 };

/* A buffer aligned as the library may ask. */
static void *array(mxt_attention_call *call, size_t bytes, int written)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory)
        abort();
    mxt_fill_nan(memory, bytes);
    call->memory[call->arrays] = memory;
    call->bytes[call->arrays] = bytes;
    call->written[call->arrays++] = written;
    return memory;
}

static int64_t count(int32_t ndim, const int64_t *shape)
{
    int64_t elements = 1;
    for (int32_t i = 0; i < ndim; i++)
        elements *= shape[i];
    return elements;
}

static void operand(mxt_attention_call *call, mxattn_tensor *tensor, int32_t ndim,
                    const int64_t *shape)
{
    const int64_t elements = count(ndim, shape);
    void *payload = array(call, (size_t)elements, 0);
    memset(payload, 0x38, (size_t)elements);
    mxattn_tensor_view(tensor, MXATTN_E4M3, payload, ndim, shape);
    tensor->tags.block = MXATTN_BLOCK_SQUARE;
    const size_t scales = (size_t)(elements / shape[ndim - 1] * ((shape[ndim - 1] + 31) / 32));
    tensor->scales[MXATTN_HDIM].data = array(call, scales, 0);
    memset(tensor->scales[MXATTN_HDIM].data, 127, scales);
}

static void wide(mxt_attention_call *call, mxattn_tensor *tensor, mxattn_dtype dtype, int32_t ndim,
                 const int64_t *shape, int written)
{
    const size_t bytes = (size_t)count(ndim, shape) * (dtype == MXATTN_F32 ? 4 : 2);
    mxattn_tensor_view(tensor, dtype, array(call, bytes, written), ndim, shape);
    if (!written)
        memset(tensor->data, 0, bytes);
}

void mxt_attention_call_init(mxt_attention_call *call, mxattn_backend backend, mxattn_format format)
{
    static const int32_t cu_q[4] = {0, 5, 5, 40}, cu_k[4] = {0, 3, 20, 70};
    const int jagged = format == MXATTN_JAGGED;
    const int32_t n = jagged ? 3 : 4;
    const int64_t q4[] = {2, 40, HQ, D}, k4[] = {2, 70, HKV, D}, v4[] = {2, 70, HKV, DV};
    const int64_t o4[] = {2, 40, HQ, DV}, rows4[] = {2, HQ, 40};
    const int64_t q3[] = {42, HQ, D}, k3[] = {71, HKV, D}, v3[] = {71, HKV, DV};
    const int64_t o3[] = {42, HQ, DV}, rows3[] = {HQ, 42};
    const int64_t *q = jagged ? q3 : q4, *k = jagged ? k3 : k4, *v = jagged ? v3 : v4;
    const int64_t *o = jagged ? o3 : o4, *rows = jagged ? rows3 : rows4;
    memset(call, 0, sizeof *call);
    mxattn_attention_problem *problem = &call->problem;
    mxattn_attention_problem_init(problem);
    problem->backend = backend;
    problem->mode = MXATTN_TRAINING;
    problem->format = format;
    problem->batch = jagged ? 3 : 2;
    problem->total_q = 42;
    problem->total_k = 71;
    problem->max_seqlen_q = 40;
    problem->max_seqlen_k = 70;
    problem->heads = HQ;
    problem->kv_heads = HKV;
    problem->head_dim = D;
    problem->head_dim_v = DV;
    operand(call, &call->q, n, q);
    operand(call, &call->k, n, k);
    operand(call, &call->v, n, v);
    wide(call, &call->dout, MXATTN_BF16, n, o, 0);
    wide(call, &call->dlse, MXATTN_F32, n - 1, rows, 0);
    wide(call, &call->o, MXATTN_BF16, n, o, 1);
    wide(call, &call->lse, MXATTN_F32, n - 1, rows, 1);
    wide(call, &call->dq, MXATTN_BF16, n, q, 1);
    wide(call, &call->dk, MXATTN_BF16, n, k, 1);
    wide(call, &call->dv, MXATTN_BF16, n, v, 1);
    call->workspace = array(call, WORKSPACE, 0);
    call->workspace_bytes = WORKSPACE;
    memcpy(call->cu_q, cu_q, sizeof cu_q);
    memcpy(call->cu_k, cu_k, sizeof cu_k);
    mxt_fill_nan(call->dsink, sizeof call->dsink);
    mxattn_attention_args *args = &call->args;
    mxattn_attention_args_init(args);
    args->q = &call->q;
    args->k = &call->k;
    args->v = &call->v;
    args->o = &call->o;
    args->lse = &call->lse;
    args->dout = &call->dout;
    args->dlse = &call->dlse;
    args->dq = &call->dq;
    args->dk = &call->dk;
    args->dv = &call->dv;
    args->cu_seqlens_q = jagged ? call->cu_q : NULL;
    args->cu_seqlens_k = jagged ? call->cu_k : NULL;
    args->workspace = call->workspace;
    args->workspace_bytes = call->workspace_bytes;
}

void mxt_attention_call_free(mxt_attention_call *call)
{
    for (int i = 0; i < call->arrays; i++)
        free(call->memory[i]);
    call->arrays = 0;
}

static int all_ones(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0xFF)
            return 0;
    }
    return 1;
}

int mxt_attention_call_untouched(const mxt_attention_call *call)
{
    int untouched = all_ones(call->dsink, sizeof call->dsink);
    for (int i = 0; i < call->arrays; i++)
        untouched &= !call->written[i] || all_ones(call->memory[i], call->bytes[i]);
    return untouched;
}

const char *mxt_attention_call_missing(mxattn_backend backend)
{
    mxt_attention_call call;
    mxattn_plan *plan = NULL;
    mxt_attention_call_init(&call, backend, MXATTN_DENSE);
    const mxattn_status status = mxattn_plan_create(NULL, &call.problem, &plan);
    mxattn_plan_destroy(plan);
    mxt_attention_call_free(&call);
    return status == MXATTN_UNSUPPORTED ? mxattn_last_error() : NULL;
}
