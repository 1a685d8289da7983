/* baselines.h: other ways to compute attention, timed in the same run. Each is a library that is
 * opened when it is there; the bench says which are missing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_BASELINES_H
#define MXC_BASELINES_H

#include <stddef.h>
#include <stdint.h>

/* Attention in float32 over contiguous tensors of packed tokens, (T, heads, dim). Keys of query i
 * of a sequence: those in [i + shift - left, i + shift + right], shift = sk - sq; negative: no
 * limit. */
typedef struct mxc_baseline_problem {
    int64_t batch, heads, kv_heads, head_dim, head_dim_v;
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* (batch+1) */
    int64_t left, right;
    double softmax_scale;
    int32_t threads;
    const float *q, *k, *v, *dout;
    float *o, *lse; /* lse: (T, heads) */
    float *dq, *dk, *dv;
} mxc_baseline_problem;

typedef struct mxc_baseline {
    const char *name;  /* "openblas sgemm, float32" */
    const char *label; /* "openblas" */
    /* 1 when the library was found; otherwise why says what is missing. */
    int (*open)(char *why, size_t why_size);
    /* Before and after the calls on one problem: what a user would keep from call to call. NULL:
     * nothing. */
    void (*begin)(const mxc_baseline_problem *problem);
    void (*end)(void);
    void (*forward)(const mxc_baseline_problem *problem);
    void (*backward)(const mxc_baseline_problem *problem); /* after forward */
} mxc_baseline;

extern const mxc_baseline mxc_baseline_openblas;
extern const mxc_baseline mxc_baseline_onednn;

enum { MXC_BASELINES_MOST = 2 };

#endif
