/* device_memory.h: host buffers mirrored in the memory of CUDA device 0, for tests that run one
 * call there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_DEVICE_MEMORY_H
#define MXT_DEVICE_MEMORY_H

#include "producer_cases.h"

typedef struct mxt_mirror {
    mxt_memory host[MXT_MEMORIES_MOST];
    void *device[MXT_MEMORIES_MOST];
    int count;
    mxattn_status status; /* of the first step that failed */
} mxt_mirror;

/* Copies all of it to the device. */
void mxt_mirror_make(mxt_mirror *mirror, const mxt_memory *memory, int count);

/* Where a host pointer's bytes are on the device; NULL for NULL. */
void *mxt_mirror_at(const mxt_mirror *mirror, const void *host);

/* Waits, copies all of it back and frees it; the status of everything so far. */
mxattn_status mxt_mirror_take(mxt_mirror *mirror);

#endif
