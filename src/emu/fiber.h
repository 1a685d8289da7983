/* fiber.h: stacks that take turns on one OS thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_FIBER_H
#define MXA_EMU_FIBER_H

#include <stddef.h>

enum { MXA_EMU_STACK_BYTES = 64 << 10 };

/* `count` stacks, each with a page below it that must not be touched; NULL without memory. */
char *mxa_emu_stacks_map(int count);
void mxa_emu_stacks_unmap(char *stacks, int count);

/* What to switch to so that run() begins on stack `index`; run never returns. */
void *mxa_emu_fiber_begin(char *stacks, int index, void (*run)(void));

/* Saves where this one is in *save, and goes on where `to` was saved. */
void mxa_emu_fiber_switch(void **save, void *to);

#endif
