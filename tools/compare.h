/* compare.h: how far two arrays are apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_COMPARE_H
#define MXC_COMPARE_H

#include <stdint.h>

typedef struct mxc_error {
    double rms;    /* of the difference, over that of the right answer */
    double max;    /* largest difference */
    double cosine; /* of the angle between both as vectors; 1 where both are zero */
} mxc_error;

/* Equal infinities differ by nothing. A NaN, or an infinity in one array alone, makes rms infinite.
 * scale: the least root mean square the right answer is taken to have, so that an answer that is
 * zero but for rounding is not held to its own size; 0 for none. */
mxc_error mxc_compare(const float *got, const float *right, int64_t count, double scale);

#endif
