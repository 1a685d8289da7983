/* tcgen05.h: Blackwell's tensor cores: copies, products, commits, fences (PTX ISA 9.7.16).
 *
 * One thread issues; it is the same thread for copies, products and their commit. Products of one
 * thread run in order; so do a copy and a product after it. Everything else is ordered by commits,
 * barriers and the two fences: write both, always.
 * Operand layouts: docs/sm100.md. Accumulator: row m in lane m, column n in column n, FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_TCGEN05_H
#define MXA_CUDA_DEV_TCGEN05_H

#include "cuda/dev/descriptor.h"
#include "cuda/dev/tmem.h"

#if defined(__CUDACC__)

/* This thread's earlier asynchronous tcgen05 operations come before what it synchronises next.
 * 9.7.16.6.4 */
MXA_DEVICE void tcgen05_fence_before(void)
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/* Its later ones come after what it has synchronised with. */
MXA_DEVICE void tcgen05_fence_after(void)
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* One arrival on `barrier` when this thread's earlier copies and products are done; includes
 * fence_before. 9.7.16.12.1 */
MXA_DEVICE void tcgen05_commit(mxa_shared barrier)
{
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
        : "memory");
}

/* The same at this offset in every CTA of `mask`, for a pair's operations. */
MXA_DEVICE void tcgen05_commit_pair(mxa_shared barrier, uint16_t mask)
{
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::"
                 "cluster.b64 [%0], %1;" ::"r"(barrier),
                 "h"(mask)
                 : "memory");
}

/* Rows of shared memory into columns from `to` on (lane 0), 32-bit word j of a row in column j; a
 * matrix without swizzle, K-major. Which lanes take row i: 9.7.16.9.2 */
#define MXA_TCGEN05_COPY(name, shape)                                                              \
    MXA_DEVICE void name(mxa_tmem to, uint64_t from)                                               \
    {                                                                                              \
        asm volatile("tcgen05.cp.cta_group::1." shape " [%0], %1;" ::"r"(to), "l"(from)            \
                     : "memory");                                                                  \
    }                                                                                              \
    MXA_DEVICE void name##_pair(mxa_tmem to, uint64_t from)                                        \
    {                                                                                              \
        asm volatile("tcgen05.cp.cta_group::2." shape " [%0], %1;" ::"r"(to), "l"(from)            \
                     : "memory");                                                                  \
    }

/* 32 rows of 4 words, in every quarter: a 512-byte unit of scales. */
MXA_TCGEN05_COPY(tcgen05_copy_scales, "32x128b.warpx4")
/* 64 rows of 4 words: row i in lanes i and i + 64; or rows 0..31 in quarters 0 and 1, the others in
 * 2 and 3. */
MXA_TCGEN05_COPY(tcgen05_copy_64x128b_02_13, "64x128b.warpx2::02_13")
MXA_TCGEN05_COPY(tcgen05_copy_64x128b_01_23, "64x128b.warpx2::01_23")
/* 128 rows of 4 or of 8 words, row i in lane i. */
MXA_TCGEN05_COPY(tcgen05_copy_128x128b, "128x128b")
MXA_TCGEN05_COPY(tcgen05_copy_128x256b, "128x256b")
/* 4 rows of 8 words, row i in lane 32*i. */
MXA_TCGEN05_COPY(tcgen05_copy_4x256b, "4x256b")

/* D = A*B + (accumulate ? D : 0), K = 32 bytes; _ss: A from shared memory, _ts: A from tensor
 * memory (row m in lane m, K packed along columns). B from shared memory. 9.7.16.10 */
#define MXA_TCGEN05_MMA(name, group, kind, a_type, a_constraint, a_name)                           \
    MXA_DEVICE void name(mxa_tmem d, a_type a, uint64_t b, uint32_t instruction,                   \
                         uint32_t accumulate)                                                      \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"                                   \
                     "tcgen05.mma.cta_group::" group ".kind::" kind " [%0], " a_name               \
                     ", %2, %3, p;\n}" ::"r"(d),                                                   \
                     a_constraint(a), "l"(b), "r"(instruction), "r"(accumulate)                    \
                     : "memory");                                                                  \
    }

MXA_TCGEN05_MMA(tcgen05_mma_f16_ss, "1", "f16", uint64_t, "l", "%1")
MXA_TCGEN05_MMA(tcgen05_mma_f16_ts, "1", "f16", mxa_tmem, "r", "[%1]")
MXA_TCGEN05_MMA(tcgen05_mma_f8_ss, "1", "f8f6f4", uint64_t, "l", "%1")
MXA_TCGEN05_MMA(tcgen05_mma_f8_ts, "1", "f8f6f4", mxa_tmem, "r", "[%1]")
MXA_TCGEN05_MMA(tcgen05_mma_f16_ss_pair, "2", "f16", uint64_t, "l", "%1")
MXA_TCGEN05_MMA(tcgen05_mma_f16_ts_pair, "2", "f16", mxa_tmem, "r", "[%1]")
MXA_TCGEN05_MMA(tcgen05_mma_f8_ss_pair, "2", "f8f6f4", uint64_t, "l", "%1")
MXA_TCGEN05_MMA(tcgen05_mma_f8_ts_pair, "2", "f8f6f4", mxa_tmem, "r", "[%1]")

/* The same with E8M0 scales: scale_a and scale_b are columns as tcgen05_copy_scales fills them; the
 * instruction descriptor picks one byte of each word. M = 128 (a pair: 256). */
#define MXA_TCGEN05_MMA_SCALED(name, group, a_type, a_constraint, a_name)                          \
    MXA_DEVICE void name(mxa_tmem d, a_type a, uint64_t b, uint32_t instruction, mxa_tmem scale_a, \
                         mxa_tmem scale_b, uint32_t accumulate)                                    \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"                                   \
                     "tcgen05.mma.cta_group::" group ".kind::mxf8f6f4.block_scale [%0], " a_name   \
                     ", %2, %3, [%4], [%5], p;\n}" ::"r"(d),                                       \
                     a_constraint(a), "l"(b), "r"(instruction), "r"(scale_a), "r"(scale_b),        \
                     "r"(accumulate)                                                               \
                     : "memory");                                                                  \
    }

MXA_TCGEN05_MMA_SCALED(tcgen05_mma_mxf8_ss, "1", uint64_t, "l", "%1")
MXA_TCGEN05_MMA_SCALED(tcgen05_mma_mxf8_ts, "1", mxa_tmem, "r", "[%1]")
MXA_TCGEN05_MMA_SCALED(tcgen05_mma_mxf8_ss_pair, "2", uint64_t, "l", "%1")
MXA_TCGEN05_MMA_SCALED(tcgen05_mma_mxf8_ts_pair, "2", mxa_tmem, "r", "[%1]")

#else
#include "emu/tcgen05.h"
#endif
#endif
