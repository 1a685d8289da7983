/* device_run.c: see device_run.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_run.h"

#include <stdlib.h>
#include <string.h>

const char *mxt_device_missing(void)
{
    static mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    if (mxattn_backend_query(NULL, MXATTN_BACKEND_CUDA, &info) || !info.available) {
        return info.reason && info.reason[0] ? info.reason : "no CUDA backend";
    }
    mxattn_device_info device;
    mxattn_device_info_init(&device);
    return mxattn_device_query(NULL, MXATTN_BACKEND_CUDA, 0, &device) ? mxattn_last_error() : NULL;
}

enum { MEMORIES = 24 };

typedef struct pool {
    void *memory[MEMORIES];
    int count;
    mxattn_status status;
} pool;

/* Device memory with `bytes` of `from`, or of 0xFF where from is NULL. */
static void *place(pool *p, const void *from, size_t bytes)
{
    void *memory = NULL;
    if (p->status || bytes == 0) {
        return NULL;
    }
    p->status = mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, 0, bytes, &memory);
    if (p->status) {
        return NULL;
    }
    p->memory[p->count++] = memory;
    void *filled = NULL;
    if (!from) {
        filled = malloc(bytes);
        mxt_fill_nan(filled, bytes);
        from = filled;
    }
    p->status = mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, memory, from, bytes);
    free(filled);
    return memory;
}

static void fetch(pool *p, void *to, const void *from, size_t bytes)
{
    if (!p->status && bytes) {
        p->status = mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, to, from, bytes);
    }
}

static const int32_t *place_i32(pool *p, const int32_t *from, int64_t count)
{
    return from ? place(p, from, (size_t)count * sizeof *from) : NULL;
}

mxattn_status mxt_device_forward(mxt_attention *a, int prepared)
{
    pool p = {.count = 0, .status = MXATTN_OK};
    mxattn_attention_problem problem = a->problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    problem.backend = MXATTN_BACKEND_CUDA;
    problem.mode = MXATTN_INFERENCE;
    problem.precision = MXATTN_PRECISION_MXFP8;
    problem.intermediates = MXATTN_INTERMEDIATES_AUTO;
    mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    if (status) {
        return status;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);

    mxattn_attention_args args;
    mxattn_tensor q = a->tensor_q, k = a->tensor_k, v = a->tensor_v, o = a->tensor_o,
                  lse = a->tensor_lse;
    mxattn_attention_args_init(&args);
    const size_t o_bytes = (size_t)mxt_size_o(a) * 4, lse_bytes = (size_t)mxt_size_lse(a) * 4;
    q.data = place(&p, a->q, (size_t)mxt_size_q(a) * 4);
    k.data = place(&p, a->k, (size_t)mxt_size_k(a) * 4);
    v.data = place(&p, a->v, (size_t)mxt_size_v(a) * 4);
    o.data = place(&p, NULL, o_bytes);
    lse.data = place(&p, NULL, lse_bytes);
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.o = &o;
    args.lse = &lse;
    args.batch = problem.format == MXATTN_JAGGED ? a->batch : -1;
    args.sink = problem.has_sink ? place(&p, a->sink, (size_t)problem.heads * 4) : NULL;
    args.cu_seqlens_q = place_i32(&p, a->cu_q, a->batch + 1);
    args.cu_seqlens_k = place_i32(&p, a->cu_k, a->batch + 1);
    args.seqused_q = place_i32(&p, a->used_q, a->batch);
    args.seqused_k = place_i32(&p, a->used_k, a->batch);
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    args.workspace = place(&p, NULL, args.workspace_bytes);
    args.device_status = place(&p, NULL, sizeof(uint32_t));
    if (prepared) {
        void *memory = place(&p, NULL, (size_t)info.prepared_bytes);
        args.prepared = memory;
        if (!p.status) {
            p.status = mxattn_prepare(plan, &args);
        }
    }
    if (!p.status) {
        p.status = mxattn_attention_forward(plan, &args);
    }
    if (!p.status) {
        p.status = mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, NULL);
    }
    fetch(&p, a->o, o.data, o_bytes);
    fetch(&p, a->lse, lse.data, lse_bytes);
    for (int i = 0; i < p.count; i++) {
        (void)mxattn_device_free(NULL, MXATTN_BACKEND_CUDA, 0, p.memory[i]);
    }
    mxattn_plan_destroy(plan);
    return p.status;
}
