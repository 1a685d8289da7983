/* fill.h: the random data of check and bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_FILL_H
#define MXC_TOOLS_FILL_H

#include <stdint.h>

typedef struct mxc_random {
    uint64_t state;
    double spare; /* NAN: none */
} mxc_random;

/* Streams of one seed are independent. */
void mxc_random_init(mxc_random *random, uint64_t seed, uint64_t stream);
double mxc_random_uniform(mxc_random *random); /* (0, 1) */
double mxc_random_normal(mxc_random *random);

typedef enum mxc_data {
    MXC_DATA_GAUSSIAN, /* N(0, 1) */
    MXC_DATA_OUTLIERS, /* N(0, 1), but 1 of 32 channels is 12 times as large; the same in every row
                        * of a head, as activations of language models have them */
    MXC_DATA_LONG_TAIL /* Student's t with 3 degrees of freedom, scaled to deviation 1 */
} mxc_data;
enum { MXC_DATA_KINDS = 3 };

const char *mxc_data_name(mxc_data kind);

/* rows x heads x dim, contiguous. */
void mxc_fill(mxc_data kind, uint64_t seed, uint64_t stream, int64_t rows, int64_t heads,
              int64_t dim, float *out);

#endif
