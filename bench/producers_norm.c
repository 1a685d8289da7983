/* producers_norm.c: RMSNorm alone, with quantization, as a chain of two calls, and backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producers.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct norm {
    const mxc_bench *bench;
    mxattn_rmsnorm_quantize_args args;
    const mxattn_tensor *chain_from, *chain_to; /* quantized after the norm */
} norm;

static void run(void *arg)
{
    const norm *n = arg;
    mxc_need(mxattn_rmsnorm_quantize(n->bench->context, &n->args));
    if (n->chain_to)
        mxc_matrix_quantize(n->bench, n->chain_from, n->chain_to);
}

typedef struct backward {
    const mxc_bench *bench;
    mxattn_rmsnorm_backward_args args;
} backward;

static void run_backward(void *arg)
{
    const backward *n = arg;
    mxc_need(mxattn_rmsnorm_backward(n->bench->context, &n->args));
}

static norm norm_of(const mxc_bench *b, const mxattn_tensor *x, const float *weight,
                    const mxattn_tensor *y, const mxattn_tensor *y_wide)
{
    norm n = {.bench = b};
    size_t bytes = 0;
    mxattn_rmsnorm_quantize_args_init(&n.args);
    n.args.x = x;
    n.args.weight = weight;
    n.args.y = y;
    n.args.y_wide = y_wide;
    mxc_need(mxattn_rmsnorm_quantize_workspace(b->context, &n.args, &bytes));
    n.args.workspace = mxc_tool_alloc(bytes);
    n.args.workspace_bytes = bytes;
    return n;
}

/* The reference writes the same bytes of the first 64 rows. */
static void verify(const norm *n)
{
    enum { ROWS = 64 };
    const mxattn_tensor *got = n->args.y;
    mxattn_tensor x = *n->args.x, y = mxc_narrow_matrix(got->tags.block, ROWS, x.shape[1]);
    x.shape[0] = ROWS;
    norm right = *n;
    size_t bytes = 0;
    right.args.backend = MXATTN_BACKEND_REF;
    right.args.x = &x;
    right.args.y = &y;
    right.args.y_wide = NULL;
    mxc_need(mxattn_rmsnorm_quantize_workspace(NULL, &right.args, &bytes));
    right.args.workspace = mxc_tool_alloc(bytes);
    right.args.workspace_bytes = bytes;
    mxc_need(mxattn_rmsnorm_quantize(NULL, &right.args));
    if (memcmp(y.data, got->data, (size_t)(ROWS * x.shape[1])) != 0 ||
        memcmp(y.scales[0].data, got->scales[0].data, (size_t)(ROWS * x.shape[1] / 32)) != 0)
        mxc_die("rmsnorm_quantize differs from the reference; nothing is timed");
    free(right.args.workspace);
    mxc_matrix_free(&y);
}

static void bench_backward(mxc_bench *b, const mxattn_tensor *x, const float *weight, cJSON *shape,
                           const char *text)
{
    backward n = {.bench = b};
    const int64_t rows = x->shape[0], hidden = x->shape[1];
    mxattn_tensor dx = mxc_wide_matrix(MXATTN_BF16, rows, hidden, 3);
    mxattn_tensor narrow = mxc_narrow_matrix(MXATTN_BLOCK_SQUARE, rows, hidden);
    float *rstd = mxc_tool_alloc((size_t)rows * sizeof *rstd);
    size_t bytes = 0;
    for (int64_t r = 0; r < rows; r++)
        rstd[r] = 1;
    mxattn_rmsnorm_backward_args_init(&n.args);
    n.args.x = n.args.dy = x;
    n.args.rstd = rstd;
    n.args.weight = weight;
    n.args.dx = &dx;
    n.args.dx_quantized = &narrow;
    n.args.dweight = mxc_tool_alloc((size_t)hidden * sizeof(float));
    mxc_need(mxattn_rmsnorm_backward_workspace(b->context, &n.args, &bytes));
    n.args.workspace = mxc_tool_alloc(bytes);
    n.args.workspace_bytes = bytes;
    mxc_turn turn = {.op = "rmsnorm_backward",
                     .operands = "bf16",
                     .block = "square",
                     .run = run_backward,
                     .arg = &n,
                     .bytes = (double)(3 * mxc_matrix_bytes(x) + mxc_matrix_bytes(&narrow)),
                     .against = -1};
    mxc_take_turns(b, &turn, 1, shape, text);
    free(n.args.workspace);
    free(n.args.dweight);
    free(rstd);
    mxc_matrix_free(&dx);
    mxc_matrix_free(&narrow);
}

static void bench_norms(mxc_bench *b, const mxc_place *place, int64_t rows, int64_t hidden,
                        const char *where)
{
    char text[96];
    float *weight = mxc_tool_alloc((size_t)hidden * sizeof *weight);
    mxattn_tensor x = mxc_wide_matrix(MXATTN_BF16, rows, hidden, 1);
    mxattn_tensor wide = mxc_wide_matrix(MXATTN_BF16, rows, hidden, 2);
    mxattn_tensor row = mxc_narrow_matrix(MXATTN_BLOCK_ROW, rows, hidden);
    mxattn_tensor square = mxc_narrow_matrix(MXATTN_BLOCK_SQUARE, rows, hidden);
    for (int64_t i = 0; i < hidden; i++)
        weight[i] = 1.0F + (float)(i % 16) / 64;
    norm alone = norm_of(b, &x, weight, NULL, &wide), to_row = norm_of(b, &x, weight, &row, NULL),
         to_square = norm_of(b, &x, weight, &square, NULL), chain = alone;
    chain.chain_from = &wide;
    chain.chain_to = &row;
    run(&to_row);
    run(&to_square);
    verify(&to_row);
    verify(&to_square);
    const double x_bytes = (double)mxc_matrix_bytes(&x), row_bytes = (double)mxc_matrix_bytes(&row),
                 square_bytes = (double)mxc_matrix_bytes(&square);
    const mxc_turn each = {.op = "rmsnorm_quantize",
                           .operands = "bf16",
                           .block = "row",
                           .run = run,
                           .elements = (double)(rows * hidden)};
    mxc_turn turns[] = {each, each, each, each};
    turns[0].op = "rmsnorm";
    turns[0].block = "none";
    turns[0].arg = &alone;
    turns[0].bytes = 2 * x_bytes;
    turns[0].against = -1;
    turns[1].arg = &to_row;
    turns[1].bytes = x_bytes + row_bytes;
    turns[2].arg = &to_square;
    turns[2].block = "square";
    turns[2].bytes = x_bytes + square_bytes;
    turns[3].op = "rmsnorm_then_quantize";
    turns[3].arg = &chain;
    turns[3].bytes = 3 * x_bytes + row_bytes;
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddNumberToObject(shape, "rows", (double)rows);
    cJSON_AddNumberToObject(shape, "hidden", (double)hidden);
    (void)snprintf(text, sizeof text, "norm of %lld rows of %lld, %s", (long long)rows,
                   (long long)hidden, where);
    cJSON *again = cJSON_Duplicate(shape, 1);
    mxc_take_turns_at(b, place, turns, 4, shape, text);
    if (place->cache)
        cJSON_Delete(again);
    else
        bench_backward(b, &x, weight, again, "its backward, dx in BF16 and MXFP8");
    free(alone.args.workspace);
    free(to_row.args.workspace);
    free(to_square.args.workspace);
    free(weight);
    mxc_matrix_free(&x);
    mxc_matrix_free(&wide);
    mxc_matrix_free(&row);
    mxc_matrix_free(&square);
}

void mxc_bench_norms(mxc_bench *b)
{
    mxc_in_both_places(b, 4, bench_norms);
}
