/* wgmma_sums.cu: do Hopper's tensor cores add as mx/tensor_core.h says? A program for a GPU.
 *
 *   gcc -O2 -Isrc -Iinclude -c src/mx/tensor_core.c src/mx/element.c src/mx/e8m0.c
 *   nvcc -O2 -gencode arch=compute_90a,code=sm_90a -Isrc -Iinclude -o wgmma_sums \
 *       tests/cuda/wgmma_sums.cu tensor_core.o element.o e8m0.o
 *
 * 64 x 64 sums in FP32 and 64 x 128 in FP16, each of 32 products and an accumulator, of several
 * kinds of data; every bit is compared. Exit status 1 where one differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "cuda/dev/wgmma.h"

extern "C" {
#include "mx/element.h"
#include "mx/tensor_core.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 64, MOST_N = 128, K = 32, ROUNDS = 200, AT_B = 2048, SHARED = 8192 + 1024 };

/* Rows of 32 bytes, swizzled so: 16-byte unit u of row x lies at u ^ (x / 4 % 2). */
struct tile {
    unsigned char a[M * K], b[MOST_N * K];
    uint32_t c[M * MOST_N], d[M * MOST_N];
};

MXA_DEVICE uint64_t descriptor(mxa_shared at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(256 >> 4) << 32 |
           (uint64_t)3 << 62;
}

/* Word of register r of this lane in c and d. */
MXA_DEVICE int place(int r, int n)
{
    const int t = dev_thread() & 31, w = dev_thread() >> 5;
    return (16 * w + t / 4 + 8 * (r >> 1 & 1)) * n + 8 * (r >> 2) + 2 * (t % 4) + (r & 1);
}

MXA_DEVICE mxa_shared load(const tile *from)
{
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    for (int i = 4 * dev_thread(); i < (M + MOST_N) * K; i += 4 * 128) {
        const int x = i / K, byte = i % K;
        const uint32_t word =
            x < M ? *(const uint32_t *)&from->a[i] : *(const uint32_t *)&from->b[i - M * K];
        const uint32_t row = (uint32_t)(x < M ? x : x - M);
        dev_store_shared_u32(shared + (x < M ? 0u : (uint32_t)AT_B) + row * K +
                                 (((uint32_t)byte / 16) ^ (row / 4 % 2)) * 16 + (uint32_t)byte % 16,
                             word);
    }
    fence_async_shared();
    cta_sync();
    return shared;
}

extern "C" __global__ void __launch_bounds__(128) sums_f32(tile *tiles)
{
    tile *t = &tiles[dev_block_x()];
    const mxa_shared shared = load(t);
    float d[32];
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        d[r] = f32_bits(t->c[place(r, 64)]);
    }
    wgmma_hold_f32(d, 32);
    wgmma_fence();
    wgmma_ss_m64n64_f32(d, descriptor(shared), descriptor(shared + AT_B));
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold_f32(d, 32);
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        t->d[place(r, 64)] = bits_f32(d[r]);
    }
}

extern "C" __global__ void __launch_bounds__(128) sums_f16(tile *tiles)
{
    tile *t = &tiles[dev_block_x()];
    const mxa_shared shared = load(t);
    uint32_t d[32];
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        d[r] = t->c[place(2 * r, 128)] | t->c[place(2 * r + 1, 128)] << 16;
    }
    wgmma_hold_u32(d, 32);
    wgmma_fence();
    wgmma_ss_m64n128_f16(d, descriptor(shared), descriptor(shared + AT_B));
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold_u32(d, 32);
    MXA_UNROLL
    for (int r = 0; r < 32; r++) {
        t->d[place(2 * r, 128)] = d[r] & 0xFFFF;
        t->d[place(2 * r + 1, 128)] = d[r] >> 16;
    }
}

static uint64_t random_u64(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* About Gaussian, deviation 1. */
static float random_bell(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)(random_u64(state) >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

enum { BELL, ANY, SMALL, COHERENT, CANCEL, NANS, KINDS };
static const char *const kinds[] = {"bell",     "any finite code", "subnormal",
                                    "coherent", "cancelling",      "with NaN"};

static unsigned char code(uint64_t *state, int kind)
{
    const uint64_t u = random_u64(state);
    switch (kind) {
    case BELL:
        return mxa_e4m3_from_f32(random_bell(state) * 50);
    case SMALL:
        return (unsigned char)(u & 0x8F);
    case COHERENT:
        return mxa_e4m3_from_f32(1.75f + (float)(u % 3) * 0.125f);
    default:
        return kind != NANS && (u & 0x7F) == 0x7F ? 0x7E
               : kind == NANS && u >> 57 == 0     ? 0x7F
                                                  : (unsigned char)u;
    }
}

static void fill(tile *t, int kind, int f16, uint64_t *state)
{
    for (int i = 0; i < M * K; i++) {
        t->a[i] = code(state, kind);
    }
    for (int i = 0; i < MOST_N * K; i++) {
        t->b[i] = code(state, kind);
        if (kind == CANCEL && i % 2) { /* pairs of columns of B nearly cancel in a row of A */
            t->b[i] = (unsigned char)(t->b[i - 1] ^ 0x80);
        }
    }
    for (int i = 0; kind == CANCEL && i < M * K; i += 2) {
        t->a[i + 1] = t->a[i];
    }
    for (int i = 0; i < M * MOST_N; i++) {
        static const float spread[] = {1, 0x1p-20f, 0x1p-9f, 64, 0x1p12f, 0x1p20f, 0, 0x1p-30f};
        const float x = random_bell(state) * spread[random_u64(state) % 8];
        memcpy(&t->c[i], &x, 4);
        t->c[i] = f16 ? mxa_f16_from_f32(x) : t->c[i];
    }
}

static int compare(const tile *t, int f16, int *shown)
{
    const mxa_tensor_core_step step = {MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3, K};
    const int n = f16 ? 128 : 64;
    int differ = 0;
    for (int i = 0; i < M * n; i++) {
        const unsigned char *a = t->a + i / n * K, *b = t->b + i % n * K;
        const uint32_t want = f16 ? mxa_tensor_core_f16(&step, a, b, (uint16_t)t->c[i])
                                  : mxa_tensor_core_f32(&step, a, b, 127, 127, t->c[i]);
        if (t->d[i] != want) {
            differ++;
            if ((*shown)++ < 6) {
                printf("    c %08x: silicon %08x, model %08x\n", t->c[i], t->d[i], want);
            }
        }
    }
    return differ;
}

int main(void)
{
    const size_t bytes = sizeof(tile) * ROUNDS;
    tile *host = (tile *)malloc(bytes), *device = NULL;
    uint64_t state = 1;
    int failed = 0;
    if (!host || cudaMalloc(&device, bytes) != cudaSuccess) {
        printf("no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 77;
    }
    for (int f16 = 0; f16 < 2; f16++) {
        for (int kind = 0; kind < KINDS; kind++) {
            for (int i = 0; i < ROUNDS; i++) {
                fill(&host[i], kind, f16, &state);
            }
            cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice);
            if (f16) {
                sums_f16<<<ROUNDS, 128, SHARED>>>(device);
            } else {
                sums_f32<<<ROUNDS, 128, SHARED>>>(device);
            }
            cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);
            if (cudaGetLastError() != cudaSuccess) {
                printf("launch failed\n");
                return 1;
            }
            long differ = 0;
            int shown = 0;
            for (int i = 0; i < ROUNDS; i++) {
                differ += compare(&host[i], f16, &shown);
            }
            printf("%s, %s: %ld of %d differ\n", f16 ? "FP16" : "FP32", kinds[kind], differ,
                   ROUNDS * M * (f16 ? 128 : 64));
            fflush(stdout);
            failed |= differ != 0;
        }
    }
    return failed;
}
