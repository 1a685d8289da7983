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

#include "backend.h"
#include "cpu/scale_place.h"

#include <stdint.h>

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
    const char *ahead;    /* what is asked for meanwhile: token 0, or NULL */
    int64_t ahead_stride; /* bytes between tokens */
    int stream;           /* the payload is not read again soon: write it past the caches */
} mxa_quantize_strip;

/* Codes of some strips that wait in the caches for both of their places. */
typedef struct mxa_quantize_turn {
    const uint8_t *codes;          /* rows of 128 */
    int64_t tokens;                /* a multiple of 64, at most 256 */
    int64_t dims;                  /* of each row: 64 or 128 */
    uint8_t *payload, *transposed; /* token 0, dim 0; lines: 64 bytes, aligned */
    int64_t payload_stride, transposed_stride;
} mxa_quantize_turn;

enum { MXA_TURN_BLOCKS_MOST = 8 };

typedef struct mxa_quantize_kernels {
    void (*strip)(const mxa_quantize_strip *strip);
    void (*turn)(const mxa_quantize_turn *turn); /* writes both past the caches */
    /* Mean of `tokens` rows for each of at most 32 dims, summed in float64 in order; 0 where it is
     * not finite. */
    void (*mean)(const void *wide, int64_t wide_stride, mxattn_dtype wide_dtype, int64_t tokens,
                 int64_t dims, float *mean);
    void (*drain)(
        void); /* after strips with `stream` and turns, before another thread reads them */
    int64_t turn_blocks; /* in a turn, a power of two */
} mxa_quantize_kernels;

const mxa_quantize_kernels *mxa_quantize_kernels_for(uint32_t isa);

/* What is written before the strips: zeros in tiled scale units and in rows of no sequence, and the
 * means where the tensor is centred. Of the call only a centred one reads `wide`. */
void mxa_quantize_begin(const mxattn_context *context, const mxa_quantize_call *call);

extern const mxa_quantize_kernels mxa_quantize_kernels_portable;
extern const mxa_quantize_kernels mxa_quantize_kernels_avx2;
extern const mxa_quantize_kernels mxa_quantize_kernels_avx512;

#endif
