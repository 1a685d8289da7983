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

/* The runs side by side, then the line for machines where float32 and mxfp8 are both there. */
void report_compare(const run_report *runs, int count, double bigram);

#endif
