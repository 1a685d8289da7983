/* attention_call.h: a valid attention call, for tests that spoil one thing in it.
 *
 * Dense: B 2, Sq 40, Sk 70; jagged: lengths 5, 0, 35 of q and 3, 17, 50 of k, with 2 and 1 tokens
 * of storage after them. Hq 4, Hkv 2, D 32, Dv 16; q, k, v E4M3 square with linear hdim scales, all
 * ones; o, dout, dq, dk, dv BF16. Outputs and workspace are NaN-filled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_ATTENTION_CALL_H
#define MXT_ATTENTION_CALL_H

#include "mxattn/mxattn.h"

enum { MXT_CALL_ARRAYS = 32 };

typedef struct mxt_attention_call {
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_tensor q, k, v, o, lse, dout, dlse, dq, dk, dv; /* what args points to */
    int32_t cu_q[4], cu_k[4];
    float sink[4], dsink[4];
    void *workspace;
    size_t workspace_bytes;
    void *memory[MXT_CALL_ARRAYS]; /* every buffer */
    size_t bytes[MXT_CALL_ARRAYS];
    int written[MXT_CALL_ARRAYS]; /* 1: an output */
    int arrays;
} mxt_attention_call;

/* All of it, with a training problem for backend. Ends with mxt_attention_call_free. */
void mxt_attention_call_init(mxt_attention_call *call, mxattn_backend backend,
                             mxattn_format format);
void mxt_attention_call_free(mxt_attention_call *call);

/* Why the backend runs no attention, or NULL. */
const char *mxt_attention_call_missing(mxattn_backend backend);

/* 1 when every output still holds its NaN filling. */
int mxt_attention_call_untouched(const mxt_attention_call *call);

#endif
