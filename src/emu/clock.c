/* clock.c: see clock.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/clock.h"
#include "emu/engine.h"

#include <string.h>

/* Clocks are cut from sheets, which are freed together. WHY of one size: launches of other numbers
 * of threads then take the same ones. */
enum { SHEET_BYTES = 96 << 10, MOST_SHEETS = 64 };
typedef struct mxa_emu_clock_sheet {
    struct mxa_emu_clock_sheet *next;
    uint64_t reserved; /* clocks start at a multiple of 16 */
    unsigned char clocks[SHEET_BYTES];
} clock_sheet;
_Static_assert(SHEET_BYTES > 8 * MXA_EMU_CLUSTER_MOST * MXA_EMU_MOST_THREADS, "room for one clock");

static void put_back(mxa_emu_clocks *clocks, mxa_emu_clock *clock)
{
    memcpy(clock->at, &clocks->unused, sizeof clocks->unused);
    clocks->unused = clock;
}

static size_t clock_bytes(const mxa_emu_clocks *clocks)
{
    return sizeof(mxa_emu_clock) + clocks->components * sizeof clocks->unused->at[0];
}

static void put_sheet(mxa_emu_clocks *clocks, clock_sheet *sheet)
{
    const size_t bytes = clock_bytes(clocks);
    for (size_t i = SHEET_BYTES / bytes; i > 0; i--) {
        put_back(clocks, (mxa_emu_clock *)(void *)(sheet->clocks + (i - 1) * bytes));
    }
}

static mxa_emu_clock *clock_new(mxa_emu_clocks *clocks)
{
    if (!clocks->unused) {
        clock_sheet *sheet = mxa_emu_alloc(sizeof *sheet);
        sheet->next = clocks->sheets;
        clocks->sheets = sheet;
        put_sheet(clocks, sheet);
    }
    mxa_emu_clock *clock = clocks->unused;
    memcpy(&clocks->unused, clock->at, sizeof clocks->unused);
    clock->references = 1;
    return clock;
}

static mxa_emu_clock *copy_of(mxa_emu_clocks *clocks, const mxa_emu_clock *clock)
{
    mxa_emu_clock *copy = clock_new(clocks);
    memcpy(copy->at, clock->at, clocks->components * sizeof copy->at[0]);
    return copy;
}

const mxa_emu_clock *mxa_emu_clock_keep(const mxa_emu_clock *clock)
{
    mxa_emu_clock *counted;
    memcpy(&counted, &clock, sizeof counted);
    counted->references++;
    return clock;
}

void mxa_emu_clock_drop(mxa_emu_clocks *clocks, const mxa_emu_clock *clock)
{
    mxa_emu_clock *counted;
    memcpy(&counted, &clock, sizeof counted);
    if (clock && --counted->references == 0) {
        put_back(clocks, counted);
    }
}

void mxa_emu_clock_set(mxa_emu_clocks *clocks, const mxa_emu_clock **clock, const mxa_emu_clock *to)
{
    if (*clock != to) {
        mxa_emu_clock_drop(clocks, *clock);
        *clock = mxa_emu_clock_keep(to);
    }
}

void mxa_emu_clocks_begin(mxa_emu_clocks *clocks, uint32_t components)
{
    clock_sheet *sheets = clocks->sheets;
    memset(clocks, 0, sizeof *clocks);
    clocks->components = (components + 15) & ~15u;
    clocks->sheets = sheets;
    for (clock_sheet *sheet = sheets; sheet; sheet = sheet->next) {
        put_sheet(clocks, sheet);
    }
#if defined(__x86_64__)
    clocks->has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif
    mxa_emu_clock *zero = clock_new(clocks);
    memset(zero->at, 0, clocks->components * sizeof zero->at[0]);
    clocks->zero = zero;
}

/* Few launches need more than some sheets; those of one that did are given back. */
void mxa_emu_clocks_end(mxa_emu_clocks *clocks)
{
    clocks->unused = NULL;
    int sheets = 0;
    for (clock_sheet *sheet = clocks->sheets; sheet; sheet = sheet->next) {
        if (++sheets > MOST_SHEETS) {
            mxa_emu_clocks_free(clocks);
            return;
        }
    }
}

void mxa_emu_clocks_free(mxa_emu_clocks *clocks)
{
    while (clocks->sheets) {
        clock_sheet *next = clocks->sheets->next;
        mxa_emu_free(clocks->sheets);
        clocks->sheets = next;
    }
    clocks->unused = NULL;
}

/* Written for a vectorizing compiler; counts are multiples of 16. WHY twice: without AVX2 there is
 * no unsigned maximum, and clocks were an eighth of a forward's time. */
static inline __attribute__((always_inline)) void join_loop(uint32_t *restrict to,
                                                            const uint32_t *restrict a,
                                                            const uint32_t *restrict b, uint32_t n,
                                                            uint32_t *a_less, uint32_t *b_less)
{
    uint32_t some_a = 0, some_b = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t x = a[i], y = b[i], larger = x < y ? y : x;
        some_a |= x ^ larger;
        some_b |= y ^ larger;
        to[i] = larger;
    }
    *a_less = some_a;
    *b_less = some_b;
}

static inline __attribute__((always_inline)) void
raise_loop(uint32_t *restrict to, const uint32_t *restrict from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] = to[i] < from[i] ? from[i] : to[i];
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void join_avx2(uint32_t *restrict to,
                                                      const uint32_t *restrict a,
                                                      const uint32_t *restrict b, uint32_t n,
                                                      uint32_t *a_less, uint32_t *b_less)
{
    join_loop(to, a, b, n, a_less, b_less);
}

__attribute__((target("avx2"))) static void raise_avx2(uint32_t *restrict to,
                                                       const uint32_t *restrict from, uint32_t n)
{
    raise_loop(to, from, n);
}
#endif

static void join_into(const mxa_emu_clocks *clocks, uint32_t *to, const uint32_t *a,
                      const uint32_t *b, uint32_t *a_less, uint32_t *b_less)
{
#if defined(__x86_64__)
    if (clocks->has_avx2) {
        join_avx2(to, a, b, clocks->components, a_less, b_less);
        return;
    }
#endif
    join_loop(to, a, b, clocks->components, a_less, b_less);
}

static void raise_to(const mxa_emu_clocks *clocks, uint32_t *to, const uint32_t *from)
{
#if defined(__x86_64__)
    if (clocks->has_avx2) {
        raise_avx2(to, from, clocks->components);
        return;
    }
#endif
    raise_loop(to, from, clocks->components);
}

void mxa_emu_clock_join(mxa_emu_clocks *clocks, const mxa_emu_clock **clock,
                        const mxa_emu_clock *other)
{
    const mxa_emu_clock *mine = *clock;
    if (mine == other || other == clocks->zero || !other) {
        return;
    }
    const uintptr_t mix = (uintptr_t)mine * 31 + (uintptr_t)other;
    const size_t slot = (mix >> 5 ^ mix >> 11) % (sizeof clocks->memory / sizeof clocks->memory[0]);
    if (clocks->memory[slot].a != mine || clocks->memory[slot].b != other) {
        mxa_emu_clock *made = clock_new(clocks);
        uint32_t mine_less, other_less;
        join_into(clocks, made->at, mine->at, other->at, &mine_less, &other_less);
        const mxa_emu_clock *joined = made;
        if (!mine_less || !other_less) {
            joined = mxa_emu_clock_keep(mine_less ? other : mine);
            mxa_emu_clock_drop(clocks, made);
        }
        if (clocks->memory[slot].a) {
            mxa_emu_clock_drop(clocks, clocks->memory[slot].a);
            mxa_emu_clock_drop(clocks, clocks->memory[slot].b);
            mxa_emu_clock_drop(clocks, clocks->memory[slot].joined);
        }
        clocks->memory[slot].a = mxa_emu_clock_keep(mine);
        clocks->memory[slot].b = mxa_emu_clock_keep(other);
        clocks->memory[slot].joined = joined;
    }
    *clock = mxa_emu_clock_keep(clocks->memory[slot].joined);
    mxa_emu_clock_drop(clocks, mine);
}

void mxa_emu_clock_raise(mxa_emu_clocks *clocks, const mxa_emu_clock **clock, uint16_t component,
                         uint32_t value)
{
    const mxa_emu_clock *mine = *clock;
    if (mine->at[component] >= value) {
        return;
    }
    if (clocks->last_raise.from != mine || clocks->last_raise.component != component ||
        clocks->last_raise.value != value) {
        mxa_emu_clock *raised = copy_of(clocks, mine);
        raised->at[component] = value;
        mxa_emu_clock_drop(clocks, clocks->last_raise.from);
        mxa_emu_clock_drop(clocks, clocks->last_raise.raised);
        clocks->last_raise.from = mxa_emu_clock_keep(mine);
        clocks->last_raise.raised = raised;
        clocks->last_raise.component = component;
        clocks->last_raise.value = value;
    }
    *clock = mxa_emu_clock_keep(clocks->last_raise.raised);
    mxa_emu_clock_drop(clocks, mine);
}

static void forget_copy(mxa_emu_clocks *clocks, mxa_emu_gathering *gathering)
{
    mxa_emu_clock_drop(clocks, gathering->copy);
    gathering->copy = NULL;
}

void mxa_emu_gather(mxa_emu_clocks *clocks, mxa_emu_gathering *into, const mxa_emu_clock *clock)
{
    if (!into->sum) {
        into->sum = copy_of(clocks, clock);
    } else if (clock == into->last || clock == clocks->zero) {
        return;
    } else {
        raise_to(clocks, into->sum->at, clock->at);
        forget_copy(clocks, into);
    }
    mxa_emu_clock_drop(clocks, into->last);
    into->last = mxa_emu_clock_keep(clock);
}

void mxa_emu_gather_component(mxa_emu_clocks *clocks, mxa_emu_gathering *into, uint16_t component,
                              uint32_t value)
{
    if (!into->sum) {
        into->sum = copy_of(clocks, clocks->zero);
    }
    if (into->sum->at[component] < value) {
        into->sum->at[component] = value;
        forget_copy(clocks, into);
    }
}

const mxa_emu_clock *mxa_emu_gathered(mxa_emu_clocks *clocks, mxa_emu_gathering *from)
{
    if (!from->sum) {
        return mxa_emu_clock_keep(clocks->zero);
    }
    if (!from->copy) {
        from->copy = copy_of(clocks, from->sum);
    }
    return mxa_emu_clock_keep(from->copy);
}

const mxa_emu_clock *mxa_emu_gathered_last(mxa_emu_clocks *clocks, mxa_emu_gathering *from)
{
    const mxa_emu_clock *sum = from->sum ? from->sum : mxa_emu_clock_keep(clocks->zero);
    from->sum = NULL;
    mxa_emu_gathering_clear(clocks, from);
    return sum;
}

void mxa_emu_gathering_clear(mxa_emu_clocks *clocks, mxa_emu_gathering *gathering)
{
    mxa_emu_clock_drop(clocks, gathering->sum);
    mxa_emu_clock_drop(clocks, gathering->last);
    forget_copy(clocks, gathering);
    gathering->sum = NULL;
    gathering->last = NULL;
}
