/* test_backward_graph.c: quantization of q, k and v, forward and backward captured in one graph,
 * and replayed with other inputs. Cases from public reports are named by their number.
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
enum { ELEMENTS = TOKENS * HEADS * HEAD_DIM, ROWS = TOKENS * HEADS, SCALES = ELEMENTS / 32 };
enum { Q, K, V, DOUT, WIDE, O = WIDE, DQ, DK, DV, TENSORS };

/* A jagged training step from BF16, with all its device memory. */
typedef struct fixture {
    mxattn_plan *plan;
    mxattn_attention_args args;
    mxattn_tensor tensors[TENSORS], lse, operands[3]; /* operands: q, k and v as MXFP8 */
    size_t workspace_forward, workspace_backward;
    int32_t *cu;
    void *stream;
} fixture;

static void *device_memory(size_t bytes)
{
    void *memory = NULL, *host = malloc(bytes);
    memset(host, 0xFF, bytes);
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, 0, bytes, &memory));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, memory, host, bytes));
    free(host);
    return memory;
}

static void write_inputs(fixture *f, uint64_t seed, const int32_t *cu)
{
    float *values = malloc(ELEMENTS * sizeof *values);
    uint16_t *bits = malloc(ELEMENTS * sizeof *bits);
    for (uint64_t t = 0; t < WIDE; t++) {
        mxt_fill_f32(values, ELEMENTS / HEAD_DIM, HEAD_DIM, MXT_GAUSSIAN, seed + t);
        for (int64_t i = 0; i < ELEMENTS; i++) {
            mxa_store(bits, MXATTN_BF16, i, values[i]);
        }
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, f->tensors[t].data,
                                                   bits, ELEMENTS * sizeof *bits));
    }
    free(values);
    free(bits);
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, f->cu, cu,
                                               (BATCH + 1) * sizeof *cu));
}

static int make_plan(fixture *f, mxattn_plan_info *info)
{
    mxattn_attention_problem problem;
    mxattn_attention_problem_init(&problem);
    problem.backend = MXATTN_BACKEND_CUDA;
    problem.mode = MXATTN_TRAINING;
    problem.format = MXATTN_JAGGED;
    problem.batch = BATCH;
    problem.total_q = problem.total_k = TOKENS;
    problem.max_seqlen_q = problem.max_seqlen_k = TOKENS;
    problem.heads = problem.kv_heads = HEADS;
    problem.head_dim = HEAD_DIM;
    problem.causal = 1;
    problem.deterministic = 1;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_E4M3;
    if (!CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &f->plan))) {
        return 0;
    }
    mxattn_plan_info_init(info);
    mxattn_plan_query(f->plan, info);
    return 1;
}

static int set_up(fixture *f)
{
    const int64_t shape[3] = {TOKENS, HEADS, HEAD_DIM}, rows[2] = {HEADS, TOKENS};
    mxattn_plan_info info;
    if (!make_plan(f, &info)) {
        return 0;
    }
    for (int t = 0; t < TENSORS; t++) {
        mxattn_tensor_view(&f->tensors[t], MXATTN_BF16, device_memory(2 * (size_t)ELEMENTS), 3,
                           shape);
    }
    for (int t = 0; t < 3; t++) {
        mxattn_tensor_view(&f->operands[t], MXATTN_E4M3, device_memory(ELEMENTS), 3, shape);
        f->operands[t].tags.block = MXATTN_BLOCK_SQUARE;
        f->operands[t].scales[MXATTN_HDIM].data = device_memory(SCALES);
    }
    mxattn_tensor_view(&f->lse, MXATTN_F32, device_memory(4 * (size_t)ROWS), 2, rows);
    f->cu = device_memory((BATCH + 1) * sizeof *f->cu);
    CHECK_STATUS(MXATTN_OK, mxattn_device_stream_create(NULL, MXATTN_BACKEND_CUDA, 0, &f->stream));
    mxattn_attention_args_init(&f->args);
    f->args.q = &f->operands[Q];
    f->args.k = &f->operands[K];
    f->args.v = &f->operands[V];
    f->args.o = &f->tensors[O];
    f->args.lse = &f->lse;
    f->args.dout = &f->tensors[DOUT];
    f->args.dq = &f->tensors[DQ];
    f->args.dk = &f->tensors[DK];
    f->args.dv = &f->tensors[DV];
    f->args.batch = BATCH;
    f->args.cu_seqlens_q = f->args.cu_seqlens_k = f->cu;
    f->args.saved = device_memory((size_t)info.saved_bytes);
    f->workspace_forward = (size_t)info.workspace_forward_bytes;
    f->workspace_backward = (size_t)info.workspace_backward_bytes;
    f->args.workspace =
        device_memory(f->workspace_forward > f->workspace_backward ? f->workspace_forward
                                                                   : f->workspace_backward);
    f->args.device_status = device_memory(sizeof(uint32_t));
    f->args.stream = f->stream;
    return 1;
}

static void step(fixture *f)
{
    for (int t = 0; t < 3; t++) {
        mxattn_quantize_args quantize;
        mxattn_quantize_args_init(&quantize);
        quantize.backend = MXATTN_BACKEND_CUDA;
        quantize.wide = &f->tensors[t];
        quantize.quantized = &f->operands[t];
        quantize.sequences.batch = BATCH;
        quantize.sequences.cu_seqlens = f->cu;
        quantize.stream = f->stream;
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &quantize));
    }
    f->args.workspace_bytes = f->workspace_forward;
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(f->plan, &f->args));
    f->args.workspace_bytes = f->workspace_backward;
    CHECK_STATUS(MXATTN_OK, mxattn_attention_backward(f->plan, &f->args));
}

/* O and the gradients, one after another. */
static void read_back(const fixture *f, uint16_t *values)
{
    CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, f->stream));
    for (int t = WIDE; t < TENSORS; t++) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0,
                                                   values + (size_t)(t - WIDE) * ELEMENTS,
                                                   f->tensors[t].data, 2 * (size_t)ELEMENTS));
    }
}

/* A capture in global mode (0) fails on any allocation, synchronisation or copy to the host, by any
 * thread; in thread-local mode (1) by this one. Replayed with other inputs and lengths the graph
 * gives what calls give. */
static void captured(fixture *f, const mxt_driver_calls *driver, void *context, int mode)
{
    static const int32_t first[] = {0, 100, 228, 300}, second[] = {0, 1, 129, 290};
    const size_t bytes = 2 * (size_t)(TENSORS - WIDE) * ELEMENTS;
    uint16_t *direct = malloc(bytes), *replayed = malloc(bytes);
    void *graph = NULL, *executable = NULL;
    mxt_case("B122 a step captured in mode %d", mode);
    write_inputs(f, 1, first);
    CHECK(driver->context_set(context) == 0 && driver->begin_capture(f->stream, mode) == 0,
          "capture does not begin");
    step(f);
    CHECK(driver->end_capture(f->stream, &graph) == 0 &&
              driver->instantiate(&executable, graph, 0) == 0,
          "the step cannot be captured");
    write_inputs(f, 11, second);
    CHECK(driver->launch(executable, f->stream) == 0, "the graph does not run");
    read_back(f, replayed);
    step(f);
    read_back(f, direct);
    CHECK(memcmp(direct, replayed, bytes) == 0, "the graph gave other bits");
    free(direct);
    free(replayed);
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
        mxt_case("cuda backward in graphs");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    mxt_case("set up");
    CHECK(driver.primary_context_retain(&context, 0) == 0, "no context");
    if (set_up(&f)) {
        captured(&f, &driver, context, 0);
        captured(&f, &driver, context, 1);
    }
    return mxt_finish();
}
