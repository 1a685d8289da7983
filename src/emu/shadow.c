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
#include "emu/trace.h"

#include <string.h>

enum {
    READERS = 4,
    UNIT_BYTES = 16,
    UNITS = 64,
    BLOCK_BYTES = UNITS * UNIT_BYTES,
    BLOCKS = MXA_EMU_SHARED_BYTES / BLOCK_BYTES,
    QUARTERS = 4,
    GROUPS = MXA_EMU_TMEM_COLUMNS / UNITS,
    RECORDS = 8
};

_Static_assert(MXA_EMU_SHARED_BYTES % BLOCK_BYTES == 0, "whole blocks");

typedef struct cell {
    mxa_emu_access writer, reader[READERS];
} cell;

/* A unit that is one cell, or several: then `parts` has them. */
typedef struct piece {
    cell whole;
    struct piece *parts;
} piece;

typedef struct record {
    mxa_emu_access as;
    uint64_t units;
} record;

typedef struct block {
    piece *pieces; /* one for each unit; NULL: the records say all */
    int writes, reads;
    record write[RECORDS], read[RECORDS];
} block;

/* Pieces are cut from sheets that live as long as the shadow; those that are free form lists. */
enum { SHEET_PIECES = 16 * UNITS };
typedef struct sheet {
    struct sheet *next;
    piece pieces[SHEET_PIECES];
} sheet;

struct mxa_emu_shadow {
    block shared[BLOCKS];
    block tensor[QUARTERS][GROUPS];
    uint8_t allocated[MXA_EMU_TMEM_COLUMNS];
    int tensor_used;
    int blocks_used;
    sheet *sheets, *sheet;
    int sheet_used;
    piece *free_four, *free_block; /* linked through the first one's parts */
};

/* Where an access goes: unit i of a block is at place + i. */
typedef struct touch {
    struct mxa_emu_shadow *shadow;
    mxa_emu_place place; /* of the block's first unit */
    const mxa_emu_access *as;
    int write;
    mxa_emu_thread **views; /* whose clocks it is held against */
    int count;
    mxa_emu_thread *one;
} touch;

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

/* The records of a block as cells. */
static piece *split_block(struct mxa_emu_shadow *shadow, block *b)
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

static inline int knows(const mxa_emu_thread *viewer, const mxa_emu_access *old)
{
    return old->component == viewer->component || viewer->known->at[old->component] >= old->clock;
}

static inline int after_write(const touch *t, const mxa_emu_access *old,
                              const mxa_emu_thread *viewer)
{
    if (t->place.tensor) {
        return viewer->tensor->at[old->component] >= old->clock;
    }
    if (!knows(viewer, old)) {
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
        return knows(viewer, old);
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
            knows(t->views[0], &c->reader[r])) {
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

/* Lanes of a column of a quarter: both halves (3), or one. */
static void touch_halves(piece *p, const touch *t, int unit, uint32_t halves)
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
        touch_halves(p, t, unit, 3);
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
        if (t->write || old->component == t->as->component || knows(t->views[0], old)) {
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

static void touch_block(block *b, uint64_t units, const touch *t)
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
        piece *pieces = split_block(t->shadow, b);
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

/* Who and what touches a CTA's memory; those whose clocks it is held against. */
static void begin_touch(touch *t, mxa_emu_cta *cta, const mxa_emu_access *as, int write)
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

/* Units first..first+count-1. */
static uint64_t some_units(uint32_t first, uint32_t count)
{
    return (count >= UNITS ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << first;
}

void mxa_emu_check_shared(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write)
{
    mxa_emu_cta *cta = mxa_emu_cta_of(address);
    if (!mxa_emu_now->options.checks || !mxa_emu_shared(address, bytes, as->site)) {
        return;
    }
    touch t;
    begin_touch(&t, cta, as, write);
    const uint32_t rank = address >> MXA_EMU_RANK_SHIFT << MXA_EMU_RANK_SHIFT;
    uint32_t offset = address - rank - MXA_EMU_SHARED_BASE;
    const uint32_t end = offset + bytes;
    const int of_thread = !mxa_emu_is_async(as->kind);
    while (offset < end) {
        block *b = &cta->shadow->shared[offset / BLOCK_BYTES];
        const uint32_t base = offset / BLOCK_BYTES * BLOCK_BYTES, in = offset - base;
        const uint32_t high = end - base < BLOCK_BYTES ? end - base : BLOCK_BYTES;
        t.place.at = rank + MXA_EMU_SHARED_BASE + base;
        if (of_thread || in % UNIT_BYTES || high % UNIT_BYTES) {
            piece *pieces = split_block(cta->shadow, b);
            for (uint32_t at = in; at < high; at = at / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES) {
                const uint32_t unit = at / UNIT_BYTES, first = at % UNIT_BYTES;
                const uint32_t left = high - unit * UNIT_BYTES;
                touch_piece(&pieces[unit], &t, (int)unit, UNIT_BYTES, first,
                            left < UNIT_BYTES ? left : UNIT_BYTES);
            }
        } else {
            touch_block(b, some_units(in / UNIT_BYTES, (high - in) / UNIT_BYTES), &t);
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
    begin_touch(&t, cta, as, write);
    t.place.at = address / BLOCK_BYTES * BLOCK_BYTES;
    piece *p = &split_block(cta->shadow, &cta->shadow->shared[at / BLOCK_BYTES])[unit];
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
    touch t;
    begin_touch(&t, cta, as, write);
    t.place.at = block_address;
    touch_block(&cta->shadow->shared[(at - MXA_EMU_SHARED_BASE) / BLOCK_BYTES], units, &t);
}

/* ---- tensor memory ---- */

void mxa_emu_check_tmem(mxa_emu_cta *cta, const mxa_emu_access *as, uint32_t halves,
                        uint32_t column, uint32_t columns, int write)
{
    struct mxa_emu_shadow *shadow = cta->shadow;
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
    touch t;
    begin_touch(&t, cta, as, write);
    t.place.tensor = 1;
    for (uint32_t q = 0; q < QUARTERS; q++) {
        const uint32_t both = halves >> (2 * q) & 3;
        for (uint32_t at = column; both && at < column + columns;) {
            const uint32_t group = at / UNITS, first = at % UNITS;
            const uint32_t left = column + columns - at, room = UNITS - first;
            const uint64_t units = some_units(first, left < room ? left : room);
            block *b = &shadow->tensor[q][group];
            t.place.at = 32 * q + (both == 2 ? 16 : 0);
            t.place.column = group * UNITS;
            if (both == 3) {
                touch_block(b, units, &t);
            } else {
                piece *pieces = split_block(shadow, b);
                for (uint64_t rest = units; rest; rest &= rest - 1) {
                    const int unit = __builtin_ctzll(rest);
                    touch_halves(&pieces[unit], &t, unit, both);
                }
            }
            at += left < room ? left : room;
        }
    }
}

/* Columns are forgotten; what they held is poison. */
void mxa_emu_tmem_allocated(mxa_emu_cta *cta, uint32_t column, uint32_t columns)
{
    struct mxa_emu_shadow *shadow = cta->shadow;
    const uint32_t end =
        column + columns < MXA_EMU_TMEM_COLUMNS ? column + columns : MXA_EMU_TMEM_COLUMNS;
    shadow->tensor_used = 1;
    for (uint32_t i = column; i < end; i++) {
        shadow->allocated[i] = 1;
        for (uint32_t q = 0; q < QUARTERS; q++) {
            block *b = &shadow->tensor[q][i / UNITS];
            const uint64_t others = ~((uint64_t)1 << i % UNITS);
            for (int r = 0; r < RECORDS; r++) {
                b->write[r].units &= others;
                b->read[r].units &= others;
            }
            if (b->pieces) {
                memset(&b->pieces[i % UNITS], 0, sizeof b->pieces[0]);
            }
        }
    }
    for (uint32_t lane = 0; lane < MXA_EMU_TMEM_LANES; lane++) {
        for (uint32_t i = column; i < end; i++) {
            cta->tmem[lane][i] = MXA_EMU_POISON;
        }
    }
}

/* An access to what is freed must be known to have finished. */
static void check_freed(mxa_emu_cta *cta, uint32_t lane, uint32_t column,
                        const mxa_emu_access *last, const mxa_emu_thread *viewer)
{
    char place[96];
    if (last->kind != MXA_EMU_NOTHING && !mxa_emu_knows(viewer, last->component, last->clock)) {
        mxa_emu_error(18, "tensor memory freed while in use",
                      mxa_emu_now->thread->warp->meeting->site, last->site,
                      "%s, last by %s; its completion must be known to the warp that frees",
                      mxa_emu_tensor_text(cta, lane, column, place, sizeof place),
                      mxa_emu_kind_name(last->kind));
    }
}

static void free_column(mxa_emu_cta *cta, uint32_t quarter, uint32_t column)
{
    touch t;
    const mxa_emu_access none = {0};
    const block *b = &cta->shadow->tensor[quarter][column / UNITS];
    const uint64_t unit = (uint64_t)1 << column % UNITS;
    begin_touch(&t, cta, &none, 1);
    for (int v = 0; v < t.count; v++) {
        for (int i = 0; !b->pieces && i < b->writes; i++) {
            if (b->write[i].units & unit) {
                check_freed(cta, 32 * quarter, column, &b->write[i].as, t.views[v]);
            }
        }
        for (int i = 0; !b->pieces && i < b->reads; i++) {
            if (b->read[i].units & unit) {
                check_freed(cta, 32 * quarter, column, &b->read[i].as, t.views[v]);
            }
        }
        const piece *p = b->pieces ? &b->pieces[column % UNITS] : NULL;
        for (int part = 0; p && part < (p->parts ? 2 : 1); part++) {
            const cell *c = p->parts ? &p->parts[part].whole : &p->whole;
            check_freed(cta, 32 * quarter + 16 * (uint32_t)part, column, &c->writer, t.views[v]);
            for (int r = 0; r < READERS; r++) {
                check_freed(cta, 32 * quarter + 16 * (uint32_t)part, column, &c->reader[r],
                            t.views[v]);
            }
        }
    }
}

void mxa_emu_tmem_freed(mxa_emu_cta *cta, uint32_t column, uint32_t columns)
{
    for (uint32_t i = column; i < column + columns && i < MXA_EMU_TMEM_COLUMNS; i++) {
        cta->shadow->allocated[i] = 0;
        for (uint32_t q = 0; q < QUARTERS && mxa_emu_now->options.checks; q++) {
            free_column(cta, q, i);
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
