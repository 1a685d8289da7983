/* test_hazards.c: for each hazard of shared memory, barriers and copies a kernel that has it, and
 * its mended twin.
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

enum { AT_BARRIER = 0, AT_OTHER = 8, AT_DATA = 128, ROW = 512, SHARED = 4096 };

/* One barrier of `count`, known to all. */
MXA_DEVICE void begin(mxa_shared shared, uint32_t count)
{
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, count);
        mbarrier_init(shared + AT_OTHER, count);
        mbarrier_init_fence();
    }
    cta_sync();
}

/* H1: threads write, the copy engine reads. */
MXA_KERNEL(h1_proxy_fence, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    dev_store_shared_u32(shared + AT_DATA + 4 * (uint32_t)dev_thread(), 1);
    if (!parameters.broken) {
        fence_async_shared();
    }
    cta_sync();
    if (dev_thread() == 0) {
        bulk_store(parameters.memory, shared + AT_DATA, 128);
        bulk_commit();
        bulk_wait_read(0);
    }
}

/* H2: bytes of a copy read before its barrier says that they are there. */
MXA_KERNEL(h2_copy_not_waited, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    begin(shared, 1);
    if (dev_thread() == 0) {
        mbarrier_arrive_expect(shared + AT_BARRIER, ROW);
        bulk_load(shared + AT_DATA, parameters.memory, ROW, shared + AT_BARRIER);
    }
    if (!parameters.broken) {
        mbarrier_wait(shared + AT_BARRIER, 0);
    }
    (void)dev_load_shared_u32(shared + AT_DATA);
    if (parameters.broken) {
        mbarrier_wait(shared + AT_BARRIER, 0);
    }
}

/* H7: a copy overwrites what other threads may still read. */
MXA_KERNEL(h7_refill, 64, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared(), full = shared + AT_BARRIER, empty = shared + AT_OTHER;
    dev_role(dev_thread() < 32 ? "load" : "reader");
    if (dev_thread() == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(empty, 1);
        mbarrier_init_fence();
        dev_barrier(full, "full", 3, "load, TMA", "reader");
        dev_barrier(empty, "empty", 3, "reader", "load");
        dev_region(shared + AT_DATA, ROW, "K", 3);
    }
    cta_sync();
    if (dev_thread() == 0) {
        for (uint32_t i = 0; i < 2; i++) {
            if (i && !parameters.broken) {
                mbarrier_wait(empty, 0);
            }
            mbarrier_arrive_expect(full, ROW);
            bulk_load(shared + AT_DATA, parameters.memory + ROW * i, ROW, full);
            if (!i) {
                mbarrier_wait(full, 0);
            }
        }
        mbarrier_wait(full, 1);
    } else if (dev_thread() >= 32) {
        mbarrier_wait(full, 0);
        (void)dev_load_shared_u32(shared + AT_DATA + 4 * (uint32_t)(dev_thread() - 32));
        warp_sync();
        if (dev_thread() == 32) {
            mbarrier_arrive(empty);
        }
    }
}

/* H10: one more arrival than the barrier counts. */
MXA_KERNEL(h10_arrivals, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 2);
    }
    cta_sync();
    if (dev_thread() == 0) {
        if (parameters.broken) {
            mbarrier_arrive_count(shared + AT_BARRIER, 3);
        }
        mbarrier_arrive_count(shared + AT_BARRIER, 2);
    }
}

/* H11: a waiter misses a phase. */
MXA_KERNEL(h11_phase, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    begin(shared, 1);
    if (dev_thread() == 0) {
        for (uint32_t phase = 0; phase < 3; phase++) {
            mbarrier_arrive(shared + AT_BARRIER);
            if (!parameters.broken || phase != 1) {
                mbarrier_wait(shared + AT_BARRIER, phase & 1);
            }
        }
    }
}

/* H11: a copy is given a barrier whose init it may not have seen. */
MXA_KERNEL(h11_init_fence, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        if (!parameters.broken) {
            mbarrier_init_fence();
        }
        mbarrier_arrive_expect(shared + AT_BARRIER, ROW);
        bulk_load(shared + AT_DATA, parameters.memory, ROW, shared + AT_BARRIER);
        mbarrier_wait(shared + AT_BARRIER, 0);
    }
}

/* H11: more bytes expected than come. */
MXA_KERNEL(h11_bytes, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    begin(shared, 1);
    dev_barrier(shared + AT_BARRIER, "full", 0, "producer, TMA", "consumer");
    if (dev_thread() == 0) {
        mbarrier_arrive_expect(shared + AT_BARRIER, parameters.broken ? ROW + 16 : ROW);
        bulk_load(shared + AT_DATA, parameters.memory, ROW, shared + AT_BARRIER);
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
}

/* H12: a parity that is wrong from the start: nobody can go on. */
MXA_KERNEL(h12_parity, 64, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    begin(shared, 32);
    dev_role(dev_thread() < 32 ? "producer" : "consumer");
    if (dev_thread() < 32) {
        mbarrier_wait(shared + AT_OTHER, parameters.broken ? 0 : 1);
        mbarrier_arrive(shared + AT_BARRIER);
    } else {
        mbarrier_wait(shared + AT_BARRIER, 0);
    }
}

/* H12: lanes of a warp at two instructions that want the whole warp. */
MXA_KERNEL(h12_divergent, 32, mxt_emu_params, parameters)
{
    int x = dev_thread();
    if (parameters.broken && x < 7) {
        warp_sync();
    } else {
        x = shuffle_i32(x, 0);
    }
    (void)x;
}

/* H12: two counts for one named barrier. */
MXA_KERNEL(h12_counts, 64, mxt_emu_params, parameters)
{
    named_sync(1, parameters.broken && dev_thread() >= 32 ? 32 : 64);
}

/* H12: lanes that do not come to an aligned arrival. The twin's lanes run ahead of one another: the
 * arrival makes none of them wait, and what they meet at next is not it. */
MXA_KERNEL(h12_arrive, 64, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const int lane = dev_thread() & 31;
    if (dev_thread() < 32) {
        dev_store_shared_u32(shared + AT_DATA + 4 * (uint32_t)lane, 1);
        if (!parameters.broken || lane >= 7) {
            named_arrive(2, 64);
        }
        warp_sync();
        (void)shuffle_i32(lane, 0);
    } else {
        named_sync(2, 64);
        (void)dev_load_shared_u32(shared + AT_DATA + 4 * (uint32_t)(lane ^ 1));
    }
}

/* H16: copied out before anyone wrote it. */
MXA_KERNEL(h16_unwritten, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (!parameters.broken || dev_thread() != 5) {
        dev_store_shared_u32(shared + AT_DATA + 4 * (uint32_t)dev_thread(), 1);
    }
    fence_async_shared();
    cta_sync();
    if (dev_thread() == 0) {
        bulk_store(parameters.memory, shared + AT_DATA, 128);
        bulk_commit();
        bulk_wait_read(0);
    }
}

/* H19: shared memory is written again under a bulk store. */
MXA_KERNEL(h19_reuse, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            dev_store_shared_u32(shared + AT_DATA + 4 * i, i);
        }
        fence_async_shared();
        bulk_store(parameters.memory, shared + AT_DATA, 16);
        bulk_commit();
        if (!parameters.broken) {
            bulk_wait_read(0);
        }
        dev_store_shared_u32(shared + AT_DATA, 5);
        bulk_wait_read(0);
    }
}

/* H19: the CTA ends before a bulk store has read. */
MXA_KERNEL(h19_end, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            dev_store_shared_u32(shared + AT_DATA + 4 * i, i);
        }
        fence_async_shared();
        bulk_store(parameters.memory, shared + AT_DATA, 16);
        bulk_commit();
        if (!parameters.broken) {
            bulk_wait_read(0);
        }
    }
}

/* H20: an arrival in a CTA that has ended. */
MXA_KERNEL_CLUSTER(h20_ended, 32, 2, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    begin(shared, 1);
    cluster_arrive();
    cluster_wait();
    if (cluster_rank() == 0) {
        if (dev_thread() == 0) {
            /* Long enough for the other CTA to end, whatever the order. */
            for (uint32_t phase = 0; phase < 600; phase++) {
                mbarrier_arrive(shared + AT_OTHER);
                mbarrier_wait(shared + AT_OTHER, phase & 1);
            }
            mbarrier_arrive_remote(cluster_map(shared + AT_BARRIER, 1));
        }
    }
    if (!parameters.broken) {
        if (cluster_rank() == 1) {
            mbarrier_wait(shared + AT_BARRIER, 0);
        }
        cluster_arrive();
        cluster_wait();
    }
}

/* Two warps, no order. */
MXA_KERNEL(race, 64, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        dev_store_shared_u32(shared + AT_DATA, 1);
    }
    if (!parameters.broken) {
        cta_sync();
    }
    if (dev_thread() == 32) {
        (void)dev_load_shared_u32(shared + AT_DATA);
    }
}

/* A lane reads what another lane of its warp wrote: the warp is no order by itself. */
MXA_KERNEL(race_in_warp, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    dev_store_shared_u8(shared + AT_DATA + (uint32_t)dev_thread(), 1);
    if (!parameters.broken) {
        warp_sync();
    }
    if (dev_thread() == 3) {
        (void)dev_load_shared_u32(shared + AT_DATA);
    }
}

MXA_KERNEL(global_bounds, 32, mxt_emu_params, parameters)
{
    uint64_t at = parameters.memory + MXT_EMU_MEMORY_BYTES - 4 * 32;
    at += 4 * (uint64_t)(dev_thread() + (parameters.broken ? 1 : 0));
    dev_store_global_u32(at, 1);
}

MXA_KERNEL(shared_bounds, 32, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared() + SHARED - 4 * 32;
    dev_store_shared_u32(shared + 4 * (uint32_t)(dev_thread() + (parameters.broken ? 1 : 0)), 1);
}

#define CASE(kernel, hazards, word, threads, blocks)                                               \
    {                                                                                              \
#kernel, &kernel##_kernel, hazards, 0, word, threads, blocks, SHARED, 0                    \
    }

static const mxt_emu_case cases[] = {
    CASE(h1_proxy_fence, MXT_H(1), "no proxy fence", 32, 1),
    CASE(h2_copy_not_waited, MXT_H(2), "before its write is complete", 32, 1),
    CASE(h7_refill, MXT_H(7) | MXT_H(2),
         "shared memory K[3] + |(TMA load) by load, warp 0 lane 0|reader, warp 1|"
         "which last waited for full[3], phase 0|was: test_hazards.c:|at:  test_hazards.c:",
         64, 1),
    CASE(h10_arrivals, MXT_H(10), "too many arrivals", 32, 1),
    CASE(h11_phase, MXT_H(11), "two or more phases behind", 32, 1),
    CASE(h11_init_fence, MXT_H(11), "fence.mbarrier_init", 32, 1),
    CASE(h11_bytes, MXT_H(12), "should arrive: producer, TMA", 32, 1),
    CASE(h12_parity, MXT_H(12),
         "deadlock|(first: producer, warp 0 lane 0) wait for|32 of 32 arrivals missing|"
         "(first: consumer, warp 1 lane 0) wait for|nobody ever arrived on it",
         64, 1),
    CASE(h12_divergent, MXT_H(12), "different instructions", 32, 1),
    CASE(h12_counts, MXT_H(12), "two counts", 64, 1),
    CASE(h12_arrive, MXT_H(12), "barrier.arrive", 64, 1),
    CASE(h16_unwritten, MXT_H(16), "never written", 32, 1),
    CASE(h19_reuse, MXT_H(19), "bulk store reads", 32, 1),
    CASE(h19_end, MXT_H(19), "not waited for", 32, 1),
    CASE(h20_ended, MXT_H(20), "has ended", 32, 2),
    CASE(race, MXT_H(0) | MXT_H(7), "test_hazards.c", 64, 1),
    CASE(race_in_warp, MXT_H(0) | MXT_H(7), NULL, 32, 1),
    CASE(global_bounds, MXT_H(0), "global access out of bounds", 32, 1),
    CASE(shared_bounds, MXT_H(0), "shared access out of bounds", 32, 1),
};

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mxt_emu_check(&cases[i]);
    }
    return mxt_finish();
}
