/* batch.h: the sequences of a batch and the list of tiles, as kernels see them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_BATCH_H
#define MXA_CUDA_COMMON_BATCH_H

#include "cuda/dev/dev.h"

/* Element types in kernel parameters: values of mxattn_dtype. */
enum { MXA_GPU_F32 = 1, MXA_GPU_F16 = 2, MXA_GPU_BF16 = 3, MXA_GPU_E4M3 = 4, MXA_GPU_E5M2 = 5 };

/* Sequence b: where its tokens lie in the caller's tensors ([outer][first + s]) and in the private
 * copies (row), in blocks of 32 tokens and in tiled scales. 64 bytes, four 16-byte loads. */
typedef struct mxa_gpu_sequence {
    int32_t q_outer, q_first, q_used, q_length;
    int32_t k_outer, k_first, k_used, k_length;
    int32_t q_row, k_row, q_token, k_token; /* token: its first token's number in scale arrays */
    int32_t q_block, k_block, q_tiled_row, k_tiled_row;
} mxa_gpu_sequence;

/* One tile of queries. */
typedef struct mxa_gpu_tile {
    int32_t sequence, head, first; /* first query of the tile, from its sequence's start */
    int32_t reserved;
} mxa_gpu_tile;

/* A dense batch without seqused is arithmetic (sequences == 0); anything else is read from tables
 * that the schedule kernel wrote. */
typedef struct mxa_gpu_batch {
    mxa_global sequences;  /* mxa_gpu_sequence[batch], or 0 */
    mxa_global tiles;      /* mxa_gpu_tile[], longest first, or 0 */
    mxa_global tile_count; /* int32, or 0 */
    mxa_global status;     /* uint32 status word, or 0; not 0 there: write nothing */
    int32_t batch;
    int32_t seqlen_q, seqlen_k; /* dense */
    int32_t padded_q, padded_k; /* dense: rows from one sequence to the next */
    int32_t tiles_per_sequence; /* dense */
} mxa_gpu_batch;

#endif
