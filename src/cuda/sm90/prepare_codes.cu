/* prepare_codes.cu: Hopper's private copies of E4M3 q, k and v (row or square blocks) in one
 * launch, for head dims of 64, 128 and 256.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md. The bytes are
 * those of prepare.cu, which takes any operands.
 *
 * A CTA takes 128 tokens of a head, a warp a group of 32 of them. v comes first, as it stands, and
 * its columns are added up on the way; the last CTA of a (sequence, head) looks whether some lean,
 * which is rare. Then prepare_all.cu makes that head's copy again, without its mean.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/turn.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/prepare_codes.h"
#include "cuda/sm90/prepare_values.h"

/* Shared memory of an item of v: 2^exponent of each group; how many items of its pair came, and
 * whether columns lean; sums of lanes, by warp and lane / (dims/16); its tile, turned. */
enum {
    AT_SCALES = 0,
    AT_ARRIVED = 16,
    AT_LEANS = 20,
    AT_PAIR = 32, /* (sequence, head), the item's number in it, its tokens */
    AT_SUMS = 48,
    AT_TILE = AT_SUMS + 4 * 2048 / 16 * 17
};

MXA_STATIC_ASSERT(AT_TILE == 48 + 4 * 2176, "device.c gives it this much, and the tile");

/* Word of dimension d's row in the tile. WHY words more every 16 dimensions: stores of a warp fall
 * in 32 banks (D = 256: 16). */
MXA_DEVICE mxa_shared tile_word(mxa_shared at, int dims, int d, int word)
{
    const int more = dims > 128 ? 4 : 512 / dims;
    return at + AT_TILE + 4 * (uint32_t)(32 * d + more * (d >> 4) + word);
}

/* Word n of the sums of a source. WHY dims/16 words more: sources of a warp are 32 banks. */
MXA_DEVICE mxa_shared sums_word(mxa_shared at, int dims, int source, int n)
{
    return at + AT_SUMS + 4 * (uint32_t)((dims + dims / 16) * source + n);
}

/* Rows of the copy of q or k, four codes a word, and each token's squared norm: of this lane's
 * codes. */
MXA_DEVICE void rows_fold(int dims, int square, uint32_t *raw, const uint32_t *scale, int to,
                          mxa_global at, float *norm)
{
    const int loads = codes_loads(dims);
    const uint32_t common = square ? codes_factor(scale[0], to) : 0;
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        const uint32_t factor = square ? common : codes_factor(scale[i], to);
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
        dev_store_global_u32x4(at + (uint64_t)(512 * i), v);
    }
}

/* Of `count` rows that `count` neighbouring lanes have, this lane's own one's sum over them. */
MXA_DEVICE float row_sum(float *x, int count)
{
    MXA_UNROLL
    for (int step = count / 2; step >= 1; step >>= 1) {
        const int high = codes_lane() & step;
        MXA_UNROLL
        for (int n = 0; n < step; n++) {
            const float mine = high ? x[n + step] : x[n], theirs = high ? x[n] : x[n + step];
            x[n] = add_rn(mine, shuffle_xor_f32(theirs, step));
        }
    }
    return x[0];
}

/* A group of q or k. WHY FP16 sums of eight: payloads are at most 15, and the norm only decides
 * which kernel takes the tile. */
MXA_DEVICE void rows_group(const mxa_prepare_params *p, int dims, int square, int head, int group)
{
    uint32_t raw[CODES_WORDS], scale[CODES_LOADS];
    codes_group g;
    codes_find(p, group, dev_thread() / 32, &g);
    codes_load(&p->from, &g, 0, square, dims, head, raw, scale);
    const uint32_t top = codes_top(raw, scale, square, dims);
    const int exponent = fold_exponent(top, 0), finite = top < NOT_FINITE;
    const uint64_t number = (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group);
    const mxa_global at =
        p->payload + number * (uint64_t)(MXA_PREPARE_GROUP * dims) + 16 * (uint64_t)codes_lane();
    uint32_t norm = 0x7FC00000u, power = 0x7FC00000u;
    if (finite) {
        float norms[CODES_LOADS];
        rows_fold(dims, square, raw, scale, exponent, at, norms);
        power = (uint32_t)(exponent + 127) << 23;
        norm = warp_max_u32(bits_f32(row_sum(norms, codes_loads(dims))));
        norm = bits_f32(mul_rn(sqrt_rn(f32_bits(norm)), f32_bits(power)));
    } else {
        const mxa_u32x4 nan = {0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu};
        MXA_UNROLL
        for (int i = 0; i < codes_loads(dims); i++) {
            dev_store_global_u32x4(at + (uint64_t)(512 * i), nan);
        }
    }
    if (codes_lane() == 0) {
        grid_dependency_wait();
        const uint64_t pair = (uint64_t)(g.place.sequence * p->heads + head);
        dev_store_global_u32(p->scale + 16 * number, power);
        dev_max_global_u32(p->norm + 4 * pair, norm);
    }
}

/* A lane's first word in the tile, of its first dim, and its word in the sums. */
MXA_DEVICE mxa_shared tile_of_lane(mxa_shared shared, int dims)
{
    return tile_word(shared, dims, codes_dim(dims),
                     8 * (dev_thread() / 32) + codes_lane() / codes_loads(dims));
}

MXA_DEVICE mxa_shared sums_of_lane(mxa_shared shared, int dims)
{
    const int loads = codes_loads(dims), source = 512 / dims * (dev_thread() / 32);
    return sums_word(shared, dims, source + codes_lane() / loads, codes_lane() % loads);
}

/* A group of v into the tile, turned; the sums of the lane's columns, of values and of magnitudes,
 * in units of the group's exponent. WHY FP16: a group's are at most 32 * 448, and they only decide
 * whether a column leans and what is taken from it. */
MXA_DEVICE void values_fold(mxa_shared shared, int dims, int square, int with_sums, uint32_t *raw,
                            const uint32_t *scale, int to)
{
    const int loads = codes_loads(dims);
    const mxa_shared tile = tile_of_lane(shared, dims), sums = sums_of_lane(shared, dims);
    uint32_t factor[CODES_LOADS];
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        factor[i] = square && i ? factor[0] : codes_factor(scale[i], to);
    }
    MXA_UNROLL
    for (int n = 0; n < 4; n++) { /* dims 4n.. of 16 */
        uint32_t sum[2] = {0, 0}, magnitude[2] = {0, 0};
        MXA_UNROLL
        for (int i = 0; i < loads; i++) {
            hold_u32(&raw[4 * i + n]); /* nothing of them before: registers */
        }
        MXA_UNROLL
        for (int i = 0; i < loads; i += 4) {
            uint32_t w[4];
            MXA_UNROLL
            for (int t = 0; t < 4; t++) {
                uint32_t h[2];
                codes_widen(raw[4 * (i + t) + n], factor[i + t], h);
                MXA_UNROLL
                for (int m = 0; m < 2; m++) {
                    sum[m] = add_f16x2(sum[m], h[m]);
                    magnitude[m] = add_abs_f16x2(magnitude[m], h[m]);
                }
                w[t] = e4m3x4_from_f16x2(h[0], h[1]);
            }
            turn_bytes(w);
            MXA_UNROLL
            for (int m = 0; m < 4; m++) {
                dev_store_shared_u32(tile + 4 * (uint32_t)(32 * (4 * n + m) + 512 / dims * (i / 4)),
                                     w[m]);
            }
        }
        if (with_sums) {
            MXA_UNROLL
            for (int m = 0; m < 2; m++) {
                const uint32_t at = 4 * (uint32_t)(loads * (2 * n + m));
                dev_store_shared_u32(sums + at, sum[m]);
                dev_store_shared_u32(sums + at + 2 * (uint32_t)dims, magnitude[m]);
            }
        }
    }
}

/* The same of a group that is not finite: nothing of it is added. */
MXA_DEVICE void values_not_finite(mxa_shared shared, int dims)
{
    const int loads = codes_loads(dims);
    MXA_NO_UNROLL
    for (int n = 0; n < 16; n++) {
        MXA_NO_UNROLL
        for (int i = 0; i < loads; i += 4) {
            dev_store_shared_u32(tile_of_lane(shared, dims) +
                                     4 * (uint32_t)(32 * n + 512 / dims * (i / 4)),
                                 0x7F7F7F7Fu);
        }
        dev_store_shared_u32(sums_of_lane(shared, dims) + 4 * (uint32_t)(loads * n), 0);
    }
}

/* The tile's rows to the copy, lines of 128 bytes. */
MXA_DEVICE void values_write(const mxa_prepare_params *p, mxa_shared shared, int dims, int head,
                             int item)
{
    const int row = dev_thread() / 8, part = dev_thread() % 8;
    mxa_global at = p->payload + (uint64_t)((head * (int64_t)dims + row) * p->rows +
                                            MXA_PREPARE_CHUNK * (int64_t)item + 16 * part);
    MXA_UNROLL
    for (int d = 0; d < dims; d += CODES_THREADS / 8) {
        dev_store_global_u32x4(at,
                               dev_load_shared_u32x4(tile_word(shared, dims, d + row, 4 * part)));
        at += (uint64_t)(CODES_THREADS / 8 * p->rows);
    }
}

/* Where pair n of the sums of 128 tokens lies: of values, then of magnitudes, each in the order in
 * which sums_word has them. */
MXA_DEVICE mxa_global sums_at(const mxa_prepare_params *p, int dims, int head, int item, int n)
{
    const uint64_t at = 4 * ((uint64_t)item * (uint64_t)p->heads + (uint64_t)head) * (uint64_t)dims;
    return n < dims / 2 ? p->partial + at + 8 * (uint64_t)n
                        : p->partial_magnitude + at + 8 * (uint64_t)(n - dims / 2);
}

/* The tile's sums to global memory. */
MXA_DEVICE void sums_store(const mxa_prepare_params *p, mxa_shared shared, int dims, int head,
                           int item)
{
    const int each = 512 / dims; /* sources of a warp */
    MXA_NO_UNROLL
    for (int n = dev_thread(); n < dims; n += CODES_THREADS) {
        float low = 0.0f, high = 0.0f;
        MXA_UNROLL
        for (int g = 0; g < 4; g++) {
            uint32_t sum = 0;
            MXA_UNROLL
            for (int i = 0; i < each; i++) {
                sum = add_f16x2(sum, dev_load_shared_u32(sums_word(shared, dims, each * g + i, n)));
            }
            const float power = dev_load_shared_f32(shared + AT_SCALES + 4 * (uint32_t)g);
            low = fma_rn(f32_from_f16_low(sum), power, low);
            high = fma_rn(f32_from_f16_high(sum), power, high);
        }
        dev_store_global_u32x2(sums_at(p, dims, head, item, n), bits_f32(low), bits_f32(high));
    }
}

/* Whether columns of a (sequence, head) lean: their means, and word for prepare_all.cu. The whole
 * CTA, the pair's last one; first: the pair's first item. */
MXA_DEVICE void find_means(const mxa_prepare_all_params *all, mxa_shared shared, int dims, int head,
                           int first, int chunks, uint32_t pair, int used)
{
    const mxa_prepare_params *p = &all->v;
    const uint64_t step = sums_at(p, dims, 0, 1, 0) - sums_at(p, dims, 0, 0, 0);
    const mxa_shared sums = shared + AT_TILE, magnitudes = sums + 4 * (uint32_t)dims;
    const int thread = dev_thread();
    int leans = 0;
    MXA_NO_UNROLL
    for (int i = 0; i < 2; i++) { /* sums, magnitudes: each as many words as there are dims */
        sum_all_chunks(i ? magnitudes : sums, shared + AT_SUMS,
                       sums_at(p, dims, head, first, i * dims / 2), dims, CODES_THREADS, chunks,
                       step);
    }
    MXA_NO_UNROLL
    for (int n = thread; n < dims; n += CODES_THREADS) {
        const int loads = codes_loads(dims), pair_n = n / 2;
        const int d = 16 * (pair_n % loads) + 2 * (pair_n / loads) + n % 2;
        const float sum = dev_load_shared_f32(sums + 4 * (uint32_t)n);
        const int is_one =
            column_leans(sum, dev_load_shared_f32(magnitudes + 4 * (uint32_t)n), used);
        const float mean = is_one ? column_mean(sum, used) : 0.0f;
        leans |= mean != 0.0f;
        dev_store_global_f32(p->mean + 4 * (uint64_t)(pair * (uint32_t)dims + (uint32_t)d), mean);
    }
    if (warp_any(leans) && codes_lane() == 0) {
        (void)dev_fetch_add_shared_u32(shared + AT_LEANS, 1);
    }
    cta_sync();
    if (dev_thread() == 0 && dev_load_shared_u32(shared + AT_LEANS)) {
        dev_max_global_u32(all->leaning, 1);
        dev_store_global_u32(p->top + 4 * (uint64_t)pair, 0);
        dev_max_global_u32(all->sums_made + 4 * (uint64_t)pair, (uint32_t)chunks + 1);
    }
}

/* What is known of a group of v, by one lane: its exponent, for the sums too, and its pair. */
MXA_DEVICE void values_note(const mxa_prepare_params *p, mxa_shared shared, const load_place *place,
                            int head, int group, uint32_t top)
{
    const int exponent = fold_exponent(top, 1), finite = top < NOT_FINITE, some = finite && top;
    const uint32_t warp = (uint32_t)dev_thread() / 32;
    const uint32_t pair = (uint32_t)(place->sequence * p->heads + head);
    grid_dependency_wait();
    dev_store_shared_u32(shared + AT_SCALES + 4 * warp,
                         finite ? (uint32_t)(exponent + 127) << 23 : 0);
    dev_store_global_u32(p->exponent + 4 * (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group),
                         (uint32_t)(some ? exponent : MXA_EXPONENT_NONE));
    if (some) {
        dev_max_global_u32(p->top + 4 * (uint64_t)pair, (uint32_t)(exponent + 1024));
    }
    if (warp == 0) {
        const mxa_u32x4 words = {pair, (uint32_t)place->position / MXA_PREPARE_CHUNK,
                                 (uint32_t)place->used, 0};
        dev_store_shared_u32x4(shared + AT_PAIR, words);
    }
}

/* 128 tokens of v. */
MXA_DEVICE void values_item(const mxa_prepare_all_params *all, mxa_shared shared, int dims,
                            int square, int head, int item)
{
    const mxa_prepare_params *p = &all->v;
    const int group = 4 * item + dev_thread() / 32;
    uint32_t raw[CODES_WORDS], scale[CODES_LOADS];
    codes_group g;
    codes_find(p, group, dev_thread() / 32, &g);
    codes_load(&p->from, &g, 1, square, dims, head, raw, scale);
    const uint32_t top = codes_top(raw, scale, square, dims);
    if (codes_lane() == 0) {
        values_note(p, shared, &g.place, head, group, top);
    }
    if (top < NOT_FINITE) {
        values_fold(shared, dims, square, p->mean != 0, raw, scale, fold_exponent(top, 1));
    } else {
        values_not_finite(shared, dims);
    }
    cta_sync();
    values_write(p, shared, dims, head, item);
    const mxa_u32x4 of_pair = dev_load_shared_u32x4(shared + AT_PAIR);
    const int number = (int)of_pair.y, used = (int)of_pair.z;
    if (!p->mean || MXA_PREPARE_CHUNK * number >= used) {
        return;
    }
    sums_store(p, shared, dims, head, item);
    const int chunks = (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK;
    cta_sync();
    if (dev_thread() == 0) {
        const mxa_global counter = all->sums_made + 4 * (uint64_t)of_pair.x;
        dev_store_shared_u32(shared + AT_LEANS, 0);
        dev_store_shared_u32(shared + AT_ARRIVED, dev_fetch_add_ordered_global_u32(counter, 1) + 1);
    }
    cta_sync();
    if ((int)dev_load_shared_u32(shared + AT_ARRIVED) == chunks) {
        find_means(all, shared, dims, head, item - number, chunks, of_pair.x, used);
    }
}

/* x: kv head. y and z, 65,535 of y where there is more than one z: items of v, of k, of q. Blocks
 * are all square, or any: an instance of its own has room for three times as many warps. */
MXA_DEVICE void prepare_codes(const mxa_prepare_all_params *all, int dims, int all_square)
{
    const int head = dev_block_x(), chunks = all->v.groups / 4;
    int item = 65535 * dev_block_z() + dev_block_y(), row_head = head;
    grid_dependency_launch();
    if (all->v.batch.status && dev_load_global_u32(all->v.batch.status)) {
        return;
    }
    if (item < chunks) {
        if (all_square || all->v.from.block == MXA_GPU_SQUARE) {
            values_item(all, dev_shared(), dims, 1, head, item);
        } else {
            values_item(all, dev_shared(), dims, 0, head, item);
        }
        return;
    }
    item -= chunks;
    const mxa_prepare_params *p = &all->k;
    if (item >= chunks) {
        const int each = all->q.heads / all->v.heads;
        p = &all->q;
        item -= chunks;
        row_head += all->v.heads * (item % each);
        item /= each;
    }
    const int group = 4 * item + dev_thread() / 32;
    if (group >= p->groups) {
        return;
    }
    if (all_square || p->from.block == MXA_GPU_SQUARE) {
        rows_group(p, dims, 1, row_head, group);
    } else {
        rows_group(p, dims, 0, row_head, group);
    }
}

#define PREPARE_CODES(name, dims, all_square, ctas)                                                \
    MXA_KERNEL_MANY(name, CODES_THREADS, ctas, mxa_prepare_all_params, parameters)                 \
    {                                                                                              \
        prepare_codes(&parameters, dims, all_square);                                              \
    }

PREPARE_CODES(mxa_sm90_prepare_square_d64, 64, 1, 8)
PREPARE_CODES(mxa_sm90_prepare_square_d128, 128, 1, 8)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d64, 64, 0, 8)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d128, 128, 0, 5)
PREPARE_CODES(mxa_sm90_prepare_e4m3_d256, 256, 0, 2)
