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

static const char *isa_of(const mxc_bench *b)
{
    mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    mxc_need(mxattn_backend_query(b->context, MXATTN_BACKEND_CPU, &info));
    return info.isa_name;
}

/* Operations, then their ceilings: of memory or the cache, and of arithmetic where one counts it;
 * on AMX of BF16 dot products too, the measure of GEMM's aim on every machine. Where an operation
 * says what it writes, the last is a fill. */
enum { LIMITS_MOST = 3 };
typedef struct turns {
    const mxc_turn *turn;
    mxc_work works[MXC_TURNS_MOST + LIMITS_MOST];
    mxc_limit limits[LIMITS_MOST];
    int count, limit_count;
} turns;

/* Work of an operation a second over that of a ceiling, turn by turn. */
static double share_of(const turns *all, int which, int limit)
{
    const mxc_turn *t = &all->turn[which];
    return (t->flops > 0 ? t->flops : t->bytes) / all->limits[limit].amount *
           mxc_time_over(&all->works[all->count + limit], &all->works[which]);
}

static void report_dot_products(const turns *all, int which, int limit, cJSON *json)
{
    const mxc_ceiling dots =
        mxc_limit_ceiling(&all->limits[limit], &all->works[all->count + limit]);
    const double share = share_of(all, which, limit);
    (void)printf("   %.2fx the peak of %s", share, dots.name);
    cJSON_AddNumberToObject(json, "dot_products_gflops", 1e-9 * dots.per_second);
    cJSON_AddNumberToObject(json, "dot_products_share", share);
}

/* WHY: what writes more than it reads may come to the end of the one before that of a copy. */
static void report_fill(const turns *all, int which, cJSON *json)
{
    const int limit = all->limit_count - 1;
    const mxc_ceiling fill =
        mxc_limit_ceiling(&all->limits[limit], &all->works[all->count + limit]);
    const double share = all->turn[which].written / all->limits[limit].amount *
                         mxc_time_over(&all->works[all->count + limit], &all->works[which]);
    (void)printf("   %.1f%% of a %s", 100 * share, fill.name);
    cJSON_AddNumberToObject(json, "fill_gbytes", 1e-9 * fill.per_second);
    cJSON_AddNumberToObject(json, "fill_share", share);
}

static void report(const mxc_bench *b, const mxc_place *place, const turns *all, int which,
                   const cJSON *shape)
{
    const mxc_turn *t = &all->turn[which];
    const mxc_work *ours = &all->works[which];
    const int counts_flops = t->flops > 0;
    const int limit = counts_flops && all->limits[0].counts_flops == 0;
    const mxc_ceiling ceiling =
        mxc_limit_ceiling(&all->limits[limit], &all->works[all->count + limit]);
    const double median = ours->timing.median, work = counts_flops ? t->flops : t->bytes;
    const double share = share_of(all, which, limit);
    const mxc_turn *other = t->against >= 0 ? &all->turn[t->against] : NULL;
    const double over = other ? mxc_time_over(ours, &all->works[t->against]) : 0;
    const char *place_name = place->cache ? "_cached" : "";
    char op[64], baseline[64];
    (void)snprintf(op, sizeof op, "%s%s", t->op, place_name);
    (void)snprintf(baseline, sizeof baseline, "%s%s", other ? other->op : "", place_name);
    (void)printf("%-26s %-6s %-7s %10.4g %9.4g %s %7.1f%%", op, t->operands, t->block, 1e3 * median,
                 1e-9 * work / median, t->flops > 0 ? "GFLOP/s" : "GB/s   ", 100 * share);
    if (t->elements > 0)
        (void)printf("   %.2f Gelem/s", 1e-9 * t->elements / median);
    if (other)
        (void)printf("   %.3fx the time of %s", over, baseline);
    cJSON *json = cJSON_CreateObject();
    if (counts_flops && limit + 1 < all->limit_count)
        report_dot_products(all, which, limit + 1, json);
    if (t->written > 0)
        report_fill(all, which, json);
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
    cJSON_AddNumberToObject(json, "ms_min", 1e3 * ours->timing.min);
    cJSON_AddNumberToObject(json, "ms_max", 1e3 * ours->timing.max);
    cJSON_AddNumberToObject(json, "repetitions", ours->timing.repetitions);
    cJSON_AddNumberToObject(json, t->flops > 0 ? "gflops" : "gbytes", 1e-9 * work / median);
    if (t->elements > 0)
        cJSON_AddNumberToObject(json, "gelements", 1e-9 * t->elements / median);
    cJSON_AddStringToObject(json, "ceiling", ceiling.name);
    cJSON_AddNumberToObject(json, t->flops > 0 ? "ceiling_gflops" : "ceiling_gbytes",
                            1e-9 * ceiling.per_second);
    cJSON_AddNumberToObject(json, "ceiling_share", share);
    if (other) {
        cJSON_AddStringToObject(json, "baseline", baseline);
        cJSON_AddNumberToObject(json, "baseline_ms", 1e3 * all->works[t->against].timing.median);
        cJSON_AddNumberToObject(json, "ratio", 1 / over);
        cJSON_AddNumberToObject(json, "time_over_baseline", over);
    } else {
        cJSON_AddNullToObject(json, "baseline");
        cJSON_AddNullToObject(json, "ratio");
    }
    cJSON_AddStringToObject(json, "machine", mxc_machine());
    cJSON_AddStringToObject(json, "version", mxattn_version_string());
}

static void run_turn(void *arg, int set)
{
    const mxc_turn *turn = arg;
    (void)set;
    turn->run(turn->arg);
}

void mxc_take_turns_at(mxc_bench *b, const mxc_place *place, mxc_turn *turn, int count,
                       cJSON *shape, const char *text)
{
    turns all = {.turn = turn, .count = count};
    int flops = 0, bytes = 0, written = 0;
    for (int i = 0; i < count; i++) {
        all.works[i] = (mxc_work){.run = run_turn, .arg = &turn[i], .sets = 1};
        flops |= turn[i].flops > 0;
        bytes |= turn[i].flops <= 0;
        written |= turn[i].written > 0;
    }
    if (bytes)
        all.limits[all.limit_count++] =
            place->cache ? mxc_cached_copy_limit(place->cache) : mxc_copy_limit(b->threads);
    if (flops)
        all.limits[all.limit_count++] =
            mxc_arithmetic_limit(isa_of(b), b->threads, mxc_limit_seconds(b, 0.01));
    if (flops && strcmp(isa_of(b), "amx") == 0)
        all.limits[all.limit_count++] =
            mxc_arithmetic_limit("avx512bf16", b->threads, mxc_limit_seconds(b, 0.01));
    if (written)
        all.limits[all.limit_count++] = mxc_fill_limit(b->threads);
    for (int i = 0; i < all.limit_count; i++)
        all.works[count + i] = all.limits[i].work;
    mxc_time_turns(all.works, count + all.limit_count, b->min_seconds);
    (void)printf("%s\n", text);
    for (int i = 0; i < count; i++)
        report(b, place, &all, i, shape);
    mxc_works_free(all.works, count + all.limit_count);
    for (int i = 0; i < all.limit_count; i++)
        mxc_limit_free(&all.limits[i]);
    cJSON_Delete(shape);
}

void mxc_take_turns(mxc_bench *b, mxc_turn *turn, int count, cJSON *shape, const char *text)
{
    const mxc_place place = {0};
    mxc_take_turns_at(b, &place, turn, count, shape, text);
}

void mxc_in_both_places(mxc_bench *b, int caches, mxc_placed work)
{
    enum { HIDDEN = 4096, HIDDEN_CACHED = 1024, ELEMENT = 2 + 1 };
    const mxc_place memory = {0};
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
    const mxc_place cached = {cache};
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
