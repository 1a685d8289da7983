/* layers.c: the layers of the network that treat every token (row) by itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "layers.h"

#include "gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- embedding ------------------------------------------------------------------------------ */

struct embedding {
    float *out;
    const float *in;
    const int *token;
    int tokens, width;
};

static void embedding_rows(void *arg, int64_t first, int64_t last)
{
    const struct embedding *e = arg;
    for (int64_t t = first; t < last; t++)
        memcpy(e->out + t * e->width, e->in + (int64_t)e->token[t] * e->width,
               (size_t)e->width * sizeof(float));
}

void embedding_forward(pool *p, float *x, const float *table, const int *token, int tokens,
                       int width)
{
    struct embedding e = {x, table, token, tokens, width};
    pool_rows(p, tokens, embedding_rows, &e);
}

/* Many tokens share a row of the table, so threads share its columns instead. */
static void embedding_backward_columns(void *arg, int64_t first, int64_t last)
{
    const struct embedding *e = arg;
    for (int t = 0; t < e->tokens; t++) {
        float *row = e->out + (int64_t)e->token[t] * e->width;
        const float *dx = e->in + (int64_t)t * e->width;
        for (int64_t c = first; c < last; c++)
            row[c] += dx[c];
    }
}

void embedding_backward(pool *p, float *dtable, const float *dx, const int *token, int tokens,
                        int width)
{
    struct embedding e = {dtable, dx, token, tokens, width};
    pool_rows(p, width, embedding_backward_columns, &e);
}

/* --- RMSNorm -------------------------------------------------------------------------------- */

struct rmsnorm {
    float *out, *rstd;
    const float *x, *dy, *gain;
    float *dgain_parts; /* one row of `width` for each slice of tokens */
    int width;
};

/* Eight running sums, so that they fit a vector. */
static float sum_of_squares(const float *x, int count)
{
    enum { LANES = 8 };
    float sum[LANES] = {0};
    int whole = count / LANES * LANES;
    for (int i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += x[i + l] * x[i + l];
    for (int i = whole; i < count; i++)
        sum[0] += x[i] * x[i];
    for (int l = 1; l < LANES; l++)
        sum[0] += sum[l];
    return sum[0];
}

static void rmsnorm_rows(void *arg, int64_t first, int64_t last)
{
    const struct rmsnorm *n = arg;
    const float *gain = n->gain;
    int width = n->width;
    for (int64_t t = first; t < last; t++) {
        const float *x = n->x + t * width;
        float *y = n->out + t * width;
        float rstd = 1.0f / sqrtf(sum_of_squares(x, width) / (float)width + 1e-6f);
        for (int c = 0; c < width; c++)
            y[c] = x[c] * rstd * gain[c];
        n->rstd[t] = rstd;
    }
}

void rmsnorm_forward(pool *p, float *y, float *rstd, const float *x, const float *gain, int tokens,
                     int width)
{
    struct rmsnorm n = {.out = y, .rstd = rstd, .x = x, .gain = gain, .width = width};
    pool_rows(p, tokens, rmsnorm_rows, &n);
}

/* With u = x * rstd and g = dy * gain: dx = rstd * (g - u * mean(g * u)), dgain = sum dy * u. */
static void rmsnorm_backward_rows(void *arg, int64_t first, int64_t last)
{
    const struct rmsnorm *n = arg;
    float *dgain = n->dgain_parts + first / POOL_ROWS * n->width;
    for (int64_t t = first; t < last; t++) {
        const float *x = n->x + t * n->width, *dy = n->dy + t * n->width;
        float *dx = n->out + t * n->width;
        float rstd = n->rstd[t], dot = 0.0f;
        for (int c = 0; c < n->width; c++)
            dot += dy[c] * n->gain[c] * x[c];
        float mean = dot * rstd / (float)n->width;
        for (int c = 0; c < n->width; c++) {
            dx[c] += rstd * (dy[c] * n->gain[c] - x[c] * rstd * mean);
            dgain[c] += dy[c] * x[c] * rstd;
        }
    }
}

void rmsnorm_backward_add(pool *p, float *dx, float *dgain, const float *dy, const float *x,
                          const float *rstd, const float *gain, int tokens, int width)
{
    int slices = (tokens + POOL_ROWS - 1) / POOL_ROWS;
    float *parts = allocate_zero((size_t)(slices * width) * sizeof(float));
    struct rmsnorm n = {dx, (float *)rstd, x, dy, gain, parts, width};
    pool_rows(p, tokens, rmsnorm_backward_rows, &n);
    for (int s = 0; s < slices; s++)
        for (int c = 0; c < width; c++)
            dgain[c] += parts[s * width + c];
    free(parts);
}

/* --- linear --------------------------------------------------------------------------------- */

void linear_forward(pool *p, float *y, const float *x, const float *weight, int tokens, int inputs,
                    int outputs)
{
    gemm(p, tokens, outputs, inputs, rows_of(x, inputs), transpose_of(weight, inputs), y, outputs,
         0);
}

void linear_forward_add(pool *p, float *y, const float *x, const float *weight, int tokens,
                        int inputs, int outputs)
{
    gemm(p, tokens, outputs, inputs, rows_of(x, inputs), transpose_of(weight, inputs), y, outputs,
         1);
}

void linear_backward(pool *p, float *dx, float *dweight, const float *dy, const float *x,
                     const float *weight, int tokens, int inputs, int outputs)
{
    gemm(p, tokens, inputs, outputs, rows_of(dy, outputs), rows_of(weight, inputs), dx, inputs, 0);
    gemm(p, outputs, inputs, tokens, transpose_of(dy, outputs), rows_of(x, inputs), dweight, inputs,
         1);
}

/* --- rotary embedding ----------------------------------------------------------------------- */

rope_table rope_table_create(int positions, int head_dim)
{
    int half = head_dim / 2;
    rope_table table = {positions, half, NULL, NULL};
    table.cosine = allocate((size_t)(positions * half) * sizeof(float));
    table.sine = allocate((size_t)(positions * half) * sizeof(float));
    for (int i = 0; i < positions; i++) {
        for (int d = 0; d < half; d++) {
            double angle = i * pow(500.0, -(double)d / half);
            table.cosine[i * half + d] = (float)cos(angle);
            table.sine[i * half + d] = (float)sin(angle);
        }
    }
    return table;
}

void rope_table_destroy(rope_table *table)
{
    free(table->cosine);
    free(table->sine);
}

struct rope {
    float *x;
    const rope_table *table;
    const int *position;
    int stride, heads;
    float direction; /* 1, or -1 to turn back */
};

static void rope_rows(void *arg, int64_t first, int64_t last)
{
    const struct rope *r = arg;
    int half = r->table->half;
    for (int64_t t = first; t < last; t++) {
        const float *cosine = r->table->cosine + r->position[t] * half;
        const float *sine = r->table->sine + r->position[t] * half;
        for (int h = 0; h < r->heads; h++) {
            float *a = r->x + t * r->stride + h * 2 * half, *b = a + half;
            for (int d = 0; d < half; d++) {
                float c = cosine[d], s = sine[d] * r->direction, a0 = a[d], b0 = b[d];
                a[d] = a0 * c - b0 * s;
                b[d] = a0 * s + b0 * c;
            }
        }
    }
}

void rope_forward(pool *p, float *x, const rope_table *table, const int *position, int tokens,
                  int stride, int heads)
{
    struct rope r = {x, table, position, stride, heads, 1.0f};
    pool_rows(p, tokens, rope_rows, &r);
}

void rope_backward(pool *p, float *dx, const rope_table *table, const int *position, int tokens,
                   int stride, int heads)
{
    struct rope r = {dx, table, position, stride, heads, -1.0f};
    pool_rows(p, tokens, rope_rows, &r);
}

/* --- norm of heads -------------------------------------------------------------------------- */

struct head_norm {
    float *x; /* forward: the heads; backward: their gradient */
    float *rstd;
    const float *normalised;
    int stride, heads, head_dim;
};

static void head_norm_rows(void *arg, int64_t first, int64_t last)
{
    const struct head_norm *n = arg;
    for (int64_t i = first * n->heads; i < last * n->heads; i++) {
        float *x = n->x + i / n->heads * n->stride + i % n->heads * n->head_dim;
        float mean = sum_of_squares(x, n->head_dim) / (float)n->head_dim;
        float rstd = 1.0f / sqrtf(mean + 1e-6f);
        for (int d = 0; d < n->head_dim; d++)
            x[d] *= rstd;
        n->rstd[i] = rstd;
    }
}

void head_norm_forward(pool *p, float *x, float *rstd, int tokens, int stride, int heads,
                       int head_dim)
{
    struct head_norm n = {x, rstd, NULL, stride, heads, head_dim};
    pool_rows(p, tokens, head_norm_rows, &n);
}

/* dx = rstd * (dy - u * mean(dy * u)), u the normalised head. */
static void head_norm_backward_rows(void *arg, int64_t first, int64_t last)
{
    const struct head_norm *n = arg;
    for (int64_t i = first * n->heads; i < last * n->heads; i++) {
        int64_t place = i / n->heads * n->stride + i % n->heads * n->head_dim;
        float *dx = n->x + place, rstd = n->rstd[i], dot = 0.0f;
        const float *u = n->normalised + place;
        for (int d = 0; d < n->head_dim; d++)
            dot += dx[d] * u[d];
        float mean = dot / (float)n->head_dim;
        for (int d = 0; d < n->head_dim; d++)
            dx[d] = rstd * (dx[d] - u[d] * mean);
    }
}

void head_norm_backward(pool *p, float *dx, const float *x, const float *rstd, int tokens,
                        int stride, int heads, int head_dim)
{
    struct head_norm n = {dx, (float *)rstd, x, stride, heads, head_dim};
    pool_rows(p, tokens, head_norm_backward_rows, &n);
}

/* --- activation ----------------------------------------------------------------------------- */

struct squared_relu {
    float *out;
    const float *dy, *x;
    int width;
};

static void squared_relu_rows(void *arg, int64_t first, int64_t last)
{
    const struct squared_relu *s = arg;
    const float *x = s->x;
    float *y = s->out;
    for (int64_t i = first * s->width, end = last * s->width; i < end; i++) {
        float positive = x[i] > 0.0f ? x[i] : 0.0f;
        y[i] = positive * positive;
    }
}

static void squared_relu_backward_rows(void *arg, int64_t first, int64_t last)
{
    const struct squared_relu *s = arg;
    const float *x = s->x, *dy = s->dy;
    float *dx = s->out;
    for (int64_t i = first * s->width, end = last * s->width; i < end; i++)
        dx[i] = x[i] > 0.0f ? 2.0f * x[i] * dy[i] : 0.0f;
}

void squared_relu_forward(pool *p, float *y, const float *x, int tokens, int width)
{
    struct squared_relu s = {y, NULL, x, width};
    pool_rows(p, tokens, squared_relu_rows, &s);
}

void squared_relu_backward(pool *p, float *dx, const float *dy, const float *x, int tokens,
                           int width)
{
    struct squared_relu s = {dx, dy, x, width};
    pool_rows(p, tokens, squared_relu_backward_rows, &s);
}

/* --- cross entropy -------------------------------------------------------------------------- */

struct cross_entropy {
    float *logits, *loss;
    const int *target;
    int targets, vocabulary, want_gradient;
};

static void cross_entropy_rows(void *arg, int64_t first, int64_t last)
{
    const struct cross_entropy *e = arg;
    for (int64_t t = first; t < last; t++) {
        float *x = e->logits + t * e->vocabulary;
        float max = x[0], sum = 0.0f;
        if (e->target[t] < 0) {
            e->loss[t] = 0.0f;
            memset(x, 0, e->want_gradient ? (size_t)e->vocabulary * sizeof(float) : 0);
            continue;
        }
        for (int v = 1; v < e->vocabulary; v++)
            max = fmaxf(max, x[v]);
        for (int v = 0; v < e->vocabulary; v++)
            sum += expf(x[v] - max);
        float lse = max + logf(sum);
        e->loss[t] = lse - x[e->target[t]];
        if (!e->want_gradient)
            continue;
        for (int v = 0; v < e->vocabulary; v++)
            x[v] = expf(x[v] - lse) / (float)e->targets;
        x[e->target[t]] -= 1.0f / (float)e->targets;
    }
}

double cross_entropy(pool *p, float *logits, float *loss, const int *target, int tokens,
                     int vocabulary, int want_gradient)
{
    struct cross_entropy e = {logits, loss, target, 0, vocabulary, want_gradient};
    for (int t = 0; t < tokens; t++)
        e.targets += target[t] >= 0;
    pool_rows(p, tokens, cross_entropy_rows, &e);
    double sum = 0.0;
    for (int t = 0; t < tokens; t++)
        sum += loss[t];
    return sum / e.targets;
}
