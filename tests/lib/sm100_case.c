/* sm100_case.c: see sm100_case.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "sm100_case.h"

#include "compare.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

#define NONE   MXATTN_BLOCK_NONE
#define ROW    MXATTN_BLOCK_ROW
#define COLUMN MXATTN_BLOCK_COLUMN
#define SQUARE MXATTN_BLOCK_SQUARE

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

void *mxt_sm100_take(int64_t bytes)
{
    void *memory = malloc((size_t)(bytes ? bytes : 1));
    mxt_fill_nan(memory, (size_t)bytes);
    return memory;
}

int64_t mxt_sm100_used_q(const mxt_sm100_case *c, int64_t b)
{
    return c->used_q ? c->used_q[b] : c->lengths_q[b];
}

const int32_t *mxt_sm100_cu(const mxt_sm100_setup *s, const mxt_sm100_operand *p)
{
    return !s->c->jagged ? NULL : p == &s->q ? s->cu_q : s->cu_k;
}

static mxa_batch batch_of(const mxt_sm100_setup *s, const mxt_sm100_operand *p)
{
    const mxa_batch batch = {s->batch, s->c->jagged ? 0 : p->tokens, mxt_sm100_cu(s, p), NULL};
    return batch;
}

/* Padding of tiled scales becomes NaN: it must not show. */
static void spoil_padding(const mxt_sm100_setup *s, const mxt_sm100_operand *p)
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
static void make_operand(const mxt_sm100_setup *s, mxt_sm100_operand *p, const float *wide,
                         int64_t heads, mxattn_tags tags, mxattn_axis axis, float *centre)
{
    const mxt_sm100_case *c = s->c;
    const int32_t *cu = mxt_sm100_cu(s, p);
    const int64_t used = p == &s->q ? s->cu_q[s->batch] : s->cu_k[s->batch];
    p->heads = heads;
    p->head_dim = c->head_dim;
    p->axis = axis;
    p->tokens = used + (c->jagged ? EXTRA : 0);
    const int64_t dense[4] = {1, p->tokens, heads, c->head_dim};
    p->payload_bytes = p->tokens * heads * c->head_dim;
    void *payload = mxt_sm100_take(p->payload_bytes);
    mxattn_tensor plain;
    mxattn_tensor_view(&plain, MXATTN_F32, mxt_sm100_take(4 * p->payload_bytes), c->jagged ? 3 : 4,
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
        to->scales[axis].data = mxt_sm100_take(bytes);
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

static void free_operand(mxt_sm100_operand *p)
{
    free(p->tensor.data);
    free(p->tensor.scales[p->axis].data);
    free(p->linear.scales[p->axis].data);
}

static void describe(mxt_sm100_setup *s)
{
    const mxt_sm100_case *c = s->c;
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
    p->causal_strict = c->strict;
    p->intermediates = c->bf16 || c->strict ? MXATTN_INTERMEDIATES_BF16 : MXATTN_INTERMEDIATES_AUTO;
    p->q = s->q.tensor.tags;
    p->k = s->k.tensor.tags;
    p->v = s->v.tensor.tags;
    p->o.dtype = c->o;
    p->o.block = c->o_block;
}

void mxt_sm100_build(mxt_sm100_setup *s, const mxt_sm100_case *c, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->c = c;
    s->batch = sum_lengths(c->lengths_q, s->cu_q);
    (void)sum_lengths(c->lengths_k, s->cu_k);
    const int64_t rows[3] = {s->cu_q[s->batch] * c->heads, s->cu_k[s->batch] * c->kv_heads,
                             s->cu_k[s->batch] * c->kv_heads};
    for (int i = 0; i < 3; i++) {
        s->wide[i] = mxt_sm100_take(4 * rows[i] * c->head_dim);
        mxt_fill_f32(s->wide[i], rows[i], c->head_dim, c->kind, seed * 3 + (uint64_t)i);
    }
    for (int64_t i = 0; c->centred && i < rows[2] * c->head_dim; i++) {
        s->wide[2][i] += 3;
    }
    for (int64_t h = 0; h < c->heads; h++) {
        s->sink[h] = 0.5F * (float)h - 0.25F;
    }
    s->centre = c->centred ? mxt_sm100_take(4 * s->batch * c->kv_heads * c->head_dim) : NULL;
    const mxattn_tags qk = {.dtype = c->type, .block = c->block};
    const mxattn_tags v = {.dtype = c->type,
                           .block = c->block == ROW && !c->strict ? COLUMN : c->block,
                           .flags = c->centred ? MXATTN_CENTRED : 0};
    make_operand(s, &s->q, s->wide[0], c->heads, qk, MXATTN_HDIM, NULL);
    make_operand(s, &s->k, s->wide[1], c->kv_heads, qk, MXATTN_HDIM, NULL);
    make_operand(s, &s->v, s->wide[2], c->kv_heads, v, c->strict ? MXATTN_HDIM : MXATTN_SEQ,
                 s->centre);
    describe(s);
}

void mxt_sm100_free(mxt_sm100_setup *s)
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

static const mxattn_backend emulated = MXATTN_BACKEND_EMU_SM100;

/* Device memory with a copy of `from`. */
static void *put(const void *from, int64_t bytes)
{
    void *memory = NULL;
    if (from && bytes) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, emulated, 0, (size_t)bytes, &memory));
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, emulated, 0, memory, from, (size_t)bytes));
    }
    return memory;
}

static void drop(void *device)
{
    if (device) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, emulated, 0, device));
    }
}

static void get(void *to, void *device, int64_t bytes)
{
    if (device && bytes) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, emulated, 0, to, device, (size_t)bytes));
    }
    drop(device);
}

static void put_operand(mxt_sm100_setup *s, mxt_sm100_operand *p)
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

static void drop_operand(mxt_sm100_operand *p)
{
    drop(p->device.data);
    drop(p->device.scales[p->axis].data);
    drop(p->device.centre);
}

static mxattn_scale_layout o_layout(const mxt_sm100_case *c, int axis)
{
    static const mxattn_scale_layout layouts[][2] = {{MXATTN_TILED, MXATTN_LINEAR},
                                                     {MXATTN_LINEAR, MXATTN_TILED},
                                                     {MXATTN_COMPACT, MXATTN_COMPACT}};
    return layouts[c->o_layouts][axis];
}

void mxt_sm100_result_take(const mxt_sm100_setup *s, mxt_sm100_result *r)
{
    const mxt_sm100_case *c = s->c;
    const mxattn_tags *tags = &s->problem.o;
    memset(r, 0, sizeof *r);
    r->rows = s->q.tokens * c->heads;
    r->o_bytes = r->rows * c->head_dim * mxa_dtype_bytes(c->o);
    r->o = mxt_sm100_take(r->o_bytes);
    r->lse = mxt_sm100_take(4 * r->rows);
    for (int axis = 0; axis < 2; axis++) {
        const int has = c->o_block == SQUARE || (c->o_block == ROW && axis == MXATTN_HDIM) ||
                        (c->o_block == COLUMN && axis == MXATTN_SEQ);
        if (has) {
            CHECK_STATUS(MXATTN_OK,
                         mxattn_scales_bytes(tags, (mxattn_axis)axis, o_layout(c, axis), s->batch,
                                             s->q.tokens, mxt_sm100_cu(s, &s->q), c->heads,
                                             c->head_dim, &r->o_scales_bytes[axis]));
            r->o_scales[axis] = mxt_sm100_take(r->o_scales_bytes[axis]);
        }
    }
}

void mxt_sm100_result_free(mxt_sm100_result *r)
{
    free(r->o);
    free(r->lse);
    free(r->o_scales[0]);
    free(r->o_scales[1]);
}

mxattn_tensor mxt_sm100_output(const mxt_sm100_setup *s, const mxt_sm100_result *r)
{
    const mxt_sm100_case *c = s->c;
    const int64_t shape[4] = {1, s->q.tokens, c->heads, c->head_dim};
    const mxa_batch batch = batch_of(s, &s->q);
    mxa_scale_extent extent = mxa_scales_extent(&batch, c->heads, c->head_dim);
    mxattn_tensor o;
    mxattn_tensor_view(&o, c->o, r->o, c->jagged ? 3 : 4, c->jagged ? shape + 1 : shape);
    o.tags = s->problem.o;
    for (int axis = 0; axis < 2; axis++) {
        o.scales[axis].data = r->o_scales[axis];
        o.scales[axis].layout = o_layout(c, axis);
        mxa_scales_resolve(&o.scales[axis], (mxattn_axis)axis, &extent);
    }
    return o;
}

mxattn_status mxt_sm100_run(mxt_sm100_setup *s, mxt_sm100_result *r)
{
    const mxt_sm100_case *c = s->c;
    mxattn_attention_problem problem = s->problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    problem.backend = emulated;
    mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    if (status) {
        return status;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    put_operand(s, &s->q);
    put_operand(s, &s->k);
    put_operand(s, &s->v);
    mxattn_tensor o = mxt_sm100_output(s, r), lse;
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
    int32_t *cu_q = put(mxt_sm100_cu(s, &s->q), 4 * (s->batch + 1));
    int32_t *cu_k = put(mxt_sm100_cu(s, &s->k), 4 * (s->batch + 1));
    int32_t *used_q = put(c->used_q, 4 * s->batch);
    void *workspace = mxt_sm100_take(info.workspace_forward_bytes);
    void *device_workspace = put(workspace, info.workspace_forward_bytes);
    args.sink = sink;
    args.cu_seqlens_q = cu_q;
    args.cu_seqlens_k = cu_k;
    args.seqused_q = used_q;
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
    drop(used_q);
    drop(device_workspace);
    drop_operand(&s->q);
    drop_operand(&s->k);
    drop_operand(&s->v);
    free(workspace);
    mxattn_plan_destroy(plan);
    return status;
}
