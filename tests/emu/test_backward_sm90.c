/* test_backward_sm90.c: the Hopper backward on the emulator: gradients as the float64 model's, no
 * hazard under any seed, and with FP32 sums of dQ the same bits under all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "backward_case.h"
#include "compare.h"
#include "emu/driver.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 4 };

/* name, B, Sq, Sk, Hq, Hkv, D, causal, top left, left, right, softcap, sink, dlse, kind, mean */
/* clang-format off */
static const mxt_backward_case cases[] = {
    {"one tile", 1, 64, 128, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    /* Three tiles for each of two CTAs, five steps a tile: every buffer comes round. */
    {"six tiles", 1, 320, 256, 3, 3, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"d64", 1, 128, 256, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .dq_reduce = MXATTN_DQ_REDUCE_FP32},
    {"group", 1, 128, 256, 4, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .prepared = 1},
    {"edge lengths", 2, 129, 257, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .gradients = MXATTN_F16},
    {"causal", 1, 320, 320, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .dout = MXATTN_E4M3},
    {"window", 1, 300, 300, 1, 1, 64, 0, 0, 100, 30, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"causal, more queries", 1, 300, 100, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"causal, more keys", 1, 100, 300, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_E4M3},
    {"causal top left", 1, 300, 200, 1, 1, 64, 1, 1, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"softcap", 1, 130, 200, 1, 1, 128, 0, 0, -1, -1, 3.0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"softcap d64", 1, 66, 130, 1, 1, 64, 1, 0, -1, -1, 3.0, 1, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"sink and dlse", 1, 200, 200, 2, 2, 128, 1, 0, -1, -1, 0, 1, 1, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"from O and LSE", 1, 100, 200, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .without_saved = 1},
    {"outliers", 1, 256, 256, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_OUTLIER, 0, .operands = MXATTN_F32},
    {"long tail", 1, 256, 256, 1, 1, 64, 1, 0, -1, -1, 0, 0, 0, MXT_LONG_TAIL, 0, .operands = MXATTN_F32},
    {"mean 1", 1, 320, 256, 2, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1, .operands = MXATTN_F32},
    {"d40", 1, 100, 200, 2, 1, 40, 1, 0, -1, -1, 0, 1, 0, MXT_GAUSSIAN, 1, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"d80", 1, 100, 200, 1, 1, 80, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32, .prepared = 1},
    {"gradients as MXFP8", 2, 70, 70, 2, 1, 64, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32, .gradients = MXATTN_E4M3},
    {"causal_strict", 1, 200, 200, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .strict = 1},
    /* More pairs than the pass before clears dQ of. */
    {"cleared ahead, group", 3, 70, 200, 2, 1, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"cleared ahead, causal", 1, 40, 40, 18, 18, 64, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32, .dq_reduce = MXATTN_DQ_REDUCE_FP32},
    {"d256", 1, 129, 257, 1, 1, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"d192 group", 1, 200, 200, 2, 1, 192, 1, 0, -1, -1, 0, 1, 1, MXT_GAUSSIAN, 1, .operands = MXATTN_F32, .dq_reduce = MXATTN_DQ_REDUCE_FP32, .prepared = 1, .deterministic = 1},
    {"d256 softcap", 1, 66, 130, 1, 1, 256, 0, 0, 40, 20, 3.0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32, .deterministic = 1},
};
/* clang-format on */

/* No error, no warning. */
static void check_reports(uint64_t seed)
{
    const mxa_emu_session *session = mxa_emu_session_now();
    CHECK(session->errors == 0 && session->warnings == 0, "seed %llu:\n%s",
          (unsigned long long)seed, session->text ? session->text : "");
}

/* Other schedules. Additions to dQ come in any order; in FP32 of few terms that shows rarely, in
 * dK and dV never. */
static void check_seeds(mxt_attention *a, const mxt_backward_case *c)
{
    const int64_t n = mxt_size_k(a);
    const mxt_device_training given = mxt_backward_given(c, MXATTN_BACKEND_EMU_SM90);
    float *dk = malloc((size_t)n * sizeof *dk), *dv = malloc((size_t)n * sizeof *dv);
    memcpy(dk, a->dk, (size_t)n * sizeof *dk);
    memcpy(dv, a->dv, (size_t)n * sizeof *dv);
    for (uint64_t seed = 2; seed <= SEEDS; seed++) {
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = seed;
        if (!CHECK_STATUS(MXATTN_OK, mxt_device_backward(a, &given))) {
            break;
        }
        check_reports(seed);
        CHECK(memcmp(dk, a->dk, (size_t)n * sizeof *dk) == 0 &&
                  memcmp(dv, a->dv, (size_t)n * sizeof *dv) == 0,
              "seed %llu: other bits than under seed 1", (unsigned long long)seed);
    }
    free(dk);
    free(dv);
}

/* Sequences of any length in one batch, empty ones anywhere, some with fewer tokens used. */
static void jagged(void)
{
    static const int32_t cu_q[] = {0, 0, 5, 5, 135, 200, 201},
                         cu_k[] = {0, 9, 17, 40, 240, 240, 380};
    static const int32_t used_q[] = {0, 5, 0, 129, 20, 1}, used_k[] = {9, 7, 20, 133, 0, 140};
    for (int variant = 0; variant < 4; variant++) {
        mxt_attention a;
        mxt_backward_case c = {.left = -1, .right = -1, .causal = variant & 1};
        c.prepared = variant == 0 || variant == 3;
        c.dout = variant == 1 ? MXATTN_E4M3 : MXATTN_F32;
        mxt_case("jagged, variant %d", variant);
        mxt_attention_jagged(&a, 6, cu_q, 210, cu_k, 390, 2, 1, variant & 1 ? 64 : 128);
        mxt_backward_options(&a, &c);
        if (variant >= 2) {
            a.used_q = used_q;
            a.used_k = used_k;
        }
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, (uint64_t)variant);
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = 1;
        mxt_backward_check(&a, &c, MXATTN_BACKEND_EMU_SM90);
        check_reports(1);
        mxt_attention_free(&a);
    }
}

/* Gradients as MXFP8 are the values of those in FP32, quantized; of a jagged batch with unused
 * tokens. Sums of dQ in order: one run has the other's. */
static void quantized_gradients(void)
{
    static const int32_t cu[] = {0, 40, 40, 110}, used[] = {33, 0, 70};
    mxt_attention a, wide;
    mxt_backward_case c = {.left = -1, .right = -1, .deterministic = 1};
    mxt_case("gradients as MXFP8, jagged");
    for (int quantized = 0; quantized < 2; quantized++) {
        mxt_attention *now = quantized ? &a : &wide;
        mxt_attention_jagged(now, 3, cu, 128, cu, 128, 2, 2, 64);
        mxt_backward_options(now, &c);
        now->used_q = now->used_k = used;
        mxt_attention_alloc(now);
        mxt_attention_fill(now, MXT_GAUSSIAN, 3);
        c.gradients = quantized ? MXATTN_E4M3 : MXATTN_F32;
        const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = 1;
        CHECK_STATUS(MXATTN_OK, mxt_device_backward(now, &given));
        check_reports(1);
    }
    struct {
        mxattn_tensor *tensor;
        const float *values, *got;
        int64_t count;
    } const gradients[] = {{&wide.tensor_dq, wide.dq, a.dq, mxt_size_q(&a)},
                           {&wide.tensor_dk, wide.dk, a.dk, mxt_size_k(&a)},
                           {&wide.tensor_dv, wide.dv, a.dv, mxt_size_v(&a)}};
    for (int g = 0; g < 3; g++) {
        float *want = malloc((size_t)gradients[g].count * sizeof *want);
        gradients[g].tensor->tags.block = MXATTN_BLOCK_SQUARE;
        mxt_requantize(&wide, gradients[g].tensor, want);
        CHECK(memcmp(want, gradients[g].got, (size_t)gradients[g].count * sizeof *want) == 0,
              "gradient %d: other values than those in FP32, quantized", g);
        free(want);
    }
    mxt_attention_free(&a);
    mxt_attention_free(&wide);
}

/* MXFP8 operands, copies made beforehand; so many heads that the list of the forward's tiles (of
 * 192 queries, or of 128) decides where things lie. */
static void jagged_prepared(void)
{
    static const int32_t cu[] = {0, 128, 256};
    mxt_attention a;
    const mxt_backward_case c = {
        .left = -1, .right = -1, .operands = MXATTN_E4M3, .dout = MXATTN_BF16, .prepared = 1};
    mxt_case("jagged, prepared");
    mxt_attention_jagged(&a, 2, cu, -1, cu, -1, 64, 1, 64);
    mxt_backward_options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 9);
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    mxt_backward_check(&a, &c, MXATTN_BACKEND_EMU_SM90);
    check_reports(1);
    mxt_attention_free(&a);
}

/* More sequences than go together with a diagonal, some without keys or queries: the main kernel
 * clears dQ of the later ones. */
static void jagged_many(void)
{
    enum { BATCH = 20 };
    int32_t cu_q[BATCH + 1] = {0}, cu_k[BATCH + 1] = {0};
    mxt_attention a;
    const mxt_backward_case c = {
        .left = -1, .right = -1, .causal = 1, .operands = MXATTN_F32, .gradients = MXATTN_BF16};
    for (int b = 0; b < BATCH; b++) {
        cu_q[b + 1] = cu_q[b] + (b % 7 == 3 ? 0 : 1 + 11 * b % 70);
        cu_k[b + 1] = cu_k[b] + (b % 5 == 2 ? 0 : 1 + 13 * b % 70);
    }
    mxt_case("jagged, many");
    mxt_attention_jagged(&a, BATCH, cu_q, -1, cu_k, -1, 1, 1, 64);
    mxt_backward_options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 10);
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    mxt_backward_check(&a, &c, MXATTN_BACKEND_EMU_SM90);
    check_reports(1);
    mxt_attention_free(&a);
}

/* A tile of 192 keys reaches over the end of a sequence into the next one's rows: nothing of those
 * gets in, NaN or not. */
static void other_sequence(void)
{
    const mxt_backward_case c = {.batch = 2,
                                 .seqlen_q = 64,
                                 .seqlen_k = 70,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = 64,
                                 .left = -1,
                                 .right = -1,
                                 .operands = MXATTN_F32};
    const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
    mxt_attention a, plain;
    mxt_case("NaN in the next sequence");
    mxt_backward_make(&a, &c, 5);
    mxt_backward_make(&plain, &c, 5);
    mxt_set(mxt_row(&a, a.q, 1, 0, 0), 64 * 64, NAN);
    mxt_set(mxt_row(&a, a.k, 1, 0, 0), 70 * 64, NAN);
    mxt_set(mxt_row(&a, a.v, 1, 0, 0), 70 * 64, NAN);
    mxt_set(mxt_row(&a, a.dout, 1, 0, 0), 64 * 64, NAN);
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    if (CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given)) &&
        CHECK_STATUS(MXATTN_OK, mxt_device_backward(&plain, &given))) {
        check_reports(1);
        CHECK(isnan(*mxt_row(&a, a.dv, 1, 0, 0)), "the second sequence's dv is no NaN");
        CHECK(memcmp(a.dq, plain.dq, 64 * 64 * sizeof(float)) == 0, "dq of the first is another");
        CHECK(memcmp(a.dk, plain.dk, 70 * 64 * sizeof(float)) == 0, "dk of the first is another");
        CHECK(memcmp(a.dv, plain.dv, 70 * 64 * sizeof(float)) == 0, "dv of the first is another");
    }
    mxt_attention_free(&a);
    mxt_attention_free(&plain);
}

/* What FP16 does not hold goes through FP32. V of keys that no query sees, far beyond that of the
 * others: what becomes of theirs hardly changes. dO of some queries far below that of others, and
 * wide logits: as good as the model. */
static void beyond_half(int head_dim)
{
    const mxt_backward_case c = {.batch = 1,
                                 .seqlen_q = 100,
                                 .seqlen_k = 200,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = head_dim,
                                 .causal = 1,
                                 .top_left = 1,
                                 .left = -1,
                                 .right = -1,
                                 .operands = MXATTN_F32};
    const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
    const int64_t seen = (int64_t)96 * head_dim;
    mxt_attention a, plain;
    mxt_case("beyond FP16, D = %d", head_dim);
    mxt_backward_make(&a, &c, 6);
    mxt_backward_make(&plain, &c, 6);
    for (int64_t i = 128 * head_dim; i < 192 * head_dim; i++) {
        a.v[i] = i / head_dim % 2 ? 1e6f : -1e6f; /* WHY signs: else their mean is used */
    }
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    if (CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given)) &&
        CHECK_STATUS(MXATTN_OK, mxt_device_backward(&plain, &given))) {
        const double dk = mxt_error_f32(a.dk, plain.dk, seen).relative_rms;
        const double dv = mxt_error_f32(a.dv, plain.dv, seen).relative_rms;
        check_reports(1);
        /* dk: O, and with it delta, is coarse beside such V; dP is to be finite. dv: the forward
         * sums P times 2^-14 there, which exp2 in FP16 cuts: LSE comes out up to 0.05 low. */
        CHECK(dk < 1 && dv < 0.08, "keys that are seen: dk %.3e, dv %.3e from plain ones", dk, dv);
    }
    mxt_attention_free(&a);
    for (int wide = 0; wide < 2; wide++) {
        mxt_backward_make(&a, &c, 7);
        for (int64_t i = 0; i < 64 * head_dim; i++) {
            if (wide) {
                a.q[i] *= 40;
            } else if (i >= 32 * head_dim) {
                a.dout[i] *= 0x1p-20f;
            }
        }
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = 1;
        mxt_backward_check(&a, &c, MXATTN_BACKEND_EMU_SM90);
        check_reports(1);
        mxt_attention_free(&a);
    }
    mxt_attention_free(&plain);
}

/* One value of dO far beyond the others has a mean which is none of theirs: dV of that dimension,
 * of keys that its row does not see, is as good as of the others. */
static void outlier(void)
{
    enum { QUERIES = 100, D = 64, COLUMN = 7, FIRST = 32 };
    const mxt_backward_case c = {.batch = 1,
                                 .seqlen_q = QUERIES,
                                 .seqlen_k = QUERIES,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = D,
                                 .causal = 1,
                                 .left = -1,
                                 .right = -1,
                                 .operands = MXATTN_F32};
    const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
    mxt_attention a, exact;
    mxt_case("an outlier of dO");
    mxt_backward_make(&a, &c, 8);
    a.dout[10 * D + COLUMN] = 300.0f;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(&a, &exact, 1));
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    if (CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given))) {
        double error = 0, sum = 0;
        check_reports(1);
        for (int64_t i = (int64_t)FIRST * D + COLUMN; i < (int64_t)QUERIES * D; i += D) {
            const double off = (double)a.dv[i] - (double)exact.dv[i];
            error += off * off;
            sum += (double)exact.dv[i] * (double)exact.dv[i];
        }
        CHECK(sqrt(error / sum) < MXT_CUDA_OUTLIER, "dv of its column: relative RMS %.3e",
              sqrt(error / sum));
        (void)printf("    outlier: %.3e\n", sqrt(error / sum));
    }
    mxt_attention_free(&exact);
    mxt_attention_free(&a);
}

/* dO whose squares FP32 does not hold: gradients as of a dO that is a power of two larger. */
static void tiny(int head_dim)
{
    static const int exponents[] = {-60, -76, -80, -90, -100};
    const mxt_backward_case c = {.batch = 1,
                                 .seqlen_q = 40,
                                 .seqlen_k = 64,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = head_dim,
                                 .left = -1,
                                 .right = -1,
                                 .operands = MXATTN_F32};
    const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
    const int64_t queries = (int64_t)40 * head_dim, keys = (int64_t)64 * head_dim;
    mxt_attention a, plain;
    mxt_backward_make(&plain, &c, 9);
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = 1;
    CHECK_STATUS(MXATTN_OK, mxt_device_backward(&plain, &given));
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        mxt_case("dO of 2^%d, D = %d", exponents[i], head_dim);
        mxt_backward_make(&a, &c, 9);
        for (int64_t j = 0; j < queries; j++) {
            a.dout[j] = ldexpf(a.dout[j], exponents[i]);
        }
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = 1;
        if (CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given))) {
            check_reports(1);
            for (int64_t j = 0; j < keys; j++) {
                if (j < queries) {
                    a.dq[j] = ldexpf(a.dq[j], -exponents[i]);
                }
                a.dk[j] = ldexpf(a.dk[j], -exponents[i]);
                a.dv[j] = ldexpf(a.dv[j], -exponents[i]);
            }
            const double dq = mxt_error_f32(a.dq, plain.dq, queries).relative_rms;
            const double dk = mxt_error_f32(a.dk, plain.dk, keys).relative_rms;
            const double dv = mxt_error_f32(a.dv, plain.dv, keys).relative_rms;
            CHECK(dq < MXT_CUDA_TINY && dk < MXT_CUDA_TINY && dv == 0,
                  "from larger ones: dq %.3e, dk %.3e, dv %.3e", dq, dk, dv);
        }
        mxt_attention_free(&a);
    }
    mxt_attention_free(&plain);
}

/* Other signs in every fifth code of a payload. */
static void turn_signs(mxattn_tensor *tensor, int64_t count)
{
    for (int64_t i = 0; i < count; i += 5) {
        ((uint8_t *)tensor->data)[i] ^= 0x80;
    }
}

/* Column partners of q, k and v: forward takes v_seq, dQ k_seq, dK q_seq, dP v. Against float64 of
 * the same payloads, beside the model. As they come, partners have one value but for the smallest
 * elements: their signs are turned, so that one in another's place shows. */
static void partners(void)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_case c;
    mxt_gradients of[3];
    mxt_case("column partners");
    spec.seed = 12;
    spec.kind = MXT_GAUSSIAN;
    spec.pairs = 1;
    spec.seqlen_q[0] = 100;
    spec.seqlen_k[0] = 140;
    spec.head_dim = spec.head_dim_v = 64;
    spec.problem.mode = MXATTN_TRAINING;
    spec.problem.dout = (mxattn_tags){.dtype = MXATTN_F32, .block = MXATTN_BLOCK_ROW};
    spec.problem.dq.dtype = spec.problem.dk.dtype = spec.problem.dv.dtype = MXATTN_F32;
    mxt_attention_case_make(&c, &spec);
    turn_signs(&c.q_seq, c.tokens_q * spec.heads * 64);
    turn_signs(&c.k_seq, c.tokens_k * spec.kv_heads * 64);
    turn_signs(&c.v_seq, c.tokens_k * spec.kv_heads * 64);
    for (int i = 0; i < 3; i++) {
        c.spec.problem.backend = i < 2 ? MXATTN_BACKEND_REF : MXATTN_BACKEND_EMU_SM90;
        c.spec.problem.intermediates =
            i == 1 ? MXATTN_INTERMEDIATES_E4M3 : MXATTN_INTERMEDIATES_AUTO;
        mxa_emu_session_clear();
        of[i] = mxt_attention_case_backward(&c, NULL, c.spec.problem.backend,
                                            i == 0   ? MXATTN_PRECISION_F64
                                            : i == 1 ? MXATTN_PRECISION_MODEL
                                                     : MXATTN_PRECISION_MXFP8);
        CHECK_STATUS(MXATTN_OK, of[i].status);
    }
    check_reports(1);
    for (int g = 0; g < 3; g++) {
        int64_t shape[3];
        mxt_gradient_shape(&c, g, shape);
        const int64_t count = shape[0] * shape[1] * shape[2];
        const double error = mxt_error_f32(of[2].d[g], of[0].d[g], count).relative_rms;
        const double model = mxt_error_f32(of[1].d[g], of[0].d[g], count).relative_rms;
        (void)printf("    %s: error %.3e, the model's %.3e\n", names[g], error, model);
        CHECK(error <= MXT_CUDA_FACTOR * model + MXT_CUDA_FLOOR,
              "%s: relative RMS %.3e against float64, the model's is %.3e", names[g], error, model);
    }
    for (int i = 0; i < 3; i++) {
        mxt_gradients_free(&of[i]);
    }
    mxt_attention_case_free(&c);
}

/* Rows that see no key count nowhere, whatever dO holds there: not in a mean, not in an exponent.
 * Those before the diagonal begins, and those that a window has left behind; some share a group
 * with rows that see. */
static void unseen(void)
{
    static const struct {
        mxt_backward_case c;
        int first, end; /* rows that see */
    } given[] = {
        {{.seqlen_q = 150, .seqlen_k = 37, .head_dim = 64, .causal = 1, .left = -1, .right = -1},
         113,
         150},
        {{.seqlen_q = 150, .seqlen_k = 37, .head_dim = 128, .top_left = 1, .left = 20, .right = 3},
         0,
         57},
        {{.seqlen_q = 96,
          .seqlen_k = 32,
          .head_dim = 256,
          .causal = 1,
          .left = -1,
          .right = -1,
          .mean = 1,
          .sink = 1},
         64,
         96},
    };
    static const float large[] = {65536.0f, 1e30f, (float)INFINITY, (float)NAN};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        mxt_backward_case c = given[i].c;
        mxt_attention a;
        c.batch = c.heads = c.kv_heads = 1;
        c.operands = c.dout = i == 1 ? MXATTN_F32 : MXATTN_BF16;
        c.o = c.gradients = MXATTN_F32;
        c.dq_reduce = MXATTN_DQ_REDUCE_FP32;
        c.without_saved = (int)i;
        mxt_case("rows that see no key, %d", (int)i);
        mxt_backward_make(&a, &c, 9 + i);
        const mxt_device_training training = mxt_backward_given(&c, MXATTN_BACKEND_EMU_SM90);
        const size_t q = (size_t)mxt_size_q(&a), k = (size_t)mxt_size_k(&a);
        float *before = malloc((q + 2 * k) * sizeof *before);
        for (int turn = 0; turn < 5; turn++) {
            for (int row = 0; turn > 0 && row < c.seqlen_q; row++) {
                for (int d = 0; (row < given[i].first || row >= given[i].end) && d < c.head_dim;
                     d++) {
                    a.dout[row * c.head_dim + d] = large[turn - 1];
                }
            }
            mxa_emu_session_clear();
            mxa_emu_session_now()->options.seed = 1;
            if (!CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &training))) {
                break;
            }
            check_reports(1);
            if (turn == 0) {
                memcpy(before, a.dq, q * sizeof *before);
                memcpy(before + q, a.dk, k * sizeof *before);
                memcpy(before + q + k, a.dv, k * sizeof *before);
            }
            CHECK(memcmp(before, a.dq, q * sizeof *before) == 0 &&
                      memcmp(before + q, a.dk, k * sizeof *before) == 0 &&
                      memcmp(before + q + k, a.dv, k * sizeof *before) == 0,
                  "other gradients when dO of such rows is %g", (double)large[turn - (turn > 0)]);
        }
        free(before);
        mxt_attention_free(&a);
    }
}

int main(int argc, char **argv)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM90);
    if (missing) {
        mxt_case("emulated backward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const mxt_backward_case *c = &cases[i];
        mxt_attention a;
        if (argc > 1 && strncmp(c->name, argv[1], strlen(argv[1])) != 0) {
            continue;
        }
        mxt_case("%s", c->name);
        (void)printf("%s\n", c->name);
        mxt_backward_make(&a, c, 100 + i);
        mxa_emu_session_clear();
        mxa_emu_session_now()->options.seed = 1;
        if (mxt_backward_check(&a, c, MXATTN_BACKEND_EMU_SM90)) {
            check_reports(1);
            if (i < 4) {
                check_seeds(&a, c);
            }
        }
        mxt_attention_free(&a);
    }
    if (argc < 2 || strcmp(argv[1], "jagged") == 0) {
        jagged();
        jagged_prepared();
        jagged_many();
        quantized_gradients();
    }
    if (argc < 2 || strcmp(argv[1], "NaN") == 0) {
        other_sequence();
    }
    if (argc < 2 || strcmp(argv[1], "unseen") == 0) {
        unseen();
    }
    if (argc < 2 || strcmp(argv[1], "beyond") == 0) {
        beyond_half(64);
        beyond_half(128);
        beyond_half(256);
    }
    if (argc < 2 || strcmp(argv[1], "tiny") == 0) {
        tiny(64);
        tiny(128);
    }
    if (argc < 2 || strcmp(argv[1], "outlier") == 0) {
        outlier();
    }
    if (argc < 2 || strcmp(argv[1], "partners") == 0) {
        partners();
    }
    return mxt_finish();
}
