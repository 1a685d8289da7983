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

/* Turns the thread's codes of four tokens, `each` words (a constant) of each, which have a word in
 * the tile. `order`: which of the four comes first, second.. in that word. */
MXA_DEVICE void turn(mxa_shared tile, int words, int d, int word, uint32_t order, int each,
                     const uint32_t *x)
{
    MXA_UNROLL
    for (int w = 0; w < each; w++) {
        uint32_t four[4] = {x[w], x[each + w], x[2 * each + w], x[3 * each + w]}, y[4];
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
