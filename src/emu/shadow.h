/* shadow.h: what shadow memory and its rules share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_SHADOW_H
#define MXA_EMU_SHADOW_H

#include "emu/engine.h"

/* A piece of memory that a report names. */
typedef struct mxa_emu_place {
    const mxa_emu_cta *cta;
    int tensor;      /* 1: tensor memory */
    uint32_t at;     /* address, with rank; tensor memory: lane */
    uint32_t column; /* of tensor memory */
} mxa_emu_place;

enum {
    READERS = 4, /* remembered of each cell */
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

/* Units first..first+count-1. */
static inline uint64_t mxa_emu_some_units(uint32_t first, uint32_t count)
{
    return (count >= UNITS ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << first;
}

/* Who and what touches a CTA's memory; those whose clocks it is held against. */
void mxa_emu_touch_begin(touch *t, mxa_emu_cta *cta, const mxa_emu_access *as, int write);
/* Units of a block. */
void mxa_emu_touch_block(block *b, uint64_t units, const touch *t);
/* The records of a block as cells. */
piece *mxa_emu_split_block(struct mxa_emu_shadow *shadow, block *b);
/* Lanes of a column of a quarter: both halves (3), or one. */
void mxa_emu_touch_halves(piece *p, const touch *t, int unit, uint32_t halves);

/* mxa_emu_knows, of an access. */
static inline int mxa_emu_at_least(const mxa_emu_thread *viewer, const mxa_emu_access *old)
{
    return old->component == viewer->component || viewer->known->at[old->component] >= old->clock;
}

/* A thread's load or store. WHY field by field: to copy the whole after its parts were written
 * waits until they are in memory. */
static inline void mxa_emu_set_generic(mxa_emu_access *as, const mxa_emu_thread *thread,
                                       mxa_emu_site site)
{
    as->clock = thread->own;
    as->component = thread->component;
    as->thread = thread->component;
    as->site = site;
    as->kind = MXA_EMU_GENERIC;
}

/* What mostly happens to a cell that a thread loads or stores: touch_cell's outcome where all is in
 * order, and nobody's place has to be looked for; 0 where not, and nothing has been done. */
static inline int mxa_emu_touch_in_order(cell *c, const mxa_emu_thread *thread, mxa_emu_site site,
                                         int write)
{
    if (c->writer.kind == MXA_EMU_NOTHING
            ? !write
            : c->writer.kind == MXA_EMU_MBARRIER || !mxa_emu_at_least(thread, &c->writer)) {
        return 0;
    }
    for (int r = 0; r < (write ? READERS : 1); r++) {
        if (c->reader[r].kind != MXA_EMU_NOTHING && !mxa_emu_at_least(thread, &c->reader[r])) {
            return 0;
        }
    }
    if (!write) {
        mxa_emu_set_generic(&c->reader[0], thread, site);
        return 1;
    }
    for (int r = 0; r < READERS; r++) {
        c->reader[r].kind = MXA_EMU_NOTHING;
    }
    mxa_emu_set_generic(&c->writer, thread, site);
    return 1;
}

/* The same for bytes of a CTA's own memory, at an offset that is a multiple of them. */
static inline int mxa_emu_own_in_order(const mxa_emu_thread *thread, mxa_emu_site site,
                                       uint32_t offset, uint32_t bytes, int write)
{
    const block *b = &thread->cta->shadow->shared[offset / BLOCK_BYTES];
    if (!b->pieces) {
        return 0;
    }
    piece *p = &b->pieces[offset % BLOCK_BYTES / UNIT_BYTES];
    if (!p->parts) {
        return bytes == UNIT_BYTES && mxa_emu_touch_in_order(&p->whole, thread, site, write);
    }
    if (bytes < UNIT_BYTES / 4 || (write && bytes == UNIT_BYTES)) {
        return 0; /* parts have parts, or become one again */
    }
    p = &p->parts[offset % UNIT_BYTES / (UNIT_BYTES / 4)];
    for (uint32_t i = 0; i < bytes / (UNIT_BYTES / 4); i++) {
        if (p[i].parts || !mxa_emu_touch_in_order(&p[i].whole, thread, site, write)) {
            return 0; /* those before it once more, in full, change nothing */
        }
    }
    return 1;
}

/* Kinds as sets of bits: accesses of the asynchronous proxy, and of threads' loads and stores. */
static inline int mxa_emu_is_async(int kind)
{
    const uint32_t set = 1u << MXA_EMU_TMA_LOAD | 1u << MXA_EMU_TMA_STORE | 1u << MXA_EMU_CANCEL |
                         1u << MXA_EMU_WGMMA | 1u << MXA_EMU_MMA | 1u << MXA_EMU_COPY;
    return (int)(set >> kind & 1);
}

static inline int mxa_emu_is_generic(int kind)
{
    const uint32_t set = 1u << MXA_EMU_GENERIC | 1u << MXA_EMU_ATOMIC | 1u << MXA_EMU_ALLOC;
    return (int)(set >> kind & 1);
}

/* Reports of an access `as` that is not in order after the write, or the read, `old`; of a read of
 * what nobody wrote. */
void mxa_emu_rule_after_write(const mxa_emu_place *place, const mxa_emu_access *old,
                              const mxa_emu_access *as, int write, const mxa_emu_thread *viewer);
void mxa_emu_rule_after_read(const mxa_emu_place *place, const mxa_emu_access *old,
                             const mxa_emu_access *as, const mxa_emu_thread *viewer);
void mxa_emu_rule_unwritten(const mxa_emu_place *place, const mxa_emu_access *as);

#endif
