/* prepare_codes.h: a warp's group of 32 tokens of E4M3 codes, in registers: which lane has what,
 * its loads, its largest magnitude.
 *
 * A lane has 16 dims of dims/16 tokens, 16 bytes each; a load of the warp is whole lines of memory.
 * Codes stay packed and are widened to FP16 where they are looked at: a code times a power of two
 * is exact there, or so small that E4M3 rounds it to 0 either way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_CODES_H
#define MXA_CUDA_SM90_PREPARE_CODES_H

#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/sm90/prepare_fold.h"

enum {
    CODES_THREADS = 128,          /* four groups, an item */
    CODES_LOADS = 16,             /* at most, of a lane: dims / 16 */
    CODES_WORDS = 4 * CODES_LOADS /* of them */
};

/* A group: where its first token comes from, and how many tokens count from there on. */
typedef struct codes_group {
    load_place place;
    int left;
} codes_group;

MXA_DEVICE int codes_lane(void)
{
    return dev_thread() & 31;
}

/* Lanes that share a token, and loads of each. */
MXA_DEVICE int codes_loads(int dims)
{
    return dims / 16;
}

MXA_DEVICE int codes_dim(int dims)
{
    return 16 * (codes_lane() % codes_loads(dims));
}

/* Token of the lane's first load. q, k: the others follow, 512 / dims apart. v: four loads are the
 * tokens of a word of its copy, t + {0, 1, 8, 9}, t = 16*(quad/4) + 2*(quad%4). */
MXA_DEVICE int codes_token(int is_v, int dims)
{
    const int row = codes_lane() / codes_loads(dims);
    return is_v ? 16 * (row >> 2) + 2 * (row & 3) : row;
}

/* Of load i, from there. */
MXA_DEVICE int codes_step(int is_v, int dims, int i)
{
    const int quad = 512 / dims * (i / 4); /* a lane's first one is below 512 / dims */
    return is_v ? 16 * (quad >> 2) + 2 * (quad & 3) + (i & 1) + 8 * (i >> 1 & 1) : 512 / dims * i;
}

/* Group `group` of the private copy, number `number` of the item's four; the item's first token is
 * found for the whole CTA. */
MXA_DEVICE void codes_find(const mxa_prepare_params *p, int group, int number, codes_group *g)
{
    load_find(&p->batch, p->is_k_side, MXA_PREPARE_GROUP * (group - number), &g->place);
    g->place.position += MXA_PREPARE_GROUP * number;
    if (!p->is_k_side && g->place.position >= g->place.used) { /* another sequence, or none */
        load_find(&p->batch, p->is_k_side, MXA_PREPARE_GROUP * group, &g->place);
    }
    g->left = g->place.used - g->place.position;
}

/* 16 bytes of each token. */
MXA_DEVICE void codes_load_words(mxa_global at, uint32_t *raw)
{
    const mxa_u32x4 v = dev_load_global_u32x4(at);
    raw[0] = v.x;
    raw[1] = v.y;
    raw[2] = v.z;
    raw[3] = v.w;
}

/* Of a group that is not full: zeros for tokens that do not count. WHY a clamped address: all loads
 * are in flight before one is looked at. */
MXA_DEVICE void codes_load_part(int is_v, int dims, int left, mxa_global at, uint64_t step,
                                mxa_global scales, uint64_t scale_step, int scale_count,
                                uint32_t *raw, uint32_t *scale)
{
    const int loads = codes_loads(dims), first = codes_token(is_v, dims);
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        const int token = first + codes_step(is_v, dims, i), there = token < left;
        const uint64_t from = (uint64_t)(there ? token : left - 1);
        codes_load_words(at + from * step, raw + 4 * i);
        if (i < scale_count) {
            scale[i] = dev_load_global_u8(scales + from * scale_step);
        }
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            raw[4 * i + n] = there ? raw[4 * i + n] : 0;
        }
    }
}

/* The lane's codes, zeros for tokens that do not count, and the scale byte of each load, or, of
 * square blocks, one for all. */
MXA_DEVICE void codes_load(const mxa_gpu_operand *from, const codes_group *g, int is_v, int square,
                           int dims, int head, uint32_t *raw, uint32_t *scale)
{
    const int loads = codes_loads(dims), d = codes_dim(dims), count = square ? 1 : loads;
    if (g->left <= 0) {
        MXA_UNROLL
        for (int i = 0; i < 4 * loads; i++) {
            raw[i] = 0;
        }
        MXA_UNROLL
        for (int i = 0; i < count; i++) {
            scale[i] = 127;
        }
        return;
    }
    const uint64_t step = (uint64_t)from->stride_token;
    const uint64_t scale_step = square                                ? 0
                                : from->scale_layout == MXA_GPU_TILED ? 16
                                                                      : (uint64_t)from->scale_row;
    mxa_global at = from->data + load_index(from, &g->place, g->place.position, head, d);
    mxa_global scales = load_scale_at(from, &g->place, g->place.position, head, d);
    if (g->left < MXA_PREPARE_GROUP) {
        codes_load_part(is_v, dims, g->left, at, step, scales, scale_step, count, raw, scale);
        return;
    }
    at += (uint64_t)codes_token(is_v, dims) * step;
    scales += (uint64_t)codes_token(is_v, dims) * scale_step;
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        codes_load_words(at + (uint64_t)codes_step(is_v, dims, i) * step, raw + 4 * i);
    }
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        scale[i] = dev_load_global_u8(scales + (uint64_t)codes_step(is_v, dims, i) * scale_step);
    }
}

/* Largest code of `count` words, sign bits aside, as the high bytes of both halves. WHY as BF16:
 * codes order as the high bytes of halves do, and a NaN's byte is that of a NaN or above all
 * numbers. */
MXA_DEVICE uint32_t codes_largest_pair(const uint32_t *w, int count)
{
    uint32_t high = 0, low = 0;
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        high = max_abs_nan_bf16x2(high, w[i]);
        low = max_abs_nan_bf16x2(low, w[i] << 8);
    }
    return max_abs_nan_bf16x2(high, low);
}

/* Largest magnitude among them times 2^(scale - 127), as FP32 bits; above NOT_FINITE when one is
 * NaN. */
MXA_DEVICE uint32_t codes_largest(const uint32_t *w, int count, uint32_t scale)
{
    const uint32_t pair = codes_largest_pair(w, count) & 0x7F007F00u;
    const uint32_t code = max_u32(pair >> 24, pair >> 8 & 0x7F);
    const float x = f32_from_f16_low(f16x2_from_fp8x2(code, 0));
    return bits_f32(mul_rn(x, load_power(scale))) & 0x7FFFFFFFu;
}

/* Largest magnitude of the group, in every lane. */
MXA_DEVICE uint32_t codes_top(const uint32_t *raw, const uint32_t *scale, int square, int dims)
{
    uint32_t top = 0;
    if (square) {
        top = codes_largest(raw, 4 * codes_loads(dims), scale[0]);
    } else {
        MXA_UNROLL
        for (int i = 0; i < codes_loads(dims); i++) {
            top = max_u32(top, codes_largest(raw + 4 * i, 4, scale[i]));
        }
    }
    return warp_max_u32(top);
}

/* 2^(scale - 127 - to) in both halves. WHY at most 2^15: only zeros have a scale that far above the
 * group's, and they must stay zeros. */
MXA_DEVICE uint32_t codes_factor(uint32_t scale, int to)
{
    int shift = (int)scale - 127 - to;
    shift = shift < -126 ? -126 : shift > 15 ? 15 : shift;
    return f16x2_from_f32(f32_bits((uint32_t)(shift + 127) << 23));
}

/* Four codes times a factor, in FP16. */
MXA_DEVICE void codes_widen(uint32_t word, uint32_t factor, uint32_t *h)
{
    h[0] = mul_f16x2(f16x2_from_e4m3x2_low(word), factor);
    h[1] = mul_f16x2(f16x2_from_e4m3x2_high(word), factor);
}

#endif
