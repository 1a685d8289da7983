/* shapes.c: the shapes that the goals of the CPU kernels name, and what a sweep of lengths tells.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"
#include "error.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run(mxc_bench *b, const mxc_options *options, int backward)
{
    mxc_sizes sizes;
    mxc_sizes_resolve(options, &sizes);
    b->options = options;
    b->sizes = &sizes;
    memset(b->baseline_seconds, 0, sizeof b->baseline_seconds);
    mxc_bench_head(b);
    mxc_bench_attention(b, backward, 0);
    free(sizes.cu_seqlens);
}

/* Forward of two shapes in turns. */
static void run_pair(mxc_bench *first, const mxc_options *a, mxc_bench *second,
                     const mxc_options *b, const char *against)
{
    mxc_sizes sizes[2];
    mxc_sizes_resolve(a, &sizes[0]);
    mxc_sizes_resolve(b, &sizes[1]);
    first->options = a;
    first->sizes = &sizes[0];
    second->options = b;
    second->sizes = &sizes[1];
    memset(first->baseline_seconds, 0, sizeof first->baseline_seconds);
    memset(second->baseline_seconds, 0, sizeof second->baseline_seconds);
    mxc_bench_pair(first, second, against);
    free(sizes[0].cu_seqlens);
    free(sizes[1].cu_seqlens);
}

static void run_square(mxc_bench *b, const mxc_options *options, int64_t seqlen, int64_t head_dim,
                       int causal, int backward)
{
    mxc_options choice = *options;
    choice.seqlen = seqlen;
    choice.heads = choice.kv_heads = seqlen > 2048 ? 1 : 4;
    choice.head_dim = head_dim;
    choice.causal = causal;
    run(b, &choice, backward);
}

/* Lengths drawn from 16 to 2,048, and a dense batch of as many sequences and operations. */
static void run_jagged(mxc_bench *b, const mxc_options *options)
{
    mxc_options choice = *options;
    mxc_sizes sizes;
    double squares = 0;
    choice.batch = 32;
    choice.lengths = "lognormal:16:2048";
    choice.heads = choice.kv_heads = 4;
    choice.head_dim = 128;
    mxc_sizes_resolve(&choice, &sizes);
    for (int64_t i = 0; i < sizes.batch; i++) {
        double length = sizes.cu_seqlens[i + 1] - sizes.cu_seqlens[i];
        squares += length * length;
    }
    mxc_options dense = choice;
    mxc_bench second = *b;
    dense.lengths = NULL;
    dense.seqlen = (int64_t)(sqrt(squares / (double)sizes.batch) + 0.5);
    free(sizes.cu_seqlens);
    run_pair(b, &dense, &second, &choice, "dense");
}

static void run_decode(mxc_bench *b, const mxc_options *options, int64_t seqlen_q, int64_t heads)
{
    mxc_options choice = *options;
    choice.seqlen_q = seqlen_q;
    choice.seqlen_k = 32768;
    choice.heads = heads;
    choice.kv_heads = 8;
    choice.head_dim = 128;
    run(b, &choice, 0);
}

/* All instruction sets of the machine, those too that a context by itself would leave out. */
static uint32_t machine_isa(void)
{
    mxattn_context *context;
    mxattn_context_options options;
    mxattn_backend_info info;
    mxattn_context_options_init(&options);
    mxattn_backend_info_init(&info);
    options.isa_mask = MXATTN_ISA_ALL >> 1; /* each named */
    mxc_need(mxattn_context_create(&options, &context));
    mxc_need(mxattn_backend_query(context, MXATTN_BACKEND_CPU, &info));
    mxattn_context_destroy(context);
    return info.isa;
}

/* 8 query heads on 8 and on 2 kv heads. */
static void run_grouped(mxc_bench *b, const mxc_options *options)
{
    mxc_options plain = *options, grouped;
    mxc_bench second = *b;
    plain.seqlen = 2048;
    plain.heads = plain.kv_heads = 8;
    plain.head_dim = 128;
    grouped = plain;
    grouped.kv_heads = 2;
    run_pair(b, &plain, &second, &grouped, "ungrouped");
}

/* Forward of S = 2,048 on one thread and on two. */
static void run_threads(const mxc_bench *b, const mxc_options *options)
{
    mxc_options one = *options, two;
    one.seqlen = 2048;
    one.heads = one.kv_heads = 4;
    one.head_dim = 128;
    one.threads = 1;
    two = one;
    two.threads = 2;
    mxc_bench first = *b, second = *b;
    mxattn_context *contexts[2] = {mxc_run_context(&one, 1), mxc_run_context(&two, 1)};
    first.context = contexts[0];
    first.threads = 1;
    second.context = contexts[1];
    second.threads = 2;
    run_pair(&first, &one, &second, &two, "one thread");
    mxattn_context_destroy(contexts[0]);
    mxattn_context_destroy(contexts[1]);
}

/* The same on one thread and an older instruction set. */
static void run_isa(const mxc_bench *b, const mxc_options *options, const char *isa)
{
    mxc_options choice = *options;
    mxc_bench other = *b;
    choice.threads = 1;
    choice.isa = isa;
    mxattn_context *context = mxc_run_context(&choice, 1);
    other.context = context;
    other.threads = 1;
    run_square(&other, &choice, 2048, 128, 0, 0);
    mxattn_context_destroy(context);
}

/* What a call costs whose operands lie in the cache. */
static void run_short(const mxc_bench *b, const mxc_options *options)
{
    mxc_options choice = *options;
    mxc_bench cached = *b;
    cached.cached = 1;
    cached.baseline_count = 0;
    choice.seqlen = 16;
    choice.heads = choice.kv_heads = 1;
    choice.head_dim = 64;
    run(&cached, &choice, 0);
}

static void refuse_lengths(const mxc_options *options, const char *op)
{
    if (options->seqlen || options->seqlen_q || options->seqlen_k || options->lengths)
        mxc_die("'%s' is given beside lengths; it has shapes of its own", op);
}

void mxc_bench_lengths(mxc_bench *b, const mxc_options *options)
{
    refuse_lengths(options, "lengths");
    for (int backward = 0; backward <= 1; backward++)
        for (int causal = 0; causal <= 1; causal++)
            for (int64_t seqlen = 512; seqlen <= 8192; seqlen *= 2)
                run_square(b, options, seqlen, 128, causal, backward);
}

void mxc_bench_shapes(mxc_bench *b, const mxc_options *options)
{
    static const int64_t dims[] = {64, 96, 192, 256};
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
    const uint32_t machine = machine_isa();
    refuse_lengths(options, "shapes");
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        run_square(b, options, 2048, dims[i], 0, 0);
    run_grouped(b, options);
    run_jagged(b, options);
    for (int64_t seqlen_q = 1; seqlen_q <= 16; seqlen_q *= 2)
        run_decode(b, options, seqlen_q, 8);
    run_decode(b, options, 1, 32);
    run_short(b, options);
    run_threads(b, options);
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if ((mxc_isa_mask(isas[i]) & ~machine) == 0)
            run_isa(b, options, isas[i]);
}

void mxc_bench_long(mxc_bench *b, const mxc_options *options, int forward, int backward)
{
    mxc_options choice = *options;
    mxc_bench alone = *b;
    alone.baseline_count = 0;
    for (choice.seqlen = 16384; choice.seqlen <= 65536; choice.seqlen *= 2) {
        if (forward)
            run(&alone, &choice, 0);
        if (backward)
            run(&alone, &choice, 1);
    }
}

/* Milliseconds = a*S^2 + b*S by least squares of the relative residuals. */
typedef struct fit {
    double squares, products, linears, square_sum, linear_sum; /* of the normal equations */
    double a, b;
} fit;

static void fit_add(fit *f, double length, double ms)
{
    double x = length * length / ms, y = length / ms;
    f->squares += x * x;
    f->products += x * y;
    f->linears += y * y;
    f->square_sum += x;
    f->linear_sum += y;
}

static void fit_solve(fit *f)
{
    double determinant = f->squares * f->linears - f->products * f->products;
    f->a = (f->square_sum * f->linears - f->linear_sum * f->products) / determinant;
    f->b = (f->linear_sum * f->squares - f->square_sum * f->products) / determinant;
}

static double number(const cJSON *row, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(row, name));
}

/* Milliseconds of a row, were its ceiling `ceiling` GFLOP/s. WHY: a machine that others share runs
 * at one speed for a while, then at another; a share is of one turn. */
static double steady_ms(const cJSON *row, double ceiling)
{
    return number(row, "ms_median") * number(row, "gflops") /
           (number(row, "ceiling_share") * ceiling);
}

/* 1 where row belongs to the fit of `op`, with or without a causal mask. */
static int of_fit(const cJSON *row, const char *op, int causal)
{
    const cJSON *shape = cJSON_GetObjectItem(row, "shape");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(row, "op"));
    return name && strcmp(name, op) == 0 && number(shape, "seqlen_q") >= 2048 &&
           (cJSON_IsTrue(cJSON_GetObjectItem(shape, "causal")) != 0) == causal;
}

void mxc_bench_fit(mxc_bench *b, const char *op)
{
    for (int causal = 0; causal <= 1; causal++) {
        const cJSON *row;
        fit f = {0};
        double ceiling = 0;
        int count = 0;
        cJSON_ArrayForEach(row, b->rows) if (of_fit(row, op, causal))
        {
            ceiling += number(row, "ceiling_gflops");
            count++;
        }
        if (count < 3)
            continue;
        ceiling /= count;
        cJSON_ArrayForEach(row, b->rows) if (of_fit(row, op, causal)) fit_add(
            &f, number(cJSON_GetObjectItem(row, "shape"), "seqlen_q"), steady_ms(row, ceiling));
        fit_solve(&f);
        (void)printf("%s%s from S = 2,048 on, at %.4g GFLOP/s of ceiling: ms = %.4g S^2 + %.4g S; "
                     "residuals",
                     op, causal ? ", causal" : "", ceiling, f.a, f.b);
        cJSON_ArrayForEach(row, b->rows) if (of_fit(row, op, causal))
        {
            double length = number(cJSON_GetObjectItem(row, "shape"), "seqlen_q");
            double model = f.a * length * length + f.b * length;
            (void)printf(" %.1f%%", 100 * (steady_ms(row, ceiling) / model - 1));
        }
        (void)printf("\n");
    }
}
