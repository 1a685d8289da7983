/* test_backward_edges.c: backward where numbers end: NaN and infinity stay where mathematics has
 * them, and dQ reduced in FP16 keeps its bound.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "compare.h"
#include "guard.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

static uint32_t isas[8];
static int isa_count;

/* ------------------------------------------------------------------------------------------------
 * NaN and infinity
 * --------------------------------------------------------------------------------------------- */

enum { S = 300, HEADS = 4, KV_HEADS = 2, D = 64, LEFT = 20, BAD_HEAD = 1 };

/* Row blocks, so that a NaN shares its scale with no other token; a causal window. */
static mxt_attention_spec nan_spec(int e4m3)
{
    const mxattn_tags row = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW};
    mxt_attention_spec spec = mxt_attention_spec_make();

    spec.seed = 5;
    spec.batch = 2;
    spec.seqlen_q[0] = spec.seqlen_k[0] = S;
    spec.heads = HEADS;
    spec.kv_heads = KV_HEADS;
    spec.head_dim = spec.head_dim_v = D;
    spec.problem.mode = MXATTN_TRAINING;
    spec.problem.dout = row;
    spec.problem.dq = spec.problem.dk = spec.problem.dv = (mxattn_tags){.dtype = MXATTN_F32};
    spec.problem.causal = 1;
    spec.problem.window[0] = LEFT;
    spec.problem.intermediates = e4m3 ? MXATTN_INTERMEDIATES_E4M3 : MXATTN_INTERMEDIATES_BF16;
    return spec;
}

typedef enum where { NOWHERE, ALLOWED, MUST } where;

/* Row `token` of head `head` of sequence 1 holds what `is` says; everything else equals clean. */
static void expect_rows(const char *what, const float *got, const float *clean, int heads,
                        where (*is)(int token, int head, int at), int at)
{
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < S; s++)
            for (int h = 0; h < heads; h++) {
                const int64_t row = (((int64_t)b * S + s) * heads + h) * D;
                const where place = b == 1 ? is(s, h, at) : NOWHERE;
                int poisoned = 0, differs = 0;

                for (int d = 0; d < D; d++) {
                    poisoned |= !isfinite(got[row + d]);
                    differs |= got[row + d] != clean[row + d];
                }
                if (place == MUST)
                    CHECK(poisoned, "%s of token %d, head %d is finite", what, s, h);
                if (place == NOWHERE)
                    CHECK(!differs,
                          "%s of token %d, head %d of sequence %d is not that of the "
                          "same input without NaN: %g, want %g",
                          what, s, h, b, (double)got[row], (double)clean[row]);
            }
}

static int sees(int i, int j)
{
    return j <= i && i <= j + LEFT;
}

/* dO of query `at` of head BAD_HEAD is NaN: its dQ, and dK and dV of the keys it sees. */
static where dq_of_bad_dout(int token, int head, int at)
{
    return head == BAD_HEAD && token == at ? MUST : NOWHERE;
}

static where dkv_of_bad_row(int token, int kv_head, int at)
{
    return kv_head == BAD_HEAD / (HEADS / KV_HEADS) && sees(at, token) ? MUST : NOWHERE;
}

/* k of key `at` of kv head 0 is NaN: P of the rows that see it, hence all they touch. */
static where dq_of_bad_key(int token, int head, int at)
{
    return head / (HEADS / KV_HEADS) == 0 && sees(token, at) ? MUST : NOWHERE;
}

static where dkv_of_bad_key(int token, int kv_head, int at)
{
    return kv_head == 0 && token >= at - LEFT && token <= at + LEFT ? MUST : NOWHERE;
}

typedef struct poison {
    const char *name;
    int of_k; /* k, or dO */
    where (*dq)(int, int, int);
    where (*dkv)(int, int, int);
} poison;

static void poison_tensor(mxt_attention_case *c, const poison *p, int at)
{
    const mxattn_tensor *t = p->of_k ? &c->k : &c->dout;
    const int head = p->of_k ? 0 : BAD_HEAD;

    ((uint8_t *)t->data)[t->stride[0] + at * t->stride[1] + head * t->stride[2] + 3] = 0x7f;
}

static void test_nan(void)
{
    static const poison poisons[] = {{"NaN in dO", 0, dq_of_bad_dout, dkv_of_bad_row},
                                     {"NaN in k", 1, dq_of_bad_key, dkv_of_bad_key}};
    static const int tokens[] = {0, 31, 127, 128, 191, 298};

    for (int i = 0; i < isa_count; i++)
        for (size_t p = 0; p < 2; p++)
            for (size_t t = 0; t < sizeof(tokens) / sizeof(tokens[0]); t++) {
                const mxt_attention_spec spec = nan_spec(0);
                mxattn_context *context = mxt_context(isas[i], 2);
                mxt_attention_case c;

                mxt_case("B59 %s, token %d, %s", poisons[p].name, tokens[t], mxt_isa_name(isas[i]));
                mxt_attention_case_make(&c, &spec);
                mxt_gradients clean = mxt_attention_case_backward(&c, context, MXATTN_BACKEND_CPU,
                                                                  MXATTN_PRECISION_MXFP8);
                poison_tensor(&c, &poisons[p], tokens[t]);
                mxt_gradients got = mxt_attention_case_backward(&c, context, MXATTN_BACKEND_CPU,
                                                                MXATTN_PRECISION_MXFP8);
                CHECK(!clean.status && !got.status, "%s", mxattn_last_error());
                if (!clean.status && !got.status) {
                    expect_rows("dQ", got.d[0], clean.d[0], HEADS, poisons[p].dq, tokens[t]);
                    expect_rows("dK", got.d[1], clean.d[1], KV_HEADS, poisons[p].dkv, tokens[t]);
                    expect_rows("dV", got.d[2], clean.d[2], KV_HEADS, poisons[p].dkv, tokens[t]);
                }
                mxt_gradients_free(&clean);
                mxt_gradients_free(&got);
                mxt_attention_case_free(&c);
                mxattn_context_destroy(context);
            }
}

/* With blocks of 32 x 32 a NaN in dS reaches its block, but no other head or sequence. */
static where own_kv_head(int token, int kv_head, int at)
{
    (void)token;
    (void)at;
    return kv_head == 0 ? ALLOWED : NOWHERE;
}

static where own_heads(int token, int head, int at)
{
    return own_kv_head(token, head / (HEADS / KV_HEADS), at);
}

static void test_nan_in_blocks(void)
{
    const mxt_attention_spec spec = nan_spec(1);
    const poison p = {"NaN in k", 1, own_heads, own_kv_head};

    for (int i = 0; i < isa_count; i++) {
        mxattn_context *context = mxt_context(isas[i], 2);
        mxt_attention_case c;

        mxt_case("B59 %s, e4m3, %s", p.name, mxt_isa_name(isas[i]));
        mxt_attention_case_make(&c, &spec);
        mxt_gradients clean =
            mxt_attention_case_backward(&c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);
        poison_tensor(&c, &p, 130);
        mxt_gradients got =
            mxt_attention_case_backward(&c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);
        CHECK(!clean.status && !got.status, "%s", mxattn_last_error());
        if (!clean.status && !got.status) {
            expect_rows("dQ", got.d[0], clean.d[0], HEADS, own_heads, 130);
            expect_rows("dK", got.d[1], clean.d[1], KV_HEADS, own_kv_head, 130);
            expect_rows("dV", got.d[2], clean.d[2], KV_HEADS, own_kv_head, 130);
            CHECK(!isfinite(got.d[0][((int64_t)(S + 130) * HEADS) * D]), "the NaN is hidden");
        }
        mxt_gradients_free(&clean);
        mxt_gradients_free(&got);
        mxt_attention_case_free(&c);
        mxattn_context_destroy(context);
    }
}

/* ------------------------------------------------------------------------------------------------
 * dQ reduced in FP16
 * --------------------------------------------------------------------------------------------- */

enum { KEYS = 1024, DIM = 32, ROWS = 3 };

/* Equal logits; every second key has v along dO and k positive, the others both reversed: each term
 * of dQ has the same sign, as large as half of the bound: dQ = scale * |dO| * |V| * K. */
typedef struct one_sided {
    float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], dout[ROWS * DIM], dq[ROWS * DIM];
    float dk[KEYS * DIM], dv[KEYS * DIM], o[ROWS * DIM], lse[ROWS];
} one_sided;

static void fill_one_sided(one_sided *t, float k, float v, float dout)
{
    memset(t->q, 0, sizeof(t->q));
    for (int i = 0; i < KEYS * DIM; i++) {
        const float sign = i / DIM % 2 ? -1.0f : 1.0f;

        t->k[i] = sign * k;
        t->v[i] = sign * v;
    }
    for (int i = 0; i < ROWS * DIM; i++)
        t->dout[i] = dout;
}

/* problem: has its dq_reduce and exponent. */
static mxattn_status run_one_sided(const mxattn_context *context, one_sided *t,
                                   mxattn_attention_problem *problem)
{
    const mxattn_tags square = {.dtype = MXATTN_F32, .block = MXATTN_BLOCK_SQUARE};
    const mxattn_tags f32 = {.dtype = MXATTN_F32};
    const int64_t rows[4] = {1, ROWS, 1, DIM}, keys[4] = {1, KEYS, 1, DIM}, lse[3] = {1, 1, ROWS};
    mxattn_tensor q, k, v, o, dout, dq, dk, dv, lse_tensor;
    mxattn_attention_args args;
    mxattn_status status;

    problem->backend = MXATTN_BACKEND_CPU;
    problem->mode = MXATTN_TRAINING;
    problem->q = problem->k = problem->v = problem->dout = square;
    problem->o = problem->dq = problem->dk = problem->dv = f32;
    mxattn_attention_args_init(&args);
    mxattn_tensor_view(&q, MXATTN_F32, t->q, 4, rows);
    mxattn_tensor_view(&k, MXATTN_F32, t->k, 4, keys);
    mxattn_tensor_view(&v, MXATTN_F32, t->v, 4, keys);
    mxattn_tensor_view(&dout, MXATTN_F32, t->dout, 4, rows);
    mxattn_tensor_view(&o, MXATTN_F32, t->o, 4, rows);
    mxattn_tensor_view(&dq, MXATTN_F32, t->dq, 4, rows);
    mxattn_tensor_view(&dk, MXATTN_F32, t->dk, 4, keys);
    mxattn_tensor_view(&dv, MXATTN_F32, t->dv, 4, keys);
    mxattn_tensor_view(&lse_tensor, MXATTN_F32, t->lse, 3, lse);
    q.tags = k.tags = v.tags = dout.tags = square;
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.o = &o;
    args.lse = &lse_tensor;
    args.dout = &dout;
    args.dq = &dq;
    args.dk = &dk;
    args.dv = &dv;
    mxt_fill_nan(t->dq, sizeof(t->dq));
    status = mxattn_attention_forward_once(context, problem, &args);
    return status ? status : mxattn_attention_backward_once(context, problem, &args);
}

static void test_bound(void)
{
    one_sided *t = malloc(sizeof(*t));

    for (int i = 0; i < isa_count; i++)
        for (int log2 = -60; log2 <= 60; log2 += 6) {
            mxattn_context *context = mxt_context(isas[i], 2);
            mxattn_attention_problem problem;

            mxt_case("B110 all terms of dQ add up, 2^%d, %s", log2, mxt_isa_name(isas[i]));
            mxattn_attention_problem_init(&problem);
            problem.dq_reduce = MXATTN_DQ_REDUCE_FP16;
            problem.softmax_scale = 0.25;
            fill_one_sided(t, 4, 448, ldexpf(1, log2));
            CHECK_STATUS(MXATTN_OK, run_one_sided(context, t, &problem));
            for (int e = 0; e < ROWS * DIM; e++) {
                const double want = ldexp(0.25 * DIM * 448 * 4, log2), got = (double)t->dq[e];

                CHECK(fabs(got - want) <= MXT_DQ_DK_MODEL * want, "dQ[%d] is %g; want %g", e, got,
                      want);
            }
            mxattn_context_destroy(context);
        }
    free(t);
}

/* The static exponent of the reference release: 2^12 overflows at |dQ| > 16, and shows it. */
static void test_fixed_exponent(void)
{
    one_sided *t = malloc(sizeof(*t));

    for (int i = 0; i < isa_count; i++)
        for (int large = 0; large < 2; large++) {
            mxattn_context *context = mxt_context(isas[i], 1);
            mxattn_attention_problem problem;

            mxt_case("B110 dQ of %d at 2^12, %s", large ? 32 : 8, mxt_isa_name(isas[i]));
            mxattn_attention_problem_init(&problem);
            problem.dq_reduce = MXATTN_DQ_REDUCE_FP16;
            problem.dq_scale_log2 = 12;
            problem.softmax_scale = 0.25;
            fill_one_sided(t, 1, 1, large ? 1.0f : 0.25f);
            CHECK_STATUS(MXATTN_OK, run_one_sided(context, t, &problem));
            for (int e = 0; e < ROWS * DIM; e++)
                CHECK(large ? isinf(t->dq[e]) : t->dq[e] == 2.0f, "dQ[%d] is %g", e,
                      (double)t->dq[e]);
            mxattn_context_destroy(context);
        }
    free(t);
}

#if defined(__SSE2__)

/* A host program's flush-to-zero does not show, on its own thread or on those of the pool. */
static void test_flush_to_zero(void)
{
    one_sided *kept = malloc(sizeof(*kept)), *flushed = malloc(sizeof(*flushed));

    for (int i = 0; i < isa_count; i++) {
        const int units_flush = (isas[i] & MXATTN_ISA_AVX512_BF16) != 0;
        mxattn_context *context = mxt_context(isas[i], 2);
        mxattn_attention_problem problem;

        mxt_case("subnormal dS on a thread that flushes, %s", mxt_isa_name(isas[i]));
        mxattn_attention_problem_init(&problem);
        problem.softmax_scale = 0.25;
        fill_one_sided(kept, 4, 0x1p-62f, 0x1p-62f);
        fill_one_sided(flushed, 4, 0x1p-62f, 0x1p-62f);
        CHECK_STATUS(MXATTN_OK, run_one_sided(context, kept, &problem));
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
        const mxattn_status status = run_one_sided(context, flushed, &problem);
        _mm_setcsr(before);
        CHECK(status == MXATTN_OK, "%s", mxattn_last_error());
        mxt_check_bytes("dQ", flushed->dq, kept->dq, sizeof(float), mxt_shape3(ROWS, 1, DIM));
        CHECK(units_flush || kept->dq[0] == 0x1p-119f, "dQ is %g", (double)kept->dq[0]);
        mxattn_context_destroy(context);
    }
    free(kept);
    free(flushed);
}

#else

static void test_flush_to_zero(void)
{
}

#endif

int main(void)
{
    isa_count = mxt_isas(isas);
    test_nan();
    test_nan_in_blocks();
    test_bound();
    test_fixed_exponent();
    test_flush_to_zero();
    return mxt_finish();
}
