/* dev.h: words for code that is both CUDA and C11.
 *
 * Kernels are written in the intersection of the two languages: nvcc compiles them for a GPU, a C
 * compiler for the emulator. What the languages spell differently has a name here; every
 * instruction is a function of one of the other headers of this folder. No kernel dereferences a
 * pointer to shared, tensor or global memory: it calls these functions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_H
#define MXA_CUDA_DEV_H

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define MXA_DEVICE        static __device__ __forceinline__
#define MXA_UNROLL        _Pragma("unroll")
#define MXA_NO_UNROLL     _Pragma("unroll 1")
#define MXA_STATIC_ASSERT static_assert

/* A kernel of at most `threads` threads, one CTA a multiprocessor, with one parameter struct:
 * MXA_KERNEL(name, threads, type, parameters) { body }. MXA_KERNEL_SMALL leaves the registers for
 * several CTAs, MXA_KERNEL_MANY for at least `ctas`; MXA_KERNEL_CLUSTER starts clusters of
 * `cluster` CTAs along x. */
#define MXA_KERNEL(name, threads, type, parameters)                                                \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                       \
        name(const __grid_constant__ type parameters)
#define MXA_KERNEL_SMALL(name, threads, type, parameters)                                          \
    extern "C" __global__ void __launch_bounds__(threads)                                          \
        name(const __grid_constant__ type parameters)
#define MXA_KERNEL_MANY(name, threads, ctas, type, parameters)                                     \
    extern "C" __global__ void __launch_bounds__(threads, ctas)                                    \
        name(const __grid_constant__ type parameters)
#define MXA_KERNEL_CLUSTER(name, threads, cluster, type, parameters)                               \
    extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)       \
        name(const __grid_constant__ type parameters)
#endif

/* An address in the shared window of this CTA, and one in global memory. */
typedef uint32_t mxa_shared;
typedef uint64_t mxa_global;

#if defined(__CUDACC__)

/* Names for the emulator's reports and pictures; nothing on a GPU. A role is of the thread that
 * says it. A barrier's `arrives` and `waits` name roles: a deadlock report tells who is missing. */
#define dev_role(name)                                    ((void)0)
#define dev_region(at, bytes, name, index)                ((void)0)
#define dev_tensor_region(column, columns, name, index)   ((void)0)
#define dev_barrier(barrier, name, index, arrives, waits) ((void)0)

/* Special registers (PTX ISA, 10). */
MXA_DEVICE int dev_thread(void)
{
    return (int)threadIdx.x;
}
/* The same, read again each time: costs no register between uses. */
MXA_DEVICE int dev_thread_again(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

MXA_DEVICE int dev_threads(void)
{
    return (int)blockDim.x;
}
MXA_DEVICE int dev_block_x(void)
{
    return (int)blockIdx.x;
}
MXA_DEVICE int dev_block_y(void)
{
    return (int)blockIdx.y;
}
MXA_DEVICE int dev_block_z(void)
{
    return (int)blockIdx.z;
}
MXA_DEVICE int dev_grid_x(void)
{
    return (int)gridDim.x;
}

/* Keeps the compiler from moving the computation of *x past this point. */
MXA_DEVICE void hold_u32(uint32_t *x)
{
    asm volatile("" : "+r"(*x)::"memory");
}

/* Start of dynamic shared memory. */
MXA_DEVICE mxa_shared dev_shared(void)
{
    extern __shared__ __align__(1024) unsigned char mxa_dynamic_shared[];
    return (mxa_shared)__cvta_generic_to_shared(mxa_dynamic_shared);
}

#else
#include "emu/dev.h"
#endif
#endif
