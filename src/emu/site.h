/* site.h: a place in a kernel's code: the return address of the instruction's call.
 *
 * Each instruction of a kernel calls the emulator from a different place, so the return address
 * names the instruction; addr2line turns it into a line and the functions it was inlined into.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_SITE_H
#define MXA_EMU_SITE_H

#include <stdint.h>

/* Relative to mxa_emu_anchor, so that 32 bits do; 0: none. */
typedef int32_t mxa_emu_site;

extern const char mxa_emu_anchor;

/* Of the function it is written in, which a kernel calls; after what the warp's lanes have left
 * (emu.h). */
#define MXA_EMU_SITE() (mxa_emu_settle(), MXA_EMU_MEETING_SITE())

/* The same in a function that only meets the warp, or leaves it something. */
#define MXA_EMU_MEETING_SITE()                                                                     \
    ((mxa_emu_site)((intptr_t)__builtin_return_address(0) - (intptr_t)&mxa_emu_anchor))

/* Declares such a function. WHY: clang merges equal calls of two branches into one. */
#if defined(__clang__)
#define MXA_EMU_ENTRY __attribute__((nomerge))
#else
#define MXA_EMU_ENTRY
#endif

#endif
