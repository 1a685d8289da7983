/* test_train_lm.c: the layers of examples/train_lm against finite differences, and what its
 * training rests on: matrix products, packing of passages, equal bits for any number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "adamw.h"
#include "compare.h"
#include "fill.h"
#include "gemm.h"
#include "model.h"
#include "report.h"
#include "thresholds.h"

#include <stdlib.h>
#include <string.h>

/* A number that depends on some floats, for instance a weighted sum of a layer's outputs. */
typedef double (*number)(void *context);

/* Central differences of `value` by up to 40 of the `count` floats at x, against `gradient`. */
static void check_gradient(const char *what, float *x, const float *gradient, int64_t count,
                           number value, void *context)
{
    const float step = 1e-2f;
    int64_t stride = count / 40 + 1;
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)gradient[i]));
    CHECK(largest > 0.0, "%s: the gradient is all zero", what);
    for (int64_t i = stride / 2; i < count; i += stride) {
        float kept = x[i];
        x[i] = kept + step;
        double above = value(context), width = (double)x[i];
        x[i] = kept - step;
        double below = value(context);
        width -= (double)x[i];
        x[i] = kept;
        double difference = (above - below) / width;
        CHECK(fabs(difference - (double)gradient[i]) <= MXT_TRAIN_LM_GRADIENT * largest,
              "%s [%lld]: backward gives %g, finite differences %g (largest %g)", what,
              (long long)i, (double)gradient[i], difference, largest);
    }
}

static float *gaussian(int64_t count, double deviation, uint64_t seed)
{
    float *x = allocate((size_t)count * sizeof(float));
    mxt_random random = {seed};
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(deviation * mxt_random_gaussian(&random));
    return x;
}

static double weighted_sum(const float *y, const float *weight, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)y[i] * (double)weight[i];
    return sum;
}

/* --- products ------------------------------------------------------------------------------- */

static void test_gemm(pool *p)
{
    static const int64_t sizes[][3] = {{1, 1, 1},      {6, 16, 4},    {7, 17, 5},
                                       {50, 260, 300}, {97, 33, 513}, {3, 600, 2}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        for (int variant = 0; variant < 8; variant++) {
            int add = variant & 1, ta = variant & 2, tb = variant & 4;
            mxt_case("gemm %lld x %lld x %lld, A%s B%s%s", (long long)m, (long long)n, (long long)k,
                     ta ? "^T" : "", tb ? "^T" : "", add ? ", added" : "");
            float *a = gaussian(m * k, 1.0, 1), *b = gaussian(k * n, 1.0, 2);
            float *c = gaussian(m * n, 1.0, 3), *before = gaussian(m * n, 1.0, 3);
            matrix va = ta ? transpose_of(a, m) : rows_of(a, k);
            matrix vb = tb ? transpose_of(b, k) : rows_of(b, n);
            gemm(p, m, n, k, va, vb, c, n, add);
            for (int64_t i = 0; i < m * n; i++) {
                double want = add ? (double)before[i] : 0.0, size = fabs(want);
                for (int64_t j = 0; j < k; j++) {
                    double term = (double)va.data[i / n * va.row + j * va.column] *
                                  (double)vb.data[j * vb.row + i % n * vb.column];
                    want += term;
                    size += fabs(term);
                }
                CHECK(fabs((double)c[i] - want) <= MXT_TRAIN_LM_GEMM * size,
                      "(%lld, %lld): %g, want %g", (long long)(i / n), (long long)(i % n),
                      (double)c[i], want);
            }
            free(a);
            free(b);
            free(c);
            free(before);
        }
    }
}

/* --- layers --------------------------------------------------------------------------------- */

enum { TOKENS = 70, WIDTH = 24, OUTPUTS = 20, VOCABULARY = 11 };

struct layer {
    float *x, *y, *rstd, *weight, *upstream, *loss;
    int index[TOKENS];
    rope_table rope;
};

static double rmsnorm_value(void *context)
{
    struct layer *l = context;
    rmsnorm_forward(NULL, l->y, l->rstd, l->x, l->weight, TOKENS, WIDTH);
    return weighted_sum(l->y, l->upstream, TOKENS * WIDTH);
}

static double linear_value(void *context)
{
    struct layer *l = context;
    linear_forward(NULL, l->y, l->x, l->weight, TOKENS, WIDTH, OUTPUTS);
    return weighted_sum(l->y, l->upstream, TOKENS * OUTPUTS);
}

static double rope_value(void *context)
{
    struct layer *l = context;
    memcpy(l->y, l->x, TOKENS * WIDTH * sizeof(float));
    rope_forward(NULL, l->y, &l->rope, l->index, TOKENS, WIDTH, 2);
    return weighted_sum(l->y, l->upstream, TOKENS * WIDTH);
}

static double head_norm_value(void *context)
{
    struct layer *l = context;
    memcpy(l->y, l->x, TOKENS * WIDTH * sizeof(float));
    head_norm_forward(NULL, l->y, l->rstd, TOKENS, WIDTH, 2, 8);
    return weighted_sum(l->y, l->upstream, TOKENS * WIDTH);
}

static double squared_relu_value(void *context)
{
    struct layer *l = context;
    squared_relu_forward(NULL, l->y, l->x, TOKENS, WIDTH);
    return weighted_sum(l->y, l->upstream, TOKENS * WIDTH);
}

static double embedding_value(void *context)
{
    struct layer *l = context;
    embedding_forward(NULL, l->y, l->weight, l->index, TOKENS, WIDTH);
    return weighted_sum(l->y, l->upstream, TOKENS * WIDTH);
}

static double cross_entropy_value(void *context)
{
    struct layer *l = context;
    memcpy(l->y, l->x, TOKENS * VOCABULARY * sizeof(float));
    return cross_entropy(NULL, l->y, l->loss, l->index, TOKENS, VOCABULARY, 0);
}

static void test_layers(pool *p)
{
    struct layer l = {.rope = rope_table_create(64, 8)};
    int64_t size = TOKENS * WIDTH;
    l.x = gaussian(size, 1.0, 1);
    l.y = gaussian(size, 1.0, 2);
    l.weight = gaussian(WIDTH * OUTPUTS, 1.0, 3);
    l.upstream = gaussian(size, 1.0, 4);
    l.rstd = gaussian(2 * TOKENS, 1.0, 5);
    l.loss = gaussian(TOKENS, 1.0, 6);
    for (int i = 0; i < TOKENS; i++)
        l.index[i] = i * 7 % VOCABULARY;
    float *dx = allocate_zero((size_t)size * sizeof(float));
    float *dweight = allocate_zero(WIDTH * OUTPUTS * sizeof(float));

    mxt_case("rmsnorm");
    rmsnorm_value(&l);
    rmsnorm_backward_add(p, dx, dweight, l.upstream, l.x, l.rstd, l.weight, TOKENS, WIDTH);
    check_gradient("dx", l.x, dx, size, rmsnorm_value, &l);
    check_gradient("dgain", l.weight, dweight, WIDTH, rmsnorm_value, &l);

    mxt_case("linear");
    memset(dweight, 0, WIDTH * OUTPUTS * sizeof(float));
    linear_backward(p, dx, dweight, l.upstream, l.x, l.weight, TOKENS, WIDTH, OUTPUTS);
    check_gradient("dx", l.x, dx, size, linear_value, &l);
    check_gradient("dweight", l.weight, dweight, WIDTH * OUTPUTS, linear_value, &l);

    mxt_case("rope, 2 of 3 heads of 8");
    memcpy(dx, l.upstream, (size_t)size * sizeof(float));
    rope_backward(p, dx, &l.rope, l.index, TOKENS, WIDTH, 2);
    check_gradient("dx", l.x, dx, size, rope_value, &l);

    mxt_case("norm of 2 of 3 heads of 8");
    head_norm_value(&l);
    memcpy(dx, l.upstream, (size_t)size * sizeof(float));
    head_norm_backward(p, dx, l.y, l.rstd, TOKENS, WIDTH, 2, 8);
    check_gradient("dx", l.x, dx, size, head_norm_value, &l);

    mxt_case("squared relu");
    squared_relu_backward(p, dx, l.upstream, l.x, TOKENS, WIDTH);
    check_gradient("dx", l.x, dx, size, squared_relu_value, &l);

    mxt_case("embedding");
    memset(dweight, 0, WIDTH * OUTPUTS * sizeof(float));
    embedding_backward(p, dweight, l.upstream, l.index, TOKENS, WIDTH);
    check_gradient("dtable", l.weight, dweight, VOCABULARY * WIDTH, embedding_value, &l);

    mxt_case("cross entropy");
    memcpy(dx, l.x, TOKENS * VOCABULARY * sizeof(float));
    cross_entropy(p, dx, l.loss, l.index, TOKENS, VOCABULARY, 1);
    check_gradient("dlogits", l.x, dx, TOKENS * VOCABULARY, cross_entropy_value, &l);

    float *all[] = {l.x, l.y, l.weight, l.upstream, l.rstd, l.loss, dx, dweight};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    rope_table_destroy(&l.rope);
}

/* --- attention ------------------------------------------------------------------------------ */

static const int32_t cu_seqlens[] = {0, 5, 75, 75, 76}; /* one length beyond a block, one empty */
static const jagged sequences = {4, 76, 70, cu_seqlens};

struct attending {
    attention *attend;
    float *qkv, *o, *upstream;
    int64_t o_count;
};

static double attention_value(void *context)
{
    struct attending *a = context;
    a->attend->forward(a->attend, 1, a->o, a->qkv, &sequences);
    return weighted_sum(a->o, a->upstream, a->o_count);
}

/* O of one row over keys [first, end), straight from the formula. */
static void attention_row(const attention_shape *s, const float *qkv, int first, int row, int h,
                          int end, double *o)
{
    int width = attention_qkv_width(s), d = s->head_dim, kv = h / (s->heads / s->kv_heads);
    const float *q = qkv + row * width + h * d, *k = qkv + (s->heads + kv) * d;
    const float *v = k + s->kv_heads * d;
    double sum = 0.0;
    memset(o, 0, (size_t)d * sizeof(double));
    for (int j = first; j < end; j++) {
        double dot = 0.0;
        for (int c = 0; c < d; c++)
            dot += (double)q[c] * (double)k[j * width + c];
        double p = exp(dot / sqrt(d));
        sum += p;
        for (int c = 0; c < d; c++)
            o[c] += p * (double)v[j * width + c];
    }
    for (int c = 0; c < d; c++)
        o[c] /= sum;
}

static void test_attention_float32(pool *p, int sees_all)
{
    const attention_shape shape = {2, 4, 2, 8, 80, 8, 70, sees_all};
    int64_t width = attention_qkv_width(&shape), count = sequences.tokens * width;
    struct attending a = {attention_float32_create(p, &shape), NULL, NULL, NULL,
                          sequences.tokens * 4 * 8};
    a.qkv = gaussian(count, 1.0, 7);
    a.o = gaussian(a.o_count, 1.0, 8);
    a.upstream = gaussian(a.o_count, 1.0, 9);
    float *dqkv = gaussian(count, 1.0, 10);

    mxt_case("float32 attention, 4 heads on 2, jagged, %s", sees_all ? "no mask" : "causal");
    attention_value(&a);
    for (int b = 0; b < sequences.sequences; b++) {
        for (int row = cu_seqlens[b]; row < cu_seqlens[b + 1]; row++) {
            for (int h = 0; h < 4; h++) {
                double want[8];
                attention_row(&shape, a.qkv, cu_seqlens[b], row, h,
                              sees_all ? cu_seqlens[b + 1] : row + 1, want);
                for (int c = 0; c < 8; c++)
                    CHECK(fabs((double)a.o[(row * 4 + h) * 8 + c] - want[c]) <= MXT_TRAIN_LM_O,
                          "O row %d head %d dim %d: %g, want %g", row, h, c,
                          (double)a.o[(row * 4 + h) * 8 + c], want[c]);
            }
        }
    }
    a.attend->backward(a.attend, 1, dqkv, a.upstream, a.qkv, a.o, &sequences);
    check_gradient("dqkv", a.qkv, dqkv, count, attention_value, &a);
    a.attend->destroy(a.attend);
    free(a.qkv);
    free(a.o);
    free(a.upstream);
    free(dqkv);
}

/* Both directions on the same numbers, in MXFP8 and in FP32. */
static void test_attention_mxfp8(pool *p, const char *backend, int sees_all)
{
    const attention_shape shape = {2, 4, 2, 64, 80, 8, 70, sees_all};
    int64_t count = sequences.tokens * attention_qkv_width(&shape);
    int64_t o_count = sequences.tokens * shape.heads * shape.head_dim;
    float *qkv = gaussian(count, 1.0, 7), *dout = gaussian(o_count, 1.0, 9);
    float *o[2], *dqkv[2];
    attention *attend[2] = {attention_float32_create(p, &shape),
                            attention_mxfp8_create(p, &shape, backend, VARIANT_NONE)};
    mxt_case("mxfp8 attention on %s against float32, %s", backend, sees_all ? "no mask" : "causal");
    for (int i = 0; i < 2; i++) {
        o[i] = gaussian(o_count, 1.0, 8);
        dqkv[i] = gaussian(count, 1.0, 10);
        attend[i]->forward(attend[i], 1, o[i], qkv, &sequences);
        attend[i]->backward(attend[i], 1, dqkv[i], dout, qkv, o[i], &sequences);
        attend[i]->destroy(attend[i]);
    }
    mxt_check_rms("o", o[1], o[0], mxt_shape3(sequences.tokens, shape.heads, shape.head_dim),
                  MXT_O_RMS_BF16);
    mxt_check_rms("dqkv", dqkv[1], dqkv[0],
                  mxt_shape3(sequences.tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim),
                  MXT_DQ_DK_RMS);
    for (int i = 0; i < 2; i++) {
        free(o[i]);
        free(dqkv[i]);
    }
    free(qkv);
    free(dout);
}

/* --- the whole network ---------------------------------------------------------------------- */

static const model_config tiny = {.vocabulary = VOCABULARY,
                                  .layers = 2,
                                  .width = WIDTH,
                                  .hidden = 40,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .max_tokens = 80,
                                  .max_sequences = 8,
                                  .max_length = 70};

static batch tiny_batch(void)
{
    static const int lengths[] = {5, 70, 1};
    int input[70], target[70];
    batch b = batch_create(80);
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < lengths[s]; i++) {
            input[i] = (i * 5 + s) % VOCABULARY;
            target[i] = (i * i + s) % VOCABULARY;
        }
        batch_append(&b, input, target, lengths[s]);
    }
    return b;
}

/* A network whose every parameter is random, none zero. */
static model *tiny_model(pool *p)
{
    attention_shape shape = model_attention_shape(&tiny);
    model *m = model_create(p, &tiny, attention_float32_create(p, &shape), 1);
    float *values = gaussian(m->weights.count, 0.3, 11);
    for (int64_t i = 0; i < m->weights.count; i++)
        m->weights.all[i] = values[i] + (i < m->weights.matrices ? 0.0f : 1.0f);
    free(values);
    return m;
}

struct network {
    model *m;
    batch b;
};

static double network_value(void *context)
{
    struct network *n = context;
    model_forward(n->m, &n->b);
    return model_loss(n->m, &n->b, 0);
}

static void test_network(pool *p)
{
    struct network n = {tiny_model(p), tiny_batch()};
    parameters *w = &n.m->weights, *g = &n.m->gradients;
    mxt_case("network of 2 layers");
    model_forward(n.m, &n.b);
    model_loss(n.m, &n.b, 1);
    model_backward(n.m, &n.b);
    const struct {
        const char *name;
        float *weight, *gradient;
        int64_t count;
    } part[] = {
        {"embedding", w->embedding, g->embedding, VOCABULARY * WIDTH},
        {"head", w->head, g->head, VOCABULARY * WIDTH},
        {"final gain", w->final_gain, g->final_gain, WIDTH},
        {"qkv 0", w->layer[0].qkv, g->layer[0].qkv, 64 * WIDTH},
        {"qkv 1", w->layer[1].qkv, g->layer[1].qkv, 64 * WIDTH},
        {"out 0", w->layer[0].out, g->layer[0].out, 32 * WIDTH},
        {"up 1", w->layer[1].up, g->layer[1].up, 40 * WIDTH},
        {"down 0", w->layer[0].down, g->layer[0].down, 40 * WIDTH},
        {"attention gain 0", w->layer[0].attention_gain, g->layer[0].attention_gain, WIDTH},
        {"mlp gain 1", w->layer[1].mlp_gain, g->layer[1].mlp_gain, WIDTH},
    };
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        check_gradient(part[i].name, part[i].weight, part[i].gradient, part[i].count, network_value,
                       &n);
    batch_destroy(&n.b);
    model_destroy(n.m);
}

/* Ten optimizer steps; returns the weights. */
static float *ten_steps(int threads, double *first, double *last)
{
    pool *p = pool_create(threads);
    model *m = tiny_model(p);
    batch b = tiny_batch();
    adamw optimizer = adamw_create(&m->weights);
    for (int step = 0; step < 10; step++) {
        model_forward(m, &b);
        *last = model_loss(m, &b, 1);
        *first = step == 0 ? *last : *first;
        model_backward(m, &b);
        adamw_step(&optimizer, p, &m->weights, &m->gradients, 0.01);
    }
    float *weights = allocate((size_t)m->weights.count * sizeof(float));
    memcpy(weights, m->weights.all, (size_t)m->weights.count * sizeof(float));
    adamw_destroy(&optimizer);
    batch_destroy(&b);
    model_destroy(m);
    pool_destroy(p);
    return weights;
}

static void test_training(void)
{
    double first = 0.0, last = 0.0;
    float *one = ten_steps(1, &first, &last);
    mxt_case("ten steps lower the loss");
    CHECK(last < 0.8 * first, "loss %g after ten steps from %g", last, first);
    for (int threads = 2; threads <= 5; threads++) {
        mxt_case("ten steps, %d threads: same bits", threads);
        float *more = ten_steps(threads, &first, &last);
        int64_t count = parameters_count(&tiny);
        CHECK(memcmp(one, more, (size_t)count * sizeof(float)) == 0, "weights differ");
        free(more);
    }
    free(one);
}

/* --- data: histories -------------------------------------------------------------------------- */

static void test_histories(void)
{
    mxt_case("histories: hidden items are what is predicted, lengths have a long tail");
    text *t = histories_create(3);
    int longest = 0, shortest = MAX_PASSAGE, hidden = 0, tokens = 0;
    for (int n = 0; n < t->train.count; n++) {
        const passage p = t->train.list[n];
        longest = p.length > longest ? p.length : longest;
        shortest = p.length < shortest ? p.length : shortest;
    }
    CHECK(shortest >= 4 && longest > 250 && longest <= MAX_PASSAGE, "lengths %d to %d", shortest,
          longest);
    batch b = batch_create(1024);
    sampler s = sampler_create(t, 1);
    for (int n = 0; n < 50; n++) {
        sampler_fill(&s, &b);
        int targets = 0;
        for (int i = 0; i < b.sequences.tokens; i++) {
            CHECK((b.input[i] == t->hidden) == (b.target[i] >= 0), "token %d of batch %d", i, n);
            targets += b.target[i] >= 0;
        }
        CHECK(targets == b.targets, "%d targets; counted %d", b.targets, targets);
        hidden += targets;
        tokens += b.sequences.tokens;
    }
    CHECK(hidden > tokens / 4 && hidden < 2 * tokens / 5, "%d of %d are hidden", hidden, tokens);
    batch again = batch_create(1024);
    validation_fill(t, &b, 0);
    validation_fill(t, &again, 0);
    CHECK(!memcmp(b.input, again.input, (size_t)b.sequences.tokens * sizeof(int)),
          "validation hides other items the second time");
    batch_destroy(&again);
    batch_destroy(&b);
    sampler_destroy(&s);
    text_destroy(t);
}

enum { ITEMS = 48 };

/* Of all items of a history of a user of two tastes, by what histories.c says of them; successor is
 * read off the histories. Sums over every way in which the user may have turned. */
static double history_probability(const int *items, int length, const int *successor, int first,
                                  int second)
{
    enum { KIND_ITEMS = 8 };
    const int taste[2] = {first, second};
    double sum = 0.0;
    for (int turns = 0; turns < 1 << length; turns++) { /* bit i: turns before choice i */
        double product = 1.0;
        int which = 0;
        for (int i = 0; i < length && product > 0.0; i++) {
            const int turn = turns >> i & 1, place = items[i] % KIND_ITEMS;
            which ^= turn;
            const int fits = items[i] / KIND_ITEMS == taste[which];
            const double popular = fits ? log((place + 2.0) / (place + 1.0)) / log(9.0) : 0.0;
            const int anew = turn || i == 0;
            product *= turn ? 0.05 : 0.95;
            product *= anew ? popular : 0.3 * popular + 0.7 * (successor[items[i - 1]] == items[i]);
        }
        sum += product;
    }
    return sum;
}

static double histories_probability(const int *items, int length, const int *successor)
{
    double sum = 0.0;
    for (int pair = 0; pair < 36; pair++)
        sum += history_probability(items, length, successor, pair / 6, pair % 6);
    return sum;
}

/* What follows each item most often. */
static void read_successors(const text *t, int successor[ITEMS])
{
    int *counts = allocate_zero(ITEMS * ITEMS * sizeof(int));
    for (int i = 1; i < t->count; i++)
        if (t->tokens[i - 1] < ITEMS && t->tokens[i] < ITEMS)
            counts[t->tokens[i - 1] * ITEMS + t->tokens[i]]++;
    for (int a = 0; a < ITEMS; a++) {
        successor[a] = 0;
        for (int b = 1; b < ITEMS; b++)
            if (counts[a * ITEMS + b] > counts[a * ITEMS + successor[a]])
                successor[a] = b;
    }
    free(counts);
}

/* The floor of single short histories with two items hidden, by trying all 48 x 48. */
static void test_floor(void)
{
    text *t = histories_create(3);
    const passage_list all = t->validation;
    int successor[ITEMS], checked = 0;
    read_successors(t, successor);
    for (int n = 0; n < all.count && checked < 6; n++) {
        const passage p = all.list[n];
        int input[MAX_PASSAGE], target[MAX_PASSAGE], at[MAX_PASSAGE], hidden = 0;
        t->validation = (passage_list){(passage[]){p}, 1, p.length};
        validation_hide(t, 0, input, target);
        for (int i = 0; i < p.length; i++)
            if (target[i] >= 0)
                at[hidden++] = i;
        if (p.length > 7 || hidden != 2)
            continue;
        double sum = 0.0, right[2] = {0.0, 0.0};
        for (int items = 0; items < ITEMS * ITEMS; items++) {
            const int tried[2] = {items / ITEMS, items % ITEMS};
            input[at[0]] = tried[0];
            input[at[1]] = tried[1];
            const double probability = histories_probability(input, p.length, successor);
            sum += probability;
            for (int i = 0; i < 2; i++)
                right[i] += tried[i] == target[at[i]] ? probability : 0.0;
        }
        mxt_case("floor: history %d, %d items, numbers %d and %d hidden", n, p.length, at[0],
                 at[1]);
        const double floor = histories_floor(t, 3);
        const double tried_all = -0.5 * (log(right[0] / sum) + log(right[1] / sum));
        CHECK(fabs(floor - tried_all) < 1e-9, "%g, by trying all items %g", floor, tried_all);
        checked++;
    }
    CHECK(checked == 6, "only %d short histories", checked);
    t->validation = all;
    text_destroy(t);
}

/* --- data ----------------------------------------------------------------------------------- */

static void test_text(void)
{
    mxt_case("passages cover the text, each once");
    text *t = text_load("examples/data/kjv.txt", 1);
    int line_end = t->token_of['\n'], tokens = t->train.tokens + t->validation.tokens;
    int chapter_breaks = 0;
    for (int i = 1; i < t->count; i++)
        chapter_breaks += t->tokens[i] == line_end && t->tokens[i - 1] == line_end;
    CHECK(tokens == t->count - 1 - chapter_breaks, "%d tokens in passages; want %d", tokens,
          t->count - 1 - chapter_breaks);
    for (int n = 0; n < t->train.count; n++) {
        passage p = t->train.list[n];
        CHECK(t->tokens[p.start - 1] == line_end, "passage %d does not start a line", n);
        CHECK(p.length <= MAX_PASSAGE, "passage %d is %d long", n, p.length);
    }

    mxt_case("batches are packed: lengths, positions, targets one ahead");
    batch b = batch_create(2048);
    sampler s = sampler_create(t, 1);
    for (int n = 0; n < 100; n++) {
        sampler_fill(&s, &b);
        const jagged *j = &b.sequences;
        CHECK(j->tokens > 2048 - MAX_PASSAGE && j->tokens <= 2048, "batch %d: %d tokens", n,
              j->tokens);
        CHECK(b.cu_seqlens[j->sequences] == j->tokens, "batch %d: cu_seqlens ends at %d", n,
              b.cu_seqlens[j->sequences]);
        for (int q = 0; q < j->sequences; q++) {
            CHECK(b.input[b.cu_seqlens[q]] == line_end, "sequence %d starts inside a line", q);
            for (int i = b.cu_seqlens[q]; i < b.cu_seqlens[q + 1]; i++) {
                CHECK(b.position[i] == i - b.cu_seqlens[q], "position of row %d", i);
                CHECK(i + 1 == b.cu_seqlens[q + 1] || b.target[i] == b.input[i + 1],
                      "target of row %d", i);
            }
        }
    }
    sampler_destroy(&s);
    batch_destroy(&b);
    text_destroy(t);
}

int main(void)
{
    pool *p = pool_create(3);
    test_gemm(p);
    test_layers(p);
    test_attention_float32(p, 0);
    test_attention_float32(p, 1);
    test_attention_mxfp8(p, "ref", 0);
    test_attention_mxfp8(p, "ref", 1);
    test_attention_mxfp8(p, "cpu", 0);
    test_attention_mxfp8(p, "cpu", 1);
    test_network(p);
    test_training();
    test_text();
    test_histories();
    test_floor();
    pool_destroy(p);
    return mxt_finish();
}
