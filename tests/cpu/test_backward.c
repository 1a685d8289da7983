/* test_backward.c: gradients on every instruction set against the float64 model that rounds at the
 * same points, over masks, shapes, formats, outputs; bits against threads and runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "compare.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t isas[8];
static int isa_count;
static const char *const names[3] = {"dQ", "dK", "dV"};

static mxt_shape shape_of(const mxt_attention_case *c, int which)
{
    int64_t shape[3];

    mxt_gradient_shape(c, which, shape);
    return mxt_shape3(shape[0], shape[1], shape[2]);
}

static mxt_gradients run(mxt_attention_case *c, const mxattn_context *context)
{
    mxt_gradients gradients =
        mxt_attention_case_backward(c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);

    CHECK(gradients.status == MXATTN_OK, "cpu: %s", mxattn_last_error());
    return gradients;
}

/* One problem on every instruction set, against ref. */
static void compare_with_model(const char *name, const mxt_attention_spec *spec)
{
    mxt_attention_case c;
    const mxattn_attention_problem *p = &spec->problem;

    mxt_attention_case_make(&c, spec);
    mxt_case("%s on ref, seed %d", name, (int)spec->seed);
    mxt_gradients model =
        mxt_attention_case_backward(&c, NULL, MXATTN_BACKEND_REF, MXATTN_PRECISION_MODEL);
    CHECK(model.status == MXATTN_OK, "ref: %s", mxattn_last_error());
    for (int i = 0; i < isa_count && model.status == MXATTN_OK; i++) {
        mxattn_context *context = mxt_context(isas[i], 2);

        mxt_case("%s: %s, seed %d, B %d, Sq %d, Sk %d, H %d/%d, D %d/%d, %s, dQ in %s", name,
                 mxt_isa_name(isas[i]), (int)spec->seed, (int)spec->batch, (int)spec->seqlen_q[0],
                 (int)spec->seqlen_k[0], (int)spec->heads, (int)spec->kv_heads, (int)spec->head_dim,
                 (int)spec->head_dim_v,
                 p->intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16",
                 p->dq_reduce == MXATTN_DQ_REDUCE_FP16 ? "fp16" : "fp32");
        mxt_gradients cpu = run(&c, context);
        for (int g = 0; g < 3 && cpu.status == MXATTN_OK; g++)
            mxt_check_rms(names[g], cpu.d[g], model.d[g], shape_of(&c, g),
                          g == 2 ? MXT_DV_MODEL : MXT_DQ_DK_MODEL);
        if (cpu.dsink)
            mxt_check_rms("dsink", cpu.dsink, model.dsink, mxt_shape1(spec->heads),
                          MXT_DQ_DK_MODEL);
        mxt_gradients_free(&cpu);
        mxattn_context_destroy(context);
    }
    mxt_gradients_free(&model);
    mxt_attention_case_free(&c);
}

/* With both intermediates and both reductions of dQ. */
static void check(const char *name, const mxt_attention_spec *spec)
{
    for (int e4m3 = 0; e4m3 < 2; e4m3++)
        for (int fp16 = 0; fp16 < 2; fp16++) {
            mxt_attention_spec one = *spec;

            one.problem.intermediates =
                e4m3 ? MXATTN_INTERMEDIATES_E4M3 : MXATTN_INTERMEDIATES_BF16;
            one.problem.dq_reduce = fp16 ? MXATTN_DQ_REDUCE_FP16 : MXATTN_DQ_REDUCE_FP32;
            compare_with_model(name, &one);
        }
}

/* B 1, Sq Sk 64, 2 heads of 32 over 1; square blocks; gradients in FP32. */
static mxt_attention_spec spec_make(uint64_t seed)
{
    mxt_attention_spec spec = mxt_attention_spec_make();
    const mxattn_tags square = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_SQUARE};

    spec.seed = seed;
    spec.q = spec.k = spec.v = square;
    spec.problem.mode = MXATTN_TRAINING;
    spec.problem.dout = square;
    spec.problem.dq = spec.problem.dk = spec.problem.dv = (mxattn_tags){.dtype = MXATTN_F32};
    return spec;
}

static void test_lengths(void)
{
    static const int64_t sizes[][2] = {{1, 1},   {1, 300}, {5, 3},     {31, 33},
                                       {64, 64}, {65, 1},  {129, 257}, {300, 40}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int causal = 0; causal < 2; causal++) {
            mxt_attention_spec spec = spec_make(i + 1);

            spec.batch = 2;
            spec.seqlen_q[0] = sizes[i][0];
            spec.seqlen_k[0] = sizes[i][1];
            spec.problem.causal = causal;
            check(causal ? "causal lengths" : "lengths", &spec);
        }
}

static void test_dims(void)
{
    static const int64_t dims[][2] = {{8, 8}, {40, 1}, {72, 33}, {96, 128}, {192, 128}, {512, 512}};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        mxt_attention_spec spec = spec_make(i + 20);

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
    static const int64_t heads[][2] = {{3, 3}, {6, 2}, {7, 1}};

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        mxt_attention_spec spec = spec_make(i + 40);

        spec.batch = 2;
        spec.seqlen_q[0] = 37;
        spec.seqlen_k[0] = 290;
        spec.heads = heads[i][0];
        spec.kv_heads = heads[i][1];
        spec.problem.causal = 1;
        spec.problem.has_sink = (int32_t)(i & 1);
        spec.dlse = (int)(i & 1);
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
                 {"causal window 9", 400, 400, 9, -1, 1, 0},
                 {"top left", 40, 170, -1, -1, 1, 1},
                 {"top left, long q", 170, 40, -1, -1, 1, 1},
                 {"bottom right, long q", 170, 40, -1, -1, 1, 0},
                 {"top left window", 300, 200, 17, 3, 0, 1}};

    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        mxt_attention_spec spec = spec_make(i + 60);

        spec.seqlen_q[0] = masks[i].sq;
        spec.seqlen_k[0] = masks[i].sk;
        spec.problem.window[0] = masks[i].left;
        spec.problem.window[1] = masks[i].right;
        spec.problem.causal = masks[i].causal;
        spec.problem.alignment = masks[i].top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
        check(masks[i].name, &spec);
    }
}

/* Blocks and layouts in a jagged batch with empty sequences, unused tokens and a tail. */
static void test_blocks(void)
{
    static const mxattn_tags blocks[] = {
        {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0},
        {MXATTN_E5M2, MXATTN_BLOCK_ROW, MXATTN_FLOOR, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
        {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, MXATTN_FOLDED}};

    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        for (int layout = 0; layout < 3; layout++) {
            mxt_attention_spec spec = spec_make(i + 200);

            if (layout == MXATTN_COMPACT && blocks[i].block != MXATTN_BLOCK_SQUARE)
                continue;
            spec.jagged = 1;
            spec.tail = 3;
            spec.batch = 5;
            memcpy(spec.seqlen_q, (int64_t[]){0, 33, 0, 7, 100}, 5 * sizeof(int64_t));
            memcpy(spec.seqlen_k, (int64_t[]){5, 45, 9, 0, 230}, 5 * sizeof(int64_t));
            memcpy(spec.unused_q, (int64_t[]){0, 1, 0, 7, 3}, 5 * sizeof(int64_t));
            memcpy(spec.unused_k, (int64_t[]){0, 0, 9, 0, 33}, 5 * sizeof(int64_t));
            spec.head_dim = 72;
            spec.head_dim_v = 48;
            spec.kind = MXT_OUTLIER;
            /* Logits of deviation 1: with larger ones dS is what cancellation leaves, and one P on
             * the other side of a rounding in forward decides its sign. */
            spec.problem.softmax_scale = 0.005;
            spec.q = spec.k = spec.v = spec.problem.dout = blocks[i];
            spec.layout = (mxattn_scale_layout)layout;
            spec.problem.causal = 1;
            check(layout == 0 ? "linear" : layout == 1 ? "compact" : "tiled", &spec);
        }
}

static void test_operands(void)
{
    static const mxattn_dtype wide[] = {MXATTN_F32, MXATTN_F16, MXATTN_BF16};
    const mxattn_tags row = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW};
    mxt_attention_spec spec = spec_make(100);

    spec.seqlen_q[0] = 70;
    spec.seqlen_k[0] = 150;
    spec.q = spec.k = spec.v = spec.problem.dout = row;
    spec.problem.causal = spec.problem.causal_strict = 1;
    check("causal_strict", &spec);
    spec.problem.causal_strict = 0;
    spec.pairs = 1;
    check("row and column pairs", &spec);
    spec = spec_make(101);
    spec.seqlen_q[0] = 150;
    spec.seqlen_k[0] = 70;
    spec.v.flags = MXATTN_CENTRED;
    check("centred v", &spec);
    spec.problem.has_sink = spec.dlse = spec.problem.causal = 1;
    check("centred v with a sink, rows without keys", &spec);
    for (size_t i = 0; i < 3; i++) {
        spec.q.dtype = spec.k.dtype = spec.v.dtype = spec.problem.dout.dtype = wide[i];
        spec.q.block = spec.k.block = i == 1 ? MXATTN_BLOCK_SQUARE : MXATTN_BLOCK_ROW;
        spec.no_saved = (int)i & 1;
        check("wide operands", &spec);
    }
}

static void test_arithmetic(void)
{
    static const struct {
        const char *name;
        double scale, softcap;
        float spread;
        int sink;
    } cases[] = {{"scale 0", 0.0, 0.0, 1.0f, 0},
                 {"scale -0.3", -0.3, 0.0, 1.0f, 1},
                 {"softcap 2", 0.5, 2.0, 1.0f, 0},
                 {"softcap 30", -0.5, 30.0, 2.0f, 1},
                 {"tiny values", 1.0, 0.0, 1e-8f, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mxt_attention_spec spec = spec_make(i + 120);

        spec.seqlen_q[0] = 130;
        spec.seqlen_k[0] = 150;
        spec.spread = cases[i].spread;
        spec.problem.softmax_scale = cases[i].scale;
        spec.problem.softcap = cases[i].softcap;
        spec.problem.has_sink = cases[i].sink;
        spec.dlse = cases[i].sink;
        spec.problem.causal = (int32_t)(i & 1);
        check(cases[i].name, &spec);
    }
}

/* What O and LSE give is what saved gives, but for the rounding of O. */
static void test_saved(void)
{
    static const mxattn_dtype types[] = {MXATTN_F32, MXATTN_BF16, MXATTN_F16, MXATTN_E4M3};

    for (size_t i = 0; i < 4; i++)
        for (int no_saved = 0; no_saved < 2; no_saved++) {
            mxt_attention_spec spec = spec_make(i + 140);

            if (types[i] == MXATTN_E4M3 && no_saved)
                continue;
            spec.seqlen_q[0] = 90;
            spec.head_dim_v = 36;
            spec.no_saved = no_saved;
            spec.problem.o.dtype = types[i];
            spec.problem.o.block =
                types[i] == MXATTN_E4M3 ? MXATTN_BLOCK_SQUARE : MXATTN_BLOCK_NONE;
            check(no_saved ? "from O and LSE" : "from saved", &spec);
        }
}

/* Gradients of each type are those in FP32, rounded or quantized once. */
static void test_outputs(void)
{
    static const mxattn_tags outputs[] = {{MXATTN_BF16, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0},
                                          {MXATTN_F16, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0},
                                          {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0},
                                          {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
                                          {MXATTN_E5M2, MXATTN_BLOCK_COLUMN, MXATTN_FLOOR, 0}};

    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
        for (int jagged = 0; jagged < 2; jagged++) {
            mxt_attention_spec spec = spec_make(i + 160);

            spec.jagged = jagged;
            spec.batch = 3;
            memcpy(spec.seqlen_q, (int64_t[]){40, 37, 64}, 3 * sizeof(int64_t));
            memcpy(spec.seqlen_k, (int64_t[]){60, 33, 5}, 3 * sizeof(int64_t));
            memcpy(spec.unused_q, (int64_t[]){0, 37, 3}, 3 * sizeof(int64_t));
            memcpy(spec.unused_k, (int64_t[]){7, 0, 5}, 3 * sizeof(int64_t));
            spec.tail = 4;
            spec.head_dim_v = 36;
            spec.problem.dq = spec.problem.dk = spec.problem.dv = outputs[i];
            check("outputs", &spec);
        }
}

static void expect_same(const mxt_attention_case *c, const mxt_gradients *got,
                        const mxt_gradients *want)
{
    for (int g = 0; g < 3; g++)
        mxt_check_bytes(names[g], got->bytes[g], want->bytes[g], sizeof(float), shape_of(c, g));
    if (want->dsink)
        mxt_check_bytes("dsink", got->dsink, want->dsink, sizeof(float), mxt_shape1(c->spec.heads));
}

/* Last task first, one after the other, on the thread that asks. */
static void backwards(void *user, int64_t count, mxattn_task task, void *arg)
{
    (void)user;
    for (int64_t i = count - 1; i >= 0; i--)
        task(arg, i);
}

static mxattn_context *context_backwards(uint32_t isa)
{
    mxattn_context_options options;
    mxattn_context *context = NULL;

    mxattn_context_options_init(&options);
    options.isa_mask = isa;
    options.threads = 3;
    options.parallel_for = backwards;
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    return context;
}

/* B115, B116: the same bits from run to run, for any number of threads and any order of tasks. */
static void test_bits(void)
{
    static const int32_t threads[] = {1, 1, 2, 3, 7, 2, 0};

    for (int i = 0; i < isa_count; i++)
        for (int split = 0; split < 2; split++) {
            mxt_attention_spec spec = spec_make(180);
            mxt_gradients first = {0};
            mxt_attention_case c;

            spec.jagged = !split;
            spec.batch = split ? 1 : 4;
            memcpy(spec.seqlen_q, (int64_t[]){700, 130, 0, 5}, 4 * sizeof(int64_t));
            memcpy(spec.seqlen_k, (int64_t[]){700, 140, 20, 300}, 4 * sizeof(int64_t));
            spec.heads = split ? 1 : 4;
            spec.kv_heads = split ? 1 : 2;
            spec.problem.causal = spec.problem.has_sink = 1;
            spec.problem.intermediates = MXATTN_INTERMEDIATES_E4M3;
            spec.problem.dq_reduce = MXATTN_DQ_REDUCE_FP16;
            mxt_attention_case_make(&c, &spec);
            for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
                mxattn_context *context =
                    threads[t] ? mxt_context(isas[i], threads[t]) : context_backwards(isas[i]);

                mxt_case("B115 B116 bits on %s, %s, run %d, %d threads", mxt_isa_name(isas[i]),
                         split ? "one head" : "jagged", (int)t, (int)threads[t]);
                mxt_gradients got = run(&c, context);
                if (t == 0)
                    first = got;
                else if (got.status == MXATTN_OK && first.status == MXATTN_OK)
                    expect_same(&c, &got, &first);
                if (t > 0)
                    mxt_gradients_free(&got);
                mxattn_context_destroy(context);
            }
            mxt_gradients_free(&first);
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
    test_saved();
    test_outputs();
    test_bits();
    return mxt_finish();
}
