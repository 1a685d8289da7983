/* scales.c: moving scale bytes between arrangements.
 *
 * Scatter (same axis) and transform (the other axis of square blocks) are one job: for each byte of
 * the target, the source byte of the same element. A unit of tiled scales, 128 tokens by 128 dims,
 * is put together whole, padding and all, from the 4 x 4 blocks it describes, in registers where
 * all of them are there (scale_units.h); other targets are written block by block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"
#include "cpu/operations.h"
#include "cpu/parallel_blocks.h"
#include "cpu/scale_place.h"
#include "cpu/scale_units.h"
#include "mx/e8m0.h"

#include <string.h>

enum {
    TILE_TOKENS = 128,
    TILE_DIMS = 128,
    /* Blocks of a walk of one head: what is found out once for them costs as much as a unit of the
     * 32; past the caches what is asked for behind its end, and waiting for its stores, as much as
     * 50 of the 512. */
    WALK_BLOCKS = 128,
    STREAMED_WALK_BLOCKS = 2048,
    AHEAD_TILES = 32,
    AHEAD_ROWS = 160,
    /* WHY: a target this large leaves the caches before it is read. */
    STREAM_BYTES = 32 << 20
};

static int64_t at_most_block(int64_t n)
{
    return n < MXA_BLOCK ? n : MXA_BLOCK;
}

static int64_t at_least_0(int64_t n)
{
    return n < 0 ? 0 : n;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct scales_job {
    const mxa_scales_call *call;
    const mxa_unit_kernels *units;
    int uniform; /* 1: a block has one byte in the source, whichever of its elements is asked for */
    int stream;
    int64_t walk;  /* blocks */
    int64_t ahead; /* tiles: how early a unit's source is asked for */
} scales_job;

/* Where the bytes of some tokens lie, from the first block's, head 0's, dim 0's on: bytes between
 * heads, tiles of 128 tokens, blocks of a tile, columns of 128 dims, chunks of a column, and
 * elements of a block (tokens for HDIM, dims for SEQ; 0 for COMPACT). */
typedef struct walk {
    uint8_t *data;
    int64_t head, tile, block, column, chunk, within;
} walk;

/* block: of the sequence, a multiple of 4. */
static walk walk_of(const mxattn_scales *scales, mxattn_axis axis, const mxa_block_at *at)
{
    const mxa_scale_place place =
        mxa_scale_place_of(scales, axis, &at->sequence, at->b, at->block, 0);
    walk w = {.data = place.data,
              .head = scales->stride_head,
              .column = place.stride_4,
              .chunk = place.stride_1,
              .within = place.stride_within};
    if (scales->layout == MXATTN_TILED) {
        w.head *= MXA_UNIT_BYTES;
        w.tile = MXA_UNIT_BYTES * (axis == MXATTN_HDIM ? scales->stride_row : scales->stride_k);
        w.block = axis == MXATTN_HDIM ? MXA_UNIT_BLOCKS : 1;
    } else {
        const int per_token = axis == MXATTN_HDIM && scales->layout == MXATTN_LINEAR;
        w.block = scales->stride_row * (per_token ? MXA_BLOCK : 1);
        w.tile = MXA_UNIT_BLOCKS * w.block;
    }
    return w;
}

/* ---- units of tiled targets ---------------------------------------------------------------- */

/* How many elements the blocks of one unit have along both axes. */
typedef struct unit_size {
    int64_t tokens[MXA_UNIT_BLOCKS], dims[MXA_UNIT_BLOCKS];
} unit_size;

static void blocks_of(int64_t count, int64_t of[MXA_UNIT_BLOCKS])
{
    for (int64_t i = 0; i < MXA_UNIT_BLOCKS; i++)
        of[i] = at_most_block(at_least_0(count - i * MXA_BLOCK));
}

/* Rows r of a unit repeat while all of its four groups have them. */
static void write_uniform(const scales_job *job, const walk *from, const uint8_t *source,
                          const unit_size *size, uint8_t *unit)
{
    uint8_t row[MXA_UNIT_ROW] = {0};
    const int hdim = job->call->to_axis == MXATTN_HDIM;
    const int64_t *within = hdim ? size->tokens : size->dims;
    for (int t = 0; t < MXA_UNIT_BLOCKS && size->tokens[t]; t++)
        for (int c = 0; c < MXA_UNIT_BLOCKS && size->dims[c]; c++)
            row[hdim ? t * MXA_UNIT_BLOCKS + c : c * MXA_UNIT_BLOCKS + t] =
                source[t * from->block + c * from->chunk];
    int64_t shortest = MXA_BLOCK;
    for (int g = 0; g < MXA_UNIT_BLOCKS; g++)
        shortest = within[g] > 0 && within[g] < shortest ? within[g] : shortest;
    for (int64_t r = 0; r < MXA_BLOCK; r++) {
        if (r == shortest) /* from here on some group is over: that of the last block */
            for (int g = 0; g < MXA_UNIT_BLOCKS; g++)
                if (within[g] == shortest)
                    memset(row + g * MXA_UNIT_BLOCKS, 0, MXA_UNIT_BLOCKS);
        memcpy(unit + r * MXA_UNIT_ROW, row, MXA_UNIT_ROW);
    }
}

/* Byte by byte, from the same axis. */
static void write_elements(const scales_job *job, const walk *from, const uint8_t *source,
                           const unit_size *size, uint8_t *unit)
{
    const int hdim = job->call->to_axis == MXATTN_HDIM;
    memset(unit, 0, MXA_UNIT_BYTES);
    for (int t = 0; t < MXA_UNIT_BLOCKS && size->tokens[t]; t++)
        for (int c = 0; c < MXA_UNIT_BLOCKS && size->dims[c]; c++) {
            const uint8_t *byte = source + t * from->block + c * from->chunk;
            uint8_t *to = unit + (hdim ? t * MXA_UNIT_BLOCKS + c : c * MXA_UNIT_BLOCKS + t);
            for (int64_t i = 0; i < (hdim ? size->tokens[t] : size->dims[c]); i++)
                to[i * MXA_UNIT_ROW] = byte[i * from->within];
        }
}

/* A unit of dims all of whose 16 blocks are whole; returns 0 where its source is not laid out for
 * that. */
static int write_dims(const scales_job *job, const walk *from, const uint8_t *source, uint8_t *unit)
{
    if (job->uniform || job->call->to_axis == MXATTN_HDIM || from->within != 1 ||
        from->chunk != MXA_BLOCK)
        return 0;
    const uint8_t *const rows[] = {source, source + from->block, source + 2 * from->block,
                                   source + 3 * from->block};
    job->units->of_dims(unit, rows, job->stream);
    return 1;
}

/* The units of 128 tokens, or fewer where they end, of one head, from dim `dim` on. */
static void write_tile(const scales_job *job, const walk *from, const uint8_t *source,
                       int64_t tokens, int64_t dim, int64_t step, uint8_t *unit)
{
    for (; dim < job->call->head_dim; dim += TILE_DIMS) {
        const int64_t dims = job->call->head_dim - dim, column = dim / TILE_DIMS;
        const uint8_t *at = source + column * from->column;
        uint8_t *to = unit + column * step;
        if (tokens < TILE_TOKENS || dims < TILE_DIMS || !write_dims(job, from, at, to)) {
            unit_size size;
            blocks_of(tokens, size.tokens);
            blocks_of(dims, size.dims);
            (job->uniform ? write_uniform : write_elements)(job, from, at, &size, to);
        }
    }
}

/* Tiles of 128 tokens, columns of 128 dims, heads: how many, and bytes from one to the next. */
typedef struct stretch {
    int64_t count, from, to;
} stretch;

/* Units all of whose blocks are whole, in the order in which the target, or else the source, lies;
 * returns 0 where the source is not laid out for that. */
static int write_whole(const scales_job *job, const walk *from, const uint8_t *source,
                       uint8_t *unit, stretch outer, stretch middle, stretch inner)
{
    if (!job->uniform || (from->chunk != 1 && from->block != 1))
        return 0;
    const int by_token = from->chunk == 1; /* the four bytes of a block of tokens follow */
    mxa_unit_run run = {.to_step = inner.to,
                        .from_step = inner.from,
                        .count = inner.count,
                        .group_step = by_token ? from->block : from->chunk,
                        .turned = by_token != (job->call->to_axis == MXATTN_HDIM),
                        .ahead = job->ahead * from->tile,
                        .stream = job->stream};
    for (int64_t o = 0; o < outer.count; o++)
        for (int64_t m = 0; m < middle.count; m++) {
            run.from = source + o * outer.from + m * middle.from;
            run.to = unit + o * outer.to + m * middle.to;
            job->units->repeat(&run);
        }
    return 1;
}

/* The units of some heads, of tokens that begin at a multiple of 128 of a sequence; in the order in
 * which the source lies. */
static void write_units(const scales_job *job, const mxa_block_at *at, int64_t tokens, int64_t head,
                        int64_t head_end)
{
    const mxa_scales_call *call = job->call;
    const walk from = walk_of(&call->from, call->from_axis, at);
    const walk to = walk_of(&call->to, call->to_axis, at);
    const int64_t all = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    const stretch tiles = {tokens / TILE_TOKENS, from.tile, to.tile};
    const stretch columns = {call->head_dim / TILE_DIMS, from.column, to.column};
    const stretch heads = {head_end - head, from.head, to.head};
    const uint8_t *source = from.data + head * from.head;
    uint8_t *unit = to.data + head * to.head;
    const int whole = call->from.layout != MXATTN_TILED
                          ? write_whole(job, &from, source, unit, tiles, columns, heads)
                      : to.tile <= to.column
                          ? write_whole(job, &from, source, unit, heads, columns, tiles)
                          : write_whole(job, &from, source, unit, heads, tiles, columns);
    const int64_t done = columns.count * TILE_DIMS;
    for (int64_t tile = whole && done >= call->head_dim ? tiles.count : 0; tile < all; tile++) {
        const int64_t dim = whole && tile < tiles.count ? done : 0;
        for (int64_t h = 0; h < heads.count; h++)
            write_tile(job, &from, source + h * from.head + tile * from.tile,
                       tokens - tile * TILE_TOKENS, dim, to.column,
                       unit + h * to.head + tile * to.tile);
    }
}

/* Tokens of the walk that begins at a block. */
static int64_t tokens_of_walk(const mxa_block_at *at, int64_t blocks)
{
    return smaller(at->sequence.length - at->block * MXA_BLOCK, blocks * MXA_BLOCK);
}

static void tile_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const scales_job *job = arg;
    write_units(job, at, tokens_of_walk(at, job->walk), head, head_end);
}

/* Bytes that a token has for a unit where units of a token lie side by side, four, or two and no
 * more; 0 where they do not. */
static int group_width(const mxa_scales_call *call)
{
    const int64_t chunks = mxa_blocks(call->head_dim);
    const int width = chunks % MXA_UNIT_BLOCKS == 0 ? 4 : chunks == 2 ? 2 : 0;
    const int same = call->from_axis == MXATTN_HDIM && call->to_axis == MXATTN_HDIM &&
                     call->from.layout == MXATTN_LINEAR;
    return same && call->from.stride_k == 1 && call->from.stride_head == chunks ? width : 0;
}

/* The units of 128 tokens, four at a time, of as many heads as that divides into; returns how many.
 */
static int64_t scatter_tokens(const scales_job *job, const mxa_block_at *at, int width)
{
    enum { UNITS = 4, ASKS = 32 };
    const mxa_scales_call *call = job->call;
    const int64_t columns = (call->head_dim + TILE_DIMS - 1) / TILE_DIMS;
    const int64_t row = call->from.stride_row, units = call->heads * columns;
    const walk from = walk_of(&call->from, MXATTN_HDIM, at);
    const walk to = walk_of(&call->to, MXATTN_HDIM, at);
    const int dense = row == units * width;
    uint8_t *head = to.data;
    int64_t column = 0; /* not by dividing: eight divisions for each four units */
    mxa_unit_queue queue;
    queue.some = queue.last = 0;
    for (int64_t u = 0; u + UNITS <= units; u += UNITS) {
        const uint8_t *source = from.data + u * width;
        uint8_t *unit[UNITS];
        for (int64_t i = 0; i < UNITS; i++) {
            unit[i] = head + column * to.column;
            if (++column == columns) {
                column = 0;
                head += to.head;
            }
        }
        /* Each call's share of the next tile, in the order in which it lies; of rows that are
         * apart, lines that four calls share once. WHY in order: rows first, each line of which is
         * asked for by the call that needs it, come 0.7 to 0.8 times as fast (Zen 3). */
        const int64_t share = UNITS * width * TILE_TOKENS / ASKS;
        const int64_t step = dense ? share : row;
        const int64_t ahead =
            AHEAD_ROWS * row + (dense ? u / UNITS : u / UNITS % UNITS) * ASKS * step;
        const uint8_t *ask =
            (const uint8_t *)((uintptr_t)(dense ? from.data : source) + (uintptr_t)ahead);
        job->units->of_tokens(unit, source, row, width, ask, step, job->stream ? &queue : NULL);
    }
    job->units->leave(&queue);
    return units / UNITS * UNITS / columns;
}

/* All heads: in a source that is not tiled, the bytes of several share a line. */
static void tile_heads(void *arg, const mxa_block_at *at, int64_t unused, int64_t unused_too)
{
    const scales_job *job = arg;
    const int64_t tokens = tokens_of_walk(at, MXA_UNIT_BLOCKS);
    const int width = group_width(job->call);
    (void)unused;
    (void)unused_too;
    const int64_t head = width && tokens == TILE_TOKENS ? scatter_tokens(job, at, width) : 0;
    if (head < job->call->heads)
        write_units(job, at, tokens, head, job->call->heads);
}

/* Units beyond the tokens of a sequence, where the caller's cu_scale leaves room. */
static void clear_block(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    const scales_job *job = arg;
    const mxa_scales_call *call = job->call;
    for (; at->block == 0 && head < head_end; head++)
        mxa_scales_clear(&call->to, call->to_axis, &at->sequence, at->b, head, call->head_dim);
}

/* ---- other targets ------------------------------------------------------------------------- */

/* Bytes of an array that one chunk of one block has: tokens (HDIM) or dims (SEQ), or one. */
static int64_t bytes_within(const mxattn_scales *scales, mxattn_axis axis, int64_t tokens,
                            int64_t dims)
{
    if (scales->layout == MXATTN_COMPACT)
        return 1;
    return axis == MXATTN_HDIM ? tokens : dims;
}

/* All heads: the bytes of several share a line. */
static void move_block(void *arg, const mxa_block_at *at, int64_t unused, int64_t unused_too)
{
    const scales_job *job = arg;
    const mxa_scales_call *call = job->call;
    const int64_t tokens = at_most_block(at->sequence.length - at->block * MXA_BLOCK);
    const int uniform = job->uniform;
    (void)unused;
    (void)unused_too;
    for (int64_t head = 0; head < call->heads; head++) {
        const mxa_scale_place from =
            mxa_scale_place_of(&call->from, call->from_axis, &at->sequence, at->b, at->block, head);
        const mxa_scale_place to =
            mxa_scale_place_of(&call->to, call->to_axis, &at->sequence, at->b, at->block, head);
        for (int64_t chunk = 0; chunk * MXA_BLOCK < call->head_dim; chunk++) {
            const int64_t dims = at_most_block(call->head_dim - chunk * MXA_BLOCK);
            const int64_t count = bytes_within(&call->to, call->to_axis, tokens, dims);
            const uint8_t *source = mxa_scale_place_at(&from, chunk, 0);
            uint8_t *target = mxa_scale_place_at(&to, chunk, 0);
            if (uniform && to.stride_within == 1) {
                memset(target, *source, (size_t)count);
                continue;
            }
            for (int64_t i = 0; i < count; i++)
                target[i * to.stride_within] = source[uniform ? 0 : i * from.stride_within];
        }
    }
}

/* ---- the calls ----------------------------------------------------------------------------- */

const mxa_unit_kernels *mxa_unit_kernels_for(uint32_t isa)
{
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return &mxa_unit_kernels_avx2;
#endif
    (void)isa;
    return &mxa_unit_kernels_portable;
}

static scales_job job_of(const mxattn_context *context, const mxa_scales_call *call)
{
    enum { STREAMED = 32 };
    const mxa_scale_extent extent = mxa_scales_extent(&call->batch, call->heads, call->head_dim);
    scales_job job = {.call = call, .units = mxa_unit_kernels_for(context->isa)};
    job.uniform = call->from_axis != call->to_axis || call->from.layout == MXATTN_COMPACT;
    job.stream = call->to.layout == MXATTN_TILED && (uintptr_t)call->to.data % STREAMED == 0 &&
                 mxa_scales_size(call->to_axis, MXATTN_TILED, &extent) >= STREAM_BYTES;
    job.walk = job.stream ? STREAMED_WALK_BLOCKS : WALK_BLOCKS;
    job.ahead = AHEAD_TILES;
    return job;
}

static void move(const mxattn_context *context, const mxa_scales_call *call)
{
    scales_job job = job_of(context, call);
    const int64_t heads = call->heads, dims = call->head_dim;
    if (call->to.layout != MXATTN_TILED) {
        mxa_parallel_blocks(context, &call->batch, 1, heads * dims, move_block, &job);
        return;
    }
    if (call->to.cu_scale) {
        mxa_scales_clear_empty(&call->to, call->to_axis, &call->batch, heads, dims);
        mxa_parallel_blocks(context, &call->batch, heads, dims, clear_block, &job);
    }
    if (call->from.layout != MXATTN_TILED)
        mxa_parallel_walks(context, &call->batch, MXA_UNIT_BLOCKS, 1, heads * dims, tile_heads,
                           &job);
    else
        mxa_parallel_walks(context, &call->batch, job.walk, heads, dims, tile_block, &job);
}

mxattn_status mxa_cpu_scales_scatter(const mxattn_context *context, const mxa_scales_call *call)
{
    move(context, call);
    return MXATTN_OK;
}

mxattn_status mxa_cpu_scales_transform(const mxattn_context *context, const mxa_scales_call *call)
{
    move(context, call);
    return MXATTN_OK;
}
