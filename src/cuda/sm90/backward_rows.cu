/* backward_rows.cu: first pass of the Hopper backward: what rows of dO, O and V say.
 *
 * Formula: docs/math.md, backward; numbers: docs/kernels/hopper_backward.md.
 *   dO    quantized as its block says, folded to one exponent per 32 rows, as rows and turned over;
 *         column sums of it
 *   rows  delta_i = dO_i . O_i - dO_i . mean of V - dLSE_i, and LSE_i in log2 units
 *   V     the forward's transposed copy, turned back to rows
 * and of each group of 32 rows the norms that exponents are chosen by.
 *
 * One CTA for 32 queries of a q head, at D = 64 for 64 (ROWS_GROUPS), or for 128 keys of a kv head
 * (y: q heads, then kv heads); D threads for 32 queries. A warp holds 32 x 32 elements of dO and of
 * O, which is a block: a lane 8 of 4 rows, those that are one word of the turned copy. They stay as
 * they were read and are widened whenever they are looked at: that leaves registers for 24 warps a
 * multiprocessor, and so loads in flight while others compute. WHY not 64 queries: fewer warps wait
 * for each other, and at D = 256 there would be room for one CTA; but CTAs of two warps take
 * longer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/prepare_params.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_turn.h"
#include "cuda/sm90/prepare_fold.h"

/* Shared memory: maxima of warps; sums of rows, by 32 dimensions; dO's tile. Or V's tile. */
enum { AT_REDUCE = 0, AT_TILE = 512, AT_SUMS = AT_TILE, AT_TURNED = AT_SUMS + 8 * 32 * 16 };
enum { TURNED_WORDS = 8 };                               /* of a dimension: 32 tokens */
#define ROWS_GROUPS(head_dim) ((head_dim) == 64 ? 2 : 1) /* of 32 queries, of a CTA */
/* Bytes from one group's sums and tile to the next one's. */
#define GROUP_BYTES (AT_TURNED - AT_TILE + BACKWARD_TURN_BYTES(TURNED_WORDS, 64))
enum { ROWS_BYTES = AT_TILE + 16928, ROWS_BYTES_D256 = AT_TILE + 33856 };
MXA_STATIC_ASSERT(AT_TURNED + BACKWARD_TURN_BYTES(TURNED_WORDS, 128) <= ROWS_BYTES, "dO's tile");
MXA_STATIC_ASSERT(AT_TURNED + BACKWARD_TURN_BYTES(TURNED_WORDS, 256) <= ROWS_BYTES_D256,
                  "dO's tile");
MXA_STATIC_ASSERT(BACKWARD_TURN_BYTES(32, 128) <= ROWS_BYTES - AT_TILE, "V's tile");
MXA_STATIC_ASSERT(BACKWARD_TURN_BYTES(32, 256) <= ROWS_BYTES_D256 - AT_TILE, "V's tile");
enum {
    ROWS_LOG2 = 4 /* dO's rows are at most 448 / 2^4 = 28 */
};
#define SQUARES_LEAST 0x1p-120f

/* Norm of V's rows: times 28 sqrt(head_dim) within FP16. */
MXA_DEVICE float v_rows_most(int head_dim)
{
    return head_dim > 128 ? 146.0f : 206.0f;
}

/* Number of the thread's group in the CTA, and of the thread in the group. */
MXA_DEVICE int rows_own(int head_dim)
{
    return ROWS_GROUPS(head_dim) == 1 ? 0 : dev_thread_again() / head_dim;
}

MXA_DEVICE int rows_thread(int head_dim)
{
    return ROWS_GROUPS(head_dim) == 1 ? dev_thread() : dev_thread_again() % head_dim;
}

/* Largest x of the warps of the thread's group, each of which has its own. One barrier: after it
 * AT_REDUCE is still read. */
MXA_DEVICE uint32_t warps_max(mxa_shared shared, uint32_t x, int head_dim)
{
    const int warp = dev_thread() >> 5, warps = head_dim / 32, first = rows_own(head_dim) * warps;
    if ((dev_thread() & 31) == 0) {
        dev_store_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)warp, x);
    }
    cta_sync();
    for (int w = first; w < first + warps; w++) {
        x = max_u32(x, dev_load_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)w));
    }
    return x;
}

/* Eight elements of each of a thread's four rows: where they are BF16, four words a row. */
typedef struct held_rows {
    uint32_t w[32];
} held_rows;

/* A thread's rows from its first. */
#define HELD_ROW(i) (8 * ((i) >> 1) + ((i)&1))

/* Reads those that are wanted, all of them in the sequence; zeros elsewhere and from `dims` on.
 * `type`: a constant, or 0. */
MXA_DEVICE void hold_rows(const mxa_gpu_operand *from, int type, const load_place *place,
                          const backward_seen *wanted, const int *position, int head, int d,
                          int dims, held_rows *rows)
{
    if (type != MXA_GPU_BF16) {
        float x[32];
        load_rows(from, type ? type : from->type, place, position, head, d, dims, x);
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            rows->w[i] = backward_is_seen(wanted, position[i / 8]) ? bits_f32(x[i]) : 0;
        }
        return;
    }
    const mxa_global at = from->data + 2 * load_index(from, place, position[0], head, d);
    const uint64_t step = 2 * (uint64_t)from->stride_token;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        mxa_u32x4 v = {0, 0, 0, 0};
        if (backward_is_seen(wanted, position[i]) && d < dims) {
            v = dev_load_global_u32x4(at + (uint64_t)HELD_ROW(i) * step);
        }
        rows->w[4 * i] = v.x;
        rows->w[4 * i + 1] = v.y;
        rows->w[4 * i + 2] = v.z;
        rows->w[4 * i + 3] = v.w;
    }
}

/* Row i of them as FP32. */
MXA_DEVICE void widen_row(int type, const held_rows *rows, int i, float *x)
{
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        const uint32_t pair = rows->w[4 * i + j / 2];
        x[j] = type == MXA_GPU_BF16 ? f32_bits(j & 1 ? pair & 0xFFFF0000u : pair << 16)
                                    : f32_bits(rows->w[8 * i + j]);
    }
}

/* Exponent of dO's row copy. WHY not E4M3's largest: its products with V's stay within FP16. */
MXA_DEVICE int rows_exponent(uint32_t most)
{
    const int e = fold_exponent(most, 1) + ROWS_LOG2;
    return e > 127 ? 127 : e;
}

/* How dO is rounded. */
typedef struct row_rounding {
    int block;      /* of a wide dO; else -1: it is what it is */
    int floor_rule; /* its tags' rounding */
    float inverse;  /* square: one over the block's scale, and the scale */
    float power;
} row_rounding;

MXA_DEVICE uint32_t row_amax(const float *x)
{
    uint32_t amax = largest(x, 8);
    amax = max_u32(amax, shuffle_xor_u32(amax, 1));
    return max_u32(amax, shuffle_xor_u32(amax, 2));
}

/* The factors of a block; returns the largest magnitude after rounding. */
MXA_DEVICE uint32_t find_rounding(uint32_t amax, row_rounding *r)
{
    uint32_t most;
    const int exponent = block_scale(amax, r->floor_rule, &r->inverse, &most);
    r->power = amax > NOT_FINITE ? f32_bits(0x7FC00000u) : load_power((uint32_t)(exponent + 127));
    return most;
}

/* Eight values of a row as their block's E4M3 holds them. */
MXA_DEVICE void round_row(row_rounding *r, float *x)
{
    uint32_t h[4];
    if (r->block < 0) {
        return;
    }
    if (r->block == MXA_GPU_ROW) {
        (void)find_rounding(row_amax(x), r);
    }
    block_round(x, r->inverse, h);
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        x[2 * j] = mul_rn(f32_from_f16_low(h[j]), r->power);
        x[2 * j + 1] = mul_rn(f32_from_f16_high(h[j]), r->power);
    }
}

/* Largest magnitude of the warp's 32 x 32 elements after rounding. */
MXA_DEVICE uint32_t warp_most(int type, const held_rows *dout, row_rounding *r)
{
    uint32_t most = 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float x[8];
        widen_row(type, dout, i, x);
        most =
            max_u32(most, r->block == MXA_GPU_ROW ? find_rounding(row_amax(x), r) : largest(x, 8));
    }
    most = warp_max_u32(most);
    return r->block == MXA_GPU_SQUARE ? find_rounding(most, r) : most;
}

/* Sums over a row's dimensions. */
typedef struct row_sums {
    float dout_o, dout_dout, o_o, dout_mean;
} row_sums;

MXA_DEVICE float sum_lanes(float x, int lanes)
{
    for (int mask = 1; mask < lanes; mask <<= 1) {
        x = add_rn(x, shuffle_xor_f32(x, mask));
    }
    return x;
}

/* What one thread's row comes to. */
typedef struct row_result {
    float delta;
    float top, rest;  /* LSE in log2 units; top +inf: the row sees no key, or is not there */
    float dlse, sink; /* sink: the row's share of -dsink */
    int sum_log2;     /* 64: no bound */
} row_result;

MXA_DEVICE float row_value(mxa_global at, int64_t outer, int64_t token, int64_t head)
{
    return dev_load_global_f32(at + 4 * (uint64_t)(outer + token + head));
}

/* What a row brings from elsewhere: its maximum and sum, or (in max) its LSE; dLSE. */
typedef struct row_given {
    float max, sum, dlse;
} row_given;

/* Of the row at `position`; q_row: its row in the forward's copy of q. WHY before anything is
 * waited for: one CTA's latency of memory was a tenth of its time. */
MXA_DEVICE void read_row(const mxa_backward_prepare_params *params, const load_place *place,
                         int position, int q_row, int head, row_given *given)
{
    const int64_t token = place->first + (int64_t)position;
    given->max = given->sum = given->dlse = 0.0f;
    if (position >= place->used) {
        return;
    }
    if (params->row_max) {
        uint64_t at = 4 * (uint64_t)(head * params->q_rows + q_row);
        given->max = dev_load_global_f32(params->row_max + at);
        given->sum = dev_load_global_f32(params->row_sum + at);
    } else {
        given->max = row_value(params->lse, place->outer * params->lse_batch,
                               token * params->lse_token, head * params->lse_head);
    }
    if (params->dlse) {
        given->dlse = row_value(params->dlse, place->outer * params->dlse_batch,
                                token * params->dlse_token, head * params->dlse_head);
    }
}

MXA_DEVICE void finish_row(const mxa_backward_prepare_params *params, int there, int head,
                           const row_given *given, const row_sums *sums, row_result *r)
{
    const float log2e = 1.44269504088896341f, infinity = f32_bits(0x7F800000u);
    int sees;
    r->delta = r->dlse = r->sink = r->rest = 0.0f;
    r->top = infinity;
    r->sum_log2 = 64;
    if (!there) {
        return;
    }
    float top, rest = 0.0f;
    if (params->row_max) {
        top = given->max;
        rest = log2_approx(given->sum);
        sees = top != infinity;
        r->sum_log2 = rest < 0.0f ? 0 : (int)rest;
    } else {
        sees = given->max != -infinity;
        top = mul_rn(given->max, log2e);
        r->sum_log2 = 0;
    }
    r->dlse = given->dlse;
    if (params->sink) {
        float sink = mul_rn(dev_load_global_f32(params->sink + 4 * (uint64_t)head), log2e);
        float share = exp2_approx(add_rn(add_rn(sink, -top), -rest));
        /* WHY not above 1: LSE as a caller gives it may be off by more than its fraction. */
        share = sink == -infinity ? 0.0f : !sees || share > 1.0f ? 1.0f : share;
        r->sink = mul_rn(share, add_rn(sees ? sums->dout_o : 0.0f, -r->dlse));
    }
    if (sees) {
        r->delta = add_rn(add_rn(sums->dout_o, -sums->dout_mean), -r->dlse);
        r->top = top;
        r->rest = rest;
    } else {
        r->dlse = 0.0f;
        r->sum_log2 = 64;
    }
}

/* Two halves of 2*count values: lanes with the bit `mask` keep the second, the others the first,
 * each summed over both. */
MXA_DEVICE void sum_halves(float *v, int count, int mask)
{
    const int high = dev_thread() & mask;
    MXA_UNROLL
    for (int k = 0; k < count; k++) {
        const float keep = high ? v[k + count] : v[k], give = high ? v[k] : v[k + count];
        v[k] = add_rn(keep, shuffle_xor_f32(give, mask));
    }
}

/* First of the rows of four lanes, of a warp's 32. */
MXA_DEVICE int held_first(int quad)
{
    return 16 * (quad >> 2) + 2 * (quad & 3);
}

/* Sums over 32 dimensions, four lanes, of 16 values, the four of row_sums of each of four rows, to
 * shared memory. Half of a lane's values go away with each step. */
MXA_DEVICE void sum_rows(mxa_shared shared, int part, float *v)
{
    const int lane = dev_thread() & 31;
    sum_halves(v, 8, 1);
    sum_halves(v, 4, 2);
    const int row = held_first(lane >> 2) + HELD_ROW(2 * (lane & 1) + (lane >> 1 & 1));
    const mxa_u32x4 sums = {bits_f32(v[0]), bits_f32(v[1]), bits_f32(v[2]), bits_f32(v[3])};
    dev_store_shared_u32x4(shared + AT_SUMS + 16 * (uint32_t)(32 * part + row), sums);
}

/* Column sums of the warp's 32 rows to `to`; v: of four rows. */
MXA_DEVICE void sum_columns(mxa_global to, int d, float *v)
{
    const int lane = dev_thread() & 31;
    sum_halves(v, 4, 4);
    sum_halves(v, 2, 8);
    sum_halves(v, 1, 16);
    const int column = d + (lane & 4) + (lane >> 2 & 2) + (lane >> 4 & 1);
    dev_store_global_f32(to + 4 * (uint64_t)column, v[0]);
}

/* What eight elements of a row add to its sums. */
MXA_DEVICE void multiply_row(const float *x, const float *o, const float *mean, int there, float *v)
{
    row_sums sums = {0.0f, 0.0f, 0.0f, 0.0f};
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        const float c = add_rn(o[j], -mean[j]);
        sums.dout_o = fma_rn(x[j], o[j], sums.dout_o);
        sums.dout_dout = fma_rn(x[j], x[j], sums.dout_dout);
        sums.o_o = fma_rn(c, c, sums.o_o);
        sums.dout_mean = fma_rn(x[j], mean[j], sums.dout_mean);
    }
    v[0] = sums.dout_o;
    v[1] = sums.dout_dout;
    v[2] = there ? sums.o_o : 0.0f;
    v[3] = sums.dout_mean;
}

/* Row `row` of group `group`, one thread, and with its warp the group; most: its exponent's. */
MXA_DEVICE void finish_rows(const mxa_backward_prepare_params *params, mxa_shared shared,
                            int head_dim, const load_place *place, uint64_t group, int row,
                            int head, const row_given *given, uint32_t most)
{
    row_sums sums = {0.0f, 0.0f, 0.0f, 0.0f};
    MXA_UNROLL
    for (int part = 0; part < head_dim / 32; part++) {
        const mxa_u32x4 v =
            dev_load_shared_u32x4(shared + AT_SUMS + 16 * (uint32_t)(32 * part + row));
        sums.dout_o = add_rn(sums.dout_o, f32_bits(v.x));
        sums.dout_dout = add_rn(sums.dout_dout, f32_bits(v.y));
        sums.o_o = add_rn(sums.o_o, f32_bits(v.z));
        sums.dout_mean = add_rn(sums.dout_mean, f32_bits(v.w));
    }
    const uint64_t at = 4 * (group * MXA_BACKWARD_GROUP + (uint64_t)row);
    row_result r;
    finish_row(params, place->position + row < place->used, head, given, &sums, &r);
    dev_store_global_f32(params->delta + at, r.delta);
    dev_store_global_f32(params->row_top + at, r.top);
    dev_store_global_f32(params->row_rest + at, r.rest);
    const uint32_t dout = warp_max_u32(bits_f32(sums.dout_dout)),
                   o = warp_max_u32(bits_f32(sums.o_o));
    const uint32_t dlse = warp_max_u32(bits_f32(r.dlse) & 0x7FFFFFFFu);
    const uint32_t low = warp_max_u32(64 - (uint32_t)r.sum_log2);
    const uint32_t top = bits_f32(r.top) & 0x7FFFFFFFu;
    const int far = warp_any(top > bits_f32((float)MXA_BACKWARD_FAR) && top < NOT_FINITE);
    const int wide = warp_any(top > bits_f32((float)MXA_BACKWARD_WIDE) && top < NOT_FINITE);
    const float squares = sum_lanes(sums.dout_dout, 32), share = sum_lanes(r.sink, 32);
    if (row == 0) {
        const uint32_t exponent =
            (uint32_t)(most < NOT_FINITE ? rows_exponent(most) : MXA_EXPONENT_NONE);
        const int finite = dout < NOT_FINITE && most < NOT_FINITE;
        /* Where FP32 loses squares: no row is longer than as if all its values were the largest. */
        const float norm = dout < bits_f32(SQUARES_LEAST)
                               ? mul_rn(sqrt_rn((float)head_dim), f32_bits(most))
                               : sqrt_rn(f32_bits(dout));
        mxa_u32x4 a = {finite ? bits_f32(norm) : 0,
                       o < NOT_FINITE ? bits_f32(sqrt_rn(f32_bits(o))) : 0,
                       dlse < NOT_FINITE ? dlse : 0, finite ? bits_f32(squares) : 0};
        mxa_u32x4 b = {finite ? most : 0, exponent, low == 0 ? 0 : 64 - low,
                       (uint32_t)(far + wide)};
        dev_store_global_u32x4(params->query_groups + 32 * group, a);
        dev_store_global_u32x4(params->query_groups + 32 * group + 16, b);
        if (params->partial_sink) {
            dev_store_global_f32(params->partial_sink + 4 * group, -share);
        }
    }
}

/* Eight codes of dO's payload: to memory and to w. */
MXA_DEVICE void write_row(mxa_global to, int finite, float inverse, const float *x, uint32_t *w)
{
    const uint32_t a = e4m3x4_from_f32(mul_rn(x[0], inverse), mul_rn(x[1], inverse),
                                       mul_rn(x[2], inverse), mul_rn(x[3], inverse));
    const uint32_t b = e4m3x4_from_f32(mul_rn(x[4], inverse), mul_rn(x[5], inverse),
                                       mul_rn(x[6], inverse), mul_rn(x[7], inverse));
    w[0] = finite ? a : 0x7F7F7F7Fu;
    w[1] = finite ? b : 0x7F7F7F7Fu;
    dev_store_global_u32x2(to, w[0], w[1]);
}

/* V's mean of 8 dimensions, or zeros. */
MXA_DEVICE void read_mean(const mxa_backward_prepare_params *params, int sequence, int head, int d,
                          float *mean)
{
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        mean[j] = 0.0f;
    }
    if (params->v_mean && d < params->head_dim_v) {
        const uint64_t pair =
            (uint64_t)(sequence * (params->heads / params->group) + head / params->group);
        mxa_global at = params->v_mean + 4 * (pair * (uint64_t)params->head_dim_v + (uint64_t)d);
        mxa_u32x4 a = dev_load_global_u32x4(at), b = dev_load_global_u32x4(at + 16);
        uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            mean[j] = f32_bits(words[j]);
        }
    }
}

/* The warp's rows, once their exponent is known: payload, sums of rows and of columns. */
MXA_DEVICE void work_rows(const mxa_backward_prepare_params *params, mxa_shared shared, int type,
                          int head_dim, const load_place *place, const int *position, int head,
                          const held_rows *dout, const held_rows *out, row_rounding *rounding,
                          uint32_t most, uint64_t group, int row, int d)
{
    const int finite = most < NOT_FINITE;
    const uint64_t first = group * MXA_BACKWARD_GROUP + (uint64_t)row;
    const mxa_global to = params->dout_rows + (first * (uint64_t)head_dim + (uint64_t)d);
    const float inverse = finite ? inverse_power(rows_exponent(most)) : 0.0f;
    float mean[8], sums[16], columns[8];
    uint32_t codes[8];
    read_mean(params, place->sequence, head, d, mean);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float x[8], o[8];
        widen_row(type, dout, i, x);
        round_row(rounding, x);
        const int there = position[i] < place->used;
        write_row(to + (uint64_t)(HELD_ROW(i) * head_dim), finite, inverse, x, codes + 2 * i);
        codes[2 * i] = there ? codes[2 * i] : 0;
        codes[2 * i + 1] = there ? codes[2 * i + 1] : 0;
        widen_row(type, out, i, o);
        multiply_row(x, o, mean, there, sums + 4 * i);
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            columns[j] = i == 0 ? x[j] : add_rn(columns[j], x[j]);
        }
    }
    turn(shared + AT_TURNED, TURNED_WORDS, d, (dev_thread() & 31) >> 2, 0x3210, 2, codes);
    sum_rows(shared, d / 32, sums);
    sum_columns(params->partial + 4 * group * (uint64_t)head_dim, d, columns);
}

/* dO^T of 32 queries, half of a tile of 64 as the main kernel's shared memory holds it
 * (backward_unit), to memory: of each row two of its four units. */
MXA_DEVICE void write_half(mxa_shared tile, int head_dim, int half, mxa_global to)
{
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        const int index = rows_thread(head_dim) + i * head_dim, row = index / 2, part = index % 2;
        const mxa_shared at = backward_word(tile, TURNED_WORDS, backward_dimension(row), 4 * part);
        const mxa_u32x4 v = {dev_load_shared_u32(at), dev_load_shared_u32(at + 4),
                             dev_load_shared_u32(at + 8), dev_load_shared_u32(at + 12)};
        const int unit = 4 * row + (((2 * half + part) ^ row >> 1) & 3);
        dev_store_global_u32x4(to + 16 * (uint64_t)unit, v);
    }
}

/* A group of 32 queries of a q head, half a tile. Types: 0 where not a constant. */
MXA_DEVICE void rows_of_queries(const mxa_backward_prepare_params *params, mxa_shared cta, int type,
                                int head_dim, int head)
{
    const int groups = ROWS_GROUPS(head_dim), own = rows_own(head_dim);
    const int tile = dev_block_x() / (2 / groups), thread = rows_thread(head_dim);
    const int half = groups == 2 ? own : dev_block_x() % 2;
    const int lane = thread & 31, row = held_first(lane >> 2);
    const int d = 32 * (thread >> 5) + 8 * (lane & 3);
    const uint64_t group =
        2 * ((uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)tile) + (uint64_t)half;
    const mxa_shared shared = cta + (uint32_t)(own * GROUP_BYTES);
    load_place place;
    int q_row;
    if (!backward_find_queries(&params->batch, tile, &place, &q_row)) {
        if (params->partial_sink && thread == 0) {
            dev_store_global_f32(params->partial_sink + 4 * group, 0.0f);
        }
        return;
    }
    place.position += MXA_BACKWARD_GROUP * half;
    q_row += MXA_BACKWARD_GROUP * half;
    const int first = place.position + row;
    const int position[4] = {first, first + HELD_ROW(1), first + HELD_ROW(2), first + HELD_ROW(3)};
    held_rows dout, out;
    backward_seen seen;
    backward_find_seen(params, place.sequence, &seen);
    hold_rows(&params->dout, type, &place, &seen, position, head, d, params->head_dim_v, &dout);
    hold_rows(&params->o, type, &place, &seen, position, head, d, params->head_dim_v, &out);
    row_given given = {0.0f, 0.0f, 0.0f};
    if (thread < MXA_BACKWARD_GROUP) {
        read_row(params, &place, place.position + thread, q_row + thread, head, &given);
    }
    row_rounding rounding = {params->dout.type <= MXA_GPU_BF16 ? params->dout.block : -1,
                             params->dout.rounding, 0.0f, 0.0f};
    const uint32_t most = warps_max(cta, warp_most(type, &dout, &rounding), head_dim);
    work_rows(params, shared, type, head_dim, &place, position, head, &dout, &out, &rounding, most,
              group, row, d);
    cta_sync();
    write_half(shared + AT_TURNED, head_dim, groups == 2 ? (int)(group & 1) : dev_block_x() % 2,
               params->dout_t + (group >> 1) * (uint64_t)(64 * head_dim));
    if (thread < MXA_BACKWARD_GROUP) {
        finish_rows(params, shared, head_dim, &place, group, thread, head, &given, most);
    }
}

/* How many binades V's rows go down: the least with their largest norm, whose square is given,
 * within v_rows_most; rounding adds less than a sixteenth. */
MXA_DEVICE int v_rows_log2(uint32_t square, int head_dim)
{
    const float norm = mul_rn(sqrt_rn(f32_bits(square)), 1.0625f / v_rows_most(head_dim));
    const int e = (int)(bits_f32(norm) >> 23) - 126;
    return square >= NOT_FINITE || e < 0 ? 0 : e;
}

/* 128 keys of one kv head: V's copy from [D][keys] to [keys][D], and norms. */
MXA_DEVICE void rows_of_keys(const mxa_backward_prepare_params *params, mxa_shared shared,
                             int head_dim, int head)
{
    const int chunks = head_dim / 8, tile = dev_block_x(), groups = ROWS_GROUPS(head_dim);
    const mxa_global from =
        params->v +
        (uint64_t)(head * (int64_t)params->head_dim_v * params->k_rows + 128 * (int64_t)tile);
    MXA_UNROLL
    for (int i = 0; i < 8 / groups; i++) {
        const int unit = dev_thread() + i * groups * head_dim, d = unit / 8, part = unit % 8;
        mxa_u32x4 v = {0, 0, 0, 0};
        if (d < params->head_dim_v) {
            v = dev_load_global_u32x4(from + (uint64_t)(d * params->k_rows + 16 * part));
        }
        dev_store_shared_u32(backward_word(shared + AT_TILE, 32, d, 4 * part), v.x);
        dev_store_shared_u32(backward_word(shared + AT_TILE, 32, d, 4 * part + 1), v.y);
        dev_store_shared_u32(backward_word(shared + AT_TILE, 32, d, 4 * part + 2), v.z);
        dev_store_shared_u32(backward_word(shared + AT_TILE, 32, d, 4 * part + 3), v.w);
    }
    load_place place;
    load_find(&params->batch, 1, 128 * tile, &place);
    cta_sync();
    MXA_UNROLL
    for (int i = 0; i < 4 / groups; i++) {
        const int item = dev_thread() + i * groups * head_dim, d = item % chunks * 8;
        const int quad = item / chunks; /* slots 4*quad.. of the tile */
        const int row = 16 * (quad >> 2) + 2 * (quad & 3);
        const int rows[4] = {row, row + 1, row + 8, row + 9};
        uint32_t words[8], turned[8];
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            words[j] = dev_load_shared_u32(backward_word(shared + AT_TILE, 32, d + j, quad));
        }
        backward_turn4(words, turned);
        backward_turn4(words + 4, turned + 4);
        uint32_t most = 0;
        MXA_UNROLL
        for (int t = 0; t < 4; t++) {
            float square = 0.0f;
            MXA_UNROLL
            for (int w = 0; w < 4; w++) {
                uint32_t pair = f16x2_from_fp8x2(turned[4 * (w >> 1) + t] >> (16 * (w & 1)), 0);
                float a = f32_from_f16_low(pair), b = f32_from_f16_high(pair);
                square = fma_rn(a, a, fma_rn(b, b, square));
            }
            most = max_u32(most, bits_f32(sum_lanes(square, chunks)));
        }
        cta_sync(); /* AT_REDUCE of the group before is read */
        most = warps_max(shared, warp_max_u32(most), head_dim);
        const int down = v_rows_log2(most, head_dim);
        const uint32_t factor = shift_factor(-down);
        MXA_UNROLL
        for (int t = 0; t < 4; t++) {
            dev_store_global_u32x2(
                params->v_rows +
                    (uint64_t)((head * params->k_rows + 128 * (int64_t)tile + rows[t]) * head_dim +
                               d),
                shift_codes(turned[t], factor), shift_codes(turned[4 + t], factor));
        }
        if (rows_thread(head_dim) == 0) {
            const int group = 4 * tile + groups * i + rows_own(head_dim);
            const uint64_t at =
                (uint64_t)(head * (params->k_rows / MXA_BACKWARD_GROUP) + (int64_t)group);
            const uint64_t pair =
                (uint64_t)(place.sequence * (params->heads / params->group) + head);
            int exponent = backward_log2(dev_load_global_u32(params->v_scale + 4 * pair)) +
                           (int)dev_load_global_f32(params->k_records + 16 * at + 4);
            const int finite = most < NOT_FINITE;
            mxa_u32x4 v = {
                finite ? bits_f32(mul_rn(sqrt_rn(f32_bits(most)), backward_power(exponent))) : 0,
                (uint32_t)(finite ? exponent + down : MXA_EXPONENT_NONE), 0, 0};
            dev_store_global_u32x4(params->key_groups + 16 * at, v);
        }
    }
}

MXA_DEVICE void backward_rows(const mxa_backward_prepare_params *params, int type, int head_dim)
{
    const mxa_shared shared = dev_shared();
    grid_dependency_launch();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int x = dev_block_x(), y = dev_block_y();
    if (y < params->heads) {
        if (x < 2 / ROWS_GROUPS(head_dim) * params->q_tiles_most) {
            rows_of_queries(params, shared, type, head_dim, y);
        }
    } else if (x < params->k_tiles) {
        rows_of_keys(params, shared, head_dim, y - params->heads);
    }
}

MXA_KERNEL_SMALL(mxa_sm90_backward_rows_d64, 128, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, 0, 64);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_rows_d128, 128, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, 0, 128);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_rows_d256, 256, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, 0, 256);
}

/* dO and O in BF16. */
MXA_KERNEL_MANY(mxa_sm90_backward_rows_bf16_d64, 128, 6, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, MXA_GPU_BF16, 64);
}

MXA_KERNEL_MANY(mxa_sm90_backward_rows_bf16_d128, 128, 6, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, MXA_GPU_BF16, 128);
}

MXA_KERNEL_MANY(mxa_sm90_backward_rows_bf16_d256, 256, 3, mxa_backward_prepare_params, parameters)
{
    backward_rows(&parameters, MXA_GPU_BF16, 256);
}
