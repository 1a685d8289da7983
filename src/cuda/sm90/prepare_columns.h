/* prepare_columns.h: 128 tokens of v, a CTA's, after its warps have them: the turned tile goes to
 * the copy, sums of columns are added up, and the last CTA of a (sequence, head) looks whether some
 * lean. Then that head's copy is made again, less its mean (prepare_finish.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_COLUMNS_H
#define MXA_CUDA_SM90_PREPARE_COLUMNS_H

#include "cuda/sm90/prepare_group.h"
#include "cuda/sm90/prepare_values.h"

/* Words between the rows of one lane's dims and the next one's. WHY: a warp's stores then fall in
 * 32 banks, and rows stay aligned. */
MXA_DEVICE int tile_gap(group_shape s)
{
    return group_lanes(s) == 4 ? 8 : 4;
}

/* Word of dimension d's row in the tile. */
MXA_DEVICE mxa_shared tile_word(mxa_shared shared, group_shape s, int d, int word)
{
    return shared + AT_TILE + 4 * (uint32_t)(32 * d + tile_gap(s) * (d / s.each) + word);
}

/* The lane's first word in it, of its first dim; the next dim's is 32 words on. */
MXA_DEVICE mxa_shared tile_of_lane(mxa_shared shared, group_shape s)
{
    const int lanes = group_lanes(s), row = group_lane() / lanes;
    return tile_word(shared, s, group_dim(s), 8 * group_number(s) + lanes / 4 * row);
}

/* As many words as the lane has of a dim. */
MXA_DEVICE void tile_store(group_shape s, mxa_shared at, const uint32_t *w)
{
    if (group_lanes(s) == 4) {
        dev_store_shared_u32(at, w[0]);
    } else if (group_lanes(s) == 8) {
        dev_store_shared_u32x2(at, w[0], w[1]);
    } else {
        const mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
        dev_store_shared_u32x4(at, v);
    }
}

/* Word n of the sums of a source, two rows of a warp's lanes: pairs of columns, of values, then of
 * squares; pair n of a lane lies `columns` words from its pair n - 1. WHY words more: stores of
 * a warp fall in 32 banks. */
MXA_DEVICE mxa_shared sums_word(mxa_shared shared, group_shape s, int source, int n)
{
    const int lanes = group_lanes(s), more = n < s.dims / 2 ? 0 : lanes;
    return tile_word(shared, s, s.dims, 0) +
           4 * (uint32_t)((s.dims + 2 * lanes) * source + more + n);
}

MXA_DEVICE int sums_sources(group_shape s)
{
    return 16 / group_lanes(s); /* of a group */
}

/* Where an even row of lanes stores the sums of values of its first pair and of the next row's, and
 * that one those of squares. */
MXA_DEVICE mxa_shared sums_of_lane(mxa_shared shared, group_shape s)
{
    const int row = group_lane() / group_lanes(s);
    return sums_word(shared, s, sums_sources(s) * group_number(s) + row / 2,
                     (row & 1) * s.dims / 2) +
           4 * (uint32_t)group_column(s);
}

/* Two columns' values are added to a lane's sums, as 1/16 of them. WHY: 32 squares of 448 are
 * beyond FP16. */
#define SUMS_OF 16.0f
MXA_DEVICE void add_to_sums(uint32_t h, uint32_t *sum, uint32_t *squares)
{
    h = mul_f16x2(h, 0x2C002C00u);
    *sum = add_f16x2(*sum, h);
    *squares = fma_f16x2(h, h, *squares);
}

/* Pair n of the lane's columns: its sums of values and of squares. */
MXA_DEVICE void sums_of_pair(group_shape s, mxa_shared of_lane, int n, uint32_t sum,
                             uint32_t squares)
{
    const int lanes = group_lanes(s), odd = group_lane() & lanes;
    const uint32_t theirs = shuffle_xor_u32(odd ? sum : squares, lanes);
    dev_store_shared_u32(of_lane + 4 * (uint32_t)(s.dims / s.each * n),
                         add_f16x2(odd ? squares : sum, theirs));
}

/* Where the means of the lane's dims lie. WHY not in registers: each is wanted twice, far apart. */
MXA_DEVICE mxa_global means_of_lane(const mxa_prepare_params *p, group_shape s, int sequence,
                                    int head)
{
    const uint64_t pair = (uint64_t)(sequence * p->heads + head);
    return p->mean + 4 * (pair * (uint64_t)s.dims + (uint64_t)group_dim(s));
}

/* Means i and i + 1 of them. */
MXA_DEVICE void mean_pair(mxa_global of_lane, int i, float *mean)
{
    const mxa_u32x2 v = dev_load_global_u32x2(of_lane + 4 * (uint64_t)i);
    mean[0] = f32_bits(v.x);
    mean[1] = f32_bits(v.y);
}

/* A group of v that is not finite: nothing of it is added. */
MXA_DEVICE void values_not_finite(mxa_shared shared, group_shape s)
{
    const uint32_t w[4] = {0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu};
    MXA_NO_UNROLL
    for (int n = 0; n < s.each; n++) {
        tile_store(s, tile_of_lane(shared, s) + 128 * (uint32_t)n, w);
    }
    MXA_NO_UNROLL
    for (int n = 0; n < s.each / 2; n++) {
        sums_of_pair(s, sums_of_lane(shared, s), n, 0, 0);
    }
}

/* What is known of a group of v, by one lane: its exponent, for the sums too, and its pair. */
MXA_DEVICE void values_note(const mxa_prepare_params *p, mxa_shared shared, const prepare_group *g,
                            group_shape s, int head, int group, uint32_t top)
{
    if (group_lane() != 0 || group_half(s) != 0) {
        return;
    }
    const int exponent = fold_exponent(top, 1), some = top && top < NOT_FINITE;
    const uint32_t number = (uint32_t)group_number(s);
    dev_store_shared_u32(shared + AT_SCALES + 4 * number,
                         some ? (uint32_t)(exponent + 127) << 23 : 0);
    dev_store_global_u32(p->exponent + 4 * (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group),
                         (uint32_t)(some ? exponent : MXA_EXPONENT_NONE));
    if (number == 0) {
        const mxa_u32x4 words = {(uint32_t)(g->place.sequence * p->heads + head),
                                 (uint32_t)g->place.position / MXA_PREPARE_CHUNK,
                                 (uint32_t)g->place.used, 0};
        dev_store_shared_u32x4(shared + AT_PAIR, words);
    }
}

/* After a barrier: the item's largest exponent to its pair's maximum, by one thread. */
MXA_DEVICE void top_end(const mxa_prepare_params *p, mxa_shared shared, uint32_t pair)
{
    if (dev_thread() == 0) {
        const mxa_u32x4 scale = dev_load_shared_u32x4(shared + AT_SCALES);
        const uint32_t most = max_u32(max_u32(scale.x, scale.y), max_u32(scale.z, scale.w));
        grid_dependency_wait();
        if (most) {
            dev_max_global_u32(p->top + 4 * (uint64_t)pair, (most >> 23) - 127 + 1024);
        }
    }
}

/* The tile's rows to the copy, lines of 128 bytes; their sums too where the copy is `centred`. */
MXA_DEVICE void tile_write(const mxa_prepare_params *p, mxa_shared shared, group_shape s,
                           int centred, int head, int item)
{
    const int row = dev_thread() / 8, part = dev_thread() % 8, rows = group_threads(s) / 8;
    mxa_global at = p->payload + (uint64_t)((head * (int64_t)s.dims + row) * p->rows +
                                            MXA_PREPARE_CHUNK * (int64_t)item + 16 * part);
    const mxa_global sums = p->partial + 4 * (uint64_t)(((int64_t)item * p->heads + head) * s.dims);
    MXA_UNROLL
    for (int d = 0; d < s.dims; d += rows) {
        const mxa_u32x4 v = dev_load_shared_u32x4(tile_word(shared, s, d + row, 4 * part));
        dev_store_global_u32x4(at, v);
        at += (uint64_t)(rows * p->rows);
        if (centred) {
            const float sum = tile_row_sum(v, shared + AT_SCALES, part);
            if (part == 0) {
                dev_store_global_f32(sums + 4 * (uint64_t)(d + row), sum);
            }
        }
    }
}

/* Where pair n of the sums of 128 tokens lies: of values, then norms, each in the order in which
 * sums_word has them. */
MXA_DEVICE mxa_global sums_at(const mxa_prepare_params *p, int dims, int head, int item, int n)
{
    const uint64_t at = 4 * ((uint64_t)item * (uint64_t)p->heads + (uint64_t)head) * (uint64_t)dims;
    return n < dims / 2 ? p->partial + at + 8 * (uint64_t)n
                        : p->partial_norm + at + 8 * (uint64_t)(n - dims / 2);
}

/* The sums of the lanes to global memory; of squares the root, which is in range as values are. */
MXA_DEVICE void sums_store(const mxa_prepare_params *p, mxa_shared shared, group_shape s, int head,
                           int item)
{
    const int each = sums_sources(s);
    MXA_NO_UNROLL
    for (int n = dev_thread(); n < s.dims; n += group_threads(s)) {
        const int is_square = n >= s.dims / 2;
        const mxa_u32x4 powers = dev_load_shared_u32x4(shared + AT_SCALES);
        const uint32_t most = max_u32(max_u32(powers.x, powers.y), max_u32(powers.z, powers.w));
        const float unit = most ? inverse_power((int)(most >> 23) - 127) : 0.0f;
        float low = 0.0f, high = 0.0f;
        MXA_UNROLL
        for (int g = 0; g < 4; g++) {
            uint32_t sum = 0;
            MXA_UNROLL
            for (int i = 0; i < each; i++) {
                sum = add_f16x2(sum, dev_load_shared_u32(sums_word(shared, s, each * g + i, n)));
            }
            float power = dev_load_shared_f32(shared + AT_SCALES + 4 * (uint32_t)g);
            if (is_square) {
                power = mul_rn(power, unit);
                power = mul_rn(power, power);
            }
            low = fma_rn(f32_from_f16_low(sum), power, low);
            high = fma_rn(f32_from_f16_high(sum), power, high);
        }
        if (is_square) {
            low = mul_rn(sqrt_rn(low), f32_bits(most));
            high = mul_rn(sqrt_rn(high), f32_bits(most));
        }
        dev_store_global_u32x2(sums_at(p, s.dims, head, item, n), bits_f32(mul_rn(low, SUMS_OF)),
                               bits_f32(mul_rn(high, SUMS_OF)));
    }
}

/* Whether columns of a (sequence, head) lean: their means, and word for the kernel after this one.
 * The whole CTA, the pair's last one. WHY AT_PAIR is read again, and fewer loads at once where
 * threads have fewer each: registers. */
MXA_DEVICE void means_find(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                           int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    const int dims = s.dims, threads = group_threads(s), columns = dims / s.each;
    const mxa_shared sums = shared + AT_TILE, squares = sums + 4 * (uint32_t)dims;
    const int first = item - (int)dev_load_shared_u32(shared + AT_PAIR + 4);
    const int used = (int)dev_load_shared_u32(shared + AT_PAIR + 8);
    const uint32_t pair = dev_load_shared_u32(shared + AT_PAIR);
    const uint32_t top = dev_load_global_u32(p->top + 4 * (uint64_t)pair);
    const int exponent = top ? (int)top - 1024 : 0;
    int leans = 0;
    MXA_NO_UNROLL
    for (int i = 0; i < 2; i++) { /* sums, norms: each as many words as there are dims */
        const uint64_t step = 4 * (uint64_t)dims * (uint64_t)p->heads;
        sum_all_chunks(sums + 4 * (uint32_t)(i * dims), sums_word(shared, s, 0, 0),
                       sums_at(p, dims, head, first, i * dims / 2), dims, threads,
                       (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK, step, dims == 64 ? 4 : 8,
                       i ? inverse_power(exponent) : 0.0f);
    }
    const float limit = column_limit(used, p->from.type <= MXA_GPU_BF16);
    MXA_NO_UNROLL
    for (int n = dev_thread(); n < dims; n += threads) {
        const int d = s.each * (n / 2 % columns) + 2 * (n / 2 / columns) + n % 2;
        const float sum = dev_load_shared_f32(sums + 4 * (uint32_t)n);
        const float norm = mul_rn(sqrt_rn(dev_load_shared_f32(squares + 4 * (uint32_t)n)),
                                  load_power((uint32_t)(127 + exponent)));
        const float mean = column_leans(sum, norm, limit) ? column_mean(sum, used) : 0.0f;
        leans |= mean != 0.0f;
        dev_store_global_f32(p->mean + 4 * (uint64_t)(pair * (uint32_t)dims + (uint32_t)d), mean);
    }
    if (warp_any(leans) && group_lane() == 0) {
        (void)dev_fetch_add_shared_u32(shared + AT_LEANS, 1);
    }
    cta_sync();
    if (dev_thread() == 0 && dev_load_shared_u32(shared + AT_LEANS)) {
        dev_max_global_u32(all->leaning, 1);
        dev_store_global_u32(p->top + 4 * (uint64_t)pair, 0);
        (void)dev_fetch_add_ordered_global_u32(all->sums_made + 4 * (uint64_t)pair, 1);
    }
}

/* Which CTA of its pair this one is, of `counter`, in order of their ends: what it wrote is seen by
 * later ones, and what earlier ones wrote by this one. The whole CTA. */
MXA_DEVICE int pair_arrive(mxa_shared shared, mxa_global counter)
{
    cta_sync();
    if (dev_thread() == 0) {
        dev_store_shared_u32(shared + AT_LEANS, 0);
        dev_store_shared_u32(shared + AT_ARRIVED, dev_fetch_add_ordered_global_u32(counter, 1) + 1);
    }
    cta_sync();
    return (int)dev_load_shared_u32(shared + AT_ARRIVED);
}

/* Once the CTA's warps have stored their part of the tile, and their sums. */
MXA_DEVICE void columns_end(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    cta_sync();
    tile_write(p, shared, s, 0, head, item);
    const mxa_u32x4 pair = dev_load_shared_u32x4(shared + AT_PAIR);
    top_end(p, shared, pair.x);
    const int number = (int)pair.y, used = (int)pair.z;
    const int chunks = (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK;
    if (!p->mean || number >= chunks) {
        return;
    }
    sums_store(p, shared, s, head, item);
    if (pair_arrive(shared, all->sums_made + 4 * (uint64_t)pair.x) == chunks) {
        means_find(all, shared, s, head, item);
    }
}

/* What the copy's means are off is taken from those that the epilogue adds. */
MXA_DEVICE void means_correct(const mxa_prepare_params *p, mxa_shared shared, group_shape s,
                              int head, int first, int chunks, uint32_t pair, int used)
{
    const uint64_t row = 4 * (uint64_t)s.dims, step = row * (uint64_t)p->heads;
    sum_all_chunks(shared + AT_TILE, sums_word(shared, s, 0, 0),
                   p->partial + (uint64_t)first * step + row * (uint64_t)head, s.dims,
                   group_threads(s), chunks, step, 8, 0.0f);
    MXA_NO_UNROLL
    for (int d = dev_thread(); d < s.dims; d += group_threads(s)) {
        const mxa_global to = p->mean + row * (uint64_t)pair + 4 * (uint64_t)d;
        const float sum = dev_load_shared_f32(shared + AT_TILE + 4 * (uint32_t)d);
        dev_store_global_f32(to,
                             column_correction(dev_load_global_f32(to), column_mean(sum, used)));
    }
}

/* The end of an item that is made again. 1: it was its pair's last. */
MXA_DEVICE int columns_end_again(const mxa_prepare_all_params *all, mxa_shared shared,
                                 group_shape s, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    cta_sync();
    tile_write(p, shared, s, 1, head, item);
    const mxa_u32x4 pair = dev_load_shared_u32x4(shared + AT_PAIR);
    top_end(p, shared, pair.x);
    const int number = (int)pair.y, used = (int)pair.z;
    const int chunks = (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK;
    if (number >= chunks) {
        return 0;
    }
    if (pair_arrive(shared, all->values_made + 4 * (uint64_t)pair.x) != chunks) {
        return 0;
    }
    means_correct(p, shared, s, head, item - number, chunks, pair.x, used);
    return 1;
}

#endif
