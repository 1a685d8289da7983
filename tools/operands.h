/* operands.h: the files of an attention call: q, k, v, sequences, sink; o and lse.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_OPERANDS_H
#define MXA_TOOLS_OPERANDS_H

#include "npy.h"
#include "run.h"

#include <stdio.h>

typedef struct mxa_operands {
    /* Paths as given; NULL: not given. */
    const char *q_path, *k_path, *v_path, *sink_path;
    const char *cu_seqlens_q_path, *cu_seqlens_k_path, *seqused_q_path, *seqused_k_path;
    const char *out_path, *lse_path;
    /* What they hold. */
    mxa_npy q, k, v;
    int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
    float *sink;
    FILE *out, *lse;
} mxa_operands;

/* Takes the paths; its input is a mxa_operands. */
extern const struct argp mxa_argp_operand_files;

/* Reads the inputs, opens the outputs that are asked for, allocates o and lse, and fills a run:
 * problem, operands, sequences. Dies with a sentence on whatever does not fit. */
void mxa_operands_load(mxa_operands *files, const mxa_options *options, mxa_run *run);

/* Writes o and lse where asked for. */
void mxa_operands_store(const mxa_operands *files, const mxa_run *run);

void mxa_operands_free(mxa_operands *files, mxa_run *run);

#endif
