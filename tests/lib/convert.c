/* convert.c: typed arrays as FP32, for comparisons.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "mx/element.h"

void mxt_to_f32(float *out, const void *data, mxattn_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = mxa_load(data, dtype, i);
}
