/* fuzz_cu_seqlens.c: any cu_seqlens and seqused: a run accepts exactly the legal ones; refused, it
 * has a sentence and wrote nothing; accepted, every row of O is written and finite.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "fill.h"
#include "guard.h"
#include "mxattn/mxattn.h"

#include <math.h>

enum { TOTAL = 40, LONGEST = 24, BATCH = 5, HEADS = 2, KV_HEADS = 1, DIM = 8 };

/* One side of the batch, in memory that ends at an unmapped page. */
typedef struct lengths {
    int32_t *cu;
    int32_t *used; /* NULL: not given */
    int legal;
} lengths;

static lengths take_lengths(fuzz_input *input, int64_t batch)
{
    lengths l = {0};
    l.cu = mxt_guard_end((size_t)(batch + 1) * sizeof *l.cu);
    uint8_t kind = fuzz_u8(input);
    l.cu[0] = kind >= 240 ? fuzz_i32(input) : 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t step = fuzz_range(input, 0, LONGEST / 2);
        int64_t next = l.cu[b] + step;
        l.cu[b + 1] = fuzz_u8(input) >= 248 || next > INT32_MAX ? fuzz_i32(input) : (int32_t)next;
    }
    if (kind & 1) {
        l.used = mxt_guard_end((size_t)batch * sizeof *l.used);
        for (int64_t b = 0; b < batch; b++)
            l.used[b] = fuzz_u8(input) >= 250 ? fuzz_i32(input) : (int32_t)fuzz_range(input, 0, 3);
    }

    /* Without a sequence the array is not read; NULL would do. */
    l.legal = batch == 0 || (l.cu[0] == 0 && l.cu[batch] <= TOTAL);
    for (int64_t b = 0; b < batch; b++) {
        int64_t length = (int64_t)l.cu[b + 1] - l.cu[b];
        l.legal = l.legal && length >= 0 && length <= LONGEST;
        if (l.used)
            l.legal = l.legal && l.used[b] >= 0 && l.used[b] <= length;
    }
    return l;
}

static void lengths_free(lengths *l)
{
    mxt_guard_free(l->cu);
    mxt_guard_free(l->used);
}

static mxattn_plan *plan_new(mxattn_backend backend)
{
    mxattn_attention_problem problem;
    mxattn_attention_problem_init(&problem);
    problem.backend = backend;
    problem.format = MXATTN_JAGGED;
    problem.batch = BATCH;
    problem.total_q = problem.total_k = TOTAL;
    problem.max_seqlen_q = problem.max_seqlen_k = LONGEST;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.head_dim = DIM;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_F32;
    problem.o.dtype = MXATTN_F32;
    mxattn_plan *plan = NULL;
    FUZZ_REQUIRE(mxattn_plan_create(NULL, &problem, &plan) == MXATTN_OK, "plan: %s",
                 mxattn_last_error());
    return plan;
}

static mxattn_tensor view(void *data, int64_t heads, mxattn_block block)
{
    mxattn_tensor tensor;
    mxattn_tensor_view(&tensor, MXATTN_F32, data, 3, (const int64_t[]){TOTAL, heads, DIM});
    tensor.tags.block = block;
    return tensor;
}

static void run(const mxattn_plan *plan, const lengths *q, const lengths *k, int64_t batch)
{
    static float data_q[TOTAL * HEADS * DIM], data_kv[TOTAL * KV_HEADS * DIM];
    static float o[TOTAL * HEADS * DIM];
    mxt_fill_f32(data_q, TOTAL, HEADS * DIM, MXT_EXACT, 1);
    mxt_fill_f32(data_kv, TOTAL, KV_HEADS * DIM, MXT_EXACT, 2);
    mxt_fill_nan(o, sizeof o);
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    (void)mxattn_plan_query(plan, &info);

    mxattn_tensor tq = view(data_q, HEADS, MXATTN_BLOCK_SQUARE);
    mxattn_tensor tkv = view(data_kv, KV_HEADS, MXATTN_BLOCK_SQUARE);
    mxattn_tensor to = view(o, HEADS, MXATTN_BLOCK_NONE);
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &tq;
    args.k = args.v = &tkv;
    args.o = &to;
    args.batch = batch;
    args.cu_seqlens_q = q->cu;
    args.cu_seqlens_k = k->cu;
    args.seqused_q = q->used;
    args.seqused_k = k->used;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    args.workspace = mxt_guard_end_aligned(args.workspace_bytes, 256);
    mxattn_status status = mxattn_attention_forward(plan, &args);
    mxt_guard_free(args.workspace);

    FUZZ_REQUIRE((status == MXATTN_OK) == (q->legal && k->legal), "status %s, but legal is %d: %s",
                 mxattn_status_name(status), q->legal && k->legal, mxattn_last_error());
    FUZZ_REQUIRE(status == MXATTN_OK || mxattn_last_error()[0], "no sentence");
    for (int i = 0; i < TOTAL * HEADS * DIM; i++)
        FUZZ_REQUIRE((status == MXATTN_OK) == isfinite(o[i]), "status %s, o[%d] = %g",
                     mxattn_status_name(status), i, (double)o[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mxattn_plan *plans[2];
    if (!plans[0]) {
        plans[0] = plan_new(MXATTN_BACKEND_CPU);
        plans[1] = plan_new(MXATTN_BACKEND_REF);
    }
    fuzz_input input = {data, size};
    const mxattn_plan *plan = plans[fuzz_u8(&input) & 1];
    int64_t batch = fuzz_range(&input, 0, BATCH);
    lengths q = take_lengths(&input, batch), k = take_lengths(&input, batch);
    run(plan, &q, &k, batch);
    lengths_free(&q);
    lengths_free(&k);
    return 0;
}
