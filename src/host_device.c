/* host_device.c: the host seen as a device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "host_device.h"
#include "context.h"
#include "status.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What GPUs give too, and what workspace needs. */
enum { ALIGNMENT = 256 };

/* The processor's own name where the system tells it. */
static void processor_name(char *name, size_t size)
{
    char line[256];
    (void)snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(name, size, "%s", colon + 2);
            break;
        }
    }
    if (file)
        (void)fclose(file);
}

mxattn_status mxa_host_device_query(const mxattn_context *context, int32_t device,
                                    mxattn_device_info *info)
{
    (void)device;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    processor_name(info->name, sizeof info->name);
    info->arch = 0;
    info->multiprocessors = context->options.threads;
    info->memory_bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    return MXATTN_OK;
}

mxattn_status mxa_host_device_alloc(const mxattn_context *context, int32_t device, size_t bytes,
                                    void **memory)
{
    (void)device;
    *memory = mxa_alloc(context, bytes ? bytes : 1, ALIGNMENT);
    if (!*memory)
        return mxa_fail(MXATTN_MEMORY, "bytes is %zu; the context's allocator gave NULL", bytes);
    return MXATTN_OK;
}

mxattn_status mxa_host_device_free(const mxattn_context *context, int32_t device, void *memory)
{
    (void)device;
    if (memory)
        mxa_free(context, memory);
    return MXATTN_OK;
}

mxattn_status mxa_host_device_copy(const mxattn_context *context, int32_t device, void *to,
                                   const void *from, size_t bytes)
{
    (void)context;
    (void)device;
    memmove(to, from, bytes);
    return MXATTN_OK;
}

mxattn_status mxa_host_device_clear(const mxattn_context *context, int32_t device, void *memory,
                                    size_t bytes, void *stream)
{
    (void)context;
    (void)device;
    (void)stream;
    memset(memory, 0, bytes);
    return MXATTN_OK;
}

mxattn_status mxa_host_stream_create(const mxattn_context *context, int32_t device, void **stream)
{
    (void)context;
    (void)device;
    *stream = NULL;
    return MXATTN_OK;
}

mxattn_status mxa_host_stream_destroy(const mxattn_context *context, int32_t device, void *stream)
{
    (void)context;
    (void)device;
    (void)stream;
    return MXATTN_OK;
}

mxattn_status mxa_host_synchronise(const mxattn_context *context, int32_t device, void *stream)
{
    (void)context;
    (void)device;
    (void)stream;
    return MXATTN_OK;
}
