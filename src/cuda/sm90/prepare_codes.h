/* prepare_codes.h: a warp's group of 32 tokens of E4M3 codes (prepare_group.h): scales, largest
 * magnitude.
 *
 * Codes stay packed and are widened to FP16 where they are looked at: a code times a power of two
 * is exact there, or so small that E4M3 rounds it to 0 either way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_CODES_H
#define MXA_CUDA_SM90_PREPARE_CODES_H

#include "cuda/sm90/prepare_group.h"

enum {
    CODES_LOADS = 8,              /* of a lane at most */
    CODES_WORDS = 4 * CODES_LOADS /* of them */
};

/* The scale byte of each of the lane's loads, or, of square blocks, one for all. */
MXA_DEVICE void codes_scales(const mxa_gpu_operand *from, const prepare_group *g, group_shape s,
                             int is_v, int square, int head, uint32_t *scale)
{
    const int count = square ? 1 : group_lanes(s), first = group_token(s, is_v);
    if (g->left <= 0) {
        MXA_UNROLL
        for (int i = 0; i < count; i++) {
            scale[i] = 127;
        }
        return;
    }
    const uint64_t step = square                                ? 0
                          : from->scale_layout == MXA_GPU_TILED ? 16
                                                                : (uint64_t)from->scale_row;
    const mxa_global at = load_scale_at(from, &g->place, g->place.position, head, group_dim(s));
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        const int token = first + group_step(s, is_v, i);
        scale[i] =
            dev_load_global_u8(at + (uint64_t)(token < g->left ? token : g->left - 1) * step);
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
MXA_DEVICE uint32_t codes_top(group_shape s, mxa_shared shared, int square, const uint32_t *raw,
                              const uint32_t *scale)
{
    uint32_t top = 0;
    if (square) {
        top = codes_largest(raw, 4 * group_lanes(s), scale[0]);
    } else {
        MXA_UNROLL
        for (int i = 0; i < group_lanes(s); i++) {
            top = max_u32(top, codes_largest(raw + 4 * i, 4, scale[i]));
        }
    }
    return group_largest(s, shared, warp_max_u32(top));
}

#endif
