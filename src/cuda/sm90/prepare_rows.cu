/* prepare_rows.cu: Hopper's private copies of BF16 q and k that are quantized in square blocks, for
 * head dims of 128 and 256.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md. The bytes are
 * those of prepare.cu, which takes any operands.
 *
 * A warp takes a group of 32 tokens across the head dimension, a lane 16 bytes of each of its
 * tokens: loads are whole lines, the group's exponent is a maximum of the warp, and nothing waits
 * at a barrier. Values stay packed as they were read. Heads are the fastest: a page of memory is
 * read at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/cluster.h"
#include "cuda/sm90/prepare_codes.h"
#include "cuda/sm90/prepare_rows_item.h"

enum { GROUP_LOADS = 32 }; /* of a lane at most: dims / 8, as many as lanes share a token */

/* The lane's first dim, and its first token; the others follow, 256 / dims apart. */
MXA_DEVICE int group_dim(int dims)
{
    return 8 * (codes_lane() % (dims / 8));
}

MXA_DEVICE int group_token(int dims)
{
    return codes_lane() / (dims / 8);
}

/* The lane's values, zeros for tokens that do not count. WHY a clamped address: all loads are in
 * flight before one is looked at. */
MXA_DEVICE void group_load(const mxa_gpu_operand *from, const codes_group *g, int dims, int head,
                           uint32_t *raw)
{
    const int loads = dims / 8, each = 256 / dims, first = group_token(dims);
    if (g->left <= 0) {
        MXA_UNROLL
        for (int i = 0; i < 4 * loads; i++) {
            raw[i] = 0;
        }
        return;
    }
    const uint64_t step = 2 * (uint64_t)from->stride_token;
    mxa_global at =
        from->data + 2 * load_index(from, &g->place, g->place.position, head, group_dim(dims));
    if (g->left < MXA_PREPARE_GROUP) {
        MXA_UNROLL
        for (int i = 0; i < loads; i++) {
            const int token = first + each * i, there = token < g->left;
            codes_load_words(at + (uint64_t)(there ? token : g->left - 1) * step, raw + 4 * i);
            MXA_UNROLL
            for (int n = 0; n < 4; n++) {
                raw[4 * i + n] = there ? raw[4 * i + n] : 0;
            }
        }
        return;
    }
    at += (uint64_t)first * step;
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        codes_load_words(at + (uint64_t)(each * i) * step, raw + 4 * i);
    }
}

/* Largest magnitude of the lane's block of 32 tokens by 32 dims, as FP32 bits. */
MXA_DEVICE uint32_t group_block_largest(const uint32_t *raw, int dims)
{
    uint32_t most[4] = {0, 0, 0, 0};
    MXA_UNROLL
    for (int i = 0; i < dims / 2; i++) {
        most[i % 4] = max_abs_nan_bf16x2(most[i % 4], raw[i]);
    }
    uint32_t x = pair_largest(max_abs_nan_bf16x2(max_abs_nan_bf16x2(most[0], most[1]),
                                                 max_abs_nan_bf16x2(most[2], most[3])));
    x = max_u32(x, shuffle_xor_u32(x, 1));
    x = max_u32(x, shuffle_xor_u32(x, 2));
    MXA_UNROLL
    for (int mask = dims / 8; mask < 32; mask <<= 1) {
        x = max_u32(x, shuffle_xor_u32(x, mask));
    }
    return x;
}

/* Largest of eight tokens' sums; x: what this lane has of each, a token's lanes being `lanes`
 * neighbours. */
MXA_DEVICE float group_largest_sum(float *x, int lanes)
{
    MXA_UNROLL
    for (int step = 4; step >= 1; step >>= 1) {
        const int high = codes_lane() & step;
        MXA_UNROLL
        for (int n = 0; n < step; n++) {
            const float mine = high ? x[n + step] : x[n], theirs = high ? x[n] : x[n + step];
            x[n] = add_rn(mine, shuffle_xor_f32(theirs, step));
        }
    }
    MXA_UNROLL
    for (int mask = 8; mask < lanes; mask <<= 1) {
        x[0] = add_rn(x[0], shuffle_xor_f32(x[0], mask));
    }
    return x[0];
}

/* The group's rows, and the largest squared norm of one. WHY FP16 sums of four: payloads are at
 * most 15, and the norm only decides which kernel takes the tile. */
MXA_DEVICE uint32_t group_fold(int dims, uint32_t *raw, float inverse, uint32_t factor,
                               mxa_global at)
{
    uint32_t most = 0;
    float norm[8];
    MXA_UNROLL
    for (int i = 0; i < dims / 8; i++) {
        uint32_t h[4], sum = 0;
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            hold_u32(&raw[4 * i + n]);
        }
        fold_token(raw, i, inverse, factor, h);
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            sum = fma_f16x2(h[n], h[n], sum);
        }
        norm[i % 8] = add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
        dev_store_global_u32x2(at + (uint64_t)(256 * i), e4m3x4_from_f16x2(h[0], h[1]),
                               e4m3x4_from_f16x2(h[2], h[3]));
        if (i % 8 == 7) {
            most = max_u32(most, bits_f32(group_largest_sum(norm, dims / 8)));
        }
    }
    return warp_max_u32(most);
}

MXA_DEVICE void prepare_rows(const mxa_prepare_all_params *all, int dims)
{
    const int q_heads = all->q.heads, is_q = (int)dev_block_x() < q_heads;
    const mxa_prepare_params *p = is_q ? &all->q : &all->k;
    const int head = (int)dev_block_x() - (is_q ? 0 : q_heads);
    const int group = 4 * (65535 * (int)dev_block_z() + (int)dev_block_y()) + dev_thread() / 32;
    uint32_t raw[4 * GROUP_LOADS];
    codes_group g;
    float inverse;
    uint32_t most;
    grid_dependency_launch();
    if (group >= p->groups || (p->batch.status && dev_load_global_u32(p->batch.status))) {
        return;
    }
    codes_find(p, group, dev_thread() / 32, &g);
    group_load(&p->from, &g, dims, head, raw);
    const int exponent =
        block_scale(group_block_largest(raw, dims), p->from.rounding, &inverse, &most);
    const uint32_t top = warp_max_u32(most);
    const int to = fold_exponent(top, 0), finite = top < NOT_FINITE;
    const uint64_t number = (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group);
    const mxa_global at =
        p->payload + number * (uint64_t)(MXA_PREPARE_GROUP * dims) + 8 * (uint64_t)codes_lane();
    uint32_t norm = 0x7FC00000u, power = 0x7FC00000u;
    if (finite) {
        power = (uint32_t)(to + 127) << 23;
        norm = group_fold(dims, raw, inverse, fold_factor(exponent, to), at);
        norm = bits_f32(mul_rn(sqrt_rn(f32_bits(norm)), f32_bits(power)));
    } else {
        MXA_UNROLL
        for (int i = 0; i < dims / 8; i++) {
            dev_store_global_u32x2(at + (uint64_t)(256 * i), 0x7F7F7F7Fu, 0x7F7F7F7Fu);
        }
    }
    if (codes_lane() == 0) {
        const uint64_t pair = (uint64_t)(g.place.sequence * p->heads + head);
        dev_store_global_u32(p->scale + 16 * number, power);
        dev_max_global_u32(p->norm + 4 * pair, norm);
    }
    /* The kernel before makes nothing that this one reads, and is waited for at the end: who waits
     * for this kernel waits for both. */
    grid_dependency_wait();
}

#define PREPARE_ROWS(name, dims, ctas)                                                             \
    MXA_KERNEL_MANY(name, CODES_THREADS, ctas, mxa_prepare_all_params, parameters)                 \
    {                                                                                              \
        prepare_rows(&parameters, dims);                                                           \
    }

PREPARE_ROWS(mxa_sm90_prepare_rows_d128, 128, 5)
PREPARE_ROWS(mxa_sm90_prepare_rows_d256, 256, 2)
