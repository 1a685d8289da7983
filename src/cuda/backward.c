/* backward.c: see backward.h.
 *
 * A run queues, without reading anything back: the forward's private copies (unless the caller
 * brings them prepared), the list of key tiles of a batch that is not plainly dense, two passes
 * that make what the main kernel reads, the main kernel, and a pass that turns the sums of dQ into
 * dQ. docs/kernels/hopper_backward.md, says what each is for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/backward.h"

#include "cuda/backward_layout.h"
#include "cuda/common/clear_params.h"
#include "cuda/common/prepare_params.h"
#include "cuda/copies.h"
#include "cuda/forward.h"
#include "cuda/producers.h"
#include "cuda/sm90/backward_params.h"
#include "cuda/sm90/backward_prepare_params.h"
#include "mx/element.h"
#include "status.h"

#include <string.h>

/* Everything one run needs to know. */
typedef struct run {
    mxa_forward_run forward; /* of the copies; its batch has no list of query tiles' use here */
    mxa_attention_call partner_call; /* the call with partners in the places of q and k */
    mxa_forward_run partners;        /* of its copies; else as `forward` */
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_cuda_device *device;
    mxa_backward_layout l;
    mxa_global base;          /* of the workspace */
    mxattn_tensor dq, dk, dv; /* what kernels write: the caller's, or FP32 that becomes them */
    mxa_backward_prepare_params params;
    unsigned q_tiles, k_tiles; /* that this batch can have */
} run;

static mxattn_status check_rows(const char *name, const mxattn_tensor *t)
{
    const int64_t bytes = mxa_dtype_bytes(t->tags.dtype);
    if (mxa_address(t->data) % 16 || t->stride[0] * bytes % 16 || t->stride[1] * bytes % 16 ||
        t->stride[2] * bytes % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.%s is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda "
                        "base and strides must be multiples of 16 bytes",
                        name, t->data, (long long)t->stride[0], (long long)t->stride[1],
                        (long long)t->stride[2], (long long)bytes);
    }
    return MXATTN_OK;
}

static mxattn_status check(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_tensor *tensors[] = {&call->o,  &call->dout,  &call->dq,    &call->dk,
                                      &call->dv, &call->q_seq, &call->k_seq, &call->v_seq};
    static const char *const names[] = {"o", "dout", "dq", "dk", "dv", "q_seq", "k_seq", "v_seq"};
    const mxattn_tensor *words[] = {&call->lse, &call->dlse};
    mxattn_status status = MXATTN_OK;
    if (!call->o.ndim) {
        return mxa_fail(MXATTN_ARGUMENT,
                        "args.o is NULL; backward on cuda reads it, also beside saved");
    }
    for (int i = 0; i < 8 && !status; i++) {
        status = tensors[i]->ndim ? check_rows(names[i], tensors[i]) : MXATTN_OK;
    }
    for (int i = 0; i < 2 && !status; i++) {
        if (words[i]->ndim && mxa_address(words[i]->data) % 4) {
            status =
                mxa_fail(MXATTN_ALIGNMENT, "args.%s is at %p; on cuda it must be a multiple of 4",
                         i ? "dlse" : "lse", words[i]->data);
        }
    }
    if (!status && (plan->problem.v.flags & MXATTN_CENTRED) && mxa_address(call->v.centre) % 16) {
        status = mxa_fail(MXATTN_ALIGNMENT,
                          "args.v.centre is at %p; on cuda it must be a multiple of 16",
                          (const void *)call->v.centre);
    }
    return status;
}

/* dO or O as kernels read it. */
static void read_rows(const mxattn_tensor *t, mxa_gpu_operand *out)
{
    const int axis = t->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const mxattn_scales *scales = &t->scales[axis];
    memset(out, 0, sizeof *out);
    out->data = mxa_address(t->data);
    out->stride_outer = t->stride[0];
    out->stride_token = t->stride[1];
    out->stride_head = t->stride[2];
    out->type = (int32_t)t->tags.dtype;
    out->block = (int32_t)t->tags.block;
    out->rounding = (int32_t)t->tags.rounding;
    out->scales = mxa_address(scales->data);
    out->cu_scale = mxa_address(scales->cu_scale);
    out->scale_head = scales->stride_head;
    out->scale_row = scales->stride_row;
    out->scale_k = scales->stride_k;
    out->scale_layout = (int32_t)scales->layout;
    out->scale_axis = axis;
}

/* The private copies: the caller's, or those that this run makes. */
static void begin_copies(run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_forward_run *f = &r->forward;
    const int by_token = r->plan->info.intermediates == MXATTN_INTERMEDIATES_BF16;
    f->plan = r->plan;
    f->call = call;
    f->device = r->device;
    f->form = mxa_backward_form(p);
    f->v = call->v_seq.ndim ? &call->v_seq : &call->v;
    f->v_has_mean = !by_token && mxa_copies_v_has_mean(p, f->v);
    f->at = r->l.copies;
    f->base = r->base;
    if (call->prepared && !by_token) {
        /* As the plan's forward laid them out: its tiles of queries may be others. */
        f->form = mxa_forward_form_find(p->head_dim, p->head_dim_v,
                                        (mxa_form_kind)r->plan->private_i64[0]);
        f->at = mxa_copies_lay_out(p, f->form);
        f->base = mxa_address(call->prepared);
    }
    f->batch.batch = (int32_t)call->batch_q.batch;
    if (p->format == MXATTN_JAGGED || call->batch_q.seqused || call->batch_k.seqused) {
        f->batch.sequences = f->base + (uint64_t)f->at.sequences;
        f->batch.tiles = f->base + (uint64_t)f->at.tiles;
        f->batch.tile_count = f->base + (uint64_t)f->at.tile_count;
        f->batch.status = f->base + (uint64_t)f->at.status;
    } else {
        const int64_t q = call->batch_q.seqlen, k = call->batch_k.seqlen;
        f->batch.seqlen_q = (int32_t)q;
        f->batch.seqlen_k = (int32_t)k;
        f->batch.padded_q = (int32_t)((q + 31) / 32 * 32);
        f->batch.padded_k = (int32_t)((k + 127) / 128 * 128);
        f->batch.tiles_per_sequence = (int32_t)((q + f->form->tile_q - 1) / f->form->tile_q);
    }
}

/* Copies of what contracts over tokens, q_seq and k_seq, and of v, whose rows dP takes. */
static void begin_partners(run *r)
{
    const mxa_attention_call *call = r->call;
    mxa_forward_run *f = &r->partners;
    *f = r->forward;
    if (!mxa_backward_has_partners(&r->plan->problem)) {
        return;
    }
    r->partner_call = *call;
    r->partner_call.q = call->q_seq.ndim ? call->q_seq : call->q;
    r->partner_call.k = call->k_seq.ndim ? call->k_seq : call->k;
    f->call = &r->partner_call;
    f->v = &call->v;
    f->v_has_mean = r->plan->info.intermediates != MXATTN_INTERMEDIATES_BF16 &&
                    mxa_copies_v_has_mean(&r->plan->problem, f->v);
    f->form = mxa_backward_form(&r->plan->problem);
    f->at = r->l.copies;
    f->base = r->base + (uint64_t)r->l.partners;
}

/* Where everything lies, for the kernels around the main one. */
static void fill_places(run *r)
{
    const mxa_backward_layout *l = &r->l;
    const mxa_forward_run *f = &r->partners;
    mxa_backward_prepare_params *params = &r->params;
    params->score_q = r->forward.base + (uint64_t)r->forward.at.q_scale;
    params->score_k = r->forward.base + (uint64_t)r->forward.at.records;
    params->q = f->base + (uint64_t)f->at.q;
    params->k = f->base + (uint64_t)f->at.k;
    params->v = f->base + (uint64_t)f->at.v;
    params->q_scale = f->base + (uint64_t)f->at.q_scale;
    params->k_records = f->base + (uint64_t)f->at.records;
    params->v_scale = f->base + (uint64_t)f->at.v_scale;
    params->query_groups = r->base + (uint64_t)l->query_groups;
    params->key_groups = r->base + (uint64_t)l->key_groups;
    params->delta = r->base + (uint64_t)l->delta;
    params->row_top = r->base + (uint64_t)l->row_top;
    params->row_rest = r->base + (uint64_t)l->row_rest;
    params->partial = r->base + (uint64_t)l->partial;
    params->dout_rows = r->base + (uint64_t)l->dout_rows;
    params->v_rows = r->base + (uint64_t)l->v_rows;
    params->factors = r->base + (uint64_t)l->factors;
    params->dv_factor = r->base + (uint64_t)l->dv_factor;
    params->far = r->base + (uint64_t)l->far;
    params->dq_log2 = r->base + (uint64_t)l->dq_log2;
    params->mean = r->base + (uint64_t)l->mean;
    params->mean_used = r->base + (uint64_t)l->mean_used;
    params->q_t = r->base + (uint64_t)l->q_t;
    params->dout_t = r->base + (uint64_t)l->dout_t;
    params->k_t = r->base + (uint64_t)l->k_t;
    params->q_records = r->base + (uint64_t)l->q_records;
    params->backward_k_records = r->base + (uint64_t)l->k_records;
    params->dq = r->base + (uint64_t)l->dq;
    params->taken = r->base + (uint64_t)l->taken;
    params->zeros = r->base + (uint64_t)l->zeros;
    params->cleared = r->base + (uint64_t)l->cleared;
    params->q_rows = f->at.q_rows;
    params->k_rows = f->at.k_rows;
    params->q_tiles = (int32_t)l->q_tiles;
    params->q_tiles_most = (int32_t)r->q_tiles;
    params->k_tiles = (int32_t)r->k_tiles;
}

static int32_t tile_keys(const run *r)
{
    return mxa_backward_tile_keys(&r->plan->problem);
}

/* Tiles of a (sequence, kv head) pair; where lengths are on the device, most that one can have. */
static int32_t key_tiles(const run *r)
{
    const mxa_gpu_batch *batch = &r->forward.batch;
    const int64_t keys = batch->sequences ? r->plan->problem.max_seqlen_k : batch->seqlen_k;
    return (int32_t)((keys + tile_keys(r) - 1) / tile_keys(r));
}

/* mxa_backward_params, together. WHY few pairs: of many, queries and sums leave L2 before the next
 * tiles of keys need them, which costs time and power, and more of dQ is left for when the main
 * kernel ends. With a diagonal one round of the grid and two pairs at least, up to twice as many,
 * so that the last ones are not fewer. In order a tile is worked on a step or two behind the one
 * before, and a round of the grid has to fit into half a tile's steps; with a diagonal tiles get
 * shorter and catch up, and more pairs are better. */
static int32_t pairs_together(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_gpu_batch *batch = &r->forward.batch;
    const int32_t ctas = r->device->multiprocessors, tiles = key_tiles(r);
    const int diagonal = p->window[1] >= 0;
    if (tiles == 0 || (!p->deterministic && !diagonal)) {
        return 1;
    }
    if (p->deterministic && (diagonal || p->window[0] >= 0 || batch->sequences)) {
        return MXA_KEYS_TOGETHER;
    }
    /* With tables, heads of several sequences go together only where one has too few. */
    const int32_t heads = (int32_t)p->kv_heads;
    const int32_t pairs = batch->sequences ? heads : batch->batch * heads;
    const int32_t steps = (int32_t)(batch->seqlen_q / MXA_BACKWARD_TILE_Q * (p->heads / heads));
    int32_t together = p->deterministic ? 2 * ctas / (steps + !steps) : ctas / tiles;
    together = together < 2 ? 2 : together > MXA_KEYS_TOGETHER ? MXA_KEYS_TOGETHER : together;
    const int32_t most = 2 * together < MXA_KEYS_TOGETHER ? 2 * together : MXA_KEYS_TOGETHER;
    while (together < most && pairs % together && together % pairs) {
        together++;
    }
    return together;
}

/* mxa_backward_params, ahead. WHY the main kernel clears dQ where it can: what it clears and soon
 * adds to stays in L2, and memory's bandwidth it has to spare, unlike the passes. */
static int32_t pairs_ahead(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const int32_t together = pairs_together(r), ahead = together < 2 ? 2 : together;
    const mxa_gpu_batch *batch = &r->forward.batch;
    const int can = !batch->sequences && batch->seqlen_k > 0 && mxa_backward_width(p) <= 128;
    return can && ahead < batch->batch * p->kv_heads ? ahead : 0;
}

static int32_t window_of(int64_t window)
{
    return window < 0 || window > INT32_MAX / 2 ? -1 : (int32_t)window;
}

static void fill_params(run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_backward_prepare_params *params = &r->params;
    fill_places(r);
    read_rows(&call->dout, &params->dout);
    read_rows(&call->o, &params->o);
    params->batch = r->forward.batch;
    params->v_mean = r->partners.v_has_mean ? r->partners.base + (uint64_t)r->partners.at.mean
                     : p->v.flags & MXATTN_CENTRED ? mxa_address(call->v.centre)
                                                   : 0;
    if (call->saved) {
        const mxa_cuda_saved saved = mxa_cuda_saved_lay_out(p);
        params->row_max = mxa_address(call->saved) + (uint64_t)saved.row_max;
        params->row_sum = mxa_address(call->saved) + (uint64_t)saved.row_sum;
    } else {
        params->lse = mxa_address(call->lse.data);
        params->lse_batch = call->lse.stride[0];
        params->lse_head = call->lse.stride[1];
        params->lse_token = call->lse.stride[2];
    }
    if (call->dlse.ndim) {
        params->dlse = mxa_address(call->dlse.data);
        params->dlse_batch = call->dlse.stride[0];
        params->dlse_head = call->dlse.stride[1];
        params->dlse_token = call->dlse.stride[2];
    }
    if (p->has_sink) {
        params->sink = mxa_address(call->sink);
        if (call->dsink) {
            params->partial_sink = r->base + (uint64_t)r->l.partial_sink;
            params->dsink = mxa_address(call->dsink);
        }
    }
    params->order = p->deterministic ? r->base + (uint64_t)r->l.order : 0;
    params->dq_out = mxa_address(r->dq.data);
    params->dq_batch = r->dq.stride[0];
    params->dq_token = r->dq.stride[1];
    params->dq_head = r->dq.stride[2];
    params->dq_type = (int32_t)r->dq.tags.dtype;
    params->heads = (int32_t)p->heads;
    params->group = (int32_t)(p->heads / p->kv_heads);
    params->head_dim = (int32_t)p->head_dim;
    params->head_dim_v = (int32_t)p->head_dim_v;
    params->dq_f32 = p->dq_reduce == MXATTN_DQ_REDUCE_FP32;
    if (mxa_backward_width(p) <= 128) {
        params->done = r->base + (uint64_t)r->l.done;
        params->tile_keys = tile_keys(r);
        params->done_each = mxa_backward_warpgroups(p);
        params->turns = params->batch.sequences ? r->base + (uint64_t)r->l.turns : 0;
    }
    params->clear_pairs = pairs_ahead(r) ? pairs_ahead(r) : INT32_MAX;
    params->dq_log2_given = p->dq_scale_log2;
    params->scale = (float)p->softmax_scale;
    params->scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    params->softcap = (float)p->softcap;
    params->window_left = window_of(p->window[0]);
    params->window_right = window_of(p->window[1]);
    params->top_left = p->alignment == MXATTN_TOP_LEFT;
}

/* Where kernels write a gradient. */
static mxattn_tensor written(const run *r, const mxattn_tensor *gradient, int64_t wide)
{
    mxattn_tensor t = *gradient;
    if (!mxa_dtype_is_wide(t.tags.dtype)) {
        mxattn_tensor_view(&t, MXATTN_F32, (char *)r->call->workspace + wide, 4, gradient->shape);
    }
    return t;
}

static mxattn_status begin(run *r, const mxattn_plan *plan, const mxa_attention_call *call)
{
    memset(r, 0, sizeof *r);
    r->plan = plan;
    r->call = call;
    r->l = mxa_backward_lay_out(&plan->problem);
    r->base = mxa_address(call->workspace);
    mxattn_status status = mxa_cuda_device_take(plan->problem.device, &r->device);
    if (!status) {
        begin_copies(r);
        begin_partners(r);
        r->dq = written(r, &call->dq, r->l.wide[0]);
        r->dk = written(r, &call->dk, r->l.wide[1]);
        r->dv = written(r, &call->dv, r->l.wide[2]);
        const mxa_gpu_batch *batch = &r->forward.batch;
        r->q_tiles = batch->sequences ? (unsigned)r->l.q_tiles
                                      : (unsigned)(batch->batch * ((batch->seqlen_q + 63) / 64));
        r->k_tiles = batch->sequences ? (unsigned)r->l.k_tiles
                                      : (unsigned)(batch->batch * batch->padded_k / 128);
        fill_params(r);
    }
    return status;
}

/* The instance of the problem's width, early: only kernels of this file come before. */
static mxattn_status launch(const run *r, mxa_kernel d64, unsigned grid_x, unsigned grid_y,
                            unsigned threads)
{
    return mxa_cuda_launch_early(r->device, mxa_backward_of_width(&r->plan->problem, d64, 1),
                                 grid_x, grid_y, threads, r->call->stream, &r->params);
}

static mxattn_status schedule(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    mxa_schedule_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->forward.batch.batch;
    params.heads = (int32_t)p->kv_heads;
    params.tile_q = tile_keys(r);
    params.together = pairs_together(r);
    params.sequences = r->forward.batch.sequences;
    params.status = r->forward.batch.status;
    params.tiles = r->base + (uint64_t)r->l.tiles;
    params.tile_count = r->base + (uint64_t)r->l.tile_count;
    params.ranks = r->base + (uint64_t)r->l.ranks;
    params.turns = r->params.turns;
    return mxa_cuda_launch_early(r->device, MXA_KERNEL_SCHEDULE_KEYS, 1, 1, 1024, r->call->stream,
                                 &params);
}

/* Rows of a gradient that belong to no sequence. */
static mxattn_status clear_rows(const run *r, const mxattn_tensor *t, int64_t tokens, int is_k_side)
{
    const mxa_attention_call *call = r->call;
    mxa_clear_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->forward.batch;
    params.o = mxa_address(t->data);
    params.o_type = (int32_t)t->tags.dtype;
    params.o_batch = t->stride[0];
    params.o_token = t->stride[1];
    params.o_head = t->stride[2];
    params.heads = (int32_t)t->shape[2];
    params.head_dim = (int32_t)t->shape[3];
    params.is_k_side = is_k_side;
    params.seqlen = r->plan->problem.format == MXATTN_JAGGED
                        ? 0
                        : (int32_t)(is_k_side ? call->batch_k.seqlen : call->batch_q.seqlen);
    params.tokens = (int32_t)tokens;
    return mxa_cuda_launch_early(r->device, MXA_KERNEL_CLEAR_ROWS,
                                 ((unsigned)tokens + MXA_CLEAR_TOKENS - 1) / MXA_CLEAR_TOKENS, 1,
                                 128, call->stream, &params);
}

/* Rows of the gradients that belong to no sequence; those of MXFP8 the quantizer writes. */
static mxattn_status clear(const run *r)
{
    const mxa_attention_call *call = r->call;
    const mxattn_tensor *tensors[] = {&call->dq, &call->dk, &call->dv};
    mxattn_status status = MXATTN_OK;
    for (int i = 0; i < 3 && !status; i++) {
        if (mxa_dtype_is_wide(tensors[i]->tags.dtype)) {
            status = clear_rows(r, tensors[i], i ? call->total_k : call->total_q, i != 0);
        }
    }
    return status;
}

static unsigned max_u(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* What the main kernel reads. WHY what a jagged batch needs besides comes second: it reads nothing
 * that the first pass makes, and runs beside the end of it. */
static mxattn_status prepare(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const unsigned heads = (unsigned)(p->heads + p->kv_heads);
    const unsigned width = (unsigned)mxa_backward_width(p);
    const int bf16 = p->dout.dtype == MXATTN_BF16 && p->o.dtype == MXATTN_BF16;
    const mxa_kernel rows = mxa_backward_of_width(
        p, bf16 ? MXA_KERNEL_BACKWARD_ROWS_BF16_D64 : MXA_KERNEL_BACKWARD_ROWS_D64, 1);
    /* The caller's kernels may be before it, which know nothing of an early start. */
    const unsigned groups = width == 64 ? 2 : 1; /* ROWS_GROUPS */
    mxattn_status status =
        mxa_cuda_launch(r->device, rows, max_u(2 / groups * r->q_tiles, r->k_tiles), heads,
                        groups * width, r->call->stream, &r->params);
    if (!status && r->forward.batch.sequences) {
        status = schedule(r);
        status = status ? status : clear(r);
    }
    if (!status) {
        status = launch(r, MXA_KERNEL_BACKWARD_FACTORS_D64, (unsigned)r->forward.batch.batch,
                        (unsigned)p->kv_heads, 256);
    }
    if (!status) {
        status = launch(r, MXA_KERNEL_BACKWARD_TILES_D64, max_u(r->q_tiles, 2 * r->k_tiles), heads,
                        width);
    }
    return status;
}

/* Rows of `dims` bytes, `stride` apart, in boxes of the kernel's width, at most 128. */
static mxattn_status map(const run *r, mxa_global at, int64_t dims, int64_t stride, int64_t rows,
                         int64_t heads, uint32_t box, mxa_device_map *out)
{
    const int64_t most = mxa_backward_width(&r->plan->problem);
    const uint32_t width = (uint32_t)(most > 128 ? 128 : most);
    mxa_tensor_map made;
    const mxattn_status status = mxa_cuda_map_3d(
        r->device, &made, at, (uint64_t[]){(uint64_t)dims, (uint64_t)rows, (uint64_t)heads},
        (uint64_t[]){(uint64_t)stride, (uint64_t)(stride * rows)}, (uint32_t[]){width, box, 1});
    memcpy(out, &made, sizeof made);
    return status;
}

static mxattn_status maps(const run *r, mxa_backward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_backward_prepare_params *from = &r->params;
    const int64_t d = p->head_dim, stride = (d + 15) / 16 * 16, width = mxa_backward_width(p);
    const mxa_forward_run *f = &r->forward;
    mxattn_status status = map(r, f->base + (uint64_t)f->at.q, d, stride, from->q_rows, p->heads,
                               MXA_BACKWARD_TILE_Q, &params->q_map);
    if (!status) {
        status = map(r, from->dout_rows, width, width, r->l.q_tiles * MXA_BACKWARD_TILE_Q, p->heads,
                     MXA_BACKWARD_TILE_Q, &params->dout_map);
    }
    if (!status) {
        status = map(r, f->base + (uint64_t)f->at.k, d, stride, from->k_rows, p->kv_heads,
                     (uint32_t)tile_keys(r), &params->k_map);
    }
    if (!status) {
        status = map(r, from->v_rows, width, width, from->k_rows, p->kv_heads,
                     (uint32_t)tile_keys(r), &params->v_map);
    }
    return status;
}

static mxattn_status attend(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    const mxa_backward_prepare_params *from = &r->params;
    mxa_backward_params params;
    memset(&params, 0, sizeof params);
    const mxattn_status status = maps(r, &params);
    params.batch = from->batch;
    if (params.batch.sequences) {
        params.batch.tiles = r->base + (uint64_t)r->l.tiles;
        params.batch.tile_count = r->base + (uint64_t)r->l.tile_count;
    } else {
        params.batch.tiles_per_sequence = key_tiles(r);
        params.tiles = params.batch.batch * (int32_t)p->kv_heads * params.batch.tiles_per_sequence;
    }
    params.q_t = from->q_t;
    params.dout_t = from->dout_t;
    params.k_t = from->k_t;
    params.q_records = from->q_records;
    params.row_factors = from->row_rest;
    params.k_records = from->backward_k_records;
    params.dv_factor = from->dv_factor;
    params.far = from->far;
    params.mean = from->mean;
    params.mean_used = from->mean_used;
    params.column_sums = r->base + (uint64_t)r->l.column_sums;
    params.dq = from->dq;
    params.order = from->order;
    params.taken = from->taken;
    params.zeros = from->zeros;
    params.cleared = from->cleared;
    params.done = from->done;
    params.ahead = pairs_ahead(r);
    params.turns = from->turns;
    params.together = pairs_together(r);
    params.dk = mxa_address(r->dk.data);
    params.dk_batch = r->dk.stride[0];
    params.dk_token = r->dk.stride[1];
    params.dk_head = r->dk.stride[2];
    params.dk_type = (int32_t)r->dk.tags.dtype;
    params.dv = mxa_address(r->dv.data);
    params.dv_batch = r->dv.stride[0];
    params.dv_token = r->dv.stride[1];
    params.dv_head = r->dv.stride[2];
    params.dv_type = (int32_t)r->dv.tags.dtype;
    params.q_tiles = from->q_tiles;
    params.q_rows = from->q_rows;
    params.k_rows = from->k_rows;
    params.heads = from->heads;
    params.group = from->group;
    params.head_dim = from->head_dim;
    params.head_dim_v = from->head_dim_v;
    params.window_left = window_of(p->window[0]);
    params.window_right = window_of(p->window[1]);
    params.top_left = p->alignment == MXATTN_TOP_LEFT;
    params.dq_f32 = from->dq_f32;
    params.softcap_log2e = (float)(p->softcap * 1.4426950408889634);
    return status ? status
                  : mxa_cuda_launch_early(r->device, mxa_backward_main_kernel(p),
                                          (unsigned)r->device->multiprocessors, 1,
                                          128 * (unsigned)mxa_backward_warpgroups(p) + 128,
                                          call->stream, &params);
}

/* dQ, dsink. */
static mxattn_status finish(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const unsigned parts = mxa_backward_width(p) > 128 ? 2 : 1, rows = parts * (unsigned)p->heads;
    const int in_line = r->params.done && !r->params.batch.sequences;
    mxattn_status status =
        launch(r, MXA_KERNEL_BACKWARD_FINISH_D64, in_line ? r->q_tiles * rows : r->q_tiles,
               in_line ? 1 : rows, 128);
    if (!status && r->params.partial_sink) {
        status = mxa_cuda_launch(r->device, MXA_KERNEL_BACKWARD_SINKS, (unsigned)p->heads, 1, 256,
                                 r->call->stream, &r->params);
    }
    return status;
}

/* Gradients as MXFP8, from what kernels wrote. */
static mxattn_status quantize(const run *r)
{
    const mxattn_tensor *wide[] = {&r->dq, &r->dk, &r->dv};
    const mxattn_tensor *out[] = {&r->call->dq, &r->call->dk, &r->call->dv};
    mxattn_status status = MXATTN_OK;
    for (int i = 0; i < 3 && !status; i++) {
        if (mxa_dtype_is_wide(out[i]->tags.dtype)) {
            continue;
        }
        mxa_quantize_call call;
        memset(&call, 0, sizeof call);
        call.wide = *wide[i];
        call.quantized = *out[i];
        call.batch = i == 0 ? r->call->batch_q : r->call->batch_k;
        call.device = r->plan->problem.device;
        call.stream = r->call->stream;
        status = mxa_cuda_quantize(r->plan->context, &call);
    }
    return status;
}

static mxattn_status queue(const run *r)
{
    const int makes_copies = r->forward.base == r->base;
    mxattn_status status = mxa_copies_clear_status(&r->forward, makes_copies);
    if (!status && makes_copies) {
        status = mxa_copies_make(&r->forward);
    }
    if (!status && r->partners.base != r->forward.base) {
        status = mxa_copies_make_again(&r->partners);
    }
    if (!status) {
        status = prepare(r);
    }
    if (!status) {
        status = attend(r);
    }
    if (!status) {
        status = finish(r);
    }
    return status ? status : quantize(r);
}

mxattn_status mxa_cuda_backward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    run r;
    mxattn_status status = check(plan, call);
    if (!status) {
        status = begin(&r, plan, call);
    }
    if (!status) {
        status = mxa_cuda_enter(r.device);
    }
    if (!status) {
        status = queue(&r);
        mxa_cuda_leave(r.device);
    }
    return status;
}
