/* context.c: options with every default resolved, the process-wide context, and memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "cpu/dispatch.h"
#include "log.h"
#include "status.h"
#include "structs.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 4096 };

static mxattn_context default_context;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void *default_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    void *memory = NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* Processors this process may run on: the affinity mask, of whatever size the kernel keeps it. */
static int32_t processors(void)
{
#if defined(__linux__)
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set)
            break;
        const size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

static void resolve(mxattn_context *context, const mxattn_context_options *options)
{
    context->options = *options;
    if (context->options.threads == 0)
        context->options.threads = processors();
    if (context->options.threads > MAX_THREADS)
        context->options.threads = MAX_THREADS;
    if (!context->options.alloc) {
        context->options.alloc = default_alloc;
        context->options.free = default_free;
    }
    context->isa = options->isa_mask == MXATTN_ISA_ALL
                       ? mxa_cpu_isa_default(mxa_cpu_isa(), mxa_cpu_is_intel())
                       : mxa_cpu_isa_close(mxa_cpu_isa() & options->isa_mask);
}

static void make_default(void)
{
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    resolve(&default_context, &options);
}

const mxattn_context *mxa_context_or_default(const mxattn_context *context)
{
    if (context)
        return context;
    (void)pthread_once(&default_once, make_default);
    return &default_context;
}

void *mxa_alloc(const mxattn_context *context, size_t bytes, size_t alignment)
{
    return context->options.alloc(context->options.alloc_user, bytes, alignment);
}

void mxa_free(const mxattn_context *context, void *memory)
{
    context->options.free(context->options.alloc_user, memory);
}

static mxattn_status check_options(const mxattn_context_options *options)
{
    if (options->threads < 0 || options->threads > MAX_THREADS)
        return mxa_fail(MXATTN_ARGUMENT, "options.threads is %d; it must be 0 to %d",
                        (int)options->threads, MAX_THREADS);
    if (!(options->isa_mask & MXATTN_ISA_PORTABLE))
        return mxa_fail(MXATTN_ARGUMENT,
                        "options.isa_mask is 0x%x; it must contain MXATTN_ISA_PORTABLE",
                        (unsigned)options->isa_mask);
    if (!options->alloc != !options->free)
        return mxa_fail(MXATTN_ARGUMENT, "options.%s is NULL; alloc and free come together",
                        options->alloc ? "free" : "alloc");
    return MXATTN_OK;
}

mxattn_status mxattn_context_create(const mxattn_context_options *options, mxattn_context **context)
{
    if (!context)
        return mxa_fail(MXATTN_ARGUMENT, "context is NULL; it must point to a pointer");
    mxattn_context_options copy;
    mxattn_context_options_init(&copy);
    if (options) {
        mxattn_status status = mxa_struct_read(&copy, sizeof copy, options, "options");
        if (!status)
            status = check_options(&copy);
        if (status)
            return status;
    }
    mxattn_context resolved;
    resolve(&resolved, &copy);
    mxattn_context *made = mxa_alloc(&resolved, sizeof *made, _Alignof(mxattn_context));
    if (!made)
        return mxa_fail(MXATTN_MEMORY, "options.alloc gave NULL for a context of %zu bytes",
                        sizeof *made);
    *made = resolved;
    *context = made;
    mxa_log(made, MXATTN_LOG_INFO, "context: %d threads, isa %s", (int)made->options.threads,
            mxa_cpu_isa_name(made->isa));
    return MXATTN_OK;
}

void mxattn_context_destroy(mxattn_context *context)
{
    if (context)
        mxa_free(context, context);
}
