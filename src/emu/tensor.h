/* tensor.h: what tmem.c and tcgen05.c share: whose columns are whose, and cta_group.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_TENSOR_H
#define MXA_EMU_TENSOR_H

#include "emu/emu.h"

enum { MXA_EMU_ALLOC_UNIT = 32, MXA_EMU_ALLOC_UNITS = MXA_EMU_TMEM_COLUMNS / MXA_EMU_ALLOC_UNIT };

/* Of a CTA: its tensor_state. */
typedef struct mxa_emu_tensor {
    uint16_t size[MXA_EMU_ALLOC_UNITS]; /* columns of the allocation that starts in this unit */
    uint8_t taken[MXA_EMU_ALLOC_UNITS];
    uint32_t last_size;
    int relinquished;
    int group;       /* cta_group of its tcgen05 operations; 0: none yet */
    uint32_t wanted; /* columns that an alloc of a pair waits for with the peer */
    uint32_t given;  /* their column + 1, once both have come */
    mxa_emu_site wanted_at;
} mxa_emu_tensor;

mxa_emu_tensor *mxa_emu_tensor_of(mxa_emu_cta *cta);

/* The other CTA of a pair; NULL is reported: there is none. */
mxa_emu_cta *mxa_emu_peer(mxa_emu_cta *cta, mxa_emu_site site);

/* One kernel, one cta_group (1 or 2). */
void mxa_emu_tensor_group(mxa_emu_cta *cta, int group, mxa_emu_site site);

#endif
