/* test_forward.c: forward on small inputs from public reports: masks, scales, extremes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"

#include <math.h>
#include <string.h>

static void setup(mxt_attention *a, const mxt_config *config)
{
    mxt_attention_configure(a, config);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, MXT_EXACT, 7);
}

static void forward(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
}

static double dim_v(const mxt_attention *a)
{
    return (double)(a->problem.head_dim_v ? a->problem.head_dim_v : a->problem.head_dim);
}

/* V of token j is filled with values[j] in every head. */
static void stamp_v(mxt_attention *a, const float *values)
{
    const int64_t n = a->problem.kv_heads * (int64_t)dim_v(a);
    for (int64_t j = 0; j < a->rows_k; j++)
        mxt_set(a->v + j * n, n, values[j]);
}

static void expect_row(const mxt_attention *a, int64_t b, int64_t s, int64_t h, double o,
                       double lse, double tolerance)
{
    mxt_expect("o", mxt_row(a, a->o, b, s, h), (int64_t)dim_v(a), o, tolerance);
    mxt_expect_one("lse", mxt_lse_at(a, b, h, s), lse, MXT_LSE_ABSOLUTE);
}

static void empty_keys(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 2}, cu_k[] = {0, 0};
    mxt_attention a;
    mxt_attention_jagged(&a, 1, cu_q, -1, cu_k, -1, 1, 1, 32);
    setup(&a, config);
    forward(&a);
    for (int64_t s = 0; s < 2; s++) {
        expect_row(&a, 0, s, 0, 0, -INFINITY, 0);
        CHECK(signbit(mxt_lse_at(&a, 0, 0, s)), "lse must be -inf, not +inf");
    }
    mxt_attention_free(&a);
}

/* Window (0, 0), Sq = 6, Sk = 3: rows 0-2 see nothing, rows 3-5 their own key. */
static void window_empty_rows(const mxt_config *config)
{
    static const float values[] = {1, 2, 4};
    mxt_attention a;
    mxt_attention_dense(&a, 1, 6, 3, 1, 1, 32);
    a.problem.window[0] = a.problem.window[1] = 0;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    stamp_v(&a, values);
    forward(&a);
    for (int64_t s = 0; s < 3; s++) {
        expect_row(&a, 0, s, 0, 0, -INFINITY, 0);
        expect_row(&a, 0, s + 3, 0, (double)values[s], 0, MXT_EXACT_INPUT);
    }
    mxt_attention_free(&a);
}

static void empty_rows_not_mean(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 6, 3, 1, 1, 32);
    a.problem.window[0] = a.problem.window[1] = 0;
    setup(&a, config);
    mxt_set(a.v, mxt_size_v(&a), 1);
    forward(&a);
    for (int64_t s = 0; s < 3; s++)
        expect_row(&a, 0, s, 0, 0, -INFINITY, 0);
    mxt_attention_free(&a);
}

static void empty_row_with_sink(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 3, 1, 2, 1, 32);
    a.problem.causal = a.problem.has_sink = 1;
    setup(&a, config);
    a.sink[0] = -0.75F;
    a.sink[1] = 3;
    forward(&a);
    for (int64_t s = 0; s < 2; s++)
        for (int64_t h = 0; h < 2; h++)
            expect_row(&a, 0, s, h, 0, (double)a.sink[h], 0);
    mxt_attention_free(&a);
}

/* The neighbours of a sequence without keys have the bits they have without it. */
static void empty_sequence_between(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 2, 4, 6}, cu_k[] = {0, 3, 3, 6};
    static const int32_t alone_q[] = {0, 2, 4}, alone_k[] = {0, 3, 6};
    mxt_attention a, alone;
    mxt_attention_jagged(&a, 3, cu_q, -1, cu_k, -1, 2, 1, 32);
    mxt_attention_jagged(&alone, 2, alone_q, -1, alone_k, -1, 2, 1, 32);
    setup(&a, config);
    setup(&alone, config);
    const size_t row = 2 * 32 * sizeof(float);
    memcpy(alone.q, a.q, 2 * row);
    memcpy(mxt_row(&alone, alone.q, 0, 2, 0), mxt_row(&a, a.q, 0, 4, 0), 2 * row);
    memcpy(alone.k, a.k, (size_t)mxt_size_k(&a) * sizeof(float));
    memcpy(alone.v, a.v, (size_t)mxt_size_v(&a) * sizeof(float));
    forward(&a);
    forward(&alone);
    const mxt_shape shape = mxt_shape3(2, 2, 32);
    mxt_check_bytes("o of sequence 0", a.o, alone.o, sizeof(float), shape);
    mxt_check_bytes("o of sequence 2", mxt_row(&a, a.o, 0, 4, 0), mxt_row(&alone, alone.o, 0, 2, 0),
                    sizeof(float), shape);
    mxt_expect("o of sequence 1", mxt_row(&a, a.o, 0, 2, 0), 2 * 2 * 32, 0, 0);
    mxt_attention_free(&a);
    mxt_attention_free(&alone);
}

static void ragged_with_empty(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 2, 4, 6, 8}, cu_k[] = {0, 5, 5, 6, 38};
    mxt_attention a;
    mxt_attention_jagged(&a, 4, cu_q, -1, cu_k, -1, 2, 2, 64);
    setup(&a, config);
    mxt_check_exact_inputs(&a, config, 1);
    mxt_expect("o of sequence 1", mxt_row(&a, a.o, 0, 2, 0), 2 * 2 * 64, 0, 0);
    mxt_attention_free(&a);
}

/* q and k are nonzero in the last 32 dims only: a kernel that stops early sees equal logits. */
static void last_dims_count(const mxt_config *config)
{
    for (int64_t head_dim = 96; head_dim <= 128; head_dim += 32) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 40, 40, 1, 1, head_dim);
        setup(&a, config);
        for (int64_t s = 0; s < 40; s++) {
            mxt_set(mxt_row(&a, a.q, 0, s, 0), head_dim - 32, 0);
            mxt_set(mxt_row(&a, a.k, 0, s, 0), head_dim - 32, 0);
        }
        mxt_check_exact_inputs(&a, config, 1);
        mxt_attention_free(&a);
    }
}

/* One query in the whole batch, many heads: the stamp of the kv head says which was read. */
static void one_query_many_heads(const mxt_config *config)
{
    static const int32_t cu_one[] = {0, 0, 0, 0, 1};
    static const int32_t cu_q[] = {0, 0, 1, 1, 2}, cu_k[] = {0, 0, 3, 3, 8};
    for (int variant = 0; variant < 2; variant++) {
        mxt_attention a;
        if (variant == 0)
            mxt_attention_jagged(&a, 4, cu_one, -1, cu_one, -1, 21, 7, 120);
        else
            mxt_attention_jagged(&a, 4, cu_q, -1, cu_k, -1, 9, 3, 64);
        a.problem.causal = variant;
        setup(&a, config);
        mxt_set(a.q, mxt_size_q(&a), 0);
        for (int64_t j = 0; j < a.rows_k; j++)
            for (int64_t h = 0; h < a.problem.kv_heads; h++)
                mxt_set(mxt_row(&a, a.v, 0, j, h), a.problem.head_dim, (float)(h + 1));
        forward(&a);
        for (int64_t s = 0; s < a.rows_q; s++)
            for (int64_t h = 0; h < a.problem.heads; h++)
                mxt_expect("o", mxt_row(&a, a.o, 0, s, h), a.problem.head_dim, (double)(h / 3 + 1),
                           MXT_EXACT_INPUT);
        mxt_attention_free(&a);
    }
}

/* The last row alone and within the whole. */
static void decode_equals_prefill(const mxt_config *config)
{
    mxt_attention whole, last;
    mxt_attention_dense(&whole, 1, 64, 64, 2, 1, 64);
    mxt_attention_dense(&last, 1, 1, 64, 2, 1, 64);
    whole.problem.causal = last.problem.causal = 1;
    setup(&whole, config);
    setup(&last, config);
    memcpy(last.q, mxt_row(&whole, whole.q, 0, 63, 0), 2 * 64 * sizeof(float));
    forward(&whole);
    forward(&last);
    mxt_check_close(
        "last row", last.o, mxt_row(&whole, whole.o, 0, 63, 0), mxt_shape1(2 * 64),
        config->intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_DECODE_E4M3 : MXT_DECODE_BF16, 0);
    mxt_attention_free(&whole);
    mxt_attention_free(&last);
}

/* Four q heads share one kv head under a causal mask; row i averages tokens 0..i. */
static void causal_gqa(const mxt_config *config)
{
    static const float values[] = {1, 2, 4, 8, 16, 32, 64, 128};
    mxt_attention a;
    mxt_attention_dense(&a, 1, 8, 8, 4, 1, 32);
    a.problem.causal = 1;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    stamp_v(&a, values);
    forward(&a);
    for (int64_t s = 0; s < 8; s++)
        for (int64_t h = 0; h < 4; h++)
            expect_row(&a, 0, s, h, (exp2((double)s + 1) - 1) / (double)(s + 1), log((double)s + 1),
                       MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

/* The softmax scale comes from the head_dim given, not from a padded one. */
static void head_dims(const mxt_config *config)
{
    static const int64_t dims[] = {8, 32, 40, 64, 72, 80, 96, 120, 128, 192, 256};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 5, 33, 1, 1, dims[i]);
        setup(&a, config);
        mxt_set(a.q, mxt_size_q(&a), 1);
        mxt_set(a.k, mxt_size_k(&a), 1);
        mxt_set(a.v, mxt_size_v(&a), 2);
        forward(&a);
        for (int64_t s = 0; s < 5; s++)
            expect_row(&a, 0, s, 0, 2, sqrt((double)dims[i]) + log(33),
                       mxt_config_rounding(config));
        mxt_attention_free(&a);
    }
}

static void head_dim_v_differs(const mxt_config *config)
{
    static const int64_t dims_v[] = {128, 160, 8, 200};
    for (size_t i = 0; i < sizeof dims_v / sizeof dims_v[0]; i++) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 37, 45, 2, 1, 192);
        a.problem.head_dim_v = dims_v[i];
        setup(&a, config);
        mxt_check_exact_inputs(&a, config, 1);
        mxt_attention_free(&a);
    }
}

/* Whole tiles of keys are masked for most rows. */
static void narrow_window_long_sequence(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 640, 640, 1, 1, 32);
    a.problem.window[0] = 9;
    a.problem.window[1] = 0;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 1);
    mxt_set(a.k, mxt_size_k(&a), 1);
    mxt_set(a.v, mxt_size_v(&a), 1);
    forward(&a);
    for (int64_t s = 0; s < 640; s++)
        expect_row(&a, 0, s, 0, 1, sqrt(32.0) + log(fmin((double)s, 9) + 1),
                   mxt_config_rounding(config));
    mxt_attention_free(&a);
}

/* Scores of -2^85 are scores, not a mask; rows that see nothing stay apart from them. */
static void very_negative_scores(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 5, 3, 1, 1, 32);
    a.problem.causal = 1;
    a.problem.softmax_scale = 1;
    setup(&a, config);
    static const float values[] = {1, 2, 4};
    mxt_set(a.q, mxt_size_q(&a), -0x1p40F);
    mxt_set(a.k, mxt_size_k(&a), 0x1p40F);
    stamp_v(&a, values);
    forward(&a);
    expect_row(&a, 0, 0, 0, 0, -INFINITY, 0);
    expect_row(&a, 0, 1, 0, 0, -INFINITY, 0);
    expect_row(&a, 0, 2, 0, 1, -0x1p85, MXT_EXACT_INPUT);
    expect_row(&a, 0, 3, 0, 1.5, -0x1p85, MXT_EXACT_INPUT);
    expect_row(&a, 0, 4, 0, 7.0 / 3, -0x1p85, MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

/* Sum of un-normalised P V is 114,688: beyond FP16. */
static void sum_beyond_fp16(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 3, 256, 1, 1, 32);
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.v, mxt_size_v(&a), 448);
    forward(&a);
    mxt_expect("o", a.o, mxt_size_o(&a), 448, 0);
    mxt_attention_free(&a);
}

static void many_keys(const mxt_config *config)
{
    const int64_t keys = 262144;
    mxt_attention a;
    mxt_attention_dense(&a, 1, 1, keys, 1, 1, 32);
    a.problem.mode = MXATTN_INFERENCE;
    mxt_attention_configure(&a, config);
    mxt_attention_alloc(&a);
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.k, mxt_size_k(&a), 1);
    mxt_set(a.v, mxt_size_v(&a), 1);
    forward(&a);
    expect_row(&a, 0, 0, 0, 1, 12.476649, MXT_EXACT_INPUT);
    for (int64_t j = 1; j < keys; j += 2)
        mxt_set(mxt_row(&a, a.v, 0, j, 0), 32, -1);
    forward(&a);
    expect_row(&a, 0, 0, 0, 0, 12.476649, MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

static void nan_stays(const mxt_config *config)
{
    const mxattn_tags row = {.dtype = MXATTN_F32, .block = MXATTN_BLOCK_ROW};
    for (int where = 0; where < 2; where++) {
        mxt_attention a;
        mxt_attention_dense(&a, 2, 8, 8, 2, 2, 32);
        a.problem.causal = a.problem.causal_strict = 1;
        a.problem.q = a.problem.k = a.problem.v = a.problem.dout = row;
        setup(&a, config);
        float *array = where == 0 ? a.q : a.k;
        *mxt_row(&a, array, 1, 5, 1) = NAN;
        forward(&a);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t s = 0; s < 8; s++)
                for (int64_t h = 0; h < 2; h++) {
                    const int reached = b == 1 && h == 1 && (where == 0 ? s == 5 : s >= 5);
                    for (int64_t d = 0; d < 32; d++)
                        CHECK(!isnan(mxt_row(&a, a.o, b, s, h)[d]) == !reached,
                              "NaN in %s: o[%d,%d,%d,%d] is %g", where == 0 ? "q" : "k", (int)b,
                              (int)s, (int)h, (int)d, (double)mxt_row(&a, a.o, b, s, h)[d]);
                }
        mxt_attention_free(&a);
    }
}

/* Half the keys score 0, the others 3.9 in log2 units: P may never pass 448 / 2^8. */
static void late_larger_scores(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 2, 256, 1, 1, 32);
    a.problem.softmax_scale = 3.9 * log(2);
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.k, mxt_size_k(&a), 0);
    for (int64_t s = 0; s < 2; s++)
        *mxt_row(&a, a.q, 0, s, 0) = 1;
    for (int64_t j = 0; j < 256; j++) {
        *mxt_row(&a, a.k, 0, j, 0) = j < 128 ? 0 : 1;
        mxt_set(mxt_row(&a, a.v, 0, j, 0), 32, j < 128 ? 1 : 2);
    }
    forward(&a);
    mxt_expect("o", a.o, mxt_size_o(&a), 1.93722, 0.02);
    mxt_attention_free(&a);
}

/* B56 from the other side: scores of 2^20 to 2^50 are finite, and the largest takes all. */
static void very_large_scores(const mxt_config *config)
{
    for (int e = 10; e <= 25; e += 5) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 64, 64, 1, 1, 64);
        a.problem.softmax_scale = 0.3;
        a.with_dlse = 0;
        setup(&a, config);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 5);
        for (int64_t i = 0; i < mxt_size_q(&a); i++) {
            a.q[i] = ldexpf(a.q[i], e);
            a.k[i] = ldexpf(a.k[i], e);
        }
        forward(&a);
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&a));
        for (int64_t s = 0; s < 64; s++) {
            const float *o = mxt_row(&a, a.o, 0, s, 0);
            int owners = 0;
            for (int64_t j = 0; j < 64; j++) {
                const float *v = mxt_row(&a, a.v, 0, j, 0);
                int same = 1;
                for (int d = 0; d < 64; d++)
                    same &=
                        fabsf(o[d] - v[d]) <= 0.14f * fabsf(v[d]) + 0.02f; /* E4M3, of v and P */
                owners += same;
            }
            CHECK(owners == 1 && isfinite(mxt_lse_at(&a, 0, 0, s)),
                  "2^%d: row %d equals %d rows of v, LSE %g", e, (int)s, owners,
                  (double)mxt_lse_at(&a, 0, 0, s));
        }
        for (int64_t i = 0; i < mxt_size_v(&a); i++)
            CHECK(fabsf(a.dv[i]) < 64 * 8, "2^%d: dv[%d] is %g", e, (int)i, (double)a.dv[i]);
        mxt_attention_free(&a);
    }
}

/* Any finite softmax_scale and softcap, also those that FP32 rounds to 0 or infinity. */
static void tiny_scale_huge_cap(const mxt_config *config)
{
    static const struct {
        double scale, cap, lse;
    } cases[] = {{1e-300, 0, 0}, {-1e-300, 0, 0}, {M_LN2, 1e300, M_LN2}, {1, 1e-300, 0}};
    for (int c = 0; c < 4; c++) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 3, 3, 1, 1, 32);
        a.problem.causal = 1;
        a.problem.softmax_scale = cases[c].scale;
        a.problem.softcap = cases[c].cap;
        setup(&a, config);
        mxt_set(a.q, mxt_size_q(&a), 0.5F);
        mxt_set(a.k, mxt_size_k(&a), 0.0625F);
        mxt_set(a.v, mxt_size_v(&a), 1);
        forward(&a);
        for (int64_t s = 0; s < 3; s++)
            expect_row(&a, 0, s, 0, 1, cases[c].lse + log((double)s + 1), MXT_EXACT_INPUT);
        mxt_attention_free(&a);
    }
}

static void zero_keys_or_values(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 4, 40, 2, 1, 64);
    setup(&a, config);
    mxt_set(a.k, mxt_size_k(&a), 0);
    mxt_set(a.v, mxt_size_v(&a), 1);
    forward(&a);
    for (int64_t s = 0; s < 4; s++)
        expect_row(&a, 0, s, 1, 1, log(40), MXT_EXACT_INPUT);
    mxt_attention_fill(&a, MXT_EXACT, 3);
    mxt_set(a.v, mxt_size_v(&a), 0);
    forward(&a);
    mxt_expect("o of zero v", a.o, mxt_size_o(&a), 0, 0);
    mxt_attention_free(&a);
}

static void scale_zero_and_negative(const mxt_config *config)
{
    static const float values[] = {1, 2, 4};
    mxt_attention a;
    mxt_attention_dense(&a, 1, 3, 3, 1, 1, 32);
    a.problem.causal = 1;
    a.problem.softmax_scale = 0;
    setup(&a, config);
    stamp_v(&a, values);
    forward(&a);
    expect_row(&a, 0, 0, 0, 1, 0, MXT_EXACT_INPUT);
    expect_row(&a, 0, 1, 0, 1.5, log(2), MXT_EXACT_INPUT);
    expect_row(&a, 0, 2, 0, 7.0 / 3, log(3), MXT_EXACT_INPUT);

    /* q = (1, 0, ...), k_j = (j, 0, ...), scale -1: logits 0, -1, -2. */
    a.problem.softmax_scale = -1;
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.k, mxt_size_k(&a), 0);
    for (int64_t s = 0; s < 3; s++) {
        *mxt_row(&a, a.q, 0, s, 0) = 1;
        *mxt_row(&a, a.k, 0, s, 0) = (float)s;
    }
    forward(&a);
    const double tolerance = mxt_config_rounding(config), e1 = exp(-1), e2 = exp(-2);
    expect_row(&a, 0, 0, 0, 1, 0, tolerance);
    expect_row(&a, 0, 1, 0, (1 + 2 * e1) / (1 + e1), log(1 + e1), tolerance);
    expect_row(&a, 0, 2, 0, (1 + 2 * e1 + 4 * e2) / (1 + e1 + e2), log(1 + e1 + e2), tolerance);
    mxt_attention_free(&a);
}

/* Equal logits: row i sees `seen` keys, the first ones. */
static void check_alignment(const mxt_config *config, int64_t seqlen_q, int64_t seqlen_k,
                            mxattn_alignment alignment, const int *seen)
{
    static const float values[] = {1, 2, 4, 8, 16};
    mxt_attention a;
    mxt_attention_dense(&a, 1, seqlen_q, seqlen_k, 1, 1, 32);
    a.problem.causal = 1;
    a.problem.alignment = alignment;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    stamp_v(&a, values);
    forward(&a);
    for (int64_t s = 0; s < seqlen_q; s++)
        expect_row(&a, 0, s, 0, seen[s] ? (exp2(seen[s]) - 1) / seen[s] : 0, log(seen[s]),
                   MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

static void causal_alignment(const mxt_config *config)
{
    check_alignment(config, 2, 5, MXATTN_BOTTOM_RIGHT, (const int[]){4, 5});
    check_alignment(config, 5, 2, MXATTN_BOTTOM_RIGHT, (const int[]){0, 0, 0, 1, 2});
    check_alignment(config, 2, 5, MXATTN_TOP_LEFT, (const int[]){1, 2});
    check_alignment(config, 5, 2, MXATTN_TOP_LEFT, (const int[]){1, 2, 2, 2, 2});
}

static void causal_differs_from_full(const mxt_config *config)
{
    check_alignment(config, 4, 4, MXATTN_BOTTOM_RIGHT, (const int[]){1, 2, 3, 4});
    mxt_attention a;
    static const float values[] = {1, 2, 4, 8};
    mxt_attention_dense(&a, 1, 4, 4, 1, 1, 32);
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    stamp_v(&a, values);
    forward(&a);
    for (int64_t s = 0; s < 4; s++)
        expect_row(&a, 0, s, 0, 15.0 / 4, log(4), MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

/* Causal, and windows that mean the same: the same bits. */
static void causal_equals_window(const mxt_config *config)
{
    static const int64_t left[] = {-1, 300, 299};
    mxt_attention causal, window;
    mxt_attention_dense(&causal, 1, 300, 300, 2, 1, 64);
    causal.problem.causal = 1;
    setup(&causal, config);
    mxt_attention_fill(&causal, MXT_GAUSSIAN, 5);
    forward(&causal);
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&causal));
    for (int i = 0; i < 3; i++) {
        mxt_attention_dense(&window, 1, 300, 300, 2, 1, 64);
        window.problem.window[0] = left[i];
        window.problem.window[1] = 0;
        setup(&window, config);
        mxt_attention_fill(&window, MXT_GAUSSIAN, 5);
        forward(&window);
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&window));
        const mxt_shape shape = mxt_shape3(300, 2, 64), shape_k = mxt_shape3(300, 1, 64);
        mxt_check_bytes("o", window.o, causal.o, sizeof(float), shape);
        mxt_check_bytes("lse", window.lse, causal.lse, sizeof(float), mxt_shape1(600));
        mxt_check_bytes("dq", window.dq, causal.dq, sizeof(float), shape);
        mxt_check_bytes("dk", window.dk, causal.dk, sizeof(float), shape_k);
        mxt_check_bytes("dv", window.dv, causal.dv, sizeof(float), shape_k);
        mxt_attention_free(&window);
    }
    mxt_attention_free(&causal);
}

static void window_is_inclusive(const mxt_config *config)
{
    static const float values[] = {1, 2, 4, 8};
    static const double o[] = {1, 1.5, 7.0 / 3, 14.0 / 3};
    mxt_attention a;
    mxt_attention_dense(&a, 1, 4, 4, 1, 1, 32);
    a.problem.window[0] = 2;
    a.problem.window[1] = 0;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    stamp_v(&a, values);
    forward(&a);
    for (int64_t s = 0; s < 4; s++)
        expect_row(&a, 0, s, 0, o[s], log(fmin((double)s + 1, 3)), MXT_EXACT_INPUT);
    mxt_attention_free(&a);
}

/* A raw logit of 3 under a cap of 2 is 1.810297; the capped mask stays -inf. */
static void softcap(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 2, 2, 1, 1, 32);
    a.problem.causal = 1;
    a.problem.softcap = 2;
    a.problem.softmax_scale = 3;
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.k, mxt_size_k(&a), 0);
    for (int64_t s = 0; s < 2; s++)
        *mxt_row(&a, a.q, 0, s, 0) = 1;
    *mxt_row(&a, a.k, 0, 0, 0) = 1;
    *mxt_row(&a, a.k, 0, 1, 0) = 0.5F;
    mxt_check_exact_inputs(&a, config, 1);
    mxt_expect_one("lse of row 0", mxt_lse_at(&a, 0, 0, 0), 1.810297, MXT_LSE_ABSOLUTE);
    mxt_expect_one("lse of row 1", mxt_lse_at(&a, 0, 0, 1),
                   log(exp(1.810297) + exp(2 * tanh(0.75))), MXT_LSE_ABSOLUTE);
    mxt_attention_free(&a);
}

static void lse_is_natural(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 2, 8, 1, 1, 32);
    setup(&a, config);
    mxt_set(a.q, mxt_size_q(&a), 0);
    forward(&a);
    mxt_expect("lse", a.lse, 2, 2.079442, MXT_LSE_ABSOLUTE);
    mxt_attention_free(&a);
}

static void scale_is_the_callers(const mxt_config *config)
{
    for (int64_t keys = 3; keys <= 130; keys += 127) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 2, keys, 1, 1, 64);
        a.problem.softmax_scale = 1;
        setup(&a, config);
        mxt_set(a.q, mxt_size_q(&a), 1);
        mxt_set(a.k, mxt_size_k(&a), 1);
        forward(&a);
        mxt_expect("lse", a.lse, 2, 64 + log((double)keys), MXT_LSE_RELATIVE);
        mxt_attention_free(&a);
    }
}

static const mxt_named_case cases[] = {
    {"B02 a query without keys has LSE -inf", empty_keys},
    {"B04 rows outside the window are empty", window_empty_rows},
    {"B05 an empty row is not the mean of V", empty_rows_not_mean},
    {"B05 an empty row with a sink has LSE of the sink", empty_row_with_sink},
    {"B08 a sequence without keys leaves its neighbours alone", empty_sequence_between},
    {"B09 ragged batch with kv lengths 5, 0, 1, 32", ragged_with_empty},
    {"B20 the last dims count", last_dims_count},
    {"B21 one query, many heads, empty sequences", one_query_many_heads},
    {"B23 decode equals prefill", decode_equals_prefill},
    {"B47 causal with four q heads to a kv head", causal_gqa},
    {"B49 head_dim and the default scale", head_dims},
    {"B51 head_dim of v differs", head_dim_v_differs},
    {"B54 whole tiles of keys masked", narrow_window_long_sequence},
    {"B56 very negative scores", very_negative_scores},
    {"B55 B56 very large scores", very_large_scores},
    {"B69 B77 a scale or softcap that FP32 cannot hold", tiny_scale_huge_cap},
    {"B57 sums beyond FP16", sum_beyond_fp16},
    {"B58 262,144 keys", many_keys},
    {"B59 a NaN stays in its rows", nan_stays},
    {"B60 P never saturates", late_larger_scores},
    {"B63 zero K, zero V", zero_keys_or_values},
    {"B69 scale zero and negative", scale_zero_and_negative},
    {"B70 both alignments of causal", causal_alignment},
    {"B71 causal differs from full", causal_differs_from_full},
    {"B72 causal and equal windows have the same bits", causal_equals_window},
    {"B73 the window is inclusive", window_is_inclusive},
    {"B77 softcap and its derivative", softcap},
    {"B112 LSE is a natural logarithm", lse_is_natural},
    {"B136 the caller's softmax scale wins", scale_is_the_callers},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
