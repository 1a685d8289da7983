/* driver_calls.c: see driver_calls.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "driver_calls.h"

#include <dlfcn.h>
#include <string.h>

const char *mxt_driver_load(mxt_driver_calls *calls)
{
    static const char *const names[] = {"cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuCtxGetCurrent",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags",
                                        "cuGraphLaunch"};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        return "libcuda.so.1";
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i]);
        if (!symbol) {
            return names[i];
        }
        memcpy((char *)calls + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return NULL;
}
