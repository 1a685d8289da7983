/* attention_backward_rows_body.h: what backward does to queries and rows of gradients outside its
 * inner loop: queries and dO decoded once, delta, the bound of dQ, dQ's splits added, rows stored.
 *
 * Included by attention_backward_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_BACKWARD_ROWS_BODY_H
#define MXA_CPU_ATTENTION_BACKWARD_ROWS_BODY_H

#include "cpu/vec_tile.h"

#include "cpu/attention_backward.h"
#include "cpu/operand_load_body.h"
#include "mx/e8m0.h"
#include "mx/element.h"

#include <math.h>

static const double log2_e = 1.4426950408889634074;

/* Tokens [first, first+count) of a head, zeros up to `padded`: as rows (may be NULL) and across
 * tokens (may be NULL). Returns 1 when an element is a NaN or an infinity. */
static int load_tokens(const mxa_operand *operand, int64_t first, int64_t count, int64_t padded,
                       unit *rows, int64_t row_step, unit *across, int64_t across_step)
{
    int special = 0;

    if (rows)
        special |= operand_load_rows(operand, first, count, padded, rows, row_step);
    if (across)
        special |=
            operand_load_across(operand, first, count, padded,
                                mxa_round_up(operand->dims, MXA_BLOCK), across, across_step, PIECE);
    return special;
}

/* Row of any wide type, `count` elements, as FP32. */
static void load_wide(const mxattn_tensor *tensor, int64_t at, int64_t count, float *row)
{
    const mxattn_dtype dtype = tensor->tags.dtype;

    if (dtype == MXATTN_F32) {
        memcpy(row, (const float *)tensor->data + at, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t d = 0; d < count; d++) {
        if (dtype == MXATTN_BF16) {
            const uint32_t bits = (uint32_t)((const uint16_t *)tensor->data)[at + d] << 16;

            memcpy(&row[d], &bits, sizeof(bits));
        } else {
            row[d] = mxa_load(tensor->data, dtype, at + d);
        }
    }
}

/* Rounds `dims` elements of a row into an output tensor. */
static void store_row(const mxattn_tensor *tensor, const mxa_sequence *sequence, int64_t token,
                      int64_t head, const float *row)
{
    const int64_t at = sequence->outer * tensor->stride[0] +
                       (sequence->first + token) * tensor->stride[1] + head * tensor->stride[2];
    const int64_t dims = tensor->shape[3], whole = dims / VEC_LANES * VEC_LANES;
    float *f32 = (float *)tensor->data + at;
    uint16_t *half = (uint16_t *)tensor->data + at;
    uint16_t tail[VEC_LANES];

    if (tensor->tags.dtype == MXATTN_F32) {
        memcpy(f32, row, (size_t)dims * sizeof(float));
        return;
    }
    for (int64_t d = 0; d < dims; d += VEC_LANES) {
        uint16_t *to = d < whole ? half + d : tail;

        if (tensor->tags.dtype == MXATTN_BF16)
            vec_store_bf16(to, vec_load(row + d));
        else
            vec_store_f16(to, vec_load(row + d));
    }
    memcpy(half + whole, tail, (size_t)(dims - whole) * sizeof(uint16_t));
}

/* sum_d a_d b_d over whole vectors. */
static float dot(const float *a, const float *b, int64_t dims)
{
    vec sum = vec_set(0.0f);
    float lanes[VEC_LANES];
    float total = 0;

    for (int64_t d = 0; d < dims; d += VEC_LANES)
        sum = vec_fma(vec_load(a + d), vec_load(b + d), sum);
    vec_store(lanes, sum);
    for (int l = 0; l < VEC_LANES; l++)
        total += lanes[l];
    return total;
}

/* ------------------------------------------------------------------------------------------------
 * norms
 * --------------------------------------------------------------------------------------------- */

/* The centre of v for one kv head, padded with zeros; elements that are not finite count as 0. */
static void load_centre(const mxa_backward_job *job, int64_t b, int64_t kv_head, float *centre)
{
    const int64_t dims = job->problem->head_dim_v;
    const int centred = (job->v.tags.flags & MXATTN_CENTRED) != 0;
    const float *means =
        centred ? job->v.centre + (b * job->problem->kv_heads + kv_head) * dims : NULL;

    memset(centre, 0, (size_t)job->sizes.dims_v * sizeof(float));
    for (int64_t d = 0; centred && d < dims; d++)
        centre[d] = isfinite(means[d]) ? means[d] : 0.0f;
}

static void norms_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_backward_job *job = arg;
    const int64_t kv_head = task % job->problem->kv_heads, block = task / job->problem->kv_heads;
    const int64_t b = mxa_backward_sequence_of(job->sequences_k, job->batch, block);
    const mxa_sequence *sequence = &job->sequences_k[b];
    const int64_t first = (block - sequence->block) * MXA_BLOCK;
    mxa_operand k, v;
    operand_reader read_k, read_v;
    float row[MXA_DIMS_MOST], centre[MXA_DIMS_MOST];
    double most_k = 0, most_v = 0;

    (void)worker;
    if (mxa_backward_skips(job, b))
        return;
    load_centre(job, b, kv_head, centre);
    mxa_operand_open(&k, &job->k_lanes, sequence, b, kv_head);
    mxa_operand_open(&v, &job->v, sequence, b, kv_head);
    operand_read(&read_k, &k);
    operand_read(&read_v, &v);
    for (int64_t s = first; s < first + MXA_BLOCK && s < sequence->used; s++) {
        double sum = 0;

        operand_row(&read_k, s, row);
        for (int64_t d = 0; d < job->problem->head_dim; d++)
            most_k = mxa_backward_max(most_k, fabs((double)row[d]));
        operand_row(&read_v, s, row);
        for (int64_t d = 0; d < job->problem->head_dim_v; d++) {
            const double x = (double)row[d] + (double)centre[d];

            sum += x * x;
        }
        most_v = mxa_backward_max(most_v, sqrt(sum));
    }
    job->norm_k[kv_head * job->sizes.blocks_k + block] = most_k;
    job->norm_v[kv_head * job->sizes.blocks_k + block] = most_v;
}

/* ------------------------------------------------------------------------------------------------
 * rows
 * --------------------------------------------------------------------------------------------- */

/* A block of 32 queries of one q head. */
typedef struct block_rows {
    int64_t b, head, kv_head, block;
    int64_t first, count; /* tokens of the sequence */
    float centre[MXA_DIMS_MOST];
    double norm_v;
} block_rows;

static float row_number(const mxattn_tensor *tensor, const mxa_sequence *sequence, int64_t head,
                        int64_t token)
{
    const int64_t at = sequence->outer * tensor->stride[0] + head * tensor->stride[1] +
                       (sequence->first + token) * tensor->stride[2];

    return ((const float *)tensor->data)[at];
}

/* LSE, delta and the shares of dsink and of dQ's bound of one row.
 *
 * delta = dO . O - dLSE belongs to dO . V with the centre of V; dprobs leaves the centre out, so
 * what it is compared with is dO . (O - centre) - dLSE. */
static void row_numbers(const mxa_backward_job *job, const block_rows *rows, int64_t s,
                        const float *dout, double *dsink, double *bound)
{
    const mxattn_attention_problem *problem = job->problem;
    const mxa_sequence *sequence = &job->sequences_q[rows->b];
    const int64_t token = rows->first + s, dims_v = job->sizes.dims_v;
    const int64_t at = (rows->head * job->sizes.blocks_q + rows->block) * MXA_BLOCK + s;
    const mxa_mask mask = mxa_mask_make(problem, sequence->used, job->sequences_k[rows->b].used);
    const mxa_interval seen = mxa_mask_row(&mask, token);
    const float dlse =
        job->call->dlse.ndim ? row_number(&job->call->dlse, sequence, rows->head, token) : 0.0f;
    float o[MXA_DIMS_MOST];
    float whole = 0, centred = 0, far = 0, lse;

    for (int64_t d = problem->head_dim_v; d < dims_v; d++)
        o[d] = 0.0f;
    if (job->saved_o) {
        lse = job->saved_lse[rows->head * job->tokens_q + sequence->token + token];
        far = job->saved_far[rows->head * job->tokens_q + sequence->token + token];
        memcpy(o,
               job->saved_o +
                   ((sequence->token + token) * problem->heads + rows->head) * problem->head_dim_v,
               (size_t)problem->head_dim_v * sizeof(float));
    } else {
        const mxattn_tensor *given = &job->call->o;

        lse = row_number(&job->call->lse, sequence, rows->head, token);
        load_wide(given,
                  sequence->outer * given->stride[0] +
                      (sequence->first + token) * given->stride[1] + rows->head * given->stride[2],
                  problem->head_dim_v, o);
    }
    if (seen.low < seen.high) { /* an empty row's O is 0 whatever dO is */
        whole = centred = dot(dout, o, dims_v);
        if (job->v.tags.flags & MXATTN_CENTRED) {
            for (int64_t d = 0; d < dims_v; d++)
                o[d] -= rows->centre[d];
            centred = dot(dout, o, dims_v);
        }
    }
    job->lse2[at] = far != 0.0f ? far : (float)((double)lse * log2_e);
    job->rest[at] = far != 0.0f ? lse : 0.0f;
    job->delta[at] = centred - dlse;
    if (problem->has_sink) {
        const double sink = (double)job->call->sink[rows->head] * log2_e;
        const double share = far != 0.0f ? exp2(sink - (double)far - (double)lse)
                                         : exp2(sink - (double)lse * log2_e);

        *dsink -= share * (double)(whole - dlse);
    }
    if (job->fp16) {
        const double norm = sqrt((double)dot(dout, dout, dims_v));

        *bound = mxa_backward_max(*bound, 2 * norm * rows->norm_v + fabs((double)dlse));
    }
}

static void load_rows(const mxa_backward_job *job, const block_rows *rows)
{
    const mxa_backward_sizes *sizes = &job->sizes;
    const mxa_sequence *sequence = &job->sequences_q[rows->b];
    const int64_t at = (rows->head * sizes->blocks_q + rows->block) * MXA_BLOCK;
    const int partner = job->call->q_seq.ndim > 0, twice = job->q_rows != job->q_units;
    unit *q_rows = (unit *)job->q_rows + at * sizes->row_units;
    unit *q_units = (unit *)job->q_units + at / UNIT_DEPTH * sizes->lane_units;
    unit *dout_rows = (unit *)job->dout_rows + at * sizes->row_units_v;
    unit *dout_units = (unit *)job->dout_units + at / UNIT_DEPTH * sizes->lane_units_v;
    mxa_operand q, q_lanes, dout;
    operand_reader reader;
    float row[MXA_DIMS_MOST];
    double dsink = 0, bound = 0;
    int special;

    mxa_operand_open(&q, &job->q, sequence, rows->b, rows->head);
    mxa_operand_open(&dout, &job->dout, sequence, rows->b, rows->head);
    special = load_tokens(&q, rows->first, rows->count, MXA_BLOCK, q_rows, sizes->row_units,
                          twice && !partner ? q_units : NULL, sizes->lane_units);
    if (partner) {
        mxa_operand_open(&q_lanes, &job->q_lanes, sequence, rows->b, rows->head);
        special = load_tokens(&q_lanes, rows->first, rows->count, MXA_BLOCK, NULL, 0, q_units,
                              sizes->lane_units);
    }
    special |=
        load_tokens(&dout, rows->first, rows->count, MXA_BLOCK, dout_rows, sizes->row_units_v,
                    job->dout_rows != job->dout_units ? dout_units : NULL, sizes->lane_units_v);
    operand_read(&reader, &dout);
    for (int64_t s = 0; s < rows->count; s++) {
        const float *decoded = (const float *)(const void *)(dout_rows + s * sizes->row_units_v);

        if (UNIT_DEPTH > 1) {
            operand_row(&reader, rows->first + s, row);
            decoded = row;
        }
        row_numbers(job, rows, s, decoded, &dsink, &bound);
    }
    job->special[rows->head * sizes->blocks_q + rows->block] = (uint8_t)special;
    job->dsink[rows->head * sizes->blocks_q + rows->block] = dsink;
    if (job->fp16)
        job->bound[rows->head * sizes->blocks_q + rows->block] = bound;
}

static void open_block(const mxa_backward_job *job, int64_t task, block_rows *rows)
{
    rows->kv_head = task % job->problem->kv_heads;
    rows->block = task / job->problem->kv_heads;
    rows->b = mxa_backward_sequence_of(job->sequences_q, job->batch, rows->block);
    const mxa_sequence *sequence = &job->sequences_q[rows->b];
    const int64_t first = (rows->block - sequence->block) * MXA_BLOCK;
    const int64_t left = sequence->used - first;

    rows->first = first;
    rows->count = left < 0 ? 0 : left < MXA_BLOCK ? left : MXA_BLOCK;
}

static void rows_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_backward_job *job = arg;
    block_rows rows;

    (void)worker;
    open_block(job, task, &rows);
    if (mxa_backward_skips(job, rows.b))
        return;
    load_centre(job, rows.b, rows.kv_head, rows.centre);
    rows.norm_v = job->fp16 ? mxa_backward_most(job->norm_v + rows.kv_head * job->sizes.blocks_k,
                                                &job->sequences_k[rows.b])
                            : 0;
    for (int64_t g = 0; g < job->group; g++) {
        rows.head = rows.kv_head * job->group + g;
        load_rows(job, &rows);
    }
}

/* ------------------------------------------------------------------------------------------------
 * finish of dQ
 * --------------------------------------------------------------------------------------------- */

/* To the nearest FP16, ties to even: adding and subtracting 1.5*2^13 times the power of two of x,
 * at least FP16's smallest normal, leaves 10 mantissa bits. From 65520 on the nearest is infinity.
 */
VEC_INLINE vec round_f16(vec x)
{
    const vec exponent = vec_from_bits(ivec_and(vec_bits(x), ivec_set(0x7f800000)));
    const vec magic = vec_mul(vec_max(vec_set(0x1p-14f), exponent), vec_set(0x1.8p13f));
    const vec rounded = vec_sub(vec_add(x, magic), magic);
    const vec infinite =
        vec_from_bits(ivec_or(ivec_and(vec_bits(x), ivec_set(INT32_MIN)), ivec_set(0x7f800000)));

    return vec_select(vec_less(vec_set(0x1.ffdffep15f), vec_abs(x)), infinite, rounded);
}

/* Two factors whose product is 2^e: one alone may not be an FP32. e: at most 250 either way. */
VEC_INLINE void power_of_two(int e, vec factor[2])
{
    factor[0] = vec_set(mxa_e8m0_to_f32((uint8_t)(127 + e / 2)));
    factor[1] = vec_set(mxa_e8m0_to_f32((uint8_t)(127 + e - e / 2)));
}

/* row = scale * 2^-e * the sum of the splits; each addition is rounded when reduced in FP16. */
static void add_splits(const mxa_backward_job *job, const block_rows *rows, int64_t s, float *row)
{
    const int64_t dims = job->sizes.dims, padded = job->sizes.blocks_q * MXA_BLOCK;
    const int64_t splits = mxa_backward_splits(job, rows->b);
    const int64_t at = rows->head * padded + rows->block * MXA_BLOCK + s;
    const int e = job->fp16 ? job->exponent[rows->b * job->problem->heads + rows->head] : 0;
    const vec scale = vec_set((float)job->problem->softmax_scale);
    vec factor[2];

    power_of_two(-e, factor);
    for (int64_t d = 0; d < dims; d += VEC_LANES) {
        vec sum = vec_set(0.0f);

        for (int64_t split = 0; split < splits; split++) {
            const float *dq =
                job->dq_splits + (split * job->problem->heads * padded + at) * dims + d;

            sum = vec_add(sum, vec_load(dq));
            if (job->fp16)
                sum = round_f16(sum);
        }
        vec_store(row + d, vec_mul(vec_mul(vec_mul(sum, factor[0]), factor[1]), scale));
    }
}

static void finish_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_backward_job *job = arg;
    block_rows rows;
    float row[MXA_DIMS_MOST];

    (void)worker;
    open_block(job, task, &rows);
    if (mxa_backward_skips(job, rows.b))
        return;
    for (int64_t g = 0; g < job->group; g++) {
        rows.head = rows.kv_head * job->group + g;
        for (int64_t s = 0; s < rows.count; s++) {
            add_splits(job, &rows, s, row);
            store_row(&job->dq, &job->sequences_q[rows.b], rows.first + s, rows.head, row);
        }
    }
}

#endif
