/* test_forward_sm90.c: the Hopper kernels on the emulator: results as on the GPU, no hazard under
 * any seed, and the same bits under all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"
#include "compare.h"
#include "device_run.h"
#include "emu/driver.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 20 }; /* a hundred of them: test_seeds_forward_sm90.c */

typedef struct forward_case {
    const char *name;
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
    int causal, top_left;
    int64_t left, right;
    double softcap;
    int sink;
    mxattn_dtype operands, o;
    int seeds;
    mxattn_intermediates intermediates; /* AUTO: E4M3 */
    int strict;
} forward_case;

#define E4M3 MXATTN_INTERMEDIATES_AUTO
#define BF16 MXATTN_INTERMEDIATES_BF16

static const forward_case cases[] = {
    {"one tile", 1, 64, 128, 1, 1, 128, 0, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, SEEDS, E4M3, 0},
    /* Three tiles for each of two CTAs, and six blocks in a tile: every buffer's stages come round.
     */
    {"six tiles", 1, 256, 256, 3, 3, 128, 0, 0, -1, -1, 0, 0, MXATTN_BF16, MXATTN_BF16, SEEDS, E4M3,
     0},
    {"six blocks", 1, 192, 768, 1, 1, 128, 0, 0, -1, -1, 0, 0, MXATTN_BF16, MXATTN_F32, SEEDS, E4M3,
     0},
    {"causal", 1, 200, 256, 2, 1, 64, 1, 0, -1, -1, 0, 0, MXATTN_BF16, MXATTN_F32, 4, E4M3, 0},
    {"top left", 1, 96, 224, 1, 1, 128, 1, 1, -1, -1, 0, 0, MXATTN_F32, MXATTN_F16, 4, E4M3, 0},
    {"window", 2, 192, 192, 1, 1, 64, 0, 0, 40, 17, 0, 0, MXATTN_F32, MXATTN_F32, 4, E4M3, 0},
    {"softcap and sink", 1, 128, 160, 2, 2, 128, 0, 0, -1, -1, 15.0, 1, MXATTN_F32, MXATTN_F32, 4,
     E4M3, 0},
    {"odd lengths", 2, 33, 129, 4, 2, 64, 0, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_BF16, SEEDS, E4M3,
     0},
    {"one query", 1, 1, 255, 2, 1, 128, 1, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, SEEDS, E4M3, 0},
    {"MXFP8 given", 1, 128, 128, 2, 1, 128, 1, 0, -1, -1, 0, 0, MXATTN_E4M3, MXATTN_F32, 4, E4M3,
     0},
    {"d256", 1, 130, 300, 1, 1, 256, 0, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, 4, E4M3, 0},
    {"d96", 1, 70, 200, 2, 2, 96, 1, 0, -1, -1, 0, 0, MXATTN_BF16, MXATTN_F32, 4, E4M3, 0},
    {"bf16", 1, 192, 320, 1, 1, 128, 0, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, SEEDS, BF16, 0},
    {"bf16 d256", 1, 65, 200, 1, 1, 256, 1, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, 4, BF16, 0},
    {"strict", 1, 256, 256, 2, 1, 128, 1, 0, -1, -1, 0, 0, MXATTN_F32, MXATTN_F32, SEEDS, BF16, 1},
};

static void options(mxt_attention *a, const forward_case *c)
{
    a->problem.causal = c->causal;
    a->problem.alignment = c->top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    a->problem.window[0] = c->left;
    a->problem.window[1] = c->right;
    a->problem.softcap = c->softcap;
    a->problem.has_sink = c->sink;
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = c->intermediates ? c->intermediates : MXATTN_INTERMEDIATES_E4M3;
    a->problem.causal_strict = c->strict;
    if (c->strict) {
        a->problem.q.block = a->problem.k.block = a->problem.v.block = MXATTN_BLOCK_ROW;
    }
    a->problem.mode = MXATTN_INFERENCE;
}

/* Values that a 16-bit operand type holds exactly. */
static void round_to(mxt_attention *a, mxattn_dtype dtype)
{
    float *arrays[] = {a->q, a->k, a->v};
    const int64_t counts[] = {mxt_size_q(a), mxt_size_k(a), mxt_size_v(a)};
    for (int t = 0; t < 3 && dtype == MXATTN_BF16; t++) {
        for (int64_t j = 0; j < counts[t]; j++) {
            uint16_t bits;
            mxa_store(&bits, dtype, 0, arrays[t][j]);
            arrays[t][j] = mxa_load(&bits, dtype, 0);
        }
    }
}

/* O and LSE of one run, after another; 0 when the run failed. Even seeds prepare the operands
 * apart: the kernel is launched in another way then, and counts its tiles elsewhere. */
static int emulate(mxt_attention *a, const forward_case *c, uint64_t seed, float *out)
{
    mxa_emu_session *session = mxa_emu_session_now();
    const mxt_device_options given = {seed % 2 == 0, c->operands, c->o, MXATTN_BACKEND_EMU_SM90};
    mxa_emu_session_clear();
    session->options.seed = seed;
    const int ran = CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, &given));
    CHECK(session->errors + session->warnings == 0, "seed %llu:\n%s", (unsigned long long)seed,
          session->text ? session->text : "");
    memcpy(out, a->o, (size_t)mxt_size_o(a) * sizeof *out);
    memcpy(out + mxt_size_o(a), a->lse, (size_t)mxt_size_lse(a) * sizeof *out);
    return ran;
}

static void check(mxt_attention *a, const forward_case *c)
{
    const int64_t n = mxt_size_o(a), rows = mxt_size_lse(a);
    float *model = malloc((size_t)(n + rows) * sizeof *model);
    float *first = malloc((size_t)(n + rows) * sizeof *first);
    float *again = malloc((size_t)(n + rows) * sizeof *again);
    mxt_attention exact;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(a, &exact, 0));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    memcpy(model, a->o, (size_t)n * sizeof *model);
    memcpy(model + n, a->lse, (size_t)rows * sizeof *model);
    if (emulate(a, c, 1, first)) {
        const mxt_error to_truth = mxt_error_f32(first, exact.o, n);
        const mxt_error model_truth = mxt_error_f32(model, exact.o, n);
        CHECK(to_truth.relative_rms <= MXT_CUDA_FACTOR * model_truth.relative_rms + MXT_CUDA_FLOOR,
              "o: relative RMS %.3e against float64, the model's is %.3e; worst at %lld",
              to_truth.relative_rms, model_truth.relative_rms, (long long)to_truth.worst);
        mxt_check_close("lse", first + n, model + n, mxt_shape1(rows), MXT_CUDA_LSE_ABSOLUTE,
                        MXT_CUDA_LSE_RELATIVE);
        for (uint64_t seed = 2; seed <= (uint64_t)c->seeds; seed++) {
            if (!emulate(a, c, seed, again)) {
                break;
            }
            CHECK(memcmp(first, again, (size_t)(n + rows) * sizeof *first) == 0,
                  "seed %llu: other bits than under seed 1", (unsigned long long)seed);
        }
    }
    mxt_attention_free(&exact);
    free(model);
    free(first);
    free(again);
}

int main(int argc, char **argv)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM90);
    if (missing) {
        mxt_case("emulated forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const forward_case *c = &cases[i];
        mxt_attention a;
        if (argc > 1 && strncmp(c->name, argv[1], strlen(argv[1])) != 0) {
            continue;
        }
        mxt_case("%s: B %lld, Sq %lld, Sk %lld, Hq %lld, Hkv %lld, D %lld, %d seeds", c->name,
                 (long long)c->batch, (long long)c->seqlen_q, (long long)c->seqlen_k,
                 (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim, c->seeds);
        mxt_attention_dense(&a, c->batch, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads,
                            c->head_dim);
        options(&a, c);
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 100 + i);
        round_to(&a, c->operands);
        check(&a, c);
        mxt_attention_free(&a);
    }
    return mxt_finish();
}
