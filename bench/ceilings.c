/* ceilings.c: what this machine can do at most, measured in turns with the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ceilings.h"

#include "error.h"
#include "progress.h"
#include "timing.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { CACHED_CALLS = 20, FILL = 0x35 };

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
} peaks[] = {
    {"portable", "fp32 multiply and add, 4 wide", mxc_peak_portable, MXC_PEAK_CHAINS * 4 * 2},
#ifdef MXA_BUILD_AVX2
    {"avx2", "fp32 fma, 8 wide", mxc_peak_avx2, MXC_PEAK_CHAINS * 8 * 2},
#endif
#ifdef MXA_BUILD_AVX512
    {"avx512", "fp32 fma, 16 wide", mxc_peak_avx512, MXC_PEAK_CHAINS * 16 * 2},
#endif
#ifdef MXA_BUILD_AVX512BF16
    {"avx512bf16", "bf16 dot products, 16 wide", mxc_peak_avx512bf16, MXC_PEAK_CHAINS * 32 * 2},
#endif
#ifdef MXA_BUILD_AMX
    {"amx", "bf16 matrix products, 16 x 16 x 32", mxc_peak_amx,
     4.0 * 16 * 16 * 32 * 2 / MXC_PEAK_AMX_STEPS},
#endif
};

typedef struct peak_run {
    const struct peak *peak;
    int32_t threads;
    int64_t steps;
    atomic_int sink; /* keeps results in use */
} peak_run;

static void run_peak_thread(void *memory, int64_t thread)
{
    peak_run *run = memory;
    (void)thread;
    atomic_fetch_add(&run->sink, (int)run->peak->loop(run->steps));
}

static void run_peak(void *memory, int set)
{
    peak_run *run = memory;
    (void)set;
    mxc_on_threads(run->threads, run_peak_thread, run);
}

mxc_limit mxc_arithmetic_limit(const char *isa, int32_t threads, double seconds)
{
    enum { TRIAL_STEPS = 1 << 18, UNIT_STEPS = 1 << 10 };
    peak_run *run = mxc_tool_alloc(sizeof *run);
    *run = (peak_run){.peak = &peaks[0], .threads = 1, .steps = TRIAL_STEPS};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (strcmp(peaks[i].isa, isa) == 0)
            run->peak = &peaks[i];
    const double start = mxc_seconds();
    run_peak(run, 0);
    const double trial = mxc_seconds() - start;
    run->threads = threads;
    run->steps = (int64_t)(seconds / trial * TRIAL_STEPS / UNIT_STEPS + 1) * UNIT_STEPS;
    return (mxc_limit){run->peak->name,
                       1,
                       run->peak->flops_per_step * (double)run->steps * threads,
                       {.run = run_peak, .arg = run, .sets = 1}};
}

/* Memory that a ceiling runs over, a share of each thread after the other; set `i` of it begins at
 * i * threads * bytes. */
typedef struct memory_run {
    char *from, *to; /* to: NULL where it only reads */
    int32_t threads;
    int set;
    size_t bytes; /* of one thread's share of a set */
    void (*loop)(const char *from, char *to, size_t bytes);
} memory_run;

static void run_memory_thread(void *memory, int64_t thread)
{
    const memory_run *run = memory;
    const size_t at = ((size_t)run->set * (size_t)run->threads + (size_t)thread) * run->bytes;
    run->loop(run->from + at, run->to ? run->to + at : NULL, run->bytes);
}

static void run_memory(void *memory, int set)
{
    memory_run *run = memory;
    run->set = set;
    mxc_on_threads(run->threads, run_memory_thread, run);
}

static void copy_plain(const char *from, char *to, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Past the caches: a stored line is then not read first. bytes: a multiple of 64. */
static void copy_streamed(const char *from, char *to, size_t bytes)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < bytes; i += 64) {
        __m128i x[4];
        for (size_t j = 0; j < 4; j++)
            x[j] = _mm_load_si128((const __m128i *)(const void *)(from + i + 16 * j));
        for (size_t j = 0; j < 4; j++)
            _mm_stream_si128((__m128i *)(void *)(to + i + 16 * j), x[j]);
    }
    _mm_sfence();
#else
    copy_plain(from, to, bytes);
#endif
}

static void fill_plain(const char *from, char *to, size_t bytes)
{
    (void)from;
    memset(to, FILL, bytes);
}

static void fill_streamed(const char *from, char *to, size_t bytes)
{
#if defined(__SSE2__)
    const __m128i x = _mm_set1_epi8(FILL);
    (void)from;
    for (size_t i = 0; i < bytes; i += sizeof x)
        _mm_stream_si128((__m128i *)(void *)(to + i), x);
    _mm_sfence();
#else
    fill_plain(from, to, bytes);
#endif
}

/* Over and over what stays in a cache. */
static void copy_cached(const char *from, char *to, size_t bytes)
{
    for (int call = 0; call < CACHED_CALLS; call++)
        memcpy(to, from, bytes);
}

static void read_plain(const char *from, char *to, size_t bytes)
{
    static atomic_int sink;
    const int_pair *at = (const int_pair *)(const void *)from;
    int_pair sums[4] = {{0}};
    (void)to;
    for (size_t i = 0; i < bytes / sizeof *at; i += 4)
        for (size_t j = 0; j < 4; j++)
            sums[j] |= at[i + j];
    sums[0] |= sums[1] | sums[2] | sums[3];
    atomic_fetch_add(&sink, (int)(sums[0][0] + sums[0][1]));
}

/* Two halves that all ceilings of memory share. WHY four times the last-level cache, up to a GiB:
 * where threads lie on chiplets with a cache each, of which Linux may count one, a thread found
 * part of its share of twice that in its own (Zen 3: copies of 64 to 72 GB/s, now 52 to 62). */
static char *half_of_memory(int which, size_t *bytes)
{
    enum { GIB = 1 << 30 };
    static char *halves[2];
    const size_t cache = (size_t)mxc_last_level_cache();
    *bytes = 4 * cache;
    if (*bytes > GIB)
        *bytes = 2 * cache > GIB ? 2 * cache : GIB;
    if (!halves[which]) {
        halves[which] = mxc_tool_alloc(*bytes);
        memset(halves[which], 1 + which, *bytes);
    }
    return halves[which];
}

static mxc_limit memory_limit(const char *name, int32_t threads, int copies,
                              void (*loop)(const char *from, char *to, size_t bytes))
{
    enum { SHARE = 32 << 20 }; /* at most, of a thread; beyond what memcpy stores past the caches */
    size_t whole;
    memory_run *run = mxc_tool_alloc(sizeof *run);
    *run = (memory_run){.from = half_of_memory(0, &whole), .threads = threads, .loop = loop};
    if (copies)
        run->to = half_of_memory(1, &whole);
    run->bytes = whole / (size_t)threads / 64 * 64;
    if (run->bytes > SHARE)
        run->bytes = SHARE;
    const int sets = (int)(whole / (run->bytes * (size_t)threads));
    return (mxc_limit){name,
                       0,
                       (double)run->bytes * threads * (copies ? 2 : 1),
                       {.run = run_memory, .arg = run, .sets = sets}};
}

/* Keeps the faster of two loops, each tried a few times in turns. */
static void choose_loop(memory_run *run, int sets, void (*loops[2])(const char *, char *, size_t))
{
    enum { ROUNDS = 4 };
    double least[2] = {HUGE_VAL, HUGE_VAL};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        run->loop = loops[round % 2];
        const double start = mxc_seconds();
        run_memory(run, round % sets);
        const double seconds = mxc_seconds() - start;
        least[round % 2] = seconds < least[round % 2] ? seconds : least[round % 2];
    }
    run->loop = loops[least[1] < least[0]];
}

mxc_limit mxc_copy_limit(int32_t threads)
{
    mxc_limit limit = memory_limit("copy of memory", threads, 1, copy_plain);
    choose_loop(limit.work.arg, limit.work.sets,
                (void (*[2])(const char *, char *, size_t)){copy_plain, copy_streamed});
    return limit;
}

mxc_limit mxc_fill_limit(int32_t threads)
{
    mxc_limit limit = memory_limit("fill of memory", threads, 1, fill_plain);
    limit.amount /= 2;
    choose_loop(limit.work.arg, limit.work.sets,
                (void (*[2])(const char *, char *, size_t)){fill_plain, fill_streamed});
    return limit;
}

mxc_limit mxc_cached_copy_limit(int64_t bytes)
{
    mxc_limit limit = memory_limit("copy in the second cache", 1, 1, copy_cached);
    memory_run *run = limit.work.arg;
    run->bytes = (size_t)bytes / 2;
    limit.work.sets = 1;
    limit.amount = 2.0 * (double)run->bytes * CACHED_CALLS;
    return limit;
}

mxc_limit mxc_read_limit(int32_t threads)
{
    return memory_limit("read of memory", threads, 0, read_plain);
}

void mxc_limit_free(mxc_limit *limit)
{
    free(limit->work.arg);
    limit->work.arg = NULL;
}

mxc_ceiling mxc_limit_ceiling(const mxc_limit *limit, const mxc_work *work)
{
    return (mxc_ceiling){limit->name, limit->amount / work->timing.median};
}
