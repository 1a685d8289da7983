/* test_forward_forms.c: the other forms of the Hopper forward on the emulator: head dims, P in
 * BF16, causal_strict, a maximum that jumps, many tiles for a CTA; no hazard under several seeds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"
#include "compare.h"
#include "device_run.h"
#include "emu/driver.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct forms_case {
    const char *name;
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, head_dim_v;
    int causal, strict;
    int64_t left, right;
    double softcap;
    mxattn_intermediates intermediates;
    mxattn_dtype operands;
    float jump; /* logits of key `late` are about 12 times this above the others */
    int late;
} forms_case;

#define E4M3 MXATTN_INTERMEDIATES_E4M3
#define BF16 MXATTN_INTERMEDIATES_BF16

static const forms_case cases[] = {
    {"d256", 1, 130, 300, 1, 1, 256, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 0, 0},
    {"d256 softcap", 1, 70, 200, 1, 1, 256, 0, 1, 0, -1, -1, 9, E4M3, MXATTN_E4M3, 0, 0},
    {"d192 v128", 1, 64, 200, 2, 1, 192, 128, 1, 0, -1, -1, 0, E4M3, MXATTN_F32, 0, 0},
    {"d40 v96", 1, 64, 160, 1, 1, 40, 96, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 0, 0},
    {"bf16 d64", 2, 65, 193, 2, 1, 64, 0, 0, 0, 50, 20, 0, BF16, MXATTN_F32, 0, 0},
    {"bf16 d256", 1, 64, 300, 1, 1, 256, 0, 0, 0, -1, -1, 5, BF16, MXATTN_E4M3, 0, 0},
    {"strict", 1, 200, 200, 2, 1, 128, 0, 1, 1, -1, -1, 0, BF16, MXATTN_F32, 0, 0},
    /* The first launch marks the tiles, the second does them again. */
    {"jump far", 1, 192, 640, 1, 1, 128, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 25, 300},
    {"jump", 1, 64, 640, 1, 1, 64, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 5, 300},
    /* Key 312 is one whose P takes no exp2 in half of the rows, in a block that is seen whole. */
    {"jump d64", 1, 130, 640, 1, 1, 64, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_E4M3, 5, 312},
    {"jump far d64", 1, 130, 640, 1, 1, 64, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 25, 312},
    {"jump between d64", 1, 130, 640, 1, 1, 64, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 7, 312},
    {"jump d256", 1, 70, 640, 1, 1, 256, 0, 0, 0, -1, -1, 0, E4M3, MXATTN_F32, 5, 312},
    {"jump causal", 1, 450, 640, 1, 1, 128, 0, 1, 0, -1, -1, 0, E4M3, MXATTN_F32, 5, 312},
    {"window", 1, 400, 700, 1, 1, 64, 0, 0, 0, 100, 30, 0, E4M3, MXATTN_F32, 0, 0},
};

static void options(mxt_attention *a, const forms_case *c)
{
    a->problem.head_dim_v = c->head_dim_v;
    a->problem.causal = c->causal;
    a->problem.causal_strict = c->strict;
    a->problem.window[0] = c->left;
    a->problem.window[1] = c->right;
    a->problem.softcap = c->softcap;
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = c->intermediates;
    a->problem.mode = MXATTN_INFERENCE;
    if (c->strict) {
        a->problem.q.block = a->problem.k.block = a->problem.v.block = MXATTN_BLOCK_ROW;
    }
}

/* A direction that every query and key `late` share, beside a third of what they were. */
static void add_jump(mxt_attention *a, float jump, int64_t late)
{
    const int64_t d = a->problem.head_dim, q = mxt_size_q(a), k = mxt_size_k(a);
    for (int64_t i = 0; i < q; i++) {
        a->q[i] = 0.3f * a->q[i] + (i % 2 ? 12.0f : -12.0f) / sqrtf((float)d);
    }
    for (int64_t i = 0; i < k; i++) {
        const int here = i / d % a->seqlen_k == late;
        a->k[i] = 0.3f * a->k[i] + (here ? (i % 2 ? jump : -jump) / sqrtf((float)d) : 0.0f);
    }
}

/* Without a report under this seed; O and LSE in a. */
static int emulate(mxt_attention *a, mxattn_dtype operands, uint64_t seed)
{
    mxa_emu_session *session = mxa_emu_session_now();
    const mxt_device_options given = {0, operands, MXATTN_F32, MXATTN_BACKEND_EMU_SM90};
    mxa_emu_session_clear();
    session->options.seed = seed;
    const int ran = CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, &given));
    CHECK(session->errors + session->warnings == 0, "seed %llu:\n%s", (unsigned long long)seed,
          session->text ? session->text : "");
    return ran;
}

static void against_model(mxt_attention *a, mxattn_dtype operands, int seeds)
{
    const int64_t n = mxt_size_o(a), rows = mxt_size_lse(a);
    float *model = malloc((size_t)n * sizeof *model), *lse = malloc((size_t)rows * sizeof *lse);
    mxt_attention exact;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(a, &exact, 0));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    memcpy(model, a->o, (size_t)n * sizeof *model);
    memcpy(lse, a->lse, (size_t)rows * sizeof *lse);
    for (uint64_t seed = 1; seed <= (uint64_t)seeds && emulate(a, operands, seed); seed++) {
        (void)mxt_check_model("o", a->o, model, exact.o, mxt_shape1(n), MXT_CUDA_FACTOR,
                              MXT_CUDA_FLOOR);
        mxt_check_close("lse", a->lse, lse, mxt_shape1(rows), MXT_CUDA_LSE_ABSOLUTE,
                        MXT_CUDA_LSE_RELATIVE);
    }
    mxt_attention_free(&exact);
    free(model);
    free(lse);
}

static void run_case(const forms_case *c, uint64_t seed)
{
    mxt_attention a;
    mxt_case("%s", c->name);
    mxt_attention_dense(&a, c->batch, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads, c->head_dim);
    options(&a, c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, seed);
    if (c->jump != 0) {
        add_jump(&a, c->jump, c->late);
    }
    against_model(&a, c->operands, 3);
    mxt_attention_free(&a);
}

/* B120: more than two tiles to a worker, and runs of sequences without queries or without keys. */
static void many_tiles(void)
{
    static const int32_t cu_q[] = {0, 0, 70, 70, 70, 75, 140, 140, 141, 141, 300, 300};
    static const int32_t cu_k[] = {0, 40, 110, 110, 130, 130, 130, 140, 341, 341, 500, 500};
    mxt_case("B120 many tiles");
    mxt_attention a;
    mxt_attention_jagged(&a, 11, cu_q, 310, cu_k, 510, 4, 2, 64);
    const forms_case c = {.left = -1, .right = -1, .causal = 1, .intermediates = E4M3};
    options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 7);
    against_model(&a, MXATTN_F32, 3);
    mxt_attention_free(&a);
}

/* A key that is NaN makes each row NaN, wherever its P is made: with and without exp2, in the first
 * blocks and in those after them. */
static void nan_keys(void)
{
    static const int64_t keys[] = {3, 285, 312, 350, 639};
    for (int head_dim = 64; head_dim <= 128; head_dim += 64) {
        for (int i = 0; i < 5; i++) {
            mxt_case("key %lld is NaN, head_dim %d", (long long)keys[i], head_dim);
            mxt_attention a;
            mxt_attention_dense(&a, 1, 64, 640, 1, 1, head_dim);
            const forms_case c = {.left = -1, .right = -1, .intermediates = E4M3};
            options(&a, &c);
            mxt_attention_alloc(&a);
            mxt_attention_fill(&a, MXT_GAUSSIAN, 10);
            a.k[keys[i] * head_dim + 7] = NAN;
            int64_t numbers = 0;
            if (emulate(&a, MXATTN_F32, 1)) {
                for (int64_t j = 0; j < mxt_size_o(&a); j++) {
                    numbers += !isnan(a.o[j]);
                }
                for (int64_t j = 0; j < mxt_size_lse(&a); j++) {
                    numbers += !isnan(a.lse[j]);
                }
                CHECK(numbers == 0, "%lld elements of O and LSE are not NaN", (long long)numbers);
            }
            mxt_attention_free(&a);
        }
    }
}

/* causal_strict: the bits of a row are those it had before later tokens became NaN. */
static void strict_rows(void)
{
    const int64_t seqlen = 200, heads = 2, d = 64, from = 77;
    mxt_case("strict: later tokens are NaN");
    mxt_attention a;
    mxt_attention_dense(&a, 1, seqlen, seqlen, heads, heads, d);
    const forms_case c = {.left = -1, .right = -1, .causal = 1, .strict = 1, .intermediates = BF16};
    options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 8);
    const size_t bytes = (size_t)(from * heads * d) * sizeof(float);
    float *before = malloc(bytes), *lse = malloc((size_t)(heads * seqlen) * sizeof *lse);
    if (emulate(&a, MXATTN_F32, 1)) {
        memcpy(before, a.o, bytes);
        memcpy(lse, a.lse, (size_t)(heads * seqlen) * sizeof *lse);
        float *arrays[] = {a.q, a.k, a.v};
        for (int t = 0; t < 3; t++) {
            mxt_set(arrays[t] + from * heads * d, (seqlen - from) * heads * d, NAN);
        }
        if (emulate(&a, MXATTN_F32, 2)) {
            CHECK(memcmp(before, a.o, bytes) == 0, "rows before token %lld changed",
                  (long long)from);
            for (int64_t h = 0; h < heads; h++) {
                CHECK(memcmp(lse + h * seqlen, a.lse + h * seqlen, (size_t)from * sizeof *lse) == 0,
                      "lse of head %lld changed", (long long)h);
                CHECK(isnan(a.o[(from * heads + h) * d]), "row %lld is not NaN", (long long)from);
            }
        }
    }
    free(before);
    free(lse);
    mxt_attention_free(&a);
}

/* A NaN in V alone: rows that see its token are NaN, earlier ones are not. */
static void strict_value(void)
{
    const int64_t seqlen = 130, d = 64, at = 70;
    mxt_case("strict: one value is NaN");
    mxt_attention a;
    mxt_attention_dense(&a, 1, seqlen, seqlen, 1, 1, d);
    const forms_case c = {.left = -1, .right = -1, .causal = 1, .strict = 1, .intermediates = BF16};
    options(&a, &c);
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 9);
    a.v[at * d + 5] = NAN;
    if (emulate(&a, MXATTN_F32, 1)) {
        for (int64_t i = 0; i < seqlen; i++) {
            CHECK(isnan(a.o[i * d + 5]) == (i >= at), "row %lld is %g", (long long)i,
                  (double)a.o[i * d + 5]);
            CHECK(!isnan(a.lse[i]), "lse of row %lld is NaN", (long long)i);
        }
    }
    mxt_attention_free(&a);
}

int main(void)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM90);
    if (missing) {
        mxt_case("forms of the forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_case(&cases[i], 100 + i);
    }
    many_tiles();
    nan_keys();
    strict_rows();
    strict_value();
    return mxt_finish();
}
