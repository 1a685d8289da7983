/* test_forward.c: forward on every instruction set against the float64 model that rounds at the
 * same points, over masks, shapes, formats, outputs; and bits against the number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "compare.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <string.h>

static uint32_t isas[8];
static int isa_count;

static const char *block_name(const mxattn_tags *tags)
{
    static const char *const names[] = {"none", "row", "column", "square"};

    if (tags->flags & MXATTN_FOLDED)
        return "folded";
    if (tags->flags & MXATTN_FOLDED_TOKEN)
        return "folded-token";
    return names[tags->block];
}

static mxt_shape o_shape(const mxt_attention_case *c)
{
    return mxt_shape3(c->tokens_q, c->spec.heads, c->spec.head_dim_v);
}

static double limit_of(const mxt_attention_spec *spec)
{
    if (spec->problem.o.block != MXATTN_BLOCK_NONE)
        return MXT_O_MODEL_FP8;
    return spec->problem.intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_O_MODEL_E4M3
                                                                    : MXT_O_MODEL_SMALL;
}

/* One spec on every instruction set, against ref. */
static void check(const char *name, const mxt_attention_spec *spec)
{
    mxt_attention_case c;

    mxt_attention_case_make(&c, spec);
    mxt_case("%s on ref, seed %d", name, (int)spec->seed);
    mxt_attention_result model =
        mxt_attention_case_forward(&c, NULL, MXATTN_BACKEND_REF, MXATTN_PRECISION_MODEL);
    CHECK(model.status == MXATTN_OK, "ref: %s", mxattn_last_error());
    for (int i = 0; i < isa_count && model.status == MXATTN_OK; i++) {
        mxattn_context *context = mxt_context(isas[i], 2);
        mxt_case("%s: %s, seed %d, B %d, Sq %d, Sk %d, H %d/%d, D %d/%d, %s blocks", name,
                 mxt_isa_name(isas[i]), (int)spec->seed, (int)spec->batch, (int)spec->seqlen_q[0],
                 (int)spec->seqlen_k[0], (int)spec->heads, (int)spec->kv_heads, (int)spec->head_dim,
                 (int)spec->head_dim_v, block_name(&spec->v));
        mxt_attention_result cpu =
            mxt_attention_case_forward(&c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);
        CHECK(cpu.status == MXATTN_OK, "cpu: %s", mxattn_last_error());
        if (cpu.status == MXATTN_OK) {
            mxt_check_rms("O", cpu.o, model.o, o_shape(&c), limit_of(spec));
            mxt_check_close("LSE", cpu.lse, model.lse, mxt_shape1(c.lse_elements), MXT_LSE_ABSOLUTE,
                            MXT_LSE_RELATIVE);
        }
        mxt_attention_result_free(&cpu);
        mxattn_context_destroy(context);
    }
    mxt_attention_result_free(&model);
    mxt_attention_case_free(&c);
}

static void test_lengths(void)
{
    static const int64_t sizes[][2] = {{1, 1},  {1, 300},   {5, 3},     {31, 33},   {64, 64},
                                       {65, 1}, {127, 128}, {129, 257}, {200, 129}, {300, 40}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int causal = 0; causal < 2; causal++) {
            mxt_attention_spec spec = mxt_attention_spec_make();

            spec.seed = i + 1;
            spec.batch = 2;
            spec.seqlen_q[0] = sizes[i][0];
            spec.seqlen_k[0] = sizes[i][1];
            spec.problem.causal = causal;
            check(causal ? "causal lengths" : "lengths", &spec);
        }
}

static void test_dims(void)
{
    static const int64_t dims[][2] = {{8, 8},    {16, 40},   {40, 1},    {64, 64},   {72, 33},
                                      {96, 128}, {128, 128}, {192, 128}, {256, 256}, {512, 512}};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        mxt_attention_spec spec = mxt_attention_spec_make();

        spec.seed = i + 20;
        spec.seqlen_q[0] = 50;
        spec.seqlen_k[0] = 70;
        spec.head_dim = dims[i][0];
        spec.head_dim_v = dims[i][1];
        spec.extra_stride = 3;
        check("dims", &spec);
    }
}

static void test_groups(void)
{
    static const int64_t heads[][2] = {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {7, 1}, {40, 1}};

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        mxt_attention_spec spec = mxt_attention_spec_make();

        spec.seed = i + 40;
        spec.batch = 2;
        spec.seqlen_q[0] = 37;
        spec.seqlen_k[0] = 90;
        spec.heads = heads[i][0];
        spec.kv_heads = heads[i][1];
        spec.problem.causal = 1;
        spec.problem.has_sink = (int32_t)(i & 1);
        check("groups", &spec);
    }
}

static void test_masks(void)
{
    static const struct {
        const char *name;
        int64_t sq, sk, left, right;
        int causal, top_left;
    } masks[] = {{"window (3, 5)", 100, 100, 3, 5, 0, 0},
                 {"window (0, 0)", 6, 3, 0, 0, 0, 0},
                 {"window (-1, 7)", 90, 200, -1, 7, 0, 0},
                 {"window (200, 0)", 300, 300, 200, 0, 0, 0},
                 {"causal window 9", 640, 640, 9, -1, 1, 0},
                 {"top left", 40, 170, -1, -1, 1, 1},
                 {"top left, long q", 170, 40, -1, -1, 1, 1},
                 {"bottom right, long q", 170, 40, -1, -1, 1, 0},
                 {"top left window", 300, 200, 17, 3, 0, 1},
                 {"window beyond", 50, 60, 1000, 1000, 0, 0},
                 {"huge window", 50, 60, INT64_MAX, INT64_MAX, 0, 0}};

    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        mxt_attention_spec spec = mxt_attention_spec_make();

        spec.seed = i + 60;
        spec.seqlen_q[0] = masks[i].sq;
        spec.seqlen_k[0] = masks[i].sk;
        spec.problem.window[0] = masks[i].left;
        spec.problem.window[1] = masks[i].right;
        spec.problem.causal = masks[i].causal;
        spec.problem.alignment = masks[i].top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
        check(masks[i].name, &spec);
    }
}

/* Every block kind with every layout of its scales. */
static void test_blocks(void)
{
    static const mxattn_tags blocks[] = {
        {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, MXATTN_FOLDED_TOKEN},
        {MXATTN_E5M2, MXATTN_BLOCK_ROW, MXATTN_FLOOR, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, MXATTN_FOLDED},
        {MXATTN_E5M2, MXATTN_BLOCK_COLUMN, MXATTN_RCEIL, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_COLUMN, MXATTN_FLOOR, 0}};

    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        for (int layout = 0; layout < 3; layout++)
            for (int axis = 0; axis < 2; axis++) {
                mxt_attention_spec spec = mxt_attention_spec_make();
                const int square = blocks[i].block == MXATTN_BLOCK_SQUARE;

                if ((axis || layout == MXATTN_COMPACT) && !square)
                    continue;
                spec.seed = i + 80;
                spec.jagged = 1;
                spec.tail = 3;
                spec.batch = 4;
                memcpy(spec.seqlen_q, (int64_t[]){33, 0, 7, 100}, 4 * sizeof(int64_t));
                memcpy(spec.seqlen_k, (int64_t[]){45, 9, 0, 130}, 4 * sizeof(int64_t));
                spec.head_dim = 72;
                spec.head_dim_v = 48;
                spec.kind = MXT_OUTLIER;
                spec.q = spec.k = spec.v = blocks[i];
                if (blocks[i].block == MXATTN_BLOCK_COLUMN) /* v only: q and k contract over D */
                    spec.q = spec.k = blocks[0];
                spec.layout = (mxattn_scale_layout)layout;
                spec.square_axis = (mxattn_axis)axis;
                spec.problem.causal = 1;
                check(layout == 0 ? "linear" : layout == 1 ? "compact" : "tiled", &spec);
            }
}

static void test_operands(void)
{
    mxt_attention_spec spec = mxt_attention_spec_make();
    const mxattn_dtype wide[] = {MXATTN_F32, MXATTN_F16, MXATTN_BF16};

    spec.seqlen_q[0] = 70;
    spec.seqlen_k[0] = 100;
    spec.pairs = 1;
    check("row and column pair", &spec);
    spec.pairs = 0;
    spec.v.flags = MXATTN_CENTRED;
    check("centred v", &spec);
    spec.problem.has_sink = 1;
    check("centred v with a sink", &spec);
    spec.problem.causal = 1;
    spec.seqlen_q[0] = 150;
    check("centred v, rows without keys", &spec);
    for (size_t i = 0; i < 3; i++) {
        spec.q.dtype = spec.k.dtype = spec.v.dtype = wide[i];
        spec.v.block = i == 1 ? MXATTN_BLOCK_SQUARE : MXATTN_BLOCK_ROW;
        check("wide operands", &spec);
    }
}

static void test_arithmetic(void)
{
    static const struct {
        const char *name;
        double scale, softcap;
        float spread;
        int e4m3, sink;
    } cases[] = {{"scale 0", 0.0, 0.0, 1.0f, 0, 0},
                 {"scale -0.3", -0.3, 0.0, 1.0f, 0, 1},
                 {"large scores", 5.0, 0.0, 4.0f, 0, 0},
                 {"softcap 2", 1.0, 2.0, 1.0f, 0, 0},
                 {"softcap 30, e4m3", -1.0, 30.0, 2.0f, 1, 1},
                 {"softcap 1e4", 1.0, 1e4, 1.0f, 0, 0},
                 {"e4m3", 0.2, 0.0, 1.0f, 1, 0},
                 {"tiny values", 1.0, 0.0, 1e-30f, 0, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mxt_attention_spec spec = mxt_attention_spec_make();

        spec.seed = i + 120;
        spec.seqlen_q[0] = 130;
        spec.seqlen_k[0] = 150;
        spec.spread = cases[i].spread;
        spec.problem.softmax_scale = cases[i].scale;
        spec.problem.softcap = cases[i].softcap;
        spec.problem.has_sink = cases[i].sink;
        spec.problem.causal = (int32_t)(i & 1);
        spec.problem.intermediates =
            cases[i].e4m3 ? MXATTN_INTERMEDIATES_E4M3 : MXATTN_INTERMEDIATES_BF16;
        check(cases[i].name, &spec);
    }
}

/* Few queries against many keys: sequences computed in parts, beside one that is not. */
static void test_decode(void)
{
    static const struct {
        const char *name;
        int64_t sq, sk, heads, kv_heads, dim, dim_v, left;
        double softcap;
    } cases[] = {{"one query", 1, 1000, 2, 2, 128, 128, -1, 0},
                 {"one query, groups", 1, 600, 16, 2, 64, 64, -1, 0},
                 {"one key more than a part", 3, 257, 3, 3, 32, 40, -1, 0},
                 {"sixteen lanes", 4, 777, 8, 2, 128, 96, -1, 0},
                 {"window", 5, 900, 2, 1, 72, 33, 40, 0},
                 {"window within a part", 2, 900, 2, 1, 64, 8, 3, 0},
                 {"softcap", 2, 300, 4, 1, 40, 128, -1, 3.0},
                 {"wide", 1, 300, 1, 1, 512, 512, -1, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int kind = 0; kind < 4; kind++) {
            mxt_attention_spec spec = mxt_attention_spec_make();

            spec.seed = 200 + 4 * i + (uint64_t)kind;
            spec.jagged = 1;
            spec.batch = 4;
            memcpy(spec.seqlen_q, (int64_t[]){cases[i].sq, 60, 1, cases[i].sq},
                   4 * sizeof(int64_t));
            memcpy(spec.seqlen_k, (int64_t[]){cases[i].sk, 70, 0, 31}, 4 * sizeof(int64_t));
            spec.unused_k[0] = 3;
            spec.heads = cases[i].heads;
            spec.kv_heads = cases[i].kv_heads;
            spec.head_dim = cases[i].dim;
            spec.head_dim_v = cases[i].dim_v;
            spec.problem.window[0] = cases[i].left;
            spec.problem.softcap = cases[i].softcap;
            spec.problem.causal = kind != 1;
            spec.problem.has_sink = kind == 1;
            spec.problem.mode = kind == 1 ? MXATTN_TRAINING : MXATTN_INFERENCE;
            spec.problem.intermediates =
                kind == 2 ? MXATTN_INTERMEDIATES_E4M3 : MXATTN_INTERMEDIATES_BF16;
            if (kind == 2)
                spec.v.flags = MXATTN_CENTRED;
            if (kind == 3) {
                spec.q.dtype = spec.k.dtype = MXATTN_E5M2;
                spec.v.block = MXATTN_BLOCK_COLUMN;
                spec.layout = MXATTN_TILED;
                spec.extra_stride = 5;
            }
            check(cases[i].name, &spec);
        }
}

/* seqused, rows outside every sequence, saved, and every type of O. */
static void test_outputs(void)
{
    static const mxattn_tags outputs[] = {{MXATTN_F32, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0},
                                          {MXATTN_BF16, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0},
                                          {MXATTN_F16, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0},
                                          {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0},
                                          {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
                                          {MXATTN_E5M2, MXATTN_BLOCK_COLUMN, MXATTN_FLOOR, 0}};

    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
        for (int training = 0; training < 2; training++) {
            mxt_attention_spec spec = mxt_attention_spec_make();

            spec.seed = i + 140;
            spec.jagged = (int)(i & 1);
            spec.batch = 3;
            memcpy(spec.seqlen_q, (int64_t[]){40, 37, 64}, 3 * sizeof(int64_t));
            memcpy(spec.seqlen_k, (int64_t[]){60, 33, 5}, 3 * sizeof(int64_t));
            memcpy(spec.unused_q, (int64_t[]){0, 37, 3}, 3 * sizeof(int64_t));
            memcpy(spec.unused_k, (int64_t[]){7, 0, 5}, 3 * sizeof(int64_t));
            spec.tail = 4;
            spec.head_dim_v = 36;
            spec.problem.o = outputs[i];
            spec.problem.mode = training ? MXATTN_TRAINING : MXATTN_INFERENCE;
            spec.problem.causal = 1;
            check(training ? "saved" : "outputs", &spec);
        }
}

/* Equal bits for any number of threads. */
static void test_threads(void)
{
    static const int32_t threads[] = {2, 3, 7};
    mxt_attention_spec spec = mxt_attention_spec_make();

    spec.seed = 160;
    spec.jagged = 1;
    spec.batch = 3;
    memcpy(spec.seqlen_q, (int64_t[]){700, 130, 5}, 3 * sizeof(int64_t));
    memcpy(spec.seqlen_k, (int64_t[]){700, 140, 300}, 3 * sizeof(int64_t));
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.problem.causal = 1;
    for (int i = 0; i < isa_count; i++) {
        mxt_attention_case c;
        mxattn_context *one = mxt_context(isas[i], 1);

        mxt_attention_case_make(&c, &spec);
        mxt_attention_result want =
            mxt_attention_case_forward(&c, one, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);
        for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
            mxattn_context *context = mxt_context(isas[i], threads[t]);

            mxt_case("%d threads on %s", (int)threads[t], mxt_isa_name(isas[i]));
            mxt_attention_result got =
                mxt_attention_case_forward(&c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);
            CHECK(got.status == MXATTN_OK && want.status == MXATTN_OK, "%s", mxattn_last_error());
            mxt_check_bytes("O", got.o_bytes, want.o_bytes, sizeof(float), o_shape(&c));
            mxt_check_bytes("LSE", got.lse, want.lse, sizeof(float), mxt_shape1(c.lse_elements));
            mxt_attention_result_free(&got);
            mxattn_context_destroy(context);
        }
        mxt_attention_result_free(&want);
        mxattn_context_destroy(one);
        mxt_attention_case_free(&c);
    }
}

int main(void)
{
    isa_count = mxt_isas(isas);
    test_lengths();
    test_dims();
    test_groups();
    test_masks();
    test_blocks();
    test_operands();
    test_arithmetic();
    test_decode();
    test_outputs();
    test_threads();
    return mxt_finish();
}
