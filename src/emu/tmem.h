/* tmem.h: the emulator's body of cuda/dev/tmem.h: tensor memory, its allocation, loads and stores.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_TMEM_H
#define MXA_EMU_TMEM_H

#include "cuda/dev/tmem.h"
#include "emu/dev.h"

/* pair: cta_group::2. */
MXA_EMU_ENTRY void mxa_emu_tmem_alloc(uint32_t slot, uint32_t columns, int pair);
MXA_EMU_ENTRY void mxa_emu_tmem_relinquish(int pair);
MXA_EMU_ENTRY void mxa_emu_tmem_free(uint32_t at, uint32_t columns, int pair);

/* Shapes of loads and stores; `count` registers of a lane. */
enum { MXA_EMU_32X32B, MXA_EMU_16X64B, MXA_EMU_16X128B, MXA_EMU_16X256B };
MXA_EMU_ENTRY void mxa_emu_tmem_load(uint32_t *registers, uint32_t at, int shape, int count);
MXA_EMU_ENTRY void mxa_emu_tmem_store(uint32_t at, const uint32_t *registers, int shape, int count);
MXA_EMU_ENTRY void mxa_emu_tmem_wait_load(void);
MXA_EMU_ENTRY void mxa_emu_tmem_wait_store(void);

MXA_DEVICE void tmem_alloc(uint32_t slot, uint32_t columns)
{
    mxa_emu_tmem_alloc(slot, columns, 0);
}

MXA_DEVICE void tmem_relinquish(void)
{
    mxa_emu_tmem_relinquish(0);
}

MXA_DEVICE void tmem_free(uint32_t at, uint32_t columns)
{
    mxa_emu_tmem_free(at, columns, 0);
}

MXA_DEVICE void tmem_alloc_pair(uint32_t slot, uint32_t columns)
{
    mxa_emu_tmem_alloc(slot, columns, 1);
}

MXA_DEVICE void tmem_relinquish_pair(void)
{
    mxa_emu_tmem_relinquish(1);
}

MXA_DEVICE void tmem_free_pair(uint32_t at, uint32_t columns)
{
    mxa_emu_tmem_free(at, columns, 1);
}

#define MXA_EMU_TMEM(suffix, shape, count)                                                         \
    MXA_DEVICE void tmem_load_##suffix(uint32_t *r, uint32_t at)                                   \
    {                                                                                              \
        mxa_emu_tmem_load(r, at, shape, count);                                                    \
    }                                                                                              \
    MXA_DEVICE void tmem_store_##suffix(uint32_t at, const uint32_t *r)                            \
    {                                                                                              \
        mxa_emu_tmem_store(at, r, shape, count);                                                   \
    }

MXA_EMU_TMEM(x1, MXA_EMU_32X32B, 1)
MXA_EMU_TMEM(x2, MXA_EMU_32X32B, 2)
MXA_EMU_TMEM(x4, MXA_EMU_32X32B, 4)
MXA_EMU_TMEM(x8, MXA_EMU_32X32B, 8)
MXA_EMU_TMEM(x16, MXA_EMU_32X32B, 16)
MXA_EMU_TMEM(x32, MXA_EMU_32X32B, 32)
MXA_EMU_TMEM(x64, MXA_EMU_32X32B, 64)
MXA_EMU_TMEM(x128, MXA_EMU_32X32B, 128)
MXA_EMU_TMEM(16x64b_x16, MXA_EMU_16X64B, 16)
MXA_EMU_TMEM(16x128b_x8, MXA_EMU_16X128B, 16)
MXA_EMU_TMEM(16x256b_x4, MXA_EMU_16X256B, 16)
MXA_EMU_TMEM(16x256b_x8, MXA_EMU_16X256B, 32)

MXA_DEVICE void tmem_wait_load(void)
{
    mxa_emu_tmem_wait_load();
}

MXA_DEVICE void tmem_wait_store(void)
{
    mxa_emu_tmem_wait_store();
}

#endif
