/* launch.c: see launch.h. CTAs run one after another (clusters together), in a seeded order.
 *
 * Big memory (stacks, shared and tensor memory and their shadows) is kept by each OS thread for its
 * next launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/launch.h"

#include "cuda/dev/math.h"

#include "emu/engine.h"
#include "emu/fiber.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { REGISTERS = 65536, MOST_THREADS = MXA_EMU_MOST_THREADS };

void *mxa_emu_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory && mxa_emu_now && mxa_emu_now->thread) {
        mxa_emu_error(0, "out of memory", 0, 0, "%zu bytes", bytes);
        mxa_emu_abort();
    }
    return memory;
}

void mxa_emu_free(void *memory)
{
    free(memory);
}

void mxa_emu_options_init(mxa_emu_options *options)
{
    memset(options, 0, sizeof *options);
    options->seed = 1;
    options->checks = 1;
    options->strict_fences = 1;
    options->ordered_pipe = 0;
    options->ordered_accumulators = 1;
    options->late_loads = 1;
}

/* ---- kernels of this program ---- */

extern const mxa_emu_kernel *const __start_mxa_emu_kernels[] __attribute__((weak));
extern const mxa_emu_kernel *const __stop_mxa_emu_kernels[] __attribute__((weak));

const mxa_emu_kernel *mxa_emu_kernel_find(const char *name)
{
    if (!mxa_emu_units[0]) {
        return NULL; /* WHY asked: it makes the linker bring the units */
    }
    for (const mxa_emu_kernel *const *k = __start_mxa_emu_kernels; k != __stop_mxa_emu_kernels;
         k++) {
        if (strcmp((*k)->name, name) == 0) {
            return *k;
        }
    }
    return NULL;
}

enum { KERNELS_COUNTED = 256 };
static _Thread_local int64_t launched[KERNELS_COUNTED];

const mxa_emu_kernel *mxa_emu_kernel_at(size_t i, int64_t *launches)
{
    if (!mxa_emu_units[0] || &__start_mxa_emu_kernels[i] >= __stop_mxa_emu_kernels) {
        return NULL;
    }
    *launches = i < KERNELS_COUNTED ? launched[i] : 0;
    return __start_mxa_emu_kernels[i];
}

static void count_launch(const mxa_emu_kernel *kernel)
{
    int64_t before;
    const mxa_emu_kernel *other;
    for (size_t i = 0; i < KERNELS_COUNTED && (other = mxa_emu_kernel_at(i, &before)); i++) {
        launched[i] += other == kernel;
    }
}

/* ---- memory that lasts ---- */

typedef struct cta_memory {
    mxa_emu_cta cta;
    mxa_emu_warp warps[MOST_THREADS / MXA_EMU_LANES];
    mxa_emu_meeting meetings[MOST_THREADS / MXA_EMU_LANES + MOST_THREADS / MXA_EMU_GROUP_LANES];
    mxa_emu_meeting left[MOST_THREADS / MXA_EMU_LANES][MXA_EMU_LEFT];
    struct mxa_emu_barriers barriers;
    mxa_emu_thread threads[MOST_THREADS + 1]; /* the last is nobody's, and looked at by sched.c */
    uint32_t tmem[MXA_EMU_TMEM_LANES][MXA_EMU_TMEM_COLUMNS];
    unsigned char shared[MXA_EMU_SHARED_BYTES], before[MXA_EMU_SHARED_BYTES];
    uint16_t stale[MXA_EMU_SHARED_BYTES / 16];
} cta_memory;

typedef struct machine {
    cta_memory *ctas[MXA_EMU_CLUSTER_MOST];
    char *stacks;
    int stacks_count;
    mxa_emu_engine engine;
    mxa_emu_thread *runnable[MXA_EMU_CLUSTER_MOST * MOST_THREADS];
} machine;

static pthread_key_t machine_key;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;

static void machine_free(void *argument)
{
    machine *m = argument;
    for (int c = 0; c < MXA_EMU_CLUSTER_MOST; c++) {
        if (m->ctas[c]) {
            mxa_emu_shadow_free(m->ctas[c]->cta.shadow);
        }
        free(m->ctas[c]);
    }
    mxa_emu_stacks_unmap(m->stacks, m->stacks_count);
    mxa_emu_clocks_free(&m->engine.clocks);
    free(m->engine.pool);
    free(m);
}

static void machine_key_make(void)
{
    (void)pthread_key_create(&machine_key, machine_free);
}

/* This OS thread's machine, with room for the launch; NULL without memory. */
static machine *machine_take(int cluster, int threads)
{
    (void)pthread_once(&machine_once, machine_key_make);
    machine *m = pthread_getspecific(machine_key);
    if (!m) {
        m = calloc(1, sizeof *m);
        if (!m || pthread_setspecific(machine_key, m)) {
            free(m);
            return NULL;
        }
    }
    for (int c = 0; c < cluster; c++) {
        if (!m->ctas[c]) {
            m->ctas[c] = aligned_alloc(_Alignof(cta_memory), sizeof *m->ctas[c]);
            if (!m->ctas[c]) {
                return NULL;
            }
            memset(m->ctas[c], 0, sizeof *m->ctas[c]);
        }
        if (!m->ctas[c]->cta.shadow) {
            m->ctas[c]->cta.shadow = mxa_emu_shadow_new();
            if (!m->ctas[c]->cta.shadow) {
                return NULL;
            }
        }
    }
    if (m->stacks_count < cluster * threads) {
        mxa_emu_stacks_unmap(m->stacks, m->stacks_count);
        m->stacks_count = cluster * threads;
        m->stacks = mxa_emu_stacks_map(m->stacks_count);
        if (!m->stacks) {
            m->stacks_count = 0;
            return NULL;
        }
    }
    return m;
}

/* ---- one cluster ---- */

static void begin_warps(cta_memory *memory)
{
    mxa_emu_cta *cta = &memory->cta;
    memset(memory->warps, 0, (size_t)cta->warps * sizeof memory->warps[0]);
    for (int w = 0; w < cta->warps; w++) {
        mxa_emu_warp *warp = &memory->warps[w];
        warp->cta = cta;
        warp->threads = &memory->threads[w * MXA_EMU_LANES];
        warp->index = w;
        warp->elected = mxa_emu_now->options.eager ? 0 : (int)mxa_emu_random(MXA_EMU_LANES);
        warp->meeting = &memory->meetings[w];
        warp->meeting->come = 0;
        warp->meeting->lanes = MXA_EMU_LANES;
        warp->meeting->first = warp->threads;
        warp->meeting->warp = warp;
        warp->left = memory->left[w];
        for (int i = 0; i < MXA_EMU_LEFT; i++) {
            warp->left[i].come = 0;
            warp->left[i].lanes = MXA_EMU_LANES;
            warp->left[i].first = warp->threads;
            warp->left[i].warp = warp;
        }
        mxa_emu_pipe_init(&warp->load, MXA_EMU_LOAD);
        mxa_emu_pipe_init(&warp->store, MXA_EMU_STORE);
        if (w % 4 == 0 && w + 4 <= cta->warps) {
            warp->group_meeting = &memory->meetings[MOST_THREADS / MXA_EMU_LANES + w / 4];
            *warp->group_meeting = *warp->meeting;
            warp->group_meeting->lanes = MXA_EMU_GROUP_LANES;
            mxa_emu_pipe_init(&warp->wgmma, MXA_EMU_WGMMA);
        }
        const int share = REGISTERS / mxa_emu_now->threads / 8 * 8;
        warp->registers = share > 255 ? 255 : share;
    }
}

static void begin_threads(cta_memory *memory)
{
    mxa_emu *emu = mxa_emu_now;
    const mxa_emu_clock *zero = emu->engine->clocks.zero;
    memset(memory->threads, 0, (size_t)emu->threads * sizeof memory->threads[0]);
    for (int i = 0; i < emu->threads; i++) {
        mxa_emu_thread *thread = &memory->threads[i];
        thread->cta = &memory->cta;
        thread->index = i;
        thread->lane = i % MXA_EMU_LANES;
        thread->warp = &memory->warps[i / MXA_EMU_LANES];
        thread->component = (uint16_t)(memory->cta.rank * emu->threads + i);
        thread->own = 1;
        thread->known = mxa_emu_clock_keep(zero);
        thread->proxy = mxa_emu_clock_keep(zero);
        thread->tensor = mxa_emu_clock_keep(zero);
    }
}

static void begin_cta(cta_memory *memory, int rank, int block, uint32_t offset,
                      uint32_t shared_bytes)
{
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_cta *cta = &memory->cta;
    cta->shared = memory->shared;
    cta->before = memory->before;
    cta->stale = memory->stale;
    if (cta->stale_units) { /* of the CTA before it */
        memset(cta->stale, 0, sizeof memory->stale);
    }
    cta->stale_units = 0;
    cta->shared_base = MXA_EMU_SHARED_BASE + offset;
    cta->shared_end = cta->shared_base + shared_bytes;
    cta->tmem = memory->tmem;
    cta->rank = rank;
    cta->block[0] = block % emu->grid[0];
    cta->block[1] = block / emu->grid[0] % emu->grid[1];
    cta->block[2] = block / emu->grid[0] / emu->grid[1];
    cta->warps = emu->threads / MXA_EMU_LANES;
    cta->warp = memory->warps;
    cta->threads = memory->threads;
    cta->barriers = &memory->barriers;
    cta->tensor_state = NULL;
    cta->dependents_launched = 0;
    memset(cta->shared, emu->options.eager ? 0xFF : (int)mxa_emu_random(256),
           offset + shared_bytes);
    begin_warps(memory);
    begin_threads(memory);
    mxa_emu_barriers_begin(cta);
    mxa_emu_shadow_begin(cta);
}

static void begin_cluster(machine *m, int first_block, uint32_t shared_bytes)
{
    static const uint32_t rates[] = {1024, 0, 8, 64, 300}; /* eager .. when nothing else can run */
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    engine->pipes = NULL;
    engine->on_demand_count = 0;
    engine->pending = engine->pool_count = 0;
    engine->cancel_refused = 0;
    engine->copies_component = (uint16_t)(emu->cluster * emu->threads);
    engine->dependency_component = (uint16_t)(engine->copies_component + MXA_EMU_COPIES);
    engine->next_component = (uint16_t)(engine->dependency_component + 1);
    memset(engine->copies, 0, sizeof engine->copies);
    engine->next_copy = 0;
    engine->asynchronous_rate = emu->options.eager ? 1024 : rates[mxa_emu_random(5)];
    engine->pool_weight = 1 + (mxa_emu_random(2) ? 1000 : 10);
    engine->pipe_weight = 1 + (mxa_emu_random(2) ? 1000 : 10);
    engine->cluster_arrived = engine->cluster_phase = 0;
    /* The ISA aligns dynamic shared memory to 16 bytes, no further; CTAs of a cluster are alike. */
    uint32_t offset = 0;
    if (!emu->options.eager && shared_bytes + 1024 <= MXA_EMU_SHARED_BYTES && mxa_emu_random(2)) {
        offset = 16 * mxa_emu_random(64);
    }
    for (int c = 0; c < emu->cluster; c++) {
        emu->ctas[c] = &m->ctas[c]->cta;
        engine->register_pool[c] = 0;
        begin_cta(m->ctas[c], c, first_block + c, offset, shared_bytes);
    }
}

static void discard(mxa_emu_op *op)
{
    free(op->owned);
    free(op);
}

/* Operations that an aborted launch leaves behind. */
static void discard_pending(mxa_emu_engine *engine)
{
    for (int i = 0; i < engine->pool_count; i++) {
        discard(engine->pool[i]);
    }
    for (mxa_emu_pipe *pipe = engine->pipes; pipe; pipe = pipe->next) {
        while (pipe->first) {
            mxa_emu_op *op = pipe->first;
            pipe->first = op->next;
            discard(op);
        }
    }
    engine->pool_count = engine->pending = 0;
}

static void end_cluster(int complete)
{
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    while (complete && engine->pending > 0) {
        (void)mxa_emu_run_one();
    }
    discard_pending(engine);
    for (int c = 0; c < emu->cluster; c++) {
        mxa_emu_cta *cta = emu->ctas[c];
        const int columns = mxa_emu_tmem_columns(cta);
        if (complete && columns) {
            mxa_emu_error(18, "tensor memory not freed at the end", 0, 0, "%d columns of CTA %d",
                          columns, cta->rank);
        }
        mxa_emu_barriers_end(cta, complete);
        for (int i = 0; i < emu->threads; i++) {
            mxa_emu_clock_drop(&engine->clocks, cta->threads[i].known);
            mxa_emu_clock_drop(&engine->clocks, cta->threads[i].proxy);
            mxa_emu_clock_drop(&engine->clocks, cta->threads[i].tensor);
        }
        for (int w = 0; w < cta->warps; w++) {
            free(cta->warp[w].wgmma_state);
            for (int i = 0; i < MXA_EMU_LEFT; i++) {
                free(cta->warp[w].left[i].left);
                cta->warp[w].left[i].left = NULL;
            }
        }
        free(cta->tensor_state);
    }
    mxa_emu_gathering_clear(&engine->clocks, &engine->cluster_known);
    mxa_emu_gathering_clear(&engine->clocks, &engine->cluster_proxy);
    mxa_emu_clock_drop(&engine->clocks, engine->cluster_done_known);
    mxa_emu_clock_drop(&engine->clocks, engine->cluster_done_proxy);
    engine->cluster_done_known = engine->cluster_done_proxy = NULL;
}

/* ---- the grid ---- */

/* First blocks of the clusters, in a seeded order; the next to run is the last. */
static int shuffle_blocks(mxa_emu_engine *engine)
{
    const mxa_emu *emu = mxa_emu_now;
    const int count = emu->grid[0] * emu->grid[1] * emu->grid[2] / emu->cluster;
    engine->blocks_left = calloc((size_t)count, sizeof *engine->blocks_left);
    if (!engine->blocks_left) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        engine->blocks_left[i] = (count - 1 - i) * emu->cluster;
    }
    for (int i = count - 1; i > 0 && !emu->options.eager; i--) {
        const int j = (int)mxa_emu_random((uint32_t)i + 1), other = engine->blocks_left[j];
        engine->blocks_left[j] = engine->blocks_left[i];
        engine->blocks_left[i] = other;
    }
    engine->blocks_left_count = count;
    return 1;
}

static void run_grid(machine *m, uint32_t shared_bytes)
{
    mxa_emu_engine *engine = &m->engine;
    const uint32_t threads = (uint32_t)(mxa_emu_now->cluster * mxa_emu_now->threads);
    mxa_emu_clocks_begin(&engine->clocks, threads + threads / MXA_EMU_LANES * 2 +
                                              threads / MXA_EMU_GROUP_LANES + MXA_EMU_COPIES + 1 +
                                              MXA_EMU_PIPES);
    while (engine->blocks_left_count > 0 && !engine->aborted) {
        begin_cluster(m, engine->blocks_left[--engine->blocks_left_count], shared_bytes);
        const int complete = mxa_emu_run();
        end_cluster(complete);
        if (mxa_emu_now->events) {
            mxa_emu_now->events->recording = 0; /* the pictures are of the first CTA */
        }
    }
    mxa_emu_clocks_end(&engine->clocks);
}

static const char *refuse(const mxa_emu_kernel *kernel, const int grid[3], int threads,
                          uint32_t shared_bytes)
{
    if (threads < 1 || threads % MXA_EMU_LANES || threads > MOST_THREADS) {
        return "the emulator runs whole warps, up to 1024 threads";
    }
    if (threads > kernel->threads) {
        return "more threads than the kernel's launch bounds";
    }
    if (shared_bytes > MXA_EMU_SHARED_BYTES) {
        return "more shared memory than a CTA may have";
    }
    if (grid[0] % kernel->cluster || kernel->cluster > MXA_EMU_CLUSTER_MOST) {
        return "a grid that is not made of the kernel's clusters";
    }
    return NULL;
}

int mxa_emu_launch(const mxa_emu_kernel *kernel, const int grid[3], int threads,
                   uint32_t shared_bytes, const void *parameters, const mxa_emu_options *options,
                   mxa_emu_result *result)
{
    return mxa_emu_launch_traced(kernel, grid, threads, shared_bytes, parameters, options, NULL,
                                 result);
}

int mxa_emu_launch_traced(const mxa_emu_kernel *kernel, const int grid[3], int threads,
                          uint32_t shared_bytes, const void *parameters,
                          const mxa_emu_options *options, struct mxa_emu_trace *trace,
                          mxa_emu_result *result)
{
    memset(result, 0, sizeof *result);
    machine *m = mxa_emu_now ? NULL : machine_take(kernel->cluster, threads > 0 ? threads : 1);
    void *copy = aligned_alloc(64, (kernel->parameter_bytes + 63) / 64 * 64);
    mxa_emu emu;
    memset(&emu, 0, sizeof emu);
    emu.reports = m && copy ? mxa_emu_reports_new() : NULL;
    if (!emu.reports) {
        free(copy);
        result->errors = 1;
        return 1;
    }
    memcpy(copy, parameters, kernel->parameter_bytes);
    mxa_emu_op **pool = m->engine.pool;
    const int pool_room = m->engine.pool_room;
    const mxa_emu_clocks clocks = m->engine.clocks;
    memset(&m->engine, 0, sizeof m->engine);
    m->engine.clocks = clocks;
    m->engine.pool = pool;
    m->engine.pool_room = pool_room;
    m->engine.runnable = m->runnable;
    m->engine.stacks = m->stacks;
    m->engine.kernel = kernel;
    m->engine.parameters = copy;
    count_launch(kernel);
    emu.engine = &m->engine;
    emu.tally = &result->tally;
    emu.events = trace;
    if (trace) {
        trace->recording = 1;
        trace->launch++;
    }
    emu.options = *options;
    mxa_emu_approximate(options->approximations);
    emu.cluster = kernel->cluster;
    emu.threads = threads;
    memcpy(emu.grid, grid, sizeof emu.grid);
    emu.random = (options->seed + 1) * 0x9E3779B97F4A7C15u | 1;
    mxa_emu_now = &emu;
    for (int i = 0; i < 8; i++) {
        (void)mxa_emu_random(2);
    }
    const char *refusal = refuse(kernel, grid, threads, shared_bytes);
    if (refusal) {
        mxa_emu_error(0, "launch refused", 0, 0, "%s: grid %d x %d x %d, %d threads, %u bytes",
                      refusal, grid[0], grid[1], grid[2], threads, shared_bytes);
    } else if (shuffle_blocks(&m->engine)) {
        run_grid(m, shared_bytes);
    } else {
        mxa_emu_error(0, "out of memory", 0, 0, "%s", "for the blocks of the grid");
    }
    mxa_emu_count_hot();
    mxa_emu_reports_sum(emu.reports, result);
    result->text = mxa_emu_reports_text(emu.reports);
    mxa_emu_reports_free(emu.reports);
    free(m->engine.blocks_left);
    free(copy);
    mxa_emu_approximate(0);
    mxa_emu_now = NULL;
    return result->errors != 0;
}

void mxa_emu_result_free(mxa_emu_result *result)
{
    free(result->text);
    result->text = NULL;
}
