/* picture.c: the axis of a picture and its SVG: see picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "picture.h"

#include "error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_LEAST = 1180, WIDTH_MOST = 8000 };
enum { HEIGHT_AT = sizeof "<svg height=\"" - 1 };

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The launch with the most events of a kind. */
static void find_launch(mxc_picture *p, const mxattn_emulator_event *events, int64_t count,
                        int kind)
{
    int64_t most = 0;
    for (int64_t i = 0, first = 0; i < count; first = i) {
        int64_t of_kind = 0;
        for (; i < count && events[i].launch == events[first].launch; i++)
            of_kind += events[i].kind == kind;
        if (of_kind > most) {
            most = of_kind;
            p->events = events + first;
            p->count = i - first;
        }
    }
}

int mxc_picture_begin(mxc_picture *p, const mxattn_emulator_event *events, int64_t count, int kind,
                      unsigned kinds, int pitch)
{
    memset(p, 0, sizeof *p);
    find_launch(p, events, count, kind);
    if (p->count == 0)
        return 0;
    p->steps = mxc_tool_alloc((size_t)(2 * p->count) * sizeof *p->steps);
    p->places = mxc_tool_alloc((size_t)(2 * p->count) * sizeof *p->places);
    int64_t all = 0;
    for (int64_t i = 0; i < p->count; i++) {
        if (kinds >> p->events[i].kind & 1) {
            p->steps[all++] = p->events[i].first_step;
            p->steps[all++] = p->events[i].last_step;
        }
    }
    qsort(p->steps, (size_t)all, sizeof *p->steps, ascending);
    double at = 0;
    for (int64_t i = 0; i < all; i++) {
        const int64_t far = p->known ? p->steps[i] - p->steps[p->known - 1] : 0;
        if (p->known && far == 0)
            continue;
        at += far ? 1 + log2((double)far) : 0;
        p->steps[p->known] = p->steps[i];
        p->places[p->known++] = at;
    }
    const double width = fmin(fmax((double)p->known * pitch, WIDTH_LEAST), WIDTH_MOST);
    for (int64_t i = 0; i < p->known; i++)
        p->places[i] = MXC_PICTURE_LEFT + (at > 0 ? p->places[i] * width / at : 0);
    p->width = MXC_PICTURE_LEFT + (int)width + 20;
    return 1;
}

void mxc_picture_open(mxc_picture *p, const char *path, const char *title, const char *subtitle)
{
    p->path = path;
    p->out = fopen(path, "w");
    if (!p->out)
        mxc_die("%s cannot be written", path);
    (void)fprintf(p->out,
                  "<svg height=\"%05d\" width=\"%d\" xmlns=\"http://www.w3.org/2000/svg\" "
                  "font-family=\"Helvetica,Arial,sans-serif\" font-size=\"11\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"bold\">%s</text>\n"
                  "<text x=\"10\" y=\"38\" fill=\"#555\">%s</text>\n",
                  0, p->width, title, subtitle);
}

/* The height was not known at the beginning: fixed width, so that it can be written over. */
void mxc_picture_end(mxc_picture *p, int height)
{
    (void)fprintf(p->out, "</svg>\n");
    (void)fseek(p->out, HEIGHT_AT, SEEK_SET);
    (void)fprintf(p->out, "%05d", height);
    if (fclose(p->out))
        mxc_die("%s cannot be written", p->path);
    free(p->steps);
    free(p->places);
}

double mxc_picture_place(const mxc_picture *p, int64_t step)
{
    int64_t low = 0, high = p->known - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (p->steps[middle] <= step)
            low = middle;
        else
            high = middle - 1;
    }
    return p->places[low];
}

void mxc_picture_box(const mxc_picture *p, double x, double y, double width, double height,
                     const char *colour)
{
    (void)fprintf(p->out,
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>",
                  x, y, fmax(width, 1.2), height, colour);
}

void mxc_picture_text(const mxc_picture *p, double x, double y, double width, const char *colour,
                      const char *text)
{
    if (width >= (double)(MXC_PICTURE_TEXT * strlen(text)))
        (void)fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", x + 3, y,
                      colour, text);
}
