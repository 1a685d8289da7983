/* main.c: trains the network once for each kind of attention and compares.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "adamw.h"
#include "generate.h"
#include "mxfp8_network.h"
#include "options.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>

enum { VALIDATIONS = 4 }; /* in each training, evenly spread, the last one after the last step */

/* What a training attends with, or its whole network. */
typedef struct engine {
    attention *attend;
    mxfp8_network *narrow;
} engine;

static engine create_engine(pool *p, const model_config *c, enum attention_kind kind,
                            const options *o)
{
    attention_shape shape = model_attention_shape(c);
    if (kind == ATTENTION_MXFP8_ALL)
        return (engine){.narrow = mxfp8_network_create(p, c, o->backend, o->variant)};
    if (kind == ATTENTION_FLOAT32)
        return (engine){.attend = attention_float32_create(p, &shape)};
    if (kind == ATTENTION_MXFP8)
        return (engine){.attend = attention_mxfp8_create(p, &shape, o->backend, o->variant)};
    return (engine){.attend = attention_none_create(&shape)};
}

static model *create_model(pool *p, const model_config *c, const engine *e, uint64_t seed)
{
    return e->narrow ? model_create_mxfp8(p, c, e->narrow, seed)
                     : model_create(p, c, e->attend, seed);
}

static const char *describe(const engine *e)
{
    return e->narrow ? mxfp8_network_description(e->narrow) : e->attend->description;
}

static model_config configure(const options *o, const text *t)
{
    enum { HEAD_DIM = 64, MLP_RATIO = 3 };
    int heads = 2 * o->width / HEAD_DIM; /* queries twice as wide as the network */
    return (model_config){.vocabulary = t->vocabulary,
                          .layers = o->layers,
                          .width = o->width,
                          .hidden = MLP_RATIO * o->width,
                          .heads = heads,
                          .kv_heads = heads / 2,
                          .head_dim = HEAD_DIM,
                          .max_tokens = o->batch_tokens,
                          .max_sequences = o->batch_tokens,
                          .max_length = MAX_PASSAGE,
                          .sees_all = t->hidden >= 0};
}

static double validate(model *m, const text *t, batch *b)
{
    double sum = 0.0;
    int targets = 0;
    for (int next = 0; next < t->validation.count;) {
        next = validation_fill(t, b, next);
        model_forward(m, b);
        sum += model_loss(m, b, 0) * b->targets;
        targets += b->targets;
    }
    return sum / targets;
}

/* What the run kept and converted. */
static void account(const model *m, const options *o, run_report *run)
{
    const saved_bytes saved = model_saved(m, o->batch_tokens);
    const saved_bytes bf16 = model_saved_bf16(&m->config, o->batch_tokens);
    run->saved = saved.all;
    run->saved_crossing = saved.crossing;
    run->saved_bf16 = bf16.all;
    run->saved_bf16_crossing = bf16.crossing;
}

/* Of the steps alone: validation counts too, otherwise. */
static void account_step(const model *m, int steps, run_report *run, int sign)
{
    const double part = (double)sign / steps;
    if (m->narrow) {
        const mxfp8_counts counts = mxfp8_network_counts(m->narrow);
        run->quantizations += part * (double)counts.activations;
        run->weights += part * (double)counts.weights;
        run->operands += part * (double)counts.operands;
        run->foreign += sign * counts.foreign;
    } else {
        run->quantizations += part * (double)m->attend->quantizations;
    }
}

static void train(model *m, const text *t, const options *o, run_report *run,
                  progress_line *progress)
{
    batch b = batch_create(o->batch_tokens);
    sampler source = sampler_create(t, o->seed);
    adamw optimizer = adamw_create(&m->weights);
    int64_t tokens = 0;
    for (int step = 0; step < o->steps; step++) {
        double start = seconds_now(), attention_start = m->attention_seconds;
        account_step(m, o->steps, run, -1);
        sampler_fill(&source, &b);
        model_forward(m, &b);
        run->train_loss[step] = (float)model_loss(m, &b, 1);
        model_backward(m, &b);
        adamw_step(&optimizer, m->p, &m->weights, &m->gradients,
                   learning_rate_at(o->learning_rate, step, o->steps));
        model_weights_changed(m);
        account_step(m, o->steps, run, 1);
        run->tokens[step] = tokens += b.sequences.tokens;
        run->train_seconds += seconds_now() - start;
        run->attention_seconds += m->attention_seconds - attention_start;

        int due = (step + 1) * VALIDATIONS / o->steps > step * VALIDATIONS / o->steps;
        run->validation_loss[step] = due ? (float)validate(m, t, &b) : NAN;
        if (step + 1 == o->steps)
            run->final_loss = (double)run->validation_loss[step];
        progress_step(progress, run, step);
    }
    adamw_destroy(&optimizer);
    sampler_destroy(&source);
    batch_destroy(&b);
}

static run_report report_create(const char *name, int steps)
{
    run_report run = {.name = name, .steps = steps};
    run.train_loss = allocate((size_t)steps * sizeof(float));
    run.validation_loss = allocate((size_t)steps * sizeof(float));
    run.tokens = allocate((size_t)steps * sizeof(int64_t));
    return run;
}

static void report_destroy(run_report *run)
{
    free(run->train_loss);
    free(run->validation_loss);
    free(run->tokens);
}

int main(int argc, char **argv)
{
    options o = options_read(argc, argv);
    pool *p = pool_create(o.threads);
    text *t = o.recommend ? histories_create(o.seed) : text_load(o.text, o.seed);
    model_config config = configure(&o, t);
    double bigram = bigram_cross_entropy(t);
    printf("%s: %d tokens, %d different; %d sequences to train on, %d (%d tokens) to validate\n",
           o.recommend ? "histories" : "text", t->count, t->vocabulary, t->train.count,
           t->validation.count, t->validation.tokens);
    printf("bigram model of the same data: cross entropy %.4f nats\n", bigram);
    const double least = o.recommend ? histories_floor(t, o.seed) : NAN;
    if (o.recommend)
        printf(
            "who knows how the histories were made: cross entropy %.4f nats, the least possible\n",
            least);
    run_report runs[ATTENTION_KINDS];
    engine engines[ATTENTION_KINDS];
    report_make_directory(o.out);
    for (int i = 0; i < o.run_count; i++) /* all first: a refusal should not come after minutes */
        engines[i] = create_engine(p, &config, o.runs[i], &o);
    progress_line progress = progress_start(o.steps * o.run_count);
    for (int i = 0; i < o.run_count; i++) {
        runs[i] = report_create(attention_kind_name(o.runs[i]), o.steps);
        model *m = create_model(p, &config, &engines[i], o.seed);
        if (i == 0)
            printf("network: %d layers, width %d, %d heads on %d kv heads of 64, %.2f million "
                   "parameters, %d threads\n",
                   config.layers, config.width, config.heads, config.kv_heads,
                   1e-6 * (double)m->weights.count, pool_threads(p));
        printf("attention %s: %s\n", runs[i].name, describe(&engines[i]));
        account(m, &o, &runs[i]);
        train(m, t, &o, &runs[i], &progress);
        progress_clear(&progress);
        if (!o.recommend)
            generate_lines(m, t, o.seed);
        report_write_csv(&runs[i], o.out);
        model_destroy(m);
    }
    report_compare(runs, o.run_count, bigram, least);
    for (int i = 0; i < o.run_count; i++)
        report_destroy(&runs[i]);
    text_destroy(t);
    pool_destroy(p);
    return 0;
}
