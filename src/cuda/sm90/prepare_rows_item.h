/* prepare_rows_item.h: an item of q or k (prepare_all.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_ROWS_ITEM_H
#define MXA_CUDA_SM90_PREPARE_ROWS_ITEM_H

#include "cuda/sm90/prepare_item.h"

/* The larger half of a packed pair of magnitudes, as FP32 bits; NaN is above infinity. */
MXA_DEVICE uint32_t pair_largest(uint32_t pair)
{
    pair &= 0x7FFF7FFFu;
    return max_u32(pair << 16, pair & 0xFFFF0000u);
}

/* Largest magnitude: of the lane's elements (square), or of its own token. */
MXA_DEVICE uint32_t own_largest(int square, const uint32_t *raw)
{
    const int lane = dev_thread_again() & 31;
    uint32_t most[4];
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        const uint32_t *w = raw + 4 * t;
        most[t] =
            max_abs_nan_bf16x2(max_abs_nan_bf16x2(w[0], w[1]), max_abs_nan_bf16x2(w[2], w[3]));
    }
    if (square) {
        return pair_largest(max_abs_nan_bf16x2(max_abs_nan_bf16x2(most[0], most[1]),
                                               max_abs_nan_bf16x2(most[2], most[3])));
    }
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        most[t] = pair_largest(most[t]);
    }
    /* Lane bit 0 picks an even or odd token while it is compared, then bit 1 likewise. */
    const int odd = lane & 1, high = lane & 2;
    uint32_t a = max_u32(odd ? most[1] : most[0], shuffle_xor_u32(odd ? most[0] : most[1], 1));
    uint32_t b = max_u32(odd ? most[3] : most[2], shuffle_xor_u32(odd ? most[2] : most[3], 1));
    return max_u32(high ? b : a, shuffle_xor_u32(high ? a : b, 2));
}

/* A block of q or k as it is quantized: `exponent` and `inverse` are of the lane's own token or of
 * the square block. Returns the block's largest magnitude after rounding. */
MXA_DEVICE uint32_t block_top(int square, int rounding, const uint32_t *raw, int *exponent,
                              float *inverse)
{
    uint32_t most = own_largest(square, raw);
    *exponent = block_scale(square ? warp_max_u32(most) : most, rounding, inverse, &most);
    return warp_max_u32(most);
}

/* 2^(from - to) in both halves. WHY at most 2^15: only zeros have a scale that far above the
 * group's, and they must stay zeros. */
MXA_DEVICE uint32_t fold_factor(int from, int to)
{
    int shift = from - to;
    shift = shift < -126 ? -126 : shift > 15 ? 15 : shift;
    return f16x2_from_f32(f32_bits((uint32_t)(shift + 127) << 23));
}

/* Token t's 8 elements folded, in FP16. WHY through FP16: a code times a power of two is exact
 * there, or so small that E4M3 rounds it to 0 either way. */
MXA_DEVICE void fold_token(const uint32_t *raw, int t, float inverse, uint32_t factor, uint32_t *h)
{
    float x[8];
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        widen_pair(MXA_GPU_BF16, raw, t, i, x + 2 * i);
    }
    block_round(x, inverse, h);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        h[i] = mul_f16x2(h[i], factor);
    }
}

/* The block's rows of the copy of q or k, and the squared norms of its part of them, token
 * lane_token(lane % 4)'s in this lane. WHY FP16 sums of four: payloads are at most 15, and the norm
 * only decides which kernel takes the tile. */
MXA_DEVICE float store_rows(int dims, const uint32_t *raw, int exponent, float inverse, int to,
                            mxa_global at)
{
    const uint32_t own = fold_factor(exponent, to);
    const int lane = dev_thread_again() & 31, odd = lane & 1, high = lane & 2;
    float norm[4];
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        uint32_t h[4], sum = 0;
        fold_token(raw, t, f32_bits(of_token(bits_f32(inverse), t)), of_token(own, t), h);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            sum = fma_f16x2(h[i], h[i], sum);
        }
        norm[t] = add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
        dev_store_global_u32x2(at + (uint64_t)(((t & 1) + 8 * (t >> 1)) * dims),
                               e4m3x4_from_f16x2(h[0], h[1]), e4m3x4_from_f16x2(h[2], h[3]));
    }
    float a = add_rn(odd ? norm[1] : norm[0], shuffle_xor_f32(odd ? norm[0] : norm[1], 1));
    float b = add_rn(odd ? norm[3] : norm[2], shuffle_xor_f32(odd ? norm[2] : norm[3], 1));
    return add_rn(high ? b : a, shuffle_xor_f32(high ? a : b, 2));
}

/* A block of a group that is not finite. */
MXA_DEVICE void store_not_finite(int dims, mxa_global at)
{
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        dev_store_global_u32x2(at + (uint64_t)(((t & 1) + 8 * (t >> 1)) * dims), 0x7F7F7F7Fu,
                               0x7F7F7F7Fu);
    }
}

/* Both blocks of q or k, and the sequence of each of the item's groups. */
MXA_DEVICE void rows_load(const mxa_prepare_params *p, mxa_shared shared, mxa_shared at, int dims,
                          int head, int item, uint32_t *raw)
{
    const int type = MXA_GPU_BF16;
    const int is_first = (dev_thread_again() & 31) == 0 && block_column(dims) == 0;
    const load_place item_place = place_load(at);
    const int full = item_place.used - item_place.position >= 128;
    if (full) {
        load_full(&p->from, type, dims, &item_place, head, raw);
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int g = block_group(i, dims);
        load_place place = item_place;
        place.position += 32 * g;
        if (!full) {
            load_find(&p->batch, p->is_k_side, 128 * item + 32 * g, &place);
            place.used = 4 * item + g < p->groups ? place.used : 0;
            load_part(&p->from, type, dims, &place, head, raw + 16 * i);
            MXA_UNROLL
            for (int n = 0; n < 4 * words_of(type); n++) {
                const int token = place.position + lane_token(n / words_of(type));
                raw[16 * i + n] = token < place.used ? raw[16 * i + n] : 0;
            }
        }
        if (is_first) {
            dev_store_shared_u32(shared + AT_SEQUENCE + 4 * (uint32_t)g, (uint32_t)place.sequence);
        }
    }
}

/* q and k. place: of the item's first token. */
MXA_DEVICE void rows_item(const mxa_prepare_params *p, mxa_shared shared, mxa_shared place,
                          int dims, int head, int item)
{
    const int columns = dims / 32, lane = dev_thread_again() & 31;
    uint32_t raw[16 * EACH];
    int exponent[EACH];
    float inverse[EACH];
    rows_load(p, shared, place, dims, head, item, raw);
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        forget(MXA_GPU_BF16, raw + 16 * i); /* one block after the other */
        const uint32_t top = block_top(p->from.block == MXA_GPU_SQUARE, p->from.rounding,
                                       raw + 16 * i, &exponent[i], &inverse[i]);
        const int block = block_group(i, dims) * columns + block_column(dims);
        if (lane == 0) {
            dev_store_shared_u32(shared + AT_TOPS + 4 * (uint32_t)block, top);
        }
    }
    cta_sync();
    mxa_global at = p->payload + (uint64_t)((head * p->rows + 128 * (int64_t)item +
                                             32 * block_group(0, dims) + lane_token(0)) *
                                                dims +
                                            lane_dim(dims));
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int g = block_group(i, dims), block = g * columns + block_column(dims);
        const uint32_t top = group_top(shared, dims, g);
        forget(MXA_GPU_BF16, raw + 16 * i);
        if (4 * item + g < p->groups) {
            float norm = 0.0f;
            if (top < NOT_FINITE) {
                norm = store_rows(dims, raw + 16 * i, exponent[i], inverse[i],
                                  fold_exponent(top, 0), at);
            } else {
                store_not_finite(dims, at);
            }
            dev_store_shared_f32(shared + AT_TILE + 4 * (uint32_t)(32 * block + lane), norm);
        }
        at += (uint64_t)(64 * dims);
    }
    cta_sync();
    /* A warp for each group: its largest norm, and its scale. */
    const int g = dev_thread_again() / 32, group = 4 * item + g;
    if (g >= 4 || group >= p->groups) {
        return;
    }
    float norm = 0.0f;
    MXA_UNROLL
    for (int c = 0; c < columns; c++) {
        norm = add_rn(norm, dev_load_shared_f32(shared + AT_TILE +
                                                4 * (uint32_t)(32 * (g * columns + c) + lane)));
    }
    const uint32_t most = warp_max_u32(bits_f32(norm)), top = group_top(shared, dims, g);
    if (lane == 0) {
        const int finite = top < NOT_FINITE;
        const uint32_t power = (uint32_t)(fold_exponent(top, 0) + 127) << 23;
        const uint64_t pair =
            (uint64_t)dev_load_shared_u32(shared + AT_SEQUENCE + 4 * (uint32_t)g) *
                (uint64_t)p->heads +
            (uint64_t)head;
        dev_store_global_u32(p->scale +
                                 16 * (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group),
                             finite ? power : 0x7FC00000u);
        dev_max_global_u32(p->norm + 4 * pair,
                           finite ? bits_f32(mul_rn(sqrt_rn(f32_bits(most)), f32_bits(power)))
                                  : 0x7FC00000u);
    }
}

#endif
