/* memory.h: the emulator's body of cuda/dev/memory.h: loads, stores and atomics, all checked.
 *
 * Included by cuda/dev/memory.h, which has the types.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_MEMORY_H
#define MXA_EMU_MEMORY_H

#include "cuda/dev/memory.h"
#include "emu/dev.h"

#include <string.h>

MXA_EMU_ENTRY void mxa_emu_load_global(void *to, uint64_t at, uint32_t bytes);
MXA_EMU_ENTRY void mxa_emu_store_global(uint64_t at, const void *from, uint32_t bytes);
MXA_EMU_ENTRY void mxa_emu_load_shared(void *to, uint32_t at, uint32_t bytes);
MXA_EMU_ENTRY void mxa_emu_store_shared(uint32_t at, const void *from, uint32_t bytes);
MXA_EMU_ENTRY uint32_t mxa_emu_add_shared(uint32_t at, uint32_t x);
/* stmatrix.x4.trans: registers 0..3 of this lane. */
MXA_EMU_ENTRY void mxa_emu_store_matrices(uint32_t at, const uint32_t *v);
/* The word that was there; operation: MXA_EMU_ATOMIC_. */
enum { MXA_EMU_ATOMIC_ADD, MXA_EMU_ATOMIC_MAX, MXA_EMU_ATOMIC_ADD_F32 };
MXA_EMU_ENTRY uint32_t mxa_emu_atomic_global(int operation, uint64_t at, uint32_t x);
/* Lets another thread run. */
MXA_EMU_ENTRY void mxa_emu_poll(void);

#define MXA_EMU_LOAD(name, type, address, function)                                                \
    MXA_DEVICE type name(address at)                                                               \
    {                                                                                              \
        type x;                                                                                    \
        function(&x, at, sizeof x);                                                                \
        return x;                                                                                  \
    }

MXA_EMU_LOAD(dev_load_global_u32, uint32_t, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_u16, uint16_t, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_u8, uint8_t, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_f32, float, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_i32, int32_t, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_u32x4, mxa_u32x4, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_global_u32x2, mxa_u32x2, uint64_t, mxa_emu_load_global)
MXA_EMU_LOAD(dev_load_shared_u8, uint8_t, uint32_t, mxa_emu_load_shared)
MXA_EMU_LOAD(dev_load_shared_u32, uint32_t, uint32_t, mxa_emu_load_shared)
MXA_EMU_LOAD(dev_load_shared_f32, float, uint32_t, mxa_emu_load_shared)
MXA_EMU_LOAD(dev_load_shared_u32x2, mxa_u32x2, uint32_t, mxa_emu_load_shared)
MXA_EMU_LOAD(dev_load_shared_u32x4, mxa_u32x4, uint32_t, mxa_emu_load_shared)

#define MXA_EMU_STORE(name, type, given, address, function)                                        \
    MXA_DEVICE void name(address at, given value)                                                  \
    {                                                                                              \
        const type x = (type)value;                                                                \
        function(at, &x, sizeof x);                                                                \
    }

MXA_EMU_STORE(dev_store_global_u8, uint8_t, uint32_t, uint64_t, mxa_emu_store_global)
MXA_EMU_STORE(dev_store_global_u16, uint16_t, uint16_t, uint64_t, mxa_emu_store_global)
MXA_EMU_STORE(dev_store_global_u32, uint32_t, uint32_t, uint64_t, mxa_emu_store_global)
MXA_EMU_STORE(dev_store_global_f32, float, float, uint64_t, mxa_emu_store_global)
MXA_EMU_STORE(dev_store_shared_u8, uint8_t, uint32_t, uint32_t, mxa_emu_store_shared)
MXA_EMU_STORE(dev_store_shared_u32, uint32_t, uint32_t, uint32_t, mxa_emu_store_shared)
MXA_EMU_STORE(dev_store_shared_f32, float, float, uint32_t, mxa_emu_store_shared)

MXA_DEVICE void dev_store_global_u32x2(uint64_t at, uint32_t x, uint32_t y)
{
    const mxa_u32x2 v = {x, y};
    mxa_emu_store_global(at, &v, sizeof v);
}

MXA_DEVICE void dev_store_global_u32x4(uint64_t at, mxa_u32x4 v)
{
    mxa_emu_store_global(at, &v, sizeof v);
}

MXA_DEVICE void dev_store_shared_u32x2(uint32_t at, uint32_t x, uint32_t y)
{
    const mxa_u32x2 v = {x, y};
    mxa_emu_store_shared(at, &v, sizeof v);
}

MXA_DEVICE void dev_store_shared_u32x4(uint32_t at, mxa_u32x4 v)
{
    mxa_emu_store_shared(at, &v, sizeof v);
}

MXA_DEVICE void dev_max_global_u32(uint64_t at, uint32_t x)
{
    (void)mxa_emu_atomic_global(MXA_EMU_ATOMIC_MAX, at, x);
}

MXA_DEVICE void dev_add_global_f32(uint64_t at, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    (void)mxa_emu_atomic_global(MXA_EMU_ATOMIC_ADD_F32, at, bits);
}

MXA_DEVICE uint32_t dev_fetch_add_global_u32(uint64_t at, uint32_t x)
{
    return mxa_emu_atomic_global(MXA_EMU_ATOMIC_ADD, at, x);
}

MXA_DEVICE uint32_t dev_fetch_add_ordered_global_u32(uint64_t at, uint32_t x)
{
    return mxa_emu_atomic_global(MXA_EMU_ATOMIC_ADD, at, x);
}

MXA_DEVICE uint32_t dev_fetch_add_shared_u32(uint32_t at, uint32_t x)
{
    return mxa_emu_add_shared(at, x);
}

/* Polled by kernels: others run in between. */
MXA_DEVICE uint32_t dev_load_acquire_global_u32(uint64_t at)
{
    mxa_emu_poll();
    return mxa_emu_atomic_global(MXA_EMU_ATOMIC_ADD, at, 0);
}

MXA_DEVICE void dev_add_release_global_u32(uint64_t at, uint32_t x)
{
    (void)mxa_emu_atomic_global(MXA_EMU_ATOMIC_ADD, at, x);
}

MXA_DEVICE void dev_store_matrix_x4_transposed(uint32_t at, const uint32_t *v)
{
    mxa_emu_store_matrices(at, v);
}

#endif
