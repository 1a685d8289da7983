/* emu.h: the emulator's inside: a launch, its CTAs, warps and threads, and what instructions call.
 *
 * A kernel's thread is a fiber; all fibers of a cluster share one OS thread and one scheduler. What
 * a warp or warpgroup does together is a meeting: the last lane to come does it for all. What is
 * asynchronous is checked when it is issued and carried out at a seeded moment later.
 *
 * Order is known by vector clocks: one component for each thread and each pipe of asynchronous
 * operations. A thread has three: what happened before it (`known`), what of that is also ordered
 * into the asynchronous proxy (`proxy`), and what its later tcgen05 operations are ordered after
 * (`tensor`). docs/emulator.md has the rules.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_EMU_H
#define MXA_EMU_EMU_H

#include "emu/site.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MXA_EMU_LANES = 32,
    MXA_EMU_GROUP_LANES = 128,     /* of a warpgroup */
    MXA_EMU_SHARED_BYTES = 232448, /* of a CTA, most */
    MXA_EMU_SHARED_BASE = 1024,    /* where shared memory starts; never 0 */
    MXA_EMU_RANK_SHIFT = 24,       /* a shared address has the CTA's rank in its cluster here */
    MXA_EMU_TMEM_LANES = 128,
    MXA_EMU_TMEM_COLUMNS = 512,
    MXA_EMU_CLUSTER_MOST = 2,
    MXA_EMU_POISON = 0x7FBADBAD /* a NaN that names where it comes from */
};

/* What accesses memory; names in report.c. */
typedef enum mxa_emu_kind {
    MXA_EMU_NOTHING,
    MXA_EMU_GENERIC,    /* ld, st of a thread */
    MXA_EMU_ATOMIC,     /* atom of a thread */
    MXA_EMU_MBARRIER,   /* the barrier object itself */
    MXA_EMU_TMA_LOAD,   /* cp.async.bulk(.tensor) into shared memory: writes it */
    MXA_EMU_TMA_STORE,  /* out of shared memory: reads it */
    MXA_EMU_CANCEL,     /* cluster launch control's answer: writes shared memory */
    MXA_EMU_WGMMA,      /* an operand: reads shared memory */
    MXA_EMU_MMA,        /* tcgen05.mma, an operand or scale: reads */
    MXA_EMU_ACCUMULATE, /* tcgen05.mma, the accumulator: reads and writes */
    MXA_EMU_COPY,       /* tcgen05.cp */
    MXA_EMU_LOAD,       /* tcgen05.ld */
    MXA_EMU_STORE,      /* tcgen05.st */
    MXA_EMU_ALLOC,      /* tcgen05.alloc's store of the address */
    MXA_EMU_COMMIT,     /* tcgen05.commit: arrives only */
    MXA_EMU_INVALIDATE, /* mbarrier.inval: the memory is anyone's again */
    MXA_EMU_KINDS
} mxa_emu_kind;

typedef struct mxa_emu_clock mxa_emu_clock; /* immutable and shared; clock.h */
typedef struct mxa_emu_cta mxa_emu_cta;
typedef struct mxa_emu_warp mxa_emu_warp;
typedef struct mxa_emu_thread mxa_emu_thread;
typedef struct mxa_emu_op mxa_emu_op;
typedef struct mxa_emu_pipe mxa_emu_pipe;
typedef struct mxa_emu_meeting mxa_emu_meeting;
typedef struct mxa_emu_overlap mxa_emu_overlap; /* of dependent launches; overlap.h */

/* One access of the past or the present: at `clock` of `component`, from `site`. */
typedef struct mxa_emu_access {
    uint32_t clock;
    uint16_t component;
    uint16_t thread; /* who issued it */
    mxa_emu_site site;
    uint8_t kind; /* mxa_emu_kind */
    uint8_t reserved[3];
} mxa_emu_access;

/* Asynchronous operations of one issuer, carried out in the order of issue. */
struct mxa_emu_pipe {
    uint16_t component;
    uint16_t kind;   /* mxa_emu_kind of its operations: sets how eager it is */
    uint32_t issued; /* clock of the last operation */
    uint32_t done;   /* clock of the last one carried out */
    mxa_emu_op *first, *last;
    mxa_emu_pipe *next; /* of all pipes */
};

/* Starts a body's own struct, which mxa_emu_op_new made. */
struct mxa_emu_op {
    void (*run)(mxa_emu_op *op);
    mxa_emu_op *next;
    mxa_emu_access as; /* who issued it, where; its pipe's component and clock */
    mxa_emu_cta *cta;
    int64_t issued_at; /* step */
    void *owned;       /* by mxa_emu_alloc; freed with the operation */
};

enum { MXA_EMU_LATE_LOADS = 16, MXA_EMU_LEFT = 8 };

/* A tcgen05.ld whose registers hold poison until wait::ld. */
typedef struct mxa_emu_late_load {
    uint32_t *registers[MXA_EMU_LANES];
    uint32_t at, lane;
    int shape, count, refused;
    mxa_emu_site site;
} mxa_emu_late_load;

struct mxa_emu_warp {
    mxa_emu_cta *cta;
    mxa_emu_thread *threads; /* 32 */
    int index;               /* in the CTA */
    int elected;             /* the lane elect.sync gives */
    mxa_emu_meeting *meeting;
    mxa_emu_meeting *left; /* [MXA_EMU_LEFT]: the n-th at [n % MXA_EMU_LEFT] */
    uint32_t left_opened, left_done;
    int settlers;                       /* lanes that wait in mxa_emu_settle */
    mxa_emu_pipe load, store;           /* tcgen05.ld and .st */
    uint32_t load_waited, store_waited; /* clocks that wait::ld, wait::st have seen */
    mxa_emu_late_load late[MXA_EMU_LATE_LOADS];
    int late_loads;
    mxa_emu_site load_site; /* of the last tcgen05.ld */
    /* of the warpgroup, in its first warp */
    mxa_emu_meeting *group_meeting;
    mxa_emu_pipe wgmma;
    uint32_t wgmma_groups[64]; /* clock at commit g, at [g % 64] */
    uint32_t wgmma_committed;  /* commits so far */
    void *wgmma_state;         /* wgmma.c's own; freed by mxa_emu_free at the end of the launch */
    int registers;             /* of each thread: setmaxnreg */
};

struct mxa_emu_cta {
    unsigned char *shared; /* MXA_EMU_SHARED_BYTES: byte 0 is address MXA_EMU_SHARED_BASE */
    unsigned char *before; /* what threads' stores overwrote; stale.h */
    uint16_t *stale;       /* of each 16 bytes: those that asynchronous agents see as before */
    int stale_units;
    uint32_t shared_base; /* of dynamic shared memory: what dev_shared gives, without the rank */
    uint32_t shared_end;
    uint32_t (*tmem)[MXA_EMU_TMEM_COLUMNS]; /* [lane][column] */
    int rank;                               /* in the cluster */
    int block[3];
    int warps, alive;
    mxa_emu_warp *warp;
    mxa_emu_thread *threads;
    struct mxa_emu_shadow *shadow;     /* shadow.c */
    struct mxa_emu_barriers *barriers; /* barrier.c, mbarrier.c */
    int dependents_launched;           /* griddepcontrol.launch_dependents */
    void *tensor_state; /* tcgen05's own (allocator); freed by mxa_emu_free at the end */
};

typedef enum mxa_emu_state {
    MXA_EMU_RUNNABLE,
    MXA_EMU_IN_MEETING,
    MXA_EMU_AT_BARRIER,
    MXA_EMU_AT_CLUSTER_BARRIER,
    MXA_EMU_AT_MBARRIER,
    MXA_EMU_AT_CONDITION, /* mxa_emu_until: alloc, setmaxnreg, a polled word */
    MXA_EMU_FINISHED
} mxa_emu_state;

/* WHY in this order, and lines of the cache begin with it: the first two of them have what most
 * switches and instructions touch, and those of hundreds of threads are never all at hand. */
struct mxa_emu_thread {
    _Alignas(64) void *stack_pointer;
    mxa_emu_warp *warp;
    mxa_emu_cta *cta;
    const mxa_emu_clock *known, *proxy, *tensor;
    mxa_emu_site site;  /* where it waits */
    uint16_t component; /* its own: its number in the cluster */
    int index;          /* in the CTA */
    int lane;           /* in the warp */
    mxa_emu_state state;
    int runnable_at;         /* while RUNNABLE: in the scheduler's list */
    uint32_t left;           /* what it has left so far */
    int late;                /* of it loads since wait::ld */
    int settles;             /* it waits in mxa_emu_settle */
    uint32_t own, own_proxy; /* its own component in known, and what of that is in proxy */
    uint32_t wait_address;   /* AT_MBARRIER */
    uint32_t wait_parity;
    int wait_barrier;     /* AT_BARRIER */
    int32_t waited_phase; /* for reports: of the mbarriers that it last waited for */
    const struct mxa_emu_mbarrier *waited;
    int32_t arrived_phase; /* and last arrived on */
    int cluster_phase;     /* what barrier.cluster.wait waits for; 0: no arrival before */
    const struct mxa_emu_mbarrier *arrived;
    mxa_emu_pipe *tensor_pipe; /* mma, cp, commit of this thread; made on first use */
    mxa_emu_pipe *bulk_pipe;   /* bulk stores of this thread */
    uint32_t bulk_groups[16], bulk_committed, bulk_read;
    const char *role;
    int (*condition)(void *argument); /* AT_CONDITION */
    void *condition_argument;
    const char *condition_name;
};

/* What is switched per launch; mxa_emu_options_init gives the defaults. */
typedef struct mxa_emu_options {
    uint64_t seed;
    int checks;               /* 1: clocks and shadow memory; 0: values and protocol only */
    int eager;                /* 1: no adversary: asynchronous work at once, threads in order */
    int strict_fences;        /* 1: tcgen05 fences must be written */
    int ordered_pipe;         /* 1: cp after mma of one thread is in order (H6) */
    int ordered_accumulators; /* 1: mma after mma of other accumulators is in order (H8) */
    int late_loads;           /* 1: tcgen05.ld and wgmma results hold poison until waited for */
    int exact_sums;           /* 1: tensor cores add without truncation */
    uint64_t approximations;  /* ex2, lg2, tanh: 0 gives the nearest number, a seed others that the
                               * ISA's bounds allow */
    int unwritten_reads; /* 1: warn when a thread reads shared memory that nobody wrote (0: it then
                          * finds other bytes under each seed) */
    int trace;           /* 1: keep events for the pictures */
    mxa_emu_overlap *leads, *follows; /* a dependent launch comes after this one; this is one */
} mxa_emu_options;

void mxa_emu_options_init(mxa_emu_options *options);

/* One more of an instruction, by a name in static storage. What a warp or warpgroup does together,
 * and what is issued to a pipe, is counted without this. */
void mxa_emu_count(const char *name);

/* Instructions so frequent that they are counted apart, and get their names at the end. */
enum {
    MXA_EMU_HOT_LOAD_SHARED,
    MXA_EMU_HOT_STORE_SHARED,
    MXA_EMU_HOT_LOAD_GLOBAL,
    MXA_EMU_HOT_STORE_GLOBAL,
    MXA_EMU_HOT
};

/* The launch that this OS thread is in. */
typedef struct mxa_emu {
    mxa_emu_options options;
    mxa_emu_thread *thread; /* who runs */
    mxa_emu_cta *ctas[MXA_EMU_CLUSTER_MOST];
    int cluster; /* CTAs of a cluster */
    int threads; /* of a CTA */
    int grid[3];
    int arch;            /* 90, 100; 0: whatever the kernel uses */
    uint32_t components; /* of a clock */
    uint64_t random;
    struct mxa_emu_tally *tally; /* instructions by name */
    int64_t hot[MXA_EMU_HOT];
    int64_t step;                  /* switches and operations so far */
    struct mxa_emu_engine *engine; /* sched.c, async.c */
    struct mxa_emu_reports *reports;
    struct mxa_emu_trace *events; /* NULL: no trace */
} mxa_emu;

extern _Thread_local mxa_emu *mxa_emu_now;

uint32_t mxa_emu_random(uint32_t below);

/* ---- meetings ---- */

/* What a warp (32 lanes) or warpgroup (128) does together. Every lane brings a struct of its own;
 * the last to come calls `body` once, with all of them; then all go on. Lanes that meet with
 * another body or another key are reported (H12), and the launch ends. */
struct mxa_emu_meeting {
    const char *name;
    void (*body)(mxa_emu_meeting *meeting);
    uint64_t key; /* immediates that must be equal */
    int lanes, come;
    uint32_t present[4];
    mxa_emu_thread *first;              /* threads of the group: first[lane] */
    mxa_emu_warp *warp;                 /* the first of them */
    mxa_emu_site site;                  /* of the last lane to come: for reports */
    void *left;                         /* by the lanes; freed should they not all come */
    uint32_t fence_before, fence_after; /* lanes that have such a tcgen05 fence behind it */
    void *lane[MXA_EMU_GROUP_LANES];    /* each lane's struct */
};

void mxa_emu_meet_warp(const char *name, void (*body)(mxa_emu_meeting *), uint64_t key, void *lane,
                       mxa_emu_site site);
void mxa_emu_meet_warpgroup(const char *name, void (*body)(mxa_emu_meeting *), uint64_t key,
                            void *lane, mxa_emu_site site);

/* A warp-wide instruction that gives its lanes nothing at once: a lane leaves what it brings in the
 * meeting that _begin gives, and goes on; the last one runs the body in _end. Operations of a
 * single thread come after it (mxa_emu_settle), so that only arithmetic runs ahead. */
mxa_emu_meeting *mxa_emu_leave_begin(const char *name, void (*body)(mxa_emu_meeting *),
                                     uint64_t key, mxa_emu_site site);
void mxa_emu_leave_end(mxa_emu_meeting *meeting);
void mxa_emu_leave(const char *name, void (*body)(mxa_emu_meeting *), mxa_emu_site site); /* both */
void mxa_emu_settle_here(mxa_emu_site site);

/* Lets others run now and then. */
void mxa_emu_pause(void);

/* Waits until condition(argument) is not 0; it is asked again whenever anything has happened. */
void mxa_emu_until(int (*condition)(void *), void *argument, const char *name, mxa_emu_site site);

/* ---- asynchronous work ---- */

void mxa_emu_pipe_init(mxa_emu_pipe *pipe, mxa_emu_kind kind);
mxa_emu_pipe *mxa_emu_tensor_pipe(void); /* of the thread that runs */

/* The next operation of a pipe as an access: takes the clock. Check with it, then push with it. */
mxa_emu_access mxa_emu_issue(mxa_emu_pipe *pipe, mxa_emu_kind kind, mxa_emu_site site);

/* Zeroed memory of `bytes`, which starts with a mxa_emu_op; freed once it has run. */
void *mxa_emu_op_new(size_t bytes, void (*run)(mxa_emu_op *));
void mxa_emu_push(mxa_emu_pipe *pipe, mxa_emu_op *op, const mxa_emu_access *as);

/* Carries out what the pipe was given up to `clock`. */
void mxa_emu_drain(mxa_emu_pipe *pipe, uint32_t clock);

/* ---- order ---- */

/* `thread` now knows `clock` of a component: in known, or (tensor) only for tcgen05 operations. */
void mxa_emu_learn(mxa_emu_thread *thread, uint16_t component, uint32_t clock);
void mxa_emu_learn_tensor(mxa_emu_thread *thread, uint16_t component, uint32_t clock);
void mxa_emu_fence_proxy(mxa_emu_thread *thread);  /* fence.proxy.async: proxy |= known */
void mxa_emu_fence_tensor(mxa_emu_thread *thread); /* tcgen05.fence::after: tensor |= known */
/* tcgen05.fence::before: what the warp has waited for is known to whom it synchronises with next */
void mxa_emu_fence_publish(mxa_emu_thread *thread);
/* Either of them, by the thread that runs: now, or right after what it has left. */
void mxa_emu_fence_in_turn(int before, mxa_emu_site site);

/* An arrival by a pipe (commit): carries what the issuer knew, and the pipe's clock. Keep it in the
 * op between issue and arrival. */
typedef struct mxa_emu_release {
    const mxa_emu_clock *known, *proxy;
} mxa_emu_release;

mxa_emu_release mxa_emu_release_take(void);
void mxa_emu_mbarrier_arrive_from(const mxa_emu_op *op, uint32_t barrier, mxa_emu_release *release);

/* ---- checks ---- */

/* A thread's own access, for the check functions. */
mxa_emu_access mxa_emu_generic(mxa_emu_site site);

/* Shared memory, addresses with or without rank. Returns its bytes, or NULL (reported) out of range
 * or misaligned. Called at issue; the data may move later. */
void mxa_emu_check_shared(const mxa_emu_access *as, uint32_t address, uint32_t bytes, int write);
/* Sixteen bytes each (bit i: at 16*i) of the 1,024 from `block_address` on, a multiple of that. */
void mxa_emu_check_units(const mxa_emu_access *as, uint32_t block_address, uint64_t units,
                         int write);
unsigned char *mxa_emu_shared(uint32_t address, uint32_t bytes, mxa_emu_site site);

/* TMEM of a CTA: lanes of `halves` (bit h: lanes 16h..16h+15), columns column..column+columns-1. */
void mxa_emu_check_tmem(mxa_emu_cta *cta, const mxa_emu_access *as, uint32_t halves,
                        uint32_t column, uint32_t columns, int write);

/* Columns are now allocated to a CTA, or no longer (what they held is gone). */
void mxa_emu_tmem_allocated(mxa_emu_cta *cta, uint32_t column, uint32_t columns);
void mxa_emu_tmem_freed(mxa_emu_cta *cta, uint32_t column, uint32_t columns);

/* Tensor operations of a CTA that are not finished: dealloc must not see any (H18). */
int mxa_emu_tensor_pending(const mxa_emu_cta *cta);

/* ---- reports ---- */

/* hazard: 1..20 as in docs/emulator.md, 0 for what breaks a rule of an instruction. `before`: the
 * other side's site, or 0. One report for each (hazard, title, site, before), counted. */
void mxa_emu_error(int hazard, const char *title, mxa_emu_site now, mxa_emu_site before,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
void mxa_emu_warn(int hazard, const char *title, mxa_emu_site now, mxa_emu_site before,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Ends the launch after a report: never returns to the kernel. */
_Noreturn void mxa_emu_abort(void);

void *mxa_emu_alloc(size_t bytes); /* zeroed; NULL ends the launch */
void mxa_emu_free(void *memory);

/* Waits until all lanes of the warp have come to what this thread has left. */
static inline __attribute__((always_inline)) void mxa_emu_settle(void)
{
    const mxa_emu_thread *thread = mxa_emu_now->thread;
    if (thread->left != thread->warp->left_done) {
        mxa_emu_settle_here(MXA_EMU_MEETING_SITE());
    }
}

#endif
