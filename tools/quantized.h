/* quantized.h: a quantized tensor as files: P.payload.npy, P.scales.npy, P.scales_seq.npy (square
 * blocks), and P.json, its tags.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_QUANTIZED_H
#define MXA_TOOLS_QUANTIZED_H

#include "npy.h"

#include "mxattn/mxattn.h"

typedef struct mxa_quantized {
    mxattn_tags tags;
    mxattn_scale_layout layout;
    int ndim;
    int64_t shape[MXA_NPY_DIMS]; /* (rows, cols), (T, H, D) or (B, S, H, D) */
    int64_t batch;               /* sequences */
    int32_t *cu_seqlens;         /* (batch+1), or NULL: dense, or one sequence */
    int32_t *seqused;            /* (batch), or NULL */
} mxa_quantized;

/* "P.payload.npy" for suffix ".payload.npy"; freed with free. */
char *mxa_quantized_path(const char *stem, const char *suffix);

/* 1 when tensors with these tags have a scale array along this axis. */
int mxa_quantized_has(const mxa_quantized *quantized, mxattn_axis axis);

/* Shape and bytes of a scale array. LINEAR and COMPACT: as in mxattn.h, without the head axis for a
 * matrix. TILED: (heads, row tiles, block tiles, 512). Returns the number of dimensions. */
int mxa_quantized_scales_shape(const mxa_quantized *quantized, mxattn_axis axis,
                               int64_t shape[MXA_NPY_DIMS]);

/* Views over payload and scale memory. hdim or seq may be NULL. */
void mxa_quantized_view(const mxa_quantized *quantized, uint8_t *payload, uint8_t *hdim,
                        uint8_t *seq, mxattn_tensor *tensor);

/* The text of P.json, freed with free; and its reader, which dies naming the file. */
char *mxa_quantized_to_json(const mxa_quantized *quantized);
void mxa_quantized_from_json(const char *path, mxa_quantized *quantized);

#endif
