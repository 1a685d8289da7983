/* norm.c: RMSNorm with quantization, and its backward, on the CPU.
 *
 * Meaning: ref/norm.c; forward is equalled byte for byte. A block of 32 tokens of a head is worked
 * on at once: the squares of its rows are summed, then the rows are divided and quantized by one
 * kernel (norm_body.h) or, where they are turned, rounded or folded between, piece by piece while
 * those lie in the first cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/norm.h"

#include "cpu/operations.h"
#include "cpu/parallel.h"
#include "cpu/piece.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/tensor.h"

#include <string.h>

enum {
    PIECE_ELEMENTS = 4096, /* FP32 between arithmetic and quantization: 16 KiB */
    SQUARE_DIMS = 256,     /* of 32 rows: 32 KiB; a multiple of 128, as a unit of tiled scales */
    WORKSPACE_ALIGNMENT = 256,
    AHEAD_BYTES = 256 << 10, /* no further: it must stay in the second cache until it is read */
    STREAM_BYTES = 64 << 20  /* as quantize.c has it */
};

static int64_t round_up(int64_t bytes)
{
    return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- forward ------------------------------------------------------------------------------- */

mxa_norm_kernel mxa_norm_kernel_for(uint32_t isa)
{
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return mxa_norm_strip_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return mxa_norm_strip_avx2;
#endif
    (void)isa;
    return mxa_norm_strip_portable;
}

typedef struct norm_job {
    const mxa_rmsnorm_call *call;
    const mxa_row_kernels *rows;
    const mxa_quantize_kernels *quantize;
    int64_t group; /* tokens at once */
    int64_t dims;  /* of a piece */
    int64_t buffer_bytes;
    mxa_norm_kernel fused; /* NULL: y is quantized piece by piece */
    float *paired;         /* weights (rows.h); workspace begins with them */
    char *buffers;
    /* Bytes of x to what is asked for ahead. Few rows: the next ones, by division. 32 rows: the
     * next row, by the sum of squares; as many more would put these out of the second cache. */
    int64_t ahead, ahead_of_sum;
    int stream, stream_wide; /* y, y_wide pass by the caches */
} norm_job;

static int64_t elements_of(const mxattn_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Whole lines of BF16 only. */
static int may_stream(const mxattn_tensor *t)
{
    enum { LINE = 64, LINE_ELEMENTS = LINE / 2 };
    int may = t->ndim && (uintptr_t)t->data % LINE == 0 && t->shape[3] % LINE_ELEMENTS == 0;
    for (int i = 0; i < 3; i++)
        may &= t->stride[i] % LINE_ELEMENTS == 0;
    return may;
}

static int64_t paired_bytes(int64_t dims)
{
    return round_up((dims + MXA_NORM_PAIRED - 1) / MXA_NORM_PAIRED * MXA_NORM_PAIRED *
                    (int64_t)sizeof(float));
}

/* Rows whose scales are their own are taken few at a time, so that memory is read and written in
 * order; a square or column needs 32. */
static norm_job norm_job_of(const mxattn_context *context, const mxa_rmsnorm_call *call)
{
    const int64_t dims = call->x.shape[3];
    const int whole = call->rope.cosine != NULL ||
                      (call->y.tags.flags & (MXATTN_FOLDED | MXATTN_FOLDED_TOKEN)) != 0;
    const int rows = !call->y.ndim || call->y.tags.block == MXATTN_BLOCK_ROW;
    norm_job job = {.call = call,
                    .rows = mxa_row_kernels_for(context->isa),
                    .quantize = mxa_quantize_kernels_for(context->isa),
                    .group = MXA_BLOCK};
    while (rows && job.group > 1 && job.group * dims > PIECE_ELEMENTS)
        job.group /= 2;
    job.dims = rows ? PIECE_ELEMENTS / job.group : SQUARE_DIMS;
    if (whole || job.dims > dims)
        job.dims = dims;
    job.buffer_bytes = round_up(job.group * job.dims * (int64_t)sizeof(float));
    job.paired = call->workspace;
    job.buffers = (char *)call->workspace + paired_bytes(dims);
    if (!whole && !call->round_to_bf16 && dims % MXA_BLOCK == 0 &&
        (rows || call->y.tags.block == MXATTN_BLOCK_SQUARE))
        job.fused = mxa_norm_kernel_for(context->isa);
    const int64_t row_bytes = call->x.stride[1] * mxa_dtype_bytes(call->x.tags.dtype);
    if (rows && job.group * row_bytes <= AHEAD_BYTES)
        job.ahead = job.group * row_bytes;
    job.ahead_of_sum = rows ? 0 : row_bytes;
    const int large =
        elements_of(&call->x) * (1 + mxa_dtype_bytes(call->x.tags.dtype)) > STREAM_BYTES;
    job.stream = large;
    job.stream_wide = large && may_stream(&call->y_wide);
    return job;
}

int64_t mxa_cpu_rmsnorm_workspace(const mxattn_context *context, const mxa_rmsnorm_call *call)
{
    mxa_rmsnorm_call at_zero = *call;
    at_zero.workspace = NULL;
    return paired_bytes(call->x.shape[3]) +
           norm_job_of(context, &at_zero).buffer_bytes * mxa_parallel_workers(context);
}

/* 1 where rows need no FP32 between division and output: not turned, nothing but BF16 and MXFP8 to
 * write, and a factor that is no power of two times another. */
static int words_suffice(const mxa_rmsnorm_call *call, const mxa_rms_scale *scales, int64_t used)
{
    int suffice =
        !call->rope.cosine && (!call->y_wide.ndim || call->y_wide.tags.dtype == MXATTN_BF16);
    for (int64_t t = 0; suffice && t < used; t++)
        suffice = scales[t].prescale == 1.0F;
    return suffice;
}

/* Rows of a piece as BF16, to y_wide or a buffer. */
static void divide_to_bf16(const norm_job *job, const mxa_piece *piece, const mxa_rms_scale *scales,
                           int64_t ahead, uint16_t *buffer)
{
    const mxa_rmsnorm_call *call = job->call;
    const mxa_sequence *seq = &piece->at->sequence;
    const int64_t s = piece->at->block * MXA_BLOCK + piece->token;
    for (int64_t t = 0; t < piece->used; t++) {
        uint16_t *out =
            buffer ? buffer + t * piece->stride
                   : (void *)mxa_element_of(&call->y_wide, seq, s + t, piece->head, piece->dim);
        job->rows->divide_bf16(mxa_element_of(&call->x, seq, s + t, piece->head, piece->dim),
                               call->x.tags.dtype, piece->dims, &scales[t],
                               job->paired + piece->dim, ahead, out, !buffer && job->stream_wide);
    }
}

/* All dims at once. */
static void write_fused(const norm_job *job, const mxa_piece *piece, const mxa_rms_scale *scales)
{
    const mxa_rmsnorm_call *call = job->call;
    const mxa_sequence *seq = &piece->at->sequence;
    const int64_t s = piece->at->block * MXA_BLOCK + piece->token;
    mxa_norm_strip strip = {
        .x = mxa_element_of(&call->x, seq, s, piece->head, 0),
        .x_stride = call->x.stride[1],
        .x_dtype = call->x.tags.dtype,
        .scales = scales,
        .weight = call->weight,
        .paired = job->paired,
        .ahead = job->ahead,
        .payload = (uint8_t *)call->y.data + mxa_tensor_index(&call->y, seq, s, piece->head, 0),
        .payload_stride = call->y.stride[1],
        .tokens = piece->tokens,
        .used = piece->used,
        .dims = call->x.shape[3],
        .tags = call->y.tags,
        .stream = job->stream,
    };
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        strip.places[axis] = mxa_piece_scales(&call->y, axis, piece);
    job->fused(&strip);
}

/* Dims [d, d + dims) of tokens that are in use, and what becomes of them. */
static void write_piece(const norm_job *job, const mxa_piece *piece, float *buffer,
                        const mxa_rms_scale *scales)
{
    const mxa_rmsnorm_call *call = job->call;
    const mxa_row_kernels *rows = job->rows;
    const mxa_sequence *seq = &piece->at->sequence;
    const int64_t s = piece->at->block * MXA_BLOCK + piece->token;
    for (int64_t t = 0; t < piece->used; t++) {
        float *row = buffer + t * piece->stride;
        rows->divide(mxa_element_of(&call->x, seq, s + t, piece->head, piece->dim),
                     call->x.tags.dtype, piece->dims, &scales[t],
                     call->weight ? call->weight + piece->dim : NULL, row);
        mxa_rows_rotate(rows, &call->rope, s + t, row);
        if (call->y_wide.ndim)
            rows->narrow(row, piece->dims, call->y_wide.tags.dtype,
                         (void *)mxa_element_of(&call->y_wide, seq, s + t, piece->head, piece->dim),
                         0);
        if (call->round_to_bf16)
            rows->round_bf16(row, piece->dims);
    }
    if (call->y.ndim)
        mxa_quantize_piece(job->quantize, piece, &call->y);
}

static void write_group(const norm_job *job, mxa_piece piece, float *buffer)
{
    const mxa_rmsnorm_call *call = job->call;
    const mxa_sequence *seq = &piece.at->sequence;
    const int64_t heads = call->x.shape[2], dims = call->x.shape[3];
    const int64_t s = piece.at->block * MXA_BLOCK + piece.token;
    mxa_rms_scale scales[MXA_BLOCK];
    int zeros = 1; /* which BF16 holds, and cut words would leave to FP32 */
    for (int64_t t = 0; t < piece.tokens; t++) {
        scales[t] = (mxa_rms_scale){0};
        if (t < piece.used) {
            const double sum =
                job->rows->squares(mxa_element_of(&call->x, seq, s + t, piece.head, 0),
                                   call->x.tags.dtype, dims, job->ahead_of_sum);
            scales[t] = mxa_rms_scale_of(sum, dims, call->eps);
            zeros &= sum == 0.0;
        } else {
            mxa_clear_row(&call->y_wide, seq, s + t, piece.head);
        }
        if (call->rstd)
            call->rstd[(seq->token + s + t) * heads + piece.head] = scales[t].rstd;
    }
    const int words = words_suffice(call, scales, piece.used);
    const int bf16 = words && (call->round_to_bf16 || zeros);
    if (words && call->y_wide.ndim) {
        piece.dims = dims;
        divide_to_bf16(job, &piece, scales, job->ahead, NULL);
    }
    if (words && !call->y.ndim)
        return;
    if (words && !bf16 && job->fused) {
        write_fused(job, &piece, scales);
        return;
    }
    for (piece.dim = 0; piece.dim < dims; piece.dim += job->dims) {
        piece.dims = smaller(job->dims, dims - piece.dim);
        if (bf16) {
            divide_to_bf16(job, &piece, scales, job->ahead, (void *)buffer);
            mxa_quantize_piece_bf16(job->quantize, &piece, &call->y, job->stream);
        } else {
            write_piece(job, &piece, buffer, scales);
        }
    }
}

static void norm_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const norm_job *job = arg;
    float *buffer = (void *)(job->buffers + at->worker * job->buffer_bytes);
    const int64_t s = at->block * MXA_BLOCK;
    const int64_t tokens = smaller(at->sequence.length - s, MXA_BLOCK);
    for (; head < head_end; head++)
        for (int64_t token = 0; token < tokens; token += job->group) {
            const int64_t used = at->sequence.used - s - token;
            mxa_piece piece = {.at = at,
                               .head = head,
                               .token = token,
                               .tokens = smaller(job->group, tokens - token),
                               .values = buffer,
                               .stride = job->dims};
            piece.used = used < 0 ? 0 : smaller(used, piece.tokens);
            write_group(job, piece, buffer);
        }
    if (job->stream)
        job->quantize->drain();
}

mxattn_status mxa_cpu_rmsnorm_quantize(const mxattn_context *context, const mxa_rmsnorm_call *call)
{
    norm_job job = norm_job_of(context, call);
    const int64_t heads = call->x.shape[2], rows = call->x.shape[0] * call->x.shape[1];
    if (call->y.ndim) {
        const mxa_quantize_call begin = {.quantized = call->y, .batch = call->batch};
        mxa_quantize_begin(context, &begin);
    }
    mxa_clear_rows_behind(&call->y_wide, &call->batch);
    if (call->rstd && call->batch.cu_seqlens) {
        const int64_t first = call->batch.cu_seqlens[call->batch.batch];
        memset(call->rstd + first * heads, 0, (size_t)((rows - first) * heads) * sizeof(float));
    }
    job.rows->pair_weights(call->weight, call->x.shape[3], job.paired);
    mxa_parallel_blocks(context, &call->batch, heads, call->x.shape[3], norm_block, &job);
    return MXATTN_OK;
}

/* ---- backward ------------------------------------------------------------------------------ */

typedef struct backward_job {
    const mxa_rmsnorm_backward_call *call;
    const mxa_row_kernels *rows;
    const mxa_quantize_kernels *quantize;
    mxa_dequantize_kernel dequantize;
    int64_t group;
    int64_t buffer_bytes; /* of x, and once more of dy */
    float *dweight;       /* (MXA_RANGES_MOST, D): each range of blocks has its own sum */
    char *buffers;
} backward_job;

static int is_fp8(const mxattn_tensor *tensor)
{
    return tensor->ndim && mxa_dtype_is_fp8(tensor->tags.dtype);
}

static backward_job backward_job_of(const mxattn_context *context,
                                    const mxa_rmsnorm_backward_call *call)
{
    const int64_t dims = call->x.shape[3];
    const int blocks = is_fp8(&call->x) || is_fp8(&call->dy) || call->dx_quantized.ndim;
    backward_job job = {.call = call,
                        .rows = mxa_row_kernels_for(context->isa),
                        .quantize = mxa_quantize_kernels_for(context->isa),
                        .dequantize = mxa_dequantize_kernel_for(context->isa),
                        .group = blocks ? MXA_BLOCK : 1};
    job.buffer_bytes = round_up(job.group * dims * (int64_t)sizeof(float));
    job.dweight = call->workspace;
    job.buffers = (char *)call->workspace;
    if (call->dweight)
        job.buffers += round_up(MXA_RANGES_MOST * dims * (int64_t)sizeof(float));
    return job;
}

int64_t mxa_cpu_rmsnorm_backward_workspace(const mxattn_context *context,
                                           const mxa_rmsnorm_backward_call *call)
{
    mxa_rmsnorm_backward_call at_zero = *call;
    at_zero.workspace = NULL;
    const int64_t sums =
        call->dweight ? round_up(MXA_RANGES_MOST * call->x.shape[3] * (int64_t)sizeof(float)) : 0;
    return sums +
           2 * backward_job_of(context, &at_zero).buffer_bytes * mxa_parallel_workers(context);
}

/* x and dy of tokens in use become u and dx. */
static void group_backward(const backward_job *job, const mxa_piece *x, const mxa_piece *dy)
{
    const mxa_rmsnorm_backward_call *call = job->call;
    const mxa_row_kernels *rows = job->rows;
    const mxa_sequence *seq = &x->at->sequence;
    const int64_t heads = call->x.shape[2], dims = call->x.shape[3];
    mxa_load_piece(job->dequantize, rows, &call->x, x);
    mxa_load_piece(job->dequantize, rows, &call->dy, dy);
    for (int64_t t = 0; t < x->used; t++) {
        const int64_t s = x->at->block * MXA_BLOCK + x->token + t;
        const float rstd = call->rstd[(seq->token + s) * heads + x->head];
        const float factor = call->normalised ? 1.0F : rstd;
        float *u = x->values + t * dims, *dx = dy->values + t * dims;
        mxa_rows_rotate(rows, &call->rope, s, dx);
        if (call->normalised)
            mxa_rows_rotate(rows, &call->rope, s, u);
        const double sum = rows->products(u, factor, dx, call->weight, dims);
        rows->divide_backward(u, factor, dx, call->weight, (float)(sum / (double)dims), rstd,
                              call->dweight ? job->dweight + x->at->range * dims : NULL, dims);
        if (call->dx.ndim) {
            void *out = (void *)mxa_element_of(&call->dx, seq, s, x->head, 0);
            rows->narrow(dx, dims, call->dx.tags.dtype, out, call->accumulate);
            if (call->accumulate && call->dx_quantized.ndim)
                rows->widen(out, call->dx.tags.dtype, dims, dx);
        }
    }
    if (call->dx_quantized.ndim)
        mxa_quantize_piece(job->quantize, dy, &call->dx_quantized);
}

/* All heads of a block: one thread at a time adds to a range's dweight. */
static void backward_block(void *arg, const mxa_block_at *at, int64_t unused, int64_t unused_too)
{
    const backward_job *job = arg;
    const mxa_rmsnorm_backward_call *call = job->call;
    char *buffer = job->buffers + 2 * at->worker * job->buffer_bytes;
    const int64_t s = at->block * MXA_BLOCK;
    const int64_t tokens = smaller(at->sequence.length - s, MXA_BLOCK);
    (void)unused;
    (void)unused_too;
    for (int64_t head = 0; head < call->x.shape[2]; head++)
        for (int64_t token = 0; token < tokens; token += job->group) {
            const int64_t used = at->sequence.used - s - token;
            mxa_piece x = {.at = at,
                           .head = head,
                           .token = token,
                           .tokens = smaller(job->group, tokens - token),
                           .dims = call->x.shape[3],
                           .values = (void *)buffer,
                           .stride = call->x.shape[3]};
            x.used = used < 0 ? 0 : smaller(used, x.tokens);
            mxa_piece dy = x;
            dy.values = (void *)(buffer + job->buffer_bytes);
            group_backward(job, &x, &dy);
            for (int64_t t = x.used; t < x.tokens && !call->accumulate; t++)
                mxa_clear_row(&call->dx, &at->sequence, s + token + t, head);
        }
}

mxattn_status mxa_cpu_rmsnorm_backward(const mxattn_context *context,
                                       const mxa_rmsnorm_backward_call *call)
{
    backward_job job = backward_job_of(context, call);
    const int64_t dims = call->x.shape[3];
    if (call->dx_quantized.ndim) {
        const mxa_quantize_call begin = {.quantized = call->dx_quantized, .batch = call->batch};
        mxa_quantize_begin(context, &begin);
    }
    if (!call->accumulate)
        mxa_clear_rows_behind(&call->dx, &call->batch);
    if (call->dweight)
        memset(job.dweight, 0, (size_t)(MXA_RANGES_MOST * dims) * sizeof(float));
    mxa_parallel_blocks(context, &call->batch, 1, call->x.shape[2] * dims, backward_block, &job);
    for (int64_t d = 0; call->dweight && d < dims; d++) {
        double sum = call->accumulate ? (double)call->dweight[d] : 0.0;
        for (int64_t range = 0; range < MXA_RANGES_MOST; range++)
            sum += (double)job.dweight[range * dims + d];
        call->dweight[d] = (float)sum;
    }
    return MXATTN_OK;
}
