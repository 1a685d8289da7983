/* input.h: reads a fuzzer's bytes as choices. When they run out, everything is 0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_FUZZ_INPUT_H
#define MXT_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The property a target holds. abort() is what libFuzzer and the replay take as a finding. */
#define FUZZ_REQUIRE(condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                  \
            (void)fprintf(stderr, __VA_ARGS__);                                                    \
            (void)fprintf(stderr, "\n");                                                           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_input {
    const uint8_t *data;
    size_t size;
} fuzz_input;

static inline void fuzz_bytes(fuzz_input *input, void *out, size_t bytes)
{
    size_t have = bytes < input->size ? bytes : input->size;
    memset(out, 0, bytes);
    if (have)
        memcpy(out, input->data, have);
    input->data += have;
    input->size -= have;
}

static inline uint8_t fuzz_u8(fuzz_input *input)
{
    uint8_t x;
    fuzz_bytes(input, &x, sizeof x);
    return x;
}

static inline int32_t fuzz_i32(fuzz_input *input)
{
    int32_t x;
    fuzz_bytes(input, &x, sizeof x);
    return x;
}

/* In [low, high]; one byte while the range fits in one. */
static inline int64_t fuzz_range(fuzz_input *input, int64_t low, int64_t high)
{
    uint64_t span = (uint64_t)(high - low) + 1;
    uint64_t x = span <= 256 ? fuzz_u8(input) : (uint32_t)fuzz_i32(input);
    return low + (int64_t)(x % span);
}

/* Mostly small and legal, sometimes at an end of the type or anything. */
static inline int64_t fuzz_size(fuzz_input *input)
{
    static const int64_t ends[] = {0,         -1,           1,       INT32_MAX, (int64_t)1 << 31,
                                   INT64_MAX, INT64_MIN,    1 << 20, 8,         (int64_t)1 << 40,
                                   512,       INT64_MAX / 2};
    uint8_t kind = fuzz_u8(input);
    if (kind < 200)
        return 8 * (kind % 32);
    if (kind < 240)
        return ends[(size_t)kind % (sizeof ends / sizeof *ends)];
    int64_t x;
    fuzz_bytes(input, &x, sizeof x);
    return x;
}

#endif
