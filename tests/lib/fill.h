/* fill.h: inputs, the same bytes for the same seed on every machine that has IEEE arithmetic.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_FILL_H
#define MXT_FILL_H

#include <stddef.h>
#include <stdint.h>

/* SplitMix64. */
typedef struct mxt_random {
    uint64_t state;
} mxt_random;

uint64_t mxt_random_u64(mxt_random *random);
double mxt_random_uniform(mxt_random *random);                         /* [0, 1) */
double mxt_random_gaussian(mxt_random *random);                        /* deviation 1 */
int64_t mxt_random_int(mxt_random *random, int64_t low, int64_t high); /* both ends included */

typedef enum mxt_kind {
    MXT_GAUSSIAN,  /* deviation 1 */
    MXT_OUTLIER,   /* Gaussian; one column in 16 is 20 times as large, as activations have */
    MXT_LONG_TAIL, /* Gaussian times exp2 of another Gaussian, deviation 2 */
    MXT_PERIOD251, /* (index % 251 - 125) / 32: swapped or shifted blocks cannot pass */
    MXT_EXACT,     /* random of {0, +-0.5, +-1, +-1.5, +-2, +-4}: E4M3 holds each at scale 1 */
    MXT_EDGES,     /* zeros of both signs, subnormals, FP8 ties and maxima, huge and tiny; finite */
    MXT_SPECIAL,   /* MXT_EDGES, with a NaN or an infinity about every 200 elements */
    MXT_KINDS
} mxt_kind;

const char *mxt_kind_name(mxt_kind kind);

/* rows x cols floats; the last dimension (head_dim) is cols. */
void mxt_fill_f32(float *data, int64_t rows, int64_t cols, mxt_kind kind, uint64_t seed);

/* All bytes 0xFF: a NaN in FP64, FP32, FP16, BF16, E4M3, E5M2 and E8M0. For every output and
 * workspace before the call. */
void mxt_fill_nan(void *data, size_t bytes);

#endif
