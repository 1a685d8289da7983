/* quantized.h: a quantized tensor as files: P.payload.npy, P.scales.npy, P.scales_seq.npy (square
 * blocks), and P.json, its tags.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_QUANTIZED_H
#define MXC_TOOLS_QUANTIZED_H

#include "npy.h"

#include "mxattn/mxattn.h"

typedef struct mxc_quantized {
    mxattn_tags tags;
    mxattn_scale_layout layout;
    int ndim;
    int64_t shape[MXC_NPY_DIMS]; /* (rows, cols), (T, H, D) or (B, S, H, D) */
    int64_t batch;               /* sequences */
    int32_t *cu_seqlens;         /* (batch+1), or NULL: dense, or one sequence */
    int32_t *seqused;            /* (batch), or NULL */
} mxc_quantized;

/* "P.payload.npy" for suffix ".payload.npy"; freed with free. */
char *mxc_quantized_path(const char *stem, const char *suffix);

/* 1 when tensors with these tags have a scale array along this axis. */
int mxc_quantized_has(const mxc_quantized *quantized, mxattn_axis axis);

/* Shape and bytes of a scale array. LINEAR and COMPACT: as in mxattn.h, without the head axis for a
 * matrix. TILED: (heads, row tiles, block tiles, 512). Returns the number of dimensions. */
int mxc_quantized_scales_shape(const mxc_quantized *quantized, mxattn_axis axis,
                               int64_t shape[MXC_NPY_DIMS]);

/* Views over payload and scale memory. hdim or seq may be NULL. */
void mxc_quantized_view(const mxc_quantized *quantized, uint8_t *payload, uint8_t *hdim,
                        uint8_t *seq, mxattn_tensor *tensor);

/* The text of P.json, freed with free; and its reader, which dies naming the file. */
char *mxc_quantized_to_json(const mxc_quantized *quantized);
void mxc_quantized_from_json(const char *path, mxc_quantized *quantized);

#endif
