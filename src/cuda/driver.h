/* driver.h: the CUDA driver, opened at run time.
 *
 * The library has no CUDA link dependency and needs no CUDA header: the few driver types and
 * functions it uses are declared here with the values of the driver's stable ABI, and the driver
 * library is opened with dlopen on first use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DRIVER_H
#define MXA_CUDA_DRIVER_H

#include "mxattn/mxattn.h"

#include <stddef.h>
#include <stdint.h>

typedef int mxa_cu_result; /* CUresult: 0 is success */
typedef int mxa_cu_device;
typedef struct CUctx_st *mxa_cu_context;
typedef struct CUmod_st *mxa_cu_module;
typedef struct CUfunc_st *mxa_cu_function;
typedef struct CUstream_st *mxa_cu_stream;
typedef unsigned long long mxa_cu_pointer; /* CUdeviceptr */

/* CUtensorMap: 128 opaque bytes, aligned to 64. */
typedef struct mxa_tensor_map {
    _Alignas(64) uint64_t opaque[16];
} mxa_tensor_map;

enum {
    MXA_CU_ATTRIBUTE_MULTIPROCESSORS = 16,    /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    MXA_CU_ATTRIBUTE_MAJOR = 75,              /* ..._COMPUTE_CAPABILITY_MAJOR */
    MXA_CU_ATTRIBUTE_MINOR = 76,              /* ..._COMPUTE_CAPABILITY_MINOR */
    MXA_CU_FUNCTION_DYNAMIC_SHARED_BYTES = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    MXA_CU_POINTER_MEMORY_TYPE = 2,           /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
    MXA_CU_POINTER_DEVICE_ORDINAL = 9,        /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
    MXA_CU_MEMORY_HOST = 1,                   /* CU_MEMORYTYPE_HOST */
    MXA_CU_STREAM_NON_BLOCKING = 1,
    MXA_CU_TENSOR_MAP_UINT8 = 0, /* CU_TENSOR_MAP_DATA_TYPE_UINT8 */
    MXA_CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    MXA_CU_TENSOR_MAP_SWIZZLE_64B = 2,
    MXA_CU_TENSOR_MAP_SWIZZLE_128B = 3,
    MXA_CU_TENSOR_MAP_L2_256B = 3,
    MXA_CU_TENSOR_MAP_FILL_ZERO = 0,
    MXA_CU_LAUNCH_EARLY = 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
};

/* CUlaunchAttribute: an identifier, and a value of 64 bytes that starts with an int here. */
typedef struct mxa_launch_attribute {
    int32_t id, pad;
    int32_t value[16];
} mxa_launch_attribute;

/* CUlaunchConfig. */
typedef struct mxa_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    mxa_cu_stream stream;
    mxa_launch_attribute *attributes;
    unsigned attribute_count;
} mxa_launch_config;

typedef struct mxa_driver {
    mxa_cu_result (*init)(unsigned flags);
    mxa_cu_result (*driver_get_version)(int *version);
    mxa_cu_result (*get_error_name)(mxa_cu_result error, const char **name);
    mxa_cu_result (*get_error_string)(mxa_cu_result error, const char **sentence);
    mxa_cu_result (*device_get_count)(int *count);
    mxa_cu_result (*device_get)(mxa_cu_device *device, int ordinal);
    mxa_cu_result (*device_get_name)(char *name, int bytes, mxa_cu_device device);
    mxa_cu_result (*device_get_attribute)(int *value, int attribute, mxa_cu_device device);
    mxa_cu_result (*device_total_mem)(size_t *bytes, mxa_cu_device device);
    mxa_cu_result (*primary_context_retain)(mxa_cu_context *context, mxa_cu_device device);
    mxa_cu_result (*context_push)(mxa_cu_context context);
    mxa_cu_result (*context_pop)(mxa_cu_context *context);
    mxa_cu_result (*module_load_data)(mxa_cu_module *module, const void *image);
    mxa_cu_result (*module_get_function)(mxa_cu_function *function, mxa_cu_module module,
                                         const char *name);
    mxa_cu_result (*function_set_attribute)(mxa_cu_function function, int attribute, int value);
    mxa_cu_result (*launch_kernel)(mxa_cu_function function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared_bytes, mxa_cu_stream stream,
                                   void **parameters, void **extra);
    mxa_cu_result (*launch_kernel_ex)(const mxa_launch_config *config, mxa_cu_function function,
                                      void **parameters, void **extra);
    mxa_cu_result (*mem_alloc)(mxa_cu_pointer *memory, size_t bytes);
    mxa_cu_result (*mem_free)(mxa_cu_pointer memory);
    mxa_cu_result (*memcpy)(mxa_cu_pointer to, mxa_cu_pointer from, size_t bytes);
    mxa_cu_result (*memset_async)(mxa_cu_pointer memory, unsigned char value, size_t bytes,
                                  mxa_cu_stream stream);
    mxa_cu_result (*stream_create)(mxa_cu_stream *stream, unsigned flags);
    mxa_cu_result (*stream_destroy)(mxa_cu_stream stream);
    mxa_cu_result (*stream_synchronize)(mxa_cu_stream stream);
    mxa_cu_result (*pointer_get_attribute)(void *value, int attribute, mxa_cu_pointer memory);
    mxa_cu_result (*tensor_map_encode)(mxa_tensor_map *map, int type, uint32_t rank, void *address,
                                       const uint64_t *sizes, const uint64_t *strides_bytes,
                                       const uint32_t *box, const uint32_t *element_strides,
                                       int interleave, int swizzle, int l2_promotion, int fill);
} mxa_driver;

/* The table, or NULL; then *reason is a sentence (static storage) that says why. Opens the driver
 * once; safe from any thread. */
const mxa_driver *mxa_cuda_driver(const char **reason);

/* The same functions for emulated devices, whose ordinals are arch numbers (90, 100). Defined by
 * the emulator, which takes the driver's place; only in builds that have it (MXA_EMULATOR). */
const mxa_driver *mxa_emu_driver(void);
/* NULL, or what its kernels were compiled for and this processor lacks. */
const char *mxa_emu_lacks(void);

enum { MXA_EMU_RESULTS = 1000000 }; /* its results that are not success start here */

/* Number of devices; 0 where there is no driver. */
int mxa_cuda_device_count(void);

/* 0 turns into MXATTN_OK, anything else into MXATTN_DEVICE and a sentence naming `what`. */
mxattn_status mxa_cuda_check(mxa_cu_result result, const char *what);

#endif
