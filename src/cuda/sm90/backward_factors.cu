/* backward_factors.cu: what the Hopper backward's sums are relative to: one CTA a (sequence, kv
 * head) finds the mean of dO of its q heads, and the exponents that all its groups are held
 * against, from the groups' norms. Numbers: docs/kernels/hopper_backward.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_groups.h"
#include "cuda/sm90/backward_half.h"

enum { FACTOR_THREADS = 256, AT_REDUCE = 0, AT_SUMS = 256 };
MXA_STATIC_ASSERT(AT_REDUCE + 4 * 8 * (FACTOR_THREADS / 32) <= AT_SUMS, "maxima of warps");
#define MEAN_LEAST                                                                                 \
    0.125f /* of the deviation: what the accumulator's bias makes of less is noise                 \
            */
#define MEAN_VALUES                                                                                \
    32.0f /* largest values of dO that the sum is more than: as few rows of it have a mean that is \
             none of the others' */

/* Largest of each of `count` x, at most 8, of the CTA; all threads. */
MXA_DEVICE void cta_max_all(mxa_shared shared, int count, int *x)
{
    const int warps = dev_threads() / 32;
    cta_sync();
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        x[i] = (int)warp_max_u32((uint32_t)(x[i] + 0x40000000));
        if ((dev_thread() & 31) == 0) {
            dev_store_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)(8 * i + (dev_thread() >> 5)),
                                 (uint32_t)x[i]);
        }
    }
    cta_sync();
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        for (int w = 0; w < warps; w++) {
            const int y = (int)dev_load_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)(8 * i + w));
            x[i] = y > x[i] ? y : x[i];
        }
        x[i] -= 0x40000000;
    }
}

MXA_DEVICE int cta_max(mxa_shared shared, int x)
{
    cta_max_all(shared, 1, &x);
    return x;
}

/* A float that is not negative as an integer of the same order, and back. */
MXA_DEVICE int order_f32(float x)
{
    return (int)(bits_f32(x) >> 1);
}

MXA_DEVICE float ordered_f32(int x)
{
    return f32_bits((uint32_t)x << 1);
}

/* The same of a float that is not negative. */
MXA_DEVICE float cta_max_f32(mxa_shared shared, float x)
{
    return ordered_f32(cta_max(shared, order_f32(x)));
}

MXA_DEVICE float cta_sum(mxa_shared shared, float x)
{
    float sum = 0.0f;
    for (int mask = 1; mask < 32; mask <<= 1) {
        x = add_rn(x, shuffle_xor_f32(x, mask));
    }
    cta_sync();
    if ((dev_thread() & 31) == 0) {
        dev_store_shared_f32(shared + AT_REDUCE + 4 * (uint32_t)(dev_thread() >> 5), x);
    }
    cta_sync();
    for (int w = 0; w < dev_threads() / 32; w++) {
        sum = add_rn(sum, dev_load_shared_f32(shared + AT_REDUCE + 4 * (uint32_t)w));
    }
    return sum;
}

/* Column sums of dO of one q head to shared memory, [slice][D]: a thread adds up four dimensions of
 * every SLICES-th tile, four tiles at a time. WHY: one load after another took 20 of 33
 * microseconds at 8,192 tokens. */
MXA_DEVICE void sum_columns(const mxa_backward_prepare_params *params, mxa_shared shared,
                            int head_dim, const backward_extent *extent, int head)
{
    const int d = dev_thread() % (head_dim / 4) * 4, slice = dev_thread() / (head_dim / 4);
    const int slices = FACTOR_THREADS * 4 / head_dim;
    const uint64_t first =
        2 * ((uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)extent->tile);
    enum { FLIGHT = 8 }; /* loads on their way at once */
    const int groups = 2 * extent->tiles;
    const mxa_global at = params->partial + 4 * (first * (uint64_t)head_dim + (uint64_t)d);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    MXA_NO_UNROLL
    for (int group = slice; group < groups; group += FLIGHT * slices) {
        mxa_u32x4 v[FLIGHT];
        MXA_UNROLL
        for (int k = 0; k < FLIGHT; k++) {
            const mxa_u32x4 zero = {0, 0, 0, 0};
            v[k] = group + k * slices < groups
                       ? dev_load_global_u32x4(at + 4 * (uint64_t)((group + k * slices) * head_dim))
                       : zero;
        }
        MXA_UNROLL
        for (int k = 0; k < FLIGHT; k++) {
            sum[0] = add_rn(sum[0], f32_bits(v[k].x));
            sum[1] = add_rn(sum[1], f32_bits(v[k].y));
            sum[2] = add_rn(sum[2], f32_bits(v[k].z));
            sum[3] = add_rn(sum[3], f32_bits(v[k].w));
        }
    }
    const mxa_u32x4 sums = {bits_f32(sum[0]), bits_f32(sum[1]), bits_f32(sum[2]), bits_f32(sum[3])};
    cta_sync();
    dev_store_shared_u32x4(shared + AT_SUMS + 4 * (uint32_t)(slice * head_dim + d), sums);
    cta_sync();
}

/* The mean of dO of one q head, whose largest value is `largest`; returns the largest |mean|. */
MXA_DEVICE float find_mean(const mxa_backward_prepare_params *params, mxa_shared shared,
                           int head_dim, const backward_extent *extent, int rows, int sequence,
                           int head, float squares, float largest)
{
    const int d = dev_thread(), slices = FACTOR_THREADS * 4 / head_dim;
    float mean = 0.0f;
    sum_columns(params, shared, head_dim, extent, head);
    if (d < head_dim && rows > 0) {
        for (int i = 0; i < slices; i++) {
            mean = add_rn(mean,
                          dev_load_shared_f32(shared + AT_SUMS + 4 * (uint32_t)(i * head_dim + d)));
        }
        const float count = (float)rows;
        const float deviation = sqrt_rn(squares / (count * (float)params->head_dim_v));
        const int is_few = !(fold_abs(mean) > mul_rn(MEAN_VALUES, largest));
        mean = mean / count;
        if (is_few || !(fold_abs(mean) > mul_rn(MEAN_LEAST, deviation)) ||
            bits_f32(fold_abs(mean)) >= NOT_FINITE) {
            mean = 0.0f;
        }
    }
    const uint64_t pair = (uint64_t)(sequence * params->heads + head);
    if (d < head_dim) {
        dev_store_global_f32(params->mean + 4 * (pair * (uint64_t)head_dim + (uint64_t)d), mean);
    }
    const float most = cta_max_f32(shared, fold_abs(mean));
    if (d == 0) {
        dev_store_global_f32(params->mean_used + 4 * pair, most);
    }
    return most;
}

/* Exponent of dQ's sums in FP16: docs/math.md. Its spare binade covers 1,500 additions; each twice
 * as many as there can be, of 64 keys or more, take another. */
MXA_DEVICE int dq_exponent(const mxa_backward_prepare_params *params, int key_groups, float bound)
{
    if (params->dq_f32) {
        return 0;
    }
    if (params->dq_log2_given != (int)0x80000000) {
        return params->dq_log2_given;
    }
    if (!(bound > 0.0f) || bits_f32(bound) >= NOT_FINITE) {
        return 0;
    }
    /* The largest e with bound * 2^(e+1) <= 65504: of 2^16 * (1 - 2^-11). */
    int e = 14 - (backward_log2(bits_f32(bound)) + ((bits_f32(bound) & 0x7FFFFF) > 0x7FE000));
    for (int additions = key_groups / 2; additions > 1500; additions /= 2) {
        e--;
    }
    return e < -100 ? -100 : e > 100 ? 100 : e;
}

/* What keys and queries come to: largest norms, exponent of K and factors of scores, and whether
 * some row is far. */
typedef struct pair_most {
    float v_norm, o_norm, dlse;
    float q_score, k_score;
    int k_exponent, far;
} pair_most;

/* WHY in one walk: what is loaded is on its way together. */
MXA_DEVICE void read_groups(const mxa_backward_prepare_params *params, mxa_shared shared,
                            const backward_extent *extent, int kv_head, int q_row, int rows,
                            pair_most *most)
{
    const int q_groups = (rows + MXA_BACKWARD_GROUP - 1) / MXA_BACKWARD_GROUP;
    const int groups = max_i32(extent->groups, 2 * extent->tiles);
    pair_most m = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, -1000, 0};
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < groups; g += FACTOR_THREADS) {
        const uint64_t key = 16 * (uint64_t)(kv_head * (params->k_rows / MXA_BACKWARD_GROUP) +
                                             (int64_t)(extent->group + g));
        uint32_t scale = NOT_FINITE;
        float norm = 0.0f, score = 0.0f;
        if (g < extent->groups) {
            norm = dev_load_global_f32(params->key_groups + key);
            scale = dev_load_global_u32(params->k_records + key);
            score = dev_load_global_f32(params->score_k + key);
        }
        MXA_NO_UNROLL
        for (int h = kv_head * params->group; h < (kv_head + 1) * params->group; h++) {
            const uint64_t first =
                2 * ((uint64_t)h * (uint64_t)params->q_tiles + (uint64_t)extent->tile);
            const int64_t query =
                h * (params->q_rows / MXA_BACKWARD_GROUP) + q_row / MXA_BACKWARD_GROUP + g;
            if (g < q_groups) {
                m.q_score =
                    max_f32(m.q_score, dev_load_global_f32(params->score_q + 16 * (uint64_t)query));
            }
            if (g < 2 * extent->tiles) {
                query_group group;
                read_query_group(params, first + (uint64_t)g, &group);
                m.o_norm = max_f32(m.o_norm, group.o_norm);
                m.dlse = max_f32(m.dlse, group.dlse);
                m.far |= group.far;
            }
        }
        m.v_norm = max_f32(m.v_norm, norm);
        m.k_score = max_f32(m.k_score, score);
        m.k_exponent =
            scale < NOT_FINITE ? max_i32(m.k_exponent, backward_log2(scale)) : m.k_exponent;
    }
    int x[7] = {order_f32(m.v_norm),
                order_f32(m.o_norm),
                order_f32(m.dlse),
                order_f32(m.q_score),
                order_f32(m.k_score),
                m.k_exponent,
                m.far};
    cta_max_all(shared, 7, x);
    *most = (pair_most){ordered_f32(x[0]),
                        ordered_f32(x[1]),
                        ordered_f32(x[2]),
                        ordered_f32(x[3]),
                        ordered_f32(x[4]),
                        x[5],
                        x[6]};
}

/* One q head: its mean, its exponent of dQ; raises the exponents of Q^T and dO^T. */
MXA_DEVICE void read_head(const mxa_backward_prepare_params *params, mxa_shared shared,
                          int head_dim, const backward_extent *extent, int sequence, int rows,
                          int q_row, int head, float k_most, mxa_backward_factors *f,
                          int *dout_least)
{
    const uint64_t first =
        2 * ((uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)extent->tile);
    float squares = 0.0f, bound = 0.0f, largest = 0.0f;
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < 2 * extent->tiles; g += FACTOR_THREADS) {
        query_group group;
        read_query_group(params, first + (uint64_t)g, &group);
        squares = add_rn(squares, group.squares);
        largest = max_f32(largest, group.dout_most);
        bound = max_f32(bound, fma_rn(group.dout_norm, add_rn(f->v_norm, f->o_norm), group.dlse));
    }
    squares = cta_sum(shared, squares);
    int most[2] = {order_f32(bound), order_f32(largest)};
    cta_max_all(shared, 2, most);
    bound = mul_rn(ordered_f32(most[0]), k_most);
    const float mean = find_mean(params, shared, head_dim, extent, rows, sequence, head, squares,
                                 ordered_f32(most[1]));
    int dout_most = -1000, dout_low = -1000, q_most = -1000;
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < 2 * extent->tiles; g += FACTOR_THREADS) {
        query_group group;
        int finite, q = 0;
        read_query_group(params, first + (uint64_t)g, &group);
        dout_most = max_i32(dout_most, dout_exponent(&group, mean));
        const int a = backward_exponent(query_factor(group.dout_norm, group.dlse, f->dlse_norm));
        if (group.dout_norm > 0.0f || group.dlse > 0.0f) {
            dout_low = max_i32(dout_low, -dout_exponent(&group, mean));
        }
        if (group.dout_norm > 0.0f && group.exponent - a < HALF_QUERY_LEAST) {
            dout_low = 1000;
        }
        finite = MXA_BACKWARD_GROUP * g < rows;
        if (finite) {
            q = q_exponent(params, head, q_row + MXA_BACKWARD_GROUP * g, &finite);
        }
        if (finite) {
            q_most = max_i32(q_most, q + a - group.sum_log2);
        }
    }
    int x[3] = {dout_most, dout_low, q_most};
    cta_max_all(shared, 3, x);
    f->dout_log2 = max_i32(f->dout_log2, x[0]);
    *dout_least = -max_i32(-*dout_least, x[1]);
    f->q_log2 = max_i32(f->q_log2, x[2] - COPY_MOST_LOG2);
    if (dev_thread() == 0) {
        uint64_t pair = (uint64_t)(sequence * params->heads + head);
        dev_store_global_u32(params->dq_log2 + 4 * pair,
                             (uint32_t)dq_exponent(params, extent->groups, bound));
    }
}

MXA_DEVICE void find_factors(const mxa_backward_prepare_params *params, int head_dim)
{
    const mxa_shared shared = dev_shared();
    grid_dependency_launch();
    grid_dependency_wait();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int sequence = dev_block_x(), kv_head = dev_block_y();
    int rows = params->batch.seqlen_q, q_row = sequence * params->batch.padded_q;
    backward_extent extent;
    mxa_backward_factors f;
    pair_most of;
    backward_find_extent(&params->batch, sequence, &extent);
    if (params->batch.sequences) {
        rows = dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)sequence + 8);
        q_row = dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)sequence + 32);
    }
    read_groups(params, shared, &extent, kv_head, q_row, rows, &of);
    f.v_norm = of.v_norm;
    f.o_norm = of.o_norm;
    const uint64_t pair = (uint64_t)(sequence * (params->heads / params->group) + kv_head);
    const float score = mul_rn(of.q_score, of.k_score);
    int dout_least = 1000;
    f.dlse_norm = of.dlse > 0.0f ? f.v_norm > 0.0f ? f.v_norm : 1.0f : 0.0f;
    f.dout_log2 = f.q_log2 = -1000;
    for (int h = kv_head * params->group; h < (kv_head + 1) * params->group; h++) {
        read_head(params, shared, head_dim, &extent, sequence, rows, q_row, h,
                  mul_rn(15.0f, backward_power(of.k_exponent)), &f, &dout_least);
    }
    int wide = of.far || f.dout_log2 - dout_least > HALF_RANGE ||
               !(mul_rn(score, fold_abs(params->scale_log2e)) < HALF_SCORE_MOST);
    const int b_most = backward_exponent(key_factor(f.v_norm, f.o_norm, f.dlse_norm));
    int most = -1000;
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < extent.groups; g += FACTOR_THREADS) {
        uint64_t at = (uint64_t)(kv_head * (params->k_rows / MXA_BACKWARD_GROUP) +
                                 (int64_t)(extent.group + g));
        uint32_t scale = dev_load_global_u32(params->k_records + 16 * at);
        const mxa_u32x2 v = dev_load_global_u32x2(params->key_groups + 16 * at);
        const int b = backward_exponent(key_factor(f32_bits(v.x), f.o_norm, f.dlse_norm));
        wide |= half_keys_wide(v.x ? (int)v.y - b : 0, b_most - b);
        if (scale < NOT_FINITE) {
            most = max_i32(most, backward_log2(scale) + b);
        }
    }
    int x[2] = {wide, most};
    cta_max_all(shared, 2, x);
    f.k_log2 = x[1] - COPY_MOST_LOG2;
    /* Where there is nothing, or nothing finite. */
    f.k_log2 = f.k_log2 < -900 ? 0 : f.k_log2;
    f.q_log2 = f.q_log2 < -900 ? 0 : f.q_log2;
    f.dout_log2 = f.dout_log2 < -900 ? 0 : f.dout_log2;
    if (dev_thread() == 0) {
        dev_store_global_u32(params->far + 4 * pair, (uint32_t)x[0]);
        mxa_u32x4 a = {bits_f32(f.v_norm), bits_f32(f.o_norm), bits_f32(f.dlse_norm),
                       (uint32_t)f.dout_log2};
        dev_store_global_u32x4(params->factors + 32 * pair, a);
        dev_store_global_u32x2(params->factors + 32 * pair + 16, (uint32_t)f.q_log2,
                               (uint32_t)f.k_log2);
        dev_store_global_f32(params->dv_factor + 4 * pair, backward_power(f.dout_log2 - 8));
    }
}

MXA_KERNEL_SMALL(mxa_sm90_backward_factors_d64, 256, mxa_backward_prepare_params, parameters)
{
    find_factors(&parameters, 64);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_factors_d128, 256, mxa_backward_prepare_params, parameters)
{
    find_factors(&parameters, 128);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_factors_d256, 256, mxa_backward_prepare_params, parameters)
{
    find_factors(&parameters, 256);
}
