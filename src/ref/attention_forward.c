/* attention_forward.c: O = softmax(scale * Q K^T) V, one row at a time.
 *
 * For row i of q head h, in log2 units (docs/math.md derives every step):
 *   load     q_i, k, v of one head of one sequence as float64; wide operands quantized by tags
 *   scores   y_j = log2(e) * softcap(scale * q_i . k_j) for the keys the mask lets through
 *   softmax  m = ceil(max y) (F64: max y), p_j = 2^(y_j - m), l = sum p_j + 2^(sink*log2(e) - m);
 *            then P is rounded: BF16, or E4M3 at 2^8
 *   values   O = sum_j P_j v_j / l + centre * sum_j p_j / l
 *   finish   LSE = (m + log2 l) * ln 2; O and LSE stored, and kept for backward
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ref/ref.h"

#include <math.h>

static const double log2_e = 1.4426950408889634074;
static const double ln_2 = 0.69314718055994530942;

/* What one worker needs for one head. */
typedef struct forward_space {
    double *q;         /* (Sq, D) */
    double *k_columns; /* (D, Sk) */
    double *v;         /* (Sk, Dv), without its centre; holds k rows while loading */
    double *centre_k;  /* (D), also q's while loading */
    double *centre_v;  /* (Dv) */
    double *p;         /* (Sk): scores, then P */
    double *o;         /* (Dv) */
    void *scratch;
} forward_space;

typedef struct forward_run {
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_sequence *sequences_q, *sequences_k;
    mxattn_tensor o;
    mxa_ref_saved saved;
    mxa_ref_arena spaces; /* after everything that workers share */
    int64_t items, workers;
} forward_run;

/* One row between its stages. */
typedef struct forward_row {
    int64_t i;
    mxa_ref_range keys;
    double max;      /* m */
    double sum;      /* l */
    double sum_keys; /* l without the sink */
    double lse;
} forward_row;

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static forward_space carve_space(const mxattn_attention_problem *problem, mxa_ref_arena *arena)
{
    const int64_t sq = problem->max_seqlen_q, sk = problem->max_seqlen_k;
    const int64_t d = problem->head_dim, dv = problem->head_dim_v;
    forward_space space;
    space.q = mxa_ref_take_f64(arena, sq * d);
    space.k_columns = mxa_ref_take_f64(arena, d * sk);
    space.v = mxa_ref_take_f64(arena, sk * max_i64(d, dv));
    space.centre_k = mxa_ref_take_f64(arena, d);
    space.centre_v = mxa_ref_take_f64(arena, dv);
    space.p = mxa_ref_take_f64(arena, sk);
    space.o = mxa_ref_take_f64(arena, dv);
    space.scratch =
        mxa_ref_take(arena, mxa_ref_load_scratch_bytes(max_i64(sq, sk), max_i64(d, dv)));
    return space;
}

/* Everything that workers share; what remains of the workspace is theirs. */
static void carve_shared(const mxattn_attention_problem *problem, mxa_ref_arena *arena,
                         mxa_sequence **q, mxa_sequence **k, void **wide_o)
{
    *q = mxa_ref_take(arena, (problem->batch + 1) * (int64_t)sizeof(mxa_sequence));
    *k = mxa_ref_take(arena, (problem->batch + 1) * (int64_t)sizeof(mxa_sequence));
    *wide_o = mxa_ref_take(arena, mxa_ref_output_bytes(&problem->o, mxa_ref_rows_q(problem),
                                                       problem->heads, problem->head_dim_v));
}

int64_t mxa_ref_forward_workspace_bytes(const mxattn_plan *plan)
{
    const mxattn_attention_problem *problem = &plan->problem;
    const int64_t workers = mxa_ref_workers(plan, problem->batch * problem->heads);
    mxa_ref_arena arena = {NULL, 0};
    mxa_sequence *q, *k;
    void *wide_o;
    carve_shared(problem, &arena, &q, &k, &wide_o);
    for (int64_t w = 0; w < workers; w++)
        carve_space(problem, &arena);
    return arena.used;
}

static void load(const forward_run *run, const forward_space *space, int64_t b, int64_t head)
{
    const mxattn_plan *plan = run->plan;
    const mxattn_attention_problem *problem = &plan->problem;
    const mxa_attention_call *call = run->call;
    const mxa_sequence *seq_q = &run->sequences_q[b], *seq_k = &run->sequences_k[b];
    const int64_t kv_head = head / (problem->heads / problem->kv_heads);
    const int64_t d = problem->head_dim;

    mxa_ref_load(plan, &problem->q, &call->q, seq_q, b, head, space->scratch, space->q,
                 space->centre_k);
    mxa_ref_add_centre(space->q, space->centre_k, seq_q->used, d);

    double *k = space->v;
    mxa_ref_load(plan, &problem->k, &call->k, seq_k, b, kv_head, space->scratch, k,
                 space->centre_k);
    mxa_ref_add_centre(k, space->centre_k, seq_k->used, d);
    mxa_ref_transpose(k, seq_k->used, d, space->k_columns);

    /* P V contracts over tokens: there the column partner of V is read, when there is one. */
    const mxattn_tags *tags_v = call->v_seq.ndim ? &problem->v_seq : &problem->v;
    const mxattn_tensor *v = call->v_seq.ndim ? &call->v_seq : &call->v;
    mxa_ref_load(plan, tags_v, v, seq_k, b, kv_head, space->scratch, space->v, space->centre_v);
}

static void scores(const forward_run *run, const forward_space *space, int64_t b,
                   const forward_row *row)
{
    const int64_t d = run->plan->problem.head_dim;
    mxa_ref_scores(run->plan, space->q + row->i * d, space->k_columns, run->sequences_k[b].used,
                   row->keys, space->p, NULL);
}

static void softmax(const forward_run *run, const forward_space *space, int64_t head,
                    forward_row *row)
{
    const mxa_ref_hold hold = mxa_ref_hold_of(run->plan);
    const int64_t count = row->keys.end - row->keys.first;
    const int has_sink = run->plan->problem.has_sink;
    const double sink = has_sink ? (double)run->call->sink[head] * log2_e : -INFINITY;
    double *p = space->p;

    row->max = sink;
    for (int64_t j = 0; j < count; j++)
        if (p[j] > row->max)
            row->max = p[j];
    if (hold != MXA_REF_HOLD_EXACT)
        row->max = ceil(row->max);

    row->sum_keys = 0;
    for (int64_t j = 0; j < count; j++) {
        p[j] = exp2(p[j] - row->max);
        row->sum_keys += p[j];
        p[j] = mxa_ref_round_p(hold, p[j]);
    }
    row->sum = row->sum_keys + (has_sink ? exp2(sink - row->max) : 0);
    row->lse = (row->max + log2(row->sum)) * ln_2;
}

static void values(const forward_run *run, const forward_space *space, const forward_row *row)
{
    const int64_t dv = run->plan->problem.head_dim_v;
    double *o = space->o;
    for (int64_t d = 0; d < dv; d++)
        o[d] = 0;
    mxa_ref_weighted_sum(o, dv, space->p, space->v + row->keys.first * dv, dv,
                         row->keys.end - row->keys.first);
    for (int64_t d = 0; d < dv; d++)
        o[d] = o[d] / row->sum + space->centre_v[d] * (row->sum_keys / row->sum);
}

static void finish(const forward_run *run, const forward_space *space, int64_t b, int64_t head,
                   const forward_row *row)
{
    const mxattn_attention_problem *problem = &run->plan->problem;
    const mxa_sequence *seq = &run->sequences_q[b];
    const int64_t dv = problem->head_dim_v;

    mxa_ref_output_row(&run->o, seq, row->i, head, space->o);
    if (run->call->o_wide.ndim)
        mxa_ref_output_row(&run->call->o_wide, seq, row->i, head, space->o);
    if (run->call->lse.ndim)
        *mxa_ref_row_value(&run->call->lse, seq, head, row->i) = (float)row->lse;
    if (run->saved.o) {
        const int64_t at = (seq->token + row->i) * problem->heads + head;
        for (int64_t d = 0; d < dv; d++)
            run->saved.o[at * dv + d] = space->o[d];
        run->saved.lse[at] = row->lse;
    }
}

/* A row that sees no key: O = 0, LSE = -inf or the sink. */
static void empty_row(const forward_run *run, const forward_space *space, int64_t head,
                      forward_row *row)
{
    for (int64_t d = 0; d < run->plan->problem.head_dim_v; d++)
        space->o[d] = 0;
    row->lse = run->plan->problem.has_sink ? (double)run->call->sink[head] : -INFINITY;
}

static void forward_head(const forward_run *run, const forward_space *space, int64_t b,
                         int64_t head)
{
    const int64_t seqlen_q = run->sequences_q[b].used, seqlen_k = run->sequences_k[b].used;
    load(run, space, b, head);
    for (int64_t i = 0; i < seqlen_q; i++) {
        forward_row row = {.i = i};
        row.keys = mxa_ref_visible(&run->plan->problem, seqlen_q, seqlen_k, i);
        if (row.keys.end > row.keys.first) {
            scores(run, space, b, &row);
            softmax(run, space, head, &row);
            values(run, space, &row);
        } else {
            empty_row(run, space, head, &row);
        }
        finish(run, space, b, head, &row);
    }
}

static void forward_worker(void *arg, int64_t index)
{
    const forward_run *run = arg;
    const mxattn_attention_problem *problem = &run->plan->problem;
    mxa_ref_arena arena = run->spaces;
    forward_space space = carve_space(problem, &arena);
    for (int64_t w = 0; w < index; w++)
        space = carve_space(problem, &arena);
    for (int64_t item = index; item < run->items; item += run->workers)
        forward_head(run, &space, item / problem->heads, item % problem->heads);
}

static void clear_lse(const mxattn_tensor *lse)
{
    for (int64_t b = 0; b < lse->shape[0]; b++)
        for (int64_t h = 0; h < lse->shape[1]; h++)
            for (int64_t s = 0; s < lse->shape[2]; s++)
                ((float *)lse->data)[b * lse->stride[0] + h * lse->stride[1] + s * lse->stride[2]] =
                    -INFINITY;
}

mxattn_status mxa_ref_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_attention_problem *problem = &plan->problem;
    forward_run run = {.plan = plan, .call = call, .spaces = {call->workspace, 0}};
    mxa_sequence *sequences_q, *sequences_k;
    void *wide_o;
    carve_shared(problem, &run.spaces, &sequences_q, &sequences_k, &wide_o);
    mxa_sequence_table(&call->batch_q, sequences_q);
    mxa_sequence_table(&call->batch_k, sequences_k);
    run.sequences_q = sequences_q;
    run.sequences_k = sequences_k;
    run.o = mxa_ref_output(&call->o, wide_o);
    if (problem->mode == MXATTN_TRAINING && call->saved)
        run.saved = mxa_ref_saved_at(problem, call->saved);
    run.items = call->batch_q.batch * problem->heads;
    run.workers = mxa_ref_workers(plan, problem->batch * problem->heads);

    mxa_ref_output_clear(&run.o);
    if (call->o_wide.ndim)
        mxa_ref_output_clear(&call->o_wide);
    if (call->lse.ndim)
        clear_lse(&call->lse);
    mxa_ref_parallel(plan->context, run.workers, forward_worker, &run);
    mxa_ref_output_finish(&run.o, &call->o, &call->batch_q);
    return MXATTN_OK;
}
