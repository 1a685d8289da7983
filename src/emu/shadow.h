/* shadow.h: what shadow memory and its rules share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_SHADOW_H
#define MXA_EMU_SHADOW_H

#include "emu/engine.h"

/* A piece of memory that a report names. */
typedef struct mxa_emu_place {
    const mxa_emu_cta *cta;
    int tensor;      /* 1: tensor memory */
    uint32_t at;     /* address, with rank; tensor memory: lane */
    uint32_t column; /* of tensor memory */
} mxa_emu_place;

/* Kinds as sets of bits: accesses of the asynchronous proxy, and of threads' loads and stores. */
static inline int mxa_emu_is_async(int kind)
{
    const uint32_t set = 1u << MXA_EMU_TMA_LOAD | 1u << MXA_EMU_TMA_STORE | 1u << MXA_EMU_CANCEL |
                         1u << MXA_EMU_WGMMA | 1u << MXA_EMU_MMA | 1u << MXA_EMU_COPY;
    return (int)(set >> kind & 1);
}

static inline int mxa_emu_is_generic(int kind)
{
    const uint32_t set = 1u << MXA_EMU_GENERIC | 1u << MXA_EMU_ATOMIC | 1u << MXA_EMU_ALLOC;
    return (int)(set >> kind & 1);
}

/* Reports of an access `as` that is not in order after the write, or the read, `old`; of a read of
 * what nobody wrote. */
void mxa_emu_rule_after_write(const mxa_emu_place *place, const mxa_emu_access *old,
                              const mxa_emu_access *as, int write, const mxa_emu_thread *viewer);
void mxa_emu_rule_after_read(const mxa_emu_place *place, const mxa_emu_access *old,
                             const mxa_emu_access *as, const mxa_emu_thread *viewer);
void mxa_emu_rule_unwritten(const mxa_emu_place *place, const mxa_emu_access *as);

#endif
