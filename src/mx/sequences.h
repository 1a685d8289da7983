/* sequences.h: where the sequences of a batch lie, in payload and in scale arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_SEQUENCES_H
#define MXA_MX_SEQUENCES_H

#include "mxattn/mxattn.h"

#include <stdint.h>

enum { MXA_TILE_ROWS = 128 }; /* rows of a 512-byte unit of tiled scales */

int64_t mxa_blocks(int64_t n); /* of 32 that n elements need */
int64_t mxa_tiles(int64_t n);  /* of 128 */

/* One sequence. In a tensor normalised to (B, S, H, D) its token s is element
 * [outer][first + s]: outer = b, first = 0 when dense; outer = 0, first = cu_seqlens[b] when
 * jagged (the tensor is then (1, T, H, D)). */
typedef struct mxa_sequence {
    int64_t outer;
    int64_t first;
    int64_t token;     /* number of its first token in scale arrays: b*S, or cu_seqlens[b] */
    int64_t length;    /* tokens with storage: S, or cu_seqlens[b+1] - cu_seqlens[b] */
    int64_t used;      /* tokens that count: seqused[b], or length */
    int64_t block;     /* number of its first block of 32 tokens */
    int64_t tiled_row; /* its first row in tiled scales, when cu_scale is derived */
} mxa_sequence;

/* A batch. cu_seqlens NULL: dense, `batch` sequences of `seqlen` tokens. */
typedef struct mxa_batch {
    int64_t batch;
    int64_t seqlen; /* dense only */
    const int32_t *cu_seqlens;
    const int32_t *seqused; /* NULL: everything is used */
} mxa_batch;

/* Walks a batch: start with *sequence all zero and b = 0, call for b = 0, 1, 2 ... in order; each
 * call turns sequence b-1 into sequence b. O(1). */
void mxa_sequence_next(const mxa_batch *batch, int64_t b, mxa_sequence *sequence);

/* The whole table: out[0..batch-1], and out[batch] holds the totals (first = token = total tokens,
 * block = total blocks, tiled_row = total padded rows, length = used = 0). */
void mxa_sequence_table(const mxa_batch *batch, mxa_sequence *out);

#endif
