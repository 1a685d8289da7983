/* device_run.c: see device_run.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_run.h"

#include "compare.h"
#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

const char *mxt_device_missing(mxattn_backend backend)
{
    static mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    if (mxattn_backend_query(NULL, backend, &info) || !info.available) {
        return info.reason && info.reason[0] ? info.reason : "no CUDA backend";
    }
    mxattn_device_info device;
    mxattn_device_info_init(&device);
    return mxattn_device_query(NULL, backend, 0, &device) ? mxattn_last_error() : NULL;
}

enum { MEMORIES = 40 };

typedef struct pool {
    void *memory[MEMORIES];
    int count;
    mxattn_backend backend;
    mxattn_status status;
} pool;

/* Device memory with `bytes` of `from`, or of 0xFF where from is NULL. */
static void *place(pool *p, const void *from, size_t bytes)
{
    void *memory = NULL;
    if (p->status || bytes == 0) {
        return NULL;
    }
    p->status = mxattn_device_alloc(NULL, p->backend, 0, bytes, &memory);
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
    p->status = mxattn_device_copy(NULL, p->backend, 0, memory, from, bytes);
    free(filled);
    return memory;
}

static void fetch(pool *p, void *to, const void *from, size_t bytes)
{
    if (!p->status && bytes) {
        p->status = mxattn_device_copy(NULL, p->backend, 0, to, from, bytes);
    }
}

static const int32_t *place_i32(pool *p, const int32_t *from, int64_t count)
{
    return from ? place(p, from, (size_t)count * sizeof *from) : NULL;
}

/* An operand of the device: `wide` as `dtype`. */
static mxattn_tensor place_operand(pool *p, const mxt_attention *a, const mxattn_tensor *wide,
                                   mxattn_dtype dtype)
{
    int64_t count = 1;
    for (int i = 0; i < wide->ndim; i++) {
        count *= wide->shape[i];
    }
    mxattn_tensor tensor = *wide;
    tensor.tags.dtype = dtype;
    if (dtype == MXATTN_E4M3) {
        mxattn_tensor host = mxt_quantized(a, wide, MXATTN_HDIM, MXATTN_LINEAR);
        const int64_t *last = wide->shape + wide->ndim - 2;
        const int of_q = wide == &a->tensor_q || wide == &a->tensor_dout;
        const int32_t *cu = of_q ? a->cu_q : a->cu_k;
        int64_t bytes = 0;
        CHECK_STATUS(MXATTN_OK,
                     mxattn_scales_bytes(&host.tags, MXATTN_HDIM, MXATTN_LINEAR, a->batch,
                                         wide->shape[1], cu, last[0], last[1], &bytes));
        tensor = host;
        tensor.data = place(p, host.data, (size_t)count);
        tensor.scales[MXATTN_HDIM].data = place(p, host.scales[MXATTN_HDIM].data, (size_t)bytes);
        mxt_quantized_free(&host);
        return tensor;
    }
    const int element = mxa_dtype_bytes(dtype);
    void *values = malloc((size_t)(count * element));
    for (int64_t i = 0; i < count; i++) {
        mxa_store(values, dtype, i, ((const float *)wide->data)[i]);
    }
    tensor.data = place(p, values, (size_t)(count * element));
    free(values);
    return tensor;
}

/* O of the device as FP32. */
static void fetch_o(pool *p, mxt_attention *a, const mxattn_tensor *o)
{
    const int64_t count = mxt_size_o(a);
    const size_t bytes = (size_t)(count * mxa_dtype_bytes(o->tags.dtype));
    void *values = malloc(bytes);
    mxt_fill_nan(values, bytes);
    fetch(p, values, o->data, bytes);
    mxt_to_f32(a->o, values, o->tags.dtype, count);
    free(values);
}

mxattn_status mxt_device_forward(mxt_attention *a, const mxt_device_options *options)
{
    pool p = {.backend = options->backend ? options->backend : MXATTN_BACKEND_CUDA};
    mxattn_attention_problem problem = a->problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    problem.backend = p.backend;
    problem.mode = MXATTN_INFERENCE;
    problem.precision = MXATTN_PRECISION_MXFP8;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = options->operands;
    problem.o.dtype = options->o;
    mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    if (status) {
        return status;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);

    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    mxattn_tensor q = place_operand(&p, a, &a->tensor_q, options->operands);
    mxattn_tensor k = place_operand(&p, a, &a->tensor_k, options->operands);
    mxattn_tensor v = place_operand(&p, a, &a->tensor_v, options->operands);
    mxattn_tensor o = a->tensor_o, lse = a->tensor_lse;
    const size_t lse_bytes = (size_t)mxt_size_lse(a) * 4;
    o.tags.dtype = options->o;
    o.data = place(&p, NULL, (size_t)(mxt_size_o(a) * mxa_dtype_bytes(options->o)));
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
    if (options->prepared) {
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
        p.status = mxattn_device_synchronise(NULL, p.backend, 0, NULL);
    }
    fetch_o(&p, a, &o);
    fetch(&p, a->lse, lse.data, lse_bytes);
    for (int i = 0; i < p.count; i++) {
        (void)mxattn_device_free(NULL, p.backend, 0, p.memory[i]);
    }
    mxattn_plan_destroy(plan);
    return p.status;
}

/* ---- backward ---- */

/* Memory of `count` elements that the device writes. */
static mxattn_tensor place_output(pool *p, const mxattn_tensor *like, mxattn_dtype dtype,
                                  int64_t count)
{
    mxattn_tensor tensor = *like;
    tensor.tags.dtype = dtype;
    tensor.tags.block = MXATTN_BLOCK_NONE;
    tensor.data = place(p, NULL, (size_t)(count * mxa_dtype_bytes(dtype)));
    return tensor;
}

static int64_t gradient_scale_bytes(const mxt_attention *a, const mxattn_tensor *tensor,
                                    const mxattn_tensor *like)
{
    const int64_t *last = like->shape + like->ndim - 2;
    int64_t bytes = 0;
    CHECK_STATUS(MXATTN_OK,
                 mxattn_scales_bytes(&tensor->tags, MXATTN_HDIM, MXATTN_LINEAR, a->batch,
                                     like->shape[1], like == &a->tensor_dq ? a->cu_q : a->cu_k,
                                     last[0], last[1], &bytes));
    return bytes;
}

/* A gradient: of a wide type, or MXFP8 in square blocks. `like`: one of a's. */
static mxattn_tensor place_gradient(pool *p, const mxt_attention *a, const mxattn_tensor *like,
                                    mxattn_dtype dtype, int64_t count)
{
    mxattn_tensor tensor = place_output(p, like, dtype, count);
    if (dtype == MXATTN_E4M3) {
        tensor.tags.block = MXATTN_BLOCK_SQUARE;
        tensor.scales[MXATTN_HDIM].data =
            place(p, NULL, (size_t)gradient_scale_bytes(a, &tensor, like));
    }
    return tensor;
}

static void fetch_as_f32(pool *p, float *to, const mxattn_tensor *from, int64_t count)
{
    const size_t bytes = (size_t)(count * mxa_dtype_bytes(from->tags.dtype));
    void *values = malloc(bytes);
    mxt_fill_nan(values, bytes);
    fetch(p, values, from->data, bytes);
    mxt_to_f32(to, values, from->tags.dtype, count);
    free(values);
}

/* The same of a gradient, which may be MXFP8. */
static void fetch_gradient(pool *p, const mxt_attention *a, float *to, const mxattn_tensor *from,
                           const mxattn_tensor *like, int64_t count)
{
    if (from->tags.dtype != MXATTN_E4M3) {
        fetch_as_f32(p, to, from, count);
        return;
    }
    const size_t bytes = (size_t)gradient_scale_bytes(a, from, like);
    mxattn_tensor host = *from;
    host.data = malloc((size_t)count + 1);
    host.scales[MXATTN_HDIM].data = malloc(bytes + 1);
    fetch(p, host.data, from->data, (size_t)count);
    fetch(p, host.scales[MXATTN_HDIM].data, from->scales[MXATTN_HDIM].data, bytes);
    mxt_dequantized(a, &host, like, to);
    free(host.data);
    free(host.scales[MXATTN_HDIM].data);
}

typedef struct backward_tensors {
    mxattn_tensor q, k, v, o, lse, dout, dlse, dq, dk, dv;
    float *dsink;
} backward_tensors;

static void place_backward(pool *p, mxt_attention *a, const mxt_device_training *options,
                           backward_tensors *t, mxattn_attention_args *args)
{
    t->q = place_operand(p, a, &a->tensor_q, options->forward.operands);
    t->k = place_operand(p, a, &a->tensor_k, options->forward.operands);
    t->v = place_operand(p, a, &a->tensor_v, options->forward.operands);
    t->dout = place_operand(p, a, &a->tensor_dout, options->dout);
    t->o = place_output(p, &a->tensor_o, options->forward.o, mxt_size_o(a));
    t->lse = place_output(p, &a->tensor_lse, MXATTN_F32, mxt_size_lse(a));
    t->dq = place_gradient(p, a, &a->tensor_dq, options->gradients, mxt_size_q(a));
    t->dk = place_gradient(p, a, &a->tensor_dk, options->gradients, mxt_size_k(a));
    t->dv = place_gradient(p, a, &a->tensor_dv, options->gradients, mxt_size_v(a));
    if (a->dlse) {
        t->dlse = a->tensor_dlse;
        t->dlse.data = place(p, a->dlse, (size_t)mxt_size_lse(a) * 4);
        args->dlse = &t->dlse;
    }
    args->q = &t->q;
    args->k = &t->k;
    args->v = &t->v;
    args->o = &t->o;
    args->lse = &t->lse;
    args->dout = &t->dout;
    args->dq = &t->dq;
    args->dk = &t->dk;
    args->dv = &t->dv;
    args->batch = a->problem.format == MXATTN_JAGGED ? a->batch : -1;
    args->cu_seqlens_q = place_i32(p, a->cu_q, a->batch + 1);
    args->cu_seqlens_k = place_i32(p, a->cu_k, a->batch + 1);
    args->seqused_q = place_i32(p, a->used_q, a->batch);
    args->seqused_k = place_i32(p, a->used_k, a->batch);
    args->device_status = place(p, NULL, sizeof(uint32_t));
    if (a->problem.has_sink) {
        args->sink = place(p, a->sink, (size_t)a->problem.heads * 4);
        t->dsink = place(p, NULL, (size_t)a->problem.heads * 4);
    }
}

/* Forward, then backward `times` times; the last result stays on the device. */
static void run_backward(pool *p, const mxattn_plan *plan, const mxt_device_training *options,
                         backward_tensors *t, mxattn_attention_args *args)
{
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    args->saved = options->without_saved ? NULL : place(p, NULL, (size_t)info.saved_bytes);
    args->workspace_bytes = (size_t)info.workspace_forward_bytes;
    args->workspace = place(p, NULL, args->workspace_bytes);
    if (options->forward.prepared) {
        void *memory = place(p, NULL, (size_t)info.prepared_bytes);
        args->prepared = memory;
        if (!p->status) {
            p->status = mxattn_prepare(plan, args);
        }
    }
    if (!p->status) {
        p->status = mxattn_attention_forward(plan, args);
    }
    args->workspace_bytes = (size_t)info.workspace_backward_bytes;
    args->workspace = place(p, NULL, args->workspace_bytes);
    args->dsink = t->dsink;
    if (!p->status) {
        p->status = mxattn_attention_backward(plan, args);
    }
    if (!p->status) {
        p->status = mxattn_device_synchronise(NULL, p->backend, 0, NULL);
    }
}

mxattn_status mxt_device_backward(mxt_attention *a, const mxt_device_training *options)
{
    pool p = {.backend = options->forward.backend ? options->forward.backend : MXATTN_BACKEND_CUDA};
    mxattn_attention_problem problem = a->problem;
    mxattn_plan *plan = NULL;
    problem.backend = p.backend;
    problem.mode = MXATTN_TRAINING;
    problem.precision = MXATTN_PRECISION_MXFP8;
    problem.intermediates = MXATTN_INTERMEDIATES_AUTO;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = options->forward.operands;
    problem.o.dtype = options->forward.o;
    problem.dout.dtype = options->dout;
    problem.dq = problem.dk = problem.dv = (mxattn_tags){
        .dtype = options->gradients,
        .block = options->gradients == MXATTN_E4M3 ? MXATTN_BLOCK_SQUARE : MXATTN_BLOCK_NONE};
    mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    if (status) {
        return status;
    }
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    backward_tensors t;
    memset(&t, 0, sizeof t);
    place_backward(&p, a, options, &t, &args);
    run_backward(&p, plan, options, &t, &args);
    fetch_as_f32(&p, a->o, &t.o, mxt_size_o(a));
    fetch(&p, a->lse, t.lse.data, (size_t)mxt_size_lse(a) * 4);
    fetch_gradient(&p, a, a->dq, &t.dq, &a->tensor_dq, mxt_size_q(a));
    fetch_gradient(&p, a, a->dk, &t.dk, &a->tensor_dk, mxt_size_k(a));
    fetch_gradient(&p, a, a->dv, &t.dv, &a->tensor_dv, mxt_size_v(a));
    if (t.dsink) {
        fetch(&p, a->dsink, t.dsink, (size_t)problem.heads * 4);
    }
    for (int i = 0; i < p.count; i++) {
        (void)mxattn_device_free(NULL, p.backend, 0, p.memory[i]);
    }
    mxattn_plan_destroy(plan);
    return p.status;
}
