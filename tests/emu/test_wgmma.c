/* test_wgmma.c: Hopper's products on the emulator: fragments, layouts, accumulators in flight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "cuda/dev/wgmma.h"
#include "emu/product.h"
#include "emu_case.h"
#include "fill.h"
#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { M = 64, MOST_N = 256, A_BYTES = 64 * 128, B_BYTES = 256 * 128, SHARED = A_BYTES + B_BYTES };

typedef struct params {
    mxa_global image;     /* of shared memory */
    mxa_global c, d;      /* [M][n], FP32 bits or FP16 bits in words */
    mxa_global a;         /* [M][row_bytes] in place, for A from registers */
    int32_t row_bytes, n; /* of A and B: steps of 32 */
    int32_t f16, registers, first, bf16;
} params;

/* WHY: dynamic shared memory starts anywhere; a swizzle's pattern at a multiple of 1024. */
MXA_DEVICE mxa_shared aligned(mxa_shared at)
{
    return (at + 1023) & ~1023u;
}

/* Shared memory as the host laid it out; asynchronous readers may read it. */
MXA_DEVICE void load_image(const params *p, mxa_shared shared)
{
    for (uint32_t at = 16 * (uint32_t)dev_thread(); at < SHARED; at += 16 * 128) {
        dev_store_shared_u32x4(shared + at, dev_load_global_u32x4(p->image + at));
    }
    fence_async_shared();
    cta_sync();
}

/* Where register r of this lane lies, as cuda/dev/wgmma.h says. */
MXA_DEVICE uint64_t place(const params *p, int r, int pair)
{
    const int t = dev_thread() & 31, w = dev_thread() >> 5;
    const int q = pair ? 2 * r : r;
    return 4 * (uint64_t)((16 * w + t / 4 + 8 * (q >> 1 & 1)) * p->n + 8 * (q >> 2) + 2 * (t % 4) +
                          (q & 1));
}

/* A's operands of this lane for 32 bytes of K. */
MXA_DEVICE void load_registers(const params *p, int k, uint32_t *registers)
{
    const int t = dev_thread() & 31, w = dev_thread() >> 5;
    for (int i = 0; i < 4; i++) {
        const int row = 16 * w + t / 4 + 8 * (i & 1);
        registers[i] = dev_load_global_u32(
            p->a + (uint64_t)(row * p->row_bytes + 32 * k + 16 * (i >> 1) + 4 * (t % 4)));
    }
}

/* One step of 32 bytes of K with an FP16 accumulator. */
MXA_DEVICE void step_f16(const params *p, uint32_t *d, const uint32_t *registers, uint64_t a,
                         uint64_t b, int first)
{
    if (p->registers) {
        (first ? wgmma_rs_m64n128_f16_first : wgmma_rs_m64n128_f16)(d, registers, b);
    } else if (p->n == 64) {
        (first ? wgmma_ss_m64n64_f16_first : wgmma_ss_m64n64_f16)(d, a, b);
    } else {
        (first ? wgmma_ss_m64n128_f16_first : wgmma_ss_m64n128_f16)(d, a, b);
    }
}

MXA_DEVICE void product_f16(const params *p, mxa_shared shared)
{
    uint32_t d[32], registers[4][4];
    for (int r = 0; r < p->n / 4; r++) {
        const uint64_t at = p->c + place(p, r, 1);
        d[r] = dev_load_global_u32(at) | dev_load_global_u32(at + 4) << 16;
    }
    uint64_t a = wgmma_descriptor(shared, (uint32_t)p->row_bytes);
    uint64_t b = wgmma_descriptor(shared + A_BYTES, (uint32_t)p->row_bytes);
    wgmma_fence();
    for (int k = 0; k < p->row_bytes / 32; k++) {
        if (p->registers) {
            load_registers(p, k, registers[k]);
        }
        step_f16(p, d, registers[k], wgmma_descriptor_add(a, (uint32_t)(k * MXA_DESCRIPTOR_K32)),
                 wgmma_descriptor_add(b, (uint32_t)(k * MXA_DESCRIPTOR_K32)), p->first && k == 0);
    }
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold_u32(d, p->n / 4);
    for (int r = 0; r < p->n / 4; r++) {
        dev_store_global_u32(p->d + place(p, r, 1), d[r] & 0xFFFF);
        dev_store_global_u32(p->d + place(p, r, 1) + 4, d[r] >> 16);
    }
}

MXA_DEVICE void product_f32(const params *p, mxa_shared shared)
{
    float d[128];
    for (int r = 0; r < p->n / 2; r++) {
        d[r] = dev_load_global_f32(p->c + place(p, r, 0));
    }
    uint64_t a = wgmma_descriptor(shared, (uint32_t)p->row_bytes);
    uint64_t b = wgmma_descriptor(shared + A_BYTES, (uint32_t)p->row_bytes);
    uint64_t b_step = MXA_DESCRIPTOR_K32;
    if (p->bf16) { /* lines of 64 columns; row_bytes / 2 of them, then the next 64 */
        b = wgmma_descriptor_rows(shared + A_BYTES, (uint32_t)p->row_bytes / 2 * 128);
        b_step = MXA_DESCRIPTOR_ROWS16;
    }
    wgmma_fence();
    for (int k = 0; k < p->row_bytes / 32; k++, a += MXA_DESCRIPTOR_K32, b += b_step) {
        uint32_t registers[4];
        if (p->registers) {
            load_registers(p, k, registers);
        }
        if (p->bf16 && p->n == 64) {
            wgmma_rs_m64n64_bf16(d, registers, b);
        } else if (p->bf16 && p->n == 128) {
            wgmma_rs_m64n128_bf16(d, registers, b);
        } else if (p->bf16) {
            wgmma_rs_m64n256_bf16(d, registers, b);
        } else if (p->registers && p->n == 64) {
            wgmma_rs_m64n64_f32(d, registers, b);
        } else if (p->registers && p->n == 128) {
            wgmma_rs_m64n128_f32(d, registers, b);
        } else if (p->registers) {
            wgmma_rs_m64n256_f32(d, registers, b);
        } else if (p->n == 64 && p->first && k == 0) {
            wgmma_ss_m64n64_f32_first(d, a, b);
        } else if (p->n == 64) {
            wgmma_ss_m64n64_f32(d, a, b);
        } else if (p->first && k == 0) {
            wgmma_ss_m64n128_f32_first(d, a, b);
        } else {
            wgmma_ss_m64n128_f32(d, a, b);
        }
    }
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold_f32(d, p->n / 2);
    for (int r = 0; r < p->n / 2; r++) {
        dev_store_global_f32(p->d + place(p, r, 0), d[r]);
    }
}

MXA_KERNEL(test_wgmma, 128, params, p)
{
    const mxa_shared shared = aligned(dev_shared());
    load_image(&p, shared);
    if (p.f16) {
        product_f16(&p, shared);
    } else {
        product_f32(&p, shared);
    }
}

/* ---- faults ---- */

/* An accumulator is scaled while its product is in flight. */
MXA_KERNEL(wgmma_touched, 128, mxt_emu_params, parameters)
{
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0);
    }
    fence_async_shared();
    cta_sync();
    wgmma_fence();
    wgmma_ss_m64n64_f32(d, wgmma_descriptor(shared, 64), wgmma_descriptor(shared + 4096, 64));
    wgmma_commit();
    if (parameters.broken) {
        d[3] = 2 * d[3];
    }
    wgmma_wait(0);
    dev_store_global_f32(parameters.memory + 4 * (uint64_t)dev_thread(), d[3]);
}

MXA_KERNEL(wgmma_no_fence, 128, mxt_emu_params, parameters)
{
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0);
    }
    fence_async_shared();
    cta_sync();
    if (!parameters.broken) {
        wgmma_fence();
    }
    wgmma_ss_m64n64_f32_first(d, wgmma_descriptor(shared, 64), wgmma_descriptor(shared + 4096, 64));
    wgmma_commit();
    wgmma_wait(0);
    dev_store_global_f32(parameters.memory + 4 * (uint64_t)dev_thread(), d[3]);
}

/* Accumulators may go on after a wait without a fence; written ones (broken) may not. */
MXA_KERNEL(wgmma_goes_on, 128, mxt_emu_params, parameters)
{
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0x38383838); /* 1 */
    }
    fence_async_shared();
    cta_sync();
    wgmma_fence();
    for (int i = 0; i < 3; i++) {
        wgmma_ss_m64n64_f32(d, wgmma_descriptor(shared, 64), wgmma_descriptor(shared + 4096, 64));
        wgmma_commit();
        wgmma_wait(0);
        if (parameters.broken) {
            d[i] += 1;
        }
    }
    dev_store_global_f32(parameters.memory + 4 * (uint64_t)dev_thread(), d[3]);
}

/* H1: no proxy fence between the threads' stores and the product. */
MXA_KERNEL(wgmma_no_proxy_fence, 128, mxt_emu_params, parameters)
{
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0);
    }
    if (!parameters.broken) {
        fence_async_shared();
    }
    cta_sync();
    wgmma_fence();
    wgmma_ss_m64n64_f32_first(d, wgmma_descriptor(shared, 64), wgmma_descriptor(shared + 4096, 64));
    wgmma_commit();
    wgmma_wait(0);
    dev_store_global_f32(parameters.memory + 4 * (uint64_t)dev_thread(), d[3]);
}

/* H7: operands are overwritten before the wait. */
MXA_KERNEL(wgmma_overwritten, 128, mxt_emu_params, parameters)
{
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0);
    }
    fence_async_shared();
    cta_sync();
    wgmma_fence();
    wgmma_ss_m64n64_f32_first(d, wgmma_descriptor(shared, 64), wgmma_descriptor(shared + 4096, 64));
    wgmma_commit();
    if (!parameters.broken) {
        wgmma_wait(0);
        cta_sync();
    }
    dev_store_shared_u32(shared + 4 * (uint32_t)dev_thread(), 1);
    wgmma_wait(0);
    dev_store_global_f32(parameters.memory + 4 * (uint64_t)dev_thread(), d[3]);
}

/* H14: a descriptor with Blackwell's constant, with a base offset, with a pattern that starts late.
 */
MXA_KERNEL(wgmma_descriptors, 128, mxt_emu_params, parameters)
{
    static const uint64_t faults[] = {(uint64_t)1 << 46, (uint64_t)1 << 49, (uint64_t)64 >> 4,
                                      (uint64_t)1 << 14, (uint64_t)1 << 53};
    const mxa_shared shared = aligned(dev_shared());
    float d[32] = {0};
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < 8192; at += 512) {
        dev_store_shared_u32(shared + at, 0);
    }
    fence_async_shared();
    cta_sync();
    wgmma_fence();
    const uint64_t fault = parameters.broken ? faults[parameters.broken - 1] : 0;
    wgmma_ss_m64n64_f32_first(d, wgmma_descriptor(shared, 64),
                              wgmma_descriptor(shared + 4096, 64) + fault);
    wgmma_commit();
    wgmma_wait(0);
}

static void faults(void)
{
    static const mxt_emu_case cases[] = {
        {"accumulator touched in flight", &wgmma_touched_kernel, MXT_H(0), 0,
         "accumulator registers written", 128, 1, 9216, 0},
        {"no wgmma.fence", &wgmma_no_fence_kernel, MXT_H(0), 0, "wgmma without wgmma.fence", 128, 1,
         9216, 0},
        {"accumulator written, no wgmma.fence", &wgmma_goes_on_kernel, MXT_H(0), 0,
         "wgmma without wgmma.fence", 128, 1, 9216, 0},
        {"no proxy fence", &wgmma_no_proxy_fence_kernel, MXT_H(1), 0, NULL, 128, 1, 9216, 0},
        {"operand overwritten", &wgmma_overwritten_kernel, MXT_H(7), 0, NULL, 128, 1, 9216, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mxt_emu_check(&cases[i]);
    }
    for (int fault = 0; fault <= 5; fault++) {
        mxt_emu_params p = {fault, 0, 0};
        mxa_emu_options options;
        mxa_emu_result result;
        const int grid[3] = {1, 1, 1};
        mxt_case("descriptor %d", fault);
        mxa_emu_options_init(&options);
        (void)mxa_emu_launch(&wgmma_descriptors_kernel, grid, 128, 9216, &p, &options, &result);
        CHECK(result.hazards == (fault ? MXT_H(14) : 0), "hazards %x: %s", result.hazards,
              result.text ? result.text : "");
        mxa_emu_result_free(&result);
    }
}

/* ---- values ---- */

/* Byte k of row x in shared memory: PTX ISA 5.5.7 puts 16-byte unit u of a row of W bytes, rows
 * after one another, to u ^ (row % 8), for W = 128, to u ^ (row / 2 % 4) for W = 64. */
static int swizzled(int x, int k, int row_bytes)
{
    const int unit = k / 16, turn = row_bytes == 128 ? x % 8 : x / 2 % 4;
    return x * row_bytes + (unit ^ turn) * 16 + k % 16;
}

/* BF16 with columns innermost: element (k, n) of B in lines of 64 columns, K lines after one
 * another, then the next 64 columns. */
static int by_rows(int k, int n, int lines)
{
    const int byte = n % 64 * 2;
    return n / 64 * lines * 128 + k * 128 + (byte / 16 ^ k % 8) * 16 + byte % 16;
}

/* Bytes of A and B, [x][row_bytes], and where the kernel finds them. */
static void fill(mxt_random *random, int row_bytes, int n, int bf16, unsigned char *image,
                 unsigned char *a, unsigned char *b)
{
    memset(image, 0xFF, SHARED);
    for (int i = 0; i < (M + n) * row_bytes; i += 1 + bf16) {
        uint16_t code = mxa_e4m3_from_f32((float)mxt_random_gaussian(random) * 3);
        code = bf16 ? mxa_bf16_from_f32((float)mxt_random_gaussian(random)) : code;
        const int x = i / row_bytes, k = i % row_bytes;
        memcpy(x < M ? a + i : b + i - M * row_bytes, &code, (size_t)(1 + bf16));
        if (bf16 && x >= M) {
            memcpy(image + A_BYTES + by_rows(k / 2, x - M, row_bytes / 2), &code, 2);
        } else if (!bf16) {
            image[x < M ? swizzled(x, k, row_bytes) : A_BYTES + swizzled(x - M, k, row_bytes)] =
                (unsigned char)code;
        }
    }
}

static void values(int row_bytes, int n, int f16, int registers, int first, int bf16, uint64_t seed)
{
    static unsigned char image[SHARED], a[M * 128], b[MOST_N * 128];
    static uint32_t c[M * MOST_N], d[M * MOST_N], want[M * MOST_N];
    mxt_random random = {seed};
    mxt_case("%d-byte rows, N %d%s%s%s%s, seed %llu", row_bytes, n, f16 ? ", FP16" : "",
             bf16 ? ", BF16" : "", registers ? ", A in registers" : "", first ? ", first" : "",
             (unsigned long long)seed);
    fill(&random, row_bytes, n, bf16, image, a, b);
    for (int i = 0; i < M * n; i++) {
        const float x = (float)mxt_random_gaussian(&random) * 20;
        memcpy(&c[i], &x, 4);
        c[i] = f16 ? mxa_f16_from_f32(x) : c[i];
    }
    memcpy(want, c, sizeof want);
    for (int k = 0; k < row_bytes; k += 32) {
        unsigned char step[M * 32];
        for (int m = 0; m < M; m++) {
            memcpy(step + 32 * m, a + m * row_bytes + k, 32);
        }
        const mxa_tensor_core_step fp8 = {MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3, 32};
        const mxa_tensor_core_step half = {MXA_TENSOR_CORE_HOPPER_16, MXATTN_BF16, MXATTN_BF16, 16};
        const mxa_emu_product product = {bf16 ? half : fp8,
                                         M,
                                         n,
                                         step,
                                         b + k,
                                         row_bytes / (1 + bf16),
                                         1,
                                         NULL,
                                         NULL,
                                         want,
                                         n,
                                         f16,
                                         !(first && k == 0)};
        mxa_emu_product_scalar(&product);
    }
    const params p = {(mxa_global)(uintptr_t)image,
                      (mxa_global)(uintptr_t)c,
                      (mxa_global)(uintptr_t)d,
                      (mxa_global)(uintptr_t)a,
                      row_bytes,
                      n,
                      f16,
                      registers,
                      first,
                      bf16};
    mxa_emu_options options;
    mxa_emu_result result;
    const int grid[3] = {1, 1, 1};
    mxa_emu_options_init(&options);
    options.seed = seed;
    memset(d, 0xFF, sizeof d);
    const int ok =
        mxa_emu_launch(&test_wgmma_kernel, grid, 128, SHARED + 1024, &p, &options, &result);
    CHECK(ok == 0 && result.errors == 0 && result.warnings == 0, "reports: %s",
          result.text ? result.text : "");
    int wrong = 0;
    for (int i = 0; i < M * n && wrong < 3; i++) {
        wrong +=
            !CHECK(d[i] == want[i], "(%d, %d): got %08x, want %08x", i / n, i % n, d[i], want[i]);
    }
    mxa_emu_result_free(&result);
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        for (int row_bytes = 64; row_bytes <= 128; row_bytes += 64) {
            for (int first = 0; first < 2; first++) {
                values(row_bytes, 64, 0, 0, first, 0, seed);
                values(row_bytes, 128, 0, 0, first, 0, seed);
                values(row_bytes, 64, 1, 0, first, 0, seed);
                values(row_bytes, 128, 1, 0, first, 0, seed);
                values(row_bytes, 128, 1, 1, first, 0, seed);
            }
            for (int n = 64; n <= 256; n *= 2) {
                values(row_bytes, n, 0, 1, 0, 0, seed);
                values(row_bytes, n, 0, 1, 0, 1, seed);
            }
        }
    }
    faults();
    return mxt_finish();
}
