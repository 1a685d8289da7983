/* test_properties.c: what must hold between two runs, whatever the numbers are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"
#include "device_args.h"
#include "guard.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static void setup(mxt_attention *a, const mxt_config *config, mxt_kind kind)
{
    mxt_attention_configure(a, config);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, kind, 19);
}

static void both(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
}

/* Row blocks: every token has its own scales, and an integer row maximum leaves quantized P alone.
 * So the order of keys changes sums only. */
static void key_order(const mxt_config *config)
{
    enum { S = 150, D = 64 };
    double limit =
        config->intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_DECODE_E4M3 : MXT_DECODE_BF16;
    if (mxt_on_device(config->backend))
        limit = MXT_CUDA_MODEL_8K; /* accumulators of 14 bits see the order */
    mxt_attention a, b;
    mxt_attention_dense(&a, 1, S, S, 1, 1, D);
    a.problem.q.block = a.problem.k.block = a.problem.v.block = MXATTN_BLOCK_ROW;
    b = a;
    setup(&a, config, MXT_GAUSSIAN);
    setup(&b, config, MXT_GAUSSIAN);
    for (int64_t j = 0; j < S; j++) { /* 71 and 150 have no common factor */
        memcpy(b.k + j * D, a.k + j * 71 % S * D, D * sizeof(float));
        memcpy(b.v + j * D, a.v + j * 71 % S * D, D * sizeof(float));
    }
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&b));
    mxt_check_rms("o", b.o, a.o, mxt_shape3(S, 1, D), limit);
    mxt_check_lse(config, b.lse, a.lse, S);
    mxt_attention_free(&a);
    mxt_attention_free(&b);
}

/* A sequence in a jagged batch has the bits that it has alone. */
static void sequences_alone(const mxt_config *config)
{
    enum { BATCH = 4, HEADS = 4, KV = 2, D = 40 };
    static const int32_t cu_q[] = {0, 33, 34, 100, 161}, cu_k[] = {0, 50, 83, 83, 215};
    mxt_attention a;
    mxt_attention_jagged(&a, BATCH, cu_q, -1, cu_k, -1, HEADS, KV, D);
    a.problem.causal = 1;
    setup(&a, config, MXT_OUTLIER);
    both(&a);
    for (int b = 0; b < BATCH; b++) {
        const int64_t sq = cu_q[b + 1] - cu_q[b], sk = cu_k[b + 1] - cu_k[b];
        const int64_t from_q = (int64_t)cu_q[b] * HEADS * D, from_k = (int64_t)cu_k[b] * KV * D;
        mxt_attention one;
        mxt_attention_dense(&one, 1, sq, sk, HEADS, KV, D);
        one.problem.causal = 1;
        setup(&one, config, MXT_OUTLIER);
        memcpy(one.q, a.q + from_q, (size_t)mxt_size_q(&one) * sizeof(float));
        memcpy(one.dout, a.dout + from_q, (size_t)mxt_size_q(&one) * sizeof(float));
        memcpy(one.k, a.k + from_k, (size_t)mxt_size_k(&one) * sizeof(float));
        memcpy(one.v, a.v + from_k, (size_t)mxt_size_k(&one) * sizeof(float));
        both(&one);
        const mxt_shape shape_q = mxt_shape3(sq, HEADS, D), shape_k = mxt_shape3(sk, KV, D);
        mxt_check_bytes("o", a.o + from_q, one.o, sizeof(float), shape_q);
        mxt_check_bytes("dq", a.dq + from_q, one.dq, sizeof(float), shape_q);
        mxt_check_bytes("dk", a.dk + from_k, one.dk, sizeof(float), shape_k);
        mxt_check_bytes("dv", a.dv + from_k, one.dv, sizeof(float), shape_k);
        mxt_attention_free(&one);
    }
    mxt_attention_free(&a);
}

static void check_scaled(const char *what, const float *scaled, const float *plain, int64_t count,
                         int log2)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK(scaled[i] == ldexpf(plain[i], log2), "%s[%lld] is %.9g; want %.9g times 2^%d",
                   what, (long long)i, (double)scaled[i], (double)plain[i], log2))
            return;
}

/* v times 2^3, q times 2^5 under a scale of 2^-5, dO times 2^-4: exact powers of two come out. */
static void powers_of_two(const mxt_config *config)
{
    mxt_attention a, b;
    mxt_attention_dense(&a, 1, 70, 90, 2, 1, 64);
    a.problem.softmax_scale = 0.125;
    b = a;
    b.problem.softmax_scale = ldexp(0.125, -5);
    setup(&a, config, MXT_GAUSSIAN);
    setup(&b, config, MXT_GAUSSIAN);
    for (int64_t i = 0; i < mxt_size_q(&b); i++) {
        b.q[i] = ldexpf(b.q[i], 5);
        b.dout[i] = ldexpf(b.dout[i], -4);
    }
    for (int64_t i = 0; i < mxt_size_v(&b); i++)
        b.v[i] = ldexpf(b.v[i], 3);
    both(&a);
    both(&b);
    check_scaled("o", b.o, a.o, mxt_size_o(&a), 3);
    check_scaled("lse", b.lse, a.lse, mxt_size_lse(&a), 0);
    check_scaled("dv", b.dv, a.dv, mxt_size_v(&a), -4);
    check_scaled("dq", b.dq, a.dq, mxt_size_q(&a), 3 - 4 - 5);
    check_scaled("dk", b.dk, a.dk, mxt_size_k(&a), 3 - 4);
    mxt_attention_free(&a);
    mxt_attention_free(&b);
}

/* Grouped heads are the same kv head repeated; dK and dV are sums over the group. */
static void grouped_heads(const mxt_config *config)
{
    enum { S = 65, HEADS = 6, KV = 2, D = 32 };
    mxt_attention a, b;
    mxt_attention_dense(&a, 1, S, S, HEADS, KV, D);
    mxt_attention_dense(&b, 1, S, S, HEADS, HEADS, D);
    setup(&a, config, MXT_GAUSSIAN);
    setup(&b, config, MXT_GAUSSIAN);
    for (int64_t s = 0; s < S; s++)
        for (int64_t h = 0; h < HEADS; h++) {
            const int64_t g = h / (HEADS / KV);
            memcpy(mxt_row(&b, b.k, 0, s, h), mxt_row(&a, a.k, 0, s, g), D * sizeof(float));
            memcpy(mxt_row(&b, b.v, 0, s, h), mxt_row(&a, a.v, 0, s, g), D * sizeof(float));
        }
    both(&a);
    both(&b);
    mxt_check_bytes("o", a.o, b.o, sizeof(float), mxt_shape3(S, HEADS, D));
    const int tensor_cores =
        config->backend != MXATTN_BACKEND_REF && config->backend != MXATTN_BACKEND_CPU;
    if (tensor_cores) {
        mxt_check_rms("dq", a.dq, b.dq, mxt_shape3(S, HEADS, D), MXT_GROUP_SUMS);
    } else {
        mxt_check_bytes("dq", a.dq, b.dq, sizeof(float), mxt_shape3(S, HEADS, D));
    }
    float sum_k[S * KV * D] = {0}, sum_v[S * KV * D] = {0};
    for (int64_t s = 0; s < S; s++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t d = 0; d < D; d++) {
                const int64_t at = (s * KV + h / (HEADS / KV)) * D + d;
                sum_k[at] += mxt_row(&b, b.dk, 0, s, h)[d];
                sum_v[at] += mxt_row(&b, b.dv, 0, s, h)[d];
            }
    const double limit = tensor_cores ? MXT_GROUP_SUMS : MXT_EXACT_INPUT;
    mxt_check_rms("dk", a.dk, sum_k, mxt_shape3(S, KV, D), limit);
    mxt_check_rms("dv", a.dv, sum_v, mxt_shape3(S, KV, D), limit);
    mxt_attention_free(&a);
    mxt_attention_free(&b);
}

/* Runs every task, the last first, on this thread. */
static void backwards(void *user, int64_t count, mxattn_task task, void *arg)
{
    (void)user;
    for (int64_t i = count; i-- > 0;)
        task(arg, i);
}

static void any_number_of_threads(const mxt_config *config)
{
    static const int32_t cu[] = {0, 70, 71, 200};
    mxt_attention plain;
    mxt_attention_jagged(&plain, 3, cu, -1, cu, -1, 6, 2, 64);
    setup(&plain, config, MXT_GAUSSIAN);
    both(&plain);
    for (int threads = 1; threads <= 64; threads = threads * 3 + 1) {
        mxattn_context_options options;
        mxattn_context_options_init(&options);
        options.threads = threads;
        options.isa_mask = config->isa_mask ? config->isa_mask : MXATTN_ISA_ALL;
        options.parallel_for = backwards;
        mxattn_context *context = NULL;
        CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
        mxt_attention a;
        mxt_attention_jagged(&a, 3, cu, -1, cu, -1, 6, 2, 64);
        setup(&a, config, MXT_GAUSSIAN);
        a.context = context;
        both(&a);
        mxt_check_bytes("o", a.o, plain.o, sizeof(float), mxt_shape3(200, 6, 64));
        mxt_check_bytes("lse", a.lse, plain.lse, sizeof(float), mxt_shape1(1200));
        mxt_check_bytes("dq", a.dq, plain.dq, sizeof(float), mxt_shape3(200, 6, 64));
        mxt_check_bytes("dk", a.dk, plain.dk, sizeof(float), mxt_shape3(200, 2, 64));
        mxt_check_bytes("dv", a.dv, plain.dv, sizeof(float), mxt_shape3(200, 2, 64));
        mxt_attention_free(&a);
        mxattn_context_destroy(context);
    }
    mxt_attention_free(&plain);
}

/* An output that leaves as E4M3 is the FP32 output quantized. */
static void quantized_output(const mxt_config *config)
{
    static const mxattn_block blocks[] = {MXATTN_BLOCK_ROW, MXATTN_BLOCK_COLUMN,
                                          MXATTN_BLOCK_SQUARE};
    enum { S = 70, H = 2, D = 64, SCALES = S * H * D };
    for (int i = 0; i < 3; i++) {
        const mxattn_axis axis = blocks[i] == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM;
        mxt_attention wide, a;
        mxt_attention_dense(&wide, 1, S, S, H, H, D);
        mxt_attention_dense(&a, 1, S, S, H, H, D);
        const mxattn_tags tags = {.dtype = MXATTN_E4M3, .block = blocks[i]};
        a.problem.o = a.problem.dk = tags;
        setup(&wide, config, MXT_GAUSSIAN);
        setup(&a, config, MXT_GAUSSIAN);
        mxattn_tensor *outputs[] = {&a.tensor_o, &a.tensor_dk};
        for (int n = 0; n < 2; n++) {
            mxt_set((float *)outputs[n]->data, S * H * D, NAN);
            outputs[n]->tags = tags;
            outputs[n]->scales[axis].data = mxt_guard_end(SCALES);
        }
        both(&wide);
        both(&a);
        wide.tensor_o.tags = wide.tensor_dk.tags = tags;
        mxattn_tensor want_o = mxt_quantized(&wide, &wide.tensor_o, axis, MXATTN_LINEAR);
        mxattn_tensor want_dk = mxt_quantized(&wide, &wide.tensor_dk, axis, MXATTN_LINEAR);
        const size_t scales = axis == MXATTN_SEQ ? 3 * H * D : S * H * (D / 32);
        mxt_check_bytes("o", a.o, want_o.data, 1, mxt_shape3(S, H, D));
        mxt_check_bytes("dk", a.dk, want_dk.data, 1, mxt_shape3(S, H, D));
        mxt_check_bytes("scales of o", outputs[0]->scales[axis].data, want_o.scales[axis].data, 1,
                        mxt_shape1((int64_t)scales));
        mxt_check_bytes("scales of dk", outputs[1]->scales[axis].data, want_dk.scales[axis].data, 1,
                        mxt_shape1((int64_t)scales));
        for (int n = 0; n < 2; n++)
            mxt_guard_free(outputs[n]->scales[axis].data);
        mxt_quantized_free(&want_o);
        mxt_quantized_free(&want_dk);
        mxt_attention_free(&wide);
        mxt_attention_free(&a);
    }
}

/* dlse alone: dLSE_i/dx_ij = P_ij, so with dO = 0 and dLSE = 1 every row of dS sums to 1 and dV is
 * 0. */
static void gradient_of_lse(const mxt_config *config)
{
    enum { S = 40, D = 32 };
    mxt_attention a;
    mxt_attention_dense(&a, 1, S, S, 1, 1, D);
    a.with_dlse = 1;
    a.problem.softmax_scale = 0.25;
    setup(&a, config, MXT_EXACT);
    mxt_set(a.dout, mxt_size_o(&a), 0);
    mxt_set(a.dlse, S, 1);
    mxt_set(a.k, mxt_size_k(&a), 1); /* dq = scale * sum_j P_ij * 1 */
    both(&a);
    mxt_expect("dq", a.dq, mxt_size_q(&a), 0.25, mxt_config_rounding(config));
    mxt_expect("dv", a.dv, mxt_size_v(&a), 0, 0);
    mxt_attention_free(&a);
}

/* Flush-to-zero, denormals-are-zero and another rounding mode of the caller do not show. */
static void caller_arithmetic(const mxt_config *config)
{
    if (config->backend != MXATTN_BACKEND_CPU)
        return;
#if defined(__x86_64__)
    mxt_attention plain, flushed;
    mxt_attention_dense(&plain, 1, 40, 40, 2, 1, 32);
    mxt_attention_dense(&flushed, 1, 40, 40, 2, 1, 32);
    setup(&plain, config, MXT_GAUSSIAN);
    setup(&flushed, config, MXT_GAUSSIAN);
    for (int64_t i = 0; i < mxt_size_v(&plain); i++)
        plain.v[i] = ldexpf(plain.v[i], -128);
    memcpy(flushed.v, plain.v, sizeof(float) * (size_t)mxt_size_v(&plain));
    both(&plain);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0xE040); /* toward zero, too */
    both(&flushed);
    _mm_setcsr(before);
    const float *got[] = {flushed.o, flushed.lse, flushed.dq, flushed.dk, flushed.dv};
    const float *wanted[] = {plain.o, plain.lse, plain.dq, plain.dk, plain.dv};
    const int64_t sizes[] = {mxt_size_o(&plain), mxt_size_lse(&plain), mxt_size_q(&plain),
                             mxt_size_k(&plain), mxt_size_v(&plain)};
    for (int i = 0; i < 5; i++)
        mxt_check_bytes("in another arithmetic", got[i], wanted[i], sizeof(float),
                        mxt_shape1(sizes[i]));
    mxt_attention_free(&plain);
    mxt_attention_free(&flushed);
#endif
}

static const mxt_named_case cases[] = {
    {"the order of keys does not matter", key_order},
    {"a sequence has the bits it has alone", sequences_alone},
    {"powers of two come out", powers_of_two},
    {"grouped heads are repeated heads", grouped_heads},
    {"any number of threads", any_number_of_threads},
    {"a quantized output is the output quantized", quantized_output},
    {"the gradient of LSE", gradient_of_lse},
    {"the caller's floating-point modes do not show", caller_arithmetic},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
