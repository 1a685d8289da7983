/* tmem.h: tensor memory: allocation, loads, stores and their completion (PTX ISA 9.7.16.7, .8).
 *
 * 128 lanes of 512 columns of 32 bits. An address is lane << 16 | column. A warp reaches the 32
 * lanes of its quarter (warp % 4) and passes the address of their first one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_TMEM_H
#define MXA_CUDA_DEV_TMEM_H

#include "cuda/dev/dev.h"
#include "cuda/dev/registers.h"

/* An address in tensor memory. */
typedef uint32_t mxa_tmem;

/* The same columns at the first lane of this warp's quarter. */
MXA_DEVICE mxa_tmem tmem_quarter(mxa_tmem at, int warp)
{
    return at + ((uint32_t)(warp & 3) << 21);
}

#if defined(__CUDACC__)

/* Columns (a power of two, 32..512) for this CTA; their address goes to `slot` in shared memory, a
 * plain store that a barrier must order before readers. Whole warp; may block until another CTA of
 * the SM frees some. 9.7.16.7.1 */
MXA_DEVICE void tmem_alloc(mxa_shared slot, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot),
                 "r"(columns)
                 : "memory");
}

/* This CTA will allocate no more. Whole warp, the one that allocated. */
MXA_DEVICE void tmem_relinquish(void)
{
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

/* Whole warp, the one that allocated. NOTE: all must be freed before the CTA ends. */
MXA_DEVICE void tmem_free(mxa_tmem at, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns)
                 : "memory");
}

/* The same for a pair of CTAs (cta_group::2): one warp of each. */
MXA_DEVICE void tmem_alloc_pair(mxa_shared slot, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot),
                 "r"(columns)
                 : "memory");
}

MXA_DEVICE void tmem_relinquish_pair(void)
{
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
}

MXA_DEVICE void tmem_free_pair(mxa_tmem at, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns)
                 : "memory");
}

/* Loads and stores of a whole warp; asynchronous until the wait of the same warp. 9.7.16.8
 *
 * tmem_load_x<N>, tmem_store_x<N>: shape 32x32b: register r of lane t is lane t of the quarter,
 * column r. */
#define MXA_TMEM(suffix, shape, count)                                                             \
    MXA_DEVICE void tmem_load_##suffix(uint32_t *r, mxa_tmem at)                                   \
    {                                                                                              \
        asm volatile("tcgen05.ld.sync.aligned." shape ".b32 {" MXA_NAMES##count "}, [%" #count     \
                                                                                "];"               \
                     : MXA_LIST##count("=r", r)                                                    \
                     : "r"(at)                                                                     \
                     : "memory");                                                                  \
    }                                                                                              \
    MXA_DEVICE void tmem_store_##suffix(mxa_tmem at, const uint32_t *r)                            \
    {                                                                                              \
        asm volatile("tcgen05.st.sync.aligned." shape ".b32 [%" #count "], {" MXA_NAMES##count     \
                     "};" ::MXA_LIST##count("r", r),                                               \
                     "r"(at)                                                                       \
                     : "memory");                                                                  \
    }

MXA_TMEM(x1, "32x32b.x1", 1)
MXA_TMEM(x2, "32x32b.x2", 2)
MXA_TMEM(x4, "32x32b.x4", 4)
MXA_TMEM(x8, "32x32b.x8", 8)
MXA_TMEM(x16, "32x32b.x16", 16)
MXA_TMEM(x32, "32x32b.x32", 32)
MXA_TMEM(x64, "32x32b.x64", 64)
MXA_TMEM(x128, "32x32b.x128", 128)

/* Shapes of 16 lanes, at the quarter's lane 0 or 16. Register r of lane t:
 *   16x64b   lane 8*(t&1) + (t>>2),       column 2*r + ((t>>1)&1)             x16: 16 registers
 *   16x128b  lane (t>>2) + 8*(r&1),       column (t&3) + 4*(r>>1)             x8: 16
 *   16x256b  lane (t>>2) + 8*((r>>1)&1),  column 2*(t&3) + (r&1) + 8*(r>>2)   x4: 16, x8: 32 */
MXA_TMEM(16x64b_x16, "16x64b.x16", 16)
MXA_TMEM(16x128b_x8, "16x128b.x8", 16)
MXA_TMEM(16x256b_x4, "16x256b.x4", 16)
MXA_TMEM(16x256b_x8, "16x256b.x8", 32)

/* Until this warp's loads have read, its stores have landed. Whole warp. 9.7.16.8.5. NOTE: needed
 * before an arrive that lets another agent overwrite, or read, those columns. */
MXA_DEVICE void tmem_wait_load(void)
{
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

MXA_DEVICE void tmem_wait_store(void)
{
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

#else
#include "emu/tmem.h"
#endif
#endif
