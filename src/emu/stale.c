/* stale.c: see stale.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/stale.h"

#include "emu/shadow.h"

/* Bytes of a piece of `size` bytes, the first of which is bit `first`. */
static uint32_t not_fenced(const piece *p, uint32_t size, uint32_t first,
                           const mxa_emu_thread *viewer)
{
    if (p->parts) {
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 4; i++) {
            bits |= not_fenced(&p->parts[i], size / 4, first + i * (size / 4), viewer);
        }
        return bits;
    }
    const mxa_emu_access *writer = &p->whole.writer;
    const uint32_t fenced = writer->component == viewer->component
                                ? viewer->own_proxy
                                : viewer->proxy->at[writer->component];
    const int stale = mxa_emu_is_generic(writer->kind) && fenced < writer->clock;
    return stale ? ((1u << size) - 1) << first : 0;
}

void mxa_emu_stale_mark(mxa_emu_cta *cta, uint32_t offset, const mxa_emu_thread *viewer)
{
    const block *b = &cta->shadow->shared[offset / BLOCK_BYTES];
    uint16_t *marks = &cta->stale[offset / UNIT_BYTES];
    if (!b->pieces) {
        return; /* no thread has written there */
    }
    const uint32_t bits =
        not_fenced(&b->pieces[offset % BLOCK_BYTES / UNIT_BYTES], UNIT_BYTES, 0, viewer);
    cta->stale_units += *marks == 0 && bits;
    *marks |= (uint16_t)bits;
}

void mxa_emu_stale_forget(mxa_emu_cta *cta, uint32_t offset, uint32_t bytes)
{
    for (uint32_t unit = offset / UNIT_BYTES; unit * UNIT_BYTES < offset + bytes; unit++) {
        cta->stale_units -= cta->stale[unit] != 0;
        cta->stale[unit] = 0;
    }
}

void mxa_emu_stale_serve(const mxa_emu_cta *cta, uint32_t offset, unsigned char *to)
{
    const uint32_t bits = cta->stale[offset / UNIT_BYTES];
    for (uint32_t i = 0; bits >> i; i++) {
        if (bits >> i & 1) {
            to[i] = cta->before[offset + i];
        }
    }
}
