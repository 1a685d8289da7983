/* training_step.c: one training step over a jagged batch: quantize once, one plan, forward,
 * backward.
 *
 * Three sequences of 37, 5 and 90 tokens lie packed in (T, H, D), without padding. q, k and v are
 * quantized once in square blocks, and the same bytes serve forward and backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <mxattn/mxattn.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 3, TOKENS = 132, LONGEST = 90, HEADS = 4, KV_HEADS = 2, DIM = 64 };

static const int32_t cu_seqlens[BATCH + 1] = {0, 37, 42, TOKENS};

static void need(mxattn_status status)
{
    if (status != MXATTN_OK) {
        (void)fprintf(stderr, "%s: %s\n", mxattn_status_name(status), mxattn_last_error());
        exit(1);
    }
}

/* Zeroed memory, aligned as workspace and saved memory must be. */
static void *memory(int64_t bytes)
{
    void *result = aligned_alloc(256, ((size_t)bytes + 256) / 256 * 256);
    if (!result)
        exit(1);
    for (int64_t i = 0; i < bytes; i++)
        ((char *)result)[i] = 0;
    return result;
}

/* A float32 (T, heads, DIM) tensor, in some pattern; on the tape of a real program it would come
 * from a projection. */
static mxattn_tensor wide(int64_t heads, int period)
{
    const int64_t shape[] = {TOKENS, heads, DIM};
    float *values = memory(TOKENS * heads * DIM * (int64_t)sizeof *values);
    for (int64_t i = 0; period && i < TOKENS * heads * DIM; i++)
        values[i] = (float)(i % period - period / 2) / (float)period;
    mxattn_tensor tensor;
    mxattn_tensor_view(&tensor, MXATTN_F32, values, 3, shape);
    return tensor;
}

/* Its MXFP8 form: E4M3 in square blocks that restart with each sequence, one byte of scale a
 * block. */
static mxattn_tensor quantized(const mxattn_tensor *from)
{
    const int64_t heads = from->shape[1];
    mxattn_tensor tensor;
    int64_t bytes = 0;
    mxattn_tensor_view(&tensor, MXATTN_E4M3, memory(TOKENS * heads * DIM), 3, from->shape);
    tensor.tags.block = MXATTN_BLOCK_SQUARE;
    need(mxattn_scales_bytes(&tensor.tags, MXATTN_HDIM, MXATTN_COMPACT, BATCH, 0, cu_seqlens, heads,
                             DIM, &bytes));
    tensor.scales[MXATTN_HDIM].layout = MXATTN_COMPACT;
    tensor.scales[MXATTN_HDIM].data = memory(bytes);

    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.wide = from;
    args.quantized = &tensor;
    args.sequences.cu_seqlens = cu_seqlens;
    args.sequences.batch = BATCH;
    need(mxattn_quantize(NULL, &args));
    return tensor;
}

static void discard(mxattn_tensor *tensor)
{
    free(tensor->data);
    free(tensor->scales[MXATTN_HDIM].data);
}

int main(void)
{
    /* The problem: upper bounds and choices. One plan serves every batch within them. */
    mxattn_attention_problem problem;
    mxattn_attention_problem_init(&problem);
    problem.mode = MXATTN_TRAINING;
    problem.format = MXATTN_JAGGED;
    problem.batch = BATCH;
    problem.total_q = problem.total_k = TOKENS;
    problem.max_seqlen_q = problem.max_seqlen_k = LONGEST;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.head_dim = DIM;
    problem.causal = 1;
    problem.dout.dtype = MXATTN_F32; /* quantized by the call, in square blocks */
    problem.o.dtype = problem.dq.dtype = problem.dk.dtype = problem.dv.dtype = MXATTN_F32;

    mxattn_plan *plan = NULL;
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    need(mxattn_plan_create(NULL, &problem, &plan));
    need(mxattn_plan_query(plan, &info));
    (void)printf("forward %s\nbackward %s\n", info.kernel_forward, info.kernel_backward);

    mxattn_tensor tensors[] = {wide(HEADS, 23), wide(KV_HEADS, 19), wide(KV_HEADS, 17)};
    mxattn_tensor q = quantized(&tensors[0]), k = quantized(&tensors[1]),
                  v = quantized(&tensors[2]);
    mxattn_tensor o = wide(HEADS, 0), dout = wide(HEADS, 11);
    mxattn_tensor dq = wide(HEADS, 0), dk = wide(KV_HEADS, 0), dv = wide(KV_HEADS, 0);

    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &q, args.k = &k, args.v = &v, args.o = &o;
    args.cu_seqlens_q = args.cu_seqlens_k = cu_seqlens;
    args.saved = memory(info.saved_bytes);
    args.workspace_bytes = (size_t)(info.workspace_forward_bytes > info.workspace_backward_bytes
                                        ? info.workspace_forward_bytes
                                        : info.workspace_backward_bytes);
    args.workspace = memory((int64_t)args.workspace_bytes);
    need(mxattn_attention_forward(plan, &args));

    args.dout = &dout, args.dq = &dq, args.dk = &dk, args.dv = &dv;
    need(mxattn_attention_backward(plan, &args));
    (void)printf("o[0] = %g, dq[last] = %g\n", (double)((float *)o.data)[0],
                 (double)((float *)dq.data)[TOKENS * HEADS * DIM - 1]);

    mxattn_tensor *const all[] = {&tensors[0], &tensors[1], &tensors[2], &q,  &k, &v,
                                  &o,          &dout,       &dq,         &dk, &dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        discard(all[i]);
    free(args.saved);
    free(args.workspace);
    mxattn_plan_destroy(plan);
    return 0;
}
