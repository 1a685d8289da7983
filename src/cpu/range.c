/* range.c: which sequences BF16 dot products may compute.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/range.h"

#include "mx/e8m0.h"
#include "mx/scales.h"
#include "mx/tensor.h"

#include <limits.h>

enum {
    LEAST = -100, /* 2^-126 is the least normal number; an element is up to 2^9 times its scale */
    MOST = 110,
    BIAS = 127
};

/* Every code of a block of `tokens` x `dims` is a zero of either sign. */
static int block_is_zero(const mxattn_tensor *t, const mxa_sequence *sequence, int64_t s,
                         int64_t tokens, int64_t head, int64_t d, int64_t dims)
{
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < dims; j++)
            if (((const uint8_t *)t->data)[mxa_tensor_index(t, sequence, s + i, head, d + j)] &
                0x7F)
                return 0;
    return 1;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

mxa_range mxa_range_of(const mxattn_tensor *t, const mxa_sequence *sequence, int64_t b)
{
    mxa_range range = {INT_MAX, INT_MIN};
    const mxattn_axis axis = t->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const int64_t tokens = t->tags.block == MXATTN_BLOCK_ROW ? 1 : MXA_BLOCK;
    const int64_t dims = t->tags.block == MXATTN_BLOCK_COLUMN ? 1 : MXA_BLOCK;

    for (int64_t s = 0; s < sequence->used; s += tokens)
        for (int64_t head = 0; head < t->shape[2]; head++)
            for (int64_t d = 0; d < t->shape[3]; d += dims) {
                const uint8_t byte =
                    t->scales[axis]
                        .data[mxa_scales_offset(&t->scales[axis], axis, sequence, b, s, head, d)];
                const mxa_range one = {byte - BIAS, byte - BIAS};

                if (byte == MXA_SCALE_NAN ||
                    (one.low < LEAST &&
                     block_is_zero(t, sequence, s, least(tokens, sequence->used - s), head, d,
                                   least(dims, t->shape[3] - d))))
                    continue;
                mxa_range_join(&one, &range);
            }
    return range;
}

void mxa_range_join(const mxa_range *range, mxa_range *into)
{
    into->low = range->low < into->low ? range->low : into->low;
    into->high = range->high > into->high ? range->high : into->high;
}

static int inside(const mxa_range *range)
{
    return range->low > range->high || (range->low >= LEAST && range->high <= MOST);
}

int mxa_range_usual(const mxa_range *qk, const mxa_range *v, const mxa_range *dout)
{
    if (!inside(qk) || !inside(v))
        return 0;
    if (!dout || dout->low > dout->high || v->low > v->high)
        return !dout || inside(dout);
    const int dp = dout->low + v->low;
    return inside(dout) && dp >= LEAST && (qk->low > qk->high || dp + qk->low >= LEAST);
}
