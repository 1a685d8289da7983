/* onednn.h: BF16 matrix products of oneDNN, opened at run time through version 2's C interface.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_ONEDNN_H
#define MXC_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

/* c (+)= a * b with a (m, k) and b (k, n) in BF16, c (m, n) in float32; steps in elements. */
typedef struct mxc_onednn_shape {
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column, c_row;
    int64_t add; /* 1: to what c holds */
} mxc_onednn_shape;

/* What one thread multiplies with: a stream, and the primitives it has made so far. */
typedef struct mxc_onednn_worker mxc_onednn_worker;

/* 1 when the library is there and multiplies in BF16 on this machine; otherwise why says what is
 * missing. MXATTN_ONEDNN names the library where libdnnl.so.2 is not found by itself. */
int mxc_onednn_open(char *why, size_t why_size);

mxc_onednn_worker *mxc_onednn_worker_create(void);
void mxc_onednn_worker_destroy(mxc_onednn_worker *worker);

/* Before the first product on a thread: products shall use no other threads. */
void mxc_onednn_alone(void);

void mxc_onednn_multiply(mxc_onednn_worker *worker, const mxc_onednn_shape *shape,
                         const uint16_t *a, const uint16_t *b, float *c);

#endif
