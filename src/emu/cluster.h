/* cluster.h: the emulator's body of cuda/dev/cluster.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_CLUSTER_H
#define MXA_EMU_CLUSTER_H

#include "emu/dev.h"

int mxa_emu_cluster_rank(void);
MXA_EMU_ENTRY void mxa_emu_cluster_arrive(void);
MXA_EMU_ENTRY void mxa_emu_cluster_wait(void);
MXA_EMU_ENTRY uint32_t mxa_emu_cluster_map(uint32_t at, int rank);
MXA_EMU_ENTRY void mxa_emu_mbarrier_arrive_remote(uint32_t remote);
MXA_EMU_ENTRY void mxa_emu_grid_dependency_wait(void);
MXA_EMU_ENTRY void mxa_emu_grid_dependency_launch(void);
MXA_EMU_ENTRY void mxa_emu_launch_control_try(uint32_t to, uint32_t barrier);
MXA_EMU_ENTRY int mxa_emu_launch_control_take(uint32_t at, int *block_x);

MXA_DEVICE int cluster_rank(void)
{
    return mxa_emu_cluster_rank();
}

MXA_DEVICE void cluster_arrive(void)
{
    mxa_emu_cluster_arrive();
}

MXA_DEVICE void cluster_wait(void)
{
    mxa_emu_cluster_wait();
}

MXA_DEVICE uint32_t cluster_map(uint32_t at, int rank)
{
    return mxa_emu_cluster_map(at, rank);
}

MXA_DEVICE void mbarrier_arrive_remote(uint32_t remote)
{
    mxa_emu_mbarrier_arrive_remote(remote);
}

MXA_DEVICE void grid_dependency_wait(void)
{
    mxa_emu_grid_dependency_wait();
}

MXA_DEVICE void grid_dependency_launch(void)
{
    mxa_emu_grid_dependency_launch();
}

MXA_DEVICE void launch_control_try(uint32_t to, uint32_t barrier)
{
    mxa_emu_launch_control_try(to, barrier);
}

MXA_DEVICE int launch_control_take(uint32_t at, int *block_x)
{
    return mxa_emu_launch_control_take(at, block_x);
}

#endif
