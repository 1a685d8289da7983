/* mbarrier.h: the emulator's body of cuda/dev/mbarrier.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_MBARRIER_H
#define MXA_EMU_MBARRIER_H

#include "emu/dev.h"

MXA_EMU_ENTRY void mxa_emu_mbarrier_init(uint32_t barrier, uint32_t count);
MXA_EMU_ENTRY void mxa_emu_mbarrier_init_fence(void);
MXA_EMU_ENTRY void mxa_emu_mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t expect_bytes);
MXA_EMU_ENTRY void mxa_emu_mbarrier_expect(uint32_t barrier, uint32_t bytes);
MXA_EMU_ENTRY void mxa_emu_mbarrier_invalidate(uint32_t barrier);
MXA_EMU_ENTRY int mxa_emu_mbarrier_try_wait(uint32_t barrier, uint32_t parity);

MXA_DEVICE void mbarrier_init(uint32_t barrier, uint32_t count)
{
    mxa_emu_mbarrier_init(barrier, count);
}

MXA_DEVICE void mbarrier_init_fence(void)
{
    mxa_emu_mbarrier_init_fence();
}

MXA_DEVICE void mbarrier_arrive(uint32_t barrier)
{
    mxa_emu_mbarrier_arrive(barrier, 1, 0);
}

MXA_DEVICE void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    mxa_emu_mbarrier_arrive(barrier, 1, bytes);
}

MXA_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!mxa_emu_mbarrier_try_wait(barrier, parity)) {
    }
}

MXA_DEVICE void mbarrier_arrive_count(uint32_t barrier, uint32_t count)
{
    mxa_emu_mbarrier_arrive(barrier, count, 0);
}

MXA_DEVICE void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    mxa_emu_mbarrier_expect(barrier, bytes);
}

MXA_DEVICE int mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    return mxa_emu_mbarrier_try_wait(barrier, parity);
}

MXA_DEVICE void mbarrier_invalidate(uint32_t barrier)
{
    mxa_emu_mbarrier_invalidate(barrier);
}

#endif
