/* producers.c: operations that take turns, and the matrices they work on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producers.h"

#include "error.h"
#include "fill.h"
#include "progress.h"
#include "run.h"
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static mxc_timing timing_of(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare_doubles);
    const double median =
        count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
    return (mxc_timing){median, times[0], times[count - 1], count};
}

static const char *isa_of(const mxc_bench *b)
{
    mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    mxc_need(mxattn_backend_query(b->context, MXATTN_BACKEND_CPU, &info));
    return info.isa_name;
}

/* Of what is multiplied on AMX the share of BF16 dot products' peak as well, the measure of GEMM's
 * aim on every machine. */
static void report_dot_products(const mxc_bench *b, double per_second, cJSON *json)
{
    const mxc_ceiling dots = mxc_arithmetic_ceiling("avx512bf16", b->threads);
    (void)printf("   %.2fx the peak of %s", per_second / dots.per_second, dots.name);
    cJSON_AddNumberToObject(json, "dot_products_gflops", 1e-9 * dots.per_second);
    cJSON_AddNumberToObject(json, "dot_products_share", per_second / dots.per_second);
}

static void report(const mxc_bench *b, const mxc_place *place, const mxc_turn *turns,
                   const mxc_turn *t, const cJSON *shape)
{
    mxc_ceiling ceiling = place->ceiling;
    if (!ceiling.name)
        ceiling = t->flops > 0 ? mxc_arithmetic_ceiling(isa_of(b), b->threads)
                               : mxc_copy_ceiling(b->threads);
    const double median = t->timing.median, work = t->flops > 0 ? t->flops : t->bytes;
    const mxc_turn *other = t->against >= 0 ? &turns[t->against] : NULL;
    const char *place_name = place->ceiling.name ? "_cached" : "";
    char op[64], baseline[64];
    (void)snprintf(op, sizeof op, "%s%s", t->op, place_name);
    (void)snprintf(baseline, sizeof baseline, "%s%s", other ? other->op : "", place_name);
    (void)printf("%-26s %-6s %-7s %10.4g %9.4g %s %7.1f%%", op, t->operands, t->block, 1e3 * median,
                 1e-9 * work / median, t->flops > 0 ? "GFLOP/s" : "GB/s   ",
                 100 * work / median / ceiling.per_second);
    if (t->elements > 0)
        (void)printf("   %.2f Gelem/s", 1e-9 * t->elements / median);
    if (other)
        (void)printf("   %.3fx the time of %s", median / other->timing.median, baseline);
    cJSON *json = cJSON_CreateObject();
    if (t->flops > 0 && strcmp(isa_of(b), "amx") == 0)
        report_dot_products(b, work / median, json);
    (void)printf("\n");
    (void)fflush(stdout);
    cJSON_AddItemToArray(b->rows, json);
    cJSON_AddStringToObject(json, "op", op);
    cJSON_AddItemToObject(json, "shape", cJSON_Duplicate(shape, 1));
    cJSON_AddStringToObject(json, "operands", t->operands);
    cJSON_AddStringToObject(json, "block", t->block);
    cJSON_AddStringToObject(json, "backend", "cpu");
    cJSON_AddStringToObject(json, "isa", isa_of(b));
    cJSON_AddNumberToObject(json, "threads", b->threads);
    cJSON_AddNumberToObject(json, "ms_median", 1e3 * median);
    cJSON_AddNumberToObject(json, "ms_min", 1e3 * t->timing.min);
    cJSON_AddNumberToObject(json, "ms_max", 1e3 * t->timing.max);
    cJSON_AddNumberToObject(json, "repetitions", t->timing.repetitions);
    cJSON_AddNumberToObject(json, t->flops > 0 ? "gflops" : "gbytes", 1e-9 * work / median);
    if (t->elements > 0)
        cJSON_AddNumberToObject(json, "gelements", 1e-9 * t->elements / median);
    cJSON_AddStringToObject(json, "ceiling", ceiling.name);
    cJSON_AddNumberToObject(json, t->flops > 0 ? "ceiling_gflops" : "ceiling_gbytes",
                            1e-9 * ceiling.per_second);
    cJSON_AddNumberToObject(json, "ceiling_share", work / median / ceiling.per_second);
    if (other) {
        cJSON_AddStringToObject(json, "baseline", baseline);
        cJSON_AddNumberToObject(json, "baseline_ms", 1e3 * other->timing.median);
        cJSON_AddNumberToObject(json, "ratio", other->timing.median / median);
        cJSON_AddNumberToObject(json, "time_over_baseline", median / other->timing.median);
    } else {
        cJSON_AddNullToObject(json, "baseline");
        cJSON_AddNullToObject(json, "ratio");
    }
    cJSON_AddStringToObject(json, "machine", mxc_machine());
    cJSON_AddStringToObject(json, "version", mxattn_version_string());
}

void mxc_take_turns_at(mxc_bench *b, const mxc_place *place, mxc_turn *turns, int count,
                       cJSON *shape, const char *text)
{
    static double times[MXC_TURNS_MOST][MXC_TURN_REPETITIONS];
    const int least = b->min_seconds > 0 ? 5 : 2;
    int n = 0;
    for (int i = 0; i < count; i++)
        turns[i].run(turns[i].arg);
    const double start = mxc_seconds();
    while (n < MXC_TURN_REPETITIONS) {
        for (int i = 0; i < count; i++) {
            const double before = mxc_seconds();
            for (int call = 0; call < place->calls; call++)
                turns[i].run(turns[i].arg);
            times[i][n] = (mxc_seconds() - before) / place->calls;
        }
        n++;
        if (n >= least && mxc_seconds() - start >= b->min_seconds * count)
            break;
    }
    for (int i = 0; i < count; i++)
        turns[i].timing = timing_of(times[i], n);
    (void)printf("%s\n", text);
    for (int i = 0; i < count; i++)
        report(b, place, turns, &turns[i], shape);
    cJSON_Delete(shape);
}

void mxc_take_turns(mxc_bench *b, mxc_turn *turns, int count, cJSON *shape, const char *text)
{
    const mxc_place place = {.calls = 1};
    mxc_take_turns_at(b, &place, turns, count, shape, text);
}

void mxc_in_both_places(mxc_bench *b, int caches, mxc_placed work)
{
    enum { HIDDEN = 4096, HIDDEN_CACHED = 1024, ELEMENT = 2 + 1, MICROSECONDS = 500 };
    const mxc_place memory = {.calls = 1};
    work(b, &memory, caches * mxc_last_level_cache() / (2 * HIDDEN) / MXC_ROWS * MXC_ROWS, HIDDEN,
         "beyond the last-level cache");
    const int64_t cache = mxc_second_cache() / 2;
    const int64_t rows = cache / (ELEMENT * HIDDEN_CACHED) / MXC_ROWS * MXC_ROWS;
    mxc_options options = *b->options;
    options.threads = 1;
    mxattn_context *context = mxc_run_context(&options, 1);
    mxc_bench one = *b;
    one.context = context;
    one.threads = 1;
    /* 5 elements a nanosecond */
    const mxc_place cached = {.calls = (int)(MICROSECONDS * 5000 / (rows * HIDDEN_CACHED)) + 1,
                              .ceiling = mxc_cached_copy_ceiling(cache)};
    work(&one, &cached, rows, HIDDEN_CACHED, "in the second cache, one thread");
    mxattn_context_destroy(context);
}

mxattn_tensor mxc_wide_matrix(mxattn_dtype dtype, int64_t rows, int64_t columns, uint64_t seed)
{
    enum { DIFFERENT = 256 };
    const int64_t some = rows < DIFFERENT ? rows : DIFFERENT;
    const size_t bytes = dtype == MXATTN_F32 ? 4 : 2;
    float *values = mxc_tool_alloc((size_t)(some * columns) * sizeof *values);
    char *data = mxc_tool_alloc((size_t)(rows * columns) * bytes);
    mxattn_tensor matrix;
    mxc_fill(MXC_DATA_GAUSSIAN, seed, 1, some, 1, columns, values);
    for (int64_t i = 0; i < some * columns; i++) {
        if (dtype == MXATTN_F32)
            ((float *)(void *)data)[i] = values[i];
        else
            ((uint16_t *)(void *)data)[i] = mxc_bf16(values[i]);
    }
    const size_t block = (size_t)(some * columns) * bytes, all = (size_t)(rows * columns) * bytes;
    for (size_t at = block; at < all; at += block)
        memcpy(data + at, data, all - at < block ? all - at : block);
    free(values);
    mxattn_tensor_view(&matrix, dtype, data, 2, (int64_t[]){rows, columns});
    return matrix;
}

static int64_t scale_bytes(const mxattn_tensor *m, mxattn_axis axis)
{
    int64_t bytes = 0;
    if (m->scales[axis].data)
        mxc_need(mxattn_scales_bytes(&m->tags, axis, MXATTN_LINEAR, 1, m->shape[0], NULL, 1,
                                     m->shape[1], &bytes));
    return bytes;
}

mxattn_tensor mxc_narrow_matrix(mxattn_block block, int64_t rows, int64_t columns)
{
    mxattn_tensor m;
    mxattn_tensor_view(&m, MXATTN_E4M3, mxc_tool_alloc((size_t)(rows * columns)), 2,
                       (int64_t[]){rows, columns});
    m.tags.block = block;
    memset(m.data, 0, (size_t)(rows * columns));
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        if (axis == MXATTN_SEQ && block != MXATTN_BLOCK_SQUARE)
            continue;
        int64_t bytes = 0;
        mxc_need(
            mxattn_scales_bytes(&m.tags, axis, MXATTN_LINEAR, 1, rows, NULL, 1, columns, &bytes));
        m.scales[axis].data = mxc_tool_alloc((size_t)bytes);
        memset(m.scales[axis].data, 0, (size_t)bytes);
    }
    return m;
}

void mxc_matrix_quantize(const mxc_bench *b, const mxattn_tensor *wide, const mxattn_tensor *narrow)
{
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.wide = wide;
    args.quantized = narrow;
    mxc_need(mxattn_quantize(b->context, &args));
}

void mxc_matrix_free(mxattn_tensor *m)
{
    free(m->data);
    free(m->scales[MXATTN_HDIM].data);
    free(m->scales[MXATTN_SEQ].data);
}

int64_t mxc_matrix_bytes(const mxattn_tensor *m)
{
    const int64_t element = m->tags.dtype == MXATTN_F32 ? 4 : m->tags.dtype == MXATTN_E4M3 ? 1 : 2;
    return m->shape[0] * m->shape[1] * element + scale_bytes(m, MXATTN_HDIM) +
           scale_bytes(m, MXATTN_SEQ);
}

void mxc_bench_producers(mxc_bench *b)
{
    (void)printf("%s, %d threads; producers, timed in turns\n", mxc_machine(), b->threads);
    (void)printf("%-26s %-6s %-7s %10s %9s %7s %8s\n", "op", "in", "block", "ms", "rate", "",
                 "ceiling");
    mxc_bench_quantizers(b);
    mxc_bench_norms(b);
    mxc_bench_gemms(b);
    mxc_bench_scales(b);
    (void)printf("\n");
}
