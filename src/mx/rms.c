/* rms.c: how a row is divided by its root mean square, so that every backend rounds alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/rms.h"

#include <math.h>

double mxa_rms_fold(double lanes[MXA_RMS_LANES])
{
    for (int step = MXA_RMS_LANES / 2; step > 0; step /= 2) {
        for (int l = 0; l < step; l++) {
            lanes[l] += lanes[l + step];
        }
    }
    return lanes[0];
}

mxa_rms_scale mxa_rms_scale_of(double sum, int64_t count, double eps)
{
    /* Beyond these, hi would be near FP32's ends, where it has fewer bits. */
    const double least = 0x1p-60, most = 0x1p60;
    double mean = sum / (double)count + eps;
    double factor = mean == 0.0 ? 0.0 : 1.0 / sqrt(mean);
    mxa_rms_scale scale = {.prescale = 1.0F, .rstd = (float)factor};
    if (isfinite(factor) && factor > 0.0 && (factor < least || factor > most)) {
        int e = ilogb(factor);
        e = e < -126 ? -126 : e > 126 ? 126 : e;
        scale.prescale = ldexpf(1.0F, e);
        factor = ldexp(factor, -e);
    }
    scale.hi = (float)factor;
    scale.lo = (float)(factor - (double)scale.hi);
    if (!isfinite(scale.lo)) {
        scale.lo = 0.0F; /* of a NaN, which hi holds */
    }
    return scale;
}
