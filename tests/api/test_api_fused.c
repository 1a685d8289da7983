/* test_api_fused.c: every rule of the fused producers' front door: RMSNorm, its backward, GEMM.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fill.h"
#include "mxattn/mxattn.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 40, H = 2, D = 48, N = 64, K = 96, BYTES = 1 << 15 };

/* Valid calls over sequences of 5, 0 and 33 tokens and two rows behind: a norm of (T, H, D), its
 * backward, a GEMM of (T, K) by (N, K). */
static struct {
    mxattn_rmsnorm_quantize_args norm;
    mxattn_rmsnorm_backward_args back;
    mxattn_gemm_quantize_args gemm;
    mxattn_tensor x, y, y_wide, dy, dx, dx_quantized, a, b, c, c_wide, activated;
    int32_t cu[4];
    float values[T * K], weight[N], rstd[T * H], tables[2][T * D];
    _Alignas(256) unsigned char factor[BYTES], factor_scales[BYTES];
    _Alignas(256) unsigned char out[4][BYTES];
} call;

static unsigned char *workspace; /* enough for any of them */
enum { WORKSPACE = 1 << 20 };

static void square(mxattn_tensor *tensor, unsigned char *scales)
{
    tensor->tags.block = MXATTN_BLOCK_SQUARE;
    tensor->scales[MXATTN_HDIM] = (mxattn_scales){.data = scales, .layout = MXATTN_COMPACT};
}

static void fresh(void)
{
    static const int32_t cu[4] = {0, 5, 5, 38};
    const int64_t heads[] = {T, H, D}, a[] = {T, K}, b[] = {N, K}, c[] = {T, H, N / H};
    memset(&call, 0, sizeof call);
    memcpy(call.cu, cu, sizeof cu);
    mxt_fill_nan(call.out, sizeof call.out);
    mxattn_tensor_view(&call.x, MXATTN_F32, call.values, 3, heads);
    call.dy = call.x;
    mxattn_tensor_view(&call.y, MXATTN_E4M3, call.out[0], 3, heads);
    square(&call.y, call.out[1]);
    mxattn_tensor_view(&call.y_wide, MXATTN_BF16, call.out[2], 3, heads);
    mxattn_tensor_view(&call.dx, MXATTN_F32, call.out[2], 3, heads);
    call.dx_quantized = call.y;
    mxattn_tensor_view(&call.a, MXATTN_E4M3, call.factor, 2, a);
    square(&call.a, call.factor_scales);
    mxattn_tensor_view(&call.b, MXATTN_BF16, call.values, 2, b);
    mxattn_tensor_view(&call.c, MXATTN_E4M3, call.out[0], 3, c);
    square(&call.c, call.out[1]);
    mxattn_tensor_view(&call.c_wide, MXATTN_F32, call.out[2], 3, c);
    mxattn_tensor_view(&call.activated, MXATTN_BF16, call.values, 3, c);
    const mxattn_sequences sequences = {.cu_seqlens = call.cu, .batch = 3};

    mxattn_rmsnorm_quantize_args_init(&call.norm);
    call.norm.backend = MXATTN_BACKEND_REF;
    call.norm.x = &call.x;
    call.norm.y = &call.y;
    call.norm.y_wide = &call.y_wide;
    call.norm.weight = call.weight;
    call.norm.rope = (mxattn_rope){
        .cosine = call.tables[0], .sine = call.tables[1], .positions = T, .dims = D - 16};
    call.norm.sequences = sequences;
    call.norm.workspace = workspace;
    call.norm.workspace_bytes = WORKSPACE;

    mxattn_rmsnorm_backward_args_init(&call.back);
    call.back.backend = MXATTN_BACKEND_REF;
    call.back.x = &call.x;
    call.back.dy = &call.dy;
    call.back.dx = &call.dx;
    call.back.dx_quantized = &call.dx_quantized;
    call.back.rstd = call.rstd;
    call.back.dweight = (float *)(void *)call.out[3];
    call.back.rope = call.norm.rope;
    call.back.sequences = sequences;
    call.back.workspace = workspace;
    call.back.workspace_bytes = WORKSPACE;

    mxattn_gemm_quantize_args_init(&call.gemm);
    call.gemm.backend = MXATTN_BACKEND_REF;
    call.gemm.a = &call.a;
    call.gemm.b = &call.b;
    call.gemm.bias = call.weight;
    call.gemm.c = &call.c;
    call.gemm.c_wide = &call.c_wide;
    call.gemm.sequences = sequences;
    call.gemm.workspace = workspace;
    call.gemm.workspace_bytes = WORKSPACE;
}

typedef enum { NORM, BACK, GEMM } operation;

static mxattn_status run(operation which)
{
    if (which == NORM)
        return mxattn_rmsnorm_quantize(NULL, &call.norm);
    return which == BACK ? mxattn_rmsnorm_backward(NULL, &call.back)
                         : mxattn_gemm_quantize(NULL, &call.gemm);
}

static int all_ones(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0xFF)
            return 0;
    }
    return 1;
}

static void refused(operation which, mxattn_status wanted, const char *needle, const char *rule,
                    const char *change)
{
    static const char *const names[] = {"rmsnorm_quantize", "rmsnorm_backward", "gemm_quantize"};
    mxt_case("%s: %s", names[which], change);
    const mxattn_status status = run(which);
    CHECK(status == wanted, "status is %s, not %s; \"%s\"", mxattn_status_name(status),
          mxattn_status_name(wanted), mxattn_last_error());
    CHECK(strstr(mxattn_last_error(), needle) && strstr(mxattn_last_error(), rule),
          "\"%s\" lacks \"%s\" or \"%s\"", mxattn_last_error(), needle, rule);
    CHECK(all_ones(call.out, sizeof call.out), "an output was written");
}

#define REFUSED(which, wanted, needle, rule, ...)                                                  \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        refused(which, wanted, needle, rule, #__VA_ARGS__);                                        \
    } while (0)

#define ACCEPTED(which, ...)                                                                       \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        mxt_case("accepted: %s", #__VA_ARGS__);                                                    \
        CHECK_STATUS(MXATTN_OK, run(which));                                                       \
    } while (0)

static void test_norm(void)
{
    ACCEPTED(NORM, call.norm.rstd = call.rstd);
    ACCEPTED(NORM, call.norm.y = NULL);
    ACCEPTED(NORM, call.norm.weight = NULL);
    ACCEPTED(NORM, call.y.tags.block = MXATTN_BLOCK_ROW, call.y.scales[0].layout = MXATTN_TILED);
    REFUSED(NORM, MXATTN_ARGUMENT, "x is NULL", "required", call.norm.x = NULL);
    REFUSED(NORM, MXATTN_ARGUMENT, "y is NULL, and so is y_wide", "required",
            call.norm.y = call.norm.y_wide = NULL);
    REFUSED(NORM, MXATTN_DTYPE, "x.dtype is e4m3", "f32, f16 or bf16", call.norm.x = &call.y);
    REFUSED(NORM, MXATTN_DTYPE, "y.dtype is bf16", "e4m3 or e5m2", call.norm.y = &call.y_wide);
    REFUSED(NORM, MXATTN_DTYPE, "y_wide.dtype is e4m3", "f32, f16 or bf16",
            call.norm.y_wide = &call.y);
    REFUSED(NORM, MXATTN_LAYOUT, "y.block is none", "row, column or square",
            call.y.tags.block = MXATTN_BLOCK_NONE);
    REFUSED(NORM, MXATTN_LAYOUT, "y.rounding is 2", "RCEIL (0)",
            call.y.tags.rounding = (mxattn_rounding)2);
    REFUSED(NORM, MXATTN_LAYOUT, "y.flags has MXATTN_CENTRED", "one pass",
            call.y.tags.flags = MXATTN_CENTRED);
    REFUSED(NORM, MXATTN_LAYOUT, "y.scales[hdim] is a compact array", "row blocks",
            call.y.tags.block = MXATTN_BLOCK_ROW);
    REFUSED(NORM, MXATTN_LAYOUT, "y.scales[hdim] is a linear array", "column blocks",
            (call.y.tags.block = MXATTN_BLOCK_COLUMN, call.y.scales[0].layout = MXATTN_LINEAR));
    REFUSED(NORM, MXATTN_ARGUMENT, "y.scales holds no data", "scale array",
            call.y.scales[0].data = NULL);
    REFUSED(NORM, MXATTN_SHAPE, "y.shape[2] is 47", "must be 48", call.y.shape[2] = 47);
    REFUSED(NORM, MXATTN_SHAPE, "y_wide.ndim is 2", "must be 3", call.y_wide.ndim = 2);
    REFUSED(NORM, MXATTN_LAYOUT, "x.stride[2] is 2", "stride is 1", call.x.stride[2] = 2);
    REFUSED(NORM, MXATTN_LAYOUT, "y.stride[0] is 48", "overlap", call.y.stride[0] = 48);
    REFUSED(NORM, MXATTN_ALIGNMENT, "x.data is", "multiple of 4",
            call.x.data = (char *)call.values + 1);
    REFUSED(NORM, MXATTN_ALIGNMENT, "weight is", "multiple of 4",
            call.norm.weight = (const float *)(const void *)((char *)call.weight + 2));
    REFUSED(NORM, MXATTN_ALIGNMENT, "rstd is", "multiple of 4",
            call.norm.rstd = (float *)(void *)((char *)call.rstd + 1));
    REFUSED(NORM, MXATTN_ALIGNMENT, "workspace is", "multiple of 256",
            call.norm.workspace = workspace + 64);
    REFUSED(NORM, MXATTN_WORKSPACE, "workspace is NULL", "needs", call.norm.workspace = NULL);
    REFUSED(NORM, MXATTN_WORKSPACE, "workspace_bytes is 8", "needs", call.norm.workspace_bytes = 8);
    REFUSED(NORM, MXATTN_ARGUMENT, "eps is nan", "finite", call.norm.eps = (double)NAN);
    REFUSED(NORM, MXATTN_ARGUMENT, "eps is -1", "not negative", call.norm.eps = -1);
    REFUSED(NORM, MXATTN_ARGUMENT, "eps is inf", "finite", call.norm.eps = (double)INFINITY);
    REFUSED(NORM, MXATTN_ARGUMENT, "round_to_bf16 is 2", "0 or 1", call.norm.round_to_bf16 = 2);
    REFUSED(NORM, MXATTN_ARGUMENT, "rope.sine is NULL", "both", call.norm.rope.sine = NULL);
    REFUSED(NORM, MXATTN_SHAPE, "rope.dims is 33", "even", call.norm.rope.dims = 33);
    REFUSED(NORM, MXATTN_SHAPE, "rope.dims is 64", "head_dim", call.norm.rope.dims = 64);
    REFUSED(NORM, MXATTN_SHAPE, "rope.positions is 32", "33 tokens", call.norm.rope.positions = 32);
    REFUSED(NORM, MXATTN_SHAPE, "rope.positions is 40", "offset 8", call.norm.rope.offset = 8);
    REFUSED(NORM, MXATTN_ARGUMENT, "rope.offset is -1", "0 to", call.norm.rope.offset = -1);
    REFUSED(NORM, MXATTN_CU_SEQLENS, "cu_seqlens[3] is 41", "tokens (40)", call.cu[3] = 41);
    REFUSED(NORM, MXATTN_CU_SEQLENS, "cu_seqlens[2] is 4", "", call.cu[2] = 4);
    REFUSED(NORM, MXATTN_CU_SEQLENS, "seqused[0] is 6", "[0, 5]",
            call.norm.sequences.seqused = (const int32_t[]){6, 0, 0});
    REFUSED(NORM, MXATTN_ARGUMENT, "y.data is", "inside the memory of x",
            call.y.data = call.values);
    REFUSED(NORM, MXATTN_ARGUMENT, "y_wide.data is", "inside the memory of y",
            call.y_wide.data = call.out[0]);
}

static void test_backward(void)
{
    ACCEPTED(BACK, call.back.accumulate = 1);
    ACCEPTED(BACK, call.back.dx = NULL);
    ACCEPTED(BACK, call.back.dx_quantized = NULL, call.back.dweight = NULL);
    ACCEPTED(BACK, call.back.normalised = 1);
    REFUSED(BACK, MXATTN_ARGUMENT, "dy is NULL", "required", call.back.dy = NULL);
    REFUSED(BACK, MXATTN_ARGUMENT, "dx is NULL, and so is dx_quantized", "required",
            call.back.dx = call.back.dx_quantized = NULL);
    REFUSED(BACK, MXATTN_ARGUMENT, "rstd is NULL", "required", call.back.rstd = NULL);
    REFUSED(BACK, MXATTN_ARGUMENT, "weight is set and normalised is 1", "without a weight",
            (call.back.normalised = 1, call.back.weight = call.weight));
    REFUSED(BACK, MXATTN_ARGUMENT, "normalised is 2", "0 or 1", call.back.normalised = 2);
    REFUSED(BACK, MXATTN_ARGUMENT, "accumulate is -1", "0 or 1", call.back.accumulate = -1);
    REFUSED(BACK, MXATTN_ARGUMENT, "accumulate is 1 and dx is NULL", "nothing to add",
            (call.back.accumulate = 1, call.back.dx = NULL));
    REFUSED(BACK, MXATTN_SHAPE, "dy.shape[1] is 1", "must be 2", call.dy.shape[1] = 1);
    REFUSED(BACK, MXATTN_DTYPE, "dx.dtype is e4m3", "f32, f16 or bf16",
            call.back.dx = &call.dx_quantized);
    REFUSED(BACK, MXATTN_ALIGNMENT, "dweight is", "multiple of 4",
            call.back.dweight = (float *)(void *)(call.out[3] + 2));
    REFUSED(BACK, MXATTN_ARGUMENT, "dx.data is", "inside the memory of x",
            call.dx.data = call.values);
    REFUSED(BACK, MXATTN_WORKSPACE, "workspace is NULL", "needs", call.back.workspace = NULL);
}

static void test_gemm(void)
{
    ACCEPTED(GEMM, call.gemm.c_wide = NULL);
    ACCEPTED(GEMM, call.gemm.head_norm = 1, call.gemm.norm_heads = 1);
    ACCEPTED(GEMM, call.gemm.activation = MXATTN_ACTIVATION_RELU_SQUARED,
             call.gemm.activated = &call.activated);
    ACCEPTED(GEMM, call.gemm.c = &call.c_wide, call.gemm.c_wide = NULL, call.gemm.accumulate = 1);
    ACCEPTED(GEMM, (call.gemm.transpose_b = 1, call.b.shape[0] = K, call.b.shape[1] = N,
                    call.b.stride[0] = N));
    REFUSED(GEMM, MXATTN_ARGUMENT, "a is NULL", "required", call.gemm.a = NULL);
    REFUSED(GEMM, MXATTN_ARGUMENT, "b is NULL", "required", call.gemm.b = NULL);
    REFUSED(GEMM, MXATTN_ARGUMENT, "c is NULL", "required", call.gemm.c = NULL);
    REFUSED(GEMM, MXATTN_SHAPE, "b has K = 95", "a has K = 96", call.b.shape[1] = 95);
    REFUSED(GEMM, MXATTN_SHAPE, "b has K = 64", "a has K = 96", call.gemm.transpose_b = 1);
    REFUSED(GEMM, MXATTN_SHAPE, "c.shape[0] is 39", "the rows of a", call.c.shape[0] = 39);
    REFUSED(GEMM, MXATTN_SHAPE, "c has 62 columns", "must have 64", call.c.shape[2] = 31);
    REFUSED(GEMM, MXATTN_SHAPE, "c_wide.shape[1] is 1", "the shape of c", call.c_wide.shape[1] = 1);
    REFUSED(GEMM, MXATTN_SHAPE, "a.ndim is 4", "2 to 3", call.a.ndim = 4);
    REFUSED(GEMM, MXATTN_DTYPE, "b.dtype is f32", "e4m3, e5m2 or bf16",
            call.b.tags.dtype = MXATTN_F32);
    REFUSED(GEMM, MXATTN_LAYOUT, "a.block is column", "row or square",
            (call.a.tags.block = MXATTN_BLOCK_COLUMN, call.a.scales[1] = call.a.scales[0],
             call.a.scales[0].data = NULL, call.a.scales[1].layout = MXATTN_LINEAR));
    REFUSED(GEMM, MXATTN_LAYOUT, "a.block is row", "column or square",
            (call.a.tags.block = MXATTN_BLOCK_ROW, call.a.scales[0].layout = MXATTN_LINEAR,
             call.gemm.transpose_a = 1));
    REFUSED(GEMM, MXATTN_LAYOUT, "a.flags has MXATTN_CENTRED", "one pass",
            call.a.tags.flags = MXATTN_CENTRED);
    REFUSED(GEMM, MXATTN_LAYOUT, "c.flags is 0x8", "knows 0x7", call.c.tags.flags = 8);
    REFUSED(GEMM, MXATTN_DTYPE, "c_wide.dtype is e4m3", "f32, f16 or bf16",
            call.gemm.c_wide = &call.c);
    REFUSED(GEMM, MXATTN_DTYPE, "c.dtype is e4m3 and accumulate is 1", "wide",
            call.gemm.accumulate = 1);
    REFUSED(GEMM, MXATTN_ARGUMENT, "transpose_b is 3", "0 or 1", call.gemm.transpose_b = 3);
    REFUSED(GEMM, MXATTN_ARGUMENT, "activation is 5", "0 to 4",
            call.gemm.activation = (mxattn_activation)5);
    REFUSED(GEMM, MXATTN_UNSUPPORTED, "activation is 2 and activated is set", "RELU",
            (call.gemm.activation = MXATTN_ACTIVATION_GELU, call.gemm.activated = &call.activated));
    REFUSED(GEMM, MXATTN_ARGUMENT, "norm_eps is nan", "finite",
            (call.gemm.head_norm = 1, call.gemm.norm_eps = (double)NAN));
    REFUSED(GEMM, MXATTN_ARGUMENT, "norm_rstd is set", "head_norm is 0",
            call.gemm.norm_rstd = call.rstd);
    REFUSED(GEMM, MXATTN_SHAPE, "norm_heads is 3", "0 to 2", call.gemm.norm_heads = 3);
    REFUSED(GEMM, MXATTN_ALIGNMENT, "bias is", "multiple of 4",
            call.gemm.bias = (const float *)(const void *)((char *)call.weight + 1));
    REFUSED(GEMM, MXATTN_ALIGNMENT, "b.data is", "multiple of 2",
            call.b.data = (char *)call.values + 1);
    REFUSED(GEMM, MXATTN_ARGUMENT, "c.data is", "inside the memory of a",
            call.c.data = call.factor + 64);
    REFUSED(GEMM, MXATTN_ARGUMENT, "c_wide.data is", "inside the memory of c",
            call.c_wide.data = call.out[0]);
    REFUSED(GEMM, MXATTN_WORKSPACE, "workspace is NULL", "needs", call.gemm.workspace = NULL);
    REFUSED(GEMM, MXATTN_CU_SEQLENS, "cu_seqlens[0] is 1", "", call.cu[0] = 1);
    REFUSED(GEMM, MXATTN_SHAPE, "rope.positions is 3", "33 tokens",
            call.gemm.rope =
                (mxattn_rope){.cosine = call.tables[0], .sine = call.tables[1], .positions = 3});
}

static void test_packed(void)
{
    fresh();
    mxt_case("views of one packed buffer are apart");
    const int64_t shape[] = {T, 1, D};
    mxattn_tensor_view(&call.x, MXATTN_F32, call.out[0], 3, shape);
    mxattn_tensor_view(&call.y_wide, MXATTN_F32, call.out[0], 3, shape);
    memset(call.out, 0, sizeof call.out);
    call.x.stride[0] = call.y_wide.stride[0] = INT64_C(2) * D;
    call.y_wide.data = (float *)(void *)call.out[0] + D;
    call.norm.y = NULL;
    CHECK_STATUS(MXATTN_OK, run(NORM));
    call.y_wide.data = (float *)(void *)call.out[0] + D - 1;
    CHECK_STATUS(MXATTN_ARGUMENT, run(NORM));
}

static void test_workspaces(void)
{
    size_t bytes = 77;
    fresh();
    mxt_case("workspace queries");
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize_workspace(NULL, &call.norm, &bytes));
    CHECK(bytes > 0 && bytes < WORKSPACE, "%zu bytes for a norm", bytes);
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_backward_workspace(NULL, &call.back, &bytes));
    CHECK(bytes > 0 && bytes < WORKSPACE, "%zu bytes for its backward", bytes);
    CHECK_STATUS(MXATTN_OK, mxattn_gemm_quantize_workspace(NULL, &call.gemm, &bytes));
    CHECK(bytes > 0 && bytes < WORKSPACE, "%zu bytes for a GEMM", bytes);
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_gemm_quantize_workspace(NULL, &call.gemm, NULL));
    call.norm.eps = -1;
    bytes = 77;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_rmsnorm_quantize_workspace(NULL, &call.norm, &bytes));
    CHECK(bytes == 77, "the bytes of a refused call were written");
}

static void test_empty(void)
{
    fresh();
    mxt_case("no token: success, nothing but dweight is written");
    memset(call.cu, 0, sizeof call.cu);
    call.x.shape[0] = call.y.shape[0] = call.y_wide.shape[0] = 0;
    call.dy.shape[0] = call.dx.shape[0] = call.dx_quantized.shape[0] = 0;
    call.x.data = NULL;
    CHECK_STATUS(MXATTN_OK, run(NORM));
    CHECK_STATUS(MXATTN_OK, run(BACK));
    CHECK(call.back.dweight[D - 1] == 0.0F, "dweight is %g", (double)call.back.dweight[D - 1]);
    CHECK(all_ones(call.out, 3 * (size_t)BYTES), "an output was written");
}

int main(void)
{
    workspace = aligned_alloc(256, WORKSPACE);
    test_norm();
    test_backward();
    test_gemm();
    test_packed();
    test_workspaces();
    test_empty();
    free(workspace);
    return mxt_finish();
}
