/* device_time.h: timing on a CUDA device, by its own events.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_DEVICE_TIME_H
#define MXC_DEVICE_TIME_H

#include "ceilings.h"
#include "mxattn/mxattn.h"
#include "timing.h"

/* 1 for the backend whose time is a device's. Emulated ones have none: refused with a sentence. */
int mxc_bench_on_device(mxattn_backend backend);

/* Of work that queues on the default stream of device 0: sustained, 0.1 s of calls and
 * then 40, each between two events. */
mxc_timing mxc_device_time(void (*work)(void *arg, int set), void *arg, int sets);

/* Copying device memory that is in no cache. Measured once per process. */
mxc_ceiling mxc_device_copy_ceiling(void);

/* "NVIDIA H200, sm_90, 132 multiprocessors". Static storage. */
const char *mxc_device_name(void);

/* Device memory with `bytes` of host memory, or anything where that is NULL; dies without room. */
void *mxc_device_memory(const void *host, size_t bytes);
void mxc_device_fetch(void *host, const void *memory, size_t bytes); /* waits */
void mxc_device_release(void *memory);

#endif
