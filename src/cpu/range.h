/* range.h: which sequences BF16 dot products may compute.
 *
 * VDPBF16PS counts operands and results below FP32's normal range as 0, whatever MXCSR says. Where
 * the scales of a sequence come near that range its tasks run on the FP32 kernel instead. The
 * choice looks at one sequence alone, so no sequence changes the bits of another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_RANGE_H
#define MXA_CPU_RANGE_H

#include "backend.h"

/* Least and largest exponent of the scales of blocks that hold something else than zeros. None:
 * low > high. */
typedef struct mxa_range {
    int low, high;
} mxa_range;

/* Of the tokens in use of one sequence, all heads. NaN scales do not count. */
mxa_range mxa_range_of(const mxattn_tensor *tensor, const mxa_sequence *sequence, int64_t b);

/* The second takes in the first. */
void mxa_range_join(const mxa_range *range, mxa_range *into);

/* 1 when the operands of a forward (dout NULL) or backward lie where flushing cannot show: products
 * of up to three factors stay 2^20 above FP32's least normal number. qk: q and k joined. */
int mxa_range_usual(const mxa_range *qk, const mxa_range *v, const mxa_range *dout);

#endif
