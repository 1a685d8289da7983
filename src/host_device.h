/* host_device.h: devices and streams of the backends that compute on the host: plain memory, no
 * streams, everything done when a call returns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_HOST_DEVICE_H
#define MXA_HOST_DEVICE_H

#include "backend.h"

/* Entries of the operation table, for ref and cpu. */
mxattn_status mxa_host_device_query(const mxattn_context *context, int32_t device,
                                    mxattn_device_info *info);
mxattn_status mxa_host_device_alloc(const mxattn_context *context, int32_t device, size_t bytes,
                                    void **memory);
mxattn_status mxa_host_device_free(const mxattn_context *context, int32_t device, void *memory);
mxattn_status mxa_host_device_copy(const mxattn_context *context, int32_t device, void *to,
                                   const void *from, size_t bytes);
mxattn_status mxa_host_device_clear(const mxattn_context *context, int32_t device, void *memory,
                                    size_t bytes, void *stream);
mxattn_status mxa_host_stream_create(const mxattn_context *context, int32_t device, void **stream);
mxattn_status mxa_host_stream_destroy(const mxattn_context *context, int32_t device, void *stream);
mxattn_status mxa_host_synchronise(const mxattn_context *context, int32_t device, void *stream);

#endif
