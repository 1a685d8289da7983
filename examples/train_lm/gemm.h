/* gemm.h: matrix products in FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_GEMM_H
#define TRAIN_LM_GEMM_H

#include "pool.h"

/* A view of a matrix: element (i, j) is data[i * row + j * column]. */
typedef struct matrix {
    const float *data;
    int64_t row, column;
} matrix;

/* Rows one after another, `width` floats apart; and the transpose of such a matrix. */
static inline matrix rows_of(const float *data, int64_t width)
{
    return (matrix){data, width, 1};
}

static inline matrix transpose_of(const float *data, int64_t width)
{
    return (matrix){data, 1, width};
}

/* C = A B, or C += A B where accumulate. A is (m, k), B (k, n), C (m, n) with rows `stride` floats
 * apart. p == NULL: in the calling thread alone, e.g. inside a task. The same bits for any number
 * of threads. */
void gemm(pool *p, int64_t m, int64_t n, int64_t k, matrix a, matrix b, float *c, int64_t stride,
          int accumulate);

#endif
