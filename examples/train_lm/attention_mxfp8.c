/* attention_mxfp8.c: attention in MXFP8, through the public interface of mxattn.
 *
 * One plan serves every step and layer. Forward quantizes the packed qkv projection in place of its
 * rows, as one tensor of heads + 2 kv_heads heads with square blocks, 32 tokens by 32 dimensions
 * that start anew with each sequence; q, k and v are then views of that payload and of its scales.
 * Square blocks serve both directions, so backward reads the same bytes, and writes dq, dk and dv
 * through strides into the gradient of the projection. Nothing is gathered or copied. The gradient
 * of o is quantized by the call itself. The library's loops run on this program's threads.
 * With VARIANT_PAIRS there are two such payloads, of row and of column blocks.
 *
 * On a device the payload, its scales and LSE stay there; the projection, o and their gradients,
 * which the rest of the network reads and writes on the host, are copied in each call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"

#include "mxattn/mxattn.h"
#include "mxfp8_library.h"

#include <stdio.h>
#include <stdlib.h>

struct attention_mxfp8 {
    attention base;
    attention_shape shape;
    mxfp8_library library;
    mxattn_plan *plan;
    struct {
        void *qkv, *o, *dout, *dqkv, *cu_seqlens;
    } device; /* NULL where the host's are read */
    struct layer_memory {
        struct quantized {
            uint8_t *payload; /* (max_tokens, heads + 2 kv_heads, head_dim) */
            uint8_t *scales;
        } one, seq; /* seq: column blocks, with VARIANT_PAIRS; then one has row blocks */
        float *lse; /* (heads, tokens of the batch) */
    } * layer;
};

static void create_plan(struct attention_mxfp8 *self)
{
    mxattn_attention_problem problem;
    mxfp8_problem(&self->library, &self->shape, &problem);
    problem.o.dtype = problem.dq.dtype = problem.dk.dtype = problem.dv.dtype = MXATTN_F32;
    problem.dout.dtype = MXATTN_F32; /* with square blocks: quantized in the call */
    problem.dout.rounding = problem.q.rounding;
    mxfp8_need(mxattn_plan_create(self->library.context, &problem, &self->plan));

    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    mxfp8_need(mxattn_plan_query(self->plan, &info));
    mxfp8_workspace(&self->library, (size_t)info.workspace_forward_bytes);
    mxfp8_workspace(&self->library, (size_t)info.workspace_backward_bytes);
    snprintf(self->base.description, sizeof(self->base.description), "MXFP8, mxattn %s, %s and %s",
             mxattn_version_string(), info.kernel_forward, info.kernel_backward);
}

/* Heads first .. first+count-1 of a buffer whose rows hold all heads of q, k and v. */
static mxattn_tensor heads_of(const attention_shape *s, mxattn_dtype dtype, void *data,
                              int64_t tokens, int64_t first, int64_t count)
{
    mxattn_tensor view;
    mxattn_tensor_view(&view, dtype, data, 3, (int64_t[]){tokens, count, s->head_dim});
    view.stride[0] = attention_qkv_width(s);
    int64_t offset = first * s->head_dim;
    view.data =
        dtype == MXATTN_F32 ? (void *)((float *)data + offset) : (void *)((uint8_t *)data + offset);
    return view;
}

/* The blocks' scales: of 32 tokens each with their heads, or of tokens with row blocks; a head has
 * one a block of 32 dimensions, or one a dimension with column blocks. */
static mxattn_tensor quantized_heads_of(const struct attention_mxfp8 *self,
                                        const struct quantized *x, mxattn_block block,
                                        int64_t tokens, int64_t first, int64_t count)
{
    const attention_shape *s = &self->shape;
    mxattn_tensor view = heads_of(s, MXATTN_E4M3, x->payload, tokens, first, count);
    const int column = block == MXATTN_BLOCK_COLUMN;
    const int64_t head = column ? s->head_dim : (s->head_dim + 31) / 32;
    view.tags = mxfp8_tags(&self->library, block);
    view.scales[column ? MXATTN_SEQ : MXATTN_HDIM] =
        (mxattn_scales){.data = x->scales + first * head,
                        .layout = block == MXATTN_BLOCK_SQUARE ? MXATTN_COMPACT : MXATTN_LINEAR,
                        .stride_head = head,
                        .stride_row = (s->heads + 2 * s->kv_heads) * head,
                        .stride_k = 1};
    return view;
}

static mxattn_block block_of(const struct attention_mxfp8 *self)
{
    return self->library.variant == VARIANT_PAIRS ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_SQUARE;
}

static void quantize_to(struct attention_mxfp8 *self, const struct quantized *x, mxattn_block block,
                        const float *qkv, const jagged *batch)
{
    const attention_shape *s = &self->shape;
    int64_t all = s->heads + 2 * s->kv_heads;
    mxattn_tensor wide = heads_of(s, MXATTN_F32, (float *)qkv, batch->tokens, 0, all);
    mxattn_tensor quantized = quantized_heads_of(self, x, block, batch->tokens, 0, all);
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = self->library.backend;
    args.wide = &wide;
    args.quantized = &quantized;
    args.sequences.cu_seqlens = batch->cu_seqlens;
    args.sequences.batch = batch->sequences;
    mxfp8_need(mxattn_quantize(self->library.context, &args));
    self->base.quantizations++;
}

static void quantize(struct attention_mxfp8 *self, const struct layer_memory *memory,
                     const float *qkv, const jagged *batch)
{
    quantize_to(self, &memory->one, block_of(self), qkv, batch);
    if (memory->seq.payload)
        quantize_to(self, &memory->seq, MXATTN_BLOCK_COLUMN, qkv, batch);
}

/* The tensors that forward and backward share. */
struct operands {
    mxattn_tensor q, k, v, q_seq, k_seq, v_seq, o, lse;
    mxattn_attention_args args;
};

static void set_projection(const struct attention_mxfp8 *self, const struct quantized *from,
                           mxattn_block block, int64_t tokens, mxattn_tensor *q, mxattn_tensor *k,
                           mxattn_tensor *v)
{
    const attention_shape *s = &self->shape;
    *q = quantized_heads_of(self, from, block, tokens, 0, s->heads);
    *k = quantized_heads_of(self, from, block, tokens, s->heads, s->kv_heads);
    *v = quantized_heads_of(self, from, block, tokens, s->heads + s->kv_heads, s->kv_heads);
}

static void set_operands(struct attention_mxfp8 *self, struct operands *x, int layer,
                         const float *o, const jagged *batch)
{
    const attention_shape *s = &self->shape;
    const struct layer_memory *memory = &self->layer[layer];
    int64_t tokens = batch->tokens;
    set_projection(self, &memory->one, block_of(self), tokens, &x->q, &x->k, &x->v);
    mxattn_tensor_view(&x->o, MXATTN_F32, (float *)o, 3,
                       (int64_t[]){tokens, s->heads, s->head_dim});
    mxattn_tensor_view(&x->lse, MXATTN_F32, memory->lse, 2, (int64_t[]){s->heads, tokens});
    mxattn_attention_args_init(&x->args);
    x->args.q = &x->q;
    x->args.k = &x->k;
    x->args.v = &x->v;
    if (memory->seq.payload) {
        set_projection(self, &memory->seq, MXATTN_BLOCK_COLUMN, tokens, &x->q_seq, &x->k_seq,
                       &x->v_seq);
        x->args.q_seq = &x->q_seq;
        x->args.k_seq = &x->k_seq;
        x->args.v_seq = &x->v_seq;
    }
    x->args.o = &x->o;
    x->args.lse = &x->lse;
    x->args.batch = batch->sequences;
    x->args.cu_seqlens_q = x->args.cu_seqlens_k = batch->cu_seqlens;
    x->args.workspace = self->library.workspace;
    x->args.workspace_bytes = self->library.workspace_bytes;
}

/* The batch with its offsets where the library reads them. */
static jagged placed(const struct attention_mxfp8 *self, const jagged *batch)
{
    jagged there = *batch;
    there.cu_seqlens = mxfp8_given(&self->library, self->device.cu_seqlens, batch->cu_seqlens,
                                   (size_t)(batch->sequences + 1) * sizeof(int32_t));
    return there;
}

/* Bytes of a projection, and of o. */
static size_t qkv_bytes(const attention_shape *s, int tokens)
{
    return (size_t)tokens * (size_t)attention_qkv_width(s) * sizeof(float);
}

static size_t o_bytes(const attention_shape *s, int tokens)
{
    return (size_t)tokens * (size_t)(s->heads * s->head_dim) * sizeof(float);
}

static void forward(attention *base, int layer, float *o, const float *qkv, const jagged *batch)
{
    struct attention_mxfp8 *self = (struct attention_mxfp8 *)base;
    const mxfp8_library *library = &self->library;
    const jagged there = placed(self, batch);
    void *o_there = mxfp8_written_at(library, self->device.o, o);
    struct operands x;
    quantize(self, &self->layer[layer],
             mxfp8_given(library, self->device.qkv, qkv, qkv_bytes(&self->shape, batch->tokens)),
             &there);
    set_operands(self, &x, layer, o_there, &there);
    mxfp8_need(mxattn_attention_forward(self->plan, &x.args));
    mxfp8_fetch(library, o, o_there, o_bytes(&self->shape, batch->tokens));
}

/* qkv is not read: its quantized form is still there. */
static void backward(attention *base, int layer, float *dqkv, const float *dout, const float *qkv,
                     const float *o, const jagged *batch)
{
    struct attention_mxfp8 *self = (struct attention_mxfp8 *)base;
    const mxfp8_library *library = &self->library;
    const attention_shape *s = &self->shape;
    const jagged there = placed(self, batch);
    const int64_t tokens = batch->tokens;
    const size_t bytes = o_bytes(s, batch->tokens);
    void *dqkv_there = mxfp8_written_at(library, self->device.dqkv, dqkv);
    struct operands x;
    (void)qkv;
    set_operands(self, &x, layer, mxfp8_given(library, self->device.o, o, bytes), &there);
    mxattn_tensor dout_view, dq, dk, dv;
    mxattn_tensor_view(&dout_view, MXATTN_F32,
                       (float *)mxfp8_given(library, self->device.dout, dout, bytes), 3,
                       (int64_t[]){tokens, s->heads, s->head_dim});
    dout_view.tags.block = MXATTN_BLOCK_SQUARE;
    dout_view.tags.rounding = mxfp8_tags(library, MXATTN_BLOCK_SQUARE).rounding;
    dq = heads_of(s, MXATTN_F32, dqkv_there, tokens, 0, s->heads);
    dk = heads_of(s, MXATTN_F32, dqkv_there, tokens, s->heads, s->kv_heads);
    dv = heads_of(s, MXATTN_F32, dqkv_there, tokens, s->heads + s->kv_heads, s->kv_heads);
    x.args.dout = &dout_view;
    base->quantizations++; /* of dout, by the call */
    x.args.dq = &dq;
    x.args.dk = &dk;
    x.args.dv = &dv;
    mxfp8_need(mxattn_attention_backward(self->plan, &x.args));
    mxfp8_fetch(library, dqkv, dqkv_there, qkv_bytes(s, batch->tokens));
}

/* Bytes of all heads' scales, of `blocks` of 32 tokens. */
static int64_t scale_bytes(const attention_shape *s, mxattn_block block, int64_t tokens,
                           int64_t blocks)
{
    const int64_t heads = s->heads + 2 * s->kv_heads, chunks = (s->head_dim + 31) / 32;
    return heads * (block == MXATTN_BLOCK_COLUMN ? blocks * s->head_dim
                    : block == MXATTN_BLOCK_ROW  ? tokens * chunks
                                                 : blocks * chunks);
}

/* The quantized qkv; the float32 one stays too, for the norm of q and k. */
static int64_t saved_bytes(const attention *base, int tokens)
{
    const struct attention_mxfp8 *self = (const struct attention_mxfp8 *)base;
    const attention_shape *s = &self->shape;
    const int64_t payload = (int64_t)tokens * attention_qkv_width(s), blocks = (tokens + 31) / 32;
    int64_t bytes = payload + scale_bytes(s, block_of(self), tokens, blocks);
    if (self->layer[0].seq.payload)
        bytes += payload + scale_bytes(s, MXATTN_BLOCK_COLUMN, tokens, blocks);
    return s->layers * bytes;
}

static void destroy(attention *base)
{
    struct attention_mxfp8 *self = (struct attention_mxfp8 *)base;
    for (int l = 0; l < self->shape.layers; l++) {
        mxfp8_memory_free(&self->library, self->layer[l].one.payload);
        mxfp8_memory_free(&self->library, self->layer[l].one.scales);
        mxfp8_memory_free(&self->library, self->layer[l].seq.payload);
        mxfp8_memory_free(&self->library, self->layer[l].seq.scales);
        mxfp8_memory_free(&self->library, self->layer[l].lse);
    }
    void *const device[] = {self->device.qkv, self->device.o, self->device.dout, self->device.dqkv,
                            self->device.cu_seqlens};
    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        mxfp8_memory_free(&self->library, device[i]);
    free(self->layer);
    mxattn_plan_destroy(self->plan);
    mxfp8_library_close(&self->library);
    free(self);
}

static struct quantized quantized_create(const struct attention_mxfp8 *self, mxattn_block block)
{
    const attention_shape *s = &self->shape;
    const int64_t tokens = s->max_tokens, blocks = tokens / 32 + s->max_sequences;
    return (struct quantized){
        .payload = mxfp8_memory(&self->library, (size_t)tokens * (size_t)attention_qkv_width(s)),
        .scales = mxfp8_memory(&self->library, (size_t)scale_bytes(s, block, tokens, blocks))};
}

attention *attention_mxfp8_create(pool *p, const attention_shape *shape, const char *backend,
                                  mxfp8_variant variant)
{
    struct attention_mxfp8 *self = allocate_zero(sizeof(*self));
    self->base = (attention){
        .forward = forward, .backward = backward, .destroy = destroy, .saved_bytes = saved_bytes};
    self->shape = *shape;
    mxfp8_library_open(&self->library, p, backend, variant);
    create_plan(self);

    self->layer = allocate_zero((size_t)shape->layers * sizeof(*self->layer));
    for (int l = 0; l < shape->layers; l++) {
        self->layer[l].one = quantized_create(self, block_of(self));
        if (variant == VARIANT_PAIRS)
            self->layer[l].seq = quantized_create(self, MXATTN_BLOCK_COLUMN);
        self->layer[l].lse = mxfp8_memory(
            &self->library, (size_t)shape->heads * (size_t)shape->max_tokens * sizeof(float));
    }
    if (self->library.on_device) {
        self->device.qkv = mxfp8_memory(&self->library, qkv_bytes(shape, shape->max_tokens));
        self->device.dqkv = mxfp8_memory(&self->library, qkv_bytes(shape, shape->max_tokens));
        self->device.o = mxfp8_memory(&self->library, o_bytes(shape, shape->max_tokens));
        self->device.dout = mxfp8_memory(&self->library, o_bytes(shape, shape->max_tokens));
        self->device.cu_seqlens =
            mxfp8_memory(&self->library, (size_t)(shape->max_sequences + 1) * sizeof(int32_t));
    }
    return &self->base;
}
