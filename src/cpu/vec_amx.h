/* vec_amx.h: the vector vocabulary on AVX-512 with BF16 dot products, and the matrix product of
 * AMX: 32 rows by 32 lanes in four tile registers. Values below 2^-126 count as zero in both.
 *
 * A tile register holds 16 rows of 64 bytes. As first factor it takes 16 rows of 16 units, as
 * second 16 units of 16 lanes: both are what the register tile of vec_tile.h reads too, so operands
 * lie in memory as on AVX-512, but for what that tile reads down columns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_VEC_AMX_H
#define MXA_CPU_VEC_AMX_H

#define VEC_MATRIX
#define VEC_BF16_UNITS
#include "cpu/vec_avx512.h"

/* On a thread, before its first product; matrix_end gives the registers' state back. */
static inline void matrix_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

    _tile_loadconfig(&config);
}

static inline void matrix_end(void)
{
    _tile_release();
}

/* c (32, 32) = a (32, units) b (units, 32), added to c where keep is 1. Steps from row to row, in
 * elements; units: a multiple of MATRIX_UNITS.
 * WHY the empty statement: the compiler does not know that the loads of tile registers read memory.
 */
static __attribute__((noinline)) void matrix_product(float *c, int64_t c_row, int keep,
                                                     const unit *a, int64_t a_row, const unit *b,
                                                     int64_t b_step, int64_t units)
{
    const int64_t c_bytes = c_row * (int64_t)sizeof(float);
    const int64_t a_bytes = a_row * (int64_t)sizeof(unit), b_bytes = b_step * (int64_t)sizeof(unit);
    float *low = c + 16 * c_row;

    __asm__ volatile("" ::: "memory");
    if (keep) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, c + 16, c_bytes);
        _tile_loadd(2, low, c_bytes);
        _tile_loadd(3, low + 16, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < units; k += MATRIX_UNITS) {
        _tile_loadd(4, a + k, a_bytes);
        _tile_loadd(6, b + k * b_step, b_bytes);
        _tile_loadd(7, b + k * b_step + 16, b_bytes);
        _tile_loadd(5, a + 16 * a_row + k, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    _tile_stored(2, low, c_bytes);
    _tile_stored(3, low + 16, c_bytes);
}

#endif
