/* test_hazards_tensor.c: for each hazard of tensor memory and tensor cores a kernel that has it,
 * and its mended twin.
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

enum {
    THREADS = 128,
    COLUMNS = 128,
    N = 16,
    AT_DONE = 0, /* barriers */
    AT_OTHER = 8,
    AT_SLOT = 16,
    AT_SCALES = 512, /* one unit */
    AT_A = 1024,     /* 128 rows of 32 bytes, in chunks of 16 */
    AT_B = AT_A + 128 * 32,
    SHARED = AT_B + 32 * N,
    /* columns */
    AT_D = 0,
    AT_P = 32,
    AT_SF = 64
};

#define PLAIN  MATRIX_INSTRUCTION_F32(MATRIX_E4M3, MATRIX_E4M3, 0, N)
#define SCALED MATRIX_INSTRUCTION_MXF8(MATRIX_E4M3, MATRIX_E4M3, 0, N)

MXA_DEVICE int warp(void)
{
    return dev_thread() >> 5;
}

MXA_DEVICE uint64_t matrix_a(mxa_shared shared)
{
    return matrix_descriptor(shared + AT_A, 128 * 16, 128, MATRIX_SWIZZLE_NONE);
}

MXA_DEVICE uint64_t matrix_b(mxa_shared shared)
{
    return matrix_descriptor(shared + AT_B, N * 16, 128, MATRIX_SWIZZLE_NONE);
}

MXA_DEVICE uint64_t scales(mxa_shared shared)
{
    return matrix_descriptor(shared + AT_SCALES, 0, 128, MATRIX_SWIZZLE_NONE);
}

/* Operands of ones, barriers, columns; all of it known to all. Returns the first column. */
MXA_DEVICE mxa_tmem begin(mxa_shared shared)
{
    for (uint32_t i = (uint32_t)dev_thread() * 4; i < SHARED - AT_SCALES; i += 4 * THREADS) {
        dev_store_shared_u32(shared + AT_SCALES + i,
                             i < AT_A - AT_SCALES ? 0x7F7F7F7F : 0x38383838);
    }
    if (dev_thread() == 0) {
        mbarrier_init(shared + AT_DONE, 1);
        mbarrier_init(shared + AT_OTHER, THREADS);
        mbarrier_init_fence();
        dev_barrier(shared + AT_DONE, "done", 0, "commit", "all");
    }
    if (warp() == 0) {
        tmem_alloc(shared + AT_SLOT, COLUMNS);
        tmem_relinquish();
    }
    fence_async_shared();
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
    return dev_load_shared_u32(shared + AT_SLOT);
}

/* What comes before the next phase of the kernel, for every thread. */
MXA_DEVICE void meet(void)
{
    tcgen05_fence_before();
    cta_sync();
    tcgen05_fence_after();
}

MXA_DEVICE void finish(mxa_tmem at)
{
    meet();
    if (warp() == 0) {
        tmem_free(at, COLUMNS);
    }
}

/* D = A * B, by one thread. */
MXA_DEVICE void multiply(mxa_shared shared, mxa_tmem at)
{
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ss(at + AT_D, matrix_a(shared), matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
    }
}

MXA_DEVICE void wait_done(mxa_shared shared, uint32_t parity)
{
    mbarrier_wait(shared + AT_DONE, parity);
    tcgen05_fence_after();
}

/* H2: D read before the product's commit has arrived. */
MXA_KERNEL(h2_commit, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    multiply(shared, at);
    if (!parameters.broken) {
        wait_done(shared, 0);
    }
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    tmem_wait_load();
    if (parameters.broken) {
        wait_done(shared, 0);
    }
    finish(at);
}

/* H10, as H2: another thread commits; its commit covers nothing, and D is read too early. */
MXA_KERNEL(h10_elsewhere, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ss(at + AT_D, matrix_a(shared), matrix_b(shared), PLAIN, 0);
    }
    if (dev_thread() == (parameters.broken ? 32 : 0)) {
        tcgen05_commit(shared + AT_DONE);
    }
    wait_done(shared, 0);
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    tmem_wait_load();
    if (parameters.broken && dev_thread() == 0) { /* so that nothing is under way at the end */
        tcgen05_commit(shared + AT_DONE);
    }
    if (parameters.broken) {
        wait_done(shared, 1);
    }
    finish(at);
}

/* H2: the commit is waited for, the fence after it is not there. */
MXA_KERNEL(h2_fence_after, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    multiply(shared, at);
    mbarrier_wait(shared + AT_DONE, 0);
    if (!parameters.broken) {
        tcgen05_fence_after();
    }
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    tmem_wait_load();
    finish(at);
}

/* H3: an arrival before the loads that it is to release are done. */
MXA_KERNEL(h3_arrive, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    multiply(shared, at);
    wait_done(shared, 0);
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    if (!parameters.broken) {
        tmem_wait_load();
    }
    mbarrier_arrive(shared + AT_OTHER);
    tmem_wait_load();
    finish(at);
}

/* H4: the next product overwrites D under loads of other warps. */
MXA_KERNEL(h4_overwrite, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    dev_role(warp() == 0 ? "scores" : "softmax");
    dev_tensor_region(at + AT_D, N, "S", 1);
    multiply(shared, at);
    wait_done(shared, 0);
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    if (!parameters.broken) {
        tmem_wait_load();
    }
    meet();
    multiply(shared, at);
    wait_done(shared, 1);
    tmem_wait_load();
    finish(at);
}

/* H5: a product reads P before the stores that make it have landed. */
MXA_KERNEL(h5_store, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t p[8] = {0};
    tmem_store_x8(tmem_quarter(at + AT_P, warp()), p);
    if (!parameters.broken) {
        tmem_wait_store();
    }
    meet();
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ts(at + AT_D, at + AT_P, matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
    }
    wait_done(shared, 0);
    tmem_wait_store();
    finish(at);
}

/* H5: stored and waited for, but not published before the barrier. */
MXA_KERNEL(h5_fence_before, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t p[8] = {0};
    tmem_store_x8(tmem_quarter(at + AT_P, warp()), p);
    tmem_wait_store();
    if (!parameters.broken) {
        tcgen05_fence_before();
    }
    cta_sync();
    tcgen05_fence_after();
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ts(at + AT_D, at + AT_P, matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
    }
    wait_done(shared, 0);
    finish(at);
}

/* H6: scales copied over those that a product may still read. */
MXA_KERNEL(h6_scales, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    if (dev_thread() == 0) {
        for (uint32_t i = 0; i < 2; i++) {
            tcgen05_copy_scales(at + AT_SF, scales(shared));
            tcgen05_mma_mxf8_ss(at + AT_D, matrix_a(shared), matrix_b(shared), SCALED, at + AT_SF,
                                at + AT_SF, 0);
            tcgen05_commit(shared + AT_DONE);
            if (i == 0 && !parameters.broken) {
                wait_done(shared, 0);
            }
        }
        wait_done(shared, 1);
    }
    finish(at);
}

/* H8: a product over the columns of another's operand; reported by option only. */
MXA_KERNEL(h8_other_accumulator, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t p[8] = {0};
    tmem_store_x8(tmem_quarter(at + AT_P, warp()), p);
    tmem_wait_store();
    meet();
    if (dev_thread() == 0) {
        tcgen05_mma_f8_ts(at + AT_D, at + AT_P, matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
        if (!parameters.broken) {
            wait_done(shared, 0);
        }
        tcgen05_mma_f8_ss(at + AT_P, matrix_a(shared), matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
        wait_done(shared, 1);
    }
    finish(at);
}

/* H9: P stored over scores that the same warp is still loading. */
MXA_KERNEL(h9_store_over_load, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t r[4];
    multiply(shared, at);
    wait_done(shared, 0);
    tmem_load_x4(r, tmem_quarter(at + AT_D, warp()));
    if (!parameters.broken) {
        tmem_wait_load();
    }
    uint32_t p[4] = {1, 2, 3, 4};
    tmem_store_x4(tmem_quarter(at + AT_D, warp()), p);
    tmem_wait_load();
    tmem_wait_store();
    finish(at);
}

/* H13: a warp reaches for lanes that are not its quarter's. */
MXA_KERNEL(h13_quarter, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t p[4] = {1, 2, 3, 4};
    tmem_store_x4(tmem_quarter(at + AT_P, parameters.broken ? warp() ^ 1 : warp()), p);
    tmem_wait_store();
    finish(at);
}

/* H13: columns beyond those allocated. */
MXA_KERNEL(h13_columns, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    uint32_t p[4] = {1, 2, 3, 4};
    tmem_store_x4(tmem_quarter(at + COLUMNS - (parameters.broken ? 3 : 4), warp()), p);
    tmem_wait_store();
    finish(at);
}

/* H14: a descriptor of another architecture. */
MXA_KERNEL(h14_descriptor, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    if (dev_thread() == 0) {
        const uint64_t version = parameters.broken ? (uint64_t)1 << 46 : 0;
        tcgen05_mma_f8_ss(at + AT_D, matrix_a(shared) & ~version, matrix_b(shared), PLAIN, 0);
        tcgen05_commit(shared + AT_DONE);
        wait_done(shared, 0);
    }
    finish(at);
}

/* H15: the scale type is not that of MXFP8. */
MXA_KERNEL(h15_instruction, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    if (dev_thread() == 0) {
        const uint32_t type = parameters.broken ? 1u << 23 : 0;
        tcgen05_copy_scales(at + AT_SF, scales(shared));
        tcgen05_mma_mxf8_ss(at + AT_D, matrix_a(shared), matrix_b(shared), SCALED & ~type,
                            at + AT_SF, at + AT_SF, 0);
        tcgen05_commit(shared + AT_DONE);
        wait_done(shared, 0);
    }
    finish(at);
}

/* H16: scales that nobody wrote. */
MXA_KERNEL(h16_scales, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    if (dev_thread() == 0) {
        if (!parameters.broken) {
            tcgen05_copy_scales(at + AT_SF, scales(shared));
        }
        tcgen05_mma_mxf8_ss(at + AT_D, matrix_a(shared), matrix_b(shared), SCALED, at + AT_SF,
                            at + AT_SF, 0);
        tcgen05_commit(shared + AT_DONE);
        wait_done(shared, 0);
    }
    finish(at);
}

/* H17: the address that alloc wrote, read without a barrier. */
MXA_KERNEL(h17_slot, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (warp() == 0) {
        tmem_alloc(shared + AT_SLOT, COLUMNS);
        tmem_relinquish();
    }
    if (!parameters.broken) {
        tcgen05_fence_before();
        cta_sync();
        tcgen05_fence_after();
    } else if (warp() == 1) {
        (void)dev_load_shared_u32(shared + AT_SLOT);
    }
    cta_sync();
    const mxa_tmem at = dev_load_shared_u32(shared + AT_SLOT);
    if (warp() == 0) {
        tmem_free(at, COLUMNS);
    }
}

/* H12: columns that are not there. A second alloc waits until they are freed. */
MXA_KERNEL(h12_alloc, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    if (warp() == 0) {
        for (int i = 0; i < 2; i++) {
            tmem_alloc(shared + AT_SLOT, 512);
            warp_sync();
            const mxa_tmem at = dev_load_shared_u32(shared + AT_SLOT);
            if (!parameters.broken) {
                tmem_free(at, 512);
            }
            warp_sync();
        }
    }
}

/* H18: columns are not freed. */
MXA_KERNEL(h18_leak, THREADS, mxt_emu_params, parameters)
{
    const mxa_tmem at = begin(dev_shared());
    if (!parameters.broken) {
        finish(at);
    }
}

/* H18: freed while a product is under way. */
MXA_KERNEL(h18_pending, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    multiply(shared, at);
    if (!parameters.broken) {
        wait_done(shared, 0);
    }
    finish(at);
    if (parameters.broken) {
        wait_done(shared, 0);
    }
}

/* H7: operands overwritten while a product reads them. */
MXA_KERNEL(h7_operand, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared);
    multiply(shared, at);
    if (!parameters.broken) {
        wait_done(shared, 0);
    }
    if (dev_thread() == 0) {
        dev_store_shared_u32(shared + AT_A, 0);
    }
    if (parameters.broken) {
        wait_done(shared, 0);
    }
    finish(at);
}

/* H12: lanes that do not load while others do, or wait already. */
MXA_KERNEL(h12_load, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared), own = tmem_quarter(at + AT_D, warp());
    uint32_t x[16];
    multiply(shared, at);
    wait_done(shared, 0);
    if (!parameters.broken || (dev_thread() & 31) >= 7) {
        tmem_load_x16(x, own);
    }
    tmem_wait_load();
    finish(at);
}

/* H12: lanes that never come to a store; no other lane's arrival may pass it. */
MXA_KERNEL(h12_store, THREADS, mxt_emu_params, parameters)
{
    const mxa_shared shared = dev_shared();
    const mxa_tmem at = begin(shared), own = tmem_quarter(at + AT_D, warp());
    const uint32_t x[16] = {0};
    if (!parameters.broken || (dev_thread() & 31) >= 7) {
        tmem_store_x16(own, x);
        mbarrier_arrive(shared + AT_OTHER);
        tmem_wait_store();
    }
    finish(at);
}

#define CASE(kernel, hazards)                                                                      \
    {                                                                                              \
#kernel, &kernel##_kernel, hazards, 0, NULL, THREADS, 1, SHARED, 0                         \
    }

static const mxt_emu_case cases[] = {
    CASE(h2_commit, MXT_H(2)),
    CASE(h2_fence_after, MXT_H(2)),
    CASE(h10_elsewhere, MXT_H(2)),
    {"h3_arrive", &h3_arrive_kernel, 0, MXT_H(3), "wait::ld", THREADS, 1, SHARED, 0},
    /* The issuing warp's own load, or another's. */
    {"h4_overwrite", &h4_overwrite_kernel, MXT_H(4) | MXT_H(9), 0,
     "tensor memory S[1] + |(column |(tcgen05.mma accumulator) by scores, warp 0 lane 0, which "
     "last "
     "waited for done[0], phase 0|was: read (tcgen05.ld) by softmax, warp 1|was: "
     "test_hazards_tensor.c:|at:  test_hazards_tensor.c:",
     THREADS, 1, SHARED, 0},
    CASE(h5_store, MXT_H(5)),
    CASE(h5_fence_before, MXT_H(5)),
    CASE(h6_scales, MXT_H(6)),
    {"h8_other_accumulator", &h8_other_accumulator_kernel, MXT_H(8), 0, NULL, THREADS, 1, SHARED,
     1},
    CASE(h9_store_over_load, MXT_H(9)),
    CASE(h13_quarter, MXT_H(13)),
    CASE(h13_columns, MXT_H(13)),
    CASE(h14_descriptor, MXT_H(14)),
    CASE(h15_instruction, MXT_H(15)),
    CASE(h16_scales, MXT_H(16)),
    CASE(h17_slot, MXT_H(17)),
    {"h12_alloc", &h12_alloc_kernel, MXT_H(12), 0, "wait for tcgen05.alloc", THREADS, 1, SHARED, 0},
    CASE(h18_leak, MXT_H(18)),
    CASE(h18_pending, MXT_H(18)),
    CASE(h7_operand, MXT_H(7)),
    {"h12_load", &h12_load_kernel, MXT_H(12), 0, "others at tcgen05", THREADS, 1, SHARED, 0},
    {"h12_store", &h12_store_kernel, MXT_H(12), 0, "wait at tcgen05.st for lanes", THREADS, 1,
     SHARED, 0},
};

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mxt_emu_check(&cases[i]);
    }
    return mxt_finish();
}
