/* attention_backward.c: gradients of attention, 32 query rows at a time.
 *
 * One worker owns one kv head of one sequence and walks the q heads of its group, so dK and dV are
 * summed in a fixed order. For a strip of 32 rows (docs/math.md derives every step):
 *   load     k, v once; q and dO of each q head; delta_i = dO_i . O_i - dLSE_i
 *   scores   y_ij = log2(e) * softcap(scale * q_i . k_j), and the softcap's slope
 *   probs    p_ij = 2^(y_ij - LSE_i * log2(e))
 *   dprobs   dp_ij = dO_i . v_j, centre of V included
 *   dscores  ds_ij = p_ij * (dp_ij - delta_i) * slope_ij, 0 where masked; then rounded: BF16, or
 *            E4M3 in blocks of 32 x 32. P is rounded after this: BF16, or E4M3 at 2^8
 *   grads    dV_j += sum_i P_ij dO_i;  dK_j += sum_i ds_ij q_i;  dQ_i = sum_j ds_ij k_j, where
 *            reduction in FP16 rounds each partial sum over 128 keys, times 2^e, and each addition
 *   finish   dQ, dK times scale; outputs stored
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/tensor.h"
#include "ref/fused.h"
#include "ref/ref.h"

#include <math.h>
#include <string.h>

enum { STRIP_ROWS = MXA_BLOCK, DQ_STEP_KEYS = 128 };

static const double log2_e = 1.4426950408889634074;

/* What one worker needs for one kv head. */
typedef struct backward_space {
    double *k_columns; /* (D, Sk) for scores */
    double *k;         /* (Sk, D) for dQ: the column partner of k where there is one */
    double *v_columns; /* (Dv, Sk), centre included */
    double *dk, *dv;   /* (Sk, D), (Sk, Dv) */
    double *q;         /* (Sq, D) for scores */
    double *q_seq;     /* (Sq, D) for dK: the column partner of q, or q itself */
    double *dout;      /* (Sq, Dv) */
    double *delta;     /* (Sq) */
    double *lse2;      /* (Sq): LSE * log2(e) */
    double *p, *ds;    /* (32, Sk) each */
    double *slope;     /* (32, Sk), or NULL without a softcap */
    double *dq;        /* (D) */
    double *partial;   /* (D) */
    double *centre;    /* (max(D, Dv)) */
    double *v;         /* (Sk, Dv), while loading */
    void *scratch;
    double max_k, max_v; /* max |k_jd|, max_j |v_j|_2: for the bound of dQ */
    int64_t dq_log2;     /* dQ is reduced times 2^dq_log2 */
} backward_space;

typedef struct backward_run {
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_sequence *sequences_q, *sequences_k;
    mxattn_tensor dq, dk, dv;
    mxa_ref_saved saved;
    double *dsink; /* (B, Hq), summed over the batch at the end */
    mxa_ref_arena spaces;
    int64_t items, workers;
} backward_run;

/* A strip of one q head; row r of it is row i0 + r of the sequence. */
typedef struct backward_strip {
    int64_t b, head, kv_head;
    int64_t i0, rows;
    mxa_ref_range keys[STRIP_ROWS];
} backward_strip;

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static backward_space carve_space(const mxattn_attention_problem *problem, mxa_ref_arena *arena)
{
    const int64_t sq = problem->max_seqlen_q, sk = problem->max_seqlen_k;
    const int64_t d = problem->head_dim, dv = problem->head_dim_v;
    backward_space space = {0};
    space.k_columns = mxa_ref_take_f64(arena, d * sk);
    space.k = mxa_ref_take_f64(arena, sk * d);
    space.v_columns = mxa_ref_take_f64(arena, dv * sk);
    space.dk = mxa_ref_take_f64(arena, sk * d);
    space.dv = mxa_ref_take_f64(arena, sk * dv);
    space.q = mxa_ref_take_f64(arena, sq * d);
    space.q_seq =
        problem->q_seq.dtype != MXATTN_DTYPE_NONE ? mxa_ref_take_f64(arena, sq * d) : space.q;
    space.dout = mxa_ref_take_f64(arena, sq * dv);
    space.delta = mxa_ref_take_f64(arena, sq);
    space.lse2 = mxa_ref_take_f64(arena, sq);
    space.p = mxa_ref_take_f64(arena, STRIP_ROWS * sk);
    space.ds = mxa_ref_take_f64(arena, STRIP_ROWS * sk);
    if (problem->softcap > 0)
        space.slope = mxa_ref_take_f64(arena, STRIP_ROWS * sk);
    space.dq = mxa_ref_take_f64(arena, d);
    space.partial = mxa_ref_take_f64(arena, d);
    space.centre = mxa_ref_take_f64(arena, max_i64(d, dv));
    space.v = mxa_ref_take_f64(arena, sk * dv);
    space.scratch =
        mxa_ref_take(arena, mxa_ref_load_scratch_bytes(max_i64(sq, sk), max_i64(d, dv)));
    return space;
}

typedef struct backward_shared {
    mxa_sequence *sequences_q, *sequences_k;
    double *dsink;
    void *wide_dq, *wide_dk, *wide_dv;
} backward_shared;

static backward_shared carve_shared(const mxattn_attention_problem *problem, mxa_ref_arena *arena)
{
    const int64_t rows_q = mxa_ref_rows_q(problem), rows_k = mxa_ref_rows_k(problem);
    backward_shared shared;
    shared.sequences_q = mxa_ref_take(arena, (problem->batch + 1) * (int64_t)sizeof(mxa_sequence));
    shared.sequences_k = mxa_ref_take(arena, (problem->batch + 1) * (int64_t)sizeof(mxa_sequence));
    shared.dsink = mxa_ref_take_f64(arena, problem->batch * problem->heads);
    shared.wide_dq = mxa_ref_take(
        arena, mxa_ref_output_bytes(&problem->dq, rows_q, problem->heads, problem->head_dim));
    shared.wide_dk = mxa_ref_take(
        arena, mxa_ref_output_bytes(&problem->dk, rows_k, problem->kv_heads, problem->head_dim));
    shared.wide_dv = mxa_ref_take(
        arena, mxa_ref_output_bytes(&problem->dv, rows_k, problem->kv_heads, problem->head_dim_v));
    return shared;
}

int64_t mxa_ref_backward_workspace_bytes(const mxattn_plan *plan)
{
    const mxattn_attention_problem *problem = &plan->problem;
    const int64_t workers = mxa_ref_workers(plan, problem->batch * problem->kv_heads);
    mxa_ref_arena arena = {NULL, 0};
    carve_shared(problem, &arena);
    for (int64_t w = 0; w < workers; w++)
        carve_space(problem, &arena);
    return arena.used;
}

/* The larger, where NaN is larger than everything. */
static double max_or_nan(double a, double b)
{
    return b > a || isnan(b) ? b : a;
}

static double norm2(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void load_keys(const backward_run *run, backward_space *space, int64_t b, int64_t kv_head)
{
    const mxattn_plan *plan = run->plan;
    const mxattn_attention_problem *problem = &plan->problem;
    const mxa_attention_call *call = run->call;
    const mxa_sequence *seq = &run->sequences_k[b];
    const int64_t n = seq->used, d = problem->head_dim, dv = problem->head_dim_v;

    mxa_ref_load(plan, &problem->k, &call->k, seq, b, kv_head, space->scratch, space->k,
                 space->centre);
    mxa_ref_add_centre(space->k, space->centre, n, d);
    mxa_ref_transpose(space->k, n, d, space->k_columns);
    if (call->k_seq.ndim) {
        mxa_ref_load(plan, &problem->k_seq, &call->k_seq, seq, b, kv_head, space->scratch, space->k,
                     space->centre);
        mxa_ref_add_centre(space->k, space->centre, n, d);
    }
    mxa_ref_load(plan, &problem->v, &call->v, seq, b, kv_head, space->scratch, space->v,
                 space->centre);
    mxa_ref_add_centre(space->v, space->centre, n, dv);
    mxa_ref_transpose(space->v, n, dv, space->v_columns);

    space->max_k = space->max_v = 0;
    for (int64_t j = 0; j < n * d; j++)
        space->max_k = max_or_nan(space->max_k, fabs(space->k[j]));
    for (int64_t j = 0; j < n; j++)
        space->max_v = max_or_nan(space->max_v, norm2(space->v + j * dv, dv));
    memset(space->dk, 0, (size_t)(n * d) * sizeof *space->dk);
    memset(space->dv, 0, (size_t)(n * dv) * sizeof *space->dv);
}

static double dlse_of(const backward_run *run, int64_t b, int64_t head, int64_t i)
{
    const mxattn_tensor *dlse = &run->call->dlse;
    return dlse->ndim ? (double)*mxa_ref_row_value(dlse, &run->sequences_q[b], head, i) : 0;
}

/* delta_i and LSE_i of every row, from what forward saved or from the O and LSE given. */
static void load_rows(const backward_run *run, const backward_space *space, int64_t b, int64_t head)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const mxa_attention_call *call = run->call;
    const mxa_sequence *seq = &run->sequences_q[b];
    const int64_t dv = problem->head_dim_v;

    for (int64_t i = 0; i < seq->used; i++) {
        const int64_t at = (seq->token + i) * problem->heads + head;
        const double *dout = space->dout + i * dv;
        const double lse = run->saved.o ? run->saved.lse[at]
                                        : (double)*mxa_ref_row_value(&call->lse, seq, head, i);
        const mxa_ref_range keys = mxa_ref_visible(problem, seq->used, run->sequences_k[b].used, i);
        double sum = 0;
        for (int64_t d = 0; d < dv && keys.end > keys.first; d++)
            sum += dout[d] * (run->saved.o ? run->saved.o[at * dv + d]
                                           : mxa_tensor_value(&call->o, seq, b, i, head, d));
        space->delta[i] = sum - dlse_of(run, b, head, i);
        space->lse2[i] = lse * log2_e;
    }
}

/* The exponent e of dQ's reduction: |dQ_i| / scale <= B = (2 |dO_i| max|V_j| + |dLSE_i|) max|K|,
 * and e is the largest with B * 2^(e+1) <= 65504. */
static int64_t dq_exponent(const backward_run *run, const backward_space *space, int64_t b,
                           int64_t head)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const mxa_sequence *seq = &run->sequences_q[b];
    const int64_t dv = problem->head_dim_v;
    if (problem->dq_scale_log2 != MXATTN_DQ_SCALE_AUTO)
        return problem->dq_scale_log2;

    double bound = 0;
    for (int64_t i = 0; i < seq->used; i++) {
        bound = max_or_nan(bound, 2 * norm2(space->dout + i * dv, dv) * space->max_v +
                                      fabs(dlse_of(run, b, head, i)));
    }
    bound *= space->max_k;
    if (!(bound > 0) || isinf(bound))
        return 0;
    int e = ilogb(65504 / bound) - 1;
    while (ldexp(bound, e + 1) > 65504)
        e--;
    return e;
}

static void load_queries(const backward_run *run, backward_space *space, int64_t b, int64_t head)
{
    const mxattn_plan *plan = run->plan;
    const mxattn_attention_problem *problem = &plan->problem;
    const mxa_attention_call *call = run->call;
    const mxa_sequence *seq = &run->sequences_q[b];
    const int64_t n = seq->used, d = problem->head_dim, dv = problem->head_dim_v;

    mxa_ref_load(plan, &problem->q, &call->q, seq, b, head, space->scratch, space->q,
                 space->centre);
    mxa_ref_add_centre(space->q, space->centre, n, d);
    if (call->q_seq.ndim) {
        mxa_ref_load(plan, &problem->q_seq, &call->q_seq, seq, b, head, space->scratch,
                     space->q_seq, space->centre);
        mxa_ref_add_centre(space->q_seq, space->centre, n, d);
    }
    mxa_ref_load(plan, &problem->dout, &call->dout, seq, b, head, space->scratch, space->dout,
                 space->centre);
    mxa_ref_add_centre(space->dout, space->centre, n, dv);
    load_rows(run, space, b, head);
    space->dq_log2 = dq_exponent(run, space, b, head);
}

/* Row r of a strip's (32, Sk) array, at its first visible key. */
static double *strip_row(const backward_run *run, double *strip_array, const backward_strip *strip,
                         int64_t r)
{
    return strip_array + r * run->plan->problem.max_seqlen_k + strip->keys[r].first;
}

static int64_t key_count(const backward_strip *strip, int64_t r)
{
    return strip->keys[r].end - strip->keys[r].first;
}

static void scores(const backward_run *run, const backward_space *space,
                   const backward_strip *strip)
{
    const int64_t d = run->plan->problem.head_dim;
    for (int64_t r = 0; r < strip->rows; r++)
        mxa_ref_scores(run->plan, space->q + (strip->i0 + r) * d, space->k_columns,
                       run->sequences_k[strip->b].used, strip->keys[r],
                       strip_row(run, space->p, strip, r),
                       space->slope ? strip_row(run, space->slope, strip, r) : NULL);
}

static void probs(const backward_run *run, const backward_space *space, const backward_strip *strip)
{
    for (int64_t r = 0; r < strip->rows; r++) {
        double *p = strip_row(run, space->p, strip, r);
        for (int64_t j = 0; j < key_count(strip, r); j++)
            p[j] = exp2(p[j] - space->lse2[strip->i0 + r]);
    }
}

static void dprobs(const backward_run *run, const backward_space *space,
                   const backward_strip *strip)
{
    const int64_t dv = run->plan->problem.head_dim_v;
    for (int64_t r = 0; r < strip->rows; r++) {
        double *dp = strip_row(run, space->ds, strip, r);
        memset(dp, 0, (size_t)key_count(strip, r) * sizeof *dp);
        mxa_ref_weighted_sum(dp, key_count(strip, r), space->dout + (strip->i0 + r) * dv,
                             space->v_columns + strip->keys[r].first,
                             run->sequences_k[strip->b].used, dv);
    }
}

/* Rounds dS to E4M3 under one scale per block of 32 keys; masked elements take no part. */
static void round_dscores(const backward_run *run, const backward_space *space,
                          const backward_strip *strip)
{
    const int64_t seqlen_k = run->sequences_k[strip->b].used;
    for (int64_t j0 = 0; j0 < seqlen_k; j0 += MXA_BLOCK) {
        uint32_t amax_bits = 0;
        for (int pass = 0; pass < 2; pass++) {
            const uint8_t scale = mxa_e8m0_from_amax(amax_bits, MXATTN_E4M3, MXATTN_RCEIL);
            for (int64_t r = 0; r < strip->rows; r++) {
                const mxa_ref_range keys = strip->keys[r];
                double *ds = space->ds + r * run->plan->problem.max_seqlen_k;
                for (int64_t j = j0; j < j0 + MXA_BLOCK && j < seqlen_k; j++) {
                    if (j < keys.first || j >= keys.end)
                        continue;
                    const float x = (float)ds[j];
                    uint32_t bits;
                    memcpy(&bits, &x, sizeof bits);
                    bits &= 0x7fffffff;
                    if (pass == 0)
                        amax_bits = bits > amax_bits ? bits : amax_bits;
                    else
                        ds[j] = mxa_fp8_decode_f64(mxa_fp8_encode(x, scale, MXATTN_E4M3), scale,
                                                   MXATTN_E4M3);
                }
            }
        }
    }
}

static void dscores(const backward_run *run, const backward_space *space,
                    const backward_strip *strip)
{
    const mxa_ref_hold hold = mxa_ref_hold_of(run->plan);
    for (int64_t r = 0; r < strip->rows; r++) {
        double *p = strip_row(run, space->p, strip, r);
        double *ds = strip_row(run, space->ds, strip, r);
        const double *slope = space->slope ? strip_row(run, space->slope, strip, r) : NULL;
        const double delta = space->delta[strip->i0 + r];
        for (int64_t j = 0; j < key_count(strip, r); j++) {
            ds[j] = p[j] * (ds[j] - delta);
            if (slope)
                ds[j] *= slope[j];
            if (hold == MXA_REF_HOLD_BF16)
                ds[j] = mxa_round_bf16(ds[j]);
            p[j] = mxa_ref_round_p(hold, p[j]);
        }
    }
    if (hold == MXA_REF_HOLD_E4M3)
        round_dscores(run, space, strip);
}

/* dV_j += sum_i P_ij dO_i, dK_j += sum_i ds_ij q_i over the rows that see key j, which are
 * neighbours: a masked element never meets a NaN. */
static void grads_of_keys(const backward_run *run, const backward_space *space,
                          const backward_strip *strip)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const int64_t d = problem->head_dim, dv = problem->head_dim_v, ld = problem->max_seqlen_k;
    const int64_t first = strip->keys[0].first, end = strip->keys[strip->rows - 1].end;
    double weights_p[STRIP_ROWS], weights_ds[STRIP_ROWS];
    for (int64_t j = first; j < end; j++) {
        int64_t r0 = 0, rows = 0;
        while (r0 < strip->rows && strip->keys[r0].end <= j)
            r0++;
        while (r0 + rows < strip->rows && strip->keys[r0 + rows].first <= j) {
            weights_p[rows] = space->p[(r0 + rows) * ld + j];
            weights_ds[rows] = space->ds[(r0 + rows) * ld + j];
            rows++;
        }
        const int64_t i = strip->i0 + r0;
        mxa_ref_weighted_sum(space->dv + j * dv, dv, weights_p, space->dout + i * dv, dv, rows);
        mxa_ref_weighted_sum(space->dk + j * d, d, weights_ds, space->q_seq + i * d, d, rows);
    }
}

/* dQ of one row, summed over steps of 128 keys from the sequence's start. */
static void grads_of_query(const backward_run *run, const backward_space *space,
                           const backward_strip *strip, int64_t r)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const int64_t d = problem->head_dim, end = strip->keys[r].end;
    const double *ds = space->ds + r * problem->max_seqlen_k;
    const int fp16 = problem->precision != MXATTN_PRECISION_F64 &&
                     run->plan->info.dq_reduce == MXATTN_DQ_REDUCE_FP16;
    const int e = (int)space->dq_log2;
    double *dq = space->dq, *partial = space->partial;

    memset(dq, 0, (size_t)d * sizeof *dq);
    for (int64_t j = strip->keys[r].first; j < end;) {
        const int64_t boundary = (j / DQ_STEP_KEYS + 1) * DQ_STEP_KEYS;
        const int64_t count = (boundary < end ? boundary : end) - j;
        if (fp16) {
            memset(partial, 0, (size_t)d * sizeof *partial);
            mxa_ref_weighted_sum(partial, d, ds + j, space->k + j * d, d, count);
            for (int64_t c = 0; c < d; c++)
                dq[c] = mxa_round_f16(dq[c] + mxa_round_f16(ldexp(partial[c], e)));
        } else {
            mxa_ref_weighted_sum(dq, d, ds + j, space->k + j * d, d, count);
        }
        j += count;
    }
    for (int64_t c = 0; c < d; c++)
        dq[c] = problem->softmax_scale * (fp16 ? ldexp(dq[c], -e) : dq[c]);
}

static void grads(const backward_run *run, const backward_space *space, const backward_strip *strip)
{
    grads_of_keys(run, space, strip);
    for (int64_t r = 0; r < strip->rows; r++) {
        grads_of_query(run, space, strip, r);
        mxa_ref_rotate_f64(&run->call->rope_q, strip->i0 + r, space->dq);
        mxa_ref_output_row(&run->dq, &run->sequences_q[strip->b], strip->i0 + r, strip->head,
                           space->dq);
    }
}

static void finish(const backward_run *run, const backward_space *space, int64_t b, int64_t kv_head)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const mxa_sequence *seq = &run->sequences_k[b];
    const int64_t d = problem->head_dim, dv = problem->head_dim_v;
    for (int64_t j = 0; j < seq->used; j++) {
        double *dk = space->dk + j * d;
        for (int64_t c = 0; c < d; c++)
            dk[c] *= problem->softmax_scale;
        mxa_ref_rotate_f64(&run->call->rope_k, j, dk);
        mxa_ref_output_row(&run->dk, seq, j, kv_head, dk);
        mxa_ref_output_row(&run->dv, seq, j, kv_head, space->dv + j * dv);
    }
}

/* dsink of one head of one sequence. A row without keys has LSE = sink and gives exactly dLSE; a
 * sink of -inf adds nothing to any row. */
static double sink_gradient(const backward_run *run, const backward_space *space, int64_t b,
                            int64_t head)
{
    const double sink = (double)run->call->sink[head] * log2_e;
    double sum = 0;
    for (int64_t i = 0; i < run->sequences_q[b].used && sink > -INFINITY; i++)
        sum -= exp2(sink - space->lse2[i]) * space->delta[i];
    return sum;
}

static void backward_kv_head(const backward_run *run, backward_space *space, int64_t b,
                             int64_t kv_head)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const int64_t group = problem->heads / problem->kv_heads;
    const int64_t seqlen_q = run->sequences_q[b].used, seqlen_k = run->sequences_k[b].used;

    load_keys(run, space, b, kv_head);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        load_queries(run, space, b, head);
        for (int64_t i0 = 0; i0 < seqlen_q; i0 += STRIP_ROWS) {
            backward_strip strip = {.b = b, .head = head, .kv_head = kv_head, .i0 = i0};
            strip.rows = seqlen_q - i0 < STRIP_ROWS ? seqlen_q - i0 : STRIP_ROWS;
            for (int64_t r = 0; r < strip.rows; r++)
                strip.keys[r] = mxa_ref_visible(problem, seqlen_q, seqlen_k, i0 + r);
            scores(run, space, &strip);
            probs(run, space, &strip);
            dprobs(run, space, &strip);
            dscores(run, space, &strip);
            grads(run, space, &strip);
        }
        if (problem->has_sink)
            run->dsink[b * problem->heads + head] = sink_gradient(run, space, b, head);
    }
    finish(run, space, b, kv_head);
}

static void backward_worker(void *arg, int64_t index)
{
    const backward_run *run = arg;
    const mxattn_attention_problem *problem = &run->plan->problem;
    mxa_ref_arena arena = run->spaces;
    backward_space space = carve_space(problem, &arena);
    for (int64_t w = 0; w < index; w++)
        space = carve_space(problem, &arena);
    for (int64_t item = index; item < run->items; item += run->workers)
        backward_kv_head(run, &space, item / problem->kv_heads, item % problem->kv_heads);
}

mxattn_status mxa_ref_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_attention_problem *problem = &plan->problem;
    backward_run run = {.plan = plan, .call = call, .spaces = {call->workspace, 0}};
    const backward_shared shared = carve_shared(problem, &run.spaces);
    mxa_sequence_table(&call->batch_q, shared.sequences_q);
    mxa_sequence_table(&call->batch_k, shared.sequences_k);
    run.sequences_q = shared.sequences_q;
    run.sequences_k = shared.sequences_k;
    run.dsink = shared.dsink;
    run.dq = mxa_ref_output(&call->dq, shared.wide_dq);
    run.dk = mxa_ref_output(&call->dk, shared.wide_dk);
    run.dv = mxa_ref_output(&call->dv, shared.wide_dv);
    if (call->saved)
        run.saved = mxa_ref_saved_at(problem, call->saved);
    run.items = call->batch_q.batch * problem->kv_heads;
    run.workers = mxa_ref_workers(plan, problem->batch * problem->kv_heads);

    mxa_ref_output_clear(&run.dq);
    mxa_ref_output_clear(&run.dk);
    mxa_ref_output_clear(&run.dv);
    mxa_ref_parallel(plan->context, run.workers, backward_worker, &run);
    mxa_ref_output_finish(&run.dq, &call->dq, &call->batch_q);
    mxa_ref_output_finish(&run.dk, &call->dk, &call->batch_k);
    mxa_ref_output_finish(&run.dv, &call->dv, &call->batch_k);

    for (int64_t head = 0; problem->has_sink && call->dsink && head < problem->heads; head++) {
        double sum = 0;
        for (int64_t b = 0; b < call->batch_q.batch; b++)
            sum += run.dsink[b * problem->heads + head];
        call->dsink[head] = (float)sum;
    }
    return MXATTN_OK;
}
