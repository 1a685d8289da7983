/* tcgen05.h: the emulator's body of cuda/dev/tcgen05.h: Blackwell's tensor cores.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_TCGEN05_H
#define MXA_EMU_TCGEN05_H

#include "cuda/dev/tcgen05.h"
#include "emu/dev.h"

enum { MXA_EMU_KIND_F16, MXA_EMU_KIND_F8F6F4, MXA_EMU_KIND_MXF8F6F4 };

/* A product as it is issued. a: a matrix descriptor, or an address in tensor memory. */
typedef struct mxa_emu_tcgen05 {
    int kind, pair, a_in_tensor;
    uint32_t d;
    uint64_t a, b;
    uint32_t instruction, scale_a, scale_b, accumulate;
} mxa_emu_tcgen05;

MXA_EMU_ENTRY void mxa_emu_tcgen05_fence_before(void);
MXA_EMU_ENTRY void mxa_emu_tcgen05_fence_after(void);
MXA_EMU_ENTRY void mxa_emu_tcgen05_commit(uint32_t barrier, uint32_t mask, int pair);
/* Shapes of copies. */
enum {
    MXA_EMU_COPY_32X128B_WARPX4,
    MXA_EMU_COPY_64X128B_02_13,
    MXA_EMU_COPY_64X128B_01_23,
    MXA_EMU_COPY_128X128B,
    MXA_EMU_COPY_128X256B,
    MXA_EMU_COPY_4X256B
};
MXA_EMU_ENTRY void mxa_emu_tcgen05_copy(uint32_t to, uint64_t from, int shape, int pair);
MXA_EMU_ENTRY void mxa_emu_tcgen05_mma(const mxa_emu_tcgen05 *product);

MXA_DEVICE void tcgen05_fence_before(void)
{
    mxa_emu_tcgen05_fence_before();
}

MXA_DEVICE void tcgen05_fence_after(void)
{
    mxa_emu_tcgen05_fence_after();
}

MXA_DEVICE void tcgen05_commit(uint32_t barrier)
{
    mxa_emu_tcgen05_commit(barrier, 0, 0);
}

MXA_DEVICE void tcgen05_commit_pair(uint32_t barrier, uint16_t mask)
{
    mxa_emu_tcgen05_commit(barrier, mask, 1);
}

#define MXA_EMU_TCGEN05_COPY(name, shape)                                                          \
    MXA_DEVICE void name(uint32_t to, uint64_t from)                                               \
    {                                                                                              \
        mxa_emu_tcgen05_copy(to, from, shape, 0);                                                  \
    }                                                                                              \
    MXA_DEVICE void name##_pair(uint32_t to, uint64_t from)                                        \
    {                                                                                              \
        mxa_emu_tcgen05_copy(to, from, shape, 1);                                                  \
    }

MXA_EMU_TCGEN05_COPY(tcgen05_copy_scales, MXA_EMU_COPY_32X128B_WARPX4)
MXA_EMU_TCGEN05_COPY(tcgen05_copy_64x128b_02_13, MXA_EMU_COPY_64X128B_02_13)
MXA_EMU_TCGEN05_COPY(tcgen05_copy_64x128b_01_23, MXA_EMU_COPY_64X128B_01_23)
MXA_EMU_TCGEN05_COPY(tcgen05_copy_128x128b, MXA_EMU_COPY_128X128B)
MXA_EMU_TCGEN05_COPY(tcgen05_copy_128x256b, MXA_EMU_COPY_128X256B)
MXA_EMU_TCGEN05_COPY(tcgen05_copy_4x256b, MXA_EMU_COPY_4X256B)

#define MXA_EMU_TCGEN05(name, kind, pair, a_in_tensor, a_type)                                     \
    MXA_DEVICE void name(uint32_t d, a_type a, uint64_t b, uint32_t instruction,                   \
                         uint32_t accumulate)                                                      \
    {                                                                                              \
        const mxa_emu_tcgen05 product = {kind, pair,        a_in_tensor, d, a,                     \
                                         b,    instruction, 0,           0, accumulate};           \
        mxa_emu_tcgen05_mma(&product);                                                             \
    }

MXA_EMU_TCGEN05(tcgen05_mma_f16_ss, MXA_EMU_KIND_F16, 0, 0, uint64_t)
MXA_EMU_TCGEN05(tcgen05_mma_f16_ts, MXA_EMU_KIND_F16, 0, 1, uint32_t)
MXA_EMU_TCGEN05(tcgen05_mma_f8_ss, MXA_EMU_KIND_F8F6F4, 0, 0, uint64_t)
MXA_EMU_TCGEN05(tcgen05_mma_f8_ts, MXA_EMU_KIND_F8F6F4, 0, 1, uint32_t)
MXA_EMU_TCGEN05(tcgen05_mma_f16_ss_pair, MXA_EMU_KIND_F16, 1, 0, uint64_t)
MXA_EMU_TCGEN05(tcgen05_mma_f16_ts_pair, MXA_EMU_KIND_F16, 1, 1, uint32_t)
MXA_EMU_TCGEN05(tcgen05_mma_f8_ss_pair, MXA_EMU_KIND_F8F6F4, 1, 0, uint64_t)
MXA_EMU_TCGEN05(tcgen05_mma_f8_ts_pair, MXA_EMU_KIND_F8F6F4, 1, 1, uint32_t)

#define MXA_EMU_TCGEN05_SCALED(name, pair, a_in_tensor, a_type)                                    \
    MXA_DEVICE void name(uint32_t d, a_type a, uint64_t b, uint32_t instruction, uint32_t scale_a, \
                         uint32_t scale_b, uint32_t accumulate)                                    \
    {                                                                                              \
        const mxa_emu_tcgen05 product = {                                                          \
            MXA_EMU_KIND_MXF8F6F4, pair,    a_in_tensor, d,         a, b,                          \
            instruction,           scale_a, scale_b,     accumulate};                              \
        mxa_emu_tcgen05_mma(&product);                                                             \
    }

MXA_EMU_TCGEN05_SCALED(tcgen05_mma_mxf8_ss, 0, 0, uint64_t)
MXA_EMU_TCGEN05_SCALED(tcgen05_mma_mxf8_ts, 0, 1, uint32_t)
MXA_EMU_TCGEN05_SCALED(tcgen05_mma_mxf8_ss_pair, 1, 0, uint64_t)
MXA_EMU_TCGEN05_SCALED(tcgen05_mma_mxf8_ts_pair, 1, 1, uint32_t)

#endif
