/* test_threads.c: one context used by many threads, and many calls in a row, from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 8, CALLS = 25, SHAPES = 5, LONGEST = 90, HEADS = 4, D = 32 };
static const int64_t lengths[SHAPES] = {1, 31, 64, 70, LONGEST};

/* Forward of a shape into o: its own memory, nothing of the harness, which is not for threads. */
static mxattn_status run(const mxattn_context *context, const mxt_config *config, int64_t seqlen,
                         const float *values, float *o)
{
    const int64_t shape_q[4] = {1, seqlen, HEADS, D}, shape_k[4] = {1, seqlen, 1, D};
    const mxattn_tags operand = {.dtype = MXATTN_F32, .block = MXATTN_BLOCK_SQUARE};
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_tensor q, k, v, out;
    mxattn_attention_problem_init(&problem);
    problem.backend = config->backend;
    problem.precision = config->precision;
    problem.intermediates = config->intermediates;
    problem.causal = 1;
    problem.q = problem.k = problem.v = operand;
    problem.o = (mxattn_tags){.dtype = MXATTN_F32};
    mxattn_tensor_view(&q, MXATTN_F32, (void *)values, 4, shape_q);
    mxattn_tensor_view(&k, MXATTN_F32, (void *)values, 4, shape_k);
    mxattn_tensor_view(&v, MXATTN_F32, (void *)(values + seqlen * D), 4, shape_k);
    mxattn_tensor_view(&out, MXATTN_F32, o, 4, shape_q);
    mxattn_attention_args_init(&args);
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.o = &out;
    return mxattn_attention_forward_once(context, &problem, &args);
}

typedef struct worker {
    pthread_t thread;
    const mxt_config *config;
    const mxattn_context *context;
    const float *values;
    float *const *wanted;
    int index, wrong;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    float *o = malloc(LONGEST * HEADS * D * sizeof *o);
    for (int call = 0; call < CALLS; call++) {
        const int shape = (call + w->index) % SHAPES;
        const size_t bytes = (size_t)(lengths[shape] * HEADS * D) * sizeof *o;
        memset(o, 0xFF, bytes);
        if (run(w->context, w->config, lengths[shape], w->values, o) != MXATTN_OK ||
            memcmp(o, w->wanted[shape], bytes) != 0)
            w->wrong++;
    }
    free(o);
    return NULL;
}

static void shared_context(const mxt_config *config)
{
    const size_t count = LONGEST * HEADS * D;
    mxt_host_only(config);
    float *values = malloc(count * sizeof *values), *wanted[SHAPES];
    mxt_fill_f32(values, LONGEST * HEADS, D, MXT_GAUSSIAN, 31);
    mxattn_context *context = NULL;
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    options.threads = 3;
    options.isa_mask = config->isa_mask ? config->isa_mask : MXATTN_ISA_ALL;
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    for (int i = 0; i < SHAPES; i++) {
        wanted[i] = malloc(count * sizeof *values);
        CHECK_STATUS(MXATTN_OK, run(context, config, lengths[i], values, wanted[i]));
    }
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){
            .config = config, .context = context, .values = values, .wanted = wanted, .index = i};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "thread %d", i);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        CHECK(workers[i].wrong == 0, "thread %d: %d of %d calls differ", i, workers[i].wrong,
              CALLS);
    }
    for (int i = 0; i < SHAPES; i++)
        free(wanted[i]);
    free(values);
    mxattn_context_destroy(context);
}

static int64_t resident_bytes(void)
{
    long long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lld %lld", &pages, &resident) != 2)
        resident = -1;
    if (file)
        (void)fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static void many_calls(const mxt_config *config)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)config;
    mxt_skip("a sanitizer keeps freed memory");
#else
    enum { TINY = 20000, CONTEXTS = 1000 };
    mxt_host_only(config);
    float values[2 * HEADS * D], o[HEADS * D];
    mxt_fill_f32(values, 2 * HEADS, D, MXT_GAUSSIAN, 37);
    int64_t before = 0;
    int failed = 0;
    for (int i = 0; i < TINY; i++) {
        failed += run(mxt_config_context(config), config, 1, values, o) != MXATTN_OK;
        if (i == 100)
            before = resident_bytes();
    }
    for (int i = 0; i < CONTEXTS; i++) {
        mxattn_context *context = NULL;
        failed += mxattn_context_create(NULL, &context) != MXATTN_OK;
        mxattn_context_destroy(context);
    }
    const int64_t grown = resident_bytes() - before;
    CHECK(failed == 0, "%d calls failed", failed);
    CHECK(before > 0 && grown < 1 << 20, "memory grew by %lld bytes", (long long)grown);
#endif
}

static const mxt_named_case cases[] = {
    {"B126 memory after many calls", many_calls},
    {"B127 one context, eight threads", shared_context},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
