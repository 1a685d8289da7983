/* overlap.h: dependent launches: a grid that may start before the one before it is complete.
 *
 * The grids still run one after the other. The first (options.leads) notes what it does to global
 * memory; the second (options.follows) is then held to what it may know before its
 * griddepcontrol.wait: nothing of that, if any CTA of the first issued launch_dependents.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_OVERLAP_H
#define MXA_EMU_OVERLAP_H

#include "emu/emu.h"

/* For one pair of launches; NULL without memory. */
mxa_emu_overlap *mxa_emu_overlap_new(void);
void mxa_emu_overlap_free(mxa_emu_overlap *overlap);

/* Whether the launch is one of such a pair: only then are the functions below called. */
static inline int mxa_emu_overlaps(void)
{
    return mxa_emu_now->options.leads || mxa_emu_now->options.follows;
}

/* 1: the thread that runs may not rely on the first grid yet, neither by its own wait nor by that
 * of a thread it has synchronised with. What is asynchronous asks when it is issued. */
int mxa_emu_overlap_early(void);

/* Bytes that were read from global memory, in `to`: where they are too early, some are as the first
 * grid found them. */
void mxa_emu_overlap_read(uint64_t at, void *to, uint64_t bytes, int early, mxa_emu_site site);

/* Before bytes are written; 0: they are lost, because the first grid's come later. */
int mxa_emu_overlap_write(uint64_t at, uint64_t bytes, int early, mxa_emu_site site);

#endif
