/* scales.h: scale arrays: sizes, default strides, and the place of one byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_SCALES_H
#define MXA_MX_SCALES_H

#include "mx/sequences.h"

/* The extent of a tensor's scales. */
typedef struct mxa_scale_extent {
    int64_t tokens;     /* total */
    int64_t blocks;     /* of 32 tokens, total */
    int64_t tiled_rows; /* total padded rows; cu_scale[batch] where cu_scale is given */
    int64_t heads;
    int64_t head_dim;
} mxa_scale_extent;

/* Extent of a batch; the tokens are those of its sequences. */
mxa_scale_extent mxa_scales_extent(const mxa_batch *batch, int64_t heads, int64_t head_dim);

/* 1 when tensors with these tags have this array in this layout. */
int mxa_scales_legal(const mxattn_tags *tags, mxattn_axis axis, mxattn_scale_layout layout);

/* Fills strides that are all 0 with the defaults of mxattn.h. */
void mxa_scales_resolve(mxattn_scales *scales, mxattn_axis axis, const mxa_scale_extent *extent);

/* Bytes with default strides. */
int64_t mxa_scales_size(mxattn_axis axis, mxattn_scale_layout layout,
                        const mxa_scale_extent *extent);

/* Byte offset of the scale of element (token s of sequence b, head, d). Strides resolved. */
int64_t mxa_scales_offset(const mxattn_scales *scales, mxattn_axis axis, const mxa_sequence *seq,
                          int64_t b, int64_t s, int64_t head, int64_t d);

/* Writes 0 to every unit of 512 bytes that TILED scales keep for sequence b, padding and all. No
 * effect on the other layouts, which have no padding. Strides resolved. */
void mxa_scales_clear(const mxattn_scales *scales, mxattn_axis axis, const mxa_sequence *seq,
                      int64_t b, int64_t head, int64_t head_dim);

#endif
