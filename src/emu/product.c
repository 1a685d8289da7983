/* product.c: a product by the model itself, and the choice of a faster way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/product.h"

#include "mx/element.h"

static uint8_t scale_at(const uint8_t *scales, int index)
{
    return scales ? scales[index] : 127;
}

void mxa_emu_product_row(const mxa_emu_product *product, int row, int first, int end)
{
    const mxa_tensor_core_step *step = &product->step;
    const int bytes = mxa_dtype_bytes(step->a_type);
    const char *a = (const char *)product->a + (int64_t)row * step->count * bytes;
    for (int j = first; j < end; j++) {
        uint32_t *d = product->d + row * product->stride + j;
        const uint32_t c = product->accumulate ? *d : 0;
        const int is_nan = product->f16 ? (c & 0x7FFF) > 0x7C00 : (c & 0x7FFFFFFF) > 0x7F800000;
        if (is_nan || scale_at(product->scale_a, row) == 0xFF ||
            scale_at(product->scale_b, j) == 0xFF) { /* at once: padding is full of them */
            *d = product->f16 ? MXA_TENSOR_CORE_NAN_F16 : MXA_TENSOR_CORE_NAN;
            continue;
        }
        uint8_t column8[MXA_EMU_PRODUCT_COUNT];
        uint16_t column16[MXA_EMU_PRODUCT_COUNT];
        for (int k = 0; k < step->count; k++) {
            const int64_t at = (int64_t)j * product->b_n + (int64_t)k * product->b_k;
            if (bytes == 1) {
                column8[k] = ((const uint8_t *)product->b)[at];
            } else {
                column16[k] = ((const uint16_t *)product->b)[at];
            }
        }
        const void *column = bytes == 1 ? (const void *)column8 : (const void *)column16;
        *d = product->f16 ? mxa_tensor_core_f16(step, a, column, (uint16_t)c)
                          : mxa_tensor_core_f32(step, a, column, scale_at(product->scale_a, row),
                                                scale_at(product->scale_b, j), c);
    }
}

void mxa_emu_product_scalar(const mxa_emu_product *product)
{
    for (int row = 0; row < product->m; row++) {
        mxa_emu_product_row(product, row, 0, product->n);
    }
}

void mxa_emu_product_run(const mxa_emu_product *product)
{
#if defined(MXA_BUILD_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        mxa_emu_product_avx2(product);
        return;
    }
#endif
    mxa_emu_product_portable(product);
}
