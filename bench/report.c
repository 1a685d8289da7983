/* report.c: rows of the bench, as a table and as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"
#include "device_time.h"

#include <stdio.h>
#include <string.h>

const char *mxc_machine(void)
{
    static char name[128];
    char line[256];
    FILE *file = name[0] ? NULL : fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            (void)snprintf(name, sizeof name, "%s", strchr(line, ':') + 2);
            name[strcspn(name, "\n")] = 0;
            break;
        }
    if (file)
        (void)fclose(file);
    return name[0] ? name : "unknown processor";
}

void mxc_bench_head(const mxc_bench *bench)
{
    char shape[256];
    mxattn_attention_problem problem;
    mxc_options_problem(bench->options, MXATTN_E4M3, &problem);
    mxc_sizes_describe(bench->sizes, &problem, shape, sizeof shape);
    if (mxc_bench_on_device(bench->options->backend))
        (void)printf("%s; sustained; %s\n", mxc_device_name(), shape);
    else
        (void)printf("%s, %d threads; %s\n", mxc_machine(), bench->threads, shape);
    (void)printf("%-24s %-6s %-7s %-10s %10s %21s %9s %8s", "op", "in", "block", "isa", "ms",
                 "min..max", "GFLOP/s", "ceiling");
    for (int i = 0; i < bench->baseline_count; i++)
        (void)printf(" %9s", bench->baselines[i]->label);
    (void)printf("\n");
}

double mxc_limit_seconds(const mxc_bench *bench, double call_seconds)
{
    const double least = 1e-3, most = bench->min_seconds > 0.1 ? 0.1 : bench->min_seconds;
    return call_seconds < least || most < least ? least : call_seconds > most ? most : call_seconds;
}

static double baseline_ratio(const mxc_bench_row *row, int i)
{
    return row->baseline_ratios ? row->baseline_ratios[i]
                                : row->baseline_seconds[i] / row->timing.median;
}

static void print_row(const mxc_bench *bench, const mxc_bench_row *row, double rate, double share)
{
    char range[40];
    (void)snprintf(range, sizeof range, "%.4g..%.4g", 1e3 * row->timing.min, 1e3 * row->timing.max);
    (void)printf("%-24s %-6s %-7s %-10s %10.4g %21s %9.4g", row->op, row->operands, row->block,
                 row->isa, 1e3 * row->timing.median, range, rate);
    if (share > 0)
        (void)printf(" %7.1f%%", 100 * share);
    else
        (void)printf(" %8s", "-");
    for (int i = 0; i < bench->baseline_count && row->baseline_seconds; i++)
        if (row->baseline_seconds[i] > 0)
            (void)printf(" %8.2fx", baseline_ratio(row, i));
    if (row->against)
        (void)printf("  %.3fx the rate of %s", row->over, row->against);
    (void)printf("%s\n", row->flops > 0 ? "" : "  (GB/s)");
    (void)fflush(stdout);
}

static cJSON *shape_object(const mxc_sizes *s, const mxattn_attention_problem *p)
{
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddNumberToObject(shape, "batch", (double)s->batch);
    cJSON_AddNumberToObject(shape, "seqlen_q", (double)s->seqlen_q);
    cJSON_AddNumberToObject(shape, "seqlen_k", (double)s->seqlen_k);
    cJSON_AddNumberToObject(shape, "total_q", (double)s->total_q);
    cJSON_AddNumberToObject(shape, "total_k", (double)s->total_k);
    cJSON_AddNumberToObject(shape, "heads", (double)s->heads);
    cJSON_AddNumberToObject(shape, "kv_heads", (double)s->kv_heads);
    cJSON_AddNumberToObject(shape, "head_dim", (double)s->head_dim);
    cJSON_AddNumberToObject(shape, "head_dim_v", (double)s->head_dim_v);
    cJSON_AddBoolToObject(shape, "jagged", s->cu_seqlens != NULL);
    cJSON_AddBoolToObject(shape, "causal", p->causal);
    cJSON_AddNumberToObject(shape, "window_left", (double)p->window[0]);
    cJSON_AddNumberToObject(shape, "window_right", (double)p->window[1]);
    return shape;
}

/* Every baseline; and the fastest of them as the one that the ratio is over. */
static void add_baselines(const mxc_bench *bench, const mxc_bench_row *row, cJSON *json)
{
    cJSON *list = cJSON_AddArrayToObject(json, "baselines");
    int best = -1;
    for (int i = 0; i < bench->baseline_count && row->baseline_seconds; i++) {
        const double seconds = row->baseline_seconds[i];
        if (seconds <= 0)
            continue;
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(list, one);
        cJSON_AddStringToObject(one, "name", bench->baselines[i]->name);
        cJSON_AddNumberToObject(one, "ms", 1e3 * seconds);
        cJSON_AddNumberToObject(one, "ratio", baseline_ratio(row, i));
        if (best < 0 || seconds < row->baseline_seconds[best])
            best = i;
    }
    if (best < 0) {
        cJSON_AddNullToObject(json, "baseline");
        cJSON_AddNullToObject(json, "ratio");
        return;
    }
    cJSON_AddStringToObject(json, "baseline", bench->baselines[best]->name);
    cJSON_AddNumberToObject(json, "baseline_ms", 1e3 * row->baseline_seconds[best]);
    cJSON_AddNumberToObject(json, "ratio", baseline_ratio(row, best));
}

void mxc_bench_report(mxc_bench *bench, const mxattn_attention_problem *problem,
                      const mxc_bench_row *row)
{
    double median = row->timing.median;
    double rate = (row->flops > 0 ? row->flops : row->bytes) / median;
    double share = row->share;
    if (row->ceiling.name && share <= 0)
        share = rate / row->ceiling.per_second;
    print_row(bench, row, 1e-9 * rate, share);

    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToArray(bench->rows, json);
    cJSON_AddStringToObject(json, "op", row->op);
    cJSON_AddItemToObject(json, "shape", shape_object(bench->sizes, problem));
    cJSON_AddStringToObject(json, "operands", row->operands);
    cJSON_AddStringToObject(json, "block", row->block);
    cJSON_AddStringToObject(json, "backend", row->backend);
    cJSON_AddStringToObject(json, "kernel", row->kernel);
    cJSON_AddStringToObject(json, "isa", row->isa);
    cJSON_AddNumberToObject(json, "threads", bench->threads);
    cJSON_AddNumberToObject(json, "ms_median", 1e3 * median);
    cJSON_AddNumberToObject(json, "ms_min", 1e3 * row->timing.min);
    cJSON_AddNumberToObject(json, "ms_max", 1e3 * row->timing.max);
    cJSON_AddNumberToObject(json, "repetitions", row->timing.repetitions);
    cJSON_AddNumberToObject(json, row->flops > 0 ? "gflops" : "gbytes", 1e-9 * rate);
    if (row->ceiling.name) {
        cJSON_AddStringToObject(json, "ceiling", row->ceiling.name);
        cJSON_AddNumberToObject(json, row->flops > 0 ? "ceiling_gflops" : "ceiling_gbytes",
                                1e-9 * row->ceiling.per_second);
        cJSON_AddNumberToObject(json, "ceiling_share", share);
    } else {
        cJSON_AddNullToObject(json, "ceiling");
        cJSON_AddNullToObject(json, "ceiling_share");
    }
    if (row->workspace > 0)
        cJSON_AddNumberToObject(json, "workspace_bytes", row->workspace);
    add_baselines(bench, row, json);
    if (row->against) {
        cJSON_AddStringToObject(json, "against", row->against);
        cJSON_AddNumberToObject(json, "rate_over", row->over);
    }
    cJSON_AddStringToObject(json, "machine",
                            mxc_bench_on_device(bench->options->backend) ? mxc_device_name()
                                                                         : mxc_machine());
    cJSON_AddStringToObject(json, "version", mxattn_version_string());
}
