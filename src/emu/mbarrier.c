/* mbarrier.c: barriers in shared memory: arrivals, bytes of copies, phases.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/mbarrier.h"

#include "emu/engine.h"
#include "emu/trace.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = (1 << 20) - 1, NEVER_SEEN = -2 };

static uint32_t offset_of(uint32_t address)
{
    return (address & ((1u << MXA_EMU_RANK_SHIFT) - 1)) - MXA_EMU_SHARED_BASE;
}

mxa_emu_mbarrier *mxa_emu_mbarrier_at(uint32_t address, mxa_emu_site site)
{
    mxa_emu_cta *cta = mxa_emu_cta_of(address);
    const uint32_t offset = offset_of(address);
    if (cta && offset < MXA_EMU_SHARED_BYTES && offset % 8 == 0 &&
        cta->barriers->index[offset / 8]) {
        return &cta->barriers->mbarrier[cta->barriers->index[offset / 8] - 1];
    }
    char text[96];
    mxa_emu_error(11, "no mbarrier there", site, 0, "%s is not an initialized mbarrier",
                  mxa_emu_shared_text(address, text, sizeof text));
    return NULL;
}

/* The init must have happened before. */
static void check_init(const mxa_emu_mbarrier *barrier, mxa_emu_site site)
{
    if (mxa_emu_now->options.checks &&
        !mxa_emu_knows(mxa_emu_now->thread, barrier->init.component, barrier->init.clock)) {
        char text[96];
        mxa_emu_error(11, "mbarrier used before its init is visible", site, barrier->init.site,
                      "%s by %s; a barrier must lie between", barrier->name,
                      mxa_emu_thread_text(mxa_emu_now->thread->component, text, sizeof text));
    }
}

static void take_note(mxa_emu_mbarrier *barrier, uint16_t thread, int kind, mxa_emu_site site)
{
    mxa_emu_arrival *arrival = &barrier->arrival[barrier->arrivals++ % MXA_EMU_ARRIVALS];
    arrival->phase = barrier->phase;
    arrival->site = site;
    arrival->thread = thread;
    arrival->kind = (uint8_t)kind;
    mxa_emu_thread *by = mxa_emu_thread_of(thread);
    by->arrived = barrier;
    by->arrived_phase = barrier->phase;
}

/* A phase is complete when all have arrived and all bytes are there. */
static void progress(mxa_emu_mbarrier *barrier, mxa_emu_cta *cta)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    if (barrier->pending || barrier->bytes) {
        return;
    }
    barrier->phase++;
    barrier->pending = (int32_t)barrier->count;
    mxa_emu_clock_drop(clocks, barrier->done_known);
    mxa_emu_clock_drop(clocks, barrier->done_proxy);
    barrier->done_known = mxa_emu_gathered(clocks, &barrier->known);
    barrier->done_proxy = mxa_emu_gathered(clocks, &barrier->proxy);
    for (int i = MXA_EMU_MOST_THREADS / 64 - 1; i >= 0; i--) {
        for (uint64_t *rest = &barrier->waiters[i]; *rest;) {
            const int last = 63 - __builtin_clzll(*rest);
            *rest &= ~((uint64_t)1 << last);
            mxa_emu_make_runnable(&cta->threads[64 * i + last]);
        }
    }
}

static void count_arrival(mxa_emu_mbarrier *barrier, mxa_emu_cta *cta, uint32_t count,
                          uint16_t thread, int kind, mxa_emu_site site)
{
    take_note(barrier, thread, kind, site);
    if (barrier->pending < (int32_t)count) {
        char text[96];
        mxa_emu_error(10, "too many arrivals in one phase", site, barrier->init.site,
                      "%s, phase %d: %u more where %d of %u are missing, by %s", barrier->name,
                      barrier->phase, count, barrier->pending, barrier->count,
                      mxa_emu_thread_text(thread, text, sizeof text));
        return;
    }
    barrier->pending -= (int32_t)count;
    progress(barrier, cta);
}

static void expect(mxa_emu_mbarrier *barrier, uint32_t bytes, mxa_emu_site site)
{
    barrier->bytes += (int32_t)bytes;
    if (bytes > MOST_BYTES || barrier->bytes > MOST_BYTES) {
        mxa_emu_error(11, "more bytes than an mbarrier counts", site, 0, "%s expects %d bytes",
                      barrier->name, barrier->bytes);
    }
}

void mxa_emu_mbarrier_init(uint32_t address, uint32_t count)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_cta *cta = thread->cta;
    struct mxa_emu_barriers *barriers = cta->barriers;
    const uint32_t offset = offset_of(address);
    if (address % 8 || count == 0 || count > MOST_BYTES || mxa_emu_cta_of(address) != cta ||
        !mxa_emu_shared(address, 8, site)) {
        mxa_emu_error(11, "mbarrier.init refused", site, 0,
                      "address 0x%x (a multiple of 8 of the own CTA), count %u (1 to 2^20 - 1)",
                      address, count);
        return;
    }
    mxa_emu_access as = mxa_emu_generic(site);
    as.kind = MXA_EMU_MBARRIER;
    mxa_emu_check_shared(&as, address, 8, 1);
    if (barriers->index[offset / 8]) {
        mxa_emu_error(11, "mbarrier initialized twice", site,
                      barriers->mbarrier[barriers->index[offset / 8] - 1].init.site,
                      "0x%x without mbarrier.inval between", address);
        return;
    }
    if (barriers->mbarriers == MXA_EMU_MBARRIERS) {
        mxa_emu_error(0, "more mbarriers than the emulator keeps", site, 0, "%d",
                      MXA_EMU_MBARRIERS);
        return;
    }
    mxa_emu_mbarrier *barrier = &barriers->mbarrier[barriers->mbarriers];
    memset(barrier, 0, sizeof *barrier);
    barrier->seen = barriers->seen[barriers->mbarriers];
    for (int i = 0; i < mxa_emu_now->threads; i++) {
        barrier->seen[i] = NEVER_SEEN;
    }
    barriers->index[offset / 8] = (uint8_t)++barriers->mbarriers;
    barrier->address = address;
    barrier->count = count;
    barrier->pending = (int32_t)count;
    barrier->init = as;
    barrier->done_known = mxa_emu_clock_keep(mxa_emu_engine_now()->clocks.zero);
    barrier->done_proxy = mxa_emu_clock_keep(mxa_emu_engine_now()->clocks.zero);
    (void)snprintf(barrier->name, sizeof barrier->name, "mbarrier 0x%x", address);
}

void mxa_emu_mbarrier_invalidate(uint32_t address)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, site);
    if (!barrier) {
        return;
    }
    mxa_emu_access as = mxa_emu_generic(site);
    as.kind = MXA_EMU_INVALIDATE;
    mxa_emu_check_shared(&as, address, 8, 1);
    for (int i = 0; i < mxa_emu_now->threads; i++) {
        const mxa_emu_thread *thread = &mxa_emu_now->thread->cta->threads[i];
        if (thread->state == MXA_EMU_AT_MBARRIER && thread->wait_address == barrier->address) {
            mxa_emu_error(11, "mbarrier.inval while a thread waits", site, thread->site, "%s",
                          barrier->name);
        }
    }
    mxa_emu_now->thread->cta->barriers->index[offset_of(address) / 8] = 0;
    barrier->address = 0;
}

void mxa_emu_mbarrier_init_fence(void)
{
    mxa_emu_settle();
    struct mxa_emu_barriers *barriers = mxa_emu_now->thread->cta->barriers;
    for (int i = 0; i < barriers->mbarriers; i++) {
        if (barriers->mbarrier[i].init.thread == mxa_emu_now->thread->component) {
            barriers->mbarrier[i].init_fenced = 1;
        }
    }
}

/* tcgen05 loads that no wait has covered: what permits others to overwrite them comes too early. */
static void check_loads(const mxa_emu_mbarrier *barrier, mxa_emu_site site)
{
    const mxa_emu_warp *warp = mxa_emu_now->thread->warp;
    if (warp->load.issued > warp->load_waited) {
        mxa_emu_warn(3, "arrival before tcgen05.wait::ld", site, warp->load_site,
                     "%s: the warp's last tcgen05.ld may still be reading", barrier->name);
    }
}

void mxa_emu_check_target(const mxa_emu_cta *from, const mxa_emu_cta *to, mxa_emu_site site)
{
    if (from != to && to->alive == 0) {
        mxa_emu_error(20, "arrival in a CTA that has ended", site, 0,
                      "CTA %d of the cluster arrives in CTA %d; meet at a cluster barrier before "
                      "the end",
                      from->rank, to->rank);
    }
}

static void arrive(uint32_t address, uint32_t count, uint32_t bytes, mxa_emu_site site)
{
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, site);
    if (!barrier) {
        return;
    }
    mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_cta *cta = mxa_emu_cta_of(address);
    mxa_emu_check_target(thread->cta, cta, site);
    check_init(barrier, site);
    check_loads(barrier, site);
    mxa_emu_count("mbarrier.arrive");
    expect(barrier, bytes, site);
    mxa_emu_publish(&barrier->known, &barrier->proxy);
    count_arrival(barrier, cta, count, thread->component, MXA_EMU_GENERIC, site);
    mxa_emu_pause();
}

void mxa_emu_mbarrier_arrive(uint32_t address, uint32_t count, uint32_t expect_bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    if (mxa_emu_cta_of(address) != mxa_emu_now->thread->cta) {
        mxa_emu_error(20, "local arrival on another CTA's mbarrier", site, 0, "address 0x%x",
                      address);
        return;
    }
    arrive(address, count, expect_bytes, site);
}

void mxa_emu_mbarrier_arrive_remote(uint32_t remote)
{
    arrive(remote, 1, 0, MXA_EMU_SITE());
}

void mxa_emu_mbarrier_expect(uint32_t address, uint32_t bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, site);
    if (barrier) {
        check_init(barrier, site);
        expect(barrier, bytes, site);
        progress(barrier, mxa_emu_cta_of(address));
    }
}

int mxa_emu_mbarrier_usable(uint32_t address, mxa_emu_site site)
{
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, site);
    if (!barrier) {
        return 0;
    }
    check_init(barrier, site);
    if (!barrier->init_fenced) {
        mxa_emu_error(11, "no fence.mbarrier_init", site, barrier->init.site,
                      "%s is given to an asynchronous agent", barrier->name);
    }
    return 1;
}

void mxa_emu_mbarrier_complete(const mxa_emu_op *op, uint32_t address, uint32_t bytes)
{
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, op->as.site);
    if (!barrier) {
        return;
    }
    if (mxa_emu_now->options.checks) {
        mxa_emu_gather_component(&mxa_emu_engine_now()->clocks, &barrier->known, op->as.component,
                                 op->as.clock);
    }
    barrier->bytes -= (int32_t)bytes;
    if (barrier->bytes < -MOST_BYTES) {
        mxa_emu_error(11, "more bytes than an mbarrier counts", op->as.site, 0, "%s is at %d bytes",
                      barrier->name, barrier->bytes);
    }
    take_note(barrier, op->as.thread, op->as.kind, op->as.site);
    progress(barrier, mxa_emu_cta_of(address));
}

void mxa_emu_mbarrier_arrive_from(const mxa_emu_op *op, uint32_t address, mxa_emu_release *release)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, op->as.site);
    if (barrier) {
        mxa_emu_check_target(op->cta, mxa_emu_cta_of(address), op->as.site);
        if (release->known) {
            mxa_emu_gather(clocks, &barrier->known, release->known);
            mxa_emu_gather(clocks, &barrier->proxy, release->proxy);
            mxa_emu_gather_component(clocks, &barrier->known, op->as.component, op->as.clock);
        }
        count_arrival(barrier, mxa_emu_cta_of(address), 1, op->as.thread, op->as.kind, op->as.site);
    }
    mxa_emu_clock_drop(clocks, release->known);
    mxa_emu_clock_drop(clocks, release->proxy);
    release->known = release->proxy = NULL;
}

/* A thread that sees a phase twice, or skips one, has lost count. */
static void check_phase(const mxa_emu_mbarrier *barrier, int32_t *seen, mxa_emu_site site)
{
    const int32_t got = barrier->phase - 1;
    const int32_t before = *seen;
    *seen = got;
    if (before == NEVER_SEEN ? got <= 0 : got == before + 1) {
        return;
    }
    char text[96];
    const char *who = mxa_emu_thread_text(mxa_emu_now->thread->component, text, sizeof text);
    if (got == before) {
        mxa_emu_warn(11, "a phase waited for twice", site, 0,
                     "%s: %s has seen phase %d before (is the parity swapped?)", barrier->name, who,
                     got);
    } else {
        mxa_emu_error(11, "waiter two or more phases behind", site, 0,
                      "%s: %s last saw phase %d, and sees %d", barrier->name, who,
                      before == NEVER_SEEN ? -1 : before, got);
    }
}

int mxa_emu_mbarrier_try_wait(uint32_t address, uint32_t parity)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, site);
    if (!barrier) {
        mxa_emu_abort();
    }
    if (mxa_emu_cta_of(address) != thread->cta || parity > 1) {
        mxa_emu_error(11, "wait refused", site, 0, "address 0x%x of the own CTA, parity %u of 0, 1",
                      address, parity);
        mxa_emu_abort();
    }
    check_init(barrier, site);
    if (!mxa_emu_now->options.eager && mxa_emu_random(16) == 0) {
        mxa_emu_pause();
        return 0; /* try_wait may fail for no reason */
    }
    const int64_t first = mxa_emu_now->step;
    mxa_emu_count("mbarrier.try_wait");
    while (((uint32_t)barrier->phase & 1) == parity) {
        thread->wait_address = barrier->address;
        thread->wait_parity = parity;
        barrier->waiters[thread->index / 64] |= (uint64_t)1 << thread->index % 64;
        mxa_emu_block_in(MXA_EMU_AT_MBARRIER, site);
    }
    if (mxa_emu_now->step > first) {
        mxa_emu_trace_wait(thread, barrier->name, first);
    }
    check_phase(barrier, &barrier->seen[thread->index], site);
    mxa_emu_acquire(thread, barrier->done_known, barrier->done_proxy);
    thread->waited = barrier;
    thread->waited_phase = barrier->phase - 1;
    return 1;
}

/* ---- a CTA's beginning and end; names ---- */

void mxa_emu_barriers_begin(mxa_emu_cta *cta)
{
    cta->barriers->mbarriers = 0;
    cta->barriers->shared_regions = cta->barriers->tensor_regions = 0;
    memset(cta->barriers->named, 0, sizeof cta->barriers->named);
}

void mxa_emu_barriers_end(mxa_emu_cta *cta, int complete)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    struct mxa_emu_barriers *barriers = cta->barriers;
    for (int i = 0; i < barriers->mbarriers; i++) {
        mxa_emu_mbarrier *barrier = &barriers->mbarrier[i];
        if (complete && barrier->address &&
            (barrier->pending != (int32_t)barrier->count || barrier->bytes)) {
            mxa_emu_warn(10, "mbarrier in the middle of a phase at the end", barrier->init.site, 0,
                         "%s, phase %d: %d of %u arrivals missing, %d bytes", barrier->name,
                         barrier->phase, barrier->pending, barrier->count, barrier->bytes);
        }
        if (barrier->address) {
            barriers->index[offset_of(barrier->address) / 8] = 0;
        }
        mxa_emu_gathering_clear(clocks, &barrier->known);
        mxa_emu_gathering_clear(clocks, &barrier->proxy);
        mxa_emu_clock_drop(clocks, barrier->done_known);
        mxa_emu_clock_drop(clocks, barrier->done_proxy);
    }
    for (int i = 0; i < MXA_EMU_NAMED_BARRIERS; i++) {
        mxa_emu_gathering_clear(clocks, &barriers->named[i].known);
        mxa_emu_gathering_clear(clocks, &barriers->named[i].proxy);
        if (complete && barriers->named[i].arrived) {
            mxa_emu_error(12, "named barrier left incomplete at the end", 0, 0,
                          "barrier %d: %d of %d threads", i, barriers->named[i].arrived,
                          barriers->named[i].expected);
        }
    }
    barriers->mbarriers = 0;
}

void mxa_emu_barrier_name(uint32_t address, const char *name, int index, const char *arrives,
                          const char *waits)
{
    mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(address, MXA_EMU_SITE());
    if (barrier) {
        (void)snprintf(barrier->name, sizeof barrier->name, "%s[%d]", name, index);
        barrier->arrives = arrives;
        barrier->waits = waits;
    }
}
