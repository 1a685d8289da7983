/* producers_scales.c: scale bytes from one arrangement to another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producers.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 32, DIMS = 128 };

typedef struct move {
    const mxc_bench *bench;
    mxattn_scales_args args;
    int transform;
} move;

static void run(void *arg)
{
    const move *m = arg;
    mxc_need((m->transform ? mxattn_scales_transform : mxattn_scales_scatter)(m->bench->context,
                                                                              &m->args));
}

/* Bytes of square blocks are the same for all elements of a block: they come from compact ones. */
static void fill(const move *m, int64_t tokens)
{
    mxattn_scales_args args = m->args;
    int64_t bytes = 0;
    const mxattn_scale_layout layout = m->transform ? MXATTN_COMPACT : MXATTN_LINEAR;
    mxc_need(mxattn_scales_bytes(&args.tags, args.from_axis, layout, 1, tokens, NULL, HEADS, DIMS,
                                 &bytes));
    uint8_t *source = m->transform ? mxc_tool_alloc((size_t)bytes) : args.from.data;
    for (int64_t i = 0; i < bytes; i++)
        source[i] = (uint8_t)(i * 37 % 251);
    if (!m->transform)
        return;
    args.from = (mxattn_scales){.data = source, .layout = MXATTN_COMPACT};
    args.to = m->args.from;
    args.to_axis = args.from_axis;
    mxc_need(mxattn_scales_scatter(m->bench->context, &args));
    free(source);
}

/* One sequence: others would only change where units begin. */
static move move_of(const mxc_bench *b, int64_t tokens, mxattn_block block, mxattn_axis from_axis,
                    mxattn_scale_layout from, mxattn_axis to_axis, mxattn_scale_layout to)
{
    move m = {.bench = b, .transform = from_axis != to_axis};
    int64_t bytes = 0;
    mxattn_scales_args_init(&m.args);
    m.args.tags.block = block;
    m.args.from_axis = from_axis;
    m.args.to_axis = to_axis;
    m.args.from.layout = from;
    m.args.to.layout = to;
    m.args.seqlen = tokens;
    m.args.heads = HEADS;
    m.args.head_dim = DIMS;
    mxc_need(
        mxattn_scales_bytes(&m.args.tags, from_axis, from, 1, tokens, NULL, HEADS, DIMS, &bytes));
    m.args.from.data = mxc_tool_alloc((size_t)bytes);
    fill(&m, tokens);
    mxc_need(mxattn_scales_bytes(&m.args.tags, to_axis, to, 1, tokens, NULL, HEADS, DIMS, &bytes));
    m.args.to.data = mxc_tool_alloc((size_t)bytes);
    memset(m.args.to.data, 0, (size_t)bytes);
    return m;
}

/* The first 256 tokens by the reference. */
static void verify(const move *m)
{
    enum { TOKENS = 256 };
    move right = move_of(m->bench, TOKENS, m->args.tags.block, m->args.from_axis,
                         m->args.from.layout, m->args.to_axis, m->args.to.layout);
    move ours = right;
    int64_t bytes = 0;
    mxc_need(mxattn_scales_bytes(&right.args.tags, right.args.to_axis, right.args.to.layout, 1,
                                 TOKENS, NULL, HEADS, DIMS, &bytes));
    ours.args.to.data = mxc_tool_alloc((size_t)bytes);
    right.args.backend = MXATTN_BACKEND_REF;
    run(&right);
    run(&ours);
    if (memcmp(ours.args.to.data, right.args.to.data, (size_t)bytes) != 0)
        mxc_die("moved scales differ from the reference; nothing is timed");
    free(ours.args.to.data);
    free(right.args.to.data);
    free(right.args.from.data);
}

void mxc_bench_scales(mxc_bench *b)
{
    /* Arrays of four bytes to a token and head, twice the last-level cache each. */
    const int64_t tokens = 2 * mxc_last_level_cache() / (4 * HEADS) / 128 * 128;
    const double array = (double)tokens * HEADS * 4;
    char text[96];
    move scatter =
        move_of(b, tokens, MXATTN_BLOCK_ROW, MXATTN_HDIM, MXATTN_LINEAR, MXATTN_HDIM, MXATTN_TILED);
    move transform = move_of(b, tokens, MXATTN_BLOCK_SQUARE, MXATTN_HDIM, MXATTN_TILED, MXATTN_SEQ,
                             MXATTN_TILED);
    verify(&scatter);
    verify(&transform);
    /* A transform reads one row in 32 of its units: that line of each and the target count. */
    mxc_turn turns[] = {{.op = "scales_scatter",
                         .operands = "linear",
                         .block = "row",
                         .run = run,
                         .arg = &scatter,
                         .bytes = 2 * array,
                         .written = array,
                         .against = -1},
                        {.op = "scales_transform",
                         .operands = "tiled",
                         .block = "square",
                         .run = run,
                         .arg = &transform,
                         .bytes = array + array / 8,
                         .written = array,
                         .against = -1}};
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddNumberToObject(shape, "tokens", (double)tokens);
    cJSON_AddNumberToObject(shape, "heads", HEADS);
    cJSON_AddNumberToObject(shape, "head_dim", DIMS);
    (void)snprintf(text, sizeof text, "scales of %lld tokens, %d heads of %d", (long long)tokens,
                   HEADS, DIMS);
    mxc_take_turns(b, turns, 2, shape, text);
    free(scatter.args.from.data);
    free(scatter.args.to.data);
    free(transform.args.from.data);
    free(transform.args.to.data);
}
