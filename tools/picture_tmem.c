/* picture_tmem.c: what the columns of tensor memory hold over time: see picture.h.
 *
 * A content begins with a write and lives to its last read; what is white is dead, and free for
 * another. Writes of one kind to the same columns add to a content until it has been read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "picture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 512, ROW_HEIGHT_PERCENT = 125 };

typedef enum kind { ACCUMULATOR, STORED, COPIED, LOADED, OPERAND, KINDS } kind;

/* Names of the emulator's operations; what is written has a colour for while it is, for what then
 * lies there, and for while it is read. */
static const struct {
    const char *name, *says, *dark, *light, *read;
} kinds[KINDS] = {{"tcgen05.mma accumulator", "accumulators", "#ee8426", "#fde6cd", "#f8bd84"},
                  {"tcgen05.st", "stored by threads (P)", "#d0404a", "#f9d9da", "#eb9599"},
                  {"tcgen05.cp", "copied (scales)", "#7f529a", "#e2d5ea", "#b893cb"},
                  {"tcgen05.ld", "read by threads", "", "", ""},
                  {"tcgen05.mma operand", "read by products", "", "", ""}};

typedef struct content {
    kind kind, reader;
    int32_t column, columns;
    int64_t first, written; /* steps: its writes */
    int64_t read, last;     /* its reads; read -1: none yet */
    const char *from, *to;  /* roles */
} content;

static kind kind_of(const mxattn_emulator_event *event)
{
    for (int k = 0; k < KINDS; k++) {
        if (strcmp(kinds[k].name, event->name) == 0)
            return (kind)k;
    }
    return KINDS;
}

/* 1 where a write belongs to this content: more of the same columns, or the ones that follow. */
static int belongs(const content *c, const mxattn_emulator_event *event, kind k)
{
    const int32_t end = c->column + c->columns;
    const int inside = event->column >= c->column && event->column + event->columns <= end;
    const int follows = event->column == end && k != ACCUMULATOR;
    return c->kind == k && c->read < 0 && strcmp(c->from, event->role) == 0 && (inside || follows);
}

/* A write: it adds to the newest content that it touches, or begins one. */
static void write_content(content *list, int64_t *count, const mxattn_emulator_event *event, kind k)
{
    for (int64_t i = *count - 1; i >= 0; i--) {
        content *c = &list[i];
        const int32_t end = event->column + event->columns;
        if (belongs(c, event, k)) {
            c->columns = end > c->column + c->columns ? end - c->column : c->columns;
            c->written = event->last_step > c->written ? event->last_step : c->written;
            c->last = c->written;
            return;
        }
        if (c->column < end && c->column + c->columns > event->column)
            break;
    }
    const content new = {k,
                         KINDS,
                         event->column,
                         event->columns,
                         event->first_step,
                         event->last_step,
                         -1,
                         event->last_step,
                         event->role,
                         ""};
    list[(*count)++] = new;
}

/* A read of the newest contents under each of its columns. */
static void read_content(content *list, int64_t count, const mxattn_emulator_event *event, kind k)
{
    char seen[COLUMNS] = {0};
    int left = event->columns;
    for (int64_t i = count - 1; i >= 0 && left > 0; i--) {
        content *c = &list[i];
        int touched = 0;
        for (int column = c->column; column < c->column + c->columns; column++) {
            if (column >= event->column && column < event->column + event->columns &&
                column < COLUMNS && !seen[column]) {
                seen[column] = 1;
                touched = 1;
                left--;
            }
        }
        if (touched) {
            c->read = c->read < 0 ? event->first_step : c->read;
            c->last = event->last_step > c->last ? event->last_step : c->last;
            c->reader = k;
            c->to = event->role;
        }
    }
}

static int by_first(const void *a, const void *b)
{
    const mxattn_emulator_event *x = *(const mxattn_emulator_event *const *)a;
    const mxattn_emulator_event *y = *(const mxattn_emulator_event *const *)b;
    return x->first_step != y->first_step ? (x->first_step > y->first_step) * 2 - 1
                                          : (x > y) - (x < y);
}

/* The contents, in the order of their first writes. */
static content *find_contents(const mxc_picture *p, int64_t *count)
{
    content *list = mxc_tool_alloc((size_t)p->count * sizeof *list);
    const mxattn_emulator_event **order = mxc_tool_alloc((size_t)p->count * sizeof *order);
    int64_t all = 0;
    *count = 0;
    for (int64_t i = 0; i < p->count; i++) {
        if (p->events[i].kind == MXATTN_EVENT_TMEM)
            order[all++] = &p->events[i];
    }
    qsort(order, (size_t)all, sizeof *order, by_first);
    for (int64_t i = 0; i < all; i++) {
        const kind k = kind_of(order[i]);
        if (k < LOADED)
            write_content(list, count, order[i], k);
        else if (k < KINDS)
            read_content(list, *count, order[i], k);
    }
    free(order);
    return list;
}

static double y_of(int column)
{
    return MXC_PICTURE_TOP + column * ROW_HEIGHT_PERCENT / 100.0;
}

static void draw_part(const mxc_picture *p, const content *c, int64_t first, int64_t last,
                      const char *colour)
{
    const double x = mxc_picture_place(p, first), y = y_of(c->column);
    mxc_picture_box(p, x, y, mxc_picture_place(p, last) - x, y_of(c->column + c->columns) - y - 0.5,
                    colour);
    (void)fprintf(p->out,
                  "columns %d..%d: %s, by %s, %s, %s; steps %" PRId64 " to %" PRId64
                  "</title></rect>\n",
                  (int)c->column, (int)(c->column + c->columns - 1), kinds[c->kind].says, c->from,
                  c->read < 0 ? "never read" : kinds[c->reader].says, c->to, c->first, c->last);
}

static void draw_content(const mxc_picture *p, const content *c)
{
    const double x = mxc_picture_place(p, c->first), end = mxc_picture_place(p, c->last);
    const double y = y_of(c->column), height = y_of(c->column + c->columns) - y;
    char text[64];
    draw_part(p, c, c->first, c->last, kinds[c->kind].light);
    if (c->read >= 0)
        draw_part(p, c, c->read, c->last, kinds[c->kind].read);
    draw_part(p, c, c->first, c->written, kinds[c->kind].dark);
    (void)snprintf(text, sizeof text, "%s &#8594; %s", c->from, c->to);
    if (height > 20 && c->read >= 0)
        mxc_picture_text(p, x, y + height / 2 + 4, end - x + 5 * MXC_PICTURE_TEXT, "#222", text);
}

static void draw_columns(const mxc_picture *p)
{
    for (int column = 0; column <= COLUMNS; column += 32) {
        (void)fprintf(p->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                      MXC_PICTURE_LEFT, p->width - 20, y_of(column), y_of(column),
                      column % 128 ? "#eee" : "#999");
        if (column % 64 == 0)
            (void)fprintf(
                p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%s%d</text>\n",
                MXC_PICTURE_LEFT - 8, y_of(column) + 4, column ? "" : "column ", column);
    }
}

static void draw_legend(const mxc_picture *p, double y)
{
    int x = MXC_PICTURE_LEFT;
    for (int k = 0; k < LOADED; k++, x += 330) {
        const char *colours[] = {kinds[k].dark, kinds[k].light, kinds[k].read};
        static const char *const tones[] = {"written", "held", "read"};
        (void)fprintf(p->out, "<text x=\"%d\" y=\"%.1f\">%s:</text>\n", x, y + 10, kinds[k].says);
        for (int tone = 0; tone < 3; tone++) {
            mxc_picture_box(p, x + 128 + 62 * tone, y, 12, 12, colours[tone]);
            (void)fprintf(p->out, "</title></rect>\n<text x=\"%d\" y=\"%.1f\">%s</text>\n",
                          x + 144 + 62 * tone, y + 10, tones[tone]);
        }
    }
}

int mxc_picture_tmem(const char *path, const mxattn_emulator_event *events, int64_t count)
{
    mxc_picture p;
    if (!mxc_picture_begin(&p, events, count, MXATTN_EVENT_TMEM, 1u << MXATTN_EVENT_TMEM, 4))
        return 0;
    mxc_picture_open(&p, path, "What the columns of tensor memory hold",
                     "One CTA, from the first write of a content to its last read; white columns "
                     "are dead. Time goes by events: long pauses are shortened.");
    draw_columns(&p);
    int64_t contents;
    content *list = find_contents(&p, &contents);
    for (int64_t i = 0; i < contents; i++)
        draw_content(&p, &list[i]);
    free(list);
    const double y = y_of(COLUMNS) + 18;
    draw_legend(&p, y);
    mxc_picture_end(&p, (int)y + 30);
    return 1;
}
