/* descriptor.h: what tells a Blackwell tensor core where its operands are and what they mean.
 *
 * Plain arithmetic, the same for a GPU and for the emulator. Bit fields: PTX ISA 9.7.16.4.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_DESCRIPTOR_H
#define MXA_CUDA_DEV_DESCRIPTOR_H

#include "cuda/dev/dev.h"

/* Swizzle codes of a shared memory matrix descriptor. NOTE: Hopper's codes are others. */
enum {
    MATRIX_SWIZZLE_NONE = 0,
    MATRIX_SWIZZLE_128 = 2,
    MATRIX_SWIZZLE_64 = 4,
    MATRIX_SWIZZLE_32 = 6
};

/* Shared memory matrix descriptor (9.7.16.4.1). Bytes between 8-row groups (stride) and, where the
 * canonical layout has a second step, between its chunks (leading; 0 where it does not count). The
 * pattern of a swizzled matrix starts at a multiple of 1024, 512 or 256 bytes, so that the base
 * offset is 0; a step along K inside a swizzled row adds to the address only. */
MXA_DEVICE uint64_t matrix_descriptor(mxa_shared at, uint32_t leading_bytes, uint32_t stride_bytes,
                                      uint32_t swizzle)
{
    return (uint64_t)((at & 0x3FFFFu) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
           (uint64_t)(stride_bytes >> 4) << 32 | (uint64_t)1 << 46 | (uint64_t)swizzle << 61;
}

/* The descriptor `bytes` further on, a multiple of 16. */
MXA_DEVICE uint64_t matrix_advance(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + (bytes >> 4);
}

/* Element types in an instruction descriptor. */
enum { MATRIX_E4M3 = 0, MATRIX_E5M2 = 1, MATRIX_E2M3 = 3, MATRIX_E3M2 = 4, MATRIX_E2M1 = 5 };
enum { MATRIX_F16 = 0, MATRIX_BF16 = 1 };

/* Instruction descriptors (9.7.16.4.2), FP32 accumulator, M = 128, A K-major. b_by_rows: B is
 * stored with N contiguous (transposed). */
#define MATRIX_INSTRUCTION(a_type, b_type, b_by_rows, n)                                           \
    ((uint32_t)(a_type) << 7 | (uint32_t)(b_type) << 10 | (uint32_t)(b_by_rows) << 16 |            \
     (uint32_t)((n) / 8) << 17 | (uint32_t)(128 / 16) << 24)
/* kind::mxf8f6f4 with E8M0 scales; MATRIX_SCALES(i) picks byte i of A's and B's scale words. */
#define MATRIX_INSTRUCTION_MXF8(a_type, b_type, b_by_rows, n)                                      \
    (MATRIX_INSTRUCTION(a_type, b_type, b_by_rows, n) | (uint32_t)1 << 23)
#define MATRIX_SCALES(i) ((uint32_t)(i) << 4 | (uint32_t)(i) << 29)
/* kind::f16 and kind::f8f6f4, whose accumulator type is a field. */
#define MATRIX_INSTRUCTION_F32(a_type, b_type, b_by_rows, n)                                       \
    (MATRIX_INSTRUCTION(a_type, b_type, b_by_rows, n) | (uint32_t)1 << 4)

#endif
