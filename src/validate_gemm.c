/* validate_gemm.c: the front door of the GEMM that quantizes: what must fit, and its normal form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <math.h>
#include <string.h>

static const char matrix_letters[] = "(rows, columns) or (rows, heads, columns/heads)";

static int64_t columns_of(const mxattn_tensor *tensor)
{
    return tensor->shape[2] * tensor->shape[3];
}

/* Rows and columns of a caller's matrix, before its batch is known. */
static mxattn_status read_matrix(const char *name, const mxattn_tensor *user, int64_t *rows)
{
    mxattn_tensor tensor;
    mxattn_status status = mxa_tensor_read(user, name, 2, 3, &tensor);
    if (!status && tensor.shape[0] > MXA_MAX_COUNT)
        status = mxa_fail(MXATTN_SHAPE, "%s.shape[0] is %lld; it must be 0 to %lld", name,
                          (long long)tensor.shape[0], (long long)MXA_MAX_COUNT);
    *rows = status ? 0 : tensor.shape[0];
    return status;
}

/* a or b: MXFP8 whose 32 elements lie along K, or BF16. */
static mxattn_status take_factor(const char *name, const mxattn_tensor *user, int transposed,
                                 const mxa_batch *batch, mxattn_tensor *out)
{
    const mxa_operand_rule rule = {
        .name = name, .letters = matrix_letters, .fp8 = 1, .wide = 1, .batch = batch};
    mxattn_status status = mxa_take_operand(&rule, user, out);
    if (status)
        return status;
    if (mxa_dtype_is_fp8(out->tags.dtype)) {
        const mxattn_block other = transposed ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_COLUMN;
        if (out->tags.block == other)
            return mxa_fail(MXATTN_LAYOUT,
                            "%s.block is %s; scales are shared along K, so %s it must be %s or "
                            "square",
                            name, mxa_block_name(other), transposed ? "transposed" : "as it lies",
                            transposed ? "column" : "row");
        return MXATTN_OK;
    }
    if (out->tags.dtype != MXATTN_BF16)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is %s; it must be e4m3, e5m2 or bf16", name,
                        mxa_dtype_name(out->tags.dtype));
    return MXATTN_OK;
}

/* c, c_wide or activated: (M, N) or (M, heads, N/heads); the later ones like c. */
static mxattn_status take_result(const char *name, const mxattn_tensor *user,
                                 const mxattn_tensor *c, int fp8, int written, mxa_gemm_call *call,
                                 mxattn_tensor *out)
{
    mxa_operand_rule rule = {.name = name,
                             .letters = c ? "the shape of c" : matrix_letters,
                             .fp8 = fp8,
                             .wide = 1,
                             .written = written,
                             .batch = &call->batch_c};
    if (c) {
        rule.ndim = c->ndim;
        memcpy(rule.shape, c->shape, sizeof rule.shape);
    }
    mxattn_status status = mxa_take_operand(&rule, user, out);
    if (status)
        return status;
    if (out->shape[1] != call->m)
        return mxa_fail(MXATTN_SHAPE, "%s.shape[0] is %lld; it must be %lld, the rows of a%s", name,
                        (long long)out->shape[1], (long long)call->m,
                        call->transpose_a ? " transposed" : "");
    if (columns_of(out) != call->n)
        return mxa_fail(MXATTN_SHAPE, "%s has %lld columns; it must have %lld, the rows of b%s",
                        name, (long long)columns_of(out), (long long)call->n,
                        call->transpose_b ? " transposed" : "");
    return MXATTN_OK;
}

static mxattn_status take_flag(const char *name, int32_t value, int *out)
{
    if ((unsigned)value > 1)
        return mxa_fail(MXATTN_ARGUMENT, "%s is %d; it must be 0 or 1", name, (int)value);
    *out = value;
    return MXATTN_OK;
}

static mxattn_status take_factors(const mxattn_gemm_quantize_args *args, mxa_gemm_call *call)
{
    int64_t rows_a = 0, rows_b = 0;
    mxattn_status status = read_matrix("a", args->a, &rows_a);
    if (!status)
        status = read_matrix("b", args->b, &rows_b);
    if (!status)
        status = mxa_take_sequences(&args->sequences, 1, 1, rows_a, &call->batch_a);
    if (status)
        return status;
    call->batch_b = (mxa_batch){.batch = 1, .seqlen = rows_b};
    if (call->transpose_a && call->transpose_b && rows_a == rows_b)
        call->batch_b = call->batch_a;
    status = take_factor("a", args->a, call->transpose_a, &call->batch_a, &call->a);
    if (!status)
        status = take_factor("b", args->b, call->transpose_b, &call->batch_b, &call->b);
    if (status)
        return status;
    const int64_t columns_a = columns_of(&call->a), columns_b = columns_of(&call->b);
    const int64_t k_b = call->transpose_b ? rows_b : columns_b;
    call->m = call->transpose_a ? columns_a : rows_a;
    call->k = call->transpose_a ? rows_a : columns_a;
    call->n = call->transpose_b ? columns_b : rows_b;
    if (k_b != call->k)
        return mxa_fail(MXATTN_SHAPE, "b has K = %lld; a has K = %lld, and they must be equal",
                        (long long)k_b, (long long)call->k);
    call->batch_c = call->batch_a;
    if (call->transpose_a)
        call->batch_c = (mxa_batch){.batch = 1, .seqlen = call->m};
    return MXATTN_OK;
}

static mxattn_status take_results(const mxattn_gemm_quantize_args *args, mxa_gemm_call *call)
{
    mxattn_tensor shape;
    int64_t rows = 0;
    mxattn_status status = read_matrix("c", args->c, &rows);
    if (!status)
        status = mxa_tensor_read(args->c, "c", 2, 3, &shape);
    if (!status)
        status = take_result("c", args->c, NULL, 1, 1, call, &call->c);
    if (!status && args->c_wide)
        status = take_result("c_wide", args->c_wide, &shape, 0, 1, call, &call->c_wide);
    if (!status && args->activated)
        status = take_result("activated", args->activated, &shape, 1, 0, call, &call->activated);
    return status;
}

static mxattn_status check_epilogue(const mxattn_gemm_quantize_args *args, mxa_gemm_call *call)
{
    const int gradient = call->activated.ndim != 0;
    if ((unsigned)args->activation > MXATTN_ACTIVATION_RELU_SQUARED)
        return mxa_fail(MXATTN_ARGUMENT,
                        "activation is %d; it must be a mxattn_activation (0 to %d)",
                        (int)args->activation, MXATTN_ACTIVATION_RELU_SQUARED);
    if (gradient && args->activation != MXATTN_ACTIVATION_RELU &&
        args->activation != MXATTN_ACTIVATION_RELU_SQUARED)
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "activation is %d and activated is set; only of RELU (%d) and RELU_SQUARED "
                        "(%d) does the output tell the derivative",
                        (int)args->activation, MXATTN_ACTIVATION_RELU,
                        MXATTN_ACTIVATION_RELU_SQUARED);
    if (call->accumulate && !mxa_dtype_is_wide(call->c.tags.dtype))
        return mxa_fail(MXATTN_DTYPE,
                        "c.dtype is %s and accumulate is 1; only a wide c is added "
                        "to",
                        mxa_dtype_name(call->c.tags.dtype));
    if (call->head_norm && !(args->norm_eps >= 0 && isfinite(args->norm_eps)))
        return mxa_fail(MXATTN_ARGUMENT, "norm_eps is %g; it must be finite and not negative",
                        args->norm_eps);
    if (!call->head_norm && (args->norm_weight || args->norm_rstd))
        return mxa_fail(MXATTN_ARGUMENT, "%s is set; head_norm is 0",
                        args->norm_weight ? "norm_weight" : "norm_rstd");
    const int64_t heads = call->c.shape[2];
    call->norm_heads = args->norm_heads ? args->norm_heads : heads;
    if (call->norm_heads < 0 || call->norm_heads > heads)
        return mxa_fail(MXATTN_SHAPE, "norm_heads is %lld; it must be 0 to %lld, the heads of c",
                        (long long)args->norm_heads, (long long)heads);
    mxattn_status status = mxa_check_array("bias", args->bias, sizeof(float), 0);
    if (!status)
        status = mxa_check_array("norm_weight", args->norm_weight, sizeof(float), 0);
    if (!status)
        status = mxa_check_array("norm_rstd", args->norm_rstd, sizeof(float), 0);
    if (!status)
        status = mxa_take_rope(&args->rope, call->c.shape[3], &call->batch_c, "rope", &call->rope);
    return status;
}

static mxattn_status check_memory(const mxa_gemm_call *call)
{
    const struct {
        const char *name;
        const mxattn_tensor *tensor;
    } inputs[] = {{"a", &call->a}, {"b", &call->b}, {"activated", &call->activated}};
    mxattn_status status = mxa_check_apart("c_wide", &call->c_wide, "c", &call->c);
    for (size_t i = 0; !status && i < sizeof inputs / sizeof inputs[0]; i++) {
        status = mxa_check_apart("c", &call->c, inputs[i].name, inputs[i].tensor);
        if (!status)
            status = mxa_check_apart("c_wide", &call->c_wide, inputs[i].name, inputs[i].tensor);
    }
    return status;
}

mxattn_status mxa_gemm_take(const mxattn_gemm_quantize_args *args, mxa_gemm_call *call)
{
    memset(call, 0, sizeof *call);
    mxattn_status status = take_flag("transpose_a", args->transpose_a, &call->transpose_a);
    if (!status)
        status = take_flag("transpose_b", args->transpose_b, &call->transpose_b);
    if (!status)
        status = take_flag("accumulate", args->accumulate, &call->accumulate);
    if (!status)
        status = take_flag("head_norm", args->head_norm, &call->head_norm);
    if (!status)
        status = take_factors(args, call);
    if (!status)
        status = take_results(args, call);
    if (!status)
        status = check_epilogue(args, call);
    if (!status)
        status = check_memory(call);
    call->bias = args->bias;
    call->activation = args->activation;
    call->norm_weight = args->norm_weight;
    call->norm_eps = args->norm_eps;
    call->norm_rstd = args->norm_rstd;
    call->device = args->device;
    call->workspace = args->workspace;
    call->device_status = args->device_status;
    call->stream = args->stream;
    return status;
}
