/* npy.c: NumPy's .npy files, versions 1 to 3, as far as the command uses them.
 *
 * A file is "\x93NUMPY", two version bytes, the length of the header text (two bytes in version 1,
 * four in 2 and 3, little-endian), the text of a Python dictionary with the keys descr,
 * fortran_order and shape, and the elements.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "npy.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    mxc_npy_type type;
} descriptors[] = {
    {"<f4", MXC_NPY_F32},  {"<f2", MXC_NPY_F16}, {"<u2", MXC_NPY_BF16}, {"<V2", MXC_NPY_BF16},
    {"|V2", MXC_NPY_BF16}, {"|u1", MXC_NPY_U8},  {"<u1", MXC_NPY_U8},   {"|V1", MXC_NPY_U8},
    {"<V1", MXC_NPY_U8},   {"<i4", MXC_NPY_I32}, {"<i8", MXC_NPY_I64},
};

size_t mxc_npy_type_bytes(mxc_npy_type type)
{
    static const size_t bytes[] = {4, 2, 2, 1, 4, 8};
    return bytes[type];
}

const char *mxc_npy_type_name(mxc_npy_type type)
{
    static const char *const names[] = {"float32", "float16", "uint16", "uint8", "int32", "int64"};
    return names[type];
}

/* A place in the header text; `bad` is set by the first thing that does not fit. */
typedef struct cursor {
    const char *at, *end;
    int bad;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

/* Takes one character if it comes next, after blanks. */
static int take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->bad || c->at == c->end || *c->at != wanted)
        return 0;
    c->at++;
    return 1;
}

static void need(cursor *c, char wanted)
{
    if (!take(c, wanted))
        c->bad = 1;
}

/* A Python string literal without escapes, cut to what fits. */
static void string_literal(cursor *c, char *out, size_t out_size)
{
    size_t n = 0;
    out[0] = 0;
    skip_space(c);
    if (c->bad || c->at == c->end || (*c->at != '\'' && *c->at != '"')) {
        c->bad = 1;
        return;
    }
    char quote = *c->at++;
    while (c->at < c->end && *c->at != quote) {
        if (*c->at == '\\' || *c->at < 0x20)
            c->bad = 1;
        if (n + 1 < out_size)
            out[n++] = *c->at;
        c->at++;
    }
    out[n] = 0;
    need(c, quote);
}

static int word(cursor *c, const char *wanted)
{
    size_t n = strlen(wanted);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, wanted, n) != 0)
        return 0;
    c->at += n;
    return 1;
}

/* A size: decimal digits, at most INT64_MAX. */
static int64_t size_literal(cursor *c)
{
    int64_t value = 0;
    int digits = 0;
    skip_space(c);
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        int digit = *c->at++ - '0';
        digits++;
        if (value > (INT64_MAX - digit) / 10) {
            c->bad = 1;
            return 0;
        }
        value = value * 10 + digit;
    }
    if (!digits)
        c->bad = 1;
    return value;
}

/* A tuple of sizes: "()", "(5,)", "(2, 3)", with a trailing comma allowed. */
static void shape_literal(cursor *c, mxc_npy *out, int *dims)
{
    *dims = 0;
    need(c, '(');
    while (!c->bad && !take(c, ')')) {
        int64_t size = size_literal(c);
        if (*dims < MXC_NPY_DIMS)
            out->shape[*dims] = size;
        if (*dims < 64)
            (*dims)++;
        if (!take(c, ',')) {
            if (*dims == 1)
                c->bad = 1; /* "(5)" is a number, not a tuple */
            need(c, ')');
            break;
        }
    }
}

static int fail(char *why, size_t why_size, const char *sentence)
{
    (void)snprintf(why, why_size, "%s", sentence);
    return 0;
}

/* The dictionary. Returns 0 and says why where it is none, or holds what is not taken here. */
static int parse_dictionary(cursor *c, mxc_npy *out, char *why, size_t why_size)
{
    char descr[16] = "";
    int seen_descr = 0, seen_order = 0, seen_shape = 0, fortran = 0, dims = 0;
    need(c, '{');
    while (!c->bad && !take(c, '}')) {
        char key[16];
        string_literal(c, key, sizeof key);
        need(c, ':');
        if (strcmp(key, "descr") == 0 && !seen_descr) {
            seen_descr = 1;
            if (take(c, '['))
                return fail(why, why_size, "holds a structured type; one plain type is needed");
            string_literal(c, descr, sizeof descr);
        } else if (strcmp(key, "fortran_order") == 0 && !seen_order) {
            seen_order = 1;
            fortran = word(c, "True");
            if (!fortran && !word(c, "False"))
                c->bad = 1;
        } else if (strcmp(key, "shape") == 0 && !seen_shape) {
            seen_shape = 1;
            shape_literal(c, out, &dims);
        } else {
            c->bad = 1;
        }
        if (!take(c, ',')) {
            need(c, '}');
            break;
        }
    }
    skip_space(c);
    if (c->bad || c->at != c->end || !seen_descr || !seen_order || !seen_shape)
        return fail(why, why_size, "is not a .npy file: its header is malformed");
    size_t kinds = sizeof descriptors / sizeof *descriptors, kind = 0;
    while (kind < kinds && strcmp(descr, descriptors[kind].descr) != 0)
        kind++;
    if (kind == kinds) {
        (void)snprintf(why, why_size,
                       "holds elements of type '%s'; little-endian float32, float16, uint16 "
                       "(bfloat16), uint8, int32 or int64 is needed",
                       descr);
        return 0;
    }
    out->type = descriptors[kind].type;
    if (dims > MXC_NPY_DIMS) {
        (void)snprintf(why, why_size, "has %d dimensions; at most %d are taken", dims,
                       MXC_NPY_DIMS);
        return 0;
    }
    out->ndim = dims;
    if (fortran)
        return fail(why, why_size,
                    "is in Fortran order; C order is needed (numpy.ascontiguousarray)");
    return 1;
}

int mxc_npy_parse(const uint8_t *bytes, size_t size, mxc_npy *out, size_t *data_offset, char *why,
                  size_t why_size)
{
    memset(out, 0, sizeof *out);
    if (size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return fail(why, why_size, "is not a .npy file: it does not start as one");
    int version = bytes[6];
    if (version < 1 || version > 3 || bytes[7] != 0) {
        (void)snprintf(why, why_size, "is a .npy file of version %d.%d; 1.0, 2.0 or 3.0 is needed",
                       version, bytes[7]);
        return 0;
    }
    size_t text_at = version == 1 ? 10 : 12;
    if (size < text_at)
        return fail(why, why_size, "is cut off inside its header");
    size_t text_size = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (version > 1)
        text_size |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (text_size > size - text_at)
        return fail(why, why_size, "is cut off inside its header");
    cursor c = {(const char *)bytes + text_at, (const char *)bytes + text_at + text_size, 0};
    if (!parse_dictionary(&c, out, why, why_size))
        return 0;

    size_t element = mxc_npy_type_bytes(out->type);
    int64_t limit = INT64_MAX / (int64_t)element, count = 1;
    int empty = 0;
    for (int i = 0; i < out->ndim; i++)
        empty |= out->shape[i] == 0;
    for (int i = 0; i < out->ndim && !empty; i++) {
        if (count > limit / out->shape[i])
            return fail(why, why_size, "has a shape too large for any memory");
        count *= out->shape[i];
    }
    out->count = empty ? 0 : count;
    size_t wanted = (size_t)out->count * element, present = size - text_at - text_size;
    if (present != wanted) {
        (void)snprintf(why, why_size, "holds %zu bytes of elements; its shape and type say %zu",
                       present, wanted);
        return 0;
    }
    *data_offset = text_at + text_size;
    return 1;
}

/* The whole file, aligned to 64 bytes, in *bytes. */
static int read_all(const char *path, uint8_t **bytes, size_t *size, char *why, size_t why_size)
{
    enum { ALIGNMENT = 64 };
    size_t capacity = (size_t)1 << 16;
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(why, why_size, strerror(errno));
    if (fseek(file, 0, SEEK_END) == 0) {
        long end = ftell(file);
        rewind(file);
        if (end > 0 && end < LONG_MAX) /* a folder says LONG_MAX */
            capacity = (size_t)end + 1;
    }
    uint8_t *memory = NULL;
    *size = 0;
    for (;;) {
        size_t rounded = (capacity + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
        uint8_t *grown = aligned_alloc(ALIGNMENT, rounded);
        if (!grown) {
            free(memory);
            (void)fclose(file);
            return fail(why, why_size, "does not fit into memory");
        }
        if (memory)
            memcpy(grown, memory, *size);
        free(memory);
        memory = grown;
        *size += fread(memory + *size, 1, capacity - *size, file);
        if (*size < capacity)
            break;
        capacity *= 2;
    }
    int failed = ferror(file) ? errno : 0;
    (void)fclose(file);
    if (failed) {
        free(memory);
        return fail(why, why_size, strerror(failed));
    }
    *bytes = memory;
    return 1;
}

int mxc_npy_read(const char *path, mxc_npy *out, char *why, size_t why_size)
{
    uint8_t *bytes;
    size_t size, offset;
    char reason[256];
    if (!read_all(path, &bytes, &size, reason, sizeof reason)) {
        (void)snprintf(why, why_size, "cannot be read: %s", reason);
        return 0;
    }
    if (!mxc_npy_parse(bytes, size, out, &offset, why, why_size)) {
        free(bytes);
        return 0;
    }
    memmove(bytes, bytes + offset, size - offset);
    out->data = bytes;
    return 1;
}

void mxc_npy_free(mxc_npy *array)
{
    free(array->data);
    array->data = NULL;
}

size_t mxc_npy_header(uint8_t header[MXC_NPY_HEADER_MAX], mxc_npy_type type, int ndim,
                      const int64_t *shape)
{
    static const char *const descr[] = {"<f4", "<f2", "<u2", "|u1", "<i4", "<i8"};
    char text[MXC_NPY_HEADER_MAX];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                     descr[type]);
    for (int i = 0; i < ndim; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%" PRId64 ",%s", shape[i],
                      i + 1 < ndim ? " " : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    size_t total = ((size_t)n + 1 + 10 + 63) / 64 * 64, text_size = total - 10;
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (uint8_t)(text_size & 0xff);
    header[9] = (uint8_t)(text_size >> 8);
    memset(header + 10, ' ', text_size);
    memcpy(header + 10, text, (size_t)n);
    header[total - 1] = '\n';
    return total;
}
