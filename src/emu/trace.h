/* trace.h: counts of instructions, and events kept for pictures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_TRACE_H
#define MXA_EMU_TRACE_H

#include "emu/emu.h"
#include "mxattn/mxattn.h"

enum { MXA_EMU_TALLIES_LOG2 = 7, MXA_EMU_TALLIES = 1 << MXA_EMU_TALLIES_LOG2 };

typedef struct mxa_emu_tally {
    const char *name[MXA_EMU_TALLIES]; /* NULL: free */
    int64_t count[MXA_EMU_TALLIES];
} mxa_emu_tally;

/* Adds one set of counts to another, by the names' text. */
/* The frequent ones (emu.h) of the launch that runs. */
void mxa_emu_count_hot(void);
void mxa_emu_tally_add(mxa_emu_tally *to, const mxa_emu_tally *from);

/* Events of a session; launches append while they run the first CTA of their grid. */
struct mxa_emu_trace {
    mxattn_emulator_event *events;
    uint32_t *clocks; /* of TMEM events whose operation is not complete; 0: it is */
    uint16_t *components;
    int64_t count, room, launch;
    int recording;
};

void mxa_emu_trace_free(struct mxa_emu_trace *trace);

/* A thread has waited from `first` to now at `name`; an operation is complete; columns are touched
 * by one. Nothing where no trace is kept. */
void mxa_emu_trace_wait(const mxa_emu_thread *thread, const char *name, int64_t first);
void mxa_emu_trace_done(const mxa_emu_op *op);
void mxa_emu_trace_columns(const mxa_emu_access *as, uint32_t column, uint32_t columns);

#endif
