/* prepare_values.h: what both ways of making Hopper's copy of v share: sums and means of columns,
 * and the transposed tile of 128 tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_VALUES_H
#define MXA_CUDA_SM90_PREPARE_VALUES_H

#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/sm90/prepare_fold.h"

/* Sum of `count` numbers `step` bytes apart, in order. */
MXA_DEVICE float sum_chunks(mxa_global at, int count, uint64_t step)
{
    float sum = 0.0f;
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        float x[8];
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            x[j] = dev_load_global_f32(at + (uint64_t)(i + j) * step);
        }
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            sum = add_rn(sum, x[j]);
        }
    }
    for (; i < count; i++) {
        sum = add_rn(sum, dev_load_global_f32(at + (uint64_t)i * step));
    }
    return sum;
}

/* Root of the sum of squares of `count` numbers that are not negative. WHY the largest first: in
 * units of it no square is beyond FP32. */
MXA_DEVICE float norm_chunks(mxa_global at, int count, uint64_t step)
{
    float most = 0.0f, sum = 0.0f;
    for (int i = 0; i < count; i++) {
        most = max_f32(most, dev_load_global_f32(at + (uint64_t)i * step));
    }
    const int exponent = fold_exponent(bits_f32(most), 1);
    for (int i = 0; i < count; i++) {
        const float x =
            mul_rn(dev_load_global_f32(at + (uint64_t)i * step), inverse_power(exponent));
        sum = fma_rn(x, x, sum);
    }
    return mul_rn(sqrt_rn(sum), load_power((uint32_t)(127 + exponent)));
}

/* Sums of `dims` columns over `chunks` rows of floats, `step` bytes apart, in a fixed order, to
 * shared memory, where they are seen by thread d % threads: it wrote them. The whole CTA of
 * `threads`, a multiple of dims/4. scratch: 16 bytes a thread. `flight` loads of a thread are on
 * their way at once, a constant of at most 8. unit: 0, or of squares of `unit` times them. */
MXA_DEVICE void sum_all_chunks(mxa_shared to, mxa_shared scratch, mxa_global at, int dims,
                               int threads, int chunks, uint64_t step, int flight, float unit)
{
    const int quads = dims / 4, parts = threads / quads, thread = dev_thread_again();
    const int part = thread / quads;
    const mxa_global from = at + 16 * (uint64_t)(thread % quads);
    float sum[4] = {0, 0, 0, 0};
    MXA_NO_UNROLL
    for (int i = part; i < chunks; i += flight * parts) {
        mxa_u32x4 v[8];
        MXA_UNROLL
        for (int j = 0; j < flight; j++) {
            const int row = i + j * parts < chunks ? i + j * parts : i;
            v[j] = dev_load_global_u32x4(from + (uint64_t)row * step);
        }
        MXA_UNROLL
        for (int j = 0; j < flight; j++) {
            const int there = i + j * parts < chunks;
            const uint32_t w[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
            MXA_UNROLL
            for (int m = 0; m < 4; m++) {
                const float x = there ? f32_bits(w[m]) : 0.0f, y = mul_rn(x, unit);
                sum[m] = unit != 0.0f ? fma_rn(y, y, sum[m]) : add_rn(sum[m], x);
            }
        }
    }
    const mxa_u32x4 words = {bits_f32(sum[0]), bits_f32(sum[1]), bits_f32(sum[2]),
                             bits_f32(sum[3])};
    cta_sync();
    dev_store_shared_u32x4(scratch + 16 * (uint32_t)thread, words);
    cta_sync();
    MXA_NO_UNROLL
    for (int d = thread; d < dims; d += threads) {
        float total = 0.0f;
        for (int i = 0; i < parts; i++) {
            total = add_rn(total, dev_load_shared_f32(scratch + 4 * (uint32_t)(i * dims + d)));
        }
        dev_store_shared_f32(to + 4 * (uint32_t)d, total);
    }
}

/* Where the chunks of a sequence lie, and its tokens. */
MXA_DEVICE int sequence_row(const mxa_gpu_batch *batch, int sequence, int *used)
{
    if (batch->sequences == 0) {
        *used = batch->seqlen_k;
        return sequence * batch->padded_k;
    }
    const mxa_global record = batch->sequences + 64 * (uint64_t)sequence;
    *used = dev_load_global_i32(record + 24);
    return dev_load_global_i32(record + 36);
}

/* A column's mean; one that is not finite counts as 0. */
MXA_DEVICE float column_mean(float sum, int used)
{
    const float mean = used > 0 ? sum / (float)used : 0.0f;
    return (bits_f32(mean) & 0x7FFFFFFFu) >= NOT_FINITE ? 0.0f : mean;
}

/* A column leans, and is centred, where |sum| is more than as many times its norm, the root of its
 * sum of squares: for N(0, 1) data these are deviations. The accumulator's bias is in proportion to
 * |mean| / mean magnitude * keys, 0.7% of O at 512 keys of one sign, 0.8% at 640 of a norm.
 * WHY by the norm: a few tokens far beyond the others have a mean too, and it is none of theirs; k
 * of them are a sum of at most sqrt(k) norms, however large. WHY not lower: where it is passed the
 * copy is made twice, a value's error is in proportion to its distance from the mean, and an MXFP8
 * v is rounded again. A wide one, which is not, is centred from eight norms on, at 64 keys or fewer
 * never. */
MXA_DEVICE float column_limit(int used, int is_wide)
{
    const int slant = used > MXA_PREPARE_LONG ? MXA_PREPARE_SLANT_LONG : MXA_PREPARE_SLANT;
    const float limit = (float)slant / sqrt_rn((float)used);
    return is_wide && limit > (float)MXA_PREPARE_NORMS ? (float)MXA_PREPARE_NORMS : limit;
}

MXA_DEVICE int column_leans(float sum, float norm, float limit)
{
    return fold_abs(sum) > mul_rn(norm, limit);
}

/* What the epilogue adds for a column whose copy is without `taken`, given the copy's own mean.
 * WHY: BF16 values less a mean are never halfway between two E4M3 values, where rounding to even
 * would favour neither; all round the mean's way, 1e-3 of the deviation, and O is no larger than
 * 1/sqrt(keys) of it (relative error 5.6e-2 at 512 keys, 7.6e-2 at 8,192 without this). 0: the copy
 * is not centred. */
MXA_DEVICE float column_correction(float taken, float mean_of_copy)
{
    return taken == 0.0f ? 0.0f : add_rn(taken, -mean_of_copy);
}

/* Word of dimension d's row of 33 in the tile at `at`. WHY the odd row and two words more every 32:
 * a warp's stores (8 columns apart) and loads then fall in 32 banks. */
MXA_DEVICE mxa_shared values_word(mxa_shared at, int d, int word)
{
    return at + 4 * (uint32_t)(33 * d + 2 * (d >> 5) + word);
}

/* Sum of 16 E4M3 codes. */
MXA_DEVICE float sum_codes(mxa_u32x4 v)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w}, sum = 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        sum = add_f16x2(sum, add_f16x2(f16x2_from_fp8x2(w[i], 0), f16x2_from_fp8x2(w[i] >> 16, 0)));
    }
    return add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
}

/* Sum of a tile's row of 128 codes, in eight neighbouring lanes that have 16 each; `scales`:
 * 2^exponent of the four groups in shared memory, 0 for one that is not finite. */
MXA_DEVICE float tile_row_sum(mxa_u32x4 v, mxa_shared scales, int part)
{
    float sum = mul_rn(sum_codes(v), dev_load_shared_f32(scales + 4 * (uint32_t)(part / 2)));
    sum = add_rn(sum, shuffle_xor_f32(sum, 1));
    sum = add_rn(sum, shuffle_xor_f32(sum, 2));
    return add_rn(sum, shuffle_xor_f32(sum, 4));
}

/* The tile's rows to the copy, and the sums of its columns where they are wanted. The
 * CTA's threads divide 8*width; width: dims up to the next power of two. */
MXA_DEVICE void values_store(const mxa_prepare_params *params, mxa_shared tile, mxa_shared scales,
                             int width, int threads, int dims, int block, int head)
{
    MXA_UNROLL
    for (int first = 0; first < 8 * width; first += threads) {
        const int index = first + dev_thread(), row = index / 8, part = index % 8;
        mxa_u32x4 v;
        v.x = dev_load_shared_u32(values_word(tile, row, 4 * part));
        v.y = dev_load_shared_u32(values_word(tile, row, 4 * part + 1));
        v.z = dev_load_shared_u32(values_word(tile, row, 4 * part + 2));
        v.w = dev_load_shared_u32(values_word(tile, row, 4 * part + 3));
        if (row < dims) {
            dev_store_global_u32x4(params->payload +
                                       (uint64_t)((head * (int64_t)dims + row) * params->rows +
                                                  block * MXA_PREPARE_CHUNK + 16 * part),
                                   v);
        }
        if (params->partial) {
            const float sum = tile_row_sum(v, scales, part);
            if (part == 0 && row < dims) {
                int64_t to = ((int64_t)block * params->heads + head) * dims + row;
                dev_store_global_f32(params->partial + 4 * (uint64_t)to, sum);
            }
        }
    }
}

#endif
