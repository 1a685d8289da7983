/* input.c: .npy files as inputs of verbs. Everything dies with a sentence naming the option.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

char *mxc_shape_text(int ndim, const int64_t *shape, char text[MXC_SHAPE_TEXT])
{
    size_t n = (size_t)snprintf(text, MXC_SHAPE_TEXT, "(");
    for (int i = 0; i < ndim; i++)
        n += (size_t)snprintf(text + n, MXC_SHAPE_TEXT - n, "%" PRId64 "%s", shape[i],
                              i + 1 < ndim ? ", " : "");
    (void)snprintf(text + n, MXC_SHAPE_TEXT - n, ndim == 1 ? ",)" : ")");
    return text;
}

void mxc_input_read(const char *option, const char *path, mxc_npy *array)
{
    char why[512];
    if (!mxc_npy_read(path, array, why, sizeof why))
        mxc_die("%s %s %s", option, path, why);
}

static mxattn_dtype wide_dtype(mxc_npy_type type)
{
    switch (type) {
    case MXC_NPY_F32:
        return MXATTN_F32;
    case MXC_NPY_F16:
        return MXATTN_F16;
    case MXC_NPY_BF16:
        return MXATTN_BF16;
    default:
        return MXATTN_DTYPE_NONE;
    }
}

void mxc_input_wide(const char *option, const char *path, int low, int high, mxc_npy *array,
                    mxattn_tensor *view)
{
    char text[MXC_SHAPE_TEXT];
    mxc_input_read(option, path, array);
    mxattn_dtype dtype = wide_dtype(array->type);
    if (dtype == MXATTN_DTYPE_NONE)
        mxc_die("%s %s holds %s; float32, float16 or uint16 (bfloat16) is needed", option, path,
                mxc_npy_type_name(array->type));
    if (array->ndim < low || array->ndim > high)
        mxc_die("%s %s has shape %s; %d to %d dimensions are needed", option, path,
                mxc_shape_text(array->ndim, array->shape, text), low, high);
    mxattn_tensor_view(view, dtype, array->data, array->ndim, array->shape);
}

int32_t *mxc_input_int32(const char *option, const char *path, int64_t *count)
{
    mxc_npy array;
    char text[MXC_SHAPE_TEXT];
    mxc_input_read(option, path, &array);
    if (array.type != MXC_NPY_I32 && array.type != MXC_NPY_I64)
        mxc_die("%s %s holds %s; int32 or int64 is needed", option, path,
                mxc_npy_type_name(array.type));
    if (array.ndim != 1)
        mxc_die("%s %s has shape %s; one dimension is needed", option, path,
                mxc_shape_text(array.ndim, array.shape, text));
    if (*count >= 0 && array.count != *count)
        mxc_die("%s %s has %" PRId64 " numbers; %" PRId64 " are needed", option, path, array.count,
                *count);
    int32_t *values = mxc_tool_alloc((size_t)array.count * sizeof *values);
    for (int64_t i = 0; i < array.count; i++) {
        int64_t value = array.type == MXC_NPY_I64 ? ((const int64_t *)array.data)[i]
                                                  : ((const int32_t *)array.data)[i];
        if (value < INT32_MIN || value > INT32_MAX)
            mxc_die("%s %s holds %" PRId64 " at place %" PRId64 "; it must fit 32 bits", option,
                    path, value, i);
        values[i] = (int32_t)value;
    }
    *count = array.count;
    mxc_npy_free(&array);
    return values;
}

float *mxc_input_vector(const char *option, const char *path, int64_t count, const char *rule)
{
    mxc_npy array;
    char text[MXC_SHAPE_TEXT];
    mxc_input_read(option, path, &array);
    if (array.type != MXC_NPY_F32)
        mxc_die("%s %s holds %s; float32 is needed", option, path, mxc_npy_type_name(array.type));
    if (array.ndim != 1 || array.count != count)
        mxc_die("%s %s has shape %s; it must be (%" PRId64 ",): %s", option, path,
                mxc_shape_text(array.ndim, array.shape, text), count, rule);
    float *values = mxc_tool_alloc((size_t)count * sizeof *values);
    memcpy(values, array.data, (size_t)count * sizeof *values);
    mxc_npy_free(&array);
    return values;
}

void mxc_input_shape(const char *option, const mxc_npy *array, int ndim, const int64_t *shape,
                     const char *rule)
{
    char is[MXC_SHAPE_TEXT], needed[MXC_SHAPE_TEXT];
    int equal = array->ndim == ndim;
    for (int i = 0; i < ndim && equal; i++)
        equal = array->shape[i] == shape[i];
    if (!equal)
        mxc_die("%s has shape %s; it must be %s: %s", option,
                mxc_shape_text(array->ndim, array->shape, is), mxc_shape_text(ndim, shape, needed),
                rule);
}
