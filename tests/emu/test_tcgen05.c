/* test_tcgen05.c: Blackwell's products on the emulator: kinds, layouts, scales, pairs.
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
#include "emu/product.h"
#include "fill.h"
#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

/* Shared memory, bytes. */
enum {
    AT_A = 0,
    AT_B = 16384,
    AT_SCALES_A = AT_B + 32768,
    AT_SCALES_B = AT_SCALES_A + 512,
    AT_BARRIER = AT_SCALES_B + 1024,
    AT_SLOT = AT_BARRIER + 8,
    IMAGE = AT_BARRIER,
    SHARED = AT_BARRIER + 1024 + 1024
};
/* Tensor memory, columns. */
enum { T_D = 0, T_A = 256, T_SCALES_A = 320, T_SCALES_B = 324, MOST_N = 256, THREADS = 128 };

enum { KIND_F16, KIND_F8, KIND_MXF8 };

typedef struct params {
    mxa_global image; /* IMAGE bytes of shared memory for each CTA */
    mxa_global a;     /* [rows][row_bytes], for A in tensor memory */
    mxa_global c, d;  /* [rows][n] */
    int32_t kind, pair, a_in_tensor, b_by_rows;
    int32_t n, row_bytes, steps, accumulate;
    int32_t own_n; /* columns of B in one CTA */
    uint32_t instruction;
    uint32_t swizzle, b_swizzle, b_leading, b_stride, b_step; /* descriptors */
} params;

MXA_DEVICE void multiply(const params *p, mxa_shared shared, mxa_tmem t)
{
    uint64_t a = matrix_descriptor(shared + AT_A, 16, 8 * (uint32_t)p->row_bytes, p->swizzle);
    uint64_t b = matrix_descriptor(shared + AT_B, p->b_leading, p->b_stride, p->b_swizzle);
    const uint64_t scales_a = matrix_descriptor(shared + AT_SCALES_A, 0, 128, MATRIX_SWIZZLE_NONE);
    const uint64_t scales_b = matrix_descriptor(shared + AT_SCALES_B, 0, 128, MATRIX_SWIZZLE_NONE);
    if (p->kind == KIND_MXF8 && p->pair) {
        tcgen05_copy_scales_pair(t + T_SCALES_A, scales_a);
        tcgen05_copy_scales_pair(t + T_SCALES_B, scales_b);
        tcgen05_copy_scales_pair(t + T_SCALES_B + 4, matrix_advance(scales_b, 512));
    } else if (p->kind == KIND_MXF8) {
        tcgen05_copy_scales(t + T_SCALES_A, scales_a);
        tcgen05_copy_scales(t + T_SCALES_B, scales_b);
        tcgen05_copy_scales(t + T_SCALES_B + 4, matrix_advance(scales_b, 512));
    }
    for (int k = 0; k < p->steps; k++) {
        const uint32_t more = p->accumulate || k > 0;
        const uint32_t at = t + T_A + 8 * (uint32_t)k;
        uint32_t i = p->instruction;
        if (p->kind == KIND_MXF8) {
            i |= MATRIX_SCALES(k);
        }
        if (p->kind == KIND_MXF8 && p->pair && p->a_in_tensor) {
            tcgen05_mma_mxf8_ts_pair(t + T_D, at, b, i, t + T_SCALES_A, t + T_SCALES_B, more);
        } else if (p->kind == KIND_MXF8 && p->pair) {
            tcgen05_mma_mxf8_ss_pair(t + T_D, a, b, i, t + T_SCALES_A, t + T_SCALES_B, more);
        } else if (p->kind == KIND_MXF8 && p->a_in_tensor) {
            tcgen05_mma_mxf8_ts(t + T_D, at, b, i, t + T_SCALES_A, t + T_SCALES_B, more);
        } else if (p->kind == KIND_MXF8) {
            tcgen05_mma_mxf8_ss(t + T_D, a, b, i, t + T_SCALES_A, t + T_SCALES_B, more);
        } else if (p->kind == KIND_F8 && p->pair && p->a_in_tensor) {
            tcgen05_mma_f8_ts_pair(t + T_D, at, b, i, more);
        } else if (p->kind == KIND_F8 && p->pair) {
            tcgen05_mma_f8_ss_pair(t + T_D, a, b, i, more);
        } else if (p->kind == KIND_F8 && p->a_in_tensor) {
            tcgen05_mma_f8_ts(t + T_D, at, b, i, more);
        } else if (p->kind == KIND_F8) {
            tcgen05_mma_f8_ss(t + T_D, a, b, i, more);
        } else if (p->pair && p->a_in_tensor) {
            tcgen05_mma_f16_ts_pair(t + T_D, at, b, i, more);
        } else if (p->pair) {
            tcgen05_mma_f16_ss_pair(t + T_D, a, b, i, more);
        } else if (p->a_in_tensor) {
            tcgen05_mma_f16_ts(t + T_D, at, b, i, more);
        } else {
            tcgen05_mma_f16_ss(t + T_D, a, b, i, more);
        }
        a = matrix_advance(a, 32);
        b = matrix_advance(b, p->b_step);
    }
    if (p->pair) {
        tcgen05_commit_pair(shared + AT_BARRIER, 3);
    } else {
        tcgen05_commit(shared + AT_BARRIER);
    }
}

MXA_DEVICE void begin(const params *p, mxa_shared shared, int rank)
{
    for (uint32_t at = 16 * (uint32_t)dev_thread(); at < IMAGE; at += 16 * THREADS) {
        dev_store_shared_u32x4(shared + at,
                               dev_load_global_u32x4(p->image + (uint64_t)(rank * IMAGE) + at));
    }
    fence_async_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
    }
    if (dev_thread() / 32 == 0 && p->pair) {
        tmem_alloc_pair(shared + AT_SLOT, 512);
        tmem_relinquish_pair();
    } else if (dev_thread() / 32 == 0) {
        tmem_alloc(shared + AT_SLOT, 512);
        tmem_relinquish();
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
}

/* C to D, and A, by every warp: its 32 rows. */
MXA_DEVICE void fill_tensor(const params *p, mxa_tmem t, int row)
{
    for (int j = 0; j < p->n; j += 8) {
        uint32_t r[8];
        for (int i = 0; i < 8; i++) {
            r[i] = dev_load_global_u32(p->c + 4 * (uint64_t)(row * p->n + j + i));
        }
        tmem_store_x8(t + T_D + (uint32_t)j, r);
    }
    for (int j = 0; p->a_in_tensor && j < p->row_bytes / 4; j += 8) {
        uint32_t r[8];
        for (int i = 0; i < 8; i++) {
            r[i] = dev_load_global_u32(p->a + (uint64_t)(row * p->row_bytes + 4 * (j + i)));
        }
        tmem_store_x8(t + T_A + (uint32_t)j, r);
    }
    tmem_wait_store();
}

MXA_DEVICE void test_body(const params *p)
{
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const int rank = p->pair ? cluster_rank() : 0, warp = dev_thread() / 32;
    const int row = 128 * rank + dev_thread();
    begin(p, shared, rank);
    const mxa_tmem t = dev_load_shared_u32(shared + AT_SLOT);
    const mxa_tmem own = tmem_quarter(t, warp);
    fill_tensor(p, own, row);
    tcgen05_fence_before();
    if (p->pair) {
        cluster_arrive();
        cluster_wait();
    } else {
        cta_sync();
    }
    tcgen05_fence_after();
    if (rank == 0 && dev_thread() == 0) {
        multiply(p, shared, t);
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
    tcgen05_fence_after();
    for (int j = 0; j < p->n; j += 8) {
        uint32_t r[8];
        tmem_load_x8(r, own + T_D + (uint32_t)j);
        tmem_wait_load();
        for (int i = 0; i < 8; i++) {
            dev_store_global_u32(p->d + 4 * (uint64_t)(row * p->n + j + i), r[i]);
        }
    }
    tcgen05_fence_before();
    if (p->pair) {
        cluster_arrive();
        cluster_wait();
    } else {
        cta_sync();
    }
    if (warp == 0 && p->pair) {
        tmem_free_pair(t, 512);
    } else if (warp == 0) {
        tmem_free(t, 512);
    }
}

MXA_KERNEL(test_tcgen05, THREADS, params, p)
{
    test_body(&p);
}

MXA_KERNEL_CLUSTER(test_tcgen05_pair, THREADS, 2, params, p)
{
    test_body(&p);
}

/* ---- the same on the host ---- */

typedef struct setup {
    const char *name;
    int kind, pair, a_in_tensor, b_by_rows;
    int n, row_bytes, accumulate;
    mxattn_dtype a_type, b_type;
    int f16, m64; /* D in FP16; M = 64 */
} setup;

static const setup setups[] = {
    {"mxf8 ss", KIND_MXF8, 0, 0, 0, 128, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"mxf8 ss, rows of 64", KIND_MXF8, 0, 0, 0, 64, 64, 0, MXATTN_E4M3, MXATTN_E5M2, 0, 0},
    {"mxf8 ts, B by rows", KIND_MXF8, 0, 1, 1, 128, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"mxf8 ts, B by rows of 64", KIND_MXF8, 0, 1, 1, 64, 128, 0, MXATTN_E5M2, MXATTN_E4M3, 0, 0},
    {"mxf8 ss, N 256 by rows", KIND_MXF8, 0, 0, 1, 256, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"mxf8 ss, N 24", KIND_MXF8, 0, 0, 0, 24, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"f8 ss", KIND_F8, 0, 0, 0, 96, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"f8 ts", KIND_F8, 0, 1, 1, 128, 64, 0, MXATTN_E5M2, MXATTN_E5M2, 0, 0},
    {"bf16 ss", KIND_F16, 0, 0, 0, 128, 128, 1, MXATTN_BF16, MXATTN_BF16, 0, 0},
    {"bf16 ts, B by rows", KIND_F16, 0, 1, 1, 128, 128, 0, MXATTN_BF16, MXATTN_BF16, 0, 0},
    {"f16 ss, rows of 64", KIND_F16, 0, 0, 0, 64, 64, 1, MXATTN_F16, MXATTN_F16, 0, 0},
    {"f16 into f16", KIND_F16, 0, 0, 0, 64, 128, 1, MXATTN_F16, MXATTN_F16, 1, 0},
    {"f8 into f16", KIND_F8, 0, 0, 0, 32, 64, 1, MXATTN_E4M3, MXATTN_E5M2, 1, 0},
    {"f8 ss, M 64", KIND_F8, 0, 0, 0, 64, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 1},
    {"bf16 ts, M 64", KIND_F16, 0, 1, 1, 64, 64, 1, MXATTN_BF16, MXATTN_BF16, 0, 1},
    {"pair mxf8 ss", KIND_MXF8, 1, 0, 0, 128, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"pair mxf8 ts, B by rows", KIND_MXF8, 1, 1, 1, 256, 128, 1, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"pair f8 ss", KIND_F8, 1, 0, 0, 64, 128, 0, MXATTN_E4M3, MXATTN_E4M3, 0, 0},
    {"pair bf16 ss, B by rows", KIND_F16, 1, 0, 1, 128, 128, 1, MXATTN_BF16, MXATTN_BF16, 0, 0},
    {"pair f8 ts", KIND_F8, 1, 1, 0, 128, 128, 1, MXATTN_E4M3, MXATTN_E5M2, 0, 0},
    {"pair f16 ts, B by rows", KIND_F16, 1, 1, 1, 128, 64, 1, MXATTN_F16, MXATTN_F16, 0, 0},
};

/* PTX ISA 5.5.7: 16-byte unit u of line l (of 128 bytes) lies at u ^ (l % 8), W/16 units taking
 * part. */
static size_t swizzled(size_t at, int width)
{
    const size_t units = (size_t)width / 16;
    return at ^ ((at / 128) % units * 16);
}

/* Lane of row m of D, and of A where it lies in tensor memory. */
static int lane_of(const setup *s, int m)
{
    return s->m64 ? 32 * (m / 16) + m % 16 : m;
}

static unsigned char images[2][IMAGE];
static unsigned char a_by_lane[256 * 128];
static unsigned char a[256 * 128], b[MOST_N * 128]; /* [x][row_bytes] */
static uint8_t scale_a[256][4], scale_b[MOST_N][4];
static uint32_t c[256 * MOST_N], d[256 * MOST_N], want[256 * MOST_N];

static void lay_out(const setup *s, params *p)
{
    const int rows = 128, ctas = s->pair ? 2 : 1, size = mxa_dtype_bytes(s->a_type);
    const int lines = s->row_bytes / size; /* K */
    const int width = s->n / ctas * size < 128 ? s->n / ctas * size : 128;
    p->own_n = s->n / ctas;
    p->swizzle = s->row_bytes == 128 ? MATRIX_SWIZZLE_128 : MATRIX_SWIZZLE_64;
    p->b_swizzle = p->swizzle;
    p->b_stride = 8 * (uint32_t)s->row_bytes;
    p->b_leading = 16;
    p->b_step = 32;
    if (s->b_by_rows) {
        p->b_swizzle = width == 128 ? MATRIX_SWIZZLE_128 : MATRIX_SWIZZLE_64;
        p->b_stride = 8 * (uint32_t)width;
        p->b_leading = (uint32_t)(lines * width);
        p->b_step = (uint32_t)(32 / size * width);
    }
    memset(images, 0xFF, sizeof images);
    for (int cta = 0; cta < ctas; cta++) {
        unsigned char *image = images[cta];
        for (int m = 0; m < rows; m++) {
            for (int k = 0; k < s->row_bytes; k++) {
                image[AT_A + swizzled((size_t)(m * s->row_bytes + k), s->row_bytes)] =
                    a[(rows * cta + m) * s->row_bytes + k];
            }
        }
        for (int n = 0; n < p->own_n; n++) {
            for (int k = 0; k < s->row_bytes; k++) {
                size_t at = swizzled((size_t)(n * s->row_bytes + k), s->row_bytes);
                if (s->b_by_rows) {
                    const int byte = n * size + k % size;
                    at = swizzled(
                        (size_t)(byte / width * lines * width + k / size * width + byte % width),
                        width);
                }
                image[AT_B + at] = b[(cta * p->own_n + n) * s->row_bytes + k];
            }
        }
        for (int x = 0; x < 128; x++) {
            memcpy(image + AT_SCALES_A + x % 32 * 16 + x / 32 * 4, scale_a[rows * cta + x], 4);
        }
        for (int n = 0; n < MOST_N; n++) {
            memcpy(image + AT_SCALES_B + n / 128 * 512 + n % 32 * 16 + n % 128 / 32 * 4, scale_b[n],
                   4);
        }
    }
}

static void expect(const setup *s, int steps, int exact)
{
    const int rows = s->pair ? 256 : s->m64 ? 64 : 128, size = mxa_dtype_bytes(s->a_type);
    static uint32_t sums[256 * MOST_N]; /* [row][n]; want is [lane][n] */
    static unsigned char step_a[256 * 32];
    uint8_t step_scale_a[256], step_scale_b[MOST_N];
    memcpy(want, c, sizeof want);
    for (int m = 0; m < rows; m++) {
        memcpy(sums + m * s->n, c + lane_of(s, m) * s->n, (size_t)s->n * sizeof *c);
    }
    for (int k = 0; k < steps; k++) {
        for (int m = 0; m < rows; m++) {
            memcpy(step_a + 32 * m, a + m * s->row_bytes + 32 * k, 32);
            step_scale_a[m] = scale_a[m][k];
        }
        for (int n = 0; n < s->n; n++) {
            step_scale_b[n] = scale_b[n][k];
        }
        const int scaled = s->kind == KIND_MXF8;
        const mxa_emu_product product = {{exact ? MXA_TENSOR_CORE_EXACT : MXA_TENSOR_CORE_BLACKWELL,
                                          s->a_type, s->b_type, 32 / size},
                                         rows,
                                         s->n,
                                         step_a,
                                         b + 32 * k,
                                         s->row_bytes / size,
                                         1,
                                         scaled ? step_scale_a : NULL,
                                         scaled ? step_scale_b : NULL,
                                         sums,
                                         s->n,
                                         s->f16,
                                         s->accumulate || k > 0};
        mxa_emu_product_run(&product); /* which test_product.c holds to the scalar model */
    }
    for (int m = 0; m < rows; m++) {
        memcpy(want + lane_of(s, m) * s->n, sums + m * s->n, (size_t)s->n * sizeof *c);
    }
}

static void fill(const setup *s, uint64_t seed)
{
    mxt_random random = {seed};
    const int size = mxa_dtype_bytes(s->a_type), count = s->row_bytes / size;
    for (int i = 0; i < 256 * count; i++) {
        mxa_store(a, s->a_type, i, (float)mxt_random_gaussian(&random) * 3);
        mxa_store(b, s->b_type, i, (float)mxt_random_gaussian(&random) * 3);
    }
    for (int x = 0; x < 256; x++) {
        for (int k = 0; k < 4; k++) {
            scale_a[x][k] = (uint8_t)mxt_random_int(&random, 120, 134);
            scale_b[x][k] = (uint8_t)mxt_random_int(&random, 120, 134);
        }
    }
    for (int i = 0; i < 256 * MOST_N; i++) {
        const float x = (float)mxt_random_gaussian(&random) * 20;
        memcpy(&c[i], &x, 4);
        c[i] = s->f16 ? mxa_f16_from_f32(x) : c[i];
    }
    memset(a_by_lane, 0, sizeof a_by_lane);
    for (int m = 0; m < (s->m64 ? 64 : 256); m++) {
        memcpy(a_by_lane + lane_of(s, m) * s->row_bytes, a + m * s->row_bytes,
               (size_t)s->row_bytes);
    }
}

static void values(const setup *s, uint64_t seed, int exact)
{
    params p;
    mxt_case("%s%s, seed %llu", s->name, exact ? ", exact" : "", (unsigned long long)seed);
    memset(&p, 0, sizeof p);
    fill(s, seed);
    lay_out(s, &p);
    p.image = (mxa_global)(uintptr_t)images;
    p.a = (mxa_global)(uintptr_t)a_by_lane;
    p.c = (mxa_global)(uintptr_t)c;
    p.d = (mxa_global)(uintptr_t)d;
    p.kind = s->kind;
    p.pair = s->pair;
    p.a_in_tensor = s->a_in_tensor;
    p.b_by_rows = s->b_by_rows;
    p.n = s->n;
    p.row_bytes = s->row_bytes;
    p.steps = s->row_bytes / 32;
    p.accumulate = s->accumulate;
    const uint32_t types[] = {s->a_type == MXATTN_E5M2 || s->a_type == MXATTN_BF16,
                              s->b_type == MXATTN_E5M2 || s->b_type == MXATTN_BF16};
    p.instruction = s->kind == KIND_MXF8
                        ? MATRIX_INSTRUCTION_MXF8(types[0], types[1], s->b_by_rows, s->n)
                        : MATRIX_INSTRUCTION_F32(types[0], types[1], s->b_by_rows, s->n);
    p.instruction += s->pair ? (uint32_t)(128 / 16) << 24 : 0; /* M = 256 */
    p.instruction -= s->m64 ? (uint32_t)(64 / 16) << 24 : 0;
    p.instruction -= s->f16 ? 1u << 4 : 0;
    expect(s, p.steps, exact);
    mxa_emu_options options;
    mxa_emu_result result;
    const int grid[3] = {s->pair ? 2 : 1, 1, 1};
    mxa_emu_options_init(&options);
    options.seed = seed;
    options.exact_sums = exact;
    memset(d, 0xFF, sizeof d);
    (void)mxa_emu_launch(s->pair ? &test_tcgen05_pair_kernel : &test_tcgen05_kernel, grid, THREADS,
                         SHARED, &p, &options, &result);
    CHECK(result.errors == 0 && result.warnings == 0, "reports: %s",
          result.text ? result.text : "");
    int wrong = 0;
    for (int i = 0; i < (s->pair ? 256 : 128) * s->n && wrong < 3; i++) {
        wrong += !CHECK(d[i] == want[i], "(%d, %d): got %08x, want %08x", i / s->n, i % s->n, d[i],
                        want[i]);
    }
    mxa_emu_result_free(&result);
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
            values(&setups[i], seed, 0);
        }
    }
    values(&setups[1], 3, 1);
    return mxt_finish();
}
