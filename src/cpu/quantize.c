/* quantize.c: quantization on the CPU: strips, tasks, and where scale bytes go.
 *
 * Meaning: mxa_quantize_tensor (mx/tensor.c), equalled byte for byte. Three passes: zeros (tiled
 * scale units, rows of no sequence), means where the tensor is centred, strips.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/quantize.h"

#include "cpu/operations.h"
#include "cpu/parallel_blocks.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"

#include <string.h>

/* A call that reads and writes more is bound by memory and leaves its payload past the caches: a
 * stored line is then not read first, and nothing of it would stay anyway. */
static const int64_t stream_bytes = (int64_t)64 << 20;

enum {
    LINE = 64,
    AHEAD_DIMS = 128, /* squares and columns are worked on so many dims at a time */
    /* WHY: each dim of a transposed payload lies on a page of its own. A range of blocks is written
     * for so many before the next, and the machine still knows where their pages are. A multiple of
     * 128: units of tiled scales. */
    TURNED_DIMS = 512
};

typedef struct quantize_job {
    const mxa_quantize_call *call;
    const mxa_quantize_kernels *kernels;
    int stream;
    int lines;                  /* a transposed payload may be written in lines */
    int64_t pieces, piece_dims; /* of a head's dims */
} quantize_job;

const mxa_quantize_kernels *mxa_quantize_kernels_for(uint32_t isa)
{
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return &mxa_quantize_kernels_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return &mxa_quantize_kernels_avx2;
#endif
    (void)isa;
    return &mxa_quantize_kernels_portable;
}

/* Clears the units of tiled scales of one sequence, heads [head, head_end). */
static void clear_scales(const mxa_quantize_call *call, const mxa_sequence *seq, int64_t b,
                         int64_t head, int64_t head_end)
{
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        const mxattn_scales *scales = &call->quantized.scales[axis];
        for (int64_t h = head; scales->data && h < head_end; h++) {
            mxa_scales_clear(scales, axis, seq, b, h, call->quantized.shape[3]);
        }
    }
}

/* What the walk over blocks never meets: sequences without tokens. */
static void write_empty_sequences(const mxa_quantize_call *call)
{
    const mxattn_tensor *to = &call->quantized;
    int64_t heads = to->shape[2], dims = to->shape[3];
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        mxa_scales_clear_empty(&to->scales[axis], axis, &call->batch, heads, dims);
    }
    mxa_sequence seq;
    memset(&seq, 0, sizeof seq);
    for (int64_t b = 0; (to->tags.flags & MXATTN_CENTRED) && b < call->batch.batch; b++) {
        mxa_sequence_next(&call->batch, b, &seq);
        if (seq.length == 0) {
            memset(to->centre + b * heads * dims, 0, (size_t)(heads * dims) * sizeof(float));
        }
    }
}

/* Rows behind the last sequence of a jagged batch. */
static void clear_tail(const mxa_quantize_call *call)
{
    if (!call->batch.cu_seqlens) {
        return;
    }
    const mxattn_tensor *to = &call->quantized, *turned = &call->transposed;
    int64_t first = call->batch.cu_seqlens[call->batch.batch], rows = to->shape[1];
    for (int64_t row = first; row < rows; row++) {
        for (int64_t head = 0; head < to->shape[2]; head++) {
            memset((uint8_t *)to->data + row * to->stride[1] + head * to->stride[2], 0,
                   (size_t)to->shape[3]);
        }
    }
    for (int64_t at = 0; turned->ndim && first < rows && at < to->shape[2] * to->shape[3]; at++) {
        int64_t head = at / to->shape[3], d = at % to->shape[3];
        memset((uint8_t *)turned->data + head * turned->stride[1] + d * turned->stride[2] + first,
               0, (size_t)(rows - first));
    }
}

static void write_means(const quantize_job *job, const mxa_sequence *seq, int64_t b, int64_t head,
                        int64_t head_end)
{
    const mxattn_tensor *wide = &job->call->wide;
    int64_t dims = wide->shape[3], bytes = mxa_dtype_bytes(wide->tags.dtype);
    for (; head < head_end; head++) {
        float *mean = job->call->quantized.centre + (b * wide->shape[2] + head) * dims;
        for (int64_t d = 0; d < dims; d += MXA_BLOCK) {
            int64_t index = mxa_tensor_index(wide, seq, 0, head, d);
            job->kernels->mean((const char *)wide->data + index * bytes, wide->stride[1],
                               wide->tags.dtype, seq->used,
                               dims - d < MXA_BLOCK ? dims - d : MXA_BLOCK, mean + d);
        }
    }
}

static uint8_t *transposed_at(const mxa_quantize_call *call, const mxa_sequence *seq, int64_t s,
                              int64_t head, int64_t d)
{
    const mxattn_tensor *turned = &call->transposed;
    return (uint8_t *)turned->data + seq->outer * turned->stride[0] + head * turned->stride[1] +
           d * turned->stride[2] + seq->first + s;
}

/* Block `block` of a sequence, `dims` dims from d on, the payload at its place; not `ahead` nor
 * `transposed`. */
static mxa_quantize_strip strip_of(const quantize_job *job, const mxa_block_at *at, int64_t block,
                                   int64_t head, int64_t d, int64_t dims)
{
    const mxa_quantize_call *call = job->call;
    const mxattn_tensor *wide = &call->wide, *to = &call->quantized;
    const mxa_sequence *seq = &at->sequence;
    int64_t s = block * MXA_BLOCK;
    int64_t tokens = seq->length - s, used = seq->used - s;
    const int64_t from = mxa_tensor_index(wide, seq, s, head, d), left = to->shape[3] - d;
    const int64_t bytes = mxa_dtype_bytes(wide->tags.dtype);
    mxa_quantize_strip strip = {
        .wide = (const char *)wide->data + from * bytes,
        .wide_stride = wide->stride[1],
        .payload = (uint8_t *)to->data + mxa_tensor_index(to, seq, s, head, d),
        .payload_stride = to->stride[1],
        .tokens = tokens < MXA_BLOCK ? tokens : MXA_BLOCK,
        .dims = left < dims ? left : dims,
        .wide_dtype = wide->tags.dtype,
        .tags = to->tags,
        .ahead_stride = wide->stride[1] * bytes,
        .stream = job->stream,
    };
    strip.used = used < 0 ? 0 : used < strip.tokens ? used : strip.tokens;
    if (to->tags.flags & MXATTN_CENTRED) {
        strip.centre = to->centre + (at->b * to->shape[2] + head) * to->shape[3] + d;
    }
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        mxa_scale_place *place = &strip.places[axis];
        *place = mxa_scale_place_of(&to->scales[axis], axis, seq, at->b, block, head);
        if (place->data) {
            place->data = mxa_scale_place_at(place, d / MXA_BLOCK, 0);
        }
    }
    return strip;
}

/* Dims [d, d + piece_dims) of a head. ahead: another head follows. */
static void write_strip(const quantize_job *job, const mxa_block_at *at, int64_t head, int64_t d,
                        int ahead)
{
    const mxattn_tensor *wide = &job->call->wide, *turned = &job->call->transposed;
    const int64_t bytes = mxa_dtype_bytes(wide->tags.dtype);
    mxa_quantize_strip strip = strip_of(job, at, at->block, head, d, job->piece_dims);
    if (strip.tags.block != MXATTN_BLOCK_ROW && strip.dims > AHEAD_DIMS) {
        strip.ahead = (const char *)strip.wide + AHEAD_DIMS * bytes;
    } else if (ahead) {
        strip.ahead = (const char *)strip.wide + wide->stride[2] * bytes;
    }
    if (turned->ndim) {
        strip.transposed = transposed_at(job->call, &at->sequence, at->block * MXA_BLOCK, head, d);
        strip.transposed_stride = turned->stride[2];
    }
    job->kernels->strip(&strip);
}

/* ------------------------------------------------------------------------------------------------
 * turns: two or eight blocks at a time, whose transposed rows are whole lines
 * --------------------------------------------------------------------------------------------- */

static int is_line(const void *at, int64_t stride)
{
    return (uintptr_t)at % LINE == 0 && stride % LINE == 0;
}

/* Blocks that are written at once with this one: the aligned turn_blocks of its sequence it is in,
 * as far as its task has them, all of them or a pair; 1 where it is written alone. *first becomes
 * the first of them. */
static int64_t turn_of(const quantize_job *job, const mxa_block_at *at, int64_t head,
                       int64_t *first)
{
    const mxattn_tensor *to = &job->call->quantized;
    const mxa_sequence *seq = &at->sequence;
    const int whole = (to->tags.flags & (MXATTN_FOLDED | MXATTN_FOLDED_TOKEN)) != 0;
    const int64_t even = (at->block & ~(int64_t)1) * MXA_BLOCK;
    *first = at->block;
    if (whole || to->shape[3] % LINE != 0 ||
        !is_line((uint8_t *)to->data + mxa_tensor_index(to, seq, even, head, 0), to->stride[1]) ||
        !is_line(transposed_at(job->call, seq, even, head, 0), job->call->transposed.stride[2]))
        return 1;
    for (int64_t count = job->kernels->turn_blocks; count > 1; count = count > 2 ? 2 : 1) {
        const int64_t block = at->block / count * count;
        if (at->block - block <= at->before && block + count - at->block <= at->left &&
            (block + count) * MXA_BLOCK <= seq->length) {
            *first = block;
            return count;
        }
    }
    return 1;
}

/* Dims [d, d + piece_dims) of a head, of `count` blocks from this one on. */
static void write_turn(const quantize_job *job, const mxa_block_at *at, int64_t count, int64_t head,
                       int64_t d)
{
    const int64_t bytes = mxa_dtype_bytes(job->call->wide.tags.dtype), s = at->block * MXA_BLOCK;
    const int64_t dims = job->call->quantized.shape[3];
    const int64_t end = dims < d + job->piece_dims ? dims : d + job->piece_dims;
    _Alignas(LINE) uint8_t codes[MXA_TURN_BLOCKS_MOST * MXA_BLOCK * AHEAD_DIMS];
    for (; d < end; d += AHEAD_DIMS) {
        mxa_quantize_turn turn = {
            .codes = codes,
            .tokens = count * MXA_BLOCK,
            .payload_stride = job->call->quantized.stride[1],
            .transposed = transposed_at(job->call, &at->sequence, s, head, d),
            .transposed_stride = job->call->transposed.stride[2],
        };
        for (int64_t i = 0; i < count; i++) {
            mxa_quantize_strip strip = strip_of(job, at, at->block + i, head, d, AHEAD_DIMS);
            if (i == 0) {
                turn.payload = strip.payload;
                turn.dims = strip.dims;
            }
            strip.payload = codes + i * MXA_BLOCK * AHEAD_DIMS;
            strip.payload_stride = AHEAD_DIMS;
            strip.stream = 0;
            if (d + AHEAD_DIMS < end) {
                strip.ahead = (const char *)strip.wide + AHEAD_DIMS * bytes;
            }
            job->kernels->strip(&strip);
        }
        job->kernels->turn(&turn);
    }
}

/* Pass 1: what a sequence needs before its strips, at its first block. */
static void begin_sequence(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const quantize_job *job = arg;
    if (at->block == 0) {
        clear_scales(job->call, &at->sequence, at->b, head, head_end);
        if (job->call->quantized.tags.flags & MXATTN_CENTRED) {
            write_means(job, &at->sequence, at->b, head, head_end);
        }
    }
}

/* Pass 2, of pieces of heads. */
static void write_strips(void *arg, const mxa_block_at *at, int64_t piece, int64_t piece_end)
{
    const quantize_job *job = arg;
    for (; piece < piece_end; piece++) {
        const int64_t head = piece / job->pieces, d = piece % job->pieces * job->piece_dims;
        int64_t first = at->block;
        const int64_t count = job->lines ? turn_of(job, at, head, &first) : 1;
        if (count == 1) {
            write_strip(job, at, head, d, job->pieces == 1 && piece + 1 < piece_end);
        } else if (at->block == first) {
            write_turn(job, at, count, head, d);
        }
    }
    if (job->stream) {
        job->kernels->drain();
    }
}

/* 1 when pass 1 has work. */
static int needs_sequences(const mxattn_tensor *quantized)
{
    int needed = (quantized->tags.flags & MXATTN_CENTRED) != 0;
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        const mxattn_scales *scales = &quantized->scales[axis];
        needed |= scales->data && scales->layout == MXATTN_TILED;
    }
    return needed;
}

void mxa_quantize_begin(const mxattn_context *context, const mxa_quantize_call *call)
{
    quantize_job job = {.call = call, .kernels = mxa_quantize_kernels_for(context->isa)};
    if (needs_sequences(&call->quantized)) {
        write_empty_sequences(call);
        mxa_parallel_blocks(context, &call->batch, call->quantized.shape[2],
                            call->quantized.shape[3], begin_sequence, &job);
    }
    clear_tail(call);
}

mxattn_status mxa_cpu_quantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    const mxattn_tensor *wide = &call->wide;
    const int64_t dims = wide->shape[3];
    const int64_t elements = wide->shape[0] * wide->shape[1] * wide->shape[2] * wide->shape[3];
    quantize_job job = {
        .call = call,
        .kernels = mxa_quantize_kernels_for(context->isa),
        .stream = elements * (1 + mxa_dtype_bytes(wide->tags.dtype)) > stream_bytes,
    };
    job.lines = job.stream && call->transposed.ndim;
    const int whole = (call->quantized.tags.flags & (MXATTN_FOLDED | MXATTN_FOLDED_TOKEN)) != 0;
    job.piece_dims = call->transposed.ndim && !whole && dims > TURNED_DIMS ? TURNED_DIMS : dims;
    job.pieces = job.piece_dims ? (dims + job.piece_dims - 1) / job.piece_dims : 1;
    mxa_quantize_begin(context, call);
    mxa_parallel_runs(context, &call->batch, job.lines ? job.kernels->turn_blocks : 2,
                      call->quantized.shape[2] * job.pieces, job.piece_dims, write_strips, &job);
    return MXATTN_OK;
}

mxattn_status mxa_cpu_quantize_workspace(const mxattn_context *context,
                                         const mxa_quantize_call *call, size_t *workspace_bytes)
{
    (void)context;
    (void)call;
    *workspace_bytes = 0;
    return MXATTN_OK;
}
