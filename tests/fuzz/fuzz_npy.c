/* fuzz_npy.c: any bytes as a .npy file: the reader never reads past them, what it accepts is
 * consistent and survives a round trip through the writer, what it refuses has a sentence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mxc_npy array, again;
    size_t offset = 0, offset_again = 0;
    char why[256] = "";
    if (!mxc_npy_parse(data, size, &array, &offset, why, sizeof why)) {
        FUZZ_REQUIRE(why[0], "refused without a sentence");
        return 0;
    }
    FUZZ_REQUIRE(array.ndim >= 0 && array.ndim <= MXC_NPY_DIMS, "%d dimensions", array.ndim);
    int64_t count = 1;
    int empty = 0;
    for (int i = 0; i < array.ndim; i++) {
        FUZZ_REQUIRE(array.shape[i] >= 0, "a negative size");
        empty |= array.shape[i] == 0;
    }
    for (int i = 0; i < array.ndim && !empty; i++)
        count *= array.shape[i];
    count = empty ? 0 : count;
    FUZZ_REQUIRE(array.count == count, "count %lld, not %lld", (long long)array.count,
                 (long long)count);
    size_t bytes = (size_t)count * mxc_npy_type_bytes(array.type);
    FUZZ_REQUIRE(offset + bytes == size, "%zu bytes from %zu of %zu", bytes, offset, size);

    uint8_t *written = malloc(MXC_NPY_HEADER_MAX + bytes);
    FUZZ_REQUIRE(written != NULL, "no memory");
    size_t header = mxc_npy_header(written, array.type, array.ndim, array.shape);
    FUZZ_REQUIRE(header % 64 == 0 && header <= MXC_NPY_HEADER_MAX, "a header of %zu bytes", header);
    memcpy(written + header, data + offset, bytes);
    FUZZ_REQUIRE(mxc_npy_parse(written, header + bytes, &again, &offset_again, why, sizeof why),
                 "the writer's file %s", why);
    FUZZ_REQUIRE(offset_again == header && again.type == array.type && again.ndim == array.ndim &&
                     again.count == array.count &&
                     memcmp(again.shape, array.shape, (size_t)array.ndim * sizeof *array.shape) ==
                         0,
                 "another array after a round trip");
    free(written);
    return 0;
}
