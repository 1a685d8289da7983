/* trace.c: see trace.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/trace.h"

#include "emu/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MOST = 1 << 20, LOOK_BACK = 512 };

/* ---- counts ---- */

static void tally(mxa_emu_tally *to, const char *name, int64_t count, int by_text)
{
    for (size_t i = 0; i < MXA_EMU_TALLIES; i++) {
        if (!to->name[i]) {
            to->name[i] = name;
        }
        if (to->name[i] == name || (by_text && strcmp(to->name[i], name) == 0)) {
            to->count[i] += count;
            return;
        }
    }
}

void mxa_emu_count(const char *name)
{
    mxa_emu_tally *to = mxa_emu_now->tally;
    const size_t first = (uint32_t)(uintptr_t)name * 2654435761u >>
                         (32 - MXA_EMU_TALLIES_LOG2); /* names lie close */
    for (size_t i = 0; i < MXA_EMU_TALLIES; i++) {
        const size_t slot = (first + i) % MXA_EMU_TALLIES;
        if (to->name[slot] == name || !to->name[slot]) {
            to->name[slot] = name;
            to->count[slot]++;
            return;
        }
    }
}

void mxa_emu_count_hot(void)
{
    static const char *const names[MXA_EMU_HOT] = {[MXA_EMU_HOT_LOAD_SHARED] = "ld.shared",
                                                   [MXA_EMU_HOT_STORE_SHARED] = "st.shared",
                                                   [MXA_EMU_HOT_LOAD_GLOBAL] = "ld.global",
                                                   [MXA_EMU_HOT_STORE_GLOBAL] = "st.global"};
    const mxa_emu *emu = mxa_emu_now;
    for (int i = 0; i < MXA_EMU_HOT; i++) {
        if (emu->hot[i]) {
            tally(emu->tally, names[i], emu->hot[i], 0);
        }
    }
}

void mxa_emu_tally_add(mxa_emu_tally *to, const mxa_emu_tally *from)
{
    for (size_t i = 0; i < MXA_EMU_TALLIES; i++) {
        if (from->name[i]) {
            tally(to, from->name[i], from->count[i], 1);
        }
    }
}

/* ---- events ---- */

void mxa_emu_trace_free(struct mxa_emu_trace *trace)
{
    if (trace) {
        free(trace->events);
        free(trace->clocks);
        free(trace->components);
        free(trace);
    }
}

/* Room for one more; NULL where no trace is kept, or no memory is left for it. */
static mxattn_emulator_event *add(struct mxa_emu_trace *trace)
{
    if (!trace || !trace->recording || trace->count == EVENTS_MOST) {
        return NULL;
    }
    if (trace->count == trace->room) {
        const int64_t room = trace->room ? 2 * trace->room : 1024;
        mxattn_emulator_event *events =
            realloc(trace->events, (size_t)room * sizeof *trace->events);
        trace->events = events ? events : trace->events;
        uint32_t *clocks = realloc(trace->clocks, (size_t)room * sizeof *trace->clocks);
        trace->clocks = clocks ? clocks : trace->clocks;
        uint16_t *components = realloc(trace->components, (size_t)room * sizeof *trace->components);
        trace->components = components ? components : trace->components;
        if (!events || !clocks || !components) {
            trace->recording = 0;
            return NULL;
        }
        trace->room = room;
    }
    trace->clocks[trace->count] = 0;
    trace->components[trace->count] = 0;
    mxattn_emulator_event *event = &trace->events[trace->count++];
    memset(event, 0, sizeof *event);
    event->launch = trace->launch;
    event->first_step = event->last_step = mxa_emu_now->step;
    return event;
}

static void set_issuer(mxattn_emulator_event *event, const mxa_emu_thread *thread, const char *name)
{
    event->warp = thread->warp->index;
    (void)snprintf(event->role, sizeof event->role, "%s", thread->role ? thread->role : "");
    (void)snprintf(event->name, sizeof event->name, "%s", name);
}

/* Of a warp's lanes only those that act for it are drawn. */
static int acts_for_warp(const mxa_emu_thread *thread)
{
    return thread->cta->rank == 0 && (thread->lane == 0 || thread->lane == thread->warp->elected);
}

void mxa_emu_trace_wait(const mxa_emu_thread *thread, const char *name, int64_t first)
{
    if (!mxa_emu_now->events || !acts_for_warp(thread)) {
        return;
    }
    mxattn_emulator_event *event = add(mxa_emu_now->events);
    if (event) {
        event->kind = MXATTN_EVENT_WAIT;
        event->first_step = first;
        set_issuer(event, thread, name);
    }
}

static const mxa_emu_thread *issuer(const mxa_emu_access *as)
{
    const mxa_emu *emu = mxa_emu_now;
    return &emu->ctas[as->thread / emu->threads]->threads[as->thread % emu->threads];
}

void mxa_emu_trace_done(const mxa_emu_op *op)
{
    struct mxa_emu_trace *trace = mxa_emu_now->events;
    if (!trace || !trace->recording) {
        return;
    }
    for (int64_t i = trace->count - 1; i >= 0 && i >= trace->count - LOOK_BACK; i--) {
        if (trace->clocks[i] == op->as.clock && trace->components[i] == op->as.component) {
            trace->events[i].last_step = mxa_emu_now->step;
            trace->clocks[i] = 0;
        }
    }
    mxattn_emulator_event *event = op->as.kind == MXA_EMU_COMMIT ? NULL : add(trace);
    if (event) {
        event->kind = MXATTN_EVENT_ASYNC;
        event->first_step = op->issued_at;
        set_issuer(event, issuer(&op->as), mxa_emu_kind_name(op->as.kind));
    }
}

void mxa_emu_trace_columns(const mxa_emu_access *as, uint32_t column, uint32_t columns)
{
    struct mxa_emu_trace *trace = mxa_emu_now->events;
    mxattn_emulator_event *event = add(trace);
    if (event) {
        event->kind = MXATTN_EVENT_TMEM;
        event->column = (int32_t)column;
        event->columns = (int32_t)columns;
        trace->clocks[trace->count - 1] = as->clock;
        trace->components[trace->count - 1] = as->component;
        set_issuer(event, issuer(as), mxa_emu_kind_name(as->kind));
    }
}
