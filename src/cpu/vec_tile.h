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

/* The first m rows and n vectors of a tile; both are constants where this is inlined. */
VEC_INLINE void tile_dot_part(tile_sum sum, int m, int n, const unit *a, int64_t a_row,
                              int64_t a_step, const unit *b, int64_t b_step, int64_t units)
{
    for (int64_t k = 0; k < units; k++) {
        uvec lanes[TILE_N];

        VEC_UNROLL
        for (int j = 0; j < n; j++)
            lanes[j] = unit_load(b + k * b_step + j * VEC_LANES);
        VEC_UNROLL
        for (int i = 0; i < m; i++) {
            const uvec row = unit_broadcast(a + i * a_row + k * a_step);

            VEC_UNROLL
            for (int j = 0; j < n; j++)
                sum[i][j] = vec_dot(sum[i][j], row, lanes[j]);
        }
    }
}

VEC_INLINE void tile_dot(tile_sum sum, const unit *a, int64_t a_row, int64_t a_step, const unit *b,
                         int64_t b_step, int64_t units)
{
    tile_dot_part(sum, TILE_M, TILE_N, a, a_row, a_step, b, b_step, units);
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
