/* progress.h: progress while training, loss curves and the closing comparison.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_PROGRESS_H
#define TRAIN_LM_PROGRESS_H

#include <stdint.h>

/* One training. Losses are in nats a token. */
typedef struct run_report {
    const char *name;
    int steps;
    float *train_loss;      /* (steps) */
    float *validation_loss; /* (steps), NAN where it was not measured */
    int64_t *tokens;        /* (steps) seen so far */
    double final_loss;      /* validation, after the last step */
    double train_seconds, attention_seconds;
    int64_t saved, saved_crossing;           /* bytes kept for backward of a full batch */
    int64_t saved_bf16, saved_bf16_crossing; /* the same in a BF16 run */
    double quantizations; /* a step, of activations and gradients outside producers */
    double weights;       /* a step, quantizations of weights */
    double operands;      /* a step, MXFP8 tensors that producers and attention read */
    int64_t foreign;      /* those of all steps that no producer wrote where they were read */
} run_report;

/* A line that shows how far all runs of the program are: on a terminal rewritten in place, in a
 * pipe printed now and then. */
typedef struct progress_line {
    int total_steps, done_steps; /* of all runs */
    double start, printed;
    int terminal;
} progress_line;

progress_line progress_start(int total_steps);
void progress_step(progress_line *p, const run_report *run, int step);
void progress_clear(const progress_line *p); /* before other lines are printed */

/* Both end the program with a sentence where the file system refuses. */
void report_make_directory(const char *directory);

/* DIR/loss_NAME.csv: step, tokens, train_loss, validation_loss. */
void report_write_csv(const run_report *run, const char *directory);

/* The runs side by side, then the lines for machines: val_loss where float32 and mxfp8 are there,
 * val_loss_all where mxfp8-all is too. least: no loss can be below it; NAN where it is not known.
 */
void report_compare(const run_report *runs, int count, double baseline, double least);

#endif
