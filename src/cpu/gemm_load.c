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

/* 1 where all are such that decoding to FP32 or to BF16 is one multiplication or addition. */
static int scales_are_plain(const uint8_t *scales, int64_t count)
{
    enum { LEAST = 10, MOST = 0xF6 };
    uint8_t least = 0xFF, most = 0;
    for (int64_t i = 0; i < count; i++) {
        least = scales[i] < least ? scales[i] : least;
        most = scales[i] > most ? scales[i] : most;
    }
    return least >= LEAST && most <= MOST;
}

int mxa_gemm_codes_of(const mxa_gemm_source *source, int64_t row, int64_t column, int64_t columns,
                      mxa_gemm_codes *codes)
{
    const mxattn_tensor *tensor = source->tensor;
    const int64_t dims = tensor->shape[3], dim = column % dims;
    mxa_block_at at = {.b = sequence_of(source, row)};
    if (at.b == source->batch || tensor->tags.dtype != MXATTN_E4M3 ||
        !tensor->scales[MXATTN_HDIM].data)
        return 0;
    at.sequence = source->table[at.b];
    const int64_t s = row - at.sequence.first;
    if (s % MXA_BLOCK != 0 || s + MXA_BLOCK > at.sequence.used || dim % MXA_BLOCK != 0 ||
        columns % MXA_BLOCK != 0 || dim + columns > dims)
        return 0;
    at.block = s / MXA_BLOCK;
    const mxa_piece piece = {.at = &at, .head = column / dims};
    const mxa_scale_place place = mxa_piece_scales(tensor, MXATTN_HDIM, &piece);
    for (int64_t c = 0; c < columns / MXA_BLOCK; c++) {
        const uint8_t *scale = mxa_scale_place_at(&place, dim / MXA_BLOCK + c, 0);
        for (int i = 0; i < MXA_BLOCK; i++, scale += place.stride_within)
            codes->scales[c][i] = *scale;
    }
    codes->payload = mxa_element_of(tensor, &at.sequence, s, piece.head, dim);
    codes->stride = tensor->stride[1];
    return scales_are_plain(codes->scales[0], columns);
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
