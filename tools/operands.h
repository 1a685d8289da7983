/* operands.h: the files of an attention call: q, k, v, sequences, sink; o and lse.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_OPERANDS_H
#define MXC_TOOLS_OPERANDS_H

#include "npy.h"
#include "run.h"

#include <stdio.h>

typedef struct mxc_operands {
    /* Paths as given; NULL: not given. */
    const char *q_path, *k_path, *v_path, *sink_path;
    const char *cu_seqlens_q_path, *cu_seqlens_k_path, *seqused_q_path, *seqused_k_path;
    const char *out_path, *lse_path;
    /* What they hold. */
    mxc_npy q, k, v;
    int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
    float *sink;
    FILE *out, *lse;
} mxc_operands;

/* Takes the paths; its input is a mxc_operands. */
extern const struct argp mxc_argp_operand_files;

/* Reads the inputs, opens the outputs that are asked for, allocates o and lse, and fills a run:
 * problem, operands, sequences. Dies with a sentence on whatever does not fit. */
void mxc_operands_load(mxc_operands *files, const mxc_options *options, mxc_run *run);

/* Writes o and lse where asked for. */
void mxc_operands_store(const mxc_operands *files, const mxc_run *run);

void mxc_operands_free(mxc_operands *files, mxc_run *run);

#endif
