/* tensor.h: one element of any tensor, for code that is read rather than timed.
 *
 * Tensors are normalised: shape (B, S, H, D), jagged as (1, T, H, D); strides and scale strides
 * resolved.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_TENSOR_H
#define MXA_MX_TENSOR_H

#include "mx/sequences.h"

/* Value of (token s of sequence b, head, d): payload times scale plus centre (a centre that is not
 * finite counts as 0), in float64, exact but for the centre's addition. */
double mxa_tensor_value(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b, int64_t s,
                        int64_t head, int64_t d);

/* The same without the centre. */
double mxa_tensor_value_uncentred(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t b,
                                  int64_t s, int64_t head, int64_t d);

/* Element index into data. */
int64_t mxa_tensor_index(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s,
                         int64_t head, int64_t d);

/* The meaning of quantization, block after block: wide -> quantized with every scale array that is
 * present; centre written first when tagged. Slow and readable; what fast quantizers equal byte
 * for byte. */
void mxa_quantize_tensor(const mxattn_tensor *wide, const mxattn_tensor *quantized,
                         const mxa_batch *batch);

/* The meaning of dequantization: payload times scale in FP32 (exact, or infinite), plus centre in
 * FP32, rounded to the type of wide. Tokens past seqused and rows outside every sequence are 0. */
void mxa_dequantize_tensor(const mxattn_tensor *quantized, const mxattn_tensor *wide,
                           const mxa_batch *batch);

#endif
