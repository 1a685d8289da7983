/* scales.cu: scale bytes from one arrangement to another.
 *
 * Meaning: mxa_scales_offset (mx/scales.h): for each byte of the target, the source byte of the
 * same element. Scatter stays on one axis, transform goes to the other (square blocks).
 *
 * A CTA takes 128 tokens by sixteen units, two a warp; in shared memory they are units, whatever
 * the arrays are. Linear hdim rows that hold sixteen units side by side are read 16 bytes at a time
 * by the whole CTA: a warp alone would use 4 bytes of each sector.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/scale_unit.h"

enum {
    THREADS = 256,
    AT_FROM = SEQUENCE_BYTES + 64, /* 256: units are read 16 bytes at a time */
    AT_TO = AT_FROM + UNIT_BYTES * MXA_SCALES_UNITS,
    SHARED_BYTES = AT_TO + UNIT_BYTES * MXA_SCALES_UNITS /* device.c */
};

MXA_STATIC_ASSERT(SHARED_BYTES == 256 + 2 * 512 * 16, "device.c gives the kernel this much");

/* The sixteen units' rows, four units in 16 bytes. */
MXA_DEVICE void load_rows_of_units(const mxa_scales_params *p, const scale_unit *first)
{
    mxa_u32x4 v[2];
    MXA_UNROLL
    for (int j = 0; j < 2; j++) {
        const int i = dev_thread() + THREADS * j, row = smaller(i / 4, first->tokens - 1);
        v[j] = dev_load_global_u32x4(p->from.data +
                                     (uint64_t)((first->token + row) * p->from.stride_row +
                                                first->head * p->from.stride_head +
                                                4 * first->chunk + 16 * (i % 4)));
    }
    MXA_UNROLL
    for (int j = 0; j < 2; j++) {
        const int i = dev_thread() + THREADS * j, row = i / 4;
        const uint32_t w[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            dev_store_shared_u32(scale_row_at(first, row) +
                                     UNIT_BYTES * (uint32_t)(4 * (i % 4) + m),
                                 row < first->tokens ? w[m] : 0);
        }
    }
}

MXA_KERNEL_SMALL(mxa_scales_move, THREADS, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_shared shared = dev_shared();
    const int warp = dev_thread() / 32, group = dev_block_x();
    sequence_tile at;
    if (!sequence_find(&p->batch, shared, sequence_tile_number(&p->batch), &at)) {
        return;
    }
    const int first = group * MXA_SCALES_UNITS;
    scale_unit u[2];
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const int n = 2 * warp + i;
        scale_unit_begin(&u[i], &p->batch, &at, shared + AT_FROM + UNIT_BYTES * (uint32_t)n,
                         first + n, p->chunks, p->head_dim);
    }
    if (at.sequence >= 0 && p->rows_of_units) {
        scale_unit whole;
        scale_unit_begin(&whole, &p->batch, &at, shared + AT_FROM, first, p->chunks, p->head_dim);
        load_rows_of_units(p, &whole);
        cta_sync();
    }
    if (at.sequence >= 0 && !p->rows_of_units) {
        MXA_UNROLL
        for (int i = 0; i < 2; i++) {
            if (first + 2 * warp + i < p->units) {
                scale_unit_load(&u[i], &p->from, p->from_axis);
            }
        }
        warp_sync();
    }
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        if (first + 2 * warp + i >= p->units) {
            continue;
        }
        if (at.sequence >= 0) {
            if (p->from_axis != p->to_axis) {
                const mxa_shared to = u[i].at + (uint32_t)(AT_TO - AT_FROM);
                scale_unit_turn(&u[i], p->from_axis, to);
                u[i].at = to;
                warp_sync();
            }
            scale_unit_store(&u[i], &p->to, p->to_axis);
        }
        scale_gaps_clear(&u[i], &p->batch, &p->to, p->to_axis, &at);
    }
}
