/* test_forward.c: the CUDA forward against the float64 models, over shapes and options (B50: small
 * head dims and 192).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device_run.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct forward_case {
    const char *name;
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
    int causal, top_left;
    int64_t left, right;
    double scale, softcap; /* scale 0: the default */
    int sink;
    mxt_kind kind;
    float v_mean;
    int64_t head_dim_v;                 /* 0: head_dim */
    mxattn_intermediates intermediates; /* AUTO: E4M3 */
    int strict;
    mxattn_dtype operands; /* NONE: by turns */
    double to_model;       /* relative RMS against the model; 0: not held to it */
    double to_truth;       /* against float64; 0: not held to it */
    double signed_error;   /* the mean one, likewise */
    int beside_cpu;        /* held to the CPU backend's error, with E4M3 there too */
    float jump;  /* all queries and one late key share a direction: logits jump by 12 times this */
    double lean; /* every column of v has |mean| / root of the mean square * keys of this */
    float outlier; /* of v, all of one key; held to are the rows that do not see it */
} forward_case;

#define AUTO MXATTN_INTERMEDIATES_AUTO
#define BF16 MXATTN_INTERMEDIATES_BF16

static const forward_case cases[] = {
    {"one block", 1, 192, 128, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"two blocks", 1, 192, 256, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"full", 2, 512, 512, 4, 4, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"full d64", 2, 512, 512, 4, 4, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"causal", 2, 640, 640, 4, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"causal d64", 1, 640, 640, 4, 1, 64, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"edge lengths", 2, 129, 257, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"one query", 3, 1, 300, 4, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"causal, more queries", 1, 300, 100, 2, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .jump = 0},
    {"causal, more keys", 1, 100, 300, 2, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .jump = 0},
    {"causal top left", 1, 300, 200, 2, 2, 128, 1, 1, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"window", 1, 700, 700, 2, 2, 128, 0, 0, 100, 30, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"window causal", 1, 900, 900, 2, 1, 64, 1, 0, 200, 0, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"sink", 1, 300, 300, 2, 2, 128, 1, 0, -1, -1, 0, 0, 1, MXT_GAUSSIAN, 0, .jump = 0},
    {"softcap", 1, 300, 300, 2, 2, 128, 0, 0, -1, -1, 0, 3.0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"wide logits", 1, 300, 300, 2, 2, 128, 0, 0, -1, -1, 2.0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"negative scale", 1, 300, 300, 2, 2, 128, 1, 0, -1, -1, -0.05, 0, 0, MXT_GAUSSIAN, 0,
     .jump = 0},
    {"outliers", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_OUTLIER, 0, .jump = 0},
    {"long tail", 1, 512, 512, 2, 2, 64, 1, 0, -1, -1, 0, 0, 0, MXT_LONG_TAIL, 0, .jump = 0},
    {"period 251", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_PERIOD251, 0, .jump = 0},
    {"d256", 1, 512, 512, 2, 2, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d256 causal", 2, 400, 500, 2, 1, 256, 1, 0, -1, -1, 0, 0, 1, MXT_GAUSSIAN, 0, .jump = 0},
    {"d256 softcap", 1, 300, 300, 2, 2, 256, 1, 0, -1, -1, 0, 3.0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d192", 1, 300, 700, 2, 2, 192, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d96", 1, 512, 512, 2, 2, 96, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d96 window", 1, 700, 700, 4, 2, 96, 0, 0, 100, 30, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d32", 1, 300, 300, 2, 2, 32, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d80", 1, 300, 300, 2, 2, 80, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 0},
    {"d192 v128", 1, 300, 300, 2, 2, 192, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .head_dim_v = 128},
    {"d64 v256", 1, 300, 300, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .head_dim_v = 256},
    {"bf16", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .intermediates = BF16},
    {"bf16 d64", 2, 129, 257, 4, 2, 64, 1, 0, -1, -1, 0, 0, 1, MXT_GAUSSIAN, 0,
     .intermediates = BF16},
    {"bf16 d256", 1, 300, 300, 2, 2, 256, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .intermediates = BF16},
    {"bf16 d96", 1, 300, 300, 2, 2, 96, 0, 0, 100, 30, 0, 2.0, 0, MXT_GAUSSIAN, 0,
     .intermediates = BF16},
    {"bf16 outliers", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_OUTLIER, 0,
     .intermediates = BF16},
    {"strict", 1, 640, 640, 4, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .intermediates = BF16, .strict = 1},
    {"strict d64", 1, 300, 200, 2, 2, 64, 1, 1, -1, -1, 0, 0, 1, MXT_GAUSSIAN, 0,
     .intermediates = BF16, .strict = 1},
    {"strict v of mean 1", 1, 2048, 2048, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1,
     .intermediates = BF16, .strict = 1},
    {"jump", 1, 400, 1024, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 5},
    {"jump far", 1, 400, 1024, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 25},
    {"jump far d64", 2, 400, 1024, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .jump = 15},
    {"jump far causal", 1, 1024, 1024, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .jump = 25},
    {"long", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .beside_cpu = 1},
    {"long mxfp8", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .to_model = MXT_CUDA_MODEL_8K},
    {"long d64", 1, 64, 8192, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .to_model = MXT_CUDA_MODEL_8K},
    {"long d256", 1, 64, 8192, 1, 1, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .to_model = MXT_CUDA_MODEL_8K},
    {"long bf16", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .intermediates = BF16, .operands = MXATTN_E4M3, .to_model = MXT_CUDA_MODEL_BF16},
    {"long outliers", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_OUTLIER, 0,
     .operands = MXATTN_BF16},
    {"long mean 1", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1,
     .operands = MXATTN_BF16, .to_truth = MXT_CUDA_MEAN_1, .signed_error = MXT_CUDA_MEAN_1_SIGNED},
    {"long mean 1 mxfp8", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1,
     .operands = MXATTN_E4M3, .to_truth = MXT_CUDA_MEAN_1_PUBLIC,
     .signed_error = MXT_CUDA_MEAN_1_PUBLIC},
    {"long mean 1 bf16",
     1,
     64,
     8192,
     1,
     1,
     128,
     0,
     0,
     -1,
     -1,
     0,
     0,
     0,
     MXT_GAUSSIAN,
     1,
     .intermediates = BF16,
     .operands = MXATTN_E4M3,
     .to_truth = MXT_CUDA_MEAN_1_PUBLIC,
     .signed_error = MXT_CUDA_MEAN_1_PUBLIC},
    {"longest mean 1", 1, 64, 65536, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1,
     .operands = MXATTN_BF16, .to_truth = MXT_CUDA_MEAN_1, .signed_error = MXT_CUDA_MEAN_1_SIGNED},
    {"longest mean 1 mxfp8", 1, 64, 65536, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1,
     .operands = MXATTN_E4M3, .to_truth = MXT_CUDA_MEAN_1_PUBLIC,
     .signed_error = MXT_CUDA_MEAN_1_PUBLIC},
    {"leaning, one sign", 1, 64, 512, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 4,
     .operands = MXATTN_E4M3, .lean = 496, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning 1k", 1, 64, 1024, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .lean = 500, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning 1k wide", 1, 64, 1024, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .lean = 250, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning 4k", 1, 64, 4096, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .lean = 500, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .lean = 625, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning wide", 1, 64, 8192, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .lean = 625, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning 64k", 1, 64, 65536, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_E4M3, .lean = 625, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"leaning 64k wide", 1, 64, 65536, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .lean = 625, .signed_error = MXT_CUDA_LEAN_SIGNED},
    {"outlier", 1, 128, 128, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .outlier = 300},
    {"outlier d64", 1, 300, 300, 2, 1, 64, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .outlier = -300},
    {"outlier f16", 1, 128, 128, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_F16, .outlier = 300},
    {"outlier d96", 1, 300, 300, 1, 1, 96, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_F32, .outlier = 300},
    {"v of mean 1", 1, 2048, 2048, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1, .jump = 0},
    {"long d64 wide", 1, 64, 8192, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .beside_cpu = 1},
    {"long d256 wide", 1, 64, 8192, 1, 1, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .beside_cpu = 1},
    {"long causal", 1, 2048, 2048, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0,
     .operands = MXATTN_BF16, .beside_cpu = 1},
};

/* A GPU, or the emulated one where MXT_EMULATED is set: much slower; name a case. */
static mxattn_backend backend(void)
{
    return getenv("MXT_EMULATED") ? MXATTN_BACKEND_EMU_SM90 : MXATTN_BACKEND_CUDA;
}

static void options(mxt_attention *a, const forward_case *c)
{
    a->problem.causal = c->causal;
    a->problem.alignment = c->top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    a->problem.window[0] = c->left;
    a->problem.window[1] = c->right;
    if (c->scale != 0) {
        a->problem.softmax_scale = c->scale;
    }
    a->problem.softcap = c->softcap;
    a->problem.has_sink = c->sink;
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = c->intermediates ? c->intermediates : MXATTN_INTERMEDIATES_E4M3;
    a->problem.head_dim_v = c->head_dim_v;
    a->problem.causal_strict = c->strict;
    if (c->strict) {
        a->problem.q.block = a->problem.k.block = a->problem.v.block = MXATTN_BLOCK_ROW;
    }
    a->problem.mode = MXATTN_INFERENCE;
}

/* The CPU backend's error with the same blocks and P in E4M3. */
static double cpu_error(mxt_attention *a, const mxt_attention *exact)
{
    const mxattn_attention_problem asked = a->problem;
    a->problem.backend = MXATTN_BACKEND_CPU;
    a->problem.precision = MXATTN_PRECISION_MXFP8;
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    a->problem = asked;
    return mxt_error_f32(a->o, exact->o, mxt_size_o(a)).relative_rms;
}

/* Among the last 32, so that its group has none of the rows that are held to. */
static int64_t outlier_key(const mxt_attention *a)
{
    return (a->seqlen_k - 1) / 32 * 32;
}

static void compare(mxt_attention *a, const mxt_device_options *given, const forward_case *c)
{
    const int64_t rows = mxt_size_lse(a), row = a->problem.heads * c->head_dim;
    const int64_t n = c->outlier != 0 ? row * outlier_key(a) : mxt_size_o(a);
    float *model = malloc((size_t)n * 4), *model_lse = malloc((size_t)rows * 4);
    mxt_attention exact;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(a, &exact, 0));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    memcpy(model, a->o, (size_t)n * 4);
    memcpy(model_lse, a->lse, (size_t)rows * 4);
    const double cpu = c->beside_cpu ? cpu_error(a, &exact) : INFINITY;
    if (CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, given))) {
        mxt_error to_model = mxt_error_f32(a->o, model, n);
        mxt_error to_truth = mxt_error_f32(a->o, exact.o, n);
        mxt_error model_truth = mxt_error_f32(model, exact.o, n);
        mxt_error lse = mxt_error_f32(a->lse, model_lse, rows);
        double signed_error = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) {
            signed_error += (double)a->o[i] - (double)exact.o[i];
            sum += fabs((double)exact.o[i]);
        }
        (void)printf("    to model %.2e, to truth %.2e (model's %.2e), signed %+.1e, lse %.1e\n",
                     to_model.relative_rms, to_truth.relative_rms, model_truth.relative_rms,
                     signed_error / sum, lse.max_abs);
        const double floor = c->lean != 0 ? MXT_CUDA_LEAN_FLOOR : MXT_CUDA_FLOOR;
        CHECK(to_truth.relative_rms <= MXT_CUDA_FACTOR * model_truth.relative_rms + floor,
              "o: relative RMS %.3e against float64, the model's is %.3e; worst at %lld",
              to_truth.relative_rms, model_truth.relative_rms, (long long)to_truth.worst);
        const double lse_absolute =
            c->kind == MXT_LONG_TAIL ? MXT_CUDA_LSE_LONG_TAIL : MXT_CUDA_LSE_ABSOLUTE;
        mxt_check_close("lse", a->lse, model_lse, mxt_shape1(rows), lse_absolute,
                        MXT_CUDA_LSE_RELATIVE);
        CHECK(to_truth.relative_rms <= MXT_CUDA_BESIDE_CPU * cpu,
              "o: relative RMS %.4e against float64, the CPU backend's is %.4e",
              to_truth.relative_rms, cpu);
        if (c->beside_cpu) {
            (void)printf("    %.3f of the CPU backend's error\n", to_truth.relative_rms / cpu);
        }
        CHECK(c->to_model == 0 || to_model.relative_rms <= c->to_model,
              "o: relative RMS %.3e against the model, at most %.1e", to_model.relative_rms,
              c->to_model);
        CHECK(c->to_truth == 0 || to_truth.relative_rms <= c->to_truth,
              "o: relative RMS %.3e against float64, at most %.1e", to_truth.relative_rms,
              c->to_truth);
        CHECK(c->signed_error == 0 || fabs(signed_error / sum) <= c->signed_error,
              "o: signed error %.3e against float64, at most %.1e", signed_error / sum,
              c->signed_error);
    }
    mxt_attention_free(&exact);
    free(model);
    free(model_lse);
}

/* One token of k 2^10 times the others: those that share its exponent lose bits, by half a step of
 * the copy each (docs/numerics.md). Held to are the rows that see some of them, not it. */
static void spread(void)
{
    enum { S = 64, D = 128, OUTLIER = 20 };
    const forward_case c = {.left = -1, .right = -1, .causal = 1};
    const mxt_device_options given = {0, MXATTN_F32, MXATTN_F32, backend()};
    mxt_attention a;
    double largest = 0, worst = 0;
    mxt_case("a token of k 2^10 times the others");
    mxt_attention_dense(&a, 1, S, S, 1, 1, D);
    options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 9);
    for (int d = 0; d < D; d++) {
        a.k[OUTLIER * D + d] *= 0x1p10f;
        largest = fmax(largest, fabs((double)a.k[OUTLIER * D + d]));
    }
    float model[OUTLIER];
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    memcpy(model, a.lse, sizeof model);
    if (CHECK_STATUS(MXATTN_OK, mxt_device_forward(&a, &given))) {
        for (int i = 0; i < OUTLIER; i++) {
            double sum = 0, bound = MXT_CUDA_LSE_ABSOLUTE;
            for (int d = 0; d < D; d++) {
                sum += fabs((double)a.q[i * D + d]);
            }
            bound += MXT_CUDA_FOLD * largest * sum / sqrt(D);
            const double off = fabs((double)a.lse[i] - (double)model[i]);
            worst = fmax(worst, off);
            CHECK(off <= bound, "lse of row %d is off by %.3e, at most %.3e", i, off, bound);
        }
        (void)printf("spread: lse off by up to %.3e\n", worst);
    }
    mxt_attention_free(&a);
}

static void jagged(void)
{
    static const int32_t cu_q[] = {0, 5, 5, 205, 333, 334}, cu_k[] = {0, 17, 40, 340, 340, 500};
    static const int32_t used_q[] = {5, 0, 199, 100, 1}, used_k[] = {16, 20, 257, 0, 160};
    static const int64_t head_dims[] = {128, 64, 256, 96, 128, 64};
    for (int variant = 0; variant < 6; variant++) {
        mxt_attention a;
        mxt_case("jagged, variant %d", variant);
        mxt_attention_jagged(&a, 5, cu_q, 340, cu_k, 510, 4, 2, head_dims[variant]);
        forward_case c = {.left = -1, .right = -1, .causal = variant & 1};
        c.intermediates = variant >= 4 ? BF16 : AUTO;
        options(&a, &c);
        if (variant >= 2) {
            a.used_q = used_q;
            a.used_k = used_k;
        }
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, (uint64_t)variant);
        const mxt_device_options given = {variant % 2, variant % 3 == 2 ? MXATTN_E4M3 : MXATTN_F32,
                                          variant == 3 ? MXATTN_BF16 : MXATTN_F32, backend()};
        compare(&a, &given, &c);
        mxt_attention_free(&a);
    }
}

/* Every multiple of 8, with a head_dim_v of its own each third time. MXFP8 rows are multiples of 16
 * bytes. */
static void head_dims(void)
{
    for (int d = 8; d <= 256; d += 8) {
        mxt_attention a;
        const int strict = d / 8 % 4 == 2;
        const forward_case c = {.left = -1,
                                .right = -1,
                                .causal = d / 8 & 1 || strict,
                                .strict = strict,
                                .head_dim_v = d % 24 ? 0 : (d % 16 ? 264 : 272) - d,
                                .intermediates = strict ? BF16 : AUTO};
        mxt_case("head_dim %d, v %d%s", d, (int)c.head_dim_v, strict ? ", strict" : "");
        mxt_attention_dense(&a, 1, 70, 200, 2, 1, d);
        options(&a, &c);
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, (uint64_t)d);
        const mxt_device_options given = {d / 16 % 2, d % 16 ? MXATTN_F32 : MXATTN_E4M3, MXATTN_F32,
                                          backend()};
        compare(&a, &given, &c);
        mxt_attention_free(&a);
    }
}

static void refusal(const char *what, mxattn_status expected, const char *word,
                    const mxattn_attention_problem *problem)
{
    mxattn_plan *plan = NULL;
    mxt_case("refused: %s", what);
    CHECK_STATUS(expected, mxattn_plan_create(NULL, problem, &plan));
    CHECK(strstr(mxattn_last_error(), word) != NULL, "\"%s\" lacks \"%s\"", mxattn_last_error(),
          word);
    mxattn_plan_destroy(plan);
}

/* What has no kernel is refused by a sentence that names it. */
static void refusals(void)
{
    mxattn_attention_problem base, p;
    mxattn_attention_problem_init(&base);
    base.backend = backend();
    base.batch = base.heads = base.kv_heads = 1;
    base.max_seqlen_q = base.max_seqlen_k = base.head_dim = 128;
    base.q.dtype = base.k.dtype = base.v.dtype = MXATTN_BF16;
    p = base;
    p.head_dim = 264;
    refusal("head_dim 264", MXATTN_UNSUPPORTED, "problem.head_dim", &p);
    p = base;
    p.head_dim_v = 512;
    refusal("head_dim_v 512", MXATTN_UNSUPPORTED, "head_dim_v", &p);
    p = base;
    p.causal = p.causal_strict = 1;
    p.q.block = p.k.block = p.v.block = MXATTN_BLOCK_ROW;
    p.intermediates = MXATTN_INTERMEDIATES_E4M3;
    refusal("causal_strict with E4M3", MXATTN_UNSUPPORTED, "problem.intermediates", &p);
    p = base;
    p.device = 1000;
    refusal("no such device", MXATTN_NO_BACKEND, "device is 1000", &p);
}

/* A direction that every query and key 300 share, beside a third of what they were. */
static void add_jump(mxt_attention *a, float jump)
{
    const int64_t d = a->problem.head_dim, q = mxt_size_q(a), k = mxt_size_k(a);
    for (int64_t i = 0; i < q; i++) {
        a->q[i] = 0.3f * a->q[i] + (i % d % 2 ? 1.0f : -1.0f) * 12.0f / sqrtf((float)d);
    }
    for (int64_t i = 0; i < k; i++) {
        const int late = i / (d * a->problem.kv_heads) % a->seqlen_k == 300;
        a->k[i] = 0.3f * a->k[i];
        a->k[i] += late ? (i % d % 2 ? jump : -jump) / sqrtf((float)d) : 0.0f;
    }
}

/* Every column of v gets a mean by which it leans as far as asked; its squares hardly change. */
static void add_lean(mxt_attention *a, double lean)
{
    const int64_t columns = a->problem.head_dim * a->problem.kv_heads;
    const int64_t keys = mxt_size_v(a) / columns;
    for (int64_t column = 0; column < columns; column++) {
        for (int turn = 0; turn < 3; turn++) {
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < keys; i++) {
                const double x = (double)a->v[i * columns + column];
                sum += x;
                squares += x * x;
            }
            const double wanted = lean / (double)keys * sqrt(squares / (double)keys);
            const double more = wanted - sum / (double)keys;
            for (int64_t i = 0; i < keys; i++) {
                a->v[i * columns + column] += (float)more;
            }
        }
    }
}

/* Types in turn; values are made exact in them. */
static mxt_device_options device_options(mxt_attention *a, size_t i, mxattn_dtype wanted)
{
    static const mxattn_dtype operands[] = {MXATTN_F32, MXATTN_BF16, MXATTN_E4M3, MXATTN_F16};
    static const mxattn_dtype outputs[] = {MXATTN_F32, MXATTN_BF16, MXATTN_F16};
    mxt_device_options given = {(int)(i % 2), operands[i / 2 % 4], outputs[i % 3], backend()};
    given.operands = wanted ? wanted : given.operands;
    if (given.operands == MXATTN_BF16 || given.operands == MXATTN_F16) {
        float *arrays[] = {a->q, a->k, a->v};
        const int64_t counts[] = {mxt_size_q(a), mxt_size_k(a), mxt_size_v(a)};
        for (int t = 0; t < 3; t++) {
            for (int64_t j = 0; j < counts[t]; j++) {
                uint16_t bits;
                mxa_store(&bits, given.operands, 0, arrays[t][j]);
                arrays[t][j] = mxa_load(&bits, given.operands, 0);
            }
        }
    }
    return given;
}

/* With a word on the command line, only the cases whose name begins with it. */
int main(int argc, char **argv)
{
    const char *missing = mxt_device_missing(backend());
    if (missing) {
        mxt_case("cuda forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const forward_case *c = &cases[i];
        mxt_attention a;
        if (argc > 1 && strncmp(c->name, argv[1], strlen(argv[1])) != 0) {
            continue;
        }
        mxt_case("%s: B %lld, Sq %lld, Sk %lld, Hq %lld, Hkv %lld, D %lld", c->name,
                 (long long)c->batch, (long long)c->seqlen_q, (long long)c->seqlen_k,
                 (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
        (void)printf("%s\n", c->name);
        (void)fflush(stdout);
        mxt_attention_dense(&a, c->batch, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads,
                            c->head_dim);
        options(&a, c);
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, c->kind, 100 + i);
        for (int64_t j = 0; j < mxt_size_v(&a); j++) {
            a.v[j] += c->v_mean;
        }
        if (c->jump != 0) {
            add_jump(&a, c->jump);
        }
        if (c->lean != 0) {
            add_lean(&a, c->lean);
        }
        if (c->outlier != 0) {
            const int64_t columns = c->kv_heads * c->head_dim;
            mxt_set(a.v + outlier_key(&a) * columns, columns, c->outlier);
        }
        const mxt_device_options given = device_options(&a, i, c->operands);
        (void)printf("    operands %s, o %s%s\n", mxa_dtype_name(given.operands),
                     mxa_dtype_name(given.o), given.prepared ? ", prepared" : "");
        compare(&a, &given, c);
        mxt_attention_free(&a);
    }
    if (argc < 2 || strcmp(argv[1], "jagged") == 0) {
        jagged();
    }
    if (argc < 2 || strcmp(argv[1], "spread") == 0) {
        spread();
    }
    if (argc < 2 || strcmp(argv[1], "head dims") == 0) {
        head_dims();
    }
    if (argc < 2 || strcmp(argv[1], "refusals") == 0) {
        refusals();
    }
    return mxt_finish();
}
