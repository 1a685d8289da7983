/* picture.h: what the emulator saw, as SVG.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_PICTURE_H
#define MXC_TOOLS_PICTURE_H

#include "mxattn/mxattn.h"

#include <stdio.h>

/* Both draw the launch with the most events, first CTA, in the order of what happened. Warps, what
 * they wait for, and the asynchronous operations. Dies where the file cannot be written. */
void mxc_picture_roles(const char *path, const mxattn_emulator_event *events, int64_t count);

/* What the columns of tensor memory hold, from its first write to its last read. 0: no kernel used
 * any, and nothing is written. */
int mxc_picture_tmem(const char *path, const mxattn_emulator_event *events, int64_t count);

/* ---- what both are made of: picture.c ---- */

enum { MXC_PICTURE_LEFT = 120, MXC_PICTURE_TOP = 58, MXC_PICTURE_TEXT = 6 /* width of a letter */ };

typedef struct mxc_picture {
    FILE *out;
    const char *path;
    const mxattn_emulator_event *events; /* of the launch that is drawn */
    int64_t count;
    int64_t *steps; /* at which something began or ended, ascending, each once */
    double *places; /* x of each */
    int64_t known;
    int width;
} mxc_picture;

/* Picks the launch with the most events of `kind` and places the steps of all kinds in `kinds`
 * (bits) along x, each `pitch` wide on average; steps far apart are as far apart as their
 * logarithm. 0: there is none. */
int mxc_picture_begin(mxc_picture *p, const mxattn_emulator_event *events, int64_t count, int kind,
                      unsigned kinds, int pitch);

/* Opens the file, writes title and subtitle. */
void mxc_picture_open(mxc_picture *p, const char *path, const char *title, const char *subtitle);
void mxc_picture_end(mxc_picture *p, int height);

double mxc_picture_place(const mxc_picture *p, int64_t step);

/* Opens a box, closed by mxc_picture_close after what stands inside it: its tooltip. */
void mxc_picture_box(const mxc_picture *p, double x, double y, double width, double height,
                     const char *colour);

/* Text inside a box of this width, cut off where it does not fit; nothing where 3 letters do not.
 */
void mxc_picture_text(const mxc_picture *p, double x, double y, double width, const char *colour,
                      const char *text);

#endif
