/* backend.c: the operation table of the CPU backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backend.h"
#include "cpu/dispatch.h"
#include "host_device.h"

static void cpu_query(const mxattn_context *context, mxattn_backend_info *info)
{
    info->available = 1;
    info->devices = 1;
    info->threads = context->options.threads;
    info->isa = context->isa;
    info->isa_name = mxa_cpu_isa_name(context->isa);
}

const mxa_backend mxa_cpu_backend = {
    .name = "cpu",
    .id = MXATTN_BACKEND_CPU,
    .query = cpu_query,
    .device_query = mxa_host_device_query,
    .device_alloc = mxa_host_device_alloc,
    .device_free = mxa_host_device_free,
    .device_copy = mxa_host_device_copy,
    .stream_create = mxa_host_stream_create,
    .stream_destroy = mxa_host_stream_destroy,
    .synchronise = mxa_host_synchronise,
};
