/* test_validate_problem.c: every rule of a problem: one field spoilt, one status, one sentence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "device_run.h"
#include "report.h"

#include <math.h>
#include <string.h>

static mxattn_attention_problem problem;

/* A valid problem again. */
static void fresh(void)
{
    mxattn_attention_problem_init(&problem);
    problem.backend = MXATTN_BACKEND_REF;
    problem.mode = MXATTN_TRAINING;
    problem.batch = 2;
    problem.max_seqlen_q = problem.max_seqlen_k = 64;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 32;
}

/* Expects `wanted` and a sentence with both needles, and *plan left alone. */
static void refused(mxattn_status wanted, const char *needle, const char *rule, const char *change)
{
    mxattn_plan *plan = (mxattn_plan *)&problem;
    const mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    mxt_case("%s", change);
    CHECK(status == wanted, "status is %s, not %s; \"%s\"", mxattn_status_name(status),
          mxattn_status_name(wanted), mxattn_last_error());
    CHECK(strstr(mxattn_last_error(), needle) && strstr(mxattn_last_error(), rule),
          "\"%s\" lacks \"%s\" or \"%s\"", mxattn_last_error(), needle, rule);
    CHECK(plan == (mxattn_plan *)&problem, "plan was written");
}

static void accepted(const char *change)
{
    mxattn_plan *plan = NULL;
    const mxattn_status status = mxattn_plan_create(NULL, &problem, &plan);
    mxt_case("%s", change);
    CHECK(status == MXATTN_OK, "status is %s: %s", mxattn_status_name(status), mxattn_last_error());
    mxattn_plan_destroy(plan);
}

#define REFUSED(wanted, needle, rule, ...)                                                         \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        refused(wanted, needle, rule, #__VA_ARGS__);                                               \
    } while (0)

#define ACCEPTED(...)                                                                              \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        accepted(#__VA_ARGS__);                                                                    \
    } while (0)

static void test_choices(void)
{
    REFUSED(MXATTN_ARGUMENT, "backend is 9", "mxattn_backend", problem.backend = (mxattn_backend)9);
    if (mxt_device_missing(MXATTN_BACKEND_CUDA))
        REFUSED(MXATTN_NO_BACKEND, "backend is cuda", "", problem.backend = MXATTN_BACKEND_CUDA);
    REFUSED(MXATTN_ARGUMENT, "device is -1", "negative", problem.device = -1);
    REFUSED(MXATTN_NO_BACKEND, "device is 1", "device 0 only", problem.device = 1);
    REFUSED(MXATTN_ARGUMENT, "mode is 2", "0 to 1", problem.mode = (mxattn_mode)2);
    REFUSED(MXATTN_ARGUMENT, "format is 7", "0 to 1", problem.format = (mxattn_format)7);
    REFUSED(MXATTN_ARGUMENT, "precision is 3", "0 to 2", problem.precision = (mxattn_precision)3);
    REFUSED(MXATTN_UNSUPPORTED, "precision is F64", "only ref",
            (problem.precision = MXATTN_PRECISION_F64, problem.backend = MXATTN_BACKEND_CPU));
    REFUSED(MXATTN_UNSUPPORTED, "precision is MODEL", "only ref",
            (problem.precision = MXATTN_PRECISION_MODEL, problem.backend = MXATTN_BACKEND_AUTO));
    REFUSED(MXATTN_ARGUMENT, "causal is 2", "0 to 1", problem.causal = 2);
    REFUSED(MXATTN_ARGUMENT, "has_sink is -1", "0 to 1", problem.has_sink = -1);
    REFUSED(MXATTN_ARGUMENT, "deterministic is 5", "0 to 1", problem.deterministic = 5);
    REFUSED(MXATTN_ARGUMENT, "alignment is 2", "0 to 1", problem.alignment = (mxattn_alignment)2);
    REFUSED(MXATTN_ARGUMENT, "intermediates is 3", "0 to 2",
            problem.intermediates = (mxattn_intermediates)3);
    REFUSED(MXATTN_ARGUMENT, "dq_reduce is 3", "0 to 2", problem.dq_reduce = (mxattn_dq_reduce)3);
}

static void test_sizes(void)
{
    REFUSED(MXATTN_SHAPE, "batch is -1", "0 to", problem.batch = -1);
    REFUSED(MXATTN_SHAPE, "max_seqlen_q is -5", "0 to", problem.max_seqlen_q = -5);
    REFUSED(MXATTN_SHAPE, "max_seqlen_k is 2147483648", "0 to",
            problem.max_seqlen_k = INT64_C(1) << 31);
    REFUSED(MXATTN_SHAPE, "total_q is -2", "0 to",
            (problem.format = MXATTN_JAGGED, problem.total_q = -2));
    REFUSED(MXATTN_SHAPE, "head_dim is 0", "1 to", problem.head_dim = 0);
    REFUSED(MXATTN_SHAPE, "head_dim_v is -8", "0 to", problem.head_dim_v = -8);
    /* Cases B46: ratios that are none. */
    REFUSED(MXATTN_SHAPE, "heads is 3", "kv_heads (2)", problem.heads = 3);
    REFUSED(MXATTN_SHAPE, "heads is 33", "kv_heads (2)", problem.heads = 33);
    REFUSED(MXATTN_SHAPE, "kv_heads is 0", "1 to", problem.kv_heads = 0);
    REFUSED(MXATTN_SHAPE, "heads is 0", "1 to", problem.heads = 0);
    REFUSED(MXATTN_SHAPE, "2147483647 heads", "2^56",
            (problem.batch = 1 << 20, problem.heads = problem.kv_heads = INT64_C(0x7fffffff)));
    ACCEPTED(problem.heads = 14);
    ACCEPTED(problem.batch = 0);
    ACCEPTED(problem.max_seqlen_q = 0);
    ACCEPTED((problem.total_q = -1, problem.total_k = -1)); /* dense: ignored */
}

static void test_mask_and_numbers(void)
{
    REFUSED(MXATTN_ARGUMENT, "window[0] is -8", "-1 (all keys)", problem.window[0] = -8); /* B76 */
    REFUSED(MXATTN_ARGUMENT, "window[1] is -2", "-1 (all keys)", problem.window[1] = -2);
    REFUSED(MXATTN_ARGUMENT, "softmax_scale is inf", "finite", problem.softmax_scale = INFINITY);
    REFUSED(MXATTN_ARGUMENT, "softcap is -1", "at least 0", problem.softcap = -1.0);
    REFUSED(MXATTN_ARGUMENT, "softcap is nan", "finite", problem.softcap = NAN);
    REFUSED(MXATTN_ARGUMENT, "softcap is inf", "finite", problem.softcap = INFINITY);
    REFUSED(MXATTN_ARGUMENT, "dq_scale_log2 is 65", "-64 to 64",
            (problem.dq_reduce = MXATTN_DQ_REDUCE_FP16, problem.dq_scale_log2 = 65));
    REFUSED(MXATTN_ARGUMENT, "dq_scale_log2 is 12", "FP16",
            (problem.dq_reduce = MXATTN_DQ_REDUCE_FP32, problem.dq_scale_log2 = 12));
    ACCEPTED((problem.dq_reduce = MXATTN_DQ_REDUCE_FP16, problem.dq_scale_log2 = 12));
    ACCEPTED(problem.softmax_scale = 0.0);
    ACCEPTED(problem.softmax_scale = -1.0);
    ACCEPTED((problem.window[0] = 0, problem.window[1] = 0));
}

static void test_tags(void)
{
    REFUSED(MXATTN_DTYPE, "problem.q.dtype is 6", "mxattn_dtype",
            problem.q.dtype = (mxattn_dtype)6);
    REFUSED(MXATTN_DTYPE, "problem.k.dtype is none", "cannot be absent",
            problem.k.dtype = MXATTN_DTYPE_NONE);
    REFUSED(MXATTN_LAYOUT, "problem.v.block is none", "row, column or square",
            problem.v.block = MXATTN_BLOCK_NONE);
    REFUSED(MXATTN_LAYOUT, "problem.q.block is 4", "mxattn_block",
            problem.q.block = (mxattn_block)4);
    REFUSED(MXATTN_LAYOUT, "problem.q.rounding is 2", "RCEIL",
            problem.q.rounding = (mxattn_rounding)2);
    REFUSED(MXATTN_LAYOUT, "problem.q.flags is 0x8", "knows", problem.q.flags = 8);
    REFUSED(MXATTN_LAYOUT, "problem.q.block is row", "MXATTN_FOLDED needs square",
            (problem.q.block = MXATTN_BLOCK_ROW, problem.q.flags = MXATTN_FOLDED));
    REFUSED(MXATTN_LAYOUT, "problem.k.block is square", "MXATTN_FOLDED_TOKEN needs row",
            problem.k.flags = MXATTN_FOLDED_TOKEN);
    REFUSED(MXATTN_UNSUPPORTED, "problem.k.flags", "only v", problem.k.flags = MXATTN_CENTRED);
    REFUSED(MXATTN_LAYOUT, "problem.q.block is none", "precision F64",
            (problem.q.dtype = MXATTN_BF16, problem.q.block = MXATTN_BLOCK_NONE));
    REFUSED(MXATTN_LAYOUT, "problem.dout.block is none", "quantizes",
            problem.dout.block = MXATTN_BLOCK_NONE);
    REFUSED(MXATTN_LAYOUT, "problem.o.block is row", "bf16 output",
            problem.o.block = MXATTN_BLOCK_ROW);
    REFUSED(MXATTN_DTYPE, "problem.dv.dtype is none", "absent",
            problem.dv.dtype = MXATTN_DTYPE_NONE);
    REFUSED(MXATTN_LAYOUT, "problem.q_seq.block is column", "square",
            (problem.q_seq.dtype = MXATTN_E4M3, problem.q_seq.block = MXATTN_BLOCK_COLUMN));
    ACCEPTED((problem.dv.dtype = MXATTN_DTYPE_NONE, problem.mode = MXATTN_INFERENCE));
    ACCEPTED((problem.precision = MXATTN_PRECISION_F64, problem.q.dtype = MXATTN_F32,
              problem.q.block = MXATTN_BLOCK_NONE));
    ACCEPTED(problem.v.flags = MXATTN_CENTRED);
    ACCEPTED(problem.q.dtype = MXATTN_E5M2);
}

/* A strict problem: causal, rows, o wide. */
static void strict(void)
{
    problem.causal = problem.causal_strict = 1;
    problem.q.block = problem.k.block = problem.v.block = MXATTN_BLOCK_ROW;
    problem.dout.block = MXATTN_BLOCK_ROW;
}

static void test_strict(void)
{
    ACCEPTED(strict());
    ACCEPTED((strict(), problem.alignment = MXATTN_TOP_LEFT));
    ACCEPTED((strict(), problem.k.flags = MXATTN_FOLDED_TOKEN));
    REFUSED(MXATTN_ARGUMENT, "causal is 0", "causal_strict", (strict(), problem.causal = 0));
    REFUSED(MXATTN_LAYOUT, "problem.v.block is square", "causal_strict needs row",
            (strict(), problem.v.block = MXATTN_BLOCK_SQUARE));
    REFUSED(MXATTN_LAYOUT, "problem.v.flags", "looks ahead",
            (strict(), problem.v.flags = MXATTN_CENTRED));
    REFUSED(
        MXATTN_LAYOUT, "problem.v_seq is e4m3", "later tokens",
        (strict(), problem.v_seq.dtype = MXATTN_E4M3, problem.v_seq.block = MXATTN_BLOCK_COLUMN));
    REFUSED(MXATTN_LAYOUT, "problem.o.block is square", "causal_strict needs row",
            (strict(), problem.o.dtype = MXATTN_E4M3, problem.o.block = MXATTN_BLOCK_SQUARE));
}

int main(void)
{
    test_choices();
    test_sizes();
    test_mask_and_numbers();
    test_tags();
    test_strict();
    mxt_case("plan is NULL");
    fresh();
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_create(NULL, &problem, NULL));
    return mxt_finish();
}
