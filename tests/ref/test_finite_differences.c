/* test_finite_differences.c: the exact backward is the derivative of the exact forward, over random
 * small problems that mix every option.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"
#include "compare.h"
#include "guard.h"
#include "ref/ref.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>

enum { PROBLEMS = 80, SAMPLES = 24, MAX_BATCH = 3 };

static const float step = 0x1p-13F;

/* A random problem. Memory that it points to. */
typedef struct random_problem {
    mxt_attention a;
    int32_t cu_q[MAX_BATCH + 1], cu_k[MAX_BATCH + 1];
    int32_t used_q[MAX_BATCH], used_k[MAX_BATCH];
    char text[256];
} random_problem;

static int coin(mxt_random *random)
{
    return mxt_random_int(random, 0, 1) == 1;
}

static void random_options(random_problem *p, mxt_random *random)
{
    static const double scales[] = {NAN, NAN, NAN, 0, -0.4, 1.0};
    mxattn_attention_problem *problem = &p->a.problem;
    problem->head_dim_v = coin(random) ? problem->head_dim : 8 * mxt_random_int(random, 1, 3);
    problem->causal = coin(random);
    problem->alignment = coin(random) ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    if (coin(random)) {
        problem->window[0] = mxt_random_int(random, -1, 3);
        problem->window[1] = mxt_random_int(random, -1, 3);
    }
    problem->softmax_scale = scales[mxt_random_int(random, 0, 5)];
    problem->softcap = coin(random) ? 1.5 : 0;
    problem->has_sink = coin(random);
    p->a.with_dlse = coin(random);
}

static void random_lengths(int32_t *cu, int32_t *used, int64_t batch, mxt_random *random)
{
    cu[0] = 0;
    for (int64_t b = 0; b < batch; b++) {
        const int32_t length = (int32_t)mxt_random_int(random, 0, 7);
        cu[b + 1] = cu[b] + length;
        used[b] = (int32_t)mxt_random_int(random, 0, length);
    }
}

static void make(random_problem *p, uint64_t seed)
{
    mxt_random random = {seed};
    const int64_t kv_heads = mxt_random_int(&random, 1, 2);
    const int64_t heads = kv_heads * mxt_random_int(&random, 1, 3);
    const int64_t head_dim = 8 * mxt_random_int(&random, 1, 2);
    const int64_t batch = mxt_random_int(&random, 1, MAX_BATCH);
    const int jagged = coin(&random), used = coin(&random);
    if (jagged) {
        random_lengths(p->cu_q, p->used_q, batch, &random);
        random_lengths(p->cu_k, p->used_k, batch, &random);
        mxt_attention_jagged(&p->a, batch, p->cu_q, p->cu_q[batch] + mxt_random_int(&random, 0, 2),
                             p->cu_k, p->cu_k[batch] + mxt_random_int(&random, 0, 2), heads,
                             kv_heads, head_dim);
    } else {
        const int64_t sq = mxt_random_int(&random, 1, 9), sk = mxt_random_int(&random, 1, 9);
        mxt_attention_dense(&p->a, batch, sq, sk, heads, kv_heads, head_dim);
        for (int64_t b = 0; b < batch; b++) {
            p->used_q[b] = (int32_t)mxt_random_int(&random, 0, sq);
            p->used_k[b] = (int32_t)mxt_random_int(&random, 0, sk);
        }
    }
    if (used) {
        p->a.used_q = p->used_q;
        p->a.used_k = p->used_k;
    }
    random_options(p, &random);
    mxt_attention_alloc(&p->a);
    mxt_attention_fill(&p->a, MXT_GAUSSIAN, seed);

    const mxattn_attention_problem *q = &p->a.problem;
    (void)snprintf(p->text, sizeof p->text,
                   "B %d %s%s heads %d/%d D %d Dv %d causal %d align %d window %d,%d scale %g cap "
                   "%g sink %d dlse %d",
                   (int)batch, jagged ? "jagged" : "dense", used ? "+used" : "", (int)heads,
                   (int)kv_heads, (int)head_dim, (int)q->head_dim_v, (int)q->causal,
                   (int)q->alignment, (int)q->window[0], (int)q->window[1], q->softmax_scale,
                   q->softcap, (int)q->has_sink, p->a.with_dlse);
}

/* sum O*dO + sum LSE*dLSE in float64, from what forward saved. Rows that saw nothing have LSE =
 * -inf whatever the inputs are, and count nothing. */
static double loss(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    const mxattn_attention_problem *problem = &a->problem;
    const mxa_ref_saved saved = mxa_ref_saved_at(problem, a->saved);
    const int64_t dv = problem->head_dim_v;
    const mxa_batch batch = {a->batch, a->seqlen_q, a->cu_q, a->used_q};
    mxa_sequence seq = {0};
    double sum = 0;
    for (int64_t b = 0; b < a->batch; b++) {
        mxa_sequence_next(&batch, b, &seq);
        for (int64_t s = 0; s < seq.used; s++)
            for (int64_t h = 0; h < problem->heads; h++) {
                const int64_t at = (seq.token + s) * problem->heads + h;
                for (int64_t d = 0; d < dv; d++)
                    sum += saved.o[at * dv + d] * (double)a->dout[at * dv + d];
                const int64_t row = a->cu_q ? h * a->rows_q + seq.token + s
                                            : (b * problem->heads + h) * a->seqlen_q + s;
                if (a->dlse && saved.lse[at] > -INFINITY)
                    sum += saved.lse[at] * (double)a->dlse[row];
            }
    }
    return sum;
}

/* Compares samples of one input's gradient. */
static void differences(mxt_attention *a, const char *what, float *input, const float *gradient,
                        int64_t count, mxt_random *random)
{
    double largest = 1;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)gradient[i]));
    for (int64_t n = 0; n < SAMPLES && count > 0; n++) {
        const int64_t i = count <= SAMPLES ? n % count : mxt_random_int(random, 0, count - 1);
        const float x = input[i];
        const float above = x + step, below = x - step;
        input[i] = above;
        const double high = loss(a);
        input[i] = below;
        const double low = loss(a);
        input[i] = x;
        const double want = (high - low) / ((double)above - (double)below);
        CHECK(fabs(want - (double)gradient[i]) <= MXT_FINITE_DIFFERENCE * largest,
              "%s[%lld] is %.9g, finite difference %.9g (of %lld)", what, (long long)i,
              (double)gradient[i], want, (long long)count);
    }
}

int main(void)
{
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        random_problem p;
        make(&p, seed);
        mxt_attention *a = &p.a;
        mxt_case("finite differences, seed %llu: %s", (unsigned long long)seed, p.text);
        mxt_random random = {seed};
        CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
        differences(a, "dq", a->q, a->dq, mxt_size_q(a), &random);
        differences(a, "dk", a->k, a->dk, mxt_size_k(a), &random);
        differences(a, "dv", a->v, a->dv, mxt_size_v(a), &random);
        if (a->sink)
            differences(a, "dsink", a->sink, a->dsink, a->problem.heads, &random);
        mxt_attention_free(a);
    }
    return mxt_finish();
}
