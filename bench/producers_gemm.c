/* producers_gemm.c: GEMM with BF16 output, with quantization, and as a chain of two calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producers.h"

#include "error.h"
#include "tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gemm {
    const mxc_bench *bench;
    mxattn_gemm_quantize_args args;
    const mxattn_tensor *chain_from, *chain_to;
} gemm;

static void run(void *arg)
{
    const gemm *g = arg;
    mxc_need(mxattn_gemm_quantize(g->bench->context, &g->args));
    if (g->chain_to)
        mxc_matrix_quantize(g->bench, g->chain_from, g->chain_to);
}

static gemm gemm_of(const mxc_bench *b, const mxattn_tensor *a, const mxattn_tensor *weight,
                    const mxattn_tensor *c)
{
    gemm g = {.bench = b};
    mxattn_gemm_quantize_args_init(&g.args);
    g.args.a = a;
    g.args.b = weight;
    g.args.c = c;
    mxc_need(mxattn_gemm_quantize_workspace(b->context, &g.args, &g.args.workspace_bytes));
    return g;
}

/* One workspace for all, as it would be in use: with one each, what was called last with the same
 * found its own still in the caches. */
static void *share_workspace(gemm *const each[], int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes = each[i]->args.workspace_bytes > bytes ? each[i]->args.workspace_bytes : bytes;
    void *workspace = mxc_tool_alloc(bytes);
    for (int i = 0; i < count; i++) {
        each[i]->args.workspace = workspace;
        each[i]->args.workspace_bytes = bytes;
    }
    return workspace;
}

/* The reference agrees on 32 rows by 64 columns, to a BF16 half step. */
static void verify(const gemm *g)
{
    enum { ROWS = 32, COLUMNS = 64 };
    mxattn_tensor a = *g->args.a, w = *g->args.b, c;
    float right[ROWS * COLUMNS];
    size_t bytes = 0;
    gemm ref = *g;
    a.shape[0] = ROWS;
    w.shape[0] = COLUMNS;
    mxattn_tensor_view(&c, MXATTN_F32, right, 2, (int64_t[]){ROWS, COLUMNS});
    ref.args.backend = MXATTN_BACKEND_REF;
    ref.args.a = &a;
    ref.args.b = &w;
    ref.args.c = &c;
    mxc_need(mxattn_gemm_quantize_workspace(NULL, &ref.args, &bytes));
    ref.args.workspace = mxc_tool_alloc(bytes);
    ref.args.workspace_bytes = bytes;
    mxc_need(mxattn_gemm_quantize(NULL, &ref.args));
    double error = 0, size = 0;
    for (int64_t i = 0; i < (int64_t)ROWS * COLUMNS; i++) {
        const int64_t at = i / COLUMNS * g->args.c->stride[0] + i % COLUMNS;
        const double got = (double)mxc_from_bf16(((const uint16_t *)g->args.c->data)[at]);
        error += (got - (double)right[i]) * (got - (double)right[i]);
        size += (double)right[i] * (double)right[i];
    }
    free(ref.args.workspace);
    if (!(sqrt(error / size) < 4e-3))
        mxc_die("gemm is %.3g off the reference; nothing is timed", sqrt(error / size));
}

static void bench_shape(mxc_bench *b, int64_t m, int64_t n, int64_t k)
{
    char text[96];
    mxattn_tensor wide_a = mxc_wide_matrix(MXATTN_BF16, m, k, 1);
    mxattn_tensor wide_b = mxc_wide_matrix(MXATTN_BF16, n, k, 2);
    mxattn_tensor a = mxc_narrow_matrix(MXATTN_BLOCK_SQUARE, m, k);
    mxattn_tensor w = mxc_narrow_matrix(MXATTN_BLOCK_SQUARE, n, k);
    mxattn_tensor c_wide = mxc_wide_matrix(MXATTN_BF16, m, n, 3);
    mxattn_tensor c = mxc_narrow_matrix(MXATTN_BLOCK_SQUARE, m, n);
    mxc_matrix_quantize(b, &wide_a, &a);
    mxc_matrix_quantize(b, &wide_b, &w);
    gemm wide = gemm_of(b, &a, &w, &c_wide), narrow = gemm_of(b, &a, &w, &c), chain = wide,
         plain = gemm_of(b, &wide_a, &wide_b, &c_wide);
    chain.chain_from = &c_wide;
    chain.chain_to = &c;
    void *workspace = share_workspace((gemm *[]){&wide, &narrow, &chain, &plain}, 4);
    run(&plain);
    verify(&plain);
    run(&wide);
    verify(&wide);
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    mxc_turn turns[] = {
        {.op = "gemm_bf16",
         .operands = "e4m3",
         .block = "none",
         .run = run,
         .arg = &wide,
         .flops = flops,
         .against = -1},
        {.op = "gemm_quantize",
         .operands = "e4m3",
         .block = "square",
         .run = run,
         .arg = &narrow,
         .flops = flops,
         .against = 0},
        {.op = "gemm_then_quantize",
         .operands = "e4m3",
         .block = "square",
         .run = run,
         .arg = &chain,
         .flops = flops,
         .against = 0},
        {.op = "gemm_bf16",
         .operands = "bf16",
         .block = "none",
         .run = run,
         .arg = &plain,
         .flops = flops,
         .against = 0},
    };
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddNumberToObject(shape, "m", (double)m);
    cJSON_AddNumberToObject(shape, "n", (double)n);
    cJSON_AddNumberToObject(shape, "k", (double)k);
    (void)snprintf(text, sizeof text, "GEMM of M %lld, N %lld, K %lld", (long long)m, (long long)n,
                   (long long)k);
    mxc_take_turns(b, turns, 4, shape, text);
    free(workspace);
    mxattn_tensor *const all[] = {&wide_a, &wide_b, &a, &w, &c_wide, &c};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mxc_matrix_free(all[i]);
}

void mxc_bench_gemms(mxc_bench *b)
{
    bench_shape(b, 512, 4096, 1024);
    bench_shape(b, 2048, 1024, 2048);
}
