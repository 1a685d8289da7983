/* cases.h: named cases, each run with every configuration of attention.h that this build has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_CASES_H
#define MXT_CASES_H

#include "attention.h"
#include "compare.h"
#include "report.h"
#include "thresholds.h"

typedef struct mxt_named_case {
    const char *name; /* begins with its number in the list of public reports */
    void (*run)(const mxt_config *config);
} mxt_named_case;

/* Runs cases x configurations; with a word on the command line only the cases whose name begins
 * with it. Returns main's exit status. */
int mxt_run_cases(const mxt_named_case *cases, int count, int argc, char **argv);

/* Ends the case, skipped, on a device: it calls the library with host memory itself. */
void mxt_host_only(const mxt_config *config);

/* Relative error that rounding costs O, and the gradients; MXT_EXACT_INPUT in float64. */
double mxt_config_rounding(const mxt_config *config);
double mxt_config_rounding_gradient(const mxt_config *config);

/* Every element of a row is `want` within absolute + |want| * relative; on a device, whose scores
 * are rounded, a tolerance is at least MXT_CUDA_EXPECT, 0 apart. */
int mxt_expect(const char *what, const float *row, int64_t count, double want, double tolerance);
int mxt_expect_one(const char *what, float got, double want, double tolerance);

/* LSE of a configuration against float64, or against another run of it. */
int mxt_check_lse(const mxt_config *config, const float *got, const float *want, int64_t count);

/* Every element is finite. */
int mxt_expect_finite(const char *what, const float *array, int64_t count);

/* Forward (and backward) with these inputs against float64: relative RMS within what rounding of P
 * and dS costs. For inputs that quantization holds exactly. */
void mxt_check_exact_inputs(mxt_attention *a, const mxt_config *config, int backward);

#endif
