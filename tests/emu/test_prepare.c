/* test_prepare.c: Hopper's private copies made in one launch (sm90/prepare_bf16.cu and
 * prepare_codes.cu, and what follows them) and in passes (sm90/prepare.cu): the same bytes from
 * BF16 and from FP32 tensors of the same values, and from MXFP8 tensors beside FP32 and MXFP8 ones.
 *
 * Values are multiples of 1/2, so that sums of columns are exact in any order, and so is the mean.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"
#include "cuda/copies.h"
#include "emu/driver.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct prepare_case {
    const char *name;
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
    const int32_t *cu_q, *cu_k; /* jagged */
    mxattn_block block;
    int is_mxfp8;
    mxattn_scale_layout layout; /* of its scales */
    float lean;                 /* added to v */
    int moved;                  /* whose values it is added to, and 2 to every third */
    int outliers;               /* tokens of v that are all 3,072, one of 128 */
} prepare_case;

enum { ALL, NONE, FIRST }; /* heads */
enum { SEEDS = 5 };

static const int32_t cu_q[] = {0, 70, 70, 231}, cu_k[] = {0, 200, 341, 341};
static const int32_t cu_long[] = {0, 33, 33, 900};

/* clang-format off */
#define SQUARE MXATTN_BLOCK_SQUARE
#define ROW    MXATTN_BLOCK_ROW
static const prepare_case cases[] = {
    {"d64", 2, 100, 300, 2, 1, 64, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"d128", 2, 129, 257, 2, 2, 128, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"d128 row", 1, 64, 130, 2, 1, 128, NULL, NULL, ROW, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"d256", 1, 40, 128, 1, 1, 256, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"jagged d128", 3, 0, 0, 2, 1, 128, cu_q, cu_k, SQUARE, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"jagged d64", 3, 0, 0, 1, 1, 64, cu_q, cu_k, ROW, 0, MXATTN_LINEAR, 0, ALL, 0},
    {"mxfp8 d64", 2, 100, 300, 2, 1, 64, NULL, NULL, SQUARE, 1, MXATTN_TILED, 0, ALL, 0},
    {"mxfp8 d128", 2, 129, 257, 4, 2, 128, NULL, NULL, SQUARE, 1, MXATTN_COMPACT, 0, ALL, 0},
    {"mxfp8 d128 row", 1, 64, 130, 2, 1, 128, NULL, NULL, ROW, 1, MXATTN_TILED, 0, ALL, 0},
    {"mxfp8 d256", 1, 40, 128, 1, 1, 256, NULL, NULL, ROW, 1, MXATTN_LINEAR, 0, ALL, 0},
    {"mxfp8 d256 square", 1, 40, 128, 1, 1, 256, NULL, NULL, SQUARE, 1, MXATTN_LINEAR, 0, ALL, 0},
    {"mxfp8 jagged", 3, 0, 0, 2, 1, 128, cu_q, cu_k, SQUARE, 1, MXATTN_LINEAR, 0, ALL, 0},
    {"mxfp8 long", 1, 32, 900, 1, 1, 64, NULL, NULL, ROW, 1, MXATTN_LINEAR, 0, ALL, 0},
    {"mxfp8 leaning", 1, 32, 900, 1, 1, 128, NULL, NULL, SQUARE, 1, MXATTN_LINEAR, 8, ALL, 0},
    {"mxfp8 jagged leaning", 3, 0, 0, 1, 1, 64, cu_q, cu_long, ROW, 1, MXATTN_LINEAR, 8, ALL, 0},
    {"level d64", 1, 70, 300, 2, 2, 64, NULL, NULL, ROW, 0, MXATTN_LINEAR, 0, NONE, 0},
    {"level d128", 2, 129, 257, 4, 2, 128, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 0, NONE, 0},
    {"level d256 row", 1, 40, 200, 2, 1, 256, NULL, NULL, ROW, 0, MXATTN_LINEAR, 0, NONE, 0},
    {"level jagged", 3, 0, 0, 1, 1, 128, cu_q, cu_k, ROW, 0, MXATTN_LINEAR, 0, NONE, 0},
    {"one head leans", 1, 40, 1100, 2, 2, 256, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 8, FIRST, 0},
    {"mxfp8 one head leans", 1, 40, 900, 2, 2, 256, NULL, NULL, SQUARE, 1, MXATTN_LINEAR, 8, FIRST, 0},
    {"outliers d64", 1, 70, 300, 2, 2, 64, NULL, NULL, ROW, 0, MXATTN_LINEAR, 0, NONE, 2},
    {"outlier d128", 2, 32, 128, 1, 1, 128, NULL, NULL, SQUARE, 0, MXATTN_LINEAR, 0, NONE, 1},
    {"mxfp8 outliers", 1, 32, 900, 1, 1, 128, NULL, NULL, SQUARE, 1, MXATTN_LINEAR, 0, NONE, 7},
};
/* clang-format on */

/* Prepared memory of these operands, wide ones as `dtype`, and where what lies in it. The first
 * `quantized` from the end are MXFP8. */
static unsigned char *prepare(const mxt_attention *a, const prepare_case *c, mxattn_dtype dtype,
                              int quantized, mxa_copies *at)
{
    mxattn_attention_problem problem = a->problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxattn_attention_args args;
    mxattn_tensor tensors[3] = {a->tensor_q, a->tensor_k, a->tensor_v};
    mxattn_tags *tags[3] = {&problem.q, &problem.k, &problem.v};
    const int64_t counts[3] = {mxt_size_q(a), mxt_size_k(a), mxt_size_v(a)};
    void *values[3];
    for (int i = 0; i < 3; i++) {
        tags[i]->dtype = i < 3 - quantized ? dtype : MXATTN_E4M3;
    }
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &plan));
    mxattn_plan_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    *at = mxa_copies_lay_out(
        &plan->problem, mxa_forward_form_find(problem.head_dim, problem.head_dim, MXA_FORM_F16));
    mxattn_attention_args_init(&args);
    const mxattn_tensor **given[3] = {&args.q, &args.k, &args.v};
    for (int i = 0; i < 3; i++) {
        if (i >= 3 - quantized) {
            const mxattn_tensor *wide[3] = {&a->tensor_q, &a->tensor_k, &a->tensor_v};
            tensors[i] = mxt_quantized(a, wide[i], MXATTN_HDIM, c->layout);
            *given[i] = &tensors[i];
            continue;
        }
        values[i] = aligned_alloc(256, (size_t)(counts[i] * 4 + 255) / 256 * 256);
        for (int64_t n = 0; n < counts[i]; n++) {
            mxa_store(values[i], dtype, n, ((const float *)tensors[i].data)[n]);
        }
        tensors[i].tags.dtype = dtype;
        tensors[i].data = values[i];
        *given[i] = &tensors[i];
    }
    mxattn_tensor o = a->tensor_o;
    args.o = &o;
    args.batch = a->cu_q ? a->batch : -1;
    args.cu_seqlens_q = a->cu_q;
    args.cu_seqlens_k = a->cu_k;
    unsigned char *memory = NULL;
    const size_t bytes = (size_t)info.prepared_bytes;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    args.workspace = aligned_alloc(1024, (args.workspace_bytes + 1023) / 1024 * 1024);
    memory = aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
    memset(memory, 0xFF, bytes);
    args.prepared = memory;
    CHECK_STATUS(MXATTN_OK, mxattn_prepare(plan, &args));
    for (int i = 0; i < 3; i++) {
        if (i < 3 - quantized) {
            free(values[i]);
        } else {
            mxt_quantized_free(&tensors[i]);
        }
    }
    free(args.workspace);
    mxattn_plan_destroy(plan);
    return memory;
}

static void same(const char *what, const unsigned char *got, const unsigned char *want,
                 int64_t first, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        if (!CHECK(got[first + i] == want[first + i], "%s: byte %lld of %lld is %02x, want %02x",
                   what, (long long)i, (long long)bytes, got[first + i], want[first + i])) {
            return;
        }
    }
}

/* Norms are sums in another order. */
static void close_norms(const char *what, const unsigned char *got, const unsigned char *want,
                        int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float x, y;
        memcpy(&x, got + first + 4 * i, 4);
        memcpy(&y, want + first + 4 * i, 4);
        CHECK(fabsf(x - y) <= 1e-3f * y, "%s %lld: %g, want %g", what, (long long)i, (double)x,
              (double)y);
    }
}

/* Larger values in the first dims, and of few tokens in the last ones: a group's largest is not
 * everywhere. */
static void enlarge(mxt_attention *a, int64_t head_dim)
{
    float *arrays[] = {a->q, a->k, a->v};
    const int64_t counts[] = {mxt_size_q(a), mxt_size_k(a), mxt_size_v(a)};
    for (int t = 0; t < 3; t++) {
        for (int64_t i = 0; i < counts[t]; i++) {
            const int64_t d = i % head_dim, row = i / head_dim;
            arrays[t][i] *= d < 8 ? 2.0f : d >= head_dim - 8 && row % 100 == 0 ? 8.0f : 1.0f;
        }
    }
}

static int moved(const prepare_case *c, int64_t head)
{
    return c->moved == ALL || (c->moved == FIRST && head == 0);
}

/* The mean of a head that does not lean is none; of one whose every column does it is not 0. */
static void means(const prepare_case *c, const float *mean)
{
    for (int64_t i = 0; i < c->batch * c->kv_heads * c->head_dim; i++) {
        const int has_one = moved(c, i / c->head_dim % c->kv_heads);
        CHECK(has_one || mean[i] == 0.0f, "mean %lld is %g", (long long)i, (double)mean[i]);
        CHECK(!has_one || c->moved != FIRST || mean[i] > 0.25f, "mean %lld is %g", (long long)i,
              (double)mean[i]);
    }
}

static void run(const prepare_case *c)
{
    mxt_attention a;
    mxa_copies at, other;
    mxt_case("%s", c->name);
    if (c->cu_q) {
        mxt_attention_jagged(&a, c->batch, c->cu_q, -1, c->cu_k, -1, c->heads, c->kv_heads,
                             c->head_dim);
    } else {
        mxt_attention_dense(&a, c->batch, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads,
                            c->head_dim);
    }
    a.problem.backend = MXATTN_BACKEND_EMU_SM90;
    a.problem.precision = MXATTN_PRECISION_MXFP8;
    a.problem.mode = MXATTN_INFERENCE;
    a.problem.q.block = a.problem.k.block = a.problem.v.block = c->block;
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_EXACT, 3);
    enlarge(&a, c->head_dim);
    for (int64_t i = 0; i < mxt_size_v(&a); i++) {
        if (moved(c, i / c->head_dim % c->kv_heads)) {
            a.v[i] += c->lean + (i % 3 ? 0.0f : 2.0f); /* a mean that is not 0 */
        }
        const int64_t token = i / (c->kv_heads * c->head_dim);
        if (token % 128 == 5 && token / 128 < c->outliers) {
            a.v[i] = 3072.0f;
        }
    }
    unsigned char *once = prepare(&a, c, MXATTN_BF16, c->is_mxfp8 ? 3 : 0, &at);
    unsigned char *passes = prepare(&a, c, MXATTN_F32, c->is_mxfp8 ? 2 : 0, &other);
    CHECK(at.bytes == other.bytes, "sizes differ");
    const int64_t groups = at.k_rows / 32, d = c->head_dim;
    const float *mean = (const float *)(const void *)(once + at.mean);
    CHECK(c->lean == 0.0f || (mean[(c->batch - 1) * d] > 4.0f), "the mean is %g",
          (double)mean[(c->batch - 1) * d]);
    means(c, mean);
    same("q", once, passes, at.q, c->heads * at.q_rows * d);
    same("k", once, passes, at.k, c->kv_heads * at.k_rows * d);
    same("v", once, passes, at.v, c->kv_heads * at.k_rows * d);
    same("records", once, passes, at.records, c->kv_heads * groups * 16);
    same("scale of v", once, passes, at.v_scale, c->batch * c->kv_heads * 4);
    same("mean", once, passes, at.mean, c->batch * c->kv_heads * d * 4);
    close_norms("norm of q", once, passes, at.q_norm, c->batch * c->heads);
    close_norms("norm of k", once, passes, at.k_norm, c->batch * c->kv_heads);
    for (uint64_t seed = 2; c->moved == FIRST && seed < SEEDS; seed++) {
        mxa_emu_session *session = mxa_emu_session_now();
        mxa_emu_session_clear();
        session->options.seed = seed;
        unsigned char *again = prepare(&a, c, MXATTN_BF16, c->is_mxfp8 ? 3 : 0, &at);
        CHECK(session->errors + session->warnings == 0, "seed %llu:\n%s", (unsigned long long)seed,
              session->text ? session->text : "");
        same("under another seed", again, once, 0, at.zeroed);
        same("mean under another seed", again, once, at.mean, c->batch * c->kv_heads * d * 4);
        free(again);
    }
    free(once);
    free(passes);
    mxt_attention_free(&a);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run(&cases[i]);
    }
    return mxt_finish();
}
