/* test_calls.c: cases from public reports about how a library is called: layouts, empty batches,
 * offsets, sizes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"
#include "device_args.h"
#include "guard.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void setup(mxt_attention *a, const mxt_config *config, mxt_kind kind)
{
    mxt_attention_configure(a, config);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, kind, 1);
}

static void both(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
}

/* B12, B107: batches and sequences of nothing. Nothing is divided by a size, keys without queries
 * get gradients of 0, and so does the sink of no row. */
static void nothing_to_do(const mxt_config *config)
{
    static const int32_t none[] = {0, 0, 0}, some[] = {0, 40, 64};
    static const int64_t shapes[][3] = {{2, 0, 4096}, {0, 64, 4096}, {0, 8, 16}, {2, 5, 0}};
    mxt_attention a;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        mxt_attention_dense(&a, shapes[i][0], shapes[i][1], shapes[i][2], 10, 5, 64);
        a.problem.has_sink = 1;
        setup(&a, config, MXT_EXACT);
        both(&a);
        mxt_expect("dk", a.dk, mxt_size_k(&a), 0, 0);
        mxt_expect("dv", a.dv, mxt_size_v(&a), 0, 0);
        mxt_expect("o", a.o, mxt_size_o(&a), 0, 0);
        mxt_expect("dsink", a.dsink, 10, 0, 0);
        mxt_attention_free(&a);
    }
    mxt_attention_jagged(&a, 2, none, 3, some, 64, 2, 1, 32);
    setup(&a, config, MXT_EXACT);
    both(&a);
    mxt_expect("o of rows in no sequence", a.o, mxt_size_o(&a), 0, 0);
    mxt_expect("dq of rows in no sequence", a.dq, mxt_size_q(&a), 0, 0);
    mxt_expect("dk without queries", a.dk, mxt_size_k(&a), 0, 0);
    mxt_expect("dv without queries", a.dv, mxt_size_v(&a), 0, 0);
    mxt_attention_free(&a);
    mxt_attention_jagged(&a, 0, none, 0, none, 0, 2, 1, 32);
    a.problem.has_sink = 1;
    setup(&a, config, MXT_EXACT);
    both(&a);
    mxt_expect("dsink", a.dsink, 2, 0, 0);
    mxt_attention_free(&a);
}

/* B107: batch 0 with NULL data pointers, and no offsets at all. */
static void null_data(const mxt_config *config)
{
    const int64_t q[4] = {0, 8, 10, 64}, k[4] = {0, 16, 10, 64};
    mxt_host_only(config);
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_tensor of_q, of_k, o;
    mxattn_attention_problem_init(&problem);
    problem.backend = config->backend;
    problem.precision = config->precision;
    mxattn_tensor_view(&of_q, MXATTN_E4M3, NULL, 4, q);
    mxattn_tensor_view(&of_k, MXATTN_E4M3, NULL, 4, k);
    mxattn_tensor_view(&o, MXATTN_BF16, NULL, 4, q);
    of_q.tags.block = of_k.tags.block = MXATTN_BLOCK_SQUARE;
    mxattn_attention_args_init(&args);
    args.q = &of_q;
    args.k = args.v = &of_k;
    args.o = &o;
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward_once(NULL, &problem, &args));
    problem.format = MXATTN_JAGGED;
    args.batch = 0;
    of_q.ndim = of_k.ndim = o.ndim = 3;
    for (int i = 0; i < 3; i++) {
        of_q.shape[i] = q[i + 1] * (i != 0);
        of_k.shape[i] = k[i + 1] * (i != 0);
        o.shape[i] = q[i + 1] * (i != 0);
    }
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward_once(NULL, &problem, &args));
}

/* An MXFP8 operand without the scale arrays that mxattn_scales_bytes says to be of 0 bytes. */
static mxattn_tensor without_scales(const mxt_attention *a, const mxattn_tensor *wide)
{
    mxattn_tensor quantized = mxt_quantized(a, wide, MXATTN_HDIM, MXATTN_LINEAR);
    mxt_guard_free(quantized.scales[MXATTN_HDIM].data);
    quantized.scales[MXATTN_HDIM].data = NULL;
    return quantized;
}

/* Rows with storage of which no sequence has any: no scale exists, of inputs and of outputs. */
static void no_scales(const mxt_config *config)
{
    static const int32_t none[] = {0, 0, 0}, some[] = {0, 40, 64};
    if (config->precision == MXATTN_PRECISION_F64)
        return; /* takes wide operands alone */
    for (int with_keys = 0; with_keys < 2; with_keys++) {
        mxt_attention a;
        mxt_attention_jagged(&a, 2, none, 3, with_keys ? some : none, 64, 2, 1, 64);
        setup(&a, config, MXT_EXACT);
        a.host_lengths = 1; /* without them a device's call cannot tell */
        mxattn_tensor *const operands[] = {&a.tensor_q, &a.tensor_dout, &a.tensor_k, &a.tensor_v};
        const mxattn_tensor wide[] = {a.tensor_q, a.tensor_dout, a.tensor_k, a.tensor_v};
        mxattn_tensor codes[4];
        for (int i = 0; i < 4; i++)
            codes[i] = i < 2 || !with_keys
                           ? without_scales(&a, operands[i])
                           : mxt_quantized(&a, operands[i], MXATTN_HDIM, MXATTN_LINEAR);
        for (int i = 0; i < 4; i++)
            *operands[i] = codes[i];
        a.problem.q.dtype = a.problem.k.dtype = a.problem.v.dtype = MXATTN_E4M3;
        a.problem.dout = a.tensor_dout.tags;
        both(&a);
        mxt_expect("o", a.o, mxt_size_o(&a), 0, 0);
        mxt_expect("dq", a.dq, mxt_size_q(&a), 0, 0);
        mxt_expect("dk", a.dk, mxt_size_k(&a), 0, 0);
        for (int i = 0; i < 4; i++) {
            *operands[i] = wide[i];
            mxt_quantized_free(&codes[i]);
        }
        mxt_attention_free(&a);
    }
}

/* B13: O without LSE, in a batch with an empty sequence; LSE alone is refused, not computed half.
 */
static void o_only(const mxt_config *config)
{
    static const int32_t cu_q[] = {0, 2, 2, 5}, cu_k[] = {0, 3, 5, 5};
    mxt_attention a;
    mxt_attention_jagged(&a, 3, cu_q, -1, cu_k, -1, 2, 1, 32);
    setup(&a, config, MXT_EXACT);
    float *o = malloc((size_t)mxt_size_o(&a) * sizeof *o);
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    memcpy(o, a.o, (size_t)mxt_size_o(&a) * sizeof *o);
    a.tensor_lse.data = NULL; /* the harness then passes no LSE */
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    mxt_check_bytes("o without lse", a.o, o, sizeof *o, mxt_shape3(5, 2, 32));
    mxt_expect("o without keys", mxt_row(&a, a.o, 0, 2, 0), 3 * 2 * 32, 0, 0);
    free(o);
    mxt_attention_free(&a);
}

/* Where element (b, s, h, 0) of a (B, S, H, D) tensor lies. */
typedef struct {
    const char *name;
    int64_t b, s, h, offset;
} placement;

/* The tensor becomes a view of new memory, NaN apart from the elements. Returns the memory. */
static float *place(mxattn_tensor *tensor, const placement *at, size_t elements)
{
    float *memory = mxt_guard_end_aligned(elements * sizeof *memory, sizeof *memory);
    const float *from = tensor->data;
    float *to = memory + at->offset;
    const int64_t *n = tensor->shape;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t s = 0; s < n[1]; s++)
            for (int64_t h = 0; h < n[2]; h++)
                memcpy(to + b * at->b + s * at->s + h * at->h,
                       from + ((b * n[1] + s) * n[2] + h) * n[3], (size_t)n[3] * sizeof *from);
    tensor->data = to;
    tensor->stride[0] = at->b;
    tensor->stride[1] = at->s;
    tensor->stride[2] = at->h;
    return memory;
}

/* Elements of a placed output equal those of the contiguous one, and the gaps are still NaN. */
static void compare(const char *what, const mxattn_tensor *tensor, const float *memory,
                    size_t elements, const float *want)
{
    const int64_t *n = tensor->shape, *stride = tensor->stride;
    const float *got = tensor->data;
    size_t numbers = 0;
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
        const int64_t d = i % n[3], h = i / n[3] % n[2], s = i / n[3] / n[2] % n[1];
        const int64_t b = i / n[3] / n[2] / n[1];
        const float x = got[b * stride[0] + s * stride[1] + h * stride[2] + d];
        if (!CHECK(memcmp(&x, &want[i], sizeof x) == 0, "%s[%lld %lld %lld %lld] is %g, want %g",
                   what, (long long)b, (long long)s, (long long)h, (long long)d, (double)x,
                   (double)want[i]))
            return;
    }
    for (size_t i = 0; i < elements; i++)
        numbers += isnan(memory[i]) ? 0 : 1;
    CHECK(numbers == (size_t)(n[0] * n[1] * n[2] * n[3]), "%s: gaps were written", what);
}

/* B32, B34: the same data as contiguous (B, S, H, D), as views of (B, H, S, D) and (S, B, H, D),
 * inside packed qkv, and with a token stride that leaves a gap. */
static void views(const mxt_config *config)
{
    enum { B = 2, S = 37, H = 3, D = 32, N = B * S * H * D };
    static const placement places[] = {
        {"bshd", S * H * D, H * D, D, 0},
        {"bhsd", H * S * D, D, S * D, 0},
        {"sbhd", H * D, B * H * D, D, 0},
        {"packed qkv", S * 3 * H * D, 3 * H * D, D, H * D},
        {"gap", S * (H * D + 32), H * D + 32, D, 0},
    };
    mxt_attention a;
    mxt_attention_dense(&a, B, S, S, H, H, D);
    a.problem.causal = 1;
    setup(&a, config, MXT_EXACT);
    both(&a);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        mxt_attention view = a;
        mxattn_tensor *const inputs[] = {&view.tensor_q, &view.tensor_k, &view.tensor_v,
                                         &view.tensor_dout};
        mxattn_tensor *const outputs[] = {&view.tensor_o, &view.tensor_dq, &view.tensor_dk,
                                          &view.tensor_dv};
        const char *const names[] = {"o", "dq", "dk", "dv"};
        float *memory[8], *want[4];
        const size_t elements = (size_t)3 * N;
        view.saved = NULL;
        for (int t = 0; t < 4; t++)
            memory[t] = place(inputs[t], &places[i], elements);
        for (int t = 0; t < 4; t++) {
            want[t] = malloc(N * sizeof(float));
            memcpy(want[t], outputs[t]->data, N * sizeof(float));
            memory[4 + t] = place(outputs[t], &places[i], elements);
            mxt_fill_nan(memory[4 + t], elements * sizeof(float));
        }
        both(&view);
        for (int t = 0; t < 4; t++) {
            compare(names[t], outputs[t], memory[4 + t], elements, want[t]);
            memcpy(t == 0 ? a.o : t == 1 ? a.dq : t == 2 ? a.dk : a.dv, want[t], N * sizeof(float));
            free(want[t]);
        }
        for (int t = 0; t < 8; t++)
            mxt_guard_free(memory[t]);
        mxt_guard_free(view.saved);
    }
    mxt_attention_free(&a);
}

/* B35: backward with LSE as (H, T) and as (T, H), without saved: the same gradients, not zero. */
static void lse_layouts(const mxt_config *config)
{
    static const int32_t cu[] = {0, 33, 40, 75};
    mxt_attention a;
    mxt_attention_jagged(&a, 3, cu, -1, cu, -1, 4, 2, 32);
    a.without_saved = 1;
    setup(&a, config, MXT_EXACT);
    both(&a);
    float *dq = malloc((size_t)mxt_size_q(&a) * sizeof *dq);
    memcpy(dq, a.dq, (size_t)mxt_size_q(&a) * sizeof *dq);
    a.tensor_lse.stride[0] = 1;
    a.tensor_lse.stride[1] = 4;
    both(&a);
    mxt_check_bytes("dq", a.dq, dq, sizeof *dq, mxt_shape3(75, 4, 32));
    double sum = 0;
    for (int64_t i = 0; i < mxt_size_q(&a); i++)
        sum += fabs((double)dq[i]);
    CHECK(sum > 1, "dq adds up to %g", sum);
    free(dq);
    mxt_attention_free(&a);
}

/* B36, B37: offsets at the very end of a mapping; more values than the last offset; offsets that
 * are garbage are refused before they size anything. */
static void offsets(const mxt_config *config)
{
    int32_t *cu = mxt_guard_end(4 * sizeof *cu);
    memcpy(cu, (const int32_t[]){0, 4, 4, 9}, 4 * sizeof *cu);
    mxt_attention a;
    mxt_attention_jagged(&a, 3, cu, -1, cu, -1, 2, 1, 32);
    setup(&a, config, MXT_EXACT);
    both(&a);
    mxt_attention_free(&a);
    mxt_guard_free(cu);

    static const int32_t nothing[] = {0, 0};
    mxt_attention_jagged(&a, 1, nothing, 4, nothing, 4, 2, 1, 32);
    setup(&a, config, MXT_EXACT);
    both(&a);
    mxt_expect("o of values past the last offset", a.o, mxt_size_o(&a), 0, 0);
    if (mxt_on_device(config->backend)) {
        mxt_attention_free(&a);
        return; /* garbage offsets: cuda/test_forward_graph.c, B106 */
    }
    static const int32_t garbage[][2] = {{0, -5}, {0, INT32_MAX}, {1, 4}, {INT32_MIN, 4}};
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &a.tensor_q;
    args.k = &a.tensor_k;
    args.v = &a.tensor_v;
    args.o = &a.tensor_o;
    args.batch = 1;
    args.cu_seqlens_q = nothing;
    mxattn_attention_problem problem = a.problem;
    problem.max_seqlen_q = problem.max_seqlen_k = 0;
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        args.cu_seqlens_k = garbage[i];
        CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_attention_forward_once(NULL, &problem, &args));
    }
    mxt_attention_free(&a);
}

/* B44: very many sequences, very many heads. Each row sees its own key, so that O is V. */
static void many_of_one(const mxt_config *config)
{
    const int fast = config->backend == MXATTN_BACKEND_CPU;
    const int64_t many = fast ? 65536 : 5000;
    for (int heads = 0; heads < 2; heads++) {
        mxt_attention a;
        mxt_attention_dense(&a, heads ? 1 : many, 1, 1, heads ? many : 1, heads ? many : 1, 32);
        setup(&a, config, MXT_EXACT);
        CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
        mxt_check_rms("o", a.o, a.v, mxt_shape3(many, 1, 32), mxt_config_rounding(config));
        mxt_attention_free(&a);
    }
}

/* B104: max_seqlen larger than needed gives the same bits; smaller is refused. */
static void max_seqlen(const mxt_config *config)
{
    static const int32_t cu[] = {0, 3, 12};
    mxt_attention a;
    mxt_attention_jagged(&a, 2, cu, -1, cu, -1, 2, 1, 64);
    setup(&a, config, MXT_GAUSSIAN);
    both(&a);
    const size_t bytes = (size_t)mxt_size_o(&a) * sizeof(float);
    float *o = malloc(bytes), *dq = malloc(bytes);
    memcpy(o, a.o, bytes);
    memcpy(dq, a.dq, bytes);
    a.problem.max_seqlen_q = a.problem.max_seqlen_k = 1000;
    both(&a);
    mxt_check_bytes("o", a.o, o, sizeof *o, mxt_shape3(12, 2, 64));
    mxt_check_bytes("dq", a.dq, dq, sizeof *dq, mxt_shape3(12, 2, 64));
    a.problem.max_seqlen_k = 8;
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxt_attention_forward(&a));
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxt_attention_backward(&a));
    free(o);
    free(dq);
    mxt_attention_free(&a);
}

/* B46, B49, B76: what is refused when the plan is made. */
static void refused_by_the_plan(const mxt_config *config)
{
    static const int64_t ratios[][2] = {{3, 2}, {33, 2}, {4, 0}};
    mxt_attention a;
    for (int i = 0; i < 3; i++) {
        mxt_attention_dense(&a, 1, 8, 8, ratios[i][0], ratios[i][1], 32);
        mxt_attention_configure(&a, config);
        CHECK_STATUS(MXATTN_SHAPE, mxt_attention_forward(&a));
    }
    mxt_attention_dense(&a, 1, 8, 8, 1, 1, 32);
    mxt_attention_configure(&a, config);
    a.problem.window[0] = -8;
    CHECK_STATUS(MXATTN_ARGUMENT, mxt_attention_forward(&a));
    mxt_attention_dense(&a, 1, 8, 8, 1, 1, 36);
    mxt_attention_configure(&a, config);
    if (config->backend != MXATTN_BACKEND_REF)
        CHECK_STATUS(MXATTN_UNSUPPORTED, mxt_attention_forward(&a));
}

/* B40, B44: sizes of very large problems do not wrap. */
static void large_plans(const mxt_config *config)
{
    mxt_attention a;
    int64_t before = 0;
    for (int log2 = 10; log2 <= 22; log2 += 4) {
        mxattn_plan *plan = NULL;
        mxattn_plan_info info;
        mxattn_plan_info_init(&info);
        mxt_attention_dense(&a, 1, INT64_C(1) << log2, INT64_C(1) << log2, 64, 64, 128);
        mxt_attention_configure(&a, config);
        a.problem.causal = 1;
        const mxattn_status status = mxattn_plan_create(NULL, &a.problem, &plan);
        mxt_leave_where_lacking(config->backend, status);
        CHECK_STATUS(MXATTN_OK, status);
        CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
        CHECK(info.workspace_forward_bytes >= 0 && info.workspace_backward_bytes >= before &&
                  info.saved_bytes >= (INT64_C(1) << log2) * 64 * 4,
              "S 2^%d: workspace %lld and %lld, saved %lld", log2,
              (long long)info.workspace_forward_bytes, (long long)info.workspace_backward_bytes,
              (long long)info.saved_bytes);
        before = info.workspace_backward_bytes;
        mxattn_plan_destroy(plan);
    }
}

int main(int argc, char **argv)
{
    static const mxt_named_case cases[] = {
        {"B12 batches and sequences of nothing", nothing_to_do},
        {"B12 no scales where no token is used", no_scales},
        {"B13 O without LSE", o_only},
        {"B32 views of every layout", views},
        {"B35 LSE in both orders", lse_layouts},
        {"B36 offsets at the end of a page, and garbage", offsets},
        {"B40 sizes of large plans", large_plans},
        {"B44 very many sequences and heads", many_of_one},
        {"B46 what a plan refuses", refused_by_the_plan},
        {"B104 max_seqlen", max_seqlen},
        {"B107 NULL data of an empty batch", null_data},
    };
    return mxt_run_cases(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
