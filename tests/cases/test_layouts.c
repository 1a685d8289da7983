/* test_layouts.c: offsets, dtypes and scale arrays on small inputs from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"
#include "guard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void setup(mxt_attention *a, const mxt_config *config)
{
    mxt_attention_configure(a, config);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, MXT_EXACT, 13);
}

static void both(mxt_attention *a)
{
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
}

/* Same bits in every output of two problems of one shape. */
static void check_same(const char *what, const mxt_attention *a, const mxt_attention *b)
{
    char text[5][96];
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    for (int i = 0; i < 5; i++)
        (void)snprintf(text[i], sizeof text[i], "%s: %s", what, names[i]);
    mxt_check_bytes(text[0], a->o, b->o, sizeof(float), mxt_shape1(mxt_size_o(a)));
    mxt_check_bytes(text[1], a->lse, b->lse, sizeof(float), mxt_shape1(mxt_size_lse(a)));
    mxt_check_bytes(text[2], a->dq, b->dq, sizeof(float), mxt_shape1(mxt_size_q(a)));
    mxt_check_bytes(text[3], a->dk, b->dk, sizeof(float), mxt_shape1(mxt_size_k(a)));
    mxt_check_bytes(text[4], a->dv, b->dv, sizeof(float), mxt_shape1(mxt_size_v(a)));
}

/* Moves a dense (B, S, H, D) tensor into memory of `elements` with other strides; gaps are NaN. */
static void restride(mxattn_tensor *tensor, float *memory, int64_t sb, int64_t ss, int64_t sh)
{
    const int64_t *shape = tensor->shape, *stride = tensor->stride;
    const float *from = tensor->data;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t s = 0; s < shape[1]; s++)
            for (int64_t h = 0; h < shape[2]; h++)
                memcpy(memory + b * sb + s * ss + h * sh,
                       from + b * stride[0] + s * stride[1] + h * stride[2],
                       (size_t)shape[3] * sizeof(float));
    tensor->data = memory;
    tensor->stride[0] = sb;
    tensor->stride[1] = ss;
    tensor->stride[2] = sh;
}

static void last_stride_must_be_one(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 4, 32, 1, 1, 32);
    setup(&a, config);
    a.tensor_v.stride[3] = 32;
    a.tensor_v.stride[1] = 1;
    CHECK_STATUS(MXATTN_LAYOUT, mxt_attention_forward(&a));
    mxt_attention_free(&a);
}

/* Batches 2^31 elements apart, in memory of which only the touched pages exist. */
static void offsets_beyond_2_31(const mxt_config *config)
{
    const int64_t apart = INT64_C(1) << 31;
    const size_t bytes = (size_t)(apart + 4 * 32) * sizeof(float);
    mxt_attention plain, a;
    mxt_attention_dense(&plain, 2, 4, 4, 1, 1, 32);
    mxt_attention_dense(&a, 2, 4, 4, 1, 1, 32);
    setup(&plain, config);
    setup(&a, config);
    both(&plain);
    mxattn_tensor *inputs[] = {&a.tensor_q, &a.tensor_k, &a.tensor_v, &a.tensor_dout};
    mxattn_tensor *outputs[] = {&a.tensor_o, &a.tensor_dq, &a.tensor_dk, &a.tensor_dv};
    const float *wanted[] = {plain.o, plain.dq, plain.dk, plain.dv};
    float *memory[8];
    for (int i = 0; i < 8; i++) {
        memory[i] = mxt_guard_sparse(bytes);
        if (!memory[i]) {
            mxt_skip("no address space for %zu bytes", bytes);
            return;
        }
        if (i < 4)
            restride(inputs[i], memory[i], apart, 32, 32);
        else
            restride(outputs[i - 4], memory[i], apart, 32, 32);
    }
    both(&a);
    for (int i = 0; i < 4; i++) {
        mxt_check_bytes("batch 0", memory[i + 4], wanted[i], sizeof(float), mxt_shape1(128));
        mxt_check_bytes("batch 1", memory[i + 4] + apart, wanted[i] + 128, sizeof(float),
                        mxt_shape1(128));
    }
    for (int i = 0; i < 8; i++)
        mxt_guard_sparse_free(memory[i], bytes);
    mxt_attention_free(&plain);
    mxt_attention_free(&a);
}

static void output_dtypes(const mxt_config *config)
{
    static const mxattn_dtype dtypes[] = {MXATTN_F32, MXATTN_F16, MXATTN_BF16};
    for (int i = 0; i < 3; i++) {
        mxt_attention a;
        mxt_attention_dense(&a, 1, 64, 2048, 1, 1, 32);
        a.problem.o.dtype = dtypes[i];
        a.problem.mode = MXATTN_INFERENCE;
        setup(&a, config);
        mxt_set(a.q, mxt_size_q(&a), 0);
        mxt_set(a.v, mxt_size_v(&a), 1);
        CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
        float o[64 * 32];
        mxt_to_f32(o, a.o, dtypes[i], 64 * 32);
        mxt_expect("o", o, 64 * 32, 1, MXT_EXACT_INPUT);
        mxt_attention_free(&a);
    }
}

static void larger_bounds(const mxt_config *config)
{
    static const int32_t cu[] = {0, 3, 12};
    mxt_attention exact, larger;
    mxt_attention_jagged(&exact, 2, cu, -1, cu, -1, 2, 1, 32);
    mxt_attention_jagged(&larger, 2, cu, -1, cu, -1, 2, 1, 32);
    larger.problem.max_seqlen_q = larger.problem.max_seqlen_k = 1000;
    larger.problem.batch = 7;
    larger.problem.total_q = larger.problem.total_k = 5000;
    setup(&exact, config);
    setup(&larger, config);
    both(&exact);
    both(&larger);
    check_same("max_seqlen 1000", &larger, &exact);
    mxt_attention_free(&exact);
    mxt_attention_free(&larger);
}

/* A sequence's bits depend neither on the bounds of the plan nor on the sequences beside it, in
 * particular not the order in which backward adds up dQ over its keys. */
static void long_sequence_alone(const mxt_config *config)
{
    enum { LONG = 600, HEADS = 2, DIM = 32 };
    static const int32_t cu[] = {0, LONG, LONG, 2 * LONG, 3 * LONG, 3 * LONG + 5, 4 * LONG};
    mxt_attention alone, larger, among;
    mxt_attention_jagged(&alone, 1, cu, -1, cu, -1, HEADS, 1, DIM);
    mxt_attention_jagged(&larger, 1, cu, -1, cu, -1, HEADS, 1, DIM);
    mxt_attention_jagged(&among, 6, cu, -1, cu, -1, HEADS, 1, DIM);
    larger.problem.batch = 40;
    larger.problem.total_q = larger.problem.total_k = 40000;
    larger.problem.max_seqlen_q = larger.problem.max_seqlen_k = 1000;
    /* On a GPU the order of dQ's additions is else that of the moment. */
    alone.problem.deterministic = larger.problem.deterministic = among.problem.deterministic = 1;
    setup(&alone, config);
    setup(&larger, config);
    setup(&among, config);
    mxt_attention_fill(&alone, MXT_GAUSSIAN, 7); /* of which sums are rounded */
    mxt_attention_fill(&larger, MXT_GAUSSIAN, 7);
    mxt_attention_fill(&among, MXT_GAUSSIAN, 8);
    memcpy(among.q, alone.q, sizeof(float) * (size_t)mxt_size_q(&alone));
    memcpy(among.k, alone.k, sizeof(float) * (size_t)mxt_size_k(&alone));
    memcpy(among.v, alone.v, sizeof(float) * (size_t)mxt_size_v(&alone));
    memcpy(among.dout, alone.dout, sizeof(float) * (size_t)mxt_size_o(&alone));
    both(&alone);
    both(&larger);
    both(&among);
    check_same("bounds of 40 sequences", &larger, &alone);
    const float *got[] = {among.o, among.dq, among.dk, among.dv};
    const float *wanted[] = {alone.o, alone.dq, alone.dk, alone.dv};
    for (int i = 0; i < 4; i++)
        mxt_check_bytes("among five others", got[i], wanted[i], sizeof(float),
                        mxt_shape1(LONG * (i < 2 ? HEADS : 1) * DIM));
    mxt_attention_free(&alone);
    mxt_attention_free(&larger);
    mxt_attention_free(&among);
}

enum { ARRANGEMENTS = 5 };
static const struct {
    mxattn_axis axis;
    mxattn_scale_layout layout;
} arrangements[ARRANGEMENTS] = {
    {MXATTN_HDIM, MXATTN_LINEAR}, {MXATTN_HDIM, MXATTN_COMPACT}, {MXATTN_HDIM, MXATTN_TILED},
    {MXATTN_SEQ, MXATTN_LINEAR},  {MXATTN_SEQ, MXATTN_TILED},
};

/* Replaces FP32 operands by E4M3 ones of the same tags. */
static void use_quantized(mxt_attention *a, mxattn_axis axis, mxattn_scale_layout layout)
{
    mxattn_tensor *operands[] = {&a->tensor_q, &a->tensor_k, &a->tensor_v, &a->tensor_dout};
    mxattn_tags *tags[] = {&a->problem.q, &a->problem.k, &a->problem.v, &a->problem.dout};
    for (int i = 0; i < 4; i++) {
        *operands[i] = mxt_quantized(a, operands[i], axis, layout);
        *tags[i] = operands[i]->tags;
    }
}

static void free_quantized(mxt_attention *a)
{
    mxt_quantized_free(&a->tensor_q);
    mxt_quantized_free(&a->tensor_k);
    mxt_quantized_free(&a->tensor_v);
    mxt_quantized_free(&a->tensor_dout);
}

/* Bytes of a tiled array that no element of tokens [0, length) has; dense, one sequence. */
static void spoil_padding(const mxattn_tensor *tensor, mxattn_axis axis, int64_t length)
{
    const int64_t heads = tensor->shape[2], head_dim = tensor->shape[3];
    const int64_t rows = axis == MXATTN_HDIM ? length : head_dim;
    const int64_t blocks = ((axis == MXATTN_HDIM ? head_dim : length) + 31) / 32;
    const int64_t row_tiles = (rows + 127) / 128, block_tiles = (blocks + 3) / 4;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t r = 0; r < row_tiles * 128; r++)
            for (int64_t k = 0; k < block_tiles * 4; k++)
                if (r >= rows || k >= blocks)
                    tensor->scales[axis]
                        .data[((h * row_tiles + r / 128) * block_tiles + k / 4) * 512 +
                              r % 32 * 16 + r % 128 / 32 * 4 + k % 4] = 0xFF;
}

/* The same quantized operands under every arrangement of their scales, padding bytes NaN, and as
 * FP32 quantized in the call: the same bits. */
static void scale_arrangements(const mxt_config *config)
{
    if (mxt_config_exact(config)) /* quantizes nothing in the call: other numbers, rightly */
        return;
    mxt_attention wide, a;
    mxt_attention_dense(&wide, 1, 70, 90, 2, 1, 40);
    setup(&wide, config);
    mxt_attention_fill(&wide, MXT_OUTLIER, 5);
    both(&wide);
    for (int i = 0; i < ARRANGEMENTS; i++) {
        const mxattn_axis axis = arrangements[i].axis;
        mxt_attention_dense(&a, 1, 70, 90, 2, 1, 40);
        setup(&a, config);
        mxt_attention_fill(&a, MXT_OUTLIER, 5);
        use_quantized(&a, axis, arrangements[i].layout);
        if (arrangements[i].layout == MXATTN_TILED) {
            spoil_padding(&a.tensor_q, axis, 70);
            spoil_padding(&a.tensor_k, axis, 90);
            spoil_padding(&a.tensor_v, axis, 90);
            spoil_padding(&a.tensor_dout, axis, 70);
        }
        both(&a);
        char what[32];
        (void)snprintf(what, sizeof what, "arrangement %d", i);
        check_same(what, &a, &wide);
        free_quantized(&a);
        mxt_attention_free(&a);
    }
    mxt_attention_free(&wide);
}

/* Every scale array counts: V's times 2^5 makes O exactly 32 times as large; q's times 2^3 is a
 * softmax scale 8 times as large. */
static void scales_count(const mxt_config *config)
{
    mxt_attention a;
    mxt_attention_dense(&a, 1, 33, 40, 1, 1, 64);
    setup(&a, config);
    use_quantized(&a, MXATTN_HDIM, MXATTN_LINEAR);
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    float before[33 * 64];
    memcpy(before, a.o, sizeof before);

    for (int64_t i = 0; i < 40 * 2; i++)
        a.tensor_v.scales[MXATTN_HDIM].data[i] += 5;
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    for (int i = 0; i < 33 * 64; i++)
        CHECK(a.o[i] == 32 * before[i], "o[%d] is %g; want 32 times %g", i, (double)a.o[i],
              (double)before[i]);

    memcpy(before, a.o, sizeof before);
    for (int64_t i = 0; i < 33 * 2; i++)
        a.tensor_q.scales[MXATTN_HDIM].data[i] -= 3;
    a.problem.softmax_scale = 8 / sqrt(64);
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
    mxt_check_bytes("o", a.o, before, sizeof(float), mxt_shape3(33, 1, 64));
    free_quantized(&a);
    mxt_attention_free(&a);
}

static const mxt_named_case cases[] = {
    {"B33 the last stride must be 1", last_stride_must_be_one},
    {"B38 offsets beyond 2^31", offsets_beyond_2_31},
    {"B08 B104 a long sequence, alone and among others", long_sequence_alone},
    {"B98 B103 arrangements of scales, NaN in their padding", scale_arrangements},
    {"B100 every scale counts", scales_count},
    {"B101 dtypes of O", output_dtypes},
    {"B104 every bound larger than the run", larger_bounds},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
