/* test_quantize.c: producers and small scales on small inputs from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"
#include "device_args.h"
#include "guard.h"

#include <math.h>
#include <string.h>

/* A matrix and its quantized form, scale arrays exactly as large as mxattn_scales_bytes says and
 * between guard pages. */
typedef struct matrix {
    int64_t rows, cols;
    float *wide;
    uint8_t *payload, *scales;
    int64_t scale_bytes;
    mxattn_tensor wide_tensor, quantized;
} matrix;

static matrix new_matrix(int64_t rows, int64_t cols, mxattn_block block, mxattn_scale_layout layout)
{
    const int64_t shape[2] = {rows, cols};
    const mxattn_axis axis = block == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM;
    matrix m = {.rows = rows, .cols = cols};
    m.wide = mxt_guard_end_aligned((size_t)(rows * cols) * sizeof(float), sizeof(float));
    m.payload = mxt_guard_end((size_t)(rows * cols));
    mxattn_tensor_view(&m.wide_tensor, MXATTN_F32, m.wide, 2, shape);
    mxattn_tensor_view(&m.quantized, MXATTN_E4M3, m.payload, 2, shape);
    m.quantized.tags.block = block;
    CHECK_STATUS(MXATTN_OK, mxattn_scales_bytes(&m.quantized.tags, axis, layout, 1, rows, NULL, 1,
                                                cols, &m.scale_bytes));
    m.scales = mxt_guard_end((size_t)m.scale_bytes);
    m.quantized.scales[axis].data = m.scales;
    m.quantized.scales[axis].layout = layout;
    return m;
}

static void free_matrix(matrix *m)
{
    mxt_guard_free(m->wide);
    mxt_guard_free(m->payload);
    mxt_guard_free(m->scales);
}

static void quantize(const mxt_config *config, matrix *m)
{
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = config->backend;
    args.wide = &m->wide_tensor;
    args.quantized = &m->quantized;
    const mxattn_status status = mxt_quantize(mxt_config_context(config), &args);
    mxt_leave_where_lacking(config->backend, status);
    CHECK_STATUS(MXATTN_OK, status);
}

/* Smallest power of two (biased) that brings amax to 448 or below. */
static int rceil(float amax)
{
    int exponent;
    const float mantissa = frexpf(amax, &exponent);
    return exponent - 9 + (mantissa > 0.875F) + 127;
}

static void columns_of_odd_heights(const mxt_config *config)
{
    static const int64_t sizes[][2] = {{384, 128}, {96, 64}, {70, 40}};
    for (int i = 0; i < 3; i++) {
        const int64_t cols = sizes[i][1];
        matrix m = new_matrix(sizes[i][0], cols, MXATTN_BLOCK_COLUMN, MXATTN_LINEAR);
        mxt_fill_f32(m.wide, m.rows, m.cols, MXT_OUTLIER, 23);
        quantize(config, &m);
        for (int64_t s = 0; s < m.rows; s += 32)
            for (int64_t d = 0; d < cols; d++) {
                float amax = 0;
                for (int64_t r = s; r < m.rows && r < s + 32; r++)
                    amax = fmaxf(amax, fabsf(m.wide[r * cols + d]));
                CHECK(m.scales[s / 32 * cols + d] == rceil(amax), "scale of rows %d.., column %d",
                      (int)s, (int)d);
            }
        free_matrix(&m);
    }
}

static void linear_scales_are_not_padded(const mxt_config *config)
{
    matrix m = new_matrix(1025, 512, MXATTN_BLOCK_ROW, MXATTN_LINEAR);
    CHECK(m.scale_bytes == 1025 * 16, "%d bytes of scales", (int)m.scale_bytes);
    mxt_fill_f32(m.wide, m.rows, m.cols, MXT_GAUSSIAN, 29);
    quantize(config, &m);
    float amax = 0;
    for (int64_t d = 480; d < 512; d++)
        amax = fmaxf(amax, fabsf(m.wide[1024 * 512 + d]));
    CHECK(m.scales[1025 * 16 - 1] == rceil(amax), "last scale");
    free_matrix(&m);
}

static void zeros_and_nearly_zeros(const mxt_config *config)
{
    matrix m = new_matrix(3, 32, MXATTN_BLOCK_ROW, MXATTN_LINEAR);
    mxt_set(m.wide, 32, 0);
    mxt_set(m.wide + 32, 32, -0.0F);
    mxt_set(m.wide + 64, 32, 0);
    m.wide[64 + 7] = 1e-11F;
    quantize(config, &m);
    for (int d = 0; d < 32; d++) {
        CHECK(m.payload[d] == 0x00, "zero %d is %02x", d, m.payload[d]);
        CHECK(m.payload[32 + d] == 0x80, "negative zero %d is %02x", d, m.payload[32 + d]);
        CHECK((m.payload[64 + d] != 0) == (d == 7), "1e-11 among zeros, %d is %02x", d,
              m.payload[64 + d]);
    }
    CHECK(m.scales[0] == 0 && m.scales[1] == 0, "scales of zeros: %d, %d", m.scales[0],
          m.scales[1]);
    CHECK(m.scales[2] == rceil(1e-11F), "scale of 1e-11: %d", m.scales[2]);
    free_matrix(&m);
}

/* One tile of 32 x 32 is large: each of its rows says so, and no other. */
static void square_scale_reaches_every_row(const mxt_config *config)
{
    matrix m = new_matrix(64, 64, MXATTN_BLOCK_SQUARE, MXATTN_LINEAR);
    mxt_set(m.wide, 64 * 64, 1);
    for (int64_t s = 0; s < 32; s++)
        mxt_set(m.wide + s * 64 + 32, 32, 448);
    quantize(config, &m);
    for (int64_t s = 0; s < 64; s++)
        for (int64_t k = 0; k < 2; k++)
            CHECK(m.scales[s * 2 + k] == (s < 32 && k == 1 ? 127 : 119), "scale (%d, %d) is %d",
                  (int)s, (int)k, m.scales[s * 2 + k]);
    free_matrix(&m);
}

/* 2^31 + 32,768 elements, of which only the last row exists. */
static void beyond_2_31_elements(const mxt_config *config)
{
    const int64_t rows = 3, cols = 32768, apart = INT64_C(1) << 30;
    matrix m = new_matrix(rows, cols, MXATTN_BLOCK_ROW, MXATTN_LINEAR);
    float *wide = mxt_guard_sparse((size_t)(2 * apart + cols) * sizeof(float));
    if (!wide) {
        mxt_skip("no address space for 8 GiB");
        free_matrix(&m);
        return;
    }
    mxt_set(wide + 2 * apart, cols, 448);
    m.wide_tensor.data = wide;
    m.wide_tensor.stride[0] = apart;
    quantize(config, &m);
    for (int64_t d = 0; d < cols; d++)
        CHECK(m.payload[d] == 0 && m.payload[2 * cols + d] == 0x7E, "column %d: %02x, %02x", (int)d,
              m.payload[d], m.payload[2 * cols + d]);
    for (int64_t k = 0; k < cols / 32; k++)
        CHECK(m.scales[2 * cols / 32 + k] == 127, "scale %d", (int)k);
    mxt_guard_sparse_free(wide, (size_t)(2 * apart + cols) * sizeof(float));
    free_matrix(&m);
}

/* E4M3 operands that hold one code and one scale byte. */
static mxattn_tensor constant_operand(const mxattn_tensor *like, uint8_t code, uint8_t scale,
                                      int64_t heads)
{
    const int64_t rows = like->shape[0] * like->shape[1];
    const int64_t count = rows * heads * like->shape[3];
    mxattn_tensor t;
    mxattn_tensor_view(&t, MXATTN_E4M3, mxt_guard_end((size_t)count), 4, like->shape);
    t.tags.block = MXATTN_BLOCK_ROW;
    const size_t scales = (size_t)(rows * heads * ((like->shape[3] + 31) / 32));
    t.scales[MXATTN_HDIM].data = mxt_guard_end(scales);
    memset(t.data, code, (size_t)count);
    memset(t.scales[MXATTN_HDIM].data, scale, scales);
    return t;
}

/* Scale bytes that FP16 holds as subnormals, and products of two that it cannot hold at all. */
static void small_scales(const mxt_config *config)
{
    const mxattn_tags e4m3 = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW};
    for (int byte = 0; byte <= 113; byte += byte < 100 ? 50 : 1)
        for (int64_t queries = 1; queries <= 64; queries += 63) {
            mxt_attention a;
            mxt_attention_dense(&a, 1, queries, 40, 1, 1, 32);
            a.problem.mode = MXATTN_INFERENCE;
            a.problem.softmax_scale = byte < 100 ? 0 : ldexp(1, 2 * (127 - byte));
            a.problem.q = a.problem.k = a.problem.v = e4m3;
            mxt_attention_configure(&a, config);
            mxt_attention_alloc(&a);
            a.tensor_q = constant_operand(&a.tensor_q, 0x38, (uint8_t)byte, 1);
            a.tensor_k = constant_operand(&a.tensor_k, 0x38, (uint8_t)byte, 1);
            a.tensor_v = constant_operand(&a.tensor_v, 0x38, (uint8_t)byte, 1);
            CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
            for (int64_t i = 0; i < queries * 32; i++)
                a.o[i] = ldexpf(a.o[i], 127 - byte);
            const double logit = byte < 100 ? 0 : 32;
            mxt_expect("o times 2^(127 - byte)", a.o, queries * 32, 1,
                       byte < 100 ? MXT_EXACT_INPUT : mxt_config_rounding(config));
            mxt_expect("lse", a.lse, queries, logit + log(40), MXT_LSE_RELATIVE);
            mxt_quantized_free(&a.tensor_q);
            mxt_quantized_free(&a.tensor_k);
            mxt_quantized_free(&a.tensor_v);
            mxt_attention_free(&a);
        }
}

static const mxt_named_case cases[] = {
    {"B18 column blocks of any height", columns_of_odd_heights},
    {"B19 linear scales are not padded", linear_scales_are_not_padded},
    {"B41 beyond 2^31 elements", beyond_2_31_elements},
    {"B62 zeros and nearly zeros", zeros_and_nearly_zeros},
    {"B66 B67 B82 small scales, and products of two", small_scales},
    {"B102 a square scale reaches every row", square_scale_reaches_every_row},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
