/* emu_case.h: small kernels that have a fault, and their mended twins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_EMU_CASE_H
#define MXT_EMU_CASE_H

#include "emu/launch.h"

/* What a small kernel is given: broken is 1 for the kernel with the fault, 0 for the mended one. */
typedef struct mxt_emu_params {
    int32_t broken;
    int32_t reserved;
    uint64_t memory; /* MXT_EMU_MEMORY_BYTES of global memory, zero at first */
} mxt_emu_params;

enum { MXT_EMU_MEMORY_BYTES = 65536, MXT_EMU_SEEDS = 12 };

/* Hazard h as a bit. */
#define MXT_H(h) (1u << (h))

typedef struct mxt_emu_case {
    const char *name;
    const mxa_emu_kernel *kernel;
    uint32_t hazards;  /* bits: one of these is an error of the broken one, under every seed */
    uint32_t warned;   /* or a warning */
    const char *words; /* are in the report, with a | between them; NULL: none in particular */
    int threads, blocks;
    uint32_t shared_bytes;
    int strict; /* 1: products of one thread with other accumulators are not in order (H8) */
} mxt_emu_case;

/* The broken kernel is found out under each of the seeds, the mended one is silent. */
void mxt_emu_check(const mxt_emu_case *c);

#endif
