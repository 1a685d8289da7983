/* dequantize_body.h: the dequantizer's kernel, one body for every instruction set.
 *
 * Meaning: mxa_dequantize_tensor (mx/tensor.c), equalled byte for byte. A code times its scale is
 * exact in FP32 or infinite, so one multiplication by the scale does it (E4M3 codes arrive times
 * 2^-8: one more, by 256, comes first). Chunks with NaN codes go one element at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dequantize.h"

#include "mx/e8m0.h"
#include "mx/element.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Element types; constants once inlined. */
typedef struct format {
    mxattn_dtype narrow;
    mxattn_dtype wide;
} format;

ALWAYS_INLINE int has_nan_code(const uint8_t codes[MXA_BLOCK], format f)
{
    /* A byte's high bit is set by adding 1 to 0x7F (E4M3), or 3 to 0x7D and above (E5M2). */
    const uint64_t ones = 0x0101010101010101;
    uint64_t found = 0;
    for (int i = 0; i < MXA_BLOCK; i += 8) {
        uint64_t x;
        memcpy(&x, codes + i, sizeof x);
        found |= (x & ones * 0x7F) + ones * (f.narrow == MXATTN_E5M2 ? 3 : 1);
    }
    return (found & ones * 0x80) != 0;
}

ALWAYS_INLINE vec decode(const uint8_t *codes, format f)
{
    if (f.narrow == MXATTN_E5M2) {
        return vec_from_e5m2(codes);
    }
    return vec_mul(vec_from_e4m3(codes), vec_set(256.0F));
}

ALWAYS_INLINE void store_bf16(uint16_t *out, vec x)
{
    ivec bits = vec_bits(x);
    ivec even = ivec_and(ivec_shr(bits, 16), ivec_set(1));
    ivec rounded = ivec_add(ivec_add(bits, ivec_set(0x7FFF)), even);
    ivec quiet = ivec_or(bits, ivec_set(0x400000));
    vec chosen = vec_select(vec_is_nan(x), vec_from_bits(quiet), vec_from_bits(rounded));
    ivec_store_high16(out, vec_bits(chosen));
}

ALWAYS_INLINE void store(void *out, format f, int64_t index, vec x)
{
    if (f.wide == MXATTN_F32) {
        vec_store((float *)out + index, x);
    } else if (f.wide == MXATTN_F16) {
        vec_store_f16((uint16_t *)out + index, x);
    } else {
        store_bf16((uint16_t *)out + index, x);
    }
}

/* What all tokens of a chunk share. */
typedef struct chunk_scales {
    float factor[MXA_BLOCK]; /* of each dim (SEQ), or of the token at hand (HDIM) */
    float centre[MXA_BLOCK];
    uint8_t scale[MXA_BLOCK];
} chunk_scales;

/* 32 codes to 32 elements at out[index ...]. */
ALWAYS_INLINE void write_chunk(const uint8_t codes[MXA_BLOCK], const chunk_scales *scales,
                               int centred, format f, void *out, int64_t index)
{
    if (__builtin_expect(has_nan_code(codes, f), 0)) {
        for (int i = 0; i < MXA_BLOCK; i++) {
            float x = mxa_fp8_decode(codes[i], scales->scale[i], f.narrow);
            mxa_store(out, f.wide, index + i, centred ? x + scales->centre[i] : x);
        }
        return;
    }
    for (int i = 0; i < MXA_BLOCK; i += VEC_LANES) {
        vec x = vec_mul(decode(codes + i, f), vec_load(scales->factor + i));
        if (centred) {
            x = vec_add(x, vec_load(scales->centre + i));
        }
        store(out, f, index + i, x);
    }
}

ALWAYS_INLINE void write_row(const mxa_dequantize_strip *strip, format f, int64_t token,
                             int64_t chunk, const chunk_scales *scales)
{
    int64_t d = chunk * MXA_BLOCK, left = strip->dims - d;
    int centred = strip->centre != NULL;
    const uint8_t *codes = strip->payload + token * strip->payload_stride + d;
    if (left >= MXA_BLOCK) {
        write_chunk(codes, scales, centred, f, strip->wide, token * strip->wide_stride + d);
        return;
    }
    union {
        float f32[MXA_BLOCK];
        uint16_t half[MXA_BLOCK];
    } row;
    uint8_t padded[MXA_BLOCK] = {0};
    size_t bytes = f.wide == MXATTN_F32 ? 4 : 2;
    memcpy(padded, codes, (size_t)left);
    write_chunk(padded, scales, centred, f, &row, 0);
    memcpy((char *)strip->wide + (size_t)(token * strip->wide_stride + d) * bytes, &row,
           (size_t)left * bytes);
}

ALWAYS_INLINE void set_scale(chunk_scales *scales, int64_t i, uint8_t scale)
{
    scales->scale[i] = scale;
    scales->factor[i] = mxa_e8m0_to_f32(scale);
}

/* A scale's power of two times 256, which codes of E4M3 have yet to gain; scale at most
 * FACTOR_MOST. */
enum { FACTOR_MOST = 0xF6 };

ALWAYS_INLINE float factor_of(uint8_t scale, format f)
{
    uint32_t bits = (uint32_t)scale << 23;
    float factor;
    if (f.narrow == MXATTN_E4M3) {
        bits += 8U << 23;
    } else if (scale == 0) {
        bits = 0x00400000; /* 2^-127 */
    }
    memcpy(&factor, &bits, sizeof factor);
    return factor;
}

/* 32 codes under one scale. WHY apart: nearly all chunks that GEMMs read are such. */
ALWAYS_INLINE void write_plain(const uint8_t codes[MXA_BLOCK], float factor, format f, void *out,
                               int64_t index)
{
    for (int i = 0; i < MXA_BLOCK; i += VEC_LANES) {
        vec code = f.narrow == MXATTN_E5M2 ? vec_from_e5m2(codes + i) : vec_from_e4m3(codes + i);
        store(out, f, index + i, vec_mul(code, vec_set(factor)));
    }
}

/* The tokens of a chunk whose scale is that of the token. */
ALWAYS_INLINE void write_tokens(const mxa_dequantize_strip *strip, format f, int64_t chunk,
                                chunk_scales *scales)
{
    const int64_t d = chunk * MXA_BLOCK;
    const int plain = strip->dims - d >= MXA_BLOCK && !strip->centre;
    for (int64_t token = 0; token < strip->tokens; token++) {
        const uint8_t scale = *mxa_scale_place_at(&strip->place, chunk, token);
        const uint8_t *codes = strip->payload + token * strip->payload_stride + d;
        if (plain && scale <= FACTOR_MOST && !has_nan_code(codes, f)) {
            write_plain(codes, factor_of(scale, f), f, strip->wide, token * strip->wide_stride + d);
            continue;
        }
        const float factor = mxa_e8m0_to_f32(scale);
        memset(scales->scale, scale, sizeof scales->scale);
        for (int i = 0; i < MXA_BLOCK; i++) {
            scales->factor[i] = factor;
        }
        write_row(strip, f, token, chunk, scales);
    }
}

ALWAYS_INLINE void strip_typed(const mxa_dequantize_strip *strip, format f)
{
    for (int64_t chunk = 0; chunk * MXA_BLOCK < strip->dims; chunk++) {
        int64_t left = strip->dims - chunk * MXA_BLOCK;
        int64_t count = left < MXA_BLOCK ? left : MXA_BLOCK;
        chunk_scales scales; /* a plain chunk leaves it as it is */
        if (count < MXA_BLOCK || !strip->centre) {
            memset(scales.centre, 0, sizeof scales.centre);
        }
        for (int64_t i = 0; i < count && strip->centre; i++) {
            float mean = strip->centre[chunk * MXA_BLOCK + i];
            scales.centre[i] = mxa_f32_is_finite(mean) ? mean : 0.0F;
        }
        if (strip->axis == MXATTN_HDIM) {
            write_tokens(strip, f, chunk, &scales);
            continue;
        }
        for (int64_t i = 0; i < MXA_BLOCK; i++) {
            set_scale(&scales, i,
                      i < count ? *mxa_scale_place_at(&strip->place, chunk, i) : (uint8_t)0);
        }
        for (int64_t token = 0; token < strip->tokens; token++) {
            write_row(strip, f, token, chunk, &scales);
        }
    }
}

#define DEFINE_STRIP(name, narrow, wide)                                                           \
    static __attribute__((noinline)) void name(const mxa_dequantize_strip *strip)                  \
    {                                                                                              \
        const mxa_dequantize_strip copy = *strip; /* stores of bytes may alias *strip */           \
        strip_typed(&copy, (format){narrow, wide});                                                \
    }

DEFINE_STRIP(strip_e4m3_f32, MXATTN_E4M3, MXATTN_F32)
DEFINE_STRIP(strip_e4m3_f16, MXATTN_E4M3, MXATTN_F16)
DEFINE_STRIP(strip_e4m3_bf16, MXATTN_E4M3, MXATTN_BF16)
DEFINE_STRIP(strip_e5m2_f32, MXATTN_E5M2, MXATTN_F32)
DEFINE_STRIP(strip_e5m2_f16, MXATTN_E5M2, MXATTN_F16)
DEFINE_STRIP(strip_e5m2_bf16, MXATTN_E5M2, MXATTN_BF16)

void VEC_NAME(mxa_dequantize_strip)(const mxa_dequantize_strip *strip)
{
    int e5m2 = strip->dtype == MXATTN_E5M2;
    if (strip->wide_dtype == MXATTN_F32) {
        (e5m2 ? strip_e5m2_f32 : strip_e4m3_f32)(strip);
    } else if (strip->wide_dtype == MXATTN_F16) {
        (e5m2 ? strip_e5m2_f16 : strip_e4m3_f16)(strip);
    } else {
        (e5m2 ? strip_e5m2_bf16 : strip_e4m3_bf16)(strip);
    }
}
