/* output.h: output files that appear whole or not at all.
 *
 * Each is written under a temporary name in the folder of its final name. mxc_outputs_commit
 * renames them all; until then a failure (mxc_die, or a signal that ends the program) removes them
 * and leaves what stood there before untouched. Open outputs before long work, so that a bad path
 * is refused at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_OUTPUT_H
#define MXC_TOOLS_OUTPUT_H

#include "npy.h"

#include <stdio.h>

/* Opens an output; option names it in sentences ("--out"). Dies where it cannot be written. Both
 * strings must live until the commit. */
FILE *mxc_output_open(const char *option, const char *path);

/* Writes an array, C order. Errors are reported by the commit. */
void mxc_output_npy(FILE *file, mxc_npy_type type, int ndim, const int64_t *shape,
                    const void *data);

/* Closes every output and gives it its final name. Dies, with the others removed, on a failure. */
void mxc_outputs_commit(void);

/* Removes every output that is not committed. */
void mxc_outputs_discard(void);

#endif
