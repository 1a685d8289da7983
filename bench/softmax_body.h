/* softmax_body.h: the loop of softmax.h; the including file defines MXC_SOFTMAX_NAME.
 *
 * exp(x) = 2^n * 2^f with n the nearest integer to x*log2(e): 2^f by its Taylor polynomial of
 * degree 6 in f*ln2 (relative error below 2e-7 for |f| <= 1/2), 2^n by its exponent bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "softmax.h"

#include <math.h>
#include <string.h>

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));

static inline void exp_of_differences(floats *x, float scale, float top)
{
    const float log2e = 1.44269504f, ln2 = 0.693147181f, to_integer = 12582912.0f; /* 1.5 * 2^23 */
    floats y = (*x * scale - top) * log2e;
    ints small = y < -126.0f; /* exp is then taken as 0 */
    y = (floats)(((ints)y & ~small) | ((ints)(y * 0 - 126.0f) & small));
    floats rounded = y + to_integer;
    ints n = (ints)rounded - 0x4B400000;
    floats f = (y - (rounded - to_integer)) * ln2;
    floats p = f * (1.0f / 720) + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    *x = (floats)(((ints)p + (n << 23)) & ~small);
}

float MXC_SOFTMAX_NAME(float *x, int64_t n, float scale, float *top)
{
    floats v, sums = {0};
    if (isnan(*top)) {
        floats most;
        memcpy(&most, x, sizeof most);
        most *= scale;
        for (int64_t i = MXC_SOFTMAX_LANES; i < n; i += MXC_SOFTMAX_LANES) {
            memcpy(&v, x + i, sizeof v);
            v *= scale;
            ints more = v > most;
            most = (floats)(((ints)v & more) | ((ints)most & ~more));
        }
        *top = most[0];
        for (int i = 1; i < MXC_SOFTMAX_LANES; i++)
            *top = most[i] > *top ? most[i] : *top;
    }
    for (int64_t i = 0; i < n; i += MXC_SOFTMAX_LANES) {
        memcpy(&v, x + i, sizeof v);
        exp_of_differences(&v, scale, *top);
        memcpy(x + i, &v, sizeof v);
        sums += v;
    }
    float sum = 0;
    for (int i = 0; i < MXC_SOFTMAX_LANES; i++)
        sum += sums[i];
    return sum;
}
