/* backward_place.h: from a tile's number to its sequence, and tiles turned over in shared memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_BACKWARD_PLACE_H
#define MXA_CUDA_SM90_BACKWARD_PLACE_H

#include "cuda/common/load.h"
#include "cuda/sm90/backward_columns.h"
#include "cuda/sm90/backward_params.h"
#include "cuda/sm90/backward_prepare_params.h"

/* First query tile of a sequence whose private rows start at q_row. */
MXA_DEVICE int backward_first_tile(int sequence, int q_row)
{
    return (q_row / MXA_BACKWARD_GROUP + sequence + 1) / 2;
}

/* Sequence of query tile `tile`, and the tile's first position there; its first row in the
 * forward's copy of q in *q_row. 0: no sequence has that tile. */
MXA_DEVICE int backward_find_queries(const mxa_gpu_batch *batch, int tile, load_place *place,
                                     int *q_row)
{
    if (batch->sequences == 0) {
        int tiles = (batch->seqlen_q + MXA_BACKWARD_TILE_Q - 1) / MXA_BACKWARD_TILE_Q;
        int sequence = tile / tiles;
        if (sequence >= batch->batch) {
            return 0;
        }
        int position = (tile - sequence * tiles) * MXA_BACKWARD_TILE_Q;
        *q_row = sequence * batch->padded_q + position;
        load_find(batch, 0, sequence * batch->padded_q, place);
        place->position = position;
        return 1;
    }
    int low = 0, high = batch->batch - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        int row = dev_load_global_i32(batch->sequences + 64 * (uint64_t)middle + 32);
        if (backward_first_tile(middle, row) <= tile) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    mxa_global record = batch->sequences + 64 * (uint64_t)low;
    mxa_u32x4 side = dev_load_global_u32x4(record);
    mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
    mxa_u32x4 numbers = dev_load_global_u32x4(record + 48);
    place->sequence = low;
    place->position = (tile - backward_first_tile(low, (int)rows.x)) * MXA_BACKWARD_TILE_Q;
    place->outer = (int)side.x;
    place->first = (int)side.y;
    place->used = (int)side.z;
    place->token = (int)rows.z;
    place->block = (int)numbers.x;
    place->tiled_row = (int)numbers.z;
    *q_row = (int)rows.x + place->position;
    return place->position >= 0 && place->position < (int)side.w;
}

/* Where a sequence's query tiles and key groups are: first and count of each. */
typedef struct backward_extent {
    int tile, tiles;
    int group, groups;
} backward_extent;

MXA_DEVICE void backward_find_extent(const mxa_gpu_batch *batch, int sequence,
                                     backward_extent *extent)
{
    int q_used = batch->seqlen_q, k_used = batch->seqlen_k, k_row = sequence * batch->padded_k;
    extent->tile = sequence * ((q_used + MXA_BACKWARD_TILE_Q - 1) / MXA_BACKWARD_TILE_Q);
    if (batch->sequences) {
        mxa_global record = batch->sequences + 64 * (uint64_t)sequence;
        q_used = dev_load_global_i32(record + 8);
        k_used = dev_load_global_i32(record + 24);
        extent->tile = backward_first_tile(sequence, dev_load_global_i32(record + 32));
        k_row = dev_load_global_i32(record + 36);
    }
    extent->tiles = (q_used + MXA_BACKWARD_TILE_Q - 1) / MXA_BACKWARD_TILE_Q;
    extent->group = k_row / MXA_BACKWARD_GROUP;
    extent->groups = (k_used + MXA_BACKWARD_GROUP - 1) / MXA_BACKWARD_GROUP;
}

/* Positions of a sequence's queries that see some key: from first to before end. */
typedef struct backward_seen {
    int first, end;
} backward_seen;

/* WHY rows are told apart here: what dO holds in one that sees no key is to count nowhere, not in a
 * mean and not in an exponent. */
MXA_DEVICE void backward_find_seen(const mxa_backward_prepare_params *params, int sequence,
                                   backward_seen *seen)
{
    int q_used = params->batch.seqlen_q, k_used = params->batch.seqlen_k;
    if (params->batch.sequences) {
        const mxa_global record = params->batch.sequences + 64 * (uint64_t)sequence;
        q_used = dev_load_global_i32(record + 8);
        k_used = dev_load_global_i32(record + 24);
    }
    const int diagonal = params->top_left ? 0 : k_used - q_used;
    const int first = -diagonal - params->window_right;
    const int end = k_used - diagonal + params->window_left;
    seen->first = params->window_right < 0 || first < 0 ? 0 : first;
    seen->end = k_used <= 0 ? 0 : params->window_left < 0 || end > q_used ? q_used : end;
}

MXA_DEVICE int backward_is_seen(const backward_seen *seen, int position)
{
    return position >= seen->first && position < seen->end;
}

/* Smallest e, within [-100, 100], with 1.07 x <= 1.3 * 2^e. 1.07: what rounding adds to norms and
 * to P; twice 1.3: two such exponents and 2^8 keep a product within E4M3's 448. */
MXA_DEVICE int backward_exponent(float x)
{
    uint32_t bits = bits_f32(mul_rn(x, 0.8230769f));
    int e = (int)(bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0);
    return e < -100 ? -100 : e > 100 ? 100 : e;
}

/* Exponent of a power of two, and whether it is one (a group that is not finite has NaN). */
MXA_DEVICE int backward_log2(uint32_t power)
{
    return (int)(power >> 23) - 127;
}

/* 2^exponent; 0 below FP32's normal numbers, 2^127 above them: a zero times it stays one. */
MXA_DEVICE float backward_power(int exponent)
{
    return exponent < -126 ? 0.0f
                           : f32_bits((uint32_t)((exponent > 127 ? 127 : exponent) + 127) << 23);
}

/* A 4 x 4 tile of bytes turned over: byte i of y[j] is byte j of x[i]. */
MXA_DEVICE void backward_turn4(const uint32_t *x, uint32_t *y)
{
    uint32_t a = permute_bytes(x[0], x[1], 0x5140), b = permute_bytes(x[0], x[1], 0x7362);
    uint32_t c = permute_bytes(x[2], x[3], 0x5140), d = permute_bytes(x[2], x[3], 0x7362);
    y[0] = permute_bytes(a, c, 0x5410);
    y[1] = permute_bytes(a, c, 0x7632);
    y[2] = permute_bytes(b, d, 0x5410);
    y[3] = permute_bytes(b, d, 0x7632);
}

/* Word `word` of dimension d's row of `words` words in a tile that is turned over. WHY the odd row
 * and two words more every 32 dimensions: stores (8 dimensions from lane to lane) and loads fall in
 * 32 banks. */
MXA_DEVICE mxa_shared backward_word(mxa_shared at, int words, int d, int word)
{
    return at + 4 * (uint32_t)((words + 1) * d + 2 * (d >> 5) + word);
}

/* Bytes of such a tile. */
#define BACKWARD_TURN_BYTES(words, dims) (4 * (((words) + 1) * (dims) + 2 * ((dims) / 32)))

/* Unit `unit` (16 bytes) of a turned tile as the main kernel's shared memory holds it: blocks of 64
 * tokens, each [dims] rows of 64 bytes, swizzled; row n is dimension backward_dimension(n). */
MXA_DEVICE mxa_u32x4 backward_unit(mxa_shared at, int words, int dims, int unit)
{
    const int row = unit / 4 % dims, d = backward_dimension(row);
    const int chunk = unit / (4 * dims) * 4 + ((unit ^ row >> 1) & 3);
    mxa_u32x4 v;
    v.x = dev_load_shared_u32(backward_word(at, words, d, 4 * chunk));
    v.y = dev_load_shared_u32(backward_word(at, words, d, 4 * chunk + 1));
    v.z = dev_load_shared_u32(backward_word(at, words, d, 4 * chunk + 2));
    v.w = dev_load_shared_u32(backward_word(at, words, d, 4 * chunk + 3));
    return v;
}

#endif
