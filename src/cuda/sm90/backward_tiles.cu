/* backward_tiles.cu: second pass of the Hopper backward: turned copies, and records.
 *
 * Numbers: docs/kernels/hopper_backward.md. One CTA for 64 queries of a q head or 128 keys of a kv
 * head (y: q heads, then kv heads), 2*D threads: Q^T and K^T with their exponents shifted, records
 * of rows and groups, and dQ's sums cleared; dO^T where the first pass's is not to be: less a mean,
 * or shifted.
 *
 * A product of two rounded operands keeps its exponents where they do not sum away: dS of a query
 * group g and a key group j is held times 2^(8 - a_g - b_j), and 2^(a_g - L_g) goes into Q^T, 2^b_j
 * into K^T, where dK and dQ contract over them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_groups.h"
#include "cuda/sm90/backward_half.h"
#include "cuda/sm90/backward_turn.h"

enum {
    TILE_KEYS = 128,
    AT_TILE = 0,
    RANGE_LOG2 = 40 /* exponents further below the largest are held there */
};

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
    backward_seen seen;
    backward_find_seen(params, place->sequence, &seen);
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        float *z = y + 8 * t;
        const int there = backward_is_seen(&seen, position[t]);
        const mxa_u32x4 a = dev_load_global_u32x4(mean), b = dev_load_global_u32x4(mean + 16);
        const uint32_t m[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            z[j] = there ? mul_rn(add_rn(z[j], -f32_bits(m[j])), inverse) : 0.0f;
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
