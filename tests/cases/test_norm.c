/* test_norm.c: public reports about RMSNorm with quantization, one case each; and one call that
 * rounds to BF16 beside the two calls it stands for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fill.h"
#include "guard.h"
#include "matrix.h"
#include "mx/element.h"
#include "mxattn/mxattn.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static mxattn_backend backend;
static const char *backend_name;

/* y and its parts for one x of (rows, dims), all in one. */
typedef struct result {
    uint8_t *payload, *hdim, *seq;
    float *wide, *rstd;
} result;

static result result_make(int64_t rows, int64_t dims)
{
    const int64_t blocks = (dims + 31) / 32;
    result r = {.payload = malloc((size_t)(rows * dims)),
                .hdim = malloc((size_t)(rows * blocks)),
                .seq = malloc((size_t)((rows + 31) / 32 * dims)),
                .wide = malloc((size_t)(rows * dims) * sizeof(float)),
                .rstd = malloc((size_t)rows * sizeof(float))};
    return r;
}

static void result_free(result *r)
{
    free(r->payload);
    free(r->hdim);
    free(r->seq);
    free(r->wide);
    free(r->rstd);
}

static void norm(const mxattn_tensor *x, const float *weight, double eps, mxattn_block block,
                 result *r)
{
    mxattn_tensor y, wide;
    mxattn_rmsnorm_quantize_args args;
    size_t bytes = 0;
    mxattn_tensor_view(&y, MXATTN_E4M3, r->payload, 2, x->shape);
    y.tags.block = block;
    y.scales[MXATTN_HDIM].data = r->hdim;
    y.scales[MXATTN_SEQ].data = block == MXATTN_BLOCK_SQUARE ? r->seq : NULL;
    mxattn_tensor_view(&wide, MXATTN_F32, r->wide, 2, x->shape);
    mxattn_rmsnorm_quantize_args_init(&args);
    args.backend = backend;
    args.x = x;
    args.weight = weight;
    args.eps = eps;
    args.y = &y;
    args.y_wide = &wide;
    args.rstd = r->rstd;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize_workspace(NULL, &args, &bytes));
    args.workspace = aligned_alloc(256, (bytes + 511) / 256 * 256);
    args.workspace_bytes = bytes;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize(NULL, &args));
    free(args.workspace);
}

static mxattn_tensor matrix(mxattn_dtype dtype, void *data, int64_t rows, int64_t dims)
{
    mxattn_tensor x;
    mxattn_tensor_view(&x, dtype, data, 2, (int64_t[]){rows, dims});
    return x;
}

/* A row stride beyond 2^28 elements: offsets pass 2^31. */
static void b42(void)
{
    enum { ROWS = 9, DIMS = 64 };
    const int64_t stride = INT64_C(1) << 28;
    const size_t bytes = (size_t)(stride * ROWS) * 2;
    uint16_t *memory = mxt_guard_sparse(bytes);
    mxt_case("B42: row stride 2^28, %s", backend_name);
    if (!memory) {
        mxt_skip("no address space for %zu bytes", bytes);
        return;
    }
    result apart = result_make(ROWS, DIMS), together = result_make(ROWS, DIMS);
    uint16_t dense[ROWS * DIMS];
    float values[ROWS * DIMS];
    mxt_fill_f32(values, ROWS, DIMS, MXT_GAUSSIAN, 42);
    for (int64_t i = 0; i < (int64_t)ROWS * DIMS; i++) {
        dense[i] = mxa_bf16_from_f32(values[i]);
        memory[i / DIMS * stride + i % DIMS] = dense[i];
    }
    mxattn_tensor x = matrix(MXATTN_BF16, memory, ROWS, DIMS);
    x.stride[0] = stride;
    norm(&x, NULL, 1e-6, MXATTN_BLOCK_SQUARE, &apart);
    x = matrix(MXATTN_BF16, dense, ROWS, DIMS);
    norm(&x, NULL, 1e-6, MXATTN_BLOCK_SQUARE, &together);
    CHECK(!memcmp(apart.payload, together.payload, sizeof dense / 2), "payload differs");
    CHECK(!memcmp(apart.hdim, together.hdim, ROWS * DIMS / 32), "scales differ");
    result_free(&apart);
    result_free(&together);
    mxt_guard_sparse_free(memory, bytes);
}

/* eps is added to the mean of squares as they are, whatever the row is scaled by. */
static void b92(void)
{
    enum { DIMS = 1024 };
    float x[2 * DIMS] = {100};
    result r = result_make(2, DIMS);
    const mxattn_tensor tensor = matrix(MXATTN_F32, x, 2, DIMS);
    mxt_case("B92: eps, and a row of zeros, %s", backend_name);
    norm(&tensor, NULL, 1e-3, MXATTN_BLOCK_ROW, &r);
    const double rms = sqrt(100.0 * 100.0 / DIMS + 1e-3);
    CHECK(fabs(1 / (double)r.rstd[0] - rms) < 1e-6 && fabs(rms - 3.125160) < 1e-6, "rms is %.7g",
          1 / (double)r.rstd[0]);
    CHECK(r.wide[0] == (float)(100 / rms), "y is %.9g", (double)r.wide[0]);
    CHECK(r.rstd[1] == (float)(1 / sqrt(1e-3)), "rstd of zeros is %.9g", (double)r.rstd[1]);
    for (int i = 0; i < DIMS; i++)
        CHECK(r.payload[DIMS + i] == 0 && r.wide[DIMS + i] == 0, "zero %d became %02x", i,
              r.payload[DIMS + i]);
    for (int i = 0; i < DIMS / 32; i++)
        CHECK(r.hdim[DIMS / 32 + i] == 0, "scale %d of zeros is %02x", i, r.hdim[DIMS / 32 + i]);
    norm(&tensor, NULL, 0, MXATTN_BLOCK_ROW, &r);
    CHECK(r.wide[DIMS] == 0 && r.rstd[1] == 0, "zeros and eps 0 give %g, rstd %g",
          (double)r.wide[DIMS], (double)r.rstd[1]);
    result_free(&r);
}

/* x has one magnitude everywhere: y is +-weight exactly. */
static void expect_weights(mxattn_dtype dtype, float magnitude, int64_t dims)
{
    float *weight = malloc((size_t)dims * sizeof *weight);
    char *x = malloc((size_t)dims * sizeof(float));
    result r = result_make(1, dims);
    for (int64_t i = 0; i < dims; i++) {
        weight[i] = (float)(1 + i % 7) * 0.25F;
        mxa_store(x, dtype, i, i % 3 ? magnitude : -magnitude);
    }
    const mxattn_tensor tensor = matrix(dtype, x, 1, dims);
    norm(&tensor, weight, 0, MXATTN_BLOCK_ROW, &r);
    int64_t wrong = 0;
    for (int64_t i = 0; i < dims; i++)
        wrong += r.wide[i] != (i % 3 ? weight[i] : -weight[i]);
    CHECK(wrong == 0, "%g x %lld in %s: %lld elements are not +-weight", (double)magnitude,
          (long long)dims, mxa_dtype_name(dtype), (long long)wrong);
    free(weight);
    free(x);
    result_free(&r);
}

static void b93(void)
{
    mxt_case("B93: squares beyond FP16, %s", backend_name);
    expect_weights(MXATTN_F16, 300, 32);
    expect_weights(MXATTN_F16, 300, 4096);
    expect_weights(MXATTN_F16, 65504, 4096);
    expect_weights(MXATTN_F16, 0x1p-24F, 4096);
}

/* All hidden sizes; x = 1 gives weight / sqrt(1 + eps), and nothing else is read or written. */
static void b94(void)
{
    static const int64_t sizes[] = {32,    96,    1536, 2880, 5120, 7168, 8192,
                                    16384, 65536, 1,    33,   100,  2881};
    mxt_case("B94: hidden sizes from 32 to 65536, and those with a short block, %s", backend_name);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        const int64_t dims = sizes[n], rows = 3;
        float *x = mxt_guard_end((size_t)(rows * dims) * sizeof *x);
        uint8_t *payload = mxt_guard_end((size_t)(rows * dims));
        result r = result_make(rows, dims);
        free(r.payload);
        r.payload = payload;
        for (int64_t i = 0; i < rows * dims; i++)
            x[i] = 1;
        const mxattn_tensor tensor = matrix(MXATTN_F32, x, rows, dims);
        norm(&tensor, NULL, 1.1 * 1.1 - 1, MXATTN_BLOCK_SQUARE, &r);
        /* 1/1.1 = 465.45 * 2^-9: above 448, so the scale is 2^-8, and 232.7 is held as 240. */
        const float y = (float)(1 / 1.1);
        int64_t wrong = 0;
        for (int64_t i = 0; i < rows * dims; i++)
            wrong += fabsf(r.wide[i] - y) > y * 0x1p-23F || mxa_e4m3_to_f32(r.payload[i]) != 240;
        for (int64_t i = 0; i < rows * ((dims + 31) / 32); i++)
            wrong += r.hdim[i] != 127 - 8;
        for (int64_t i = 0; i < dims; i++)
            wrong += r.seq[i] != 127 - 8;
        CHECK(wrong == 0, "%lld dims: %lld elements or scales are wrong", (long long)dims,
              (long long)wrong);
        mxt_guard_free(x);
        mxt_guard_free(payload);
        r.payload = NULL;
        result_free(&r);
    }
}

/* Squares beyond FP32; and both scale arrays of one payload say the same. */
static void b95(void)
{
    enum { ROWS = 70, DIMS = 96, BLOCKS = DIMS / 32 };
    mxt_case("B95: squares beyond FP32, %s", backend_name);
    expect_weights(MXATTN_F32, 1e20F, 64);
    expect_weights(MXATTN_F32, 3e38F, 2880);
    expect_weights(MXATTN_F32, 1e-30F, 64);
    expect_weights(MXATTN_F32, 1e-45F, 64);
    expect_weights(MXATTN_BF16, 3e38F, 64);
    float x[ROWS * DIMS];
    result r = result_make(ROWS, DIMS);
    mxt_case("B95: both arrangements of the scales of one result, %s", backend_name);
    mxt_fill_f32(x, ROWS, DIMS, MXT_OUTLIER, 95);
    const mxattn_tensor tensor = matrix(MXATTN_F32, x, ROWS, DIMS);
    norm(&tensor, NULL, 1e-6, MXATTN_BLOCK_SQUARE, &r);
    for (int i = 0; i < ROWS * DIMS; i++) {
        const int row = i / DIMS, d = i % DIMS;
        const uint8_t a = r.hdim[row * BLOCKS + d / 32], b = r.seq[row / 32 * DIMS + d];
        const double step = ldexp(1, a - 127), y = (double)r.wide[i];
        const double value = (double)mxa_e4m3_to_f32(r.payload[i]) * step;
        /* Half a code's step: 2^-4 of a normal code's value, 2^-10 of the scale below. */
        const double half = fmax(fabs(y) * 0x1p-4, step * 0x1p-10);
        CHECK(a == b, "row %d, dim %d: scales %02x and %02x", row, d, a, b);
        CHECK(fabs(value - y) <= half, "row %d, dim %d: %g for %g", row, d, value, y);
    }
    result_free(&r);
}

/* round_to_bf16: the bytes of two calls, of norm and then of quantize of its BF16. */
static void expect_two_calls(mxattn_block block, const int64_t shape[3], int turned)
{
    const int64_t dims = shape[2], table = shape[0] * dims / 2;
    const int absent[2] = {MXT_ABSENT, MXT_ABSENT};
    const int has[2] = {block == MXATTN_BLOCK_COLUMN ? MXT_ABSENT : MXATTN_LINEAR,
                        block == MXATTN_BLOCK_ROW ? MXT_ABSENT : MXATTN_LINEAR};
    mxattn_rmsnorm_quantize_args norm_args;
    mxattn_quantize_args quantize_args;
    mxt_matrix x, wide, once, twice;
    size_t bytes = 0;
    mxt_case("one call is norm, then quantize of BF16: block %d, %lld x %lld x %lld%s, %s",
             (int)block, (long long)shape[0], (long long)shape[1], (long long)dims,
             turned ? ", turned" : "", backend_name);
    mxt_matrix_make(&x, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 3, shape, 0, NULL);
    mxt_matrix_like(&wide, &x);
    mxt_matrix_make(&once, (mxattn_tags){MXATTN_E4M3, block, MXATTN_RCEIL, 0}, has, 3, shape, 0,
                    NULL);
    mxt_matrix_like(&twice, &once);
    mxt_matrix_fill(&x, MXT_OUTLIER, 7, NULL);
    float *values = malloc((size_t)(dims + 2 * table) * sizeof *values); /* weight, tables */
    for (int64_t i = 0; i < dims + 2 * table; i++)
        values[i] = 0.8F - (float)(i % 37) / 29;
    mxattn_rmsnorm_quantize_args_init(&norm_args);
    norm_args.backend = backend;
    norm_args.x = &x.t;
    norm_args.weight = values;
    norm_args.y = &once.t;
    norm_args.y_wide = &wide.t;
    norm_args.round_to_bf16 = 1;
    if (turned)
        norm_args.rope = (mxattn_rope){
            .cosine = values + dims, .sine = values + dims + table, .positions = shape[0]};
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize_workspace(NULL, &norm_args, &bytes));
    norm_args.workspace = mxt_guard_end_aligned(bytes ? bytes : 1, 256);
    norm_args.workspace_bytes = bytes;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize(NULL, &norm_args));
    mxattn_quantize_args_init(&quantize_args);
    quantize_args.backend = backend;
    quantize_args.wide = &wide.t;
    quantize_args.quantized = &twice.t;
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &quantize_args));
    mxt_matrix_same("y", &once, &twice);
    mxt_guard_free(norm_args.workspace);
    free(values);
    mxt_matrix_free(&x);
    mxt_matrix_free(&wide);
    mxt_matrix_free(&once);
    mxt_matrix_free(&twice);
}

static void two_calls(void)
{
    static const int64_t hidden[3] = {37, 1, 2880}, longest[3] = {33, 1, 65536},
                         heads[3] = {70, 3, 128}, odd[3] = {40, 2, 50};
    for (int block = MXATTN_BLOCK_ROW; block <= MXATTN_BLOCK_SQUARE; block++) {
        expect_two_calls((mxattn_block)block, hidden, 0);
        expect_two_calls((mxattn_block)block, longest, 0);
        expect_two_calls((mxattn_block)block, heads, 1);
        expect_two_calls((mxattn_block)block, odd, 1);
    }
}

int main(void)
{
    static const mxattn_backend backends[] = {MXATTN_BACKEND_REF, MXATTN_BACKEND_CPU};
    for (int i = 0; i < 2; i++) {
        backend = backends[i];
        backend_name = i ? "cpu" : "ref";
        b42();
        b92();
        b93();
        b94();
        b95();
        two_calls();
    }
    return mxt_finish();
}
