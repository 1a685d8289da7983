/* forward.c: the host side of the Hopper forward: sizes, preparation, launch.
 *
 * Memory of a run, all of it sized by the plan: the private copies (prepared; in the workspace
 * when the caller brings none), and scratch that only preparation uses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/forward.h"

#include "cuda/common/clear_params.h"
#include "cuda/common/prepare_params.h"
#include "cuda/device.h"
#include "cuda/sm90/forward_params.h"
#include "mx/element.h"
#include "status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 1024 };

/* Offsets into prepared memory; `bytes` is its size. */
typedef struct layout {
    int64_t q, k, v;
    int64_t v_exponent;
    int64_t q_scale, records, v_scale, mean;
    int64_t zeroed; /* q_norm, k_norm, top and wide: cleared before preparation */
    int64_t q_norm, k_norm, top, wide, zeroed_end;
    int64_t sequences, tiles, tile_count, status;
    int64_t partial;
    int64_t bytes;
    int64_t q_rows, k_rows;
    int64_t tiles_most;
} layout;

static int64_t take(int64_t *at, int64_t bytes)
{
    const int64_t place = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

static int64_t round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

static layout lay_out(const mxattn_attention_problem *p, int64_t tile_q)
{
    layout l;
    int64_t at = 0;
    const int jagged = p->format == MXATTN_JAGGED;
    l.q_rows = jagged ? round_up(p->total_q + 31 * p->batch, 32)
                      : p->batch * round_up(p->max_seqlen_q, 32);
    l.k_rows = jagged ? round_up(p->total_k + 127 * p->batch, 128)
                      : p->batch * round_up(p->max_seqlen_k, 128);
    l.tiles_most = p->heads * (jagged ? p->total_q / tile_q + p->batch
                                      : p->batch * ((p->max_seqlen_q + tile_q - 1) / tile_q));
    l.q = take(&at, p->heads * l.q_rows * p->head_dim);
    l.k = take(&at, p->kv_heads * l.k_rows * p->head_dim);
    l.v = take(&at, p->kv_heads * l.k_rows * p->head_dim_v);
    l.v_exponent = take(&at, p->kv_heads * l.k_rows / 32 * 4);
    l.q_scale = take(&at, p->heads * l.q_rows / 32 * MXA_FORWARD_RECORD);
    l.records = take(&at, p->kv_heads * l.k_rows / 32 * (int64_t)sizeof(mxa_key_record));
    l.v_scale = take(&at, p->batch * p->kv_heads * 4);
    l.mean = take(&at, p->batch * p->kv_heads * p->head_dim_v * 4);
    l.zeroed = at;
    l.q_norm = take(&at, p->batch * p->heads * 4);
    l.k_norm = take(&at, p->batch * p->kv_heads * 4);
    l.top = take(&at, p->batch * p->kv_heads * 4);
    l.wide = take(&at, 4);
    l.zeroed_end = at;
    l.sequences = take(&at, p->batch * (int64_t)sizeof(mxa_gpu_sequence));
    l.tiles = take(&at, l.tiles_most * (int64_t)sizeof(mxa_gpu_tile));
    l.tile_count = take(&at, 4);
    l.status = take(&at, 4);
    l.partial = take(&at, l.k_rows / MXA_PREPARE_CHUNK * p->kv_heads * p->head_dim_v * 4);
    l.bytes = at;
    return l;
}

static int needs_schedule(const mxattn_attention_problem *p, const mxa_attention_call *call)
{
    return p->format == MXATTN_JAGGED || call->batch_q.seqused || call->batch_k.seqused;
}

/* FP16 scores need a softcap of 0 and a positive scale (sm90/forward_softmax.h). */
static int takes_f16(const mxattn_attention_problem *p)
{
    return p->softcap == 0.0 && p->softmax_scale > 0.0;
}

static int64_t tile_q_of(const mxattn_plan *plan)
{
    return plan->private_i64[0];
}

static mxa_kernel main_kernel(const mxattn_attention_problem *p, int f16)
{
    if (p->head_dim == 64) {
        return f16 ? MXA_KERNEL_FORWARD_F16_D64 : MXA_KERNEL_FORWARD_F32_D64;
    }
    return f16 ? MXA_KERNEL_FORWARD_F16_D128 : MXA_KERNEL_FORWARD_F32_D128;
}

/* What this backend has no kernel for. */
static mxattn_status refuse(const mxattn_attention_problem *p)
{
    const mxattn_tags *operands[] = {&p->q, &p->k, &p->v};
    static const char *const names[] = {"q", "k", "v"};
    if (p->mode == MXATTN_TRAINING) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.mode is TRAINING; backend cuda has no attention backward in this "
                        "version");
    }
    if ((p->head_dim != 64 && p->head_dim != 128) || p->head_dim_v != p->head_dim) {
        return mxa_fail(
            MXATTN_UNSUPPORTED,
            "problem.head_dim is %lld and head_dim_v %lld; backend cuda has kernels for "
            "64 and 128, both equal",
            (long long)p->head_dim, (long long)p->head_dim_v);
    }
    for (int i = 0; i < 3; i++) {
        if (operands[i]->block == MXATTN_BLOCK_COLUMN && mxa_dtype_is_wide(operands[i]->dtype)) {
            return mxa_fail(MXATTN_UNSUPPORTED,
                            "problem.%s.block is column for a wide operand; backend cuda quantizes "
                            "row and square blocks in the call",
                            names[i]);
        }
    }
    if (p->q_seq.dtype || p->k_seq.dtype || p->v_seq.dtype) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.q_seq, k_seq or v_seq is given; backend cuda reads one payload of "
                        "each operand");
    }
    if (p->causal_strict) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.causal_strict is 1; backend cuda has no kernel for it");
    }
    if (p->intermediates == MXATTN_INTERMEDIATES_BF16) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.intermediates is BF16; backend cuda holds P in E4M3");
    }
    if (!mxa_dtype_is_wide(p->o.dtype)) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.o.dtype is %s; backend cuda writes F32, F16 or BF16",
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

mxattn_status mxa_cuda_plan(mxattn_plan *plan)
{
    mxattn_attention_problem *p = &plan->problem;
    const mxa_cuda_device *device;
    mxattn_status status = mxa_cuda_device_take(p->device, &device);
    if (!status) {
        status = refuse(p);
    }
    if (status) {
        return status;
    }
    const int f16 = takes_f16(p);
    plan->private_i64[0] = f16 ? 192 : 128;
    p->intermediates = MXATTN_INTERMEDIATES_E4M3;
    p->dq_reduce = p->dq_reduce == MXATTN_DQ_REDUCE_AUTO ? MXATTN_DQ_REDUCE_FP16 : p->dq_reduce;
    const layout l = lay_out(p, tile_q_of(plan));
    snprintf(plan->kernel_forward, sizeof plan->kernel_forward, "%s",
             mxa_kernel_entry(main_kernel(p, f16)));
    plan->info.isa_name = "sm_90a";
    plan->info.intermediates = p->intermediates;
    plan->info.dq_reduce = p->dq_reduce;
    plan->info.threads = 0;
    plan->info.max_headroom_log2 = 3;
    plan->info.workspace_forward_bytes = l.bytes;
    plan->info.prepared_bytes = l.bytes;
    return MXATTN_OK;
}

static mxa_global address(const void *memory)
{
    return (mxa_global)(uintptr_t)memory;
}

/* Base, strides and scales of one operand. */
static mxattn_status read_operand(const mxattn_tensor *t, const char *name, mxa_gpu_operand *out)
{
    const int64_t bytes = mxa_dtype_bytes(t->tags.dtype);
    memset(out, 0, sizeof *out);
    if (address(t->data) % 16 || t->stride[0] * bytes % 16 || t->stride[1] * bytes % 16 ||
        t->stride[2] * bytes % 16) {
        return mxa_fail(
            MXATTN_ALIGNMENT,
            "args.%s is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base "
            "and strides must be multiples of 16 bytes",
            name, t->data, (long long)t->stride[0], (long long)t->stride[1],
            (long long)t->stride[2], (long long)bytes);
    }
    out->data = address(t->data);
    out->stride_outer = t->stride[0];
    out->stride_token = t->stride[1];
    out->stride_head = t->stride[2];
    out->type = (int32_t)t->tags.dtype;
    out->block = (int32_t)t->tags.block;
    out->rounding = (int32_t)t->tags.rounding;
    const int axis = t->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const mxattn_scales *scales = &t->scales[axis];
    out->scales = address(scales->data);
    out->cu_scale = address(scales->cu_scale);
    out->scale_head = scales->stride_head;
    out->scale_row = scales->stride_row;
    out->scale_k = scales->stride_k;
    out->scale_layout = (int32_t)scales->layout;
    out->scale_axis = axis;
    return MXATTN_OK;
}

/* What the main kernel stores in words: O in 16 bytes, LSE in 4; the centre is copied in 16. */
static mxattn_status check_alignment(const mxattn_plan *plan, const mxa_attention_call *call)
{
    const mxattn_tensor *o = &call->o;
    const int64_t bytes = mxa_dtype_bytes(plan->problem.o.dtype);
    if (address(o->data) % 16 || o->stride[0] * bytes % 16 || o->stride[1] * bytes % 16 ||
        o->stride[2] * bytes % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.o is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base "
                        "and strides must be multiples of 16 bytes",
                        o->data, (long long)o->stride[0], (long long)o->stride[1],
                        (long long)o->stride[2], (long long)bytes);
    }
    if (call->lse.ndim && address(call->lse.data) % 4) {
        return mxa_fail(MXATTN_ALIGNMENT, "args.lse is at %p; on cuda it must be a multiple of 4",
                        call->lse.data);
    }
    if ((plan->problem.v.flags & MXATTN_CENTRED) && address(call->v.centre) % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.v.centre is at %p; on cuda it must be a multiple of 16",
                        (const void *)call->v.centre);
    }
    return MXATTN_OK;
}

/* Everything one run needs to know. */
typedef struct run {
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_cuda_device *device;
    layout l;
    mxa_global base; /* of prepared memory */
    mxa_gpu_batch batch;
} run;

static mxattn_status begin(run *r, const mxattn_plan *plan, const mxa_attention_call *call,
                           const void *prepared)
{
    const mxattn_attention_problem *p = &plan->problem;
    r->plan = plan;
    r->call = call;
    r->l = lay_out(p, tile_q_of(plan));
    r->base = address(prepared);
    memset(&r->batch, 0, sizeof r->batch);
    r->batch.batch = (int32_t)call->batch_q.batch;
    if (needs_schedule(p, call)) {
        r->batch.sequences = r->base + (uint64_t)r->l.sequences;
        r->batch.tiles = r->base + (uint64_t)r->l.tiles;
        r->batch.tile_count = r->base + (uint64_t)r->l.tile_count;
        r->batch.status = r->base + (uint64_t)r->l.status;
    } else {
        const int64_t tile_q = tile_q_of(plan);
        r->batch.seqlen_q = (int32_t)call->batch_q.seqlen;
        r->batch.seqlen_k = (int32_t)call->batch_k.seqlen;
        r->batch.padded_q = (int32_t)round_up(call->batch_q.seqlen, 32);
        r->batch.padded_k = (int32_t)round_up(call->batch_k.seqlen, 128);
        r->batch.tiles_per_sequence = (int32_t)((call->batch_q.seqlen + tile_q - 1) / tile_q);
    }
    return mxa_cuda_device_take(p->device, &r->device);
}

static mxattn_status schedule(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_schedule_params params;
    memset(&params, 0, sizeof params);
    params.cu_seqlens_q = address(call->batch_q.cu_seqlens);
    params.cu_seqlens_k = address(call->batch_k.cu_seqlens);
    params.seqused_q = address(call->batch_q.seqused);
    params.seqused_k = address(call->batch_k.seqused);
    params.batch = r->batch.batch;
    params.heads = (int32_t)p->heads;
    params.seqlen_q = (int32_t)call->batch_q.seqlen;
    params.seqlen_k = (int32_t)call->batch_k.seqlen;
    params.total_q = (int32_t)call->total_q;
    params.total_k = (int32_t)call->total_k;
    params.max_seqlen_q = (int32_t)p->max_seqlen_q;
    params.max_seqlen_k = (int32_t)p->max_seqlen_k;
    params.tile_q = (int32_t)tile_q_of(r->plan);
    params.causal = p->window[1] >= 0;
    params.top_left = p->alignment == MXATTN_TOP_LEFT;
    params.sequences = r->batch.sequences;
    params.tile_q = (int32_t)tile_q_of(r->plan);
    params.tiles = r->batch.tiles;
    params.tile_count = r->batch.tile_count;
    params.status = r->batch.status;
    params.caller_status = address(call->device_status);
    return mxa_cuda_launch(r->device, MXA_KERNEL_SCHEDULE, 1, 1, 1024, call->stream, &params);
}

/* Groups of 32 rows of the private copy that this run fills. */
static int32_t groups_of(const run *r, int is_k_side)
{
    if (r->batch.sequences) {
        return (int32_t)((is_k_side ? r->l.k_rows : r->l.q_rows) / 32);
    }
    return r->batch.batch * (is_k_side ? r->batch.padded_k : r->batch.padded_q) / 32;
}

static mxattn_status prepare_operand(const run *r, const mxattn_tensor *tensor, const char *name,
                                     mxa_prepare_params *params)
{
    memset(params, 0, sizeof *params);
    params->batch = r->batch;
    params->is_k_side = name[0] != 'q';
    params->heads = (int32_t)tensor->shape[2];
    params->rows = name[0] == 'q' ? r->l.q_rows : r->l.k_rows;
    params->groups = groups_of(r, params->is_k_side);
    return read_operand(tensor, name, &params->from);
}

static mxattn_status prepare_records(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    mxa_record_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->batch;
    params.q_heads = (int32_t)p->heads;
    params.kv_heads = (int32_t)p->kv_heads;
    params.head_dim_v = (int32_t)p->head_dim_v;
    params.rows = r->l.k_rows;
    params.v_exponent = r->base + (uint64_t)r->l.v_exponent;
    params.top = r->base + (uint64_t)r->l.top;
    params.v = r->base + (uint64_t)r->l.v;
    params.records = r->base + (uint64_t)r->l.records;
    params.v_scale = r->base + (uint64_t)r->l.v_scale;
    params.q_norm = r->base + (uint64_t)r->l.q_norm;
    params.k_norm = r->base + (uint64_t)r->l.k_norm;
    params.wide = r->base + (uint64_t)r->l.wide;
    params.bound = (float)(1 << MXA_FORWARD_BOUND_LOG2);
    params.scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    return mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_RECORDS,
                           ((unsigned)groups_of(r, 1) + 31) / 32, (unsigned)p->kv_heads, 32,
                           r->call->stream, &params);
}

static mxattn_status prepare_params(const run *r, mxa_prepare_all_params *params)
{
    mxattn_status status = prepare_operand(r, &r->call->q, "q", &params->q);
    if (!status) {
        status = prepare_operand(r, &r->call->k, "k", &params->k);
    }
    if (!status) {
        status = prepare_operand(r, &r->call->v, "v", &params->v);
    }
    params->q.payload = r->base + (uint64_t)r->l.q;
    params->q.scale = r->base + (uint64_t)r->l.q_scale;
    params->q.norm = r->base + (uint64_t)r->l.q_norm;
    params->k.payload = r->base + (uint64_t)r->l.k;
    params->k.scale = r->base + (uint64_t)r->l.records; /* a record's first word */
    params->k.norm = r->base + (uint64_t)r->l.k_norm;
    params->v.payload = r->base + (uint64_t)r->l.v;
    params->v.exponent = r->base + (uint64_t)r->l.v_exponent;
    if (mxa_dtype_is_wide(r->plan->problem.v.dtype)) {
        params->v.mean = r->base + (uint64_t)r->l.mean;
        params->v.partial = r->base + (uint64_t)r->l.partial;
    }
    return status;
}

/* Everything before the main kernel. */
static mxattn_status prepare_all(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_driver *driver = r->device->driver;
    const unsigned heads = (unsigned)p->kv_heads, head_dim = (unsigned)p->head_dim;
    const int has_mean = mxa_dtype_is_wide(p->v.dtype);
    mxa_prepare_all_params params;
    mxattn_status status = prepare_params(r, &params);
    if (!status) {
        status = mxa_cuda_check(driver->memset_async(r->base + (uint64_t)r->l.zeroed, 0,
                                                     (size_t)(r->l.zeroed_end - r->l.zeroed),
                                                     r->call->stream),
                                "cuMemsetD8Async");
    }
    if (!status && r->batch.sequences) {
        status = schedule(r);
    }
    if (!status) {
        const unsigned q = (unsigned)params.q.groups, k = (unsigned)params.k.groups;
        const int bf16 =
            p->q.dtype == MXATTN_BF16 && p->k.dtype == MXATTN_BF16 && p->v.dtype == MXATTN_BF16;
        const mxa_kernel kernel = !bf16            ? MXA_KERNEL_PREPARE_OPERANDS
                                  : head_dim == 64 ? MXA_KERNEL_PREPARE_OPERANDS_BF16_D64
                                                   : MXA_KERNEL_PREPARE_OPERANDS_BF16_D128;
        status = mxa_cuda_launch(r->device, kernel, q > k ? q : k,
                                 (unsigned)p->heads + (has_mean ? 2 : 1) * heads, head_dim,
                                 r->call->stream, &params);
    }
    if (!status && has_mean) {
        status = mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_MEAN, (unsigned)r->batch.batch,
                                 heads, head_dim, r->call->stream, &params.v);
    }
    params.v.top = r->base + (uint64_t)r->l.top; /* and the second means are a correction */
    if (!status) {
        const mxa_kernel kernel = p->v.dtype != MXATTN_BF16 ? MXA_KERNEL_PREPARE_VALUES
                                  : head_dim == 64          ? MXA_KERNEL_PREPARE_VALUES_BF16_D64
                                                            : MXA_KERNEL_PREPARE_VALUES_BF16_D128;
        status = mxa_cuda_launch(r->device, kernel, (unsigned)params.v.groups / 4, heads,
                                 4 * head_dim, r->call->stream, &params.v);
    }
    if (!status && has_mean) {
        status = mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_MEAN, (unsigned)r->batch.batch,
                                 heads, head_dim, r->call->stream, &params.v);
    }
    return status ? status : prepare_records(r);
}

/* Rows of O and LSE that belong to no sequence. */
static mxattn_status clear_rows(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_clear_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->batch;
    params.o = address(call->o.data);
    params.o_type = (int32_t)p->o.dtype;
    params.o_batch = call->o.stride[0];
    params.o_token = call->o.stride[1];
    params.o_head = call->o.stride[2];
    if (call->lse.ndim) {
        params.lse = address(call->lse.data);
        params.lse_batch = call->lse.stride[0];
        params.lse_head = call->lse.stride[1];
        params.lse_token = call->lse.stride[2];
    }
    params.heads = (int32_t)p->heads;
    params.head_dim = (int32_t)p->head_dim_v;
    params.seqlen = p->format == MXATTN_JAGGED ? 0 : (int32_t)call->batch_q.seqlen;
    return mxa_cuda_launch(r->device, MXA_KERNEL_CLEAR_ROWS, (unsigned)call->total_q, 1, 128,
                           call->stream, &params);
}

/* box_q: queries that one kernel loads at a time. */
static mxattn_status maps(const run *r, uint32_t box_q, mxa_forward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const uint64_t d = (uint64_t)p->head_dim, q_rows = (uint64_t)r->l.q_rows,
                   k_rows = (uint64_t)r->l.k_rows;
    mxa_tensor_map q, k, v;
    mxattn_status status = mxa_cuda_map_3d(
        r->device, &q, r->base + (uint64_t)r->l.q, (uint64_t[]){d, q_rows, (uint64_t)p->heads},
        (uint64_t[]){d, d * q_rows}, (uint32_t[]){(uint32_t)d, box_q, 1});
    if (!status) {
        status = mxa_cuda_map_3d(r->device, &k, r->base + (uint64_t)r->l.k,
                                 (uint64_t[]){d, k_rows, (uint64_t)p->kv_heads},
                                 (uint64_t[]){d, d * k_rows},
                                 (uint32_t[]){(uint32_t)d, MXA_FORWARD_TILE_K, 1});
    }
    if (!status) {
        status = mxa_cuda_map_3d(r->device, &v, r->base + (uint64_t)r->l.v,
                                 (uint64_t[]){k_rows, d, (uint64_t)p->kv_heads},
                                 (uint64_t[]){k_rows, d * k_rows},
                                 (uint32_t[]){MXA_FORWARD_TILE_K, (uint32_t)d, 1});
    }
    memcpy(&params->q_map, &q, sizeof q);
    memcpy(&params->k_map, &k, sizeof k);
    memcpy(&params->v_map, &v, sizeof v);
    return status;
}

static int32_t window_of(int64_t window)
{
    return window < 0 || window > INT32_MAX / 2 ? -1 : (int32_t)window;
}

static mxattn_status attend(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_forward_params params;
    memset(&params, 0, sizeof params);
    const int f16 = takes_f16(p);
    mxattn_status status = maps(r, f16 ? 192 : 128, &params);
    params.batch = r->batch;
    params.q_scale = r->base + (uint64_t)r->l.q_scale;
    params.q_norm = r->base + (uint64_t)r->l.q_norm;
    params.records = r->base + (uint64_t)r->l.records;
    params.k_norm = r->base + (uint64_t)r->l.k_norm;
    params.wide = r->base + (uint64_t)r->l.wide;
    params.v_scale = r->base + (uint64_t)r->l.v_scale;
    params.v_mean = mxa_dtype_is_wide(p->v.dtype) ? r->base + (uint64_t)r->l.mean
                    : p->v.flags & MXATTN_CENTRED ? address(call->v.centre)
                                                  : 0;
    params.sink = p->has_sink ? address(call->sink) : 0;
    params.o = address(call->o.data);
    params.o_type = (int32_t)p->o.dtype;
    params.o_batch = call->o.stride[0];
    params.o_token = call->o.stride[1];
    params.o_head = call->o.stride[2];
    if (call->lse.ndim) {
        params.lse = address(call->lse.data);
        params.lse_batch = call->lse.stride[0];
        params.lse_head = call->lse.stride[1];
        params.lse_token = call->lse.stride[2];
    }
    params.q_rows = r->l.q_rows;
    params.k_rows = r->l.k_rows;
    params.heads = (int32_t)p->heads;
    params.group = (int32_t)(p->heads / p->kv_heads);
    params.window_left = window_of(p->window[0]);
    params.window_right = window_of(p->window[1]);
    params.top_left = p->alignment == MXATTN_TOP_LEFT;
    params.tile_q = (int32_t)tile_q_of(r->plan);
    params.tiles = r->batch.batch * params.heads * r->batch.tiles_per_sequence;
    params.scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    params.softcap_log2e = (float)(p->softcap * 1.4426950408889634);
    const unsigned grid = (unsigned)r->device->multiprocessors;
    if (!f16) {
        params.pass = MXA_FORWARD_PASS_ALL;
        return status ? status
                      : mxa_cuda_launch(r->device, main_kernel(p, 0), grid, 1, 384, call->stream,
                                        &params);
    }
    params.pass = MXA_FORWARD_PASS_SMALL;
    if (!status) {
        status = mxa_cuda_launch(r->device, main_kernel(p, 1), grid, 1, 512, call->stream, &params);
    }
    params.pass = MXA_FORWARD_PASS_WIDE;
    if (!status) {
        status = maps(r, 128, &params);
    }
    if (!status) {
        status = mxa_cuda_launch(r->device, main_kernel(p, 0), grid, 1, 384, call->stream, &params);
    }
    return status;
}

mxattn_status mxa_cuda_prepare(const mxattn_plan *plan, const mxa_attention_call *call)
{
    run r;
    mxattn_status status = begin(&r, plan, call, call->prepared);
    if (!status) {
        status = mxa_cuda_enter(r.device);
    }
    if (!status) {
        status = prepare_all(&r);
        mxa_cuda_leave(r.device);
    }
    return status;
}

mxattn_status mxa_cuda_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    run r;
    mxattn_status status = check_alignment(plan, call);
    if (!status) {
        status = begin(&r, plan, call, call->prepared ? call->prepared : call->workspace);
    }
    if (!status) {
        status = mxa_cuda_enter(r.device);
    }
    if (!status) {
        if (!call->prepared) {
            status = prepare_all(&r);
        }
        if (!status && r.batch.sequences) {
            status = clear_rows(&r);
        }
        if (!status) {
            status = attend(&r);
        }
        mxa_cuda_leave(r.device);
    }
    return status;
}
