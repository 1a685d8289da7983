/* driver.h: settings and results of launches that come through the emulated driver.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_DRIVER_H
#define MXA_EMU_DRIVER_H

#include "emu/launch.h"

/* Of this OS thread: how its next launches run, and what they came to. */
typedef struct mxa_emu_session {
    mxa_emu_options options;
    int errors, warnings, deadlocks;
    uint32_t hazards, warned;
    int64_t launches;
    double seconds, longest_seconds; /* of CPU time: all launches, the longest one */
    mxa_emu_tally tally;
    struct mxa_emu_trace *trace; /* NULL: none is kept */
    char *text;                  /* of the first launch with a report; NULL: none */
} mxa_emu_session;

mxa_emu_session *mxa_emu_session_now(void);

/* Forgets results; options stay. */
void mxa_emu_session_clear(void);

#endif
