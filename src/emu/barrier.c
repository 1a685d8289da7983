/* barrier.c: named barriers, what a warp does together, and registers handed around.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/barrier.h"

#include "emu/engine.h"
#include "emu/trace.h"

#include <string.h>

/* Counts arrivals of `count` threads from `first` on; 1: the barrier is complete. */
static int arrive(mxa_emu_named_barrier *barrier, int id, int threads, mxa_emu_thread *first,
                  int count, mxa_emu_site site)
{
    const int most = mxa_emu_now->threads, expected = threads ? threads : most;
    if (id < 0 || id >= MXA_EMU_NAMED_BARRIERS || expected % MXA_EMU_LANES || expected > most) {
        mxa_emu_error(12, "named barrier out of its range", site, 0,
                      "barrier %d of %d threads; ids are 0 to 15, counts multiples of 32 up to the "
                      "CTA's %d",
                      id, expected, most);
        mxa_emu_abort();
    }
    if (barrier->arrived && barrier->expected != expected) {
        mxa_emu_error(12, "named barrier with two counts", site, 0,
                      "barrier %d: %d threads here, %d elsewhere", id, expected, barrier->expected);
        mxa_emu_abort();
    }
    if (barrier->arrived + count > expected) {
        mxa_emu_error(12, "more threads at a named barrier than it counts", site, 0,
                      "barrier %d: %d and %d more of %d", id, barrier->arrived, count, expected);
        mxa_emu_abort();
    }
    barrier->expected = expected;
    for (int i = 0; i < count; i++) {
        mxa_emu_publish_of(&first[i], &barrier->known, &barrier->proxy);
    }
    return (barrier->arrived += count) == expected;
}

/* All that wait go on, and know what any of the others knew; so does `last`, unless it is NULL: it
 * only arrived. */
static void complete(mxa_emu_named_barrier *barrier, int id, mxa_emu_thread *last)
{
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_clocks *clocks = &emu->engine->clocks;
    mxa_emu_cta *cta = emu->thread->cta;
    const mxa_emu_clock *known = mxa_emu_gathered_last(clocks, &barrier->known);
    const mxa_emu_clock *proxy = mxa_emu_gathered_last(clocks, &barrier->proxy);
    barrier->arrived = 0;
    for (int i = emu->threads - 1; i >= 0; i--) {
        mxa_emu_thread *thread = &cta->threads[i];
        if (thread->state == MXA_EMU_AT_BARRIER && thread->wait_barrier == id) {
            mxa_emu_acquire(thread, known, proxy);
            mxa_emu_make_runnable(thread);
        }
    }
    if (last) {
        mxa_emu_acquire(last, known, proxy);
    }
    mxa_emu_clock_drop(clocks, known);
    mxa_emu_clock_drop(clocks, proxy);
}

void mxa_emu_barrier_sync(int id, int threads, int aligned)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    const mxa_emu_meeting *meeting = thread->warp->meeting;
    mxa_emu_named_barrier *barrier = &thread->cta->barriers->named[id & 15];
    const int64_t first = mxa_emu_now->step;
    if (aligned && meeting->come) {
        mxa_emu_error(12, "aligned barrier in divergent code", site, 0,
                      "barrier %d, while other lanes of the warp are at %s", id, meeting->name);
        mxa_emu_abort();
    }
    const int last = arrive(barrier, id, threads, thread, 1, site);
    thread->wait_barrier = id;
    mxa_emu_count("barrier.sync");
    if (!last) {
        mxa_emu_block_in(MXA_EMU_AT_BARRIER, site);
        mxa_emu_trace_wait(thread, "barrier.sync", first);
        return;
    }
    complete(barrier, id, thread);
    mxa_emu_pause();
}

/* The warp's arrival: barrier.arrive.aligned is one instruction of all its lanes (9.7.13.1), and
 * each of them goes on at once, as far as it likes. */
static void arrive_warp(mxa_emu_meeting *meeting)
{
    const int *given = meeting->lane[0]; /* id, threads: the key says that all lanes agree */
    mxa_emu_named_barrier *barrier = &meeting->warp->cta->barriers->named[given[0] & 15];
    if (arrive(barrier, given[0], given[1], meeting->first, meeting->lanes, meeting->site)) {
        complete(barrier, given[0], NULL);
    }
}

void mxa_emu_barrier_arrive(int id, int threads)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    int given[] = {id, threads};
    mxa_emu_meet_warp("barrier.arrive", arrive_warp,
                      (uint64_t)(uint32_t)id << 32 | (uint32_t)threads, given, site);
    mxa_emu_pause();
}

/* ---- warps ---- */

static void sync_lanes(mxa_emu_meeting *meeting)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    mxa_emu_gathering known = {NULL, NULL, NULL}, proxy = {NULL, NULL, NULL};
    if (!mxa_emu_now->options.checks) {
        return;
    }
    for (int i = 0; i < meeting->lanes; i++) {
        mxa_emu_publish_of(&meeting->first[i], &known, &proxy);
    }
    /* Each lane gave what it knows, so that all of it together is what each knows now. */
    const mxa_emu_clock *all_known = mxa_emu_gathered_last(clocks, &known);
    const mxa_emu_clock *all_proxy = mxa_emu_gathered_last(clocks, &proxy);
    for (int i = 0; i < meeting->lanes; i++) {
        mxa_emu_acquire_all(&meeting->first[i], all_known, all_proxy);
    }
    mxa_emu_clock_drop(clocks, all_known);
    mxa_emu_clock_drop(clocks, all_proxy);
}

void mxa_emu_warp_sync(void)
{
    mxa_emu_leave("bar.warp.sync", sync_lanes, MXA_EMU_MEETING_SITE());
}

typedef struct exchange_lane {
    int kind, operand;
    uint32_t x, result;
} exchange_lane;

/* The magnitude, or the canonical NaN. */
static uint32_t larger_magnitude(uint32_t a, uint32_t b)
{
    a &= 0x7FFFFFFFu;
    b &= 0x7FFFFFFFu;
    if (a > 0x7F800000u || b > 0x7F800000u) {
        return 0x7FFFFFFFu;
    }
    return a > b ? a : b;
}

static uint32_t reduce(const mxa_emu_meeting *meeting, int kind)
{
    uint32_t sum = 0;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        const uint32_t x = ((const exchange_lane *)meeting->lane[i])->x;
        switch (kind) {
        case MXA_EMU_VOTE_BALLOT:
            sum |= (uint32_t)(x != 0) << i;
            break;
        case MXA_EMU_MAX_U32:
            sum = x > sum ? x : sum;
            break;
        case MXA_EMU_MAX_ABS_NAN_F32:
            sum = larger_magnitude(sum, x);
            break;
        default: /* MXA_EMU_VOTE_ANY */
            sum |= x;
            break;
        }
    }
    return sum;
}

/* Where lane i's result comes from. */
static int source_lane(const exchange_lane *lane, int i)
{
    switch (lane->kind) {
    case MXA_EMU_SHUFFLE_XOR:
        return (i ^ lane->operand) & 31;
    case MXA_EMU_SHUFFLE_UP:
        return i >= lane->operand ? i - lane->operand : i;
    default: /* MXA_EMU_SHUFFLE_LANE */
        return lane->operand & 31;
    }
}

static void exchange(mxa_emu_meeting *meeting)
{
    const exchange_lane *any = meeting->lane[0];
    const int reduces = any->kind >= MXA_EMU_VOTE_ANY && any->kind != MXA_EMU_ELECT;
    const uint32_t sum = reduces ? reduce(meeting, any->kind) : 0;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        exchange_lane *lane = meeting->lane[i];
        if (lane->kind == MXA_EMU_ELECT) {
            lane->result = i == meeting->warp->elected;
        } else if (reduces) {
            lane->result = sum;
        } else {
            lane->result = ((const exchange_lane *)meeting->lane[source_lane(lane, i)])->x;
        }
    }
}

uint32_t mxa_emu_exchange(int kind, uint32_t x, int operand)
{
    static const char *const names[] = {[MXA_EMU_SHUFFLE_XOR] = "shfl.sync.bfly",
                                        [MXA_EMU_SHUFFLE_UP] = "shfl.sync.up",
                                        [MXA_EMU_SHUFFLE_LANE] = "shfl.sync.idx",
                                        [MXA_EMU_VOTE_ANY] = "vote.sync.any",
                                        [MXA_EMU_VOTE_BALLOT] = "vote.sync.ballot",
                                        [MXA_EMU_ELECT] = "elect.sync",
                                        [MXA_EMU_MAX_U32] = "redux.sync.max",
                                        [MXA_EMU_MAX_ABS_NAN_F32] = "redux.sync.max.abs.NaN"};
    exchange_lane lane = {kind, operand, x, 0};
    mxa_emu_meet_warp(names[kind], exchange, (uint64_t)kind, &lane, MXA_EMU_MEETING_SITE());
    return lane.result;
}

/* ---- setmaxnreg ---- */

typedef struct registers_lane {
    int registers, increase;
    mxa_emu_warp *warp;
} registers_lane;

static void check_registers(mxa_emu_meeting *meeting)
{
    const registers_lane *lane = meeting->lane[0];
    mxa_emu_warp *warp = meeting->warp;
    const int now = warp->registers;
    if (lane->registers % 8 || lane->registers < 24 || lane->registers > 256) {
        mxa_emu_error(0, "setmaxnreg out of its range", meeting->site, 0,
                      "%d registers; multiples of 8 from 24 to 256", lane->registers);
    } else if (lane->increase ? lane->registers < now : lane->registers > now) {
        mxa_emu_error(0, "setmaxnreg in the wrong direction", meeting->site, 0, "%s to %d, from %d",
                      lane->increase ? "inc" : "dec", lane->registers, now);
    }
    if (!lane->increase) {
        mxa_emu_engine_now()->register_pool[warp->cta->rank] += (now - lane->registers) * 128;
        warp->registers = lane->registers;
    }
}

/* The warpgroup's registers, as soon as the pool has them; asked by each lane, taken once. */
static int registers_granted(void *argument)
{
    const registers_lane *lane = argument;
    int *pool = &mxa_emu_engine_now()->register_pool[lane->warp->cta->rank];
    const int more = (lane->registers - lane->warp->registers) * 128;
    if (more > 0 && more <= *pool) {
        *pool -= more;
        lane->warp->registers = lane->registers;
    }
    return lane->warp->registers >= lane->registers;
}

void mxa_emu_setmaxnreg(int registers, int increase)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_warp *warp = mxa_emu_now->thread->warp;
    registers_lane lane = {registers, increase, warp - warp->index % 4};
    mxa_emu_meet_warpgroup("setmaxnreg", check_registers, (uint64_t)registers * 2 + (increase != 0),
                           &lane, site);
    if (increase) {
        mxa_emu_until(registers_granted, &lane, "setmaxnreg.inc", site);
    }
}

/* ---- special registers ---- */

int mxa_emu_thread_index(void)
{
    return mxa_emu_now->thread->index;
}

int mxa_emu_thread_count(void)
{
    return mxa_emu_now->threads;
}

int mxa_emu_block(int axis)
{
    return mxa_emu_now->thread->cta->block[axis];
}

int mxa_emu_grid(int axis)
{
    return mxa_emu_now->grid[axis];
}

uint32_t mxa_emu_dynamic_shared(void)
{
    const mxa_emu_cta *cta = mxa_emu_now->thread->cta;
    return (uint32_t)cta->rank << MXA_EMU_RANK_SHIFT | cta->shared_base;
}
