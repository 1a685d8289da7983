/* test_tcgen05_copy.c: copies from shared to tensor memory in every shape: each lane and column
 * against the ISA's formula, of one CTA and of a pair; what a shape does not write stays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/dev/tma.h"
#include "emu/launch.h"
#include "fill.h"
#include "report.h"

#include <string.h>

enum {
    SOURCE = 8192, /* bytes: 128 rows of 32, strides up to twice that */
    AT_BARRIER = SOURCE,
    AT_SLOT = AT_BARRIER + 8,
    SHARED = AT_SLOT + 24,
    THREADS = 128,
    COLUMNS = 32,
    FIRST = 8, /* column that a copy starts at */
    SHAPES = 6,
    UNTOUCHED = 0x5A5A5A5A
};

typedef struct params {
    mxa_global source; /* SOURCE bytes for each CTA */
    mxa_global tensor; /* [CTA][lane][COLUMNS] afterwards */
    uint32_t leading, stride;
    int32_t shape, pair;
} params;

MXA_DEVICE void copy(const params *p, mxa_tmem to, uint64_t from)
{
    switch (2 * p->shape + p->pair) {
    case 0:
        tcgen05_copy_scales(to, from);
        break;
    case 1:
        tcgen05_copy_scales_pair(to, from);
        break;
    case 2:
        tcgen05_copy_64x128b_02_13(to, from);
        break;
    case 3:
        tcgen05_copy_64x128b_02_13_pair(to, from);
        break;
    case 4:
        tcgen05_copy_64x128b_01_23(to, from);
        break;
    case 5:
        tcgen05_copy_64x128b_01_23_pair(to, from);
        break;
    case 6:
        tcgen05_copy_128x128b(to, from);
        break;
    case 7:
        tcgen05_copy_128x128b_pair(to, from);
        break;
    case 8:
        tcgen05_copy_128x256b(to, from);
        break;
    case 9:
        tcgen05_copy_128x256b_pair(to, from);
        break;
    case 10:
        tcgen05_copy_4x256b(to, from);
        break;
    default:
        tcgen05_copy_4x256b_pair(to, from);
        break;
    }
}

MXA_DEVICE void meet(int pair)
{
    tcgen05_fence_before();
    if (pair) {
        cluster_arrive();
        cluster_wait();
    } else {
        cta_sync();
    }
    tcgen05_fence_after();
}

MXA_DEVICE void body(const params *p)
{
    const mxa_shared shared = dev_shared();
    const int rank = p->pair ? cluster_rank() : 0, warp = dev_thread() / 32;
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < SOURCE; at += 4 * THREADS) {
        dev_store_shared_u32(shared + at,
                             dev_load_global_u32(p->source + (uint64_t)rank * SOURCE + at));
    }
    fence_async_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
    }
    if (warp == 0 && p->pair) {
        tmem_alloc_pair(shared + AT_SLOT, COLUMNS);
    } else if (warp == 0) {
        tmem_alloc(shared + AT_SLOT, COLUMNS);
    }
    meet(0);
    const mxa_tmem t = dev_load_shared_u32(shared + AT_SLOT), own = tmem_quarter(t, warp);
    uint32_t r[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        r[i] = UNTOUCHED;
    }
    tmem_store_x32(own, r);
    tmem_wait_store();
    meet(p->pair);
    if (rank == 0 && dev_thread() == 0) {
        copy(p, t + FIRST, matrix_descriptor(shared, p->leading, p->stride, MATRIX_SWIZZLE_NONE));
        if (p->pair) {
            tcgen05_commit_pair(shared + AT_BARRIER, 3);
        } else {
            tcgen05_commit(shared + AT_BARRIER);
        }
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
    tcgen05_fence_after();
    tmem_load_x32(r, own);
    tmem_wait_load();
    for (int i = 0; i < COLUMNS; i++) {
        dev_store_global_u32(p->tensor + 4 * (uint64_t)((128 * rank + dev_thread()) * COLUMNS + i),
                             r[i]);
    }
    meet(p->pair);
    if (warp == 0 && p->pair) {
        tmem_free_pair(t, COLUMNS);
    } else if (warp == 0) {
        tmem_free(t, COLUMNS);
    }
}

MXA_KERNEL(copy_one, THREADS, params, p)
{
    body(&p);
}

MXA_KERNEL_CLUSTER(copy_pair, THREADS, 2, params, p)
{
    body(&p);
}

/* PTX ISA 9.7.16.9.2, from the source's side: row i goes to `times` lanes, the first lane(i) and
 * the next ones `apart` further. */
static const struct {
    const char *name;
    int rows, words, times, apart, spread; /* lane(i) = i, with i's part beyond `spread` moved */
} shapes[SHAPES] = {
    {"32x128b.warpx4", 32, 4, 4, 32, 0},
    {"64x128b.warpx2::02_13", 64, 4, 2, 64, 0},
    {"64x128b.warpx2::01_23", 64, 4, 2, 32, 32},
    {"128x128b", 128, 4, 1, 0, 0},
    {"128x256b", 128, 8, 1, 0, 0},
    {"4x256b", 4, 8, 1, 0, 1},
};

static int first_lane(int shape, int row)
{
    return shapes[shape].spread == 1    ? 32 * row
           : shapes[shape].spread == 32 ? row % 32 + row / 32 * 64
                                        : row;
}

static unsigned char source[2][SOURCE];
static uint32_t tensor[2][128][COLUMNS], want[2][128][COLUMNS];

/* Word j of row i: 8 rows of 16 bytes make an atom, the next 16 bytes of a row lie `leading`
 * further. */
static uint32_t word(const params *p, int cta, int row, int j)
{
    uint32_t x;
    memcpy(&x,
           source[cta] + (uint32_t)(row / 8) * p->stride + (uint32_t)(row % 8) * 16 +
               (uint32_t)(j / 4) * p->leading + (uint32_t)(j % 4) * 4,
           sizeof x);
    return x;
}

static void check(int shape, int pair, uint32_t leading, uint32_t stride, uint64_t seed)
{
    const params p = {
        (mxa_global)(uintptr_t)source, (mxa_global)(uintptr_t)tensor, leading, stride, shape, pair};
    const int grid[3] = {pair ? 2 : 1, 1, 1};
    mxa_emu_options options;
    mxa_emu_result result;
    mxt_case("%s%s, leading %u, stride %u, seed %llu", shapes[shape].name, pair ? ", pair" : "",
             leading, stride, (unsigned long long)seed);
    memset(want, UNTOUCHED & 0xFF, sizeof want);
    memset(tensor, 0, sizeof tensor);
    for (int cta = 0; cta < (pair ? 2 : 1); cta++) {
        for (int row = 0; row < shapes[shape].rows; row++) {
            for (int j = 0; j < shapes[shape].words; j++) {
                for (int copy = 0; copy < shapes[shape].times; copy++) {
                    want[cta][first_lane(shape, row) + copy * shapes[shape].apart][FIRST + j] =
                        word(&p, cta, row, j);
                }
            }
        }
    }
    mxa_emu_options_init(&options);
    options.seed = seed;
    (void)mxa_emu_launch(pair ? &copy_pair_kernel : &copy_one_kernel, grid, THREADS, SHARED, &p,
                         &options, &result);
    CHECK(result.errors + result.warnings == 0, "%s", result.text ? result.text : "");
    mxa_emu_result_free(&result);
    CHECK(memcmp(tensor, want, (pair ? 2 : 1) * sizeof want[0]) == 0, "tensor memory differs");
}

int main(void)
{
    mxt_random random = {7};
    for (int i = 0; i < 2 * SOURCE; i++) {
        source[i / SOURCE][i % SOURCE] = (unsigned char)mxt_random_int(&random, 0, 255);
    }
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int pair = 0; pair < 2; pair++) {
            check(shape, pair, 2048, 128, 1); /* columns of 16 bytes one after another */
            check(shape, pair, 128, 256, 2);  /* atoms side by side */
        }
    }
    return mxt_finish();
}
