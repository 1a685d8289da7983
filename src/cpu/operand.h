/* operand.h: one head of one sequence of an MXFP8 tensor, ready to be decoded token by token.
 *
 * Which scale array is read, and in which layout, is settled here; operand_body.h turns codes and
 * scale bytes into units for the GEMMs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_OPERAND_H
#define MXA_CPU_OPERAND_H

#include "mx/sequences.h"

#include <stdint.h>

enum {
    MXA_DIMS_MOST = 512,                     /* largest head dimension */
    MXA_DIM_BLOCKS_MOST = MXA_DIMS_MOST / 32 /* its blocks of 32 */
};

typedef struct mxa_operand {
    const uint8_t *payload; /* code of (first token, head, dimension 0) */
    int64_t token_stride;
    mxattn_dtype dtype;
    int32_t dims;
    mxattn_axis axis; /* of the scales read; COMPACT ones are read as HDIM */
    const mxattn_scales *scales;
    const mxa_sequence *sequence;
    int64_t b, head;
    /* LINEAR and COMPACT: the byte of (token t, k) is at scale_first + t/32*scale_block +
     * t%32*scale_token + k*scale_k, where k counts blocks of 32 dimensions, or dimensions (SEQ). */
    const uint8_t *scale_first; /* NULL: TILED */
    int64_t scale_block, scale_token, scale_k;
} mxa_operand;

/* tensor: FP8 with block scales, normalised as backend.h says; it and sequence must outlive the
 * operand. */
void mxa_operand_open(mxa_operand *operand, const mxattn_tensor *tensor,
                      const mxa_sequence *sequence, int64_t b, int64_t head);

/* The scale bytes of a token. HDIM scales: one per 32 dimensions; SEQ scales: one per dimension,
 * the same for the 32 tokens of a block. */
void mxa_operand_scales(const mxa_operand *operand, int64_t token, uint8_t *scales);

static inline int64_t mxa_round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

#endif
