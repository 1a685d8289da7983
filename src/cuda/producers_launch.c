/* producers_launch.c: what a producer's call becomes: kernel, grid, threads, parameters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/producers_launch.h"

#include "mx/element.h"
#include "status.h"

#include <string.h>

enum { TILE = 128, MERGE_THREADS = 256, SCALES_THREADS = 128, GRID_ROWS = 65535 };

static mxa_global address(const void *memory)
{
    return (mxa_global)(uintptr_t)memory;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Base and strides in multiples of 16 bytes, as the kernels' loads need them. */
static mxattn_status check_alignment(const char *name, const mxattn_tensor *t)
{
    const int64_t bytes = mxa_dtype_bytes(t->tags.dtype);
    int aligned = address(t->data) % 16 == 0;
    for (int i = 0; i < 3; i++) {
        aligned &= t->shape[i] <= 1 || t->stride[i] * bytes % 16 == 0;
    }
    if (aligned) {
        return MXATTN_OK;
    }
    return mxa_fail(MXATTN_ALIGNMENT,
                    "%s is at %p with strides %lld, %lld, %lld of %lld bytes; on cuda base and "
                    "strides must be multiples of 16 bytes",
                    name, t->data, (long long)t->stride[0], (long long)t->stride[1],
                    (long long)t->stride[2], (long long)bytes);
}

static mxattn_status check_scales(const char *name, const mxattn_scales *scales)
{
    if (scales->data && scales->layout == MXATTN_TILED && address(scales->data) % 512) {
        return mxa_fail(MXATTN_ALIGNMENT,
                        "%s is at %p; on cuda tiled scales must be at a multiple of 512 bytes",
                        name, (void *)scales->data);
    }
    return MXATTN_OK;
}

/* Grid x, and `rows` things as y and z. */
static mxattn_status set_grid(mxa_producer_launch *launch, int64_t x, int64_t rows)
{
    launch->grid[0] = x;
    launch->grid[1] = rows < GRID_ROWS ? rows : GRID_ROWS;
    launch->grid[2] = ceil_div(rows, GRID_ROWS);
    if (x > INT32_MAX || launch->grid[2] > GRID_ROWS) {
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "the tensor has %lld tiles of tokens by %lld of heads and dims; a call on "
                        "cuda takes 2^31 - 1 of each at most",
                        (long long)rows, (long long)x);
    }
    return MXATTN_OK;
}

/* What multiplication divides by d, at least 1: n * ceil(2^(31+s) / d) >> (31+s), 2^s the next
 * power of two, is off by less than n / 2^31 of a quotient's step. */
static mxa_divisor divisor_of(int64_t d)
{
    uint32_t s = 0;
    while ((INT64_C(1) << s) < d) {
        s++;
    }
    const uint64_t power = UINT64_C(1) << (31 + s), divisor = (uint64_t)d;
    const mxa_divisor made = {(uint32_t)d, (uint32_t)((power + divisor - 1) / divisor), 31 + s};
    return made;
}

static mxa_gpu_view view_of(const mxattn_tensor *t)
{
    const mxa_gpu_view view = {address(t->data), t->stride[0], t->stride[1], t->stride[2]};
    return view;
}

/* (B, H, S) rows, as (outer, token, head). */
static mxa_gpu_view rows_of(const mxattn_tensor *t)
{
    const mxa_gpu_view view = {address(t->data), t->stride[0], t->stride[2], t->stride[1]};
    return view;
}

static mxa_gpu_scales scales_of(const mxattn_scales *from)
{
    const mxa_gpu_scales scales = {address(from->data), from->stride_head,     from->stride_row,
                                   from->stride_k,      (int32_t)from->layout, 0};
    return scales;
}

/* A batch, `total` its tokens with storage where it is jagged. Tiles: each sequence fills its last
 * one in part; one more takes what belongs to no sequence. */
static mxa_gpu_sequences sequences_of(const mxa_batch *batch, int64_t total,
                                      const int32_t *cu_scale_hdim, const int32_t *cu_scale_seq,
                                      const uint32_t *status)
{
    mxa_gpu_sequences s;
    memset(&s, 0, sizeof s);
    s.cu_seqlens = address(batch->cu_seqlens);
    s.seqused = address(batch->seqused);
    s.cu_scale[MXATTN_HDIM] = address(cu_scale_hdim);
    s.cu_scale[MXATTN_SEQ] = address(cu_scale_seq);
    s.status = address(status);
    s.batch = (int32_t)batch->batch;
    s.seqlen = (int32_t)batch->seqlen;
    s.total = (int32_t)total;
    s.walk = s.cu_seqlens || s.seqused || cu_scale_hdim || cu_scale_seq;
    const int64_t tiles = batch->cu_seqlens ? total / TILE + batch->batch + 1
                                            : batch->batch * ceil_div(batch->seqlen, TILE);
    s.tiles = (int32_t)(tiles < INT32_MAX ? tiles : INT32_MAX);
    s.rows = s.tiles < GRID_ROWS ? s.tiles : GRID_ROWS;
    s.tiles_each = divisor_of(batch->seqlen > 0 ? ceil_div(batch->seqlen, TILE) : 1);
    return s;
}

/* What quantize and dequantize share. */
static mxattn_status fill(const mxa_quantize_call *call, mxa_producer_launch *launch)
{
    const mxattn_tensor *to = &call->quantized;
    mxa_quantize_params *p = &launch->params.quantize;
    memset(launch, 0, sizeof *launch);
    p->batch = sequences_of(&call->batch, to->shape[1], to->scales[MXATTN_HDIM].cu_scale,
                            to->scales[MXATTN_SEQ].cu_scale, call->device_status);
    p->wide = view_of(&call->wide);
    p->payload = view_of(to);
    p->scales[MXATTN_HDIM] = scales_of(&to->scales[MXATTN_HDIM]);
    p->scales[MXATTN_SEQ] = scales_of(&to->scales[MXATTN_SEQ]);
    p->centre = to->tags.flags & MXATTN_CENTRED ? address(to->centre) : 0;
    p->heads = (int32_t)to->shape[2];
    p->head_dim = (int32_t)to->shape[3];
    p->chunks = divisor_of(to->shape[3] > 0 ? ceil_div(to->shape[3], TILE) : 1);
    p->type = (int32_t)to->tags.dtype;
    p->wide_type = (int32_t)call->wide.tags.dtype;
    p->block = (int32_t)to->tags.block;
    p->floor_rule = to->tags.rounding == MXATTN_FLOOR;
    p->folded = (to->tags.flags & (MXATTN_FOLDED | MXATTN_FOLDED_TOKEN)) != 0;
    launch->threads = 128 * (unsigned)(p->head_dim >= 128 ? 4 : ceil_div(p->head_dim, 32));
    const int64_t units = p->head_dim ? p->heads * (int64_t)p->chunks.divisor : 0;
    mxattn_status status = set_grid(launch, units, p->batch.tiles);
    if (!status) {
        status = check_alignment("quantized", to);
    }
    if (!status) {
        status = check_alignment("wide", &call->wide);
    }
    if (!status) {
        status = check_scales("quantized.scales[hdim]", &to->scales[MXATTN_HDIM]);
    }
    if (!status) {
        status = check_scales("quantized.scales[seq]", &to->scales[MXATTN_SEQ]);
    }
    return status;
}

/* The kernel, and how many blocks a warp of it takes. */
static mxa_kernel quantize_kernel(const mxa_quantize_params *p, unsigned *blocks)
{
    *blocks = 1;
    if (p->centre || p->head_dim % 8 || (p->folded && p->wide_type != MXA_GPU_BF16)) {
        return MXA_KERNEL_QUANTIZE_ANY;
    }
    *blocks = p->wide_type == MXA_GPU_F32 ? 1 : 2;
    if (p->folded) {
        return MXA_KERNEL_QUANTIZE_BF16_FOLDED;
    }
    return (mxa_kernel)(MXA_KERNEL_QUANTIZE_F32_ROW + 3 * (p->wide_type - MXA_GPU_F32) + p->block -
                        MXA_GPU_ROW);
}

mxattn_status mxa_launch_of_quantize(const mxa_quantize_call *call, mxa_producer_launch launches[2],
                                     int *count)
{
    const mxattn_tensor *turned = &call->transposed;
    mxa_producer_launch *launch = launches;
    mxa_quantize_params *p = &launch->params.quantize;
    *count = 0;
    mxattn_status status = fill(call, launch);
    if (status) {
        return status;
    }
    if (turned->ndim) {
        p->transposed = address(turned->data);
        p->transposed_outer = turned->stride[0];
        p->transposed_head = turned->stride[1];
        p->transposed_dim = turned->stride[2];
    }
    if (p->centre) {
        launches[1] = launches[0];
        launch->kernel = MXA_KERNEL_QUANTIZE_MEAN;
        launch->threads = 128;
        status = set_grid(launch, launch->grid[0], p->batch.batch);
        p->batch.rows = (int32_t)launch->grid[1];
        (*count)++;
        launch++;
    }
    unsigned blocks;
    launch->kernel = quantize_kernel(&launch->params.quantize, &blocks);
    launch->threads /= blocks;
    (*count)++;
    return status;
}

mxattn_status mxa_launch_of_dequantize(const mxa_quantize_call *call, mxa_producer_launch *launch)
{
    mxattn_status status = fill(call, launch);
    const mxa_quantize_params *p = &launch->params.quantize;
    const int plain = p->scales[MXATTN_HDIM].data && !p->centre && p->head_dim % 8 == 0;
    launch->kernel =
        plain ? (mxa_kernel)(MXA_KERNEL_DEQUANTIZE_F32 + p->wide_type - (int32_t)MXATTN_F32)
              : MXA_KERNEL_DEQUANTIZE;
    launch->threads /= 2; /* two blocks a warp */
    return status;
}

/* Whether a unit's sixteen blocks are read as four words at most. */
static int units_are_words(const mxa_scales_call *call)
{
    const mxattn_scales *from = &call->from;
    return call->head_dim % TILE == 0 &&
           (from->layout == MXATTN_TILED ||
            (from->layout == MXATTN_COMPACT && from->stride_k == 1 &&
             address(from->data) % 4 == 0 && from->stride_row % 4 == 0 &&
             (call->heads == 1 || from->stride_head % 4 == 0)));
}

/* Transforms are of square blocks, and so are compact scales: any byte of a block will do. */
static mxa_kernel scales_kernel(const mxa_scales_call *call, int is_dense, int rows_of_units)
{
    const int is_turned = call->from_axis != call->to_axis;
    if (is_dense && is_turned && call->from.layout == MXATTN_TILED &&
        call->to.layout == MXATTN_TILED && units_are_words(call)) {
        return MXA_KERNEL_SCALES_RUNS;
    }
    if (call->to.layout == MXATTN_TILED && (is_turned || call->from.layout == MXATTN_COMPACT)) {
        return units_are_words(call) ? MXA_KERNEL_SCALES_REPEAT : MXA_KERNEL_SCALES_SPREAD;
    }
    return call->to.layout == MXATTN_TILED && rows_of_units && call->from_axis == MXATTN_SEQ
               ? MXA_KERNEL_SCALES_SEQ
               : MXA_KERNEL_SCALES_MOVE;
}

mxattn_status mxa_launch_of_scales(const mxa_scales_call *call, mxa_producer_launch *launch)
{
    mxa_scales_params *p = &launch->params.scales;
    memset(launch, 0, sizeof *launch);
    const int from_hdim = call->from_axis == MXATTN_HDIM, to_hdim = call->to_axis == MXATTN_HDIM;
    const int32_t *hdim = to_hdim ? call->to.cu_scale : from_hdim ? call->from.cu_scale : NULL;
    const int32_t *seq = !to_hdim ? call->to.cu_scale : !from_hdim ? call->from.cu_scale : NULL;
    p->batch = sequences_of(&call->batch, call->tokens, hdim, seq, call->device_status);
    p->from = scales_of(&call->from);
    p->to = scales_of(&call->to);
    p->from_axis = (int32_t)call->from_axis;
    p->to_axis = (int32_t)call->to_axis;
    p->head_dim = (int32_t)call->head_dim;
    p->chunks = divisor_of(call->head_dim > 0 ? ceil_div(call->head_dim, TILE) : 1);
    const int64_t units = call->head_dim ? call->heads * (int64_t)p->chunks.divisor : 0;
    p->units = (int32_t)(units < INT32_MAX ? units : INT32_MAX);
    /* Unit u is word u of a row of hdim scales, or 128 bytes of one of seq scales; sixteen a group.
     */
    const int64_t unit_bytes = from_hdim ? 4 : TILE;
    p->rows_of_units =
        call->from.layout == MXATTN_LINEAR && call->head_dim % TILE == 0 &&
        call->from.stride_k == 1 &&
        (call->heads == 1 || call->from.stride_head == call->head_dim / TILE * unit_bytes) &&
        units % MXA_SCALES_UNITS == 0 && p->from.data % 16 == 0 && call->from.stride_row % 16 == 0;
    launch->kernel = scales_kernel(call, !p->batch.walk, p->rows_of_units);
    p->rows_of_units &= from_hdim;
    launch->threads = SCALES_THREADS;
    const int each =
        launch->kernel == MXA_KERNEL_SCALES_REPEAT ? MXA_SCALES_REPEATED : MXA_SCALES_UNITS;
    mxattn_status status =
        launch->kernel == MXA_KERNEL_SCALES_RUNS
            ? set_grid(launch, ceil_div(p->batch.tiles, MXA_SCALES_REPEATED), units)
            : set_grid(launch, ceil_div(units, each), p->batch.tiles);
    if (!status) {
        status = check_scales("from", &call->from);
    }
    if (!status) {
        status = check_scales("to", &call->to);
    }
    return status;
}

mxattn_status mxa_launch_of_merge(const mxa_merge_call *call, mxa_producer_launch *launch)
{
    mxa_merge_params *p = &launch->params.merge;
    memset(launch, 0, sizeof *launch);
    p->a = view_of(&call->o_a);
    p->b = view_of(&call->o_b);
    p->o = view_of(&call->o);
    p->lse_a = rows_of(&call->lse_a);
    p->lse_b = rows_of(&call->lse_b);
    if (call->lse.ndim) {
        p->lse = rows_of(&call->lse);
    }
    p->type_a = (int32_t)call->o_a.tags.dtype;
    p->type_b = (int32_t)call->o_b.tags.dtype;
    p->type_o = (int32_t)call->o.tags.dtype;
    p->heads = (int32_t)call->o.shape[2];
    p->head_dim = (int32_t)call->o.shape[3];
    p->seqlen = call->o.shape[1];
    p->rows = call->o.shape[0] * call->o.shape[1] * call->o.shape[2];
    launch->kernel = MXA_KERNEL_STATES_MERGE;
    launch->threads = MERGE_THREADS;
    return set_grid(launch, ceil_div(p->rows, MERGE_THREADS / 32), 1);
}
