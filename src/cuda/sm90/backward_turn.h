/* backward_turn.h: codes of E4M3 copies moved to another exponent, and turned over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_TURN_H
#define MXA_CUDA_SM90_BACKWARD_TURN_H

#include "cuda/sm90/backward_place.h"

/* Four E4M3 codes times 2^exponent (at most COPY_MOST_LOG2), rounded again. */
MXA_DEVICE uint32_t shift_codes(uint32_t codes, uint32_t factor)
{
    return e4m3x4_from_f16x2(mul_f16x2(f16x2_from_fp8x2(codes, 0), factor),
                             mul_f16x2(f16x2_from_fp8x2(codes >> 16, 0), factor));
}

/* 2^exponent in FP16, 0 below its range. */
MXA_DEVICE uint32_t shift_factor(int exponent)
{
    return f16x2_from_f32(backward_power(exponent < -30 ? -1000 : exponent));
}

/* Eight codes of each of four rows of a private copy, `stride` bytes apart, zeros from row `end`
 * on. */
MXA_DEVICE void read_codes(mxa_global at, int stride, const int *row, int end, uint32_t *x)
{
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        mxa_u32x2 v = {0, 0};
        if (row[t] < end) {
            v = dev_load_global_u32x2(at + (uint64_t)((int64_t)row[t] * stride));
        }
        x[2 * t] = v.x;
        x[2 * t + 1] = v.y;
    }
}

/* Turns the thread's eight codes of four tokens, which have a word in the tile. `order`: which of
 * the four comes first, second.. in that word. */
MXA_DEVICE void turn(mxa_shared tile, int words, int d, int word, uint32_t order, const uint32_t *x)
{
    MXA_UNROLL
    for (int w = 0; w < 2; w++) {
        uint32_t four[4] = {x[w], x[2 + w], x[4 + w], x[6 + w]}, y[4];
        backward_turn4(four, y);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            dev_store_shared_u32(backward_word(tile, words, d + 4 * w + i, word),
                                 permute_bytes(y[i], y[i], order));
        }
    }
}

/* The turned tile to memory. */
MXA_DEVICE void write_turned(mxa_shared tile, int words, int head_dim, mxa_global to)
{
    for (int unit = dev_thread(); unit < head_dim * words / 4; unit += dev_threads()) {
        dev_store_global_u32x4(to + 16 * (uint64_t)unit,
                               backward_unit(tile, words, head_dim, unit));
    }
}

#endif
