/* clock.h: vector clocks, immutable and shared.
 *
 * Most threads know the same as their neighbours, so a clock is one counted object that many point
 * to, and a join that was made before is found again instead of made again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_CLOCK_H
#define MXA_EMU_CLOCK_H

#include "emu/emu.h"

struct mxa_emu_clock {
    uint32_t references;
    uint32_t reserved[3];
    uint32_t at[]; /* one for each component */
};

/* Where clocks of one launch come from. */
typedef struct mxa_emu_clocks {
    uint32_t components;
    int has_avx2;
    const mxa_emu_clock *zero;
    mxa_emu_clock *unused; /* list through at[0..1] */
    struct mxa_emu_clock_sheet *sheets;
    struct {
        const mxa_emu_clock *a, *b, *joined;
    } memory[64]; /* joins made before; each holds references */
    struct {
        const mxa_emu_clock *from, *raised;
        uint32_t value;
        uint16_t component;
    } last_raise;
} mxa_emu_clocks;

/* Takes the memory of the launch before: clocks is zero, or as _end left it. */
void mxa_emu_clocks_begin(mxa_emu_clocks *clocks, uint32_t components);
void mxa_emu_clocks_end(mxa_emu_clocks *clocks);
void mxa_emu_clocks_free(mxa_emu_clocks *clocks);

const mxa_emu_clock *mxa_emu_clock_keep(const mxa_emu_clock *clock);
void mxa_emu_clock_drop(mxa_emu_clocks *clocks, const mxa_emu_clock *clock);

/* *clock becomes `to`. */
void mxa_emu_clock_set(mxa_emu_clocks *clocks, const mxa_emu_clock **clock,
                       const mxa_emu_clock *to);

/* *clock becomes the join of itself and `other`; references move along. */
void mxa_emu_clock_join(mxa_emu_clocks *clocks, const mxa_emu_clock **clock,
                        const mxa_emu_clock *other);

/* *clock becomes itself with a component raised to at least `value`. */
void mxa_emu_clock_raise(mxa_emu_clocks *clocks, const mxa_emu_clock **clock, uint16_t component,
                         uint32_t value);

/* What arrives at a barrier: grows by joins, and is published as a clock. */
typedef struct mxa_emu_gathering {
    mxa_emu_clock *sum;        /* not shared; NULL: nothing yet */
    const mxa_emu_clock *last; /* joined last: joining it again is nothing */
    const mxa_emu_clock *copy; /* of the sum, while it is as it was then */
} mxa_emu_gathering;

void mxa_emu_gather(mxa_emu_clocks *clocks, mxa_emu_gathering *into, const mxa_emu_clock *clock);
void mxa_emu_gather_component(mxa_emu_clocks *clocks, mxa_emu_gathering *into, uint16_t component,
                              uint32_t value);
/* A copy of the sum so far, with a reference for the caller. */
const mxa_emu_clock *mxa_emu_gathered(mxa_emu_clocks *clocks, mxa_emu_gathering *from);
/* The sum itself, and nothing is gathered then. */
const mxa_emu_clock *mxa_emu_gathered_last(mxa_emu_clocks *clocks, mxa_emu_gathering *from);
void mxa_emu_gathering_clear(mxa_emu_clocks *clocks, mxa_emu_gathering *gathering);

#endif
