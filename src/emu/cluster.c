/* cluster.c: CTAs of a cluster, and launch control: taking blocks that have not started.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/cluster.h"

#include "emu/engine.h"

#include <string.h>

int mxa_emu_cluster_rank(void)
{
    return mxa_emu_now->thread->cta->rank;
}

uint32_t mxa_emu_cluster_map(uint32_t at, int rank)
{
    if (rank < 0 || rank >= mxa_emu_now->cluster) {
        mxa_emu_error(0, "mapa to a CTA that is not in the cluster", MXA_EMU_SITE(), 0,
                      "rank %d of %d", rank, mxa_emu_now->cluster);
        return at;
    }
    return (at & ((1u << MXA_EMU_RANK_SHIFT) - 1)) | (uint32_t)rank << MXA_EMU_RANK_SHIFT;
}

void mxa_emu_cluster_arrive(void)
{
    mxa_emu_settle();
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    mxa_emu_thread *thread = emu->thread;
    if (thread->cluster_phase) {
        mxa_emu_error(12, "barrier.cluster.arrive twice without a wait", MXA_EMU_SITE(), 0, "%s",
                      "each thread waits for its arrival before the next");
        return;
    }
    thread->cluster_phase = engine->cluster_phase + 1;
    mxa_emu_publish(&engine->cluster_known, &engine->cluster_proxy);
    if (++engine->cluster_arrived < emu->cluster * emu->threads) {
        mxa_emu_pause();
        return;
    }
    mxa_emu_clock_drop(&engine->clocks, engine->cluster_done_known);
    mxa_emu_clock_drop(&engine->clocks, engine->cluster_done_proxy);
    engine->cluster_done_known = mxa_emu_gathered(&engine->clocks, &engine->cluster_known);
    engine->cluster_done_proxy = mxa_emu_gathered(&engine->clocks, &engine->cluster_proxy);
    engine->cluster_arrived = 0;
    engine->cluster_phase++;
    for (int c = 0; c < emu->cluster; c++) {
        for (int i = emu->threads - 1; i >= 0; i--) {
            if (emu->ctas[c]->threads[i].state == MXA_EMU_AT_CLUSTER_BARRIER) {
                mxa_emu_make_runnable(&emu->ctas[c]->threads[i]);
            }
        }
    }
    mxa_emu_pause();
}

void mxa_emu_cluster_wait(void)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_engine *engine = mxa_emu_engine_now();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (!thread->cluster_phase) {
        mxa_emu_error(12, "barrier.cluster.wait without an arrive", site, 0, "%s",
                      "arrive comes first");
        return;
    }
    while (engine->cluster_phase < thread->cluster_phase) {
        mxa_emu_block_in(MXA_EMU_AT_CLUSTER_BARRIER, site);
    }
    thread->cluster_phase = 0;
    mxa_emu_acquire(thread, engine->cluster_done_known, engine->cluster_done_proxy);
}

/* ---- launch control ---- */

/* The answer, as query_cancel reads it: taken, and the block's x. */
typedef struct answer {
    uint32_t taken, block_x, magic, reserved;
} answer;

typedef struct cancel {
    mxa_emu_op op;
    uint32_t to, barrier;
    int slot;
    answer given;
} cancel;

enum { MAGIC = 0x434C4331, ANSWER_BYTES = 16 };

static void run_cancel(mxa_emu_op *op)
{
    const cancel *c = (const cancel *)(void *)op;
    unsigned char *at = mxa_emu_shared(c->to, ANSWER_BYTES, op->as.site);
    if (at) {
        memcpy(at, &c->given, ANSWER_BYTES);
    }
    mxa_emu_engine_now()->copies[c->slot].busy--;
    mxa_emu_mbarrier_complete(op, c->barrier, ANSWER_BYTES);
}

void mxa_emu_launch_control_try(uint32_t to, uint32_t barrier)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu *emu = mxa_emu_now;
    mxa_emu_engine *engine = emu->engine;
    if (to % ANSWER_BYTES || !mxa_emu_shared(to, ANSWER_BYTES, site) ||
        !mxa_emu_mbarrier_usable(barrier, site)) {
        mxa_emu_error(0, "launch control refused", site, 0, "0x%x; a multiple of 16", to);
        return;
    }
    if (engine->cancel_refused) {
        mxa_emu_error(0, "try_cancel after one that was refused", site, 0, "%s",
                      "none may follow in this CTA");
    }
    const int slot = mxa_emu_copy_take();
    const mxa_emu_access as = {.clock = engine->copies[slot].clock,
                               .component = (uint16_t)(engine->copies_component + slot),
                               .thread = emu->thread->component,
                               .site = site,
                               .kind = MXA_EMU_CANCEL};
    mxa_emu_check_shared(&as, to, ANSWER_BYTES, 1);
    cancel *c = mxa_emu_op_new(sizeof *c, run_cancel);
    c->op.as = as;
    c->to = to;
    c->barrier = barrier;
    c->slot = slot;
    c->given.magic = MAGIC;
    engine->copies[slot].busy = 1;
    /* Another CTA of the machine may have taken what is left. */
    if (engine->blocks_left_count > 0 && (emu->options.eager || mxa_emu_random(4) != 0)) {
        c->given.taken = 1;
        c->given.block_x =
            (uint32_t)(engine->blocks_left[--engine->blocks_left_count] % emu->grid[0]);
    } else {
        engine->cancel_refused = 1;
    }
    mxa_emu_push_pool(&c->op);
    mxa_emu_pause();
}

int mxa_emu_launch_control_take(uint32_t at, int *block_x)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    const mxa_emu_access as = mxa_emu_generic(site);
    const unsigned char *from = mxa_emu_shared(at, ANSWER_BYTES, site);
    answer given;
    *block_x = 0;
    if (!from) {
        return 0;
    }
    mxa_emu_check_shared(&as, at, ANSWER_BYTES, 0);
    memcpy(&given, from, sizeof given);
    if (given.magic != MAGIC) {
        mxa_emu_error(0, "no answer of launch control there", site, 0, "0x%x", at);
        return 0;
    }
    *block_x = given.taken ? (int)given.block_x : 0;
    return (int)given.taken;
}
