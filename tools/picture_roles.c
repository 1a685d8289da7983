/* picture_roles.c: warps and asynchronous operations over time: see picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "picture.h"

#include <inttypes.h>
#include <string.h>

enum { ROW = 17, GAP = 10, LANES = 4, LANE = 7, WARPS_MOST = 64 };

/* A name to show and a colour for each kind of operation. */
static const struct {
    const char *name, *label, *colour;
} operations[] = {{"TMA load", "TMA load", "#4e79a7"},
                  {"TMA store", "TMA store", "#76b7b2"},
                  {"wgmma operand", "wgmma", "#f28e2b"},
                  {"tcgen05.mma operand", "tcgen05.mma", "#f28e2b"},
                  {"tcgen05.mma accumulator", "tcgen05.mma", "#f28e2b"},
                  {"tcgen05.cp", "tcgen05.cp", "#8e62a5"},
                  {"tcgen05.ld", "tcgen05.ld", "#4e9b47"},
                  {"tcgen05.st", "tcgen05.st", "#d8434b"},
                  {"launch control", "launch", "#9c755f"}};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* A colour for each role that works. */
static const char *const roles[] = {"#9fc9e0", "#7fb0cf", "#a8d5a2", "#f7c78b",
                                    "#f3a683", "#c9b3db", "#d9d09a", "#c4c4c4"};
enum { ROLES = sizeof roles / sizeof *roles };

static int operation_of(const mxattn_emulator_event *event)
{
    for (int k = 0; k < OPERATIONS; k++) {
        if (strcmp(operations[k].name, event->name) == 0)
            return k;
    }
    return OPERATIONS - 1;
}

/* What a warp says it is, last; NULL: it never waits. */
static const char *role_of(const mxc_picture *p, int warp)
{
    const char *role = NULL;
    for (int64_t i = 0; i < p->count; i++) {
        const mxattn_emulator_event *event = &p->events[i];
        if (event->kind == MXATTN_EVENT_WAIT && event->warp == warp && (!role || event->role[0]))
            role = event->role;
    }
    return role;
}

/* 1 where another wait of the warp begins during this one, and is drawn over it. */
static int covered(const mxc_picture *p, const mxattn_emulator_event *wait)
{
    for (const mxattn_emulator_event *other = wait + 1; other < p->events + p->count; other++) {
        if (other->kind == MXATTN_EVENT_WAIT && other->warp == wait->warp &&
            other->first_step >= wait->first_step && other->first_step < wait->last_step)
            return 1;
    }
    return 0;
}

static void draw_warp(const mxc_picture *p, int warp, int y, const char *colour)
{
    const double first = p->places[0], last = p->places[p->known - 1];
    mxc_picture_box(p, first, y, last - first, ROW - 2, colour);
    (void)fprintf(p->out, "warp %d works</title></rect>\n", warp);
    for (int64_t i = 0; i < p->count; i++) {
        const mxattn_emulator_event *event = &p->events[i];
        if (event->kind != MXATTN_EVENT_WAIT || event->warp != warp)
            continue;
        const double x = mxc_picture_place(p, event->first_step);
        const double width = mxc_picture_place(p, event->last_step) - x;
        if (width <= 0)
            continue;
        mxc_picture_box(p, x, y, width, ROW - 2, "#f0f0f0");
        (void)fprintf(p->out,
                      "warp %d waits for %s, steps %" PRId64 " to %" PRId64 "</title></rect>\n",
                      warp, event->name, event->first_step, event->last_step);
        if (!covered(p, event))
            mxc_picture_text(p, x, y + ROW - 6, width - 4, "#888", event->name);
    }
}

/* One row for each warp that waited, those of a role together. */
static int draw_warps(const mxc_picture *p)
{
    int y = MXC_PICTURE_TOP, role_number = -1;
    const char *before = NULL;
    for (int warp = 0; warp < WARPS_MOST; warp++) {
        const char *role = role_of(p, warp);
        if (!role)
            continue;
        if (!before || strcmp(before, role) != 0) {
            y += before ? GAP : 0;
            (void)fprintf(p->out, "<text x=\"10\" y=\"%d\">%s</text>\n", y + ROW - 6,
                          role[0] ? role : "no role");
            role_number++;
        }
        before = role;
        draw_warp(p, warp, y, role[0] ? roles[role_number % ROLES] : "#d8d8d8");
        (void)fprintf(p->out,
                      "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#888\">%d</text>\n",
                      MXC_PICTURE_LEFT - 6, y + ROW - 6, warp);
        y += ROW;
    }
    return y + GAP;
}

/* One row for each kind of operation, stacked where they overlap. */
static int draw_operations(const mxc_picture *p, int y)
{
    for (int k = 0; k < OPERATIONS; k++) {
        int64_t busy[LANES] = {0};
        int drawn = 0;
        for (int64_t i = 0; i < p->count; i++) {
            const mxattn_emulator_event *event = &p->events[i];
            if (event->kind != MXATTN_EVENT_ASYNC || operation_of(event) != k)
                continue;
            int lane = 0;
            while (lane < LANES - 1 && busy[lane] > event->first_step)
                lane++;
            busy[lane] = event->last_step;
            const double x = mxc_picture_place(p, event->first_step);
            mxc_picture_box(p, x, y + lane * LANE, mxc_picture_place(p, event->last_step) - x,
                            LANE - 1, operations[k].colour);
            (void)fprintf(
                p->out, "%s of warp %d, %s, steps %" PRId64 " to %" PRId64 "</title></rect>\n",
                event->name, (int)event->warp, event->role, event->first_step, event->last_step);
            drawn = 1;
        }
        if (drawn) {
            (void)fprintf(p->out, "<text x=\"10\" y=\"%d\">%s</text>\n", y + 2 * LANE,
                          operations[k].label);
            y += LANES * LANE + GAP;
        }
    }
    return y;
}

void mxc_picture_roles(const char *path, const mxattn_emulator_event *events, int64_t count)
{
    mxc_picture p;
    if (!mxc_picture_begin(&p, events, count, MXATTN_EVENT_ASYNC,
                           1u << MXATTN_EVENT_WAIT | 1u << MXATTN_EVENT_ASYNC, 2))
        mxc_die("no launch left an event to draw in %s", path);
    mxc_picture_open(
        &p, path, "Roles and asynchronous operations",
        "One CTA. Warps in colour work, in grey they wait for the barrier named; below, "
        "operations from issue to completion. Time goes by events: long pauses are "
        "shortened.");
    mxc_picture_end(&p, draw_operations(&p, draw_warps(&p)) + 10);
}
