/* device_memory.c: host buffers mirrored in the memory of CUDA device 0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_memory.h"

#include <string.h>

void mxt_mirror_make(mxt_mirror *mirror, const mxt_memory *memory, int count)
{
    memset(mirror, 0, sizeof *mirror);
    for (int i = 0; i < count && !mirror->status; i++) {
        mirror->host[i] = memory[i];
        mirror->status =
            mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, 0, memory[i].bytes, &mirror->device[i]);
        if (!mirror->status) {
            mirror->count++;
            mirror->status = mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, mirror->device[i],
                                                memory[i].at, memory[i].bytes);
        }
    }
}

void *mxt_mirror_at(const mxt_mirror *mirror, const void *host)
{
    for (int i = 0; host && i < mirror->count; i++) {
        const char *first = mirror->host[i].at, *at = host;
        if (at >= first && at < first + mirror->host[i].bytes) {
            return (char *)mirror->device[i] + (at - first);
        }
    }
    return NULL;
}

mxattn_status mxt_mirror_take(mxt_mirror *mirror)
{
    if (!mirror->status) {
        mirror->status = mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, NULL);
    }
    for (int i = 0; i < mirror->count; i++) {
        if (!mirror->status) {
            mirror->status = mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, mirror->host[i].at,
                                                mirror->device[i], mirror->host[i].bytes);
        }
        (void)mxattn_device_free(NULL, MXATTN_BACKEND_CUDA, 0, mirror->device[i]);
    }
    return mirror->status;
}
