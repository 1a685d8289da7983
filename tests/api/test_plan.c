/* test_plan.c: what a plan tells, which plans share saved memory, and what a plan costs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static mxattn_plan_info info_of(const mxattn_attention_problem *problem)
{
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, problem, &plan));
    if (plan)
        CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    mxattn_plan_destroy(plan);
    return info;
}

/* The strings belong to the plan: looked at while it lives. */
static void test_info(mxattn_backend backend)
{
    mxt_attention_call call;
    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxt_attention_call_init(&call, backend, MXATTN_DENSE);
    mxt_case("what a plan tells, backend %d", (int)backend);
    mxattn_plan_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &call.problem, &plan));
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    CHECK(info.struct_size == sizeof info, "struct_size is %zu", info.struct_size);
    CHECK(info.backend == backend, "backend is %d", (int)info.backend);
    CHECK(strncmp(info.kernel_forward, "mxa_", 4) == 0, "\"%s\"", info.kernel_forward);
    CHECK(strncmp(info.kernel_backward, "mxa_", 4) == 0, "\"%s\"", info.kernel_backward);
    CHECK(info.isa_name[0] != '\0' && info.threads >= 1, "isa \"%s\", %d threads", info.isa_name,
          (int)info.threads);
    CHECK(info.intermediates == MXATTN_INTERMEDIATES_BF16, "intermediates %d",
          (int)info.intermediates);
    CHECK(info.dq_reduce == MXATTN_DQ_REDUCE_FP32, "dq_reduce %d", (int)info.dq_reduce);
    CHECK(fabs(info.softmax_scale - 1 / sqrt(32.0)) < 1e-15, "scale %g", info.softmax_scale);
    CHECK(info.max_headroom_log2 >= 0 && info.max_headroom_log2 <= 3, "headroom %d",
          (int)info.max_headroom_log2);
    CHECK(info.saved_bytes > 0 && info.saved_id != 0, "saved %lld", (long long)info.saved_bytes);
    mxattn_plan_destroy(plan);
    call.problem.mode = MXATTN_INFERENCE;
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &call.problem, &plan));
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    CHECK(info.kernel_backward[0] == '\0' && info.saved_bytes == 0 && info.saved_id == 0,
          "an inference plan has a backward \"%s\" and %lld saved bytes", info.kernel_backward,
          (long long)info.saved_bytes);
    mxattn_plan_destroy(plan);
    mxt_attention_call_free(&call);
}

static void test_saved_id(mxattn_backend backend)
{
    mxt_attention_call call;
    mxt_attention_call_init(&call, backend, MXATTN_DENSE);
    mxattn_attention_problem *problem = &call.problem;
    const mxattn_attention_problem plain = *problem;
    mxt_case("saved_id, backend %d", (int)backend);
    const uint64_t id = info_of(problem).saved_id;
    problem->deterministic = 1;
    problem->dq.dtype = MXATTN_F32;
    problem->dq_reduce = MXATTN_DQ_REDUCE_FP16;
    CHECK(info_of(problem).saved_id == id, "what only backward does changes the id");
    *problem = plain;
    problem->softmax_scale = 1 / sqrt(32.0);
    CHECK(info_of(problem).saved_id == id, "the default scale, written out, changes the id");
    problem->softmax_scale = 0.5;
    CHECK(info_of(problem).saved_id != id, "another scale keeps the id");
    *problem = plain;
    problem->causal = 1;
    const uint64_t causal = info_of(problem).saved_id;
    CHECK(causal != id, "causal keeps the id");
    problem->causal = 0;
    problem->window[1] = 0;
    CHECK(info_of(problem).saved_id == causal, "causal and the equal window differ");
    *problem = plain;
    problem->v.rounding = MXATTN_FLOOR;
    CHECK(info_of(problem).saved_id != id, "another rounding keeps the id");
    *problem = plain;
    problem->max_seqlen_q = 41;
    CHECK(info_of(problem).saved_id != id, "another bound keeps the id");
    mxt_attention_call_free(&call);
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The best of many, so that a busy machine does not decide; the sanitizers' builds pass too. */
static void test_cost(mxattn_backend backend)
{
    mxt_attention_call call;
    mxt_attention_call_init(&call, backend, MXATTN_JAGGED);
    double best = 1;
    mxt_case("a plan costs less than 20 microseconds, backend %d", (int)backend);
    for (int i = 0; i < 2000; i++) {
        mxattn_plan *plan = NULL;
        const double start = seconds();
        const mxattn_status status = mxattn_plan_create(NULL, &call.problem, &plan);
        const double took = seconds() - start;
        mxattn_plan_destroy(plan);
        if (!CHECK(status == MXATTN_OK, "%s", mxattn_last_error()))
            break;
        if (took < best)
            best = took;
    }
    (void)printf("plan: %.2f us at best, backend %d\n", best * 1e6, (int)backend);
    CHECK(best < 20e-6, "%.1f us at best of 2000", best * 1e6);
    mxt_attention_call_free(&call);
}

int main(void)
{
    for (mxattn_backend backend = MXATTN_BACKEND_REF; backend <= MXATTN_BACKEND_CPU; backend++) {
        if (mxt_attention_call_missing(backend)) {
            mxt_case("backend %d", (int)backend);
            mxt_skip("%s", mxt_attention_call_missing(backend));
            continue;
        }
        test_info(backend);
        test_saved_id(backend);
        test_cost(backend);
    }
    return mxt_finish();
}
