/* attention.c: attention problems for tests; see attention.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"

#include "device_args.h"
#include "guard.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT MXATTN_PRECISION_F64
#define MODEL MXATTN_PRECISION_MODEL
#define FAST  MXATTN_PRECISION_MXFP8
#define BF16  MXATTN_INTERMEDIATES_BF16
#define E4M3  MXATTN_INTERMEDIATES_E4M3
#define FP32  MXATTN_DQ_REDUCE_FP32
#define FP16  MXATTN_DQ_REDUCE_FP16

#define ALL 0

const mxt_config mxt_configs[MXT_CONFIGS] = {
    {"ref f64", MXATTN_BACKEND_REF, EXACT, BF16, FP32, ALL},
    {"ref model bf16", MXATTN_BACKEND_REF, MODEL, BF16, FP32, ALL},
    {"ref model e4m3", MXATTN_BACKEND_REF, MODEL, E4M3, FP16, ALL},
    {"ref model bf16 fp16", MXATTN_BACKEND_REF, MODEL, BF16, FP16, ALL},
    {"cpu bf16", MXATTN_BACKEND_CPU, FAST, BF16, FP32, ALL},
    {"cpu e4m3", MXATTN_BACKEND_CPU, FAST, E4M3, FP16, ALL},
    {"cpu portable bf16", MXATTN_BACKEND_CPU, FAST, BF16, FP32, MXATTN_ISA_PORTABLE},
    {"cpu portable e4m3", MXATTN_BACKEND_CPU, FAST, E4M3, FP16, MXATTN_ISA_PORTABLE},
    {"cuda e4m3", MXATTN_BACKEND_CUDA, FAST, E4M3, FP16, ALL},
    {"cuda bf16", MXATTN_BACKEND_CUDA, FAST, BF16, FP16, ALL},
    {"emu-sm90 e4m3", MXATTN_BACKEND_EMU_SM90, FAST, E4M3, FP16, ALL},
    {"emu-sm90 bf16", MXATTN_BACKEND_EMU_SM90, FAST, BF16, FP16, ALL},
};

const mxattn_context *mxt_config_context(const mxt_config *config)
{
    static mxattn_context *portable;
    if (config->isa_mask == ALL)
        return NULL;
    if (!portable) {
        mxattn_context_options options;
        mxattn_context_options_init(&options);
        options.isa_mask = config->isa_mask;
        CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &portable));
    }
    return portable;
}

int mxt_config_exact(const mxt_config *config)
{
    return config->precision == EXACT;
}

/* A backend is asked, with a problem every backend has: what it lacks, its plan says. */
const char *mxt_config_missing(const mxt_config *config)
{
    const char *only = getenv("MXATTN_TEST_BACKEND");
    const size_t length = only ? strlen(only) : 0;
    if (only && (strncmp(config->name, only, length) != 0 || config->name[length] != ' '))
        return "MXATTN_TEST_BACKEND names another";
    if (!only && strncmp(config->name, "emu", 3) == 0)
        return "only with MXATTN_TEST_BACKEND";
    mxt_attention a;
    mxt_attention_dense(&a, 1, 32, 32, 1, 1, 64);
    mxt_attention_configure(&a, config);
    a.problem.mode = MXATTN_INFERENCE;
    mxattn_plan *plan = NULL;
    const mxattn_status status = mxattn_plan_create(a.context, &a.problem, &plan);
    mxattn_plan_destroy(plan);
    return status == MXATTN_UNSUPPORTED || status == MXATTN_NO_BACKEND ? mxattn_last_error() : NULL;
}

static void start(mxt_attention *a, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    const mxattn_tags operand = {.dtype = MXATTN_F32, .block = MXATTN_BLOCK_SQUARE};
    const mxattn_tags wide = {.dtype = MXATTN_F32};
    mxattn_attention_problem *problem = &a->problem;
    mxattn_attention_problem_init(problem);
    problem->mode = MXATTN_TRAINING;
    problem->backend = MXATTN_BACKEND_REF;
    problem->precision = EXACT;
    problem->heads = heads;
    problem->kv_heads = kv_heads;
    problem->head_dim = head_dim;
    problem->q = problem->k = problem->v = problem->dout = operand;
    problem->o = problem->dq = problem->dk = problem->dv = wide;
}

void mxt_attention_dense(mxt_attention *a, int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
                         int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    memset(a, 0, sizeof *a);
    start(a, heads, kv_heads, head_dim);
    a->problem.format = MXATTN_DENSE;
    a->problem.batch = a->batch = batch;
    a->problem.max_seqlen_q = a->seqlen_q = seqlen_q;
    a->problem.max_seqlen_k = a->seqlen_k = seqlen_k;
    a->rows_q = batch * seqlen_q;
    a->rows_k = batch * seqlen_k;
}

static int64_t longest(const int32_t *cu, int64_t batch)
{
    int64_t most = 0;
    for (int64_t b = 0; b < batch; b++)
        if (cu[b + 1] - cu[b] > most)
            most = cu[b + 1] - cu[b];
    return most;
}

void mxt_attention_jagged(mxt_attention *a, int64_t batch, const int32_t *cu_q, int64_t rows_q,
                          const int32_t *cu_k, int64_t rows_k, int64_t heads, int64_t kv_heads,
                          int64_t head_dim)
{
    memset(a, 0, sizeof *a);
    start(a, heads, kv_heads, head_dim);
    a->problem.format = MXATTN_JAGGED;
    a->problem.batch = a->batch = batch;
    a->cu_q = cu_q;
    a->cu_k = cu_k;
    a->rows_q = rows_q < 0 ? cu_q[batch] : rows_q;
    a->rows_k = rows_k < 0 ? cu_k[batch] : rows_k;
    a->problem.total_q = a->rows_q;
    a->problem.total_k = a->rows_k;
    a->problem.max_seqlen_q = longest(cu_q, batch);
    a->problem.max_seqlen_k = longest(cu_k, batch);
}

void mxt_attention_configure(mxt_attention *a, const mxt_config *config)
{
    a->problem.backend = config->backend;
    a->problem.precision = config->precision;
    a->problem.intermediates = config->intermediates;
    a->problem.dq_reduce = config->dq_reduce;
    a->context = mxt_config_context(config);
}

static int64_t dim_v(const mxt_attention *a)
{
    return a->problem.head_dim_v ? a->problem.head_dim_v : a->problem.head_dim;
}

int64_t mxt_size_q(const mxt_attention *a)
{
    return a->rows_q * a->problem.heads * a->problem.head_dim;
}

int64_t mxt_size_k(const mxt_attention *a)
{
    return a->rows_k * a->problem.kv_heads * a->problem.head_dim;
}

int64_t mxt_size_v(const mxt_attention *a)
{
    return a->rows_k * a->problem.kv_heads * dim_v(a);
}

int64_t mxt_size_o(const mxt_attention *a)
{
    return a->rows_q * a->problem.heads * dim_v(a);
}

int64_t mxt_size_lse(const mxt_attention *a)
{
    return a->rows_q * a->problem.heads;
}

/* An FP32 array of its own and the tensor over it. */
static float *new_tensor(const mxt_attention *a, mxattn_tensor *tensor, mxattn_tags tags,
                         int64_t seqlen, int64_t rows, int64_t heads, int64_t dim)
{
    float *data = mxt_guard_end_aligned((size_t)(rows * heads * dim) * sizeof *data, sizeof *data);
    const int64_t dense[4] = {a->batch, seqlen, heads, dim};
    const int64_t jagged[3] = {rows, heads, dim};
    const int is_jagged = a->problem.format == MXATTN_JAGGED;
    mxattn_tensor_view(tensor, MXATTN_F32, data, is_jagged ? 3 : 4, is_jagged ? jagged : dense);
    tensor->tags = tags;
    return data;
}

static float *new_rows(const mxt_attention *a, mxattn_tensor *tensor)
{
    const int64_t heads = a->problem.heads;
    float *data = mxt_guard_end_aligned((size_t)(a->rows_q * heads) * sizeof *data, sizeof *data);
    const int64_t dense[3] = {a->batch, heads, a->seqlen_q};
    const int64_t jagged[2] = {heads, a->rows_q};
    const int is_jagged = a->problem.format == MXATTN_JAGGED;
    mxattn_tensor_view(tensor, MXATTN_F32, data, is_jagged ? 2 : 3, is_jagged ? jagged : dense);
    return data;
}

void mxt_attention_alloc(mxt_attention *a)
{
    const mxattn_attention_problem *p = &a->problem;
    const int64_t d = p->head_dim, dv = dim_v(a), sq = a->seqlen_q, sk = a->seqlen_k;
    a->q = new_tensor(a, &a->tensor_q, p->q, sq, a->rows_q, p->heads, d);
    a->k = new_tensor(a, &a->tensor_k, p->k, sk, a->rows_k, p->kv_heads, d);
    a->v = new_tensor(a, &a->tensor_v, p->v, sk, a->rows_k, p->kv_heads, dv);
    a->o = new_tensor(a, &a->tensor_o, p->o, sq, a->rows_q, p->heads, dv);
    a->dout = new_tensor(a, &a->tensor_dout, p->dout, sq, a->rows_q, p->heads, dv);
    a->dq = new_tensor(a, &a->tensor_dq, p->dq, sq, a->rows_q, p->heads, d);
    a->dk = new_tensor(a, &a->tensor_dk, p->dk, sk, a->rows_k, p->kv_heads, d);
    a->dv = new_tensor(a, &a->tensor_dv, p->dv, sk, a->rows_k, p->kv_heads, dv);
    a->tensor_q_seq = a->tensor_q; /* the same values, quantized in the call by other tags */
    a->tensor_k_seq = a->tensor_k;
    a->tensor_v_seq = a->tensor_v;
    a->tensor_q_seq.tags = p->q_seq;
    a->tensor_k_seq.tags = p->k_seq;
    a->tensor_v_seq.tags = p->v_seq;
    a->lse = new_rows(a, &a->tensor_lse);
    if (a->with_dlse)
        a->dlse = new_rows(a, &a->tensor_dlse);
    if (p->has_sink) {
        a->sink = mxt_guard_end_aligned((size_t)p->heads * sizeof(float), sizeof(float));
        a->dsink = mxt_guard_end_aligned((size_t)p->heads * sizeof(float), sizeof(float));
    }
}

void mxt_attention_free(mxt_attention *a)
{
    float *arrays[] = {a->q,   a->k,  a->v,  a->dout, a->dlse,  a->sink, a->o,
                       a->lse, a->dq, a->dk, a->dv,   a->dsink, a->saved};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        mxt_guard_free(arrays[i]);
    memset(a, 0, sizeof *a);
}

void mxt_set(float *array, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        array[i] = value;
}

void mxt_attention_fill(mxt_attention *a, mxt_kind kind, uint64_t seed)
{
    const mxattn_attention_problem *p = &a->problem;
    const int64_t dv = dim_v(a);
    mxt_fill_f32(a->q, a->rows_q * p->heads, p->head_dim, kind, 8 * seed);
    mxt_fill_f32(a->k, a->rows_k * p->kv_heads, p->head_dim, kind, 8 * seed + 1);
    mxt_fill_f32(a->v, a->rows_k * p->kv_heads, dv, kind, 8 * seed + 2);
    mxt_fill_f32(a->dout, a->rows_q * p->heads, dv, kind, 8 * seed + 3);
    if (a->dlse)
        mxt_fill_f32(a->dlse, 1, mxt_size_lse(a), kind, 8 * seed + 4);
    mxt_random random = {8 * seed + 5};
    for (int64_t h = 0; a->sink && h < p->heads; h++)
        a->sink[h] = (float)(2 * mxt_random_uniform(&random) - 1);
}

float mxt_lse_at(const mxt_attention *a, int64_t b, int64_t h, int64_t s)
{
    const int64_t rows = a->problem.format == MXATTN_JAGGED ? a->rows_q : a->seqlen_q;
    return a->lse[(b * a->problem.heads + h) * rows + s];
}

float *mxt_row(const mxt_attention *a, float *array, int64_t b, int64_t s, int64_t h)
{
    const mxattn_attention_problem *p = &a->problem;
    const int of_q = array == a->q || array == a->dq || array == a->o || array == a->dout;
    const int wide = array == a->o || array == a->dout || array == a->v || array == a->dv;
    const int64_t seqlen = of_q ? a->seqlen_q : a->seqlen_k;
    const int64_t heads = of_q ? p->heads : p->kv_heads;
    return array + ((b * seqlen + s) * heads + h) * (wide ? dim_v(a) : p->head_dim);
}

static mxattn_attention_args args_of(const mxt_attention *a)
{
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &a->tensor_q;
    args.k = &a->tensor_k;
    args.v = &a->tensor_v;
    args.q_seq = a->problem.q_seq.dtype ? &a->tensor_q_seq : NULL;
    args.k_seq = a->problem.k_seq.dtype ? &a->tensor_k_seq : NULL;
    args.v_seq = a->problem.v_seq.dtype ? &a->tensor_v_seq : NULL;
    args.o = &a->tensor_o;
    args.lse = a->tensor_lse.data ? &a->tensor_lse : NULL;
    args.sink = a->sink;
    args.cu_seqlens_q = a->cu_q;
    args.cu_seqlens_k = a->cu_k;
    args.host_cu_seqlens_q = a->host_lengths ? a->cu_q : NULL;
    args.host_cu_seqlens_k = a->host_lengths ? a->cu_k : NULL;
    args.seqused_q = a->used_q;
    args.seqused_k = a->used_k;
    if (a->problem.format == MXATTN_JAGGED)
        args.batch = a->batch;
    return args;
}

static void fill_nan(float *array, int64_t count)
{
    if (array)
        mxt_fill_nan(array, (size_t)count * sizeof *array);
}

/* The problem and its arguments as a backend gets them: on a device, operands that a call would
 * quantize are quantized before. WHY: a device may centre a V that is not yet quantized, and values
 * that E4M3 holds exactly would no longer be. */
typedef struct given {
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_tensor operands[4];
    int count;
} given;

static const mxattn_tensor *quantized_operand(given *g, const mxt_attention *a,
                                              const mxattn_tensor *wide, mxattn_tags *tags)
{
    if (!mxt_on_device(a->problem.backend) || !wide || tags->dtype != MXATTN_F32 ||
        wide->stride[wide->ndim - 1] != 1)
        return wide;
    tags->dtype = MXATTN_E4M3;
    g->operands[g->count] = mxt_quantized(
        a, wide, tags->block == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM, MXATTN_LINEAR);
    return &g->operands[g->count++];
}

static void give(given *g, const mxt_attention *a, int backward)
{
    memset(g, 0, sizeof *g);
    g->problem = a->problem;
    g->args = args_of(a);
    g->args.q = quantized_operand(g, a, g->args.q, &g->problem.q);
    g->args.k = quantized_operand(g, a, g->args.k, &g->problem.k);
    g->args.v = quantized_operand(g, a, g->args.v, &g->problem.v);
    if (backward)
        g->args.dout = quantized_operand(g, a, &a->tensor_dout, &g->problem.dout);
    else if (mxt_on_device(a->problem.backend) && g->problem.dout.dtype == MXATTN_F32)
        g->problem.dout.dtype = MXATTN_E4M3; /* the plan is the one that backward will have */
}

static void take_back(given *g)
{
    for (int i = 0; i < g->count; i++)
        mxt_quantized_free(&g->operands[i]);
}

/* A plan and what it says. A device whose backward lacks something may still have the forward. */
static mxattn_status plan_of(const mxt_attention *a, given *g, int backward, mxattn_plan **plan,
                             mxattn_plan_info *info)
{
    mxattn_attention_problem problem = g->problem;
    const int on_device = mxt_on_device(problem.backend);
    mxattn_plan_info_init(info);
    mxattn_status status = mxattn_plan_create(a->context, &problem, plan);
    if (status == MXATTN_UNSUPPORTED && on_device && !backward) {
        problem.mode = MXATTN_INFERENCE;
        status = mxattn_plan_create(a->context, &problem, plan);
    }
    if (status)
        take_back(g);
    mxt_leave_where_lacking(a->problem.backend, status);
    return status ? status : mxattn_plan_query(*plan, info);
}

mxattn_status mxt_attention_forward(mxt_attention *a)
{
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    given g;
    give(&g, a, 0);
    mxattn_status status = plan_of(a, &g, 0, &plan, &info);
    if (status)
        return status;

    mxattn_attention_args args = g.args;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    args.workspace = mxt_guard_end_aligned(args.workspace_bytes, 256);
    mxt_guard_free(a->saved);
    a->saved = NULL;
    a->saved_bytes = info.saved_bytes;
    if (a->saved_bytes > 0)
        a->saved = mxt_guard_end_aligned((size_t)a->saved_bytes, 256);
    args.saved = a->saved;
    fill_nan(a->o, mxt_size_o(a));
    fill_nan(a->lse, mxt_size_lse(a));
    status = mxt_on_device(a->problem.backend)
                 ? mxt_device_run_forward(a->problem.backend, plan, &args)
                 : mxattn_attention_forward(plan, &args);
    mxt_guard_free(args.workspace);
    take_back(&g);
    mxattn_plan_destroy(plan);
    mxt_leave_where_lacking(a->problem.backend, status);
    return status;
}

mxattn_status mxt_attention_backward(mxt_attention *a)
{
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    given g;
    give(&g, a, 1);
    mxattn_status status = plan_of(a, &g, 1, &plan, &info);
    if (status)
        return status;

    mxattn_attention_args args = g.args;
    args.dout = args.dout ? args.dout : &a->tensor_dout;
    args.dlse = a->dlse ? &a->tensor_dlse : NULL;
    args.dq = &a->tensor_dq;
    args.dk = &a->tensor_dk;
    args.dv = &a->tensor_dv;
    args.dsink = a->dsink;
    args.saved = a->without_saved ? NULL : a->saved;
    args.workspace_bytes = (size_t)info.workspace_backward_bytes;
    args.workspace = mxt_guard_end_aligned(args.workspace_bytes, 256);
    fill_nan(a->dq, mxt_size_q(a));
    fill_nan(a->dk, mxt_size_k(a));
    fill_nan(a->dv, mxt_size_v(a));
    fill_nan(a->dsink, a->problem.heads);
    status = mxt_on_device(a->problem.backend)
                 ? mxt_device_run_backward(a->problem.backend, plan, &args)
                 : mxattn_attention_backward(plan, &args);
    mxt_guard_free(args.workspace);
    take_back(&g);
    mxattn_plan_destroy(plan);
    mxt_leave_where_lacking(a->problem.backend, status);
    return status;
}

/* By the CPU where the backend is a device's: bytes are the same on all. */
static mxattn_quantize_args quantize_args(const mxt_attention *a, const mxattn_tensor *wide)
{
    const int of_q = wide == &a->tensor_q || wide == &a->tensor_dout || wide == &a->tensor_dq;
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = mxt_on_device(a->problem.backend) ? MXATTN_BACKEND_CPU : a->problem.backend;
    args.sequences.cu_seqlens = of_q ? a->cu_q : a->cu_k;
    args.sequences.seqused = of_q ? a->used_q : a->used_k;
    args.sequences.batch = a->cu_q ? a->batch : 0;
    return args;
}

mxattn_tensor mxt_quantized(const mxt_attention *a, const mxattn_tensor *wide, mxattn_axis axis,
                            mxattn_scale_layout layout)
{
    mxattn_quantize_args args = quantize_args(a, wide);
    const int64_t *shape = wide->shape, *last = shape + wide->ndim - 2;
    int64_t count = 1, bytes = 0;
    for (int i = 0; i < wide->ndim; i++)
        count *= shape[i];
    mxattn_tensor quantized;
    mxattn_tensor_view(&quantized, MXATTN_E4M3, mxt_guard_end((size_t)count), wide->ndim, shape);
    quantized.tags = wide->tags;
    quantized.tags.dtype = MXATTN_E4M3;
    quantized.scales[axis].layout = layout;
    CHECK_STATUS(MXATTN_OK,
                 mxattn_scales_bytes(&quantized.tags, axis, layout, a->batch, shape[1],
                                     args.sequences.cu_seqlens, last[0], last[1], &bytes));
    quantized.scales[axis].data = mxt_guard_end((size_t)bytes);

    mxattn_tensor plain = *wide;
    plain.tags = (mxattn_tags){.dtype = MXATTN_F32};
    args.wide = &plain;
    args.quantized = &quantized;
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(a->context, &args));
    return quantized;
}

void mxt_quantized_free(mxattn_tensor *quantized)
{
    mxt_guard_free(quantized->data);
    mxt_guard_free(quantized->scales[MXATTN_HDIM].data);
    mxt_guard_free(quantized->scales[MXATTN_SEQ].data);
    memset(quantized, 0, sizeof *quantized);
}

void mxt_dequantized(const mxt_attention *a, const mxattn_tensor *quantized,
                     const mxattn_tensor *like, float *values)
{
    mxattn_quantize_args args = quantize_args(a, like);
    mxattn_tensor back;
    mxattn_tensor_view(&back, MXATTN_F32, values, like->ndim, like->shape);
    args.wide = &back;
    args.quantized = quantized;
    CHECK_STATUS(MXATTN_OK, mxattn_dequantize(a->context, &args));
}

void mxt_requantize(const mxt_attention *a, const mxattn_tensor *wide, float *values)
{
    mxattn_quantize_args args = quantize_args(a, wide);
    mxattn_tensor quantized = mxt_quantized(a, wide, MXATTN_HDIM, MXATTN_LINEAR), back;
    mxattn_tensor_view(&back, MXATTN_F32, values, wide->ndim, wide->shape);
    args.wide = &back;
    args.quantized = &quantized;
    CHECK_STATUS(MXATTN_OK, mxattn_dequantize(a->context, &args));
    mxt_quantized_free(&quantized);
}

mxattn_status mxt_attention_exact(const mxt_attention *a, mxt_attention *exact, int backward)
{
    *exact = *a;
    exact->saved = NULL;
    exact->without_saved = 0;
    mxt_attention_configure(exact, &mxt_configs[0]);
    mxt_attention_alloc(exact);
    memcpy(exact->q, a->q, (size_t)mxt_size_q(a) * sizeof(float));
    memcpy(exact->k, a->k, (size_t)mxt_size_k(a) * sizeof(float));
    memcpy(exact->v, a->v, (size_t)mxt_size_v(a) * sizeof(float));
    memcpy(exact->dout, a->dout, (size_t)mxt_size_o(a) * sizeof(float));
    if (a->dlse)
        memcpy(exact->dlse, a->dlse, (size_t)mxt_size_lse(a) * sizeof(float));
    if (a->sink)
        memcpy(exact->sink, a->sink, (size_t)a->problem.heads * sizeof(float));
    mxattn_status status = mxt_attention_forward(exact);
    if (!status && backward)
        status = mxt_attention_backward(exact);
    return status;
}
