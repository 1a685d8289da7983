/* model.c: a decoder-only transformer, forward and backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "model.h"

#include "mxfp8_network.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

attention_shape model_attention_shape(const model_config *c)
{
    return (attention_shape){c->layers,     c->heads,         c->kv_heads,   c->head_dim,
                             c->max_tokens, c->max_sequences, c->max_length, c->sees_all};
}

static int qkv_width(const model_config *c)
{
    return (c->heads + 2 * c->kv_heads) * c->head_dim;
}

/* Hands out consecutive pieces of an array. With base NULL only *used counts. */
static float *take(float *base, int64_t *used, int64_t rows, int64_t columns)
{
    float *piece = base ? base + *used : NULL;
    *used += rows * columns;
    return piece;
}

static parameters parameters_in(float *base, const model_config *c)
{
    parameters w = {.all = base};
    int64_t used = 0;
    w.embedding = take(base, &used, c->vocabulary, c->width);
    w.head = take(base, &used, c->vocabulary, c->width);
    for (int l = 0; l < c->layers; l++) {
        w.layer[l].qkv = take(base, &used, qkv_width(c), c->width);
        w.layer[l].out = take(base, &used, c->width, c->heads * c->head_dim);
        w.layer[l].up = take(base, &used, c->hidden, c->width);
        w.layer[l].down = take(base, &used, c->width, c->hidden);
    }
    w.matrices = used;
    w.final_gain = take(base, &used, 1, c->width);
    for (int l = 0; l < c->layers; l++) {
        w.layer[l].attention_gain = take(base, &used, 1, c->width);
        w.layer[l].mlp_gain = take(base, &used, 1, c->width);
    }
    w.count = used;
    return w;
}

int64_t parameters_count(const model_config *c)
{
    return parameters_in(NULL, c).count;
}

static parameters parameters_create(const model_config *c)
{
    return parameters_in(allocate_zero((size_t)parameters_count(c) * sizeof(float)), c);
}

/* Matrices that read a normalised row start with deviation 1/sqrt(inputs); those that add to x,
 * and the head, start at 0, so that the untrained network predicts all characters alike. Small
 * embeddings let what the layers add count early. */
static void initialise(parameters *w, const model_config *c, uint64_t seed)
{
    random_state random = {seed ^ 0x696E697400000000u};
    double deviation = 1.0 / sqrt(c->width);
    for (int i = 0; i < c->vocabulary * c->width; i++)
        w->embedding[i] = (float)(0.3 * random_normal(&random));
    for (int l = 0; l < c->layers; l++) {
        for (int i = 0; i < qkv_width(c) * c->width; i++)
            w->layer[l].qkv[i] = (float)(deviation * random_normal(&random));
        for (int i = 0; i < c->hidden * c->width; i++)
            w->layer[l].up[i] = (float)(deviation * random_normal(&random));
    }
    for (int64_t i = w->matrices; i < w->count; i++)
        w->all[i] = 1.0f;
}

static float *rows(const model_config *c, int columns)
{
    return allocate((size_t)c->max_tokens * (size_t)columns * sizeof(float));
}

/* With an MXFP8 network only what lies outside its layers. */
static void create_activations(model *m)
{
    const model_config *c = &m->config;
    m->act.loss = rows(c, 1);
    m->act.logits = rows(c, c->vocabulary);
    m->dx = rows(c, c->width);
    if (m->narrow) {
        m->act.layer[0].x = rows(c, c->width);
        return;
    }
    for (int l = 0; l < c->layers; l++) {
        struct layer_activations *a = &m->act.layer[l];
        a->x = rows(c, c->width);
        a->norm = rows(c, c->width);
        a->rstd = rows(c, 1);
        a->qkv = rows(c, qkv_width(c));
        a->rstd_qk = rows(c, c->heads + c->kv_heads);
        a->o = rows(c, c->heads * c->head_dim);
        a->x_middle = rows(c, c->width);
        a->norm_middle = rows(c, c->width);
        a->rstd_middle = rows(c, 1);
        a->up = rows(c, c->hidden);
        a->active = rows(c, c->hidden);
    }
    m->act.x_last = rows(c, c->width);
    m->act.norm_last = rows(c, c->width);
    m->act.rstd_last = rows(c, 1);
    m->dnorm = rows(c, c->width);
    m->dqkv = rows(c, qkv_width(c));
    m->dout = rows(c, c->heads * c->head_dim);
    m->dactive = rows(c, c->hidden);
}

static model *create(pool *p, const model_config *config, attention *attend, mxfp8_network *narrow,
                     uint64_t seed)
{
    model *m = allocate_zero(sizeof(*m));
    m->config = *config;
    m->p = p;
    m->attend = attend;
    m->narrow = narrow;
    m->weights = parameters_create(config);
    m->gradients = parameters_create(config);
    m->rope = rope_table_create(config->max_length, config->head_dim);
    create_activations(m);
    initialise(&m->weights, config, seed);
    model_weights_changed(m);
    return m;
}

model *model_create(pool *p, const model_config *config, attention *attend, uint64_t seed)
{
    return create(p, config, attend, NULL, seed);
}

model *model_create_mxfp8(pool *p, const model_config *config, mxfp8_network *narrow, uint64_t seed)
{
    return create(p, config, NULL, narrow, seed);
}

void model_weights_changed(model *m)
{
    if (m->narrow)
        mxfp8_network_load(m->narrow, &m->weights);
}

void model_destroy(model *m)
{
    for (int l = 0; l < m->config.layers; l++) {
        struct layer_activations *a = &m->act.layer[l];
        float *all[] = {a->x,           a->norm,        a->rstd, a->qkv,    a->o,      a->x_middle,
                        a->norm_middle, a->rstd_middle, a->up,   a->active, a->rstd_qk};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            free(all[i]);
    }
    float *all[] = {m->act.x_last,  m->act.norm_last, m->act.rstd_last, m->act.logits, m->act.loss,
                    m->dx,          m->dnorm,         m->dqkv,          m->dout,       m->dactive,
                    m->weights.all, m->gradients.all};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    rope_table_destroy(&m->rope);
    if (m->attend)
        m->attend->destroy(m->attend);
    if (m->narrow)
        mxfp8_network_destroy(m->narrow);
    free(m);
}

/* Elements of `width` bytes, numbers a row in FP32. */
static saved_bytes saved_at(const model_config *c, int tokens, int64_t width)
{
    const int64_t o = c->heads * c->head_dim, row = 4;
    const int64_t crossing = 2 * c->width + qkv_width(c) + o + c->hidden;
    const int64_t others = 2 * c->width + c->hidden;     /* x, x_middle, up */
    const int64_t rows = 2 + 2 * c->heads + c->kv_heads; /* rstd, rstd_middle, rstd_qk, lse */
    const int64_t last = 2 * c->width * width + row;     /* x_last, norm_last, rstd_last */
    return (saved_bytes){tokens * (c->layers * ((crossing + others) * width + rows * row) + last),
                         tokens * c->layers * crossing * width};
}

saved_bytes model_saved_bf16(const model_config *c, int tokens)
{
    return saved_at(c, tokens, 2);
}

saved_bytes model_saved(const model *m, int tokens)
{
    if (m->narrow)
        return mxfp8_network_saved(m->narrow, tokens);
    saved_bytes bytes = saved_at(&m->config, tokens, sizeof(float));
    if (m->attend->saved_bytes)
        bytes.all += m->attend->saved_bytes(m->attend, tokens);
    return bytes;
}

static void copy(float *to, const float *from, int tokens, int width)
{
    memcpy(to, from, (size_t)tokens * (size_t)width * sizeof(float));
}

void model_forward(model *m, const batch *b)
{
    const model_config *c = &m->config;
    int T = b->sequences.tokens, C = c->width, qk = c->heads + c->kv_heads;
    embedding_forward(m->p, m->act.layer[0].x, m->weights.embedding, b->input, T, C);
    if (m->narrow) {
        mxfp8_network_forward(m->narrow, &m->weights, &m->rope, m->act.layer[0].x, &b->sequences,
                              m->act.logits);
        m->attention_seconds = mxfp8_network_counts(m->narrow).attention_seconds;
        return;
    }
    for (int l = 0; l < c->layers; l++) {
        const struct layer_parameters *w = &m->weights.layer[l];
        struct layer_activations *a = &m->act.layer[l];
        float *next = l + 1 < c->layers ? m->act.layer[l + 1].x : m->act.x_last;

        rmsnorm_forward(m->p, a->norm, a->rstd, a->x, w->attention_gain, T, C);
        linear_forward(m->p, a->qkv, a->norm, w->qkv, T, C, qkv_width(c));
        rope_forward(m->p, a->qkv, &m->rope, b->position, T, qkv_width(c), qk);
        head_norm_forward(m->p, a->qkv, a->rstd_qk, T, qkv_width(c), qk, c->head_dim);
        double start = seconds_now();
        m->attend->forward(m->attend, l, a->o, a->qkv, &b->sequences);
        m->attention_seconds += seconds_now() - start;
        copy(a->x_middle, a->x, T, C);
        linear_forward_add(m->p, a->x_middle, a->o, w->out, T, c->heads * c->head_dim, C);

        rmsnorm_forward(m->p, a->norm_middle, a->rstd_middle, a->x_middle, w->mlp_gain, T, C);
        linear_forward(m->p, a->up, a->norm_middle, w->up, T, C, c->hidden);
        squared_relu_forward(m->p, a->active, a->up, T, c->hidden);
        copy(next, a->x_middle, T, C);
        linear_forward_add(m->p, next, a->active, w->down, T, c->hidden, C);
    }
    rmsnorm_forward(m->p, m->act.norm_last, m->act.rstd_last, m->act.x_last, m->weights.final_gain,
                    T, C);
    linear_forward(m->p, m->act.logits, m->act.norm_last, m->weights.head, T, C, c->vocabulary);
}

double model_loss(model *m, const batch *b, int want_gradient)
{
    return cross_entropy(m->p, m->act.logits, m->act.loss, b->target, b->sequences.tokens,
                         m->config.vocabulary, want_gradient);
}

/* m->dx holds the gradient of the layer's output on entry, of its input on return. */
static void layer_backward(model *m, const batch *b, int l)
{
    const model_config *c = &m->config;
    const struct layer_parameters *w = &m->weights.layer[l];
    const struct layer_parameters *g = &m->gradients.layer[l];
    const struct layer_activations *a = &m->act.layer[l];
    int T = b->sequences.tokens, C = c->width, qk = c->heads + c->kv_heads;

    linear_backward(m->p, m->dactive, g->down, m->dx, a->active, w->down, T, c->hidden, C);
    squared_relu_backward(m->p, m->dactive, m->dactive, a->up, T, c->hidden);
    linear_backward(m->p, m->dnorm, g->up, m->dactive, a->norm_middle, w->up, T, C, c->hidden);
    rmsnorm_backward_add(m->p, m->dx, g->mlp_gain, m->dnorm, a->x_middle, a->rstd_middle,
                         w->mlp_gain, T, C);

    linear_backward(m->p, m->dout, g->out, m->dx, a->o, w->out, T, c->heads * c->head_dim, C);
    double start = seconds_now();
    m->attend->backward(m->attend, l, m->dqkv, m->dout, a->qkv, a->o, &b->sequences);
    m->attention_seconds += seconds_now() - start;
    head_norm_backward(m->p, m->dqkv, a->qkv, a->rstd_qk, T, qkv_width(c), qk, c->head_dim);
    rope_backward(m->p, m->dqkv, &m->rope, b->position, T, qkv_width(c), qk);
    linear_backward(m->p, m->dnorm, g->qkv, m->dqkv, a->norm, w->qkv, T, C, qkv_width(c));
    rmsnorm_backward_add(m->p, m->dx, g->attention_gain, m->dnorm, a->x, a->rstd, w->attention_gain,
                         T, C);
}

void model_backward(model *m, const batch *b)
{
    const model_config *c = &m->config;
    int T = b->sequences.tokens, C = c->width;
    memset(m->gradients.all, 0, (size_t)m->gradients.count * sizeof(float));
    if (m->narrow) {
        mxfp8_network_backward(m->narrow, &m->weights, &m->gradients, &m->rope, m->act.logits,
                               &b->sequences, m->dx);
        m->attention_seconds = mxfp8_network_counts(m->narrow).attention_seconds;
        embedding_backward(m->p, m->gradients.embedding, m->dx, b->input, T, C);
        return;
    }
    linear_backward(m->p, m->dnorm, m->gradients.head, m->act.logits, m->act.norm_last,
                    m->weights.head, T, C, c->vocabulary);
    memset(m->dx, 0, (size_t)T * (size_t)C * sizeof(float));
    rmsnorm_backward_add(m->p, m->dx, m->gradients.final_gain, m->dnorm, m->act.x_last,
                         m->act.rstd_last, m->weights.final_gain, T, C);
    for (int l = c->layers - 1; l >= 0; l--)
        layer_backward(m, b, l);
    embedding_backward(m->p, m->gradients.embedding, m->dx, b->input, T, C);
}
