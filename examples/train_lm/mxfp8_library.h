/* mxfp8_library.h: mxattn as the example uses it: a context on the program's threads, one growing
 * workspace, and calls that end the program with the library's sentence where it refuses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_MXFP8_LIBRARY_H
#define TRAIN_LM_MXFP8_LIBRARY_H

#include "pool.h"

#include "mxattn/mxattn.h"

typedef struct mxfp8_library {
    mxattn_backend backend;
    mxattn_context *context;
    void *workspace; /* aligned as the library asks */
    size_t workspace_bytes;
    int64_t quantizations; /* calls of mxattn_quantize */
} mxfp8_library;

/* backend: "auto", "cpu" or "ref". */
void mxfp8_library_open(mxfp8_library *library, pool *p, const char *backend);
void mxfp8_library_close(mxfp8_library *library);

void mxfp8_need(mxattn_status status);
void mxfp8_workspace(mxfp8_library *library, size_t bytes); /* at least that much */

/* Backend and workspace of the arguments are filled in. */
void mxfp8_norm(mxfp8_library *library, mxattn_rmsnorm_quantize_args *args);
void mxfp8_norm_backward(mxfp8_library *library, mxattn_rmsnorm_backward_args *args);
void mxfp8_gemm(mxfp8_library *library, mxattn_gemm_quantize_args *args);
void mxfp8_quantize(mxfp8_library *library, const mxattn_tensor *wide, const mxattn_tensor *narrow);

/* A tensor of (rows, heads, dims) whose heads lie side by side, scales too, as a matrix. */
mxattn_tensor mxfp8_matrix(mxattn_tensor heads);

#endif
