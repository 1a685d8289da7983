/* run.h: contexts and attention runs, as verbs use them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_RUN_H
#define MXA_TOOLS_RUN_H

#include "options.h"

/* Instruction set mask of --isa's name: that set and all before it. */
uint32_t mxa_isa_mask(const char *name);

/* A context with the options' threads and ISA, whose work is shown as progress. Dies where this
 * machine or build lacks the ISA asked for. own_threads: the library's threads instead, unshown. */
mxattn_context *mxa_run_context(const mxa_options *options, int own_threads);

/* Processors that the options' --threads, or its default, come to. */
int32_t mxa_run_threads(const mxa_options *options);

/* One attention call, with everything it points to in the caller's memory. Backward runs the
 * forward it needs; o and lse are then needed too. */
typedef struct mxa_run {
    mxattn_attention_problem problem;
    mxattn_tensor q, k, v, o, lse;
    mxattn_tensor dout, dlse, dq, dk, dv; /* backward; dlse.data NULL: absent */
    const float *sink;
    float *dsink;
    int64_t batch;                              /* jagged: sequences */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* NULL: dense */
    const int32_t *seqused_q, *seqused_k;
} mxa_run;

/* Plans and runs forward (problem.mode INFERENCE), or forward and backward (TRAINING). Dies with
 * the library's sentence where it refuses. */
void mxa_run_attention(const mxattn_context *context, const mxa_run *run);

/* The longest sequence; values that break the rules count as 0, the library names them. */
int64_t mxa_longest(const int32_t *cu_seqlens, int64_t batch);

#endif
