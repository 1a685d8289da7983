/* tma.h: the bulk tensor copy engine (PTX ISA 9.7.9.25, 9.7.9.27).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_TMA_H
#define MXA_CUDA_DEV_TMA_H

#include "cuda/dev/dev.h"
#include "cuda/dev/map.h"

#if defined(__CUDACC__)

/* Box at (x, y, z) of a rank 3 map into shared memory; its full bytes count on `barrier`, also
 * where coordinates lie outside and zeros are written. */
MXA_DEVICE void tma_load_3d(mxa_shared to, const mxa_device_map *map, int32_t x, int32_t y,
                            int32_t z, mxa_shared barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Box at (x, y) of a rank 2 map. */
MXA_DEVICE void tma_load_2d(mxa_shared to, const mxa_device_map *map, int32_t x, int32_t y,
                            mxa_shared barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

/* Box at (x, y, z, w) of a rank 4 map. */
MXA_DEVICE void tma_load_4d(mxa_shared to, const mxa_device_map *map, int32_t x, int32_t y,
                            int32_t z, int32_t w, mxa_shared barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* Shared memory to the box at (x, y, z, w); what lies outside is not written. Coordinates are not
 * negative. Belongs to the bulk group that this thread commits next. 9.7.9.27 */
MXA_DEVICE void tma_store_4d(const mxa_device_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
                             mxa_shared from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* The same, added in the map's element type; the order of additions is not defined. */
MXA_DEVICE void tma_add_4d(const mxa_device_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
                           mxa_shared from)
{
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* `bytes` in a row, a multiple of 16, both addresses too. */
MXA_DEVICE void bulk_load(mxa_shared to, mxa_global from, uint32_t bytes, mxa_shared barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* `bytes` from shared to global memory, multiples of 16, in this thread's next bulk group. */
MXA_DEVICE void bulk_store(mxa_global to, mxa_shared from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* The same, added to what is there. FP32 flushes subnormals, FP16 keeps them. 9.7.9.25.4 */
MXA_DEVICE void bulk_add_f32(mxa_global to, mxa_shared from, uint32_t bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

MXA_DEVICE void bulk_add_f16(mxa_global to, mxa_shared from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], "
                 "%2;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Closes this thread's bulk group. */
MXA_DEVICE void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until at most `pending` groups have yet to read shared memory; to write, with bulk_wait. */
#define bulk_wait_read(pending)                                                                    \
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory")
#define bulk_wait(pending) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory")

MXA_DEVICE void tma_prefetch_map(const mxa_device_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Orders this thread's generic writes to shared memory before later asynchronous reads. */
MXA_DEVICE void fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same for global memory. */
MXA_DEVICE void fence_async_global(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

#else
#include "emu/tma.h"
#endif
#endif
