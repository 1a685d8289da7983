/* fill.c: seeded inputs: Gaussian, outlier channels, long tail, period 251, edges.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fill.h"

#include <math.h>
#include <string.h>

uint64_t mxt_random_u64(mxt_random *random)
{
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double mxt_random_uniform(mxt_random *random)
{
    return (double)(mxt_random_u64(random) >> 11) * 0x1p-53;
}

/* Sum of 12 uniforms: exact additions only, so no libm decides the bits; tails end at 6. */
double mxt_random_gaussian(mxt_random *random)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += mxt_random_uniform(random);
    return sum;
}

int64_t mxt_random_int(mxt_random *random, int64_t low, int64_t high)
{
    uint64_t span = (uint64_t)(high - low) + 1;
    return low + (int64_t)(mxt_random_u64(random) % span);
}

const char *mxt_kind_name(mxt_kind kind)
{
    static const char *const names[MXT_KINDS] = {"gaussian", "outlier", "long_tail", "period251",
                                                 "exact",    "edges",   "special"};
    return kind < MXT_KINDS ? names[kind] : "?";
}

/* Values where formats change their mind: halves of the smallest step, ties between codes, the
 * maxima of E4M3 (448), E5M2 (57344) and the ceil rule (480, 0x600000 mantissas), FP32's ends. */
static float edge_value(mxt_random *random)
{
    static const float values[] = {
        0.0f,      -0.0f,      1.0f,     -1.0f,     448.0f,           -448.0f,        449.0f,
        464.0f,    480.0f,     57344.0f, 61440.0f,  0x1p-6f,          0x1p-9f,        0x1p-10f,
        1.0625f,   1.1875f,    1.75f,    1.875f,    1.75f + 0x1p-22f, 0x1p-126f,      0x1p-127f,
        0x1p-149f, -0x1p-149f, 0x1p127f, -0x1p127f, 3.40282347e38f,   -3.40282347e38f};
    int64_t count = (int64_t)(sizeof values / sizeof *values);
    float x = values[mxt_random_int(random, 0, count - 1)];
    if (mxt_random_int(random, 0, 3) == 0) /* any exponent */
        x = ldexpf((float)(1.0 + mxt_random_uniform(random)),
                   (int)mxt_random_int(random, -149, 127));
    return mxt_random_int(random, 0, 1) ? x : -x;
}

static float one_value(mxt_random *random, int64_t index, int64_t col, mxt_kind kind)
{
    static const float exact[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 4.0f};
    switch (kind) {
    case MXT_OUTLIER:
        return (float)(mxt_random_gaussian(random) * (col % 16 == 5 ? 20.0 : 1.0));
    case MXT_LONG_TAIL: {
        double exponent = 2.0 * mxt_random_gaussian(random);
        return (float)(mxt_random_gaussian(random) * exp2(exponent));
    }
    case MXT_PERIOD251:
        return (float)(index % 251 - 125) / 32.0f;
    case MXT_EXACT: {
        float x = exact[mxt_random_int(random, 0, 5)];
        return mxt_random_int(random, 0, 1) ? x : -x;
    }
    case MXT_SPECIAL:
        if (mxt_random_int(random, 0, 199) == 0) {
            static const float special[] = {NAN, INFINITY, -INFINITY};
            return special[mxt_random_int(random, 0, 2)];
        }
        return edge_value(random);
    case MXT_EDGES:
        return edge_value(random);
    case MXT_GAUSSIAN:
    case MXT_KINDS:
    default:
        return (float)mxt_random_gaussian(random);
    }
}

void mxt_fill_f32(float *data, int64_t rows, int64_t cols, mxt_kind kind, uint64_t seed)
{
    mxt_random random = {seed};
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = one_value(&random, i, i % cols, kind);
}

void mxt_fill_nan(void *data, size_t bytes)
{
    if (bytes)
        memset(data, 0xFF, bytes);
}
