/* gemm_load.c: parts of a stored matrix as FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/gemm_load.h"

#include "cpu/piece.h"
#include "mx/e8m0.h"

#include <string.h>

enum { UNIT_DIMS = 128 }; /* of tiled scales */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The sequence that holds a row, or `batch` for a row behind them all. */
static int64_t sequence_of(const mxa_gemm_source *source, int64_t row)
{
    int64_t low = 0, high = source->batch; /* table[low].first <= row < table[high].first */
    if (row >= source->table[high].first)
        return high;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (source->table[middle].first <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Columns of tokens of one block. A piece that begins within a unit of tiled scales ends with its
 * 32 dims. */
static void load_columns(const mxa_gemm_source *source, mxa_piece piece, int64_t column,
                         int64_t columns)
{
    const int64_t dims = source->tensor->shape[3];
    for (int64_t done = 0; done < columns; done += piece.dims) {
        piece.head = (column + done) / dims;
        piece.dim = (column + done) % dims;
        piece.dims = smaller(dims - piece.dim, columns - done);
        if (piece.dim % UNIT_DIMS != 0)
            piece.dims = smaller(piece.dims, MXA_BLOCK - piece.dim % MXA_BLOCK);
        mxa_load_piece(source->dequantize, source->rows, source->tensor, &piece);
        piece.values += piece.dims;
    }
}

static void clear(float *values, int64_t stride, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        memset(values + r * stride, 0, (size_t)columns * sizeof(float));
}

void mxa_gemm_load(const mxa_gemm_source *source, int64_t row, int64_t rows, int64_t rows_padded,
                   int64_t column, int64_t columns, int64_t columns_padded, float *values,
                   int64_t stride)
{
    mxa_block_at at = {.b = rows ? sequence_of(source, row) : 0};
    int64_t r = 0;
    for (; r < rows && at.b < source->batch; at.b++) {
        at.sequence = source->table[at.b];
        int64_t s = row + r - at.sequence.first;
        while (r < rows && s < at.sequence.length) {
            mxa_piece piece = {.at = &at, .values = values + r * stride, .stride = stride};
            at.block = s / MXA_BLOCK;
            piece.token = s % MXA_BLOCK;
            piece.tokens =
                smaller(smaller(MXA_BLOCK - piece.token, at.sequence.length - s), rows - r);
            piece.used = at.sequence.used - s;
            piece.used = piece.used < 0 ? 0 : smaller(piece.used, piece.tokens);
            load_columns(source, piece, column, columns);
            clear(piece.values + piece.used * stride, stride, piece.tokens - piece.used, columns);
            r += piece.tokens;
            s += piece.tokens;
        }
    }
    clear(values + r * stride, stride, rows_padded - r, columns_padded);
    if (columns_padded > columns)
        clear(values + columns, stride, r, columns_padded - columns);
}
