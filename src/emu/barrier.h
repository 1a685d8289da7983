/* barrier.h: the emulator's body of cuda/dev/barrier.h: warps, warpgroups and the CTA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_BARRIER_H
#define MXA_EMU_BARRIER_H

#include "emu/dev.h"

/* threads 0: all of the CTA. aligned: the lanes of a warp come together. */
MXA_EMU_ENTRY void mxa_emu_barrier_sync(int id, int threads, int aligned);
MXA_EMU_ENTRY void mxa_emu_barrier_arrive(int id, int threads);
MXA_EMU_ENTRY void mxa_emu_warp_sync(void);
MXA_EMU_ENTRY void mxa_emu_setmaxnreg(int registers, int increase);

/* Shuffles and votes: each lane gives x; kind says what it gets. */
enum {
    MXA_EMU_SHUFFLE_XOR,
    MXA_EMU_SHUFFLE_UP,
    MXA_EMU_SHUFFLE_LANE,
    MXA_EMU_VOTE_ANY,
    MXA_EMU_VOTE_BALLOT,
    MXA_EMU_ELECT,
    MXA_EMU_MAX_U32,
    MXA_EMU_MAX_ABS_NAN_F32
};
MXA_EMU_ENTRY uint32_t mxa_emu_exchange(int kind, uint32_t x, int operand);

MXA_DEVICE void cta_sync(void)
{
    mxa_emu_barrier_sync(0, 0, 1);
}

MXA_DEVICE void named_sync(int id, int threads)
{
    mxa_emu_barrier_sync(id, threads, 1);
}

MXA_DEVICE void warp_sync(void)
{
    mxa_emu_warp_sync();
}

MXA_DEVICE float shuffle_xor_f32(float x, int mask)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    v.u = mxa_emu_exchange(MXA_EMU_SHUFFLE_XOR, v.u, mask);
    return v.f;
}

MXA_DEVICE uint32_t shuffle_xor_u32(uint32_t x, int mask)
{
    return mxa_emu_exchange(MXA_EMU_SHUFFLE_XOR, x, mask);
}

MXA_DEVICE int shuffle_up_i32(int x, int delta)
{
    return (int)mxa_emu_exchange(MXA_EMU_SHUFFLE_UP, (uint32_t)x, delta);
}

MXA_DEVICE int shuffle_i32(int x, int lane)
{
    return (int)mxa_emu_exchange(MXA_EMU_SHUFFLE_LANE, (uint32_t)x, lane);
}

MXA_DEVICE int warp_uniform(int x)
{
    return (int)mxa_emu_exchange(MXA_EMU_SHUFFLE_LANE, (uint32_t)x, 0);
}

MXA_DEVICE int warp_any(int x)
{
    return (int)mxa_emu_exchange(MXA_EMU_VOTE_ANY, (uint32_t)(x != 0), 0);
}

MXA_DEVICE void cta_sync_unaligned(void)
{
    mxa_emu_barrier_sync(0, 0, 0);
}

MXA_DEVICE void named_arrive(int id, int threads)
{
    mxa_emu_barrier_arrive(id, threads);
}

MXA_DEVICE int warp_elect(void)
{
    return (int)mxa_emu_exchange(MXA_EMU_ELECT, 0, 0);
}

MXA_DEVICE uint32_t warp_ballot(int x)
{
    return mxa_emu_exchange(MXA_EMU_VOTE_BALLOT, (uint32_t)(x != 0), 0);
}

MXA_DEVICE uint32_t warp_max_u32(uint32_t x)
{
    return mxa_emu_exchange(MXA_EMU_MAX_U32, x, 0);
}

MXA_DEVICE float warp_max_abs_nan_f32(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    v.u = mxa_emu_exchange(MXA_EMU_MAX_ABS_NAN_F32, v.u, 0);
    return v.f;
}

#define setmaxnreg_decrease(registers) mxa_emu_setmaxnreg(registers, 0)
#define setmaxnreg_increase(registers) mxa_emu_setmaxnreg(registers, 1)

#endif
