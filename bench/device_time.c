/* device_time.c: see device_time.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_time.h"

#include "error.h"
#include "mxattn/mxattn.h"
#include "progress.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPETITIONS = 40 };
static const double warm_seconds = 0.1;

/* What timing needs of the CUDA driver. */
typedef struct driver {
    int (*init)(unsigned flags);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_synchronise)(void *event);
    int (*event_elapsed)(float *milliseconds, void *first, void *last);
    int (*copy)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
} driver;

static void check(int result, const char *what)
{
    if (result)
        mxc_die("%s gives %d on device 0", what, result);
}

/* The driver, its device's primary context current in this thread. */
static const driver *open_driver(void)
{
    static const char *const names[] = {
        "cuInit",        "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",    "cuEventCreate",
        "cuEventRecord", "cuEventSynchronize",       "cuEventElapsedTime", "cuMemcpyDtoDAsync_v2"};
    static driver d;
    static int is_open;
    if (is_open)
        return &d;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    void **slots = (void **)&d;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = library ? dlsym(library, names[i]) : NULL;
        if (!symbol)
            mxc_die("the CUDA driver (libcuda.so.1) has no %s", names[i]);
        memcpy(&slots[i], &symbol, sizeof symbol);
    }
    check(d.init(0), "cuInit");
    check(d.context_retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(d.context_set(context), "cuCtxSetCurrent");
    is_open = 1;
    return &d;
}

int mxc_bench_on_device(mxattn_backend backend)
{
    if (backend == MXATTN_BACKEND_EMU_SM90 || backend == MXATTN_BACKEND_EMU_SM100)
        mxc_die(
            "--backend names an emulated device; it has no speed to measure (mxattn emu runs it)");
    return backend == MXATTN_BACKEND_CUDA;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

mxc_timing mxc_device_time(void (*work)(void *arg, int set), void *arg, int sets)
{
    const driver *d = open_driver();
    void *event[REPETITIONS + 1];
    float ms[REPETITIONS];
    for (int i = 0; i <= REPETITIONS; i++)
        check(d->event_create(&event[i], 0), "cuEventCreate");
    int n = 0;
    for (const double start = mxc_seconds(); mxc_seconds() - start < warm_seconds;) {
        for (int i = 0; i < 4; i++)
            work(arg, n++ % sets);
        check(d->event_record(event[0], NULL), "cuEventRecord");
        check(d->event_synchronise(event[0]), "cuEventSynchronize");
    }
    check(d->event_record(event[0], NULL), "cuEventRecord");
    for (int i = 0; i < REPETITIONS; i++) {
        work(arg, n++ % sets);
        check(d->event_record(event[i + 1], NULL), "cuEventRecord");
    }
    check(d->event_synchronise(event[REPETITIONS]), "cuEventSynchronize");
    for (int i = 0; i < REPETITIONS; i++)
        check(d->event_elapsed(&ms[i], event[i], event[i + 1]), "cuEventElapsedTime");
    qsort(ms, REPETITIONS, sizeof *ms, compare_floats);
    const double median = ((double)ms[REPETITIONS / 2 - 1] + (double)ms[REPETITIONS / 2]) / 2;
    return (mxc_timing){1e-3 * median, 1e-3 * (double)ms[0], 1e-3 * (double)ms[REPETITIONS - 1],
                        REPETITIONS};
}

typedef struct copied {
    void *to, *from;
    size_t bytes;
} copied;

static void copy(void *memory, int set)
{
    const copied *c = memory;
    (void)set;
    check(open_driver()->copy((unsigned long long)(uintptr_t)c->to,
                              (unsigned long long)(uintptr_t)c->from, c->bytes, NULL),
          "cuMemcpyDtoDAsync");
}

mxc_ceiling mxc_device_copy_ceiling(void)
{
    static double per_second;
    if (per_second == 0) {
        copied c = {.bytes = (size_t)1 << 30};
        c.to = mxc_device_memory(NULL, c.bytes);
        c.from = mxc_device_memory(NULL, c.bytes);
        per_second = 2 * (double)c.bytes / mxc_device_time(copy, &c, 1).median;
        mxc_device_release(c.to);
        mxc_device_release(c.from);
    }
    return (mxc_ceiling){"device copy", per_second};
}

const char *mxc_device_name(void)
{
    static char name[256];
    mxattn_device_info info;
    mxattn_device_info_init(&info);
    mxc_need(mxattn_device_query(NULL, MXATTN_BACKEND_CUDA, 0, &info));
    (void)snprintf(name, sizeof name, "%s, sm_%d, %d multiprocessors", info.name, (int)info.arch,
                   (int)info.multiprocessors);
    return name;
}

void *mxc_device_memory(const void *host, size_t bytes)
{
    void *memory = NULL;
    mxc_need(mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, 0, bytes ? bytes : 1, &memory));
    if (host)
        mxc_need(mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, memory, host, bytes));
    return memory;
}

void mxc_device_fetch(void *host, const void *memory, size_t bytes)
{
    mxc_need(mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, NULL));
    mxc_need(mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, 0, host, memory, bytes));
}

void mxc_device_release(void *memory)
{
    mxc_need(mxattn_device_free(NULL, MXATTN_BACKEND_CUDA, 0, memory));
}
