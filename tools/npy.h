/* npy.h: NumPy's .npy files, versions 1 to 3, as far as the command uses them.
 *
 * Element types: float32, float16, bfloat16 (as uint16, or as the two-byte void type that
 * ml_dtypes writes), bytes (uint8, or one-byte void), int32, int64; little-endian, C order, at most
 * four dimensions. Anything else, and any file that is not exactly its header and its data, is
 * refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_NPY_H
#define MXC_TOOLS_NPY_H

#include <stddef.h>
#include <stdint.h>

typedef enum mxc_npy_type {
    MXC_NPY_F32,
    MXC_NPY_F16,
    MXC_NPY_BF16,
    MXC_NPY_U8,
    MXC_NPY_I32,
    MXC_NPY_I64
} mxc_npy_type;

enum { MXC_NPY_DIMS = 4 };

typedef struct mxc_npy {
    mxc_npy_type type;
    int ndim;
    int64_t shape[MXC_NPY_DIMS];
    int64_t count; /* elements */
    void *data;    /* aligned to 64 bytes */
} mxc_npy;

size_t mxc_npy_type_bytes(mxc_npy_type type);
const char *mxc_npy_type_name(mxc_npy_type type);

/* Parses a whole file held in bytes. On success returns 1 and *data_offset says where the elements
 * start; out->data is not set. Otherwise returns 0 and `why` says what is wrong with the file, as
 * the end of a sentence that starts with its name. */
int mxc_npy_parse(const uint8_t *bytes, size_t size, mxc_npy *out, size_t *data_offset, char *why,
                  size_t why_size);

/* Reads a file. The same result; out->data is freed with mxc_npy_free. */
int mxc_npy_read(const char *path, mxc_npy *out, char *why, size_t why_size);
void mxc_npy_free(mxc_npy *array);

/* Writes the header of an array, a multiple of 64 bytes, and returns its size. */
enum { MXC_NPY_HEADER_MAX = 256 };
size_t mxc_npy_header(uint8_t header[MXC_NPY_HEADER_MAX], mxc_npy_type type, int ndim,
                      const int64_t *shape);

#endif
