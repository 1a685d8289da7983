/* test_stale.c: where a proxy fence is missing, an asynchronous agent is served what threads'
 * stores overwrote, byte for byte, under every schedule; with the fence it sees what they wrote.
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
    THREADS = 128,
    COLUMNS = 32,
    N = 16,
    AT_BARRIER = 0,
    AT_SLOT = 8,
    AT_DATA = 128, /* THREADS words */
    AT_A = 1024,   /* 128 rows of 32 bytes, in chunks of 16 */
    AT_B = AT_A + 128 * 32,
    SHARED = AT_B + 32 * N,
    OLD = 0x1000,
    NEW = 0x2000,
    FP8_ONE = 0x38383838,
    FP8_TWO = 0x40404040
};

typedef struct params {
    int32_t fenced, reserved;
    mxa_global first, second, seen; /* [THREADS] */
} params;

MXA_DEVICE void copy_out(mxa_global to, mxa_shared from)
{
    cta_sync();
    if (dev_thread() == 0) {
        bulk_store(to, from, 4 * THREADS);
        bulk_commit();
        bulk_wait(0);
    }
    cta_sync();
}

/* Words are written and fenced; then the odd ones again, and byte 2 of the even ones, with a fence
 * or without; twice copied out, the second time after a fence. */
MXA_KERNEL(stale_words, THREADS, params, p)
{
    const mxa_shared shared = dev_shared() + AT_DATA, own = shared + 4 * (uint32_t)dev_thread();
    dev_store_shared_u32(own, OLD + (uint32_t)dev_thread());
    fence_async_shared();
    if (dev_thread() & 1) {
        dev_store_shared_u32(own, NEW + (uint32_t)dev_thread());
    } else {
        dev_store_shared_u8(own + 2, 0xEE);
    }
    if (p.fenced) {
        fence_async_shared();
    }
    copy_out(p.first, shared);
    dev_store_global_u32(p.seen + 4 * (uint64_t)dev_thread(), dev_load_shared_u32(own));
    fence_async_shared();
    copy_out(p.second, shared);
}

/* A product whose A is written again: 1, then 2. */
MXA_KERNEL(stale_product, THREADS, params, p)
{
    const mxa_shared shared = dev_shared();
    uint32_t r[4];
    for (uint32_t i = 4 * (uint32_t)dev_thread(); i < SHARED - AT_A; i += 4 * THREADS) {
        dev_store_shared_u32(shared + AT_A + i, FP8_ONE);
    }
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
    }
    if (dev_thread() < 32) {
        tmem_alloc(shared + AT_SLOT, COLUMNS);
    }
    fence_async_shared();
    for (uint32_t i = 4 * (uint32_t)dev_thread(); i < AT_B - AT_A; i += 4 * THREADS) {
        dev_store_shared_u32(shared + AT_A + i, FP8_TWO);
    }
    if (p.fenced) {
        fence_async_shared();
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    const mxa_tmem at = dev_load_shared_u32(shared + AT_SLOT);
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ss(at, matrix_descriptor(shared + AT_A, 128 * 16, 128, MATRIX_SWIZZLE_NONE),
                          matrix_descriptor(shared + AT_B, N * 16, 128, MATRIX_SWIZZLE_NONE),
                          MATRIX_INSTRUCTION_F32(MATRIX_E4M3, MATRIX_E4M3, 0, N), 0);
        tcgen05_commit(shared + AT_BARRIER);
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
    tcgen05_fence_after();
    tmem_load_x4(r, tmem_quarter(at, dev_thread() / 32));
    tmem_wait_load();
    dev_store_global_u32(p.first + 4 * (uint64_t)dev_thread(), r[3]);
    tcgen05_fence_before();
    cta_sync();
    if (dev_thread() < 32) {
        tmem_free(at, COLUMNS);
    }
}

static uint32_t first[THREADS], second[THREADS], seen[THREADS];

static void run(const mxa_emu_kernel *kernel, int fenced, uint64_t seed)
{
    const params p = {fenced, 0, (mxa_global)(uintptr_t)first, (mxa_global)(uintptr_t)second,
                      (mxa_global)(uintptr_t)seen};
    const int grid[3] = {1, 1, 1};
    mxa_emu_options options;
    mxa_emu_result result;
    mxa_emu_options_init(&options);
    options.seed = seed;
    (void)mxa_emu_launch(kernel, grid, THREADS, SHARED, &p, &options, &result);
    CHECK(fenced ? result.errors + result.warnings == 0 : result.hazards == MXT_H(1), "%s",
          result.text ? result.text : "nothing reported");
    mxa_emu_result_free(&result);
}

int main(void)
{
    for (uint64_t seed = 1; seed <= MXT_EMU_SEEDS; seed++) {
        for (int fenced = 0; fenced < 2; fenced++) {
            mxt_case("%s, seed %llu", fenced ? "fenced" : "no fence", (unsigned long long)seed);
            run(&stale_words_kernel, fenced, seed);
            for (uint32_t i = 0; i < THREADS; i++) {
                const uint32_t now = i & 1 ? NEW + i : (OLD + i) | 0xEE0000;
                CHECK(seen[i] == now && second[i] == now, "word %u: 0x%x, later copied 0x%x", i,
                      seen[i], second[i]);
                CHECK(first[i] == (fenced ? now : OLD + i), "word %u: copied 0x%x", i, first[i]);
            }
            run(&stale_product_kernel, fenced, seed);
            for (uint32_t i = 0; i < THREADS; i++) {
                float d;
                memcpy(&d, &first[i], sizeof d);
                CHECK(d == (fenced ? 64.0F : 32.0F), "row %u of D is %g", i, (double)d);
            }
        }
    }
    return mxt_finish();
}
