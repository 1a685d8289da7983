/* test_forward_graph.c: the CUDA forward captured in a graph, on a stream of its own, and replayed
 * with other inputs. Cases from public reports are named by their number.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_run.h"
#include "driver_calls.h"
#include "fill.h"
#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 300, HEADS = 4, HEAD_DIM = 128, BATCH = 3 };
enum { ELEMENTS = TOKENS * HEADS * HEAD_DIM, ROWS = TOKENS * HEADS };

/* A jagged forward from BF16 with all its device memory. */
typedef struct fixture {
    int32_t device;
    mxattn_plan *plan;
    mxattn_attention_args args;
    mxattn_tensor q, k, v, o, lse;
    int32_t *cu;
    uint32_t *status;
    void *stream;
} fixture;

static void copy(const fixture *f, void *to, const void *from, size_t bytes)
{
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, f->device, to, from, bytes));
}

static void *device_memory(const fixture *f, size_t bytes, int value)
{
    void *memory = NULL, *host = malloc(bytes);
    memset(host, value, bytes);
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, f->device, bytes, &memory));
    copy(f, memory, host, bytes);
    free(host);
    return memory;
}

static void write_operand(const fixture *f, void *memory, uint64_t seed)
{
    float *values = malloc(ELEMENTS * sizeof *values);
    uint16_t *bits = malloc(ELEMENTS * sizeof *bits);
    mxt_fill_f32(values, ELEMENTS / HEAD_DIM, HEAD_DIM, MXT_GAUSSIAN, seed);
    for (int64_t i = 0; i < ELEMENTS; i++) {
        mxa_store(bits, MXATTN_BF16, i, values[i]);
    }
    copy(f, memory, bits, ELEMENTS * sizeof *bits);
    free(values);
    free(bits);
}

static void write_inputs(fixture *f, uint64_t seed, const int32_t *cu)
{
    write_operand(f, f->q.data, seed);
    write_operand(f, f->k.data, seed + 1);
    write_operand(f, f->v.data, seed + 2);
    copy(f, f->cu, cu, (BATCH + 1) * sizeof *cu);
}

static int set_up(fixture *f)
{
    const int64_t shape[3] = {TOKENS, HEADS, HEAD_DIM}, rows[2] = {HEADS, TOKENS};
    mxattn_attention_problem problem;
    mxattn_plan_info info;
    mxattn_attention_problem_init(&problem);
    problem.backend = MXATTN_BACKEND_CUDA;
    problem.device = f->device;
    problem.format = MXATTN_JAGGED;
    problem.batch = BATCH;
    problem.total_q = problem.total_k = TOKENS;
    problem.max_seqlen_q = problem.max_seqlen_k = TOKENS;
    problem.heads = problem.kv_heads = HEADS;
    problem.head_dim = HEAD_DIM;
    problem.causal = 1;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_BF16;
    if (!CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &f->plan))) {
        return 0;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(f->plan, &info);
    mxattn_tensor *wide[] = {&f->q, &f->k, &f->v, &f->o};
    for (int i = 0; i < 4; i++) {
        mxattn_tensor_view(wide[i], MXATTN_BF16, device_memory(f, 2 * (size_t)ELEMENTS, 0xFF), 3,
                           shape);
    }
    mxattn_tensor_view(&f->lse, MXATTN_F32, device_memory(f, 4 * (size_t)ROWS, 0xFF), 2, rows);
    f->cu = device_memory(f, (BATCH + 1) * sizeof *f->cu, 0);
    f->status = device_memory(f, sizeof *f->status, 0xFF);
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_stream_create(NULL, MXATTN_BACKEND_CUDA, f->device, &f->stream));
    mxattn_attention_args_init(&f->args);
    f->args.q = &f->q;
    f->args.k = &f->k;
    f->args.v = &f->v;
    f->args.o = &f->o;
    f->args.lse = &f->lse;
    f->args.batch = BATCH;
    f->args.cu_seqlens_q = f->args.cu_seqlens_k = f->cu;
    f->args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    f->args.workspace = device_memory(f, f->args.workspace_bytes, 0xFF);
    f->args.device_status = f->status;
    f->args.stream = f->stream;
    return 1;
}

static void read_back(const fixture *f, uint16_t *o, uint32_t *status)
{
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, f->device, f->stream));
    copy(f, o, f->o.data, 2 * (size_t)ELEMENTS);
    copy(f, status, f->status, sizeof *status);
}

/* B122, B123: a capture in global mode fails on any allocation, synchronisation or copy to the
 * host, so none is in a call; replayed with other inputs the graph gives what a call gives. B124:
 * the call is on a stream that is not the default one, and leaves no context current. */
static void captured(fixture *f, const mxt_driver_calls *driver, void *context)
{
    static const int32_t first[] = {0, 100, 228, 300}, second[] = {0, 1, 129, 290};
    uint16_t *direct = malloc(2 * (size_t)ELEMENTS), *replayed = malloc(2 * (size_t)ELEMENTS);
    void *graph = NULL, *executable = NULL, *current = NULL;
    uint32_t status = 1;
    write_inputs(f, 1, first);
    mxt_case("B122 B123 captured in a graph");
    CHECK(driver->context_set(context) == 0 && driver->begin_capture(f->stream, 0) == 0,
          "capture does not begin");
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(f->plan, &f->args));
    CHECK(driver->end_capture(f->stream, &graph) == 0 &&
              driver->instantiate(&executable, graph, 0) == 0,
          "the call cannot be captured");
    write_inputs(f, 5, second);
    CHECK(driver->launch(executable, f->stream) == 0, "the graph does not run");
    read_back(f, replayed, &status);
    CHECK(status == 0, "status word %u", status);
    mxt_case("B124 a stream of its own");
    CHECK(driver->context_set(NULL) == 0, "context");
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(f->plan, &f->args));
    CHECK(driver->context_get(&current) == 0 && current == NULL, "a context was left current");
    read_back(f, direct, &status);
    CHECK(memcmp(direct, replayed, 2 * (size_t)ELEMENTS) == 0, "the graph gave other bits");

    /* B106: offsets that are wrong only when the graph runs. */
    static const int32_t wrong[] = {0, 200, 100, 300};
    mxt_case("B106 wrong offsets in a graph");
    write_inputs(f, 9, wrong);
    CHECK(driver->context_set(context) == 0 && driver->launch(executable, f->stream) == 0, "run");
    read_back(f, replayed, &status);
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_device_status_check(status));
    CHECK(memcmp(direct, replayed, 2 * (size_t)ELEMENTS) == 0, "O was written");
    free(direct);
    free(replayed);
}

/* What a pointer must be aligned to; nothing runs otherwise. */
static void alignment(fixture *f)
{
    struct {
        const char *name;
        mxattn_tensor *tensor;
        int64_t bytes;
    } const cases[] = {{"args.q", &f->q, 2},
                       {"args.k", &f->k, 8},
                       {"args.v", &f->v, 4},
                       {"args.o", &f->o, 8},
                       {"lse", &f->lse, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *data = cases[i].tensor->data;
        mxt_case("misaligned %s", cases[i].name);
        cases[i].tensor->data = (char *)data + cases[i].bytes;
        CHECK_STATUS(MXATTN_ALIGNMENT, mxattn_attention_forward(f->plan, &f->args));
        CHECK(strstr(mxattn_last_error(), cases[i].name) != NULL, "\"%s\" lacks its name",
              mxattn_last_error());
        cases[i].tensor->data = data;
    }
    mxt_case("misaligned stride");
    f->q.stride[0] += 4;
    CHECK_STATUS(MXATTN_ALIGNMENT, mxattn_attention_forward(f->plan, &f->args));
    f->q.stride[0] -= 4;
}

/* B124, B125: two devices of one kind, in one thread. Attention on each, while the other's context
 * is current, and on both at once: the same bits, and the current context is left. */
static void two_devices(fixture *first, const mxt_driver_calls *driver)
{
    static const int32_t cu[] = {0, 1, 129, 290};
    mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_CUDA, &info));
    mxt_case("B124 B125 two devices");
    if (info.devices < 2) {
        mxt_skip("one device");
        return;
    }
    fixture second;
    memset(&second, 0, sizeof second);
    second.device = 1;
    fixture *on[] = {first, &second};
    void *contexts[2] = {NULL, NULL};
    uint16_t *o[] = {malloc(2 * (size_t)ELEMENTS), malloc(2 * (size_t)ELEMENTS)};
    uint32_t status[2] = {1, 1};
    CHECK(set_up(&second), "no second device");
    for (int i = 0; i < 2; i++) {
        CHECK(driver->primary_context_retain(&contexts[i], i) == 0, "no context");
    }
    for (int round = 0; round < 8; round++) {
        void *current = NULL, *wanted = round == 7 ? NULL : contexts[round & 1];
        mxt_case("B124 B125 two devices, round %d", round);
        for (int i = 0; i < 2; i++) {
            write_inputs(on[i], 20 + (uint64_t)round, cu);
        }
        CHECK(driver->context_set(wanted) == 0, "context");
        for (int i = 0; i < 2; i++) {
            fixture *f = on[(round >> 1 & 1) ^ i];
            CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(f->plan, &f->args));
            CHECK(driver->context_get(&current) == 0 && current == wanted,
                  "another context is current after a call on device %d", f->device);
        }
        for (int i = 0; i < 2; i++) {
            read_back(on[i], o[i], &status[i]);
            CHECK(status[i] == 0, "status word %u of device %d", status[i], i);
        }
        CHECK(memcmp(o[0], o[1], 2 * (size_t)ELEMENTS) == 0, "the devices gave different bits");
    }
    free(o[0]);
    free(o[1]);
}

int main(void)
{
    mxt_driver_calls driver;
    const char *missing = mxt_device_missing(MXATTN_BACKEND_CUDA);
    void *context = NULL;
    fixture f;
    memset(&f, 0, sizeof f);
    missing = missing ? missing : mxt_driver_load(&driver);
    if (missing) {
        mxt_case("cuda forward in graphs");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    mxt_case("set up");
    CHECK(driver.primary_context_retain(&context, 0) == 0, "no context");
    if (set_up(&f)) {
        captured(&f, &driver, context);
        alignment(&f);
        two_devices(&f, &driver);
    }
    return mxt_finish();
}
