/* random.h: random numbers, the same for the same seed on every machine (SplitMix64).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_RANDOM_H
#define TRAIN_LM_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct random_state {
    uint64_t state;
} random_state;

static inline uint64_t random_bits(random_state *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In [0, 1). */
static inline double random_uniform(random_state *r)
{
    return (double)(random_bits(r) >> 11) * 0x1p-53;
}

/* In [0, n). */
static inline int random_below(random_state *r, int n)
{
    return (int)(random_uniform(r) * n);
}

/* Mean 0, deviation 1. */
static inline double random_normal(random_state *r)
{
    double radius = sqrt(-2.0 * log(1.0 - random_uniform(r)));
    return radius * cos(6.283185307179586 * random_uniform(r));
}

#endif
