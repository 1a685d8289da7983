/* sm100_forward.c: the host side of the Blackwell forward: sizes, preparation, launch.
 *
 * The kernel reads the caller's payload where it lies, and tiled scales: those of the caller, or a
 * private arrangement of them. Wide operands are quantized into private memory first. Where P is
 * held in BF16 (causal_strict, intermediates BF16), v is copied to BF16. Private memory is sized by
 * the plan: prepared, or in the workspace when the caller brings none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm100_forward.h"

#include "cuda/common/clear_params.h"
#include "cuda/common/operand.h"
#include "cuda/common/prepare_params.h"
#include "cuda/sm100/forward_params.h"
#include "mx/element.h"
#include "status.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 1024, TILE_QUERIES = 2 * MXA_SM100_TILE_Q };

/* One operand's place in private memory; payload and a mean only of wide ones. */
typedef struct operand_place {
    int64_t payload, scales, centre;
    int64_t rows; /* most tiled rows of the batch */
} operand_place;

typedef struct layout {
    operand_place operand[3]; /* q, k, v */
    int64_t values, nan;      /* v in BF16 and its marks, where P is */
    int64_t sequences, tiles, tile_count, status;
    int64_t tiles_most;
    int64_t bytes;
} layout;

/* q, k, and the tensor that values are multiplied with: v, or its column partner. */
typedef struct operands {
    const mxattn_tags *tags[3];
    const char *name[3];
} operands;

static const char *const NAMES[] = {"q", "k", "v", "v_seq"};

static operands operands_of(const mxattn_attention_problem *p)
{
    const int pair = p->v_seq.dtype != MXATTN_DTYPE_NONE;
    const operands o = {{&p->q, &p->k, pair ? &p->v_seq : &p->v},
                        {NAMES[0], NAMES[1], NAMES[pair ? 3 : 2]}};
    return o;
}

/* 1: P and V are held in BF16. */
static int is_bf16(const mxattn_attention_problem *p)
{
    return p->causal_strict || p->intermediates == MXATTN_INTERMEDIATES_BF16;
}

/* The axis of the scales that are read. v in BF16 has been multiplied with either. */
static mxattn_axis axis_of(const mxattn_attention_problem *p, int operand)
{
    const operands o = operands_of(p);
    return operand == 2 && o.tags[2]->block != MXATTN_BLOCK_ROW ? MXATTN_SEQ : MXATTN_HDIM;
}

static int64_t take(int64_t *at, int64_t bytes)
{
    const int64_t place = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

static int64_t tiles_of(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

static layout lay_out(const mxattn_attention_problem *p)
{
    layout l;
    int64_t at = 0;
    const int jagged = p->format == MXATTN_JAGGED;
    const operands o = operands_of(p);
    for (int i = 0; i < 3; i++) {
        const int64_t heads = i == 0 ? p->heads : p->kv_heads;
        const int64_t total = i == 0 ? p->total_q : p->total_k;
        const int64_t most = i == 0 ? p->max_seqlen_q : p->max_seqlen_k;
        const int wide = mxa_dtype_is_wide(o.tags[i]->dtype);
        l.operand[i].rows = jagged ? 128 * tiles_of(total + 127 * p->batch, 128)
                                   : p->batch * 128 * tiles_of(most, 128);
        l.operand[i].payload = take(&at, wide ? total * heads * p->head_dim : 0);
        l.operand[i].scales = take(&at, heads * l.operand[i].rows / 128 * MXA_SM100_UNIT);
        l.operand[i].centre = take(&at, wide && (o.tags[i]->flags & MXATTN_CENTRED)
                                            ? 4 * p->batch * heads * p->head_dim
                                            : 0);
    }
    const int64_t rows = is_bf16(p) ? p->kv_heads * l.operand[2].rows : 0;
    l.values = take(&at, rows * p->head_dim * 2);
    l.nan = take(&at, rows / 8);
    l.tiles_most = p->heads * (jagged ? p->total_q / TILE_QUERIES + p->batch
                                      : p->batch * tiles_of(p->max_seqlen_q, TILE_QUERIES));
    l.sequences = take(&at, p->batch * (int64_t)sizeof(mxa_gpu_sequence));
    l.tiles = take(&at, l.tiles_most * (int64_t)sizeof(mxa_gpu_tile));
    l.tile_count = take(&at, 4);
    l.status = take(&at, 4);
    l.bytes = at + ALIGNMENT; /* callers align to less */
    return l;
}

static mxa_kernel main_kernel(const mxattn_attention_problem *p)
{
    if (is_bf16(p)) {
        return p->head_dim == 64 ? MXA_KERNEL_SM100_FORWARD_BF16_D64
                                 : MXA_KERNEL_SM100_FORWARD_BF16_D128;
    }
    return p->head_dim == 64 ? MXA_KERNEL_SM100_FORWARD_D64 : MXA_KERNEL_SM100_FORWARD_D128;
}

/* The tensor cores take one scale for 32 elements along the axis that a product sums over; a V in
 * BF16 has none. */
static mxattn_status refuse_blocks(const mxattn_attention_problem *p)
{
    const operands o = operands_of(p);
    for (int i = 0; i < (is_bf16(p) ? 2 : 3); i++) {
        const mxattn_block other = i == 2 ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_COLUMN;
        if (o.tags[i]->block == other) {
            return mxa_fail(MXATTN_UNSUPPORTED,
                            "problem.%s.block is %s; on sm_100 it must be square or %s, whose "
                            "scales lie along the axis that is summed over",
                            o.name[i], other == MXATTN_BLOCK_ROW ? "row" : "column",
                            other == MXATTN_BLOCK_ROW ? "column (or v_seq given)" : "row");
        }
    }
    return MXATTN_OK;
}

/* What this arch has no kernel for. */
static mxattn_status refuse(const mxattn_attention_problem *p)
{
    if (p->mode == MXATTN_TRAINING) {
        return mxa_fail(MXATTN_UNSUPPORTED, "problem.mode is TRAINING; sm_100 has no attention "
                                            "backward in this version");
    }
    if ((p->head_dim != 64 && p->head_dim != 128) || p->head_dim_v != p->head_dim) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.head_dim is %lld and head_dim_v %lld; sm_100 has kernels for 64 "
                        "and 128, both equal",
                        (long long)p->head_dim, (long long)p->head_dim_v);
    }
    if (p->causal_strict && p->intermediates == MXATTN_INTERMEDIATES_E4M3) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.intermediates is E4M3 with causal_strict; sm_100 holds P in BF16 "
                        "there");
    }
    if (p->batch > INT32_MAX / 2 || p->total_q > INT32_MAX - 256 * p->batch ||
        p->total_k > INT32_MAX - 256 * p->batch) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.batch is %lld; sm_100 counts tokens in 32 bits",
                        (long long)p->batch);
    }
    return refuse_blocks(p);
}

mxattn_status mxa_sm100_plan(mxattn_plan *plan, const mxa_cuda_device *device)
{
    mxattn_attention_problem *p = &plan->problem;
    (void)device;
    mxattn_status status = refuse(p);
    if (status) {
        return status;
    }
    p->intermediates = is_bf16(p) ? MXATTN_INTERMEDIATES_BF16 : MXATTN_INTERMEDIATES_E4M3;
    p->dq_reduce = p->dq_reduce == MXATTN_DQ_REDUCE_AUTO ? MXATTN_DQ_REDUCE_FP16 : p->dq_reduce;
    const layout l = lay_out(p);
    snprintf(plan->kernel_forward, sizeof plan->kernel_forward, "%s",
             mxa_kernel_entry(main_kernel(p)));
    plan->info.isa_name = "sm_100a";
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

static void *pointer(mxa_global at)
{
    return (void *)(uintptr_t)at;
}

/* Everything one run needs to know. */
typedef struct run {
    const mxattn_plan *plan;
    const mxa_attention_call *call;
    const mxa_cuda_device *device;
    layout l;
    mxa_global base;          /* of private memory */
    mxattn_tensor operand[3]; /* q, k, v as the kernel reads them: FP8, tiled scales */
    mxa_gpu_batch batch;
} run;

static int needs_schedule(const run *r)
{
    return r->plan->problem.format == MXATTN_JAGGED || r->call->batch_q.seqused ||
           r->call->batch_k.seqused;
}

static const mxa_batch *batch_of(const run *r, int operand)
{
    return operand == 0 ? &r->call->batch_q : &r->call->batch_k;
}

/* Scales of one operand in private memory, head by head. */
static mxattn_scales private_scales(const run *r, int operand)
{
    const int64_t tiles = r->l.operand[operand].rows / 128;
    mxattn_scales scales;
    memset(&scales, 0, sizeof scales);
    scales.data = pointer(r->base + (uint64_t)r->l.operand[operand].scales);
    scales.layout = MXATTN_TILED;
    scales.stride_head = tiles;
    scales.stride_row = axis_of(&r->plan->problem, operand) == MXATTN_SEQ ? tiles : 1;
    scales.stride_k = 1;
    return scales;
}

/* 1 where the caller's scales are there, and are not those that the kernel reads. */
static int must_arrange(const mxattn_tensor *from, mxattn_axis axis)
{
    const mxattn_scales *scales = &from->scales[axis];
    return scales->data ? scales->layout != MXATTN_TILED : from->scales[!axis].data != NULL;
}

/* The operand as the kernel reads it: the caller's, with what is private put in its place. */
static void place_operand(const run *r, const mxattn_tensor *from, int operand,
                          mxattn_tensor *placed)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxattn_axis axis = axis_of(p, operand);
    const int wide = mxa_dtype_is_wide(from->tags.dtype);
    *placed = *from;
    if (wide) {
        placed->tags.dtype = MXATTN_E4M3;
        placed->data = pointer(r->base + (uint64_t)r->l.operand[operand].payload);
        placed->stride[3] = 1;
        placed->stride[2] = placed->shape[3];
        placed->stride[1] = placed->shape[3] * placed->shape[2];
        placed->stride[0] = placed->stride[1] * placed->shape[1];
        if (from->tags.flags & MXATTN_CENTRED) {
            placed->centre = pointer(r->base + (uint64_t)r->l.operand[operand].centre);
        }
    }
    if (wide || (must_arrange(from, axis) && !(operand == 2 && is_bf16(p)))) {
        memset(placed->scales, 0, sizeof placed->scales);
        placed->scales[axis] = private_scales(r, operand);
    }
}

static void begin(run *r, const mxattn_plan *plan, const mxa_attention_call *call,
                  const mxa_cuda_device *device, const void *prepared)
{
    const mxattn_attention_problem *p = &plan->problem;
    memset(r, 0, sizeof *r);
    r->plan = plan;
    r->call = call;
    r->device = device;
    r->l = lay_out(p);
    r->base = (address(prepared) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const mxattn_tensor *v = p->v_seq.dtype != MXATTN_DTYPE_NONE ? &call->v_seq : &call->v;
    place_operand(r, &call->q, 0, &r->operand[0]);
    place_operand(r, &call->k, 1, &r->operand[1]);
    place_operand(r, v, 2, &r->operand[2]);
    r->batch.batch = (int32_t)call->batch_q.batch;
    if (needs_schedule(r)) {
        r->batch.sequences = r->base + (uint64_t)r->l.sequences;
        r->batch.tiles = r->base + (uint64_t)r->l.tiles;
        r->batch.tile_count = r->base + (uint64_t)r->l.tile_count;
        r->batch.status = r->base + (uint64_t)r->l.status;
    } else {
        r->batch.seqlen_q = (int32_t)call->batch_q.seqlen;
        r->batch.seqlen_k = (int32_t)call->batch_k.seqlen;
        r->batch.padded_k = (int32_t)(128 * tiles_of(call->batch_k.seqlen, 128));
        r->batch.tiles_per_sequence = (int32_t)tiles_of(call->batch_q.seqlen, TILE_QUERIES);
    }
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
    params.tile_q = TILE_QUERIES;
    params.causal = p->window[1] >= 0;
    params.top_left = p->alignment == MXATTN_TOP_LEFT;
    params.sequences = r->batch.sequences;
    params.tiles = r->batch.tiles;
    params.tile_count = r->batch.tile_count;
    params.status = r->batch.status;
    params.caller_status = address(call->device_status);
    return mxa_cuda_launch(r->device, MXA_KERNEL_SCHEDULE, 1, 1, 1024, call->stream, &params);
}

/* A wide operand into private payload and scales. */
static mxattn_status quantize(const run *r, const mxattn_tensor *from, int operand)
{
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    if (!r->plan->backend->quantize) {
        return mxa_backend_lacks(r->plan->backend, "quantize");
    }
    call.wide = *from;
    call.quantized = r->operand[operand];
    call.batch = *batch_of(r, operand);
    call.device = r->plan->problem.device;
    call.stream = r->call->stream;
    return r->plan->backend->quantize(r->plan->context, &call);
}

/* The caller's scales into tiled ones. */
static mxattn_status arrange(const run *r, const mxattn_tensor *from, int operand)
{
    const mxattn_axis axis = axis_of(&r->plan->problem, operand);
    mxa_scales_call call;
    memset(&call, 0, sizeof call);
    call.from_axis = from->scales[axis].data ? axis : (mxattn_axis)!axis;
    call.to_axis = axis;
    call.tags = from->tags;
    call.from = from->scales[call.from_axis];
    call.to = r->operand[operand].scales[axis];
    call.batch = *batch_of(r, operand);
    call.tokens = operand == 0 ? r->call->total_q : r->call->total_k;
    call.heads = from->shape[2];
    call.head_dim = from->shape[3];
    call.device = r->plan->problem.device;
    call.stream = r->call->stream;
    mxattn_status (*move)(const mxattn_context *, const mxa_scales_call *) =
        call.from_axis == axis ? r->plan->backend->scales_scatter
                               : r->plan->backend->scales_transform;
    return move ? move(r->plan->context, &call)
                : mxa_backend_lacks(r->plan->backend, "scales_scatter");
}

/* v to BF16. */
static mxattn_status convert_values(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxattn_tensor *v = &r->operand[2];
    mxattn_axis axis = axis_of(p, 2);
    axis = v->scales[axis].data ? axis : (mxattn_axis)!axis;
    const mxattn_scales *scales = &v->scales[axis];
    mxa_sm100_values_params params;
    memset(&params, 0, sizeof params);
    params.from.data = address(v->data);
    params.from.stride_outer = v->stride[0];
    params.from.stride_token = v->stride[1];
    params.from.stride_head = v->stride[2];
    params.from.scales = address(scales->data);
    params.from.cu_scale = address(scales->cu_scale);
    params.from.scale_head = scales->stride_head;
    params.from.scale_row = scales->stride_row;
    params.from.scale_k = scales->stride_k;
    params.from.type = (int32_t)v->tags.dtype;
    params.from.block = (int32_t)v->tags.block;
    params.from.scale_layout = (int32_t)scales->layout;
    params.from.scale_axis = (int32_t)axis;
    params.batch = r->batch;
    params.values = r->base + (uint64_t)r->l.values;
    params.nan = r->base + (uint64_t)r->l.nan;
    params.tiles = r->l.operand[2].rows / 128;
    params.head_dim = (int32_t)p->head_dim;
    return mxa_cuda_launch(r->device, MXA_KERNEL_SM100_PREPARE_VALUES, (unsigned)params.tiles,
                           (unsigned)p->kv_heads, 128, r->call->stream, &params);
}

/* Everything before the main kernel. */
static mxattn_status prepare_all(const run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxattn_tensor *v = p->v_seq.dtype != MXATTN_DTYPE_NONE ? &r->call->v_seq : &r->call->v;
    const mxattn_tensor *from[3] = {&r->call->q, &r->call->k, v};
    mxattn_status status = r->batch.sequences ? schedule(r) : MXATTN_OK;
    for (int i = 0; i < 3 && !status; i++) {
        if (mxa_dtype_is_wide(from[i]->tags.dtype)) {
            status = quantize(r, from[i], i);
        } else if (!(i == 2 && is_bf16(p)) && must_arrange(from[i], axis_of(p, i))) {
            status = arrange(r, from[i], i);
        }
    }
    return !status && is_bf16(p) ? convert_values(r) : status;
}

/* Vector loads, maps and bulk copies start at multiples of 16. */
static mxattn_status check_alignment(const run *r, int operand)
{
    static const char *const names[] = {"q", "k", "v"};
    const mxattn_tensor *t = &r->operand[operand];
    const mxa_global at = address(t->data);
    const mxa_global scales = address(t->scales[axis_of(&r->plan->problem, operand)].data);
    if (at % 16 || t->stride[2] % 16 || t->stride[1] % 16 ||
        (t->shape[0] > 1 && t->stride[0] % 16) || scales % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.%s is at %p with strides %lld, %lld, %lld, its scales at %p; on cuda "
                        "base, strides and tiled scales must be multiples of 16 bytes",
                        names[operand], t->data, (long long)t->stride[0], (long long)t->stride[1],
                        (long long)t->stride[2], pointer(scales));
    }
    return MXATTN_OK;
}

/* A map of {D, heads, tokens, sequences} over a payload, a box of one head and 128 tokens. */
static mxattn_status map_operand(const run *r, int operand, mxa_device_map *map)
{
    const mxattn_tensor *t = &r->operand[operand];
    const uint64_t sizes[4] = {(uint64_t)t->shape[3], (uint64_t)t->shape[2],
                               (uint64_t)(t->shape[1] ? t->shape[1] : 1),
                               (uint64_t)(t->shape[0] ? t->shape[0] : 1)};
    const uint64_t strides[3] = {(uint64_t)t->stride[2], (uint64_t)t->stride[1],
                                 (uint64_t)(t->shape[0] > 1 ? t->stride[0] : 16)};
    const uint32_t box[4] = {(uint32_t)t->shape[3], 1, MXA_SM100_TILE_K, 1};
    /* A tensor of no tokens needs no memory, but a map does. */
    const mxa_global at = t->data ? address(t->data) : r->base;
    mxa_tensor_map made;
    mxattn_status status = mxa_cuda_map_4d(r->device, &made, at, sizes, strides, box);
    memcpy(map, &made, sizeof made);
    return status;
}

/* The same of v in BF16: {2 * D bytes, kv heads, rows, 1}, a box of 64 dims. */
static mxattn_status map_values(const run *r, mxa_device_map *map)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const uint64_t row = 2 * (uint64_t)p->head_dim, rows = (uint64_t)r->l.operand[2].rows;
    const uint64_t sizes[4] = {row, (uint64_t)p->kv_heads, rows ? rows : 1, 1};
    const uint64_t strides[3] = {rows ? rows * row : row, row, 16};
    const uint32_t box[4] = {128, 1, MXA_SM100_TILE_K, 1};
    mxa_tensor_map made;
    mxattn_status status =
        mxa_cuda_map_4d(r->device, &made, r->base + (uint64_t)r->l.values, sizes, strides, box);
    memcpy(map, &made, sizeof made);
    return status;
}

static void scales_params(const run *r, int operand, mxa_sm100_scales *out)
{
    const mxattn_scales *scales = &r->operand[operand].scales[axis_of(&r->plan->problem, operand)];
    out->data = address(scales->data);
    out->cu = address(scales->cu_scale);
    out->head = scales->stride_head;
    out->step = operand == 2 ? scales->stride_k : scales->stride_row;
}

/* O and LSE: what the kernel stores 16 bytes at a time must be aligned so. */
static mxattn_status output_params(const run *r, mxa_sm100_forward_params *params)
{
    const mxa_attention_call *call = r->call;
    const mxattn_tensor *o = &call->o;
    const int64_t bytes = mxa_dtype_bytes(o->tags.dtype);
    if (address(o->data) % 16 || o->stride[0] * bytes % 16 || o->stride[1] * bytes % 16 ||
        o->stride[2] * bytes % 16) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "args.o is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base "
                        "and strides must be multiples of 16 bytes",
                        o->data, (long long)o->stride[0], (long long)o->stride[1],
                        (long long)o->stride[2], (long long)bytes);
    }
    params->o = address(o->data);
    params->o_type = (int32_t)o->tags.dtype;
    params->o_block = (int32_t)o->tags.block;
    params->o_rounding = (int32_t)o->tags.rounding;
    params->o_batch = o->stride[0];
    params->o_token = o->stride[1];
    params->o_head = o->stride[2];
    for (int axis = 0; axis < 2; axis++) {
        const mxattn_scales *scales = &o->scales[axis];
        params->o_scales[axis].data = address(scales->data);
        params->o_scales[axis].cu = address(scales->cu_scale);
        params->o_scales[axis].head = scales->stride_head;
        params->o_scales[axis].row = scales->stride_row;
        params->o_scales[axis].k = scales->stride_k;
        params->o_scales[axis].layout = (int32_t)scales->layout;
    }
    if (call->lse.ndim) {
        if (address(call->lse.data) % 4) {
            return mxa_fail(MXATTN_ALIGNMENT,
                            "args.lse is at %p; on cuda it must be a multiple of 4",
                            call->lse.data);
        }
        params->lse = address(call->lse.data);
        params->lse_batch = call->lse.stride[0];
        params->lse_head = call->lse.stride[1];
        params->lse_token = call->lse.stride[2];
    }
    return MXATTN_OK;
}

static int32_t window_of(int64_t window)
{
    return window < 0 || window > INT32_MAX / 2 ? -1 : (int32_t)window;
}

static mxattn_status forward_params(const run *r, mxa_sm100_forward_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    mxa_device_map *maps[3] = {&params->q_map, &params->k_map, &params->v_map};
    mxa_sm100_scales *scales[3] = {&params->q_scales, &params->k_scales, &params->v_scales};
    memset(params, 0, sizeof *params);
    mxattn_status status = output_params(r, params);
    for (int i = 0; i < 3 && !status; i++) {
        status = check_alignment(r, i);
        if (!status && i == 2 && is_bf16(p)) {
            params->v_nan = r->base + (uint64_t)r->l.nan;
            params->v_tiles = r->l.operand[2].rows / 128;
            status = map_values(r, maps[i]);
        } else if (!status) {
            scales_params(r, i, scales[i]);
            status = map_operand(r, i, maps[i]);
        }
    }
    /* Of the tensor that values are multiplied with: a pair's v_seq has none. */
    const int centred = (r->operand[2].tags.flags & MXATTN_CENTRED) != 0;
    if (!status && centred && address(r->operand[2].centre) % 16) {
        status = mxa_fail(MXATTN_ALIGNMENT,
                          "args.v.centre is at %p; on cuda it must be a multiple of 16",
                          (const void *)r->operand[2].centre);
    }
    params->batch = r->batch;
    params->v_mean = centred ? address(r->operand[2].centre) : 0;
    params->sink = p->has_sink ? address(r->call->sink) : 0;
    params->heads = (int32_t)p->heads;
    params->group = (int32_t)(p->heads / p->kv_heads);
    params->q_e5m2 = r->operand[0].tags.dtype == MXATTN_E5M2;
    params->k_e5m2 = r->operand[1].tags.dtype == MXATTN_E5M2;
    params->v_e5m2 = r->operand[2].tags.dtype == MXATTN_E5M2;
    params->window_left = window_of(p->window[0]);
    params->window_right = window_of(p->window[1]);
    params->top_left = p->alignment == MXATTN_TOP_LEFT;
    params->tiles = r->batch.batch * params->heads * r->batch.tiles_per_sequence;
    params->scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    params->softcap_log2e = (float)(p->softcap * 1.4426950408889634);
    params->softcap_inverse = params->softcap_log2e > 0.0F ? 1.0F / params->softcap_log2e : 0.0F;
    return status;
}

static mxattn_status attend(const run *r, const mxa_sm100_forward_params *params)
{
    const int64_t items = r->batch.sequences ? r->l.tiles_most : params->tiles;
    const unsigned most = (unsigned)r->device->multiprocessors;
    return mxa_cuda_launch(r->device, main_kernel(&r->plan->problem),
                           items < most ? (unsigned)items : most, 1, 512, r->call->stream, params);
}

/* Scales of an FP8 O beyond seqused. */
static mxattn_status clear_scales(const run *r, const mxa_sm100_forward_params *forward)
{
    mxa_sm100_clear_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->batch;
    memcpy(params.scales, forward->o_scales, sizeof params.scales);
    params.heads = forward->heads;
    params.head_dim = (int32_t)r->plan->problem.head_dim_v;
    return mxa_cuda_launch(r->device, MXA_KERNEL_SM100_CLEAR_SCALES, (unsigned)r->batch.batch, 1,
                           128, r->call->stream, &params);
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
    params.tokens = (int32_t)call->total_q;
    return mxa_cuda_launch(r->device, MXA_KERNEL_CLEAR_ROWS,
                           ((unsigned)call->total_q + MXA_CLEAR_TOKENS - 1) / MXA_CLEAR_TOKENS, 1,
                           128, call->stream, &params);
}

mxattn_status mxa_sm100_prepare(const mxattn_plan *plan, const mxa_attention_call *call,
                                const mxa_cuda_device *device)
{
    run r;
    begin(&r, plan, call, device, call->prepared);
    mxattn_status status = mxa_cuda_enter(device);
    if (!status) {
        status = prepare_all(&r);
        mxa_cuda_leave(device);
    }
    return status;
}

mxattn_status mxa_sm100_forward(const mxattn_plan *plan, const mxa_attention_call *call,
                                const mxa_cuda_device *device)
{
    run r;
    mxa_sm100_forward_params params;
    begin(&r, plan, call, device, call->prepared ? call->prepared : call->workspace);
    mxattn_status status = mxa_cuda_enter(device);
    if (status) {
        return status;
    }
    status = forward_params(&r, &params);
    if (!status && !call->prepared) {
        status = prepare_all(&r);
    }
    if (!status && r.batch.sequences) {
        status = clear_rows(&r);
    }
    if (!status && !mxa_dtype_is_wide(call->o.tags.dtype) && call->batch_q.seqused) {
        status = clear_scales(&r, &params);
    }
    if (!status) {
        status = attend(&r, &params);
    }
    mxa_cuda_leave(device);
    return status;
}
