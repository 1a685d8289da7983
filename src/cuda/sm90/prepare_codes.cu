/* prepare_codes.cu: Hopper's private copies of E4M3 q, k and v (row or square blocks), for head
 * dims of 64, 128 and 256.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md. The bytes are
 * those of prepare.cu, which takes any operands.
 *
 * A CTA takes 128 tokens of a head, four groups of 32 (prepare_group.h). v comes first, as it
 * stands (prepare_columns.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/turn.h"
#include "cuda/sm90/prepare_codes.h"
#include "cuda/sm90/prepare_columns.h"

MXA_STATIC_ASSERT(AT_TILE == 80, "device.c gives it this much, the tile, and the sums");

/* Rows of the copy of q or k, four codes a word, and each token's squared norm: of this lane's
 * codes. */
MXA_DEVICE void rows_fold(group_shape s, int square, uint32_t *raw, const uint32_t *scale, int to,
                          mxa_global at, float *norm)
{
    const int loads = group_lanes(s);
    const uint32_t common = square ? fold_factor((int)scale[0] - 127, to) : 0;
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        const uint32_t factor = square ? common : fold_factor((int)scale[i] - 127, to);
        uint32_t w[4], sum = 0;
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            uint32_t h[2];
            hold_u32(&raw[4 * i + n]);
            codes_widen(raw[4 * i + n], factor, h);
            sum = fma_f16x2(h[1], h[1], fma_f16x2(h[0], h[0], sum));
            w[n] = e4m3x4_from_f16x2(h[0], h[1]);
        }
        norm[i] = add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
        const mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
        dev_store_global_u32x4(at + (uint64_t)(group_step(s, 0, i) * s.dims), v);
    }
}

/* A group of q or k. WHY FP16 sums of eight: payloads are
 * at most 15, and the norm only decides which kernel takes the tile. */
MXA_DEVICE void rows_group(const mxa_prepare_params *p, mxa_shared shared, group_shape s,
                           int square, int head, int group)
{
    uint32_t raw[CODES_WORDS], scale[CODES_LOADS], most = 0;
    prepare_group g;
    group_find(p, group, group_number(s), &g);
    group_load(&p->from, &g, s, 0, 0, head, raw);
    codes_scales(&p->from, &g, s, 0, square, head, scale);
    const uint32_t top = codes_top(s, shared, square, raw, scale);
    const int exponent = fold_exponent(top, 0), finite = top < NOT_FINITE;
    const mxa_global at = rows_at(p, s.dims, head, group);
    if (finite) {
        float norms[CODES_LOADS];
        rows_fold(s, square, raw, scale, exponent, rows_of_lane(s, at), norms);
        norms[0] = row_sum(s, norms);
        most = rows_largest(s, shared, norms, 1);
    } else {
        rows_not_finite(s, at);
    }
    rows_note(p, shared, &g, s, head, group, exponent, finite, most);
}

/* A group of v into the tile, turned; the sums of the lane's columns, of values and of squares,
 * in units of the group's exponent. WHY FP16: a group's are at most 32 * 448, and they only decide
 * whether a column leans and what is taken from it. */
MXA_DEVICE void values_fold(mxa_shared shared, group_shape s, int square, int with_sums,
                            uint32_t *raw, const uint32_t *scale, int to)
{
    const int loads = group_lanes(s);
    const mxa_shared tile = tile_of_lane(shared, s), sums = sums_of_lane(shared, s);
    uint32_t factor[CODES_LOADS];
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        factor[i] = square && i ? factor[0] : fold_factor((int)scale[i] - 127, to);
    }
    MXA_UNROLL
    for (int n = 0; n < 4; n++) { /* dims 4n.. of 16 */
        uint32_t sum[2] = {0, 0}, squares[2] = {0, 0}, w[4][CODES_LOADS / 4];
        MXA_UNROLL
        for (int i = 0; i < loads; i++) {
            hold_u32(&raw[4 * i + n]); /* nothing of them before: registers */
        }
        MXA_UNROLL
        for (int i = 0; i < loads; i += 4) {
            uint32_t turned[4];
            MXA_UNROLL
            for (int t = 0; t < 4; t++) {
                uint32_t h[2];
                codes_widen(raw[4 * (i + t) + n], factor[i + t], h);
                MXA_UNROLL
                for (int m = 0; m < 2; m++) {
                    add_to_sums(h[m], &sum[m], &squares[m]);
                }
                turned[t] = e4m3x4_from_f16x2(h[0], h[1]);
            }
            turn_bytes(turned);
            MXA_UNROLL
            for (int m = 0; m < 4; m++) {
                w[m][i / 4] = turned[m];
            }
        }
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            tile_store(s, tile + 128 * (uint32_t)(4 * n + m), w[m]);
        }
        if (with_sums) {
            sums_of_pair(s, sums, 2 * n, sum[0], squares[0]);
            sums_of_pair(s, sums, 2 * n + 1, sum[1], squares[1]);
        }
    }
}

/* 128 tokens of v. */
MXA_DEVICE void values_item(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            int square, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    const int group = 4 * item + group_number(s);
    uint32_t raw[CODES_WORDS], scale[CODES_LOADS];
    prepare_group g;
    group_find(p, group, group_number(s), &g);
    group_load(&p->from, &g, s, 1, 0, head, raw);
    codes_scales(&p->from, &g, s, 1, square, head, scale);
    const uint32_t top = codes_top(s, shared, square, raw, scale);
    values_note(p, shared, &g, s, head, group, top);
    if (top < NOT_FINITE) {
        values_fold(shared, s, square, p->mean != 0, raw, scale, fold_exponent(top, 1));
    } else {
        values_not_finite(shared, s);
    }
    columns_end(all, shared, s, head, item);
}

/* Blocks are all square, or any: an instance of its own has room for more warps. */
MXA_DEVICE void prepare_codes(const mxa_prepare_all_params *all, group_shape s, int all_square)
{
    const prepare_piece piece = piece_find(all);
    const mxa_prepare_params *p = piece.p;
    const int square = all_square || p->from.block == MXA_GPU_SQUARE;
    const int group = group_of_warp(s, piece.item);
    grid_dependency_launch();
    if (all->v.batch.status && dev_load_global_u32(all->v.batch.status)) {
        return;
    }
    if (p == &all->v) {
        if (square) {
            values_item(all, dev_shared(), s, 1, piece.head, piece.item);
        } else {
            values_item(all, dev_shared(), s, 0, piece.head, piece.item);
        }
        return;
    }
    if (group >= p->groups) {
        rows_absent(dev_shared(), s);
    } else if (square) {
        rows_group(p, dev_shared(), s, 1, piece.head, group);
    } else {
        rows_group(p, dev_shared(), s, 0, piece.head, group);
    }
    cta_sync();
    norms_end(p, dev_shared());
}

#define PREPARE_CODES(name, dims, halves, all_square, ctas)                                        \
    MXA_KERNEL_MANY(name, 128 * (halves), ctas, mxa_prepare_all_params, parameters)                \
    {                                                                                              \
        const group_shape shape = {dims, 16, halves};                                              \
        prepare_codes(&parameters, shape, all_square);                                             \
    }

PREPARE_CODES(mxa_sm90_prepare_square_d64, 64, 1, 1, 9)
PREPARE_CODES(mxa_sm90_prepare_square_d128, 128, 1, 1, 9)
PREPARE_CODES(mxa_sm90_prepare_square_d256, 256, 2, 1, 5)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d64, 64, 1, 0, 8)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d128, 128, 1, 0, 5)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d256, 256, 2, 0, 2)
