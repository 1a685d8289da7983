/* load.h: finding a row's sequence, and reading a caller's tensor as FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_LOAD_H
#define MXA_CUDA_COMMON_LOAD_H

#include "cuda/common/operand.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"

/* Where a row of a private copy comes from. */
typedef struct load_place {
    int sequence;
    int position;         /* token inside its sequence */
    int outer, first;     /* the sequence in the caller's tensor */
    int used;             /* tokens that count */
    int token;            /* number of the sequence's first token in scale arrays */
    int block, tiled_row; /* and of its first block and tiled row */
} load_place;

/* Sequence and position of private row `row`; position may lie beyond `used`. */
MXA_DEVICE void load_find(const mxa_gpu_batch *batch, int is_k_side, int row, load_place *place)
{
    if (batch->sequences == 0) {
        int padded = is_k_side ? batch->padded_k : batch->padded_q;
        int length = is_k_side ? batch->seqlen_k : batch->seqlen_q;
        int sequence = (int)((uint32_t)row / (uint32_t)padded);
        place->sequence = sequence;
        place->position = row - sequence * padded;
        place->outer = sequence;
        place->first = 0;
        place->used = length;
        place->token = sequence * length;
        place->block = sequence * ((length + 31) / 32);
        place->tiled_row = sequence * ((length + 127) / 128 * 128);
        return;
    }
    /* The last sequence whose first row is not beyond `row`. */
    int low = 0, high = batch->batch - 1;
    uint64_t at = is_k_side ? 36 : 32;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (dev_load_global_i32(batch->sequences + 64 * (uint64_t)middle + at) <= row) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    mxa_global record = batch->sequences + 64 * (uint64_t)low;
    mxa_u32x4 side = dev_load_global_u32x4(record + (is_k_side ? 16 : 0));
    mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
    mxa_u32x4 numbers = dev_load_global_u32x4(record + 48);
    place->sequence = low;
    place->position = row - (int)(is_k_side ? rows.y : rows.x);
    place->outer = (int)side.x;
    place->first = (int)side.y;
    place->used = (int)side.z;
    place->token = (int)(is_k_side ? rows.w : rows.z);
    place->block = (int)(is_k_side ? numbers.y : numbers.x);
    place->tiled_row = (int)(is_k_side ? numbers.w : numbers.z);
}

/* Address of the scale byte of (position, head, d): docs/format.md, scale layouts. */
MXA_DEVICE mxa_global load_scale_at(const mxa_gpu_operand *from, const load_place *place,
                                    int position, int head, int d)
{
    int64_t offset;
    if (from->scale_layout == MXA_GPU_TILED) {
        int first = from->cu_scale
                        ? dev_load_global_i32(from->cu_scale + 4 * (uint64_t)place->sequence)
                        : place->tiled_row;
        int r = from->scale_axis ? d : first + position;
        int k = from->scale_axis ? (first + position) / 32 : d / 32;
        offset =
            512 * (head * from->scale_head + r / 128 * from->scale_row + k / 4 * from->scale_k) +
            r % 32 * 16 + r % 128 / 32 * 4 + k % 4;
    } else {
        int by_block = from->scale_layout == MXA_GPU_COMPACT || from->scale_axis;
        int64_t row = by_block ? place->block + position / 32 : place->token + position;
        int64_t k = from->scale_layout == MXA_GPU_COMPACT || !from->scale_axis ? d / 32 : d;
        offset = row * from->scale_row + head * from->scale_head + k * from->scale_k;
    }
    return from->scales + (uint64_t)offset;
}

MXA_DEVICE uint32_t load_scale(const mxa_gpu_operand *from, const load_place *place, int position,
                               int head, int d)
{
    return dev_load_global_u8(load_scale_at(from, place, position, head, d));
}

/* 2^(byte - 127), also for byte 0; 0xFF gives NaN. */
MXA_DEVICE float load_power(uint32_t byte)
{
    return f32_bits(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

/* Element number of (position, head, d). */
MXA_DEVICE uint64_t load_index(const mxa_gpu_operand *from, const load_place *place, int position,
                               int head, int d)
{
    return (uint64_t)(place->outer * from->stride_outer +
                      (place->first + (int64_t)position) * from->stride_token +
                      head * from->stride_head + d);
}

/* Four packed pairs of a wide 16-bit type to FP32. */
MXA_DEVICE void load_unpack(mxa_u32x4 v, int bf16, float *x)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        x[2 * j] = bf16 ? f32_bits(w[j] << 16) : f32_from_f16_low(w[j]);
        x[2 * j + 1] = bf16 ? f32_bits(w[j] & 0xFFFF0000u) : f32_from_f16_high(w[j]);
    }
}

/* Eight FP8 elements times their scales. */
MXA_DEVICE void load_fp8(const mxa_gpu_operand *from, const load_place *place, int position,
                         int head, int d, float *x)
{
    mxa_u32x2 v = dev_load_global_u32x2(from->data + load_index(from, place, position, head, d));
    uint32_t w[2] = {v.x, v.y};
    int column_scales = from->scale_axis && from->block == MXA_GPU_COLUMN;
    float scale = load_power(load_scale(from, place, position, head, d));
    MXA_UNROLL
    for (int j = 0; j < 8; j += 2) {
        uint32_t pair = f16x2_from_fp8x2(w[j / 4] >> (8 * (j % 4)), from->type == MXA_GPU_E5M2);
        float a = scale, b = scale;
        if (column_scales) {
            a = load_power(load_scale(from, place, position, head, d + j));
            b = load_power(load_scale(from, place, position, head, d + j + 1));
        }
        x[j] = mul_rn(f32_from_f16_low(pair), a);
        x[j + 1] = mul_rn(f32_from_f16_high(pair), b);
    }
}

/* Elements d..d+7 of four tokens as FP32, x[8*i..] of position[i]; zeros beyond the sequence and
 * from `dims` on (a multiple of 8). `type` is from->type, a constant where the caller knows it. WHY
 * a clamped address: four loads in flight, no branch around any. */
MXA_DEVICE void load_rows(const mxa_gpu_operand *from, int type, const load_place *place,
                          const int *position, int head, int d, int dims, float *x)
{
    mxa_u32x4 v[4];
    int last = place->used - 1, bf16 = type == MXA_GPU_BF16;
    if (last < 0 || position[0] > last || d >= dims) {
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = 0.0f;
        }
        return;
    }
    if (bf16 || type == MXA_GPU_F16) {
        mxa_global first = from->data + 2 * load_index(from, place, position[0], head, d);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            int at = position[i] < last ? position[i] : last;
            v[i] = dev_load_global_u32x4(first + 2 * (uint64_t)(at - position[0]) *
                                                     (uint64_t)from->stride_token);
        }
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            load_unpack(v[i], bf16, x + 8 * i);
        }
    } else {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            int at = position[i] < last ? position[i] : last;
            if (type == MXA_GPU_F32) {
                mxa_global word = from->data + 4 * load_index(from, place, at, head, d);
                mxa_u32x4 a = dev_load_global_u32x4(word), b = dev_load_global_u32x4(word + 16);
                uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
                MXA_UNROLL
                for (int j = 0; j < 8; j++) {
                    x[8 * i + j] = f32_bits(w[j]);
                }
            } else {
                load_fp8(from, place, at, head, d, x + 8 * i);
            }
        }
    }
    if (position[3] > last) {
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = position[i / 8] > last ? 0.0f : x[i];
        }
    }
}

#endif
