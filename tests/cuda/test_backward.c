/* test_backward.c: the CUDA backward on a GPU: gradients against the float64 model, long rows, the
 * bound of FP16 sums attacked, the same bits in every run. Small shapes:
 * tests/emu/test_backward_sm90.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backward_case.h"
#include "compare.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 20 };

/* name, B, Sq, Sk, Hq, Hkv, D, causal, top left, left, right, softcap, sink, dlse, kind, mean */
/* clang-format off */
static const mxt_backward_case cases[] = {
    {"one tile", 1, 64, 128, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"one token", 1, 1, 1, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"full", 2, 512, 512, 4, 4, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"full d64", 2, 512, 512, 4, 4, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_E4M3, .dout = MXATTN_BF16, .o = MXATTN_BF16},
    {"causal", 2, 640, 640, 4, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .prepared = 1},
    {"causal d64", 1, 640, 640, 8, 1, 64, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .dq_reduce = MXATTN_DQ_REDUCE_FP32},
    {"edge lengths", 2, 129, 257, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_E4M3, .dout = MXATTN_E4M3},
    {"window", 1, 700, 700, 2, 2, 128, 0, 0, 100, 30, 0, 0, 0, MXT_GAUSSIAN, 0, .deterministic = 1},
    {"window causal", 1, 900, 900, 2, 1, 64, 1, 0, 200, 0, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"causal top left", 1, 300, 200, 2, 2, 128, 1, 1, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .gradients = MXATTN_F16},
    {"softcap", 1, 500, 500, 2, 2, 128, 1, 0, -1, -1, 3.0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"softcap d64", 1, 500, 500, 2, 2, 64, 0, 0, -1, -1, 3.0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"sink and dlse", 1, 600, 600, 4, 2, 128, 1, 0, -1, -1, 0, 1, 1, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"from O and LSE", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .without_saved = 1},
    {"outliers", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_OUTLIER, 0, .operands = MXATTN_F32},
    {"long tail", 1, 512, 512, 2, 2, 64, 1, 0, -1, -1, 0, 0, 0, MXT_LONG_TAIL, 0, .operands = MXATTN_F32},
    {"period 251", 1, 512, 512, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, MXT_PERIOD251, 0, .operands = MXATTN_F32},
    {"mean 1", 1, 4096, 512, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1, .operands = MXATTN_BF16, .dout = MXATTN_BF16},
    {"long rows", 1, 128, 65536, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"long columns", 1, 65536, 128, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"B50 d32", 2, 300, 300, 4, 2, 32, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"B50 d96", 1, 500, 500, 2, 1, 96, 0, 0, -1, -1, 0, 1, 1, MXT_GAUSSIAN, 1, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .prepared = 1},
    {"gradients as MXFP8", 2, 300, 300, 2, 2, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_E4M3, .gradients = MXATTN_E4M3},
    {"causal_strict", 1, 200, 200, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .strict = 1},
    {"d256", 2, 512, 512, 2, 2, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_BF16},
    {"d256 causal", 1, 640, 640, 4, 2, 256, 1, 0, -1, -1, 0, 1, 1, MXT_GAUSSIAN, 0, .operands = MXATTN_E4M3, .prepared = 1, .dq_reduce = MXATTN_DQ_REDUCE_FP32},
    {"d256 softcap", 1, 300, 300, 2, 2, 256, 0, 0, 100, 30, 3.0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32, .deterministic = 1},
    {"d256 mean 1", 1, 4096, 512, 1, 1, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 1, .operands = MXATTN_BF16, .dout = MXATTN_BF16},
    {"one tile d256", 1, 64, 64, 1, 1, 256, 0, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_F32},
    {"B50 d192", 2, 300, 300, 4, 2, 192, 1, 0, -1, -1, 0, 0, 0, MXT_GAUSSIAN, 0, .operands = MXATTN_BF16, .dout = MXATTN_BF16, .o = MXATTN_BF16, .gradients = MXATTN_E4M3},
};
/* clang-format on */

static void jagged(void)
{
    static const int32_t cu_q[] = {0, 0, 5, 5, 205, 333, 334, 334};
    static const int32_t cu_k[] = {0, 17, 17, 40, 340, 340, 500, 510};
    static const int32_t used_q[] = {0, 5, 0, 199, 100, 1, 0};
    static const int32_t used_k[] = {16, 0, 20, 257, 0, 160, 10};
    for (int variant = 0; variant < 5; variant++) {
        mxt_attention a;
        mxt_backward_case c = {.left = -1, .right = -1, .causal = variant & 1};
        c.deterministic = variant >> 1 & 1;
        mxt_case("jagged, variant %d", variant);
        (void)printf("jagged, variant %d\n", variant);
        mxt_attention_jagged(&a, 7, cu_q, 340, cu_k, 520, 4, 2,
                             variant & 1    ? 64
                             : variant == 4 ? 256
                                            : 128);
        mxt_backward_options(&a, &c);
        if (variant >= 2) {
            a.used_q = used_q;
            a.used_k = used_k;
        }
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, (uint64_t)variant);
        mxt_backward_check(&a, &c, MXATTN_BACKEND_CUDA);
        mxt_attention_free(&a);
    }
}

/* A jagged batch, empty sequences in it, whose tiles of keys have two steps at most and a CTA each:
 * no stage of the main kernel comes round again, so that racecheck can follow it
 * (scripts/gpu_check). */
static void once_round(void)
{
    static const int32_t cu_q[] = {0, 0, 90, 90, 154, 155, 155},
                         cu_k[] = {0, 9, 73, 73, 200, 210, 210};
    mxt_attention a;
    mxt_backward_case c = {.left = -1, .right = -1};
    mxt_case("once round");
    (void)printf("once round\n");
    mxt_attention_jagged(&a, 6, cu_q, 160, cu_k, 214, 2, 2, 128);
    mxt_backward_options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 4);
    mxt_backward_check(&a, &c, MXATTN_BACKEND_CUDA);
    mxt_attention_free(&a);
}

/* Uniform P, and every term of every partial sum of dQ has one sign: q = 0, half of the keys have V
 * along dO and K positive, the other half both negative. */
static void attack(void)
{
    mxt_attention a;
    mxt_backward_case c = {
        "the bound of dQ attacked", 1, 64, 4096, 1, 1, 128, .left = -1, .right = -1};
    mxt_case("%s", c.name);
    (void)printf("%s\n", c.name);
    mxt_backward_make(&a, &c, 1);
    mxt_set(a.q, mxt_size_q(&a), 0.0f);
    mxt_set(a.dout, mxt_size_o(&a), 208.0f);
    for (int64_t j = 0; j < 4096; j++) {
        const float sign = j % 2 ? -1.0f : 1.0f;
        mxt_set(mxt_row(&a, a.k, 0, j, 0), 128, sign * 448.0f);
        mxt_set(mxt_row(&a, a.v, 0, j, 0), 128, sign * 448.0f);
    }
    mxt_backward_check(&a, &c, MXATTN_BACKEND_CUDA);
    mxt_attention_free(&a);
}

/* B115: the same bits in every run. */
static void deterministic(int jagged_batch, int64_t head_dim)
{
    static const int32_t cu[] = {0, 700, 700, 1000, 1600};
    mxt_attention a;
    mxt_backward_case c = {.causal = 1, .left = -1, .right = -1, .deterministic = 1};
    mxt_case("B115 deterministic, %s, head_dim %d", jagged_batch ? "jagged" : "dense",
             (int)head_dim);
    if (jagged_batch) {
        mxt_attention_jagged(&a, 4, cu, 1600, cu, 1600, 8, 2, head_dim);
    } else {
        mxt_attention_dense(&a, 2, 4096, 4096, 8, 8, head_dim);
    }
    mxt_backward_options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 5);
    const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_CUDA);
    struct {
        const char *name;
        const float *now;
        size_t bytes;
        float *first;
        int equal;
    } gradients[] = {{"dq", a.dq, (size_t)mxt_size_q(&a) * sizeof(float), NULL, 0},
                     {"dk", a.dk, (size_t)mxt_size_k(&a) * sizeof(float), NULL, 0},
                     {"dv", a.dv, (size_t)mxt_size_v(&a) * sizeof(float), NULL, 0}};
    for (int run = 0; run < RUNS && CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given));
         run++) {
        for (int g = 0; g < 3; g++) {
            if (run == 0) {
                gradients[g].first = malloc(gradients[g].bytes);
                memcpy(gradients[g].first, gradients[g].now, gradients[g].bytes);
            }
            gradients[g].equal +=
                memcmp(gradients[g].first, gradients[g].now, gradients[g].bytes) == 0;
        }
    }
    for (int g = 0; g < 3; g++) {
        CHECK(gradients[g].equal == RUNS, "%s: %d of %d runs had the bits of the first",
              gradients[g].name, gradients[g].equal, RUNS);
        free(gradients[g].first);
    }
    mxt_attention_free(&a);
}

/* dV of long rows with and without what forward saves. */
static void range(void)
{
    double error[2] = {0, 0};
    mxt_case("range of P");
    for (int without = 0; without < 2; without++) {
        mxt_backward_case c = {"range", 1,  64,         65536,       1,
                               1,       64, .left = -1, .right = -1, .without_saved = without};
        mxt_attention a, exact;
        mxt_backward_make(&a, &c, 7);
        CHECK_STATUS(MXATTN_OK, mxt_attention_exact(&a, &exact, 1));
        const mxt_device_training given = mxt_backward_given(&c, MXATTN_BACKEND_CUDA);
        CHECK_STATUS(MXATTN_OK, mxt_device_backward(&a, &given));
        error[without] = mxt_error_f32(a.dv, exact.dv, mxt_size_v(&a)).relative_rms;
        mxt_attention_free(&exact);
        mxt_attention_free(&a);
    }
    (void)printf("dV of 65,536 keys: error %.3e with row maxima, %.3e from O and LSE alone\n",
                 error[0], error[1]);
    CHECK(error[0] < error[1], "dv: %.3e with what forward saved, %.3e without", error[0],
          error[1]);
}

/* With a word on the command line, only the cases whose name begins with it; and jagged, once
 * round, bound, B115, range. */
int main(int argc, char **argv)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_CUDA);
    if (missing) {
        mxt_case("cuda backward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const mxt_backward_case *c = &cases[i];
        mxt_attention a;
        if (argc > 1 && strncmp(c->name, argv[1], strlen(argv[1])) != 0) {
            continue;
        }
        mxt_case("%s: B %lld, Sq %lld, Sk %lld, Hq %lld, Hkv %lld, D %lld", c->name,
                 (long long)c->batch, (long long)c->seqlen_q, (long long)c->seqlen_k,
                 (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
        (void)printf("%s\n", c->name);
        (void)fflush(stdout);
        mxt_backward_make(&a, c, 100 + i);
        mxt_backward_check(&a, c, MXATTN_BACKEND_CUDA);
        mxt_attention_free(&a);
    }
    if (argc < 2 || strcmp(argv[1], "jagged") == 0) {
        jagged();
    }
    if (argc < 2 || strcmp(argv[1], "once round") == 0) {
        once_round();
    }
    if (argc < 2 || strcmp(argv[1], "bound") == 0) {
        attack();
    }
    if (argc < 2 || strcmp(argv[1], "B115") == 0) {
        deterministic(0, 128);
        deterministic(1, 128);
        deterministic(1, 256);
    }
    if (argc < 2 || strcmp(argv[1], "range") == 0) {
        range();
    }
    return mxt_finish();
}
