/* prepare_values_item.h: an item of v's sums and one of its copy (prepare_all.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_VALUES_ITEM_H
#define MXA_CUDA_SM90_PREPARE_VALUES_ITEM_H

#include "cuda/sm90/prepare_item.h"
#include "cuda/sm90/prepare_values.h"

/* Number of this CTA's arrival at `counter`: what the CTA wrote is seen by later ones, and what
 * earlier ones wrote by this one. The whole CTA. */
MXA_DEVICE uint32_t arrive(mxa_shared shared, mxa_global counter)
{
    cta_sync();
    if (dev_thread_again() == 0) {
        dev_store_shared_u32(shared + AT_ARRIVED, dev_fetch_add_ordered_global_u32(counter, 1));
    }
    cta_sync();
    return dev_load_shared_u32(shared + AT_ARRIVED);
}

/* A chunk of 128 tokens of v: its (sequence, head), and that pair's sums in `partial`. */
typedef struct values_place {
    uint32_t pair, chunks, number; /* number of this chunk in its pair */
    int used;                      /* tokens of the pair */
} values_place;

/* By the place of its first token. WHY from shared memory, again where it is needed: registers. */
MXA_DEVICE values_place values_find(const mxa_prepare_params *p, mxa_shared at, int head)
{
    const uint32_t used = dev_load_shared_u32(at + 16);
    const values_place place = {dev_load_shared_u32(at) * (uint32_t)p->heads + (uint32_t)head,
                                (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK,
                                dev_load_shared_u32(at + 4) / MXA_PREPARE_CHUNK, (int)used};
    return place;
}

/* Bytes from one chunk's column sums to the next one's, and to those of `item`. */
MXA_DEVICE uint64_t sums_step(const mxa_prepare_params *p, int dims)
{
    return 4 * (uint64_t)(p->heads * dims);
}

MXA_DEVICE uint64_t sums_at(const mxa_prepare_params *p, int dims, int head, int item)
{
    return (uint64_t)item * sums_step(p, dims) + 4 * (uint64_t)(head * dims);
}

/* Sum of column dev_thread_again() over `chunks` chunks from `item` on, in a fixed order, for the
 * threads below `dims`. The whole CTA. */
MXA_DEVICE float column_sum(const mxa_prepare_params *p, mxa_shared shared, int dims, int head,
                            int item, int chunks)
{
    const mxa_shared to = shared + (uint32_t)(AT_TILE + 32 * dims);
    sum_all_chunks(to, shared + AT_TILE, p->partial + sums_at(p, dims, head, item), dims, 2 * dims,
                   chunks, sums_step(p, dims));
    return dev_thread_again() < dims ? dev_load_shared_f32(to + 4 * (uint32_t)dev_thread_again())
                                     : 0.0f;
}

MXA_DEVICE mxa_global mean_at(const mxa_prepare_params *p, int dims, const values_place *place,
                              int d)
{
    return p->mean + 4 * ((uint64_t)place->pair * (uint64_t)dims + (uint64_t)d);
}

/* Adds this lane's sums of 8 dims over the lanes of equal lane % 4: lane 4q+j gets dim 8j+q. */
MXA_DEVICE float sum_over_quads(float *sum)
{
    const int q = (dev_thread_again() & 31) / 4;
    MXA_UNROLL
    for (int step = 4; step >= 1; step >>= 1) {
        const int keep_high = (q & step) != 0;
        MXA_UNROLL
        for (int n = 0; n < step; n++) {
            const float mine = keep_high ? sum[n + step] : sum[n];
            const float theirs = keep_high ? sum[n] : sum[n + step];
            sum[n] = add_rn(mine, shuffle_xor_f32(theirs, 4 * step));
        }
    }
    return sum[0];
}

/* A column's sum over the tile's tokens, from the two warps that have it, to global memory. */
MXA_DEVICE void store_sums(mxa_shared shared, int dims, float sum, mxa_global to)
{
    const int lane = dev_thread_again() & 31, warp = dev_thread_again() / 32,
              d = dev_thread_again();
    cta_sync();
    dev_store_shared_f32(shared + AT_TILE + 4 * (uint32_t)(32 * warp + 8 * (lane & 3) + lane / 4),
                         sum);
    cta_sync();
    if (d < dims) {
        dev_store_global_f32(
            to + 4 * (uint64_t)d,
            add_rn(dev_load_shared_f32(shared + AT_TILE + 4 * (uint32_t)d),
                   dev_load_shared_f32(shared + AT_TILE + 4 * (uint32_t)(d + dims))));
    }
}

/* Both blocks of v, the last token used standing for those beyond, and each token's scale. */
MXA_DEVICE void values_load(const mxa_prepare_params *p, int type, int dims, const load_place *at,
                            int head, uint32_t *raw, float *power)
{
    const int full = at->used - at->position >= 128;
    uint32_t scale[EACH];
    if (full) {
        load_full(&p->from, type, dims, at, head, raw);
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        load_place block = *at;
        block.position += 32 * block_group(i, dims);
        if (!full) {
            load_part(&p->from, type, dims, &block, head, raw + 16 * i);
        }
        scale[i] =
            type == MXA_GPU_BF16 ? 127 : load_own_scale(&p->from, &block, head, lane_dim(dims));
    }
    MXA_UNROLL
    for (int i = 0; i < 4 * EACH; i++) {
        power[i] = type == MXA_GPU_BF16 ? 1.0f : load_power(of_token(scale[i / 4], i % 4));
    }
}

/* Zeros for tokens of a BF16 v that do not count. */
MXA_DEVICE void values_clear(int dims, int left, uint32_t *raw)
{
    MXA_UNROLL
    for (int i = 0; i < 16 * EACH; i++) {
        const int there = 32 * block_group(i / 16, dims) + lane_token(i / 4 % 4) < left;
        raw[i] = there ? raw[i] : 0;
    }
}

/* Sums of a BF16 v's columns; the pair's last item makes its mean. first: load_place of its first
 * token. */
MXA_DEVICE void sums_item(const mxa_prepare_all_params *all, mxa_shared shared, mxa_shared first,
                          int dims, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t raw[16 * EACH];
    float power[4 * EACH];
    const load_place at = place_load(first);
    const int left = at.used - at.position;
    if (left <= 0) {
        return;
    }
    values_load(p, MXA_GPU_BF16, dims, &at, head, raw, power);
    if (left < 128) {
        values_clear(dims, left, raw);
    }
    MXA_UNROLL
    for (int i = 0; i < 16 * EACH; i++) { /* pair i % 4 of token i / 4 */
        const int m = 2 * (i % 4);
        float x[2];
        widen_pair(MXA_GPU_BF16, raw + i / 16 * 16, i / 4 % 4, i % 4, x);
        sum[m] = add_rn(sum[m], x[0]);
        sum[m + 1] = add_rn(sum[m + 1], x[1]);
    }
    store_sums(shared, dims, sum_over_quads(sum), p->partial + sums_at(p, dims, head, item));
    const values_place place = values_find(p, first, head);
    const mxa_global counter = all->sums_made + 4 * (uint64_t)place.pair;
    if (arrive(shared, counter) + 1 != place.chunks) {
        return;
    }
    const float total =
        column_sum(p, shared, dims, head, item - (int)place.number, (int)place.chunks);
    if (dev_thread_again() < dims) {
        dev_store_global_f32(mean_at(p, dims, &place, dev_thread_again()),
                             column_mean(total, place.used));
    }
    (void)arrive(shared, counter); /* one more than chunks: the mean is there */
}

/* This lane's largest magnitude of a BF16 block of v less its mean. WHY by the tokens' extremes:
 * rounding keeps order, so that no other difference is larger, and they are found two at a time. */
MXA_DEVICE uint32_t values_largest_bf16(const uint32_t *raw, const float *mean)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int n = 0; n < 4; n++) {
        const uint32_t most = max_nan_bf16x2(max_nan_bf16x2(raw[n], raw[4 + n]),
                                             max_nan_bf16x2(raw[8 + n], raw[12 + n]));
        const uint32_t least = min_nan_bf16x2(min_nan_bf16x2(raw[n], raw[4 + n]),
                                              min_nan_bf16x2(raw[8 + n], raw[12 + n]));
        float x[4];
        widen_pair(MXA_GPU_BF16, &most, 0, 0, x);
        widen_pair(MXA_GPU_BF16, &least, 0, 0, x + 2);
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            top = max_abs_nan_f32(top, add_rn(x[m], -mean[2 * n + (m & 1)]));
        }
    }
    return bits_f32(top);
}

/* The same of E4M3. power: each token's scale. */
MXA_DEVICE uint32_t values_largest_e4m3(const uint32_t *raw, const float *power, const float *mean)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < 16; i++) { /* pair i % 4 of token i / 4 */
        const int m = 2 * (i % 4);
        float x[2];
        widen_pair(MXA_GPU_E4M3, raw, i / 4, i % 4, x);
        top = max_abs_nan_f32(top, fma_rn(x[0], power[i / 4], -mean[m]));
        top = max_abs_nan_f32(top, fma_rn(x[1], power[i / 4], -mean[m + 1]));
    }
    return bits_f32(top);
}

/* Its codes into the transposed tile. `there` keeps the bytes of tokens that count. WHY one fused
 * step: scaled by a power of two, the difference is rounded as it is unscaled, or so small that
 * E4M3 holds it as 0. */
MXA_DEVICE void values_turn(int type, const uint32_t *raw, const float *power, const float *mean,
                            float inverse, uint32_t there, mxa_shared tile, int d, int word)
{
    MXA_UNROLL
    for (int n = 0; n < 4; n++) {
        const float low = mul_rn(mean[2 * n], inverse), high = mul_rn(mean[2 * n + 1], inverse);
        float x[8];
        MXA_UNROLL
        for (int t = 0; t < 4; t++) {
            const float by = type == MXA_GPU_BF16 ? inverse : mul_rn(power[t], inverse);
            widen_pair(type, raw, t, n, x + 2 * t);
            x[2 * t] = fma_rn(x[2 * t], by, -low);
            x[2 * t + 1] = fma_rn(x[2 * t + 1], by, -high);
        }
        dev_store_shared_u32(values_word(tile, d + 2 * n, word),
                             e4m3x4_from_f32(x[0], x[2], x[4], x[6]) & there);
        dev_store_shared_u32(values_word(tile, d + 2 * n + 1, word),
                             e4m3x4_from_f32(x[1], x[3], x[5], x[7]) & there);
    }
}

/* The same of a group that is not finite. */
MXA_DEVICE void values_turn_not_finite(mxa_shared tile, int d, int word)
{
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        dev_store_shared_u32(values_word(tile, d + n, word), 0x7F7F7F7Fu);
    }
}

/* The mean of 8 dims, once it is there. */
MXA_DEVICE void wait_for_mean(const mxa_prepare_all_params *all, const values_place *place,
                              int dims, int d, float *mean)
{
    if (dev_thread_again() == 0) {
        while (dev_load_acquire_global_u32(all->sums_made + 4 * (uint64_t)place->pair) <=
               place->chunks) {
        }
    }
    cta_sync();
    const mxa_global at = mean_at(&all->v, dims, place, d);
    mxa_u32x4 a = dev_load_global_u32x4(at), b = dev_load_global_u32x4(at + 16);
    const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    MXA_UNROLL
    for (int i = 0; i < 8; i++) {
        mean[i] = f32_bits(w[i]);
    }
}

/* Bytes of the lane's tokens of block i that count. */
MXA_DEVICE uint32_t values_there(int dims, int i, int left)
{
    uint32_t there = 0;
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        there |= 32 * block_group(i, dims) + lane_token(t) < left ? (uint32_t)0xFF << (8 * t) : 0;
    }
    return there;
}

/* A group's exponent, and its sequence's largest. */
MXA_DEVICE void values_exponent(const mxa_prepare_params *p, mxa_shared shared, mxa_shared first,
                                uint32_t top, int head, int item, int g)
{
    const int finite = top < NOT_FINITE, some = finite && top != 0;
    const int exponent = fold_exponent(top, 1);
    const uint64_t at = (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + 4 * item + g);
    dev_store_shared_u32(shared + AT_SCALES + 4 * (uint32_t)g,
                         finite ? (uint32_t)(exponent + 127) << 23 : 0);
    dev_store_global_u32(p->exponent + 4 * at, (uint32_t)(some ? exponent : MXA_EXPONENT_NONE));
    if (some) {
        dev_max_global_u32(p->top + 4 * (uint64_t)values_find(p, first, head).pair,
                           (uint32_t)(exponent + 1024));
    }
}

/* v's copy: transposed, keys permuted; exponents and the sequence's largest. Of E4M3 the pair's
 * last item corrects the mean, and returns 1. */
MXA_DEVICE void values_item(const mxa_prepare_all_params *all, mxa_shared shared, mxa_shared first,
                            int type, int dims, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    const int columns = dims / 32, lane = dev_thread_again() & 31;
    uint32_t raw[16 * EACH];
    float power[4 * EACH];
    float mean[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    const load_place at = place_load(first);
    const int left = at.used - at.position;
    values_load(p, type, dims, &at, head, raw, power);
    if (p->mean && left > 0) {
        const values_place begun = values_find(p, first, head);
        wait_for_mean(all, &begun, dims, lane_dim(dims), mean);
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int g = block_group(i, dims);
        forget(type, raw + 16 * i); /* one block after the other */
        const uint32_t top = warp_max_u32(
            type == MXA_GPU_BF16 ? values_largest_bf16(raw + 16 * i, mean)
                                 : values_largest_e4m3(raw + 16 * i, power + 4 * i, mean));
        if (lane == 0) {
            dev_store_shared_u32(shared + AT_TOPS +
                                     4 * (uint32_t)(g * columns + block_column(dims)),
                                 32 * g < left ? top : 0);
        }
    }
    cta_sync();
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int g = block_group(i, dims), word = 8 * g + lane / 4;
        const uint32_t top = group_top(shared, dims, g);
        forget(type, raw + 16 * i);
        if (top < NOT_FINITE) {
            values_turn(type, raw + 16 * i, power + 4 * i, mean,
                        inverse_power(fold_exponent(top, 1)), values_there(dims, i, left),
                        shared + AT_TILE, lane_dim(dims), word);
        } else {
            values_turn_not_finite(shared + AT_TILE, lane_dim(dims), word);
        }
        if (lane == 0 && block_column(dims) == 0) {
            values_exponent(p, shared, first, top, head, item, g);
        }
    }
    cta_sync();
    values_store(p, shared + AT_TILE, shared + AT_SCALES, dims, 2 * dims, dims, item, head);
    if (type == MXA_GPU_BF16 || !p->mean || left <= 0) {
        return;
    }
    const values_place place = values_find(p, first, head);
    if (arrive(shared, all->values_made + 4 * (uint64_t)place.pair) + 1 != place.chunks) {
        return;
    }
    const float total =
        column_sum(p, shared, dims, head, item - (int)place.number, (int)place.chunks);
    if (dev_thread_again() < dims) {
        const mxa_global to = mean_at(p, dims, &place, dev_thread_again());
        dev_store_global_f32(
            to, column_correction(dev_load_global_f32(to), column_mean(total, place.used)));
    }
}

#endif
