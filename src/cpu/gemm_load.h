/* gemm_load.h: parts of a stored matrix as FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_GEMM_LOAD_H
#define MXA_CPU_GEMM_LOAD_H

#include "cpu/dequantize.h"
#include "cpu/gemm.h"
#include "cpu/rows.h"

/* A stored matrix: (1, rows, heads, dims), MXFP8 or wide. */
typedef struct mxa_gemm_source {
    const mxattn_tensor *tensor;
    mxa_sequence *table; /* of its rows; (batch + 1) */
    int64_t batch;
    mxa_dequantize_kernel dequantize;
    const mxa_row_kernels *rows;
} mxa_gemm_source;

/* The codes of 32 rows from `row` on and of columns [column, column + columns), and their scales.
 * Returns 0 where they are not of one block of tokens, one head and E4M3, or where a scale is near
 * either end: then mxa_gemm_load serves. */
int mxa_gemm_codes_of(const mxa_gemm_source *source, int64_t row, int64_t column, int64_t columns,
                      mxa_gemm_codes *codes);

/* Rows [row, row + rows) and columns [column, column + columns), with zeros up to rows_padded and
 * columns_padded and in rows that are not in use. `stride` floats between rows. */
void mxa_gemm_load(const mxa_gemm_source *source, int64_t row, int64_t rows, int64_t rows_padded,
                   int64_t column, int64_t columns, int64_t columns_padded, float *values,
                   int64_t stride);

#endif
