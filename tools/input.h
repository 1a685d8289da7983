/* input.h: .npy files as inputs of verbs. Everything dies with a sentence naming the option.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_INPUT_H
#define MXC_TOOLS_INPUT_H

#include "npy.h"

#include "mxattn/mxattn.h"

/* Any array. */
void mxc_input_read(const char *option, const char *path, mxc_npy *array);

/* A float32, float16 or bfloat16 array of low to high dimensions, and its view. */
void mxc_input_wide(const char *option, const char *path, int low, int high, mxc_npy *array,
                    mxattn_tensor *view);

/* int32 or int64 values, as int32. count: how many there must be, -1 for any; freed with free. */
int32_t *mxc_input_int32(const char *option, const char *path, int64_t *count);

/* A float vector of `count` values, as float32; freed with free. rule ends the sentence, e.g. "one
 * number per query head". */
float *mxc_input_vector(const char *option, const char *path, int64_t count, const char *rule);

/* Dies unless the array has exactly this shape; rule explains it. */
void mxc_input_shape(const char *option, const mxc_npy *array, int ndim, const int64_t *shape,
                     const char *rule);

/* "(2, 5, 4)" in a buffer of at least 96 bytes; returns it. */
enum { MXC_SHAPE_TEXT = 96 };
char *mxc_shape_text(int ndim, const int64_t *shape, char text[MXC_SHAPE_TEXT]);

#endif
