/* shadow.c: who last wrote and read each piece of shared and tensor memory, and whether the next
 * access comes after it.
 *
 * Checked when an operation is issued: what it will touch must already be in order then. Shared
 * memory is kept in granules of 16 bytes, which a partial access splits into words and bytes;
 * tensor memory in columns of a quarter (32 lanes), which an access of 16 lanes splits in two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/engine.h"
#include "emu/trace.h"

#include <string.h>

enum { READERS = 4, GRANULE = 16, GRANULES = MXA_EMU_SHARED_BYTES / GRANULE, QUARTERS = 4 };

typedef struct cell {
    mxa_emu_access writer, reader[READERS];
} cell;

/* A piece that is one cell, or several: then `parts` has them. */
typedef struct piece {
    cell whole;
    struct piece *parts;
} piece;

/* Parts are cut from sheets that live as long as the shadow. */
enum { SHEET_PIECES = 1024 };
typedef struct sheet {
    struct sheet *next;
    piece pieces[SHEET_PIECES];
} sheet;

struct mxa_emu_shadow {
    piece granule[GRANULES];
    piece tensor[QUARTERS][MXA_EMU_TMEM_COLUMNS];
    uint8_t allocated[MXA_EMU_TMEM_COLUMNS];
    int tensor_used;
    uint32_t granules_used;
    sheet *sheets, *sheet;
    int sheet_used;
};

struct mxa_emu_shadow *mxa_emu_shadow_new(void)
{
    return mxa_emu_alloc(sizeof(struct mxa_emu_shadow));
}

void mxa_emu_shadow_free(struct mxa_emu_shadow *shadow)
{
    while (shadow && shadow->sheets) {
        sheet *next = shadow->sheets->next;
        mxa_emu_free(shadow->sheets);
        shadow->sheets = next;
    }
    mxa_emu_free(shadow);
}

void mxa_emu_shadow_begin(mxa_emu_cta *cta)
{
    struct mxa_emu_shadow *shadow = cta->shadow;
    memset(shadow->granule, 0, shadow->granules_used * sizeof shadow->granule[0]);
    shadow->granules_used = (cta->shared_end - MXA_EMU_SHARED_BASE + GRANULE - 1) / GRANULE;
    if (shadow->tensor_used) {
        memset(shadow->tensor, 0, sizeof shadow->tensor);
        memset(shadow->allocated, 0, sizeof shadow->allocated);
    }
    shadow->tensor_used = 0;
    shadow->sheet = shadow->sheets;
    shadow->sheet_used = 0;
}

/* Splits a piece into `count` equal ones. */
static piece *split(struct mxa_emu_shadow *shadow, piece *p, int count)
{
    if (p->parts) {
        return p->parts;
    }
    if (!shadow->sheet || shadow->sheet_used + count > SHEET_PIECES) {
        sheet *next = shadow->sheet ? shadow->sheet->next : NULL;
        if (!next) {
            next = mxa_emu_alloc(sizeof *next);
            if (shadow->sheet) {
                shadow->sheet->next = next;
            } else {
                shadow->sheets = next;
            }
        }
        shadow->sheet = next;
        shadow->sheet_used = 0;
    }
    p->parts = &shadow->sheet->pieces[shadow->sheet_used];
    shadow->sheet_used += count;
    for (int i = 0; i < count; i++) {
        p->parts[i].whole = p->whole;
        p->parts[i].parts = NULL;
    }
    return p->parts;
}

static int is_async(int kind)
{
    return kind == MXA_EMU_TMA_LOAD || kind == MXA_EMU_TMA_STORE || kind == MXA_EMU_CANCEL ||
           kind == MXA_EMU_WGMMA || kind == MXA_EMU_MMA || kind == MXA_EMU_COPY;
}

static int is_generic(int kind)
{
    return kind == MXA_EMU_GENERIC || kind == MXA_EMU_ATOMIC || kind == MXA_EMU_ALLOC;
}

/* Atomics take turns. Pairs that a tensor pipe keeps in order: documented for copy before product
 * and for products of one accumulator; the others by option (docs/emulator.md). */
static int keep_order(const mxa_emu_access *old, const mxa_emu_access *as)
{
    const mxa_emu_options *options = &mxa_emu_now->options;
    if (old->kind == MXA_EMU_ATOMIC && as->kind == MXA_EMU_ATOMIC) {
        return 1;
    }
    if (old->component != as->component) {
        return 0;
    }
    switch (as->kind) {
    case MXA_EMU_MMA:
        return old->kind == MXA_EMU_COPY || options->ordered_accumulators;
    case MXA_EMU_ACCUMULATE:
        return old->kind == MXA_EMU_ACCUMULATE || options->ordered_accumulators;
    case MXA_EMU_COPY:
        return options->ordered_pipe;
    case MXA_EMU_WGMMA:
        return 1; /* reads only */
    default:
        return 0;
    }
}

/* Those whose clocks an access is held against. */
static int viewers(mxa_emu_thread ***list, mxa_emu_thread **one)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    if (engine->viewers_count) {
        *list = engine->viewers;
        return engine->viewers_count;
    }
    *one = mxa_emu_now->thread;
    *list = one;
    return 1;
}

/* ---- shared memory ---- */

static void shared_race(int hazard, const char *title, const mxa_emu_access *old,
                        const mxa_emu_access *as, uint32_t at, const char *was, const char *now,
                        const char *hint)
{
    char place[96], by[96], before[96];
    mxa_emu_error(hazard, title, as->site, old->site,
                  "%s\n    now: %s (%s) by %s\n    was: %s (%s) by %s\n    hint: %s",
                  mxa_emu_shared_text(at, place, sizeof place), now, mxa_emu_kind_name(as->kind),
                  mxa_emu_thread_text(as->thread, by, sizeof by), was, mxa_emu_kind_name(old->kind),
                  mxa_emu_thread_text(old->thread, before, sizeof before), hint);
}

static void check_shared_writer(const cell *c, const mxa_emu_access *as, uint32_t at, int write,
                                const mxa_emu_thread *viewer)
{
    const mxa_emu_access *old = &c->writer;
    if (!mxa_emu_knows(viewer, old->component, old->clock)) {
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
    } else if (is_async(as->kind) && is_generic(old->kind)) {
        const uint32_t fenced = old->component == viewer->component
                                    ? viewer->own_proxy
                                    : viewer->proxy->at[old->component];
        if (fenced < old->clock) {
            shared_race(1, "no proxy fence", old, as, at, "generic write",
                        write ? "asynchronous write" : "asynchronous read",
                        "fence.proxy.async by the writer before its arrive, or by the issuer after "
                        "its wait");
        }
    } else if (is_generic(as->kind) && write && old->kind == MXA_EMU_MBARRIER) {
        shared_race(11, "mbarrier overwritten", old, as, at, "mbarrier", "write",
                    "mbarrier.inval first");
    }
}

static void check_shared_readers(const cell *c, const mxa_emu_access *as, uint32_t at,
                                 const mxa_emu_thread *viewer)
{
    for (int r = 0; r < READERS; r++) {
        const mxa_emu_access *old = &c->reader[r];
        if (old->kind == MXA_EMU_NOTHING || mxa_emu_knows(viewer, old->component, old->clock)) {
            continue;
        }
        if (old->kind == MXA_EMU_TMA_STORE) {
            shared_race(19, "shared memory reused while a bulk store reads it", old, as, at, "read",
                        "write", "bulk wait_group.read before the reuse");
        } else if (old->kind == MXA_EMU_GENERIC) {
            shared_race(as->kind == MXA_EMU_ALLOC ? 17 : 7,
                        "shared memory overwritten while another thread reads it", old, as, at,
                        "read", "write", "the reader must arrive, and the writer wait, in between");
        } else {
            shared_race(7, "shared memory overwritten while a tensor core reads it", old, as, at,
                        "read", "write",
                        old->kind == MXA_EMU_WGMMA ? "wgmma.wait_group of the reader, then its "
                                                     "arrive"
                                                   : "wait for the commit of the reader");
        }
    }
}

/* Takes the place of a reader that is in order before, or of a random one. */
static void add_reader(cell *c, const mxa_emu_access *as, const mxa_emu_thread *viewer)
{
    for (int r = 0; r < READERS; r++) {
        if (c->reader[r].kind == MXA_EMU_NOTHING || c->reader[r].component == as->component ||
            mxa_emu_knows(viewer, c->reader[r].component, c->reader[r].clock)) {
            c->reader[r] = *as;
            return;
        }
    }
    c->reader[mxa_emu_random(READERS)] = *as;
}

static void touch_shared(cell *c, const mxa_emu_access *as, uint32_t at, int write,
                         mxa_emu_thread **views, int count)
{
    if (c->writer.kind == MXA_EMU_NOTHING) {
        if (!write) {
            char place[96];
            mxa_emu_shared_text(at, place, sizeof place);
            if (!is_generic(as->kind)) {
                mxa_emu_error(16, "shared memory read that was never written", as->site, 0,
                              "%s by %s", place, mxa_emu_kind_name(as->kind));
            } else if (mxa_emu_now->options.unwritten_reads) {
                mxa_emu_warn(16, "shared memory read that was never written", as->site, 0, "%s",
                             place);
            }
        }
    } else if (!keep_order(&c->writer, as)) {
        for (int v = 0; v < count; v++) {
            check_shared_writer(c, as, at, write, views[v]);
        }
    }
    if (!write) {
        add_reader(c, as, views[0]);
        return;
    }
    for (int v = 0; v < count; v++) {
        check_shared_readers(c, as, at, views[v]);
    }
    c->writer = *as;
    for (int r = 0; r < READERS; r++) {
        c->reader[r].kind = MXA_EMU_NOTHING;
    }
}

/* Bytes from..end-1 of a piece of `size` bytes at address `at`. */
static void touch_piece(struct mxa_emu_shadow *shadow, piece *p, uint32_t size,
                        const mxa_emu_access *as, uint32_t at, uint32_t from, uint32_t end,
                        int write, mxa_emu_thread **views, int count)
{
    if (from == 0 && end == size && (write || !p->parts)) {
        if (p->parts) { /* all of it is written: checked piece by piece, then one again */
            for (uint32_t i = 0; i < 4; i++) {
                touch_piece(shadow, &p->parts[i], size / 4, as, at + i * (size / 4), 0, size / 4,
                            write, views, count);
            }
            p->whole = p->parts[0].whole;
            p->parts = NULL;
            return;
        }
        touch_shared(&p->whole, as, at, write, views, count);
        return;
    }
    piece *parts = split(shadow, p, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t first = i * (size / 4), last = first + size / 4;
        const uint32_t low = from > first ? from : first, high = end < last ? end : last;
        if (low < high) {
            touch_piece(shadow, &parts[i], size / 4, as, at + first, low - first, high - first,
                        write, views, count);
        }
    }
}

void mxa_emu_check_shared(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write)
{
    mxa_emu_cta *cta = mxa_emu_cta_of(address);
    if (!mxa_emu_now->options.checks || !mxa_emu_shared(address, bytes, as->site)) {
        return;
    }
    mxa_emu_thread *one, **views;
    const int count = viewers(&views, &one);
    const uint32_t rank = address >> MXA_EMU_RANK_SHIFT << MXA_EMU_RANK_SHIFT;
    uint32_t offset = address - rank - MXA_EMU_SHARED_BASE;
    const uint32_t end = offset + bytes;
    while (offset < end) {
        const uint32_t base = offset / GRANULE * GRANULE;
        const uint32_t high = end - base < GRANULE ? end - base : GRANULE;
        touch_piece(cta->shadow, &cta->shadow->granule[base / GRANULE], GRANULE, as,
                    rank + MXA_EMU_SHARED_BASE + base, offset - base, high, write, views, count);
        offset = base + GRANULE;
    }
}

/* ---- tensor memory ---- */

static void tensor_race(int hazard, const char *title, const mxa_emu_access *old,
                        const mxa_emu_access *as, const mxa_emu_cta *cta, uint32_t lane,
                        uint32_t column, const char *was, const char *now, const char *hint)
{
    char place[96], by[96], before[96];
    mxa_emu_error(hazard, title, as->site, old->site,
                  "%s\n    now: %s (%s) by %s\n    was: %s (%s) by %s\n    hint: %s",
                  mxa_emu_tensor_text(cta, lane, column, place, sizeof place), now,
                  mxa_emu_kind_name(as->kind), mxa_emu_thread_text(as->thread, by, sizeof by), was,
                  mxa_emu_kind_name(old->kind),
                  mxa_emu_thread_text(old->thread, before, sizeof before), hint);
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

static void touch_tensor(cell *c, const mxa_emu_access *as, const mxa_emu_cta *cta, uint32_t lane,
                         uint32_t column, int write, mxa_emu_thread **views, int count)
{
    if (c->writer.kind == MXA_EMU_NOTHING && !write) {
        char place[96];
        mxa_emu_error(16, "tensor memory read that was never written", as->site, 0, "%s by %s",
                      mxa_emu_tensor_text(cta, lane, column, place, sizeof place),
                      mxa_emu_kind_name(as->kind));
    }
    for (int v = 0; v < count; v++) {
        const uint32_t *after = views[v]->tensor->at;
        if (c->writer.kind != MXA_EMU_NOTHING && after[c->writer.component] < c->writer.clock &&
            !keep_order(&c->writer, as)) {
            unordered(&c->writer, as, cta, lane, column, "write", write, views[v]);
        }
        for (int r = 0; write && r < READERS; r++) {
            const mxa_emu_access *old = &c->reader[r];
            const int same = old->component == as->component && old->clock == as->clock;
            if (old->kind != MXA_EMU_NOTHING && !same && after[old->component] < old->clock &&
                !keep_order(old, as)) {
                unordered(old, as, cta, lane, column, "read", write, views[v]);
            }
        }
    }
    if (!write) {
        add_reader(c, as, views[0]);
        return;
    }
    c->writer = *as;
    for (int r = 0; r < READERS; r++) {
        c->reader[r].kind = MXA_EMU_NOTHING;
    }
}

void mxa_emu_check_tmem(mxa_emu_cta *cta, const mxa_emu_access *as, uint32_t halves,
                        uint32_t column, uint32_t columns, int write)
{
    struct mxa_emu_shadow *shadow = cta->shadow;
    mxa_emu_thread *one, **views;
    const int count = viewers(&views, &one);
    mxa_emu_trace_columns(as, column, columns);
    for (uint32_t i = column; i < column + columns; i++) {
        if (i >= MXA_EMU_TMEM_COLUMNS || !shadow->allocated[i]) {
            mxa_emu_error(13, "tensor memory outside of the allocation", as->site, 0,
                          "columns %u to %u by %s; column %u is not allocated", column,
                          column + columns - 1, mxa_emu_kind_name(as->kind), i);
            return;
        }
    }
    if (!mxa_emu_now->options.checks) {
        return;
    }
    for (uint32_t q = 0; q < QUARTERS; q++) {
        const uint32_t both = halves >> (2 * q) & 3;
        for (uint32_t i = column; both && i < column + columns; i++) {
            piece *p = &shadow->tensor[q][i];
            if (both == 3 && !p->parts) {
                touch_tensor(&p->whole, as, cta, 32 * q, i, write, views, count);
                continue;
            }
            piece *parts = split(shadow, p, 2);
            for (uint32_t h = 0; h < 2; h++) {
                if (both >> h & 1) {
                    touch_tensor(&parts[h].whole, as, cta, 32 * q + 16 * h, i, write, views, count);
                }
            }
        }
    }
}

void mxa_emu_tmem_allocated(mxa_emu_cta *cta, uint32_t column, uint32_t columns)
{
    cta->shadow->tensor_used = 1;
    for (uint32_t i = column; i < column + columns && i < MXA_EMU_TMEM_COLUMNS; i++) {
        cta->shadow->allocated[i] = 1;
        for (uint32_t q = 0; q < QUARTERS; q++) {
            memset(&cta->shadow->tensor[q][i], 0, sizeof cta->shadow->tensor[q][i]);
        }
        for (uint32_t lane = 0; lane < MXA_EMU_TMEM_LANES; lane++) {
            cta->tmem[lane][i] = MXA_EMU_POISON;
        }
    }
}

/* A piece that is freed: whoever touched it last must be known to have finished. */
static int still_in_use(const cell *c, const mxa_emu_thread *viewer, const mxa_emu_access **by)
{
    if (c->writer.kind != MXA_EMU_NOTHING &&
        !mxa_emu_knows(viewer, c->writer.component, c->writer.clock)) {
        *by = &c->writer;
        return 1;
    }
    for (int r = 0; r < READERS; r++) {
        if (c->reader[r].kind != MXA_EMU_NOTHING &&
            !mxa_emu_knows(viewer, c->reader[r].component, c->reader[r].clock)) {
            *by = &c->reader[r];
            return 1;
        }
    }
    return 0;
}

static void check_freed(mxa_emu_cta *cta, uint32_t quarter, uint32_t column)
{
    const piece *p = &cta->shadow->tensor[quarter][column];
    const mxa_emu_meeting *meeting = mxa_emu_now->thread->warp->meeting;
    const mxa_emu_access *by;
    mxa_emu_thread *one, **views;
    const int count = viewers(&views, &one);
    for (int v = 0; v < count; v++) {
        for (int part = 0; part < (p->parts ? 2 : 1); part++) {
            const cell *c = p->parts ? &p->parts[part].whole : &p->whole;
            char place[96];
            if (still_in_use(c, views[v], &by)) {
                mxa_emu_error(18, "tensor memory freed while in use", meeting->site, by->site,
                              "%s, last by %s; its completion must be known to the warp that frees",
                              mxa_emu_tensor_text(cta, 32 * quarter, column, place, sizeof place),
                              mxa_emu_kind_name(by->kind));
            }
        }
    }
}

void mxa_emu_tmem_freed(mxa_emu_cta *cta, uint32_t column, uint32_t columns)
{
    for (uint32_t i = column; i < column + columns && i < MXA_EMU_TMEM_COLUMNS; i++) {
        cta->shadow->allocated[i] = 0;
        for (uint32_t q = 0; q < QUARTERS && mxa_emu_now->options.checks; q++) {
            check_freed(cta, q, i);
        }
    }
}

int mxa_emu_tmem_columns(const mxa_emu_cta *cta)
{
    int count = 0;
    for (uint32_t i = 0; i < MXA_EMU_TMEM_COLUMNS; i++) {
        count += cta->shadow->allocated[i];
    }
    return count;
}
