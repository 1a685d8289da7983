/* overlap.c: see overlap.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/overlap.h"

#include "emu/cluster.h"
#include "emu/engine.h"

#include <string.h>

enum { GRANULE = 16, FIRST_ROOM = 1024 };

/* Sixteen bytes of global memory that the first grid touched. */
typedef struct granule {
    uint64_t at;            /* 0: free */
    uint16_t written, read; /* bit i: byte i */
    uint8_t late;           /* written by a CTA after its launch_dependents */
    unsigned char before[GRANULE];
    mxa_emu_site write_site, read_site;
} granule;

struct mxa_emu_overlap {
    granule *table;
    size_t room, used; /* room: a power of two */
    int launched;      /* a CTA has issued launch_dependents */
};

mxa_emu_overlap *mxa_emu_overlap_new(void)
{
    mxa_emu_overlap *o = mxa_emu_alloc(sizeof *o);
    if (o) {
        o->room = FIRST_ROOM;
        o->table = mxa_emu_alloc(o->room * sizeof *o->table);
        if (!o->table) {
            mxa_emu_free(o);
            return NULL;
        }
    }
    return o;
}

void mxa_emu_overlap_free(mxa_emu_overlap *overlap)
{
    if (overlap) {
        mxa_emu_free(overlap->table);
        mxa_emu_free(overlap);
    }
}

/* Where the granule is, or would be. */
static granule *place(granule *table, size_t room, uint64_t at)
{
    size_t i = (size_t)((at / GRANULE * 0x9E3779B97F4A7C15u) >> 20) & (room - 1);
    while (table[i].at && table[i].at != at) {
        i = (i + 1) & (room - 1);
    }
    return &table[i];
}

static granule *take(mxa_emu_overlap *o, uint64_t at)
{
    if (2 * o->used >= o->room) {
        granule *grown = mxa_emu_alloc(2 * o->room * sizeof *grown);
        for (size_t i = 0; i < o->room; i++) {
            if (o->table[i].at) {
                *place(grown, 2 * o->room, o->table[i].at) = o->table[i];
            }
        }
        mxa_emu_free(o->table);
        o->table = grown;
        o->room *= 2;
    }
    granule *g = place(o->table, o->room, at);
    if (!g->at) {
        g->at = at;
        o->used++;
    }
    return g;
}

/* Bytes of [at, at + bytes) that lie in the granule. */
static uint16_t bytes_in(uint64_t granule_at, uint64_t at, uint64_t bytes)
{
    const uint64_t low = at > granule_at ? at - granule_at : 0;
    const uint64_t end = at + bytes - granule_at, high = end < GRANULE ? end : GRANULE;
    return (uint16_t)(((1u << high) - 1) & ~((1u << low) - 1));
}

/* ---- the first grid ---- */

static void note(mxa_emu_overlap *o, uint64_t at, uint64_t bytes, int write, mxa_emu_site site)
{
    for (uint64_t g_at = at / GRANULE * GRANULE; g_at < at + bytes; g_at += GRANULE) {
        granule *g = take(o, g_at);
        const uint16_t mask = bytes_in(g_at, at, bytes);
        if (!write) {
            g->read |= mask;
            g->read_site = site;
            continue;
        }
        for (uint32_t i = 0; i < GRANULE; i++) {
            if ((mask & ~g->written) >> i & 1) { /* WHY by byte: the rest may be out of bounds */
                g->before[i] = *(const unsigned char *)(uintptr_t)(g_at + i);
            }
        }
        g->written |= mask;
        g->write_site = site;
        g->late = mxa_emu_now->thread && mxa_emu_now->thread->cta->dependents_launched;
    }
}

void mxa_emu_grid_dependency_launch(void)
{
    mxa_emu_settle();
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_count("griddepcontrol.launch_dependents");
    emu->thread->cta->dependents_launched = 1;
    if (emu->options.leads) {
        emu->options.leads->launched = 1;
    }
}

/* ---- the second ---- */

void mxa_emu_grid_dependency_wait(void)
{
    mxa_emu_settle();
    mxa_emu_count("griddepcontrol.wait");
    if (mxa_emu_now->options.follows) {
        mxa_emu_learn(mxa_emu_now->thread, mxa_emu_engine_now()->dependency_component, 1);
    }
    mxa_emu_pause();
}

int mxa_emu_overlap_early(void)
{
    const mxa_emu *emu = mxa_emu_now;
    return emu->options.follows && emu->options.follows->launched && emu->options.checks &&
           !mxa_emu_knows(emu->thread, emu->engine->dependency_component, 1);
}

static void report(const granule *g, int was_write, int write, mxa_emu_site site)
{
    mxa_emu_error(0,
                  write ? "global memory written before griddepcontrol.wait"
                        : "global memory read before griddepcontrol.wait",
                  site, was_write ? g->write_site : g->read_site,
                  "0x%llx, which the grid before %s%s\n    hint: launch_dependents lets this grid "
                  "start and makes nothing visible; griddepcontrol.wait first",
                  (unsigned long long)g->at, was_write ? "writes" : "reads",
                  !was_write ? ""
                  : g->late  ? " after its launch_dependents"
                             : " before its launch_dependents");
}

void mxa_emu_overlap_read(uint64_t at, void *to, uint64_t bytes, int early, mxa_emu_site site)
{
    const mxa_emu_options *options = &mxa_emu_now->options;
    if (options->leads) {
        note(options->leads, at, bytes, 0, site);
    }
    if (!early) {
        return;
    }
    const int stale = mxa_emu_random(4) != 0;
    for (uint64_t g_at = at / GRANULE * GRANULE; g_at < at + bytes; g_at += GRANULE) {
        const granule *g = place(options->follows->table, options->follows->room, g_at);
        const uint16_t mask = g->at ? g->written & bytes_in(g_at, at, bytes) : 0;
        if (!mask) {
            continue;
        }
        report(g, 1, 0, site);
        for (uint32_t i = 0; stale && i < GRANULE; i++) {
            if (mask >> i & 1) {
                ((unsigned char *)to)[g_at + i - at] = g->before[i];
            }
        }
    }
}

int mxa_emu_overlap_write(uint64_t at, uint64_t bytes, int early, mxa_emu_site site)
{
    const mxa_emu_options *options = &mxa_emu_now->options;
    int lost = 0;
    if (options->leads) {
        note(options->leads, at, bytes, 1, site);
    }
    for (uint64_t g_at = at / GRANULE * GRANULE; early && g_at < at + bytes; g_at += GRANULE) {
        const granule *g = place(options->follows->table, options->follows->room, g_at);
        const uint16_t mask = g->at ? bytes_in(g_at, at, bytes) : 0;
        if (mask & (g->written | g->read)) {
            report(g, (mask & g->written) != 0, 1, site);
            lost |= (mask & g->written) != 0;
        }
    }
    return !(lost && mxa_emu_random(2));
}
