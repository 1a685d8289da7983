/* test_cluster.c: clusters of two, launch control, registers handed around, and that a seed repeats
 * a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu/launch.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 24, SHARED = 4096, WORDS = 1024, SEEDS = 20 };

typedef struct cluster_params {
    mxa_global words; /* uint32 [WORDS], zero at first */
} cluster_params;

/* Each CTA of a pair writes, tells the other, and reads what the other wrote to global memory. */
MXA_KERNEL_CLUSTER(pair, 64, 2, cluster_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const int rank = cluster_rank(), block = dev_block_x();
    if (dev_thread() == 0) {
        mbarrier_init(shared, 1);
        mbarrier_init_fence();
    }
    cluster_arrive();
    cluster_wait();
    if (dev_thread() == 0) {
        dev_store_global_u32(parameters.words + 4 * (uint64_t)block, (uint32_t)(block + 1));
        mbarrier_arrive_remote(cluster_map(shared, rank ^ 1));
        mbarrier_wait(shared, 0);
        const uint32_t other = dev_load_global_u32(parameters.words + 4 * (uint64_t)(block ^ 1));
        dev_store_global_u32(parameters.words + 4 * (uint64_t)(BLOCKS + block), other);
    }
    cluster_arrive();
    cluster_wait();
}

/* Every block is worked on once, by its own CTA or by one that took it. */
MXA_KERNEL(take_blocks, 32, cluster_params, parameters)
{
    const mxa_shared answer = dev_shared(), barrier = answer + 16;
    int block = dev_block_x();
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        for (uint32_t round = 0;; round++) {
            (void)dev_fetch_add_global_u32(parameters.words + 4 * (uint64_t)block, 1);
            (void)dev_fetch_add_global_u32(parameters.words + 4 * BLOCKS, round != 0);
            mbarrier_arrive_expect(barrier, 16);
            launch_control_try(answer, barrier);
            mbarrier_wait(barrier, round & 1);
            if (!launch_control_take(answer, &block)) {
                break;
            }
            fence_async_shared(); /* the answer was read; the next one is written asynchronously */
        }
    }
}

/* Four warpgroups: three take what the first gives up, to the last register. */
MXA_KERNEL(registers, 512, cluster_params, parameters)
{
    (void)parameters;
    if (dev_thread() < 128) {
        setmaxnreg_decrease(32);
    } else {
        setmaxnreg_increase(160);
    }
}

/* One register more than there are. */
MXA_KERNEL(too_many_registers, 512, cluster_params, parameters)
{
    (void)parameters;
    if (dev_thread() < 128) {
        setmaxnreg_decrease(40);
    } else {
        setmaxnreg_increase(160);
    }
}

/* The order in which threads reach a counter. */
MXA_KERNEL(order, 128, cluster_params, parameters)
{
    named_sync(1, 128);
    const uint32_t turn = dev_fetch_add_global_u32(parameters.words, 1);
    dev_store_global_u32(parameters.words + 4 * (uint64_t)(1 + turn), (uint32_t)dev_thread());
}

static uint32_t words[WORDS];

static int run(const mxa_emu_kernel *kernel, int blocks, int threads, uint64_t seed,
               mxa_emu_result *result)
{
    const int grid[] = {blocks, 1, 1};
    const cluster_params params = {(mxa_global)(uintptr_t)words};
    mxa_emu_options options;
    mxa_emu_options_init(&options);
    options.seed = seed;
    memset(words, 0, sizeof words);
    return mxa_emu_launch(kernel, grid, threads, SHARED, &params, &options, result);
}

static void check_pairs(uint64_t seed)
{
    mxa_emu_result result;
    const int failed = run(&pair_kernel, BLOCKS, 64, seed, &result);
    CHECK(!failed, "%s", result.text);
    for (int b = 0; b < BLOCKS; b++) {
        CHECK(words[BLOCKS + b] == (uint32_t)(b ^ 1) + 1, "block %d read %u of its peer", b,
              words[BLOCKS + b]);
    }
    mxa_emu_result_free(&result);
}

/* Returns how many blocks were taken. */
static uint32_t check_taken(uint64_t seed)
{
    mxa_emu_result result;
    const int failed = run(&take_blocks_kernel, BLOCKS, 32, seed, &result);
    CHECK(!failed, "%s", result.text);
    for (int b = 0; b < BLOCKS; b++) {
        CHECK(words[b] == 1, "seed %llu: block %d was worked on %u times", (unsigned long long)seed,
              b, words[b]);
    }
    mxa_emu_result_free(&result);
    return words[BLOCKS];
}

static void check_order(void)
{
    uint32_t first[WORDS];
    mxa_emu_result result;
    int differ = 0;
    mxt_case("a seed repeats a run, another gives another order");
    (void)run(&order_kernel, 1, 128, 1, &result);
    mxa_emu_result_free(&result);
    memcpy(first, words, sizeof first);
    (void)run(&order_kernel, 1, 128, 1, &result);
    mxa_emu_result_free(&result);
    CHECK(memcmp(first, words, sizeof first) == 0, "seed 1 gave two orders");
    for (uint64_t seed = 2; seed <= SEEDS; seed++) {
        (void)run(&order_kernel, 1, 128, seed, &result);
        mxa_emu_result_free(&result);
        differ += memcmp(first, words, sizeof first) != 0;
    }
    CHECK(differ == SEEDS - 1, "%d of %d seeds gave another order", differ, SEEDS - 1);
}

int main(void)
{
    mxa_emu_result result;
    uint32_t taken = 0;
    mxt_case("pairs of CTAs, %d seeds", SEEDS);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        check_pairs(seed);
    }
    mxt_case("launch control, %d seeds", SEEDS);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        taken += check_taken(seed);
    }
    CHECK(taken > 0 && taken < SEEDS * BLOCKS, "%u blocks were taken", taken);
    mxt_case("registers handed around");
    int failed = run(&registers_kernel, 1, 512, 1, &result);
    CHECK(!failed, "%s", result.text);
    mxa_emu_result_free(&result);
    failed = run(&too_many_registers_kernel, 1, 512, 1, &result);
    CHECK(failed && result.deadlock && strstr(result.text, "setmaxnreg.inc"),
          "registers that nobody has were given: %s", result.text ? result.text : "no report");
    mxa_emu_result_free(&result);
    check_order();
    mxt_case("launches that are refused");
    CHECK(run(&pair_kernel, 3, 64, 1, &result), "half a cluster was launched");
    mxa_emu_result_free(&result);
    CHECK(run(&pair_kernel, 2, 96, 1, &result), "more threads than the bounds were launched");
    mxa_emu_result_free(&result);
    CHECK(run(&pair_kernel, 2, 40, 1, &result), "a part of a warp was launched");
    mxa_emu_result_free(&result);
    return mxt_finish();
}
