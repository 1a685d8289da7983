/* cases.c: the runner of named cases, and what they expect.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"

#include "device_args.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

static jmp_buf case_end;
static double least_tolerance; /* of the configuration that runs */

static void leave(void)
{
    longjmp(case_end, 1);
}

void mxt_host_only(const mxt_config *config)
{
    if (mxt_on_device(config->backend)) {
        mxt_skip("it calls the library with host memory");
        leave();
    }
}

double mxt_config_rounding(const mxt_config *config)
{
    if (mxt_config_exact(config))
        return MXT_EXACT_INPUT;
    return config->intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_P_E4M3 : MXT_P_BF16;
}

double mxt_config_rounding_gradient(const mxt_config *config)
{
    if (mxt_config_exact(config))
        return MXT_EXACT_INPUT;
    return config->intermediates == MXATTN_INTERMEDIATES_E4M3 ? MXT_DS_E4M3 : MXT_DS_BF16;
}

/* WHY apart: nothing of the loops may live in a register across setjmp. */
static void run(const mxt_named_case *one, const mxt_config *config)
{
    least_tolerance = mxt_on_device(config->backend) ? MXT_CUDA_EXPECT : 0;
    if (!setjmp(case_end))
        one->run(config);
}

int mxt_run_cases(const mxt_named_case *cases, int count, int argc, char **argv)
{
    mxt_case_leave = leave;
    for (int c = 0; c < MXT_CONFIGS; c++) {
        const mxt_config *config = &mxt_configs[c];
        const char *missing = mxt_config_missing(config);
        if (missing) {
            mxt_case("%s", config->name);
            mxt_skip("%s", missing);
            continue;
        }
        for (int i = 0; i < count; i++) {
            if (argc > 1 && strncmp(cases[i].name, argv[1], strlen(argv[1])) != 0)
                continue;
            mxt_case("%s, %s", cases[i].name, config->name);
            run(&cases[i], config);
        }
    }
    return mxt_finish();
}

int mxt_expect(const char *what, const float *row, int64_t count, double want, double tolerance)
{
    if (tolerance > 0 && tolerance < least_tolerance)
        tolerance = least_tolerance;
    for (int64_t i = 0; i < count; i++) {
        const double got = (double)row[i];
        if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))) && got != want)
            return CHECK(0, "%s[%lld] is %.9g; want %.9g within %g", what, (long long)i, got, want,
                         tolerance);
    }
    return 1;
}

int mxt_expect_one(const char *what, float got, double want, double tolerance)
{
    return mxt_expect(what, &got, 1, want, tolerance);
}

int mxt_check_lse(const mxt_config *config, const float *got, const float *want, int64_t count)
{
    const int on_device = mxt_on_device(config->backend);
    return mxt_check_close("lse", got, want, mxt_shape1(count),
                           on_device ? MXT_CUDA_LSE_ABSOLUTE : MXT_LSE_ABSOLUTE,
                           on_device ? MXT_CUDA_LSE_RELATIVE : MXT_LSE_RELATIVE);
}

int mxt_expect_finite(const char *what, const float *array, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(array[i]))
            return CHECK(0, "%s[%lld] is %g; it must be finite", what, (long long)i,
                         (double)array[i]);
    return 1;
}

void mxt_check_exact_inputs(mxt_attention *a, const mxt_config *config, int backward)
{
    const double limit_o = mxt_config_rounding(config);
    const double limit = mxt_config_rounding_gradient(config);
    mxt_attention exact;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(a, &exact, backward));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    mxt_check_rms("o", a->o, exact.o, mxt_shape1(mxt_size_o(a)), limit_o);
    mxt_check_lse(config, a->lse, exact.lse, mxt_size_lse(a));
    if (backward) {
        CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
        mxt_check_rms("dq", a->dq, exact.dq, mxt_shape1(mxt_size_q(a)), limit);
        mxt_check_rms("dk", a->dk, exact.dk, mxt_shape1(mxt_size_k(a)), limit);
        mxt_check_rms("dv", a->dv, exact.dv, mxt_shape1(mxt_size_v(a)), limit);
        if (a->dsink)
            mxt_check_rms("dsink", a->dsink, exact.dsink, mxt_shape1(a->problem.heads), limit);
    }
    mxt_attention_free(&exact);
}
