/* test_backward.c: gradients on small inputs from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void setup(mxt_attention *a, const mxt_config *config, mxt_kind kind)
{
    mxt_attention_configure(a, config);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, kind, 11);
}

static void both(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
}

static void expect_all_finite(const mxt_attention *a)
{
    mxt_expect_finite("o", a->o, mxt_size_o(a));
    mxt_expect_finite("dq", a->dq, mxt_size_q(a));
    mxt_expect_finite("dk", a->dk, mxt_size_k(a));
    mxt_expect_finite("dv", a->dv, mxt_size_v(a));
}

/* +-size in a pattern that repeats nowhere near a tile. */
static void fill_pattern(float *array, int64_t count, float size, int64_t shift)
{
    for (int64_t i = 0; i < count; i++)
        array[i] = (i * 7 + shift) % 11 < 5 ? -size : size;
}

static void three_keys_and_empty_rows(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 76, 110, 256}, cu_k[] = {0, 1, 2, 3};
    mxt_attention a;
    mxt_attention_jagged(&a, 3, cu_q, -1, cu_k, -1, 1, 1, 32);
    a.problem.causal = 1;
    setup(&a, config, MXT_EXACT);
    fill_pattern(a.q, mxt_size_q(&a), 3, 0);
    fill_pattern(a.k, mxt_size_k(&a), 3, 3);
    fill_pattern(a.v, mxt_size_v(&a), 3, 5);
    mxt_set(a.dout, mxt_size_o(&a), 1);
    both(&a);
    expect_all_finite(&a);
    for (int64_t s = 0; s < 256; s++) /* only the last row of each sequence sees its key */
        if (s != 75 && s != 109 && s != 255)
            mxt_expect("dq", mxt_row(&a, a.dq, 0, s, 0), 32, 0, 0);
    mxt_expect("dv", a.dv, mxt_size_v(&a), 1, mxt_config_rounding(config));
    mxt_attention_free(&a);
}

/* One key: P = 1, so dQ and dK vanish and dV is dO. What rounding P leaves of them is bounded by
 * scale * |dO . V| * |K|. */
static void one_key(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 1, 1, 1, 1, 16);
    setup(&a, config, MXT_EXACT);
    mxt_set(a.q, 16, 3);
    mxt_set(a.k, 16, 3);
    mxt_set(a.v, 16, 3);
    mxt_set(a.dout, 16, 1);
    both(&a);
    const double rounding = mxt_config_rounding(config);
    mxt_expect("dv", a.dv, 16, 1, rounding);
    mxt_expect("dq", a.dq, 16, 0, rounding * 0.25 * 48 * 3);
    mxt_expect("dk", a.dk, 16, 0, rounding * 0.25 * 48 * 3);
    mxt_attention_free(&a);
}

static void odd_lengths(const mxt_config *config)
{
    static const int64_t lengths[] = {1, 31, 33, 65, 100, 129, 130};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int causal = 0; causal < 2; causal++) {
            mxt_attention a;
            mxt_attention_dense(&a, 2, lengths[i], 130 - lengths[i] / 2, 2, 1, 64);
            a.problem.causal = causal;
            setup(&a, config, MXT_EXACT);
            a.problem.softmax_scale = 0.05;
            mxt_check_exact_inputs(&a, config, 1);
            mxt_attention_free(&a);
        }
}

/* NaN in O, LSE and dO of rows past seqused never meets a 0 in dK and dV. */
static void garbage_in_unused_rows(const mxt_config *config)
{
    static const int32_t used_q[] = {5}, used_k[] = {7};
    mxt_attention a, plain;
    mxt_attention_dense(&a, 1, 64, 64, 1, 1, 32);
    a.used_q = used_q;
    a.used_k = used_k;
    setup(&a, config, MXT_EXACT);
    mxt_attention_dense(&plain, 1, 5, 7, 1, 1, 32);
    setup(&plain, config, MXT_EXACT);
    memcpy(plain.q, a.q, 5 * 32 * sizeof(float));
    memcpy(plain.dout, a.dout, 5 * 32 * sizeof(float));
    memcpy(plain.k, a.k, 7 * 32 * sizeof(float));
    memcpy(plain.v, a.v, 7 * 32 * sizeof(float));
    mxt_set(a.q + 5 * 32, 59 * 32, NAN);
    mxt_set(a.dout + 5 * 32, 59 * 32, NAN);
    mxt_set(a.k + 7 * 32, 57 * 32, NAN);
    mxt_set(a.v + 7 * 32, 57 * 32, NAN);
    for (int saved = 0; saved < 2; saved++) {
        a.without_saved = plain.without_saved = !saved;
        CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
        CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&plain));
        mxt_expect("unused o", a.o + 5 * 32, 59 * 32, 0, 0);
        mxt_set(a.o + 5 * 32, 59 * 32, NAN);
        mxt_set(a.lse + 5, 59, NAN);
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&a));
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&plain));
        mxt_check_bytes("dq", a.dq, plain.dq, sizeof(float), mxt_shape3(5, 1, 32));
        mxt_check_bytes("dk", a.dk, plain.dk, sizeof(float), mxt_shape3(7, 1, 32));
        mxt_check_bytes("dv", a.dv, plain.dv, sizeof(float), mxt_shape3(7, 1, 32));
        mxt_expect("unused dq", a.dq + 5 * 32, 59 * 32, 0, 0);
        mxt_expect("unused dk", a.dk + 7 * 32, 57 * 32, 0, 0);
        mxt_expect("unused dv", a.dv + 7 * 32, 57 * 32, 0, 0);
    }
    mxt_attention_free(&a);
    mxt_attention_free(&plain);
}

static void rows_past_the_end(const mxt_config *config)
{
    static const int32_t cu[] = {0, 3, 8};
    mxt_attention a;
    mxt_attention_jagged(&a, 2, cu, 10, cu, 10, 2, 1, 32);
    setup(&a, config, MXT_EXACT);
    mxt_set(mxt_row(&a, a.q, 0, 8, 0), 2 * 64, NAN);
    mxt_set(mxt_row(&a, a.dout, 0, 8, 0), 2 * 64, NAN);
    mxt_set(mxt_row(&a, a.k, 0, 8, 0), 2 * 32, NAN);
    mxt_set(mxt_row(&a, a.v, 0, 8, 0), 2 * 32, NAN);
    both(&a);
    expect_all_finite(&a);
    mxt_expect("o past the end", mxt_row(&a, a.o, 0, 8, 0), 2 * 64, 0, 0);
    mxt_expect("dq past the end", mxt_row(&a, a.dq, 0, 8, 0), 2 * 64, 0, 0);
    mxt_expect("dk past the end", mxt_row(&a, a.dk, 0, 8, 0), 2 * 32, 0, 0);
    mxt_expect("dv past the end", mxt_row(&a, a.dv, 0, 8, 0), 2 * 32, 0, 0);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t s = 8; s < 10; s++)
            mxt_expect_one("lse past the end", mxt_lse_at(&a, 0, h, s), -INFINITY, 0);
    mxt_attention_free(&a);
}

static void padding_between_sequences(const mxt_config *config)
{
    static const int32_t cu[] = {0, 3, 7, 9}, used[] = {2, 3, 1};
    static const int64_t pads[] = {2, 6, 8};
    mxt_attention a;
    mxt_attention_jagged(&a, 3, cu, -1, cu, -1, 1, 1, 32);
    a.used_q = a.used_k = used;
    setup(&a, config, MXT_EXACT);
    for (int i = 0; i < 3; i++) {
        mxt_set(mxt_row(&a, a.q, 0, pads[i], 0), 32, NAN);
        mxt_set(mxt_row(&a, a.k, 0, pads[i], 0), 32, NAN);
        mxt_set(mxt_row(&a, a.v, 0, pads[i], 0), 32, NAN);
        mxt_set(mxt_row(&a, a.dout, 0, pads[i], 0), 32, NAN);
    }
    mxt_check_exact_inputs(&a, config, 1);
    expect_all_finite(&a);
    for (int i = 0; i < 3; i++) {
        mxt_expect("o of a pad", mxt_row(&a, a.o, 0, pads[i], 0), 32, 0, 0);
        mxt_expect("dq of a pad", mxt_row(&a, a.dq, 0, pads[i], 0), 32, 0, 0);
        mxt_expect("dk of a pad", mxt_row(&a, a.dk, 0, pads[i], 0), 32, 0, 0);
        mxt_expect("dv of a pad", mxt_row(&a, a.dv, 0, pads[i], 0), 32, 0, 0);
    }
    mxt_attention_free(&a);
}

static void seqused_dense(const mxt_config *config)
{
    static const int32_t used[] = {3, 8};
    mxt_attention a;
    mxt_attention_dense(&a, 2, 8, 8, 1, 1, 32);
    a.used_k = used;
    setup(&a, config, MXT_EXACT);
    mxt_check_exact_inputs(&a, config, 1);
    mxt_expect("dk of unused keys", mxt_row(&a, a.dk, 0, 3, 0), 5 * 32, 0, 0);
    mxt_expect("dv of unused keys", mxt_row(&a, a.dv, 0, 3, 0), 5 * 32, 0, 0);
    mxt_attention_free(&a);
}

static void same_bits_again(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 70, 71, 200}, cu_k[] = {0, 90, 140, 300};
    mxt_attention a, again;
    for (int run = 0; run < 4; run++) {
        mxt_attention *this = run == 0 ? &a : &again;
        mxt_attention_jagged(this, 3, cu_q, -1, cu_k, -1, 6, 2, 64);
        this->problem.causal = this->problem.deterministic = 1;
        setup(this, config, MXT_GAUSSIAN);
        both(this);
        if (run == 0)
            continue;
        mxt_check_bytes("o", again.o, a.o, sizeof(float), mxt_shape3(200, 6, 64));
        mxt_check_bytes("dq", again.dq, a.dq, sizeof(float), mxt_shape3(200, 6, 64));
        mxt_check_bytes("dk", again.dk, a.dk, sizeof(float), mxt_shape3(300, 2, 64));
        mxt_check_bytes("dv", again.dv, a.dv, sizeof(float), mxt_shape3(300, 2, 64));
        mxt_attention_free(&again);
    }
    mxt_attention_free(&a);
}

static void large_logits(const mxt_config *config)
{
    for (float size = 3; size <= 5; size += 2) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 300, 300, 1, 1, 128);
        a.problem.causal = 1;
        setup(&a, config, MXT_EXACT);
        fill_pattern(a.q, mxt_size_q(&a), size, 0);
        fill_pattern(a.k, mxt_size_k(&a), size, 3);
        fill_pattern(a.v, mxt_size_v(&a), size, 5);
        mxt_check_exact_inputs(&a, config, 0);
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(&a));
        expect_all_finite(&a);
        mxt_attention_free(&a);
    }
}

/* dO is nonzero in one row: only the keys that its window holds get a gradient. */
static void window_in_backward(const mxt_config *config)
{
    for (int causal = 0; causal < 2; causal++) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 64, 64, 1, 1, 32);
        a.problem.window[0] = causal ? -1 : 8;
        a.problem.window[1] = causal ? -1 : 0;
        a.problem.causal = causal;
        setup(&a, config, MXT_EXACT);
        a.problem.softmax_scale = 0.05;
        mxt_set(a.dout, mxt_size_o(&a), 0);
        mxt_set(mxt_row(&a, a.dout, 0, 20, 0), 32, 1);
        mxt_check_exact_inputs(&a, config, 1);
        double sum = 0;
        for (int64_t j = 0; j < 64; j++) {
            const int seen = j <= 20 && (causal || j >= 12);
            const float dv = *mxt_row(&a, a.dv, 0, j, 0);
            sum += (double)dv;
            CHECK((dv > 0) == seen, "dv of key %d is %g", (int)j, (double)dv);
            if (!seen)
                mxt_expect("dk of a masked key", mxt_row(&a, a.dk, 0, j, 0), 32, 0, 0);
        }
        CHECK(fabs(sum - 1) <= mxt_config_rounding(config), "P of row 20 sums to %g", sum);
        mxt_attention_free(&a);
    }
}

/* Backward differentiates what forward computed: the quantized operands, not the given ones. */
static void quantized_operands_in_backward(const mxt_config *config)
{
    mxt_attention a, seen;
    mxt_attention_dense(&a, 1, 96, 96, 2, 1, 64);
    setup(&a, config, MXT_GAUSSIAN);
    mxt_attention_dense(&seen, 1, 96, 96, 2, 1, 64);
    setup(&seen, config, MXT_GAUSSIAN);
    mxt_fill_f32(a.dout, 96 * 2, 64, MXT_EXACT, 3);
    memcpy(seen.dout, a.dout, (size_t)mxt_size_o(&a) * sizeof(float));
    if (!mxt_config_exact(config)) {
        mxt_requantize(&a, &a.tensor_q, seen.q);
        mxt_requantize(&a, &a.tensor_k, seen.k);
        mxt_requantize(&a, &a.tensor_v, seen.v);
    }
    mxt_attention exact;
    both(&a);
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(&seen, &exact, 1));
    const double limit = mxt_config_rounding_gradient(config);
    mxt_check_rms("o", a.o, exact.o, mxt_shape3(96, 2, 64), mxt_config_rounding(config));
    mxt_check_rms("dv", a.dv, exact.dv, mxt_shape3(96, 1, 64), limit);
    mxt_check_rms("dq", a.dq, exact.dq, mxt_shape3(96, 2, 64), limit);
    mxt_check_rms("dk", a.dk, exact.dk, mxt_shape3(96, 1, 64), limit);
    mxt_attention_free(&a);
    mxt_attention_free(&seen);
    mxt_attention_free(&exact);
}

/* dQ near and far beyond what FP16 at a fixed exponent of 12 could hold. */
static void dq_of_any_size(const mxt_config *config)
{
    for (int log2 = -40; log2 <= 40; log2 += 20) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 70, 300, 1, 1, 32);
        setup(&a, config, MXT_EXACT);
        a.problem.softmax_scale = 0.05;
        for (int64_t i = 0; i < mxt_size_o(&a); i++)
            a.dout[i] = ldexpf(a.dout[i], log2);
        mxt_check_exact_inputs(&a, config, 1);
        expect_all_finite(&a);
        mxt_attention_free(&a);
    }
}

/* Key j and key j + 32 have the same score of query j and j + 32, 0.3 * 2^(2e), and all others 0: P
 * is 1/2 twice, though FP32 holds such an LSE to 2^-3 or to 2^17 only. The second of two keys
 * differs in a dimension where queries are 0. */
static void far_tie(const mxt_config *config, float far, int64_t dim)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 64, 64, 1, 1, dim);
    a.problem.softmax_scale = 0.3;
    setup(&a, config, MXT_EXACT);
    mxt_set(a.q, mxt_size_q(&a), 0);
    mxt_set(a.k, mxt_size_k(&a), 0);
    for (int64_t s = 0; s < 64; s++) {
        mxt_row(&a, a.q, 0, s, 0)[s % 32] = mxt_row(&a, a.k, 0, s, 0)[s % 32] = far;
        mxt_set(mxt_row(&a, a.v, 0, s, 0), dim, s < 32 ? 1 : 3);
        mxt_set(mxt_row(&a, a.dout, 0, s, 0), dim, 0.5f);
    }
    for (int64_t j = 32; j < 64; j++)
        mxt_row(&a, a.k, 0, j, 0)[j] = far;
    both(&a);
    expect_all_finite(&a);
    const double rounding = mxt_config_rounding(config);
    mxt_expect("o", a.o, mxt_size_o(&a), 2, 2 * rounding);
    mxt_expect("dv", a.dv, mxt_size_v(&a), 0.5, 0.5 * rounding);
    /* dP is dim / 2 and 3 dim / 2, delta dim: dS is -dim / 4 and dim / 4. */
    const double ds = 0.3 * (double)dim / 4 * (double)far;
    for (int64_t s = 0; s < 64; s++) {
        const double sign = s < 32 ? -1 : 1;
        mxt_expect("dk", mxt_row(&a, a.dk, 0, s, 0) + s % 32, 1, 2 * sign * ds, 4 * rounding * ds);
        mxt_expect("dq", mxt_row(&a, a.dq, 0, s, 0) + 32 + s % 32, 1, ds, 2 * rounding * ds);
    }
    mxt_attention_free(&a);
}

static void far_ties(const mxt_config *config)
{
    for (int e = 10; e <= 20; e += e == 14 ? 6 : 1) {
        far_tie(config, ldexpf(1, e), 64);
    }
    far_tie(config, ldexpf(1, 20), 128);
}

/* The gradients of every option at once, against float64. */
static void all_options(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 40, 40, 75, 180}, cu_k[] = {0, 50, 61, 100, 250};
    static const int32_t used_q[] = {38, 0, 35, 97}, used_k[] = {50, 7, 1, 140};
    mxt_attention a;
    mxt_attention_jagged(&a, 4, cu_q, 183, cu_k, 251, 6, 2, 64);
    a.used_q = used_q;
    a.used_k = used_k;
    a.problem.head_dim_v = 40;
    a.problem.window[0] = 60;
    a.problem.window[1] = 20;
    a.problem.softcap = 3;
    a.problem.softmax_scale = -0.06;
    a.problem.has_sink = 1;
    a.with_dlse = 1;
    setup(&a, config, MXT_EXACT);
    mxt_check_exact_inputs(&a, config, 1);
    a.without_saved = 1;
    mxt_check_exact_inputs(&a, config, 1);
    mxt_attention_free(&a);
}

static const mxt_named_case cases[] = {
    {"B03 rows without keys, one key to a sequence", three_keys_and_empty_rows},
    {"B03 one key has no gradient in q and k", one_key},
    {"B16 B17 lengths that fill no tile, unmapped pages behind them", odd_lengths},
    {"B26 garbage in unused rows", garbage_in_unused_rows},
    {"B27 rows past the last sequence are 0", rows_past_the_end},
    {"B29 padding between sequences", padding_between_sequences},
    {"B30 seqused in backward", seqused_dense},
    {"B48 B117 B119 the same bits again, workspace exactly as large as the plan says",
     same_bits_again},
    {"B55 large logits", large_logits},
    {"B55 two keys share a score far from 0", far_ties},
    {"B75 window and causal in backward", window_in_backward},
    {"B110 backward uses the quantized operands", quantized_operands_in_backward},
    {"B110 dQ of any size", dq_of_any_size},
    {"B116 every option at once", all_options},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
