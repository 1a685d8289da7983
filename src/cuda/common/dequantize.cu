/* dequantize.cu: MXFP8 to a wide tensor, the centre added.
 *
 * Meaning: mxa_dequantize_tensor (mx/tensor.c), equalled byte for byte. A code times its scale is
 * exact in FP32 or infinite, so one multiplication does it. NaN is put together from bits: an
 * instruction's NaN has lost its sign.
 *
 * One CTA takes a tile, a warp two blocks (tile.h); scale bytes are read where they lie, one a
 * lane. The kernels of a type take hdim scales, no centre, and head dims that 8 divides.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/tile.h"

/* The scale byte of this lane: of token 32*g + lane (hdim), or of dim 8*(lane%4) + lane/4 of the
 * block (seq). 0 where there is none. */
MXA_DEVICE uint32_t dequantize_scale(const mxa_quantize_params *p, const tile *t, int axis, int g,
                                     int c)
{
    const mxa_gpu_scales *scales = axis ? &p->scales[1] : &p->scales[0];
    const int lane = dev_thread() & 31;
    const int token = axis ? 32 * g : 32 * g + lane;
    const int dim = axis ? 32 * c + lane % 4 * 8 + lane / 4 : 32 * c;
    if (token >= t->used || dim >= t->dims) {
        return 0;
    }
    const int s = t->at.position + token, d = 128 * t->chunk + dim;
    uint64_t at;
    if (scales->layout == MXA_GPU_TILED) {
        const int row = scale_tiled_row(&p->batch, axis, &t->at) + s;
        const int r = axis ? d : row, k = (axis ? row : d) / 32;
        at = (uint64_t)(UNIT_BYTES * (t->head * scales->stride_head + r / 128 * scales->stride_row +
                                      k / 4 * scales->stride_k) +
                        r % 32 * 16 + r % 128 / 32 * 4 + k % 4);
    } else {
        const int compact = scales->layout == MXA_GPU_COMPACT;
        const int64_t row = compact || axis ? t->at.block + s / 32 : t->at.token + s;
        const int64_t k = compact || !axis ? d / 32 : d;
        at = (uint64_t)(row * scales->stride_row + t->head * scales->stride_head +
                        k * scales->stride_k);
    }
    return dev_load_global_u8(scales->data + at);
}

/* Codes of this lane's 4 tokens by 8 dims, tokens clamped. */
MXA_DEVICE void dequantize_load(const mxa_quantize_params *p, const tile *t, int first, int d,
                                int count, uint32_t *codes)
{
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        mxa_global at =
            t->payload + (uint64_t)(smaller(first + i, t->used - 1) * p->payload.stride_token + d);
        if (count == 8) {
            mxa_u32x2 v = dev_load_global_u32x2(at);
            codes[2 * i] = v.x;
            codes[2 * i + 1] = v.y;
            continue;
        }
        codes[2 * i] = codes[2 * i + 1] = 0;
        MXA_UNROLL
        for (int n = 0; n < 7; n++) {
            if (n < count) {
                codes[2 * i + n / 4] |= (uint32_t)dev_load_global_u8(at + (uint64_t)n)
                                        << (8 * (n % 4));
            }
        }
    }
}

/* Bits of a NaN that a code stands for, or its scale does; 0 for any other. */
MXA_DEVICE uint32_t dequantize_nan(uint32_t code, uint32_t scale, int e5m2)
{
    const uint32_t sign = (code & 0x80) << 24, magnitude = code & 0x7F;
    if (scale == 255) {
        return 0x7FC00000u;
    }
    if (e5m2) {
        return magnitude > 0x7C ? sign | 0x7FC00000u | (magnitude - 0x7C) << 21 : 0;
    }
    return magnitude == 0x7F ? sign | 0x7FC00000u : 0;
}

MXA_DEVICE void dequantize_store_one(mxa_global at, int type, float x, uint32_t nan)
{
    if (type == MXA_GPU_F32) {
        dev_store_global_u32(at, nan ? nan : bits_f32(x));
    } else if (type == MXA_GPU_BF16) {
        dev_store_global_u16(at, (uint16_t)(nan ? nan >> 16 : bf16x2_from_f32x2(x, x) & 0xFFFF));
    } else {
        const uint32_t half = (nan >> 16 & 0x8000) | 0x7C00 | (nan >> 13 & 0x3FF);
        dev_store_global_u16(at, (uint16_t)(nan ? half : f16x2_from_f32x2(x, x) & 0xFFFF));
    }
}

/* Eight elements without a NaN. */
MXA_DEVICE void dequantize_store(mxa_global at, int type, const float *x)
{
    uint32_t w[8];
    if (type == MXA_GPU_F32) {
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            w[n] = bits_f32(x[n]);
        }
        mxa_u32x4 high = {w[4], w[5], w[6], w[7]};
        dev_store_global_u32x4(at + 16, high);
    } else {
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            w[n] = type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x[2 * n], x[2 * n + 1])
                                        : f16x2_from_f32x2(x[2 * n], x[2 * n + 1]);
        }
    }
    mxa_u32x4 low = {w[0], w[1], w[2], w[3]};
    dev_store_global_u32x4(at, low);
}

/* One token's 8 elements. scale: of each. */
MXA_DEVICE void dequantize_row(const mxa_quantize_params *p, mxa_global to, const uint32_t *codes,
                               const uint32_t *scale, const float *mean, int count)
{
    const int e5m2 = p->type == MXA_GPU_E5M2, bytes = bytes_of(p->wide_type);
    const uint32_t add = e5m2 ? 0x03030303u : 0x01010101u;
    float x[8];
    uint32_t special = ((codes[0] & 0x7F7F7F7Fu) + add) | ((codes[1] & 0x7F7F7F7Fu) + add);
    special &= 0x80808080u;
    MXA_UNROLL
    for (int n = 0; n < 8; n += 2) {
        const uint32_t pair = f16x2_from_fp8x2(codes[n / 4] >> (8 * (n % 4)), e5m2);
        x[n] = add_rn(mul_rn(f32_from_f16_low(pair), load_power(scale[n])), mean[n]);
        x[n + 1] = add_rn(mul_rn(f32_from_f16_high(pair), load_power(scale[n + 1])), mean[n + 1]);
        special |= (uint32_t)(scale[n] == 255 || scale[n + 1] == 255);
    }
    if (count == 8 && !special) {
        dequantize_store(to, p->wide_type, x);
        return;
    }
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        if (n < count) {
            const uint32_t code = codes[n / 4] >> (8 * (n % 4)) & 0xFF;
            dequantize_store_one(to + (uint64_t)(n * bytes), p->wide_type, x[n],
                                 dequantize_nan(code, scale[n], e5m2));
        }
    }
}

/* What is added to each of 8 dims: the centre, where it is finite. WHY -0: a sum with it is exact.
 */
MXA_DEVICE void dequantize_centre(const mxa_quantize_params *p, const tile *t, int d, int count,
                                  float *mean)
{
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        mean[n] = f32_bits(0x80000000u);
    }
    if (p->centre) {
        const int64_t row = (int64_t)t->at.sequence * p->heads + t->head;
        tile_load_part(p->centre + 4 * (uint64_t)(row * p->head_dim + 128 * t->chunk + d),
                       MXA_GPU_F32, count, mean);
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            mean[n] = (bits_f32(mean[n]) & 0x7F800000u) == 0x7F800000u ? 0.0f : mean[n];
        }
    }
}

/* What a lane has fetched of its block. */
typedef struct dequantize_block {
    uint32_t codes[8];
    uint32_t scale; /* of dequantize_scale */
} dequantize_block;

/* One block: its lane's elements scaled and stored, zeros past seqused. */
MXA_DEVICE void dequantize_store_block(const mxa_quantize_params *p, const tile *t, int axis, int n,
                                       const dequantize_block *b)
{
    int g, c;
    tile_block(t, n, &g, &c);
    const int lane = dev_thread_again() & 31, first = 32 * g + lane / 4 * 4;
    const int d = 32 * c + lane % 4 * 8, count = smaller(t->dims - d, 8);
    const int bytes = bytes_of(p->wide_type);
    float mean[8];
    dequantize_centre(p, t, d, count, mean);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t scale[8];
        MXA_UNROLL
        for (int m = 0; m < 8; m++) {
            scale[m] = axis     ? (uint32_t)shuffle_i32((int)b->scale, 4 * m + lane % 4)
                       : m == 0 ? (uint32_t)shuffle_i32((int)b->scale, lane / 4 * 4 + i)
                                : scale[0];
        }
        if (first + i >= t->tokens || count <= 0) {
            continue;
        }
        mxa_global to = t->wide + (uint64_t)(((first + i) * p->wide.stride_token + d) * bytes);
        if (first + i < t->used) {
            dequantize_row(p, to, b->codes + 2 * i, scale, mean, count);
            continue;
        }
        const uint32_t none[2] = {0, 0}, ones[8] = {127, 127, 127, 127, 127, 127, 127, 127};
        const float zeros[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        dequantize_row(p, to, none, ones, zeros, count);
    }
}

/* Two blocks a warp, as in quantize.cu: all loads are in flight before one is looked at. */
MXA_KERNEL_MANY(mxa_dequantize, TILE_THREADS / 2, 3, mxa_quantize_params, parameters)
{
    const mxa_quantize_params *p = &parameters;
    const int axis = p->scales[0].data == 0;
    tile t;
    if (!tile_begin(p, dev_shared(), p->wide_type, &t)) {
        return;
    }
    if (t.at.sequence < 0) {
        tile_clear_rows(p, &t, &p->wide, bytes_of(p->wide_type));
        return;
    }
    dequantize_block b[2];
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        int g, c;
        tile_block(&t, dev_thread() / 32 + i * tile_warps(), &g, &c);
        const int lane = dev_thread() & 31, d = 32 * c + lane % 4 * 8;
        const int count = smaller(t.dims - d, 8);
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            b[i].codes[n] = 0;
        }
        if (32 * g < t.used && count > 0) {
            dequantize_load(p, &t, 32 * g + lane / 4 * 4, d, count, b[i].codes);
        }
        b[i].scale = dequantize_scale(p, &t, axis, g, c);
    }
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        dequantize_store_block(p, &t, axis, dev_thread_again() / 32 + i * tile_warps(), &b[i]);
    }
}

/* Eight codes times 2^(scale - 127). */
MXA_DEVICE void dequantize_eight(int e5m2, const uint32_t *codes, uint32_t scale, float *x)
{
    const float power = load_power(scale);
    MXA_UNROLL
    for (int n = 0; n < 8; n += 2) {
        const uint32_t pair = f16x2_from_fp8x2(codes[n / 4] >> (8 * (n % 4)), e5m2);
        x[n] = mul_rn(f32_from_f16_low(pair), power);
        x[n + 1] = mul_rn(f32_from_f16_high(pair), power);
    }
}

/* 1 when a code is NaN, or its scale: bits that an instruction's NaN would not have. */
MXA_DEVICE int dequantize_is_special(int e5m2, const uint32_t *codes, uint32_t scale)
{
    const uint32_t add = e5m2 ? 0x03030303u : 0x01010101u;
    const uint32_t over = ((codes[0] & 0x7F7F7F7Fu) + add) | ((codes[1] & 0x7F7F7F7Fu) + add);
    return (over & 0x80808080u) != 0 || scale == 255;
}

/* This lane's tokens of a block; returns those that are special, a bit each. */
MXA_DEVICE uint32_t dequantize_tokens(const mxa_quantize_params *p, const tile *t, int type,
                                      int e5m2, int n, const dequantize_block *b)
{
    int g, c;
    tile_block(t, n, &g, &c);
    const int lane = dev_thread_again() & 31, first = 32 * g + lane / 4 * 4;
    const int d = 32 * c + lane % 4 * 8, bytes = bytes_of(type);
    const uint64_t step = (uint64_t)(bytes * p->wide.stride_token);
    mxa_global to = t->wide + (uint64_t)first * step + (uint64_t)(bytes * d);
    uint32_t special = 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t scale = (uint32_t)shuffle_i32((int)b->scale, lane / 4 * 4 + i);
        if (first + i < t->tokens && d < t->dims) {
            float x[8];
            dequantize_eight(e5m2, b->codes + 2 * i, scale, x);
            dequantize_store(to, type, x);
            special |= (uint32_t)dequantize_is_special(e5m2, b->codes + 2 * i, scale) << i;
        }
        to += step;
    }
    return special;
}

/* The special ones again, read again: they are few. The whole warp. */
MXA_DEVICE void dequantize_again(const mxa_quantize_params *p, const tile *t, int n, uint32_t scale,
                                 uint32_t special)
{
    int g, c;
    tile_block(t, n, &g, &c);
    const int lane = dev_thread_again() & 31, d = 32 * c + lane % 4 * 8;
    const float none[8] = {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f};
    MXA_NO_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t one = (uint32_t)shuffle_i32((int)scale, lane / 4 * 4 + i);
        const int token = 32 * g + lane / 4 * 4 + i;
        const uint32_t all[8] = {one, one, one, one, one, one, one, one};
        if (special >> i & 1) {
            const mxa_u32x2 v =
                dev_load_global_u32x2(t->payload + (uint64_t)(token * p->payload.stride_token + d));
            const uint32_t codes[2] = {v.x, v.y};
            dequantize_row(
                p,
                t->wide + (uint64_t)((token * p->wide.stride_token + d) * bytes_of(p->wide_type)),
                codes, all, none, 8);
        }
    }
}

MXA_DEVICE void dequantize_hdim(const mxa_quantize_params *p, int type)
{
    tile t;
    if (!tile_begin(p, dev_shared(), type, &t)) {
        return;
    }
    if (t.at.sequence < 0) {
        tile_clear_rows(p, &t, &p->wide, bytes_of(type));
        return;
    }
    dequantize_block b[2];
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        int g, c;
        tile_block(&t, dev_thread() / 32 + i * tile_warps(), &g, &c);
        const int lane = dev_thread() & 31, first = 32 * g + lane / 4 * 4;
        const int d = 32 * c + lane % 4 * 8;
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            mxa_u32x2 v = {0, 0};
            if (first + n < t.used && d < t.dims) {
                v = dev_load_global_u32x2(t.payload +
                                          (uint64_t)((first + n) * p->payload.stride_token + d));
            }
            b[i].codes[2 * n] = v.x;
            b[i].codes[2 * n + 1] = v.y;
        }
        b[i].scale = dequantize_scale(p, &t, 0, g, c);
    }
    uint32_t special[2];
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const int n = dev_thread_again() / 32 + i * tile_warps();
        special[i] = p->type == MXA_GPU_E5M2 ? dequantize_tokens(p, &t, type, 1, n, &b[i])
                                             : dequantize_tokens(p, &t, type, 0, n, &b[i]);
    }
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        if (warp_any((int)special[i])) {
            dequantize_again(p, &t, dev_thread_again() / 32 + i * tile_warps(), b[i].scale,
                             special[i]);
        }
    }
}

#define DEQUANTIZE(name, type)                                                                     \
    MXA_KERNEL_MANY(name, TILE_THREADS / 2, 4, mxa_quantize_params, parameters)                    \
    {                                                                                              \
        dequantize_hdim(&parameters, type);                                                        \
    }

DEQUANTIZE(mxa_dequantize_f32, MXA_GPU_F32)
DEQUANTIZE(mxa_dequantize_f16, MXA_GPU_F16)
DEQUANTIZE(mxa_dequantize_bf16, MXA_GPU_BF16)
