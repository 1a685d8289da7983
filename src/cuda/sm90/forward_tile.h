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

/* One tile. Blocks are of MXA_FORWARD_TILE_K keys, from the sequence's start. */
typedef struct forward_tile {
    int sequence, head;
    int first;            /* first query, from the sequence's start */
    int q_row, k_row;     /* of the tile, and of the sequence, in the private copies */
    int q_outer, q_first; /* of the sequence in the caller's tensors */
    int q_used, k_used;
    int q_end;                  /* first query that is not this entry's, or not there */
    int diagonal;               /* key on the diagonal of query 0 */
    int block_first, block_end; /* blocks that some row sees */
    int own_first, own_end;     /* those that this warpgroup's rows see */
    int full_first, full_end;   /* those that they see whole */
    int own_q;                  /* this warpgroup's first query */
    float q_scale;              /* their 2^exponent * softmax_scale * log2(e) */
    float v_scale;              /* 2^(largest exponent of V) */
} forward_tile;

/* Pieces of all entries. */
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
MXA_DEVICE void forward_visible(const mxa_forward_params *params, const forward_tile *tile,
                                int first, int last, int *low, int *high)
{
    *low =
        params->window_left < 0 ? 0 : forward_max(0, first + tile->diagonal - params->window_left);
    *high = params->window_right < 0
                ? tile->k_used - 1
                : forward_min(tile->k_used - 1, last + tile->diagonal + params->window_right);
}

/* Blocks from *first to *end cover keys low..high; none: *first == *end. */
MXA_DEVICE void forward_blocks(int low, int high, int *first, int *end)
{
    *first = low / MXA_FORWARD_TILE_K;
    *end = high < low ? *first : high / MXA_FORWARD_TILE_K + 1;
}

/* Fills what the whole CTA agrees on. 0: this launch skips the tile (wide: it has to look). An
 * entry of tile_q queries is worked on in pieces of piece_q. */
MXA_DEVICE int forward_tile_find(const mxa_forward_params *params, int index, int tile_q,
                                 int piece_q, int wide, forward_tile *tile)
{
    const mxa_gpu_batch *batch = &params->batch;
    const int pieces = (tile_q + piece_q - 1) / piece_q;
    const int piece = index % pieces;
    index /= pieces;
    if (batch->tiles == 0) {
        int pairs = batch->batch * params->heads;
        int pair;
        if (params->window_right >= 0) {
            /* WHY: with a diagonal the last queries take longest; they go first. */
            tile->first = (batch->tiles_per_sequence - 1 - index / pairs) * tile_q;
            pair = index % pairs;
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
    tile->q_end = forward_min(tile->first + tile_q, tile->q_used);
    tile->first += piece * piece_q;
    tile->q_row += tile->first;
    tile->diagonal = params->top_left ? 0 : tile->k_used - tile->q_used;
    int low, high;
    forward_visible(params, tile, tile->first, forward_min(tile->first + piece_q, tile->q_end) - 1,
                    &low, &high);
    forward_blocks(low, high, &tile->block_first, &tile->block_end);
    if (wide) {
        uint64_t kv_heads = (uint64_t)(params->heads / params->group);
        float q = dev_load_global_f32(
            params->q_norm +
            4 * ((uint64_t)tile->sequence * (uint64_t)params->heads + (uint64_t)tile->head));
        float k =
            dev_load_global_f32(params->k_norm + 4 * ((uint64_t)tile->sequence * kv_heads +
                                                      (uint64_t)(tile->head / params->group)));
        float bound = mul_rn(mul_rn(q, k), params->scale_log2e);
        int small = bound < (float)(1 << MXA_FORWARD_BOUND_LOG2) &&
                    bound > -(float)(1 << MXA_FORWARD_BOUND_LOG2);
        return small == (params->pass == MXA_FORWARD_PASS_SMALL);
    }
    return 1;
}

/* Fills what belongs to one warpgroup (queries from `offset` of the tile) and one thread. */
MXA_DEVICE void forward_tile_own(const mxa_forward_params *params, forward_tile *tile, int offset)
{
    int first = tile->first + offset;
    int last = forward_min(first + 64, tile->q_end) - 1;
    int low, high, full_low, full_high;
    forward_visible(params, tile, first, last, &low, &high);
    forward_blocks(low, high, &tile->own_first, &tile->own_end);
    if (last < first) {
        tile->own_first = tile->own_end = tile->block_first;
    }
    tile->own_first = forward_max(forward_min(tile->own_first, tile->block_end), tile->block_first);
    tile->own_end = forward_max(forward_min(tile->own_end, tile->block_end), tile->own_first);
    /* Keys that all 64 rows see: the last row's first to the first row's last. */
    forward_visible(params, tile, first + 63, first, &full_low, &full_high);
    tile->full_first = (full_low + MXA_FORWARD_TILE_K - 1) / MXA_FORWARD_TILE_K;
    tile->full_end = forward_max(full_high + 1, 0) / MXA_FORWARD_TILE_K;

    int lane = dev_thread() & 31, warp = dev_thread() >> 5 & 3;
    tile->own_q = first;
    uint64_t row = (uint64_t)(tile->q_row + offset + 16 * warp + (lane >> 2));
    tile->q_scale =
        mul_rn(dev_load_global_f32(
                   params->q_scale +
                   4 * ((uint64_t)tile->head * (uint64_t)(params->q_rows / MXA_FORWARD_GROUP) +
                        row / MXA_FORWARD_GROUP)),
               params->scale_log2e);
    uint64_t kv_heads = (uint64_t)(params->heads / params->group);
    tile->v_scale =
        dev_load_global_f32(params->v_scale + 4 * ((uint64_t)tile->sequence * kv_heads +
                                                   (uint64_t)(tile->head / params->group)));
}

/* The first of this thread's two queries; the other is 8 further. */
MXA_DEVICE int forward_row(const forward_tile *tile)
{
    int thread = dev_thread_again();
    return tile->own_q + 16 * (thread >> 5 & 3) + (thread >> 2 & 7);
}

/* Which columns of the block at `key` this thread's rows see. */
MXA_DEVICE void forward_tile_span(const mxa_forward_params *params, const forward_tile *tile,
                                  int key, forward_span *span)
{
    int row = forward_row(tile), c = dev_thread_again() & 3;
    MXA_UNROLL
    for (int r = 0; r < 2; r++) {
        int low, high;
        forward_visible(params, tile, row + 8 * r, row + 8 * r, &low, &high);
        span->seen[r] =
            forward_columns_below(high + 1 - key, c) & ~forward_columns_below(low - key, c);
        hold_u32(&span->seen[r]);
    }
}

/* What a row's maximum and sum come to. */
typedef struct forward_row_result {
    float scale;  /* accumulator to O */
    float weight; /* sum of P: 1 without a sink */
    float lse;
    int empty; /* no key seen: O is 0 */
} forward_row_result;

MXA_DEVICE void forward_finish_row(const mxa_forward_params *params, const forward_tile *tile,
                                   float m, float l, forward_row_result *result)
{
    const float ln2 = 0.69314718055994531f, log2e = 1.44269504088896341f;
    result->empty = m == FORWARD_MINUS_INF && l == 0.0f;
    result->weight = 1.0f;
    float total = l;
    if (params->sink) {
        float sink = mul_rn(dev_load_global_f32(params->sink + 4 * (uint64_t)tile->head), log2e);
        float top = max_f32(m, ceil_f32(sink));
        float shrink = m == FORWARD_MINUS_INF ? 0.0f : exp2_approx(m - top);
        l = mul_rn(l, shrink);
        total = add_rn(l, exp2_approx(sink - top + (float)FORWARD_P_LOG2));
        result->weight = l / total;
        result->scale = mul_rn(tile->v_scale, shrink) / total;
        result->lse = mul_rn(top + log2_approx(total) - (float)FORWARD_P_LOG2, ln2);
    } else {
        result->scale = tile->v_scale / total;
        result->lse = result->empty ? FORWARD_MINUS_INF
                                    : mul_rn(m + log2_approx(total) - (float)FORWARD_P_LOG2, ln2);
    }
}

MXA_DEVICE int64_t forward_o_index(const mxa_forward_params *params, const forward_tile *tile,
                                   int row)
{
    return tile->q_outer * params->o_batch + (tile->q_first + (int64_t)row) * params->o_token +
           tile->head * params->o_head;
}

/* Two neighbouring elements of O. */
MXA_DEVICE void forward_store_pair(const mxa_forward_params *params, int64_t index, float x,
                                   float y)
{
    if (params->o_type == MXA_GPU_BF16) {
        dev_store_global_u32(params->o + 2 * (uint64_t)index, bf16x2_from_f32x2(x, y));
    } else if (params->o_type == MXA_GPU_F16) {
        dev_store_global_u32(params->o + 2 * (uint64_t)index, f16x2_from_f32x2(x, y));
    } else {
        dev_store_global_u32x2(params->o + 4 * (uint64_t)index, bits_f32(x), bits_f32(y));
    }
}

MXA_DEVICE void forward_store_lse(const mxa_forward_params *params, const forward_tile *tile,
                                  int row, float lse)
{
    int64_t index = tile->q_outer * params->lse_batch +
                    (tile->q_first + (int64_t)row) * params->lse_token +
                    tile->head * params->lse_head;
    dev_store_global_f32(params->lse + 4 * (uint64_t)index, lse);
}

#endif
