/* test_memory.c: loads, stores and atomics of threads: every width reads back its bytes and touches
 * no others; misaligned and foreign addresses are refused; stmatrix against its formula.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu/launch.h"
#include "fill.h"
#include "report.h"

#include <string.h>

enum { BYTES = 64, OPERATIONS = 14, SHARED = 4096, SEEDS = 5, AT_COUNT = 512, AT_MATRIX = 1024 };

typedef struct params {
    mxa_global from, to; /* BYTES for each operation */
    mxa_global sums;     /* uint32 [8] */
    int32_t operation;   /* of `one_access` */
    int32_t offset;
} params;

/* One operation moves one element from `from` to `to` through shared or global memory. */
MXA_DEVICE void move(int operation, mxa_global from, mxa_global to, mxa_shared at)
{
    switch (operation) {
    case 0:
        dev_store_global_u8(to, dev_load_global_u8(from));
        break;
    case 1:
        dev_store_global_u16(to, dev_load_global_u16(from));
        break;
    case 2:
        dev_store_global_u32(to, dev_load_global_u32(from));
        break;
    case 3:
        dev_store_global_f32(to, dev_load_global_f32(from));
        break;
    case 4:
        dev_store_global_u32(to, (uint32_t)dev_load_global_i32(from));
        break;
    case 5: {
        const mxa_u32x2 v = dev_load_global_u32x2(from);
        dev_store_global_u32x2(to, v.x, v.y);
        break;
    }
    case 6:
        dev_store_global_u32x4(to, dev_load_global_u32x4(from));
        break;
    case 7:
        dev_store_shared_u8(at, dev_load_global_u8(from));
        dev_store_global_u8(to, dev_load_shared_u8(at));
        break;
    case 8:
        dev_store_shared_u32(at, dev_load_global_u32(from));
        dev_store_global_u32(to, dev_load_shared_u32(at));
        break;
    case 9:
        dev_store_shared_f32(at, dev_load_global_f32(from));
        dev_store_global_f32(to, dev_load_shared_f32(at));
        break;
    case 10: {
        const mxa_u32x2 v = dev_load_global_u32x2(from);
        dev_store_shared_u32x2(at, v.x, v.y);
        const mxa_u32x2 w = dev_load_shared_u32x2(at);
        dev_store_global_u32x2(to, w.x, w.y);
        break;
    }
    case 11:
        dev_store_shared_u32x4(at, dev_load_global_u32x4(from));
        dev_store_global_u32x4(to, dev_load_shared_u32x4(at));
        break;
    case 12: /* the upper bits of a byte store do not count */
        dev_store_global_u8(to, dev_load_global_u8(from) | 0xFFFFFF00u);
        break;
    default:
        dev_store_shared_u8(at, dev_load_global_u8(from) | 0xFFFFFF00u);
        dev_store_global_u8(to, dev_load_shared_u8(at));
        break;
    }
}

static const int widths[OPERATIONS] = {1, 2, 4, 4, 4, 8, 16, 1, 4, 4, 8, 16, 1, 1};

MXA_KERNEL(all_accesses, 32, params, p)
{
    const int t = dev_thread();
    if (t < OPERATIONS) {
        move(t, p.from + (uint64_t)(BYTES * t + 16), p.to + (uint64_t)(BYTES * t + 16),
             dev_shared() + 16 * (uint32_t)t);
    }
}

MXA_KERNEL(one_access, 32, params, p)
{
    if (dev_thread() == 0) {
        move(p.operation, p.from + (uint64_t)p.offset, p.to, dev_shared());
    }
}

/* Every thread's atomics: sums, the largest, each old value once; a counter that is polled. */
MXA_KERNEL(atomics, 64, params, p)
{
    const mxa_shared count = dev_shared() + AT_COUNT;
    const uint32_t t = (uint32_t)dev_thread();
    if (t == 0) {
        dev_store_shared_u32(count, 0);
    }
    cta_sync();
    dev_max_global_u32(p.sums, t * 3 % 64);
    dev_add_global_f32(p.sums + 4, 0.5F);
    dev_store_global_u32(p.to + 4 * (uint64_t)dev_fetch_add_global_u32(p.sums + 8, 1), t);
    dev_store_global_u32(p.to + 256 + 4 * (uint64_t)dev_fetch_add_shared_u32(count, 1), t);
    (void)dev_fetch_add_ordered_global_u32(p.sums + 12, 2);
    dev_add_release_global_u32(p.sums + 16, 1);
    while (dev_load_acquire_global_u32(p.sums + 16) < 64) {
    }
    dev_store_global_u32(p.to + 512 + 4 * (uint64_t)t, dev_load_global_u32(p.sums + 12));
}

/* Four transposed matrices, then their bytes. */
MXA_KERNEL(store_matrices, 32, params, p)
{
    const mxa_shared at = dev_shared() + AT_MATRIX;
    const uint32_t t = (uint32_t)dev_thread();
    uint32_t v[4];
    for (uint32_t i = 0; i < 4; i++) { /* row t/4, columns 2*(t%4) and the next, of matrix i */
        const uint32_t unit = i << 8 | (t / 4) << 4 | 2 * (t % 4);
        v[i] = unit | (unit + 1) << 16;
    }
    dev_store_matrix_x4_transposed(at + 32 * t, v);
    warp_sync();
    for (uint32_t i = 0; i < 4; i++) {
        dev_store_global_u32(p.to + (uint64_t)(16 * t + 4 * i),
                             dev_load_shared_u32(at + 32 * t + 4 * i));
    }
    fence_async_global(); /* orders nothing that the emulator keeps apart */
}

static unsigned char from[BYTES * OPERATIONS] __attribute__((aligned(16)));
static unsigned char to[4096] __attribute__((aligned(16)));
static uint32_t sums[8];

static void run(const mxa_emu_kernel *kernel, int threads, const params *p, uint64_t seed,
                mxa_emu_result *result)
{
    const int grid[3] = {1, 1, 1};
    mxa_emu_options options;
    mxa_emu_options_init(&options);
    options.seed = seed;
    memset(sums, 0, sizeof sums);
    memset(to, 0xFF, sizeof to);
    (void)mxa_emu_launch(kernel, grid, threads, SHARED, p, &options, result);
}

static void check_clean(mxa_emu_result *result)
{
    CHECK(result->errors + result->warnings == 0, "%s", result->text ? result->text : "");
    mxa_emu_result_free(result);
}

static void accesses(const params *p, uint64_t seed)
{
    mxa_emu_result result;
    run(&all_accesses_kernel, 32, p, seed, &result);
    check_clean(&result);
    for (int i = 0; i < OPERATIONS; i++) {
        for (int b = 0; b < BYTES; b++) {
            const unsigned char want = b >= 16 && b < 16 + widths[i] ? from[BYTES * i + b] : 0xFF;
            CHECK(to[BYTES * i + b] == want, "access %d, byte %d: %02x, want %02x", i, b,
                  to[BYTES * i + b], want);
        }
    }
}

static uint32_t word(size_t at)
{
    uint32_t x;
    memcpy(&x, to + at, sizeof x);
    return x;
}

static void all_atomics(const params *p, uint64_t seed)
{
    mxa_emu_result result;
    run(&atomics_kernel, 64, p, seed, &result);
    check_clean(&result);
    CHECK(sums[0] == 63 && f32_bits(sums[1]) == 32.0F && sums[2] == 64 && sums[3] == 128,
          "largest %u, sum %g, counts %u and %u", sums[0], (double)f32_bits(sums[1]), sums[2],
          sums[3]);
    uint64_t seen[2] = {0, 0};
    for (size_t i = 0; i < 64; i++) {
        seen[0] |= (uint64_t)1 << (word(4 * i) & 63);
        seen[1] |= (uint64_t)1 << (word(256 + 4 * i) & 63);
        CHECK(word(512 + 4 * i) == 128, "thread %zu saw %u", i, word(512 + 4 * i));
    }
    CHECK(~seen[0] == 0 && ~seen[1] == 0, "a turn was given twice");
}

static void matrices(const params *p, uint64_t seed)
{
    mxa_emu_result result;
    run(&store_matrices_kernel, 32, p, seed, &result);
    check_clean(&result);
    for (uint32_t t = 0; t < 32; t++) {
        for (uint32_t j = 0; j < 8; j++) { /* row t%8 of matrix t/8 as stored: column t%8 */
            uint16_t unit;
            memcpy(&unit, to + 16 * t + 2 * j, sizeof unit);
            CHECK(unit == (t / 8 << 8 | j << 4 | t % 8), "lane %u, unit %u: %04x", t, j, unit);
        }
    }
}

static void refusals(params p)
{
    mxt_case("misaligned and foreign addresses");
    (void)mxa_emu_memory_add(from, sizeof from);
    (void)mxa_emu_memory_add(to, sizeof to);
    for (p.operation = 0; p.operation < 7; p.operation++) {
        static const int32_t offsets[] = {0, 1, 2, 4, 8, BYTES * OPERATIONS};
        for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
            const int wrong = offsets[i] % widths[p.operation] != 0 ||
                              offsets[i] + widths[p.operation] > BYTES * OPERATIONS;
            mxa_emu_result result;
            p.offset = offsets[i];
            run(&one_access_kernel, 32, &p, 1, &result);
            CHECK(result.errors == wrong, "load of %d bytes at %d: %s", widths[p.operation],
                  offsets[i], result.text ? result.text : "nothing reported");
            mxa_emu_result_free(&result);
        }
    }
    mxa_emu_memory_remove(from);
    mxa_emu_memory_remove(to);
}

int main(void)
{
    const params p = {(mxa_global)(uintptr_t)from, (mxa_global)(uintptr_t)to,
                      (mxa_global)(uintptr_t)sums, 0, 0};
    mxt_random random = {3};
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (unsigned char)mxt_random_int(&random, 0, 254);
    }
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        mxt_case("seed %llu", (unsigned long long)seed);
        accesses(&p, seed);
        all_atomics(&p, seed);
        matrices(&p, seed);
    }
    refusals(p);
    return mxt_finish();
}
