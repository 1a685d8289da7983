/* test_descriptors.c: every bit of matrix and instruction descriptors: what the ISA refuses is
 * refused (H14, H15), what it allows is carried out.
 *
 * The rules here are written down once more, from PTX ISA 9.7.15.5.1.2.2, 9.7.16.4.1
 * and 9.7.16.4.2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/dev/tma.h"
#include "emu/matrix.h"
#include "emu_case.h"
#include "fill.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

/* ---- matrix descriptors ---- */

enum { DESCRIPTORS = 4096 };

typedef struct matrix_params {
    mxa_global descriptors, accepted; /* [DESCRIPTORS] */
    int32_t arch, count;
} matrix_params;

MXA_KERNEL(matrices, 32, matrix_params, p)
{
    for (int i = dev_thread(); i < p.count; i += 32) {
        const uint64_t at = p.descriptors + 8 * (uint64_t)i;
        const uint64_t descriptor = dev_load_global_u32(at) | (uint64_t)dev_load_global_u32(at + 4)
                                                                  << 32;
        mxa_emu_matrix matrix;
        dev_store_global_u32(p.accepted + 4 * (uint64_t)i,
                             (uint32_t)mxa_emu_matrix_decode(descriptor, p.arch, 0, &matrix, 1));
    }
}

/* Width of the swizzle in bytes, 0: none, -1: no such code. */
static int swizzle_of(uint64_t d, int arch)
{
    static const int hopper[] = {0, 128, 64, 32};
    static const int blackwell[] = {0, -1, 128, -1, 64, -1, 32, -1};
    return arch == 90 ? hopper[d >> 62] : blackwell[d >> 61];
}

static int matrix_allowed(uint64_t d, int arch)
{
    const uint64_t start = (d & 0x3FFF) << 4, stride = (d >> 32 & 0x3FFF) << 4;
    const uint64_t zero = arch == 90 ? 0x3FFFC000C000C000 : 0x1FF00000C000C000; /* must be */
    const int swizzle = swizzle_of(d, arch);
    if (d & zero || swizzle < 0 || (arch == 100 && (d >> 46 & 7) != 1) || (d >> 49 & 7)) {
        return 0;
    }
    /* Base offset 0: the pattern of 8 rows starts at a multiple of its size; a step along K stays
     * in its first row. */
    return swizzle == 0 || (start % (8 * (uint64_t)swizzle) < (uint64_t)swizzle &&
                            stride % (8 * (uint64_t)swizzle) == 0);
}

static uint64_t descriptors[DESCRIPTORS];
static uint32_t accepted[DESCRIPTORS];

static void check_matrices(int arch)
{
    mxt_random random = {(uint64_t)arch};
    const uint64_t version = arch == 90 ? 0 : (uint64_t)1 << 46;
    int count = 0, allowed = 0;
    for (uint64_t code = 0; code < 8; code++) { /* each swizzle: as it is, each bit, each pair */
        const uint64_t base =
            0x40 | (uint64_t)1 << 16 | (uint64_t)0x40 << 32 | version | code << 61;
        descriptors[count++] = base;
        for (int i = 0; i < 64; i++) {
            descriptors[count++] = base ^ (uint64_t)1 << i;
        }
        for (int i = 0; i < 256; i++) {
            descriptors[count++] = base ^ (uint64_t)1 << mxt_random_int(&random, 0, 63) ^
                                   (uint64_t)1 << mxt_random_int(&random, 0, 63);
        }
    }
    mxt_case("matrix descriptors, sm_%d: %d", arch, count);
    const matrix_params p = {(mxa_global)(uintptr_t)descriptors, (mxa_global)(uintptr_t)accepted,
                             arch, count};
    const int grid[3] = {1, 1, 1};
    mxa_emu_options options;
    mxa_emu_result result;
    mxa_emu_options_init(&options);
    (void)mxa_emu_launch(&matrices_kernel, grid, 32, 1024, &p, &options, &result);
    CHECK(result.hazards == MXT_H(14), "hazards %x", result.hazards);
    mxa_emu_result_free(&result);
    for (int i = 0; i < count; i++) {
        const int want = matrix_allowed(descriptors[i], arch);
        CHECK((int)accepted[i] == want, "0x%016llx is %s", (unsigned long long)descriptors[i],
              want ? "refused" : "accepted");
        allowed += want;
    }
    CHECK(allowed > 100 && allowed < count - 100, "%d of %d are allowed", allowed, count);
}

/* ---- instruction descriptors ---- */

enum {
    THREADS = 128,
    N = 32,
    AT_BARRIER = 0,
    AT_SLOT = 8,
    AT_A = 1024,           /* 128 x 32 bytes */
    AT_B = AT_A + 4096,    /* 256 x 32 */
    SHARED = AT_B + 16384, /* along N: as far as it may reach */
    T_D = 0,               /* columns */
    T_SCALES = 256,
    KIND_F16 = 0,
    KIND_F8,
    KIND_MXF8
};

typedef struct instruction_params {
    int32_t kind;
    uint32_t instruction;
} instruction_params;

MXA_KERNEL(instructions, THREADS, instruction_params, p)
{
    const mxa_shared shared = (dev_shared() + 1023) & ~1023u;
    const uint64_t a = matrix_descriptor(shared + AT_A, 128 * 16, 128, MATRIX_SWIZZLE_NONE);
    const uint64_t b = matrix_descriptor(shared + AT_B, 256 * 16, 128, MATRIX_SWIZZLE_NONE);
    uint32_t r[8];
    for (uint32_t at = 4 * (uint32_t)dev_thread(); at < SHARED - AT_A; at += 4 * THREADS) {
        dev_store_shared_u32(shared + AT_A + at, 0);
    }
    fence_async_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_BARRIER, 1);
        mbarrier_init_fence();
    }
    if (dev_thread() < 32) {
        tmem_alloc(shared + AT_SLOT, 512);
    }
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    const mxa_tmem t = dev_load_shared_u32(shared + AT_SLOT);
    for (int i = 0; i < 8; i++) {
        r[i] = 0x7F7F7F7F;
    }
    tmem_store_x8(tmem_quarter(t + T_SCALES, dev_thread() / 32), r);
    tmem_store_x8(tmem_quarter(t + T_SCALES + 8, dev_thread() / 32), r);
    tmem_wait_store();
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    if (dev_thread() == 0) {
        if (p.kind == KIND_F16) {
            tcgen05_mma_f16_ss(t + T_D, a, b, p.instruction, 0);
        } else if (p.kind == KIND_F8) {
            tcgen05_mma_f8_ss(t + T_D, a, b, p.instruction, 0);
        } else {
            tcgen05_mma_mxf8_ss(t + T_D, a, b, p.instruction, t + T_SCALES, t + T_SCALES + 8, 0);
        }
        tcgen05_commit(shared + AT_BARRIER);
    }
    mbarrier_wait(shared + AT_BARRIER, 0);
    tcgen05_fence_after();
    tcgen05_fence_before();
    cta_sync();
    if (dev_thread() < 32) {
        tmem_free(t, 512);
    }
}

static uint32_t field(uint32_t bits, int low, int high)
{
    return bits >> low & ((2u << (high - low)) - 1);
}

/* Of one CTA. What the ISA has and the emulator does not (sparse products, other types, negation)
 * is refused too. */
static int instruction_allowed(uint32_t i, int kind)
{
    const uint32_t a = field(i, 7, 9), b = field(i, 10, 12), n = 8 * field(i, 17, 22);
    const uint32_t m = 16 * field(i, 24, 28), d = field(i, 4, 5);
    int ok = field(i, 0, 3) == 0 && field(i, 6, 6) == 0 && a <= 1 && b <= 1 &&
             field(i, 13, 14) == 0 && n >= 8 && n <= 256;
    if (kind == KIND_MXF8) {
        ok &= field(i, 23, 23) == 1 && field(i, 24, 26) == 0 && field(i, 31, 31) == 0 && m == 128;
    } else {
        ok &= field(i, 23, 23) == 0 && field(i, 29, 31) == 0 && (m == 64 || m == 128) && d <= 1;
        ok &= d == 1 || !(kind == KIND_F16 && a == 1); /* FP16 sums of FP16 or FP8 operands */
    }
    return ok && (kind == KIND_F16 ? a == b : !field(i, 16, 16) || n % 16 == 0);
}

static void check_instruction(int kind, uint32_t bits)
{
    const instruction_params p = {kind, bits};
    const int grid[3] = {1, 1, 1}, want = instruction_allowed(bits, kind);
    mxa_emu_options options;
    mxa_emu_result result;
    mxa_emu_options_init(&options);
    options.eager = 1;
    (void)mxa_emu_launch(&instructions_kernel, grid, THREADS, SHARED + 1024, &p, &options, &result);
    CHECK(want ? result.errors == 0 : result.hazards == MXT_H(15), "kind %d, 0x%08x is %s: %s",
          kind, bits, want ? "refused" : "not refused",
          result.text ? result.text : "nothing reported");
    mxa_emu_result_free(&result);
}

int main(void)
{
    static const uint32_t bases[] = {MATRIX_INSTRUCTION_F32(MATRIX_F16, MATRIX_F16, 0, N),
                                     MATRIX_INSTRUCTION_F32(MATRIX_E4M3, MATRIX_E4M3, 0, N),
                                     MATRIX_INSTRUCTION_MXF8(MATRIX_E4M3, MATRIX_E4M3, 0, N)};
    mxt_random random = {5};
    check_matrices(90);
    check_matrices(100);
    for (int kind = 0; kind < 3; kind++) {
        mxt_case("instruction descriptors of kind %d", kind);
        check_instruction(kind, bases[kind]);
        for (int i = 0; i < 32; i++) {
            check_instruction(kind, bases[kind] ^ 1u << i);
        }
        for (int i = 0; i < 96; i++) {
            check_instruction(kind, bases[kind] ^ 1u << mxt_random_int(&random, 0, 31) ^
                                        1u << mxt_random_int(&random, 0, 31));
        }
    }
    return mxt_finish();
}
