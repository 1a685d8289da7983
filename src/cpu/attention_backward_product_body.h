/* attention_backward_product_body.h: the register tiles of backward: c (+)= a * b, TILE_M rows or
 * one row high, TILE_N vectors wide, or two.
 *
 * WHY two widths where TILE_N is 3: what lies in lanes here are keys and head dimensions, multiples
 * of 32, which three vectors do not divide: panel_width says how they are cut.
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
    NARROW = (TILE_N == 3 ? 2 : TILE_N) * VEC_LANES,
    LINE_UNITS = 64 / (int)sizeof(unit),
    LINE_TILES = TILE_M < LINE_UNITS ? LINE_UNITS / TILE_M : 1, /* whose columns share a line */
    ASK_UNITS = 32 / UNIT_DEPTH /* a tile asks for as much of the next one's a at a time */
};

/* Lanes of the next panel where `lanes` are left, a multiple of 32: TILE_N vectors as long as what
 * then is left can be cut into such and narrow ones. */
static inline int panel_width(int64_t lanes)
{
    return lanes >= TILE_LANES && lanes - TILE_LANES != VEC_LANES ? TILE_LANES : NARROW;
}

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

VEC_INLINE void product_units(tile_sum sum, int m, int n, int columns, const unit *a,
                              int64_t a_step, const unit *b, int64_t b_step, int64_t units)
{
    if (columns)
        tile_dot_columns(sum, m, 0, n, a, a_step, b, b_step, units);
    else
        tile_dot_rows(sum, m, 0, n, a, a_step, b, b_step, units);
}

/* columns: 1 where the rows of c lie side by side in a, a_step from unit to unit; else a has rows
 * of units, a_step from one to the next. WHY c comes last: its lines arrive meanwhile. */
VEC_INLINE void product(int m, int width, int columns, float *c, int64_t c_row, int keep,
                        const unit *a, int64_t a_step, const unit *b, int64_t b_step, int64_t units)
{
    const int n = width / VEC_LANES;
    tile_sum sum;

    VEC_UNROLL
    for (int i = 0; i < m; i++) {
        VEC_UNROLL
        for (int j = 0; j < n; j++)
            sum[i][j] = vec_set(0.0f);
        VEC_UNROLL
        for (int l = 0; l < width; l += 64 / (int)sizeof(float))
            vec_prefetch(c + i * c_row + l);
    }
    for (; m == TILE_M && units >= ASK_UNITS; units -= ASK_UNITS) {
        product_ask(columns, a, a_step);
        product_units(sum, m, n, columns, a, a_step, b, b_step, ASK_UNITS);
        a += ASK_UNITS * (columns ? a_step : 1);
        b += ASK_UNITS * b_step;
    }
    product_units(sum, m, n, columns, a, a_step, b, b_step, units);
    VEC_UNROLL
    for (int i = 0; i < m; i++) {
        VEC_UNROLL
        for (int j = 0; j < n; j++) {
            float *out = c + i * c_row + j * VEC_LANES;

            vec_store(out, keep ? vec_add(vec_load(out), sum[i][j]) : sum[i][j]);
        }
    }
}

/* name##_wide and name##_narrow, and name, which takes the one that `width` asks for. a_step as
 * product has it. WHY VEC_NOINLINE: the register allocation of these loops must not depend on what
 * surrounds them. */
#define DEFINE_PRODUCT_OF(name, of_width, columns)                                                 \
    static VEC_NOINLINE void name(float *c, int64_t c_row, int keep, const unit *a,                \
                                  int64_t a_step, const unit *b, int64_t b_step, int64_t units)    \
    {                                                                                              \
        product(TILE_M, of_width, columns, c, c_row, keep, a, a_step, b, b_step, units);           \
    }
#define DEFINE_PRODUCT(name, columns)                                                              \
    DEFINE_PRODUCT_OF(name##_wide, TILE_LANES, columns)                                            \
    DEFINE_PRODUCT_OF(name##_narrow, NARROW, columns)                                              \
    static inline void name(int width, float *c, int64_t c_row, int keep, const unit *a,           \
                            int64_t a_step, const unit *b, int64_t b_step, int64_t units)          \
    {                                                                                              \
        if (width == TILE_LANES)                                                                   \
            name##_wide(c, c_row, keep, a, a_step, b, b_step, units);                              \
        else                                                                                       \
            name##_narrow(c, c_row, keep, a, a_step, b, b_step, units);                            \
    }

#if defined(VEC_MATRIX)
/* Whole steps of a matrix product: what lies between is 0 in one of the operands. */
static inline void product_rows(int width, float *c, int64_t c_row, int keep, const unit *a,
                                int64_t a_row, const unit *b, int64_t b_step, int64_t units)
{
    (void)width;
    matrix_product(c, c_row, keep, a, a_row, b, b_step, mxa_round_up(units, MATRIX_UNITS));
}
#else
DEFINE_PRODUCT(product_rows, 0)
#endif
DEFINE_PRODUCT(product_columns, 1)

/* Adds one unit of a times those of its elements [first, end) of b that are in it to sum. */
static void product_part(float sum[NARROW], const unit *a, const unit *b, int first, int end)
{
    enum { N = NARROW / VEC_LANES };
    uint32_t mask = 0, x[NARROW];
    unit part[NARROW];
    tile_sum at;

    for (int e = first < 0 ? 0 : first; e < end && e < UNIT_DEPTH; e++)
        mask |= (uint32_t)0xffff << 16 * e;
    memcpy(x, b, sizeof(x));
    for (int l = 0; l < NARROW; l++)
        x[l] &= mask;
    memcpy(part, x, sizeof(part));
    VEC_UNROLL
    for (int j = 0; j < N; j++)
        at[0][j] = vec_load(sum + j * VEC_LANES);
    tile_dot_unit(at, 1, 0, N, a, 0, part);
    VEC_UNROLL
    for (int j = 0; j < N; j++)
        vec_store(sum + j * VEC_LANES, at[0][j]);
}

/* One row of a narrow c, over elements [first, end) of the contracted axis and no others: where a
 * unit is seen in part, the rest of it is masked out of b. The bits are those of product, which
 * adds a whole sum to c. */
static VEC_NOINLINE void product_seen(float *c, int keep, const unit *a, int64_t a_step,
                                      const unit *b, int64_t b_step, int first, int end)
{
    const int past = (end + UNIT_DEPTH - 1) / UNIT_DEPTH;
    float sum[NARROW] = {0};

    if (UNIT_DEPTH == 1) {
        product(1, NARROW, 1, c, 0, keep, a + first * a_step, a_step, b + first * b_step, b_step,
                end - first);
        return;
    }
    for (int u = first / UNIT_DEPTH; u < past && first < end; u++)
        product_part(sum, a + u * a_step, b + u * b_step, first - u * UNIT_DEPTH,
                     end - u * UNIT_DEPTH);
    for (int l = 0; l < NARROW; l++)
        c[l] = keep ? c[l] + sum[l] : sum[l];
}

#endif
