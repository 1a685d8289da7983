/* mbarrier.h: barriers in shared memory with transaction counts (PTX ISA 9.7.13.15).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_MBARRIER_H
#define MXA_CUDA_DEV_MBARRIER_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

/* Phase 0, `count` arrivals a phase. 9.7.13.15.9 */
MXA_DEVICE void mbarrier_init(mxa_shared barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* Publishes inits to asynchronous agents and the cluster. NOTE: needed before the first TMA. */
MXA_DEVICE void mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival. 9.7.13.15.13 */
MXA_DEVICE void mbarrier_arrive(mxa_shared barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One arrival that also expects `bytes` of asynchronous copies. */
MXA_DEVICE void mbarrier_arrive_expect(mxa_shared barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has completed; acquire, CTA scope. 9.7.13.15.16 */
MXA_DEVICE void mbarrier_wait(mxa_shared barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* `count` arrivals. */
MXA_DEVICE void mbarrier_arrive_count(mxa_shared barrier, uint32_t count)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(count)
                 : "memory");
}

/* Expects `bytes` more of asynchronous copies in this phase; no arrival. */
MXA_DEVICE void mbarrier_expect(mxa_shared barrier, uint32_t bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* 1 when the phase of this parity has completed, else 0, at once or after a while. NOTE: may say 0
 * for no reason. 9.7.13.15.16 */
MXA_DEVICE int mbarrier_try_wait(mxa_shared barrier, uint32_t parity)
{
    int done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* The memory may hold something else from now on. 9.7.13.15.10 */
MXA_DEVICE void mbarrier_invalidate(mxa_shared barrier)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

#else
#include "emu/mbarrier.h"
#endif
#endif
