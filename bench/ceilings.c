/* ceilings.c: what this machine can do at most, measured in the same run as the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ceilings.h"

#include "error.h"
#include "progress.h"
#include "timing.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { ROUNDS = 8 };

/* Vectors of 4: what the compiler's baseline, SSE2 on x86-64, has; it multiplies, then adds. */
typedef float vec4 __attribute__((vector_size(16)));
typedef int64_t int_pair __attribute__((vector_size(16)));

float mxc_peak_portable(int64_t steps)
{
    vec4 sums[MXC_PEAK_CHAINS];
    const vec4 factor = {0.999f, 0.999f, 0.999f, 0.999f}, term = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
    for (int i = 0; i < MXC_PEAK_CHAINS; i++)
        sums[i] = factor * (float)i;
    for (int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < MXC_PEAK_CHAINS; i++)
            sums[i] = sums[i] * factor + term;
    }
    for (int i = 1; i < MXC_PEAK_CHAINS; i++)
        sums[0] += sums[i];
    return sums[0][0];
}

static struct peak {
    const char *isa, *name;
    float (*loop)(int64_t steps);
    double flops_per_step;
    double per_second; /* 0: not measured yet */
    int32_t threads;   /* of that measurement */
} peaks[] = {
    {"portable", "fp32 multiply and add, 4 wide", mxc_peak_portable, MXC_PEAK_CHAINS * 4 * 2, 0, 0},
#ifdef MXA_BUILD_AVX2
    {"avx2", "fp32 fma, 8 wide", mxc_peak_avx2, MXC_PEAK_CHAINS * 8 * 2, 0, 0},
#endif
#ifdef MXA_BUILD_AVX512
    {"avx512", "fp32 fma, 16 wide", mxc_peak_avx512, MXC_PEAK_CHAINS * 16 * 2, 0, 0},
#endif
#ifdef MXA_BUILD_AVX512BF16
    {"avx512bf16", "bf16 dot products, 16 wide", mxc_peak_avx512bf16, MXC_PEAK_CHAINS * 32 * 2, 0,
     0},
#endif
#ifdef MXA_BUILD_AMX
    {"amx", "bf16 matrix products, 16 x 16 x 32", mxc_peak_amx,
     4.0 * 16 * 16 * 32 * 2 / MXC_PEAK_AMX_STEPS, 0, 0},
#endif
};

typedef struct peak_run {
    const struct peak *peak;
    int64_t steps;
    atomic_int sink; /* keeps results in use */
} peak_run;

static void run_peak(void *memory, int64_t thread)
{
    peak_run *run = memory;
    (void)thread;
    atomic_fetch_add(&run->sink, (int)run->peak->loop(run->steps));
}

mxc_ceiling mxc_arithmetic_ceiling(const char *isa, int32_t threads)
{
    struct peak *peak = &peaks[0];
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (strcmp(peaks[i].isa, isa) == 0)
            peak = &peaks[i];
    if (peak->threads == threads)
        return (mxc_ceiling){peak->name, peak->per_second};
    peak_run run = {.peak = peak, .steps = 4000000};
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = mxc_seconds();
        mxc_on_threads(threads, run_peak, &run);
        double seconds = mxc_seconds() - start;
        double rate = peak->flops_per_step * (double)run.steps * threads / seconds;
        best = rate > best ? rate : best;
    }
    peak->per_second = best;
    peak->threads = threads;
    return (mxc_ceiling){peak->name, best};
}

typedef struct copy_run {
    char *from, *to;
    size_t bytes; /* of one thread's share */
} copy_run;

static void run_copy(void *memory, int64_t thread)
{
    const copy_run *run = memory;
    memcpy(run->to + (size_t)thread * run->bytes, run->from + (size_t)thread * run->bytes,
           run->bytes);
}

/* Past the caches: a stored line is then not read first. bytes: a multiple of 64. */
static void run_streamed_copy(void *memory, int64_t thread)
{
#if defined(__SSE2__)
    const copy_run *run = memory;
    const char *from = run->from + (size_t)thread * run->bytes;
    char *to = run->to + (size_t)thread * run->bytes;
    for (size_t i = 0; i < run->bytes; i += 64) {
        __m128i x[4];
        for (size_t j = 0; j < 4; j++)
            x[j] = _mm_load_si128((const __m128i *)(const void *)(from + i + 16 * j));
        for (size_t j = 0; j < 4; j++)
            _mm_stream_si128((__m128i *)(void *)(to + i + 16 * j), x[j]);
    }
    _mm_sfence();
#else
    run_copy(memory, thread);
#endif
}

mxc_ceiling mxc_copy_ceiling(int32_t threads)
{
    static double measured;
    static int32_t measured_threads;
    const char *name = "copy of memory";
    if (measured_threads == threads)
        return (mxc_ceiling){name, measured};
    size_t bytes = (size_t)(4 * mxc_last_level_cache()) / (size_t)threads / 64 * 64;
    copy_run run = {mxc_tool_alloc(bytes * (size_t)threads),
                    mxc_tool_alloc(bytes * (size_t)threads), bytes};
    memset(run.from, 1, bytes * (size_t)threads);
    memset(run.to, 2, bytes * (size_t)threads);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = mxc_seconds();
        mxc_on_threads(threads, round % 2 ? run_copy : run_streamed_copy, &run);
        double rate = 2.0 * (double)bytes * threads / (mxc_seconds() - start);
        best = rate > best ? rate : best;
    }
    free(run.from);
    free(run.to);
    measured = best;
    measured_threads = threads;
    return (mxc_ceiling){name, best};
}

mxc_ceiling mxc_cached_copy_ceiling(int64_t bytes)
{
    enum { CALLS = 100 };
    const size_t half = (size_t)bytes / 2;
    copy_run run = {mxc_tool_alloc(half), mxc_tool_alloc(half), half};
    memset(run.from, 1, half);
    memset(run.to, 2, half);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = mxc_seconds();
        for (int call = 0; call < CALLS; call++)
            run_copy(&run, 0);
        double rate = 2.0 * (double)half * CALLS / (mxc_seconds() - start);
        best = rate > best ? rate : best;
    }
    free(run.from);
    free(run.to);
    return (mxc_ceiling){"copy in the second cache", best};
}

typedef struct read_run {
    const int_pair *from;
    size_t count; /* vectors of one thread's share */
    atomic_int sink;
} read_run;

static void run_read(void *memory, int64_t thread)
{
    read_run *run = memory;
    const int_pair *from = run->from + (size_t)thread * run->count;
    int_pair sums[4] = {{0}};
    for (size_t i = 0; i < run->count; i += 4)
        for (size_t j = 0; j < 4; j++)
            sums[j] |= from[i + j];
    sums[0] |= sums[1] | sums[2] | sums[3];
    atomic_fetch_add(&run->sink, (int)(sums[0][0] + sums[0][1]));
}

mxc_ceiling mxc_read_ceiling(int32_t threads)
{
    static double measured;
    static int32_t measured_threads;
    const char *name = "read of memory";
    if (measured_threads == threads)
        return (mxc_ceiling){name, measured};
    size_t count = (size_t)(2 * mxc_last_level_cache()) / (size_t)threads / 64 * 4;
    size_t bytes = count * sizeof(int_pair) * (size_t)threads;
    void *from = mxc_tool_alloc(bytes);
    read_run run = {from, count, 0};
    memset(from, 1, bytes);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = mxc_seconds();
        mxc_on_threads(threads, run_read, &run);
        double rate = (double)bytes / (mxc_seconds() - start);
        best = rate > best ? rate : best;
    }
    free(from);
    measured = best;
    measured_threads = threads;
    return (mxc_ceiling){name, best};
}
