/* mxfp8_network.c: the layers of the network with every activation in MXFP8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mxfp8_network.h"

#include "mxattn/mxattn.h"
#include "mxfp8_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of rows, in heads, as MXFP8: square blocks, one scale byte each. */
typedef struct packed {
    uint8_t *payload; /* (rows, heads, dims) */
    uint8_t *scales;  /* compact: (blocks of 32 rows, heads, dims / 32) */
    int heads, dims;
    mxattn_tags tags;
} packed;

typedef struct layer_memory {
    uint16_t *x, *x_middle; /* BF16 */
    packed norm, qkv, o, norm_middle, active;
    uint16_t *o_wide;
    float *rstd, *rstd_qk, *lse, *rstd_middle;
    packed w_qkv, w_out, w_up, w_down; /* copies of the weights */
} layer_memory;

struct mxfp8_network {
    model_config config;
    mxfp8_library library;
    mxattn_tags tags; /* of everything in MXFP8 */
    mxattn_plan *plan;
    layer_memory layer[MAX_LAYERS];
    uint16_t *x_last; /* BF16 */
    float *rstd_last;
    uint16_t *norm_last; /* BF16; not kept: backward makes it again, the same bits, for one call */
    uint16_t *head;      /* BF16 copy of the weights */
    uint16_t *dlogits;   /* BF16 */
    packed dx, dwide, dnorm, dout, dqk, dqkv; /* gradients that live for one layer */
    mxfp8_counts counts;
    char description[256];
};

/* ---- views -------------------------------------------------------------------------------- */

static packed packed_create(mxattn_tags tags, int64_t rows, int64_t sequences, int heads, int dims)
{
    packed p = {.heads = heads, .dims = dims, .tags = tags};
    const int64_t blocks = rows / 32 + sequences + 1, width = (int64_t)heads * dims;
    p.payload = allocate((size_t)(rows * width));
    p.scales = allocate((size_t)(blocks * heads * ((dims + 31) / 32)));
    return p;
}

static void packed_destroy(packed *p)
{
    free(p->payload);
    free(p->scales);
}

/* Heads first .. first+count-1 of the first `rows` rows. */
static mxattn_tensor heads_of(const packed *p, int64_t rows, int first, int count)
{
    const int64_t blocks = (p->dims + 31) / 32;
    mxattn_tensor t;
    mxattn_tensor_view(&t, MXATTN_E4M3, p->payload + (int64_t)first * p->dims, 3,
                       (int64_t[]){rows, count, p->dims});
    t.stride[0] = (int64_t)p->heads * p->dims;
    t.tags = p->tags;
    t.scales[MXATTN_HDIM] = (mxattn_scales){.data = p->scales + first * blocks,
                                            .layout = MXATTN_COMPACT,
                                            .stride_head = blocks,
                                            .stride_row = p->heads * blocks,
                                            .stride_k = 1};
    return t;
}

static mxattn_tensor all_of(const packed *p, int64_t rows)
{
    return heads_of(p, rows, 0, p->heads);
}

static mxattn_tensor wide_of(mxattn_dtype dtype, const void *data, int64_t rows, int64_t columns)
{
    mxattn_tensor t;
    mxattn_tensor_view(&t, dtype, (void *)data, 2, (int64_t[]){rows, columns});
    return t;
}

static mxattn_rope rope_of(const rope_table *table)
{
    return (mxattn_rope){
        .cosine = table->cosine, .sine = table->sine, .positions = table->positions};
}

static mxattn_sequences sequences_of(const jagged *seqs)
{
    return (mxattn_sequences){.cu_seqlens = seqs->cu_seqlens, .batch = seqs->sequences};
}

/* FP32 to BF16, to nearest even; for what is no activation between layers: the embedded tokens, the
 * head's weights and the gradient of its logits. */
static void to_bf16(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        to[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

/* ---- calls of the library ------------------------------------------------------------------ */

static mxattn_gemm_quantize_args gemm_args(const mxattn_tensor *a, const mxattn_tensor *b,
                                           const mxattn_tensor *c, const jagged *seqs)
{
    mxattn_gemm_quantize_args args;
    mxattn_gemm_quantize_args_init(&args);
    args.a = a;
    args.b = b;
    args.c = c;
    args.sequences = sequences_of(seqs);
    return args;
}

static void gemm(mxfp8_network *n, mxattn_gemm_quantize_args *args)
{
    n->counts.calls++;
    mxfp8_gemm(&n->library, args);
}

/* y = x / rms(x) * gain, in MXFP8 (y) or BF16 (y_wide). */
static void norm_forward(mxfp8_network *n, const uint16_t *x, const float *gain, const packed *y,
                         uint16_t *y_wide, float *rstd, const jagged *seqs)
{
    const int C = n->config.width;
    const mxattn_tensor in = wide_of(MXATTN_BF16, x, seqs->tokens, C);
    mxattn_tensor narrow, wide;
    mxattn_rmsnorm_quantize_args args;
    mxattn_rmsnorm_quantize_args_init(&args);
    args.x = &in;
    args.weight = gain;
    args.rstd = rstd;
    args.sequences = sequences_of(seqs);
    if (y) {
        narrow = mxfp8_matrix(all_of(y, seqs->tokens));
        args.y = &narrow;
    }
    if (y_wide) {
        wide = wide_of(MXATTN_BF16, y_wide, seqs->tokens, C);
        args.y_wide = &wide;
    }
    n->counts.calls++;
    mxfp8_norm(&n->library, &args);
}

/* dx = or += the gradient of x; n->dx holds it in MXFP8 too. */
static void norm_backward(mxfp8_network *n, float *dx, int accumulate, float *dgain,
                          const mxattn_tensor *dy, const uint16_t *x, const float *rstd,
                          const float *gain, const jagged *seqs)
{
    const int C = n->config.width;
    const mxattn_tensor in = wide_of(MXATTN_BF16, x, seqs->tokens, C);
    const mxattn_tensor out = wide_of(MXATTN_F32, dx, seqs->tokens, C);
    const mxattn_tensor narrow = mxfp8_matrix(all_of(&n->dx, seqs->tokens));
    mxattn_rmsnorm_backward_args args;
    mxattn_rmsnorm_backward_args_init(&args);
    args.x = &in;
    args.dy = dy;
    args.weight = gain;
    args.rstd = rstd;
    args.dx = &out;
    args.dx_quantized = &narrow;
    args.dweight = dgain;
    args.accumulate = accumulate;
    args.sequences = sequences_of(seqs);
    n->counts.calls++;
    mxfp8_norm_backward(&n->library, &args);
}

/* The gradient of a weight: dy^T x, over tokens. */
static void weight_gradient(mxfp8_network *n, float *dweight, const mxattn_tensor *dy, int outputs,
                            const mxattn_tensor *x, int inputs, const jagged *seqs)
{
    const mxattn_tensor c = wide_of(MXATTN_F32, dweight, outputs, inputs);
    mxattn_gemm_quantize_args args = gemm_args(dy, x, &c, seqs);
    args.transpose_a = args.transpose_b = 1;
    args.accumulate = 1;
    gemm(n, &args);
}

/* dx = dy W, W (outputs, inputs). */
static mxattn_gemm_quantize_args input_gradient(const mxattn_tensor *dy, const mxattn_tensor *w,
                                                const mxattn_tensor *dx, const jagged *seqs)
{
    mxattn_gemm_quantize_args args = gemm_args(dy, w, dx, seqs);
    args.transpose_b = 1;
    return args;
}

/* ---- create and destroy -------------------------------------------------------------------- */

static int qkv_heads(const model_config *c)
{
    return c->heads + 2 * c->kv_heads;
}

static uint16_t *bf16_rows(const model_config *c, int columns)
{
    return allocate((size_t)c->max_tokens * (size_t)columns * sizeof(uint16_t));
}

static float *f32_rows(const model_config *c, int columns)
{
    return allocate((size_t)c->max_tokens * (size_t)columns * sizeof(float));
}

static packed activation(const mxfp8_network *n, int heads, int dims)
{
    const model_config *c = &n->config;
    return packed_create(n->tags, c->max_tokens, c->max_sequences, heads, dims);
}

static void create_layer(mxfp8_network *n, layer_memory *m)
{
    const model_config *c = &n->config;
    const int C = c->width, D = c->head_dim;
    m->x = bf16_rows(c, C);
    m->x_middle = bf16_rows(c, C);
    m->norm = activation(n, 1, C);
    m->qkv = activation(n, qkv_heads(c), D);
    m->o = activation(n, c->heads, D);
    m->norm_middle = activation(n, 1, C);
    m->active = activation(n, 1, c->hidden);
    m->o_wide = bf16_rows(c, c->heads * D);
    m->rstd = f32_rows(c, 1);
    m->rstd_qk = f32_rows(c, c->heads + c->kv_heads);
    m->lse = f32_rows(c, c->heads);
    m->rstd_middle = f32_rows(c, 1);
    m->w_qkv = packed_create(n->tags, (int64_t)qkv_heads(c) * D, 1, 1, C);
    m->w_out = packed_create(n->tags, C, 1, 1, c->heads * D);
    m->w_up = packed_create(n->tags, c->hidden, 1, 1, C);
    m->w_down = packed_create(n->tags, C, 1, 1, c->hidden);
}

static void destroy_layer(layer_memory *m)
{
    packed *const narrow[] = {&m->norm,  &m->qkv,   &m->o,    &m->norm_middle, &m->active,
                              &m->w_qkv, &m->w_out, &m->w_up, &m->w_down};
    void *const wide[] = {m->x,   m->x_middle, m->o_wide,     m->rstd,
                          m->lse, m->rstd_qk,  m->rstd_middle};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        packed_destroy(narrow[i]);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        free(wide[i]);
}

static void create_plan(mxfp8_network *n)
{
    const attention_shape shape = model_attention_shape(&n->config);
    mxattn_attention_problem problem;
    mxfp8_problem(&n->library, &shape, &problem);
    problem.o = problem.dout = problem.dq = problem.dk = problem.dv = n->tags;
    mxfp8_need(mxattn_plan_create(n->library.context, &problem, &n->plan));
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    mxfp8_need(mxattn_plan_query(n->plan, &info));
    mxfp8_workspace(&n->library, (size_t)info.workspace_forward_bytes);
    mxfp8_workspace(&n->library, (size_t)info.workspace_backward_bytes);
    snprintf(n->description, sizeof(n->description), "MXFP8 throughout, mxattn %s, %s and %s",
             mxattn_version_string(), info.kernel_forward, info.kernel_backward);
}

mxfp8_network *mxfp8_network_create(pool *p, const model_config *config, const char *backend,
                                    mxfp8_variant variant)
{
    mxfp8_network *n = allocate_zero(sizeof(*n));
    const model_config *c = &n->config;
    n->config = *config;
    mxfp8_library_open(&n->library, p, backend, variant);
    n->tags = mxfp8_tags(&n->library, MXATTN_BLOCK_SQUARE);
    create_plan(n);
    for (int l = 0; l < c->layers; l++)
        create_layer(n, &n->layer[l]);
    n->x_last = bf16_rows(c, c->width);
    n->norm_last = bf16_rows(c, c->width);
    n->rstd_last = f32_rows(c, 1);
    n->head = allocate((size_t)c->vocabulary * (size_t)c->width * sizeof(uint16_t));
    n->dlogits = bf16_rows(c, c->vocabulary);
    n->dx = activation(n, 1, c->width);
    n->dwide = activation(n, 1, c->hidden);
    n->dnorm = activation(n, 1, c->width);
    n->dout = activation(n, c->heads, c->head_dim);
    n->dqk = activation(n, c->heads + c->kv_heads, c->head_dim);
    n->dqkv = activation(n, qkv_heads(c), c->head_dim);
    return n;
}

void mxfp8_network_destroy(mxfp8_network *n)
{
    packed *const narrow[] = {&n->dx, &n->dwide, &n->dnorm, &n->dout, &n->dqk, &n->dqkv};
    void *const wide[] = {n->x_last, n->norm_last, n->rstd_last, n->head, n->dlogits};
    for (int l = 0; l < n->config.layers; l++)
        destroy_layer(&n->layer[l]);
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        packed_destroy(narrow[i]);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        free(wide[i]);
    mxattn_plan_destroy(n->plan);
    mxfp8_library_close(&n->library);
    free(n);
}

/* ---- weights ------------------------------------------------------------------------------- */

static void load_matrix(mxfp8_network *n, const packed *to, const float *weight, int rows)
{
    const mxattn_tensor wide = wide_of(MXATTN_F32, weight, rows, to->dims);
    const mxattn_tensor narrow = mxfp8_matrix(all_of(to, rows));
    mxfp8_quantize(&n->library, &wide, &narrow);
    n->counts.weights++;
}

void mxfp8_network_load(mxfp8_network *n, const parameters *weights)
{
    const model_config *c = &n->config;
    for (int l = 0; l < c->layers; l++) {
        const struct layer_parameters *w = &weights->layer[l];
        load_matrix(n, &n->layer[l].w_qkv, w->qkv, qkv_heads(c) * c->head_dim);
        load_matrix(n, &n->layer[l].w_out, w->out, c->width);
        load_matrix(n, &n->layer[l].w_up, w->up, c->hidden);
        load_matrix(n, &n->layer[l].w_down, w->down, c->width);
    }
    to_bf16(n->head, weights->head, (int64_t)c->vocabulary * c->width);
}

static mxattn_tensor weight_of(const packed *w, int rows)
{
    return mxfp8_matrix(all_of(w, rows));
}

/* ---- attention ----------------------------------------------------------------------------- */

typedef struct attended {
    mxattn_tensor q, k, v, o, o_wide, lse;
    mxattn_attention_args args;
} attended;

static void attention_open(mxfp8_network *n, attended *x, int l, const jagged *seqs)
{
    const model_config *c = &n->config;
    const layer_memory *m = &n->layer[l];
    const int T = seqs->tokens;
    x->q = heads_of(&m->qkv, T, 0, c->heads);
    x->k = heads_of(&m->qkv, T, c->heads, c->kv_heads);
    x->v = heads_of(&m->qkv, T, c->heads + c->kv_heads, c->kv_heads);
    x->o = all_of(&m->o, T);
    mxattn_tensor_view(&x->o_wide, MXATTN_BF16, m->o_wide, 3,
                       (int64_t[]){T, c->heads, c->head_dim});
    mxattn_tensor_view(&x->lse, MXATTN_F32, m->lse, 2, (int64_t[]){c->heads, T});
    mxattn_attention_args_init(&x->args);
    x->args.q = &x->q;
    x->args.k = &x->k;
    x->args.v = &x->v;
    x->args.o = &x->o;
    x->args.o_wide = &x->o_wide;
    x->args.lse = &x->lse;
    x->args.batch = seqs->sequences;
    x->args.cu_seqlens_q = x->args.cu_seqlens_k = seqs->cu_seqlens;
    x->args.workspace = n->library.workspace;
    x->args.workspace_bytes = n->library.workspace_bytes;
    mxfp8_reads(&n->library, &x->q);
    mxfp8_reads(&n->library, &x->k);
    mxfp8_reads(&n->library, &x->v);
    n->counts.calls++;
}

static void attention_forward(mxfp8_network *n, int l, const jagged *seqs)
{
    attended x;
    const double start = seconds_now();
    attention_open(n, &x, l, seqs);
    mxfp8_need(mxattn_attention_forward(n->plan, &x.args));
    mxfp8_wrote(&n->library, &x.o);
    n->counts.attention_seconds += seconds_now() - start;
}

/* dq and dk go to n->dqk, where the norm of heads finds them; dv to its place in n->dqkv. */
static void attention_backward(mxfp8_network *n, int l, const jagged *seqs)
{
    const model_config *c = &n->config;
    const int T = seqs->tokens;
    const double start = seconds_now();
    attended x;
    attention_open(n, &x, l, seqs);
    const mxattn_tensor dout = all_of(&n->dout, T);
    const mxattn_tensor dq = heads_of(&n->dqk, T, 0, c->heads);
    const mxattn_tensor dk = heads_of(&n->dqk, T, c->heads, c->kv_heads);
    const mxattn_tensor dv = heads_of(&n->dqkv, T, c->heads + c->kv_heads, c->kv_heads);
    x.args.dout = &dout;
    x.args.dq = &dq;
    x.args.dk = &dk;
    x.args.dv = &dv;
    mxfp8_reads(&n->library, &dout);
    mxfp8_need(mxattn_attention_backward(n->plan, &x.args));
    mxfp8_wrote(&n->library, &dq);
    mxfp8_wrote(&n->library, &dk);
    mxfp8_wrote(&n->library, &dv);
    n->counts.attention_seconds += seconds_now() - start;
}

/* Through the norm and rotation of q and k: n->dqk becomes part of n->dqkv. */
static void heads_backward(mxfp8_network *n, int l, const rope_table *rope, const jagged *seqs)
{
    const model_config *c = &n->config;
    const int count = c->heads + c->kv_heads;
    const mxattn_tensor x = heads_of(&n->layer[l].qkv, seqs->tokens, 0, count);
    const mxattn_tensor dy = all_of(&n->dqk, seqs->tokens);
    const mxattn_tensor dx = heads_of(&n->dqkv, seqs->tokens, 0, count);
    mxattn_rmsnorm_backward_args args;
    mxattn_rmsnorm_backward_args_init(&args);
    args.x = &x;
    args.normalised = 1;
    args.dy = &dy;
    args.rstd = n->layer[l].rstd_qk;
    args.rope = rope_of(rope);
    args.dx_quantized = &dx;
    args.sequences = sequences_of(seqs);
    n->counts.calls++;
    mxfp8_norm_backward(&n->library, &args);
}

/* ---- forward ------------------------------------------------------------------------------- */

/* x_next = x + a W^T, in BF16. */
static void add_projection(mxfp8_network *n, uint16_t *x_next, const uint16_t *x,
                           const mxattn_tensor *a, const mxattn_tensor *w, const jagged *seqs)
{
    const size_t count = (size_t)seqs->tokens * (size_t)n->config.width;
    const mxattn_tensor c = wide_of(MXATTN_BF16, x_next, seqs->tokens, n->config.width);
    mxattn_gemm_quantize_args args = gemm_args(a, w, &c, seqs);
    memcpy(x_next, x, count * sizeof *x);
    args.accumulate = 1;
    gemm(n, &args);
}

static void layer_forward(mxfp8_network *n, const struct layer_parameters *w, int l,
                          const rope_table *rope, uint16_t *next, const jagged *seqs)
{
    const model_config *c = &n->config;
    layer_memory *m = &n->layer[l];
    const int T = seqs->tokens;
    mxattn_tensor a, b, out;

    norm_forward(n, m->x, w->attention_gain, &m->norm, NULL, m->rstd, seqs);
    a = mxfp8_matrix(all_of(&m->norm, T));
    b = weight_of(&m->w_qkv, qkv_heads(c) * c->head_dim);
    out = all_of(&m->qkv, T);
    mxattn_gemm_quantize_args project = gemm_args(&a, &b, &out, seqs);
    project.head_norm = 1;
    project.norm_heads = c->heads + c->kv_heads;
    project.norm_rstd = m->rstd_qk;
    project.rope = rope_of(rope);
    gemm(n, &project);
    attention_forward(n, l, seqs);
    a = mxfp8_matrix(all_of(&m->o, T));
    b = weight_of(&m->w_out, c->width);
    add_projection(n, m->x_middle, m->x, &a, &b, seqs);

    norm_forward(n, m->x_middle, w->mlp_gain, &m->norm_middle, NULL, m->rstd_middle, seqs);
    a = mxfp8_matrix(all_of(&m->norm_middle, T));
    b = weight_of(&m->w_up, c->hidden);
    out = mxfp8_matrix(all_of(&m->active, T));
    mxattn_gemm_quantize_args up = gemm_args(&a, &b, &out, seqs);
    up.activation = MXATTN_ACTIVATION_RELU_SQUARED;
    gemm(n, &up);
    b = weight_of(&m->w_down, c->width);
    add_projection(n, next, m->x_middle, &out, &b, seqs);
}

void mxfp8_network_forward(mxfp8_network *n, const parameters *weights, const rope_table *rope,
                           const float *x, const jagged *seqs, float *logits)
{
    const model_config *c = &n->config;
    const int T = seqs->tokens;
    to_bf16(c->layers ? n->layer[0].x : n->x_last, x, (int64_t)T * c->width);
    for (int l = 0; l < c->layers; l++)
        layer_forward(n, &weights->layer[l], l, rope,
                      l + 1 < c->layers ? n->layer[l + 1].x : n->x_last, seqs);
    norm_forward(n, n->x_last, weights->final_gain, NULL, n->norm_last, n->rstd_last, seqs);
    const mxattn_tensor a = wide_of(MXATTN_BF16, n->norm_last, T, c->width);
    const mxattn_tensor b = wide_of(MXATTN_BF16, n->head, c->vocabulary, c->width);
    const mxattn_tensor out = wide_of(MXATTN_F32, logits, T, c->vocabulary);
    mxattn_gemm_quantize_args args = gemm_args(&a, &b, &out, seqs);
    gemm(n, &args);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* dx and n->dx hold the gradient of the layer's output on entry, of its input on return. */
static void layer_backward(mxfp8_network *n, const struct layer_parameters *w,
                           const struct layer_parameters *g, int l, const rope_table *rope,
                           float *dx, const jagged *seqs)
{
    const model_config *c = &n->config;
    const layer_memory *m = &n->layer[l];
    const int T = seqs->tokens, C = c->width, qkv = qkv_heads(c) * c->head_dim;
    const mxattn_tensor dy = mxfp8_matrix(all_of(&n->dx, T));
    const mxattn_tensor active = mxfp8_matrix(all_of(&m->active, T));
    const mxattn_tensor norm_middle = mxfp8_matrix(all_of(&m->norm_middle, T));
    const mxattn_tensor dactive = mxfp8_matrix(all_of(&n->dwide, T));
    const mxattn_tensor dnorm = mxfp8_matrix(all_of(&n->dnorm, T));
    const mxattn_tensor w_qkv = weight_of(&m->w_qkv, qkv), w_out = weight_of(&m->w_out, C);
    const mxattn_tensor w_up = weight_of(&m->w_up, c->hidden), w_down = weight_of(&m->w_down, C);
    mxattn_gemm_quantize_args args;

    weight_gradient(n, g->down, &dy, C, &active, c->hidden, seqs);
    args = input_gradient(&dy, &w_down, &dactive, seqs);
    args.activation = MXATTN_ACTIVATION_RELU_SQUARED;
    args.activated = &active;
    gemm(n, &args);
    weight_gradient(n, g->up, &dactive, c->hidden, &norm_middle, C, seqs);
    args = input_gradient(&dactive, &w_up, &dnorm, seqs);
    gemm(n, &args);
    norm_backward(n, dx, 1, g->mlp_gain, &dnorm, m->x_middle, m->rstd_middle, w->mlp_gain, seqs);

    const mxattn_tensor o = mxfp8_matrix(all_of(&m->o, T)), dout = all_of(&n->dout, T);
    weight_gradient(n, g->out, &dy, C, &o, c->heads * c->head_dim, seqs);
    args = input_gradient(&dy, &w_out, &dout, seqs);
    gemm(n, &args);
    attention_backward(n, l, seqs);
    heads_backward(n, l, rope, seqs);
    const mxattn_tensor dqkv = mxfp8_matrix(all_of(&n->dqkv, T));
    const mxattn_tensor norm = mxfp8_matrix(all_of(&m->norm, T));
    weight_gradient(n, g->qkv, &dqkv, qkv, &norm, C, seqs);
    args = input_gradient(&dqkv, &w_qkv, &dnorm, seqs);
    gemm(n, &args);
    norm_backward(n, dx, 1, g->attention_gain, &dnorm, m->x, m->rstd, w->attention_gain, seqs);
}

void mxfp8_network_backward(mxfp8_network *n, const parameters *weights, parameters *gradients,
                            const rope_table *rope, const float *dlogits, const jagged *seqs,
                            float *dx)
{
    const model_config *c = &n->config;
    const int T = seqs->tokens;
    to_bf16(n->dlogits, dlogits, (int64_t)T * c->vocabulary);
    const mxattn_tensor dy = wide_of(MXATTN_BF16, n->dlogits, T, c->vocabulary);
    const mxattn_tensor norm = wide_of(MXATTN_BF16, n->norm_last, T, c->width);
    const mxattn_tensor head = wide_of(MXATTN_BF16, n->head, c->vocabulary, c->width);
    const mxattn_tensor dnorm = mxfp8_matrix(all_of(&n->dnorm, T));
    norm_forward(n, n->x_last, weights->final_gain, NULL, n->norm_last, n->rstd_last, seqs);
    weight_gradient(n, gradients->head, &dy, c->vocabulary, &norm, c->width, seqs);
    mxattn_gemm_quantize_args args = input_gradient(&dy, &head, &dnorm, seqs);
    gemm(n, &args);
    norm_backward(n, dx, 0, gradients->final_gain, &dnorm, n->x_last, n->rstd_last,
                  weights->final_gain, seqs);
    for (int l = c->layers - 1; l >= 0; l--)
        layer_backward(n, &weights->layer[l], &gradients->layer[l], l, rope, dx, seqs);
}

mxfp8_counts mxfp8_network_counts(const mxfp8_network *n)
{
    mxfp8_counts counts = n->counts;
    counts.activations = n->library.quantizations - counts.weights;
    counts.operands = n->library.operands;
    counts.foreign = n->library.foreign;
    return counts;
}

static int64_t packed_bytes(const packed *p, int tokens)
{
    const int64_t blocks = (tokens + 31) / 32, chunks = (p->dims + 31) / 32;
    return p->heads * ((int64_t)tokens * p->dims + blocks * chunks);
}

saved_bytes mxfp8_network_saved(const mxfp8_network *n, int tokens)
{
    const model_config *c = &n->config;
    const int64_t bf16 = 2, f32 = 4;
    saved_bytes bytes = {0, 0};
    for (int l = 0; l < c->layers; l++) {
        const layer_memory *m = &n->layer[l];
        const packed *const crossing[] = {&m->norm, &m->qkv, &m->o, &m->norm_middle, &m->active};
        for (size_t i = 0; i < sizeof crossing / sizeof *crossing; i++)
            bytes.crossing += packed_bytes(crossing[i], tokens);
        bytes.all +=
            tokens * (2 * c->width + c->heads * c->head_dim) * bf16;  /* x, x_middle, o_wide */
        bytes.all += tokens * (2 + 2 * c->heads + c->kv_heads) * f32; /* rstd, rstd_qk, lse */
    }
    bytes.all += bytes.crossing + tokens * (c->width * bf16 + f32); /* x_last, rstd_last */
    return bytes;
}

const char *mxfp8_network_description(const mxfp8_network *n)
{
    return n->description;
}
