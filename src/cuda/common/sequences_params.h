/* sequences_params.h: a batch's lengths as producers' kernels get them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_SEQUENCES_PARAMS_H
#define MXA_CUDA_COMMON_SEQUENCES_PARAMS_H

#include "cuda/dev/dev.h"

/* A divisor with what a multiplication needs to stand for it: n / divisor is n * multiplier >>
 * shift for n below 2^31. */
typedef struct mxa_divisor {
    uint32_t divisor, multiplier, shift;
} mxa_divisor;

typedef struct mxa_gpu_sequences {
    mxa_global cu_seqlens;  /* int32 [batch+1], or 0: dense */
    mxa_global seqused;     /* int32 [batch], or 0 */
    mxa_global cu_scale[2]; /* int32 [batch+1], of tiled scales by axis, or 0; checked */
    mxa_global status;      /* the caller's status word, or 0 */
    int32_t walk; /* 0: dense, all tokens used, cu_scale derived: everything is arithmetic */
    int32_t batch;
    int32_t seqlen; /* dense */
    int32_t total;  /* jagged: tokens with storage */
    int32_t tiles;  /* of the grid: at least those of the batch; jagged: at least one more */
    int32_t rows;   /* of the grid, z times: tile z * rows + y */
    mxa_divisor tiles_each; /* dense: tiles of a sequence */
} mxa_gpu_sequences;

#endif
