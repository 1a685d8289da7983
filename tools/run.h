/* run.h: contexts and attention runs, as verbs use them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_RUN_H
#define MXC_TOOLS_RUN_H

#include "options.h"

/* Instruction set mask of --isa's name: that set and all before it. */
uint32_t mxc_isa_mask(const char *name);

/* A context with the options' threads and ISA, whose work is shown as progress. Dies where this
 * machine or build lacks the ISA asked for. own_threads: the library's threads instead, unshown. */
mxattn_context *mxc_run_context(const mxc_options *options, int own_threads);

/* Processors that the options' --threads, or its default, come to. */
int32_t mxc_run_threads(const mxc_options *options);

/* One attention call, with everything it points to in the caller's memory. Backward runs the
 * forward it needs; o and lse are then needed too. */
typedef struct mxc_run {
    mxattn_attention_problem problem;
    mxattn_tensor q, k, v, o, lse;
    mxattn_tensor dout, dlse, dq, dk, dv; /* backward; dlse.data NULL: absent */
    const float *sink;
    float *dsink;
    int64_t batch;                              /* jagged: sequences */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* NULL: dense */
    const int32_t *seqused_q, *seqused_k;
    mxattn_status *status; /* where the call's status goes; NULL: dies when it is refused */
} mxc_run;

/* Plans and runs forward (problem.mode INFERENCE), or forward and backward (TRAINING). Dies with
 * the library's sentence where it refuses. */
void mxc_run_attention(const mxattn_context *context, const mxc_run *run);

/* The longest sequence; values that break the rules count as 0, the library names them. */
int64_t mxc_longest(const int32_t *cu_seqlens, int64_t batch);

#endif
