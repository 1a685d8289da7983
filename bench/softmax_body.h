/* softmax_body.h: the loop of softmax.h; the including file defines MXC_SOFTMAX_NAME, the table.
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
typedef uint16_t halves __attribute__((vector_size(32)));

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

static inline void raise(floats *most, const floats *x)
{
    ints more = *x > *most;
    *most = (floats)(((ints)*x & more) | ((ints)*most & ~more));
}

static float highest(const float *x, int64_t n, float scale, float least)
{
    floats v, most;
    memcpy(&most, x, sizeof most);
    most *= scale;
    for (int64_t i = MXC_SOFTMAX_LANES; i < n; i += MXC_SOFTMAX_LANES) {
        memcpy(&v, x + i, sizeof v);
        v *= scale;
        raise(&most, &v);
    }
    for (int i = 0; i < MXC_SOFTMAX_LANES; i++)
        least = most[i] > least ? most[i] : least;
    return least;
}

static float total(const floats *sums)
{
    float sum = 0;
    for (int i = 0; i < MXC_SOFTMAX_LANES; i++)
        sum += (*sums)[i];
    return sum;
}

static float row(float *x, int64_t n, float scale, float *top)
{
    floats v, sums = {0};
    if (isnan(*top))
        *top = highest(x, n, scale, -INFINITY);
    for (int64_t i = 0; i < n; i += MXC_SOFTMAX_LANES) {
        memcpy(&v, x + i, sizeof v);
        exp_of_differences(&v, scale, *top);
        memcpy(x + i, &v, sizeof v);
        sums += v;
    }
    return total(&sums);
}

/* To nearest, ties to even; no NaN comes here. */
static inline void store_bf16(uint16_t *to, const floats *x)
{
    ints bits = (ints)*x;
    halves high = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
    memcpy(to, &high, sizeof high);
}

static float row_bf16(float *x, int64_t n, float scale, float top, uint16_t *p)
{
    floats v, sums = {0};
    for (int64_t i = 0; i < n; i += MXC_SOFTMAX_LANES) {
        memcpy(&v, x + i, sizeof v);
        exp_of_differences(&v, scale, top);
        memcpy(x + i, &v, sizeof v);
        store_bf16(p + i, &v);
        sums += v;
    }
    return total(&sums);
}

static void gradient_bf16(const float *p, const float *dp, int64_t n, float scale, float delta,
                          uint16_t *ds)
{
    floats u, v;
    for (int64_t i = 0; i < n; i += MXC_SOFTMAX_LANES) {
        memcpy(&u, p + i, sizeof u);
        memcpy(&v, dp + i, sizeof v);
        u *= (v - delta) * scale;
        store_bf16(ds + i, &u);
    }
}

const mxc_softmax MXC_SOFTMAX_NAME = {row, highest, row_bf16, gradient_bf16};
