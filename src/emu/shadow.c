/* shadow.c: who last wrote and read each piece of shared and tensor memory, and whether the next
 * access comes after it.
 *
 * Checked when an operation is issued: what it will touch must already be in order then. Memory is
 * kept in blocks of 64 units: 16 bytes of shared memory, or a column of a quarter (32 lanes) of
 * tensor memory. What tensor cores and copies do to a block is a few records with sets of units;
 * what threads do, unit by unit, splits it into cells, and their partial accesses split those: 16
 * bytes into words and bytes, 32 lanes into halves. A write of the whole joins a block again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/shadow.h"
#include "emu/stale.h"

#include <string.h>

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

static void forget(block *b)
{
    b->pieces = NULL;
    b->writes = b->reads = 0;
}

void mxa_emu_shadow_begin(mxa_emu_cta *cta)
{
    struct mxa_emu_shadow *shadow = cta->shadow;
    for (int i = 0; i < shadow->blocks_used; i++) {
        forget(&shadow->shared[i]);
    }
    shadow->blocks_used =
        (int)((cta->shared_end - MXA_EMU_SHARED_BASE + BLOCK_BYTES - 1) / BLOCK_BYTES);
    if (shadow->tensor_used) {
        for (int i = 0; i < QUARTERS * GROUPS; i++) {
            forget(&shadow->tensor[i / GROUPS][i % GROUPS]);
        }
        memset(shadow->allocated, 0, sizeof shadow->allocated);
    }
    shadow->tensor_used = 0;
    shadow->sheet = shadow->sheets;
    shadow->sheet_used = 0;
    shadow->free_four = shadow->free_block = NULL;
}

/* 4 or UNITS pieces (halves take two of four), not cleared. */
static piece *take_pieces(struct mxa_emu_shadow *shadow, int count)
{
    piece **list = count == UNITS ? &shadow->free_block : &shadow->free_four;
    if (*list) {
        piece *first = *list;
        *list = first->parts;
        return first;
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
    shadow->sheet_used += count;
    return &shadow->sheet->pieces[shadow->sheet_used - count];
}

static void put_back(struct mxa_emu_shadow *shadow, piece *pieces, int count)
{
    piece **list = count == UNITS ? &shadow->free_block : &shadow->free_four;
    pieces->parts = *list;
    *list = pieces;
}

/* Splits a piece into `count` equal ones. */
static piece *split(struct mxa_emu_shadow *shadow, piece *p, int count)
{
    if (!p->parts) {
        p->parts = take_pieces(shadow, 4);
        for (int i = 0; i < count; i++) {
            p->parts[i].whole = p->whole;
            p->parts[i].parts = NULL;
        }
    }
    return p->parts;
}

static void keep_reader(cell *c, const mxa_emu_access *as)
{
    int r = 0;
    while (r < READERS && c->reader[r].kind != MXA_EMU_NOTHING) {
        r++;
    }
    c->reader[r < READERS ? r : (int)mxa_emu_random(READERS)] = *as;
}

piece *mxa_emu_split_block(struct mxa_emu_shadow *shadow, block *b)
{
    if (b->pieces) {
        return b->pieces;
    }
    piece *p = b->pieces = take_pieces(shadow, UNITS);
    memset(p, 0, UNITS * sizeof *p);
    for (int i = 0; i < b->writes; i++) {
        for (uint64_t rest = b->write[i].units; rest; rest &= rest - 1) {
            p[__builtin_ctzll(rest)].whole.writer = b->write[i].as;
        }
    }
    for (int i = 0; i < b->reads; i++) {
        for (uint64_t rest = b->read[i].units; rest; rest &= rest - 1) {
            keep_reader(&p[__builtin_ctzll(rest)].whole, &b->read[i].as);
        }
    }
    return p;
}

/* All units are written: one record says it. */
static void join_block(struct mxa_emu_shadow *shadow, block *b, const mxa_emu_access *as)
{
    for (int i = 0; b->pieces && i < UNITS; i++) {
        if (b->pieces[i].parts) {
            put_back(shadow, b->pieces[i].parts, 4);
        }
    }
    if (b->pieces) {
        put_back(shadow, b->pieces, UNITS);
    }
    b->pieces = NULL;
    b->reads = 0;
    b->writes = 1;
    b->write[0].as = *as;
    b->write[0].units = ~(uint64_t)0;
}

/* ---- order ---- */

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

static inline int after_write(const touch *t, const mxa_emu_access *old,
                              const mxa_emu_thread *viewer)
{
    if (t->place.tensor) {
        return viewer->tensor->at[old->component] >= old->clock;
    }
    if (!mxa_emu_at_least(viewer, old)) {
        return 0;
    }
    if (mxa_emu_is_async(t->as->kind) && mxa_emu_is_generic(old->kind)) {
        const uint32_t fenced = old->component == viewer->component
                                    ? viewer->own_proxy
                                    : viewer->proxy->at[old->component];
        return fenced >= old->clock;
    }
    return !(old->kind == MXA_EMU_MBARRIER && t->write && mxa_emu_is_generic(t->as->kind));
}

static inline int after_read(const touch *t, const mxa_emu_access *old,
                             const mxa_emu_thread *viewer)
{
    if (!t->place.tensor) {
        return mxa_emu_at_least(viewer, old);
    }
    const int same = old->component == t->as->component && old->clock == t->as->clock;
    return same || viewer->tensor->at[old->component] >= old->clock || keep_order(old, t->as);
}

/* The place of a unit, for a report. */
static mxa_emu_place place_of(const touch *t, int unit)
{
    mxa_emu_place place = t->place;
    if (place.tensor) {
        place.column += (uint32_t)unit;
    } else {
        place.at += (uint32_t)unit * UNIT_BYTES;
    }
    return place;
}

static void check_write(const touch *t, const mxa_emu_access *old, int unit)
{
    for (int v = 0; v < t->count; v++) {
        if (!after_write(t, old, t->views[v]) && !keep_order(old, t->as)) {
            const mxa_emu_place place = place_of(t, unit);
            mxa_emu_rule_after_write(&place, old, t->as, t->write, t->views[v]);
        }
    }
}

static void check_read(const touch *t, const mxa_emu_access *old, int unit)
{
    for (int v = 0; v < t->count; v++) {
        if (!after_read(t, old, t->views[v])) {
            const mxa_emu_place place = place_of(t, unit);
            mxa_emu_rule_after_read(&place, old, t->as, t->views[v]);
        }
    }
}

static void unwritten(const touch *t, int unit)
{
    const mxa_emu_place place = place_of(t, unit);
    mxa_emu_rule_unwritten(&place, t->as);
}

/* ---- cells: what threads touch ---- */

/* Takes the place of a reader that is in order before, or of a random one. */
static void add_reader(cell *c, const touch *t)
{
    for (int r = 0; r < READERS; r++) {
        if (c->reader[r].kind == MXA_EMU_NOTHING || c->reader[r].component == t->as->component ||
            mxa_emu_at_least(t->views[0], &c->reader[r])) {
            c->reader[r] = *t->as;
            return;
        }
    }
    c->reader[mxa_emu_random(READERS)] = *t->as;
}

static void touch_cell(cell *c, const touch *t, int unit)
{
    if (c->writer.kind != MXA_EMU_NOTHING) {
        check_write(t, &c->writer, unit);
    } else if (!t->write) {
        unwritten(t, unit);
    }
    if (!t->write) {
        add_reader(c, t);
        return;
    }
    for (int r = 0; r < READERS; r++) {
        if (c->reader[r].kind != MXA_EMU_NOTHING) {
            check_read(t, &c->reader[r], unit);
            c->reader[r].kind = MXA_EMU_NOTHING;
        }
    }
    c->writer = *t->as;
}

/* Bytes from..end-1 of a piece of `size` bytes. */
static void touch_piece(piece *p, const touch *t, int unit, uint32_t size, uint32_t from,
                        uint32_t end)
{
    if (from == 0 && end == size && (t->write || !p->parts)) {
        if (p->parts) { /* all of it is written: checked piece by piece, then one again */
            for (uint32_t i = 0; i < 4; i++) {
                touch_piece(&p->parts[i], t, unit, size / 4, 0, size / 4);
            }
            p->whole = p->parts[0].whole;
            put_back(t->shadow, p->parts, 4);
            p->parts = NULL;
            return;
        }
        touch_cell(&p->whole, t, unit);
        return;
    }
    piece *parts = split(t->shadow, p, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t first = i * (size / 4), last = first + size / 4;
        const uint32_t low = from > first ? from : first, high = end < last ? end : last;
        if (low < high) {
            touch_piece(&parts[i], t, unit, size / 4, low - first, high - first);
        }
    }
}

void mxa_emu_touch_halves(piece *p, const touch *t, int unit, uint32_t halves)
{
    if (halves == 3 && !p->parts) {
        touch_cell(&p->whole, t, unit);
        return;
    }
    piece *parts = split(t->shadow, p, 2);
    for (uint32_t h = 0; h < 2; h++) {
        if (halves >> h & 1) {
            touch_cell(&parts[h].whole, t, unit);
        }
    }
}

static void touch_unit(piece *p, const touch *t, int unit)
{
    if (t->place.tensor) {
        mxa_emu_touch_halves(p, t, unit, 3);
    } else {
        touch_piece(p, t, unit, UNIT_BYTES, 0, UNIT_BYTES);
    }
}

/* ---- records: what asynchronous agents touch ---- */

static int same_access(const mxa_emu_access *a, const mxa_emu_access *b)
{
    return a->component == b->component && a->clock == b->clock && a->site == b->site &&
           a->kind == b->kind;
}

/* Takes `units` away from records, those that `gone` says 1 for. */
static void take_away(record *records, int *count, uint64_t units, const touch *t)
{
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        const mxa_emu_access *old = &records[i].as;
        if (t->write || old->component == t->as->component || mxa_emu_at_least(t->views[0], old)) {
            records[i].units &= ~units;
        }
        if (records[i].units) {
            records[kept++] = records[i];
        }
    }
    *count = kept;
}

/* 0: no record is left for it. */
static int add_record(record *records, int *count, uint64_t units, const touch *t)
{
    for (int i = 0; i < *count; i++) {
        if (same_access(&records[i].as, t->as)) {
            records[i].units |= units;
            return 1;
        }
    }
    if (*count == RECORDS) {
        return 0;
    }
    records[*count].as = *t->as;
    records[(*count)++].units = units;
    return 1;
}

void mxa_emu_touch_block(block *b, uint64_t units, const touch *t)
{
    if (!b->pieces) {
        uint64_t written = 0;
        for (int i = 0; i < b->writes; i++) {
            const uint64_t both = b->write[i].units & units;
            if (both) {
                check_write(t, &b->write[i].as, __builtin_ctzll(both));
                written |= both;
            }
        }
        if (!t->write && units & ~written) {
            unwritten(t, __builtin_ctzll(units & ~written));
        }
        for (int i = 0; t->write && i < b->reads; i++) {
            const uint64_t both = b->read[i].units & units;
            if (both) {
                check_read(t, &b->read[i].as, __builtin_ctzll(both));
            }
        }
        take_away(b->read, &b->reads, units, t);
        if (!t->write) {
            if (add_record(b->read, &b->reads, units, t)) {
                return;
            }
        } else {
            take_away(b->write, &b->writes, units, t);
            if (add_record(b->write, &b->writes, units, t)) {
                return;
            }
        }
        piece *pieces = mxa_emu_split_block(t->shadow, b);
        for (uint64_t rest = units; rest; rest &= rest - 1) {
            cell *c = &pieces[__builtin_ctzll(rest)].whole;
            if (t->write) {
                c->writer = *t->as;
            } else {
                keep_reader(c, t->as);
            }
        }
        return;
    }
    for (uint64_t rest = units; rest; rest &= rest - 1) {
        const int unit = __builtin_ctzll(rest);
        touch_unit(&b->pieces[unit], t, unit);
    }
    if (t->write && units == ~(uint64_t)0) {
        join_block(t->shadow, b, t->as);
    }
}

void mxa_emu_touch_begin(touch *t, mxa_emu_cta *cta, const mxa_emu_access *as, int write)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    t->shadow = cta->shadow;
    t->place.cta = cta;
    t->place.tensor = 0;
    t->place.at = t->place.column = 0;
    t->as = as;
    t->write = write;
    t->one = mxa_emu_now->thread;
    t->views = engine->viewers_count ? engine->viewers : &t->one;
    t->count = engine->viewers_count ? engine->viewers_count : 1;
}

void mxa_emu_check_shared(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write)
{
    mxa_emu_cta *cta = mxa_emu_cta_of(address);
    if (!mxa_emu_now->options.checks || !mxa_emu_shared(address, bytes, as->site)) {
        return;
    }
    touch t;
    mxa_emu_touch_begin(&t, cta, as, write);
    const uint32_t rank = address >> MXA_EMU_RANK_SHIFT << MXA_EMU_RANK_SHIFT;
    uint32_t offset = address - rank - MXA_EMU_SHARED_BASE;
    const uint32_t end = offset + bytes;
    const int of_thread = !mxa_emu_is_async(as->kind);
    if (cta->stale_units && !of_thread) {
        mxa_emu_stale_forget(cta, offset, bytes);
    }
    while (offset < end) {
        block *b = &cta->shadow->shared[offset / BLOCK_BYTES];
        const uint32_t base = offset / BLOCK_BYTES * BLOCK_BYTES, in = offset - base;
        const uint32_t high = end - base < BLOCK_BYTES ? end - base : BLOCK_BYTES;
        t.place.at = rank + MXA_EMU_SHARED_BASE + base;
        if (of_thread || in % UNIT_BYTES || high % UNIT_BYTES) {
            piece *pieces = mxa_emu_split_block(cta->shadow, b);
            for (uint32_t at = in; at < high; at = at / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES) {
                const uint32_t unit = at / UNIT_BYTES, first = at % UNIT_BYTES;
                const uint32_t left = high - unit * UNIT_BYTES;
                touch_piece(&pieces[unit], &t, (int)unit, UNIT_BYTES, first,
                            left < UNIT_BYTES ? left : UNIT_BYTES);
            }
        } else {
            mxa_emu_touch_block(b, mxa_emu_some_units(in / UNIT_BYTES, (high - in) / UNIT_BYTES),
                                &t);
        }
        offset = base + high;
    }
}

void mxa_emu_check_own(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write)
{
    if (!mxa_emu_now->options.checks) {
        return;
    }
    touch t;
    mxa_emu_cta *cta = mxa_emu_now->thread->cta;
    const uint32_t at = (address & ((1u << MXA_EMU_RANK_SHIFT) - 1)) - MXA_EMU_SHARED_BASE;
    const uint32_t unit = at % BLOCK_BYTES / UNIT_BYTES, first = at % UNIT_BYTES;
    piece *p = &mxa_emu_split_block(cta->shadow, &cta->shadow->shared[at / BLOCK_BYTES])[unit];
    mxa_emu_touch_begin(&t, cta, as, write);
    t.place.at = address / BLOCK_BYTES * BLOCK_BYTES;
    if (bytes == UNIT_BYTES && !p->parts) {
        touch_cell(&p->whole, &t, (int)unit);
    } else {
        touch_piece(p, &t, (int)unit, UNIT_BYTES, first, first + bytes);
    }
}

void mxa_emu_check_units(const mxa_emu_access *as, uint32_t block_address, uint64_t units,
                         int write)
{
    mxa_emu_cta *cta = mxa_emu_cta_of(block_address);
    const uint32_t at = block_address & ((1u << MXA_EMU_RANK_SHIFT) - 1);
    const uint32_t first = (uint32_t)__builtin_ctzll(units) * UNIT_BYTES;
    const uint32_t end = BLOCK_BYTES - (uint32_t)__builtin_clzll(units) * UNIT_BYTES;
    if (!mxa_emu_now->options.checks ||
        !mxa_emu_shared(block_address + first, end - first, as->site)) {
        return;
    }
    for (uint64_t rest = cta->stale_units ? units : 0; rest; rest &= rest - 1) {
        const uint32_t in = (uint32_t)__builtin_ctzll(rest) * UNIT_BYTES;
        mxa_emu_stale_forget(cta, at - MXA_EMU_SHARED_BASE + in, UNIT_BYTES);
    }
    touch t;
    mxa_emu_touch_begin(&t, cta, as, write);
    t.place.at = block_address;
    mxa_emu_touch_block(&cta->shadow->shared[(at - MXA_EMU_SHARED_BASE) / BLOCK_BYTES], units, &t);
}
