/* test_sm100_forward.c: the Blackwell forward on the emulator: bit for bit the arithmetic that it
 * documents, close to ref's float64, and clean under an adversary's schedules.
 *
 * Arguments: seeds of each case (default 3), then the beginning of a case's name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device_run.h"
#include "emu/driver.h"
#include "fill.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "report.h"
#include "sm100_model.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 12, EXTRA = 7 /* tokens of storage behind the last sequence */ };

typedef struct forward_case {
    const char *name;
    int32_t lengths_q[SEQUENCES], lengths_k[SEQUENCES]; /* ends with -1; one: may be dense */
    int jagged;
    int64_t heads, kv_heads, head_dim;
    int causal, top_left;
    int64_t left, right;
    double scale, softcap; /* scale 0: the default */
    int sink, centred;
    mxattn_block block; /* SQUARE, or ROW: q and k row, v column */
    mxattn_dtype type, o;
    mxattn_block o_block;
    mxt_kind kind;
} forward_case;

#define E4M3   MXATTN_E4M3
#define E5M2   MXATTN_E5M2
#define F32    MXATTN_F32
#define NONE   MXATTN_BLOCK_NONE
#define ROW    MXATTN_BLOCK_ROW
#define COLUMN MXATTN_BLOCK_COLUMN
#define SQUARE MXATTN_BLOCK_SQUARE

/* clang-format off */
static const forward_case cases[] = {
    {"one block", {128, -1}, {128, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"two tiles", {256, -1}, {256, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"several items", {384, -1}, {384, -1}, 0, 3, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"d64", {256, -1}, {320, -1}, 0, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"ragged edge", {130, -1}, {161, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"causal", {384, -1}, {384, -1}, 0, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"causal, more queries", {300, -1}, {100, -1}, 0, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"causal, more keys", {100, -1}, {300, -1}, 0, 1, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"causal top left", {300, -1}, {200, -1}, 0, 1, 1, 128, 1, 1, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"window", {700, -1}, {700, -1}, 0, 1, 1, 64, 0, 0, 100, 30, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"narrow window", {520, -1}, {520, -1}, 0, 1, 1, 64, 0, 0, 0, 0, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"row and column blocks", {160, -1}, {300, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, F32, NONE, MXT_OUTLIER},
    {"e5m2", {128, -1}, {256, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E5M2, F32, NONE, MXT_GAUSSIAN},
    {"sink", {160, -1}, {200, -1}, 0, 2, 2, 64, 1, 0, -1, -1, 0, 0, 1, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"softcap", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 3.0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"negative scale", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, -0.05, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"wide logits", {128, -1}, {384, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 2.0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"long tail", {128, -1}, {384, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_LONG_TAIL},
    {"centred", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 1, 1, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"no keys", {128, -1}, {0, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"o bf16", {140, -1}, {128, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, MXATTN_BF16, NONE, MXT_GAUSSIAN},
    {"o f16", {140, -1}, {128, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, MXATTN_F16, NONE, MXT_GAUSSIAN},
    {"o mxfp8 square", {140, -1}, {128, -1}, 0, 2, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, SQUARE, MXT_GAUSSIAN},
    {"o mxfp8 row", {200, -1}, {128, -1}, 0, 1, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, ROW, MXT_GAUSSIAN},
    {"o mxfp8 column", {200, -1}, {128, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E5M2, COLUMN, MXT_GAUSSIAN},
    {"jagged", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, 1, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"jagged, causal", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {640, 255, 129, 128, 127, 33, 32, 31, 1, 0, -1}, 1, 2, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, MXT_GAUSSIAN},
    {"jagged, o mxfp8", {33, 0, 129, -1}, {129, 31, 5, -1}, 1, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, E4M3, SQUARE, MXT_GAUSSIAN},
};
/* clang-format on */

/* One operand or output on the host, in both of its arrangements, and on the device. */
typedef struct operand {
    mxattn_tensor tensor; /* tiled scales, as the kernel reads them: host memory */
    mxattn_tensor linear; /* the same payload with linear scales */
    mxattn_tensor device;
    int64_t tokens, heads, head_dim;
    mxattn_axis axis;
    int64_t payload_bytes, tiled_bytes;
} operand;

typedef struct setup {
    const forward_case *c;
    int64_t batch;
    int32_t cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
    float *wide[3], *centre, sink[8];
    operand q, k, v;
    mxattn_attention_problem problem;
} setup;

/* ---- building a case ---- */

static int64_t sum_lengths(const int32_t *lengths, int32_t *cu)
{
    int64_t batch = 0;
    cu[0] = 0;
    for (; lengths[batch] >= 0; batch++) {
        cu[batch + 1] = cu[batch] + lengths[batch];
    }
    return batch;
}

static void *take(int64_t bytes)
{
    void *memory = malloc((size_t)(bytes ? bytes : 1));
    mxt_fill_nan(memory, (size_t)bytes);
    return memory;
}

static const int32_t *cu_of(const setup *s, const operand *p)
{
    return !s->c->jagged ? NULL : p == &s->q ? s->cu_q : s->cu_k;
}

static mxa_batch batch_of(const setup *s, const operand *p)
{
    const mxa_batch batch = {s->batch, s->c->jagged ? 0 : p->tokens, cu_of(s, p), NULL};
    return batch;
}

/* Padding of tiled scales becomes NaN: it must not show. */
static void spoil_padding(const setup *s, const operand *p)
{
    const mxa_batch batch = batch_of(s, p);
    mxa_scale_extent extent = mxa_scales_extent(&batch, p->heads, p->head_dim);
    mxattn_scales scales = p->tensor.scales[p->axis];
    uint8_t *there = calloc((size_t)p->tiled_bytes + 1, 1);
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    mxa_scales_resolve(&scales, p->axis, &extent);
    for (int64_t b = 0; b < s->batch; b++) {
        mxa_sequence_next(&batch, b, &sequence);
        for (int64_t t = 0; t < sequence.length; t++) {
            for (int64_t i = 0; i < p->heads * p->head_dim; i++) {
                there[mxa_scales_offset(&scales, p->axis, &sequence, b, t, i / p->head_dim,
                                        i % p->head_dim)] = 1;
            }
        }
    }
    for (int64_t i = 0; i < p->tiled_bytes; i++) {
        scales.data[i] = there[i] ? scales.data[i] : 0xFF;
    }
    free(there);
}

/* Quantizes rows of `wide`; storage behind the last sequence holds NaN. */
static void make_operand(const setup *s, operand *p, const float *wide, int64_t heads,
                         mxattn_tags tags, mxattn_axis axis, float *centre)
{
    const forward_case *c = s->c;
    const int32_t *cu = cu_of(s, p);
    const int64_t used = p == &s->q ? s->cu_q[s->batch] : s->cu_k[s->batch];
    p->heads = heads;
    p->head_dim = c->head_dim;
    p->axis = axis;
    p->tokens = used + (c->jagged ? EXTRA : 0);
    const int64_t dense[4] = {1, p->tokens, heads, c->head_dim};
    p->payload_bytes = p->tokens * heads * c->head_dim;
    void *payload = take(p->payload_bytes);
    mxattn_tensor plain;
    mxattn_tensor_view(&plain, MXATTN_F32, take(4 * p->payload_bytes), c->jagged ? 3 : 4,
                       c->jagged ? dense + 1 : dense);
    memset(plain.data, 0, (size_t)(4 * p->payload_bytes));
    memcpy(plain.data, wide, (size_t)(4 * used * heads * c->head_dim));
    for (int layout = MXATTN_LINEAR; layout <= MXATTN_TILED; layout += MXATTN_TILED) {
        mxattn_tensor *to = layout == MXATTN_TILED ? &p->tensor : &p->linear;
        int64_t bytes = 0;
        mxattn_tensor_view(to, tags.dtype, payload, plain.ndim, plain.shape);
        to->tags = tags;
        to->centre = centre;
        to->scales[axis].layout = (mxattn_scale_layout)layout;
        CHECK_STATUS(MXATTN_OK,
                     mxattn_scales_bytes(&tags, axis, (mxattn_scale_layout)layout, s->batch,
                                         p->tokens, cu, heads, c->head_dim, &bytes));
        to->scales[axis].data = take(bytes);
        p->tiled_bytes = bytes;
        mxattn_quantize_args args;
        mxattn_quantize_args_init(&args);
        args.backend = MXATTN_BACKEND_CPU;
        args.wide = &plain;
        args.quantized = to;
        args.sequences.cu_seqlens = cu;
        args.sequences.batch = cu ? s->batch : 0;
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
    }
    mxt_fill_nan((uint8_t *)payload + used * heads * c->head_dim,
                 (size_t)((p->tokens - used) * heads * c->head_dim));
    spoil_padding(s, p);
    free(plain.data);
}

static void free_operand(operand *p)
{
    free(p->tensor.data);
    free(p->tensor.scales[p->axis].data);
    free(p->linear.scales[p->axis].data);
}

static void describe(setup *s)
{
    const forward_case *c = s->c;
    mxattn_attention_problem *p = &s->problem;
    mxattn_attention_problem_init(p);
    p->format = c->jagged ? MXATTN_JAGGED : MXATTN_DENSE;
    p->batch = s->batch;
    p->total_q = s->q.tokens;
    p->total_k = s->k.tokens;
    for (int64_t b = 0; b < s->batch; b++) {
        p->max_seqlen_q = c->lengths_q[b] > p->max_seqlen_q ? c->lengths_q[b] : p->max_seqlen_q;
        p->max_seqlen_k = c->lengths_k[b] > p->max_seqlen_k ? c->lengths_k[b] : p->max_seqlen_k;
    }
    p->heads = c->heads;
    p->kv_heads = c->kv_heads;
    p->head_dim = c->head_dim;
    p->causal = c->causal;
    p->alignment = c->top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    p->window[0] = c->left;
    p->window[1] = c->right;
    if (c->scale != 0) {
        p->softmax_scale = c->scale;
    }
    p->softcap = c->softcap;
    p->has_sink = c->sink;
    p->q = s->q.tensor.tags;
    p->k = s->k.tensor.tags;
    p->v = s->v.tensor.tags;
    p->o.dtype = c->o;
    p->o.block = c->o_block;
}

static void build(setup *s, const forward_case *c, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->c = c;
    s->batch = sum_lengths(c->lengths_q, s->cu_q);
    (void)sum_lengths(c->lengths_k, s->cu_k);
    const int64_t rows[3] = {s->cu_q[s->batch] * c->heads, s->cu_k[s->batch] * c->kv_heads,
                             s->cu_k[s->batch] * c->kv_heads};
    for (int i = 0; i < 3; i++) {
        s->wide[i] = take(4 * rows[i] * c->head_dim);
        mxt_fill_f32(s->wide[i], rows[i], c->head_dim, c->kind, seed * 3 + (uint64_t)i);
    }
    for (int64_t i = 0; c->centred && i < rows[2] * c->head_dim; i++) {
        s->wide[2][i] += 3;
    }
    for (int64_t h = 0; h < c->heads; h++) {
        s->sink[h] = 0.5F * (float)h - 0.25F;
    }
    s->centre = c->centred ? take(4 * s->batch * c->kv_heads * c->head_dim) : NULL;
    const mxattn_tags qk = {.dtype = c->type, .block = c->block};
    const mxattn_tags v = {.dtype = c->type,
                           .block = c->block == ROW ? COLUMN : c->block,
                           .flags = c->centred ? MXATTN_CENTRED : 0};
    make_operand(s, &s->q, s->wide[0], c->heads, qk, MXATTN_HDIM, NULL);
    make_operand(s, &s->k, s->wide[1], c->kv_heads, qk, MXATTN_HDIM, NULL);
    make_operand(s, &s->v, s->wide[2], c->kv_heads, v, MXATTN_SEQ, s->centre);
    describe(s);
}

static void tear_down(setup *s)
{
    free_operand(&s->q);
    free_operand(&s->k);
    free_operand(&s->v);
    for (int i = 0; i < 3; i++) {
        free(s->wide[i]);
    }
    free(s->centre);
}

/* ---- running it ---- */

/* O (with tiled and linear scales where it is FP8) and LSE. */
typedef struct result {
    uint8_t *o, *o_scales[2];
    int64_t o_bytes, o_scales_bytes[2];
    float *lse;
    int64_t rows;
} result;

static const mxattn_backend EMU = MXATTN_BACKEND_EMU_SM100;

/* Device memory with a copy of `from`. */
static void *put(const void *from, int64_t bytes)
{
    void *memory = NULL;
    if (from && bytes) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, EMU, 0, (size_t)bytes, &memory));
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, EMU, 0, memory, from, (size_t)bytes));
    }
    return memory;
}

static void drop(void *device)
{
    if (device) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, EMU, 0, device));
    }
}

static void get(void *to, void *device, int64_t bytes)
{
    if (device && bytes) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, EMU, 0, to, device, (size_t)bytes));
    }
    drop(device);
}

static void put_operand(setup *s, operand *p)
{
    p->device = p->tensor;
    p->device.data = put(p->tensor.data, p->payload_bytes);
    p->device.scales[p->axis].data = put(p->tensor.scales[p->axis].data, p->tiled_bytes);
    if (p->tensor.centre) {
        p->device.centre = put(p->tensor.centre, 4 * s->batch * p->heads * p->head_dim);
    }
    /* The totals of a jagged batch are not known on the host: strides must be said. */
    const mxa_batch batch = batch_of(s, p);
    mxa_scale_extent extent = mxa_scales_extent(&batch, p->heads, p->head_dim);
    mxa_scales_resolve(&p->device.scales[p->axis], p->axis, &extent);
}

static void drop_operand(operand *p)
{
    drop(p->device.data);
    drop(p->device.scales[p->axis].data);
    drop(p->device.centre);
}

/* O's scale arrays: tiled along the head dimension, linear along the sequence. */
static const mxattn_scale_layout o_layouts[2] = {MXATTN_TILED, MXATTN_LINEAR};

static void take_result(const setup *s, result *r)
{
    const forward_case *c = s->c;
    const mxattn_tags *tags = &s->problem.o;
    memset(r, 0, sizeof *r);
    r->rows = s->q.tokens * c->heads;
    r->o_bytes = r->rows * c->head_dim * mxa_dtype_bytes(c->o);
    r->o = take(r->o_bytes);
    r->lse = take(4 * r->rows);
    for (int axis = 0; axis < 2; axis++) {
        const int has = c->o_block == SQUARE || (c->o_block == ROW && axis == MXATTN_HDIM) ||
                        (c->o_block == COLUMN && axis == MXATTN_SEQ);
        if (has) {
            CHECK_STATUS(MXATTN_OK,
                         mxattn_scales_bytes(tags, (mxattn_axis)axis, o_layouts[axis], s->batch,
                                             s->q.tokens, cu_of(s, &s->q), c->heads, c->head_dim,
                                             &r->o_scales_bytes[axis]));
            r->o_scales[axis] = take(r->o_scales_bytes[axis]);
        }
    }
}

static void free_result(result *r)
{
    free(r->o);
    free(r->lse);
    free(r->o_scales[0]);
    free(r->o_scales[1]);
}

static mxattn_tensor output_view(const setup *s, const result *r)
{
    const forward_case *c = s->c;
    const int64_t shape[4] = {1, s->q.tokens, c->heads, c->head_dim};
    const mxa_batch batch = batch_of(s, &s->q);
    mxa_scale_extent extent = mxa_scales_extent(&batch, c->heads, c->head_dim);
    mxattn_tensor o;
    mxattn_tensor_view(&o, c->o, r->o, c->jagged ? 3 : 4, c->jagged ? shape + 1 : shape);
    o.tags = s->problem.o;
    for (int axis = 0; axis < 2; axis++) {
        o.scales[axis].data = r->o_scales[axis];
        o.scales[axis].layout = o_layouts[axis];
        mxa_scales_resolve(&o.scales[axis], (mxattn_axis)axis, &extent);
    }
    return o;
}

static mxattn_status run_device(setup *s, result *r)
{
    const forward_case *c = s->c;
    mxattn_attention_problem problem = s->problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    problem.backend = EMU;
    mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    if (status) {
        return status;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    put_operand(s, &s->q);
    put_operand(s, &s->k);
    put_operand(s, &s->v);
    mxattn_tensor o = output_view(s, r), lse;
    const int64_t lse_shape[3] = {1, c->heads, s->q.tokens};
    mxattn_tensor_view(&lse, MXATTN_F32, put(r->lse, 4 * r->rows), c->jagged ? 2 : 3,
                       c->jagged ? lse_shape + 1 : lse_shape);
    o.data = put(r->o, r->o_bytes);
    o.scales[0].data = put(r->o_scales[0], r->o_scales_bytes[0]);
    o.scales[1].data = put(r->o_scales[1], r->o_scales_bytes[1]);
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &s->q.device;
    args.k = &s->k.device;
    args.v = &s->v.device;
    args.o = &o;
    args.lse = &lse;
    args.batch = c->jagged ? s->batch : -1;
    float *sink = put(c->sink ? s->sink : NULL, 4 * c->heads);
    int32_t *cu_q = put(cu_of(s, &s->q), 4 * (s->batch + 1));
    int32_t *cu_k = put(cu_of(s, &s->k), 4 * (s->batch + 1));
    void *workspace = take(info.workspace_forward_bytes);
    void *device_workspace = put(workspace, info.workspace_forward_bytes);
    args.sink = sink;
    args.cu_seqlens_q = cu_q;
    args.cu_seqlens_k = cu_k;
    args.workspace = device_workspace;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    status = mxattn_attention_forward(plan, &args);
    get(r->o, o.data, r->o_bytes);
    get(r->lse, lse.data, 4 * r->rows);
    get(r->o_scales[0], o.scales[0].data, r->o_scales_bytes[0]);
    get(r->o_scales[1], o.scales[1].data, r->o_scales_bytes[1]);
    drop(sink);
    drop(cu_q);
    drop(cu_k);
    drop(device_workspace);
    drop_operand(&s->q);
    drop_operand(&s->k);
    drop_operand(&s->v);
    free(workspace);
    mxattn_plan_destroy(plan);
    return status;
}

/* ---- what it must be ---- */

/* Head h of sequence b for the model; scales is memory for the head's own copies. */
static mxt_sm100_head head_of(const setup *s, int64_t b, int64_t h, uint8_t *scales)
{
    const forward_case *c = s->c;
    const int64_t d = c->head_dim, kv = h / (c->heads / c->kv_heads), groups = d / 32;
    const int64_t sq = c->lengths_q[b], sk = c->lengths_k[b], blocks = (sk + 31) / 32;
    int64_t block = 0;
    mxt_sm100_head m = {.q_type = c->type,
                        .k_type = c->type,
                        .v_type = c->type,
                        .seqlen_q = sq,
                        .seqlen_k = sk,
                        .head_dim = d};
    for (int64_t i = 0; i < b; i++) {
        block += (c->lengths_k[i] + 31) / 32;
    }
    m.q = (const uint8_t *)s->q.tensor.data + (s->cu_q[b] * c->heads + h) * d;
    m.k = (const uint8_t *)s->k.tensor.data + (s->cu_k[b] * c->kv_heads + kv) * d;
    m.v = (const uint8_t *)s->v.tensor.data + (s->cu_k[b] * c->kv_heads + kv) * d;
    m.stride_q = c->heads * d;
    m.stride_k = m.stride_v = c->kv_heads * d;
    for (int64_t t = 0; t < sq; t++) {
        memcpy(scales + t * groups,
               s->q.linear.scales[MXATTN_HDIM].data + ((s->cu_q[b] + t) * c->heads + h) * groups,
               (size_t)groups);
    }
    m.q_scale = scales;
    scales += sq * groups;
    for (int64_t t = 0; t < sk; t++) {
        memcpy(scales + t * groups,
               s->k.linear.scales[MXATTN_HDIM].data +
                   ((s->cu_k[b] + t) * c->kv_heads + kv) * groups,
               (size_t)groups);
    }
    m.k_scale = scales;
    scales += sk * groups;
    for (int64_t t = 0; t < blocks; t++) {
        memcpy(scales + t * d,
               s->v.linear.scales[MXATTN_SEQ].data + ((block + t) * c->kv_heads + kv) * d,
               (size_t)d);
    }
    m.v_scale = scales;
    m.left = c->left;
    m.right = c->causal ? 0 : c->right;
    m.diagonal = c->top_left ? 0 : sk - sq;
    m.softmax_scale = c->scale != 0 ? c->scale : 1.0 / sqrt((double)d);
    m.softcap = c->softcap;
    m.sink = c->sink ? s->sink + h : NULL;
    m.mean = c->centred ? s->centre + (b * c->kv_heads + kv) * d : NULL;
    return m;
}

/* O in FP32 and LSE by the model; rows of no sequence 0 and -inf. */
static void run_model(const setup *s, float *o, float *lse)
{
    const forward_case *c = s->c;
    const int64_t d = c->head_dim, tokens = s->q.tokens;
    uint8_t *scales = malloc((size_t)((s->q.tokens + 3 * s->k.tokens + 64) * d));
    memset(o, 0, (size_t)(4 * tokens * c->heads * d));
    for (int64_t i = 0; i < tokens * c->heads; i++) {
        lse[i] = -INFINITY;
    }
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < c->heads; h++) {
            const mxt_sm100_head m = head_of(s, b, h, scales);
            for (int64_t i = 0; i < m.seqlen_q; i += MXT_SM100_ROWS) {
                const int64_t t = s->cu_q[b] + i, left = m.seqlen_q - i;
                mxt_sm100_rows(&m, i, left < MXT_SM100_ROWS ? (int)left : MXT_SM100_ROWS,
                               o + (t * c->heads + h) * d, c->heads * d, &lse[h * tokens + t]);
            }
        }
    }
    free(scales);
}

/* The kernel's O must be the model's, converted once, as a producer would. */
static void check_output(const setup *s, const result *r, const float *o)
{
    const forward_case *c = s->c;
    const int64_t n = r->rows * c->head_dim;
    const mxt_shape shape = mxt_shape3(s->q.tokens, c->heads, c->head_dim);
    result want;
    take_result(s, &want);
    if (mxa_dtype_is_wide(c->o)) {
        for (int64_t i = 0; i < n; i++) {
            /* A sum of nothing is 0 of either sign. */
            mxa_store(want.o, c->o, i, o[i] + 0.0F);
            mxa_store(r->o, c->o, i, mxa_load(r->o, c->o, i) + 0.0F);
        }
    } else {
        mxattn_tensor quantized = output_view(s, &want), wide;
        const int64_t *size = quantized.shape;
        mxattn_tensor_view(&wide, MXATTN_F32, take(4 * n), quantized.ndim, size);
        memcpy(wide.data, o, (size_t)(4 * n));
        mxattn_quantize_args args;
        mxattn_quantize_args_init(&args);
        args.backend = MXATTN_BACKEND_CPU;
        args.wide = &wide;
        args.quantized = &quantized;
        args.sequences.cu_seqlens = cu_of(s, &s->q);
        args.sequences.batch = c->jagged ? s->batch : 0;
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
        free(wide.data);
        for (int axis = 0; axis < 2; axis++) {
            if (want.o_scales[axis]) {
                mxt_check_bytes(axis ? "scales of o, seq" : "scales of o, hdim", r->o_scales[axis],
                                want.o_scales[axis], 1, mxt_shape1(want.o_scales_bytes[axis]));
            }
        }
        for (int64_t i = 0; i < n; i++) { /* -0 of the model may be 0 */
            r->o[i] = r->o[i] == 0x80 ? 0 : r->o[i];
            want.o[i] = want.o[i] == 0x80 ? 0 : want.o[i];
        }
    }
    mxt_check_bytes("o", r->o, want.o, (size_t)mxa_dtype_bytes(c->o), shape);
    free_result(&want);
}

/* Close to ref, which computes in float64. */
static void check_reference(setup *s, const float *o, const float *lse)
{
    const forward_case *c = s->c;
    const int64_t n = s->q.tokens * c->heads * c->head_dim, rows = s->q.tokens * c->heads;
    float *want = take(4 * n), *want_lse = take(4 * rows);
    const int64_t shape[4] = {1, s->q.tokens, c->heads, c->head_dim};
    const int64_t lse_shape[3] = {1, c->heads, s->q.tokens};
    mxattn_attention_problem problem = s->problem;
    mxattn_attention_args args;
    mxattn_tensor to, to_lse;
    problem.backend = MXATTN_BACKEND_REF;
    problem.precision = MXATTN_PRECISION_MODEL;
    problem.intermediates = MXATTN_INTERMEDIATES_E4M3;
    problem.o.dtype = MXATTN_F32;
    problem.o.block = NONE;
    mxattn_tensor_view(&to, MXATTN_F32, want, c->jagged ? 3 : 4, c->jagged ? shape + 1 : shape);
    mxattn_tensor_view(&to_lse, MXATTN_F32, want_lse, c->jagged ? 2 : 3,
                       c->jagged ? lse_shape + 1 : lse_shape);
    mxattn_attention_args_init(&args);
    args.q = &s->q.linear;
    args.k = &s->k.linear;
    args.v = &s->v.linear;
    args.o = &to;
    args.lse = &to_lse;
    args.sink = c->sink ? s->sink : NULL;
    args.batch = c->jagged ? s->batch : -1;
    args.cu_seqlens_q = cu_of(s, &s->q);
    args.cu_seqlens_k = cu_of(s, &s->k);
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward_once(NULL, &problem, &args));
    mxt_check_rms("model's o against ref", o, want, mxt_shape1(n), MXT_SM100_O);
    mxt_check_close("model's lse against ref", lse, want_lse, mxt_shape1(rows),
                    MXT_SM100_LSE_ABSOLUTE, MXT_SM100_LSE_RELATIVE);
    free(want);
    free(want_lse);
}

static void check_case(const forward_case *c, uint64_t seeds)
{
    setup s;
    result r;
    build(&s, c, 1);
    const int64_t rows = s.q.tokens * c->heads;
    float *o = take(4 * rows * c->head_dim), *lse = take(4 * rows);
    mxt_case("%s", c->name);
    run_model(&s, o, lse);
    check_reference(&s, o, lse);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        mxt_case("%s, schedule %llu", c->name, (unsigned long long)seed);
        mxa_emu_session *session = mxa_emu_session_now();
        mxa_emu_session_clear();
        session->options.seed = seed;
        take_result(&s, &r);
        CHECK_STATUS(MXATTN_OK, run_device(&s, &r));
        CHECK(session->errors == 0, "%d errors:\n%s", session->errors,
              session->text ? session->text : "");
        CHECK(session->warnings == 0, "%d warnings:\n%s", session->warnings,
              session->text ? session->text : "");
        if (!session->errors) {
            check_output(&s, &r, o);
            mxt_check_bytes("lse", r.lse, lse, 4, mxt_shape1(rows));
        }
        free_result(&r);
    }
    free(o);
    free(lse);
    tear_down(&s);
}

/* ---- operands that are not as the kernel reads them ---- */

static void options_of(mxt_attention *a)
{
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = MXATTN_INTERMEDIATES_E4M3;
    a->problem.mode = MXATTN_INFERENCE;
}

/* Wide ones are quantized in the call, linear scales arranged; the kernel's arithmetic is checked
 * above, so it is ref that says whether the operands were right. */
static void check_arranged(mxt_attention *a, mxattn_dtype operands, int prepared)
{
    const int64_t n = mxt_size_o(a), rows = mxt_size_lse(a);
    const mxt_device_options given = {prepared, operands, F32, EMU};
    float *want = take(4 * n), *want_lse = take(4 * rows);
    mxa_emu_session *session = mxa_emu_session_now();
    mxa_emu_session_clear();
    session->options.seed = 7;
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    memcpy(want, a->o, (size_t)(4 * n));
    memcpy(want_lse, a->lse, (size_t)(4 * rows));
    if (CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, &given))) {
        mxt_check_rms("o", a->o, want, mxt_shape1(n), MXT_SM100_O);
        mxt_check_close("lse", a->lse, want_lse, mxt_shape1(rows), MXT_SM100_LSE_ABSOLUTE,
                        MXT_SM100_LSE_RELATIVE);
    }
    CHECK(session->errors + session->warnings == 0, "%d errors, %d warnings:\n%s", session->errors,
          session->warnings, session->text ? session->text : "");
    free(want);
    free(want_lse);
}

static void arranged(void)
{
    static const mxattn_dtype types[] = {F32, E4M3, F32, E4M3};
    static const int32_t cu_q[] = {0, 5, 5, 205, 206}, cu_k[] = {0, 17, 40, 300, 300};
    static const int32_t used_q[] = {5, 0, 199, 1}, used_k[] = {16, 20, 129, 0};
    for (int i = 0; i < 4; i++) {
        mxt_attention a;
        mxt_case("arranged: %s, dense, variant %d", mxa_dtype_name(types[i]), i);
        mxt_attention_dense(&a, 2, 140, 200, 2, 1, i < 2 ? 128 : 64);
        options_of(&a);
        a.problem.causal = i & 1;
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 40 + (uint64_t)i);
        check_arranged(&a, types[i], i >= 2);
        mxt_attention_free(&a);
        mxt_case("arranged: %s, jagged, variant %d", mxa_dtype_name(types[i]), i);
        mxt_attention_jagged(&a, 4, cu_q, 210, cu_k, 310, 2, 2, i < 2 ? 64 : 128);
        options_of(&a);
        if (i >= 2) {
            a.used_q = used_q;
            a.used_k = used_k;
        }
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 50 + (uint64_t)i);
        check_arranged(&a, types[i], i == 1 || i == 2);
        mxt_attention_free(&a);
    }
}

/* ---- what there is no kernel for ---- */

static void refusal(const char *what, mxattn_status expected, const char *word,
                    const mxattn_attention_problem *problem)
{
    mxattn_plan *plan = NULL;
    mxt_case("refused: %s", what);
    CHECK_STATUS(expected, mxattn_plan_create(NULL, problem, &plan));
    CHECK(strstr(mxattn_last_error(), word) != NULL, "\"%s\" lacks \"%s\"", mxattn_last_error(),
          word);
    mxattn_plan_destroy(plan);
}

static void refusals(void)
{
    mxattn_attention_problem base, p;
    mxattn_attention_problem_init(&base);
    base.backend = EMU;
    base.batch = base.heads = base.kv_heads = 1;
    base.max_seqlen_q = base.max_seqlen_k = base.head_dim = 128;
    p = base;
    p.mode = MXATTN_TRAINING;
    refusal("training", MXATTN_UNSUPPORTED, "problem.mode", &p);
    p = base;
    p.head_dim = 96;
    refusal("head_dim 96", MXATTN_UNSUPPORTED, "problem.head_dim", &p);
    p = base;
    p.head_dim_v = 64;
    refusal("head_dim_v 64", MXATTN_UNSUPPORTED, "head_dim_v", &p);
    p = base;
    p.intermediates = MXATTN_INTERMEDIATES_BF16;
    refusal("BF16 intermediates", MXATTN_UNSUPPORTED, "problem.intermediates", &p);
    p = base;
    p.k.block = COLUMN;
    refusal("column k", MXATTN_UNSUPPORTED, "problem.k.block", &p);
    p = base;
    p.v.block = ROW;
    refusal("row v", MXATTN_UNSUPPORTED, "problem.v.block", &p);
    p = base;
    p.device = 1;
    refusal("no such device", MXATTN_NO_BACKEND, "device is 1", &p);
}

int main(int argc, char **argv)
{
    const uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    const char *missing = mxt_device_missing(EMU);
    if (missing) {
        mxt_case("emulated forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc < 3 || strncmp(cases[i].name, argv[2], strlen(argv[2])) == 0) {
            check_case(&cases[i], seeds);
        }
    }
    if (argc < 3 || strcmp(argv[2], "arranged") == 0) {
        arranged();
    }
    if (argc < 3 || strcmp(argv[2], "refused") == 0) {
        refusals();
    }
    return mxt_finish();
}
