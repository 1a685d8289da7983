/* gemm.c: matrix products in FP32, blocked for registers and caches.
 *
 * The classic scheme. A tile of C, 6 rows by 16 columns, stays in registers while k runs: 12
 * vectors of 8, fed by 2 vectors of B and 6 broadcasts of A a step. For that, A is copied into
 * strips of 6 rows and B into strips of 16 columns, both with k outermost and padded with zeros:
 *
 *     strip of A: a00 a10 .. a50  a01 a11 .. a51  ...      strip of B: b00 .. b0f  b10 .. b1f  ...
 *
 * A strip of B (16 x BLOCK_K, 16 KiB) stays in the first cache, a block of A (BLOCK_M x BLOCK_K,
 * 48 KiB) in the second. Threads share blocks of C, so no sum is ever split between them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "gemm.h"

#include <stdlib.h>
#include <string.h>

enum { TILE_M = 6, TILE_N = 16, BLOCK_M = 48, BLOCK_N = 256, BLOCK_K = 256 };

typedef float vector8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef void (*tile_kernel)(int64_t k, const float *a, const float *b, float *c, int64_t stride,
                            int accumulate);

static inline __attribute__((always_inline)) void
tile_body(int64_t k, const float *a, const float *b, float *c, int64_t stride, int accumulate)
{
    vector8 sum[TILE_M][2];
#pragma GCC unroll 6
    for (int i = 0; i < TILE_M; i++)
        sum[i][0] = sum[i][1] = (vector8){0};
    for (int64_t step = 0; step < k; step++, a += TILE_M, b += TILE_N) {
        vector8 b0 = *(const vector8 *)b, b1 = *(const vector8 *)(b + 8);
#pragma GCC unroll 6
        for (int i = 0; i < TILE_M; i++) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
#pragma GCC unroll 6 /* else the sums would leave their registers */
    for (int i = 0; i < TILE_M; i++) {
        vector8 *row = (vector8 *)(c + i * stride);
        if (accumulate) {
            sum[i][0] += row[0];
            sum[i][1] += row[1];
        }
        row[0] = sum[i][0];
        row[1] = sum[i][1];
    }
}

static void tile_plain(int64_t k, const float *a, const float *b, float *c, int64_t stride,
                       int accumulate)
{
    tile_body(k, a, b, c, stride, accumulate);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void tile_avx2(int64_t k, const float *a, const float *b,
                                                          float *c, int64_t stride, int accumulate)
{
    tile_body(k, a, b, c, stride, accumulate);
}
#endif

static tile_kernel choose_kernel(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return tile_avx2;
#endif
    return tile_plain;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* Copies `count` rows of `from`, `k` long, into strips of `width` rows, k outermost. B's columns
 * are packed as the rows of its transpose. */
static inline __attribute__((always_inline)) void pack_body(float *to, matrix from, int64_t count,
                                                            int64_t k, int width)
{
    for (int64_t first = 0; first < count; first += width, to += k * width) {
        const float *corner = from.data + first * from.row;
        int64_t rows = smaller(width, count - first);
        if (rows < width)
            memset(to, 0, (size_t)(k * width) * sizeof(float));
        if (from.row == 1 && rows == width) {
            for (int64_t j = 0; j < k; j++)
                for (int i = 0; i < width; i++)
                    to[j * width + i] = corner[j * from.column + i];
        } else {
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < k; j++)
                    to[j * width + i] = corner[i * from.row + j * from.column];
        }
    }
}

struct product {
    int64_t m, n, k;     /* k of this pass, at most BLOCK_K */
    matrix a, b;         /* b transposed: (n, k) */
    float *c, *packed_b; /* packed_b: all n columns */
    int64_t stride;
    int accumulate;
    int64_t column_blocks;
    tile_kernel kernel;
};

static void pack_b(void *arg, int64_t index)
{
    const struct product *x = arg;
    int64_t first = index * BLOCK_N;
    matrix part = {x->b.data + first * x->b.row, x->b.row, x->b.column};
    pack_body(x->packed_b + first * x->k, part, smaller(BLOCK_N, x->n - first), x->k, TILE_N);
}

/* One block of C: BLOCK_M rows by BLOCK_N columns. */
static void multiply_block(void *arg, int64_t index)
{
    const struct product *x = arg;
    int64_t row = index / x->column_blocks * BLOCK_M, column = index % x->column_blocks * BLOCK_N;
    int64_t rows = smaller(BLOCK_M, x->m - row), columns = smaller(BLOCK_N, x->n - column);
    float packed_a[BLOCK_M * BLOCK_K], edge[TILE_M * TILE_N];
    matrix part = {x->a.data + row * x->a.row, x->a.row, x->a.column};
    pack_body(packed_a, part, rows, x->k, TILE_M);
    for (int64_t j = 0; j < columns; j += TILE_N) {
        const float *b = x->packed_b + (column + j) * x->k;
        int64_t width = smaller(TILE_N, columns - j);
        for (int64_t i = 0; i < rows; i += TILE_M) {
            const float *a = packed_a + i * x->k;
            float *c = x->c + (row + i) * x->stride + column + j;
            int64_t height = smaller(TILE_M, rows - i);
            if (width == TILE_N && height == TILE_M) {
                x->kernel(x->k, a, b, c, x->stride, x->accumulate);
                continue;
            }
            x->kernel(x->k, a, b, edge, TILE_N, 0);
            for (int64_t ii = 0; ii < height; ii++)
                for (int64_t jj = 0; jj < width; jj++)
                    c[ii * x->stride + jj] =
                        (x->accumulate ? c[ii * x->stride + jj] : 0.0f) + edge[ii * TILE_N + jj];
        }
    }
}

void gemm(pool *p, int64_t m, int64_t n, int64_t k, matrix a, matrix b, float *c, int64_t stride,
          int accumulate)
{
    struct product x = {.m = m, .n = n, .c = c, .stride = stride, .kernel = choose_kernel()};
    int64_t row_blocks = (m + BLOCK_M - 1) / BLOCK_M;
    x.column_blocks = (n + BLOCK_N - 1) / BLOCK_N;
    x.packed_b = allocate((size_t)(round_up(n, TILE_N) * smaller(k, BLOCK_K)) * sizeof(float));
    for (int64_t first = 0; first < k; first += BLOCK_K) {
        x.k = smaller(BLOCK_K, k - first);
        x.a = (matrix){a.data + first * a.column, a.row, a.column};
        x.b = (matrix){b.data + first * b.row, b.column, b.row};
        x.accumulate = accumulate || first > 0;
        pool_for(p, x.column_blocks, pack_b, &x);
        pool_for(p, row_blocks * x.column_blocks, multiply_block, &x);
    }
    free(x.packed_b);
}
