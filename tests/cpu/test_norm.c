/* test_norm.c: RMSNorm with quantization on every instruction set: the reference's bytes, for any
 * shape, jagged batch, tags, rotation and number of threads; its backward against the reference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu_context.h"
#include "guard.h"
#include "matrix.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 3, TABLE = 256, DIMS_MOST = 400, TOKENS_MOST = 300 };

static uint32_t isas[MXT_ISAS_MOST];
static int isa_count;
static float cosine[TABLE * DIMS_MOST], sine[TABLE * DIMS_MOST], weight[DIMS_MOST];

/* What both directions draw at random. */
typedef struct setting {
    int32_t ndim;
    int64_t shape[4];
    int32_t cu[SEQUENCES + 1], used[SEQUENCES];
    mxattn_sequences sequences;
    mxattn_rope rope;
    int has_weight;
} setting;

static setting draw(mxt_random *random)
{
    static const int64_t dims[] = {8, 32, 40, 64, 96, 128, 192, 256, 288, 400};
    setting s = {.ndim = (int32_t)mxt_random_int(random, 2, 4)};
    const int64_t d = dims[mxt_random_int(random, 0, 9)], heads = mxt_random_int(random, 1, 3);
    int64_t tokens = 0;
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t length = mxt_random_int(random, 0, 70);
        s.used[b] = (int32_t)mxt_random_int(random, 0, length);
        tokens += length;
        s.cu[b + 1] = (int32_t)tokens;
    }
    tokens += mxt_random_int(random, 0, 5);
    const int64_t jagged[4] = {tokens, s.ndim == 2 ? d : heads, d, 0};
    const int64_t dense[4] = {2, s.cu[1], heads, d};
    memcpy(s.shape, s.ndim == 4 ? dense : jagged, sizeof s.shape);
    if (s.ndim < 4 && mxt_random_int(random, 0, 3))
        s.sequences = (mxattn_sequences){.batch = SEQUENCES};
    s.has_weight = (int)mxt_random_int(random, 0, 1);
    if (mxt_random_int(random, 0, 1))
        s.rope = (mxattn_rope){.positions = TABLE,
                               .dims = d > 16 && mxt_random_int(random, 0, 1) ? d / 4 * 2 : 0,
                               .offset = mxt_random_int(random, 0, 7),
                               .interleaved = (int32_t)mxt_random_int(random, 0, 1),
                               .inverse = (int32_t)mxt_random_int(random, 0, 1)};
    return s;
}

/* Pointers into the setting, which has settled. */
static void attach(setting *s, mxt_random *random)
{
    if (s->sequences.batch == SEQUENCES) {
        s->sequences.cu_seqlens = s->cu;
        s->sequences.seqused = mxt_random_int(random, 0, 1) ? s->used : NULL;
    } else {
        s->sequences.batch = 1;
    }
    if (s->rope.positions) {
        s->rope.cosine = cosine;
        s->rope.sine = sine;
    }
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

static int64_t rows_of(const setting *s)
{
    return s->ndim == 4 ? s->shape[0] * s->shape[1] * s->shape[2]
                        : s->shape[0] * (s->ndim == 3 ? s->shape[1] : 1);
}

static mxattn_dtype draw_wide(mxt_random *random)
{
    return (mxattn_dtype[]){MXATTN_F32, MXATTN_F16, MXATTN_BF16}[mxt_random_int(random, 0, 2)];
}

static void run_forward(const mxattn_context *context, mxattn_backend backend,
                        mxattn_rmsnorm_quantize_args *args)
{
    size_t bytes = 0;
    args->backend = backend;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize_workspace(context, args, &bytes));
    args->workspace = mxt_guard_end_aligned(bytes ? bytes : 1, 256);
    args->workspace_bytes = bytes;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize(context, args));
    mxt_guard_free(args->workspace);
}

static void test_forward(uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    mxt_random random = {seed * 977};
    setting s = draw(&random);
    attach(&s, &random);
    mxt_matrix x, y[2], wide[2];
    float *rstd[2];
    mxt_case("forward, seed %llu: ndim %d, %lld x %lld x %lld x %lld", (unsigned long long)seed,
             (int)s.ndim, (long long)s.shape[0], (long long)s.shape[1], (long long)s.shape[2],
             (long long)s.shape[3]);
    mxt_matrix_make(&x, (mxattn_tags){.dtype = draw_wide(&random)}, absent, s.ndim, s.shape,
                    mxt_random_int(&random, 0, 1) * 8, &s.sequences);
    mxt_matrix_fill(&x, (mxt_kind)mxt_random_int(&random, 0, MXT_KINDS - 1), seed, &s.sequences);
    mxt_matrix_make_random(&y[0], &random, 14, s.ndim, s.shape, &s.sequences);
    mxt_matrix_make(&wide[0], (mxattn_tags){.dtype = draw_wide(&random)}, absent, s.ndim, s.shape,
                    0, &s.sequences);
    mxt_matrix_like(&y[1], &y[0]);
    mxt_matrix_like(&wide[1], &wide[0]);
    for (int i = 0; i < 2; i++)
        rstd[i] = mxt_guard_end((size_t)(rows_of(&s) + 1) * sizeof(float));
    mxattn_rmsnorm_quantize_args args;
    mxattn_rmsnorm_quantize_args_init(&args);
    args.x = &x.t;
    args.weight = s.has_weight ? weight : NULL;
    args.rope = s.rope;
    args.sequences = s.sequences;
    args.round_to_bf16 = (int32_t)mxt_random_int(&random, 0, 1);
    args.eps = mxt_random_int(&random, 0, 3) ? 1e-6 : 0;
    const int without = (int)mxt_random_int(&random, 0, 5);
    for (int i = 0; i <= isa_count; i++) {
        const int got = i > 0;
        args.y = without == 0 ? NULL : &y[got].t;
        args.y_wide = without == 1 ? NULL : &wide[got].t;
        args.rstd = rstd[got];
        mxattn_context *context =
            context_of(i ? isas[i - 1] : MXATTN_ISA_ALL, (int32_t)mxt_random_int(&random, 1, 3));
        run_forward(context, i ? MXATTN_BACKEND_CPU : MXATTN_BACKEND_REF, &args);
        mxattn_context_destroy(context);
        if (got) {
            mxt_matrix_same("y", &y[1], &y[0]);
            mxt_matrix_same("y_wide", &wide[1], &wide[0]);
            for (int64_t r = 0; r < rows_of(&s); r++)
                CHECK(rstd[0][r] == rstd[1][r] || (isnan(rstd[0][r]) && isnan(rstd[1][r])),
                      "rstd[%lld] is %g, not %g, isa %u", (long long)r, (double)rstd[1][r],
                      (double)rstd[0][r], (unsigned)isas[i - 1]);
        }
    }
    for (int i = 0; i < 2; i++) {
        mxt_matrix_free(&y[i]);
        mxt_matrix_free(&wide[i]);
        mxt_guard_free(rstd[i]);
    }
    mxt_matrix_free(&x);
}

/* Rows of +-1 give +-weight, exactly: halfway between two codes of either format, 7/4 of a power of
 * two (the largest that a scale covers), tiny, zero, infinite, NaN, and each a step of FP32 away.
 */
static void test_exact(mxattn_block block, mxattn_dtype narrow, mxattn_rounding rounding)
{
    enum { ROWS = 32, DIMS = 352 };
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, linear[2] = {MXATTN_LINEAR, MXT_ABSENT};
    const int64_t shape[] = {ROWS, DIMS};
    float exact[DIMS];
    mxt_matrix x, y[2];
    mxattn_rmsnorm_quantize_args args;
    mxt_case("exact quotients, block %d, %s, rounding %d", (int)block,
             narrow == MXATTN_E4M3 ? "e4m3" : "e5m2", (int)rounding);
    for (int i = 0; i < DIMS; i++) {
        const int chunk = i / 32, step = i % 3 - 1;
        const float tie = ldexpf(16.0F + (float)(i % 16) + 0.5F * (float)(i % 2), i / 7 % 5 - 9);
        exact[i] = tie + (float)step * 0x1p-23F * tie;
        if (chunk % 2 && i % 32 == 7)
            exact[i] = 1.75F * (chunk == 3 ? 1.0F : 1.0F + (float)(chunk % 4 - 1) * 0x1p-23F);
        if (chunk == 8)
            exact[i] = i % 32 == 5 ? 1.5e-41F : 0.0F;
        if (chunk == 9)
            exact[i] = i % 32 == 6 ? INFINITY : exact[i];
        if (chunk == 10)
            exact[i] = i % 32 == 6 ? NAN : -1.0e-39F;
    }
    mxt_matrix_make(&x, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, shape, 0, NULL);
    for (int64_t i = 0; i < (int64_t)ROWS * DIMS; i++)
        ((uint16_t *)x.memory)[i] = mxa_bf16_from_f32(i * 7 % 5 < 2 ? -1.0F : 1.0F);
    for (int i = 0; i < 2; i++)
        mxt_matrix_make(&y[i], (mxattn_tags){narrow, block, rounding, 0}, linear, 2, shape, 0,
                        NULL);
    mxattn_rmsnorm_quantize_args_init(&args);
    args.x = &x.t;
    args.weight = exact;
    args.eps = 0;
    for (int i = 0; i <= isa_count; i++) {
        mxattn_context *context = context_of(i ? isas[i - 1] : MXATTN_ISA_ALL, 1);
        args.y = &y[i > 0].t;
        run_forward(context, i ? MXATTN_BACKEND_CPU : MXATTN_BACKEND_REF, &args);
        mxattn_context_destroy(context);
        if (i)
            mxt_matrix_same("y", &y[1], &y[0]);
    }
    mxt_matrix_free(&x);
    mxt_matrix_free(&y[0]);
    mxt_matrix_free(&y[1]);
}

/* So large that outputs pass by the caches, but for the parts it is made of. */
static void test_large(uint32_t isa, mxattn_block block)
{
    enum { ROWS = 3232, DIMS = 8192, PART = 32 };
    const mxattn_tags tags = {MXATTN_E4M3, block, MXATTN_RCEIL, 0};
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, linear[2] = {MXATTN_LINEAR, MXT_ABSENT};
    const int64_t shape[] = {ROWS, DIMS}, part[] = {PART, DIMS};
    mxt_matrix x, y, wide, y_part, wide_part;
    mxattn_rmsnorm_quantize_args args;
    mxt_case("%d x %d, block %d, isa %u", ROWS, DIMS, (int)block, (unsigned)isa);
    mxt_matrix_make(&x, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, shape, 0, NULL);
    for (int64_t i = 0; i < (int64_t)ROWS * DIMS;
         i++) { /* zeros, and codes below the normal ones */
        const float size = i % 1009 ? 1.0F : 0x1p-16F;
        ((uint16_t *)x.memory)[i] =
            mxa_bf16_from_f32((float)(i % 251 - 125) * (float)(1 + i % 7) * size);
    }
    mxt_matrix_make(&y, tags, linear, 2, shape, 0, NULL);
    mxt_matrix_make(&wide, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, shape, 0, NULL);
    mxattn_rmsnorm_quantize_args_init(&args);
    mxattn_context *context = context_of(isa, 2);
    args.x = &x.t;
    args.y = &y.t;
    args.y_wide = &wide.t;
    run_forward(context, MXATTN_BACKEND_CPU, &args);
    for (int64_t r = 0; r < ROWS; r += PART * 25) {
        mxattn_tensor rows = x.t;
        rows.shape[0] = PART;
        rows.data = (uint16_t *)x.memory + r * DIMS;
        mxt_matrix_make(&y_part, tags, linear, 2, part, 0, NULL);
        mxt_matrix_make(&wide_part, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, part, 0, NULL);
        args.x = &rows;
        args.y = &y_part.t;
        args.y_wide = &wide_part.t;
        run_forward(context, MXATTN_BACKEND_REF, &args);
        CHECK(!memcmp(y_part.memory, (uint8_t *)y.memory + r * DIMS, PART * DIMS),
              "payload from row %lld on", (long long)r);
        CHECK(
            !memcmp(y_part.t.scales[0].data, y.t.scales[0].data + r * DIMS / 32, PART * DIMS / 32),
            "scales from row %lld on", (long long)r);
        CHECK(!memcmp(wide_part.memory, (uint16_t *)wide.memory + r * DIMS, PART * DIMS * 2),
              "the wide y from row %lld on", (long long)r);
        mxt_matrix_free(&y_part);
        mxt_matrix_free(&wide_part);
    }
    mxattn_context_destroy(context);
    mxt_matrix_free(&x);
    mxt_matrix_free(&y);
    mxt_matrix_free(&wide);
}

/* ---- backward ------------------------------------------------------------------------------ */

static void run_backward(const mxattn_context *context, mxattn_backend backend,
                         mxattn_rmsnorm_backward_args *args)
{
    size_t bytes = 0;
    args->backend = backend;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_backward_workspace(context, args, &bytes));
    args->workspace = mxt_guard_end_aligned(bytes ? bytes : 1, 256);
    args->workspace_bytes = bytes;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_backward(context, args));
    mxt_guard_free(args->workspace);
}

static void make_operand(mxt_matrix *m, mxt_random *random, const setting *s, uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    if (mxt_random_int(random, 0, 1))
        mxt_matrix_make_random(m, random, 14, s->ndim, s->shape, &s->sequences);
    else
        mxt_matrix_make(m, (mxattn_tags){.dtype = draw_wide(random)}, absent, s->ndim, s->shape, 0,
                        &s->sequences);
    mxt_matrix_fill(m, MXT_GAUSSIAN, seed, &s->sequences);
}

static double distance(const float *got, const float *want, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    return size > 0 ? sqrt(error / size) : error > 0 ? INFINITY : 0;
}

static void test_backward(uint64_t seed)
{
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, compact[2] = {MXATTN_COMPACT, MXATTN_TILED};
    const mxattn_tags square = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
    mxt_random random = {seed * 1013};
    setting s = draw(&random);
    attach(&s, &random);
    const int64_t dims = s.shape[s.ndim - 1];
    mxt_matrix x, dy, dx[3], quantized[3];
    float dweight[3][DIMS_MOST], *rstd = malloc((size_t)(rows_of(&s) + 1) * sizeof(float));
    mxt_case("backward, seed %llu: ndim %d, %lld x %lld x %lld x %lld", (unsigned long long)seed,
             (int)s.ndim, (long long)s.shape[0], (long long)s.shape[1], (long long)s.shape[2],
             (long long)s.shape[3]);
    make_operand(&x, &random, &s, seed);
    make_operand(&dy, &random, &s, seed + 1);
    for (int64_t r = 0; r < rows_of(&s); r++)
        rstd[r] = (float)(0.5 + mxt_random_uniform(&random));
    mxattn_rmsnorm_backward_args args;
    mxattn_rmsnorm_backward_args_init(&args);
    args.x = &x.t;
    args.dy = &dy.t;
    args.normalised = (int32_t)mxt_random_int(&random, 0, 1);
    args.accumulate = (int32_t)mxt_random_int(&random, 0, 1);
    args.weight = s.has_weight && !args.normalised ? weight : NULL;
    args.rope = s.rope;
    args.rstd = rstd;
    args.sequences = s.sequences;
    const mxattn_tags wide = {.dtype = draw_wide(&random)};
    /* 0: ref; 1 and 2: one thread and three. */
    for (int isa = 0; isa < isa_count; isa++) {
        for (int i = 0; i < 3; i++) {
            mxt_matrix_make(&dx[i], wide, absent, s.ndim, s.shape, 0, &s.sequences);
            mxt_matrix_fill(&dx[i], MXT_GAUSSIAN, seed + 2, &s.sequences);
            mxt_matrix_make(&quantized[i], square, compact, s.ndim, s.shape, 0, &s.sequences);
            mxt_fill_f32(dweight[i], 1, dims, MXT_GAUSSIAN, seed + 3);
            args.dx = &dx[i].t;
            args.dx_quantized = &quantized[i].t;
            args.dweight = dweight[i];
            mxattn_context *context = context_of(isas[isa], i == 2 ? 3 : 1);
            run_backward(context, i ? MXATTN_BACKEND_CPU : MXATTN_BACKEND_REF, &args);
            mxattn_context_destroy(context);
        }
        mxt_matrix_same("dx, 3 threads and 1", &dx[2], &dx[1]);
        mxt_matrix_same("dx_quantized, 3 threads and 1", &quantized[2], &quantized[1]);
        CHECK(!memcmp(dweight[2], dweight[1], (size_t)dims * sizeof(float)),
              "dweight differs between 3 threads and 1");
        const double limit = wide.dtype == MXATTN_F32 ? MXT_NORM_BACKWARD : MXT_NORM_NARROW;
        CHECK(mxt_matrix_distance(&dx[1], &dx[0]) <= limit, "dx is %g off",
              mxt_matrix_distance(&dx[1], &dx[0]));
        CHECK(distance(dweight[1], dweight[0], dims) <= MXT_NORM_BACKWARD, "dweight is %g off",
              distance(dweight[1], dweight[0], dims));
        for (int i = 0; i < 3; i++) {
            mxt_matrix_free(&dx[i]);
            mxt_matrix_free(&quantized[i]);
        }
    }
    mxt_matrix_free(&x);
    mxt_matrix_free(&dy);
    free(rstd);
}

int main(void)
{
    isa_count = mxt_cpu_isas(isas);
    mxt_fill_f32(weight, 1, DIMS_MOST, MXT_GAUSSIAN, 5);
    for (int i = 0; i < TABLE * DIMS_MOST; i++) {
        cosine[i] = cosf(0.37F * (float)(i % 1009));
        sine[i] = sinf(0.37F * (float)(i % 1009));
    }
    for (uint64_t seed = 1; seed <= 150; seed++)
        test_forward(seed);
    for (int i = 0; i < 8; i++)
        test_exact(i & 1 ? MXATTN_BLOCK_SQUARE : MXATTN_BLOCK_ROW,
                   i & 2 ? MXATTN_E5M2 : MXATTN_E4M3, i & 4 ? MXATTN_FLOOR : MXATTN_RCEIL);
    for (int i = 0; i < isa_count; i++) {
        test_large(isas[i], MXATTN_BLOCK_ROW);
        test_large(isas[i], MXATTN_BLOCK_SQUARE);
    }
    for (uint64_t seed = 1; seed <= 60; seed++)
        test_backward(seed);
    return mxt_finish();
}
