/* fill.c: the random data of check and bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fill.h"

#include <math.h>

/* SplitMix64: every step adds an odd constant and scrambles the sum. */
static uint64_t next(mxc_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void mxc_random_init(mxc_random *random, uint64_t seed, uint64_t stream)
{
    random->state = seed;
    random->state = next(random) ^ stream * 0xd1342543de82ef95u;
    random->state = next(random);
    random->spare = (double)NAN;
}

double mxc_random_uniform(mxc_random *random)
{
    return ((double)(next(random) >> 11) + 0.5) * 0x1p-53;
}

/* Box and Muller's transform gives two at once. */
double mxc_random_normal(mxc_random *random)
{
    const double two_pi = 6.283185307179586;
    if (!isnan(random->spare)) {
        double kept = random->spare;
        random->spare = (double)NAN;
        return kept;
    }
    double radius = sqrt(-2 * log(mxc_random_uniform(random)));
    double angle = two_pi * mxc_random_uniform(random);
    random->spare = radius * sin(angle);
    return radius * cos(angle);
}

const char *mxc_data_name(mxc_data kind)
{
    static const char *const names[] = {"gaussian", "outliers", "long-tail"};
    return names[kind];
}

/* A normal over the root of a mean of three squares is Student's t; its deviation is sqrt(3). */
static double student(mxc_random *random)
{
    double a = mxc_random_normal(random), b = mxc_random_normal(random);
    double c = mxc_random_normal(random), top = mxc_random_normal(random);
    return top / sqrt(a * a + b * b + c * c);
}

void mxc_fill(mxc_data kind, uint64_t seed, uint64_t stream, int64_t rows, int64_t heads,
              int64_t dim, float *out)
{
    const double outlier = 12;
    mxc_random random;
    mxc_random_init(&random, seed, stream);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dim; d++) {
                double x =
                    kind == MXC_DATA_LONG_TAIL ? student(&random) : mxc_random_normal(&random);
                if (kind == MXC_DATA_OUTLIERS && (d + 5 * h + 3) % 32 == 0)
                    x *= outlier;
                *out++ = (float)x;
            }
}
