/* test_mbarrier.c: mbarriers against their state machine: arrivals and bytes in any order, phases,
 * waits that fail for no reason, memory that is given back; and for each rule a kernel that breaks
 * it, with its mended twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu_case.h"
#include "report.h"

#include <string.h>

enum { AT_BARRIER = 0, AT_OTHER = 8, AT_DATA = 128, ROW = 512, SHARED = 4096, ROUNDS = 24 };

/* A phase is complete when all 5 arrivals and all bytes are there, whichever came first. What is
 * read after the wait is this round's; the words: mismatches, waits that failed. */
MXA_KERNEL(phases, 64, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared(), full = shared + AT_BARRIER, empty = shared + AT_OTHER;
    const int t = dev_thread();
    uint32_t failed = 0, wrong = 0;
    if (t == 0) {
        mbarrier_init(full, 5);
        mbarrier_init(empty, 32);
        mbarrier_init_fence();
    }
    cta_sync();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t parity = round & 1;
        if (t == 0) {
            mbarrier_wait(empty, parity ^ 1); /* of a fresh barrier: passes at once */
            if (round & 2) {                  /* bytes may be expected after they were issued */
                bulk_load(shared + AT_DATA, parameters.memory + ROW * round, ROW, full);
                mbarrier_expect(full, ROW);
            } else {
                mbarrier_expect(full, ROW);
                bulk_load(shared + AT_DATA, parameters.memory + ROW * round, ROW, full);
            }
            mbarrier_arrive_count(full, 2);
        } else if (t < 3) {
            mbarrier_wait(empty, parity ^ 1);
            mbarrier_arrive(full);
        } else if (t == 3) {
            mbarrier_wait(empty, parity ^ 1);
            mbarrier_arrive_expect(full, 0);
        } else if (t >= 32) {
            while (!mbarrier_try_wait(full, parity)) {
                failed++;
            }
            wrong += dev_load_shared_u32(shared + AT_DATA + 4 * (uint32_t)(t - 32)) != round;
            mbarrier_arrive(empty);
        }
    }
    if (t >= 32) {
        (void)dev_fetch_add_global_u32(parameters.memory + 60000, wrong);
        (void)dev_fetch_add_global_u32(parameters.memory + 60004, failed);
    }
}

/* The barrier's memory is used for something else, and for another barrier. */
MXA_KERNEL(given_back, 32, mxt_emu_params, parameters)
{
    const mxa_shared barrier = dev_shared() + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_arrive(barrier);
        mbarrier_wait(barrier, 0);
        if (!parameters.broken) {
            mbarrier_invalidate(barrier);
        }
        dev_store_shared_u32(barrier, 7);
        (void)dev_load_shared_u32(barrier);
        if (!parameters.broken) {
            mbarrier_init(barrier, 2);
            mbarrier_arrive_count(barrier, 2);
            mbarrier_wait(barrier, 0);
        }
    }
}

MXA_KERNEL(initialized_twice, 32, mxt_emu_params, parameters)
{
    const mxa_shared barrier = dev_shared() + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        if (!parameters.broken) {
            mbarrier_invalidate(barrier);
        }
        mbarrier_init(barrier, 1);
    }
}

/* Another thread uses it with no barrier in between. */
MXA_KERNEL(not_yet_seen, 64, mxt_emu_params, parameters)
{
    const mxa_shared barrier = dev_shared() + AT_BARRIER, other = dev_shared() + AT_OTHER;
    if (dev_thread() == 0) {
        mbarrier_init(other, 1);
        mbarrier_init(barrier, 1);
    }
    if (!parameters.broken) {
        cta_sync();
    }
    if (dev_thread() == 32) {
        mbarrier_arrive(barrier);
    }
}

MXA_KERNEL(misplaced, 32, mxt_emu_params, parameters)
{
    if (dev_thread() == 0) {
        mbarrier_init(dev_shared() + AT_BARRIER + (parameters.broken ? 4 : 0), 1);
    }
}

MXA_KERNEL(none_there, 32, mxt_emu_params, parameters)
{
    if (dev_thread() == 0) {
        mbarrier_init(dev_shared() + AT_BARRIER, 1);
        mbarrier_arrive(dev_shared() + (parameters.broken ? AT_OTHER : AT_BARRIER));
    }
}

/* More bytes than the count holds (2^20 - 1). */
MXA_KERNEL(too_many_bytes, 32, mxt_emu_params, parameters)
{
    const mxa_shared barrier = dev_shared() + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_expect(barrier, parameters.broken ? 1u << 20 : ROW);
        bulk_load(dev_shared() + AT_DATA, parameters.memory, ROW, barrier);
        if (!parameters.broken) {
            mbarrier_arrive(barrier);
            mbarrier_wait(barrier, 0);
        }
    }
}

/* Launch control's answer read before it has come; and its slot used again unfenced. */
MXA_KERNEL(answer_early, 32, mxt_emu_params, parameters)
{
    const mxa_shared answer = dev_shared() + AT_DATA, barrier = dev_shared() + AT_BARRIER;
    int block;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, 16);
        launch_control_try(answer, barrier);
        if (!parameters.broken) {
            mbarrier_wait(barrier, 0);
        }
        (void)launch_control_take(answer, &block);
        if (parameters.broken) {
            mbarrier_wait(barrier, 0);
        }
    }
}

MXA_KERNEL(answer_slot_written, 32, mxt_emu_params, parameters)
{
    const mxa_shared answer = dev_shared() + AT_DATA, barrier = dev_shared() + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        dev_store_shared_u32(answer, 0);
        if (!parameters.broken) {
            fence_async_shared();
        }
        mbarrier_arrive_expect(barrier, 16);
        launch_control_try(answer, barrier);
        mbarrier_wait(barrier, 0);
    }
}

/* A try_cancel after one that was refused: a grid of one CTA has none to give. */
MXA_KERNEL(tried_again, 32, mxt_emu_params, parameters)
{
    const mxa_shared answer = dev_shared() + AT_DATA, barrier = dev_shared() + AT_BARRIER;
    int block;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        for (uint32_t round = 0; round < (parameters.broken ? 2 : 1); round++) {
            mbarrier_arrive_expect(barrier, 16);
            launch_control_try(answer, barrier);
            mbarrier_wait(barrier, round & 1);
            (void)launch_control_take(answer, &block);
            fence_async_shared();
        }
    }
}

#define CASE(kernel, hazards, words, threads)                                                      \
    {                                                                                              \
#kernel, &kernel##_kernel, hazards, 0, words, threads, 1, SHARED, 0                        \
    }

static const mxt_emu_case cases[] = {
    CASE(given_back, MXT_H(11), "mbarrier overwritten", 32),
    CASE(initialized_twice, MXT_H(11), "initialized twice", 32),
    CASE(not_yet_seen, MXT_H(11), NULL, 64),
    CASE(misplaced, MXT_H(11), "a multiple of 8", 32),
    CASE(none_there, MXT_H(11), "no mbarrier there", 32),
    CASE(too_many_bytes, MXT_H(11), "more bytes than an mbarrier counts", 32),
    CASE(answer_early, MXT_H(2), "launch control", 32),
    CASE(answer_slot_written, MXT_H(1), "launch control", 32),
    CASE(tried_again, MXT_H(0), "after one that was refused", 32),
};

static void check_phases(void)
{
    static uint32_t memory[MXT_EMU_MEMORY_BYTES / 4];
    uint32_t failed = 0;
    mxt_case("phases");
    for (uint64_t seed = 1; seed <= MXT_EMU_SEEDS; seed++) {
        const mxt_emu_params p = {0, 0, (mxa_global)(uintptr_t)memory};
        const int grid[3] = {1, 1, 1};
        mxa_emu_options options;
        mxa_emu_result result;
        memset(memory, 0, sizeof memory);
        for (uint32_t i = 0; i < ROUNDS * ROW / 4; i++) {
            memory[i] = i / (ROW / 4);
        }
        mxa_emu_options_init(&options);
        options.seed = seed;
        (void)mxa_emu_launch(&phases_kernel, grid, 64, SHARED, &p, &options, &result);
        CHECK(result.errors + result.warnings == 0, "seed %llu: %s", (unsigned long long)seed,
              result.text ? result.text : "");
        mxa_emu_result_free(&result);
        CHECK(memory[15000] == 0, "seed %llu: %u words were another round's",
              (unsigned long long)seed, memory[15000]);
        failed += memory[15001];
    }
    CHECK(failed > 0, "no wait failed for no reason");
}

int main(void)
{
    check_phases();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mxt_emu_check(&cases[i]);
    }
    return mxt_finish();
}
