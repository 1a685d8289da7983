/* rows_tensor.h: row arithmetic over whole tensors, in parallel: what attention does to its outputs
 * for producers and consumers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ROWS_TENSOR_H
#define MXA_CPU_ROWS_TENSOR_H

#include "backend.h"

/* Turns the heads of the tokens in use of an FP32 tensor, in place; nothing without a rotation. */
void mxa_cpu_rotate_tensor(const mxattn_context *context, const mxattn_tensor *tensor,
                           const mxa_batch *batch, const mxattn_rope *rope);

/* FP32 to a wide tensor of the same shape, every row. */
void mxa_cpu_narrow_tensor(const mxattn_context *context, const mxattn_tensor *from,
                           const mxattn_tensor *to);

#endif
