/* emu_seeds.c: see emu_seeds.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu_seeds.h"

#include "device_run.h"
#include "emu/driver.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

/* What a run gave that no schedule may change. Additions to dQ come in any order: not dQ. */
typedef struct part {
    const float *values;
    int64_t count;
} part;

enum { PARTS = 4 };

static int parts_of(const mxt_attention *a, const mxt_seeds_case *c, part *parts)
{
    parts[0] = (part){a->o, mxt_size_o(a)};
    parts[1] = (part){a->lse, mxt_size_lse(a)};
    parts[2] = (part){a->dk, mxt_size_k(a)};
    parts[3] = (part){a->dv, mxt_size_v(a)};
    return c->backward ? PARTS : 2;
}

static void make(mxt_attention *a, const mxt_seeds_case *c, const int32_t *cu_q,
                 const int32_t *cu_k)
{
    if (c->jagged) {
        mxt_attention_jagged(a, 3, cu_q, -1, cu_k, -1, c->heads, c->kv_heads, c->head_dim);
    } else {
        mxt_attention_dense(a, 1, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads, c->head_dim);
    }
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.mode = c->backward ? MXATTN_TRAINING : MXATTN_INFERENCE;
    a->problem.causal = c->causal;
    a->problem.softcap = c->softcap;
    a->problem.has_sink = c->sink;
    a->problem.causal_strict = c->strict;
    a->problem.intermediates = c->intermediates ? c->intermediates : MXATTN_INTERMEDIATES_E4M3;
    if (c->strict || (c->operands != MXATTN_F32 && (c->jagged || c->seqlen_q < 32))) {
        a->problem.q.block = a->problem.k.block = a->problem.v.block = MXATTN_BLOCK_ROW;
    }
    mxt_attention_alloc(a);
    mxt_attention_fill(a, MXT_GAUSSIAN, 7);
    if (c->operands == MXATTN_E4M3) {
        a->problem.max_seqlen_k = 1000; /* an MXFP8 v that may lean is looked at once more */
    }
}

/* 0: it did not run. */
static int run_seed(mxt_attention *a, const mxt_seeds_case *c, mxattn_backend backend,
                    uint64_t seed)
{
    mxa_emu_session *session = mxa_emu_session_now();
    const mxt_device_options forward = {0, c->operands, c->o, backend};
    const mxt_device_training training = {forward, c->operands, MXATTN_F32, 0};
    mxa_emu_session_clear();
    session->options.seed = seed;
    const mxattn_status status =
        c->backward ? mxt_device_backward(a, &training) : mxt_device_forward(a, &forward);
    const int ran = CHECK_STATUS(MXATTN_OK, status);
    /* Backward's one warning is meant: test_backward_sm90.c. */
    CHECK(session->errors + (c->backward ? 0 : session->warnings) == 0, "seed %llu:\n%s",
          (unsigned long long)seed, session->text ? session->text : "");
    return ran;
}

static void run_case(mxattn_backend backend, const mxt_seeds_case *c, uint64_t seeds)
{
    const int32_t cu_q[] = {0, 33, 33, (int32_t)c->seqlen_q};
    const int32_t cu_k[] = {0, 129, 129, (int32_t)c->seqlen_k};
    mxt_attention a;
    part parts[PARTS];
    float *first[PARTS] = {0};
    mxt_case("%s, %llu seeds", c->name, (unsigned long long)seeds);
    make(&a, c, cu_q, cu_k);
    const int count = parts_of(&a, c, parts);
    for (uint64_t seed = 1; seed <= seeds && run_seed(&a, c, backend, seed); seed++) {
        for (int i = 0; i < count; i++) {
            const size_t bytes = (size_t)parts[i].count * sizeof(float);
            if (seed == 1) {
                first[i] = malloc(bytes);
                memcpy(first[i], parts[i].values, bytes);
            }
            CHECK(memcmp(first[i], parts[i].values, bytes) == 0,
                  "seed %llu: other bits than under seed 1", (unsigned long long)seed);
        }
    }
    for (int i = 0; i < count; i++) {
        free(first[i]);
    }
    mxt_attention_free(&a);
}

int mxt_seeds_default(void)
{
    const char *text = getenv("MXATTN_TEST_SEEDS");
    const int seeds = text ? atoi(text) : 0;
    return seeds > 0 ? seeds : MXT_SEEDS;
}

void mxt_seeds_run(mxattn_backend backend, const mxt_seeds_case *cases, int count, int argc,
                   char **argv)
{
    const uint64_t seeds =
        argc > 1 ? (uint64_t)strtoull(argv[1], NULL, 10) : (uint64_t)mxt_seeds_default();
    const char *word = argc > 2 ? argv[2] : "";
    for (int i = 0; i < count; i++) {
        if (strncmp(cases[i].name, word, strlen(word)) == 0) {
            run_case(backend, &cases[i], seeds);
        }
    }
}

void mxt_seeds_covered(const char *prefix)
{
    const mxa_emu_kernel *kernel;
    int64_t launches;
    mxt_case("kernels %s*", prefix);
    for (size_t i = 0; (kernel = mxa_emu_kernel_at(i, &launches)) != NULL; i++) {
        if (strncmp(kernel->name, prefix, strlen(prefix)) == 0) {
            CHECK(launches > 0, "no case launches %s", kernel->name);
        }
    }
}
