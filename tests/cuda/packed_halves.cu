/* packed_halves.cu: do a GPU's packed halves give the emulator's bits? A program for a GPU, of one
 * source that is compiled twice: for the device, and as C with the emulator's bodies.
 *
 *   gcc -O2 -DNDEBUG -mavx2 -mfma -Isrc -Iinclude -x c -c -o model.o tests/cuda/packed_halves.cu
 *   gcc -O2 -Isrc -Iinclude -c src/emu/math.c
 *   nvcc -O2 -gencode arch=compute_90a,code=sm_90a -Isrc -Iinclude -o packed_halves \
 *       tests/cuda/packed_halves.cu model.o math.o
 *
 * Every function is given every half beside random ones, NaN and infinities among them. Exit status
 * 1 where a bit differs but in a NaN's payload.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/math.h"

#include <stdint.h>
#include <stdio.h>

enum { FUNCTIONS = 6, ROUNDS = 64, COUNT = 65536 * ROUNDS };

MXA_DEVICE uint32_t one(int function, uint32_t a, uint32_t b, uint32_t c)
{
    switch (function) {
    case 0:
        return max_f16x2(a, b);
    case 1:
        return min_nan_f16x2(a, b);
    case 2:
        return fma_f16x2(a, b, c);
    case 3:
        return fma_less_relu_f16x2(a, b, c);
    case 4:
        return add_f16x2(a, b);
    default:
        return exp2_f16x2(a);
    }
}

/* Argument k of number i: halves of every kind. */
MXA_DEVICE uint32_t argument(uint32_t i, uint32_t k)
{
    uint32_t x = (i * 4 + k) * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    x ^= x >> 16;
    if (k == 0) {
        return (i & 0xFFFF) | (x & 0xFFFF0000);
    }
    return i & 0x10000 ? x : (x & 0x83FF83FF) | 0x3C003C00; /* any, or a magnitude in [1, 2) */
}

MXA_DEVICE uint32_t result(int function, uint32_t i)
{
    return one(function, argument(i, 0), argument(i, 1), argument(i, 2));
}

#if !defined(__CUDACC__)
uint32_t model(int function, uint32_t i);
uint32_t model_argument(uint32_t i, uint32_t k);

uint32_t model(int function, uint32_t i)
{
    return result(function, i);
}

uint32_t model_argument(uint32_t i, uint32_t k)
{
    return argument(i, k);
}
#else
extern "C" uint32_t model(int function, uint32_t i);
extern "C" uint32_t model_argument(uint32_t i, uint32_t k);

static const char *const names[] = {
    "max", "min, NaN wins", "a * b + c", "max(c - a * b, 0)", "a + b", "2^a"};

extern "C" __global__ void silicon(int function, uint32_t *to)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = result(function, i);
}

/* Halves of both kinds of NaN are equal. */
static int equal(uint32_t got, uint32_t want)
{
    const int nans = ((got & 0x7FFF) > 0x7C00) + ((want & 0x7FFF) > 0x7C00);
    return nans ? nans == 2 : (got & 0xFFFF) == (want & 0xFFFF);
}

int main(void)
{
    static uint32_t got[COUNT];
    uint32_t *device = NULL;
    int failed = 0;
    if (cudaMalloc(&device, sizeof got) != cudaSuccess) {
        printf("no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 77;
    }
    for (int function = 0; function < FUNCTIONS; function++) {
        int differ = 0;
        silicon<<<COUNT / 256, 256>>>(function, device);
        if (cudaMemcpy(got, device, sizeof got, cudaMemcpyDeviceToHost) != cudaSuccess) {
            printf("launch failed\n");
            return 1;
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t want = model(function, i);
            if (!equal(got[i], want) || !equal(got[i] >> 16, want >> 16)) {
                if (differ++ < 4) {
                    printf("    %08x, %08x, %08x: silicon %08x, model %08x\n", model_argument(i, 0),
                           model_argument(i, 1), model_argument(i, 2), got[i], want);
                }
            }
        }
        printf("%s: %d of %d differ\n", names[function], differ, COUNT);
        failed |= differ != 0;
    }
    return failed;
}
#endif
