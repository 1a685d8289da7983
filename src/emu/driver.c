/* driver.c: the CUDA driver's functions on emulated devices: host memory, launches that end at
 * once.
 *
 * The host code of src/cuda runs on this table as on the real one, so one path serves both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/driver.h"

#include "cuda/driver.h"
#include "emu/engine.h"
#include "emu/map.h"
#include "emulator.h"
#include "status.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HAZARD = MXA_EMU_RESULTS, /* a kernel was found to have one */
    INVALID_VALUE,
    OUT_OF_MEMORY,
    NOT_FOUND,
    ALIGNMENT = 512,
    /* WHY few: a persistent grid then gives each CTA several tiles, also of small problems. */
    MULTIPROCESSORS = 2
};

/* ---- sessions ---- */

static _Thread_local mxa_emu_session session;
static _Thread_local int session_begun;
static _Thread_local char last_error[1024];

mxa_emu_session *mxa_emu_session_now(void)
{
    if (!session_begun) {
        session_begun = 1;
        mxa_emu_options_init(&session.options);
    }
    return &session;
}

void mxa_emu_session_clear(void)
{
    const mxa_emu_options options = mxa_emu_session_now()->options;
    mxa_emu_free(session.text);
    mxa_emu_trace_free(session.trace);
    memset(&session, 0, sizeof session);
    session.options = options;
}

mxattn_status mxa_emu_begin(const mxattn_emulator_options *options)
{
    mxa_emu_session *s = mxa_emu_session_now();
    mxa_emu_session_clear();
    mxa_emu_options_init(&s->options);
    s->options.seed = options->seed;
    s->options.checks = options->checks != 0;
    s->options.exact_sums = options->exact != 0;
    s->options.unwritten_reads = options->strict != 0;
    s->options.ordered_accumulators = options->strict == 0;
    if (options->trace) {
        s->trace = mxa_emu_alloc(sizeof *s->trace);
        if (!s->trace) {
            return mxa_fail(MXATTN_MEMORY, "no memory for a trace");
        }
    }
    return MXATTN_OK;
}

void mxa_emu_sum(mxattn_emulator_result *result)
{
    const mxa_emu_session *s = mxa_emu_session_now();
    result->launches = s->launches;
    result->seconds = s->seconds;
    result->longest_seconds = s->longest_seconds;
    result->errors = s->errors;
    result->warnings = s->warnings;
    result->deadlocks = s->deadlocks;
    result->hazards = s->hazards;
    result->warned = s->warned;
    result->report = s->text ? s->text : "";
}

const char *mxa_emu_counted(int64_t i, int64_t *count)
{
    const mxa_emu_tally *tally = &mxa_emu_session_now()->tally;
    if (i < 0 || i >= MXA_EMU_TALLIES) {
        return NULL;
    }
    *count = tally->count[i];
    return tally->name[i];
}

const mxattn_emulator_event *mxa_emu_events(int64_t *count)
{
    const mxa_emu_session *s = mxa_emu_session_now();
    *count = s->trace ? s->trace->count : 0;
    return s->trace ? s->trace->events : NULL;
}

/* The sentence of an error is its first report, in one line. */
static void keep_error(const char *text)
{
    const char *line = text ? strchr(text, '\n') : NULL;
    size_t used = 0;
    for (line = line ? line + 1 : "see the log"; *line && used + 2 < sizeof last_error; line++) {
        if (*line == '\n') {
            if (strncmp(line, "\n    ", 5) != 0) {
                break;
            }
            last_error[used++] = ';';
            line += 4;
            last_error[used++] = ' ';
            continue;
        }
        last_error[used++] = *line;
    }
    last_error[used] = '\0';
}

static double cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void add_result(mxa_emu_result *result, double seconds)
{
    mxa_emu_session *s = mxa_emu_session_now();
    s->launches++;
    s->seconds += seconds;
    s->longest_seconds = seconds > s->longest_seconds ? seconds : s->longest_seconds;
    s->errors += result->errors;
    s->warnings += result->warnings;
    s->deadlocks += result->deadlock;
    s->hazards |= result->hazards;
    s->warned |= result->warned;
    mxa_emu_tally_add(&s->tally, &result->tally);
    if (result->errors) {
        keep_error(result->text);
    }
    if (!s->text) {
        s->text = result->text;
        result->text = NULL;
    }
    mxa_emu_result_free(result);
}

/* ---- the driver's functions ---- */

static mxa_cu_result emu_init(unsigned flags)
{
    (void)flags;
    return 0;
}

static mxa_cu_result emu_version(int *version)
{
    *version = 0;
    return 0;
}

static mxa_cu_result emu_error_name(mxa_cu_result error, const char **name)
{
    *name = error == HAZARD          ? "hazard"
            : error == INVALID_VALUE ? "invalid value"
            : error == OUT_OF_MEMORY ? "out of memory"
            : error == NOT_FOUND     ? "not found"
                                     : "?";
    return 0;
}

static mxa_cu_result emu_error_string(mxa_cu_result error, const char **sentence)
{
    *sentence = error == HAZARD          ? last_error
                : error == INVALID_VALUE ? "an argument breaks a rule of the driver"
                : error == OUT_OF_MEMORY ? "the host has no more memory"
                : error == NOT_FOUND     ? "this build has no such kernel for the emulator"
                                         : "unknown";
    return 0;
}

static mxa_cu_result emu_device_count(int *count)
{
    *count = 1;
    return 0;
}

/* A device is its arch. */
static mxa_cu_result emu_device_get(mxa_cu_device *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

static mxa_cu_result emu_device_name(char *name, int bytes, mxa_cu_device device)
{
    (void)snprintf(name, (size_t)bytes, "emulated sm_%da", device);
    return 0;
}

static mxa_cu_result emu_device_attribute(int *value, int attribute, mxa_cu_device device)
{
    *value = attribute == MXA_CU_ATTRIBUTE_MULTIPROCESSORS ? MULTIPROCESSORS
             : attribute == MXA_CU_ATTRIBUTE_MAJOR         ? device / 10
             : attribute == MXA_CU_ATTRIBUTE_MINOR         ? device % 10
                                                           : 0;
    return 0;
}

static mxa_cu_result emu_total_memory(size_t *bytes, mxa_cu_device device)
{
    (void)device;
    *bytes = (size_t)1 << 32;
    return 0;
}

static mxa_cu_result emu_context_retain(mxa_cu_context *context, mxa_cu_device device)
{
    (void)device;
    *context = NULL;
    return 0;
}

static mxa_cu_result emu_context_push(mxa_cu_context context)
{
    (void)context;
    return 0;
}

static mxa_cu_result emu_context_pop(mxa_cu_context *context)
{
    *context = NULL;
    return 0;
}

static mxa_cu_result emu_module_load(mxa_cu_module *module, const void *image)
{
    (void)image;
    *module = NULL;
    return 0;
}

static mxa_cu_result emu_module_function(mxa_cu_function *function, mxa_cu_module module,
                                         const char *name)
{
    (void)module;
    const mxa_emu_kernel *kernel = mxa_emu_kernel_find(name);
    memcpy(function, &kernel, sizeof kernel);
    return kernel ? 0 : NOT_FOUND;
}

static mxa_cu_result emu_function_attribute(mxa_cu_function function, int attribute, int value)
{
    (void)function;
    (void)attribute;
    return value > MXA_EMU_SHARED_BYTES ? INVALID_VALUE : 0;
}

static mxa_cu_result emu_launch(mxa_cu_function function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, mxa_cu_stream stream,
                                void **parameters, void **extra)
{
    (void)stream;
    const mxa_emu_kernel *kernel;
    const int grid[] = {(int)grid_x, (int)grid_y, (int)grid_z};
    mxa_emu_result result;
    memcpy(&kernel, &function, sizeof kernel);
    if (!kernel) {
        return NOT_FOUND;
    }
    if (extra || block_y != 1 || block_z != 1) {
        return INVALID_VALUE;
    }
    const mxa_emu_session *s = mxa_emu_session_now();
    const double began = cpu_seconds();
    const int failed = mxa_emu_launch_traced(kernel, grid, (int)block_x, shared_bytes,
                                             parameters[0], &s->options, s->trace, &result);
    add_result(&result, cpu_seconds() - began);
    return failed ? HAZARD : 0;
}

static mxa_cu_result emu_launch_ex(const mxa_launch_config *c, mxa_cu_function function,
                                   void **parameters, void **extra)
{
    return emu_launch(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                      c->block[2], c->shared_bytes, c->stream, parameters, extra);
}

static mxa_cu_result emu_alloc(mxa_cu_pointer *memory, size_t bytes)
{
    void *made = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!made || !mxa_emu_memory_add(made, bytes)) {
        free(made);
        return OUT_OF_MEMORY;
    }
    memset(made, 0xFF, bytes); /* what was not written is NaN */
    *memory = (mxa_cu_pointer)(uintptr_t)made;
    return 0;
}

static mxa_cu_result emu_free(mxa_cu_pointer memory)
{
    void *made = (void *)(uintptr_t)memory;
    mxa_emu_memory_remove(made);
    free(made);
    return 0;
}

static mxa_cu_result emu_memcpy(mxa_cu_pointer to, mxa_cu_pointer from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static mxa_cu_result emu_memset(mxa_cu_pointer memory, unsigned char value, size_t bytes,
                                mxa_cu_stream stream)
{
    (void)stream;
    if (!mxa_emu_memory_holds(memory, bytes)) {
        return INVALID_VALUE;
    }
    memset((void *)(uintptr_t)memory, value, bytes);
    return 0;
}

static mxa_cu_result emu_stream_create(mxa_cu_stream *stream, unsigned flags)
{
    (void)flags;
    *stream = NULL;
    return 0;
}

static mxa_cu_result emu_stream(mxa_cu_stream stream)
{
    (void)stream;
    return 0;
}

static mxa_cu_result emu_pointer_attribute(void *value, int attribute, mxa_cu_pointer memory)
{
    const int of_device =
        2; /* CU_MEMORYTYPE_DEVICE: here all memory is the host's, and any will do */
    (void)memory;
    if (attribute != MXA_CU_POINTER_MEMORY_TYPE) {
        return INVALID_VALUE;
    }
    memcpy(value, &of_device, sizeof of_device);
    return 0;
}

static mxa_cu_result emu_map(mxa_tensor_map *map, int type, uint32_t rank, void *address,
                             const uint64_t *sizes, const uint64_t *strides_bytes,
                             const uint32_t *box, const uint32_t *element_strides, int interleave,
                             int swizzle, int l2_promotion, int fill)
{
    return mxa_emu_map_encode(map, type, rank, address, sizes, strides_bytes, box, element_strides,
                              interleave, swizzle, l2_promotion, fill)
               ? INVALID_VALUE
               : 0;
}

const char *mxa_emu_lacks(void)
{
#if defined(MXA_BUILD_AVX2)
    /* Whatever has these has F16C, which clang 14 does not ask for. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return "AVX2, FMA and F16C";
    }
#endif
    return NULL;
}

const mxa_driver *mxa_emu_driver(void)
{
    static const mxa_driver table = {
        .init = emu_init,
        .driver_get_version = emu_version,
        .get_error_name = emu_error_name,
        .get_error_string = emu_error_string,
        .device_get_count = emu_device_count,
        .device_get = emu_device_get,
        .device_get_name = emu_device_name,
        .device_get_attribute = emu_device_attribute,
        .device_total_mem = emu_total_memory,
        .primary_context_retain = emu_context_retain,
        .context_push = emu_context_push,
        .context_pop = emu_context_pop,
        .module_load_data = emu_module_load,
        .module_get_function = emu_module_function,
        .function_set_attribute = emu_function_attribute,
        .launch_kernel = emu_launch,
        .launch_kernel_ex = emu_launch_ex,
        .mem_alloc = emu_alloc,
        .mem_free = emu_free,
        .memcpy = emu_memcpy,
        .memset_async = emu_memset,
        .stream_create = emu_stream_create,
        .stream_destroy = emu_stream,
        .stream_synchronize = emu_stream,
        .pointer_get_attribute = emu_pointer_attribute,
        .tensor_map_encode = emu_map,
    };
    return &table;
}
