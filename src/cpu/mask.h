/* mask.h: which keys a query sees: one interval [low, high) per row.
 *
 * Causal, window, alignment and lengths (after seqused) all come down to an interval around the
 * diagonal, whose ends never decrease from row to row. Formula: docs/math.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_MASK_H
#define MXA_CPU_MASK_H

#include "backend.h"

#include <stdint.h>

typedef struct mxa_mask {
    int64_t keys;     /* of the sequence */
    int64_t diagonal; /* key on the diagonal of row 0 */
    int64_t left;     /* keys seen left of the diagonal; -1: all */
    int64_t right;
} mxa_mask;

typedef struct mxa_interval {
    int64_t low, high; /* 0 <= low <= high <= keys */
} mxa_interval;

/* used_q, used_k: tokens of one sequence that count. A plan's problem has causal folded into its
 * window. */
static inline mxa_mask mxa_mask_make(const mxattn_attention_problem *problem, int64_t used_q,
                                     int64_t used_k)
{
    const int bottom_right = problem->alignment == MXATTN_BOTTOM_RIGHT;
    const int64_t reach = used_q + used_k; /* beyond every key, from any row */
    mxa_mask mask = {.keys = used_k, .diagonal = bottom_right ? used_k - used_q : 0};

    mask.left = problem->window[0] < reach ? problem->window[0] : -1;
    mask.right = problem->window[1] < reach ? problem->window[1] : -1;
    return mask;
}

static inline mxa_interval mxa_mask_row(const mxa_mask *mask, int64_t row)
{
    const int64_t diagonal = row + mask->diagonal;
    mxa_interval seen = {0, mask->keys};

    if (mask->right >= 0 && diagonal + mask->right + 1 < seen.high)
        seen.high = diagonal + mask->right + 1;
    if (mask->left >= 0 && diagonal - mask->left > seen.low)
        seen.low = diagonal - mask->left;
    if (seen.high < 0)
        seen.high = 0;
    if (seen.low > seen.high)
        seen.low = seen.high;
    return seen;
}

#endif
