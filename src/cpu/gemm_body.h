/* gemm_body.h: packing and the register tile of the GEMM, one body for every instruction set.
 *
 * c[i][j] = sum over k of a[i][k] * b[j][k]: a tile of GEMM_M rows, whose units are broadcast, by
 * GEMM_N vectors of columns stays in registers while k runs through a part. Sums are added in the
 * order of k, so a row of C depends neither on its neighbours nor on how C is cut.
 * Included after one vec_*.h and the enum of GEMM_M, GEMM_N, GEMM_ROWS, GEMM_PART and
 * GEMM_RANGE_COST (gemm.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/gemm.h"
#include "cpu/vec_math.h"

#include <string.h>

enum {
    PANEL = GEMM_N * VEC_LANES,
    STRIDE = GEMM_PART + MXA_GEMM_PAD,
    A_ROW = STRIDE / UNIT_DEPTH, /* units between rows of A */
    A_COLUMN = GEMM_ROWS,        /* units between columns of a transposed A */
    LINE = 64,
    STEP = GEMM_M % 4 ? 8 : 4, /* units of one piece of code without a jump */
};

#if defined(VEC_MATRIX)

static void multiply(const void *a, int a_columns, const void *panel, int64_t k, int64_t rows,
                     float *c, int64_t c_row, int keep)
{
    (void)a_columns; /* packed as rows */
    for (int64_t i = 0; i < rows; i += GEMM_M)
        matrix_product(c + i * c_row, c_row, keep, (const unit *)a + i * A_ROW, A_ROW, panel, PANEL,
                       k / UNIT_DEPTH);
}

#else

/* A tile, and what it asks for: with every STEP units a line of the next panel, from the third
 * cache or memory, and `share` bytes further on the next. WHY a line at a time: asked for with
 * every 32 elements of K at once, and beside them the rows of A of the next tile, they left a fifth
 * of the time idle; two lines with every 8 cost 3% (Skylake). WHY into the second cache: what is
 * used now fills the first. */
typedef struct tile_ask {
    const char *next;
    int64_t share;
} tile_ask;

/* WHY not vec_dot where 24 sums leave 8 registers: gcc 12 moved sums from one to another with every
 * step, and kept one in memory. */
VEC_INLINE vec tile_dot(vec sum, uvec a, uvec b)
{
#if defined(VEC_SIXTEEN) && UNIT_IS_F32
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else
    return vec_dot(sum, a, b);
#endif
}

/* sum += STEP units of a tile. */
VEC_INLINE void tile_step(const unit *a, int64_t a_row, int64_t a_step, const unit *b,
                          vec sum[GEMM_M][GEMM_N])
{
    VEC_UNROLL
    for (int k = 0; k < STEP; k++) {
        uvec lanes[GEMM_N];

        VEC_UNROLL
        for (int j = 0; j < GEMM_N; j++)
            lanes[j] = unit_load(b + k * PANEL + j * VEC_LANES);
        VEC_UNROLL
        for (int i = 0; i < GEMM_M; i++) {
            const uvec row = unit_broadcast(a + i * a_row + k * a_step);

            VEC_UNROLL
            for (int j = 0; j < GEMM_N; j++)
                sum[i][j] = tile_dot(sum[i][j], row, lanes[j]);
        }
    }
}

/* WHY hidden from the compiler: it would work out the addresses of all rows of C ahead of the loop
 * over K, and keep them in memory until behind it. */
VEC_INLINE float *next_row(float *c, int64_t c_row)
{
    c += c_row;
    __asm__("" : "+r"(c));
    return c;
}

VEC_INLINE void tile_product(const unit *a, int64_t a_row, int64_t a_step, const unit *b,
                             int64_t units, float *c, int64_t c_row, int keep, tile_ask ask)
{
    vec sum[GEMM_M][GEMM_N];
    float *row = c;

    VEC_UNROLL
    for (int i = 0; i < GEMM_M; i++) {
        VEC_UNROLL
        for (int j = 0; j < GEMM_N; j++)
            sum[i][j] = vec_set(0.0f);
        VEC_UNROLL
        for (int j = 0; j < PANEL; j += LINE / (int)sizeof(float))
            __builtin_prefetch(row + j, 1);
        row = next_row(row, c_row);
    }
    for (int64_t k = 0; k < units; k += STEP) {
        vec_prefetch_second(ask.next);
        tile_step(a, a_row, a_step, b, sum);
        ask.next += ask.share;
        a += STEP * a_step;
        b += STEP * PANEL;
    }
    VEC_UNROLL
    for (int i = 0; i < GEMM_M; i++, c = next_row(c, c_row)) {
        VEC_UNROLL
        for (int j = 0; j < GEMM_N; j++) {
            float *out = c + j * VEC_LANES;

            vec_store(out, keep ? vec_add(vec_load(out), sum[i][j]) : sum[i][j]);
        }
    }
}

/* WHY VEC_NOINLINE: the register allocation of these loops must not depend on what surrounds them.
 */
static VEC_NOINLINE void tile_of_rows(const unit *a, const unit *b, int64_t units, float *c,
                                      int64_t c_row, int keep, tile_ask ask)
{
    tile_product(a, A_ROW, 1, b, units, c, c_row, keep, ask);
}

static VEC_NOINLINE void tile_of_columns(const unit *a, const unit *b, int64_t units, float *c,
                                         int64_t c_row, int keep, tile_ask ask)
{
    tile_product(a, 1, A_COLUMN, b, units, c, c_row, keep, ask);
}

static void multiply(const void *a, int a_columns, const void *panel, int64_t k, int64_t rows,
                     float *c, int64_t c_row, int keep)
{
    const int64_t units = k / UNIT_DEPTH;
    const int64_t tiles = (rows + GEMM_M - 1) / GEMM_M;
    const unit *at = a;
    tile_ask ask = {(const char *)panel + GEMM_PART / UNIT_DEPTH * PANEL * sizeof(unit),
                    (STEP * PANEL * (int64_t)sizeof(unit) + tiles - 1) / tiles};

    ask.share = ask.share < LINE ? ask.share : LINE;
    for (int64_t i = 0; i < rows; i += GEMM_M) {
        if (a_columns)
            tile_of_columns(at + i, panel, units, c + i * c_row, c_row, keep, ask);
        else
            tile_of_rows(at + i * A_ROW, panel, units, c + i * c_row, c_row, keep, ask);
        ask.next += units / STEP * ask.share;
    }
}

#endif

static void pack_a(const float *values, int64_t rows, int64_t k, void *units)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = 0; e < k; e += (int64_t)VEC_LANES * UNIT_DEPTH)
            unit_store((unit *)units + i * A_ROW + e / UNIT_DEPTH,
                       unit_along(values + i * STRIDE + e));
}

/* VEC_LANES rows of values to as many columns of a panel. */
VEC_INLINE void pack_lanes(const float *values, int64_t k, unit *out)
{
    for (int64_t e = 0; e < k; e += (int64_t)VEC_LANES * UNIT_DEPTH) {
        unit joined[VEC_LANES];
        vec tile[VEC_LANES];

        for (int l = 0; l < VEC_LANES; l++) {
            const float *row = values + l * STRIDE + e;

            if (UNIT_DEPTH > 1)
                unit_store(joined, unit_along(row));
            tile[l] = vec_load(UNIT_DEPTH > 1 ? (const float *)(const void *)joined : row);
        }
        vec_transpose(tile);
        for (int l = 0; l < VEC_LANES; l++)
            vec_store((float *)(void *)(out + (e / UNIT_DEPTH + l) * PANEL), tile[l]);
    }
}

static void pack_b(const float *values, int64_t k, char *units, int64_t panel_bytes)
{
    for (int64_t n = 0; n < 32; n += VEC_LANES)
        pack_lanes(values + n * STRIDE, k,
                   (unit *)(void *)(units + n / PANEL * panel_bytes) + n % PANEL);
}

/* `width` values of UNIT_DEPTH rows to units. */
VEC_INLINE void join_rows(const float *values, int64_t stride, int64_t width, unit *out)
{
    for (int64_t i = 0; i < width; i += VEC_LANES) {
        vec part[UNIT_DEPTH];

        for (int d = 0; d < UNIT_DEPTH; d++)
            part[d] = vec_load(values + d * stride + i);
        unit_store(out + i, unit_join(part));
    }
}

#if defined(VEC_MATRIX)

/* A matrix product reads rows. */
static void pack_a_columns(const float *values, int64_t stride, int64_t k, void *units)
{
    for (int64_t e = 0; e < k; e += (int64_t)VEC_LANES * UNIT_DEPTH)
        for (int64_t i = 0; i < GEMM_ROWS; i += VEC_LANES) {
            unit columns[VEC_LANES];
            vec tile[VEC_LANES];

            for (int l = 0; l < VEC_LANES; l++) {
                join_rows(values + (e + l * UNIT_DEPTH) * stride + i, stride, VEC_LANES, columns);
                tile[l] = vec_load((const float *)(const void *)columns);
            }
            vec_transpose(tile);
            for (int l = 0; l < VEC_LANES; l++)
                vec_store((float *)(void *)((unit *)units + (i + l) * A_ROW + e / UNIT_DEPTH),
                          tile[l]);
        }
}

#else

static void pack_a_columns(const float *values, int64_t stride, int64_t k, void *units)
{
    for (int64_t e = 0; e < k; e += UNIT_DEPTH)
        join_rows(values + e * stride, stride, GEMM_ROWS,
                  (unit *)units + e / UNIT_DEPTH * A_COLUMN);
}

#endif

static void pack_b_columns(const float *values, int64_t stride, int64_t k, char *units,
                           int64_t panel_bytes)
{
    for (int64_t n = 0; n < 32; n += PANEL)
        for (int64_t e = 0; e < k; e += UNIT_DEPTH)
            join_rows(values + e * stride + n, stride, PANEL,
                      (unit *)(void *)(units + n / PANEL * panel_bytes) + e / UNIT_DEPTH * PANEL);
}

#if !UNIT_IS_F32 || defined(VEC_SIXTEEN)
#define GEMM_CODES
#include "cpu/gemm_codes_body.h"
#endif

const mxa_gemm_kernel VEC_NAME(mxa_gemm) = {
    .isa = VEC_ISA,
    .depth = UNIT_DEPTH,
    .part = GEMM_PART,
    .rows = GEMM_ROWS,
    .stride = STRIDE,
    .tile = GEMM_M,
    .range_cost = GEMM_RANGE_COST,
    .panel = PANEL,
#if defined(VEC_MATRIX)
    .begin = matrix_begin,
    .end = matrix_end,
#endif
    .pack_a = pack_a,
    .pack_b = pack_b,
    .pack_a_columns = pack_a_columns,
    .pack_b_columns = pack_b_columns,
#if defined(GEMM_CODES)
    .pack_b_codes = pack_b_codes,
#endif
#if !UNIT_IS_F32
    .pack_a_codes = pack_a_codes,
#endif
    .multiply = multiply,
};
