/* forms.h: the main kernels of the Hopper forward, and which problem each is for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_FORMS_H
#define MXA_CUDA_FORMS_H

#include "cuda/device.h"

/* FORWARD_SCORES of sm90/forward_body.h. */
typedef enum mxa_form_kind { MXA_FORM_F16, MXA_FORM_F32, MXA_FORM_BF16 } mxa_form_kind;

typedef struct mxa_forward_form {
    mxa_kernel kernel;
    mxa_form_kind kind;
    int head_dim;       /* the largest */
    int tile_q, tile_k; /* queries of a tile, keys of a block */
    int stages;
} mxa_forward_form;

enum { MXA_FORM_HEAD_DIM_MOST = 256 };

/* The smallest that holds both head dims, which are at most MXA_FORM_HEAD_DIM_MOST. */
const mxa_forward_form *mxa_forward_form_find(int64_t head_dim, int64_t head_dim_v,
                                              mxa_form_kind kind);

unsigned mxa_forward_form_threads(const mxa_forward_form *form);

/* Shared memory of a main kernel; 0 for any other. */
int mxa_forward_shared_bytes(mxa_kernel kernel);

#endif
