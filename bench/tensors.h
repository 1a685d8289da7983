/* tensors.h: the tensors of one attention call, several times over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TENSORS_H
#define MXC_TENSORS_H

#include "sizes.h"

enum { MXC_Q, MXC_K, MXC_V, MXC_DOUT, MXC_O, MXC_LSE, MXC_DQ, MXC_DK, MXC_DV, MXC_TENSORS };

/* One copy of all tensors, in one piece of memory. */
typedef struct mxc_tensor_set {
    void *memory;
    mxattn_tensor t[MXC_TENSORS];
} mxc_tensor_set;

/* Sizes and tags of a tensor; the problem's tags. */
typedef struct mxc_tensor_kind {
    int64_t total, heads, dim;
    mxattn_tags tags;
} mxc_tensor_kind;
mxc_tensor_kind mxc_tensor_kind_of(const mxc_sizes *sizes, const mxattn_attention_problem *problem,
                                   int tensor);

/* Bytes of one set. */
int64_t mxc_tensor_set_bytes(const mxc_sizes *sizes, const mxattn_attention_problem *problem);

/* Places a set in new memory. */
void mxc_tensor_set_make(const mxc_sizes *sizes, const mxattn_attention_problem *problem,
                         mxc_tensor_set *set);

/* Gaussian operands q, k, v and dout: quantized where the tags are E4M3, else rounded to BF16. */
void mxc_tensor_set_fill(const mxattn_context *context, const mxc_sizes *sizes,
                         const mxattn_attention_problem *problem, uint64_t seed,
                         mxc_tensor_set *set);

/* The values of a tensor as float32, contiguous: dequantized, or widened. */
float *mxc_tensor_values(const mxattn_context *context, const mxc_sizes *sizes,
                         const mxattn_tensor *tensor);

/* FP32 <-> BF16, nearest even; no NaN goes in. */
uint16_t mxc_bf16(float x);
float mxc_from_bf16(uint16_t bits);

#endif
