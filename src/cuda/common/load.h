/* load.h: finding a row's sequence, and reading a chunk of a caller's tensor as FP32.
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
        int sequence = row / padded;
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

/* Scale byte of (position, head, d): docs/format.md, scale layouts. */
MXA_DEVICE uint32_t load_scale(const mxa_gpu_operand *from, const load_place *place, int position,
                               int head, int d)
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
    return dev_load_global_u8(from->scales + (uint64_t)offset);
}

/* 2^(byte - 127), also for byte 0; 0xFF gives NaN. */
MXA_DEVICE float load_power(uint32_t byte)
{
    return f32_bits(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

/* 32 elements from (position, head, d0) on, as FP32: payload times scale. */
MXA_DEVICE void load_chunk(const mxa_gpu_operand *from, const load_place *place, int position,
                           int head, int d0, float *x)
{
    int64_t at = place->outer * from->stride_outer +
                 (place->first + (int64_t)position) * from->stride_token +
                 head * from->stride_head + d0;
    if (from->type == MXA_GPU_F32) {
        MXA_UNROLL
        for (int i = 0; i < 32; i += 4) {
            mxa_u32x4 v = dev_load_global_u32x4(from->data + 4 * (uint64_t)(at + i));
            x[i] = f32_bits(v.x);
            x[i + 1] = f32_bits(v.y);
            x[i + 2] = f32_bits(v.z);
            x[i + 3] = f32_bits(v.w);
        }
    } else if (from->type == MXA_GPU_BF16 || from->type == MXA_GPU_F16) {
        int bf16 = from->type == MXA_GPU_BF16;
        MXA_UNROLL
        for (int i = 0; i < 32; i += 8) {
            mxa_u32x4 v = dev_load_global_u32x4(from->data + 2 * (uint64_t)(at + i));
            uint32_t w[4] = {v.x, v.y, v.z, v.w};
            MXA_UNROLL
            for (int j = 0; j < 4; j++) {
                x[i + 2 * j] = bf16 ? f32_bits(w[j] << 16) : f32_from_f16_low(w[j]);
                x[i + 2 * j + 1] = bf16 ? f32_bits(w[j] & 0xFFFF0000u) : f32_from_f16_high(w[j]);
            }
        }
    } else {
        int column_scales = from->scale_axis && from->block == MXA_GPU_COLUMN;
        float scale = load_power(load_scale(from, place, position, head, d0));
        MXA_UNROLL
        for (int i = 0; i < 32; i += 16) {
            mxa_u32x4 v = dev_load_global_u32x4(from->data + (uint64_t)(at + i));
            uint32_t w[4] = {v.x, v.y, v.z, v.w};
            MXA_UNROLL
            for (int j = 0; j < 16; j += 2) {
                uint32_t pair =
                    f16x2_from_fp8x2(w[j / 4] >> (8 * (j % 4)), from->type == MXA_GPU_E5M2);
                float a = scale, b = scale;
                if (column_scales) {
                    a = load_power(load_scale(from, place, position, head, d0 + i + j));
                    b = load_power(load_scale(from, place, position, head, d0 + i + j + 1));
                }
                x[i + j] = mul_rn(f32_from_f16_low(pair), a);
                x[i + j + 1] = mul_rn(f32_from_f16_high(pair), b);
            }
        }
    }
}

/* One element of a wide tensor as FP32. */
MXA_DEVICE float load_element(const mxa_gpu_operand *from, const load_place *place, int position,
                              int head, int d)
{
    uint64_t at = (uint64_t)(place->outer * from->stride_outer +
                             (place->first + (int64_t)position) * from->stride_token +
                             head * from->stride_head + d);
    if (from->type == MXA_GPU_F32) {
        return dev_load_global_f32(from->data + 4 * at);
    }
    uint32_t bits = dev_load_global_u16(from->data + 2 * at);
    return from->type == MXA_GPU_BF16 ? f32_bits(bits << 16) : f32_from_f16_low(bits);
}

#endif
