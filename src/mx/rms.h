/* rms.h: how a row is divided by its root mean square, so that every backend rounds alike.
 *
 * The squares of a row are exact in float64 and are summed there, in MXA_RMS_LANES partial sums:
 * element i belongs to sum i % 16; then sum l takes in sum l+8, l+4, l+2, l+1. The factor
 * 1/sqrt(mean + eps) is held as a power of two times a pair hi + lo of FP32 numbers, and
 *
 *     y = fma(x', hi, x' * lo) * weight,    x' = x * prescale
 *
 * in FP32: within half a unit of the exact quotient before the weight. A row of equal magnitudes
 * gives exactly +-1, whatever they are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_MX_RMS_H
#define MXA_MX_RMS_H

#include <stdint.h>

enum { MXA_RMS_LANES = 16 };

typedef struct mxa_rms_scale {
    float prescale; /* a power of two; 1 but for huge and tiny rows */
    float hi, lo;
    float rstd;
} mxa_rms_scale;

/* The sum of the partial sums, which it overwrites. */
double mxa_rms_fold(double lanes[MXA_RMS_LANES]);

/* From the sum of `count` squares. A sum and an eps of 0 give factor 0. */
mxa_rms_scale mxa_rms_scale_of(double sum, int64_t count, double eps);

#endif
