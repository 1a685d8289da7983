/* forward.c: the host side of the Hopper forward: which kernel, its memory, its launches.
 *
 * A run makes the private copies (copies.c) in the workspace unless the caller brings them
 * prepared, clears rows that belong to no sequence, and attends. With FP16 scores that takes two
 * launches: the second takes the tiles that the first had to leave.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/forward.h"

#include "cuda/backward.h"
#include "cuda/common/clear_params.h"
#include "cuda/copies.h"
#include "cuda/producers.h"
#include "cuda/sm90/forward_params.h"
#include "mx/element.h"
#include "status.h"

#include <stdio.h>
#include <string.h>

static int needs_schedule(const mxattn_attention_problem *p, const mxa_attention_call *call)
{
    return p->format == MXATTN_JAGGED || call->batch_q.seqused || call->batch_k.seqused;
}

/* FP16 scores need a softcap of 0 and a positive scale (sm90/forward_softmax.h). */
static mxa_form_kind kind_of(const mxattn_attention_problem *p)
{
    if (p->causal_strict || p->intermediates == MXATTN_INTERMEDIATES_BF16) {
        return MXA_FORM_BF16;
    }
    return p->softcap == 0.0 && p->softmax_scale > 0.0 ? MXA_FORM_F16 : MXA_FORM_F32;
}

static const mxa_forward_form *form_of(const mxattn_attention_problem *p, mxa_form_kind kind)
{
    return mxa_forward_form_find(p->head_dim, p->head_dim_v, kind);
}

mxa_cuda_saved mxa_cuda_saved_lay_out(const mxattn_attention_problem *p)
{
    mxa_cuda_saved saved = {.q_rows = mxa_copies_q_rows(p)};
    const int64_t bytes = (p->heads * saved.q_rows * 4 + 255) / 256 * 256;
    saved.row_max = 0;
    saved.row_sum = bytes;
    saved.bytes = 2 * bytes;
    return saved;
}

/* What this backend has no kernel for. */
static mxattn_status refuse(const mxattn_attention_problem *p)
{
    const mxattn_tags *operands[] = {&p->q, &p->k, &p->v};
    static const char *const names[] = {"q", "k", "v"};
    if (p->head_dim > MXA_FORM_HEAD_DIM_MOST || p->head_dim_v > MXA_FORM_HEAD_DIM_MOST ||
        p->head_dim % 8 || p->head_dim_v % 8) {
        return mxa_fail(
            MXATTN_UNSUPPORTED,
            "problem.head_dim is %lld and head_dim_v %lld; backend cuda has kernels for "
            "multiples of 8 up to %d",
            (long long)p->head_dim, (long long)p->head_dim_v, MXA_FORM_HEAD_DIM_MOST);
    }
    for (int i = 0; i < 3; i++) {
        if (operands[i]->block == MXATTN_BLOCK_COLUMN && mxa_dtype_is_wide(operands[i]->dtype)) {
            return mxa_fail(MXATTN_UNSUPPORTED,
                            "problem.%s.block is column for a wide operand; backend cuda quantizes "
                            "row and square blocks in the call",
                            names[i]);
        }
    }
    if (p->causal_strict && p->intermediates == MXATTN_INTERMEDIATES_E4M3) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.intermediates is E4M3 with causal_strict; backend cuda holds P in "
                        "BF16 there");
    }
    if (!mxa_dtype_is_wide(p->o.dtype) &&
        (p->format == MXATTN_JAGGED || p->mode == MXATTN_TRAINING)) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.o.dtype is %s of a jagged batch or in training; backend cuda "
                        "writes F32, F16 or BF16 there",
                        mxa_dtype_name(p->o.dtype));
    }
    if (p->batch > INT32_MAX / 2 || p->total_q > INT32_MAX - 64 * p->batch ||
        p->total_k > INT32_MAX - 256 * p->batch) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.batch is %lld; backend cuda counts tokens in 32 bits",
                        (long long)p->batch);
    }
    return MXATTN_OK;
}

/* The workspace begins with a word for each tile and one that counts tiles, then O in FP32 where it
 * leaves as MXFP8. */
static int64_t marks_bytes(const mxa_copies *at)
{
    return (at->tiles_most * 4 + 4 + 1023) / 1024 * 1024;
}

static int64_t scratch_bytes(const mxattn_attention_problem *p, const mxa_copies *at)
{
    const int64_t rows = mxa_dtype_is_wide(p->o.dtype) ? 0 : p->batch * p->max_seqlen_q * p->heads;
    return marks_bytes(at) + (rows * p->head_dim_v * 4 + 1023) / 1024 * 1024;
}

/* What the main kernel writes: O, or the FP32 values that become it. */
static mxattn_tensor written_o(const mxa_forward_run *r)
{
    mxattn_tensor o = r->call->o;
    if (mxa_dtype_is_wide(o.tags.dtype)) {
        return o;
    }
    mxattn_tensor_view(&o, MXATTN_F32, (char *)r->call->workspace + marks_bytes(&r->at), 4,
                       r->call->o.shape);
    return o;
}

/* A side of the window that hides nothing is no window. WHY: which blocks are masked decides when a
 * row's maximum is looked for, and so how its sums are rounded; a causal mask and the window that
 * equals it must have the same bits. */
static void open_windows(mxattn_attention_problem *p)
{
    const int64_t longest = p->max_seqlen_q > p->max_seqlen_k ? p->max_seqlen_q : p->max_seqlen_k;
    for (int side = 0; side < 2; side++) {
        if (p->window[side] >= longest - 1 && longest > 1) {
            p->window[side] = -1;
        }
    }
}

mxattn_status mxa_cuda_plan(mxattn_plan *plan)
{
    mxattn_attention_problem *p = &plan->problem;
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(p->device, &device);
    if (!status) {
        status = refuse(p);
        open_windows(p);
    }
    if (!status && p->mode == MXATTN_TRAINING) {
        status = mxa_cuda_backward_plan(plan);
    }
    if (status) {
        return status;
    }
    const mxa_form_kind kind = kind_of(p);
    const mxa_forward_form *form = form_of(p, kind);
    plan->private_i64[0] = kind;
    p->intermediates =
        kind == MXA_FORM_BF16 ? MXATTN_INTERMEDIATES_BF16 : MXATTN_INTERMEDIATES_E4M3;
    p->dq_reduce = p->dq_reduce == MXATTN_DQ_REDUCE_AUTO ? MXATTN_DQ_REDUCE_FP16 : p->dq_reduce;
    const mxa_copies at = mxa_copies_lay_out(p, form);
    snprintf(plan->kernel_forward, sizeof plan->kernel_forward, "%s",
             mxa_kernel_entry(form->kernel));
    plan->info.isa_name = "sm_90a";
    plan->info.intermediates = p->intermediates;
    plan->info.dq_reduce = p->dq_reduce;
    plan->info.threads = 0;
    plan->info.max_headroom_log2 = 3;
    plan->info.workspace_forward_bytes = scratch_bytes(p, &at) + at.bytes;
    plan->info.prepared_bytes = at.bytes;
    plan->info.saved_bytes = p->mode == MXATTN_TRAINING ? mxa_cuda_saved_lay_out(p).bytes : 0;
    return MXATTN_OK;
}

/* What the main kernel stores in words: O in 16 bytes, LSE in 4; the centre is copied in 16. */
static mxattn_status check_alignment(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_tensor *o = &call->o;
    const int64_t bytes = mxa_dtype_bytes(o->tags.dtype);
    if (mxa_address(o->data) % 16 || o->stride[0] * bytes % 16 || o->stride[1] * bytes % 16 ||
        o->stride[2] * bytes % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.o is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base "
                        "and strides must be multiples of 16 bytes",
                        o->data, (long long)o->stride[0], (long long)o->stride[1],
                        (long long)o->stride[2], (long long)bytes);
    }
    if (call->lse.ndim && mxa_address(call->lse.data) % 4) {
        return mxa_fail(MXATTN_ALIGNMENT, "args.lse is at %p; on cuda it must be a multiple of 4",
                        call->lse.data);
    }
    if ((plan->problem.v.flags & MXATTN_CENTRED) && mxa_address(call->v.centre) % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.v.centre is at %p; on cuda it must be a multiple of 16",
                        (const void *)call->v.centre);
    }
    return MXATTN_OK;
}

static mxattn_status begin(mxa_forward_run *r, const mxattn_plan *plan,
                           const mxa_attention_call *call)
{
    const mxattn_attention_problem *p = &plan->problem;
    memset(r, 0, sizeof *r);
    r->plan = plan;
    r->call = call;
    r->form = form_of(p, (mxa_form_kind)plan->private_i64[0]);
    r->v = call->v_seq.ndim ? &call->v_seq : &call->v;
    r->v_has_mean = r->form->kind != MXA_FORM_BF16 && mxa_copies_v_has_mean(p, r->v);
    r->at = mxa_copies_lay_out(p, r->form);
    r->base = call->prepared ? mxa_address(call->prepared)
                             : mxa_address(call->workspace) + (uint64_t)scratch_bytes(p, &r->at);
    r->batch.batch = (int32_t)call->batch_q.batch;
    if (needs_schedule(p, call)) {
        r->batch.sequences = r->base + (uint64_t)r->at.sequences;
        r->batch.tiles = r->base + (uint64_t)r->at.tiles;
        r->batch.tile_count = r->base + (uint64_t)r->at.tile_count;
        r->batch.status = r->base + (uint64_t)r->at.status;
    } else {
        const int64_t tile_q = r->form->tile_q, q = call->batch_q.seqlen, k = call->batch_k.seqlen;
        r->batch.seqlen_q = (int32_t)q;
        r->batch.seqlen_k = (int32_t)k;
        r->batch.padded_q = (int32_t)((q + 31) / 32 * 32);
        r->batch.padded_k = (int32_t)((k + 127) / 128 * 128);
        r->batch.tiles_per_sequence = (int32_t)((q + tile_q - 1) / tile_q);
    }
    return mxa_cuda_device_take(p->device, &r->device);
}

/* Rows of O and LSE that belong to no sequence; early, beside the main kernel's last tiles: what it
 * reads was there before that began. */
static mxattn_status clear_rows(const mxa_forward_run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_clear_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->batch;
    const mxattn_tensor o = written_o(r);
    params.o = mxa_address(o.data);
    params.o_type = (int32_t)o.tags.dtype;
    params.o_batch = o.stride[0];
    params.o_token = o.stride[1];
    params.o_head = o.stride[2];
    if (call->lse.ndim) {
        params.lse = mxa_address(call->lse.data);
        params.lse_batch = call->lse.stride[0];
        params.lse_head = call->lse.stride[1];
        params.lse_token = call->lse.stride[2];
    }
    params.heads = (int32_t)p->heads;
    params.head_dim = (int32_t)p->head_dim_v;
    params.seqlen = p->format == MXATTN_JAGGED ? 0 : (int32_t)call->batch_q.seqlen;
    params.caller_status = call->prepared ? mxa_address(call->device_status) : 0;
    params.tokens = (int32_t)call->total_q;
    return mxa_cuda_launch_early(r->device, MXA_KERNEL_CLEAR_ROWS,
                                 ((unsigned)call->total_q + MXA_CLEAR_TOKENS - 1) /
                                     MXA_CLEAR_TOKENS,
                                 1, 128, call->stream, &params);
}

/* Maps of the copies with the boxes of `form`: chunks of at most 128 bytes of a row. */
static mxattn_status maps(const mxa_forward_run *r, const mxa_forward_form *form,
                          mxa_forward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const uint64_t stride = (uint64_t)(p->head_dim + 15) / 16 * 16, dv = (uint64_t)p->head_dim_v;
    const uint64_t q_rows = (uint64_t)r->at.q_rows, k_rows = (uint64_t)r->at.k_rows;
    const uint64_t heads = (uint64_t)p->heads, kv_heads = (uint64_t)p->kv_heads;
    const uint32_t row = form->head_dim < 128 ? (uint32_t)form->head_dim : 128;
    const uint32_t tile_k = (uint32_t)form->tile_k;
    mxa_tensor_map q, k, v;
    mxattn_status status = mxa_cuda_map_3d(
        r->device, &q, r->base + (uint64_t)r->at.q, (uint64_t[]){stride, q_rows, heads},
        (uint64_t[]){stride, stride * q_rows}, (uint32_t[]){row, (uint32_t)form->tile_q, 1});
    if (!status) {
        status = mxa_cuda_map_3d(
            r->device, &k, r->base + (uint64_t)r->at.k, (uint64_t[]){stride, k_rows, kv_heads},
            (uint64_t[]){stride, stride * k_rows}, (uint32_t[]){row, tile_k, 1});
    }
    if (!status && form->kind == MXA_FORM_BF16) {
        status = mxa_cuda_map_3d(
            r->device, &v, r->base + (uint64_t)r->at.v, (uint64_t[]){2 * dv, k_rows, kv_heads},
            (uint64_t[]){2 * dv, 2 * dv * k_rows}, (uint32_t[]){128, tile_k, 1});
    } else if (!status) {
        status = mxa_cuda_map_3d(
            r->device, &v, r->base + (uint64_t)r->at.v, (uint64_t[]){k_rows, dv, kv_heads},
            (uint64_t[]){k_rows, dv * k_rows}, (uint32_t[]){tile_k, (uint32_t)form->head_dim, 1});
    }
    if (!status) {
        memcpy(&params->q_map, &q, sizeof q);
        memcpy(&params->k_map, &k, sizeof k);
        memcpy(&params->v_map, &v, sizeof v);
    }
    return status;
}

/* With a diagonal: how many pairs' tiles go longest first before the next pairs' do. WHY: their
 * keys and values are read once from memory and then from L2; of 32 pairs of 8,192 keys that took a
 * quarter of the bytes and 5% less time. Fewer than that, and too few tiles are alike in length. */
static int32_t together(const mxa_forward_run *r)
{
    enum { PLACE = 16 << 20 }; /* of 50 MB of L2, whose halves may each hold a copy */
    const mxattn_attention_problem *p = &r->plan->problem;
    const int64_t width = p->head_dim + p->head_dim_v * (r->form->kind == MXA_FORM_BF16 ? 2 : 1);
    const int64_t bytes = r->batch.padded_k * width, kv_pairs = bytes ? PLACE / bytes : 1;
    const int64_t most = p->batch * p->heads,
                  pairs = (kv_pairs ? kv_pairs : 1) * p->heads / p->kv_heads;
    return (int32_t)(pairs < most ? pairs : most);
}

static int32_t window_of(int64_t window)
{
    return window < 0 || window > INT32_MAX / 2 ? -1 : (int32_t)window;
}

static void output_params(const mxa_forward_run *r, mxa_forward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    const mxattn_tensor o = written_o(r);
    params->o = mxa_address(o.data);
    params->o_type = (int32_t)o.tags.dtype;
    params->o_batch = o.stride[0];
    params->o_token = o.stride[1];
    params->o_head = o.stride[2];
    if (call->lse.ndim) {
        params->lse = mxa_address(call->lse.data);
        params->lse_batch = call->lse.stride[0];
        params->lse_head = call->lse.stride[1];
        params->lse_token = call->lse.stride[2];
    }
    if (p->mode == MXATTN_TRAINING && call->saved) {
        const mxa_cuda_saved saved = mxa_cuda_saved_lay_out(p);
        params->row_max = mxa_address(call->saved) + (uint64_t)saved.row_max;
        params->row_sum = mxa_address(call->saved) + (uint64_t)saved.row_sum;
    }
}

static void forward_params(const mxa_forward_run *r, mxa_forward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    memset(params, 0, sizeof *params);
    params->batch = r->batch;
    params->q_scale = r->base + (uint64_t)r->at.q_scale;
    params->q_norm = r->base + (uint64_t)r->at.q_norm;
    params->records = r->base + (uint64_t)r->at.records;
    params->k_norm = r->base + (uint64_t)r->at.k_norm;
    params->wide = r->base + (uint64_t)r->at.wide;
    params->redo = mxa_address(r->call->workspace);
    if (r->form->kind != MXA_FORM_BF16) {
        params->v_scale = r->base + (uint64_t)r->at.v_scale;
    }
    params->v_mean = r->v_has_mean                       ? r->base + (uint64_t)r->at.mean
                     : r->v->tags.flags & MXATTN_CENTRED ? mxa_address(r->v->centre)
                                                         : 0;
    params->sink = p->has_sink ? mxa_address(r->call->sink) : 0;
    params->q_rows = r->at.q_rows;
    params->k_rows = r->at.k_rows;
    params->heads = (int32_t)p->heads;
    params->group = (int32_t)(p->heads / p->kv_heads);
    params->head_dim_v = (int32_t)p->head_dim_v;
    params->window_left = window_of(p->window[0]);
    params->window_right = window_of(p->window[1]);
    params->top_left = p->alignment == MXATTN_TOP_LEFT;
    params->tile_q = r->form->tile_q;
    params->tiles = r->batch.batch * params->heads * r->batch.tiles_per_sequence;
    params->together = together(r);
    params->scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    params->softcap_log2e = (float)(p->softcap * 1.4426950408889634);
    output_params(r, params);
}

/* early: only kernels of this call are before it in the stream since the last that began plainly.
 */
static mxattn_status launch(const mxa_forward_run *r, const mxa_forward_form *form, int pass,
                            int early, mxa_forward_params *params)
{
    const unsigned grid = (unsigned)r->device->multiprocessors;
    const unsigned threads = mxa_forward_form_threads(form);
    params->pass = pass;
    const mxattn_status status = maps(r, form, params);
    if (status) {
        return status;
    }
    return early ? mxa_cuda_launch_early(r->device, form->kernel, grid, 1, threads, r->call->stream,
                                         params)
                 : mxa_cuda_launch(r->device, form->kernel, grid, 1, threads, r->call->stream,
                                   params);
}

/* Where CTAs count the tiles that they take, 0 there; what preparation clears is cleared already.
 * WHY also where tiles take equally long: CTAs drift apart, and the last round is of those that are
 * early. */
static mxattn_status count_from_zero(const mxa_forward_run *r, mxa_forward_params *params)
{
    if (!r->call->prepared) {
        params->taken = r->base + (uint64_t)r->at.taken;
        return MXATTN_OK;
    }
    params->taken = params->redo + 4 * (uint64_t)r->at.tiles_most;
    return mxa_cuda_check(r->device->driver->memset_async(params->taken, 0, 4, r->call->stream),
                          "cuMemsetD8Async");
}

/* The main kernel, then rows that no sequence owns, then the tiles that the first launch left. */
static mxattn_status attend(const mxa_forward_run *r)
{
    const int has_rest = r->form->kind == MXA_FORM_F16;
    mxa_forward_params params;
    forward_params(r, &params);
    mxattn_status status = count_from_zero(r, &params);
    if (!status) {
        status = launch(r, r->form, has_rest ? MXA_FORWARD_PASS_SMALL : MXA_FORWARD_PASS_ALL,
                        !r->call->prepared, &params);
    }
    if (!status && r->batch.sequences) {
        status = clear_rows(r);
    }
    if (!status && has_rest) {
        params.taken = 0;
        status =
            launch(r, form_of(&r->plan->problem, MXA_FORM_F32), MXA_FORWARD_PASS_REDO, 1, &params);
    }
    return status;
}

/* O as its tags say, from what the main kernel wrote. */
static mxattn_status quantize_o(const mxa_forward_run *r)
{
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = written_o(r);
    call.quantized = r->call->o;
    call.batch = r->call->batch_q;
    call.device = r->plan->problem.device;
    call.stream = r->call->stream;
    return mxa_cuda_quantize(r->plan->context, &call);
}

mxattn_status mxa_cuda_prepare(const mxattn_plan *plan, const mxa_attention_call *call)
{
    mxa_forward_run r;
    mxattn_status status = begin(&r, plan, call);
    if (!status) {
        status = mxa_cuda_enter(r.device);
    }
    if (!status) {
        status = mxa_copies_clear_status(&r, 1);
        if (!status) {
            status = mxa_copies_make(&r);
        }
        mxa_cuda_leave(r.device);
    }
    return status;
}

mxattn_status mxa_cuda_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    mxa_forward_run r;
    mxattn_status status = check_alignment(plan, call);
    if (!status) {
        status = begin(&r, plan, call);
    }
    if (!status) {
        status = mxa_cuda_enter(r.device);
    }
    if (!status) {
        status = mxa_copies_clear_status(&r, !call->prepared);
        if (!status && !call->prepared) {
            status = mxa_copies_make(&r);
        }
        if (!status) {
            status = attend(&r);
        }
        if (!status && !mxa_dtype_is_wide(call->o.tags.dtype)) {
            status = quantize_o(&r);
        }
        mxa_cuda_leave(r.device);
    }
    return status;
}
