/* prepare_item.h: an item of prepare_all.cu, 128 tokens of one head: which lane has what, and its
 * loads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_ITEM_H
#define MXA_CUDA_SM90_PREPARE_ITEM_H

#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/sm90/prepare_fold.h"

/* What an item is of. */
enum { ITEM_SUMS, ITEM_VALUES, ITEM_Q, ITEM_K, ITEM_NONE };

enum {
    EACH = 2,                   /* blocks of a warp */
    AT_ITEM = 0,                /* kind, head and number; load_place of its first token */
    AT_ARRIVED = 48,            /* how many items of its pair came before */
    AT_SEQUENCE = 64,           /* of each group, q and k */
    AT_SCALES = 80,             /* of each group, v */
    AT_TOPS = 96,               /* of each block: its largest magnitude */
    AT_TILE = AT_TOPS + 4 * 32, /* norms of blocks; sums; v's tile */
    SHARED_BYTES = AT_TILE + 4 * (33 * 256 + 16)
};

MXA_STATIC_ASSERT(SHARED_BYTES == 224 + 4 * (33 * 256 + 16), "device.c gives it this much");

/* A place in 32 bytes of shared memory, behind a cta_sync. */
MXA_DEVICE void place_store(mxa_shared at, const load_place *place)
{
    mxa_u32x4 a = {(uint32_t)place->sequence, (uint32_t)place->position, (uint32_t)place->outer,
                   (uint32_t)place->first};
    mxa_u32x4 b = {(uint32_t)place->used, (uint32_t)place->token, (uint32_t)place->block,
                   (uint32_t)place->tiled_row};
    dev_store_shared_u32x4(at, a);
    dev_store_shared_u32x4(at + 16, b);
}

MXA_DEVICE load_place place_load(mxa_shared at)
{
    const mxa_u32x4 a = dev_load_shared_u32x4(at), b = dev_load_shared_u32x4(at + 16);
    const load_place place = {(int)a.x, (int)a.y, (int)a.z, (int)a.w,
                              (int)b.x, (int)b.y, (int)b.z, (int)b.w};
    return place;
}

/* Where a warp's block i lies: group of 32 tokens, column of 32 dims. */
MXA_DEVICE int block_group(int i, int dims)
{
    return dev_thread_again() / dims + 2 * i;
}

MXA_DEVICE int block_column(int dims)
{
    return dev_thread_again() / 32 % (dims / 32);
}

/* Of a group's 32 tokens, token t of this lane's four. */
MXA_DEVICE int lane_token(int t)
{
    const int q = (dev_thread_again() & 31) / 4;
    return 16 * (q >> 2) + 2 * (q & 3) + (t & 1) + 8 * (t >> 1);
}

/* The lane's first dim. */
MXA_DEVICE int lane_dim(int dims)
{
    return 32 * block_column(dims) + 8 * (dev_thread_again() & 3);
}

MXA_DEVICE int words_of(int type)
{
    return type == MXA_GPU_BF16 ? 4 : 2;
}

MXA_DEVICE void load_words(int type, mxa_global at, uint32_t *raw)
{
    if (type == MXA_GPU_BF16) {
        mxa_u32x4 v = dev_load_global_u32x4(at);
        raw[0] = v.x;
        raw[1] = v.y;
        raw[2] = v.z;
        raw[3] = v.w;
    } else {
        mxa_u32x2 v = dev_load_global_u32x2(at);
        raw[0] = v.x;
        raw[1] = v.y;
    }
}

/* Blocks of an item that lies in one sequence, all its tokens used. */
MXA_DEVICE void load_full(const mxa_gpu_operand *from, int type, int dims, const load_place *place,
                          int head, uint32_t *raw)
{
    const int words = words_of(type), bytes = type == MXA_GPU_BF16 ? 2 : 1;
    const int token = place->position + 32 * block_group(0, dims) + lane_token(0);
    const uint64_t step = (uint64_t)(bytes * from->stride_token);
    mxa_global at =
        from->data + (uint64_t)bytes * load_index(from, place, token, head, lane_dim(dims));
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        load_words(type, at, raw + 16 * i);
        load_words(type, at + step, raw + 16 * i + words);
        load_words(type, at + 8 * step, raw + 16 * i + 2 * words);
        load_words(type, at + 9 * step, raw + 16 * i + 3 * words);
        at += 64 * step;
    }
}

/* One block, `place` its first token, the last one used standing for those beyond; zeros where none
 * is. WHY a clamped address: all loads are in flight before one is looked at. */
MXA_DEVICE void load_part(const mxa_gpu_operand *from, int type, int dims, const load_place *place,
                          int head, uint32_t *raw)
{
    const int words = words_of(type), bytes = type == MXA_GPU_BF16 ? 2 : 1;
    const int left = place->used - place->position;
    if (left <= 0) {
        MXA_UNROLL
        for (int i = 0; i < 4 * words; i++) {
            raw[i] = 0;
        }
        return;
    }
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        const int token = lane_token(t) < left ? lane_token(t) : left - 1;
        load_words(type,
                   from->data + (uint64_t)bytes * load_index(from, place, place->position + token,
                                                             head, lane_dim(dims)),
                   raw + words * t);
    }
}

/* E4M3: the scale byte of this lane's own token, which is token lane % 4 of its four; of a square
 * block all have one. */
MXA_DEVICE uint32_t load_own_scale(const mxa_gpu_operand *from, const load_place *place, int head,
                                   int d)
{
    const int left = place->used - place->position, token = lane_token(dev_thread_again() & 3);
    if (left <= 0) {
        return 127;
    }
    return load_scale(from, place, place->position + (token < left ? token : left - 1), head, d);
}

/* What token t's lane has; of a square block every lane has the same. */
MXA_DEVICE uint32_t of_token(uint32_t own, int t)
{
    return (uint32_t)shuffle_i32((int)own, (dev_thread_again() & 28) + t);
}

/* Keeps the compiler from keeping what was made of a block: it is widened again. */
MXA_DEVICE void forget(int type, uint32_t *raw)
{
    MXA_UNROLL
    for (int i = 0; i < 4 * words_of(type); i++) {
        hold_u32(&raw[i]);
    }
}

/* Two elements as FP32. */
MXA_DEVICE void widen_pair(int type, const uint32_t *raw, int t, int pair, float *x)
{
    if (type == MXA_GPU_BF16) {
        const uint32_t w = raw[4 * t + pair];
        x[0] = f32_bits(w << 16);
        x[1] = f32_bits(w & 0xFFFF0000u);
    } else {
        const uint32_t w = f16x2_from_fp8x2(raw[2 * t + pair / 2] >> (16 * (pair & 1)), 0);
        x[0] = f32_from_f16_low(w);
        x[1] = f32_from_f16_high(w);
    }
}

/* Largest of the blocks of group g. */
MXA_DEVICE uint32_t group_top(mxa_shared shared, int dims, int g)
{
    uint32_t top = 0;
    MXA_UNROLL
    for (int c = 0; c < dims / 32; c++) {
        top = max_u32(top,
                      dev_load_shared_u32(shared + AT_TOPS + 4 * (uint32_t)(g * (dims / 32) + c)));
    }
    return top;
}

#endif
