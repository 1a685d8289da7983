/* copies.c: see copies.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/copies.h"

#include "cuda/common/prepare_params.h"
#include "cuda/sm90/forward_params.h"
#include "mx/element.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 1024, GRID_ROWS = 65535, ZERO_THREADS = 256 };

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

int64_t mxa_copies_q_rows(const mxattn_attention_problem *p)
{
    const int64_t rows = p->format == MXATTN_JAGGED ? round_up(p->total_q + 31 * p->batch, 32)
                                                    : p->batch * round_up(p->max_seqlen_q, 32);
    return rows > 32 ? rows : 32; /* a tensor map of nothing is an error */
}

const mxattn_tags *mxa_copies_v_tags(const mxattn_attention_problem *p)
{
    return p->v_seq.dtype ? &p->v_seq : &p->v;
}

mxa_copies mxa_copies_lay_out(const mxattn_attention_problem *p, const mxa_forward_form *form)
{
    mxa_copies l;
    int64_t at = 0;
    const int jagged = p->format == MXATTN_JAGGED, tokens = form->kind == MXA_FORM_BF16;
    const int64_t stride = round_up(p->head_dim, 16), tile_q = form->tile_q;
    l.q_rows = mxa_copies_q_rows(p);
    l.k_rows = jagged ? round_up(p->total_k + 127 * p->batch, 128)
                      : p->batch * round_up(p->max_seqlen_k, 128);
    l.k_rows = l.k_rows > 128 ? l.k_rows : 128;
    l.tiles_most = p->heads * (jagged ? p->total_q / tile_q + p->batch
                                      : p->batch * ((p->max_seqlen_q + tile_q - 1) / tile_q));
    l.q = take(&at, p->heads * l.q_rows * stride);
    l.k = take(&at, p->kv_heads * l.k_rows * stride);
    l.v = take(&at, p->kv_heads * l.k_rows * p->head_dim_v * (tokens ? 2 : 1));
    l.v_exponent = take(&at, p->kv_heads * l.k_rows / 32 * 4);
    l.q_scale = take(&at, p->heads * l.q_rows / 32 * (tokens ? 32 * 4 : MXA_FORWARD_RECORD));
    l.records = take(&at, p->kv_heads * l.k_rows / 32 *
                              (tokens ? MXA_FORWARD_TOKEN_RECORD : MXA_FORWARD_RECORD));
    l.v_scale = take(&at, p->batch * p->kv_heads * 4);
    l.zeroed = at;
    l.mean = take(&at, p->batch * p->kv_heads * p->head_dim_v * 4);
    l.q_norm = take(&at, p->batch * p->heads * 4);
    l.k_norm = take(&at, p->batch * p->kv_heads * 4);
    l.top = take(&at, p->batch * p->kv_heads * 4);
    l.wide = take(&at, 4);
    l.taken = take(&at, 4);
    l.sums_made = take(&at, p->batch * p->kv_heads * 4);
    l.values_made = take(&at, p->batch * p->kv_heads * 4);
    l.leaning = take(&at, 4);
    l.zeroed_end = at;
    l.sequences = take(&at, p->batch * (int64_t)sizeof(mxa_gpu_sequence));
    l.tiles = take(&at, l.tiles_most * (int64_t)sizeof(mxa_gpu_tile));
    l.tile_count = take(&at, 4);
    l.status = take(&at, 4);
    l.partial = take(&at, l.k_rows / MXA_PREPARE_CHUNK * p->kv_heads * p->head_dim_v * 4);
    l.partial_norm = take(&at, l.k_rows / MXA_PREPARE_CHUNK * p->kv_heads * p->head_dim_v * 4);
    l.bytes = at;
    return l;
}

mxa_global mxa_address(const void *memory)
{
    return (mxa_global)(uintptr_t)memory;
}

/* Base, strides and scales of one operand. */
static mxattn_status read_operand(const mxattn_tensor *t, const char *name, mxa_gpu_operand *out)
{
    const int64_t bytes = mxa_dtype_bytes(t->tags.dtype);
    memset(out, 0, sizeof *out);
    if (mxa_address(t->data) % 16 || t->stride[0] * bytes % 16 || t->stride[1] * bytes % 16 ||
        t->stride[2] * bytes % 16) {
        return mxa_fail(
            MXATTN_ALIGNMENT,
            "args.%s is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base "
            "and strides must be multiples of 16 bytes",
            name, t->data, (long long)t->stride[0], (long long)t->stride[1],
            (long long)t->stride[2], (long long)bytes);
    }
    out->data = mxa_address(t->data);
    out->stride_outer = t->stride[0];
    out->stride_token = t->stride[1];
    out->stride_head = t->stride[2];
    out->type = (int32_t)t->tags.dtype;
    out->block = (int32_t)t->tags.block;
    out->rounding = (int32_t)t->tags.rounding;
    const int axis = t->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    const mxattn_scales *scales = &t->scales[axis];
    out->scales = mxa_address(scales->data);
    out->cu_scale = mxa_address(scales->cu_scale);
    out->scale_head = scales->stride_head;
    out->scale_row = scales->stride_row;
    out->scale_k = scales->stride_k;
    out->scale_layout = (int32_t)scales->layout;
    out->scale_axis = axis;
    return MXATTN_OK;
}

static mxattn_status schedule(const mxa_forward_run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_attention_call *call = r->call;
    mxa_schedule_params params;
    memset(&params, 0, sizeof params);
    params.cu_seqlens_q = mxa_address(call->batch_q.cu_seqlens);
    params.cu_seqlens_k = mxa_address(call->batch_k.cu_seqlens);
    params.seqused_q = mxa_address(call->batch_q.seqused);
    params.seqused_k = mxa_address(call->batch_k.seqused);
    params.batch = r->batch.batch;
    params.heads = (int32_t)p->heads;
    params.seqlen_q = (int32_t)call->batch_q.seqlen;
    params.seqlen_k = (int32_t)call->batch_k.seqlen;
    params.total_q = (int32_t)call->total_q;
    params.total_k = (int32_t)call->total_k;
    params.max_seqlen_q = (int32_t)p->max_seqlen_q;
    params.max_seqlen_k = (int32_t)p->max_seqlen_k;
    params.tile_q = r->form->tile_q;
    params.causal = p->window[1] >= 0;
    params.top_left = p->alignment == MXATTN_TOP_LEFT;
    params.sequences = r->batch.sequences;
    params.tiles = r->batch.tiles;
    params.tile_count = r->batch.tile_count;
    params.status = r->batch.status;
    params.caller_status = mxa_address(call->device_status);
    return mxa_cuda_launch(r->device, MXA_KERNEL_SCHEDULE, 1, 1, 1024, call->stream, &params);
}

/* Groups of 32 rows of the private copy that this run fills. */
static int32_t groups_of(const mxa_forward_run *r, int is_k_side)
{
    if (r->batch.sequences) {
        return (int32_t)((is_k_side ? r->at.k_rows : r->at.q_rows) / 32);
    }
    return r->batch.batch * (is_k_side ? r->batch.padded_k : r->batch.padded_q) / 32;
}

static mxattn_status prepare_operand(const mxa_forward_run *r, const mxattn_tensor *tensor,
                                     const char *name, mxa_prepare_params *params)
{
    memset(params, 0, sizeof *params);
    params->batch = r->batch;
    params->is_k_side = name[0] != 'q';
    params->heads = (int32_t)tensor->shape[2];
    params->head_dim = (int32_t)tensor->shape[3];
    params->rows = name[0] == 'q' ? r->at.q_rows : r->at.k_rows;
    params->groups = groups_of(r, params->is_k_side);
    return read_operand(tensor, name, &params->from);
}

static mxa_record_params record_params(const mxa_forward_run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    mxa_record_params params;
    memset(&params, 0, sizeof params);
    params.batch = r->batch;
    params.q_heads = (int32_t)p->heads;
    params.kv_heads = (int32_t)p->kv_heads;
    params.head_dim_v = (int32_t)p->head_dim_v;
    params.rows = r->at.k_rows;
    params.v_exponent = r->base + (uint64_t)r->at.v_exponent;
    params.top = r->base + (uint64_t)r->at.top;
    params.v = r->base + (uint64_t)r->at.v;
    params.records = r->base + (uint64_t)r->at.records;
    params.v_scale = r->base + (uint64_t)r->at.v_scale;
    params.q_norm = r->base + (uint64_t)r->at.q_norm;
    params.k_norm = r->base + (uint64_t)r->at.k_norm;
    params.wide = r->base + (uint64_t)r->at.wide;
    params.bound = (float)(1 << MXA_FORWARD_BOUND_LOG2);
    params.scale_log2e = (float)(p->softmax_scale * 1.4426950408889634);
    return params;
}

static mxattn_status make_records(const mxa_forward_run *r)
{
    const mxa_record_params params = record_params(r);
    return mxa_cuda_launch_early(r->device, MXA_KERNEL_PREPARE_RECORDS,
                                 ((unsigned)groups_of(r, 1) + 31) / 32,
                                 (unsigned)r->plan->problem.kv_heads, 32, r->call->stream, &params);
}

static mxattn_status prepare_params(const mxa_forward_run *r, mxa_prepare_all_params *params)
{
    mxattn_status status = prepare_operand(r, &r->call->q, "q", &params->q);
    if (!status) {
        status = prepare_operand(r, &r->call->k, "k", &params->k);
    }
    if (!status) {
        status = prepare_operand(r, r->v, "v", &params->v);
    }
    params->q.payload = r->base + (uint64_t)r->at.q;
    params->q.scale = r->base + (uint64_t)r->at.q_scale;
    params->q.norm = r->base + (uint64_t)r->at.q_norm;
    params->k.payload = r->base + (uint64_t)r->at.k;
    params->k.scale = r->base + (uint64_t)r->at.records; /* a record's first word */
    params->k.norm = r->base + (uint64_t)r->at.k_norm;
    params->v.payload = r->base + (uint64_t)r->at.v;
    params->v.exponent = r->base + (uint64_t)r->at.v_exponent;
    if (r->v_has_mean) {
        params->v.mean = r->base + (uint64_t)r->at.mean;
        params->v.partial = r->base + (uint64_t)r->at.partial;
        params->v.partial_norm = r->base + (uint64_t)r->at.partial_norm;
    }
    if (r->form->kind == MXA_FORM_BF16) {
        params->v.scale = params->k.scale;
    }
    return status;
}

/* A power of two of threads for a row, at least 8 elements each. */
static unsigned row_threads(const mxattn_attention_problem *p)
{
    const int64_t most = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    return most <= 64 ? 64 : most <= 128 ? 128 : 256;
}

static mxattn_status make_tokens(const mxa_forward_run *r, const mxa_prepare_all_params *params)
{
    const unsigned q = (unsigned)params->q.groups, k = (unsigned)params->k.groups;
    const mxattn_attention_problem *p = &r->plan->problem;
    return mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_TOKENS, ((q > k ? q : k) + 3) / 4,
                           (unsigned)(p->heads + 2 * p->kv_heads), 128, r->call->stream, params);
}

static mxattn_status make_mean(const mxa_forward_run *r, const mxa_prepare_params *v)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    return mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_MEAN, (unsigned)r->batch.batch,
                           (unsigned)p->kv_heads, ((unsigned)p->head_dim_v + 31) / 32 * 32,
                           r->call->stream, v);
}

/* The kernel that makes all copies of these operands, of its instances the one of a head_dim of 64;
 * or MXA_KERNELS. */
static mxa_kernel one_launch(const mxa_forward_run *r)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxattn_tags *tags[] = {&r->call->q.tags, &r->call->k.tags, &r->v->tags};
    const mxattn_dtype type = tags[0]->dtype;
    const int is_bf16 = type == MXATTN_BF16;
    int is_square = 1;
    if ((!is_bf16 && type != MXATTN_E4M3) || p->head_dim != p->head_dim_v) {
        return MXA_KERNELS;
    }
    for (int i = 0; i < 3; i++) {
        if (tags[i]->dtype != type || (!is_bf16 && tags[i]->block == MXATTN_BLOCK_COLUMN)) {
            return MXA_KERNELS;
        }
        is_square = is_square && (tags[i]->block == MXATTN_BLOCK_SQUARE || (is_bf16 && i == 2));
    }
    if (p->head_dim != 64 && p->head_dim != 128 && p->head_dim != 256) {
        return MXA_KERNELS;
    }
    if (is_bf16) {
        return is_square ? MXA_KERNEL_PREPARE_BF16_SQUARE_D64 : MXA_KERNEL_PREPARE_BF16_D64;
    }
    return is_square ? MXA_KERNEL_PREPARE_SQUARE_D64 : MXA_KERNEL_PREPARE_E4M3_D64;
}

static mxattn_status too_many(int64_t items)
{
    return mxa_fail(MXATTN_UNSUPPORTED,
                    "q, k and v have %lld pieces of 128 tokens of a head; a call on cuda takes "
                    "2^31 - 1 at most",
                    (long long)items);
}

/* Rows of a grid of y and z. */
static void fill_rows(int64_t grid[3], int64_t rows)
{
    grid[1] = rows < GRID_ROWS ? rows : GRID_ROWS;
    grid[2] = (rows + GRID_ROWS - 1) / GRID_ROWS;
}

/* Of a CTA that takes 128 tokens of a head. */
static unsigned copy_threads(const mxattn_attention_problem *p)
{
    return p->head_dim > 128 ? 256 : 128;
}

/* The copies, early where they follow the zeros; width: 0, 1, 2 for head dims of 64, 128, 256. */
static mxattn_status copy_at_once(const mxa_forward_run *r, mxa_kernel kernel,
                                  const int64_t grid[3], const mxa_prepare_all_params *params)
{
    const unsigned threads = copy_threads(&r->plan->problem);
    return r->batch.sequences
               ? mxa_cuda_launch_3d(r->device, kernel, grid, threads, r->call->stream, params)
               : mxa_cuda_launch_early_3d(r->device, kernel, grid, threads, r->call->stream,
                                          params);
}

/* The records, and v again where it leans: as many CTAs as there is room for. */
static mxattn_status finish(const mxa_forward_run *r, int width,
                            const mxa_prepare_all_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const mxa_prepare_finish_params all = {*params, record_params(r)};
    const int64_t items = params->v.groups / 4 * p->kv_heads,
                  most = (p->head_dim == 64 ? 8 : 4) * r->device->multiprocessors;
    const int kernel = r->v->tags.dtype == MXATTN_BF16 ? MXA_KERNEL_PREPARE_FINISH_BF16_D64
                                                       : MXA_KERNEL_PREPARE_FINISH_E4M3_D64;
    return mxa_cuda_launch_early(r->device, (mxa_kernel)(kernel + width),
                                 (unsigned)(items < most ? items : most), 1, copy_threads(p),
                                 r->call->stream, &all);
}

static mxattn_status make_at_once(const mxa_forward_run *r, mxa_kernel kernel,
                                  mxa_prepare_all_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const int64_t q_items = (params->q.groups + 3) / 4, chunks = params->v.groups / 4;
    const int64_t group = p->heads / p->kv_heads, rows = 2 * chunks + group * q_items;
    const int width = p->head_dim == 64 ? 0 : p->head_dim == 128 ? 1 : 2;
    int64_t grid[3] = {p->kv_heads, 0, 0};
    fill_rows(grid, rows);
    if (grid[2] > GRID_ROWS || chunks * p->kv_heads > INT32_MAX) {
        return too_many(rows * p->kv_heads);
    }
    params->group = (int32_t)group;
    params->v.top = r->base + (uint64_t)r->at.top;
    params->sums_made = r->base + (uint64_t)r->at.sums_made;
    params->values_made = r->base + (uint64_t)r->at.values_made;
    params->leaning = r->base + (uint64_t)r->at.leaning;
    const mxattn_status status = copy_at_once(r, (mxa_kernel)((int)kernel + width), grid, params);
    return status ? status : r->v_has_mean ? finish(r, width, params) : make_records(r);
}

static mxattn_status make_in_passes(const mxa_forward_run *r, mxa_prepare_all_params *params)
{
    const mxattn_attention_problem *p = &r->plan->problem;
    const unsigned heads = (unsigned)p->kv_heads, threads = row_threads(p);
    const unsigned q = (unsigned)params->q.groups, k = (unsigned)params->k.groups;
    mxattn_status status = mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_OPERANDS, q > k ? q : k,
                                           (unsigned)p->heads + (r->v_has_mean ? 2 : 1) * heads,
                                           threads, r->call->stream, params);
    if (!status && r->v_has_mean) {
        status = make_mean(r, &params->v);
    }
    params->v.top = r->base + (uint64_t)r->at.top; /* and the second means are a correction */
    if (!status) {
        status =
            mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_VALUES, (unsigned)params->v.groups / 4,
                            heads, 4 * threads, r->call->stream, &params->v);
    }
    if (!status && r->v_has_mean) {
        status = make_mean(r, &params->v);
    }
    return status ? status : make_records(r);
}

static mxattn_status make_groups(const mxa_forward_run *r, mxa_prepare_all_params *params)
{
    const mxa_kernel kernel = one_launch(r);
    return kernel == MXA_KERNELS ? make_in_passes(r, params) : make_at_once(r, kernel, params);
}

int mxa_copies_v_has_mean(const mxattn_attention_problem *problem, const mxattn_tensor *v)
{
    return !(v->tags.flags & MXATTN_CENTRED) &&
           (mxa_dtype_is_wide(v->tags.dtype) || problem->max_seqlen_k > MXA_PREPARE_SLANT);
}

mxattn_status mxa_copies_clear_status(const mxa_forward_run *r, int makes_tables)
{
    const mxa_attention_call *call = r->call;
    if (!call->device_status || (makes_tables && r->batch.sequences)) {
        return MXATTN_OK;
    }
    return mxa_cuda_check(r->device->driver->memset_async(mxa_address(call->device_status), 0,
                                                          sizeof *call->device_status,
                                                          call->stream),
                          "cuMemsetD8Async");
}

static mxattn_status make(const mxa_forward_run *r, int makes_tables)
{
    mxa_prepare_all_params params;
    mxattn_status status = prepare_params(r, &params);
    if (!status) {
        const mxa_prepare_zero_params zero = {r->base + (uint64_t)r->at.zeroed,
                                              r->at.zeroed_end - r->at.zeroed};
        status = mxa_cuda_launch(r->device, MXA_KERNEL_PREPARE_ZERO,
                                 (unsigned)((zero.bytes / 16 + ZERO_THREADS - 1) / ZERO_THREADS), 1,
                                 ZERO_THREADS, r->call->stream, &zero);
    }
    if (!status && makes_tables && r->batch.sequences) {
        status = schedule(r);
    }
    if (!status) {
        status = r->form->kind == MXA_FORM_BF16 ? make_tokens(r, &params) : make_groups(r, &params);
    }
    return status;
}

mxattn_status mxa_copies_make(const mxa_forward_run *r)
{
    return make(r, 1);
}

mxattn_status mxa_copies_make_again(const mxa_forward_run *r)
{
    return make(r, 0);
}
