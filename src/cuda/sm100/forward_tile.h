/* forward_tile.h: a work item: two tiles of 128 queries of one head, what they see, where they go.
 *
 * The load role finds items and leaves them in a mailbox in shared memory; every other role reads
 * from there what it needs, so that none of them divides or waits for global memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM100_FORWARD_TILE_H
#define MXA_CUDA_SM100_FORWARD_TILE_H

#include "cuda/dev/memory.h"
#include "cuda/sm100/forward_params.h"

/* Blocks are of 128 keys, numbered from the sequence's start. */
typedef struct forward_tile {
    int sequence, head;
    int first, q_end;     /* queries of the item, from the sequence's start; first -1: no more */
    int q_length;         /* the sequence's, with those that do not count */
    int q_outer, q_first; /* of the sequence in the caller's tensors */
    int k_outer, k_first;
    int k_used;
    int diagonal;                     /* key on the diagonal of query 0 */
    int q_tiled_row, k_tiled_row;     /* first rows of the sequence in derived tiled scales */
    int q_token, q_block;             /* numbers of its first token and block in scale arrays */
    int block_first[2], block_end[2]; /* blocks that some row of tile t sees */
} forward_tile;

/* The mailbox: 16-byte rows. */
enum {
    FORWARD_TILE_ITEM = 0,    /* first, q_end, sequence, head */
    FORWARD_TILE_BLOCKS = 16, /* block_first[0], block_end[0], block_first[1], block_end[1] */
    FORWARD_TILE_KEYS = 32,   /* diagonal, k_used, q_block, q_length */
    FORWARD_TILE_OUT = 48,    /* q_outer, q_first, q_tiled_row, q_token */
    FORWARD_TILE_ROWS = 64,   /* k_tiled_row */
    FORWARD_TILE_BYTES = 80
};

MXA_DEVICE int forward_min(int a, int b)
{
    return a < b ? a : b;
}

MXA_DEVICE int forward_max(int a, int b)
{
    return a > b ? a : b;
}

/* Keys that queries first..last see: from *low to *high, inclusive. */
MXA_DEVICE void forward_visible(const mxa_sm100_forward_params *params, int diagonal, int k_used,
                                int first, int last, int *low, int *high)
{
    *low = params->window_left < 0 ? 0 : forward_max(0, first + diagonal - params->window_left);
    *high = params->window_right < 0
                ? k_used - 1
                : forward_min(k_used - 1, last + diagonal + params->window_right);
}

/* Blocks of tile t; none, and first == end, where its rows see no key or are not there. */
MXA_DEVICE void forward_tile_blocks(const mxa_sm100_forward_params *params, forward_tile *tile,
                                    int t)
{
    int low, high;
    const int first = tile->first + t * MXA_SM100_TILE_Q;
    const int last = forward_min(first + MXA_SM100_TILE_Q, tile->q_end) - 1;
    forward_visible(params, tile->diagonal, tile->k_used, first, last, &low, &high);
    const int some = first <= last && low <= high;
    tile->block_first[t] = some ? low / MXA_SM100_TILE_K : 0;
    tile->block_end[t] = some ? high / MXA_SM100_TILE_K + 1 : 0;
}

/* The CTA's `round`th item. WHY back and forth: items come longest first; dealt in one direction,
 * the first CTA would get the longer one in every round. */
MXA_DEVICE int forward_tile_index(int round)
{
    int block = dev_block_x();
    return round * dev_grid_x() + (round & 1 ? dev_grid_x() - 1 - block : block);
}

MXA_DEVICE int forward_tile_count(const mxa_sm100_forward_params *params)
{
    return params->batch.tile_count ? dev_load_global_i32(params->batch.tile_count) : params->tiles;
}

MXA_DEVICE void forward_tile_find(const mxa_sm100_forward_params *params, int index,
                                  forward_tile *tile)
{
    const mxa_gpu_batch *batch = &params->batch;
    int q_used;
    if (batch->tiles == 0) {
        int pairs = batch->batch * params->heads;
        int pair;
        if (params->window_right >= 0) {
            /* WHY: with a diagonal the last queries take longest; they go first. */
            tile->first = (batch->tiles_per_sequence - 1 - index / pairs) * (2 * MXA_SM100_TILE_Q);
            pair = index % pairs;
        } else {
            /* Neighbouring CTAs share a head's keys and values in L2. */
            tile->first = index % batch->tiles_per_sequence * (2 * MXA_SM100_TILE_Q);
            pair = index / batch->tiles_per_sequence;
        }
        tile->sequence = pair / params->heads;
        tile->head = pair % params->heads;
        tile->q_outer = tile->k_outer = tile->sequence;
        tile->q_first = tile->k_first = 0;
        q_used = tile->q_length = batch->seqlen_q;
        tile->k_used = batch->seqlen_k;
        tile->q_token = tile->sequence * batch->seqlen_q;
        tile->q_block = tile->sequence * ((batch->seqlen_q + 31) / 32);
        tile->q_tiled_row = tile->sequence * ((batch->seqlen_q + 127) / 128 * 128);
        tile->k_tiled_row = tile->sequence * ((batch->seqlen_k + 127) / 128 * 128);
    } else {
        mxa_u32x4 at = dev_load_global_u32x4(batch->tiles + 16 * (uint64_t)index);
        tile->sequence = (int)at.x;
        tile->head = (int)at.y;
        tile->first = (int)at.z;
        mxa_global record = batch->sequences + 64 * (uint64_t)tile->sequence;
        mxa_u32x4 q = dev_load_global_u32x4(record);
        mxa_u32x4 k = dev_load_global_u32x4(record + 16);
        mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
        mxa_u32x4 numbers = dev_load_global_u32x4(record + 48);
        tile->q_outer = (int)q.x;
        tile->q_first = (int)q.y;
        q_used = (int)q.z;
        tile->q_length = (int)q.w;
        tile->k_outer = (int)k.x;
        tile->k_first = (int)k.y;
        tile->k_used = (int)k.z;
        tile->q_token = (int)rows.z;
        tile->q_block = (int)numbers.x;
        tile->q_tiled_row = (int)numbers.z;
        tile->k_tiled_row = (int)numbers.w;
    }
    tile->q_end = forward_min(tile->first + 2 * MXA_SM100_TILE_Q, q_used);
    tile->diagonal = params->top_left ? 0 : tile->k_used - q_used;
    forward_tile_blocks(params, tile, 0);
    forward_tile_blocks(params, tile, 1);
}

MXA_DEVICE void forward_tile_write(const forward_tile *tile, mxa_shared at)
{
    mxa_u32x4 item = {(uint32_t)tile->first, (uint32_t)tile->q_end, (uint32_t)tile->sequence,
                      (uint32_t)tile->head};
    mxa_u32x4 blocks = {(uint32_t)tile->block_first[0], (uint32_t)tile->block_end[0],
                        (uint32_t)tile->block_first[1], (uint32_t)tile->block_end[1]};
    mxa_u32x4 keys = {(uint32_t)tile->diagonal, (uint32_t)tile->k_used, (uint32_t)tile->q_block,
                      (uint32_t)tile->q_length};
    mxa_u32x4 out = {(uint32_t)tile->q_outer, (uint32_t)tile->q_first, (uint32_t)tile->q_tiled_row,
                     (uint32_t)tile->q_token};
    dev_store_shared_u32x4(at + FORWARD_TILE_ITEM, item);
    dev_store_shared_u32x4(at + FORWARD_TILE_BLOCKS, blocks);
    dev_store_shared_u32x4(at + FORWARD_TILE_KEYS, keys);
    dev_store_shared_u32x4(at + FORWARD_TILE_OUT, out);
    dev_store_shared_u32(at + FORWARD_TILE_ROWS, (uint32_t)tile->k_tiled_row);
}

/* What every other role reads back. */
MXA_DEVICE void forward_tile_read(mxa_shared at, forward_tile *tile)
{
    mxa_u32x4 item = dev_load_shared_u32x4(at + FORWARD_TILE_ITEM);
    mxa_u32x4 blocks = dev_load_shared_u32x4(at + FORWARD_TILE_BLOCKS);
    mxa_u32x4 keys = dev_load_shared_u32x4(at + FORWARD_TILE_KEYS);
    mxa_u32x4 out = dev_load_shared_u32x4(at + FORWARD_TILE_OUT);
    tile->first = (int)item.x;
    tile->q_end = (int)item.y;
    tile->sequence = (int)item.z;
    tile->head = (int)item.w;
    tile->block_first[0] = (int)blocks.x;
    tile->block_end[0] = (int)blocks.y;
    tile->block_first[1] = (int)blocks.z;
    tile->block_end[1] = (int)blocks.w;
    tile->diagonal = (int)keys.x;
    tile->k_used = (int)keys.y;
    tile->q_outer = (int)out.x;
    tile->q_first = (int)out.y;
    tile->q_tiled_row = (int)out.z;
    tile->q_token = (int)out.w;
    tile->q_block = (int)keys.z;
    tile->q_length = (int)keys.w;
    tile->k_tiled_row = (int)dev_load_shared_u32(at + FORWARD_TILE_ROWS);
}

/* Blocks that either tile sees, in one run: the tiles' own are neighbours or overlap. */
MXA_DEVICE void forward_tile_union(const forward_tile *tile, int *first, int *end)
{
    const int none0 = tile->block_first[0] == tile->block_end[0];
    const int none1 = tile->block_first[1] == tile->block_end[1];
    *first = none0   ? tile->block_first[1]
             : none1 ? tile->block_first[0]
                     : forward_min(tile->block_first[0], tile->block_first[1]);
    *end = forward_max(tile->block_end[0], tile->block_end[1]);
}

/* 1 where tile t has queries. */
MXA_DEVICE int forward_tile_present(const forward_tile *tile, int t)
{
    return tile->first + t * MXA_SM100_TILE_Q < tile->q_end;
}

/* Unit row of the sequence's first block of keys. */
MXA_DEVICE int forward_tile_unit(const mxa_sm100_scales *scales, const forward_tile *tile)
{
    int row = scales->cu ? dev_load_global_i32(scales->cu + 4 * (uint64_t)tile->sequence)
                         : tile->k_tiled_row;
    return row / MXA_SM100_TILE_K;
}

/* Keys of block j that are there: 1..128. */
MXA_DEVICE int forward_tile_keys(const forward_tile *tile, int j)
{
    return forward_min(tile->k_used - j * MXA_SM100_TILE_K, MXA_SM100_TILE_K);
}

#endif
