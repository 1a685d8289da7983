/* picture.h: what the emulator saw, as SVG.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_PICTURE_H
#define MXC_TOOLS_PICTURE_H

#include "mxattn/mxattn.h"

/* Both draw the launch with the most events. Waits of each warp and the asynchronous operations,
 * over steps. Dies where the file cannot be written. */
void mxc_picture_roles(const char *path, const mxattn_emulator_event *events, int64_t count);

/* Columns of tensor memory over steps. 0: no kernel used any, and nothing is written. */
int mxc_picture_tmem(const char *path, const mxattn_emulator_event *events, int64_t count);

#endif
