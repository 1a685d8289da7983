/* test_alloc_fail.c: memory that runs out. Every allocation of the library fails once, in turn: the
 * status is MEMORY with a sentence, nothing stays allocated, and the next try succeeds. And runs
 * allocate nothing: all of malloc's family is counted (linked with --wrap).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "fill.h"
#include "guard.h"
#include "report.h"

#include "mxattn/mxattn.h"

#include <stdlib.h>
#include <string.h>

/* An allocator whose call number fail_at returns NULL (counted from 0; -1: none). */
typedef struct account {
    int64_t calls, live, fail_at;
} account;

static void *account_alloc(void *user, size_t bytes, size_t alignment)
{
    account *a = user;
    void *memory = NULL;
    if (a->calls++ == a->fail_at)
        return NULL;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
        return NULL;
    a->live++;
    return memory;
}

static void account_free(void *user, void *memory)
{
    account *a = user;
    a->live -= memory != NULL;
    free(memory);
}

/* The linker sends the static library's calls here. */
static int64_t family_calls;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    family_calls++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    family_calls++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    family_calls++;
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    family_calls++;
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    family_calls++;
    return __real_posix_memalign(memory, alignment, bytes);
}

enum { SQ = 40, SK = 70, HEADS = 4, KV_HEADS = 2, DIM = 32 };

static const mxattn_backend backends[] = {MXATTN_BACKEND_REF, MXATTN_BACKEND_CPU};
static const char *const backend_names[] = {"ref", "cpu"};

static mxattn_attention_problem problem_of(mxattn_backend backend)
{
    mxattn_attention_problem problem;
    mxattn_attention_problem_init(&problem);
    problem.backend = backend;
    problem.mode = MXATTN_TRAINING;
    problem.max_seqlen_q = SQ;
    problem.max_seqlen_k = SK;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.head_dim = DIM;
    problem.causal = 1;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.dout.dtype = MXATTN_F32;
    problem.o.dtype = problem.dq.dtype = problem.dk.dtype = problem.dv.dtype = MXATTN_F32;
    return problem;
}

/* Buffers of one training step; every one guarded. */
typedef struct step {
    float *q, *kv, *o, *lse, *dout, *dq, *dk, *dv;
    void *saved, *workspace;
    mxattn_tensor tq, tkv, to, tlse, tdout, tdq, tdk, tdv;
    mxattn_attention_args args;
} step;

static mxattn_tensor view(float *data, int64_t tokens, int64_t heads)
{
    mxattn_tensor tensor;
    mxattn_tensor_view(&tensor, MXATTN_F32, data, 4, (const int64_t[]){1, tokens, heads, DIM});
    return tensor;
}

static void step_new(step *s, const mxattn_plan *plan, const mxattn_attention_problem *problem)
{
    const size_t q_bytes = SQ * HEADS * DIM * sizeof(float);
    const size_t k_bytes = SK * KV_HEADS * DIM * sizeof(float);
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    int64_t workspace = info.workspace_forward_bytes > info.workspace_backward_bytes
                            ? info.workspace_forward_bytes
                            : info.workspace_backward_bytes;
    float **outputs_q[] = {&s->q, &s->o, &s->dout, &s->dq};
    float **outputs_k[] = {&s->kv, &s->dk, &s->dv};
    for (int i = 0; i < 4; i++)
        *outputs_q[i] = mxt_guard_end(q_bytes);
    for (int i = 0; i < 3; i++)
        *outputs_k[i] = mxt_guard_end(k_bytes);
    s->lse = mxt_guard_end(HEADS * SQ * sizeof(float));
    s->saved = mxt_guard_end_aligned((size_t)info.saved_bytes, 256);
    s->workspace = mxt_guard_end_aligned((size_t)workspace, 256);
    mxt_fill_f32(s->q, SQ * HEADS, DIM, MXT_GAUSSIAN, 1);
    mxt_fill_f32(s->kv, SK * KV_HEADS, DIM, MXT_GAUSSIAN, 2);
    mxt_fill_f32(s->dout, SQ * HEADS, DIM, MXT_GAUSSIAN, 3);

    s->tq = view(s->q, SQ, HEADS);
    s->tkv = view(s->kv, SK, KV_HEADS);
    s->to = view(s->o, SQ, HEADS);
    s->tdout = view(s->dout, SQ, HEADS);
    s->tdq = view(s->dq, SQ, HEADS);
    s->tdk = view(s->dk, SK, KV_HEADS);
    s->tdv = view(s->dv, SK, KV_HEADS);
    s->tq.tags = problem->q;
    s->tkv.tags = problem->k;
    s->tdout.tags = problem->dout;
    mxattn_tensor_view(&s->tlse, MXATTN_F32, s->lse, 3, (const int64_t[]){1, HEADS, SQ});
    mxattn_attention_args_init(&s->args);
    s->args.q = &s->tq;
    s->args.k = s->args.v = &s->tkv;
    s->args.o = &s->to;
    s->args.lse = &s->tlse;
    s->args.dout = &s->tdout;
    s->args.dq = &s->tdq;
    s->args.dk = &s->tdk;
    s->args.dv = &s->tdv;
    s->args.saved = s->saved;
    s->args.workspace = s->workspace;
    s->args.workspace_bytes = (size_t)workspace;
}

static void step_free(step *s)
{
    void *all[] = {s->q, s->kv, s->o, s->lse, s->dout, s->dq, s->dk, s->dv, s->saved, s->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mxt_guard_free(all[i]);
}

/* Everything that allocates, once. Returns the first fault. */
static mxattn_status create_all(account *a, mxattn_backend backend)
{
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    options.alloc = account_alloc;
    options.free = account_free;
    options.alloc_user = a;
    options.threads = 2;
    const mxattn_attention_problem problem = problem_of(backend);
    mxattn_context *context = NULL;
    mxattn_plan *plan = NULL;
    void *memory = NULL;
    mxattn_status status = mxattn_context_create(&options, &context);
    CHECK((status == MXATTN_OK) == (context != NULL), "context %p after status %d", (void *)context,
          (int)status);
    if (!status) {
        status = mxattn_plan_create(context, &problem, &plan);
        CHECK((status == MXATTN_OK) == (plan != NULL), "plan after status %d", (int)status);
    }
    if (!status) {
        status = mxattn_device_alloc(context, backend, 0, 1000, &memory);
        CHECK((status == MXATTN_OK) == (memory != NULL), "memory after status %d", (int)status);
    }
    if (memory)
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(context, backend, 0, memory));
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    return status;
}

static void test_each_failure(int b)
{
    account whole = {0, 0, -1};
    mxt_case("%s: nothing fails", backend_names[b]);
    CHECK_STATUS(MXATTN_OK, create_all(&whole, backends[b]));
    CHECK(whole.live == 0, "%lld allocations left", (long long)whole.live);
    CHECK(whole.calls >= 3, "only %lld calls reach the context's allocator",
          (long long)whole.calls);
    for (int64_t n = 0; n < whole.calls; n++) {
        mxt_case("%s: allocation %lld fails", backend_names[b], (long long)n);
        account a = {0, 0, n};
        CHECK_STATUS(MXATTN_MEMORY, create_all(&a, backends[b]));
        CHECK(a.live == 0, "%lld allocations left", (long long)a.live);
    }
}

/* With an allocator that gives nothing any more, and malloc counted. */
static void test_runs_allocate_nothing(int b)
{
    mxt_case("%s: forward and backward allocate nothing", backend_names[b]);
    account a = {0, 0, -1};
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    options.alloc = account_alloc;
    options.free = account_free;
    options.alloc_user = &a;
    options.threads = 2;
    mxattn_context *context = NULL;
    mxattn_plan *plan = NULL;
    const mxattn_attention_problem problem = problem_of(backends[b]);
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    if (!CHECK_STATUS(MXATTN_OK, mxattn_plan_create(context, &problem, &plan)))
        return;
    step s;
    step_new(&s, plan, &problem);
    int64_t before = a.calls;
    a.fail_at = before;
    family_calls = 0;
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(plan, &s.args));
    CHECK_STATUS(MXATTN_OK, mxattn_attention_backward(plan, &s.args));
    CHECK(a.calls == before, "%lld calls of the context's allocator",
          (long long)(a.calls - before));
    CHECK(family_calls == 0, "%lld calls of malloc's family", (long long)family_calls);
    mxt_error e = mxt_error_f32(s.dq, s.dq, SQ * HEADS * DIM);
    CHECK(e.cosine > 0.999, "dq was not computed");
    step_free(&s);
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    CHECK(a.live == 0, "%lld allocations left", (long long)a.live);
}

int main(void)
{
    for (int b = 0; b < 2; b++) {
        test_each_failure(b);
        test_runs_allocate_nothing(b);
    }
    return mxt_finish();
}
