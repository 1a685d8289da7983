/* attention_mxfp8.c: attention in MXFP8, through the public interface of mxattn.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>

attention *attention_mxfp8_create(pool *p, const attention_shape *shape, const char *backend)
{
    (void)p;
    (void)shape;
    fprintf(stderr, "train_lm: mxfp8 attention (%s) is not in this build\n", backend);
    exit(1);
}
