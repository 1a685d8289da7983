/* quantized.c: a quantized tensor as files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "quantized.h"

#include "error.h"
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, UNIT_ROWS = 128, UNIT_BLOCKS = 4, UNIT_BYTES = 512 };

static const char *const dtype_names[] = {"e4m3", "e5m2", NULL};
static const char *const block_names[] = {"row", "column", "square", NULL};
static const char *const rounding_names[] = {"rceil", "floor", NULL};
static const char *const layout_names[] = {"linear", "compact", "tiled", NULL};

char *mxc_quantized_path(const char *stem, const char *suffix)
{
    size_t bytes = strlen(stem) + strlen(suffix) + 1;
    char *path = mxc_tool_alloc(bytes);
    (void)snprintf(path, bytes, "%s%s", stem, suffix);
    return path;
}

int mxc_quantized_has(const mxc_quantized *q, mxattn_axis axis)
{
    return q->tags.block == MXATTN_BLOCK_SQUARE ||
           q->tags.block == (axis == MXATTN_HDIM ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_COLUMN);
}

/* Heads and head dimension: (rows, cols) has one head. */
static int64_t heads(const mxc_quantized *q)
{
    return q->ndim == 2 ? 1 : q->shape[q->ndim - 2];
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Sums ceil(length / step) over the sequences. */
static int64_t sum_over_sequences(const mxc_quantized *q, int64_t step)
{
    int64_t sum = 0;
    if (q->ndim == 4)
        return q->shape[0] * ceil_div(q->shape[1], step);
    if (!q->cu_seqlens)
        return ceil_div(q->shape[0], step);
    for (int64_t b = 0; b < q->batch; b++)
        sum += ceil_div((int64_t)q->cu_seqlens[b + 1] - q->cu_seqlens[b], step);
    return sum;
}

int mxc_quantized_scales_shape(const mxc_quantized *q, mxattn_axis axis,
                               int64_t shape[MXC_NPY_DIMS])
{
    int64_t dim = q->shape[q->ndim - 1], dim_blocks = ceil_div(dim, BLOCK);
    if (q->layout == MXATTN_TILED) {
        int64_t row_tiles = sum_over_sequences(q, UNIT_ROWS); /* of 128 tokens, 4 blocks */
        shape[0] = heads(q);
        shape[1] = axis == MXATTN_HDIM ? row_tiles : ceil_div(dim, UNIT_ROWS);
        shape[2] = axis == MXATTN_HDIM ? ceil_div(dim_blocks, UNIT_BLOCKS) : row_tiles;
        shape[3] = UNIT_BYTES;
        return 4;
    }
    int n = 0, compact = q->layout == MXATTN_COMPACT;
    shape[n++] =
        axis == MXATTN_HDIM && !compact ? sum_over_sequences(q, 1) : sum_over_sequences(q, BLOCK);
    if (axis == MXATTN_HDIM && !compact && q->ndim < 4)
        shape[0] = q->shape[0]; /* tokens that belong to no sequence have a row too */
    if (q->ndim > 2)
        shape[n++] = heads(q);
    shape[n++] = axis == MXATTN_HDIM || compact ? dim_blocks : dim;
    return n;
}

void mxc_quantized_view(const mxc_quantized *q, uint8_t *payload, uint8_t *hdim, uint8_t *seq,
                        mxattn_tensor *tensor)
{
    mxattn_tensor_view(tensor, q->tags.dtype, payload, q->ndim, q->shape);
    tensor->tags = q->tags;
    tensor->scales[MXATTN_HDIM].data = hdim;
    tensor->scales[MXATTN_SEQ].data = seq;
    tensor->scales[MXATTN_HDIM].layout = tensor->scales[MXATTN_SEQ].layout = q->layout;
}

char *mxc_quantized_to_json(const mxc_quantized *q)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "format", "mxattn quantized tensor");
    cJSON_AddNumberToObject(root, "version", 1);
    cJSON_AddStringToObject(root, "mxattn", mxattn_version_string());
    cJSON_AddStringToObject(root, "dtype", dtype_names[q->tags.dtype - MXATTN_E4M3]);
    cJSON_AddStringToObject(root, "block", block_names[q->tags.block - MXATTN_BLOCK_ROW]);
    cJSON_AddBoolToObject(root, "folded", (q->tags.flags & MXATTN_FOLDED) != 0);
    cJSON_AddStringToObject(root, "rounding", rounding_names[q->tags.rounding]);
    cJSON_AddStringToObject(root, "scales", layout_names[q->layout]);
    cJSON *shape = cJSON_AddArrayToObject(root, "shape");
    for (int i = 0; i < q->ndim; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)q->shape[i]));
    if (q->cu_seqlens)
        cJSON_AddItemToObject(root, "cu_seqlens",
                              cJSON_CreateIntArray(q->cu_seqlens, (int)q->batch + 1));
    if (q->seqused)
        cJSON_AddItemToObject(root, "seqused", cJSON_CreateIntArray(q->seqused, (int)q->batch));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (!text)
        mxc_die("out of memory for the tags");
    return text;
}

/* A whole text file, ending with 0. */
static char *read_text(const char *path)
{
    enum { LIMIT = 1 << 28 };
    FILE *file = fopen(path, "rb");
    if (!file)
        mxc_die("%s cannot be read: %s", path, strerror(errno));
    size_t size = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    while (text) {
        size += fread(text + size, 1, capacity - 1 - size, file);
        if (size < capacity - 1 || capacity > LIMIT)
            break;
        char *grown = realloc(text, capacity *= 2);
        if (!grown)
            free(text);
        text = grown;
    }
    if (!text || ferror(file) || size == capacity - 1)
        mxc_die("%s cannot be read whole", path);
    (void)fclose(file);
    text[size] = 0;
    return text;
}

/* The place of a string member among choices; dies where it has another value. */
static int choice(const char *path, const cJSON *root, const char *key, const char *const *choices)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, key));
    for (int i = 0; value && choices[i]; i++)
        if (strcmp(value, choices[i]) == 0)
            return i;
    mxc_die("%s: \"%s\" is %s%s%s; it is none that this version knows", path, key, value ? "'" : "",
            value ? value : "missing", value ? "'" : "");
}

/* Whole numbers from low to high in an array member; NULL where there is none. */
static int64_t *numbers(const char *path, const cJSON *root, const char *key, double low,
                        double high, int64_t *count)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(root, key), *item;
    *count = 0;
    if (!array)
        return NULL;
    if (!cJSON_IsArray(array))
        mxc_die("%s: \"%s\" is no array", path, key);
    int64_t *values = mxc_tool_alloc((size_t)cJSON_GetArraySize(array) * sizeof *values);
    cJSON_ArrayForEach(item, array)
    {
        double value = cJSON_GetNumberValue(item); /* NAN for what is no number */
        if (!(value >= low && value <= high && value == floor(value)))
            mxc_die("%s: \"%s\" holds %g at place %lld; a whole number from %.0f to %.0f is needed",
                    path, key, value, (long long)*count, low, high);
        values[(*count)++] = (int64_t)value;
    }
    return values;
}

static int32_t *narrow(int64_t *wide, int64_t count)
{
    if (!wide)
        return NULL;
    int32_t *values = mxc_tool_alloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)wide[i];
    free(wide);
    return values;
}

void mxc_quantized_from_json(const char *path, mxc_quantized *q)
{
    const double largest_size = 0x1p52;
    int64_t dims, bounds, used;
    char *text = read_text(path);
    cJSON *root = cJSON_Parse(text);
    free(text);
    if (!cJSON_IsObject(root))
        mxc_die("%s is not JSON", path);
    const char *const version[] = {"mxattn quantized tensor", NULL};
    (void)choice(path, root, "format", version);
    if (cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(root, "version")) != 1)
        mxc_die("%s: \"version\" is not 1, the one this command knows", path);
    *q = (mxc_quantized){0};
    q->tags.dtype = (mxattn_dtype)(MXATTN_E4M3 + choice(path, root, "dtype", dtype_names));
    q->tags.block = (mxattn_block)(MXATTN_BLOCK_ROW + choice(path, root, "block", block_names));
    q->tags.rounding = (mxattn_rounding)choice(path, root, "rounding", rounding_names);
    q->layout = (mxattn_scale_layout)choice(path, root, "scales", layout_names);
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "folded")))
        q->tags.flags = MXATTN_FOLDED;
    int64_t *shape = numbers(path, root, "shape", 0, largest_size, &dims);
    if (dims < 2 || dims > MXC_NPY_DIMS)
        mxc_die("%s: \"shape\" has %lld sizes; 2 to 4 are needed", path, (long long)dims);
    q->ndim = (int)dims;
    memcpy(q->shape, shape, (size_t)dims * sizeof *shape);
    free(shape);
    int64_t *cu_seqlens = numbers(path, root, "cu_seqlens", 0, INT32_MAX, &bounds);
    int64_t *seqused = numbers(path, root, "seqused", 0, INT32_MAX, &used);
    q->cu_seqlens = narrow(cu_seqlens, bounds);
    q->seqused = narrow(seqused, used);
    q->batch = q->ndim == 4 ? q->shape[0] : q->cu_seqlens ? bounds - 1 : 1;
    if (q->cu_seqlens && (q->ndim == 4 || bounds < 1))
        mxc_die("%s: \"cu_seqlens\" does not fit \"shape\"", path);
    if (q->seqused && used != q->batch)
        mxc_die("%s: \"seqused\" has %lld numbers for %lld sequences", path, (long long)used,
                (long long)q->batch);
    cJSON_Delete(root);
}
