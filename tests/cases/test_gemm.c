/* test_gemm.c: public reports about GEMMs of block-scaled operands, one case each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "guard.h"
#include "matrix.h"
#include "report.h"

#include <string.h>

static mxattn_backend backend;
static const char *backend_name;
static const mxattn_tags square = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
static const mxattn_tags row = {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0};
static const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, hdim[2] = {MXATTN_LINEAR, MXT_ABSENT};

static mxattn_status gemm(mxattn_gemm_quantize_args *args)
{
    size_t bytes = 0;
    args->backend = backend;
    mxattn_status status = mxattn_gemm_quantize_workspace(NULL, args, &bytes);
    if (status)
        return status;
    args->workspace = mxt_guard_end_aligned(bytes, 256);
    args->workspace_bytes = bytes;
    status = mxattn_gemm_quantize(NULL, args);
    mxt_guard_free(args->workspace);
    return status;
}

/* Fewer rows than any tile: with B the identity, C is A. */
static void b96(void)
{
    enum { K = 128, N = 64 };
    static const int64_t rows[] = {1, 8, 16, 32, 63};
    uint16_t identity[N * K] = {0};
    for (int n = 0; n < N; n++)
        identity[n * K + n] = 0x3F80;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t m = rows[i];
        mxt_matrix a, c, values;
        mxattn_tensor b;
        mxattn_quantize_args decode;
        mxattn_gemm_quantize_args args;
        mxt_case("B96: %lld rows, %s", (long long)m, backend_name);
        mxt_matrix_make(&a, row, hdim, 2, (int64_t[]){m, K}, 0, NULL);
        mxt_matrix_fill(&a, MXT_GAUSSIAN, 96, NULL);
        mxt_matrix_make(&c, (mxattn_tags){.dtype = MXATTN_F32}, absent, 2, (int64_t[]){m, N}, 0,
                        NULL);
        mxt_matrix_make(&values, (mxattn_tags){.dtype = MXATTN_F32}, absent, 2, (int64_t[]){m, K},
                        0, NULL);
        mxattn_quantize_args_init(&decode);
        decode.quantized = &a.t;
        decode.wide = &values.t;
        CHECK_STATUS(MXATTN_OK, mxattn_dequantize(NULL, &decode));
        mxattn_tensor_view(&b, MXATTN_BF16, identity, 2, (int64_t[]){N, K});
        mxattn_gemm_quantize_args_init(&args);
        args.a = &a.t;
        args.b = &b;
        args.c = &c.t;
        CHECK_STATUS(MXATTN_OK, gemm(&args));
        for (int64_t r = 0; r < m; r++)
            CHECK(!memcmp((float *)c.memory + r * N, (float *)values.memory + r * K,
                          N * sizeof(float)),
                  "row %lld differs", (long long)r);
        mxt_matrix_free(&values);
        mxt_matrix_free(&a);
        mxt_matrix_free(&c);
    }
}

/* K and groups of tokens that 32 does not divide: short blocks, not an error and no other path. */
static void b97(void)
{
    enum { K = 48, N = 40, T = 128 };
    static const int32_t cu[] = {0, 44, 64, 64, 128};
    const mxattn_sequences groups = {.cu_seqlens = cu, .batch = 4};
    const int compact[2] = {MXATTN_COMPACT, MXT_ABSENT};
    mxt_matrix a, b, c, weight_gradient, alone;
    mxattn_gemm_quantize_args args;
    mxt_case("B97: K = 48 and groups of 44, 20, 0, 64 tokens, %s", backend_name);
    mxt_matrix_make(&a, square, compact, 2, (int64_t[]){T, K}, 0, &groups);
    mxt_matrix_fill(&a, MXT_EXACT, 1, &groups);
    mxt_matrix_make(&b, square, compact, 2, (int64_t[]){N, K}, 0, NULL);
    mxt_matrix_fill(&b, MXT_EXACT, 2, NULL);
    mxt_matrix_make(&c, square, compact, 2, (int64_t[]){T, N}, 0, &groups);
    mxattn_gemm_quantize_args_init(&args);
    args.a = &a.t;
    args.b = &b.t;
    args.c = &c.t;
    args.sequences = groups;
    CHECK_STATUS(MXATTN_OK, gemm(&args));
    /* Each group on its own has the same bytes: its blocks began with it. */
    const int64_t first_block[] = {0, 2, 3, 3};
    for (int g = 0; g < 4; g++) {
        const int64_t tokens = cu[g + 1] - cu[g];
        mxattn_tensor part = a.t;
        part.data = (uint8_t *)a.memory + (int64_t)cu[g] * K;
        part.scales[0].data += first_block[g] * 2;
        part.shape[0] = tokens;
        mxt_matrix_make(&alone, square, compact, 2, (int64_t[]){tokens, N}, 0, NULL);
        args.a = &part;
        args.c = &alone.t;
        args.sequences = (mxattn_sequences){.batch = 1};
        CHECK_STATUS(MXATTN_OK, gemm(&args));
        CHECK(!memcmp(alone.memory, (uint8_t *)c.memory + (int64_t)cu[g] * N, (size_t)(tokens * N)),
              "group %d alone has another payload", g);
        CHECK(!memcmp(alone.t.scales[0].data, c.t.scales[0].data + first_block[g] * 2,
                      (size_t)((tokens + 31) / 32 * 2)),
              "group %d alone has other scales", g);
        mxt_matrix_free(&alone);
    }
    mxt_case("B97: a weight's gradient over groups of tokens, %s", backend_name);
    mxt_matrix_make(&weight_gradient, (mxattn_tags){.dtype = MXATTN_F32}, absent, 2,
                    (int64_t[]){N, K}, 0, NULL);
    args.a = &c.t;
    args.b = &a.t;
    args.c = &weight_gradient.t;
    args.transpose_a = args.transpose_b = 1;
    args.sequences = groups;
    CHECK_STATUS(MXATTN_OK, gemm(&args));
    double sum = 0;
    for (int i = 0; i < N * K; i++)
        sum += mxt_matrix_wide(&weight_gradient, i);
    CHECK(sum - sum == 0, "the gradient is not finite");
    mxt_case("B97: K that differ name both, %s", backend_name);
    args.transpose_b = 0;
    CHECK_STATUS(MXATTN_SHAPE, gemm(&args));
    CHECK(strstr(mxattn_last_error(), "b has K = 48; a has K = 128"), "\"%s\"",
          mxattn_last_error());
    mxt_matrix_free(&a);
    mxt_matrix_free(&b);
    mxt_matrix_free(&c);
    mxt_matrix_free(&weight_gradient);
}

int main(void)
{
    static const mxattn_backend backends[] = {MXATTN_BACKEND_REF, MXATTN_BACKEND_CPU};
    for (int i = 0; i < 2; i++) {
        backend = backends[i];
        backend_name = i ? "cpu" : "ref";
        b96();
        b97();
    }
    return mxt_finish();
}
