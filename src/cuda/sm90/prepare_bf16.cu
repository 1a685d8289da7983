/* prepare_bf16.cu: Hopper's private copies of BF16 q, k and v, for head dims of 64, 128 and 256.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md. The bytes are
 * those of prepare.cu, which takes any operands.
 *
 * A CTA takes 128 tokens of a head, four groups of 32 (prepare_group.h). Values stay packed as they
 * were read and are widened whenever they are looked at: all of a lane's loads are in flight at
 * once. v comes first, as it stands (prepare_columns.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm90/prepare_bf16.h"

MXA_STATIC_ASSERT(AT_TILE == 80, "device.c gives it this much, the tile, and the sums");

/* The larger half of a packed pair of magnitudes, as FP32 bits; NaN is above infinity. */
MXA_DEVICE uint32_t pair_largest(uint32_t pair)
{
    pair &= 0x7FFF7FFFu;
    return max_u32(pair << 16, pair & 0xFFFF0000u);
}

/* Largest magnitude of the lane's values. */
MXA_DEVICE uint32_t lane_largest(group_shape s, const uint32_t *raw)
{
    uint32_t most[4] = {0, 0, 0, 0};
    MXA_UNROLL
    for (int i = 0; i < 4 * group_lanes(s); i++) {
        most[i % 4] = max_abs_nan_bf16x2(most[i % 4], raw[i]);
    }
    return pair_largest(max_abs_nan_bf16x2(max_abs_nan_bf16x2(most[0], most[1]),
                                           max_abs_nan_bf16x2(most[2], most[3])));
}

/* Of the lane's square block, 32 tokens by 32 dims. */
MXA_DEVICE uint32_t square_largest(group_shape s, const uint32_t *raw)
{
    uint32_t x = lane_largest(s, raw);
    x = max_u32(x, shuffle_xor_u32(x, 1));
    x = max_u32(x, shuffle_xor_u32(x, 2));
    MXA_UNROLL
    for (int mask = group_lanes(s); mask < 32; mask <<= 1) {
        x = max_u32(x, shuffle_xor_u32(x, mask));
    }
    return x;
}

/* Of four loads' row blocks, 32 dims of a token: that of token lane % 4. */
MXA_DEVICE uint32_t row_largest(const uint32_t *raw)
{
    const int odd = group_lane() & 1, high = group_lane() & 2;
    uint32_t most[4];
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        const uint32_t *w = raw + 4 * t;
        most[t] = pair_largest(
            max_abs_nan_bf16x2(max_abs_nan_bf16x2(w[0], w[1]), max_abs_nan_bf16x2(w[2], w[3])));
    }
    /* Lane bit 0 picks an even or odd token while it is compared, then bit 1 likewise. */
    const uint32_t a =
        max_u32(odd ? most[1] : most[0], shuffle_xor_u32(odd ? most[0] : most[1], 1));
    const uint32_t b =
        max_u32(odd ? most[3] : most[2], shuffle_xor_u32(odd ? most[2] : most[3], 1));
    return max_u32(high ? b : a, shuffle_xor_u32(high ? a : b, 2));
}

/* What lane t of the four that share a row block has. */
MXA_DEVICE uint32_t of_token(uint32_t own, int t)
{
    return (uint32_t)shuffle_i32((int)own, (group_lane() & 28) + t);
}

/* Exponents of the lane's blocks and factors onto E4M3's range: of its square block, or, of each
 * four tokens, of token lane % 4. Returns the group's largest magnitude after rounding. */
MXA_DEVICE uint32_t blocks_scale(group_shape s, mxa_shared shared, int square, int rounding,
                                 const uint32_t *raw, int *exponent, float *inverse)
{
    uint32_t top = 0;
    if (square) {
        exponent[0] = block_scale(square_largest(s, raw), rounding, inverse, &top);
    } else {
        MXA_UNROLL
        for (int k = 0; k < group_lanes(s) / 4; k++) {
            uint32_t most;
            exponent[k] = block_scale(row_largest(raw + 16 * k), rounding, &inverse[k], &most);
            top = max_u32(top, most);
        }
    }
    return group_largest(s, shared, warp_max_u32(top));
}

/* A power of two as BF16 in both halves: a product with it is exact, but for what E4M3 holds as 0.
 */
MXA_DEVICE uint32_t both_halves(float power)
{
    return bits_f32(power) | bits_f32(power) >> 16;
}

/* A token's 8 elements folded, in FP16; inverse: a BF16 factor in both halves. WHY through FP16: a
 * code times a power of two is exact there, or so small that E4M3 rounds it to 0 either way. */
MXA_DEVICE void token_fold(const uint32_t *raw, uint32_t inverse, uint32_t factor, uint32_t *h)
{
    MXA_UNROLL
    for (int n = 0; n < 4; n += 2) {
        float x[4];
        widen_pair(mul_bf16x2(raw[n], inverse), x);
        widen_pair(mul_bf16x2(raw[n + 1], inverse), x + 2);
        codes_widen(e4m3x4_from_f32(x[0], x[1], x[2], x[3]), factor, h + n);
    }
}

/* The group's rows, and the largest squared norm of one. WHY FP16 sums of four: payloads are at
 * most 15, and the norm only decides which kernel takes the tile. */
MXA_DEVICE uint32_t rows_fold(group_shape s, mxa_shared shared, int square, uint32_t *raw,
                              const int *exponent, const float *inverse, int to, mxa_global at)
{
    const int loads = group_lanes(s);
    float norm[8], sums[BF16_LOADS / 8] = {0, 0};
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        const int k = square ? 0 : i / 4;
        uint32_t h[4], sum = 0, factor = fold_factor(exponent[k], to), by = both_halves(inverse[k]);
        if (!square) {
            factor = of_token(factor, i % 4);
            by = of_token(by, i % 4);
        }
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            hold_u32(&raw[4 * i + n]);
        }
        token_fold(raw + 4 * i, by, factor, h);
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            sum = fma_f16x2(h[n], h[n], sum);
        }
        norm[i % 8] = add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
        dev_store_global_u32x2(at + (uint64_t)(group_step(s, 0, i) * s.dims),
                               e4m3x4_from_f16x2(h[0], h[1]), e4m3x4_from_f16x2(h[2], h[3]));
        if (i % 8 == 7) {
            sums[i / 8] = row_sum(s, norm);
        }
    }
    return rows_largest(s, shared, sums, loads / 8);
}

/* A group of q or k. */
MXA_DEVICE void rows_group(const mxa_prepare_params *p, mxa_shared shared, group_shape s,
                           int square, int head, int group)
{
    uint32_t raw[BF16_WORDS], most = 0;
    int exponent[BF16_QUADS];
    float inverse[BF16_QUADS];
    prepare_group g;
    group_find(p, group, group_number(s), &g);
    group_load(&p->from, &g, s, 0, 0, head, raw);
    const uint32_t top = blocks_scale(s, shared, square, p->from.rounding, raw, exponent, inverse);
    const int to = fold_exponent(top, 0), finite = top < NOT_FINITE;
    const mxa_global at = rows_at(p, s.dims, head, group);
    if (finite) {
        most = rows_fold(s, shared, square, raw, exponent, inverse, to, rows_of_lane(s, at));
    } else {
        rows_not_finite(s, at);
    }
    rows_note(p, shared, &g, s, head, group, to, finite, most);
}

/* 128 tokens of v. */
MXA_DEVICE void values_item(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    const int group = 4 * item + group_number(s);
    uint32_t raw[BF16_WORDS];
    prepare_group g;
    group_find(p, group, group_number(s), &g);
    group_load(&p->from, &g, s, 1, 0, head, raw);
    const uint32_t top = group_largest(s, shared, warp_max_u32(lane_largest(s, raw)));
    values_note(p, shared, &g, s, head, group, top);
    if (top < NOT_FINITE) {
        values_fold(shared, s, 0, &g, raw, 0, inverse_power(fold_exponent(top, 1)));
    } else {
        values_not_finite(shared, s);
    }
    columns_end(all, shared, s, head, item);
}

/* Blocks are all square, or any: an instance of its own has room for more warps. */
MXA_DEVICE void prepare_bf16(const mxa_prepare_all_params *all, group_shape s, int all_square)
{
    const prepare_piece piece = piece_find(all);
    const mxa_prepare_params *p = piece.p;
    const int group = group_of_warp(s, piece.item);
    grid_dependency_launch();
    if (all->v.batch.status && dev_load_global_u32(all->v.batch.status)) {
        return;
    }
    if (p == &all->v) {
        values_item(all, dev_shared(), s, piece.head, piece.item);
        return;
    }
    if (group >= p->groups) {
        rows_absent(dev_shared(), s);
    } else if (all_square || p->from.block == MXA_GPU_SQUARE) {
        rows_group(p, dev_shared(), s, 1, piece.head, group);
    } else {
        rows_group(p, dev_shared(), s, 0, piece.head, group);
    }
    cta_sync();
    norms_end(p, dev_shared());
}

#define PREPARE_BF16(name, dims, halves, all_square, ctas)                                         \
    MXA_KERNEL_MANY(name, 128 * (halves), ctas, mxa_prepare_all_params, parameters)                \
    {                                                                                              \
        const group_shape shape = {dims, 8, halves};                                               \
        prepare_bf16(&parameters, shape, all_square);                                              \
    }

PREPARE_BF16(mxa_sm90_prepare_bf16_square_d64, 64, 1, 1, 10)
PREPARE_BF16(mxa_sm90_prepare_bf16_square_d128, 128, 1, 1, 6)
PREPARE_BF16(mxa_sm90_prepare_bf16_square_d256, 256, 2, 1, 3)
PREPARE_BF16(mxa_sm90_prepare_bf16_d64, 64, 1, 0, 8)
PREPARE_BF16(mxa_sm90_prepare_bf16_d128, 128, 1, 0, 5)
PREPARE_BF16(mxa_sm90_prepare_bf16_d256, 256, 2, 0, 2)
