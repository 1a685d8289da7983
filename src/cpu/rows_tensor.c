/* rows_tensor.c: row arithmetic over whole tensors, in parallel.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/rows_tensor.h"

#include "cpu/piece.h"
#include "mx/e8m0.h"

typedef struct job {
    const mxa_row_kernels *rows;
    const mxattn_tensor *from, *to;
    const mxattn_rope *rope;
} job;

static int64_t tokens_of(const mxa_block_at *at, int64_t length)
{
    const int64_t left = length - at->block * MXA_BLOCK;
    return left < MXA_BLOCK ? left : MXA_BLOCK;
}

static void rotate_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const job *j = arg;
    const int64_t s = at->block * MXA_BLOCK, tokens = tokens_of(at, at->sequence.used);
    for (; head < head_end; head++)
        for (int64_t t = 0; t < tokens; t++)
            mxa_rows_rotate(j->rows, j->rope, s + t,
                            (void *)mxa_element_of(j->to, &at->sequence, s + t, head, 0));
}

void mxa_cpu_rotate_tensor(const mxattn_context *context, const mxattn_tensor *tensor,
                           const mxa_batch *batch, const mxattn_rope *rope)
{
    job j = {.rows = mxa_row_kernels_for(context->isa), .to = tensor, .rope = rope};
    if (rope->cosine)
        mxa_parallel_blocks(context, batch, tensor->shape[2], tensor->shape[3], rotate_block, &j);
}

static void narrow_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const job *j = arg;
    const int64_t s = at->block * MXA_BLOCK, tokens = tokens_of(at, at->sequence.length);
    for (; head < head_end; head++)
        for (int64_t t = 0; t < tokens; t++)
            j->rows->narrow(mxa_element_of(j->from, &at->sequence, s + t, head, 0), j->to->shape[3],
                            j->to->tags.dtype,
                            (void *)mxa_element_of(j->to, &at->sequence, s + t, head, 0), 0);
}

void mxa_cpu_narrow_tensor(const mxattn_context *context, const mxattn_tensor *from,
                           const mxattn_tensor *to)
{
    job j = {.rows = mxa_row_kernels_for(context->isa), .from = from, .to = to};
    /* Rows as they lie, of sequences or not. */
    const mxa_batch rows = {.batch = to->shape[0], .seqlen = to->shape[1]};
    mxa_parallel_blocks(context, &rows, to->shape[2], to->shape[3], narrow_block, &j);
}
