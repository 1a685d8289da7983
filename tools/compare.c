/* compare.c: how far two arrays are apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"

#include <math.h>

mxc_error mxc_compare(const float *got, const float *right, int64_t count, double scale)
{
    double difference = 0, size = 0, got_size = 0, product = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = (double)got[i], r = (double)right[i];
        if (isinf(g) && g == r)
            continue;
        double d = g - r;
        if (!isfinite(d))
            return (mxc_error){.rms = (double)INFINITY, .max = (double)INFINITY};
        difference += d * d;
        size += r * r;
        got_size += g * g;
        product += g * r;
        largest = fmax(largest, fabs(d));
    }
    double root = sqrt(size), least = scale * sqrt((double)count);
    mxc_error error = {.max = largest, .cosine = 1};
    if (difference > 0)
        error.rms = sqrt(difference) / fmax(root, least);
    if (size > 0 || got_size > 0)
        error.cosine = product / (root * sqrt(got_size));
    return error;
}
