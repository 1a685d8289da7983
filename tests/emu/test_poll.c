/* test_poll.c: warps that poll a word of memory for another warp's work, which waits for a copy:
 * that warp and the copy go on under every seed, and where nothing is checked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu_case.h"
#include "report.h"

#include <string.h>

enum { SEEDS = 40, WARPS = 4, SHARED = 1024, AT_DATA = 128, DONE = 0, SEEN = 4, AT_SOURCE = 64 };

/* Warp 0 counts at DONE when its copy is there; the others wait for that. */
MXA_KERNEL(polls, 32 * WARPS, mxt_emu_params, p)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(shared, 512);
        bulk_load(shared + AT_DATA, p.memory + 4 * AT_SOURCE, 512, shared);
        mbarrier_wait(shared, 0);
        dev_add_release_global_u32(p.memory + 4 * DONE, dev_load_shared_u32(shared + AT_DATA));
    } else if (dev_thread() % 32 == 0) {
        while (dev_load_acquire_global_u32(p.memory + 4 * DONE) == 0) {
        }
        dev_store_global_u32(p.memory + 4 * (uint64_t)(SEEN + dev_thread() / 32), 1);
    }
}

int main(void)
{
    static uint32_t memory[MXT_EMU_MEMORY_BYTES / 4] __attribute__((aligned(16)));
    const mxt_emu_params p = {0, 0, (mxa_global)(uintptr_t)memory};
    const int grid[3] = {1, 1, 1};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        mxa_emu_options options;
        mxa_emu_result result;
        mxt_case("seed %d", (int)seed);
        memset(memory, 0, sizeof memory);
        memory[AT_SOURCE] = 1;
        mxa_emu_options_init(&options);
        options.seed = seed;
        options.eager = seed == 0;
        (void)mxa_emu_launch(&polls_kernel, grid, 32 * WARPS, SHARED, &p, &options, &result);
        mxa_emu_result_free(&result);
        for (int warp = 1; warp < WARPS; warp++) {
            CHECK(memory[SEEN + warp] == 1, "warp %d has not gone on", warp);
        }
    }
    return mxt_finish();
}
