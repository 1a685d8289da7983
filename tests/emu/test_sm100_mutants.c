/* test_sm100_mutants.c: the Blackwell forward with one wait or fence left out: the emulator must
 * say so under every schedule, whatever the numbers come to. So no row of the barrier table
 * is there for nothing, and no hazard of it is one that the emulator does not see.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/dev/tma.h"
#include "cuda/device.h"
#include "device_run.h"
#include "emu/driver.h"
#include "emu/launch.h"
#include "report.h"
#include "sm100_case.h"

#include <stdlib.h>
#include <string.h>

enum { NOTHING, WAIT, WAIT_LOAD, WAIT_STORE, FENCE_BEFORE, FENCE_AFTER, FENCE_ASYNC };

/* first, count: the barriers of a WAIT. fp8: not of the BF16 form, which has no such thing, or
 * where v_empty, of a ring half as long, comes later anyway. */
typedef struct mutant {
    const char *name;
    int kind, first, count, fp8;
} mutant;

static mutant now;

MXA_DEVICE void mutant_wait(mxa_shared at, int i, uint32_t parity)
{
    if (now.kind != WAIT || i < now.first || i >= now.first + now.count) {
        mbarrier_wait(at, parity);
    }
}

/* The kernel's files from here on ask before they wait. */
#define UNLESS(what, action)      (now.kind == (what) ? (void)0 : action)
#define mbarrier_wait(at, parity) mutant_wait(at, (int)((at)-BARRIER(0)) / 8, parity)
#define tmem_wait_load()          UNLESS(WAIT_LOAD, tmem_wait_load())
#define tmem_wait_store()         UNLESS(WAIT_STORE, tmem_wait_store())
#define tcgen05_fence_before()    UNLESS(FENCE_BEFORE, tcgen05_fence_before())
#define tcgen05_fence_after()     UNLESS(FENCE_AFTER, tcgen05_fence_after())
#define fence_async_shared()      UNLESS(FENCE_ASYNC, fence_async_shared())

#include "cuda/sm100/forward_map.h"
#include "cuda/sm100/forward_params.h"
#include "cuda/sm100/forward_pipe.h"

#define FORWARD_NAME         mutant_forward
#define FORWARD_D            64
#define FORWARD_BF16         0
#define FORWARD_SHARED_BYTES 124928
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 6
#include "cuda/sm100/forward_body.h"

#define FORWARD_NAME         mutant_forward_bf16
#define FORWARD_D            64
#define FORWARD_BF16         1
#define FORWARD_SHARED_BYTES 124928
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 10
#include "cuda/sm100/forward_body.h"

/* Not item_full: an item that nobody wrote may have any number of blocks to walk. */
static const mutant mutants[] = {{"item_empty", WAIT, ITEM_EMPTY, 2, 0},
                                 {"q_full", WAIT, Q_FULL, 4, 0},
                                 {"q_empty", WAIT, Q_EMPTY, 4, 0},
                                 {"k_full", WAIT, K_FULL, STAGES, 0},
                                 {"k_empty", WAIT, K_EMPTY, STAGES, 1},
                                 {"v_full", WAIT, V_FULL, STAGES, 0},
                                 {"v_empty", WAIT, V_EMPTY, STAGES, 0},
                                 {"v_clean", WAIT, V_CLEAN, STAGES, 1},
                                 {"s_full", WAIT, S_FULL, 2, 0},
                                 {"s_loaded", WAIT, S_LOADED, 2, 0},
                                 {"p_ready", WAIT, P_READY, 2, 0},
                                 {"o_full", WAIT, O_FULL, 2, 0},
                                 {"o_empty", WAIT, O_EMPTY, 2, 0},
                                 {"tcgen05.wait::ld", WAIT_LOAD, 0, 0, 0},
                                 {"tcgen05.wait::st", WAIT_STORE, 0, 0, 0},
                                 {"tcgen05.fence::before", FENCE_BEFORE, 0, 0, 0},
                                 {"tcgen05.fence::after", FENCE_AFTER, 0, 0, 0},
                                 {"fence.proxy.async", FENCE_ASYNC, 0, 0, 1}};

/* Several items a CTA, every ring comes round, tails of every kind, tiles that are not there. */
static const mxt_sm100_case shape = {.name = "mutants",
                                     .lengths_q = {300, 33, 256, 129, 200, 200, -1},
                                     .lengths_k = {700, 129, 300, 40, 90, 64, -1},
                                     .jagged = 1,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .left = -1,
                                     .right = -1,
                                     .block = MXATTN_BLOCK_SQUARE,
                                     .type = MXATTN_E4M3,
                                     .o = MXATTN_F32,
                                     .kind = MXT_GAUSSIAN};

/* Puts this program's kernels in the place of the library's. */
static int install(const char *name, mxa_kernel place)
{
    const mxa_emu_kernel *kernel = mxa_emu_kernel_find(name);
    const mxa_cuda_device *device;
    mxa_cuda_device *changed;
    if (!CHECK(kernel != NULL, "no kernel %s", name) ||
        !CHECK_STATUS(MXATTN_OK, mxa_cuda_device_take(MXA_CUDA_EMULATED_SM100, &device))) {
        return 0;
    }
    memcpy(&changed, &device, sizeof changed);
    memcpy(&changed->functions[place], &kernel, sizeof kernel);
    return 1;
}

static void run(const mutant *m, int bf16, uint64_t seed)
{
    mxt_sm100_setup s;
    mxt_sm100_result r;
    const int broken = m->kind != NOTHING;
    mxt_sm100_case c = shape;
    mxt_case("%s left out%s, schedule %llu", m->name, bf16 ? " of the BF16 form" : "",
             (unsigned long long)seed);
    now = *m;
    c.bf16 = bf16;
    mxt_sm100_build(&s, &c, 1);
    mxt_sm100_result_take(&s, &r);
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = seed;
    const mxattn_status status = mxt_sm100_run(&s, &r);
    const mxa_emu_session *session = mxa_emu_session_now();
    CHECK_STATUS(broken ? MXATTN_DEVICE : MXATTN_OK, status);
    CHECK((session->errors != 0) == broken, "%d errors\n%s", session->errors,
          session->text ? session->text : "");
    CHECK(session->text == NULL || strstr(session->text, "mutant_forward") != NULL,
          "reported of another kernel\n%s", session->text ? session->text : "");
    mxt_sm100_result_free(&r);
    mxt_sm100_free(&s);
}

int main(void)
{
    static const mutant none = {"nothing", NOTHING, 0, 0, 0};
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM100);
    if (missing) {
        mxt_case("mutants of the Blackwell forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    mxt_case("mutants of the Blackwell forward");
    if (!install("mutant_forward", MXA_KERNEL_SM100_FORWARD_D64) ||
        !install("mutant_forward_bf16", MXA_KERNEL_SM100_FORWARD_BF16_D64)) {
        return mxt_finish();
    }
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run(&none, 0, seed);
        run(&none, 1, seed);
    }
    /* WHY: reports without lines. addr2line for each of hundreds takes ten times the runs. */
    (void)setenv("PATH", "/", 1);
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            run(&mutants[i], 0, seed);
        }
        if (!mutants[i].fp8) {
            run(&mutants[i], 1, 4);
        }
    }
    return mxt_finish();
}
