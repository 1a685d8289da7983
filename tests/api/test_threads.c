/* test_threads.c: B127: many threads through one context, and through contexts of their own; the
 * results have the bits of a serial run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "report.h"

#include <pthread.h>
#include <string.h>

/* A sanitizer is twenty times slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { CALLS = 200 };
#else
enum { CALLS = 1000 };
#endif

enum { THREADS = 8, SHAPES = 4, LARGEST = 24 * 4 * 32 };

/* A call of one of a few shapes, with its inputs made from a seed. */
static mxattn_status attend(const mxattn_context *context, mxattn_backend backend, int shape,
                            float *o)
{
    const int64_t tokens = 3 + 7 * shape, heads = shape % 2 ? 4 : 2;
    const int64_t q[4] = {1, tokens, heads, 32}, k[4] = {1, tokens, 1, 32};
    static _Thread_local float values[3 * LARGEST];
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_tensor of_q, of_k, of_v, of_o;
    for (int i = 0; i < 3 * LARGEST; i++)
        values[i] = (float)((i * (2 * shape + 5)) % 251 - 125) / 32;
    mxattn_tensor_view(&of_q, MXATTN_F32, values, 4, q);
    mxattn_tensor_view(&of_k, MXATTN_F32, values + LARGEST, 4, k);
    mxattn_tensor_view(&of_v, MXATTN_F32, values + 2 * LARGEST, 4, k);
    mxattn_tensor_view(&of_o, MXATTN_F32, o, 4, q);
    mxattn_attention_problem_init(&problem);
    problem.backend = backend;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.o.dtype = MXATTN_F32;
    problem.causal = shape & 1;
    mxattn_attention_args_init(&args);
    args.q = &of_q;
    args.k = &of_k;
    args.v = &of_v;
    args.o = &of_o;
    return mxattn_attention_forward_once(context, &problem, &args);
}

typedef struct {
    pthread_t thread;
    const mxattn_context *context; /* NULL: the default one */
    mxattn_backend backend;
    int number, own_context, calls;
    int faults; /* statuses and differing results */
    float (*want)[LARGEST];
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    float o[LARGEST];
    mxattn_context *own = NULL;
    if (w->own_context) {
        mxattn_context_options options;
        mxattn_context_options_init(&options);
        options.threads = 1 + w->number % 3;
        if (mxattn_context_create(&options, &own))
            w->faults++;
    }
    for (int i = 0; i < w->calls; i++) {
        const int shape = (i + w->number) % SHAPES;
        memset(o, 0, sizeof o);
        if (attend(own ? own : w->context, w->backend, shape, o) != MXATTN_OK ||
            memcmp(o, w->want[shape], sizeof o) != 0)
            w->faults++;
    }
    mxattn_context_destroy(own);
    return NULL;
}

static void test(mxattn_backend backend, int own_context, const mxattn_context *context, int calls)
{
    static float want[SHAPES][LARGEST];
    worker workers[THREADS];
    memset(want, 0, sizeof want);
    mxt_case("B127 backend %d, %s", (int)backend,
             own_context ? "own contexts"
             : context   ? "one context"
                         : "the default context");
    for (int shape = 0; shape < SHAPES; shape++)
        CHECK_STATUS(MXATTN_OK, attend(context, backend, shape, want[shape]));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.context = context,
                              .backend = backend,
                              .number = i,
                              .own_context = own_context,
                              .calls = calls,
                              .want = want};
        (void)pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        CHECK(workers[i].faults == 0, "thread %d: %d of %d calls went wrong", i, workers[i].faults,
              calls);
    }
}

int main(void)
{
    for (mxattn_backend backend = MXATTN_BACKEND_REF; backend <= MXATTN_BACKEND_CPU; backend++) {
        const int calls = backend == MXATTN_BACKEND_CPU ? CALLS : CALLS / 20;
        const char *missing = mxt_attention_call_missing(backend);
        mxattn_context *context = NULL;
        if (missing) {
            mxt_case("backend %d", (int)backend);
            mxt_skip("%s", missing);
            continue;
        }
        CHECK_STATUS(MXATTN_OK, mxattn_context_create(NULL, &context));
        test(backend, 0, NULL, calls);
        test(backend, 0, context, calls);
        test(backend, 1, context, calls);
        mxattn_context_destroy(context);
    }
    return mxt_finish();
}
