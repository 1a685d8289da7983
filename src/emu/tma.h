/* tma.h: the emulator's body of cuda/dev/tma.h: the bulk copy engine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_TMA_H
#define MXA_EMU_TMA_H

#include "cuda/dev/map.h"
#include "emu/dev.h"

/* A box of a map of `rank`, first at coordinate[0..rank-1]. */
MXA_EMU_ENTRY void mxa_emu_tma_load(uint32_t to, const mxa_device_map *map, int rank,
                                    const int32_t *coordinate, uint32_t barrier);
/* add: reduce instead of store. */
MXA_EMU_ENTRY void mxa_emu_tma_store(const mxa_device_map *map, int rank, const int32_t *coordinate,
                                     uint32_t from, int add);
MXA_EMU_ENTRY void mxa_emu_bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier);
enum { MXA_EMU_BULK_STORE, MXA_EMU_BULK_ADD_F32, MXA_EMU_BULK_ADD_F16, MXA_EMU_BULK_ADD_BF16 };
MXA_EMU_ENTRY void mxa_emu_bulk_store(uint64_t to, uint32_t from, uint32_t bytes, int operation);
MXA_EMU_ENTRY void mxa_emu_bulk_commit(void);
MXA_EMU_ENTRY void mxa_emu_bulk_wait(int pending, int read_only);
MXA_EMU_ENTRY void mxa_emu_prefetch_map(const mxa_device_map *map);
MXA_EMU_ENTRY void mxa_emu_fence_async_shared(void);

MXA_DEVICE void tma_load_2d(uint32_t to, const mxa_device_map *map, int32_t x, int32_t y,
                            uint32_t barrier)
{
    const int32_t at[] = {x, y};
    mxa_emu_tma_load(to, map, 2, at, barrier);
}

MXA_DEVICE void tma_load_3d(uint32_t to, const mxa_device_map *map, int32_t x, int32_t y, int32_t z,
                            uint32_t barrier)
{
    const int32_t at[] = {x, y, z};
    mxa_emu_tma_load(to, map, 3, at, barrier);
}

MXA_DEVICE void tma_load_4d(uint32_t to, const mxa_device_map *map, int32_t x, int32_t y, int32_t z,
                            int32_t w, uint32_t barrier)
{
    const int32_t at[] = {x, y, z, w};
    mxa_emu_tma_load(to, map, 4, at, barrier);
}

MXA_DEVICE void tma_store_4d(const mxa_device_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
                             uint32_t from)
{
    const int32_t at[] = {x, y, z, w};
    mxa_emu_tma_store(map, 4, at, from, 0);
}

MXA_DEVICE void tma_add_4d(const mxa_device_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
                           uint32_t from)
{
    const int32_t at[] = {x, y, z, w};
    mxa_emu_tma_store(map, 4, at, from, 1);
}

MXA_DEVICE void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
    mxa_emu_bulk_load(to, from, bytes, barrier);
}

MXA_DEVICE void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
    mxa_emu_bulk_store(to, from, bytes, MXA_EMU_BULK_STORE);
}

MXA_DEVICE void bulk_add_f32(uint64_t to, uint32_t from, uint32_t bytes)
{
    mxa_emu_bulk_store(to, from, bytes, MXA_EMU_BULK_ADD_F32);
}

MXA_DEVICE void bulk_add_f16(uint64_t to, uint32_t from, uint32_t bytes)
{
    mxa_emu_bulk_store(to, from, bytes, MXA_EMU_BULK_ADD_F16);
}

MXA_DEVICE void bulk_commit(void)
{
    mxa_emu_bulk_commit();
}

#define bulk_wait_read(pending) mxa_emu_bulk_wait(pending, 1)
#define bulk_wait(pending)      mxa_emu_bulk_wait(pending, 0)

MXA_DEVICE void tma_prefetch_map(const mxa_device_map *map)
{
    mxa_emu_prefetch_map(map);
}

MXA_DEVICE void fence_async_shared(void)
{
    mxa_emu_fence_async_shared();
}

/* Global memory has no shadow: there is nothing to publish. */
MXA_DEVICE void fence_async_global(void)
{
}

#endif
