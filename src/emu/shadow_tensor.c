/* shadow_tensor.c: who touches which columns of tensor memory, and what is allocated of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/shadow.h"
#include "emu/trace.h"

#include <string.h>

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
    mxa_emu_touch_begin(&t, cta, as, write);
    t.place.tensor = 1;
    for (uint32_t q = 0; q < QUARTERS; q++) {
        const uint32_t both = halves >> (2 * q) & 3;
        for (uint32_t at = column; both && at < column + columns;) {
            const uint32_t group = at / UNITS, first = at % UNITS;
            const uint32_t left = column + columns - at, room = UNITS - first;
            const uint64_t units = mxa_emu_some_units(first, left < room ? left : room);
            block *b = &shadow->tensor[q][group];
            t.place.at = 32 * q + (both == 2 ? 16 : 0);
            t.place.column = group * UNITS;
            if (both == 3) {
                mxa_emu_touch_block(b, units, &t);
            } else {
                piece *pieces = mxa_emu_split_block(shadow, b);
                for (uint64_t rest = units; rest; rest &= rest - 1) {
                    const int unit = __builtin_ctzll(rest);
                    mxa_emu_touch_halves(&pieces[unit], &t, unit, both);
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
    mxa_emu_touch_begin(&t, cta, &none, 1);
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
