/* baseline_onednn.c: flash attention in BF16 out of oneDNN's matrix products, as PyTorch's is on a
 * CPU: 256 queries by 512 keys at a time, a running maximum, blocks above the diagonal skipped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "baselines.h"
#include "error.h"
#include "onednn.h"
#include "progress.h"
#include "softmax.h"
#include "tensors.h"
#include "timing.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256, COLUMNS = 512, THREADS_MOST = 256 };

/* What one thread needs for a block of queries and keys. */
typedef struct space {
    mxc_onednn_worker *worker;
    float *s, *dp;    /* (ROWS, COLUMNS): scores, then P; dP */
    uint16_t *p, *ds; /* (ROWS, COLUMNS) */
    float *sum;       /* (ROWS, most dims): O, or dQ */
    float *dk, *dv;   /* (keys of the longest sequence, dims) */
    float top[ROWS], l[ROWS];
} space;

/* Operands in BF16, and what threads keep from call to call. */
static struct prepared {
    uint16_t *q, *k, *v, *dout;
    int32_t threads;
    space *spaces[THREADS_MOST];
} prepared;

static uint16_t *narrow(const float *x, int64_t count)
{
    uint16_t *to = mxc_tool_alloc((size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++)
        to[i] = mxc_bf16(x[i]);
    return to;
}

static int64_t longest_k(const mxc_baseline_problem *p)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t length = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        longest = length > longest ? length : longest;
    }
    return longest;
}

static space *space_make(const mxc_baseline_problem *p)
{
    const size_t block = (size_t)ROWS * COLUMNS, keys = (size_t)longest_k(p);
    const int64_t most = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    space *s = mxc_tool_alloc(sizeof *s);
    *s = (space){.worker = mxc_onednn_worker_create(),
                 .s = mxc_tool_alloc(block * sizeof(float)),
                 .dp = mxc_tool_alloc(block * sizeof(float)),
                 .p = mxc_tool_alloc(block * sizeof(uint16_t)),
                 .ds = mxc_tool_alloc(block * sizeof(uint16_t)),
                 .sum = mxc_tool_alloc((size_t)(ROWS * most) * sizeof(float)),
                 .dk = mxc_tool_alloc(keys * (size_t)p->head_dim * sizeof(float)),
                 .dv = mxc_tool_alloc(keys * (size_t)p->head_dim_v * sizeof(float))};
    return s;
}

static void space_release(space *s)
{
    mxc_onednn_worker_destroy(s->worker);
    free(s->s);
    free(s->dp);
    free(s->p);
    free(s->ds);
    free(s->sum);
    free(s->dk);
    free(s->dv);
    free(s);
}

static void begin(const mxc_baseline_problem *p)
{
    const int64_t total_q = p->cu_seqlens_q[p->batch], total_k = p->cu_seqlens_k[p->batch];
    prepared = (struct prepared){.q = narrow(p->q, total_q * p->heads * p->head_dim),
                                 .k = narrow(p->k, total_k * p->kv_heads * p->head_dim),
                                 .v = narrow(p->v, total_k * p->kv_heads * p->head_dim_v),
                                 .dout = narrow(p->dout, total_q * p->heads * p->head_dim_v),
                                 .threads = p->threads < THREADS_MOST ? p->threads : THREADS_MOST};
    for (int32_t i = 0; i < prepared.threads; i++)
        prepared.spaces[i] = space_make(p);
}

static void end(void)
{
    for (int32_t i = 0; i < prepared.threads; i++)
        space_release(prepared.spaces[i]);
    free(prepared.q);
    free(prepared.k);
    free(prepared.v);
    free(prepared.dout);
    prepared = (struct prepared){0};
}

/* One sequence and head. */
typedef struct head {
    const mxc_baseline_problem *problem;
    space *s;
    int64_t sq, sk, head;
    const uint16_t *q, *k, *v, *dout; /* of the head's first token */
    float *o, *lse, *dq;
    int64_t q_step, k_step, v_step, o_step; /* from token to token */
} head;

static head head_open(const mxc_baseline_problem *p, space *s, int64_t b, int64_t index)
{
    const int64_t first_q = p->cu_seqlens_q[b], first_k = p->cu_seqlens_k[b];
    const int64_t kv_head = index / (p->heads / p->kv_heads);
    const int64_t at_q = first_q * p->heads + index, at_k = first_k * p->kv_heads + kv_head;
    return (head){.problem = p,
                  .s = s,
                  .sq = p->cu_seqlens_q[b + 1] - first_q,
                  .sk = p->cu_seqlens_k[b + 1] - first_k,
                  .head = index,
                  .q = prepared.q + at_q * p->head_dim,
                  .k = prepared.k + at_k * p->head_dim,
                  .v = prepared.v + at_k * p->head_dim_v,
                  .dout = prepared.dout + at_q * p->head_dim_v,
                  .o = p->o + at_q * p->head_dim_v,
                  .lse = p->lse + at_q,
                  .dq = p->dq + at_q * p->head_dim,
                  .q_step = p->heads * p->head_dim,
                  .k_step = p->kv_heads * p->head_dim,
                  .v_step = p->kv_heads * p->head_dim_v,
                  .o_step = p->heads * p->head_dim_v};
}

/* Queries [first, first+rows) against keys [key, key+keys). */
typedef struct block {
    int64_t first, rows, key, keys;
    int64_t step; /* of a row of scores: keys rounded up to whole vectors */
} block;

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Keys [*from, *to) of query i. */
static void span_of(const head *h, int64_t i, int64_t *from, int64_t *to)
{
    const mxc_baseline_problem *p = h->problem;
    const int64_t diagonal = i + h->sk - h->sq;
    *from = p->left < 0 ? 0 : clamp(diagonal - p->left, 0, h->sk);
    *to = p->right < 0 ? h->sk : clamp(diagonal + p->right + 1, 0, h->sk);
}

/* The keys that one of the block's queries sees, beginning at a whole block: [*low, *high). */
static void keys_of(const head *h, const block *b, int64_t *low, int64_t *high)
{
    int64_t unused;
    span_of(h, b->first, low, &unused);
    span_of(h, b->first + b->rows - 1, &unused, high);
    *low = *low / COLUMNS * COLUMNS;
}

static void block_turn(block *b, int64_t key, int64_t high)
{
    b->key = key;
    b->keys = high - key < COLUMNS ? high - key : COLUMNS;
    b->step = (b->keys + MXC_SOFTMAX_LANES - 1) / MXC_SOFTMAX_LANES * MXC_SOFTMAX_LANES;
}

/* s = q k^T, -inf where a query does not see a key. */
static void scores(const head *h, const block *b)
{
    const mxc_onednn_shape shape = {.m = b->rows,
                                    .n = b->keys,
                                    .k = h->problem->head_dim,
                                    .a_row = h->q_step,
                                    .a_column = 1,
                                    .b_row = 1,
                                    .b_column = h->k_step,
                                    .c_row = b->step};
    mxc_onednn_multiply(h->s->worker, &shape, h->q + b->first * h->q_step,
                        h->k + b->key * h->k_step, h->s->s);
    for (int64_t r = 0; r < b->rows; r++) {
        float *row = h->s->s + r * b->step;
        int64_t from, to;
        span_of(h, b->first + r, &from, &to);
        for (int64_t j = 0; j < b->step && j < from - b->key; j++)
            row[j] = -INFINITY;
        for (int64_t j = to > b->key ? to - b->key : 0; j < b->step; j++)
            row[j] = -INFINITY;
    }
}

/* P in BF16, and O's rows multiplied by what their maxima have risen. */
static void softmax(const head *h, const block *b, int first_block)
{
    const mxc_softmax *ops = mxc_softmax_best();
    const float scale = (float)h->problem->softmax_scale;
    const int64_t dims = h->problem->head_dim_v;
    space *s = h->s;
    for (int64_t r = 0; r < b->rows; r++) {
        float *row = s->s + r * b->step, *o = s->sum + r * dims;
        const float top = ops->highest(row, b->step, scale, s->top[r]);
        const float used = isinf(top) ? 0 : top, risen = expf(s->top[r] - used);
        s->l[r] = s->l[r] * risen + ops->row_bf16(row, b->step, scale, used, s->p + r * b->step);
        s->top[r] = top;
        for (int64_t d = 0; d < dims && !first_block && risen < 1; d++)
            o[d] *= risen;
    }
}

static void forward_rows(const head *h, int64_t first)
{
    const int64_t dims = h->problem->head_dim_v, heads = h->problem->heads;
    space *s = h->s;
    block b = {.first = first, .rows = h->sq - first < ROWS ? h->sq - first : ROWS};
    int64_t low, high;
    keys_of(h, &b, &low, &high);
    for (int64_t r = 0; r < b.rows; r++) {
        s->top[r] = -INFINITY;
        s->l[r] = 0;
    }
    for (int64_t key = low; key < high; key += COLUMNS) {
        block_turn(&b, key, high);
        scores(h, &b);
        softmax(h, &b, key == low);
        const mxc_onednn_shape shape = {.m = b.rows,
                                        .n = dims,
                                        .k = b.keys,
                                        .a_row = b.step,
                                        .a_column = 1,
                                        .b_row = h->v_step,
                                        .b_column = 1,
                                        .c_row = dims,
                                        .add = key > low};
        mxc_onednn_multiply(s->worker, &shape, s->p, h->v + key * h->v_step, s->sum);
    }
    for (int64_t r = 0; r < b.rows; r++) {
        const float factor = s->l[r] > 0 ? 1 / s->l[r] : 0;
        float *o = h->o + (first + r) * h->o_step;
        h->lse[(first + r) * heads] = s->l[r] > 0 ? s->top[r] + logf(s->l[r]) : -INFINITY;
        for (int64_t d = 0; d < dims; d++)
            o[d] = s->l[r] > 0 ? s->sum[r * dims + d] * factor : 0;
    }
}

/* P and dS of a block in BF16, from the rows' LSE and delta (in top and l). */
static void gradients_of_scores(const head *h, const block *b)
{
    const mxc_softmax *ops = mxc_softmax_best();
    const float scale = (float)h->problem->softmax_scale;
    space *s = h->s;
    const mxc_onednn_shape shape = {.m = b->rows,
                                    .n = b->keys,
                                    .k = h->problem->head_dim_v,
                                    .a_row = h->o_step,
                                    .a_column = 1,
                                    .b_row = 1,
                                    .b_column = h->v_step,
                                    .c_row = b->step};
    scores(h, b);
    mxc_onednn_multiply(s->worker, &shape, h->dout + b->first * h->o_step,
                        h->v + b->key * h->v_step, s->dp);
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t at = r * b->step;
        for (int64_t j = b->keys; j < b->step; j++)
            s->dp[at + j] = 0;
        (void)ops->row_bf16(s->s + at, b->step, scale, s->top[r], s->p + at);
        ops->gradient_bf16(s->s + at, s->dp + at, b->step, scale, s->l[r], s->ds + at);
    }
}

static void backward_rows(const head *h, int64_t first)
{
    const mxc_baseline_problem *p = h->problem;
    const int64_t dims = p->head_dim, dims_v = p->head_dim_v;
    space *s = h->s;
    block b = {.first = first, .rows = h->sq - first < ROWS ? h->sq - first : ROWS};
    int64_t low, high;
    keys_of(h, &b, &low, &high);
    for (int64_t r = 0; r < b.rows; r++) {
        const float *o = h->o + (first + r) * h->o_step;
        const float *dout = p->dout + (o - p->o);
        const float lse = h->lse[(first + r) * p->heads];
        s->top[r] = isinf(lse) ? 0 : lse;
        s->l[r] = 0;
        for (int64_t d = 0; d < dims_v; d++)
            s->l[r] += o[d] * dout[d];
    }
    for (int64_t key = low; key < high; key += COLUMNS) {
        block_turn(&b, key, high);
        gradients_of_scores(h, &b);
        mxc_onednn_shape shape = {.m = b.keys, /* dV += P^T dO */
                                  .n = dims_v,
                                  .k = b.rows,
                                  .a_row = 1,
                                  .a_column = b.step,
                                  .b_row = h->o_step,
                                  .b_column = 1,
                                  .c_row = dims_v,
                                  .add = 1};
        mxc_onednn_multiply(s->worker, &shape, s->p, h->dout + first * h->o_step,
                            s->dv + key * dims_v);
        shape.n = shape.c_row = dims; /* dK += dS^T Q */
        shape.b_row = h->q_step;
        mxc_onednn_multiply(s->worker, &shape, s->ds, h->q + first * h->q_step, s->dk + key * dims);
        shape = (mxc_onednn_shape){.m = b.rows, /* dQ += dS K */
                                   .n = dims,
                                   .k = b.keys,
                                   .a_row = b.step,
                                   .a_column = 1,
                                   .b_row = h->k_step,
                                   .b_column = 1,
                                   .c_row = dims,
                                   .add = key > low};
        mxc_onednn_multiply(s->worker, &shape, s->ds, h->k + key * h->k_step, s->sum);
    }
    for (int64_t r = 0; r < b.rows; r++)
        for (int64_t d = 0; d < dims; d++)
            h->dq[(first + r) * h->q_step + d] = high > low ? s->sum[r * dims + d] : 0;
}

/* All query heads of one sequence and kv head; dK and dV are summed over them. */
static void backward_head(const mxc_baseline_problem *p, space *s, int64_t sequence,
                          int64_t kv_head)
{
    const int64_t ratio = p->heads / p->kv_heads, first_k = p->cu_seqlens_k[sequence];
    const int64_t sk = p->cu_seqlens_k[sequence + 1] - first_k;
    memset(s->dk, 0, (size_t)(sk * p->head_dim) * sizeof(float));
    memset(s->dv, 0, (size_t)(sk * p->head_dim_v) * sizeof(float));
    for (int64_t i = kv_head * ratio; i < (kv_head + 1) * ratio; i++) {
        const head h = head_open(p, s, sequence, i);
        for (int64_t first = 0; first < h.sq; first += ROWS)
            backward_rows(&h, first);
    }
    for (int64_t j = 0; j < sk; j++) {
        const int64_t at = (first_k + j) * p->kv_heads + kv_head;
        memcpy(p->dk + at * p->head_dim, s->dk + j * p->head_dim,
               (size_t)p->head_dim * sizeof(float));
        memcpy(p->dv + at * p->head_dim_v, s->dv + j * p->head_dim_v,
               (size_t)p->head_dim_v * sizeof(float));
    }
}

typedef struct work {
    const mxc_baseline_problem *problem;
    int backward;
    int64_t tiles, count; /* tiles of the longest sequence; tasks */
    atomic_llong next;
} work;

static void run_task(const work *w, space *s, int64_t task)
{
    const mxc_baseline_problem *p = w->problem;
    if (w->backward) {
        backward_head(p, s, task / p->kv_heads, task % p->kv_heads);
        return;
    }
    const int64_t tile = w->tiles - 1 - task / (p->heads * p->batch); /* most keys first */
    const head h = head_open(p, s, task / p->heads % p->batch, task % p->heads);
    if (tile * ROWS < h.sq)
        forward_rows(&h, tile * ROWS);
}

static void run_thread(void *memory, int64_t thread)
{
    work *w = memory;
    mxc_onednn_alone();
    for (;;) {
        const int64_t task = atomic_fetch_add(&w->next, 1);
        if (task >= w->count)
            return;
        run_task(w, prepared.spaces[thread], task);
    }
}

static void run(const mxc_baseline_problem *p, int backward)
{
    work w = {.problem = p, .backward = backward};
    int64_t longest = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t length = p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b];
        longest = length > longest ? length : longest;
    }
    w.tiles = (longest + ROWS - 1) / ROWS;
    w.count = backward ? p->batch * p->kv_heads : w.tiles * p->batch * p->heads;
    mxc_on_threads(prepared.threads, run_thread, &w);
}

static void forward(const mxc_baseline_problem *p)
{
    run(p, 0);
}

static void backward(const mxc_baseline_problem *p)
{
    run(p, 1);
}

const mxc_baseline mxc_baseline_onednn = {
    .name = "onednn matmul, bf16",
    .label = "onednn",
    .open = mxc_onednn_open,
    .begin = begin,
    .end = end,
    .forward = forward,
    .backward = backward,
};
