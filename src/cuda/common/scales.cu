/* scales.cu: scale bytes from one arrangement to another.
 *
 * Meaning: mxa_scales_offset (mx/scales.h): for each byte of the target, the source byte of the
 * same element. Scatter stays on one axis, transform goes to the other (square blocks).
 *
 * A CTA takes 128 tokens by sixteen units, four a warp; in shared memory they are units, whatever
 * the arrays are. Linear hdim rows that hold sixteen units side by side are read 16 bytes at a time
 * by the whole CTA: a warp alone would use 4 bytes of each sector.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/scale_unit.h"

enum {
    THREADS = 128,
    EACH = 4,                      /* units of a warp */
    AT_FROM = SEQUENCE_BYTES + 64, /* 256: units are read 16 bytes at a time */
    AT_TO = AT_FROM + UNIT_BYTES * MXA_SCALES_UNITS,
    SHARED_BYTES = AT_TO + UNIT_BYTES * MXA_SCALES_UNITS /* device.c */
};

MXA_STATIC_ASSERT(SHARED_BYTES == 256 + 2 * 512 * 16, "device.c gives the kernel this much");

/* The sixteen units' rows, four units in 16 bytes. */
MXA_DEVICE void load_rows_of_units(const mxa_scales_params *p, const scale_unit *first)
{
    mxa_u32x4 v[EACH];
    MXA_UNROLL
    for (int j = 0; j < EACH; j++) {
        const int i = dev_thread() + THREADS * j, row = smaller(i / 4, first->tokens - 1);
        v[j] = dev_load_global_u32x4(p->from.data +
                                     (uint64_t)((first->token + row) * p->from.stride_row +
                                                first->head * p->from.stride_head +
                                                4 * first->chunk + 16 * (i % 4)));
    }
    MXA_UNROLL
    for (int j = 0; j < EACH; j++) {
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

/* Unit i of this warp; 0 where there are no more. */
MXA_DEVICE int unit_of_warp(const mxa_scales_params *p, const sequence_tile *at, int i,
                            scale_unit *u)
{
    const int n = EACH * (dev_thread_again() / 32) + i;
    const int number = dev_block_x() * MXA_SCALES_UNITS + n;
    scale_unit_begin(u, &p->batch, at, dev_shared() + AT_FROM + UNIT_BYTES * (uint32_t)n, number,
                     p->chunks, p->head_dim);
    return number < p->units;
}

/* The warp's units, all their loads in flight before one is looked at. */
MXA_DEVICE void load_units(const mxa_scales_params *p, const sequence_tile *at)
{
    uint32_t w[4 * EACH];
    scale_unit u;
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (unit_of_warp(p, at, i, &u)) {
            scale_unit_fetch(&u, &p->from, p->from_axis, w + 4 * i);
        }
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (unit_of_warp(p, at, i, &u)) {
            scale_unit_put(&u, &p->from, p->from_axis, w + 4 * i);
        }
    }
    warp_sync();
}

MXA_KERNEL_MANY(mxa_scales_move, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_shared shared = dev_shared();
    sequence_tile at;
    if (!sequence_find(&p->batch, shared, sequence_tile_number(&p->batch), &at)) {
        return;
    }
    scale_unit u;
    if (at.sequence >= 0 && p->rows_of_units) {
        scale_unit_begin(&u, &p->batch, &at, shared + AT_FROM, dev_block_x() * MXA_SCALES_UNITS,
                         p->chunks, p->head_dim);
        load_rows_of_units(p, &u);
        cta_sync();
    } else if (at.sequence >= 0) {
        load_units(p, &at);
    }
    MXA_NO_UNROLL
    for (int i = 0; i < EACH && unit_of_warp(p, &at, i, &u); i++) {
        if (at.sequence >= 0) {
            if (p->from_axis != p->to_axis) {
                const mxa_shared to = u.at + (uint32_t)(AT_TO - AT_FROM);
                scale_unit_turn(&u, p->from_axis, to);
                u.at = to;
                warp_sync();
            }
            scale_unit_store(&u, &p->to, p->to_axis);
        }
        scale_gaps_clear(&u, &p->batch, &p->to, p->to_axis, &at);
    }
}
