/* fused.h: what ref's RMSNorm and GEMM share: rows of FP32 between arithmetic and quantization.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_REF_FUSED_H
#define MXA_REF_FUSED_H

#include "backend.h"

/* row = row / rms(row) * weight, as mx/rms.h has it; returns rstd. */
float mxa_ref_rms_row(float *row, int64_t count, const float *weight, double eps);

/* Turns the heads of a token in FP32, every product and sum rounded. */
void mxa_ref_rotate_f32(const mxattn_rope *rope, int64_t position, float *row);

/* The same in float64. */
void mxa_ref_rotate_f64(const mxattn_rope *rope, int64_t position, double *row);

/* FP32 of the shape of `like`, contiguous at memory; and its bytes. */
mxattn_tensor mxa_ref_wide_like(const mxattn_tensor *like, float *memory);
int64_t mxa_ref_wide_bytes(const mxattn_tensor *like);

/* Writes values, which mxa_ref_wide_like made, to a wide tensor: rows in use as they are (added to
 * where accumulate), others as 0 (left where accumulate). */
void mxa_ref_store_wide(const mxattn_tensor *values, const mxa_batch *batch, int accumulate,
                        const mxattn_tensor *to);

#endif
