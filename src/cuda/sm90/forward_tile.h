/* forward_tile.h: which tile a CTA works on, what its rows see, and where its results go.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_FORWARD_TILE_H
#define MXA_CUDA_SM90_FORWARD_TILE_H

#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "cuda/sm90/forward_params.h"
#include "cuda/sm90/forward_softmax.h"

/* One tile, as the producer finds it. Blocks are of tile_k keys, from the sequence's start. */
typedef struct forward_tile {
    int entry; /* of the work list */
    int sequence, head;
    int first;            /* first query, from the sequence's start */
    int q_row, k_row;     /* of the tile, and of the sequence, in the private copies */
    int q_outer, q_first; /* of the sequence in the caller's tensors */
    int q_used, k_used;
    int q_end;                  /* first query that is not this entry's, or not there */
    int diagonal;               /* key on the diagonal of query 0 */
    int block_first, block_end; /* blocks that some row sees */
} forward_tile;

/* The tile in shared memory, beside its queries: WHY there: consumers need no global load and no
 * division between two tiles, and the loop over keys no register for what only its ends use. */
enum {
    FORWARD_TILE_BLOCKS = 0,   /* block_first, block_end, first (-1: no more tiles), q_end */
    FORWARD_TILE_VISIBLE = 16, /* diagonal, k_used, sequence, head */
    FORWARD_TILE_OUT = 32,     /* q_outer, q_first, v_scale (FP32), entry */
    FORWARD_TILE_SCALES = 48,  /* records of q_scale; with a scale for each token FP32 [128] */
    FORWARD_TILE_MEAN = 560,   /* FP32 [Dv], where v has a mean */
    FORWARD_TILE_BYTES = 1584
};

/* What one warpgroup's 64 rows, and one thread, need of it in the loop. */
typedef struct forward_own {
    mxa_shared tile;
    int first;                  /* first query */
    int block_first, block_end; /* of the tile */
    int own_first, own_end;     /* blocks that these rows see */
    int full_first, full_end;   /* those that they see whole */
    float q_scale[2];           /* 2^exponent * softmax_scale * log2(e) of this thread's rows */
} forward_own;

/* Pieces of all entries. WHY the last round's tiles are not cut in two where that round is half
 * empty: 1,034 against 1,030 TFLOP/s at 8,192 tokens, 1,023 against 1,057 at 16,384; the card's
 * power, not the idle CTAs, sets the pace. */
MXA_DEVICE int forward_tile_count(const mxa_forward_params *params, int tile_q, int piece_q)
{
    int entries =
        params->batch.tile_count ? dev_load_global_i32(params->batch.tile_count) : params->tiles;
    return entries * ((tile_q + piece_q - 1) / piece_q);
}

MXA_DEVICE int forward_min(int a, int b)
{
    return a < b ? a : b;
}

MXA_DEVICE int forward_max(int a, int b)
{
    return a > b ? a : b;
}

/* Keys that queries first..last see: from *low to *high, inclusive. */
MXA_DEVICE void forward_visible(const mxa_forward_params *params, int diagonal, int k_used,
                                int first, int last, int *low, int *high)
{
    *low = params->window_left < 0 ? 0 : forward_max(0, first + diagonal - params->window_left);
    *high = params->window_right < 0
                ? k_used - 1
                : forward_min(k_used - 1, last + diagonal + params->window_right);
}

/* Blocks from *first to *end cover keys low..high; none: *first == *end. */
MXA_DEVICE void forward_blocks(int tile_k, int low, int high, int *first, int *end)
{
    *first = low / tile_k;
    *end = high < low ? *first : high / tile_k + 1;
}

/* The CTA's `round`th piece. WHY back and forth: pieces come longest first; dealt in one direction,
 * the first CTA would get the longer one in every round. */
MXA_DEVICE int forward_tile_index(int round)
{
    int block = dev_block_x();
    return round * dev_grid_x() + (round & 1 ? dev_grid_x() - 1 - block : block);
}

/* The CTA's piece after `index`: the next that none has taken, or the one it is dealt. WHY taken
 * where pieces differ: how long one takes is known when it is done, and no order has to be even. */
MXA_DEVICE int forward_tile_next(const mxa_forward_params *params, int index)
{
    return params->taken ? dev_grid_x() + (int)dev_fetch_add_global_u32(params->taken, 1)
                         : forward_tile_index(index / dev_grid_x() + 1);
}

/* Whether this launch takes the tile. The first of two marks the others in `redo`. wide: the caller
 * found that some tile is beyond the FP16 bound. */
MXA_DEVICE int forward_tile_taken(const mxa_forward_params *params, int wide,
                                  const forward_tile *tile)
{
    mxa_global mark = params->redo + 4 * (uint64_t)tile->entry;
    if (params->pass == MXA_FORWARD_PASS_ALL) {
        return 1;
    }
    if (params->pass == MXA_FORWARD_PASS_REDO) {
        return dev_load_global_u32(mark) != 0;
    }
    int small = 1;
    if (wide) {
        uint64_t kv_heads = (uint64_t)(params->heads / params->group);
        float q = dev_load_global_f32(
            params->q_norm +
            4 * ((uint64_t)tile->sequence * (uint64_t)params->heads + (uint64_t)tile->head));
        float k =
            dev_load_global_f32(params->k_norm + 4 * ((uint64_t)tile->sequence * kv_heads +
                                                      (uint64_t)(tile->head / params->group)));
        float bound = mul_rn(mul_rn(q, k), params->scale_log2e);
        small = bound < (float)(1 << MXA_FORWARD_BOUND_LOG2) &&
                bound > -(float)(1 << MXA_FORWARD_BOUND_LOG2);
    }
    dev_store_global_u32(mark, (uint32_t)!small);
    return small;
}

/* Whether the second launch has anything to do in this CTA; the whole warp. */
MXA_DEVICE int forward_tile_marked(const mxa_forward_params *params, int pieces,
                                   int pieces_of_entry)
{
    int any = 0;
    for (int first = 0; first * dev_grid_x() < pieces; first += 32) {
        int index = forward_tile_index(first + (dev_thread() & 31));
        int marked = 0;
        if (index < pieces) {
            marked =
                dev_load_global_u32(params->redo + 4 * (uint64_t)(index / pieces_of_entry)) != 0;
        }
        any |= warp_any(marked);
    }
    return any;
}

/* Fills the tile; 0 when it is empty. An entry of tile_q queries is worked on in pieces of piece_q,
 * each in blocks of tile_k keys. */
MXA_DEVICE int forward_tile_find(const mxa_forward_params *params, int index, int tile_q,
                                 int piece_q, int tile_k, forward_tile *tile)
{
    const mxa_gpu_batch *batch = &params->batch;
    const int pieces = (tile_q + piece_q - 1) / piece_q;
    const int piece = index % pieces;
    index /= pieces;
    tile->entry = index;
    if (batch->tiles == 0) {
        int pairs = batch->batch * params->heads;
        int pair;
        if (params->window_right >= 0) {
            /* WHY: with a diagonal the last queries take longest; they go first, among pairs whose
             * keys and values L2 holds together. */
            const int section = index / (batch->tiles_per_sequence * params->together);
            const int first = section * params->together;
            const int count = forward_min(params->together, pairs - first);
            index -= first * batch->tiles_per_sequence;
            tile->first = (batch->tiles_per_sequence - 1 - index / count) * tile_q;
            pair = first + index % count;
        } else {
            /* Neighbouring CTAs share a head's keys and values in L2. */
            tile->first = index % batch->tiles_per_sequence * tile_q;
            pair = index / batch->tiles_per_sequence;
        }
        tile->sequence = pair / params->heads;
        tile->head = pair % params->heads;
        tile->q_outer = tile->sequence;
        tile->q_first = 0;
        tile->q_used = batch->seqlen_q;
        tile->k_used = batch->seqlen_k;
        tile->q_row = tile->sequence * batch->padded_q;
        tile->k_row = tile->sequence * batch->padded_k;
    } else {
        mxa_u32x4 at = dev_load_global_u32x4(batch->tiles + 16 * (uint64_t)index);
        tile->sequence = (int)at.x;
        tile->head = (int)at.y;
        tile->first = (int)at.z;
        mxa_global record = batch->sequences + 64 * (uint64_t)tile->sequence;
        mxa_u32x4 q = dev_load_global_u32x4(record);
        mxa_u32x4 k = dev_load_global_u32x4(record + 16);
        mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
        tile->q_outer = (int)q.x;
        tile->q_first = (int)q.y;
        tile->q_used = (int)q.z;
        tile->k_used = (int)k.z;
        tile->q_row = (int)rows.x;
        tile->k_row = (int)rows.y;
    }
    tile->q_end =
        forward_min(tile->first + forward_min((piece + 1) * piece_q, tile_q), tile->q_used);
    tile->first += piece * piece_q;
    if (tile->first >= tile->q_end) {
        return 0;
    }
    tile->q_row += tile->first;
    tile->diagonal = params->top_left ? 0 : tile->k_used - tile->q_used;
    int low, high;
    forward_visible(params, tile->diagonal, tile->k_used, tile->first, tile->q_end - 1, &low,
                    &high);
    forward_blocks(tile_k, low, high, &tile->block_first, &tile->block_end);
    return 1;
}

/* The producer's part: writes the tile where consumers read it. */
MXA_DEVICE void forward_tile_write(const mxa_forward_params *params, const forward_tile *tile,
                                   mxa_shared at)
{
    uint64_t pair =
        (uint64_t)(tile->sequence * (params->heads / params->group) + tile->head / params->group);
    mxa_u32x4 blocks = {(uint32_t)tile->block_first, (uint32_t)tile->block_end,
                        (uint32_t)tile->first, (uint32_t)tile->q_end};
    mxa_u32x4 visible = {(uint32_t)tile->diagonal, (uint32_t)tile->k_used, (uint32_t)tile->sequence,
                         (uint32_t)tile->head};
    mxa_u32x4 out = {(uint32_t)tile->q_outer, (uint32_t)tile->q_first,
                     params->v_scale ? dev_load_global_u32(params->v_scale + 4 * pair)
                                     : 0x3F800000u,
                     (uint32_t)tile->entry};
    dev_store_shared_u32x4(at + FORWARD_TILE_BLOCKS, blocks);
    dev_store_shared_u32x4(at + FORWARD_TILE_VISIBLE, visible);
    dev_store_shared_u32x4(at + FORWARD_TILE_OUT, out);
}

/* Reads what belongs to one warpgroup (queries from `offset` of the tile) and one thread. 0: there
 * is no more tile. */
MXA_DEVICE int forward_own_read(const mxa_forward_params *params, mxa_shared at, int offset,
                                int tile_k, forward_own *own)
{
    mxa_u32x4 blocks = dev_load_shared_u32x4(at + FORWARD_TILE_BLOCKS);
    mxa_u32x4 visible = dev_load_shared_u32x4(at + FORWARD_TILE_VISIBLE);
    if ((int)blocks.z < 0) {
        return 0;
    }
    int first = (int)blocks.z + offset, diagonal = (int)visible.x, k_used = (int)visible.y;
    int last = forward_min(first + 64, (int)blocks.w) - 1;
    int low, high, full_low, full_high;
    own->tile = at;
    own->first = first;
    own->block_first = (int)blocks.x;
    own->block_end = (int)blocks.y;
    forward_visible(params, diagonal, k_used, first, last, &low, &high);
    forward_blocks(tile_k, low, high, &own->own_first, &own->own_end);
    if (last < first) {
        own->own_first = own->own_end = own->block_first;
    }
    own->own_first = forward_max(forward_min(own->own_first, own->block_end), own->block_first);
    own->own_end = forward_max(forward_min(own->own_end, own->block_end), own->own_first);
    /* Keys that all 64 rows see: the last row's first to the first row's last. */
    forward_visible(params, diagonal, k_used, first + 63, first, &full_low, &full_high);
    own->full_first = (full_low + tile_k - 1) / tile_k;
    own->full_end = forward_max(full_high + 1, 0) / tile_k;
    return 1;
}

/* One factor for the 16 rows of a warp, which lie in one group of 32. */
MXA_DEVICE void forward_own_scale(const mxa_forward_params *params, int offset, forward_own *own)
{
    int warp = dev_thread() >> 5 & 3;
    uint32_t record = (uint32_t)(offset + 16 * warp) / MXA_FORWARD_GROUP * MXA_FORWARD_RECORD;
    own->q_scale[0] = own->q_scale[1] =
        mul_rn(dev_load_shared_f32(own->tile + FORWARD_TILE_SCALES + record), params->scale_log2e);
}

/* A factor for each of this thread's rows. */
MXA_DEVICE void forward_own_scale_token(const mxa_forward_params *params, int offset,
                                        forward_own *own)
{
    int row = offset + 16 * (dev_thread() >> 5 & 3) + (dev_thread() >> 2 & 7);
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        mxa_shared at = own->tile + FORWARD_TILE_SCALES + 4 * (uint32_t)(row + 8 * r);
        own->q_scale[r] = mul_rn(dev_load_shared_f32(at), params->scale_log2e);
    }
}

/* The first of this thread's two queries; the other is 8 further. */
MXA_DEVICE int forward_row(const forward_own *own)
{
    int thread = dev_thread_again();
    return own->first + 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
}

/* Which columns of the block at `key` this thread's rows see. */
MXA_DEVICE void forward_tile_span(const mxa_forward_params *params, const forward_own *own, int key,
                                  forward_span *span)
{
    int row = forward_row(own), c = dev_thread_again() & 3;
    mxa_u32x2 visible = dev_load_shared_u32x2(own->tile + FORWARD_TILE_VISIBLE);
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        int low, high;
        forward_visible(params, (int)visible.x, (int)visible.y, row + 8 * r, row + 8 * r, &low,
                        &high);
        span->seen[r] =
            forward_columns_below(high + 1 - key, c) & ~forward_columns_below(low - key, c);
        hold_u32(&span->seen[r]);
    }
}

/* The same as edges of packed pairs. */
MXA_DEVICE void forward_tile_edges(const mxa_forward_params *params, const forward_own *own,
                                   int key, forward_edges *edges)
{
    const int row = forward_row(own), column = key + 2 * (dev_thread_again() & 3);
    mxa_u32x2 visible = dev_load_shared_u32x2(own->tile + FORWARD_TILE_VISIBLE);
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        int low, high;
        forward_visible(params, (int)visible.x, (int)visible.y, row + 8 * r, row + 8 * r, &low,
                        &high);
        edges->from[r] = 16 * forward_max(0, forward_min(low - column, 128));
        edges->end[r] = 16 * forward_max(0, forward_min(high + 1 - column, 128));
    }
}

#endif
