/* attention_backward_product_body.h: the register tiles of backward: c (+)= a * b, TILE_M rows or
 * one row high, WIDTH lanes wide.
 *
 * WHY two vectors where forward has three: what lies in lanes here are keys and head dimensions,
 * multiples of 32, which three vectors do not divide. On AVX2, with four rows, that is eight
 * sums, just enough to hide the latency of a fused multiply-add.
 * Included by attention_backward_body.h, after a vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_BACKWARD_PRODUCT_BODY_H
#define MXA_CPU_ATTENTION_BACKWARD_PRODUCT_BODY_H

#include "cpu/operand.h"
#include "cpu/vec_tile.h"

#include <string.h>

enum {
    WIDTH_VECTORS = TILE_N == 3 ? 2 : TILE_N,
    WIDTH = WIDTH_VECTORS * VEC_LANES,
    LINE_UNITS = 64 / (int)sizeof(unit),
    LINE_TILES = TILE_M < LINE_UNITS ? LINE_UNITS / TILE_M : 1, /* whose columns share a line */
    ASK_UNITS = 32 / UNIT_DEPTH /* a tile asks for as much of the next one's a at a time */
};

/* What the next tile reads of a, next to ASK_UNITS units of this one: a and b together are more
 * than the first cache holds. */
VEC_INLINE void product_ask(int columns, const unit *a, int64_t a_step)
{
    if (columns) {
        const int64_t mine = (int64_t)((uintptr_t)a / (TILE_M * sizeof(unit)) % LINE_TILES);

        a += LINE_UNITS;
        for (int64_t k = mine; k < ASK_UNITS; k += LINE_TILES)
            vec_prefetch(a + k * a_step);
        return;
    }
    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int u = 0; u < ASK_UNITS; u += LINE_UNITS)
        vec_prefetch(a + (TILE_M + i) * a_step + u);
}

VEC_INLINE void product_units(tile_sum sum, int m, int columns, const unit *a, int64_t a_step,
                              const unit *b, int64_t b_step, int64_t units)
{
    if (columns)
        tile_dot_columns(sum, m, 0, WIDTH_VECTORS, a, a_step, b, b_step, units);
    else
        tile_dot_rows(sum, m, 0, WIDTH_VECTORS, a, a_step, b, b_step, units);
}

/* columns: 1 where the rows of c lie side by side in a, a_step from unit to unit; else a has rows
 * of units, a_step from one to the next. WHY c comes last: its lines arrive meanwhile. */
VEC_INLINE void product(int m, int columns, float *c, int64_t c_row, int keep, const unit *a,
                        int64_t a_step, const unit *b, int64_t b_step, int64_t units)
{
    tile_sum sum;

    VEC_UNROLL
    for (int i = 0; i < m; i++) {
        VEC_UNROLL
        for (int j = 0; j < WIDTH_VECTORS; j++)
            sum[i][j] = vec_set(0.0f);
        VEC_UNROLL
        for (int l = 0; l < WIDTH; l += 64 / (int)sizeof(float))
            vec_prefetch(c + i * c_row + l);
    }
    for (; m == TILE_M && units >= ASK_UNITS; units -= ASK_UNITS) {
        product_ask(columns, a, a_step);
        product_units(sum, m, columns, a, a_step, b, b_step, ASK_UNITS);
        a += ASK_UNITS * (columns ? a_step : 1);
        b += ASK_UNITS * b_step;
    }
    product_units(sum, m, columns, a, a_step, b, b_step, units);
    VEC_UNROLL
    for (int i = 0; i < m; i++) {
        VEC_UNROLL
        for (int j = 0; j < WIDTH_VECTORS; j++) {
            float *out = c + i * c_row + j * VEC_LANES;

            vec_store(out, keep ? vec_add(vec_load(out), sum[i][j]) : sum[i][j]);
        }
    }
}

/* WHY VEC_NOINLINE: the register allocation of these loops must not depend on what surrounds them.
 */

#if defined(VEC_MATRIX)
/* Whole steps of a matrix product: what lies between is 0 in one of the operands. */
static inline void product_rows(float *c, int64_t c_row, int keep, const unit *a, int64_t a_row,
                                const unit *b, int64_t b_step, int64_t units)
{
    matrix_product(c, c_row, keep, a, a_row, b, b_step, mxa_round_up(units, MATRIX_UNITS));
}
#else
/* a: rows of units. */
static VEC_NOINLINE void product_rows(float *c, int64_t c_row, int keep, const unit *a,
                                      int64_t a_row, const unit *b, int64_t b_step, int64_t units)
{
    product(TILE_M, 0, c, c_row, keep, a, a_row, b, b_step, units);
}

#endif

/* a: columns, the rows of c side by side. */
static VEC_NOINLINE void product_columns(float *c, int64_t c_row, int keep, const unit *a,
                                         int64_t a_step, const unit *b, int64_t b_step,
                                         int64_t units)
{
    product(TILE_M, 1, c, c_row, keep, a, a_step, b, b_step, units);
}

/* Adds one unit of a times those of its elements [first, end) of b that are in it to sum. */
static void product_part(float sum[WIDTH], const unit *a, const unit *b, int first, int end)
{
    uint32_t mask = 0, x[WIDTH];
    unit part[WIDTH];
    tile_sum at;

    for (int e = first < 0 ? 0 : first; e < end && e < UNIT_DEPTH; e++)
        mask |= (uint32_t)0xffff << 16 * e;
    memcpy(x, b, sizeof(x));
    for (int l = 0; l < WIDTH; l++)
        x[l] &= mask;
    memcpy(part, x, sizeof(part));
    VEC_UNROLL
    for (int j = 0; j < WIDTH_VECTORS; j++)
        at[0][j] = vec_load(sum + j * VEC_LANES);
    tile_dot_unit(at, 1, 0, WIDTH_VECTORS, a, 0, part);
    VEC_UNROLL
    for (int j = 0; j < WIDTH_VECTORS; j++)
        vec_store(sum + j * VEC_LANES, at[0][j]);
}

/* One row of c, over elements [first, end) of the contracted axis and no others: where a unit is
 * seen in part, the rest of it is masked out of b. The bits are those of product, which adds a
 * whole sum to c. */
static VEC_NOINLINE void product_seen(float *c, int keep, const unit *a, int64_t a_step,
                                      const unit *b, int64_t b_step, int first, int end)
{
    const int past = (end + UNIT_DEPTH - 1) / UNIT_DEPTH;
    float sum[WIDTH] = {0};

    if (UNIT_DEPTH == 1) {
        product(1, 1, c, 0, keep, a + first * a_step, a_step, b + first * b_step, b_step,
                end - first);
        return;
    }
    for (int u = first / UNIT_DEPTH; u < past && first < end; u++)
        product_part(sum, a + u * a_step, b + u * b_step, first - u * UNIT_DEPTH,
                     end - u * UNIT_DEPTH);
    for (int l = 0; l < WIDTH; l++)
        c[l] = keep ? c[l] + sum[l] : sum[l];
}

#endif
