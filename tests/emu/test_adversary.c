/* test_adversary.c: what the seed decides is decided both ways: when asynchronous work is carried
 * out, who runs first, which lane is elected, what memory holds that nobody wrote.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/dev/tma.h"
#include "emu_case.h"
#include "report.h"

#include <string.h>

enum {
    SEEDS = 32,
    BLOCKS = 4,
    AT_BARRIER = 0,
    AT_SLOT = 8,
    AT_DATA = 128,
    SHARED = 4096,
    OLD = 1,
    NEW = 2
};

/* What a run saw, by word of memory: */
enum {
    LOADED,      /* the first word of a copy, just after it was issued (a race, and reported) */
    LOADED_LAST, /* the last word of the same copy at the same moment */
    STORED,      /* global memory, after wait_group.read of a bulk store */
    TENSOR,      /* a register of tcgen05.ld before its wait */
    TENSOR_READ, /* D before the product's commit was waited for */
    UNWRITTEN,   /* shared memory that nobody wrote */
    BASE,        /* where dynamic shared memory starts */
    FIRST_BLOCK,
    FIRST_WARP,
    TURN_BLOCK,
    TURN_WARP,
    WORDS,
    AT_SOURCE = 64, /* words of global memory */
    AT_TARGET = 256
};

MXA_DEVICE void see(const mxt_emu_params *p, int word, uint32_t x)
{
    dev_store_global_u32(p->memory + 4 * (uint64_t)word, x);
}

MXA_KERNEL(copies, 32, mxt_emu_params, p)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
        see(&p, UNWRITTEN, dev_load_shared_u32(shared + 2048));
        see(&p, BASE, shared);
        for (uint32_t i = 0; i < 512; i += 4) {
            dev_store_shared_u32(shared + AT_DATA + i, OLD);
        }
        fence_async_shared();
        mbarrier_arrive_expect(shared + AT_BARRIER, 512);
        bulk_load(shared + AT_DATA, p.memory + 4 * AT_SOURCE, 512, shared + AT_BARRIER);
        see(&p, LOADED, dev_load_shared_u32(shared + AT_DATA));
        see(&p, LOADED_LAST, dev_load_shared_u32(shared + AT_DATA + 508));
        mbarrier_wait(shared + AT_BARRIER, 0);
        bulk_store(p.memory + 4 * AT_TARGET, shared + AT_DATA, 512);
        bulk_commit();
        bulk_wait_read(0);
        for (int i = 0; i < 16; i++) { /* others may run meanwhile */
            (void)dev_fetch_add_global_u32(p.memory + 4 * TURN_WARP, 1);
        }
        see(&p, STORED, dev_load_global_u32(p.memory + 4 * AT_TARGET));
        bulk_wait(0);
    }
}

/* A product of ones over columns of zeros, whose D is loaded too early. */
MXA_KERNEL(products, 128, mxt_emu_params, p)
{
    const mxa_shared shared = dev_shared();
    uint32_t r[4] = {0, 0, 0, 0};
    for (uint32_t i = 4 * (uint32_t)dev_thread(); i < 2048; i += 512) { /* 64 rows of 32 bytes */
        dev_store_shared_u32(shared + 1024 + i, 0x38383838);
    }
    fence_async_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
    }
    if (dev_thread() < 32) {
        tmem_alloc(shared + AT_SLOT, 32);
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    const mxa_tmem t = dev_load_shared_u32(shared + AT_SLOT);
    tmem_store_x4(tmem_quarter(t, dev_thread() / 32), r);
    tmem_wait_store();
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    if (dev_thread() == 0) {
        const uint64_t a = matrix_descriptor(shared + 1024, 1024, 128, MATRIX_SWIZZLE_NONE);
        tcgen05_mma_f8_ss(t, a, a, /* M = 64 */
                          MATRIX_INSTRUCTION_F32(MATRIX_E4M3, MATRIX_E4M3, 0, 8) - (4u << 24), 0);
        tcgen05_commit(shared + AT_BARRIER);
    }
    tmem_load_x4(r, tmem_quarter(t, dev_thread() / 32));
    if (dev_thread() == 0) {
        see(&p, TENSOR, r[0]);
    }
    tmem_wait_load();
    if (dev_thread() == 0) {
        see(&p, TENSOR_READ, r[0] ? NEW : OLD);
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
    tcgen05_fence_before();
    cta_sync();
    if (dev_thread() < 32) {
        tmem_free(t, 32);
    }
}

/* Who comes first: of the CTAs, and of a CTA's warps. */
MXA_KERNEL(turns, 128, mxt_emu_params, p)
{
    if (dev_thread() % 32 == 0) {
        if (dev_fetch_add_global_u32(p.memory + 4 * TURN_BLOCK, 1) == 0) {
            see(&p, FIRST_BLOCK, (uint32_t)dev_block_x());
            see(&p, FIRST_WARP, (uint32_t)dev_thread() / 32);
        }
    }
}

static uint32_t seen[SEEDS][WORDS];

static void run(const mxa_emu_kernel *kernel, int blocks, int threads, uint64_t seed)
{
    static uint32_t memory[MXT_EMU_MEMORY_BYTES / 4] __attribute__((aligned(16)));
    const mxt_emu_params p = {0, 0, (mxa_global)(uintptr_t)memory};
    const int grid[3] = {blocks, 1, 1};
    mxa_emu_options options;
    mxa_emu_result result;
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < 128; i++) {
        memory[AT_SOURCE + i] = NEW;
        memory[AT_TARGET + i] = OLD;
    }
    mxa_emu_options_init(&options);
    options.seed = seed;
    (void)mxa_emu_launch(kernel, grid, threads, SHARED, &p, &options, &result);
    mxa_emu_result_free(&result);
    for (int i = 0; i < WORDS; i++) {
        seen[seed][i] |= memory[i];
    }
}

/* Seeds that saw x. */
static int count(int word, uint32_t x)
{
    int sum = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        sum += seen[seed][word] == x;
    }
    return sum;
}

/* How many different values there were. */
static int values(int word)
{
    int sum = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        int before = 0;
        for (int i = 0; i < seed; i++) {
            before |= seen[i][word] == seen[seed][word];
        }
        sum += !before;
    }
    return sum;
}

int main(void)
{
    int apart = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        run(&copies_kernel, 1, 32, seed);
        run(&products_kernel, 1, 128, seed);
        run(&turns_kernel, BLOCKS, 128, seed);
        apart += seen[seed][LOADED] != seen[seed][LOADED_LAST];
    }
    mxt_case("asynchronous work: early and late");
    CHECK(count(LOADED, OLD) && count(LOADED, NEW) &&
              count(LOADED, OLD) + count(LOADED, NEW) == SEEDS,
          "a copy: %d of %d not there yet", count(LOADED, OLD), SEEDS);
    CHECK(apart > 0, "a copy lands in one piece");
    CHECK(count(STORED, OLD) && count(STORED, NEW), "a store: %d of %d not there yet",
          count(STORED, OLD), SEEDS);
    CHECK(count(TENSOR_READ, OLD) && count(TENSOR_READ, NEW), "a product: %d of %d not there yet",
          count(TENSOR_READ, OLD), SEEDS);
    mxt_case("results that were not waited for are poison");
    CHECK(count(TENSOR, MXA_EMU_POISON) == SEEDS, "in %d of %d", count(TENSOR, MXA_EMU_POISON),
          SEEDS);
    mxt_case("who comes first");
    CHECK(values(FIRST_BLOCK) == BLOCKS, "%d of %d CTAs", values(FIRST_BLOCK), BLOCKS);
    CHECK(values(FIRST_WARP) == 4, "%d of 4 warps", values(FIRST_WARP));
    mxt_case("memory that nobody wrote");
    CHECK(values(UNWRITTEN) > SEEDS / 2, "%d contents", values(UNWRITTEN));
    CHECK(values(BASE) > 4, "%d places of shared memory", values(BASE));
    return mxt_finish();
}
