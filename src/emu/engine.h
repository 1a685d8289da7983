/* engine.h: what the files of the core share: scheduler, barriers, shadow memory, reports.
 *
 * Instruction bodies outside of the core need emu.h only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_ENGINE_H
#define MXA_EMU_ENGINE_H

#include "emu/clock.h"
#include "emu/dev.h"
#include "emu/emu.h"
#include "emu/launch.h"

enum {
    MXA_EMU_MBARRIERS = 128, /* of a CTA */
    MXA_EMU_MOST_THREADS = 1024,
    MXA_EMU_NAMED_BARRIERS = 16,
    MXA_EMU_ARRIVALS = 32, /* remembered of each mbarrier */
    MXA_EMU_PIPES = 64,    /* made on demand: tensor and bulk pipes of threads */
    MXA_EMU_COPIES = 64,   /* components that loads of the copy engine take in turn */
    MXA_EMU_NAME_BYTES = 24,
    MXA_EMU_REGIONS = 64
};

/* ---- scheduler and asynchronous work (sched.c, async.c) ---- */

typedef struct mxa_emu_engine {
    mxa_emu_clocks clocks;
    char *stacks; /* of threads_most fibers */
    void *home;   /* the launch's own stack */
    int aborted;
    int viewers_count; /* whose clocks a check looks at: the lanes of a meeting that differ */
    mxa_emu_thread *viewers[8];

    mxa_emu_thread **runnable;
    int runnable_count, alive, waiting_conditions;

    mxa_emu_pipe *pipes; /* all that were initialized */
    mxa_emu_pipe on_demand[MXA_EMU_PIPES];
    int on_demand_count;
    mxa_emu_op **pool; /* operations in no order: pieces of copies */
    int pool_count, pool_room;
    int pending; /* operations in pipes and pool */
    uint16_t next_component;
    struct {
        uint32_t clock;
        int busy;
    } copies[MXA_EMU_COPIES];
    uint16_t copies_component;     /* the first of them */
    uint16_t dependency_component; /* at 1: griddepcontrol.wait has been passed */
    int next_copy;
    /* The adversary: of 1024, how often asynchronous work comes before threads; weights. */
    uint32_t asynchronous_rate, pool_weight, pipe_weight;

    const mxa_emu_kernel *kernel;
    const void *parameters;
    int register_pool[MXA_EMU_CLUSTER_MOST]; /* setmaxnreg: registers that nobody has */
    /* Blocks of the grid that no CTA has taken: launch control takes from here. */
    int *blocks_left, blocks_left_count;
    int cancel_refused;
    int cluster_arrived, cluster_phase;
    mxa_emu_gathering cluster_known, cluster_proxy;
    const mxa_emu_clock *cluster_done_known, *cluster_done_proxy;
} mxa_emu_engine;

mxa_emu_engine *mxa_emu_engine_now(void);

/* Runs the threads of all CTAs to their end; 0 when the launch was aborted. */
int mxa_emu_run(void);
void mxa_emu_make_runnable(mxa_emu_thread *thread);
/* The thread that runs waits in `state` until it is made runnable. */
void mxa_emu_block_in(mxa_emu_state state, mxa_emu_site site);

void mxa_emu_push_pool(mxa_emu_op *op);
int mxa_emu_run_one(void); /* one pending operation, seeded; 0: there was none */
mxa_emu_pipe *mxa_emu_pipe_on_demand(mxa_emu_kind kind);
int mxa_emu_copy_take(void); /* a component of the copy engine: number in engine->copies */
/* Carries out operations of the pool that `wanted` says 1 for. */
void mxa_emu_pool_drain(int (*wanted)(const mxa_emu_op *op, const void *argument),
                        const void *argument);

/* Checks what the thread that runs leaves behind (tma.c). */
void mxa_emu_thread_ends(void);

/* What `thread` knows: of another component, with what it has itself. */
int mxa_emu_knows(const mxa_emu_thread *thread, uint16_t component, uint32_t clock);

/* A release by the thread that runs: into what arrives at a barrier; starts its next epoch. */
void mxa_emu_publish(mxa_emu_gathering *known, mxa_emu_gathering *proxy);
/* The same by another thread. */
void mxa_emu_publish_of(mxa_emu_thread *thread, mxa_emu_gathering *known, mxa_emu_gathering *proxy);
void mxa_emu_acquire(mxa_emu_thread *thread, const mxa_emu_clock *known,
                     const mxa_emu_clock *proxy);
/* The same where the clocks have all that the thread knows. */
void mxa_emu_acquire_all(mxa_emu_thread *thread, const mxa_emu_clock *known,
                         const mxa_emu_clock *proxy);

/* ---- barriers (barrier.c, mbarrier.c) ---- */

typedef struct mxa_emu_arrival {
    int32_t phase;
    mxa_emu_site site;
    uint16_t thread;
    uint8_t kind;
} mxa_emu_arrival;

typedef struct mxa_emu_mbarrier {
    uint32_t address; /* without rank; 0: not in use */
    uint32_t count;
    int32_t pending, bytes, phase;
    mxa_emu_gathering known, proxy;
    const mxa_emu_clock *done_known, *done_proxy; /* of phases that are complete */
    mxa_emu_access init;
    int init_fenced;
    char name[MXA_EMU_NAME_BYTES];
    const char *arrives, *waits; /* roles: dev_barrier */
    mxa_emu_arrival arrival[MXA_EMU_ARRIVALS];
    uint32_t arrivals;
    uint64_t waiters[MXA_EMU_MOST_THREADS / 64]; /* bits of threads that wait */
    int32_t *seen;                               /* phase that each thread saw last */
} mxa_emu_mbarrier;

typedef struct mxa_emu_named_barrier {
    int expected, arrived, waiting;
    mxa_emu_gathering known, proxy;
} mxa_emu_named_barrier;

typedef struct mxa_emu_region {
    uint32_t at, size;
    char name[MXA_EMU_NAME_BYTES];
} mxa_emu_region_name;

struct mxa_emu_barriers {
    mxa_emu_mbarrier mbarrier[MXA_EMU_MBARRIERS];
    int mbarriers;
    uint8_t index[MXA_EMU_SHARED_BYTES / 8]; /* 1 + number of the barrier that lies there */
    mxa_emu_named_barrier named[MXA_EMU_NAMED_BARRIERS];
    mxa_emu_region_name shared_region[MXA_EMU_REGIONS], tensor_region[MXA_EMU_REGIONS];
    int shared_regions, tensor_regions;
    int32_t seen[MXA_EMU_MBARRIERS][MXA_EMU_MOST_THREADS];
};

void mxa_emu_barriers_begin(mxa_emu_cta *cta);
void mxa_emu_barriers_end(mxa_emu_cta *cta, int complete); /* complete: check what is left over */
/* Bytes of a copy have landed; carries the copy's clock. */
void mxa_emu_mbarrier_complete(const mxa_emu_op *op, uint32_t barrier, uint32_t bytes);
/* A CTA that has ended takes no arrivals from others (H20). */
void mxa_emu_check_target(const mxa_emu_cta *from, const mxa_emu_cta *to, mxa_emu_site site);
/* Before a copy is issued: is it a barrier that asynchronous agents may know? 0: reported. */
int mxa_emu_mbarrier_usable(uint32_t barrier, mxa_emu_site site);
mxa_emu_mbarrier *mxa_emu_mbarrier_at(uint32_t address, mxa_emu_site site);

/* ---- shadow memory (shadow.c) ---- */

struct mxa_emu_shadow *mxa_emu_shadow_new(void);
void mxa_emu_shadow_free(struct mxa_emu_shadow *shadow);
void mxa_emu_shadow_begin(mxa_emu_cta *cta);
/* A thread's access to its own CTA's memory, of at most 16 bytes and aligned to them; in bounds. */
void mxa_emu_check_own(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write);
int mxa_emu_tmem_columns(const mxa_emu_cta *cta); /* that are allocated */
mxa_emu_cta *mxa_emu_cta_of(uint32_t address);    /* by its rank; NULL: there is none */

/* ---- reports (report.c, site.c) ---- */

struct mxa_emu_reports *mxa_emu_reports_new(void);
void mxa_emu_reports_free(struct mxa_emu_reports *reports);
void mxa_emu_reports_sum(const struct mxa_emu_reports *reports, mxa_emu_result *result);
/* All of them as text, with source lines; allocated. */
char *mxa_emu_reports_text(const struct mxa_emu_reports *reports);
void mxa_emu_report_deadlock(void);
const char *mxa_emu_kind_name(int kind);
/* A thread by its component; NULL: it is a pipe's, or nobody's. */
mxa_emu_thread *mxa_emu_thread_of(uint32_t component);
/* "producer, warp 0 lane 3" and a place's name, in `text`. */
const char *mxa_emu_thread_text(uint32_t thread, char *text, size_t bytes);
/* The same, with the mbarrier and phase that it last waited for, or (arrived) arrived on. */
const char *mxa_emu_thread_and_barrier_text(uint32_t thread, int arrived, char *text, size_t bytes);
const char *mxa_emu_shared_text(uint32_t address, char *text, size_t bytes);
const char *mxa_emu_tensor_text(const mxa_emu_cta *cta, uint32_t lane, uint32_t column, char *text,
                                size_t bytes);
/* "forward_body.h:123 scores < forward_body.h:456 mxa_sm90_..." */
void mxa_emu_site_text(mxa_emu_site site, char *text, size_t bytes);

/* ---- global memory (global.c) ---- */

/* Whether memory known to the emulator holds [at, at + bytes); 1 too where none is known. */
int mxa_emu_memory_holds(uint64_t at, uint64_t bytes);

#endif
