/* wgmma.h: the emulator's body of cuda/dev/wgmma.h: Hopper's warpgroup matrix multiply.
 *
 * Results reach the registers at the wait; between issue and wait they hold poison, so that a
 * kernel that reads or writes them early is found.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_WGMMA_H
#define MXA_EMU_WGMMA_H

#include "cuda/dev/wgmma.h"
#include "emu/dev.h"

/* Which product; the same in all lanes. */
typedef struct mxa_emu_wgmma_kind {
    int n;
    int f16;                  /* the accumulator: packed pairs instead of FP32 */
    int accumulate;           /* 0: what D held is ignored */
    int a_type, b_type;       /* MXA_EMU_E4M3, ... */
    int a_along_m, b_along_n; /* 16-bit types only: stored transposed */
} mxa_emu_wgmma_kind;

enum { MXA_EMU_E4M3, MXA_EMU_E5M2, MXA_EMU_F16, MXA_EMU_BF16 };

/* a_registers: four of this lane, or NULL and `a` is a descriptor. */
MXA_EMU_ENTRY void mxa_emu_wgmma(const mxa_emu_wgmma_kind *kind, void *d,
                                 const uint32_t *a_registers, uint64_t a, uint64_t b);
MXA_EMU_ENTRY void mxa_emu_wgmma_fence(void);
MXA_EMU_ENTRY void mxa_emu_wgmma_commit(void);
MXA_EMU_ENTRY void mxa_emu_wgmma_wait(int pending);

MXA_DEVICE void wgmma_fence(void)
{
    mxa_emu_wgmma_fence();
}

MXA_DEVICE void wgmma_commit(void)
{
    mxa_emu_wgmma_commit();
}

#define wgmma_wait(pending) mxa_emu_wgmma_wait(pending)

/* Registers are memory here: calls keep their order. */
MXA_DEVICE void wgmma_hold_f32(float *d, int count)
{
    (void)d;
    (void)count;
}

MXA_DEVICE void wgmma_hold_u32(uint32_t *d, int count)
{
    (void)d;
    (void)count;
}

#define MXA_EMU_WGMMA_SS(name, element, n, f16, accumulate)                                        \
    MXA_DEVICE void name(element *d, uint64_t a, uint64_t b)                                       \
    {                                                                                              \
        static const mxa_emu_wgmma_kind kind = {n, f16, accumulate, MXA_EMU_E4M3, MXA_EMU_E4M3,    \
                                                0, 0};                                             \
        mxa_emu_wgmma(&kind, d, NULL, a, b);                                                       \
    }

MXA_EMU_WGMMA_SS(wgmma_ss_m64n128_f32, float, 128, 0, 1)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n128_f32_first, float, 128, 0, 0)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n64_f32, float, 64, 0, 1)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n64_f32_first, float, 64, 0, 0)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n64_f16, uint32_t, 64, 1, 1)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n64_f16_first, uint32_t, 64, 1, 0)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n128_f16, uint32_t, 128, 1, 1)
MXA_EMU_WGMMA_SS(wgmma_ss_m64n128_f16_first, uint32_t, 128, 1, 0)

#define MXA_EMU_WGMMA_RS(name, n)                                                                  \
    MXA_DEVICE void name(float *d, const uint32_t *a_registers, uint64_t b)                        \
    {                                                                                              \
        static const mxa_emu_wgmma_kind kind = {n, 0, 1, MXA_EMU_E4M3, MXA_EMU_E4M3, 0, 0};        \
        mxa_emu_wgmma(&kind, d, a_registers, 0, b);                                                \
    }

MXA_EMU_WGMMA_RS(wgmma_rs_m64n64_f32, 64)
MXA_EMU_WGMMA_RS(wgmma_rs_m64n128_f32, 128)
MXA_EMU_WGMMA_RS(wgmma_rs_m64n256_f32, 256)

#define MXA_EMU_WGMMA_RS_F16(name, accumulate)                                                     \
    MXA_DEVICE void name(uint32_t *d, const uint32_t *a_registers, uint64_t b)                     \
    {                                                                                              \
        static const mxa_emu_wgmma_kind kind = {128,          1, accumulate, MXA_EMU_E4M3,         \
                                                MXA_EMU_E4M3, 0, 0};                               \
        mxa_emu_wgmma(&kind, d, a_registers, 0, b);                                                \
    }

MXA_EMU_WGMMA_RS_F16(wgmma_rs_m64n128_f16, 1)
MXA_EMU_WGMMA_RS_F16(wgmma_rs_m64n128_f16_first, 0)

/* BF16, B with N innermost. */
#define MXA_EMU_WGMMA_RS_BF16(name, n)                                                             \
    MXA_DEVICE void name(float *d, const uint32_t *a_registers, uint64_t b)                        \
    {                                                                                              \
        static const mxa_emu_wgmma_kind kind = {n, 0, 1, MXA_EMU_BF16, MXA_EMU_BF16, 0, 1};        \
        mxa_emu_wgmma(&kind, d, a_registers, 0, b);                                                \
    }

MXA_EMU_WGMMA_RS_BF16(wgmma_rs_m64n64_bf16, 64)
MXA_EMU_WGMMA_RS_BF16(wgmma_rs_m64n128_bf16, 128)
MXA_EMU_WGMMA_RS_BF16(wgmma_rs_m64n256_bf16, 256)

#endif
