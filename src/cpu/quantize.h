/* quantize.h: what the quantizer's ISA-independent half (quantize.c) hands to its kernels.
 *
 * A strip is one block of 32 tokens of one head, all of its dims. quantize.c cuts a batch into
 * strips and says where their scale bytes go; quantize_body.h, instantiated per instruction set,
 * computes. What the bytes are: mxa_quantize_tensor.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_QUANTIZE_H
#define MXA_CPU_QUANTIZE_H

#include "mx/sequences.h"

#include <stdint.h>

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

typedef struct mxa_quantize_strip {
    const void *wide;    /* token 0, dim 0; dims are contiguous */
    int64_t wide_stride; /* elements between tokens */
    uint8_t *payload;
    int64_t payload_stride;
    uint8_t *transposed; /* dim 0, token 0; tokens are contiguous; or NULL */
    int64_t transposed_stride;
    const float *centre; /* subtracted; finite; or NULL */
    int64_t tokens;      /* that have storage, 1 to 32 */
    int64_t used;        /* that count; later ones get payload 0 */
    int64_t dims;
    mxa_scale_place places[2]; /* indexed by mxattn_axis */
    mxattn_dtype wide_dtype;
    mxattn_tags tags;
} mxa_quantize_strip;

typedef struct mxa_quantize_kernels {
    void (*strip)(const mxa_quantize_strip *strip);
    /* Mean of `tokens` rows for each of at most 32 dims, summed in float64 in order; 0 where it is
     * not finite. */
    void (*mean)(const void *wide, int64_t wide_stride, mxattn_dtype wide_dtype, int64_t tokens,
                 int64_t dims, float *mean);
} mxa_quantize_kernels;

extern const mxa_quantize_kernels mxa_quantize_kernels_portable;
extern const mxa_quantize_kernels mxa_quantize_kernels_avx2;
extern const mxa_quantize_kernels mxa_quantize_kernels_avx512;

#endif
