/* tma.h: the bulk tensor copy engine (PTX ISA 9.7.9.25, 9.7.9.27).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_TMA_H
#define MXA_CUDA_DEV_TMA_H

#include "cuda/dev/dev.h"
#include "cuda/dev/map.h"

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

/* `bytes` in a row, a multiple of 16, both addresses too. */
MXA_DEVICE void bulk_load(mxa_shared to, mxa_global from, uint32_t bytes, mxa_shared barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

MXA_DEVICE void tma_prefetch_map(const mxa_device_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Orders this thread's generic writes to shared memory before later asynchronous reads. */
MXA_DEVICE void fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
