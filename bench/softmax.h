/* softmax.h: rows of softmax for the baselines, in vectors of 16, once per instruction set.
 *
 * A baseline whose softmax is slow would make any kernel look fast.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_SOFTMAX_H
#define MXC_SOFTMAX_H

#include <stdint.h>

enum { MXC_SOFTMAX_LANES = 16 };

/* x[i] = exp(scale * x[i] - top) for i in [0, n), n a multiple of 16 and x beyond the row's end
 * -inf; top = max(scale * x) when *top is NAN on entry, else *top. Returns the sum. */
typedef float (*mxc_softmax_row)(float *x, int64_t n, float scale, float *top);

float mxc_softmax_row_portable(float *x, int64_t n, float scale, float *top);
float mxc_softmax_row_avx2(float *x, int64_t n, float scale, float *top);
float mxc_softmax_row_avx512(float *x, int64_t n, float scale, float *top);

/* The best of this machine. */
mxc_softmax_row mxc_softmax_row_best(void);

#endif
