/* progress.c: progress while training, loss curves and the closing comparison.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "progress.h"

#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMOOTHED_STEPS = 20 };

progress_line progress_start(int total_steps)
{
    double now = seconds_now();
    return (progress_line){total_steps, 0, now, now, isatty(STDOUT_FILENO)};
}

static double smoothed_loss(const run_report *run, int step)
{
    double sum = 0.0;
    int first = step + 1 > SMOOTHED_STEPS ? step + 1 - SMOOTHED_STEPS : 0;
    for (int i = first; i <= step; i++)
        sum += (double)run->train_loss[i];
    return sum / (step + 1 - first);
}

void progress_step(progress_line *p, const run_report *run, int step)
{
    double now = seconds_now(), pause = p->terminal ? 0.2 : 10.0;
    p->done_steps++;
    if (now - p->printed < pause && step + 1 < run->steps)
        return;
    p->printed = now;
    double left = (now - p->start) / p->done_steps * (p->total_steps - p->done_steps);
    printf("%s%-8s step %d/%d  loss %.3f  %.0f tokens/s  %d:%02d left%s", p->terminal ? "\r" : "",
           run->name, step + 1, run->steps, smoothed_loss(run, step),
           (double)run->tokens[step] / run->train_seconds, (int)left / 60, (int)left % 60,
           p->terminal ? "\033[K" : "\n");
    fflush(stdout);
}

void progress_clear(const progress_line *p)
{
    if (p->terminal)
        printf("\r\033[K");
}

static void fail(const char *path)
{
    fprintf(stderr, "train_lm: %s: %s\n", path, strerror(errno));
    exit(1);
}

/* Makes every folder of the path that is not there yet. */
void report_make_directory(const char *directory)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s", directory) >= (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        fail(directory);
    }
    for (char *end = path + 1;; end++) {
        char kept = *end;
        if (kept != '/' && kept != '\0')
            continue;
        *end = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            fail(path);
        if (kept == '\0')
            return;
        *end = kept;
    }
}

void report_write_csv(const run_report *run, const char *directory)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/loss_%s.csv", directory, run->name);
    FILE *file = fopen(path, "w");
    if (!file)
        fail(path);
    fprintf(file, "step,tokens,train_loss,validation_loss\n");
    for (int i = 0; i < run->steps; i++) {
        fprintf(file, "%d,%lld,%.8f,", i + 1, (long long)run->tokens[i],
                (double)run->train_loss[i]);
        if (!isnan(run->validation_loss[i]))
            fprintf(file, "%.8f", (double)run->validation_loss[i]);
        fputc('\n', file);
    }
    if (ferror(file) || fclose(file) != 0)
        fail(path);
    printf("wrote %s\n", path);
}

static const run_report *find(const run_report *runs, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(runs[i].name, name) == 0)
            return &runs[i];
    return NULL;
}

/* One row of the table: a number of each run. */
#define ROW(label, format, value)                                                                  \
    do {                                                                                           \
        printf("\n%-36s", label);                                                                  \
        for (int i = 0; i < count; i++)                                                            \
            printf(format, value);                                                                 \
    } while (0)

static void report_memory(const run_report *runs, int count)
{
    ROW("activations kept for backward, MiB", "%12.2f", (double)runs[i].saved / (1 << 20));
    ROW("  against a BF16 run", "%11.3fx", (double)runs[i].saved / (double)runs[i].saved_bf16);
    ROW("  those that cross between layers", "%11.3fx",
        (double)runs[i].saved_crossing / (double)runs[i].saved_bf16_crossing);
    ROW("quantized outside producers, a step", "%12.1f", runs[i].quantizations);
    ROW("weights quantized, a step", "%12.1f", runs[i].weights);
    ROW("MXFP8 operands read, a step", "%12.1f", runs[i].operands);
    ROW("  gathered, padded or copied first", "%12lld", (long long)runs[i].foreign);
}

void report_compare(const run_report *runs, int count, double baseline, double least)
{
    ROW("", "%12s", runs[i].name);
    ROW("validation loss, nats", "%12.4f", runs[i].final_loss);
    ROW("against the baseline", "%11.1f%%", 100.0 * (runs[i].final_loss / baseline - 1.0));
    if (!isnan(least))
        ROW("above the least possible", "%11.1f%%", 100.0 * (runs[i].final_loss / least - 1.0));
    ROW("attention's share of time", "%11.1f%%",
        100.0 * runs[i].attention_seconds / runs[i].train_seconds);
    ROW("tokens/s", "%12.0f", (double)runs[i].tokens[runs[i].steps - 1] / runs[i].train_seconds);
    ROW("seconds of training", "%12.1f", runs[i].train_seconds);
    report_memory(runs, count);
    printf("\n\n");
    const run_report *a = find(runs, count, "float32"), *b = find(runs, count, "mxfp8"),
                     *c = find(runs, count, "mxfp8-all");
    if (a && b)
        printf("val_loss float32=%.4f mxfp8=%.4f ratio=%.4f\n", a->final_loss, b->final_loss,
               b->final_loss / a->final_loss);
    if (a && b && c)
        printf("val_loss_all float32=%.4f mxfp8=%.4f mxfp8_all=%.4f\n", a->final_loss,
               b->final_loss, c->final_loss);
}
