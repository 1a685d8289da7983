/* mxfp8_library.h: mxattn as the example uses it: a context on the program's threads, one growing
 * workspace, and calls that end the program with the library's sentence where it refuses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_MXFP8_LIBRARY_H
#define TRAIN_LM_MXFP8_LIBRARY_H

#include "attention.h"
#include "pool.h"

#include "mxattn/mxattn.h"

enum { MXFP8_RANGES_MOST = 512 };

typedef struct mxfp8_library {
    mxattn_backend backend;
    mxfp8_variant variant;
    int on_device; /* its memory is a device's */
    mxattn_context *context;
    void *workspace; /* aligned as the library asks */
    size_t workspace_bytes;
    int64_t quantizations; /* calls of mxattn_quantize */
    /* MXFP8 operands that calls have read; those that lie where no call had written before, as
     * after a gather, a pad or a copy. */
    int64_t operands, foreign;
    struct mxfp8_range {
        const uint8_t *first, *end;
    } written[MXFP8_RANGES_MOST];
    int ranges;
} mxfp8_library;

/* backend: "auto", "cpu", "ref", "cuda" or "emu-sm90" (a device that is emulated). */
void mxfp8_library_open(mxfp8_library *library, pool *p, const char *backend,
                        mxfp8_variant variant);
void mxfp8_library_close(mxfp8_library *library);

void mxfp8_need(mxattn_status status);

/* E4M3 in such blocks, scales rounded as the variant says. */
mxattn_tags mxfp8_tags(const mxfp8_library *library, mxattn_block block);

/* A training problem over jagged batches of this shape, q, k and v in E4M3 with square blocks,
 * or as the variant has them. */
void mxfp8_problem(const mxfp8_library *library, const attention_shape *shape,
                   mxattn_attention_problem *problem);

void mxfp8_workspace(mxfp8_library *library, size_t bytes); /* at least that much */

/* Memory that the library's calls read and write. */
void *mxfp8_memory(const mxfp8_library *library, size_t bytes);
void mxfp8_memory_free(const mxfp8_library *library, void *memory);

/* `bytes` at `host` for a call to read: there, or copied to `device` where memory is a device's. */
const void *mxfp8_given(const mxfp8_library *library, void *device, const void *host, size_t bytes);

/* Where a call writes what belongs to `host`, and its way there once the call is queued. */
void *mxfp8_written_at(const mxfp8_library *library, void *device, void *host);
void mxfp8_fetch(const mxfp8_library *library, void *host, const void *device, size_t bytes);

/* Backend and workspace of the arguments are filled in. */
void mxfp8_norm(mxfp8_library *library, mxattn_rmsnorm_quantize_args *args);
void mxfp8_norm_backward(mxfp8_library *library, mxattn_rmsnorm_backward_args *args);
void mxfp8_gemm(mxfp8_library *library, mxattn_gemm_quantize_args *args);
void mxfp8_quantize(mxfp8_library *library, const mxattn_tensor *wide, const mxattn_tensor *narrow);

/* For calls made elsewhere: notes an MXFP8 tensor that a call has written, or reads. Others and
 * NULL do not count. */
void mxfp8_wrote(mxfp8_library *library, const mxattn_tensor *tensor);
void mxfp8_reads(mxfp8_library *library, const mxattn_tensor *tensor);

/* A tensor of (rows, heads, dims) whose heads lie side by side, scales too, as a matrix. */
mxattn_tensor mxfp8_matrix(mxattn_tensor heads);

#endif
