/* attention_f32.c: attention in FP32, block of queries after block of queries.
 *
 *     S = scale * Q K^T,  P = softmax(S) over keys up to the query,  O = P V
 *     dP = dO V^T,  dS = P * (dP - rowsum(dO * O)),  dV = P^T dO,  dQ = scale * dS K,
 *     dK = scale * dS^T Q
 *
 * The softmax keeps one number per row for backward, LSE = ln(sum exp S); P is computed again. A
 * task is one query head of one sequence in forward, one kv head with all its query heads in
 * backward, where they add to the same dK and dV.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"

#include "gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_Q = 64 };

struct attention_f32 {
    attention base;
    pool *p;
    attention_shape shape;
    float *lse; /* (layers, heads, max_tokens) */
};

/* e^x for x <= 0 to 2 units in the last place, in a form that compilers turn into vector code:
 * x = n ln 2 + r, e^x = 2^n e^r, with a polynomial for e^r on |r| <= ln 2 / 2. Adding and taking
 * away 1.5 * 2^23 rounds to an integer. */
static inline float exp_negative(float x)
{
    x = x > -87.0f ? x : -87.0f;
    float shifted = x * 1.442695041f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float e = 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    union {
        int32_t bits;
        float value;
    } power = {.bits = ((int32_t)n + 127) << 23};
    return e * power.value;
}

/* A row of scores becomes exp(scale * (score - largest)); returns its sum, and the largest in *max.
 * Eight running maxima and sums, so that they fit a vector. */
static float exponentials(float *row, int64_t count, float scale, float *max)
{
    enum { LANES = 8 };
    float largest[LANES], sum[LANES] = {0};
    int64_t whole = count / LANES * LANES;
    for (int l = 0; l < LANES; l++)
        largest[l] = -INFINITY;
    for (int64_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            largest[l] = row[j + l] > largest[l] ? row[j + l] : largest[l];
    for (int64_t j = whole; j < count; j++)
        largest[0] = row[j] > largest[0] ? row[j] : largest[0];
    for (int l = 1; l < LANES; l++)
        largest[0] = largest[l] > largest[0] ? largest[l] : largest[0];
    float top = largest[0];
    for (int64_t j = 0; j < count; j++)
        row[j] = exp_negative((row[j] - top) * scale);
    for (int64_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += row[j + l];
    for (int64_t j = whole; j < count; j++)
        sum[0] += row[j];
    for (int l = 1; l < LANES; l++)
        sum[0] += sum[l];
    *max = top;
    return sum[0];
}

/* What a task needs of one (sequence, query head). */
struct head {
    const float *q, *k, *v, *o, *dout; /* first row of the sequence */
    float *dq, *dk, *dv;
    float *lse;
    int64_t length, qkv_width, o_width, head_dim;
    int sees_all;
    float scale;
};

struct call {
    struct attention_f32 *self;
    int layer;
    const float *qkv, *o, *dout;
    float *out, *dqkv;
    const jagged *batch;
};

static struct head head_of(const struct call *call, int64_t sequence, int64_t h)
{
    const attention_shape *s = &call->self->shape;
    int64_t first = call->batch->cu_seqlens[sequence];
    int64_t width = attention_qkv_width(s), o_width = s->heads * s->head_dim;
    int64_t kv = h / (s->heads / s->kv_heads), row = first * width;
    int64_t at_q = row + h * s->head_dim, at_k = row + (s->heads + kv) * s->head_dim;
    int64_t at_v = at_k + s->kv_heads * s->head_dim, at_o = first * o_width + h * s->head_dim;
    struct head x = {.q = call->qkv + at_q, .k = call->qkv + at_k, .v = call->qkv + at_v};
    if (call->dqkv) {
        x.o = call->o + at_o;
        x.dout = call->dout + at_o;
        x.dq = call->dqkv + at_q;
        x.dk = call->dqkv + at_k;
        x.dv = call->dqkv + at_v;
    }
    x.lse = call->self->lse + ((int64_t)call->layer * s->heads + h) * call->self->shape.max_tokens +
            first;
    x.length = call->batch->cu_seqlens[sequence + 1] - first;
    x.qkv_width = width;
    x.o_width = o_width;
    x.head_dim = s->head_dim;
    x.sees_all = s->sees_all;
    x.scale = 1.0f / sqrtf((float)s->head_dim);
    return x;
}

/* scores (rows, keys) = Q K^T for queries first .. first+rows-1 and keys 0 .. keys-1. */
static void scores(const struct head *x, float *s, int64_t first, int64_t rows, int64_t keys)
{
    gemm(NULL, rows, keys, x->head_dim, rows_of(x->q + first * x->qkv_width, x->qkv_width),
         transpose_of(x->k, x->qkv_width), s, keys, 0);
}

static void forward_task(void *arg, int64_t index)
{
    const struct call *call = arg;
    const attention_shape *shape = &call->self->shape;
    int64_t sequence = index / shape->heads, h = index % shape->heads;
    struct head x = head_of(call, sequence, h);
    float *out = call->out + call->batch->cu_seqlens[sequence] * x.o_width + h * x.head_dim;
    float *p = allocate((size_t)(BLOCK_Q * x.length) * sizeof(float));
    for (int64_t first = 0; first < x.length; first += BLOCK_Q) {
        int64_t rows = x.length - first < BLOCK_Q ? x.length - first : BLOCK_Q;
        int64_t keys = x.sees_all ? x.length : first + rows;
        scores(&x, p, first, rows, keys);
        for (int64_t i = 0; i < rows; i++) {
            float *row = p + i * keys, max;
            int64_t seen = x.sees_all ? keys : first + i + 1;
            float sum = exponentials(row, seen, x.scale, &max), share = 1.0f / sum;
            for (int64_t j = 0; j < seen; j++)
                row[j] *= share;
            memset(row + seen, 0, (size_t)(keys - seen) * sizeof(float));
            x.lse[first + i] = max * x.scale + logf(sum);
        }
        gemm(NULL, rows, x.head_dim, keys, rows_of(p, keys), rows_of(x.v, x.qkv_width),
             out + first * x.o_width, x.o_width, 0);
    }
    free(p);
}

/* One block of queries in backward: dQ written, dK and dV added to. p and ds: (rows, keys). */
static void backward_block(const struct head *x, float *p, float *ds, int64_t first, int64_t rows)
{
    int64_t keys = x->sees_all ? x->length : first + rows, d = x->head_dim;
    const float *q = x->q + first * x->qkv_width, *dout = x->dout + first * x->o_width;
    scores(x, p, first, rows, keys);
    gemm(NULL, rows, keys, d, rows_of(dout, x->o_width), transpose_of(x->v, x->qkv_width), ds, keys,
         0);
    for (int64_t i = 0; i < rows; i++) {
        const float *o = x->o + (first + i) * x->o_width, *g = dout + i * x->o_width;
        float *p_row = p + i * keys, *ds_row = ds + i * keys;
        float lse = x->lse[first + i], delta = 0.0f, scale = x->scale;
        int64_t seen = x->sees_all ? keys : first + i + 1;
        for (int64_t j = 0; j < d; j++)
            delta += g[j] * o[j];
        for (int64_t j = 0; j < seen; j++) {
            p_row[j] = exp_negative(p_row[j] * scale - lse);
            ds_row[j] = p_row[j] * (ds_row[j] - delta) * scale;
        }
        memset(p_row + seen, 0, (size_t)(keys - seen) * sizeof(float));
        memset(ds_row + seen, 0, (size_t)(keys - seen) * sizeof(float));
    }
    gemm(NULL, keys, d, rows, transpose_of(p, keys), rows_of(dout, x->o_width), x->dv, x->qkv_width,
         1);
    gemm(NULL, keys, d, rows, transpose_of(ds, keys), rows_of(q, x->qkv_width), x->dk, x->qkv_width,
         1);
    gemm(NULL, rows, d, keys, rows_of(ds, keys), rows_of(x->k, x->qkv_width),
         x->dq + first * x->qkv_width, x->qkv_width, 0);
}

static void backward_task(void *arg, int64_t index)
{
    const struct call *call = arg;
    const attention_shape *shape = &call->self->shape;
    int64_t sequence = index / shape->kv_heads, kv = index % shape->kv_heads;
    int64_t group = shape->heads / shape->kv_heads;
    struct head x = head_of(call, sequence, kv * group);
    for (int64_t i = 0; i < x.length; i++) {
        memset(x.dk + i * x.qkv_width, 0, (size_t)x.head_dim * sizeof(float));
        memset(x.dv + i * x.qkv_width, 0, (size_t)x.head_dim * sizeof(float));
    }
    float *p = allocate((size_t)(2 * BLOCK_Q * x.length) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        x = head_of(call, sequence, h);
        for (int64_t first = 0; first < x.length; first += BLOCK_Q) {
            int64_t rows = x.length - first < BLOCK_Q ? x.length - first : BLOCK_Q;
            backward_block(&x, p, p + BLOCK_Q * x.length, first, rows);
        }
    }
    free(p);
}

static void forward(attention *base, int layer, float *o, const float *qkv, const jagged *batch)
{
    struct attention_f32 *self = (struct attention_f32 *)base;
    struct call call = {.self = self, .layer = layer, .qkv = qkv, .out = o, .batch = batch};
    pool_for(self->p, (int64_t)batch->sequences * self->shape.heads, forward_task, &call);
}

static void backward(attention *base, int layer, float *dqkv, const float *dout, const float *qkv,
                     const float *o, const jagged *batch)
{
    struct attention_f32 *self = (struct attention_f32 *)base;
    struct call call = {self, layer, qkv, o, dout, NULL, dqkv, batch};
    pool_for(self->p, (int64_t)batch->sequences * self->shape.kv_heads, backward_task, &call);
}

static void destroy(attention *base)
{
    struct attention_f32 *self = (struct attention_f32 *)base;
    free(self->lse);
    free(self);
}

attention *attention_float32_create(pool *p, const attention_shape *shape)
{
    struct attention_f32 *self = allocate_zero(sizeof(*self));
    self->base = (attention){.forward = forward, .backward = backward, .destroy = destroy};
    snprintf(self->base.description, sizeof(self->base.description),
             "FP32, examples/train_lm/attention_f32.c");
    self->p = p;
    self->shape = *shape;
    self->lse = allocate((size_t)shape->layers * (size_t)shape->heads * (size_t)shape->max_tokens *
                         sizeof(float));
    return &self->base;
}
