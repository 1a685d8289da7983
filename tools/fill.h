/* fill.h: the random data of check and bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_FILL_H
#define MXA_TOOLS_FILL_H

#include <stdint.h>

typedef struct mxa_random {
    uint64_t state;
    double spare; /* NAN: none */
} mxa_random;

/* Streams of one seed are independent. */
void mxa_random_init(mxa_random *random, uint64_t seed, uint64_t stream);
double mxa_random_uniform(mxa_random *random); /* (0, 1) */
double mxa_random_normal(mxa_random *random);

typedef enum mxa_data {
    MXA_DATA_GAUSSIAN, /* N(0, 1) */
    MXA_DATA_OUTLIERS, /* N(0, 1), but 1 of 32 channels is 12 times as large; the same in every row
                        * of a head, as activations of language models have them */
    MXA_DATA_LONG_TAIL /* Student's t with 3 degrees of freedom, scaled to deviation 1 */
} mxa_data;
enum { MXA_DATA_KINDS = 3 };

const char *mxa_data_name(mxa_data kind);

/* rows x heads x dim, contiguous. */
void mxa_fill(mxa_data kind, uint64_t seed, uint64_t stream, int64_t rows, int64_t heads,
              int64_t dim, float *out);

#endif
