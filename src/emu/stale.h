/* stale.h: shared memory as asynchronous agents see it where a proxy fence is missing.
 *
 * What a thread stores lies in shared memory at once. Where an asynchronous read was found not to
 * come after a fence, the bytes that threads wrote since are marked, and it is served what those
 * stores overwrote. Nothing is marked in a kernel without that fault.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_STALE_H
#define MXA_EMU_STALE_H

#include "emu/emu.h"

#include <string.h>

/* Bytes from `offset` (of the CTA's shared memory) on that a thread is about to overwrite. */
static inline void mxa_emu_stale_keep(mxa_emu_cta *cta, uint32_t offset, uint32_t bytes)
{
    memcpy(cta->before + offset, cta->shared + offset, bytes);
}

/* Marks, of the 16 bytes at `offset`, those whose last write is a thread's that `viewer` does not
 * know to be fenced. */
void mxa_emu_stale_mark(mxa_emu_cta *cta, uint32_t offset, const mxa_emu_thread *viewer);

/* Takes marks away: the next access is checked anew. */
void mxa_emu_stale_forget(mxa_emu_cta *cta, uint32_t offset, uint32_t bytes);

/* Puts the old bytes over the 16 in `to`, which were read at `offset`. */
void mxa_emu_stale_serve(const mxa_emu_cta *cta, uint32_t offset, unsigned char *to);

#endif
