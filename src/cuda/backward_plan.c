/* backward_plan.c: planning the Hopper backward: what is refused, its kernel, its workspace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/backward.h"
#include "cuda/backward_layout.h"
#include "cuda/common/prepare_params.h"
#include "cuda/sm90/backward_params.h"
#include "cuda/sm90/backward_prepare_params.h"
#include "mx/element.h"
#include "status.h"

#include <stdio.h>

enum { ALIGNMENT = 1024, WIDEST = MXA_FORM_HEAD_DIM_MOST };

static int64_t take(int64_t *at, int64_t bytes)
{
    const int64_t place = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

const mxa_forward_form *mxa_backward_form(const mxattn_attention_problem *p)
{
    return mxa_forward_form_find(p->head_dim, p->head_dim_v, MXA_FORM_F32);
}

int mxa_backward_has_partners(const mxattn_attention_problem *p)
{
    return p->q_seq.dtype || p->k_seq.dtype || p->v_seq.dtype;
}

int64_t mxa_backward_width(const mxattn_attention_problem *p)
{
    const int64_t most = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    return most <= 64 ? 64 : most <= 128 ? 128 : WIDEST;
}

mxa_backward_layout mxa_backward_lay_out(const mxattn_attention_problem *p)
{
    mxa_backward_layout l;
    l.copies = mxa_copies_lay_out(p, mxa_backward_form(p));
    int64_t at = l.copies.bytes;
    l.partners = take(&at, mxa_backward_has_partners(p) ? l.copies.bytes : 0);
    const int64_t d = mxa_backward_width(p), heads = p->heads, kv_heads = p->kv_heads;
    const int64_t k_rows = l.copies.k_rows, pairs = p->batch * heads;
    l.q_tiles = (l.copies.q_rows / MXA_BACKWARD_GROUP + p->batch + 1) / 2 + 1;
    l.k_tiles = k_rows / 128;
    const int64_t rows = heads * l.q_tiles * MXA_BACKWARD_TILE_Q;
    const int64_t parts = d > 128 ? 2 : 1; /* of the dimensions; tiles of keys are half as long */
    l.query_groups = take(&at, heads * l.q_tiles * 2 * (int64_t)sizeof(mxa_backward_query_group));
    l.key_groups =
        take(&at, kv_heads * k_rows / MXA_BACKWARD_GROUP * (int64_t)sizeof(mxa_backward_key_group));
    l.delta = take(&at, rows * 4);
    l.row_top = take(&at, rows * 4);
    l.row_rest = take(&at, rows * 4);
    l.partial = take(&at, heads * l.q_tiles * 2 * d * 4);
    l.partial_sink = take(&at, p->has_sink ? heads * l.q_tiles * 2 * 4 : 0);
    l.dout_rows = take(&at, rows * d);
    l.v_rows = take(&at, kv_heads * k_rows * d);
    l.factors = take(&at, p->batch * kv_heads * (int64_t)sizeof(mxa_backward_factors));
    l.dv_factor = take(&at, p->batch * kv_heads * 4);
    l.far = take(&at, p->batch * kv_heads * 4);
    l.dq_log2 = take(&at, pairs * 4);
    l.mean = take(&at, pairs * d * 4);
    l.mean_used = take(&at, pairs * 4);
    l.q_t = take(&at, rows * d);
    l.dout_t = take(&at, rows * d);
    l.k_t = take(&at, kv_heads * k_rows * d);
    l.q_records = take(&at, heads * l.q_tiles * MXA_BACKWARD_RECORDS);
    l.k_records = take(&at, kv_heads * k_rows / MXA_BACKWARD_GROUP *
                                (int64_t)sizeof(mxa_backward_key_record));
    l.column_sums = take(&at, parts * heads * k_rows * 4);
    l.dq = take(&at, rows * d * (p->dq_reduce == MXATTN_DQ_REDUCE_FP32 ? 4 : 2));
    l.order = take(&at, p->deterministic ? parts * heads * l.q_tiles * 4 : 0);
    l.tiles = take(&at, parts * kv_heads * l.k_tiles * (int64_t)sizeof(mxa_gpu_tile));
    l.tile_count = take(&at, 4);
    l.ranks = take(&at, p->batch * 8);
    l.turns = take(&at, p->batch * 8);
    l.taken = take(&at, 4);
    l.cleared = take(&at, p->batch * kv_heads * 4);
    l.done = take(&at, p->batch * kv_heads * 4);
    l.zeros = take(&at, MXA_BACKWARD_KEYS * d);
    const int jagged = p->format == MXATTN_JAGGED;
    const int64_t q = jagged ? p->total_q : p->batch * p->max_seqlen_q;
    const int64_t k = jagged ? p->total_k : p->batch * p->max_seqlen_k;
    l.wide[0] = take(&at, mxa_dtype_is_wide(p->dq.dtype) ? 0 : q * heads * p->head_dim * 4);
    l.wide[1] = take(&at, mxa_dtype_is_wide(p->dk.dtype) ? 0 : k * kv_heads * p->head_dim * 4);
    l.wide[2] = take(&at, mxa_dtype_is_wide(p->dv.dtype) ? 0 : k * kv_heads * p->head_dim_v * 4);
    l.bytes = at;
    return l;
}

mxa_kernel mxa_backward_main_kernel(const mxattn_attention_problem *p)
{
    return mxa_backward_of_width(p, MXA_KERNEL_BACKWARD_D64, 2) + (p->softcap > 0.0 ? 1 : 0);
}

mxa_kernel mxa_backward_of_width(const mxattn_attention_problem *p, mxa_kernel d64, int each)
{
    const int64_t width = mxa_backward_width(p);
    return (mxa_kernel)((int)d64 + each * (width == 64 ? 0 : width == 128 ? 1 : 2));
}

int mxa_backward_tile_keys(const mxattn_attention_problem *p)
{
    return mxa_backward_width(p) > 128 ? MXA_BACKWARD_KEYS
                                       : MXA_BACKWARD_KEYS * mxa_backward_warpgroups(p);
}

int mxa_backward_warpgroups(const mxattn_attention_problem *p)
{
    return MXA_BACKWARD_WARPGROUPS(mxa_backward_width(p), p->softcap > 0.0);
}

/* Operands that this backend does not read. */
static mxattn_status refuse_tags(const mxattn_attention_problem *p)
{
    if (p->dout.block == MXATTN_BLOCK_COLUMN && mxa_dtype_is_wide(p->dout.dtype)) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.dout.block is column for a wide operand; backend cuda quantizes "
                        "row and square blocks in the call");
    }
    const mxattn_tags *partners[] = {&p->q_seq, &p->k_seq, &p->v_seq};
    static const char *const names[] = {"q_seq", "k_seq", "v_seq"};
    for (int i = 0; i < 3; i++) {
        if (mxa_dtype_is_wide(partners[i]->dtype)) {
            return mxa_fail(MXATTN_UNSUPPORTED,
                            "problem.%s.dtype is %s; backward on cuda takes column partners of FP8",
                            names[i], mxa_dtype_name(partners[i]->dtype));
        }
    }
    return MXATTN_OK;
}

mxattn_status mxa_cuda_backward_plan(mxattn_plan *plan)
{
    mxattn_attention_problem *p = &plan->problem;
    if (p->head_dim > WIDEST || p->head_dim_v > WIDEST) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.head_dim is %lld and head_dim_v %lld; backend cuda has backward "
                        "kernels up to %d",
                        (long long)p->head_dim, (long long)p->head_dim_v, WIDEST);
    }
    if (p->intermediates == MXATTN_INTERMEDIATES_BF16) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.intermediates is BF16; backward on cuda holds P and dS in E4M3");
    }
    const mxattn_status status = refuse_tags(p);
    if (!status) {
        p->dq_reduce = p->dq_reduce == MXATTN_DQ_REDUCE_AUTO ? MXATTN_DQ_REDUCE_FP16 : p->dq_reduce;
        plan->info.workspace_backward_bytes = mxa_backward_lay_out(p).bytes;
        snprintf(plan->kernel_backward, sizeof plan->kernel_backward, "%s",
                 mxa_kernel_entry(mxa_backward_main_kernel(p)));
    }
    return status;
}
