/* validate_problem.c: an attention problem: which values are legal, and every default resolved.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* Power-of-two factors of dQ that FP16 could ever need. */
enum { LARGEST_DQ_SCALE_LOG2 = 64 };

static mxattn_status check_choices(const mxattn_attention_problem *problem)
{
    const struct {
        const char *name;
        int value, most;
    } choices[] = {
        {"mode", (int)problem->mode, MXATTN_TRAINING},
        {"format", (int)problem->format, MXATTN_JAGGED},
        {"precision", (int)problem->precision, MXATTN_PRECISION_F64},
        {"causal", problem->causal, 1},
        {"alignment", (int)problem->alignment, MXATTN_TOP_LEFT},
        {"has_sink", problem->has_sink, 1},
        {"causal_strict", problem->causal_strict, 1},
        {"deterministic", problem->deterministic, 1},
        {"intermediates", (int)problem->intermediates, MXATTN_INTERMEDIATES_E4M3},
        {"dq_reduce", (int)problem->dq_reduce, MXATTN_DQ_REDUCE_FP32},
    };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (choices[i].value < 0 || choices[i].value > choices[i].most)
            return mxa_fail(MXATTN_ARGUMENT, "problem.%s is %d; it must be 0 to %d",
                            choices[i].name, choices[i].value, choices[i].most);
    }
    return MXATTN_OK;
}

static mxattn_status check_sizes(const mxattn_attention_problem *problem)
{
    const int jagged = problem->format == MXATTN_JAGGED;
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {
        {"batch", problem->batch, 0},
        {"max_seqlen_q", problem->max_seqlen_q, 0},
        {"max_seqlen_k", problem->max_seqlen_k, 0},
        {"total_q", jagged ? problem->total_q : 0, 0},
        {"total_k", jagged ? problem->total_k : 0, 0},
        {"heads", problem->heads, 1},
        {"kv_heads", problem->kv_heads, 1},
        {"head_dim", problem->head_dim, 1},
        {"head_dim_v", problem->head_dim_v, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].least || sizes[i].value > MXA_MAX_COUNT)
            return mxa_fail(MXATTN_SHAPE, "problem.%s is %lld; it must be %lld to %lld",
                            sizes[i].name, (long long)sizes[i].value, (long long)sizes[i].least,
                            (long long)MXA_MAX_COUNT);
    }
    if (problem->heads % problem->kv_heads != 0)
        return mxa_fail(MXATTN_SHAPE,
                        "problem.heads is %lld; it must be a multiple of kv_heads "
                        "(%lld)",
                        (long long)problem->heads, (long long)problem->kv_heads);
    return MXATTN_OK;
}

/* Tokens of a dense batch, and no tensor beyond the library's range. Counts are below 2^31. */
static mxattn_status resolve_sizes(mxattn_attention_problem *problem)
{
    if (problem->head_dim_v == 0)
        problem->head_dim_v = problem->head_dim;
    if (problem->format == MXATTN_DENSE) {
        problem->total_q = problem->batch * problem->max_seqlen_q;
        problem->total_k = problem->batch * problem->max_seqlen_k;
    }
    const int64_t tokens[] = {problem->total_q, problem->total_k};
    const int64_t heads[] = {problem->heads, problem->kv_heads};
    const int64_t dim =
        problem->head_dim > problem->head_dim_v ? problem->head_dim : problem->head_dim_v;
    for (int i = 0; i < 2; i++) {
        int64_t elements = 0;
        if (__builtin_mul_overflow(tokens[i], heads[i] * dim, &elements) ||
            elements > MXA_MAX_ELEMENTS)
            return mxa_fail(MXATTN_SHAPE,
                            "problem asks for %s of %lld tokens, %lld heads and head_dim %lld; a "
                            "tensor holds at most 2^56 elements",
                            i == 0 ? "q" : "k and v", (long long)tokens[i], (long long)heads[i],
                            (long long)dim);
    }
    return MXATTN_OK;
}

static mxattn_status resolve_numbers(mxattn_attention_problem *problem)
{
    for (int side = 0; side < 2; side++) {
        if (problem->window[side] < -1)
            return mxa_fail(MXATTN_ARGUMENT,
                            "problem.window[%d] is %lld; it must be -1 (all keys) or more", side,
                            (long long)problem->window[side]);
    }
    if (problem->causal)
        problem->window[1] = 0;
    if (isinf(problem->softmax_scale))
        return mxa_fail(MXATTN_ARGUMENT,
                        "problem.softmax_scale is %g; it must be finite, or NAN "
                        "for 1/sqrt(head_dim)",
                        problem->softmax_scale);
    if (isnan(problem->softmax_scale))
        problem->softmax_scale = 1.0 / sqrt((double)problem->head_dim);
    if (!(problem->softcap >= 0.0 && problem->softcap < INFINITY))
        return mxa_fail(MXATTN_ARGUMENT, "problem.softcap is %g; it must be finite and at least 0",
                        problem->softcap);
    /* Beyond these it is the same function in FP32, whose range its factors would leave. */
    if (problem->softcap > 0.0)
        problem->softcap = fmin(fmax(problem->softcap, 1e-30), 1e30);
    const int32_t log2 = problem->dq_scale_log2;
    if (log2 != MXATTN_DQ_SCALE_AUTO &&
        (log2 < -LARGEST_DQ_SCALE_LOG2 || log2 > LARGEST_DQ_SCALE_LOG2))
        return mxa_fail(MXATTN_ARGUMENT,
                        "problem.dq_scale_log2 is %d; it must be -%d to %d, or "
                        "MXATTN_DQ_SCALE_AUTO",
                        (int)log2, LARGEST_DQ_SCALE_LOG2, LARGEST_DQ_SCALE_LOG2);
    return MXATTN_OK;
}

/* q, k, v, dout: FP8 in blocks, or wide and quantized by the call. */
static mxattn_status check_operand(const char *name, const mxattn_tags *tags,
                                   const mxattn_attention_problem *problem, int centre_allowed)
{
    mxattn_status status = mxa_check_tags(name, tags);
    if (status)
        return status;
    if (tags->dtype == MXATTN_DTYPE_NONE)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is none; this tensor cannot be absent", name);
    if (tags->block == MXATTN_BLOCK_NONE && problem->precision != MXATTN_PRECISION_F64)
        return mxa_fail(MXATTN_LAYOUT,
                        "%s.block is none; a %s operand names the block the call quantizes it to "
                        "(only backend ref with precision F64 takes it as it is)",
                        name, mxa_dtype_name(tags->dtype));
    if ((tags->flags & MXATTN_CENTRED) && !centre_allowed)
        return mxa_fail(MXATTN_UNSUPPORTED, "%s.flags has MXATTN_CENTRED; only v may carry a mean",
                        name);
    return MXATTN_OK;
}

/* q_seq, k_seq, v_seq: the column partner of a row tensor, or absent. */
static mxattn_status resolve_partner(const char *name, mxattn_tags *tags, const mxattn_tags *row)
{
    if (tags->dtype == MXATTN_DTYPE_NONE) {
        *tags = (mxattn_tags){0};
        return MXATTN_OK;
    }
    mxattn_status status = mxa_check_tags(name, tags);
    if (status)
        return status;
    if (tags->block != MXATTN_BLOCK_COLUMN || row->block != MXATTN_BLOCK_ROW)
        return mxa_fail(MXATTN_LAYOUT,
                        "%s.block is %s and its partner's is %s; a pair is column and row", name,
                        mxa_block_name(tags->block), mxa_block_name(row->block));
    if (tags->flags != 0)
        return mxa_fail(MXATTN_LAYOUT, "%s.flags is 0x%x; a column partner has none", name,
                        (unsigned)tags->flags);
    return MXATTN_OK;
}

/* o, dq, dk, dv: wide, or FP8 in blocks. */
static mxattn_status check_output(const char *name, const mxattn_tags *tags)
{
    mxattn_status status = mxa_check_tags(name, tags);
    if (status)
        return status;
    if (tags->dtype == MXATTN_DTYPE_NONE)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is none; this tensor cannot be absent", name);
    if (mxa_dtype_is_wide(tags->dtype) && tags->block != MXATTN_BLOCK_NONE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %s; a %s output has none", name,
                        mxa_block_name(tags->block), mxa_dtype_name(tags->dtype));
    if (tags->flags & MXATTN_CENTRED)
        return mxa_fail(MXATTN_UNSUPPORTED, "%s.flags has MXATTN_CENTRED; outputs carry no mean",
                        name);
    return MXATTN_OK;
}

static mxattn_status resolve_tensors(mxattn_attention_problem *problem)
{
    mxattn_status status = check_operand("problem.q", &problem->q, problem, 0);
    if (!status)
        status = check_operand("problem.k", &problem->k, problem, 0);
    if (!status)
        status = check_operand("problem.v", &problem->v, problem, 1);
    if (!status)
        status = check_output("problem.o", &problem->o);
    if (problem->mode == MXATTN_TRAINING) {
        if (!status)
            status = check_operand("problem.dout", &problem->dout, problem, 0);
        if (!status)
            status = check_output("problem.dq", &problem->dq);
        if (!status)
            status = check_output("problem.dk", &problem->dk);
        if (!status)
            status = check_output("problem.dv", &problem->dv);
    } else {
        const mxattn_tags none = {0};
        problem->q_seq = problem->k_seq = none; /* read by backward only */
        problem->dout = problem->dq = problem->dk = problem->dv = none;
        problem->dq_scale_log2 = MXATTN_DQ_SCALE_AUTO;
    }
    if (!status)
        status = resolve_partner("problem.q_seq", &problem->q_seq, &problem->q);
    if (!status)
        status = resolve_partner("problem.k_seq", &problem->k_seq, &problem->k);
    if (!status)
        status = resolve_partner("problem.v_seq", &problem->v_seq, &problem->v);
    return status;
}

/* causal_strict: nothing that row i reads may share a scale or a mean with a later token. */
static mxattn_status check_strict(const mxattn_attention_problem *problem)
{
    const struct {
        const char *name;
        const mxattn_tags *tags;
    } operands[] = {{"q", &problem->q}, {"k", &problem->k}, {"v", &problem->v}, {"o", &problem->o}};
    const struct {
        const char *name;
        const mxattn_tags *tags;
    } partners[] = {
        {"q_seq", &problem->q_seq}, {"k_seq", &problem->k_seq}, {"v_seq", &problem->v_seq}};
    if (!problem->causal_strict)
        return MXATTN_OK;
    if (!problem->causal)
        return mxa_fail(MXATTN_ARGUMENT, "problem.causal is 0; causal_strict needs causal masking");
    for (size_t i = 0; i < 4; i++) {
        const mxattn_block block = operands[i].tags->block;
        if (block != MXATTN_BLOCK_ROW && block != MXATTN_BLOCK_NONE)
            return mxa_fail(MXATTN_LAYOUT, "problem.%s.block is %s; causal_strict needs row",
                            operands[i].name, mxa_block_name(block));
        if (operands[i].tags->flags & MXATTN_CENTRED)
            return mxa_fail(MXATTN_LAYOUT,
                            "problem.%s.flags has MXATTN_CENTRED; causal_strict allows no mean, "
                            "which looks ahead",
                            operands[i].name);
    }
    for (size_t i = 0; i < 3; i++) {
        if (partners[i].tags->dtype != MXATTN_DTYPE_NONE)
            return mxa_fail(MXATTN_LAYOUT,
                            "problem.%s is %s; causal_strict allows no column partner, which "
                            "shares scales with later tokens",
                            partners[i].name, mxa_dtype_name(partners[i].tags->dtype));
    }
    return MXATTN_OK;
}

mxattn_status mxa_problem_take(const mxattn_attention_problem *user, const mxa_backend **backend,
                               mxattn_attention_problem *problem)
{
    mxattn_attention_problem_init(problem);
    mxattn_status status = mxa_struct_read(problem, sizeof *problem, user, "problem");
    if (!status)
        status = mxa_backend_take(problem->backend, problem->device, backend);
    if (!status)
        status = check_choices(problem);
    if (status)
        return status;
    problem->backend = (*backend)->id;
    problem->device += (*backend)->first_device;
    if (problem->precision != MXATTN_PRECISION_MXFP8 && problem->backend != MXATTN_BACKEND_REF)
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.precision is %s; backend %s computes MXFP8, "
                        "only ref has others",
                        problem->precision == MXATTN_PRECISION_F64 ? "F64" : "MODEL",
                        (*backend)->name);
    if (problem->precision == MXATTN_PRECISION_MXFP8 && problem->backend == MXATTN_BACKEND_REF)
        problem->precision = MXATTN_PRECISION_MODEL;
    status = check_sizes(problem);
    if (!status)
        status = resolve_sizes(problem);
    if (!status)
        status = resolve_numbers(problem);
    if (!status)
        status = resolve_tensors(problem);
    if (!status)
        status = check_strict(problem);
    return status;
}
