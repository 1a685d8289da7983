/* backward_case.h: one backward of a device against the float64 model and against float64.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_BACKWARD_CASE_H
#define MXT_BACKWARD_CASE_H

#include "device_run.h"

typedef struct mxt_backward_case {
    const char *name;
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
    int causal, top_left;
    int64_t left, right;
    double softcap;
    int sink, dlse;
    mxt_kind kind;
    float mean; /* added to v and dO */
    mxattn_dtype operands, dout, o, gradients;
    mxattn_dq_reduce dq_reduce;
    int deterministic, without_saved, prepared;
    int strict; /* causal_strict, row blocks */
} mxt_backward_case;

/* The problem with its data; dense. Freed by mxt_attention_free. */
void mxt_backward_make(mxt_attention *a, const mxt_backward_case *c, uint64_t seed);

/* Sets the problem's options, for a problem made otherwise; before mxt_attention_alloc. */
void mxt_backward_options(mxt_attention *a, const mxt_backward_case *c);

/* How the device is given it. */
mxt_device_training mxt_backward_given(const mxt_backward_case *c, mxattn_backend backend);

/* Runs model, float64 and device, and holds the device's gradients to the model's errors. Returns
 * whether the device ran; a's gradients are then the device's. */
int mxt_backward_check(mxt_attention *a, const mxt_backward_case *c, mxattn_backend backend);

#endif
