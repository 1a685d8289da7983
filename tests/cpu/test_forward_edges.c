/* test_forward_edges.c: what must not spread: NaN and infinity, later tokens, bytes outside every
 * sequence; decoding of every code under every scale; long sequences in little memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_case.h"
#include "compare.h"
#include "mx/e8m0.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static uint32_t isas[8];
static int isa_count;

static mxt_attention_result run(mxt_attention_case *c, uint32_t isa)
{
    mxattn_context *context = mxt_context(isa, 2);
    mxt_attention_result result =
        mxt_attention_case_forward(c, context, MXATTN_BACKEND_CPU, MXATTN_PRECISION_MXFP8);

    CHECK(result.status == MXATTN_OK, "forward: %s", mxattn_last_error());
    mxattn_context_destroy(context);
    return result;
}

/* Codes of token s of a dense or jagged tensor without extra strides, all heads. */
static void set_token(const mxattn_tensor *tensor, int64_t token, uint8_t code)
{
    const int n = tensor->ndim;
    const size_t bytes = (size_t)(tensor->shape[n - 1] * tensor->shape[n - 2]);

    memset((uint8_t *)tensor->data + token * tensor->stride[n - 3], code, bytes);
}

static int row_is_nan(const float *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isnan(row[i]))
            return 0;
    return 1;
}

static int row_is_finite(const float *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(row[i]))
            return 0;
    return 1;
}

/* A NaN in one token of q, k or v, causal: rows that see it are NaN, others keep their bits. */
static void test_nan(uint32_t isa, int64_t s, int64_t at)
{
    mxt_attention_spec spec = mxt_attention_spec_make();

    spec.seqlen_q[0] = spec.seqlen_k[0] = s;
    spec.problem.causal = 1;
    for (int which = 0; which < 3; which++) {
        mxt_attention_case c;

        mxt_case("NaN in %s, %d tokens on %s",
                 which == 0   ? "q"
                 : which == 1 ? "k"
                              : "v",
                 (int)s, mxt_isa_name(isa));
        mxt_attention_case_make(&c, &spec);
        mxt_attention_result want = run(&c, isa);
        set_token(which == 0 ? &c.q : which == 1 ? &c.k : &c.v, at, MXA_FP8_NAN);
        mxt_attention_result got = run(&c, isa);
        const int64_t row = spec.heads * spec.head_dim_v;
        for (int64_t i = 0; i < s; i++) {
            const int reached = which == 0 ? i == at : i >= at;

            if (reached)
                CHECK(row_is_nan(got.o + i * row, row), "row %d is not NaN", (int)i);
            else
                CHECK(memcmp(got.o + i * row, want.o + i * row, (size_t)row * sizeof(float)) == 0,
                      "row %d changed", (int)i);
            for (int64_t h = 0; h < spec.heads; h++)
                CHECK(isnan(got.lse[h * s + i]) == (reached && which != 2), "LSE of row %d: %g",
                      (int)i, (double)got.lse[h * s + i]);
        }
        mxt_attention_result_free(&want);
        mxt_attention_result_free(&got);
        mxt_attention_case_free(&c);
    }
}

/* An infinity of E5M2 in v reaches the rows that see it as an infinity of its sign. */
static void test_infinity(uint32_t isa, int64_t s, int64_t at)
{
    const uint8_t minus_infinity = 0xfc;
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_case c;

    mxt_case("infinity in v on %s", mxt_isa_name(isa));
    spec.seqlen_q[0] = spec.seqlen_k[0] = s;
    spec.problem.causal = 1;
    spec.v.dtype = MXATTN_E5M2;
    mxt_attention_case_make(&c, &spec);
    set_token(&c.v, at, minus_infinity);
    mxt_attention_result got = run(&c, isa);
    for (int64_t i = 0; i < s * spec.heads * spec.head_dim_v; i++) {
        const int64_t row = i / (spec.heads * spec.head_dim_v);

        if (row < at)
            CHECK(isfinite(got.o[i]), "row %d: %g", (int)row, (double)got.o[i]);
        else
            CHECK(isinf(got.o[i]) && got.o[i] < 0, "row %d: %g", (int)row, (double)got.o[i]);
    }
    mxt_attention_result_free(&got);
    mxt_attention_case_free(&c);
}

/* causal_strict: whatever the tokens after row i hold, its bits stay. */
static void test_strict(uint32_t isa, int alignment, int64_t sq, int64_t sk)
{
    static const uint8_t codes[] = {0x00, 0x7e, MXA_FP8_NAN};
    static const uint8_t scales[] = {0, 254, 255};
    mxt_attention_spec spec = mxt_attention_spec_make();
    const int64_t row = spec.heads * spec.head_dim_v;

    spec.seqlen_q[0] = sq;
    spec.seqlen_k[0] = sk;
    spec.problem.causal = spec.problem.causal_strict = 1;
    spec.problem.alignment = alignment ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    for (int64_t i = 0; i < sq; i += 13) {
        const int64_t last = i + (alignment ? 0 : sk - sq); /* key on the diagonal */
        mxt_attention_case c;

        mxt_case("strict up to row %d of %d on %s", (int)i, (int)sq, mxt_isa_name(isa));
        mxt_attention_case_make(&c, &spec);
        mxt_attention_result want = run(&c, isa);
        for (int64_t t = 0; t < sk || t < sq; t++) {
            if (t > i && t < sq)
                set_token(&c.q, t, codes[t % 3]);
            if (t > last && t < sk) {
                set_token(&c.k, t, codes[(t + 1) % 3]);
                set_token(&c.v, t, codes[(t + 2) % 3]);
                c.k.scales[MXATTN_HDIM].data[t] = scales[t % 3];
                c.v.scales[MXATTN_HDIM].data[t] = scales[(t / 3) % 3];
            }
        }
        mxt_attention_result got = run(&c, isa);
        CHECK(row_is_finite(want.o, (i + 1) * row), "not finite");
        CHECK(memcmp(got.o, want.o, (size_t)((i + 1) * row) * sizeof(float)) == 0, "O changed");
        for (int64_t h = 0; h < spec.heads; h++)
            CHECK(memcmp(got.lse + h * sq, want.lse + h * sq, (size_t)(i + 1) * sizeof(float)) == 0,
                  "LSE of head %d changed", (int)h);
        mxt_attention_result_free(&want);
        mxt_attention_result_free(&got);
        mxt_attention_case_free(&c);
    }
}

/* One key: O is v itself. All codes under all scales, also those that BF16 dot products would
 * flush. */
static void test_decode(uint32_t isa, mxattn_dtype dtype, mxattn_block block)
{
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_case c;

    spec.batch = 1;
    spec.heads = spec.kv_heads = 256; /* head h: scale h */
    spec.seqlen_q[0] = spec.seqlen_k[0] = 1;
    spec.head_dim_v = 256;            /* dimension d: code d */
    spec.problem.softmax_scale = 0.0; /* P is 1 */
    spec.v = (mxattn_tags){dtype, block, MXATTN_RCEIL, 0};
    mxt_case("decode E%dM%d by %s scales on %s", dtype == MXATTN_E4M3 ? 4 : 5,
             dtype == MXATTN_E4M3 ? 3 : 2, block == MXATTN_BLOCK_ROW ? "hdim" : "seq",
             mxt_isa_name(isa));
    mxt_attention_case_make(&c, &spec);
    const mxattn_axis axis = block == MXATTN_BLOCK_ROW ? MXATTN_HDIM : MXATTN_SEQ;
    for (int i = 0; i < 256 * 256; i++)
        ((uint8_t *)c.v.data)[i] = (uint8_t)i;
    for (int i = 0; i < 256 * (axis == MXATTN_HDIM ? 8 : 256); i++)
        c.v.scales[axis].data[i] = (uint8_t)(i / (axis == MXATTN_HDIM ? 8 : 256));
    mxt_attention_result got = run(&c, isa);
    for (int i = 0; i < 256 * 256; i++) {
        const float want = mxa_fp8_decode((uint8_t)i, (uint8_t)(i / 256), dtype);

        CHECK(isnan(want) ? isnan(got.o[i]) : got.o[i] == want, "code %02x scale %d: %a, want %a",
              (unsigned)(i % 256), i / 256, (double)got.o[i], (double)want);
    }
    mxt_attention_result_free(&got);
    mxt_attention_case_free(&c);
}

/* causal is the window (-1, 0), and a window that reaches everything is no window: same bits. */
static void test_equal_windows(uint32_t isa)
{
    const int64_t windows[][2] = {{-1, 0}, {300, 0}, {299, 0}};
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_case c;

    spec.seqlen_q[0] = spec.seqlen_k[0] = 300;
    spec.problem.causal = 1;
    mxt_attention_case_make(&c, &spec);
    mxt_case("causal on %s", mxt_isa_name(isa));
    mxt_attention_result want = run(&c, isa);
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        mxt_case("window %d on %s", (int)windows[i][0], mxt_isa_name(isa));
        c.spec.problem.causal = 0;
        memcpy(c.spec.problem.window, windows[i], sizeof(windows[i]));
        mxt_attention_result got = run(&c, isa);
        mxt_check_bytes("O", got.o, want.o, sizeof(float), mxt_shape1(c.o_elements));
        mxt_check_bytes("LSE", got.lse, want.lse, sizeof(float), mxt_shape1(c.lse_elements));
        mxt_attention_result_free(&got);
    }
    mxt_attention_result_free(&want);
    mxt_attention_case_free(&c);
}

/* The last rows of a causal prefill, decoded alone. */
static void test_decode_step(uint32_t isa, mxattn_intermediates intermediates)
{
    const int64_t sk = 200;
    mxt_attention_spec spec = mxt_attention_spec_make();

    spec.seqlen_q[0] = spec.seqlen_k[0] = sk;
    spec.heads = 4;
    spec.problem.causal = 1;
    spec.problem.intermediates = intermediates;
    for (int64_t sq = 1; sq < 40; sq = sq * 3 + 1) {
        mxt_attention_case c;
        const int64_t row = spec.heads * spec.head_dim_v;

        mxt_case("decode of %d rows on %s", (int)sq, mxt_isa_name(isa));
        mxt_attention_case_make(&c, &spec);
        mxt_attention_result all = run(&c, isa);
        c.q.data = (uint8_t *)c.q.data + (sk - sq) * c.q.stride[1];
        c.q.scales[0].data += (sk - sq) * c.q.scales[0].stride_row;
        c.q.shape[1] = c.spec.seqlen_q[0] = c.spec.problem.max_seqlen_q = c.tokens_q = sq;
        c.o_elements = sq * row;
        c.lse_elements = sq * spec.heads;
        mxt_attention_result few = run(&c, isa);
        const double limit =
            intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_DECODE_E4M3 : MXT_DECODE_BF16;
        mxt_check_rms("O", few.o, all.o + (sk - sq) * row, mxt_shape1(c.o_elements), limit);
        mxt_attention_result_free(&all);
        mxt_attention_result_free(&few);
        mxt_attention_case_free(&c);
    }
}

/* The largest queries beside the smallest keys: no product is taken before the keys' scale. */
static void test_decode_far(uint32_t isa, int64_t sq)
{
    enum { DIMS = 96 };
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_result got, model;
    mxt_attention_case c;

    spec.seqlen_q[0] = sq;
    spec.seqlen_k[0] = 300;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = DIMS;
    spec.problem.softmax_scale = 1e-3;
    mxt_attention_case_make(&c, &spec);
    mxt_case("decode of %d rows of 2^127 on %s", (int)sq, mxt_isa_name(isa));
    memset(c.q.scales[MXATTN_HDIM].data, 246, (size_t)(sq * 2 * (DIMS / 32)));
    memset(c.k.scales[MXATTN_HDIM].data, 0, (size_t)(300 * 2 * (DIMS / 32)));
    got = run(&c, isa);
    model = mxt_attention_case_forward(&c, NULL, MXATTN_BACKEND_REF, MXATTN_PRECISION_MODEL);
    mxt_check_rms("O", got.o, model.o, mxt_shape1(c.o_elements), MXT_O_MODEL_SMALL);
    mxt_attention_result_free(&got);
    mxt_attention_result_free(&model);
    mxt_attention_case_free(&c);
}

/* A NaN of v in keys whose scores lie so far below others that their share of the row is 0: 0 times
 * it is NaN. */
static void test_decode_nan_below(uint32_t isa, int64_t sq)
{
    enum { DIMS = 32, KEYS = 600, LOW = 256 };
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_case c;

    spec.seqlen_q[0] = sq;
    spec.seqlen_k[0] = KEYS;
    spec.heads = spec.kv_heads = 1;
    spec.head_dim = DIMS;
    spec.problem.softmax_scale = 1;
    mxt_attention_case_make(&c, &spec);
    mxt_case("NaN far below, decode of %d rows on %s", (int)sq, mxt_isa_name(isa));
    memset(c.q.scales[MXATTN_HDIM].data, 127, (size_t)sq);
    memset(c.k.scales[MXATTN_HDIM].data, 127, KEYS);
    for (int64_t i = 0; i < sq; i++)
        set_token(&c.q, i, 0x38);
    for (int64_t i = 0; i < KEYS; i++)
        set_token(&c.k, i, i < LOW ? 0x00 : 0x54);
    set_token(&c.v, 0, MXA_FP8_NAN);
    mxt_attention_result got = run(&c, isa);
    for (int64_t i = 0; i < sq; i++) {
        CHECK(row_is_nan(got.o + i * DIMS, DIMS), "row %d hides it", (int)i);
        CHECK(!isnan(got.lse[i]), "LSE of row %d", (int)i);
    }
    mxt_attention_result_free(&got);
    mxt_attention_case_free(&c);
}

/* One plan and context in several threads at once, each with its own output and workspace. */
typedef struct concurrent_run {
    const mxattn_plan *plan;
    mxattn_attention_args args;
    mxattn_tensor o;
    mxattn_status status;
} concurrent_run;

static void *concurrent_main(void *arg)
{
    concurrent_run *r = arg;

    for (int i = 0; i < 5 && r->status == MXATTN_OK; i++)
        r->status = mxattn_attention_forward(r->plan, &r->args);
    return NULL;
}

/* Few queries, one head of which has a block that the fast decoder leaves to the slow one. `what`:
 * which. Both are close to the model, and the other head keeps its bits. */
static void test_decode_unusual(uint32_t isa, int64_t sq, int what)
{
    static const char *const names[] = {"no block",
                                        "a scale of 2^123",
                                        "a zero block under 2^-127",
                                        "a block under 2^-107",
                                        "a NaN that no row sees",
                                        "a scale of 2^67 and one of 2^37",
                                        "a scale of 2^68 and one of 2^38",
                                        "subnormal codes"};
    enum { KEY = 300, DIMS = 96, DIMS_V = 160 };
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxt_attention_result plain, got, model;
    mxt_attention_case c;

    spec.seqlen_q[0] = sq;
    spec.seqlen_k[0] = 600;
    spec.kv_heads = 2;
    spec.head_dim = DIMS;
    spec.head_dim_v = DIMS_V;
    spec.problem.window[0] = what == 4 ? 280 : -1;
    mxt_attention_case_make(&c, &spec);
    mxt_case("decode of %d rows beside %s on %s", (int)sq, names[what], mxt_isa_name(isa));
    plain = run(&c, isa);
    uint8_t *k = (uint8_t *)c.k.data + KEY * c.k.stride[1];
    uint8_t *v = (uint8_t *)c.v.data + KEY * c.v.stride[1];
    mxattn_scales *k_scales = &c.k.scales[MXATTN_HDIM], *v_scales = &c.v.scales[MXATTN_HDIM];
    if (what == 1) {
        memset(k, 0x81, 32);
        k_scales->data[KEY * 2 * (DIMS / 32)] = 250;
    } else if (what == 2) {
        memset(v + 32, 0, 32);
        v_scales->data[KEY * 2 * (DIMS_V / 32) + 1] = 0;
    } else if (what == 3) {
        memset(v + 32, 0x7e, 32);
        v_scales->data[KEY * 2 * (DIMS_V / 32) + 1] = 20;
    } else if (what == 4) {
        v[7] = 0x7f;
    } else if (what == 5 || what == 6) { /* the last that are usual everywhere, and the next */
        memset(k, 0x81, 32);
        k_scales->data[KEY * 2 * (DIMS / 32)] = (uint8_t)(194 + what - 5);
        memset(v, 1, 32);
        v_scales->data[KEY * 2 * (DIMS_V / 32)] = (uint8_t)(164 + what - 5);
    } else if (what == 7) {
        for (int key = 64; key < 128; key++) {
            for (int d = 0; d < DIMS; d++)
                k[(key - KEY) * c.k.stride[1] + d] &= 0x87;
            for (int d = 0; d < DIMS_V; d++)
                v[(key - KEY) * c.v.stride[1] + d] &= 0x87;
            memset(k_scales->data + key * 2 * (DIMS / 32), 132, DIMS / 32);
            memset(v_scales->data + key * 2 * (DIMS_V / 32), 135, DIMS_V / 32);
        }
    }
    got = run(&c, isa);
    model = mxt_attention_case_forward(&c, NULL, MXATTN_BACKEND_REF, MXATTN_PRECISION_MODEL);
    mxt_check_rms("O", got.o, model.o, mxt_shape3(sq, 2, DIMS_V), MXT_O_MODEL_SMALL);
    for (int64_t row = 0; row < sq; row++)
        mxt_check_bytes("O of the other head", got.o + (row * 2 + 1) * DIMS_V,
                        plain.o + (row * 2 + 1) * DIMS_V, sizeof(float), mxt_shape1(DIMS_V));
    mxt_attention_result_free(&plain);
    mxt_attention_result_free(&got);
    mxt_attention_result_free(&model);
    mxt_attention_case_free(&c);
}

static void test_concurrent(uint32_t isa)
{
    enum { RUNS = 4 };
    mxt_attention_spec spec = mxt_attention_spec_make();
    mxattn_context *context = mxt_context(isa, 3);
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxt_attention_case c;
    concurrent_run runs[RUNS];
    pthread_t threads[RUNS];

    spec.seqlen_q[0] = spec.seqlen_k[0] = 260;
    spec.heads = 4;
    mxt_attention_case_make(&c, &spec);
    mxt_case("%d calls at once on %s", (int)RUNS, mxt_isa_name(isa));
    mxt_attention_result want = run(&c, isa);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(context, &c.spec.problem, &plan));
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    for (int i = 0; i < RUNS; i++) {
        concurrent_run *r = &runs[i];

        memset(r, 0, sizeof(*r));
        r->plan = plan;
        mxattn_tensor_view(&r->o, MXATTN_F32, malloc((size_t)c.o_elements * sizeof(float)), 4,
                           want.o_tensor.shape);
        mxattn_attention_args_init(&r->args);
        r->args.q = &c.q;
        r->args.k = &c.k;
        r->args.v = &c.v;
        r->args.o = &r->o;
        r->args.workspace_bytes = (size_t)info.workspace_forward_bytes;
        r->args.workspace = aligned_alloc(256, (r->args.workspace_bytes + 255) / 256 * 256);
        pthread_create(&threads[i], NULL, concurrent_main, r);
    }
    for (int i = 0; i < RUNS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(runs[i].status == MXATTN_OK, "run %d: status %d", i, (int)runs[i].status);
        mxt_check_bytes("O", runs[i].o.data, want.o, sizeof(float), mxt_shape1(c.o_elements));
        free(runs[i].o.data);
        free(runs[i].args.workspace);
    }
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    mxt_attention_result_free(&want);
    mxt_attention_case_free(&c);
}

/* S = 65,536, 4 heads of 128: workspace of the plan, which is all that forward uses. */
static void test_memory(uint32_t isa)
{
    mxattn_attention_problem problem;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxattn_context *context = mxt_context(isa, 2);

    mxt_case("memory of a long sequence on %s", mxt_isa_name(isa));
    mxattn_attention_problem_init(&problem);
    problem.max_seqlen_q = problem.max_seqlen_k = 65536;
    problem.heads = problem.kv_heads = 4;
    problem.head_dim = 128;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_F32;
    problem.o = (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0};
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(context, &problem, &plan));
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    CHECK(info.workspace_forward_bytes < (int64_t)300 << 20, "workspace of %lld bytes",
          (long long)info.workspace_forward_bytes);
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
}

int main(void)
{
    static const int64_t rows[] = {1, 2, 3, 4, 7, 12};

    isa_count = mxt_isas(isas);
    for (int i = 0; i < isa_count; i++) {
        test_nan(isas[i], 150, 77);
        test_nan(isas[i], 7, 3);
        test_infinity(isas[i], 70, 33);
        test_infinity(isas[i], 7, 3);
        test_strict(isas[i], 0, 90, 90);
        test_strict(isas[i], 0, 60, 200);
        test_strict(isas[i], 1, 150, 40);
        test_decode(isas[i], MXATTN_E4M3, MXATTN_BLOCK_ROW);
        test_decode(isas[i], MXATTN_E4M3, MXATTN_BLOCK_COLUMN);
        test_decode(isas[i], MXATTN_E5M2, MXATTN_BLOCK_ROW);
        test_decode(isas[i], MXATTN_E5M2, MXATTN_BLOCK_COLUMN);
        test_equal_windows(isas[i]);
        for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++)
            for (int what = 0; what < 8; what++)
                test_decode_unusual(isas[i], rows[j], what);
        test_decode_far(isas[i], 1);
        test_decode_far(isas[i], 5);
        test_decode_nan_below(isas[i], 1);
        test_decode_nan_below(isas[i], 3);
        test_decode_nan_below(isas[i], 16);
        test_decode_step(isas[i], MXATTN_INTERMEDIATES_BF16);
        test_decode_step(isas[i], MXATTN_INTERMEDIATES_E4M3);
        test_concurrent(isas[i]);
        test_memory(isas[i]);
    }
    return mxt_finish();
}
