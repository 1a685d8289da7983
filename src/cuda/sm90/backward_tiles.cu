/* backward_tiles.cu: what the Hopper backward's sums are relative to, and its turned copies.
 *
 * Numbers: docs/kernels/hopper_backward.md. Two entries of each head_dim:
 *   factors  one CTA a (sequence, kv head): the mean of dO of its q heads, and the exponents that
 *            all its groups are held against, from the groups' norms
 *   tiles    one CTA for 64 queries of a q head or 128 keys of a kv head (y: q heads, then kv
 *            heads), 2*D threads: Q^T and K^T with their exponents shifted, records of rows and
 *            groups, and dQ's sums cleared; dO^T where the first pass's is not to be: less a mean,
 *            or shifted
 *
 * A product of two rounded operands keeps its exponents where they do not sum away: dS of a query
 * group g and a key group j is held times 2^(8 - a_g - b_j), and 2^(a_g - L_g) goes into Q^T, 2^b_j
 * into K^T, where dK and dQ contract over them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_half.h"
#include "cuda/sm90/backward_turn.h"
#include "cuda/sm90/prepare_fold.h"

enum { FACTOR_THREADS = 256, TILE_KEYS = 128, AT_REDUCE = 0, AT_SUMS = 256, AT_TILE = 0 };
enum {
    COPY_MOST_LOG2 = 4, /* q's and k's copies are at most 15: four binades up is within E4M3 */
    RANGE_LOG2 = 40     /* exponents further below the largest are held there */
};
#define MEAN_LEAST                                                                                 \
    0.125f /* of the deviation: what the accumulator's bias makes of less is noise                 \
            */

/* Largest x of the CTA; all threads. */
MXA_DEVICE int cta_max(mxa_shared shared, int x)
{
    x = (int)(warp_max_u32((uint32_t)(x + 0x40000000)));
    cta_sync();
    if ((dev_thread() & 31) == 0) {
        dev_store_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)(dev_thread() >> 5), (uint32_t)x);
    }
    cta_sync();
    for (int w = 0; w < dev_threads() / 32; w++) {
        int y = (int)dev_load_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)w);
        x = y > x ? y : x;
    }
    return x - 0x40000000;
}

/* The same of a float that is not negative. */
MXA_DEVICE float cta_max_f32(mxa_shared shared, float x)
{
    return f32_bits((uint32_t)cta_max(shared, (int)(bits_f32(x) >> 1)) << 1);
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

MXA_DEVICE int max_i32(int a, int b)
{
    return a > b ? a : b;
}

/* A query group's record and what else is asked of it. */
typedef struct query_group {
    float dout_norm, o_norm, dlse, squares, dout_most;
    int exponent, sum_log2, far;
} query_group;

MXA_DEVICE void read_query_group(const mxa_backward_prepare_params *params, uint64_t index,
                                 query_group *g)
{
    mxa_u32x4 a = dev_load_global_u32x4(params->query_groups + 32 * index);
    mxa_u32x4 b = dev_load_global_u32x4(params->query_groups + 32 * index + 16);
    g->dout_norm = f32_bits(a.x);
    g->o_norm = f32_bits(a.y);
    g->dlse = f32_bits(a.z);
    g->squares = f32_bits(a.w);
    g->dout_most = f32_bits(b.x);
    g->exponent = (int)b.y;
    g->sum_log2 = (int)b.z;
    g->far = (int)b.w;
}

/* Exponent of a group of q's copy at row q_row; *finite: it is one. */
MXA_DEVICE int q_exponent(const mxa_backward_prepare_params *params, int head, int q_row,
                          int *finite)
{
    uint64_t at = (uint64_t)(head * (params->q_rows / MXA_BACKWARD_GROUP) +
                             (int64_t)(q_row / MXA_BACKWARD_GROUP));
    uint32_t scale = dev_load_global_u32(params->q_scale + 16 * at);
    *finite = scale < NOT_FINITE;
    return *finite ? backward_log2(scale) : 0;
}

/* Exponent of dO^T's copy of a group, with the power that P's normalisation takes from dO. `mean`:
 * the largest |mean| of the head. */
MXA_DEVICE int dout_exponent(const query_group *g, float mean)
{
    if (g->exponent == MXA_EXPONENT_NONE) {
        return -g->sum_log2;
    }
    return (mean > 0.0f ? fold_exponent(bits_f32(add_rn(g->dout_most, mean)), 1) : g->exponent) -
           g->sum_log2;
}

/* The mean of dO of one q head; returns the largest |mean|. */
MXA_DEVICE float find_mean(const mxa_backward_prepare_params *params, mxa_shared shared,
                           int head_dim, const backward_extent *extent, int rows, int sequence,
                           int head, float squares)
{
    const int d = dev_thread() % head_dim, slice = dev_thread() / head_dim;
    const int slices = FACTOR_THREADS / head_dim;
    const uint64_t first = (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)extent->tile;
    const mxa_global at = params->partial + 4 * (first * (uint64_t)head_dim + (uint64_t)d);
    const uint64_t step = 4 * (uint64_t)(slices * head_dim);
    float sum = 0.0f;
    int tile = slice;
    /* WHY eight at a time: one load after another took 20 of 33 microseconds at 8,192 tokens. */
    MXA_NO_UNROLL
    for (; tile + 7 * slices < extent->tiles; tile += 8 * slices) {
        const mxa_global from = at + 4 * (uint64_t)(tile * head_dim);
        float x[8];
        MXA_UNROLL
        for (int k = 0; k < 8; k++) {
            x[k] = dev_load_global_f32(from + (uint64_t)k * step);
        }
        MXA_UNROLL
        for (int k = 0; k < 8; k++) {
            sum = add_rn(sum, x[k]);
        }
    }
    MXA_NO_UNROLL
    for (; tile < extent->tiles; tile += slices) {
        sum = add_rn(sum, dev_load_global_f32(at + 4 * (uint64_t)(tile * head_dim)));
    }
    cta_sync();
    dev_store_shared_f32(shared + AT_SUMS + 4 * (uint32_t)dev_thread(), sum);
    cta_sync();
    float mean = 0.0f;
    if (dev_thread() < head_dim && rows > 0) {
        for (int i = 0; i < slices; i++) {
            mean = add_rn(mean,
                          dev_load_shared_f32(shared + AT_SUMS + 4 * (uint32_t)(i * head_dim + d)));
        }
        const float count = (float)rows;
        const float deviation = sqrt_rn(squares / (count * (float)params->head_dim_v));
        mean = mean / count;
        if (!(fold_abs(mean) > mul_rn(MEAN_LEAST, deviation)) ||
            bits_f32(fold_abs(mean)) >= NOT_FINITE) {
            mean = 0.0f;
        }
    }
    const uint64_t pair = (uint64_t)(sequence * params->heads + head);
    if (dev_thread() < head_dim) {
        dev_store_global_f32(params->mean + 4 * (pair * (uint64_t)head_dim + (uint64_t)d), mean);
    }
    const float most = cta_max_f32(shared, fold_abs(mean));
    if (dev_thread() == 0) {
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

/* What keys come to: largest norm of V and largest exponent of K. */
MXA_DEVICE void read_keys(const mxa_backward_prepare_params *params, mxa_shared shared,
                          const backward_extent *extent, int kv_head, float *v_norm, int *k_most)
{
    float norm = 0.0f;
    int most = -1000;
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < extent->groups; g += FACTOR_THREADS) {
        uint64_t at = (uint64_t)(kv_head * (params->k_rows / MXA_BACKWARD_GROUP) +
                                 (int64_t)(extent->group + g));
        norm = max_f32(norm, dev_load_global_f32(params->key_groups + 16 * at));
        uint32_t scale = dev_load_global_u32(params->k_records + 16 * at);
        most = scale < NOT_FINITE ? max_i32(most, backward_log2(scale)) : most;
    }
    *v_norm = cta_max_f32(shared, norm);
    *k_most = cta_max(shared, most);
}

/* First look at the queries of the q heads: largest norms, and whether some row is far. */
MXA_DEVICE int read_queries(const mxa_backward_prepare_params *params, mxa_shared shared,
                            const backward_extent *extent, int kv_head, float *o_norm, float *dlse)
{
    float o = 0.0f, most = 0.0f;
    int far = 0;
    for (int h = kv_head * params->group; h < (kv_head + 1) * params->group; h++) {
        uint64_t first = 2 * ((uint64_t)h * (uint64_t)params->q_tiles + (uint64_t)extent->tile);
        MXA_NO_UNROLL
        for (int g = dev_thread(); g < 2 * extent->tiles; g += FACTOR_THREADS) {
            query_group group;
            read_query_group(params, first + (uint64_t)g, &group);
            o = max_f32(o, group.o_norm);
            most = max_f32(most, group.dlse);
            far |= group.far;
        }
    }
    *o_norm = cta_max_f32(shared, o);
    *dlse = cta_max_f32(shared, most);
    return cta_max(shared, far);
}

/* One q head: its mean, its exponent of dQ; raises the exponents of Q^T and dO^T. */
MXA_DEVICE void read_head(const mxa_backward_prepare_params *params, mxa_shared shared,
                          int head_dim, const backward_extent *extent, int sequence, int rows,
                          int q_row, int head, float k_most, mxa_backward_factors *f,
                          int *dout_least)
{
    const uint64_t first =
        2 * ((uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)extent->tile);
    float squares = 0.0f, bound = 0.0f;
    MXA_NO_UNROLL
    for (int g = dev_thread(); g < 2 * extent->tiles; g += FACTOR_THREADS) {
        query_group group;
        read_query_group(params, first + (uint64_t)g, &group);
        squares = add_rn(squares, group.squares);
        bound = max_f32(bound, fma_rn(group.dout_norm, add_rn(f->v_norm, f->o_norm), group.dlse));
    }
    squares = cta_sum(shared, squares);
    bound = mul_rn(cta_max_f32(shared, bound), k_most);
    const float mean = find_mean(params, shared, head_dim, extent, rows, sequence, head, squares);
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
    dout_most = cta_max(shared, dout_most);
    *dout_least = -max_i32(-*dout_least, cta_max(shared, dout_low));
    q_most = cta_max(shared, q_most);
    f->dout_log2 = max_i32(f->dout_log2, dout_most);
    f->q_log2 = max_i32(f->q_log2, q_most - COPY_MOST_LOG2);
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
    int rows = params->batch.seqlen_q, q_row = sequence * params->batch.padded_q, k_most;
    backward_extent extent;
    mxa_backward_factors f;
    float dlse;
    backward_find_extent(&params->batch, sequence, &extent);
    if (params->batch.sequences) {
        rows = dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)sequence + 8);
        q_row = dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)sequence + 32);
    }
    read_keys(params, shared, &extent, kv_head, &f.v_norm, &k_most);
    const int far = read_queries(params, shared, &extent, kv_head, &f.o_norm, &dlse);
    const uint64_t pair = (uint64_t)(sequence * (params->heads / params->group) + kv_head);
    float q_score, k_score;
    half_scores(params, &extent, kv_head, q_row, rows, FACTOR_THREADS, &q_score, &k_score);
    const float score = mul_rn(cta_max_f32(shared, q_score), cta_max_f32(shared, k_score));
    int dout_least = 1000;
    f.dlse_norm = dlse > 0.0f ? f.v_norm > 0.0f ? f.v_norm : 1.0f : 0.0f;
    f.dout_log2 = f.q_log2 = -1000;
    for (int h = kv_head * params->group; h < (kv_head + 1) * params->group; h++) {
        read_head(params, shared, head_dim, &extent, sequence, rows, q_row, h,
                  mul_rn(15.0f, backward_power(k_most)), &f, &dout_least);
    }
    int wide = far || f.dout_log2 - dout_least > HALF_RANGE ||
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
    wide = cta_max(shared, wide);
    f.k_log2 = cta_max(shared, most) - COPY_MOST_LOG2;
    /* Where there is nothing, or nothing finite. */
    f.k_log2 = f.k_log2 < -900 ? 0 : f.k_log2;
    f.q_log2 = f.q_log2 < -900 ? 0 : f.q_log2;
    f.dout_log2 = f.dout_log2 < -900 ? 0 : f.dout_log2;
    if (dev_thread() == 0) {
        dev_store_global_u32(params->far + 4 * pair, (uint32_t)wide);
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

MXA_DEVICE void read_factors(const mxa_backward_prepare_params *params, int sequence, int kv_head,
                             mxa_backward_factors *f)
{
    uint64_t pair = (uint64_t)(sequence * (params->heads / params->group) + kv_head);
    mxa_u32x4 a = dev_load_global_u32x4(params->factors + 32 * pair);
    mxa_u32x2 b = dev_load_global_u32x2(params->factors + 32 * pair + 16);
    f->v_norm = f32_bits(a.x);
    f->o_norm = f32_bits(a.y);
    f->dlse_norm = f32_bits(a.z);
    f->dout_log2 = (int)a.w;
    f->q_log2 = (int)b.x;
    f->k_log2 = (int)b.y;
}

/* Bytes of a row of the forward's copies of q and k. */
MXA_DEVICE int copy_stride(const mxa_backward_prepare_params *params)
{
    return (params->head_dim + 15) / 16 * 16;
}

/* dO^T where the head has a mean: rounded once, from the caller's values. */
MXA_DEVICE void centre_codes(const mxa_backward_prepare_params *params, const load_place *place,
                             int head, int head_dim, int d, const int *row, int exponent,
                             uint32_t *x)
{
    const uint64_t pair = (uint64_t)(place->sequence * params->heads + head);
    const float inverse = backward_power(-exponent);
    float y[32];
    int position[4];
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        position[t] = place->position + row[t];
    }
    load_rows(&params->dout, params->dout.type, place, position, head, d, params->head_dim_v, y);
    const mxa_global mean = params->mean + 4 * (pair * (uint64_t)head_dim + (uint64_t)d);
    const int rows = place->used - place->position;
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        float *z = y + 8 * t;
        const mxa_u32x4 a = dev_load_global_u32x4(mean), b = dev_load_global_u32x4(mean + 16);
        const uint32_t m[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            z[j] = row[t] < rows ? mul_rn(add_rn(z[j], -f32_bits(m[j])), inverse) : 0.0f;
        }
        x[2 * t] = e4m3x4_from_f32(z[0], z[1], z[2], z[3]);
        x[2 * t + 1] = e4m3x4_from_f32(z[4], z[5], z[6], z[7]);
    }
}

/* The exponents of one of a tile's two query groups. */
typedef struct query_exponents {
    int q;      /* of q's copy */
    int dout;   /* of dO's row copy */
    int turned; /* of dO^T */
    int a, sum_log2;
    int empty; /* dO is 0 */
} query_exponents;

MXA_DEVICE void find_exponents(const mxa_backward_prepare_params *params, uint64_t block, int half,
                               int head, int q_row, int rows, float mean,
                               const mxa_backward_factors *f, query_exponents *e)
{
    query_group group;
    read_query_group(params, 2 * block + (uint64_t)half, &group);
    int finite;
    e->q = rows > MXA_BACKWARD_GROUP * half
               ? q_exponent(params, head, q_row + MXA_BACKWARD_GROUP * half, &finite)
               : 0;
    e->dout = group.exponent == MXA_EXPONENT_NONE ? 0 : group.exponent;
    e->turned = max_i32(dout_exponent(&group, mean), f->dout_log2 - RANGE_LOG2);
    e->a = backward_exponent(query_factor(group.dout_norm, group.dlse, f->dlse_norm));
    e->sum_log2 = group.sum_log2;
    e->empty = group.dout_norm == 0.0f && group.exponent != MXA_EXPONENT_NONE;
}

/* Whether dO^T has another exponent than the row copy. */
MXA_DEVICE int is_shifted(const query_exponents *e)
{
    return e->turned != e->dout - e->sum_log2;
}

/* The tile's record: rows by one thread each, groups by one each. */
MXA_DEVICE void write_record(const mxa_backward_prepare_params *params, uint64_t block, int head,
                             int sequence, int q_row, int rows, const query_exponents *e,
                             const mxa_backward_factors *f)
{
    const int row = dev_thread(), half = row / MXA_BACKWARD_GROUP;
    const mxa_global record = params->q_records + block * MXA_BACKWARD_RECORDS;
    if (row >= MXA_BACKWARD_TILE_Q) {
        return;
    }
    const uint64_t at = 4 * (block * 64 + (uint64_t)row);
    const float top = dev_load_global_f32(params->row_top + at);
    const float rest = dev_load_global_f32(params->row_rest + at);
    const float delta = dev_load_global_f32(params->delta + at);
    const uint32_t far = (dev_load_global_u32(params->query_groups + 64 * block + 28) |
                          dev_load_global_u32(params->query_groups + 64 * block + 60)) > 1;
    /* Row 8*j + 2*c + e is float 2*j + e of row c. */
    const uint64_t to =
        (uint64_t)(MXA_BACKWARD_RECORD_ROW * (row >> 1 & 3) + 8 * (row >> 3) + 4 * (row & 1));
    const int shift = f->dout_log2 - e->turned;
    const float least = add_rn(rest, (float)(shift - 8 - e->sum_log2));
    const int apart = far && !(params->softcap > 0.0f);
    dev_store_global_f32(record + MXA_BACKWARD_RECORD_M + to, apart ? top : add_rn(top, least));
    if (apart) {
        dev_store_global_f32(params->row_rest + at, exp2_approx(-least));
    }
    if (row == 0) {
        dev_store_global_u32(record + MXA_BACKWARD_RECORD_FAR, far);
    }
    const int b = backward_exponent(key_factor(f->v_norm, f->o_norm, f->dlse_norm));
    const float d = mul_rn(delta, backward_power(shift - e->a - b));
    dev_store_global_f32(record + MXA_BACKWARD_RECORD_D + to, d);
    half_write_row(record + MXA_BACKWARD_RECORD, row, add_rn(top, least), d);
    if (row % MXA_BACKWARD_GROUP == 0) {
        const uint64_t pair = (uint64_t)(sequence * params->heads + head),
                       mine = 4 * (uint64_t)half;
        const int dq_log2 = dev_load_global_i32(params->dq_log2 + 4 * pair);
        const uint64_t group = (uint64_t)(head * (params->q_rows / MXA_BACKWARD_GROUP) +
                                          (int64_t)(q_row / MXA_BACKWARD_GROUP + half));
        const float q = row < rows ? dev_load_global_f32(params->score_q + 16 * group) : 0.0f;
        const float dp = backward_power(e->dout + shift - e->a);
        const float dq = backward_power(e->a - e->sum_log2 - 8 + f->k_log2 + dq_log2);
        const float sum = backward_power(shift - 8 - e->sum_log2);
        dev_store_global_f32(record + MXA_BACKWARD_RECORD_Q + mine, q);
        dev_store_global_f32(record + MXA_BACKWARD_RECORD_DP + mine, dp);
        dev_store_global_f32(record + MXA_BACKWARD_RECORD_DQ + mine, dq);
        dev_store_global_f32(record + MXA_BACKWARD_RECORD_SUM + mine, sum);
        half_write_group(record + MXA_BACKWARD_RECORD, half, q, e->empty ? 0.0f : dp, dq, sum);
    }
}

/* Whether the main kernel clears dQ's sums of the (sequence, kv head) pair. WHY not where the
 * sequence has no keys: then nothing waits for it. */
MXA_DEVICE int main_clears(const mxa_backward_prepare_params *params, int sequence, int pair)
{
    return params->turns
               ? dev_load_global_i32(params->turns + 8 * (uint64_t)sequence + 4) > 0 &&
                     dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)sequence + 24) > 0
               : pair >= params->clear_pairs;
}

/* dQ's sums of the tile, unless the main kernel clears them, and how many were added. */
MXA_DEVICE void clear_sums(const mxa_backward_prepare_params *params, int head_dim, int sequence,
                           int pair, uint64_t block)
{
    const int units =
        main_clears(params, sequence, pair) ? 0 : 64 * head_dim * (params->dq_f32 ? 4 : 2) / 16;
    const mxa_u32x4 zero = {0, 0, 0, 0};
    for (int i = dev_thread(); i < units; i += dev_threads()) {
        dev_store_global_u32x4(params->dq + 16 * (block * (uint64_t)units + (uint64_t)i), zero);
    }
    if (params->order && dev_thread() == 0) {
        if (head_dim > 128) { /* one of each half of the dimensions */
            dev_store_global_u32x2(params->order + 8 * block, 0, 0);
        } else {
            dev_store_global_u32(params->order + 4 * block, 0);
        }
    }
}

/* 64 queries of one q head. WHY in this order: what is loaded is on its way before anything waits.
 */
MXA_DEVICE void tile_of_queries(const mxa_backward_prepare_params *params, mxa_shared shared,
                                int head_dim, int head)
{
    const int chunks = head_dim / 8, chunk = dev_thread() % chunks, d = 8 * chunk;
    const int quad = dev_thread() / chunks, half = quad / 8;
    const uint64_t block = (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)dev_block_x();
    const int first = 16 * (quad >> 2) + 2 * (quad & 3);
    const int row[4] = {first, first + 1, first + 8, first + 9};
    load_place place;
    int q_row;
    if (!backward_find_queries(&params->batch, dev_block_x(), &place, &q_row)) {
        return;
    }
    const int rows = place.used - place.position, stride = copy_stride(params);
    uint32_t q[8];
    read_codes(params->q + (uint64_t)((head * params->q_rows + q_row) * stride + d), stride, row,
               d < params->head_dim ? rows : 0, q);
    const uint64_t pair = (uint64_t)(place.sequence * params->heads + head);
    mxa_backward_factors f;
    query_exponents e[2]; /* of the halves */
    read_factors(params, place.sequence, head / params->group, &f);
    const float mean = dev_load_global_f32(params->mean_used + 4 * pair);
    find_exponents(params, block, 0, head, q_row, rows, mean, &f, &e[0]);
    find_exponents(params, block, 1, head, q_row, rows, mean, &f, &e[1]);
    clear_sums(params, head_dim, place.sequence, (int)pair / params->group, block);
    const query_exponents of_row = dev_thread() / MXA_BACKWARD_GROUP & 1 ? e[1] : e[0];
    const query_exponents mine = half ? e[1] : e[0];
    write_record(params, block, head, place.sequence, q_row, rows, &of_row, &f);

    const mxa_shared q_tile = shared + AT_TILE;
    const mxa_shared dout_tile = q_tile + (uint32_t)BACKWARD_TURN_BYTES(16, head_dim);
    const uint32_t factor = shift_factor(mine.q + mine.a - mine.sum_log2 - f.q_log2);
    MXA_UNROLL
    for (int i = 0; i < 8; i++) {
        q[i] = shift_codes(q[i], factor);
    }
    turn(q_tile, 16, d, quad, 0x3210, q);
    const int again = mean > 0.0f || is_shifted(&e[0]) || is_shifted(&e[1]);
    if (again) {
        uint32_t dout[8];
        if (mean > 0.0f) {
            centre_codes(params, &place, head, head_dim, d, row, mine.turned + mine.sum_log2, dout);
        } else {
            const uint32_t down = shift_factor(mine.dout - mine.sum_log2 - mine.turned);
            read_codes(params->dout_rows + (block * 64 * (uint64_t)head_dim + (uint64_t)d),
                       head_dim, row, rows, dout);
            MXA_UNROLL
            for (int i = 0; i < 8; i++) {
                dout[i] = shift_codes(dout[i], down);
            }
        }
        turn(dout_tile, 16, d, quad, 0x3210, dout);
    }
    cta_sync();
    write_turned(q_tile, 16, head_dim, params->q_t + block * (uint64_t)(64 * head_dim));
    if (again) {
        write_turned(dout_tile, 16, head_dim, params->dout_t + block * (uint64_t)(64 * head_dim));
    }
}

/* 128 keys of one kv head. */
MXA_DEVICE void tile_of_keys(const mxa_backward_prepare_params *params, mxa_shared shared,
                             int head_dim, int head)
{
    const int chunks = head_dim / 8, tile = dev_block_x(), stride = copy_stride(params);
    const mxa_shared k_tile = shared + AT_TILE;
    load_place place;
    mxa_backward_factors f;
    load_find(&params->batch, 1, 128 * tile, &place);
    const int d =
        dev_thread() % chunks * 8; /* of both items: 2 * head_dim is a multiple of chunks */
    uint32_t x[2][8];
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const int quad = (dev_thread() + i * 2 * head_dim) / chunks;
        const int first = 16 * (quad >> 2) + 2 * (quad & 3);
        const int row[4] = {first, first + 1, first + 8, first + 9};
        read_codes(params->k +
                       (uint64_t)((head * params->k_rows + 128 * (int64_t)tile) * stride + d),
                   stride, row, d < params->head_dim ? TILE_KEYS : 0, x[i]);
    }
    read_factors(params, place.sequence, head, &f);
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const int quad = (dev_thread() + i * 2 * head_dim) / chunks, group = quad / 8;
        const uint64_t at =
            (uint64_t)(head * (params->k_rows / MXA_BACKWARD_GROUP) + 4 * (int64_t)tile + group);
        const uint32_t scale = dev_load_global_u32(params->k_records + 16 * at);
        const mxa_u32x2 v = dev_load_global_u32x2(params->key_groups + 16 * at);
        const int k = scale < NOT_FINITE ? backward_log2(scale) : 0;
        const int b = backward_exponent(key_factor(f32_bits(v.x), f.o_norm, f.dlse_norm));
        const uint32_t factor = shift_factor(k + b - f.k_log2);
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            x[i][j] = shift_codes(x[i][j], factor);
        }
        turn(k_tile, 32, d, quad, 0x3120, x[i]); /* key, key + 8, key + 1, key + 9 */
        if (d == 0 && quad % 8 == 0) {
            const int exponent = v.y == MXA_EXPONENT_NONE ? 0 : (int)v.y;
            const int most = backward_exponent(key_factor(f.v_norm, f.o_norm, f.dlse_norm));
            const float unit =
                params->softcap > 0.0f ? params->scale / params->softcap : params->scale_log2e;
            const float score = dev_load_global_f32(params->score_k + 16 * at);
            mxa_u32x4 record = {
                bits_f32(mul_rn(score, unit)),
                v.x == 0 && v.y != MXA_EXPONENT_NONE ? 0 : bits_f32(backward_power(exponent - b)),
                bits_f32(backward_power(most - b)),
                bits_f32(mul_rn(params->scale, backward_power(b - 8 + f.q_log2)))};
            dev_store_global_u32x4(params->backward_k_records + 16 * at, record);
        }
    }
    cta_sync();
    write_turned(k_tile, 32, head_dim,
                 params->k_t + (uint64_t)(head * (params->k_rows / 128) + (int64_t)tile) *
                                   (uint64_t)(128 * head_dim));
}

MXA_DEVICE void backward_tiles(const mxa_backward_prepare_params *params, int head_dim)
{
    const mxa_shared shared = dev_shared();
    grid_dependency_launch();
    grid_dependency_wait();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int y = dev_block_y();
    if (dev_block_x() == 0 && y == 0) {
        const mxa_u32x4 zero = {0, 0, 0, 0};
        for (int i = dev_thread(); i < MXA_BACKWARD_KEYS * head_dim / 16; i += dev_threads()) {
            dev_store_global_u32x4(params->zeros + 16 * (uint64_t)i, zero);
        }
        for (int i = dev_thread(); i < params->batch.batch * (params->heads / params->group);
             i += dev_threads()) {
            dev_store_global_u32(params->cleared + 4 * (uint64_t)i, 0);
            if (params->done) {
                dev_store_global_u32(params->done + 4 * (uint64_t)i, 0);
            }
        }
        if (dev_thread() == 0) {
            dev_store_global_u32(params->taken, 0);
        }
    }
    if (y < params->heads) {
        if (dev_block_x() < params->q_tiles_most) {
            tile_of_queries(params, shared, head_dim, y);
        }
    } else if (dev_block_x() < params->k_tiles) {
        tile_of_keys(params, shared, head_dim, y - params->heads);
    }
}

MXA_KERNEL_SMALL(mxa_sm90_backward_tiles_d64, 128, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 64);
}

MXA_KERNEL_MANY(mxa_sm90_backward_tiles_d128, 256, 4, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 128);
}

MXA_KERNEL_MANY(mxa_sm90_backward_tiles_d256, 512, 2, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 256);
}
