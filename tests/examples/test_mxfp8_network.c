/* test_mxfp8_network.c: the network with every activation in MXFP8: near the float32 one in loss
 * and gradients, the same bits for any number of threads, nothing quantized or gathered on the way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "adamw.h"
#include "mxfp8_library.h"
#include "mxfp8_network.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 40, TOKENS = 200 };

static const model_config config = {.vocabulary = VOCABULARY,
                                    .layers = 2,
                                    .width = 64,
                                    .hidden = 96,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 64,
                                    .max_tokens = TOKENS,
                                    .max_sequences = 8,
                                    .max_length = 130};

static batch make_batch(void)
{
    static const int lengths[] = {5, 130, 1, 60};
    int input[130], target[130];
    batch b = batch_create(TOKENS);
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < lengths[s]; i++) {
            input[i] = (i * 5 + s) % VOCABULARY;
            target[i] = (i * i + s) % VOCABULARY;
        }
        batch_append(&b, input, target, lengths[s]);
    }
    return b;
}

/* Every parameter random; gains around 1. */
static void set_weights(model *m)
{
    random_state random = {7};
    for (int64_t i = 0; i < m->weights.count; i++)
        m->weights.all[i] =
            (float)((i < m->weights.matrices ? 0.0 : 1.0) + 0.12 * random_normal(&random));
    model_weights_changed(m);
}

static double cosine_of(const float *a, const float *b, int64_t count)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < count; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static double loss_and_gradient(model *m, const batch *b)
{
    model_forward(m, b);
    const double loss = model_loss(m, b, 1);
    model_backward(m, b);
    return loss;
}

static void test_against_float32(pool *p, int sees_all)
{
    model_config c = config;
    c.sees_all = sees_all;
    const attention_shape shape = model_attention_shape(&c);
    batch b = make_batch();
    model *wide = model_create(p, &c, attention_float32_create(p, &shape), 1);
    model *narrow = model_create_mxfp8(p, &c, mxfp8_network_create(p, &c, "auto", VARIANT_NONE), 1);
    mxt_case("loss and gradients near float32's, %s", sees_all ? "no mask" : "causal");
    set_weights(wide);
    set_weights(narrow);
    const double a = loss_and_gradient(wide, &b), x = loss_and_gradient(narrow, &b);
    CHECK(fabs(x - a) < MXT_TRAIN_LM_MXFP8_LOSS * a, "loss %.5f, float32 %.5f", x, a);
    const parameters *g = &wide->gradients, *h = &narrow->gradients;
    const int64_t w = c.width, qkv = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const struct {
        const char *name;
        const float *want, *got;
        int64_t count;
    } part[] = {{"embedding", g->embedding, h->embedding, VOCABULARY * w},
                {"head", g->head, h->head, VOCABULARY * w},
                {"final gain", g->final_gain, h->final_gain, w},
                {"qkv 0", g->layer[0].qkv, h->layer[0].qkv, qkv * w},
                {"qkv 1", g->layer[1].qkv, h->layer[1].qkv, qkv * w},
                {"out 0", g->layer[0].out, h->layer[0].out, c.heads * c.head_dim * w},
                {"up 0", g->layer[0].up, h->layer[0].up, c.hidden * w},
                {"down 1", g->layer[1].down, h->layer[1].down, c.hidden * w},
                {"attention gain 0", g->layer[0].attention_gain, h->layer[0].attention_gain, w},
                {"mlp gain 1", g->layer[1].mlp_gain, h->layer[1].mlp_gain, w}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const double cosine = cosine_of(part[i].want, part[i].got, part[i].count);
        CHECK(cosine > MXT_TRAIN_LM_MXFP8_COSINE, "%s: cosine %.5f", part[i].name, cosine);
    }
    const mxfp8_counts counts = mxfp8_network_counts(narrow->narrow);
    mxt_case("zero-gather: every MXFP8 operand lies where a producer wrote it");
    CHECK(counts.foreign == 0 && counts.operands > 50, "%lld of %lld operands are not",
          (long long)counts.foreign, (long long)counts.operands);
    mxt_case("nothing but weights is quantized outside producers");
    CHECK(counts.activations == 0 && counts.weights == 2 * 4 * c.layers,
          "%lld activations, %lld weights", (long long)counts.activations,
          (long long)counts.weights);
    batch_destroy(&b);
    model_destroy(wide);
    model_destroy(narrow);
}

static float *ten_steps(int threads, double *first, double *last)
{
    pool *p = pool_create(threads);
    model *m =
        model_create_mxfp8(p, &config, mxfp8_network_create(p, &config, "auto", VARIANT_NONE), 1);
    batch b = make_batch();
    set_weights(m);
    adamw optimizer = adamw_create(&m->weights);
    for (int step = 0; step < 10; step++) {
        *last = loss_and_gradient(m, &b);
        *first = step == 0 ? *last : *first;
        adamw_step(&optimizer, p, &m->weights, &m->gradients, 0.01);
        model_weights_changed(m);
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
    double first = 0, last = 0;
    float *one = ten_steps(1, &first, &last);
    mxt_case("ten steps lower the loss");
    CHECK(last < 0.8 * first, "loss %g after ten steps from %g", last, first);
    mxt_case("ten steps, 3 threads: same bits");
    float *three = ten_steps(3, &first, &last);
    CHECK(!memcmp(one, three, (size_t)parameters_count(&config) * sizeof(float)), "weights differ");
    free(one);
    free(three);
}

/* The demo's sizes, text (4 layers) and recommender (2), and at twice the width: what the
 * documentation promises. */
static void test_saved_bytes(pool *p, int layers, int width)
{
    model_config c = {.vocabulary = 62,
                      .layers = layers,
                      .width = width,
                      .hidden = 3 * width,
                      .heads = width / 32,
                      .kv_heads = width / 64,
                      .head_dim = 64,
                      .max_tokens = 1024,
                      .max_sequences = 1024,
                      .max_length = 512};
    mxt_case("bytes kept for backward, %d layers of %d: 0.62x those of BF16 in all, 0.54x between "
             "layers",
             layers, width);
    mxfp8_network *n = mxfp8_network_create(p, &c, "auto", VARIANT_NONE);
    const saved_bytes got = mxfp8_network_saved(n, 1024), bf16 = model_saved_bf16(&c, 1024);
    CHECK((double)got.all <= 0.62 * (double)bf16.all, "%.3fx in all",
          (double)got.all / (double)bf16.all);
    CHECK((double)got.crossing <= 0.54 * (double)bf16.crossing, "%.3fx between layers",
          (double)got.crossing / (double)bf16.crossing);
    mxfp8_network_destroy(n);
}

static void test_foreign(pool *p)
{
    mxfp8_library library;
    uint8_t memory[4][64];
    mxattn_tensor t;
    mxt_case("an operand that no call wrote is counted");
    mxfp8_library_open(&library, p, "auto", VARIANT_NONE);
    mxattn_tensor_view(&t, MXATTN_E4M3, memory[1], 2, (int64_t[]){2, 32});
    mxfp8_reads(&library, &t);
    CHECK(library.operands == 1 && library.foreign == 1, "%lld of %lld", (long long)library.foreign,
          (long long)library.operands);
    mxfp8_wrote(&library, &t);
    mxfp8_reads(&library, &t);
    t.data = memory[2];
    mxfp8_reads(&library, &t);
    mxfp8_reads(&library, NULL);
    CHECK(library.operands == 3 && library.foreign == 2, "%lld of %lld", (long long)library.foreign,
          (long long)library.operands);
    mxfp8_library_close(&library);
}

int main(void)
{
    pool *p = pool_create(2);
    test_against_float32(p, 0);
    test_against_float32(p, 1);
    for (int layers = 2; layers <= 4; layers += 2)
        for (int width = 128; width <= 256; width += 128)
            test_saved_bytes(p, layers, width);
    test_foreign(p);
    pool_destroy(p);
    test_training();
    return mxt_finish();
}
