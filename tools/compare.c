/* compare.c: how far two arrays are apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"

#include <math.h>

mxc_error mxc_compare(const float *got, const float *right, int64_t count)
{
    double difference = 0, size = 0, got_size = 0, product = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = (double)got[i], r = (double)right[i];
        if (isinf(g) && g == r)
            continue;
        double d = g - r;
        if (!isfinite(d))
            return (mxc_error){
                .rms = (double)INFINITY, .absolute = (double)INFINITY, .max = (double)INFINITY};
        difference += d * d;
        size += r * r;
        got_size += g * g;
        product += g * r;
        largest = fmax(largest, fabs(d));
    }
    mxc_error error = {.max = largest, .cosine = 1};
    if (difference > 0) {
        error.absolute = sqrt(difference / (double)count);
        error.rms = sqrt(difference / size);
    }
    if (size > 0 && got_size > 0)
        error.cosine = product / sqrt(size * got_size);
    return error;
}
