/* softmax.h: what the baselines do to rows of scores, in vectors of 16, once per instruction set.
 *
 * A baseline whose softmax is slow would make any kernel look fast.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_SOFTMAX_H
#define MXC_SOFTMAX_H

#include <stdint.h>

enum { MXC_SOFTMAX_LANES = 16 };

/* Rows have n elements, a multiple of 16; what lies beyond a row's end is -inf. */
typedef struct mxc_softmax {
    /* x[i] = exp(scale * x[i] - top); top = max(scale * x) when *top is NAN on entry, else *top.
     * Returns the sum. */
    float (*row)(float *x, int64_t n, float scale, float *top);
    /* The largest of `least` and scale * x[i]. */
    float (*highest)(const float *x, int64_t n, float scale, float least);
    /* p[i] = exp(scale * x[i] - top) in BF16, and in float32 over x. Returns the sum. */
    float (*row_bf16)(float *x, int64_t n, float scale, float top, uint16_t *p);
    /* ds[i] = scale * p[i] * (dp[i] - delta) in BF16. */
    void (*gradient_bf16)(const float *p, const float *dp, int64_t n, float scale, float delta,
                          uint16_t *ds);
} mxc_softmax;

extern const mxc_softmax mxc_softmax_portable;
extern const mxc_softmax mxc_softmax_avx2;
extern const mxc_softmax mxc_softmax_avx512;

/* The best of this machine. */
const mxc_softmax *mxc_softmax_best(void);

#endif
