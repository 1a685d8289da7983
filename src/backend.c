/* backend.c: which backends this build has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backend.h"
#include "status.h"

const mxa_backend *mxa_backend_find(mxattn_backend id)
{
    switch (id) {
    case MXATTN_BACKEND_AUTO:
    case MXATTN_BACKEND_CPU:
        return &mxa_cpu_backend;
    case MXATTN_BACKEND_REF:
        return &mxa_ref_backend;
    case MXATTN_BACKEND_CUDA:
        return &mxa_cuda_backend;
    case MXATTN_BACKEND_EMU_SM90:
        return &mxa_emu_sm90_backend;
    case MXATTN_BACKEND_EMU_SM100:
        return &mxa_emu_sm100_backend;
    }
    return NULL;
}

mxattn_status mxa_backend_take(mxattn_backend id, int32_t device, const mxa_backend **backend)
{
    if ((unsigned)id > MXATTN_BACKEND_EMU_SM100)
        return mxa_fail(MXATTN_ARGUMENT, "backend is %d; it must be a mxattn_backend (0 to %d)",
                        (int)id, MXATTN_BACKEND_EMU_SM100);
    *backend = mxa_backend_find(id);
    if (device < 0)
        return mxa_fail(MXATTN_ARGUMENT, "device is %d; it must not be negative", (int)device);
    if (device > 0 && !(*backend)->on_device)
        return mxa_fail(MXATTN_NO_BACKEND, "device is %d; backend %s has device 0 only",
                        (int)device, (*backend)->name);
    if ((*backend)->on_device) {
        mxattn_backend_info info;
        mxattn_backend_info_init(&info);
        (*backend)->query(NULL, &info);
        if (!info.available)
            return mxa_fail(MXATTN_NO_BACKEND, "backend is %s; %s", (*backend)->name, info.reason);
        if (device >= info.devices)
            return mxa_fail(MXATTN_NO_BACKEND, "device is %d; backend %s has %d", (int)device,
                            (*backend)->name, (int)info.devices);
    }
    return MXATTN_OK;
}

mxattn_status mxa_backend_lacks(const mxa_backend *backend, const char *operation)
{
    return mxa_fail(MXATTN_UNSUPPORTED, "backend %s has no %s in version %s", backend->name,
                    operation, mxattn_version_string());
}
