/* input.h: .npy files as inputs of verbs. Everything dies with a sentence naming the option.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_INPUT_H
#define MXA_TOOLS_INPUT_H

#include "npy.h"

#include "mxattn/mxattn.h"

/* Any array. */
void mxa_input_read(const char *option, const char *path, mxa_npy *array);

/* A float32, float16 or bfloat16 array of low to high dimensions, and its view. */
void mxa_input_wide(const char *option, const char *path, int low, int high, mxa_npy *array,
                    mxattn_tensor *view);

/* int32 or int64 values, as int32. count: how many there must be, -1 for any; freed with free. */
int32_t *mxa_input_int32(const char *option, const char *path, int64_t *count);

/* A float vector of `count` values, as float32; freed with free. rule ends the sentence, e.g. "one
 * number per query head". */
float *mxa_input_vector(const char *option, const char *path, int64_t count, const char *rule);

/* Dies unless the array has exactly this shape; rule explains it. */
void mxa_input_shape(const char *option, const mxa_npy *array, int ndim, const int64_t *shape,
                     const char *rule);

/* "(2, 5, 4)" in a buffer of at least 96 bytes; returns it. */
enum { MXA_SHAPE_TEXT = 96 };
char *mxa_shape_text(int ndim, const int64_t *shape, char text[MXA_SHAPE_TEXT]);

#endif
