/* backward_tiles.cu: second pass of the Hopper backward: turned copies, and records.
 *
 * Numbers: docs/kernels/hopper_backward.md. One CTA for 64 queries of a q head or 64 keys of a kv
 * head (y: q heads, then kv heads): Q^T and K^T with their exponents shifted, records of rows and
 * groups, and dQ's sums cleared; dO^T where the first pass's is not to be: less a mean, or shifted.
 * D threads, each 16 codes of four tokens, so that half of the CTA has one group of 32: what is to
 * know of a group is found by each thread, for more codes the better.
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
    TILE = 64,    /* tokens of a CTA: MXA_BACKWARD_TILE_Q, MXA_BACKWARD_KEYS */
    WORDS = 16,   /* of a dimension in the turned tile */
    AT_AGAIN = 0, /* of each group: whether dO^T has another exponent than the row copy */
    AT_TILE = 16,
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

/* A thread's place in a tile. */
typedef struct thread_place {
    int d;    /* its first of 16 dimensions */
    int quad; /* its word: tokens first, first + 1, + 8 and + 9 */
    int half; /* its group of 32 tokens */
    int row[4];
} thread_place;

MXA_DEVICE void find_place(int head_dim, thread_place *my)
{
    const int chunks = head_dim / 16;
    my->d = 16 * (dev_thread() % chunks);
    my->quad = dev_thread() / chunks;
    my->half = dev_thread() / (head_dim / 2);
    const int first = 16 * (my->quad >> 2) + 2 * (my->quad & 3);
    my->row[0] = first;
    my->row[1] = first + 1;
    my->row[2] = first + 8;
    my->row[3] = first + 9;
}

/* A thread's codes of a private copy whose rows are `stride` bytes apart: zeros from row `end` on,
 * and from dimension `dims` (a multiple of 8). */
MXA_DEVICE void read_codes(mxa_global at, int stride, const thread_place *my, int end, int dims,
                           uint32_t *x)
{
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        mxa_u32x4 v = {0, 0, 0, 0};
        if (my->row[t] < end && my->d < dims) {
            v = dev_load_global_u32x4(at + (uint64_t)((int64_t)my->row[t] * stride + my->d));
        }
        x[4 * t] = v.x;
        x[4 * t + 1] = v.y;
        x[4 * t + 2] = my->d + 8 < dims ? v.z : 0;
        x[4 * t + 3] = my->d + 8 < dims ? v.w : 0;
    }
}

MXA_DEVICE void shift_all(uint32_t *x, uint32_t factor)
{
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = shift_codes(x[i], factor);
    }
}

/* dO^T where the head has a mean, 8 dimensions from d on: rounded once, from the caller's values.
 */
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
        x[4 * t] = e4m3x4_from_f32(z[0], z[1], z[2], z[3]);
        x[4 * t + 1] = e4m3x4_from_f32(z[4], z[5], z[6], z[7]);
    }
}

/* What a query group has to be known of. */
typedef struct query_exponents {
    int q;      /* of q's copy */
    int dout;   /* of dO's row copy */
    int turned; /* of dO^T */
    int a, sum_log2;
    int empty; /* dO is 0 */
} query_exponents;

/* What the first pass said of a row. */
typedef struct row_terms {
    float top, rest, delta;
} row_terms;

/* The row whose record the thread writes, or -1: a warp of each half. */
MXA_DEVICE int record_row(int head_dim)
{
    const int t = dev_thread() % (head_dim / 2);
    return t < MXA_BACKWARD_GROUP ? dev_thread() / (head_dim / 2) * MXA_BACKWARD_GROUP + t : -1;
}

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

/* The tile's record: row `row`, and of the first row of a group the group. */
MXA_DEVICE void write_record(const mxa_backward_prepare_params *params, uint64_t block, int head,
                             int sequence, int q_row, int row, int rows, const row_terms *terms,
                             const query_exponents *e, const mxa_backward_factors *f)
{
    const int half = row / MXA_BACKWARD_GROUP;
    const mxa_global record = params->q_records + block * MXA_BACKWARD_RECORDS;
    const uint32_t far = (dev_load_global_u32(params->query_groups + 64 * block + 28) |
                          dev_load_global_u32(params->query_groups + 64 * block + 60)) > 1;
    /* Row 8*j + 2*c + e is float 2*j + e of row c. */
    const uint64_t to =
        (uint64_t)(MXA_BACKWARD_RECORD_ROW * (row >> 1 & 3) + 8 * (row >> 3) + 4 * (row & 1));
    const int shift = f->dout_log2 - e->turned;
    const float least = add_rn(terms->rest, (float)(shift - 8 - e->sum_log2));
    const int apart = far && !(params->softcap > 0.0f);
    const float m = add_rn(terms->top, least);
    dev_store_global_f32(record + MXA_BACKWARD_RECORD_M + to, apart ? terms->top : m);
    if (apart) {
        dev_store_global_f32(params->row_rest + 4 * (block * 64 + (uint64_t)row),
                             exp2_approx(-least));
    }
    if (row == 0) {
        dev_store_global_u32(record + MXA_BACKWARD_RECORD_FAR, far);
    }
    const int b = backward_exponent(key_factor(f->v_norm, f->o_norm, f->dlse_norm));
    const float d = mul_rn(terms->delta, backward_power(shift - e->a - b));
    dev_store_global_f32(record + MXA_BACKWARD_RECORD_D + to, d);
    half_write_row(record + MXA_BACKWARD_RECORD, row, m, d);
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

/* dO^T again, from the caller's values less the mean or from the row copy, where the first pass's
 * is not to be. */
MXA_DEVICE void turn_again(const mxa_backward_prepare_params *params, mxa_shared shared,
                           int head_dim, const load_place *place, int head, uint64_t block,
                           const thread_place *my, int rows, float mean, const query_exponents *e)
{
    uint32_t x[16];
    if (mean > 0.0f) {
        MXA_UNROLL
        for (int i = 0; i < 2; i++) {
            centre_codes(params, place, head, head_dim, my->d + 8 * i, my->row,
                         e->turned + e->sum_log2, x + 2 * i);
        }
    } else {
        read_codes(params->dout_rows + block * 64 * (uint64_t)head_dim, head_dim, my, rows,
                   head_dim, x);
        shift_all(x, shift_factor(e->dout - e->sum_log2 - e->turned));
    }
    cta_sync(); /* Q^T is read from there */
    turn(shared + AT_TILE, WORDS, my->d, my->quad, 0x3210, 4, x);
    cta_sync();
    write_turned(shared + AT_TILE, WORDS, head_dim,
                 params->dout_t + block * (uint64_t)(64 * head_dim));
}

/* 64 queries of one q head. WHY in this order: what is loaded is on its way before anything waits,
 * the codes, which are older than the pass before, also before that. */
MXA_DEVICE void tile_of_queries(const mxa_backward_prepare_params *params, mxa_shared shared,
                                int head_dim, int head)
{
    const uint64_t block = (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)dev_block_x();
    const int stride = copy_stride(params), row = record_row(head_dim);
    thread_place my;
    load_place place;
    int q_row;
    if (!backward_find_queries(&params->batch, dev_block_x(), &place, &q_row)) {
        return;
    }
    find_place(head_dim, &my);
    const int rows = place.used - place.position;
    uint32_t q[16];
    read_codes(params->q + (uint64_t)((head * params->q_rows + q_row) * stride), stride, &my, rows,
               params->head_dim, q);
    grid_dependency_wait();
    row_terms terms = {0.0f, 0.0f, 0.0f};
    if (row >= 0) {
        const uint64_t at = 4 * (block * 64 + (uint64_t)row);
        terms.top = dev_load_global_f32(params->row_top + at);
        terms.rest = dev_load_global_f32(params->row_rest + at);
        terms.delta = dev_load_global_f32(params->delta + at);
    }
    const uint64_t pair = (uint64_t)(place.sequence * params->heads + head);
    const float mean = dev_load_global_f32(params->mean_used + 4 * pair);
    mxa_backward_factors f;
    query_exponents e;
    read_factors(params, place.sequence, head / params->group, &f);
    find_exponents(params, block, my.half, head, q_row, rows, mean, &f, &e);
    clear_sums(params, head_dim, place.sequence, (int)pair / params->group, block);
    if (row >= 0) {
        write_record(params, block, head, place.sequence, q_row, row, rows, &terms, &e, &f);
        if (row % MXA_BACKWARD_GROUP == 0) {
            dev_store_shared_u32(shared + AT_AGAIN + 4 * (uint32_t)my.half,
                                 (uint32_t)is_shifted(&e));
        }
    }
    shift_all(q, shift_factor(e.q + e.a - e.sum_log2 - f.q_log2));
    turn(shared + AT_TILE, WORDS, my.d, my.quad, 0x3210, 4, q);
    cta_sync();
    write_turned(shared + AT_TILE, WORDS, head_dim,
                 params->q_t + block * (uint64_t)(64 * head_dim));
    const mxa_u32x2 again = dev_load_shared_u32x2(shared + AT_AGAIN);
    if (mean > 0.0f || again.x | again.y) {
        turn_again(params, shared, head_dim, &place, head, block, &my, rows, mean, &e);
    }
}

/* 64 keys of one kv head. */
MXA_DEVICE void tile_of_keys(const mxa_backward_prepare_params *params, mxa_shared shared,
                             int head_dim, int head)
{
    const int stride = copy_stride(params);
    const int64_t k_row = TILE * (int64_t)dev_block_x();
    thread_place my;
    load_place place;
    mxa_backward_factors f;
    uint32_t x[16];
    find_place(head_dim, &my);
    read_codes(params->k + (uint64_t)((head * params->k_rows + k_row) * stride), stride, &my, TILE,
               params->head_dim, x);
    load_find(&params->batch, 1, (int)k_row, &place);
    grid_dependency_wait();
    read_factors(params, place.sequence, head, &f);
    const uint64_t at = (uint64_t)((head * params->k_rows + k_row) / MXA_BACKWARD_GROUP + my.half);
    const uint32_t scale = dev_load_global_u32(params->k_records + 16 * at);
    const mxa_u32x2 v = dev_load_global_u32x2(params->key_groups + 16 * at);
    const int k = scale < NOT_FINITE ? backward_log2(scale) : 0;
    const int b = backward_exponent(key_factor(f32_bits(v.x), f.o_norm, f.dlse_norm));
    shift_all(x, shift_factor(k + b - f.k_log2));
    turn(shared + AT_TILE, WORDS, my.d, my.quad, 0x3120, 4, x); /* key, key + 8, key + 1, key + 9 */
    if (dev_thread() % (head_dim / 2) == 0) {
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
    cta_sync();
    write_turned(shared + AT_TILE, WORDS, head_dim,
                 params->k_t + (uint64_t)((head * params->k_rows + k_row) * head_dim));
}

/* What the main kernel finds cleared besides dQ. */
MXA_DEVICE void clear_words(const mxa_backward_prepare_params *params, int head_dim)
{
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

MXA_DEVICE void backward_tiles(const mxa_backward_prepare_params *params, int head_dim)
{
    const mxa_shared shared = dev_shared();
    grid_dependency_launch();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int x = dev_block_x(), y = dev_block_y();
    if (x == 0 && y == 0) {
        grid_dependency_wait();
        clear_words(params, head_dim);
    }
    if (y < params->heads) {
        if (x < params->q_tiles_most) {
            tile_of_queries(params, shared, head_dim, y);
        }
    } else if (x < 2 * params->k_tiles) {
        tile_of_keys(params, shared, head_dim, y - params->heads);
    }
}

MXA_KERNEL_MANY(mxa_sm90_backward_tiles_d64, 64, 16, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 64);
}

MXA_KERNEL_MANY(mxa_sm90_backward_tiles_d128, 128, 8, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 128);
}

MXA_KERNEL_MANY(mxa_sm90_backward_tiles_d256, 256, 4, mxa_backward_prepare_params, parameters)
{
    backward_tiles(&parameters, 256);
}
