/* sequences.c: where the sequences of a batch lie, in payload and in scale arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/sequences.h"

#include "mx/e8m0.h"

#include <string.h>

int64_t mxa_blocks(int64_t n)
{
    return (n + MXA_BLOCK - 1) / MXA_BLOCK;
}

int64_t mxa_tiles(int64_t n)
{
    return (n + MXA_TILE_ROWS - 1) / MXA_TILE_ROWS;
}

/* Moves the counters past a sequence. */
static void advance(mxa_sequence *sequence)
{
    sequence->token += sequence->length;
    sequence->block += mxa_blocks(sequence->length);
    sequence->tiled_row += mxa_tiles(sequence->length) * MXA_TILE_ROWS;
}

void mxa_sequence_next(const mxa_batch *batch, int64_t b, mxa_sequence *sequence)
{
    if (b > 0) {
        advance(sequence);
    }
    if (batch->cu_seqlens) {
        sequence->outer = 0;
        sequence->first = batch->cu_seqlens[b];
        sequence->length = (int64_t)batch->cu_seqlens[b + 1] - batch->cu_seqlens[b];
    } else {
        sequence->outer = b;
        sequence->first = 0;
        sequence->length = batch->seqlen;
    }
    sequence->used = batch->seqused ? batch->seqused[b] : sequence->length;
}

void mxa_sequence_table(const mxa_batch *batch, mxa_sequence *out)
{
    mxa_sequence sequence;
    memset(&sequence, 0, sizeof sequence);
    for (int64_t b = 0; b < batch->batch; b++) {
        mxa_sequence_next(batch, b, &sequence);
        out[b] = sequence;
    }
    advance(&sequence);
    sequence.outer = 0;
    sequence.first = sequence.token;
    sequence.length = 0;
    sequence.used = 0;
    out[batch->batch] = sequence;
}
