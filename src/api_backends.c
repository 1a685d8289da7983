/* api_backends.c: front door of backends and devices: checks the arguments, asks the table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "status.h"
#include "structs.h"

mxattn_status mxattn_backend_query(const mxattn_context *context, mxattn_backend backend,
                                   mxattn_backend_info *info)
{
    if (backend == MXATTN_BACKEND_AUTO || (unsigned)backend > MXATTN_BACKEND_EMU_SM100)
        return mxa_fail(MXATTN_ARGUMENT,
                        "backend is %d; it must be REF, CPU, CUDA, EMU_SM90 or EMU_SM100 (1 to %d)",
                        (int)backend, MXATTN_BACKEND_EMU_SM100);
    mxattn_backend_info filled;
    mxattn_backend_info_init(&filled);
    const mxa_backend *table = mxa_backend_find(backend);
    filled.name = table->name;
    table->query(mxa_context_or_default(context), &filled);
    return mxa_struct_write(info, &filled, sizeof filled, "info");
}

mxattn_status mxattn_device_query(const mxattn_context *context, mxattn_backend backend,
                                  int32_t device, mxattn_device_info *info)
{
    const mxa_backend *table = NULL;
    mxattn_device_info filled;
    mxattn_device_info_init(&filled);
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status)
        status = table->device_query(mxa_context_or_default(context), table->first_device + device,
                                     &filled);
    if (!status)
        status = mxa_struct_write(info, &filled, sizeof filled, "info");
    return status;
}

mxattn_status mxattn_device_alloc(const mxattn_context *context, mxattn_backend backend,
                                  int32_t device, size_t bytes, void **memory)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status && !memory)
        status = mxa_fail(MXATTN_ARGUMENT, "memory is NULL; it must point to a pointer");
    if (!status)
        status = table->device_alloc(mxa_context_or_default(context), table->first_device + device,
                                     bytes, memory);
    return status;
}

mxattn_status mxattn_device_free(const mxattn_context *context, mxattn_backend backend,
                                 int32_t device, void *memory)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status)
        status = table->device_free(mxa_context_or_default(context), table->first_device + device,
                                    memory);
    return status;
}

mxattn_status mxattn_device_copy(const mxattn_context *context, mxattn_backend backend,
                                 int32_t device, void *to, const void *from, size_t bytes)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (status || bytes == 0)
        return status;
    if (!to || !from)
        return mxa_fail(MXATTN_ARGUMENT, "%s is NULL; %zu bytes are to be copied",
                        to ? "from" : "to", bytes);
    return table->device_copy(mxa_context_or_default(context), table->first_device + device, to,
                              from, bytes);
}

mxattn_status mxattn_device_stream_create(const mxattn_context *context, mxattn_backend backend,
                                          int32_t device, void **stream)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status && !stream)
        status = mxa_fail(MXATTN_ARGUMENT, "stream is NULL; it must point to a pointer");
    if (!status)
        status = table->stream_create(mxa_context_or_default(context), table->first_device + device,
                                      stream);
    return status;
}

mxattn_status mxattn_device_stream_destroy(const mxattn_context *context, mxattn_backend backend,
                                           int32_t device, void *stream)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status)
        status = table->stream_destroy(mxa_context_or_default(context),
                                       table->first_device + device, stream);
    return status;
}

mxattn_status mxattn_device_synchronise(const mxattn_context *context, mxattn_backend backend,
                                        int32_t device, void *stream)
{
    const mxa_backend *table = NULL;
    mxattn_status status = mxa_backend_take(backend, device, &table);
    if (!status)
        status = table->synchronise(mxa_context_or_default(context), table->first_device + device,
                                    stream);
    return status;
}
