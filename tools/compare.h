/* compare.h: how far two arrays are apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_COMPARE_H
#define MXC_COMPARE_H

#include <stdint.h>

typedef struct mxc_error {
    double rms;      /* of the difference, over that of the right answer */
    double absolute; /* of the difference itself */
    double max;      /* largest difference */
    double cosine;   /* of the angle between both as vectors; 1 where both are zero */
} mxc_error;

/* Equal infinities differ by nothing. A NaN, or an infinity in one array alone, makes rms infinite.
 */
mxc_error mxc_compare(const float *got, const float *right, int64_t count);

#endif
