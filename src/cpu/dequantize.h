/* dequantize.h: what the dequantizer's ISA-independent half (dequantize.c) hands to its kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_DEQUANTIZE_H
#define MXA_CPU_DEQUANTIZE_H

#include "cpu/scale_place.h"

#include <stdint.h>

/* One block of 32 tokens of one head, all of its dims. */
typedef struct mxa_dequantize_strip {
    const uint8_t *payload;
    int64_t payload_stride;
    void *wide;
    int64_t wide_stride;
    const float *centre; /* added where finite; or NULL */
    int64_t tokens;      /* used ones */
    int64_t dims;
    mxattn_axis axis; /* of the array that `place` is in */
    mxa_scale_place place;
    mxattn_dtype dtype;
    mxattn_dtype wide_dtype;
} mxa_dequantize_strip;

typedef void (*mxa_dequantize_kernel)(const mxa_dequantize_strip *strip);

mxa_dequantize_kernel mxa_dequantize_kernel_for(uint32_t isa);

void mxa_dequantize_strip_portable(const mxa_dequantize_strip *strip);
void mxa_dequantize_strip_avx2(const mxa_dequantize_strip *strip);
void mxa_dequantize_strip_avx512(const mxa_dequantize_strip *strip);

#endif
