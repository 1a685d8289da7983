/* test_tmem.c: tensor memory on the emulator: the maps of loads and stores, allocation, and for
 * each rule of tcgen05 a kernel that breaks it, with its mended twin.
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
    AT_A = 0,
    AT_B = 4096, /* 128 and 32 rows of 32 bytes, swizzled so */
    AT_SCALES = 5120,
    AT_BARRIER = 6144,
    AT_OTHER = 6152,
    AT_SLOT = 6160,
    SHARED = 8192,
    T_D = 0,
    T_SCALES = 64,
    N = 32
};

/* ---- maps ---- */

/* Register r of lane t of a shape, from PTX ISA 9.7.16.2.3 (figures of 16x64b, 16x128b, 16x256b).
 */
static int lane_of(int shape, int t, int r)
{
    switch (shape) {
    case 1:
        return t % 2 * 8 + t / 4;
    case 2:
        return t / 4 + r % 2 * 8;
    case 3:
        return t / 4 + r / 2 % 2 * 8;
    default:
        return t;
    }
}

static int column_of(int shape, int t, int r)
{
    switch (shape) {
    case 1:
        return r * 2 + t / 2 % 2;
    case 2:
        return t % 4 + r / 2 * 4;
    case 3:
        return t % 4 * 2 + r % 2 + r / 4 * 8;
    default:
        return r;
    }
}

enum { SHAPES = 12, MOST = 128 };

typedef struct map_params {
    mxa_global loaded; /* [shape][warp][half][lane t][MOST]: registers of each shape */
    mxa_global stored; /* [shape][warp][lane][MOST]: tensor memory after stores of each shape */
} map_params;

static const struct {
    int shape, registers;
} shapes[SHAPES] = {{0, 8}, {0, 32}, {1, 16}, {2, 16}, {3, 16}, {3, 32},
                    {0, 1}, {0, 2},  {0, 4},  {0, 16}, {0, 64}, {0, 128}};

MXA_DEVICE void load_shape(int shape, uint32_t *r, mxa_tmem at)
{
    switch (shape) {
    case 0:
        tmem_load_x8(r, at);
        break;
    case 1:
        tmem_load_x32(r, at);
        break;
    case 2:
        tmem_load_16x64b_x16(r, at);
        break;
    case 3:
        tmem_load_16x128b_x8(r, at);
        break;
    case 4:
        tmem_load_16x256b_x4(r, at);
        break;
    case 5:
        tmem_load_16x256b_x8(r, at);
        break;
    case 6:
        tmem_load_x1(r, at);
        break;
    case 7:
        tmem_load_x2(r, at);
        break;
    case 8:
        tmem_load_x4(r, at);
        break;
    case 9:
        tmem_load_x16(r, at);
        break;
    case 10:
        tmem_load_x64(r, at);
        break;
    default:
        tmem_load_x128(r, at);
        break;
    }
    tmem_wait_load();
}

MXA_DEVICE void store_shape(int shape, mxa_tmem at, const uint32_t *r)
{
    switch (shape) {
    case 0:
        tmem_store_x8(at, r);
        break;
    case 1:
        tmem_store_x32(at, r);
        break;
    case 2:
        tmem_store_16x64b_x16(at, r);
        break;
    case 3:
        tmem_store_16x128b_x8(at, r);
        break;
    case 4:
        tmem_store_16x256b_x4(at, r);
        break;
    case 5:
        tmem_store_16x256b_x8(at, r);
        break;
    case 6:
        tmem_store_x1(at, r);
        break;
    case 7:
        tmem_store_x2(at, r);
        break;
    case 8:
        tmem_store_x4(at, r);
        break;
    case 9:
        tmem_store_x16(at, r);
        break;
    case 10:
        tmem_store_x64(at, r);
        break;
    default:
        tmem_store_x128(at, r);
        break;
    }
    tmem_wait_store();
}

/* Lane and column, as a value. */
MXA_DEVICE void number_columns(mxa_tmem own, int warp)
{
    for (uint32_t j = 0; j < MOST; j += 4) {
        uint32_t r[4];
        for (uint32_t i = 0; i < 4; i++) {
            r[i] = (uint32_t)(32 * warp + dev_thread() % 32) << 16 | (j + i);
        }
        tmem_store_x4(own + j, r);
    }
    tmem_wait_store();
}

MXA_KERNEL(tmem_maps, 128, map_params, p)
{
    const mxa_shared slot = dev_shared();
    const int warp = dev_thread() / 32, t = dev_thread() % 32;
    if (warp == 0) {
        tmem_alloc(slot, MOST);
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    const mxa_tmem all = dev_load_shared_u32(slot), own = tmem_quarter(all, warp);
    for (int shape = 0; shape < SHAPES; shape++) {
        const int halves = shape >= 2 && shape <= 5 ? 2 : 1;
        number_columns(own, warp);
        for (int half = 0; half < halves; half++) {
            uint32_t r[MOST];
            memset(r, 0xFF, sizeof r);
            load_shape(shape, r, own + ((uint32_t)half << 20));
            for (int i = 0; i < MOST; i++) {
                dev_store_global_u32(
                    p.loaded +
                        4 * (uint64_t)((((shape * 4 + warp) * 2 + half) * 32 + t) * MOST + i),
                    r[i]);
                r[i] = (uint32_t)(half << 16 | t << 8 | i);
            }
            store_shape(shape, own + ((uint32_t)half << 20), r);
        }
        for (uint32_t j = 0; j < MOST; j += 8) {
            uint32_t r[8];
            tmem_load_x8(r, own + j);
            tmem_wait_load();
            for (uint32_t i = 0; i < 8; i++) {
                dev_store_global_u32(
                    p.stored + 4 * ((uint64_t)(((shape * 4 + warp) * 32 + t) * MOST) + j + i),
                    r[i]);
            }
        }
    }
    tcgen05_fence_before();
    cta_sync();
    if (warp == 0) {
        tmem_free(all, MOST);
    }
}

static void check_map(int shape, int warp, const uint32_t (*loaded)[32][MOST],
                      const uint32_t (*stored)[MOST])
{
    const int halves = shapes[shape].shape ? 2 : 1;
    uint32_t want[32][MOST];
    for (int lane = 0; lane < 32; lane++) {
        for (int j = 0; j < MOST; j++) {
            want[lane][j] = (uint32_t)(32 * warp + lane) << 16 | (uint32_t)j;
        }
    }
    for (int half = 0; half < halves; half++) {
        for (int t = 0; t < 32; t++) {
            for (int r = 0; r < shapes[shape].registers; r++) {
                const int lane = 16 * half + lane_of(shapes[shape].shape, t, r);
                const int column = column_of(shapes[shape].shape, t, r);
                CHECK(loaded[half][t][r] == ((uint32_t)(32 * warp + lane) << 16 | (uint32_t)column),
                      "load, shape %d, warp %d, half %d, lane %d, register %d: %08x", shape, warp,
                      half, t, r, loaded[half][t][r]);
                want[lane][column] = (uint32_t)(half << 16 | t << 8 | r);
            }
        }
    }
    CHECK(memcmp(want, stored, sizeof want) == 0, "store, shape %d, warp %d", shape, warp);
}

static void maps(void)
{
    static uint32_t loaded[SHAPES][4][2][32][MOST], stored[SHAPES][4][32][MOST];
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const map_params p = {(mxa_global)(uintptr_t)loaded, (mxa_global)(uintptr_t)stored};
        const int grid[3] = {1, 1, 1};
        mxa_emu_options options;
        mxa_emu_result result;
        mxt_case("maps, seed %llu", (unsigned long long)seed);
        mxa_emu_options_init(&options);
        options.seed = seed;
        (void)mxa_emu_launch(&tmem_maps_kernel, grid, 128, SHARED, &p, &options, &result);
        CHECK(result.errors + result.warnings == 0, "%s", result.text ? result.text : "");
        mxa_emu_result_free(&result);
        for (int shape = 0; shape < SHAPES; shape++) {
            for (int warp = 0; warp < 4; warp++) {
                check_map(shape, warp, (const uint32_t(*)[32][MOST])loaded[shape][warp],
                          (const uint32_t(*)[MOST])stored[shape][warp]);
            }
        }
    }
}

/* ---- faults: one kernel with a number for each ---- */

enum {
    NO_COMMIT_WAIT = 1, /* H2: D is loaded before the commit's barrier */
    NO_FENCE_AFTER,     /* H2: no fence::after between the wait and the load */
    NO_WAIT_LOAD,       /* H4: the next product overwrites D under a load */
    NO_WAIT_STORE,      /* H5: a product reads scales that are not yet stored */
    NO_FENCE_BEFORE,    /* H5: waited for, not published */
    SCALES_REWRITTEN,   /* H6: a copy over scales that a product may still read */
    NO_PROXY_FENCE,     /* H1 */
    SCALES_MISSING,     /* H16: scales that nobody wrote */
    WRONG_QUARTER,      /* H13 */
    OUTSIDE,            /* H13: columns beyond the allocation */
    NOT_FREED,          /* H18 */
    FREED_EARLY,        /* H18: while a product is under way */
    SLOT_EARLY,         /* H17: the address read without a barrier */
    TWICE_RELINQUISHED, /* alloc after relinquish */
    OVERLAP,            /* H13: D over its scales */
    LANE_OF_D,          /* H13: D at lane 32 */
    BAD_SIZE,           /* alloc of 48 columns */
    REGISTERS_TOUCHED,  /* H3: written before wait::ld */
    TWO_GROUPS,         /* cta_group::2 beside ::1 */
    INSTRUCTION,        /* H15, and those after it: bits of the instruction descriptor */
    INSTRUCTIONS = 6,
    DESCRIPTOR = INSTRUCTION + INSTRUCTIONS, /* H14, and those after it */
    DESCRIPTORS = 5,
    FAULTS = DESCRIPTOR + DESCRIPTORS
};

MXA_DEVICE void prepare(const mxt_emu_params *p, mxa_shared shared)
{
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < AT_BARRIER; at += 4 * 128) {
        dev_store_shared_u32(shared + at, at < AT_SCALES ? 0x38383838 : 0x7F7F7F7F); /* 1, 2^0 */
    }
    if (p->broken != NO_PROXY_FENCE) {
        fence_async_shared();
    }
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init(shared + AT_OTHER, 128);
        mbarrier_init_fence();
    }
    if (dev_thread() / 32 == 1) {
        tmem_alloc(shared + AT_SLOT, p->broken == BAD_SIZE ? 48 : 128);
        tmem_relinquish();
        if (p->broken == TWICE_RELINQUISHED) {
            tmem_alloc(shared + AT_SLOT, 64);
        }
    }
    if (p->broken == SLOT_EARLY && dev_thread() / 32 == 2) {
        (void)dev_load_shared_u32(shared + AT_SLOT);
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
}

MXA_DEVICE uint32_t fault_instruction(int broken)
{
    static const uint32_t bits[INSTRUCTIONS] = {1u << 23 /* not set: no UE8M0 */,
                                                1u << 2 /* sparse */,
                                                2u << 7 /* a type */,
                                                1u << 27 /* M 256 */,
                                                1u << 6,
                                                (uint32_t)(N / 8) << 17 /* N 0 */};
    const uint32_t i = MATRIX_INSTRUCTION_MXF8(MATRIX_E4M3, MATRIX_E4M3, 0, N);
    const int n = broken - INSTRUCTION;
    if (n == 3) {
        return i + bits[n];
    }
    return n >= 0 && n < INSTRUCTIONS ? i ^ bits[n] : i;
}

MXA_DEVICE uint64_t fault_descriptor(int broken)
{
    static const uint64_t bits[DESCRIPTORS] = {
        (uint64_t)1 << 46 /* none of Blackwell's constant */, (uint64_t)1 << 49 /* base offset */,
        (uint64_t)1 << 61 /* swizzle 7 */, (uint64_t)1 << 52 /* absolute LBO */, (uint64_t)1 << 31};
    const int n = broken - DESCRIPTOR;
    return n >= 0 && n < DESCRIPTORS ? bits[n] : 0;
}

MXA_DEVICE void product(const mxt_emu_params *p, mxa_shared shared, mxa_tmem t)
{
    const int f = p->broken;
    const uint64_t a = matrix_descriptor(shared + AT_A, 16, 256, MATRIX_SWIZZLE_32);
    const uint64_t b = matrix_descriptor(shared + AT_B, 16, 256, MATRIX_SWIZZLE_32);
    const mxa_tmem d = t +
                       (f == OVERLAP   ? T_SCALES - 16
                        : f == OUTSIDE ? 104
                                       : T_D) +
                       (f == LANE_OF_D ? 32u << 16 : 0);
    const uint64_t scales = matrix_descriptor(shared + AT_SCALES, 0, 128, MATRIX_SWIZZLE_NONE);
    if (f == TWO_GROUPS) {
        tcgen05_mma_f8_ss_pair(d, a, b, MATRIX_INSTRUCTION_F32(0, 0, 0, N) + (8u << 24), 0);
    }
    tcgen05_mma_mxf8_ss(d, a, b ^ fault_descriptor(f), fault_instruction(f), t + T_SCALES,
                        t + T_SCALES + 4, 0);
    if (f == SCALES_REWRITTEN) {
        tcgen05_copy_scales(t + T_SCALES, scales);
    }
    if (f != FREED_EARLY) {
        tcgen05_commit(shared + AT_BARRIER);
    }
}

/* Scales by threads, so that stores and fences have work; D = A*B; D is read; D = A*B again. */
MXA_KERNEL(tcgen05_faults, 128, mxt_emu_params, p)
{
    const int f = p.broken, warp = dev_thread() / 32;
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    prepare(&p, shared);
    const mxa_tmem t = dev_load_shared_u32(shared + AT_SLOT), own = tmem_quarter(t, warp);
    uint32_t r[32];
    for (int i = 0; i < 8; i++) {
        r[i] = 0x7F7F7F7F;
    }
    if (f != SCALES_MISSING) {
        tmem_store_x8((f == WRONG_QUARTER ? t : own) + T_SCALES, r);
    }
    if (f != NO_WAIT_STORE) {
        tmem_wait_store();
    }
    if (f != NO_FENCE_BEFORE) {
        tcgen05_fence_before();
    }
    mbarrier_arrive(shared + AT_OTHER);
    if (dev_thread() == 0) {
        mbarrier_wait(shared + AT_OTHER, 0);
        tcgen05_fence_after();
        product(&p, shared, t);
    }
    if (f == FREED_EARLY) {
        cta_sync();
        if (warp == 1) {
            tmem_free(t, 128);
        }
        return;
    }
    if (f != NO_COMMIT_WAIT) {
        mbarrier_wait(shared + AT_BARRIER, 0);
    }
    if (f != NO_FENCE_AFTER) {
        tcgen05_fence_after();
    }
    tmem_load_x32(r, own + T_D);
    if (f == REGISTERS_TOUCHED) {
        r[5] = 1;
    }
    if (f != NO_WAIT_LOAD) {
        tmem_wait_load();
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    if (dev_thread() == 0) {
        product(&p, shared, t);
        mbarrier_wait(shared + AT_BARRIER, 1);
    }
    tmem_wait_load();
    if (p.memory) {
        dev_store_global_u32(p.memory + 4 * (uint64_t)dev_thread(), r[0]);
    }
    tmem_wait_store();
    tcgen05_fence_before();
    cta_sync();
    if (warp == 1 && f != NOT_FREED) {
        tmem_free(t, 128);
    }
}

/* The hazard of each fault. */
static uint32_t hazard_of(int fault)
{
    static const uint8_t hazards[INSTRUCTION] = {0,  2,  2,  4,  5, 5,  6,  1, 16, 13,
                                                 13, 18, 18, 17, 0, 13, 13, 0, 3,  0};
    return MXT_H(fault >= DESCRIPTOR ? 14u : fault >= INSTRUCTION ? 15u : hazards[fault]);
}

static void faults(void)
{
    for (int fault = 0; fault < FAULTS; fault++) {
        mxt_case("fault %d", fault);
        for (uint64_t seed = 1; seed <= MXT_EMU_SEEDS; seed++) {
            static uint32_t memory[128];
            const mxt_emu_params p = {fault, 0, (mxa_global)(uintptr_t)memory};
            const int grid[3] = {1, 1, 1};
            mxa_emu_options options;
            mxa_emu_result result;
            mxa_emu_options_init(&options);
            options.seed = seed;
            if (fault == SCALES_REWRITTEN) {
                options.ordered_pipe = 0;
            }
            (void)mxa_emu_launch(&tcgen05_faults_kernel, grid, 128, SHARED + 1024, &p, &options,
                                 &result);
            if (fault) {
                CHECK(result.hazards & hazard_of(fault), "seed %llu: hazards %x, want %x: %s",
                      (unsigned long long)seed, result.hazards, hazard_of(fault),
                      result.text ? result.text : "nothing");
            } else {
                CHECK(result.errors + result.warnings == 0, "seed %llu: %s",
                      (unsigned long long)seed, result.text ? result.text : "");
                float d;
                memcpy(&d, memory, sizeof d);
                CHECK(d == 32, "seed %llu: D is %g, want 32", (unsigned long long)seed, (double)d);
            }
            mxa_emu_result_free(&result);
        }
    }
}

int main(void)
{
    maps();
    faults();
    return mxt_finish();
}
