/* options.h: what the command line of train_lm says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_OPTIONS_H
#define TRAIN_LM_OPTIONS_H

#include "attention.h"

#include <stdint.h>

/* What one training computes in: attention in float32, in MXFP8, all activations in MXFP8, or no
 * attention. */
enum attention_kind {
    ATTENTION_FLOAT32,
    ATTENTION_MXFP8,
    ATTENTION_MXFP8_ALL,
    ATTENTION_NONE,
    ATTENTION_KINDS
};

const char *attention_kind_name(enum attention_kind kind);

typedef struct options {
    enum attention_kind runs[ATTENTION_KINDS]; /* one training after another */
    int run_count;
    int steps, batch_tokens, width, layers, threads;
    uint64_t seed;
    double learning_rate;
    const char *text, *out, *backend;
    mxfp8_variant variant;
    int recommend; /* the other task: hidden items of histories, not the next character */
} options;

/* Ends the program: with 0 after --help, with 2 and a sentence where an option is wrong. */
options options_read(int argc, char **argv);

#endif
