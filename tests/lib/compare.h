/* compare.h: the four ways to compare: exact, ulp, model-relative, aggregate. Tolerances come from
 * thresholds.h. Each reports a failure in the current case with the worst coordinate.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_COMPARE_H
#define MXT_COMPARE_H

#include "mxattn/mxattn.h"

#include <stddef.h>
#include <stdint.h>

/* The shape of what is compared, for printed coordinates. */
typedef struct mxt_shape {
    int ndim;
    int64_t size[4];
} mxt_shape;

mxt_shape mxt_shape1(int64_t a);
mxt_shape mxt_shape3(int64_t a, int64_t b, int64_t c);
mxt_shape mxt_shape4(int64_t a, int64_t b, int64_t c, int64_t d);

/* Error of got against want. Elements that are NaN in both, or the same infinity in both, agree;
 * in one only: every figure is infinite. */
typedef struct mxt_error {
    double relative_rms; /* sqrt(sum (got-want)^2 / sum want^2); 0/0 = 0 */
    double max_abs;
    double max_relative; /* max_abs / max |want| */
    double cosine;
    int64_t worst; /* index of max_abs */
} mxt_error;

mxt_error mxt_error_f32(const float *got, const float *want, int64_t count);
mxt_error mxt_error_f64(const double *got, const double *want, int64_t count);

/* Exact: bytes. */
int mxt_check_bytes(const char *what, const void *got, const void *want, size_t element_bytes,
                    mxt_shape shape);

/* Ulp: distance in representable FP32 values; +0 and -0 are the same, NaN equals NaN. */
int64_t mxt_ulp_f32(float a, float b);
int mxt_check_ulp(const char *what, const float *got, const float *want, mxt_shape shape,
                  int64_t ulps);

/* Aggregate: relative RMS at most the limit, and no disagreement on NaN and infinity. */
int mxt_check_rms(const char *what, const float *got, const float *want, mxt_shape shape,
                  double limit);

/* Every element: |got - want| <= absolute + relative*|want|. */
int mxt_check_close(const char *what, const float *got, const float *want, mxt_shape shape,
                    double absolute, double relative);

/* Model-relative: rms(got - truth) <= factor * rms(model - truth) + floor * rms(truth). */
int mxt_check_model(const char *what, const float *got, const float *model, const float *truth,
                    mxt_shape shape, double factor, double floor);

/* `count` elements of any type as FP32. */
void mxt_to_f32(float *out, const void *data, mxattn_dtype dtype, int64_t count);

#endif
