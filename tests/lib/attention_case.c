/* attention_case.c: builds and runs the problems of attention_case.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "compare.h"
#include "device_args.h"
#include "guard.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

mxt_attention_spec mxt_attention_spec_make(void)
{
    mxt_attention_spec spec;
    const mxattn_tags row = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW};

    memset(&spec, 0, sizeof(spec));
    mxattn_attention_problem_init(&spec.problem);
    spec.seed = 1;
    spec.batch = 1;
    spec.seqlen_q[0] = spec.seqlen_k[0] = 64;
    spec.heads = 2;
    spec.kv_heads = 1;
    spec.head_dim = spec.head_dim_v = 32;
    spec.q = spec.k = spec.v = row;
    spec.square_axis = MXATTN_HDIM;
    spec.spread = 1.0f;
    spec.problem.o = (mxattn_tags){.dtype = MXATTN_F32};
    return spec;
}

/* Never NULL, so that an empty array is an array too. */
static void *guarded(int64_t bytes)
{
    return mxt_guard_end(bytes > 0 ? (size_t)bytes : sizeof(float));
}

static void *buffer(mxt_attention_case *c, size_t bytes)
{
    void *memory = guarded((int64_t)bytes);

    c->buffers[c->buffer_count++] = memory;
    return memory;
}

/* The sequences of one side, as mx sees them. */
static mxa_batch batch_of(const mxt_attention_case *c, int keys)
{
    const mxt_attention_spec *spec = &c->spec;
    mxa_batch batch = {.batch = spec->batch};

    if (spec->jagged)
        batch.cu_seqlens = keys ? c->cu_k : c->cu_q;
    else
        batch.seqlen = keys ? spec->seqlen_k[0] : spec->seqlen_q[0];
    if (c->has_unused)
        batch.seqused = keys ? c->used_k : c->used_q;
    return batch;
}

static void shape_of(const mxt_attention_case *c, int keys, int64_t heads, int64_t dims,
                     int32_t *ndim, int64_t shape[4])
{
    const mxt_attention_spec *spec = &c->spec;
    const int64_t jagged[4] = {keys ? c->tokens_k : c->tokens_q, heads, dims, 1};
    const int64_t dense[4] = {spec->batch, keys ? spec->seqlen_k[0] : spec->seqlen_q[0], heads,
                              dims};

    *ndim = spec->jagged ? 3 : 4;
    memcpy(shape, spec->jagged ? jagged : dense, sizeof(dense));
}

/* (B, S, H, D) of a tensor in the public shape. */
static mxattn_tensor normalised(const mxt_attention_case *c, const mxattn_tensor *tensor)
{
    mxattn_tensor t = *tensor;

    if (c->spec.jagged) {
        t.ndim = 4;
        memmove(t.shape + 1, tensor->shape, 3 * sizeof(int64_t));
        memmove(t.stride + 1, tensor->stride, 3 * sizeof(int64_t));
        t.shape[0] = 1;
        t.stride[0] = 0;
    }
    return t;
}

static void *quantized_buffer(mxt_attention_case *c, const mxattn_tensor *tensor, int64_t tokens)
{
    const int64_t token = tensor->ndim == 4 ? tensor->stride[1] : tensor->stride[0];
    const size_t bytes = (size_t)(tokens * token);
    void *memory = buffer(c, bytes);

    memset(memory, 0x7f, bytes ? bytes : 1); /* what lies between rows is NaN */
    return memory;
}

/* Which scale arrays tags give to readers. */
static int wants_axis(const mxt_attention_spec *spec, const mxattn_tags *tags, mxattn_axis axis)
{
    if (tags->block == MXATTN_BLOCK_SQUARE)
        return spec->square_axis == axis;
    return axis == (tags->block == MXATTN_BLOCK_ROW ? MXATTN_HDIM : MXATTN_SEQ);
}

/* Strides of a view whose heads lie extra elements apart. */
static void spread_heads(mxattn_tensor *tensor, int64_t extra)
{
    const int n = tensor->ndim;

    tensor->stride[n - 2] = tensor->shape[n - 1] + extra;
    tensor->stride[n - 3] = tensor->stride[n - 2] * tensor->shape[n - 2] + extra;
    if (n == 4)
        tensor->stride[0] = tensor->stride[1] * tensor->shape[1];
}

static void poison_outside(const mxt_attention_case *c, int keys, float *wide, int64_t width)
{
    const mxa_batch batch = batch_of(c, keys);
    mxa_sequence sequence = {0};

    for (int64_t b = 0; b < batch.batch; b++) {
        mxa_sequence_next(&batch, b, &sequence);
        for (int64_t s = sequence.used; s < sequence.length; s++)
            for (int64_t i = 0; i < width; i++)
                wide[(sequence.token + s) * width + i] = NAN;
    }
}

/* Draws a tensor and quantizes it, or leaves it wide when the tags are. */
static void operand(mxt_attention_case *c, mxattn_tensor *tensor, mxattn_tags tags, int keys,
                    int64_t heads, int64_t dims, uint64_t seed)
{
    const mxt_attention_spec *spec = &c->spec;
    const int64_t tokens = keys ? c->tokens_k : c->tokens_q;
    const mxa_batch batch = batch_of(c, keys);
    const mxa_scale_extent extent = mxa_scales_extent(&batch, heads, dims);
    int64_t shape[4];
    int32_t ndim;
    float *wide = malloc((size_t)(tokens * heads * dims) * sizeof(float) + 1);
    mxattn_tensor view, source, target;

    shape_of(c, keys, heads, dims, &ndim, shape);
    mxt_fill_f32(wide, tokens * heads, dims, spec->kind, seed);
    for (int64_t i = 0; i < tokens * heads * dims; i++)
        wide[i] *= spec->spread;
    poison_outside(c, keys, wide, heads * dims);
    mxattn_tensor_view(&view, MXATTN_F32, wide, ndim, shape);
    mxattn_tensor_view(tensor, tags.dtype, NULL, ndim, shape);
    tensor->tags = tags;
    if (mxa_dtype_is_wide(tags.dtype)) {
        tensor->data = buffer(c, (size_t)(tokens * heads * dims * mxa_dtype_bytes(tags.dtype)));
        for (int64_t i = 0; i < tokens * heads * dims; i++)
            mxa_store(tensor->data, tags.dtype, i, wide[i]);
    } else {
        spread_heads(tensor, spec->extra_stride);
        tensor->data = quantized_buffer(c, tensor, tokens);
        if (tags.flags & MXATTN_CENTRED)
            tensor->centre = buffer(c, (size_t)(spec->batch * heads * dims) * sizeof(float));
        for (int axis = 0; axis < 2; axis++) {
            mxattn_scales *scales = &tensor->scales[axis];

            if (!wants_axis(spec, &tags, (mxattn_axis)axis))
                continue;
            scales->layout = spec->layout;
            scales->data =
                buffer(c, (size_t)mxa_scales_size((mxattn_axis)axis, spec->layout, &extent));
            mxa_scales_resolve(scales, (mxattn_axis)axis, &extent);
        }
        source = normalised(c, &view);
        target = normalised(c, tensor);
        mxa_quantize_tensor(&source, &target, &batch);
    }
    free(wide);
}

static void lengths(mxt_attention_case *c)
{
    const mxt_attention_spec *spec = &c->spec;

    for (int64_t b = 0; b < spec->batch; b++) {
        const int64_t at = spec->jagged ? b : 0;

        c->used_q[b] = (int32_t)(spec->seqlen_q[at] - spec->unused_q[b]);
        c->used_k[b] = (int32_t)(spec->seqlen_k[at] - spec->unused_k[b]);
        c->has_unused |= spec->unused_q[b] || spec->unused_k[b];
        c->tokens_q += spec->seqlen_q[at];
        c->tokens_k += spec->seqlen_k[at];
        c->cu_q[b + 1] = (int32_t)c->tokens_q;
        c->cu_k[b + 1] = (int32_t)c->tokens_k;
    }
    if (spec->jagged) {
        c->tokens_q += spec->tail;
        c->tokens_k += spec->tail;
    }
}

static void complete_problem(mxt_attention_case *c)
{
    mxt_attention_spec *spec = &c->spec;
    mxattn_attention_problem *p = &spec->problem;

    p->format = spec->jagged ? MXATTN_JAGGED : MXATTN_DENSE;
    p->batch = spec->batch;
    p->total_q = c->tokens_q;
    p->total_k = c->tokens_k;
    for (int64_t b = 0; b < (spec->jagged ? spec->batch : 1); b++) {
        p->max_seqlen_q = spec->seqlen_q[b] > p->max_seqlen_q ? spec->seqlen_q[b] : p->max_seqlen_q;
        p->max_seqlen_k = spec->seqlen_k[b] > p->max_seqlen_k ? spec->seqlen_k[b] : p->max_seqlen_k;
    }
    p->heads = spec->heads;
    p->kv_heads = spec->kv_heads;
    p->head_dim = spec->head_dim;
    p->head_dim_v = spec->head_dim_v;
    p->q = spec->q;
    p->k = spec->k;
    p->v = spec->v;
    if (spec->pairs)
        p->v_seq = c->v_seq.tags;
    if (spec->pairs && p->mode == MXATTN_TRAINING) {
        p->q_seq = c->q_seq.tags;
        p->k_seq = c->k_seq.tags;
    }
}

/* What only backward reads. */
static void training_inputs(mxt_attention_case *c)
{
    const mxattn_tags column = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_COLUMN};
    const mxt_attention_spec *spec = &c->spec;
    const uint64_t seed = 4 * spec->seed;

    if (spec->problem.mode != MXATTN_TRAINING)
        return;
    if (spec->pairs) {
        operand(c, &c->q_seq, column, 0, spec->heads, spec->head_dim, seed);
        operand(c, &c->k_seq, column, 1, spec->kv_heads, spec->head_dim, seed + 1);
    }
    operand(c, &c->dout, spec->problem.dout, 0, spec->heads, spec->head_dim_v, seed + 3);
    if (spec->dlse) {
        c->dlse = buffer(c, (size_t)(c->tokens_q * spec->heads) * sizeof(float));
        mxt_fill_f32(c->dlse, spec->heads, c->tokens_q, MXT_GAUSSIAN, seed + 5);
    }
}

void mxt_attention_case_make(mxt_attention_case *c, const mxt_attention_spec *spec)
{
    const mxattn_tags column = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_COLUMN};
    mxt_random random = {spec->seed};

    memset(c, 0, sizeof(*c));
    c->spec = *spec;
    lengths(c);
    operand(c, &c->q, spec->q, 0, spec->heads, spec->head_dim, 4 * spec->seed);
    operand(c, &c->k, spec->k, 1, spec->kv_heads, spec->head_dim, 4 * spec->seed + 1);
    operand(c, &c->v, spec->v, 1, spec->kv_heads, spec->head_dim_v, 4 * spec->seed + 2);
    if (spec->pairs)
        operand(c, &c->v_seq, column, 1, spec->kv_heads, spec->head_dim_v, 4 * spec->seed + 2);
    training_inputs(c);
    if (spec->problem.has_sink) {
        c->sink = buffer(c, (size_t)spec->heads * sizeof(float));
        for (int64_t h = 0; h < spec->heads; h++)
            c->sink[h] = (float)mxt_random_gaussian(&random);
    }
    c->o_elements = c->tokens_q * spec->heads * spec->head_dim_v;
    c->lse_elements = c->tokens_q * spec->heads;
    complete_problem(c);
}

void mxt_attention_case_free(mxt_attention_case *c)
{
    for (int i = 0; i < c->buffer_count; i++)
        mxt_guard_free(c->buffers[i]);
    c->buffer_count = 0;
}

/* An output in its own type; scales of an FP8 one in both linear arrays that its block has. */
static void *output(mxt_attention_case *c, mxattn_tags tags, int keys, int64_t heads, int64_t dims,
                    mxattn_tensor *out, void *scales[2])
{
    const mxa_batch batch = batch_of(c, keys);
    const mxa_scale_extent extent = mxa_scales_extent(&batch, heads, dims);
    const int64_t tokens = keys ? c->tokens_k : c->tokens_q;
    int64_t shape[4];
    int32_t ndim;
    void *memory = guarded(tokens * heads * dims * mxa_dtype_bytes(tags.dtype));

    shape_of(c, keys, heads, dims, &ndim, shape);
    mxattn_tensor_view(out, tags.dtype, memory, ndim, shape);
    out->tags = tags;
    for (int axis = 0; axis < 2; axis++) {
        scales[axis] = NULL;
        if (!mxa_scales_legal(&tags, (mxattn_axis)axis, MXATTN_LINEAR))
            continue;
        scales[axis] = guarded(mxa_scales_size((mxattn_axis)axis, MXATTN_LINEAR, &extent));
        out->scales[axis].data = scales[axis];
        mxa_scales_resolve(&out->scales[axis], (mxattn_axis)axis, &extent);
    }
    return memory;
}

/* Every element of an output as FP32, in the order of the public shape. */
static void output_values(const mxt_attention_case *c, const mxattn_tensor *tensor, int keys,
                          float *out)
{
    const mxa_batch batch = batch_of(c, keys);
    const mxattn_tensor t = normalised(c, tensor);
    const int64_t heads = t.shape[2], dims = t.shape[3];
    const int64_t count = (keys ? c->tokens_k : c->tokens_q) * heads * dims;
    mxa_sequence sequence = {0};

    if (!mxa_dtype_is_fp8(tensor->tags.dtype)) {
        mxt_to_f32(out, tensor->data, tensor->tags.dtype, count);
        return;
    }
    memset(out, 0, (size_t)count * sizeof(float));
    for (int64_t b = 0; b < batch.batch; b++) {
        mxa_sequence_next(&batch, b, &sequence);
        for (int64_t s = 0; s < sequence.length; s++)
            for (int64_t i = 0; i < heads * dims; i++)
                out[(sequence.token + s) * heads * dims + i] =
                    (float)mxa_tensor_value(&t, &sequence, b, s, i / dims, i % dims);
    }
}

static void set_args(mxt_attention_case *c, mxattn_attention_args *args)
{
    mxattn_attention_args_init(args);
    args->q = &c->q;
    args->k = &c->k;
    args->v = &c->v;
    args->v_seq = c->spec.pairs ? &c->v_seq : NULL;
    args->sink = c->sink;
    args->cu_seqlens_q = c->spec.jagged ? c->cu_q : NULL;
    args->cu_seqlens_k = c->spec.jagged ? c->cu_k : NULL;
    args->seqused_q = c->has_unused ? c->used_q : NULL;
    args->seqused_k = c->has_unused ? c->used_k : NULL;
}

/* LSE or dLSE over an array. */
static void rows_view(const mxt_attention_case *c, float *data, mxattn_tensor *tensor)
{
    const int64_t dense[3] = {c->spec.batch, c->spec.heads, c->spec.seqlen_q[0]};
    const int64_t jagged[2] = {c->spec.heads, c->tokens_q};

    mxattn_tensor_view(tensor, MXATTN_F32, data, c->spec.jagged ? 2 : 3,
                       c->spec.jagged ? jagged : dense);
}

mxt_attention_result mxt_attention_case_forward(mxt_attention_case *c,
                                                const mxattn_context *context,
                                                mxattn_backend backend, mxattn_precision precision)
{
    mxt_attention_result result = {0};
    mxattn_attention_problem problem = c->spec.problem;
    mxattn_attention_args args;
    mxattn_tensor lse;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    void *scales[2];

    problem.backend = backend;
    problem.precision = precision;
    result.status = mxattn_plan_create(context, &problem, &plan);
    if (result.status != MXATTN_OK)
        return result;
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    void *o = output(c, problem.o, 0, problem.heads, problem.head_dim_v, &result.o_tensor, scales);
    void *workspace = mxt_guard_end_aligned((size_t)info.workspace_forward_bytes + 256, 256);
    void *saved = info.saved_bytes ? mxt_guard_end_aligned((size_t)info.saved_bytes, 256) : NULL;
    float *lse_data = guarded(c->lse_elements * (int64_t)sizeof(float));
    set_args(c, &args);
    args.o = &result.o_tensor;
    rows_view(c, lse_data, &lse);
    args.lse = &lse;
    args.workspace = workspace;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    args.saved = saved;
    result.status = mxattn_attention_forward(plan, &args);
    if (result.status == MXATTN_OK) {
        result.o_size = (size_t)(c->o_elements * mxa_dtype_bytes(problem.o.dtype));
        result.o = malloc((size_t)c->o_elements * sizeof(float) + 1);
        result.lse = malloc((size_t)c->lse_elements * sizeof(float) + 1);
        result.o_bytes = malloc(result.o_size + 1);
        output_values(c, &result.o_tensor, 0, result.o);
        memcpy(result.lse, lse_data, (size_t)c->lse_elements * sizeof(float));
        memcpy(result.o_bytes, o, result.o_size);
    }
    mxt_guard_free(o);
    mxt_guard_free(scales[0]);
    mxt_guard_free(scales[1]);
    mxt_guard_free(workspace);
    mxt_guard_free(saved);
    mxt_guard_free(lse_data);
    mxattn_plan_destroy(plan);
    return result;
}

void mxt_attention_result_free(mxt_attention_result *result)
{
    free(result->o);
    free(result->lse);
    free(result->o_bytes);
    memset(result, 0, sizeof(*result));
}

void mxt_gradient_shape(const mxt_attention_case *c, int which, int64_t shape[3])
{
    shape[0] = which == 0 ? c->tokens_q : c->tokens_k;
    shape[1] = which == 0 ? c->spec.heads : c->spec.kv_heads;
    shape[2] = which == 2 ? c->spec.head_dim_v : c->spec.head_dim;
}

/* Runs both directions of a plan. What it allocates is in memory[]. */
static mxattn_status run_both(mxt_attention_case *c, const mxattn_plan *plan,
                              mxattn_tensor gradients[3], float *dsink, void *memory[8])
{
    const mxattn_attention_problem *p = &c->spec.problem;
    mxattn_attention_args args;
    mxattn_tensor o, lse, dlse;
    mxattn_plan_info info;
    mxattn_status status;

    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    set_args(c, &args);
    memory[0] = output(c, p->o, 0, p->heads, p->head_dim_v, &o, memory + 1);
    memory[3] = mxt_guard_end_aligned((size_t)info.workspace_forward_bytes + 256, 256);
    memory[4] = mxt_guard_end_aligned((size_t)info.workspace_backward_bytes, 256);
    memory[5] = info.saved_bytes ? mxt_guard_end_aligned((size_t)info.saved_bytes, 256) : NULL;
    memory[6] = guarded(c->lse_elements * (int64_t)sizeof(float));
    rows_view(c, memory[6], &lse);
    args.o = &o;
    args.lse = &lse;
    args.saved = c->spec.no_saved ? NULL : memory[5];
    args.workspace = memory[3];
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    status = mxt_on_device(p->backend) ? mxt_device_run_forward(p->backend, plan, &args)
                                       : mxattn_attention_forward(plan, &args);
    if (status != MXATTN_OK)
        return status;
    if (c->dlse) {
        rows_view(c, c->dlse, &dlse);
        args.dlse = &dlse;
    }
    args.q_seq = c->spec.pairs ? &c->q_seq : NULL;
    args.k_seq = c->spec.pairs ? &c->k_seq : NULL;
    args.dout = &c->dout;
    args.dq = &gradients[0];
    args.dk = &gradients[1];
    args.dv = &gradients[2];
    args.dsink = dsink;
    args.workspace = memory[4];
    args.workspace_bytes = (size_t)info.workspace_backward_bytes;
    return mxt_on_device(p->backend) ? mxt_device_run_backward(p->backend, plan, &args)
                                     : mxattn_attention_backward(plan, &args);
}

mxt_gradients mxt_attention_case_backward(mxt_attention_case *c, const mxattn_context *context,
                                          mxattn_backend backend, mxattn_precision precision)
{
    mxt_gradients result = {0};
    mxattn_attention_problem problem = c->spec.problem;
    const mxattn_tags tags[3] = {problem.dq, problem.dk, problem.dv};
    mxattn_tensor tensors[3];
    void *memory[8] = {0}, *outputs[9] = {0};
    mxattn_plan *plan = NULL;

    problem.backend = backend;
    problem.precision = precision;
    result.status = mxattn_plan_create(context, &problem, &plan);
    if (result.status != MXATTN_OK)
        return result;
    for (int i = 0; i < 3; i++) {
        int64_t shape[3];

        mxt_gradient_shape(c, i, shape);
        outputs[3 * i] =
            output(c, tags[i], i > 0, shape[1], shape[2], &tensors[i], outputs + 3 * i + 1);
    }
    if (problem.has_sink) {
        result.dsink = malloc((size_t)problem.heads * sizeof(float));
        mxt_fill_nan(result.dsink, (size_t)problem.heads * sizeof(float));
    }
    result.status = run_both(c, plan, tensors, result.dsink, memory);
    for (int i = 0; i < 3 && result.status == MXATTN_OK; i++) {
        int64_t shape[3];

        mxt_gradient_shape(c, i, shape);
        const size_t count = (size_t)(shape[0] * shape[1] * shape[2]);
        result.size[i] = count * (size_t)mxa_dtype_bytes(tags[i].dtype);
        result.d[i] = malloc(count * sizeof(float) + 1);
        result.bytes[i] = malloc(result.size[i] + 1);
        output_values(c, &tensors[i], i > 0, result.d[i]);
        memcpy(result.bytes[i], outputs[3 * i], result.size[i]);
    }
    for (int i = 0; i < 9; i++)
        mxt_guard_free(outputs[i]);
    for (int i = 0; i < 8; i++)
        mxt_guard_free(memory[i]);
    mxattn_plan_destroy(plan);
    return result;
}

void mxt_gradients_free(mxt_gradients *gradients)
{
    for (int i = 0; i < 3; i++) {
        free(gradients->d[i]);
        free(gradients->bytes[i]);
    }
    free(gradients->dsink);
    memset(gradients, 0, sizeof(*gradients));
}

mxattn_context *mxt_context(uint32_t isa, int32_t threads)
{
    mxattn_context_options options;
    mxattn_backend_info info;
    mxattn_context *context = NULL;

    mxattn_context_options_init(&options);
    options.isa_mask = isa | MXATTN_ISA_PORTABLE;
    options.threads = threads;
    if (mxattn_context_create(&options, &context) != MXATTN_OK)
        return NULL;
    mxattn_backend_info_init(&info);
    mxattn_backend_query(context, MXATTN_BACKEND_CPU, &info);
    if (info.isa != (isa | MXATTN_ISA_PORTABLE)) {
        mxattn_context_destroy(context);
        return NULL;
    }
    return context;
}

int mxt_isas(uint32_t isas[8])
{
    static const uint32_t masks[] = {
        MXATTN_ISA_PORTABLE,
        MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2,
        MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512,
        MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512 | MXATTN_ISA_AVX512_BF16 |
            MXATTN_ISA_AVX512_VBMI,
        MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512 | MXATTN_ISA_AVX512_BF16 |
            MXATTN_ISA_AVX512_VBMI | MXATTN_ISA_AMX_BF16,
    };
    int count = 0;

    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        mxattn_context *context = mxt_context(masks[i], 1);

        if (context)
            isas[count++] = masks[i];
        mxattn_context_destroy(context);
    }
    return count;
}

const char *mxt_isa_name(uint32_t isa)
{
    if (isa & MXATTN_ISA_AMX_BF16)
        return "amx";
    if (isa & MXATTN_ISA_AVX512_BF16)
        return "avx512bf16";
    if (isa & MXATTN_ISA_AVX512)
        return "avx512";
    return isa & MXATTN_ISA_AVX2 ? "avx2" : "portable";
}
