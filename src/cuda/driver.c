/* driver.c: opens the CUDA driver and finds its functions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/driver.h"

#include "status.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static mxa_driver driver;
static char missing[256]; /* why there is no driver; "" when there is one */
static int device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The exported names carry the ABI version of each function. In the order of mxa_driver. */
static const char *const names[] = {
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpy",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuPointerGetAttribute",
    "cuTensorMapEncodeTiled",
};

enum { NAMES = sizeof names / sizeof names[0] };

_Static_assert(sizeof(mxa_driver) == NAMES * sizeof(void (*)(void)),
               "mxa_driver and names[] list the same functions");

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(missing, sizeof missing, "the CUDA driver (libcuda.so.1) is not on this machine");
        return;
    }
    unsigned char *table = (unsigned char *)&driver;
    for (int i = 0; i < NAMES; i++) {
        void *symbol = dlsym(library, names[i]);
        if (!symbol) {
            snprintf(missing, sizeof missing, "the CUDA driver has no %s; it is too old", names[i]);
            return;
        }
        memcpy(table + (size_t)i * sizeof symbol, &symbol, sizeof symbol);
    }
    mxa_cu_result result = driver.init(0);
    if (result == 0) {
        result = driver.device_get_count(&device_count);
    }
    if (result != 0 || device_count == 0) {
        const char *sentence = "no CUDA device";
        if (result != 0) {
            driver.get_error_string(result, &sentence);
        }
        snprintf(missing, sizeof missing, "the CUDA driver found no device: %s", sentence);
        device_count = 0;
    }
}

const mxa_driver *mxa_cuda_driver(const char **reason)
{
    pthread_once(&once, open_driver);
    if (missing[0]) {
        *reason = missing;
        return NULL;
    }
    *reason = "";
    return &driver;
}

int mxa_cuda_device_count(void)
{
    const char *reason;
    return mxa_cuda_driver(&reason) ? device_count : 0;
}

mxattn_status mxa_cuda_check(mxa_cu_result result, const char *what)
{
    if (result == 0) {
        return MXATTN_OK;
    }
    const char *name = "?", *sentence = "?";
    const mxa_driver *from = &driver;
#if defined(MXA_EMULATOR)
    if (result >= MXA_EMU_RESULTS) {
        from = mxa_emu_driver();
    }
#endif
    from->get_error_name(result, &name);
    from->get_error_string(result, &sentence);
    return mxa_fail(MXATTN_DEVICE, "%s failed: %s (%s)", what, name, sentence);
}
