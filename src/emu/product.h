/* product.h: D = (D or 0) + A*B of one tensor-core instruction, bit for bit as mx/tensor_core.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_PRODUCT_H
#define MXA_EMU_PRODUCT_H

#include "mx/tensor_core.h"

#include <stdint.h>

enum { MXA_EMU_PRODUCT_COLUMNS = 256, MXA_EMU_PRODUCT_COUNT = 32 };

/* Element (m, k) of A is a[m*count + k], (n, k) of B is b[n*b_n + k*b_k], in elements of the
 * step's types. n is at most MXA_EMU_PRODUCT_COLUMNS, step.count at most MXA_EMU_PRODUCT_COUNT. */
typedef struct mxa_emu_product {
    mxa_tensor_core_step step;
    int m, n;
    const void *a, *b;
    int b_n, b_k;
    const uint8_t *scale_a, *scale_b; /* E8M0 of each row, of each column; NULL: none */
    uint32_t *d;                      /* [m][stride]: FP32 bits, or FP16 in the low half */
    int64_t stride;
    int f16;        /* the accumulator is FP16; its upper half becomes 0 */
    int accumulate; /* 0: D = A*B, what D held is ignored */
} mxa_emu_product;

/* The fastest way that this machine has. */
void mxa_emu_product_run(const mxa_emu_product *product);

/* Each way; _scalar is the model itself, one output after the other. */
void mxa_emu_product_scalar(const mxa_emu_product *product);
void mxa_emu_product_portable(const mxa_emu_product *product);
#if defined(MXA_BUILD_AVX2)
void mxa_emu_product_avx2(const mxa_emu_product *product);
#endif

/* Outputs row, first..end-1 by the model: what the others call for NaN and infinity. */
void mxa_emu_product_row(const mxa_emu_product *product, int row, int first, int end);

#endif
