/* ceilings_amx.c: matrix products of AMX in BF16, 16 x 16 x 32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ceilings.h"

#include <immintrin.h>

/* Four sums at a time, which share their factors two and two, as in a GEMM. */
float mxc_peak_amx(int64_t steps)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    float out[256];

    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t step = 0; step < steps; step += MXC_PEAK_AMX_STEPS) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, 64);
    _tile_release();
    return out[0];
}
