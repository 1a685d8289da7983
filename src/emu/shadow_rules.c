/* shadow_rules.c: what two accesses that are not in order are called, and how to mend them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/shadow.h"
#include "emu/stale.h"

static void shared_race(int hazard, const char *title, const mxa_emu_access *old,
                        const mxa_emu_access *as, uint32_t at, const char *was, const char *now,
                        const char *hint)
{
    char place[96], by[160], before[160];
    mxa_emu_error(hazard, title, as->site, old->site,
                  "%s\n    now: %s (%s) by %s\n    was: %s (%s) by %s\n    hint: %s",
                  mxa_emu_shared_text(at, place, sizeof place), now, mxa_emu_kind_name(as->kind),
                  mxa_emu_thread_and_barrier_text(as->thread, 0, by, sizeof by), was,
                  mxa_emu_kind_name(old->kind),
                  mxa_emu_thread_and_barrier_text(old->thread, 1, before, sizeof before), hint);
}

static void shared_after_write(const mxa_emu_access *old, const mxa_emu_access *as, uint32_t at,
                               int write, const mxa_emu_thread *viewer)
{
    if (mxa_emu_knows(viewer, old->component, old->clock)) {
        if (old->kind == MXA_EMU_MBARRIER) {
            shared_race(11, "mbarrier overwritten", old, as, at, "mbarrier", "write",
                        "mbarrier.inval first");
        } else {
            shared_race(1, "no proxy fence", old, as, at, "generic write",
                        write ? "asynchronous write" : "asynchronous read",
                        "fence.proxy.async by the writer before its arrive, or by the issuer after "
                        "its wait");
        }
        return;
    }
    const char *title = write ? "shared memory written while an earlier write is under way"
                              : "shared memory read before its write is complete";
    const char *hint = "no chain of arrive and wait, or barrier, leads from one to the other";
    int hazard = 0;
    if (old->kind == MXA_EMU_TMA_LOAD || old->kind == MXA_EMU_CANCEL) {
        hint = "wait on the mbarrier that counts these bytes";
        hazard = write ? 7 : 2;
    } else if (old->kind == MXA_EMU_ALLOC) {
        hint = "a barrier must lie between tcgen05.alloc and readers of the address";
        hazard = 17;
    }
    shared_race(hazard, title, old, as, at, "write", write ? "write" : "read", hint);
}

static void shared_after_read(const mxa_emu_access *old, const mxa_emu_access *as, uint32_t at)
{
    if (old->kind == MXA_EMU_TMA_STORE) {
        shared_race(19, "shared memory reused while a bulk store reads it", old, as, at, "read",
                    "write", "bulk wait_group.read before the reuse");
    } else if (old->kind == MXA_EMU_GENERIC) {
        shared_race(as->kind == MXA_EMU_ALLOC ? 17 : 7,
                    "shared memory overwritten while another thread reads it", old, as, at, "read",
                    "write", "the reader must arrive, and the writer wait, in between");
    } else {
        shared_race(7, "shared memory overwritten while a tensor core reads it", old, as, at,
                    "read", "write",
                    old->kind == MXA_EMU_WGMMA ? "wgmma.wait_group of the reader, then its arrive"
                                               : "wait for the commit of the reader");
    }
}

/* ---- tensor memory ---- */

static void tensor_race(int hazard, const char *title, const mxa_emu_access *old,
                        const mxa_emu_access *as, const mxa_emu_cta *cta, uint32_t lane,
                        uint32_t column, const char *was, const char *now, const char *hint)
{
    char place[96], by[160], before[160];
    mxa_emu_error(hazard, title, as->site, old->site,
                  "%s\n    now: %s (%s) by %s\n    was: %s (%s) by %s\n    hint: %s",
                  mxa_emu_tensor_text(cta, lane, column, place, sizeof place), now,
                  mxa_emu_kind_name(as->kind),
                  mxa_emu_thread_and_barrier_text(as->thread, 0, by, sizeof by), was,
                  mxa_emu_kind_name(old->kind),
                  mxa_emu_thread_and_barrier_text(old->thread, 1, before, sizeof before), hint);
}

/* Whether the warp that issued a load or store has waited for it. */
static int waited_for(const mxa_emu_access *old)
{
    const mxa_emu *emu = mxa_emu_now;
    const mxa_emu_thread *thread =
        &emu->ctas[old->thread / emu->threads]->threads[old->thread % emu->threads];
    return (old->kind == MXA_EMU_LOAD && thread->warp->load_waited >= old->clock) ||
           (old->kind == MXA_EMU_STORE && thread->warp->store_waited >= old->clock);
}

/* An earlier access (was: "write" or "read") that later tcgen05 operations are not ordered after.
 */
static void unordered(const mxa_emu_access *old, const mxa_emu_access *as, const mxa_emu_cta *cta,
                      uint32_t lane, uint32_t column, const char *was, int write,
                      const mxa_emu_thread *viewer)
{
    const char *now = write ? "write" : "read";
    const int is_read = was[0] == 'r';
    if (mxa_emu_knows(viewer, old->component, old->clock)) {
        tensor_race(2, "no tcgen05.fence::after", old, as, cta, lane, column, was, now,
                    "a barrier orders them, but no tcgen05.fence::after_thread_sync follows the "
                    "wait");
    } else if (waited_for(old)) {
        tensor_race(is_read ? 4 : 5, "waited for, but not published", old, as, cta, lane, column,
                    was, now, "tcgen05.fence::before_thread_sync before the arrive, or a barrier");
    } else if (is_read) {
        const int load = old->kind == MXA_EMU_LOAD;
        const int own =
            load &&
            viewer->warp == &cta->warp[(old->thread % mxa_emu_now->threads) / MXA_EMU_LANES];
        tensor_race(load                             ? own ? 9 : 4
                    : as->kind == MXA_EMU_ACCUMULATE ? 8
                                                     : 6,
                    load ? "tensor memory overwritten under a tcgen05.ld"
                         : "tensor memory overwritten while a product reads it",
                    old, as, cta, lane, column, was, now,
                    load ? "tcgen05.wait::ld (and fence::before) before the arrive that permits it"
                         : "wait for the commit of that product");
    } else {
        tensor_race(write                        ? old->kind == MXA_EMU_STORE ? 5 : 8
                    : old->kind == MXA_EMU_STORE ? 5
                                                 : 2,
                    write ? "tensor memory written while an earlier write is under way"
                          : "tensor memory read before its write is complete",
                    old, as, cta, lane, column, was, now,
                    old->kind == MXA_EMU_STORE
                        ? "writer: tcgen05.wait::st, fence::before, arrive; reader: wait, "
                          "fence::after"
                        : "wait on the mbarrier of the tcgen05.commit, then fence::after");
    }
}

/* ---- either ---- */

void mxa_emu_rule_after_write(const mxa_emu_place *place, const mxa_emu_access *old,
                              const mxa_emu_access *as, int write, const mxa_emu_thread *viewer)
{
    if (place->tensor) {
        unordered(old, as, place->cta, place->at, place->column, "write", write, viewer);
    } else {
        shared_after_write(old, as, place->at, write, viewer);
        if (!write && mxa_emu_is_async(as->kind) && mxa_emu_is_generic(old->kind)) {
            const uint32_t at = place->at & ((1u << MXA_EMU_RANK_SHIFT) - 1);
            mxa_emu_stale_mark(mxa_emu_cta_of(place->at), at - MXA_EMU_SHARED_BASE, viewer);
        }
    }
}

void mxa_emu_rule_after_read(const mxa_emu_place *place, const mxa_emu_access *old,
                             const mxa_emu_access *as, const mxa_emu_thread *viewer)
{
    if (place->tensor) {
        unordered(old, as, place->cta, place->at, place->column, "read", 1, viewer);
    } else {
        shared_after_read(old, as, place->at);
    }
}

void mxa_emu_rule_unwritten(const mxa_emu_place *place, const mxa_emu_access *as)
{
    char text[96];
    if (place->tensor) {
        mxa_emu_error(16, "tensor memory read that was never written", as->site, 0, "%s by %s",
                      mxa_emu_tensor_text(place->cta, place->at, place->column, text, sizeof text),
                      mxa_emu_kind_name(as->kind));
        return;
    }
    mxa_emu_shared_text(place->at, text, sizeof text);
    if (!mxa_emu_is_generic(as->kind)) {
        mxa_emu_error(16, "shared memory read that was never written", as->site, 0, "%s by %s",
                      text, mxa_emu_kind_name(as->kind));
    } else if (mxa_emu_now->options.unwritten_reads) {
        mxa_emu_warn(16, "shared memory read that was never written", as->site, 0, "%s", text);
    }
}
