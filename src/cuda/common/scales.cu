/* scales.cu: scale bytes from one arrangement to another.
 *
 * Meaning: mxa_scales_offset (mx/scales.h): for each byte of the target, the source byte of the
 * same element. Scatter stays on one axis, transform goes to the other (square blocks).
 *
 * A CTA takes 128 tokens by sixteen units, so that neighbouring heads of a row of linear scales are
 * read together; in shared memory they are units, whatever the arrays are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/scale_units.h"

enum {
    AT_FROM = SEQUENCE_BYTES + 64, /* 256: units are read 16 bytes at a time */
    AT_TO = AT_FROM + UNIT_BYTES * MXA_SCALES_UNITS,
    SHARED_BYTES = AT_TO + UNIT_BYTES * MXA_SCALES_UNITS /* device.c */
};

MXA_STATIC_ASSERT(SHARED_BYTES == 256 + 2 * 512 * 16, "device.c gives the kernel this much");

MXA_KERNEL_SMALL(mxa_scales_move, 256, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_shared shared = dev_shared();
    const int tile = dev_block_x() / p->groups, group = dev_block_x() - tile * p->groups;
    sequence_tile at;
    scale_units from, to;
    if (!sequence_find(&p->batch, shared, tile, &at)) {
        return;
    }
    const int first = group * MXA_SCALES_UNITS, all = p->heads * p->chunks;
    const int count = smaller(all - first, MXA_SCALES_UNITS);
    scale_units_begin(&from, &p->batch, &at, shared + AT_FROM, first, count, p->chunks,
                      p->head_dim);
    if (at.sequence < 0) {
        scale_gaps_clear(&from, &p->batch, &p->to, p->to_axis, &at);
        return;
    }
    scale_units_load(&from, &p->from, p->from_axis);
    cta_sync();
    to = from;
    if (p->from_axis != p->to_axis) {
        to.at = shared + AT_TO;
        scale_units_turn(&from, p->from_axis, to.at);
        cta_sync();
    }
    scale_units_store(&to, &p->to, p->to_axis);
    scale_gaps_clear(&to, &p->batch, &p->to, p->to_axis, &at);
}
