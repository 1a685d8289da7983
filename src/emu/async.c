/* async.c: operations that happen later: pipes, which keep their order, and a pool, which has none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/engine.h"
#include "emu/trace.h"

#include <string.h>

void mxa_emu_pipe_init(mxa_emu_pipe *pipe, mxa_emu_kind kind)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    memset(pipe, 0, sizeof *pipe);
    pipe->component = engine->next_component++;
    pipe->kind = (uint16_t)kind;
    pipe->next = engine->pipes;
    engine->pipes = pipe;
}

/* WHY sharing the last one is safe: what is known of one operation is then thought known of others;
 * a race may be missed, none is invented. */
mxa_emu_pipe *mxa_emu_pipe_on_demand(mxa_emu_kind kind)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    if (engine->on_demand_count == MXA_EMU_PIPES) {
        return &engine->on_demand[MXA_EMU_PIPES - 1];
    }
    mxa_emu_pipe *pipe = &engine->on_demand[engine->on_demand_count++];
    mxa_emu_pipe_init(pipe, kind);
    return pipe;
}

mxa_emu_pipe *mxa_emu_tensor_pipe(void)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (!thread->tensor_pipe) {
        thread->tensor_pipe = mxa_emu_pipe_on_demand(MXA_EMU_MMA);
    }
    return thread->tensor_pipe;
}

mxa_emu_access mxa_emu_issue(mxa_emu_pipe *pipe, mxa_emu_kind kind, mxa_emu_site site)
{
    mxa_emu_access as;
    memset(&as, 0, sizeof as);
    as.clock = ++pipe->issued;
    as.component = pipe->component;
    as.thread = mxa_emu_now->thread->component;
    as.site = site;
    as.kind = (uint8_t)kind;
    if (kind != MXA_EMU_WGMMA) { /* a meeting, and counted as one */
        mxa_emu_count(kind == MXA_EMU_MMA ? "tcgen05.mma" : mxa_emu_kind_name((int)kind));
    }
    return as;
}

void *mxa_emu_op_new(size_t bytes, void (*run)(mxa_emu_op *))
{
    mxa_emu_op *op = mxa_emu_alloc(bytes);
    op->run = run;
    op->cta = mxa_emu_now->thread->cta;
    op->issued_at = mxa_emu_now->step;
    return op;
}

static void carry_out(mxa_emu_op *op)
{
    mxa_emu_engine_now()->pending--;
    mxa_emu_now->step++;
    mxa_emu_trace_done(op);
    op->run(op);
    mxa_emu_free(op->owned);
    mxa_emu_free(op);
}

static void carry_out_first(mxa_emu_pipe *pipe)
{
    mxa_emu_op *op = pipe->first;
    pipe->first = op->next;
    pipe->done = op->as.clock;
    carry_out(op);
}

void mxa_emu_push(mxa_emu_pipe *pipe, mxa_emu_op *op, const mxa_emu_access *as)
{
    op->as = *as;
    op->next = NULL;
    if (pipe->first) {
        pipe->last->next = op;
    } else {
        pipe->first = op;
    }
    pipe->last = op;
    mxa_emu_engine_now()->pending++;
    if (mxa_emu_now->options.eager) {
        carry_out_first(pipe);
    }
}

void mxa_emu_drain(mxa_emu_pipe *pipe, uint32_t clock)
{
    while (pipe->first && pipe->first->as.clock <= clock) {
        carry_out_first(pipe);
    }
}

void mxa_emu_push_pool(mxa_emu_op *op)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    engine->pending++;
    if (mxa_emu_now->options.eager) {
        carry_out(op);
        return;
    }
    if (engine->pool_count == engine->pool_room) {
        const int room = engine->pool_room ? 2 * engine->pool_room : 256;
        mxa_emu_op **grown = mxa_emu_alloc((size_t)room * sizeof *grown);
        if (engine->pool_count) {
            memcpy(grown, engine->pool, (size_t)engine->pool_count * sizeof *grown);
        }
        mxa_emu_free(engine->pool);
        engine->pool = grown;
        engine->pool_room = room;
    }
    engine->pool[engine->pool_count++] = op;
}

static void carry_out_of_pool(int i)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    mxa_emu_op *op = engine->pool[i];
    engine->pool[i] = engine->pool[--engine->pool_count];
    carry_out(op);
}

void mxa_emu_pool_drain(int (*wanted)(const mxa_emu_op *op, const void *argument),
                        const void *argument)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    for (int i = 0; i < engine->pool_count;) {
        if (wanted(engine->pool[i], argument)) {
            carry_out_of_pool(i);
        } else {
            i++;
        }
    }
}

int mxa_emu_run_one(void)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    mxa_emu_pipe *chosen = NULL;
    uint32_t full = 0;
    for (mxa_emu_pipe *pipe = engine->pipes; pipe; pipe = pipe->next) {
        if (pipe->first && mxa_emu_random(++full) == 0) {
            chosen = pipe;
        }
    }
    if (engine->pool_count &&
        (!chosen ||
         mxa_emu_random(engine->pool_weight + engine->pipe_weight) < engine->pool_weight)) {
        carry_out_of_pool((int)mxa_emu_random((uint32_t)engine->pool_count));
        return 1;
    }
    if (chosen) {
        carry_out_first(chosen);
    }
    return chosen != NULL;
}

int mxa_emu_copy_take(void)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    for (;;) {
        for (int tries = 0; tries < MXA_EMU_COPIES; tries++) {
            const int i = engine->next_copy++ % MXA_EMU_COPIES;
            if (!engine->copies[i].busy) {
                engine->copies[i].clock++;
                return i;
            }
        }
        (void)mxa_emu_run_one();
    }
}

int mxa_emu_tensor_pending(const mxa_emu_cta *cta)
{
    int count = 0;
    for (mxa_emu_pipe *pipe = mxa_emu_engine_now()->pipes; pipe; pipe = pipe->next) {
        for (const mxa_emu_op *op = pipe->first; op; op = op->next) {
            count += op->cta == cta && op->as.kind >= MXA_EMU_MMA;
        }
    }
    return count;
}

mxa_emu_release mxa_emu_release_take(void)
{
    mxa_emu_release release = {NULL, NULL};
    mxa_emu_thread *thread = mxa_emu_now->thread;
    mxa_emu_clocks *clocks = &mxa_emu_engine_now()->clocks;
    if (mxa_emu_now->options.checks) {
        release.known = mxa_emu_clock_keep(thread->known);
        mxa_emu_clock_raise(clocks, &release.known, thread->component, thread->own);
        release.proxy = mxa_emu_clock_keep(thread->proxy);
        mxa_emu_clock_raise(clocks, &release.proxy, thread->component, thread->own_proxy);
        thread->own++;
    }
    return release;
}
