/* test_gemm.c: the GEMM that quantizes, on every instruction set: the reference's bytes where FP32
 * sums are exact, its values where they are not; any shape, jagged batch, tags, epilogue, threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "guard.h"
#include "matrix.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 4, TABLE = 256, COLUMNS_MOST = 1200 };

static uint32_t isas[8];
static int isa_count;
static float cosine[TABLE * 256], sine[TABLE * 256], bias[COLUMNS_MOST], exact_bias[COLUMNS_MOST];

typedef struct setting {
    int64_t m, n, k, heads;
    int32_t cu[SEQUENCES + 1], used[SEQUENCES];
    mxattn_sequences sequences;
    mxattn_gemm_quantize_args args;
    mxt_matrix a, b, activated;
} setting;

static int64_t pick(mxt_random *random, const int64_t *values, int count)
{
    return values[mxt_random_int(random, 0, count - 1)];
}

/* Lengths that add up to `tokens`, but for a few rows behind. */
static void draw_sequences(setting *s, mxt_random *random, int64_t tokens)
{
    int64_t left = tokens - mxt_random_int(random, 0, tokens > 8 ? 5 : 0);
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t length = b + 1 < SEQUENCES ? mxt_random_int(random, 0, left) : left;
        left -= length;
        s->cu[b + 1] = s->cu[b] + (int32_t)length;
        s->used[b] = (int32_t)mxt_random_int(random, length / 2, length);
    }
    s->sequences = (mxattn_sequences){.batch = 1};
    if (mxt_random_int(random, 0, 1))
        s->sequences = (mxattn_sequences){.cu_seqlens = s->cu,
                                          .seqused = mxt_random_int(random, 0, 1) ? s->used : NULL,
                                          .batch = SEQUENCES};
}

/* A stored factor: rows by columns, MXFP8 or BF16, perhaps in heads. */
static void make_factor(mxt_matrix *x, mxt_random *random, int64_t rows, int64_t columns,
                        int transposed, const mxattn_sequences *sequences)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    const int64_t heads = columns % 4 == 0 && mxt_random_int(random, 0, 2) == 0 ? 4 : 1;
    const int64_t matrix[] = {rows, columns}, split[] = {rows, heads, columns / heads};
    const int64_t *shape = heads > 1 ? split : matrix;
    const int row_or_column = transposed ? MXATTN_BLOCK_COLUMN : MXATTN_BLOCK_ROW;
    if (mxt_random_int(random, 0, 2))
        mxt_matrix_make_random(x, random, 1 << row_or_column | 1 << MXATTN_BLOCK_SQUARE,
                               heads > 1 ? 3 : 2, shape, sequences);
    else
        mxt_matrix_make(x, (mxattn_tags){.dtype = MXATTN_BF16}, absent, heads > 1 ? 3 : 2, shape,
                        mxt_random_int(random, 0, 1) * 8, sequences);
}

static void draw(setting *s, mxt_random *random, mxt_kind kind, uint64_t seed, int64_t k_most)
{
    static const int64_t rows[] = {1, 5, 8, 16, 31, 32, 63, 64, 96, 97, 130, 200};
    static const int64_t depths[] = {1, 16, 48, 64, 96, 128, 200, 256, 300, 512, 1500};
    static const int64_t heads_of[] = {1, 1, 1, 2, 3, 6}, dims_of[] = {8, 32, 40, 64, 96, 128};
    memset(s, 0, sizeof *s);
    mxattn_gemm_quantize_args_init(&s->args);
    s->m = pick(random, rows, 12);
    do
        s->k = pick(random, depths, 11);
    while (s->k > k_most);
    s->heads = pick(random, heads_of, 6);
    s->n = s->heads > 1 ? s->heads * pick(random, dims_of, 6)
                        : mxt_random_int(random, 1, mxt_random_int(random, 0, 3) ? 120 : 500);
    s->args.transpose_a = mxt_random_int(random, 0, 3) == 0;
    s->args.transpose_b = mxt_random_int(random, 0, 1) != 0;
    draw_sequences(s, random, s->args.transpose_a ? s->k : s->m);
    make_factor(&s->a, random, s->args.transpose_a ? s->k : s->m, s->args.transpose_a ? s->m : s->k,
                s->args.transpose_a, &s->sequences);
    make_factor(&s->b, random, s->args.transpose_b ? s->k : s->n, s->args.transpose_b ? s->n : s->k,
                s->args.transpose_b,
                s->args.transpose_a && s->args.transpose_b ? &s->sequences : NULL);
    mxt_matrix_fill(&s->a, kind, seed, &s->sequences);
    mxt_matrix_fill(&s->b, kind, seed + 1,
                    s->args.transpose_a && s->args.transpose_b ? &s->sequences : NULL);
    s->args.a = &s->a.t;
    s->args.b = &s->b.t;
    s->args.sequences = s->sequences;
}

static const mxattn_sequences *sequences_of_c(const setting *s)
{
    return s->args.transpose_a ? NULL : &s->sequences;
}

static int64_t shape_of_c(const setting *s, int64_t shape[3])
{
    shape[0] = s->m;
    shape[1] = s->heads > 1 ? s->heads : s->n;
    shape[2] = s->heads > 1 ? s->n / s->heads : 0;
    return s->heads > 1 ? 3 : 2;
}

static void draw_epilogue(setting *s, mxt_random *random, const float *some_bias, uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    static const mxattn_activation activations[] = {MXATTN_ACTIVATION_NONE, MXATTN_ACTIVATION_NONE,
                                                    MXATTN_ACTIVATION_RELU,
                                                    MXATTN_ACTIVATION_RELU_SQUARED};
    int64_t shape[3];
    const int32_t ndim = (int32_t)shape_of_c(s, shape);
    const int64_t dims = s->n / s->heads;
    s->args.bias = mxt_random_int(random, 0, 1) ? some_bias : NULL;
    s->args.activation = activations[mxt_random_int(random, 0, 3)];
    if (s->args.activation != MXATTN_ACTIVATION_NONE && mxt_random_int(random, 0, 1)) {
        mxt_matrix_make(&s->activated, (mxattn_tags){.dtype = MXATTN_F32}, absent, ndim, shape, 0,
                        sequences_of_c(s));
        mxt_matrix_fill(&s->activated, MXT_PERIOD251, seed + 2, sequences_of_c(s));
        s->args.activated = &s->activated.t;
    }
    s->args.head_norm = mxt_random_int(random, 0, 3) == 0;
    s->args.norm_weight = s->args.head_norm && mxt_random_int(random, 0, 1) ? bias : NULL;
    s->args.norm_heads = mxt_random_int(random, 0, s->heads);
    if (dims % 2 == 0 && mxt_random_int(random, 0, 2) == 0)
        s->args.rope = (mxattn_rope){.cosine = cosine,
                                     .sine = sine,
                                     .positions = TABLE,
                                     .offset = mxt_random_int(random, 0, 9),
                                     .interleaved = (int32_t)mxt_random_int(random, 0, 1),
                                     .inverse = (int32_t)mxt_random_int(random, 0, 1)};
}

static mxattn_context *context_of(uint32_t isa, int32_t threads)
{
    mxattn_context_options options;
    mxattn_context *context = NULL;
    mxattn_context_options_init(&options);
    options.isa_mask = isa;
    options.threads = threads;
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    return context;
}

/* Backend ref when isa is 0. */
static void run(mxattn_gemm_quantize_args args, uint32_t isa, int32_t threads)
{
    size_t bytes = 0;
    mxattn_context *context = context_of(isa ? isa : MXATTN_ISA_ALL, threads);
    args.backend = isa ? MXATTN_BACKEND_CPU : MXATTN_BACKEND_REF;
    CHECK_STATUS(MXATTN_OK, mxattn_gemm_quantize_workspace(context, &args, &bytes));
    args.workspace = mxt_guard_end_aligned(bytes ? bytes : 1, 256);
    args.workspace_bytes = bytes;
    CHECK_STATUS(MXATTN_OK, mxattn_gemm_quantize(context, &args));
    mxt_guard_free(args.workspace);
    mxattn_context_destroy(context);
}

static void name_case(const char *what, uint64_t seed, const setting *s)
{
    mxt_case("%s, seed %llu: M %lld N %lld K %lld, %lld heads%s%s", what, (unsigned long long)seed,
             (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->heads,
             s->args.transpose_a ? ", a transposed" : "",
             s->args.transpose_b ? ", b transposed" : "");
}

static void free_setting(setting *s)
{
    mxt_matrix_free(&s->a);
    mxt_matrix_free(&s->b);
    if (s->activated.memory)
        mxt_matrix_free(&s->activated);
}

/* Small multiples of 1/2 and a K that keeps sums exact in FP32. */
static void test_exact(uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    mxt_random random = {seed * 31};
    setting s;
    mxt_matrix c[2], wide[2];
    int64_t shape[3];
    float *rstd[2];
    draw(&s, &random, MXT_EXACT, seed, 512);
    draw_epilogue(&s, &random, exact_bias, seed);
    name_case("exact sums", seed, &s);
    const int32_t ndim = (int32_t)shape_of_c(&s, shape);
    const int narrow = (int)mxt_random_int(&random, 0, 3);
    if (narrow)
        mxt_matrix_make_random(&c[0], &random, 14, ndim, shape, sequences_of_c(&s));
    else
        mxt_matrix_make(
            &c[0], (mxattn_tags){.dtype = mxt_random_int(&random, 0, 1) ? MXATTN_BF16 : MXATTN_F32},
            absent, ndim, shape, 0, sequences_of_c(&s));
    mxt_matrix_make(&wide[0], (mxattn_tags){.dtype = MXATTN_F32}, absent, ndim, shape, 8,
                    sequences_of_c(&s));
    mxt_matrix_like(&c[1], &c[0]);
    mxt_matrix_like(&wide[1], &wide[0]);
    s.args.accumulate = !narrow && mxt_random_int(&random, 0, 1);
    for (int i = 0; i < 2; i++)
        rstd[i] = mxt_guard_end((size_t)(s.m * s.heads) * sizeof(float));
    for (int i = 0; i <= isa_count; i++) {
        const int got = i > 0;
        if (s.args.accumulate)
            mxt_matrix_fill(&c[got], MXT_EXACT, seed + 3, sequences_of_c(&s));
        s.args.c = &c[got].t;
        s.args.c_wide = &wide[got].t;
        s.args.norm_rstd = s.args.head_norm ? rstd[got] : NULL;
        run(s.args, i ? isas[i - 1] : 0, (int32_t)mxt_random_int(&random, 1, 3));
        if (!got)
            continue;
        mxt_matrix_same("c", &c[1], &c[0]);
        mxt_matrix_same("c_wide", &wide[1], &wide[0]);
        const int64_t count = s.m * (s.args.norm_heads ? s.args.norm_heads : s.heads);
        CHECK(!memcmp(rstd[0], rstd[1], s.args.head_norm ? (size_t)count * sizeof(float) : 0),
              "norm_rstd differs");
    }
    for (int i = 0; i < 2; i++) {
        mxt_matrix_free(&c[i]);
        mxt_matrix_free(&wide[i]);
        mxt_guard_free(rstd[i]);
    }
    free_setting(&s);
}

/* Gaussian operands, every activation; the bits of one thread and of three. */
static void test_rounding(uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    mxt_random random = {seed * 37};
    setting s;
    mxt_matrix c[3];
    int64_t shape[3];
    draw(&s, &random, MXT_GAUSSIAN, seed, 1500);
    s.args.bias = bias;
    s.args.activation = (mxattn_activation)mxt_random_int(&random, 0, 4);
    name_case("rounded sums", seed, &s);
    const mxattn_dtype dtype = mxt_random_int(&random, 0, 1) ? MXATTN_F32 : MXATTN_BF16;
    for (int i = 0; i < 3; i++)
        mxt_matrix_make(&c[i], (mxattn_tags){.dtype = dtype}, absent,
                        (int32_t)shape_of_c(&s, shape), shape, 0, sequences_of_c(&s));
    for (int i = 0; i < isa_count; i++) {
        for (int way = 0; way < 3; way++) {
            s.args.c = &c[way].t;
            run(s.args, way ? isas[i] : 0, way == 2 ? 3 : 1);
        }
        mxt_matrix_same("3 threads and 1", &c[2], &c[1]);
        const double limit = dtype == MXATTN_F32 ? MXT_GEMM_RMS : MXT_GEMM_NARROW;
        CHECK(mxt_matrix_distance(&c[1], &c[0]) <= limit, "activation %d: %g off",
              (int)s.args.activation, mxt_matrix_distance(&c[1], &c[0]));
    }
    for (int i = 0; i < 3; i++)
        mxt_matrix_free(&c[i]);
    free_setting(&s);
}

/* A row of C has the same bits whatever rows are beside it. */
static void test_rows_alone(void)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    const int64_t all[] = {200, 300}, weights[] = {130, 300}, out[] = {200, 130};
    mxt_matrix a, b, c, one;
    mxt_case("a row alone has the bits it has among others");
    mxt_matrix_make(&a, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, all, 0, NULL);
    mxt_matrix_make(&b, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, weights, 0, NULL);
    mxt_matrix_make(&c, (mxattn_tags){.dtype = MXATTN_F32}, absent, 2, out, 0, NULL);
    mxt_matrix_make(&one, (mxattn_tags){.dtype = MXATTN_F32}, absent, 2, (int64_t[]){1, 130}, 0,
                    NULL);
    mxt_matrix_fill(&a, MXT_GAUSSIAN, 1, NULL);
    mxt_matrix_fill(&b, MXT_GAUSSIAN, 2, NULL);
    mxattn_gemm_quantize_args args;
    mxattn_gemm_quantize_args_init(&args);
    args.a = &a.t;
    args.b = &b.t;
    for (int i = 0; i < isa_count; i++) {
        args.c = &c.t;
        run(args, isas[i], 2);
        mxattn_tensor row = a.t;
        for (int64_t r = 0; r < 200; r += 37) {
            row.shape[0] = 1;
            row.data = (uint16_t *)a.memory + r * 300;
            args.a = &row;
            args.c = &one.t;
            run(args, isas[i], 1);
            CHECK(!memcmp(one.memory, (float *)c.memory + r * 130, 130 * sizeof(float)),
                  "row %lld differs", (long long)r);
        }
        args.a = &a.t;
    }
    mxt_matrix_free(&a);
    mxt_matrix_free(&b);
    mxt_matrix_free(&c);
    mxt_matrix_free(&one);
}

/* One code in each column of B: NaNs, and scales with which decoding is more than a multiplication;
 * beside them columns that are as they were. */
static void test_special_codes(void)
{
    enum { ROWS = 3, COLUMNS = 64, DEPTH = 128, CHUNKS = DEPTH / 32 };
    static const uint8_t scales[] = {0x7F, 0x7F, 1, 9, 10, 0xF6, 0xF7, 0xFD, 0xFF};
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, linear[2] = {MXATTN_LINEAR, MXT_ABSENT};
    mxt_matrix a, b, c[2];
    mxattn_gemm_quantize_args args;
    mxt_case("NaN codes and scales near either end");
    mxt_matrix_make(&a, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, (int64_t[]){ROWS, DEPTH}, 0,
                    NULL);
    mxt_matrix_make(&b, (mxattn_tags){.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW}, linear, 2,
                    (int64_t[]){COLUMNS, DEPTH}, 0, NULL);
    for (int i = 0; i < 2; i++)
        mxt_matrix_make(&c[i], (mxattn_tags){.dtype = MXATTN_F32}, absent, 2,
                        (int64_t[]){ROWS, COLUMNS}, 0, NULL);
    mxt_matrix_fill(&b, MXT_EXACT, 1, NULL);
    for (int i = 0; i < ROWS * DEPTH; i++)
        ((uint16_t *)a.t.data)[i] = 0x3F80;
    mxattn_gemm_quantize_args_init(&args);
    args.a = &a.t;
    args.b = &b.t;
    for (int special = 0; special < COLUMNS; special += 7) { /* the column whose code is a NaN */
        uint8_t *codes = b.t.data, *scale = b.t.scales[MXATTN_HDIM].data;
        memset(codes, 0, (size_t)COLUMNS * DEPTH);
        memset(scale, 0x7F, (size_t)COLUMNS * CHUNKS);
        for (int n = 0; n < COLUMNS; n++) {
            const int k = n * 37 % DEPTH;
            codes[n * DEPTH + k] = (uint8_t)(n == special ? 0xFF : 0x38 + n % 8);
            if (special % 2)
                scale[n * CHUNKS + k / 32] = scales[n % (int)sizeof scales];
        }
        args.c = &c[0].t;
        run(args, 0, 1);
        for (int i = 0; i < isa_count; i++) {
            args.c = &c[1].t;
            run(args, isas[i], 1);
            for (int at = 0; at < ROWS * COLUMNS; at++) {
                const float want = ((float *)c[0].t.data)[at], got = ((float *)c[1].t.data)[at];
                CHECK(isnan(want) ? isnan(got) : want == got, "isa %x, column %d: %g, not %g",
                      (unsigned)isas[i], at % COLUMNS, (double)got, (double)want);
            }
        }
    }
    mxt_matrix_free(&a);
    mxt_matrix_free(&b);
    mxt_matrix_free(&c[0]);
    mxt_matrix_free(&c[1]);
}

int main(void)
{
    isa_count = mxt_isas(isas);
    mxt_fill_f32(bias, 1, COLUMNS_MOST, MXT_GAUSSIAN, 5);
    mxt_fill_f32(exact_bias, 1, COLUMNS_MOST, MXT_EXACT, 6);
    for (int i = 0; i < TABLE * 256; i++) {
        cosine[i] = cosf(0.37F * (float)(i % 1009));
        sine[i] = sinf(0.37F * (float)(i % 1009));
    }
    for (uint64_t seed = 1; seed <= 120; seed++)
        test_exact(seed);
    for (uint64_t seed = 1; seed <= 40; seed++)
        test_rounding(seed);
    test_rows_alone();
    test_special_codes();
    return mxt_finish();
}
