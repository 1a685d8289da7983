/* wgmma.h: Hopper's warpgroup matrix multiply, E4M3 and BF16 operands (PTX ISA 9.7.15.5).
 *
 * One warpgroup (4 warps) multiplies a 64 x 32 A by a 32 x N B, both K-major. Accumulator register
 * r of lane t in warp w holds row 16*(w%4) + t/4 + 8*((r>>1)&1), column 8*(r>>2) + 2*(t%4) + (r&1)
 * in FP32; packed FP16 pairs hold the same two columns in one register. A from registers: register
 * i holds row .. + 8*(i&1), k = 16*(i>>1) + 4*(t%4) + byte.
 * BF16: A is 64 x 16, register i holds row .. + 8*(i&1), k = 8*(i>>1) + 2*(t%4) + half; B here is
 * 16 x N with N innermost.
 *
 * NOTE: with E4M3 operands the accumulator keeps 13 fraction bits and truncates toward zero at
 * every step; FP16 accumulators round once more on the way out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_WGMMA_H
#define MXA_CUDA_DEV_WGMMA_H

#include "cuda/dev/dev.h"
#include "cuda/dev/registers.h"

/* Shared memory matrix descriptor (9.7.15.5.1.2.2): K-major rows of 128 or 64 bytes in the swizzle
 * of the same width, 8 rows after one another; `at` aligned to 8 rows. Add MXA_DESCRIPTOR_K32 to
 * step 32 bytes along K inside a row. */
enum { MXA_DESCRIPTOR_K32 = 32 >> 4 };

MXA_DEVICE uint64_t wgmma_descriptor(mxa_shared at, uint32_t row_bytes)
{
    uint64_t swizzle = row_bytes == 128 ? 1 : 2;
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(8 * row_bytes >> 4) << 32 | swizzle << 62;
}

/* The descriptor `units` of 16 bytes further on: one addition of 32 bits. */
MXA_DEVICE uint64_t wgmma_descriptor_add(uint64_t descriptor, uint32_t units)
{
    return (descriptor & 0xFFFFFFFF00000000u) | ((uint32_t)descriptor + units);
}

/* The same of a BF16 B whose rows along K hold 64 columns (128 bytes, swizzled); the next 64
 * columns are `chunk_bytes` further. Add MXA_DESCRIPTOR_ROWS16 to step 16 rows along K. */
enum { MXA_DESCRIPTOR_ROWS16 = 16 * 128 >> 4 };

MXA_DEVICE uint64_t wgmma_descriptor_rows(mxa_shared at, uint32_t chunk_bytes)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(chunk_bytes >> 4) << 16 |
           (uint64_t)(8 * 128 >> 4) << 32 | (uint64_t)1 << 62;
}

#if defined(__CUDACC__)

/* Before the first wgmma, and whenever registers it reads were written. 9.7.15.7.1 */
MXA_DEVICE void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

MXA_DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most `pending` (0..7) groups are in flight. */
#define wgmma_wait(pending)                                                                        \
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory")

/* Keeps the compiler from moving accesses to accumulators over this point. */
MXA_DEVICE void wgmma_hold_f32(float *d, int count)
{
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

MXA_DEVICE void wgmma_hold_u32(uint32_t *d, int count)
{
    MXA_UNROLL
    for (int i = 0; i < count; i++) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

/* A and B from shared memory. _first: D = A*B, what D held is ignored. */
#define MXA_WGMMA_SS(name, element, constraint, shape, names, list, a, b, p)                       \
    MXA_DEVICE void name(element *d, uint64_t a_descriptor, uint64_t b_descriptor)                 \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\n"                                \
                     "wgmma.mma_async.sync.aligned." shape ".e4m3.e4m3 {" names "}, " a ", " b     \
                     ", p, 1, 1;\n}"                                                               \
                     : list(constraint, d)                                                         \
                     : "l"(a_descriptor), "l"(b_descriptor));                                      \
    }

MXA_WGMMA_SS(wgmma_ss_m64n128_f32, float, "+f", "m64n128k32.f32", MXA_NAMES64, MXA_REG64, "%64",
             "%65", "1")
MXA_WGMMA_SS(wgmma_ss_m64n128_f32_first, float, "=f", "m64n128k32.f32", MXA_NAMES64, MXA_REG64,
             "%64", "%65", "0")
MXA_WGMMA_SS(wgmma_ss_m64n64_f32, float, "+f", "m64n64k32.f32", MXA_NAMES32, MXA_REG32, "%32",
             "%33", "1")
MXA_WGMMA_SS(wgmma_ss_m64n64_f32_first, float, "=f", "m64n64k32.f32", MXA_NAMES32, MXA_REG32, "%32",
             "%33", "0")
MXA_WGMMA_SS(wgmma_ss_m64n64_f16, uint32_t, "+r", "m64n64k32.f16", MXA_NAMES16, MXA_LIST16, "%16",
             "%17", "1")
MXA_WGMMA_SS(wgmma_ss_m64n64_f16_first, uint32_t, "=r", "m64n64k32.f16", MXA_NAMES16, MXA_LIST16,
             "%16", "%17", "0")
MXA_WGMMA_SS(wgmma_ss_m64n128_f16, uint32_t, "+r", "m64n128k32.f16", MXA_NAMES32, MXA_REG32, "%32",
             "%33", "1")
MXA_WGMMA_SS(wgmma_ss_m64n128_f16_first, uint32_t, "=r", "m64n128k32.f16", MXA_NAMES32, MXA_REG32,
             "%32", "%33", "0")

/* A from four registers, B from shared memory, FP32 accumulator. */
#define MXA_WGMMA_RS(name, constraint, shape, names, list, a, b, p)                                \
    MXA_DEVICE void name(float *d, const uint32_t *a_registers, uint64_t b_descriptor)             \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\n"                                \
                     "wgmma.mma_async.sync.aligned." shape ".f32.e4m3.e4m3 {" names "}, {" a       \
                     "}, " b ", p, 1, 1;\n}"                                                       \
                     : list(constraint, d)                                                         \
                     : "r"(a_registers[0]), "r"(a_registers[1]), "r"(a_registers[2]),              \
                       "r"(a_registers[3]), "l"(b_descriptor));                                    \
    }

MXA_WGMMA_RS(wgmma_rs_m64n64_f32, "+f", "m64n64k32", MXA_NAMES32, MXA_REG32, "%32, %33, %34, %35",
             "%36", "1")
MXA_WGMMA_RS(wgmma_rs_m64n128_f32, "+f", "m64n128k32", MXA_NAMES64, MXA_REG64, "%64, %65, %66, %67",
             "%68", "1")
MXA_WGMMA_RS(wgmma_rs_m64n256_f32, "+f", "m64n256k32", MXA_NAMES128, MXA_REG128,
             "%128, %129, %130, %131", "%132", "1")

/* The same, FP16 accumulator. _first: D = A*B, what D held is ignored. */
#define MXA_WGMMA_RS_F16(name, constraint, p)                                                      \
    MXA_DEVICE void name(uint32_t *d, const uint32_t *a_registers, uint64_t b_descriptor)          \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\n"                                \
                     "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {" MXA_NAMES32         \
                     "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"                                   \
                     : MXA_REG32(constraint, d)                                                    \
                     : "r"(a_registers[0]), "r"(a_registers[1]), "r"(a_registers[2]),              \
                       "r"(a_registers[3]), "l"(b_descriptor));                                    \
    }

MXA_WGMMA_RS_F16(wgmma_rs_m64n128_f16, "+r", "1")
MXA_WGMMA_RS_F16(wgmma_rs_m64n128_f16_first, "=r", "0")

/* A of BF16 from four registers, B of BF16 from shared memory with N innermost. */
#define MXA_WGMMA_RS_BF16(name, shape, names, list, a, b)                                          \
    MXA_DEVICE void name(float *d, const uint32_t *a_registers, uint64_t b_descriptor)             \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, {" a       \
                     "}, " b ", p, 1, 1, 1;\n}"                                                    \
                     : list("+f", d)                                                               \
                     : "r"(a_registers[0]), "r"(a_registers[1]), "r"(a_registers[2]),              \
                       "r"(a_registers[3]), "l"(b_descriptor));                                    \
    }

MXA_WGMMA_RS_BF16(wgmma_rs_m64n64_bf16, "m64n64k16", MXA_NAMES32, MXA_REG32, "%32, %33, %34, %35",
                  "%36")
MXA_WGMMA_RS_BF16(wgmma_rs_m64n128_bf16, "m64n128k16", MXA_NAMES64, MXA_REG64, "%64, %65, %66, %67",
                  "%68")
MXA_WGMMA_RS_BF16(wgmma_rs_m64n256_bf16, "m64n256k16", MXA_NAMES128, MXA_REG128,
                  "%128, %129, %130, %131", "%132")

#else
#include "emu/wgmma.h"
#endif
#endif
