/* cluster.h: clusters of CTAs, dependent launches, launch control (PTX ISA 9.7.13).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_CLUSTER_H
#define MXA_CUDA_DEV_CLUSTER_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

/* This CTA's rank in its cluster. */
MXA_DEVICE int cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

/* All threads of all CTAs of the cluster; arrive is a release, wait an acquire. 9.7.13.4 */
MXA_DEVICE void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

MXA_DEVICE void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same place in the shared memory of CTA `rank`, as remote arrivals take it. */
MXA_DEVICE mxa_shared cluster_map(mxa_shared at, int rank)
{
    mxa_shared remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

/* One arrival on a barrier of another CTA (an address of cluster_map). 9.7.13.15.13 */
MXA_DEVICE void mbarrier_arrive_remote(mxa_shared remote)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
                 : "memory");
}

/* Until the grids this one depends on have ended and their writes are seen. 9.7.13.13 */
MXA_DEVICE void grid_dependency_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* A hint that dependent grids may be scheduled. */
MXA_DEVICE void grid_dependency_launch(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Asks for a CTA of this grid that has not started, to run in its stead: 16 bytes (aligned) arrive
 * at `to` and count on `barrier`. NOTE: none may follow one that was refused. 9.7.13.17 */
MXA_DEVICE void launch_control_try(mxa_shared to, mxa_shared barrier)
{
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes."
                 "b128 [%0], [%1];" ::"r"(to),
                 "r"(barrier)
                 : "memory");
}

/* The answer at `at`: 1 and the CTA's place in the grid's x, or 0. 9.7.13.18 */
MXA_DEVICE int launch_control_take(mxa_shared at, int *block_x)
{
    uint32_t taken, x;
    asm volatile("{\n.reg .pred p;\n.reg .b128 answer;\nld.shared.b128 answer, [%2];\n"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;\n"
                 "selp.u32 %0, 1, 0, p;\nmov.u32 %1, 0;\n"
                 "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, _, _, _}, "
                 "answer;\n}"
                 : "=r"(taken), "=r"(x)
                 : "r"(at)
                 : "memory");
    *block_x = (int)x;
    return (int)taken;
}

#else
#include "emu/cluster.h"
#endif
#endif
