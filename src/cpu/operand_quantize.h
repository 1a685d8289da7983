/* operand_quantize.h: wide operands of attention, quantized in the call into workspace.
 *
 * A wide tensor (F32, F16, BF16) whose tags name a block becomes E4M3 with one scale array, by the
 * rules of mxattn_quantize.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_OPERAND_QUANTIZE_H
#define MXA_CPU_OPERAND_QUANTIZE_H

#include "mx/scales.h"

/* Bytes of workspace for an operand with these tags: 0 when it is FP8 already or absent. extent:
 * upper bounds; batch: most sequences. */
int64_t mxa_operand_quantized_bytes(const mxattn_tags *tags, int64_t batch,
                                    const mxa_scale_extent *extent);

/* *operand = the tensor itself, or its quantized form in memory. */
mxattn_status mxa_operand_quantized(const mxattn_context *context, const mxattn_tensor *tensor,
                                    const mxa_batch *batch, void *memory, mxattn_tensor *operand);

#endif
