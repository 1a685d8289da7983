/* memory.h: loads and stores, space and width in the name (PTX ISA 9.7.9, ld, st, atom, red).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_MEMORY_H
#define MXA_CUDA_DEV_MEMORY_H

#include "cuda/dev/dev.h"

typedef struct mxa_u32x2 {
    uint32_t x, y;
} mxa_u32x2;

typedef struct mxa_u32x4 {
    uint32_t x, y, z, w;
} mxa_u32x4;

#if defined(__CUDACC__)

MXA_DEVICE uint32_t dev_load_global_u32(mxa_global at)
{
    uint32_t x;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

MXA_DEVICE uint16_t dev_load_global_u16(mxa_global at)
{
    uint16_t x;
    asm volatile("ld.global.b16 %0, [%1];" : "=h"(x) : "l"(at) : "memory");
    return x;
}

MXA_DEVICE uint8_t dev_load_global_u8(mxa_global at)
{
    uint32_t x;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return (uint8_t)x;
}

MXA_DEVICE float dev_load_global_f32(mxa_global at)
{
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

MXA_DEVICE int32_t dev_load_global_i32(mxa_global at)
{
    return (int32_t)dev_load_global_u32(at);
}

/* 16 bytes; at is a multiple of 16. */
MXA_DEVICE mxa_u32x4 dev_load_global_u32x4(mxa_global at)
{
    mxa_u32x4 v;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

/* 8 bytes; at is a multiple of 8. */
MXA_DEVICE mxa_u32x2 dev_load_global_u32x2(mxa_global at)
{
    mxa_u32x2 v;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
    return v;
}

MXA_DEVICE void dev_store_global_u8(mxa_global at, uint32_t x)
{
    asm volatile("st.global.u8 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

MXA_DEVICE void dev_store_global_u16(mxa_global at, uint16_t x)
{
    asm volatile("st.global.b16 [%0], %1;" ::"l"(at), "h"(x) : "memory");
}

MXA_DEVICE void dev_store_global_u32(mxa_global at, uint32_t x)
{
    asm volatile("st.global.b32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

MXA_DEVICE void dev_store_global_f32(mxa_global at, float x)
{
    asm volatile("st.global.f32 [%0], %1;" ::"l"(at), "f"(x) : "memory");
}

MXA_DEVICE void dev_store_global_u32x2(mxa_global at, uint32_t x, uint32_t y)
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(x), "r"(y) : "memory");
}

MXA_DEVICE void dev_store_global_u32x4(mxa_global at, mxa_u32x4 v)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

MXA_DEVICE uint32_t dev_load_shared_u32(mxa_shared at)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

MXA_DEVICE uint8_t dev_load_shared_u8(mxa_shared at)
{
    uint32_t x;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return (uint8_t)x;
}

MXA_DEVICE float dev_load_shared_f32(mxa_shared at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}

/* 8 bytes; at is a multiple of 8. */
MXA_DEVICE mxa_u32x2 dev_load_shared_u32x2(mxa_shared at)
{
    mxa_u32x2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

MXA_DEVICE mxa_u32x4 dev_load_shared_u32x4(mxa_shared at)
{
    mxa_u32x4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

MXA_DEVICE void dev_store_shared_u8(mxa_shared at, uint32_t x)
{
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

MXA_DEVICE void dev_store_shared_u32(mxa_shared at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

MXA_DEVICE void dev_store_shared_f32(mxa_shared at, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

MXA_DEVICE void dev_store_shared_u32x2(mxa_shared at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}

MXA_DEVICE void dev_store_shared_u32x4(mxa_shared at, mxa_u32x4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* *at = max(*at, x) as unsigned integers, relaxed, device scope. */
MXA_DEVICE void dev_max_global_u32(mxa_global at, uint32_t x)
{
    asm volatile("red.global.max.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

/* *at = *at + x in FP32, relaxed, device scope; order unspecified. */
MXA_DEVICE void dev_add_global_f32(mxa_global at, float x)
{
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(at), "f"(x) : "memory");
}

MXA_DEVICE uint32_t dev_fetch_add_global_u32(mxa_global at, uint32_t x)
{
    uint32_t old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(x) : "memory");
    return old;
}

/* What was written before another thread's dev_add_release_global_u32 on `at` is seen after this
 * has read its result; device scope. */
MXA_DEVICE uint32_t dev_load_acquire_global_u32(mxa_global at)
{
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

MXA_DEVICE void dev_add_release_global_u32(mxa_global at, uint32_t x)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

/* Both: what this thread wrote before is seen by who adds later, and what those wrote who added
 * before is seen after; device scope. */
MXA_DEVICE uint32_t dev_fetch_add_ordered_global_u32(mxa_global at, uint32_t x)
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(at), "r"(x)
                 : "memory");
    return old;
}

/* Four 8 x 8 matrices of 16-bit units, matrix i from v[i] of every lane in an accumulator's order
 * (row lane/4, columns 2*(lane%4) and the next), each stored transposed: lane l brings the address
 * of the 16 bytes that are row l%8 of matrix l/8 as stored. Whole warp. 9.7.14.5.16 */
MXA_DEVICE void dev_store_matrix_x4_transposed(mxa_shared at, const uint32_t *v)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

MXA_DEVICE uint32_t dev_fetch_add_shared_u32(mxa_shared at, uint32_t x)
{
    uint32_t old;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(at), "r"(x) : "memory");
    return old;
}

#else
#include "emu/memory.h"
#endif
#endif
