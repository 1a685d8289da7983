/* map.h: a tensor map, as the host fills it and a kernel passes it on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_MAP_H
#define MXA_CUDA_DEV_MAP_H

#include <stdint.h>

/* Opaque to a kernel; filled on the host. */
typedef struct mxa_device_map {
#if defined(__CUDACC__)
    __align__(64) uint64_t opaque[16];
#else
    _Alignas(64) uint64_t opaque[16];
#endif
} mxa_device_map;

#endif
