/* producers_quantize.c: quantizers, from memory and in the second cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producers.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct quantizer {
    const mxc_bench *bench;
    const mxattn_tensor *wide;
    mxattn_tensor narrow, transposed; /* transposed.data NULL: absent */
    mxattn_quantize_args args;
} quantizer;

static void run(void *arg)
{
    const quantizer *q = arg;
    mxc_need(mxattn_quantize(q->bench->context, &q->args));
}

/* args points into *q, which stays where it is. */
static void open_quantizer(quantizer *q, const mxc_bench *b, const mxattn_tensor *wide,
                           mxattn_block block, int transposed)
{
    const int64_t rows = wide->shape[0], hidden = wide->shape[1];
    memset(q, 0, sizeof *q);
    q->bench = b;
    q->wide = wide;
    q->narrow = mxc_narrow_matrix(block, rows, hidden);
    mxattn_quantize_args_init(&q->args);
    q->args.wide = wide;
    q->args.quantized = &q->narrow;
    if (transposed) {
        mxattn_tensor_view(&q->transposed, MXATTN_E4M3, mxc_tool_alloc((size_t)(rows * hidden)), 3,
                           (int64_t[]){1, hidden, rows});
        q->transposed.tags = q->narrow.tags;
        memset(q->transposed.data, 0, (size_t)(rows * hidden));
        q->args.transposed = &q->transposed;
    }
}

static void close_quantizer(quantizer *q)
{
    mxc_matrix_free(&q->narrow);
    free(q->transposed.data);
}

/* The reference writes the same bytes of the first rows. */
static void verify(quantizer *q)
{
    const int64_t hidden = q->wide->shape[1];
    mxattn_tensor wide = *q->wide,
                  narrow = mxc_narrow_matrix(q->narrow.tags.block, MXC_ROWS, hidden);
    mxattn_quantize_args args = q->args;
    wide.shape[0] = MXC_ROWS;
    args.backend = MXATTN_BACKEND_REF;
    args.wide = &wide;
    args.quantized = &narrow;
    args.transposed = NULL;
    run(q);
    mxc_need(mxattn_quantize(q->bench->checker, &args));
    int differs = memcmp(narrow.data, q->narrow.data, (size_t)(MXC_ROWS * hidden)) != 0;
    differs |= memcmp(narrow.scales[0].data, q->narrow.scales[0].data,
                      (size_t)(MXC_ROWS * hidden / 32)) != 0;
    for (int64_t at = 0; q->transposed.data && at < MXC_ROWS * hidden; at++) {
        const int64_t row = at / hidden, d = at % hidden;
        differs |= ((uint8_t *)q->transposed.data)[d * q->wide->shape[0] + row] !=
                   ((uint8_t *)narrow.data)[at];
    }
    mxc_matrix_free(&narrow);
    if (differs)
        mxc_die("quantized bytes differ from the reference's; nothing is timed");
}

static void bench_quantizers(mxc_bench *b, const mxc_place *place, int64_t rows, int64_t hidden,
                             const char *where)
{
    enum { COUNT = 5 };
    static const struct {
        const char *op, *operands, *block;
        int f32;
        mxattn_block to;
        int transposed;
    } each[COUNT] = {
        {"quantize", "bf16", "row", 0, MXATTN_BLOCK_ROW, 0},
        {"quantize", "bf16", "square", 0, MXATTN_BLOCK_SQUARE, 0},
        {"quantize_transposed", "bf16", "square", 0, MXATTN_BLOCK_SQUARE, 1},
        {"quantize", "f32", "row", 1, MXATTN_BLOCK_ROW, 0},
        {"quantize", "f32", "square", 1, MXATTN_BLOCK_SQUARE, 0},
    };
    mxattn_tensor wide[2] = {mxc_wide_matrix(MXATTN_BF16, rows, hidden, 1),
                             mxc_wide_matrix(MXATTN_F32, rows, hidden, 1)};
    quantizer q[COUNT];
    mxc_turn turns[COUNT];
    char text[96];
    for (int i = 0; i < COUNT; i++) {
        open_quantizer(&q[i], b, &wide[each[i].f32], each[i].to, each[i].transposed);
        verify(&q[i]);
        const double payload = (double)(rows * hidden) * each[i].transposed;
        turns[i] = (mxc_turn){.op = each[i].op,
                              .operands = each[i].operands,
                              .block = each[i].block,
                              .run = run,
                              .arg = &q[i],
                              .bytes = (double)mxc_matrix_bytes(q[i].wide) +
                                       (double)mxc_matrix_bytes(&q[i].narrow) + payload,
                              .against = -1,
                              .elements = (double)(rows * hidden)};
    }
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddNumberToObject(shape, "rows", (double)rows);
    cJSON_AddNumberToObject(shape, "hidden", (double)hidden);
    (void)snprintf(text, sizeof text, "quantizers, %lld rows of %lld, %s", (long long)rows,
                   (long long)hidden, where);
    mxc_take_turns_at(b, place, turns, COUNT, shape, text);
    for (int i = 0; i < COUNT; i++)
        close_quantizer(&q[i]);
    mxc_matrix_free(&wide[0]);
    mxc_matrix_free(&wide[1]);
}

void mxc_bench_quantizers(mxc_bench *b)
{
    mxc_in_both_places(b, 2, bench_quantizers);
}
