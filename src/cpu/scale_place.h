/* scale_place.h: where the scale bytes of a strip lie, as a base and strides.
 *
 * A strip is one block of 32 tokens of one head, all of its dims; a chunk is 32 of those.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_SCALE_PLACE_H
#define MXA_CPU_SCALE_PLACE_H

#include "mx/sequences.h"

/* Where a strip's bytes of one scale array lie; data NULL: no such array. The byte of chunk c (of
 * 32 dims) and element i within it (a token for HDIM, a dim for SEQ) is
 * data + c/4*stride_4 + c%4*stride_1 + i*stride_within: the quarters are units of TILED scales. */
typedef struct mxa_scale_place {
    uint8_t *data;
    int64_t stride_4;
    int64_t stride_1;
    int64_t stride_within; /* 0: one byte for all (COMPACT) */
} mxa_scale_place;

static inline uint8_t *mxa_scale_place_at(const mxa_scale_place *place, int64_t chunk, int64_t i)
{
    return place->data + chunk / 4 * place->stride_4 + chunk % 4 * place->stride_1 +
           i * place->stride_within;
}

/* The place of block `block` of a sequence; an array that is absent gives data NULL. */
mxa_scale_place mxa_scale_place_of(const mxattn_scales *scales, mxattn_axis axis,
                                   const mxa_sequence *seq, int64_t b, int64_t block, int64_t head);

/* Clears the units of TILED scales that sequences without tokens have where cu_scale gives them
 * room: a walk over blocks never meets those. */
void mxa_scales_clear_empty(const mxattn_scales *scales, mxattn_axis axis, const mxa_batch *batch,
                            int64_t heads, int64_t head_dim);

#endif
