/* baseline_openblas.c: float32 attention out of OpenBLAS's sgemm, in blocks of query rows, with a
 * vector softmax between. MXATTN_OPENBLAS names the library where it is not found by itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "baselines.h"
#include "error.h"
#include "progress.h"
#include "softmax.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                               float alpha, const float *a, int lda, const float *b, int ldb,
                               float beta, float *c, int ldc);
static sgemm_function sgemm;

static int open_library(char *why, size_t why_size)
{
    const char *names[] = {getenv("MXATTN_OPENBLAS"), "libopenblas.so.0", "libopenblas.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        if (names[i])
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void *gemm = library ? dlsym(library, "cblas_sgemm") : NULL;
    void *set_threads = library ? dlsym(library, "openblas_set_num_threads") : NULL;
    if (!gemm || !set_threads) {
        (void)snprintf(why, why_size, "libopenblas.so.0 %s",
                       library ? "lacks cblas_sgemm" : "is not on this machine");
        return 0;
    }
    void (*set)(int);
    memcpy(&sgemm, &gemm, sizeof sgemm); /* ISO C has no cast from object to function pointers */
    memcpy(&set, &set_threads, sizeof set);
    set(1); /* the threads are ours: one head each */
    return 1;
}

/* One sequence and head, rows [first, first + rows): the columns any of them sees. */
typedef struct tile {
    int64_t q_row, k_row; /* first tokens of the sequence */
    int64_t sq, sk, first, rows;
    int64_t low, columns;
    int64_t head, kv_head;
} tile;

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Keys [*from, *to) of query i. */
static void row_span(const mxc_baseline_problem *p, const tile *t, int64_t i, int64_t *from,
                     int64_t *to)
{
    int64_t diagonal = i + t->sk - t->sq;
    *from = p->left < 0 ? 0 : clamp(diagonal - p->left, 0, t->sk);
    *to = p->right < 0 ? t->sk : clamp(diagonal + p->right + 1, 0, t->sk);
    if (*from > *to)
        *from = *to;
}

static void set_columns(const mxc_baseline_problem *p, tile *t)
{
    int64_t from, to;
    t->low = t->sk;
    int64_t high = 0;
    for (int64_t i = t->first; i<t->first + t->rows; i += t->rows> 1 ? t->rows - 1 : 1) {
        row_span(p, t, i, &from, &to);
        t->low = from < t->low ? from : t->low;
        high = to > high ? to : high;
    }
    t->columns = high > t->low ? high - t->low : 0;
}

static int64_t padded(int64_t columns)
{
    return (columns + MXC_SOFTMAX_LANES - 1) / MXC_SOFTMAX_LANES * MXC_SOFTMAX_LANES;
}

/* p = exp(scale * q k^T - top), zero outside each row's keys. top and sum per row. known_lse: use
 * it as top. */
static void probabilities(const mxc_baseline_problem *p, const tile *t, float *scores, float *top,
                          float *sum, const float *known_lse)
{
    const mxc_softmax *softmax = mxc_softmax_best();
    int64_t d = p->head_dim, ld = padded(t->columns);
    const float *q = p->q + ((t->q_row + t->first) * p->heads + t->head) * d;
    const float *k = p->k + ((t->k_row + t->low) * p->kv_heads + t->kv_head) * d;
    sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, (int)t->rows, (int)t->columns, (int)d, 1, q,
          (int)(p->heads * d), k, (int)(p->kv_heads * d), 0, scores, (int)ld);
    for (int64_t r = 0; r < t->rows; r++) {
        float *row = scores + r * ld;
        int64_t from, to;
        row_span(p, t, t->first + r, &from, &to);
        for (int64_t j = 0; j < from - t->low; j++)
            row[j] = -INFINITY;
        for (int64_t j = to - t->low; j < ld; j++)
            row[j] = -INFINITY;
        top[r] = known_lse ? known_lse[r * p->heads] : NAN;
        sum[r] = 0;
        if (to > from)
            sum[r] = softmax->row(row, ld, (float)p->softmax_scale, &top[r]);
        else
            memset(row, 0, (size_t)ld * sizeof *row);
    }
}

typedef struct work {
    const mxc_baseline_problem *problem;
    int backward;
    int64_t longest_k;
} work;

static void forward_tile(const mxc_baseline_problem *p, const tile *t, float *scores)
{
    float top[ROWS], sum[ROWS];
    int64_t dv = p->head_dim_v, ld = padded(t->columns);
    float *o = p->o + ((t->q_row + t->first) * p->heads + t->head) * dv;
    float *lse = p->lse + (t->q_row + t->first) * p->heads + t->head;
    const float *v = p->v + ((t->k_row + t->low) * p->kv_heads + t->kv_head) * dv;
    if (t->columns) {
        probabilities(p, t, scores, top, sum, NULL);
        sgemm(ROW_MAJOR, PLAIN, PLAIN, (int)t->rows, (int)dv, (int)t->columns, 1, scores, (int)ld,
              v, (int)(p->kv_heads * dv), 0, o, (int)(p->heads * dv));
    }
    for (int64_t r = 0; r < t->rows; r++) {
        int seen = t->columns && sum[r] > 0;
        lse[r * p->heads] = seen ? top[r] + logf(sum[r]) : -INFINITY;
        for (int64_t d = 0; d < dv; d++)
            o[r * p->heads * dv + d] = seen ? o[r * p->heads * dv + d] / sum[r] : 0;
    }
}

/* Adds the tile's share of dk and dv, writes its dq. */
static void backward_tile(const mxc_baseline_problem *p, const tile *t, float *scores, float *ds)
{
    float top[ROWS], sum[ROWS];
    int64_t d = p->head_dim, dv = p->head_dim_v, ld = padded(t->columns);
    int64_t row_q = (t->q_row + t->first) * p->heads + t->head;
    int64_t row_k = (t->k_row + t->low) * p->kv_heads + t->kv_head;
    const float *o = p->o + row_q * dv, *dout = p->dout + row_q * dv;
    int rows = (int)t->rows, columns = (int)t->columns;
    int ld_q = (int)(p->heads * d), ld_o = (int)(p->heads * dv);
    int ld_k = (int)(p->kv_heads * d), ld_v = (int)(p->kv_heads * dv);
    if (!columns) {
        for (int64_t r = 0; r < t->rows; r++)
            memset(p->dq + row_q * d + r * ld_q, 0, (size_t)d * sizeof(float));
        return;
    }
    probabilities(p, t, scores, top, sum, p->lse + row_q);
    sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, rows, columns, (int)dv, 1, dout, ld_o, p->v + row_k * dv,
          ld_v, 0, ds, (int)ld);
    for (int64_t r = 0; r < t->rows; r++) {
        float delta = 0, scale = (float)p->softmax_scale;
        for (int64_t i = 0; i < dv; i++)
            delta += o[r * ld_o + i] * dout[r * ld_o + i];
        for (int64_t j = 0; j < t->columns; j++)
            ds[r * ld + j] = scores[r * ld + j] * (ds[r * ld + j] - delta) * scale;
    }
    sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, columns, (int)dv, rows, 1, scores, (int)ld, dout, ld_o, 1,
          p->dv + row_k * dv, ld_v);
    sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, columns, (int)d, rows, 1, ds, (int)ld, p->q + row_q * d,
          ld_q, 1, p->dk + row_k * d, ld_k);
    sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, (int)d, columns, 1, ds, (int)ld, p->k + row_k * d, ld_k, 0,
          p->dq + row_q * d, ld_q);
}

/* Zeroes one kv head's dk and dv of a sequence. */
static void clear_head(const mxc_baseline_problem *p, int64_t k_row, int64_t sk, int64_t kv_head)
{
    for (int64_t j = k_row; j < k_row + sk; j++) {
        int64_t at = j * p->kv_heads + kv_head;
        memset(p->dk + at * p->head_dim, 0, (size_t)p->head_dim * sizeof(float));
        memset(p->dv + at * p->head_dim_v, 0, (size_t)p->head_dim_v * sizeof(float));
    }
}

/* One sequence and kv head: all its query heads and rows. */
static void run_head(void *memory, int64_t index)
{
    const work *w = memory;
    const mxc_baseline_problem *p = w->problem;
    int64_t b = index / p->kv_heads, kv_head = index % p->kv_heads;
    int64_t ratio = p->heads / p->kv_heads, bytes = ROWS * padded(w->longest_k) * 4;
    tile t = {.q_row = p->cu_seqlens_q[b], .k_row = p->cu_seqlens_k[b], .kv_head = kv_head};
    t.sq = p->cu_seqlens_q[b + 1] - t.q_row;
    t.sk = p->cu_seqlens_k[b + 1] - t.k_row;
    float *scores = mxc_tool_alloc((size_t)bytes);
    float *ds = w->backward ? mxc_tool_alloc((size_t)bytes) : NULL;
    if (w->backward)
        clear_head(p, t.k_row, t.sk, kv_head);
    for (t.head = kv_head * ratio; t.head < (kv_head + 1) * ratio; t.head++)
        for (t.first = 0; t.first < t.sq; t.first += ROWS) {
            t.rows = t.sq - t.first < ROWS ? t.sq - t.first : ROWS;
            set_columns(p, &t);
            if (w->backward)
                backward_tile(p, &t, scores, ds);
            else
                forward_tile(p, &t, scores);
        }
    free(scores);
    free(ds);
}

static void run(const mxc_baseline_problem *p, int backward)
{
    work w = {.problem = p, .backward = backward};
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t length = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        w.longest_k = length > w.longest_k ? length : w.longest_k;
    }
    int32_t threads = p->threads;
    mxc_progress_parallel_for(&threads, p->batch * p->kv_heads, run_head, &w);
}

static void forward(const mxc_baseline_problem *p)
{
    run(p, 0);
}

static void backward(const mxc_baseline_problem *p)
{
    run(p, 1);
}

const mxc_baseline mxc_baseline_openblas = {
    .name = "openblas sgemm, float32",
    .label = "openblas",
    .open = open_library,
    .forward = forward,
    .backward = backward,
};
