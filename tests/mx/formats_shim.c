/* formats_shim.c: src/mx over whole arrays, for test_formats.py.
 *
 * Compiled by the test together with src/mx/ *.c into a shared object.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Flush-to-zero and denormals-are-zero of the calling thread. */
void shim_flush(int on)
{
    _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040U);
}
#else
void shim_flush(int on)
{
    (void)on;
}
#endif

void shim_convert(const void *from, int from_dtype, void *to, int to_dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        mxa_store(to, (mxattn_dtype)to_dtype, i, mxa_load(from, (mxattn_dtype)from_dtype, i));
    }
}

/* E4M3 from float64, one rounding. */
void shim_e4m3_from_f64(const double *from, uint8_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = mxa_e4m3_from_f64(from[i]);
    }
}

/* float64 rounded to a narrower type's values. */
void shim_round(const double *from, double *to, int dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = dtype == MXATTN_BF16  ? mxa_round_bf16(from[i])
                : dtype == MXATTN_F16 ? mxa_round_f16(from[i])
                                      : mxa_round_f32(from[i]);
    }
}

void shim_f32_to_f64(const float *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = mxa_f32_to_f64(from[i]);
    }
}

void shim_f32_from_f64(const double *from, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = mxa_f32_from_f64(from[i]);
    }
}

void shim_scale(const uint32_t *amax, uint8_t *scale, int dtype, int rounding, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        scale[i] = mxa_e8m0_from_amax(amax[i], (mxattn_dtype)dtype, (mxattn_rounding)rounding);
    }
}

void shim_scale_values(float *f32, double *f64)
{
    for (int code = 0; code < 256; code++) {
        f32[code] = mxa_e8m0_to_f32((uint8_t)code);
        f64[code] = mxa_e8m0_to_f64((uint8_t)code);
    }
}

/* All elements under one scale. */
void shim_encode(const float *from, uint8_t scale, uint8_t *to, int dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = mxa_fp8_encode(from[i], scale, (mxattn_dtype)dtype);
    }
}

/* All 256 codes under all 256 scales: [scale][code]. */
void shim_decode(float *f32, double *f64, int dtype)
{
    for (int scale = 0; scale < 256; scale++) {
        for (int code = 0; code < 256; code++) {
            int at = scale * 256 + code;
            f32[at] = mxa_fp8_decode((uint8_t)code, (uint8_t)scale, (mxattn_dtype)dtype);
            f64[at] = mxa_fp8_decode_f64((uint8_t)code, (uint8_t)scale, (mxattn_dtype)dtype);
        }
    }
}

/* One sequence of contiguous (tokens, heads, dim) with LINEAR scales; an array may be NULL. */
void shim_quantize(const void *wide, int wide_dtype, uint8_t *payload, uint8_t *hdim, uint8_t *seq,
                   float *centre, int dtype, int block, int rounding, int flags, int64_t tokens,
                   int64_t used, int64_t heads, int64_t dim)
{
    mxattn_tensor from = {.tags = {.dtype = (mxattn_dtype)wide_dtype},
                          .data = (void *)(uintptr_t)wide,
                          .shape = {1, tokens, heads, dim},
                          .stride = {0, heads * dim, dim, 1}};
    mxattn_tensor to = from;
    to.tags = (mxattn_tags){(mxattn_dtype)dtype, (mxattn_block)block, (mxattn_rounding)rounding,
                            (uint32_t)flags};
    to.data = payload;
    to.centre = centre;
    int32_t cu_seqlens[2] = {0, (int32_t)tokens};
    int32_t seqused = (int32_t)used;
    mxa_batch batch = {1, 0, cu_seqlens, &seqused};
    mxa_scale_extent extent = mxa_scales_extent(&batch, heads, dim);
    to.scales[MXATTN_HDIM].data = hdim;
    to.scales[MXATTN_SEQ].data = seq;
    mxa_scales_resolve(&to.scales[MXATTN_HDIM], MXATTN_HDIM, &extent);
    mxa_scales_resolve(&to.scales[MXATTN_SEQ], MXATTN_SEQ, &extent);
    mxa_quantize_tensor(&from, &to, &batch);
}
