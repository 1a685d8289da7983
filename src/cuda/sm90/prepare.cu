/* prepare.cu: makes Hopper's private operand copies from any caller's tensors; prepare_bf16.cu
 * and prepare_codes.cu do it faster for some.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md.
 *   wide q and k are first quantized as their block says (docs/format.md), as a producer would;
 *   then every value is folded to one exponent per 32 tokens. The fold is exact but for elements
 *   about 2^10 (q, k) or 2^14 (v) below the group's largest, which lose trailing bits.
 *
 * A thread holds 8 elements of 4 tokens: neighbouring threads read 16 bytes each of one token's
 * row, and four loads are in flight. `width` threads (64, 128 or 256, at least D) make one group of
 * 32 tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/prepare_fold.h"
#include "cuda/sm90/prepare_records.h"
#include "cuda/sm90/prepare_values.h"

/* Shared memory: reduction words; then v's transposed tile, or the column sums. */
enum { AT_REDUCE = 0, AT_SCALES = 1024, AT_TILE = 1056 };

/* Largest of `x` over the lanes that agree modulo `step`, and over `warps` warps from `first` on.
 * All threads of the CTA. */
MXA_DEVICE uint32_t reduce_max(mxa_shared shared, uint32_t x, int step, int first, int warps)
{
    int lane = dev_thread() & 31, warp = dev_thread() >> 5;
    for (int mask = step; mask < 32; mask <<= 1) {
        x = max_u32(x, shuffle_xor_u32(x, mask));
    }
    cta_sync();
    if (lane < step) {
        dev_store_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)(warp * step + lane), x);
    }
    cta_sync();
    for (int w = first; w < first + warps; w++) {
        uint32_t y = dev_load_shared_u32(shared + AT_REDUCE +
                                         4 * (uint32_t)(w * step + (lane & (step - 1))));
        x = max_u32(x, y);
    }
    return x;
}

/* Packed FP16 of 8 elements of 4 tokens, and the group's exponent. */
typedef struct prepare_folded {
    uint32_t h[16]; /* x / 2^exponent: token i's pairs are h[4*i..] */
    int exponent;   /* or MXA_EXPONENT_NONE, then h is not set */
} prepare_folded;

/* An operand that is quantized on the way in. WHY through FP16: a code times a power of two is
 * exact there, or so small that E4M3 rounds it to 0 either way. */
MXA_DEVICE void fold_wide(mxa_shared shared, const mxa_gpu_operand *from, int width, const float *x,
                          prepare_folded *f)
{
    const int chunks = width / 8, warps = width / 32;
    uint32_t top = 0, factor[4];
    int exponent[4];
    if (from->block == MXA_GPU_SQUARE) {
        float inverse;
        uint32_t amax = largest(x, 32);
        amax = max_u32(amax, shuffle_xor_u32(amax, 1));
        amax = max_u32(amax, shuffle_xor_u32(amax, 2));
        amax = reduce_max(shared, amax, chunks, 0, warps);
        exponent[0] = block_scale(amax, from->rounding, &inverse, &top);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            block_round(x + 8 * i, inverse, f->h + 4 * i);
        }
        top = warp_max(top); /* every warp holds every block of the group */
        f->exponent = top >= NOT_FINITE ? MXA_EXPONENT_NONE : fold_exponent(top, 0);
        factor[0] = factor[1] = factor[2] = factor[3] = fold_factor(exponent[0], f->exponent);
    } else {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            float inverse;
            uint32_t most, amax = largest(x + 8 * i, 8);
            amax = max_u32(amax, shuffle_xor_u32(amax, 1));
            amax = max_u32(amax, shuffle_xor_u32(amax, 2));
            exponent[i] = block_scale(amax, from->rounding, &inverse, &most);
            top = max_u32(top, most);
            block_round(x + 8 * i, inverse, f->h + 4 * i);
        }
        top = reduce_max(shared, top, 1, 0, warps);
        f->exponent = top >= NOT_FINITE ? MXA_EXPONENT_NONE : fold_exponent(top, 0);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            factor[i] = fold_factor(exponent[i], f->exponent);
        }
    }
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        f->h[i] = mul_f16x2(f->h[i], factor[i / 4]);
    }
}

/* An MXFP8 operand: its values are exact in FP32, and folded in FP16 as above. */
MXA_DEVICE void fold_given(mxa_shared shared, int width, const float *x, prepare_folded *f)
{
    uint32_t top = reduce_max(shared, largest(x, 32), 1, 0, width / 32);
    f->exponent = top >= NOT_FINITE ? MXA_EXPONENT_NONE : fold_exponent(top, 0);
    float inverse = f->exponent == MXA_EXPONENT_NONE ? 0.0f : inverse_power(f->exponent);
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        f->h[i] = f16x2_from_f32x2(mul_rn(x[2 * i], inverse), mul_rn(x[2 * i + 1], inverse));
    }
}

/* Largest squared norm of this warp's tokens, in units of the exponent's square. WHY FP16 sums of
 * four: payloads are at most 15, and the norm only decides which kernel takes the tile. */
MXA_DEVICE float fold_norm(const prepare_folded *f, int width)
{
    float square[4];
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t sum = 0;
        MXA_UNROLL
        for (int j = 0; j < 4; j++) {
            sum = fma_f16x2(f->h[4 * i + j], f->h[4 * i + j], sum);
        }
        square[i] = add_rn(f32_from_f16_low(sum), f32_from_f16_high(sum));
    }
    /* Lane bits 0 and 1 pick a token while they are summed over, bits 2 and up are summed over. */
    int odd = dev_thread() & 1, high = dev_thread() & 2;
    float a = add_rn(odd ? square[1] : square[0], shuffle_xor_f32(odd ? square[0] : square[1], 1));
    float b = add_rn(odd ? square[3] : square[2], shuffle_xor_f32(odd ? square[2] : square[3], 1));
    float sum = add_rn(high ? b : a, shuffle_xor_f32(high ? a : b, 2));
    for (int mask = 4; mask < width / 8; mask <<= 1) {
        sum = add_rn(sum, shuffle_xor_f32(sum, mask));
    }
    return f32_bits(warp_max(bits_f32(sum)));
}

/* Bytes of a row of the copy of q or k: TMA strides are multiples of 16. */
MXA_DEVICE int prepare_stride(int dims)
{
    return (dims + 15) & ~15;
}

/* q and k: payload rows, scale, and the largest norm of a row. One CTA a group of 32 tokens. */
MXA_DEVICE void prepare_rows(const mxa_prepare_params *params, mxa_shared shared, int width,
                             int head)
{
    const int type = params->from.type, dims = params->head_dim;
    const int group = dev_block_x(), chunks = width / 8, stride = prepare_stride(dims);
    const int d = dev_thread() % chunks * 8, row = dev_thread() / chunks;
    load_place place;
    load_find(&params->batch, params->is_k_side, group * MXA_PREPARE_GROUP, &place);
    int position[4] = {place.position + row, place.position + row + 8, place.position + row + 16,
                       place.position + row + 24};
    float x[32];
    prepare_folded f;
    load_rows(&params->from, type, &place, position, head, d, dims, x);
    if (type <= MXA_GPU_BF16) {
        fold_wide(shared, &params->from, width, x, &f);
    } else {
        fold_given(shared, width, x, &f);
    }
    const int finite = f.exponent != MXA_EXPONENT_NONE;
    mxa_global at =
        params->payload +
        (uint64_t)((head * params->rows + group * MXA_PREPARE_GROUP + row) * stride + d);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t *h = f.h + 4 * i;
        if (d < stride) {
            dev_store_global_u32x2(at + (uint64_t)(8 * i * stride),
                                   finite ? e4m3x4_from_f16x2(h[0], h[1]) : 0x7F7F7F7Fu,
                                   finite ? e4m3x4_from_f16x2(h[2], h[3]) : 0x7F7F7F7Fu);
        }
    }
    uint32_t scale = finite ? (uint32_t)(f.exponent + 127) << 23 : 0x7FC00000u;
    float norm = mul_rn(sqrt_rn(fold_norm(&f, width)), f32_bits(scale));
    if (dev_thread() == 0) {
        uint64_t index = (uint64_t)(head * (params->rows / MXA_PREPARE_GROUP) + group);
        dev_store_global_u32(params->scale + 16 * index, scale);
    }
    if ((dev_thread() & 31) == 0) {
        uint64_t pair = (uint64_t)place.sequence * (uint64_t)params->heads + (uint64_t)head;
        dev_max_global_u32(params->norm + 4 * pair, finite ? bits_f32(norm) : 0x7FC00000u);
    }
}

/* Sum over the CTA's eight rows of threads of column dev_thread(). */
MXA_DEVICE float sum_columns(mxa_shared shared, int width, const float *x)
{
    const mxa_shared at = shared + AT_TILE;
    const int chunks = width / 8, d = dev_thread() % chunks * 8, row = dev_thread() / chunks;
    cta_sync();
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        dev_store_shared_f32(at + 4 * (uint32_t)(row * width + d + j), x[j]);
    }
    cta_sync();
    float total = 0.0f;
    for (int i = 0; i < 8; i++) {
        total = add_rn(total, dev_load_shared_f32(at + 4 * (uint32_t)(i * width + dev_thread())));
    }
    return total;
}

/* Column sums of 128 tokens of v, and their norms. WHY in units of the largest value so far: no
 * square is beyond FP32. */
MXA_DEVICE void prepare_sums(const mxa_prepare_params *params, mxa_shared shared, int width,
                             int head)
{
    const int type = params->from.type, dims = params->head_dim;
    const int chunks = width / 8;
    const int d = dev_thread() % chunks * 8, row = dev_thread() / chunks;
    load_place place;
    load_find(&params->batch, 1, dev_block_x() * MXA_PREPARE_CHUNK, &place);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, squares[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int unit = -126;
    MXA_NO_UNROLL
    for (int i = 0; i < 4; i++) {
        int first = place.position + 32 * i + row;
        int position[4] = {first, first + 8, first + 16, first + 24};
        float x[32];
        load_rows(&params->from, type, &place, position, head, d, dims, x);
        const uint32_t top = reduce_max(shared, largest(x, 32), 1, 0, width / 32);
        const int more = (top < NOT_FINITE ? fold_exponent(top, 1) : unit) - unit;
        const float less =
            more > 0 ? load_power((uint32_t)(127 - (more < 127 ? more : 127))) : 1.0f;
        unit += more > 0 ? more : 0;
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            squares[j] = mul_rn(mul_rn(squares[j], less), less);
            sum[j] = add_rn(sum[j], add_rn(add_rn(x[j], x[8 + j]), add_rn(x[16 + j], x[24 + j])));
            MXA_UNROLL
            for (int t = j; t < 32; t += 8) {
                const float y = mul_rn(x[t], inverse_power(unit));
                squares[j] = fma_rn(y, y, squares[j]);
            }
        }
    }
    const uint64_t at =
        4 * (uint64_t)((dev_block_x() * params->heads + head) * dims + dev_thread());
    float total = sum_columns(shared, width, sum);
    if (dev_thread() < dims) {
        dev_store_global_f32(params->partial + at, total);
    }
    total = sum_columns(shared, width, squares);
    if (dev_thread() < dims) {
        dev_store_global_f32(params->partial_norm + at,
                             mul_rn(sqrt_rn(total), load_power((uint32_t)(127 + unit))));
    }
}

/* First pass over q, k and v. y: q heads, kv heads of k, kv heads of v where its mean is made. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_operands, 256, mxa_prepare_all_params, parameters)
{
    const mxa_prepare_all_params *all = &parameters;
    const mxa_shared shared = dev_shared();
    const mxa_gpu_batch *batch = &all->q.batch;
    const int width = dev_threads();
    if (batch->status && dev_load_global_u32(batch->status)) {
        return;
    }
    const int q_heads = all->q.heads, heads = q_heads + all->k.heads, y = dev_block_y();
    if (y < heads) {
        const mxa_prepare_params *params = y < q_heads ? &all->q : &all->k;
        if (dev_block_x() < params->groups) {
            prepare_rows(params, shared, width, y < q_heads ? y : y - q_heads);
        }
    } else if (dev_block_x() < all->v.groups / 4) {
        prepare_sums(&all->v, shared, width, y - heads);
    }
}

/* v's mean from its sums. Again after v's copy is made (params->top given), whose column sums are
 * there then: what the copy's mean is off is taken from the mean that the epilogue adds. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_mean, 256, mxa_prepare_params, parameters)
{
    const mxa_prepare_params *params = &parameters;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    int sequence = dev_block_x(), head = dev_block_y(), d = dev_thread(), dims = params->head_dim;
    if (d >= dims) {
        return;
    }
    int used;
    const int row = sequence_row(&params->batch, sequence, &used);
    const int first = row / MXA_PREPARE_CHUNK, chunks = (used + MXA_PREPARE_CHUNK - 1) / 128;
    const uint64_t step = 4 * (uint64_t)(params->heads * dims);
    const uint64_t at = (uint64_t)first * step + 4 * (uint64_t)(head * dims + d);
    const float sum = sum_chunks(params->partial + at, chunks, step);
    float mean = column_mean(sum, used);
    mxa_global to = params->mean + 4 * (uint64_t)((sequence * params->heads + head) * dims + d);
    if (params->top) {
        mean = column_correction(dev_load_global_f32(to), mean);
    } else if (!column_leans(sum, norm_chunks(params->partial_norm + at, chunks, step),
                             column_limit(used, params->from.type <= MXA_GPU_BF16))) {
        mean = 0.0f;
    }
    dev_store_global_f32(to, mean);
}

/* v: transposed payload with permuted keys, exponents, and the sequence's largest. One CTA makes
 * 128 tokens; 4*D threads, D for each group. x counts down: the first pass ended with the last
 * tokens, which L2 still holds. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_values, 1024, mxa_prepare_params, parameters)
{
    const mxa_prepare_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    const int width = dev_threads() / 4, dims = params->head_dim;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int chunks = width / 8, head = dev_block_y();
    const int block = dev_grid_x() - 1 - dev_block_x();
    const int group = dev_thread() / width, thread = dev_thread() % width;
    const int d = thread % chunks * 8, quad = thread / chunks;
    load_place place;
    load_find(&params->batch, 1, block * MXA_PREPARE_CHUNK, &place);
    /* Slots 4*quad.. of the group hold keys 16*(quad/4) + {2c, 2c+1, 2c+8, 2c+9}, c = quad % 4. */
    const int first =
        place.position + group * MXA_PREPARE_GROUP + 16 * (quad >> 2) + 2 * (quad & 3);
    int position[4] = {first, first + 1, first + 8, first + 9};
    float x[32];
    load_rows(&params->from, params->from.type, &place, position, head, d, dims, x);
    if (params->mean && d < dims) {
        mxa_global at =
            params->mean + 4 * (uint64_t)((place.sequence * params->heads + head) * dims + d);
        mxa_u32x4 a = dev_load_global_u32x4(at), b = dev_load_global_u32x4(at + 16);
        uint32_t mean[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            if (position[i / 8] < place.used) {
                x[i] = add_rn(x[i], -f32_bits(mean[i % 8]));
            }
        }
    }
    uint32_t amax = reduce_max(shared, largest(x, 32), 1, group * width / 32, width / 32);
    const int finite = amax < NOT_FINITE;
    int exponent = fold_exponent(amax, 1);
    float inverse = finite ? inverse_power(exponent) : 0.0f;
    if (thread == 0) {
        float scale = finite ? f32_bits((uint32_t)(exponent + 127) << 23) : 0.0f;
        dev_store_shared_f32(shared + AT_SCALES + 4 * (uint32_t)group, scale);
    }
    MXA_UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t codes = e4m3x4_from_f32(mul_rn(x[i], inverse), mul_rn(x[8 + i], inverse),
                                         mul_rn(x[16 + i], inverse), mul_rn(x[24 + i], inverse));
        dev_store_shared_u32(values_word(shared + AT_TILE, d + i, 8 * group + quad),
                             finite ? codes : 0x7F7F7F7Fu);
    }
    cta_sync();
    values_store(params, shared + AT_TILE, shared + AT_SCALES, width, 4 * width, dims, block, head);
    if (thread == 0) {
        uint64_t at = (uint64_t)(head * (params->rows / MXA_PREPARE_GROUP) + 4 * block + group);
        const int some = finite && amax != 0;
        dev_store_global_u32(params->exponent + 4 * at,
                             (uint32_t)(some ? exponent : MXA_EXPONENT_NONE));
        if (some) {
            dev_max_global_u32(
                params->top +
                    4 * ((uint64_t)place.sequence * (uint64_t)params->heads + (uint64_t)head),
                (uint32_t)(exponent + 1024));
        }
    }
}

/* Zeros, 16 bytes a thread. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_zero, 256, mxa_prepare_zero_params, parameters)
{
    const int64_t at = 16 * ((int64_t)dev_block_x() * dev_threads() + dev_thread());
    const mxa_u32x4 zeros = {0, 0, 0, 0};
    grid_dependency_launch();
    if (at < parameters.bytes) {
        dev_store_global_u32x4(parameters.at + (uint64_t)at, zeros);
    }
}

/* One warp a CTA. y: kv heads. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_records, 32, mxa_record_params, parameters)
{
    const mxa_record_params *params = &parameters;
    grid_dependency_wait();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    records_make(params, dev_block_y(), 32 * (int64_t)dev_block_x(),
                 params->rows / MXA_PREPARE_GROUP, 0);
}
