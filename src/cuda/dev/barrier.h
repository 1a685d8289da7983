/* barrier.h: warps, warpgroups and the CTA (PTX ISA 9.7.13, 9.7.19).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_BARRIER_H
#define MXA_CUDA_DEV_BARRIER_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

MXA_DEVICE void cta_sync(void)
{
    asm volatile("barrier.sync.aligned 0;" ::: "memory");
}

/* `threads` threads, a multiple of 32, meet at named barrier `id` (1..15). */
MXA_DEVICE void named_sync(int id, int threads)
{
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

MXA_DEVICE void warp_sync(void)
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

/* Value of lane (lane ^ mask). 9.7.9.6 */
MXA_DEVICE float shuffle_xor_f32(float x, int mask)
{
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
    return y;
}

MXA_DEVICE uint32_t shuffle_xor_u32(uint32_t x, int mask)
{
    uint32_t y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(mask));
    return y;
}

/* Value of lane (lane - delta); a lane without one keeps its own. 9.7.9.6 */
MXA_DEVICE int shuffle_up_i32(int x, int delta)
{
    int y;
    asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(y) : "r"(x), "r"(delta));
    return y;
}

/* Value of lane `lane`. 9.7.9.6 */
MXA_DEVICE int shuffle_i32(int x, int lane)
{
    int y;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
    return y;
}

/* Lane 0's value: tells the compiler that x is the same in the whole warp. */
MXA_DEVICE int warp_uniform(int x)
{
    int y;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* Nonzero when any lane's x is. 9.7.13.6 */
MXA_DEVICE int warp_any(int x)
{
    int y;
    asm volatile("{\n.reg .pred in, out;\nsetp.ne.b32 in, %1, 0;\n"
                 "vote.sync.any.pred out, in, 0xffffffff;\nselp.b32 %0, 1, 0, out;\n}"
                 : "=r"(y)
                 : "r"(x));
    return y;
}

/* cta_sync where the lanes of a warp need not arrive together, as after a branch only one lane
 * took. */
MXA_DEVICE void cta_sync_unaligned(void)
{
    asm volatile("barrier.sync 0;" ::: "memory");
}

/* Arrives at named barrier `id`, where `threads` threads arrive or meet, and does not wait. */
MXA_DEVICE void named_arrive(int id, int threads)
{
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* 1 in one lane of the warp, which the hardware picks; the same each time. 9.7.13.14 */
MXA_DEVICE int warp_elect(void)
{
    int y;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(y));
    return y;
}

/* Bit i of the result: lane i's x is not 0. 9.7.13.6 */
MXA_DEVICE uint32_t warp_ballot(int x)
{
    uint32_t y;
    asm volatile("{\n.reg .pred in;\nsetp.ne.b32 in, %1, 0;\n"
                 "vote.sync.ballot.b32 %0, in, 0xffffffff;\n}"
                 : "=r"(y)
                 : "r"(x));
    return y;
}

/* Largest x of the warp, in every lane. 9.7.13.12 */
MXA_DEVICE uint32_t warp_max_u32(uint32_t x)
{
    uint32_t y;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* Largest magnitude of the warp; a NaN wins. sm_100a; 9.7.13.12 */
MXA_DEVICE float warp_max_abs_nan_f32(float x)
{
    float y;
    asm volatile("redux.sync.max.abs.NaN.f32 %0, %1, 0xffffffff;" : "=f"(y) : "f"(x));
    return y;
}

/* Registers of this warpgroup, a multiple of 8 in 24..256; all its warps. 9.7.19.5. NOTE: only what
 * the launch allocated is redistributed, and asking for more hangs. */
#define setmaxnreg_decrease(registers)                                                             \
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers) : "memory")
#define setmaxnreg_increase(registers)                                                             \
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers) : "memory")

#else
#include "emu/barrier.h"
#endif
#endif
