/* attention_forward_body.h: forward attention, one body for every instruction set.
 *
 * Meaning: ref/attention_forward.c. Queries lie in lanes and keys are broadcast, so scores are held
 * transposed (S^T = K Q^T), the softmax runs down columns without a reduction across lanes, and
 * O^T = V^T P^T is turned over once, at the end.
 *
 *   load     q once per tile; k and v for TILE_K keys at a time, decoded (operand_load_body.h)
 *   scores   S^T, softcap, mask, column maxima
 *   softmax  integer row maximum, P rounded and kept in place of S^T, row sums of unrounded P
 *   values   O^T = alpha * O^T + V^T P^T
 *   finish   sink, division, centre, transposition, O and LSE stored
 *
 * Scratch of a worker, in units of four bytes, G = GROUPS, R = TILE_LANES:
 *   q [G][D/UNIT_DEPTH][R]   k [TILE_K][D/UNIT_DEPTH]   v panels (operand_load_body.h)
 *   o [G][Dv][R]             s [TILE_K][R]              m, l, low, high [G*R]   rows (staging)
 *
 * Included once by each attention_forward_*.c, after one vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/attention_forward.h"

#include "cpu/attention_forward_product_body.h"
#include "cpu/mask.h"
#include "cpu/operand_load_body.h"
#include "cpu/vec_tile.h"
#include "mx/element.h"

#include <math.h>
#include <string.h>

enum {
    TILE_K = 128,
    GROUPS = FORWARD_GROUPS,
    TILE_Q = GROUPS * TILE_LANES,
    ROW_UNITS = MXA_DIMS_MOST /* staging of one row, any head dimension */
};

typedef struct tile {
    const mxa_forward_job *job;
    int64_t b, kv_head;
    int64_t first_lane, lanes; /* of the sequence; used of this tile */
    int64_t dim_units;         /* D in units, padded to whole blocks */
    int64_t dims_v;            /* Dv rounded up to TILE_M */
    mxa_operand k_operand, v_operand;
    unit *q, *k, *v, *rows;
    float *o, *s, *m, *l;
    int32_t *low, *high;  /* keys that a lane sees */
    uint8_t kept[GROUPS]; /* O of a group has been written */
} tile;

/* The keys [low, high) that some lane of a group sees; between full_low and full_high all do. */
typedef struct group_range {
    int64_t low, high, full_low, full_high;
} group_range;

/* Keys of a block that a group works on, within the block; multiples of TILE_M. Vector j of the
 * first `vectors`, which hold lanes, needs those from begin to end[j], which never decreases; from
 * plain to plain_end every lane sees all, and no softcap changes their scores. */
typedef struct key_range {
    int64_t begin, end[TILE_N];
    int vectors;
    int64_t plain, plain_end;
} key_range;

/* A piece of scratch at *at, which moves on; NULL when only sizes are asked for. */
static void *carve(unsigned char *base, int64_t *at, int64_t units)
{
    void *piece = base ? base + *at : NULL;

    *at += mxa_round_up(units * 4, 64);
    return piece;
}

/* Places a tile's arrays from base on; returns their bytes. */
static int64_t tile_place(tile *t, unsigned char *base, int64_t head_dim, int64_t head_dim_v)
{
    int64_t at = 0;

    t->dim_units = units_along_dims(head_dim);
    t->dims_v = mxa_round_up(head_dim_v, TILE_M);
    t->q = carve(base, &at, TILE_Q * t->dim_units);
    t->k = carve(base, &at, TILE_K * t->dim_units);
    t->v = carve(base, &at, panel_units(head_dim_v, TILE_K));
    t->rows = carve(base, &at, TILE_LANES * ROW_UNITS);
    t->o = carve(base, &at, TILE_Q * t->dims_v);
    t->s = carve(base, &at, TILE_K * TILE_LANES);
    t->m = carve(base, &at, TILE_Q);
    t->l = carve(base, &at, TILE_Q);
    t->low = carve(base, &at, TILE_Q);
    t->high = carve(base, &at, TILE_Q);
    return mxa_round_up(at, 4096);
}

static inline int64_t lane_row(const tile *t, int64_t lane)
{
    const int64_t group = t->job->group;

    return group == 1 ? t->first_lane + lane : (t->first_lane + lane) / group;
}

static inline int64_t lane_head(const tile *t, int64_t lane)
{
    const int64_t group = t->job->group;

    return group == 1 ? t->kv_head : t->kv_head * group + (t->first_lane + lane) % group;
}

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

/* Rows of one q head as units, `step` apart, times -1 or 0 where the softmax scale asks for it. */
static void load_q_rows(const tile *t, int64_t head, int64_t row, int64_t count, unit *out,
                        int64_t step)
{
    const mxa_forward_job *job = t->job;
    const int64_t dims = job->problem->head_dim;
    mxa_operand operand;
    operand_reader reader;
    float space[MXA_DIMS_MOST];

    mxa_operand_open(&operand, &job->q, &job->sequences_q[t->b], t->b, head);
    if (job->q_factor == 1.0f) {
        (void)operand_load_rows(&operand, row, count, count, out, step);
        return;
    }
    operand_read(&reader, &operand);
    for (int64_t r = 0; r < count; r++) {
        float *values = row_space(out + r * step, space);

        operand_row(&reader, row + r, values);
        for (int64_t d = 0; d < dims; d++)
            values[d] *= job->q_factor;
        if (UNIT_DEPTH > 1)
            units_from_row(values, dims, out + r * step);
    }
}

/* Vectors that a group of `lanes` lanes is worked on: all, or the first one or two. */
static inline int vectors_of(int64_t lanes)
{
    const int64_t filled = (lanes + VEC_LANES - 1) / VEC_LANES;

    return MATRIX_UNITS > 1 || filled > 2 || filled > TILE_N ? TILE_N : (int)filled;
}

/* A group at a time: head by head, then turned over. */
static void load_q(tile *t)
{
    const int64_t group = t->job->group, padded = mxa_round_up(t->lanes, TILE_LANES);

    for (int64_t lane = 0; lane < padded; lane += TILE_LANES) {
        const int64_t left = t->lanes - lane < TILE_LANES ? t->lanes - lane : TILE_LANES;
        const int64_t heads = left < group ? left : group;
        const int64_t turned = vectors_of(left) * VEC_LANES;

        if (left < turned)
            memset(t->rows + left * t->dim_units, 0,
                   (size_t)((turned - left) * t->dim_units) * sizeof(unit));
        for (int64_t h = 0; h < heads; h++)
            load_q_rows(t, lane_head(t, lane + h), lane_row(t, lane + h),
                        (left - h + group - 1) / group, t->rows + h * t->dim_units,
                        group * t->dim_units);
        for (int64_t part = 0; part < turned; part += VEC_LANES)
            units_transpose(t->rows + part * t->dim_units, t->dim_units, t->dim_units,
                            t->q + lane * t->dim_units + part, TILE_LANES);
    }
}

/* Where a lane's row maximum starts: at its sink, which counts as a score. */
static float lane_start(const tile *t, int64_t lane)
{
    const float *sink = t->job->call->sink;

    return sink ? (float)ceil((double)sink[lane_head(t, lane)] * M_LOG2E) : -INFINITY;
}

/* Intervals, maxima and sums of every lane; lanes beyond the last behave like the last. */
static void load_lanes(tile *t)
{
    const mxa_forward_job *job = t->job;
    const mxa_mask mask =
        mxa_mask_make(job->problem, job->sequences_q[t->b].used, job->sequences_k[t->b].used);
    const int64_t padded = mxa_round_up(t->lanes, TILE_LANES);

    for (int64_t lane = 0; lane < padded; lane++) {
        const int64_t real = lane < t->lanes ? lane : t->lanes - 1;
        const mxa_interval seen = mxa_mask_row(&mask, lane_row(t, real));

        t->low[lane] = (int32_t)seen.low;
        t->high[lane] = (int32_t)seen.high;
        t->m[lane] = lane_start(t, real);
        t->l[lane] = 0.0f;
    }
    memset(t->kept, 0, sizeof(t->kept));
}

/* O = 0 for the groups that have none yet. */
static void clear_o(tile *t)
{
    for (int64_t group = 0; group * TILE_LANES < t->lanes; group++) {
        if (!t->kept[group])
            memset(t->o + group * t->dims_v * TILE_LANES, 0,
                   (size_t)(t->dims_v * TILE_LANES) * sizeof(float));
        t->kept[group] = 1;
    }
}

static group_range lane_range(const tile *t, int64_t first, int64_t lanes)
{
    group_range range = {t->low[first], t->high[first], t->low[first], t->high[first]};

    for (int64_t lane = first + 1; lane < first + lanes; lane++) {
        range.low = t->low[lane] < range.low ? t->low[lane] : range.low;
        range.high = t->high[lane] > range.high ? t->high[lane] : range.high;
        range.full_low = t->low[lane] > range.full_low ? t->low[lane] : range.full_low;
        range.full_high = t->high[lane] < range.full_high ? t->high[lane] : range.full_high;
    }
    return range;
}

/* Takes NaN and infinite elements out of a block of V: a lane that does not see them must not meet
 * them as 0 * NaN. values_special adds them where they are seen. */
static void load_hide_special(const tile *t, int64_t first_key, int64_t keys, int64_t padded)
{
    operand_reader reader;
    float row[MXA_DIMS_MOST];

    operand_read(&reader, &t->v_operand);
    for (int64_t key = 0; key < keys; key++) {
        if (!operand_row(&reader, first_key + key, row))
            continue;
        for (int64_t d = 0; d < t->v_operand.dims; d++)
            if (!isfinite(row[d]))
                unit_clear(&t->v[panel_unit(key, d, padded)], (int)(key % UNIT_DEPTH));
    }
}

/* ------------------------------------------------------------------------------------------------
 * scores
 * --------------------------------------------------------------------------------------------- */

/* Softcap and mask over keys [begin, end) of S^T; adds to the column maxima. */
static VEC_NOINLINE void scores_adjust(const tile *t, int64_t first_lane, int64_t first_key,
                                       const key_range *keys, int64_t begin, int64_t end,
                                       float *highest)
{
    const float cap = t->job->softcap_log2;

    VEC_UNROLL
    for (int j = 0; j < TILE_N; j++) {
        const ivec low = ivec_load(t->low + first_lane + j * VEC_LANES);
        const ivec high = ivec_load(t->high + first_lane + j * VEC_LANES);
        const int64_t last = end < keys->end[j] ? end : keys->end[j];
        vec most = vec_load(highest + j * VEC_LANES);

        for (int64_t key = begin; key < last; key++) {
            const ivec place = ivec_set((int32_t)(first_key + key));
            float *at = t->s + key * TILE_LANES + j * VEC_LANES;
            vec x = vec_load(at);

            if (cap > 0.0f)
                x = vec_mul(vec_set(cap), vec_tanh(vec_mul(x, vec_set(t->job->scale_log2 / cap))));
            x = vec_select(
                mask_and(ivec_less(place, high), ivec_less(low, ivec_add(place, ivec_set(1)))), x,
                vec_set(-INFINITY));
            most = vec_max(most, x);
            vec_store(at, x);
        }
        vec_store(highest + j * VEC_LANES, most);
    }
}

static void scores(const tile *t, int64_t group, int64_t first_key, const key_range *keys,
                   float *highest)
{
    const unit *q = t->q + group * t->dim_units * TILE_LANES;
    const int64_t units = MATRIX_UNITS > 1 ? t->dim_units : t->job->problem->head_dim / UNIT_DEPTH;
    float unused[TILE_LANES]; /* maxima of scores that are not final */
    int64_t key = keys->begin;

    for (int lane = 0; lane < TILE_LANES; lane++)
        highest[lane] = unused[lane] = -INFINITY;
    for (int from = 0; from < keys->vectors; from++)
        for (; key < keys->end[from]; key += TILE_M)
            scores_tile(from, keys->vectors, t->k + key * t->dim_units, t->dim_units, q, units,
                        t->s + key * TILE_LANES,
                        keys->plain <= key && key < keys->plain_end ? highest : unused);
    if (keys->begin < keys->plain)
        scores_adjust(t, group * TILE_LANES, first_key, keys, keys->begin, keys->plain, highest);
    if (keys->plain_end < key)
        scores_adjust(t, group * TILE_LANES, first_key, keys, keys->plain_end, key, highest);
}

/* ------------------------------------------------------------------------------------------------
 * softmax
 * --------------------------------------------------------------------------------------------- */

/* 2^x, and *p, what of it the second GEMM sees. keep: that GEMM rounds to BF16 by itself. */
VEC_INLINE vec softmax_p(vec x, int e4m3, int keep, vec *p)
{
    if (!e4m3 && !keep)
        return vec_exp2_rounded(x, p);
    const vec exact = vec_exp2(x);

    *p = e4m3 ? vec_round_e4m3(exact) : exact;
    return exact;
}

/* One column of vectors: P over S^T in place, returns the column sums of unrounded P.
 * WHY no fused multiply-add: m came from a rounded product. Of scores beyond 2^24 the exact product
 * lies whole binades from it, and P of the maximum would be anything but 1, up to infinity. */
VEC_INLINE vec softmax_column(float *s, int64_t begin, int64_t end, vec scale, vec minus_m,
                              int e4m3)
{
    vec sum = vec_set(0.0f);

    VEC_UNROLL_TWICE
    for (int64_t key = begin; key < end; key += UNIT_DEPTH) {
        vec p[UNIT_DEPTH];

        for (int i = 0; i < UNIT_DEPTH; i++) {
            const vec x = vec_add(vec_mul(vec_load(s + (key + i) * TILE_LANES), scale), minus_m);

            sum = vec_add(sum, softmax_p(x, e4m3, UNIT_ROUNDS, &p[i]));
        }
        unit_store((unit *)(void *)s + key / UNIT_DEPTH * TILE_LANES, unit_join(p));
    }
    return sum;
}

/* Raises m to the integer above the new maxima, sets alpha = 2^(m_old - m), turns S^T into P and
 * adds to l. Returns 0 when every alpha is 1. */
static VEC_NOINLINE int softmax(const tile *t, int64_t first_lane, const key_range *keys,
                                const float *highest, float *alpha)
{
    const vec minus_infinity = vec_set(-INFINITY);
    const vec scale = vec_set(t->job->softcap_log2 > 0.0f ? 1.0f : t->job->scale_log2);
    int raised = 0;

    VEC_UNROLL
    for (int j = 0; j < TILE_N; j++) {
        float *m = t->m + first_lane + j * VEC_LANES, *l = t->l + first_lane + j * VEC_LANES;
        float *s = t->s + j * VEC_LANES;
        const vec before = vec_load(m);
        const vec wanted = vec_ceil(vec_mul(vec_load(highest + j * VEC_LANES), scale));
        const vec now = vec_max(wanted, before);
        /* A lane that has seen no key: 2^(-inf - 0) is 0, where 2^(-inf + inf) were NaN. */
        const vec used = vec_select(vec_less(minus_infinity, now), now, vec_set(0.0f));
        const vec change = vec_exp2(vec_sub(before, used));
        const vec minus_m = vec_sub(vec_set(0.0f), used);
        vec sum;

        raised |= mask_any(vec_less(before, now));
        if (t->job->e4m3)
            sum = softmax_column(s, keys->begin, keys->end[j], scale, minus_m, 1);
        else
            sum = softmax_column(s, keys->begin, keys->end[j], scale, minus_m, 0);
        vec_store(alpha + j * VEC_LANES, change);
        vec_store(m, now);
        vec_store(l, vec_fma(vec_load(l), change, sum));
    }
    return raised;
}

/* ------------------------------------------------------------------------------------------------
 * values
 * --------------------------------------------------------------------------------------------- */

/* The elements that load_hide_special took out, for the lanes that see them: P > 0 times a NaN or
 * an infinity is that again. */
static void values_special(const tile *t, int64_t group, int64_t first_key, int64_t keys)
{
    float *o = t->o + group * t->dims_v * TILE_LANES;
    operand_reader reader;
    float row[MXA_DIMS_MOST];

    operand_read(&reader, &t->v_operand);
    for (int64_t key = first_key; key < first_key + keys; key++) {
        if (!operand_row(&reader, key, row))
            continue;
        for (int64_t d = 0; d < t->v_operand.dims; d++) {
            if (isfinite(row[d]))
                continue;
            for (int lane = 0; lane < TILE_LANES; lane++) {
                const int64_t place = group * TILE_LANES + lane;

                if (t->low[place] <= key && key < t->high[place])
                    o[d * TILE_LANES + lane] += row[d];
            }
        }
    }
}

static void values(tile *t, int64_t group, const key_range *keys, int64_t padded,
                   const float *alpha)
{
    const unit *p = (const unit *)(const void *)t->s + keys->begin / UNIT_DEPTH * TILE_LANES;
    float *o = t->o + group * t->dims_v * TILE_LANES;
    int64_t units[TILE_N];

    for (int j = 0; j < TILE_N; j++)
        units[j] = (keys->end[j] - keys->begin) / UNIT_DEPTH;
    for (int64_t d = 0; d < t->dims_v; d += TILE_M)
        values_tile(keys->vectors, t->v + panel_unit(keys->begin, d, padded), panel_step(padded), p,
                    units, t->kept[group] ? alpha : NULL, t->kept[group], o + d * TILE_LANES);
    t->kept[group] = 1;
}

/* ------------------------------------------------------------------------------------------------
 * finish
 * --------------------------------------------------------------------------------------------- */

static void finish_store(const mxattn_tensor *o, int64_t at, const float *row, int64_t dims)
{
    int64_t d = 0;

    switch (o->tags.dtype) {
    case MXATTN_F32:
        memcpy((float *)o->data + at, row, (size_t)dims * sizeof(float));
        return;
    case MXATTN_BF16:
        for (; d + VEC_LANES <= dims; d += VEC_LANES)
            vec_store_bf16((uint16_t *)o->data + at + d, vec_load(row + d));
        break;
    case MXATTN_F16:
        for (; d + VEC_LANES <= dims; d += VEC_LANES)
            vec_store_f16((uint16_t *)o->data + at + d, vec_load(row + d));
        break;
    default: /* FP8 is quantized from o_wide when all tiles are done */
        return;
    }
    for (; d < dims; d++)
        mxa_store(o->data, o->tags.dtype, at + d, row[d]);
}

/* The divisor of a lane's O; LSE stored; *p_share becomes the keys' part of the row sum. */
static float finish_lane(const tile *t, int64_t lane, float *p_share)
{
    const mxa_forward_job *job = t->job;
    const mxa_sequence *sequence = &job->sequences_q[t->b];
    const mxattn_tensor *lse = &job->call->lse;
    const int64_t row = lane_row(t, lane), head = lane_head(t, lane);
    const double m = (double)t->m[lane], keys = (double)t->l[lane];
    const int sees = t->low[lane] < t->high[lane];
    double sum = keys, log_sum = -INFINITY;

    if (job->call->sink)
        sum += exp2((double)job->call->sink[head] * M_LOG2E - m);
    if ((sees || job->call->sink) && (lse->ndim || job->lse_wide))
        log_sum = sum == 0.0 && sees ? (double)NAN : (m + log2(sum)) * M_LN2;
    if (lse->ndim)
        ((float *)lse->data)[sequence->outer * lse->stride[0] + head * lse->stride[1] +
                             (sequence->first + row) * lse->stride[2]] = (float)log_sum;
    if (job->lse_wide) {
        const int far = isfinite(m) && fabs(m) > MXA_SAVED_FAR;
        const int64_t at = head * job->tokens_q + sequence->token + row;

        job->lse_wide[at] = (float)(far ? log2(sum) : log_sum);
        job->far_wide[at] = far ? (float)m : 0.0f;
    }
    *p_share = !sees ? 0.0f : job->call->sink ? (float)(keys / sum) : 1.0f;
    return sees ? (float)sum : 1.0f;
}

static void finish_centre(const tile *t, int64_t head, float share, float *row)
{
    const mxa_forward_job *job = t->job;
    const int64_t kv_heads = job->problem->kv_heads, dims = job->problem->head_dim_v;
    const float *centre = job->v.centre + (t->b * kv_heads + head / job->group) * dims;

    for (int64_t d = 0; d < dims; d++)
        row[d] += isfinite(centre[d]) ? centre[d] * share : 0.0f;
}

/* VEC_LANES dimensions from d on, of as many lanes, times their factors and turned over. */
VEC_INLINE void finish_turn(const tile *t, const float *from, int64_t d, vec factor,
                            vec turn[VEC_LANES])
{
    for (int i = 0; i < VEC_LANES; i++)
        turn[i] = d + i < t->dims_v ? vec_mul(vec_load(from + (d + i) * TILE_LANES), factor)
                                    : vec_set(0.0f);
    vec_transpose(turn);
}

/* The most common O: BF16, whole vectors, and nothing else wants it. */
static void finish_bf16(const tile *t, const float *from, int64_t lanes, vec factor,
                        const int64_t *at)
{
    uint16_t *o = t->job->call->o.data;

    for (int64_t d = 0; d < t->job->problem->head_dim_v; d += VEC_LANES) {
        vec turn[VEC_LANES];

        finish_turn(t, from, d, factor, turn);
        for (int64_t l = 0; l < lanes; l++)
            vec_store_bf16(o + at[l] + d, turn[l]);
    }
}

static void finish_rows(const tile *t, const float *from, int64_t first, int64_t lanes, vec factor,
                        const float *share, const int64_t *at)
{
    const mxa_forward_job *job = t->job;
    const int64_t dims = job->problem->head_dim_v, padded = mxa_round_up(dims, VEC_LANES);
    float *rows = (float *)(void *)t->rows;

    for (int64_t d = 0; d < padded; d += VEC_LANES) {
        vec turn[VEC_LANES];

        finish_turn(t, from, d, factor, turn);
        for (int i = 0; i < VEC_LANES; i++)
            vec_store(rows + i * padded + d, turn[i]);
    }
    for (int64_t l = 0; l < lanes; l++) {
        const int64_t row = lane_row(t, first + l), head = lane_head(t, first + l);
        const int64_t token = job->sequences_q[t->b].token + row;

        if (job->v.tags.flags & MXATTN_CENTRED)
            finish_centre(t, head, share[l], rows + l * padded);
        finish_store(&job->call->o, at[l], rows + l * padded, dims);
        if (job->o_wide)
            memcpy(job->o_wide + (token * job->problem->heads + head) * dims, rows + l * padded,
                   (size_t)dims * sizeof(float));
    }
}

static void finish(tile *t)
{
    const mxa_forward_job *job = t->job;
    const mxa_sequence *sequence = &job->sequences_q[t->b];
    const mxattn_tensor *o = &job->call->o;
    const int direct = o->tags.dtype == MXATTN_BF16 && !job->o_wide &&
                       !(job->v.tags.flags & MXATTN_CENTRED) &&
                       job->problem->head_dim_v % VEC_LANES == 0;

    clear_o(t);
    for (int64_t first = 0; first < t->lanes; first += VEC_LANES) {
        const int64_t lanes = t->lanes - first < VEC_LANES ? t->lanes - first : VEC_LANES;
        const float *from = t->o + first / TILE_LANES * t->dims_v * TILE_LANES + first % TILE_LANES;
        float inverse[VEC_LANES] = {0}, share[VEC_LANES];
        int64_t at[VEC_LANES];

        for (int64_t l = 0; l < lanes; l++) {
            inverse[l] = 1.0f / finish_lane(t, first + l, &share[l]);
            at[l] = sequence->outer * o->stride[0] +
                    (sequence->first + lane_row(t, first + l)) * o->stride[1] +
                    lane_head(t, first + l) * o->stride[2];
        }
        if (direct)
            finish_bf16(t, from, lanes, vec_load(inverse), at);
        else
            finish_rows(t, from, first, lanes, vec_load(inverse), share, at);
    }
}

/* ------------------------------------------------------------------------------------------------
 * a tile
 * --------------------------------------------------------------------------------------------- */

static inline int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static key_range keys_of(const tile *t, int64_t group, const group_range *range, int64_t first_key,
                         int64_t padded)
{
    const int32_t *high = t->high + group * TILE_LANES;
    key_range keys = {.vectors = vectors_of(t->lanes - group * TILE_LANES)};

    keys.begin = clamp(range->low - first_key, 0, padded) / TILE_M * TILE_M;
    for (int j = 0; j < TILE_N; j++) {
        /* Rows see ever later keys, so that the last lane of a vector sees most. */
        const int last = MATRIX_UNITS > 1 ? TILE_N - 1 : TILE_N == 4 ? j | 1 : j;
        const int lane = (last + 1) * VEC_LANES - 1;

        keys.end[j] = clamp(mxa_round_up(high[lane] - first_key, TILE_M), keys.begin, padded);
    }
    for (int j = 0; keys.vectors < TILE_N && j < TILE_N; j++)
        keys.end[j] = j < keys.vectors ? keys.end[keys.vectors - 1] : keys.begin;
    keys.plain = keys.plain_end = keys.begin;
    if (t->job->softcap_log2 > 0.0f)
        return keys;
    const int64_t plain = clamp(range->full_low - first_key, keys.begin, padded);
    const int64_t plain_end = clamp(range->full_high - first_key, 0, padded);

    if (mxa_round_up(plain, TILE_M) < plain_end) {
        keys.plain = mxa_round_up(plain, TILE_M);
        keys.plain_end = plain_end / TILE_M * TILE_M;
    }
    return keys;
}

/* One group against the block of keys that is loaded. */
static void attend(tile *t, int64_t group, const group_range *range, int64_t first_key,
                   int64_t keys, int64_t padded, int special)
{
    const key_range work = keys_of(t, group, range, first_key, padded);
    float highest[TILE_LANES], alpha[TILE_LANES];

    scores(t, group, first_key, &work, highest);
    const int raised = softmax(t, group * TILE_LANES, &work, highest, alpha);
    values(t, group, &work, padded, raised ? alpha : NULL);
    if (special)
        values_special(t, group, first_key, keys);
}

static void tile_run(tile *t)
{
    const int64_t groups = (t->lanes + TILE_LANES - 1) / TILE_LANES;
    const int64_t used = t->job->sequences_k[t->b].used;
    group_range ranges[GROUPS];

    load_q(t);
    load_lanes(t);
    const group_range all = lane_range(t, 0, t->lanes);
    for (int64_t group = 0; group < groups; group++)
        ranges[group] = lane_range(t, group * TILE_LANES, TILE_LANES);
    for (int64_t key = all.low / TILE_K * TILE_K; key < all.high; key += TILE_K) {
        const int64_t end = all.high < used ? all.high : used;
        const int64_t keys = end - key < TILE_K ? end - key : TILE_K;
        const int64_t padded = mxa_round_up(keys, TILE_M);

        (void)operand_load_rows(&t->k_operand, key, keys, padded, t->k, t->dim_units);
        const int special = operand_load_panels(&t->v_operand, key, keys, padded, t->v);
        if (special)
            load_hide_special(t, key, keys, padded);
        for (int64_t group = 0; group < groups; group++)
            if (ranges[group].low < key + keys && ranges[group].high > key)
                attend(t, group, &ranges[group], key, keys, padded, special);
    }
    finish(t);
}

/* Where index lies among running totals first[0 .. batch]: first[b] <= index < first[b+1]. */
static int64_t find_sequence(const int64_t *first, int64_t batch, int64_t index)
{
    int64_t low = 0, high = batch - 1;

    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;

        if (first[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t kv_heads = job->problem->kv_heads;
    const int64_t index = job->first_tile[job->batch] - 1 - task / kv_heads;
    tile t = {.job = job,
              .b = find_sequence(job->first_tile, job->batch, index),
              .kv_head = task % kv_heads};
    const int64_t lanes = job->sequences_q[t.b].used * job->group;

    if (job->unusual && job->unusual[t.b] != job->pass)
        return;
    tile_place(&t, job->scratch + worker * job->scratch_bytes, job->problem->head_dim,
               job->problem->head_dim_v);
    t.first_lane = (index - job->first_tile[t.b]) * job->tile_q;
    t.lanes = lanes - t.first_lane < job->tile_q ? lanes - t.first_lane : job->tile_q;
    mxa_operand_open(&t.k_operand, &job->k, &job->sequences_k[t.b], t.b, t.kv_head);
    mxa_operand_open(&t.v_operand, &job->v, &job->sequences_k[t.b], t.b, t.kv_head);
    matrix_begin();
    tile_run(&t);
    matrix_end();
}

#include "cpu/attention_forward_decode_body.h"

/* That of a tile, and behind it that of a part. */
static int64_t forward_scratch_bytes(int64_t head_dim, int64_t head_dim_v, int64_t *part_scratch)
{
    tile t;
    part p;

    *part_scratch = tile_place(&t, NULL, head_dim, head_dim_v);
    return *part_scratch + mxa_round_up(part_place(&p, NULL, head_dim, head_dim_v), 4096);
}

const mxa_forward_kernel VEC_NAME(mxa_forward) = {
    .isa = VEC_ISA,
    .lanes = TILE_LANES,
    .groups_most = GROUPS,
    .tile_k = TILE_K,
    .flushes = VEC_FLUSHES,
    .scratch_bytes = forward_scratch_bytes,
    .task = forward_task,
    .decode_lanes = DECODE_LANES,
    .decode_start_task = decode_start_task,
    .decode_task = decode_task,
    .decode_finish_task = decode_finish_task,
};
