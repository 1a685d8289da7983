/* picture.c: see picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "picture.h"

#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 1400, LEFT = 150, TOP = 40, ROW = 20, LANES = 4, MOST_WARPS = 64, COLUMNS = 512 };
enum { HEIGHT_AT = sizeof "<svg height=\"" - 1 };

/* A colour for each kind of operation; the same in both pictures. */
static const struct {
    const char *name, *colour;
} colours[] = {{"TMA load", "#4e79a7"},
               {"TMA store", "#76b7b2"},
               {"wgmma operand", "#f28e2b"},
               {"tcgen05.mma operand", "#f1ce63"},
               {"tcgen05.mma accumulator", "#f28e2b"},
               {"tcgen05.cp", "#b07aa1"},
               {"tcgen05.ld", "#59a14f"},
               {"tcgen05.st", "#e15759"},
               {"launch control", "#9c755f"}};
enum { KINDS = sizeof colours / sizeof *colours };

static int kind_of(const mxattn_emulator_event *event)
{
    for (int k = 0; k < KINDS; k++) {
        if (strcmp(colours[k].name, event->name) == 0)
            return k;
    }
    return KINDS - 1;
}

/* The launch with the most events of a kind, and its first and last step. */
typedef struct span {
    int64_t launch, first, last;
} span;

static span find_launch(const mxattn_emulator_event *events, int64_t count, int kind)
{
    span best = {-1, 0, 1};
    int64_t most = 0;
    for (int64_t i = 0; i < count;) {
        span now = {events[i].launch, INT64_MAX, 0};
        int64_t of_kind = 0;
        for (; i < count && events[i].launch == now.launch; i++) {
            of_kind += events[i].kind == kind;
            now.first = events[i].first_step < now.first ? events[i].first_step : now.first;
            now.last = events[i].last_step > now.last ? events[i].last_step : now.last;
        }
        if (of_kind > most) {
            most = of_kind;
            best = now;
        }
    }
    best.last += best.last <= best.first;
    return best;
}

static double place(const span *s, int64_t step)
{
    return LEFT + (double)(step - s->first) * (WIDTH - LEFT - 10) / (double)(s->last - s->first);
}

static FILE *begin(const char *path, const char *title)
{
    FILE *out = fopen(path, "w");
    if (!out)
        mxc_die("%s cannot be written", path);
    (void)fprintf(out,
                  "<svg height=\"%05d\" width=\"%d\" xmlns=\"http://www.w3.org/2000/svg\" "
                  "font-family=\"sans-serif\" font-size=\"11\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"10\" y=\"16\" font-size=\"13\">%s</text>\n",
                  0, WIDTH, title);
    return out;
}

/* The height was not known at the beginning: fixed width, so that it can be written over. */
static void end(FILE *out, const char *path, int height)
{
    (void)fprintf(out, "</svg>\n");
    (void)fseek(out, HEIGHT_AT, SEEK_SET);
    (void)fprintf(out, "%05d", height);
    if (fclose(out))
        mxc_die("%s cannot be written", path);
}

static void box(FILE *out, const span *s, const mxattn_emulator_event *event, double y,
                double height, const char *colour)
{
    const double x = place(s, event->first_step);
    double width = place(s, event->last_step) - x;
    width = width < 1 ? 1 : width;
    (void)fprintf(out,
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" "
                  "fill-opacity=\"0.8\"><title>%s, warp %d %s, steps %" PRId64 " to %" PRId64
                  "</title></rect>\n",
                  x, y, width, height, colour, event->name, (int)event->warp, event->role,
                  event->first_step, event->last_step);
}

static void label(FILE *out, int y, const char *text)
{
    (void)fprintf(out, "<text x=\"10\" y=\"%d\">%s</text>\n", y + ROW - 6, text);
}

/* One row for each warp that waited: what it waited for. */
static int draw_warps(FILE *out, const span *s, const mxattn_emulator_event *events, int64_t count)
{
    int y = TOP;
    for (int warp = 0; warp < MOST_WARPS; warp++) {
        const char *role = NULL;
        for (int64_t i = 0; i < count; i++) {
            const mxattn_emulator_event *event = &events[i];
            if (event->launch != s->launch || event->warp != warp ||
                event->kind != MXATTN_EVENT_WAIT)
                continue;
            if (!role) {
                (void)fprintf(out,
                              "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                              "fill=\"#bbd7a8\"/>\n",
                              LEFT, y + 2, WIDTH - LEFT - 10, ROW - 4);
                role = "";
            }
            role = event->role[0] ? event->role : role;
            box(out, s, event, y + 2, ROW - 4, "#e8e8e8");
        }
        if (role) {
            char text[64];
            (void)snprintf(text, sizeof text, "warp %d %s", warp, role);
            label(out, y, text);
            y += ROW;
        }
    }
    return y;
}

/* One row for each kind of operation, stacked where they overlap. */
static int draw_operations(FILE *out, const span *s, const mxattn_emulator_event *events,
                           int64_t count, int y)
{
    for (int k = 0; k < KINDS; k++) {
        int64_t busy[LANES] = {0};
        int drawn = 0;
        for (int64_t i = 0; i < count; i++) {
            const mxattn_emulator_event *event = &events[i];
            if (event->launch != s->launch || event->kind != MXATTN_EVENT_ASYNC ||
                kind_of(event) != k)
                continue;
            int lane = 0;
            while (lane < LANES - 1 && busy[lane] > event->first_step)
                lane++;
            busy[lane] = event->last_step;
            box(out, s, event, y + lane * 9, 8, colours[k].colour);
            drawn = 1;
        }
        if (drawn) {
            label(out, y, colours[k].name);
            y += LANES * 9 + 6;
        }
    }
    return y;
}

void mxc_picture_roles(const char *path, const mxattn_emulator_event *events, int64_t count)
{
    const span s = find_launch(events, count, MXATTN_EVENT_ASYNC);
    FILE *out =
        begin(path, "Warps (grey: waiting; hover for the barrier) and asynchronous operations, "
                    "over steps of the first CTA");
    const int y = draw_warps(out, &s, events, count);
    end(out, path, draw_operations(out, &s, events, count, y + 10) + 10);
}

int mxc_picture_tmem(const char *path, const mxattn_emulator_event *events, int64_t count)
{
    const span s = find_launch(events, count, MXATTN_EVENT_TMEM);
    if (s.launch < 0)
        return 0;
    FILE *out = begin(path, "Columns of tensor memory over steps of the first CTA");
    for (int column = 0; column <= COLUMNS; column += 64) {
        (void)fprintf(out,
                      "<text x=\"%d\" y=\"%d\">%d</text><line x1=\"%d\" x2=\"%d\" y1=\"%d\" "
                      "y2=\"%d\" stroke=\"#ddd\"/>\n",
                      LEFT - 30, TOP + column + 4, column, LEFT, WIDTH - 10, TOP + column,
                      TOP + column);
    }
    for (int64_t i = 0; i < count; i++) {
        if (events[i].launch == s.launch && events[i].kind == MXATTN_EVENT_TMEM)
            box(out, &s, &events[i], TOP + events[i].column, events[i].columns,
                colours[kind_of(&events[i])].colour);
    }
    int x = LEFT;
    for (int k = 3; k < 8; k++, x += 190) {
        (void)fprintf(out,
                      "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                      "<text x=\"%d\" y=\"%d\">%s</text>\n",
                      x, TOP + COLUMNS + 25, colours[k].colour, x + 18, TOP + COLUMNS + 35,
                      colours[k].name);
    }
    end(out, path, TOP + COLUMNS + 60);
    return 1;
}
