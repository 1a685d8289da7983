/* sched.c: which thread runs next, meetings of warps, and what a thread waits for.
 *
 * A thread runs until it must wait. Waiting never spins, so when no thread can run and nothing
 * asynchronous is pending, the kernel is deadlocked: exactly, and at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/engine.h"
#include "emu/fiber.h"
#include "emu/memory.h"

#include <string.h>

/* NOTE: no tls_model: initial-exec would ask for all of the library's thread-local memory in the
 * static block, and a program that opens the library at run time (Python) has little room there. */
_Thread_local mxa_emu *mxa_emu_now;

mxa_emu_engine *mxa_emu_engine_now(void)
{
    return mxa_emu_now->engine;
}

uint32_t mxa_emu_random(uint32_t below)
{
    uint64_t x = mxa_emu_now->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    mxa_emu_now->random = x;
    return (uint32_t)((x >> 32) * below >> 32);
}

void mxa_emu_make_runnable(mxa_emu_thread *thread)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    thread->state = MXA_EMU_RUNNABLE;
    thread->runnable_at = engine->runnable_count;
    engine->runnable[engine->runnable_count++] = thread;
}

/* Threads whose condition has become true go on. */
static void ask_conditions(void)
{
    mxa_emu *emu = mxa_emu_now;
    for (int c = 0; c < emu->cluster; c++) {
        for (int i = 0; i < emu->threads; i++) {
            mxa_emu_thread *thread = &emu->ctas[c]->threads[i];
            if (thread->state == MXA_EMU_AT_CONDITION &&
                thread->condition(thread->condition_argument)) {
                emu->engine->waiting_conditions--;
                mxa_emu_make_runnable(thread);
            }
        }
    }
}

/* Takes the i'th of those that can run. */
static mxa_emu_thread *take(mxa_emu_engine *engine, int i)
{
    mxa_emu_thread *thread = engine->runnable[i],
                   *last = engine->runnable[--engine->runnable_count];
    engine->runnable[i] = last;
    last->runnable_at = i;
    return thread;
}

static mxa_emu_thread *pick(mxa_emu_engine *engine)
{
    const int any = engine->runnable_count - 1;
    return take(engine, mxa_emu_now->options.eager
                            ? any
                            : (int)mxa_emu_random((uint32_t)engine->runnable_count));
}

/* Leaves the thread that runs (or the launch) for the next one. */
static void go_on(void **save)
{
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    while (engine->alive > 0) {
        if (engine->waiting_conditions > 0 &&
            (engine->runnable_count == 0 || mxa_emu_random(8) == 0)) {
            ask_conditions();
        }
        if (engine->pending > 0 &&
            (engine->runnable_count == 0 || mxa_emu_random(1024) < engine->asynchronous_rate)) {
            (void)mxa_emu_run_one();
        } else if (engine->runnable_count > 0) {
            emu->step++;
            emu->thread = pick(engine);
            if (save != &emu->thread->stack_pointer) {
                mxa_emu_fiber_switch(save, emu->thread->stack_pointer);
            }
            return;
        } else {
            mxa_emu_report_deadlock();
            mxa_emu_abort();
        }
    }
    emu->thread = NULL;
    mxa_emu_fiber_switch(save, engine->home);
}

void mxa_emu_block_in(mxa_emu_state state, mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    thread->state = state;
    thread->site = site;
    go_on(&thread->stack_pointer);
}

void mxa_emu_pause(void)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (!mxa_emu_now->options.eager && mxa_emu_random(16) == 0) {
        mxa_emu_make_runnable(thread);
        go_on(&thread->stack_pointer);
    }
}

/* Another thread that can run goes first, any of them: two that poll must not only take turns. And
 * now and then a copy is done, which may be what the thread is waited for. */
void mxa_emu_poll(void)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (engine->pending > 0 && mxa_emu_random(16) == 0) {
        (void)mxa_emu_run_one();
    }
    mxa_emu_make_runnable(thread);
    const int last = engine->runnable_count - 1,
              other = last > 0 ? (int)mxa_emu_random((uint32_t)last) : last;
    engine->runnable[last] = engine->runnable[other];
    engine->runnable[other] = thread;
    engine->runnable[last]->runnable_at = last;
    thread->runnable_at = other;
    go_on(&thread->stack_pointer);
}

void mxa_emu_until(int (*condition)(void *), void *argument, const char *name, mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    while (!condition(argument)) {
        thread->condition = condition;
        thread->condition_argument = argument;
        thread->condition_name = name;
        mxa_emu_engine_now()->waiting_conditions++;
        mxa_emu_block_in(MXA_EMU_AT_CONDITION, site);
    }
}

void mxa_emu_abort(void)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    void *nowhere;
    engine->aborted = 1;
    mxa_emu_now->thread = NULL;
    mxa_emu_fiber_switch(&nowhere, engine->home);
    __builtin_unreachable();
}

static void thread_main(void)
{
    mxa_emu *emu = mxa_emu_now;
    emu->engine->kernel->thread(emu->engine->parameters);
    mxa_emu_settle();
    emu->thread->state = MXA_EMU_FINISHED;
    emu->thread->cta->alive--;
    emu->engine->alive--;
    mxa_emu_thread_ends();
    go_on(&emu->thread->stack_pointer);
}

int mxa_emu_run(void)
{
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    engine->runnable_count = engine->waiting_conditions = 0;
    engine->alive = emu->cluster * emu->threads;
    for (int c = emu->cluster - 1; c >= 0; c--) {
        emu->ctas[c]->alive = emu->threads;
        for (int i = emu->threads - 1; i >= 0; i--) {
            mxa_emu_thread *thread = &emu->ctas[c]->threads[i];
            thread->stack_pointer =
                mxa_emu_fiber_begin(engine->stacks, c * emu->threads + i, thread_main);
            mxa_emu_make_runnable(thread);
        }
    }
    go_on(&engine->home);
    return !engine->aborted;
}

/* ---- meetings ---- */

/* Lanes whose clocks differ: what the group does must be in order for each of them. */
static void view_all(mxa_emu_meeting *meeting)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    engine->viewers_count = 0;
    for (int i = 0; i < meeting->lanes; i++) {
        mxa_emu_thread *thread = &meeting->first[i];
        int known = 0;
        for (int v = 0; v < engine->viewers_count; v++) {
            const mxa_emu_thread *other = engine->viewers[v];
            known |= thread->known == other->known && thread->proxy == other->proxy &&
                     thread->tensor == other->tensor;
        }
        if (!known && engine->viewers_count < 8) {
            engine->viewers[engine->viewers_count++] = thread;
        }
    }
}

/* WHY mostly the next lane comes next: it is in the cache, the scheduler is not asked, and an order
 * among the lanes of a warp hides nothing, since order is checked by clocks. */
static void wait_for_lanes(mxa_emu_thread *thread, mxa_emu_thread *next, mxa_emu_site site)
{
    mxa_emu *emu = mxa_emu_now;
    if (next->state != MXA_EMU_RUNNABLE || emu->options.eager || mxa_emu_random(32) == 0) {
        mxa_emu_block_in(MXA_EMU_IN_MEETING, site);
        return;
    }
    thread->state = MXA_EMU_IN_MEETING;
    thread->site = site;
    emu->step++;
    emu->thread = take(emu->engine, next->runnable_at);
    const char *after = next[1].stack_pointer; /* mostly the one after it, and out of the cache */
    __builtin_prefetch(after);
    __builtin_prefetch(after + 64);
    __builtin_prefetch(after + 128);
    mxa_emu_fiber_switch(&thread->stack_pointer, next->stack_pointer);
}

/* Lanes that have come to `meeting` are at another instruction than the thread that runs. */
static _Noreturn void diverge(const mxa_emu_meeting *meeting, const char *name, mxa_emu_site site)
{
    char text[96];
    mxa_emu_error(12, "lanes of a warp at different instructions", site, meeting->site,
                  "%s is at %s, others at %s",
                  mxa_emu_thread_text(mxa_emu_now->thread->component, text, sizeof text), name,
                  meeting->name);
    mxa_emu_abort();
}

static void join(mxa_emu_meeting *meeting, int is_first, const char *name,
                 void (*body)(mxa_emu_meeting *), uint64_t key, mxa_emu_site site)
{
    const int i = (int)(mxa_emu_now->thread - meeting->first);
    if (is_first) {
        meeting->name = name;
        meeting->body = body;
        meeting->key = key;
        memset(meeting->present, 0, sizeof meeting->present);
    } else if (meeting->body != body || meeting->key != key) {
        diverge(meeting, name, site);
    }
    meeting->present[i / 32] |= 1u << (i % 32);
    meeting->site = site;
}

static void hold(mxa_emu_meeting *meeting)
{
    mxa_emu_count(meeting->name);
    if (mxa_emu_now->options.checks) {
        view_all(meeting);
    }
    meeting->body(meeting);
    mxa_emu_engine_now()->viewers_count = 0;
    meeting->come = 0;
}

static void meet(mxa_emu_meeting *meeting, const char *name, void (*body)(mxa_emu_meeting *),
                 uint64_t key, void *lane, mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    const mxa_emu_warp *warp = thread->warp;
    const int i = (int)(thread - meeting->first);
    if (thread->left != warp->left_opened) { /* others have left what it has not come to */
        diverge(&warp->left[thread->left % MXA_EMU_LEFT], name, site);
    }
    join(meeting, meeting->come == 0, name, body, key, site);
    meeting->lane[i] = lane;
    if (++meeting->come < meeting->lanes) {
        wait_for_lanes(thread, &meeting->first[(i + 1) % meeting->lanes], site);
        return;
    }
    hold(meeting);
    for (int j = meeting->lanes - 1; j >= 0; j--) {
        if (j != i) {
            mxa_emu_make_runnable(&meeting->first[j]);
        }
    }
}

void mxa_emu_meet_warp(const char *name, void (*body)(mxa_emu_meeting *), uint64_t key, void *lane,
                       mxa_emu_site site)
{
    meet(mxa_emu_now->thread->warp->meeting, name, body, key, lane, site);
}

void mxa_emu_meet_warpgroup(const char *name, void (*body)(mxa_emu_meeting *), uint64_t key,
                            void *lane, mxa_emu_site site)
{
    mxa_emu_warp *warp = mxa_emu_now->thread->warp;
    mxa_emu_warp *first = warp - warp->index % 4;
    if (!first->group_meeting) {
        mxa_emu_error(12, "warpgroup of fewer than four warps", site, 0, "%s in a CTA of %d warps",
                      name, warp->cta->warps);
        mxa_emu_abort();
    }
    meet(first->group_meeting, name, body, key, lane, site);
}

mxa_emu_meeting *mxa_emu_leave_begin(const char *name, void (*body)(mxa_emu_meeting *),
                                     uint64_t key, mxa_emu_site site)
{
    const mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_warp *warp = thread->warp;
    if (thread->left - warp->left_done == MXA_EMU_LEFT) {
        mxa_emu_settle_here(site);
    }
    mxa_emu_meeting *meeting = &warp->left[thread->left % MXA_EMU_LEFT];
    const int is_first = thread->left == warp->left_opened;
    if (is_first) {
        const mxa_emu_meeting *others[] = {warp->meeting, (warp - warp->index % 4)->group_meeting};
        for (int m = 0; m < 2; m++) { /* lanes of this warp are there already */
            const int at = others[m] ? (int)(warp->threads - others[m]->first) / 32 : 0;
            if (others[m] && others[m]->come && others[m]->present[at]) {
                diverge(others[m], name, site);
            }
        }
        warp->left_opened++;
        meeting->fence_before = meeting->fence_after = 0;
    }
    join(meeting, is_first, name, body, key, site);
    return meeting;
}

void mxa_emu_leave_end(mxa_emu_meeting *meeting)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_warp *warp = thread->warp;
    thread->left++;
    if (++meeting->come < meeting->lanes) {
        return;
    }
    hold(meeting);
    meeting->left = NULL;
    warp->left_done++;
    for (uint32_t rest = meeting->fence_before; rest; rest &= rest - 1) {
        mxa_emu_fence_publish(&warp->threads[__builtin_ctz(rest)]);
    }
    for (uint32_t rest = meeting->fence_after; rest; rest &= rest - 1) {
        mxa_emu_fence_tensor(&warp->threads[__builtin_ctz(rest)]);
    }
    for (int i = 0; warp->settlers && i < MXA_EMU_LANES; i++) {
        mxa_emu_thread *other = &warp->threads[i];
        if (other->settles && other->left == warp->left_done) {
            other->settles = 0;
            warp->settlers--;
            mxa_emu_make_runnable(other);
        }
    }
}

void mxa_emu_leave(const char *name, void (*body)(mxa_emu_meeting *), mxa_emu_site site)
{
    mxa_emu_leave_end(mxa_emu_leave_begin(name, body, 0, site));
}

void mxa_emu_fence_in_turn(int before, mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    const mxa_emu_warp *warp = thread->warp;
    if (thread->left != warp->left_done) {
        mxa_emu_meeting *last = &warp->left[(thread->left - 1) % MXA_EMU_LEFT];
        const uint32_t bit = 1u << thread->lane;
        if (before ? !(last->fence_after & bit) : !(last->fence_before & bit)) {
            *(before ? &last->fence_before : &last->fence_after) |= bit;
            return;
        }
        mxa_emu_settle_here(site);
    }
    if (before) {
        mxa_emu_fence_publish(thread);
    } else {
        mxa_emu_fence_tensor(thread);
    }
}

void mxa_emu_settle_here(mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    thread->settles = 1;
    thread->warp->settlers++;
    mxa_emu_block_in(MXA_EMU_IN_MEETING, site);
}

/* ---- order between threads ---- */

int mxa_emu_knows(const mxa_emu_thread *thread, uint16_t component, uint32_t clock)
{
    return component == thread->component || thread->known->at[component] >= clock;
}

void mxa_emu_publish_of(mxa_emu_thread *thread, mxa_emu_gathering *known, mxa_emu_gathering *proxy)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    if (mxa_emu_now->options.checks) {
        mxa_emu_gather(clocks, known, thread->known);
        mxa_emu_gather_component(clocks, known, thread->component, thread->own);
        mxa_emu_gather(clocks, proxy, thread->proxy);
        mxa_emu_gather_component(clocks, proxy, thread->component, thread->own_proxy);
        thread->own++;
    }
}

void mxa_emu_publish(mxa_emu_gathering *known, mxa_emu_gathering *proxy)
{
    mxa_emu_publish_of(mxa_emu_now->thread, known, proxy);
}

void mxa_emu_acquire(mxa_emu_thread *thread, const mxa_emu_clock *known, const mxa_emu_clock *proxy)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    if (mxa_emu_now->options.checks) {
        mxa_emu_clock_join(clocks, &thread->known, known);
        mxa_emu_clock_join(clocks, &thread->proxy, proxy);
        if (!mxa_emu_now->options.strict_fences) {
            mxa_emu_clock_join(clocks, &thread->tensor, thread->known);
        }
    }
}

void mxa_emu_acquire_all(mxa_emu_thread *thread, const mxa_emu_clock *known,
                         const mxa_emu_clock *proxy)
{
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    mxa_emu_clock_set(clocks, &thread->known, known);
    mxa_emu_clock_set(clocks, &thread->proxy, proxy);
    if (!mxa_emu_now->options.strict_fences) {
        mxa_emu_clock_join(clocks, &thread->tensor, thread->known);
    }
}

void mxa_emu_learn(mxa_emu_thread *thread, uint16_t component, uint32_t clock)
{
    if (mxa_emu_now->options.checks) {
        mxa_emu_clock_raise(&mxa_emu_engine_now()->clocks, &thread->known, component, clock);
    }
}

void mxa_emu_learn_tensor(mxa_emu_thread *thread, uint16_t component, uint32_t clock)
{
    if (mxa_emu_now->options.checks) {
        mxa_emu_clock_raise(&mxa_emu_engine_now()->clocks, &thread->tensor, component, clock);
    }
}

void mxa_emu_fence_proxy(mxa_emu_thread *thread)
{
    if (mxa_emu_now->options.checks) {
        mxa_emu_clock_join(&mxa_emu_engine_now()->clocks, &thread->proxy, thread->known);
        thread->own_proxy = thread->own++;
    }
}

void mxa_emu_fence_publish(mxa_emu_thread *thread)
{
    const mxa_emu_warp *warp = thread->warp;
    mxa_emu_learn(thread, warp->load.component, warp->load_waited);
    mxa_emu_learn(thread, warp->store.component, warp->store_waited);
}

void mxa_emu_fence_tensor(mxa_emu_thread *thread)
{
    if (mxa_emu_now->options.checks) {
        mxa_emu_clock_join(&mxa_emu_engine_now()->clocks, &thread->tensor, thread->known);
    }
}
