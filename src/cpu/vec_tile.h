/* vec_tile.h: the register tile of every GEMM: TILE_M broadcast rows times TILE_N vectors.
 *
 * sum[i][j] += sum over k of a[i*a_row + k*a_step] * b[k*b_step + j*VEC_LANES + lane]
 *
 * in units (UNIT_DEPTH contracted elements each). Operand a is read one unit at a time and
 * broadcast, b a vector at a time, so neither is ever transposed in registers.
 * Included after one vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_TILE_H
#define MXA_CPU_VEC_TILE_H

#include "cpu/vec_math.h"

enum { TILE_LANES = TILE_N * VEC_LANES };

typedef vec tile_sum[TILE_M][TILE_N];

#if !defined(VEC_MATRIX)
enum { MATRIX_UNITS = 1 };

static inline void matrix_begin(void)
{
}

static inline void matrix_end(void)
{
}
#endif

VEC_INLINE void tile_zero(tile_sum sum)
{
    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int j = 0; j < TILE_N; j++)
        sum[i][j] = vec_set(0.0f);
}

/* One unit of the contracted axis, for the first m rows and vectors [from, n) of a tile; constants
 * where this is inlined. */
VEC_INLINE void tile_dot_unit(tile_sum sum, int m, int from, int n, const unit *a, int64_t a_row,
                              const unit *b)
{
    uvec lanes[TILE_N];

    VEC_UNROLL
    for (int j = from; j < n; j++)
        lanes[j] = unit_load(b + j * VEC_LANES);
    VEC_UNROLL
    for (int i = 0; i < m; i++) {
        const uvec row = unit_broadcast(a + i * a_row);

        VEC_UNROLL
        for (int j = from; j < n; j++)
            sum[i][j] = vec_dot(sum[i][j], row, lanes[j]);
    }
}

/* a: columns, the rows of the tile side by side. */
VEC_INLINE void tile_dot_columns(tile_sum sum, int m, int from, int n, const unit *a,
                                 int64_t a_step, const unit *b, int64_t b_step, int64_t units)
{
    for (int64_t k = 0; k < units; k++)
        tile_dot_unit(sum, m, from, n, a + k * a_step, 1, b + k * b_step);
}

/* a: rows of units. WHY twice: m addresses move on with each step; measured 2 to 3% on AVX2, where
 * columns gain nothing. */
VEC_INLINE void tile_dot_rows(tile_sum sum, int m, int from, int n, const unit *a, int64_t a_row,
                              const unit *b, int64_t b_step, int64_t units)
{
    VEC_UNROLL_TWICE
    for (int64_t k = 0; k < units; k++)
        tile_dot_unit(sum, m, from, n, a + k, a_row, b + k * b_step);
}

VEC_INLINE void tile_store(float *out, int64_t out_row, tile_sum sum)
{
    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int j = 0; j < TILE_N; j++)
        vec_store(out + i * out_row + j * VEC_LANES, sum[i][j]);
}

#endif
