/* backward_finish.cu: dQ out of the sums of the Hopper backward, and dsink.
 *
 * queries: one CTA for 64 queries of a q head, and of up to 128 dimensions (y), 128 threads, one
 * for each lane of the four warps that made the tile: the sums lie in accumulator order, 16 bytes a
 * lane. They are turned to rows in shared memory, scaled and stored 8 elements a thread. sinks: one
 * CTA a q head, 256 threads: the sum over tiles, in a fixed order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_place.h"

/* Row of 8 * chunks floats, 4 more between rows: stores of a warp fall in 32 banks. */
MXA_DEVICE mxa_shared finish_at(mxa_shared shared, int head_dim, int row, int d)
{
    return shared + 4 * (uint32_t)((head_dim + 4) * row + d);
}

/* One lane's 16 bytes, number i of its tile: accumulators r, r + 1 are row + 8*((r >> 1) & 1),
 * columns 8*(r >> 2) + column and the next. */
MXA_DEVICE void place_sums(mxa_shared shared, int head_dim, int row, int column, int f32, int i,
                           mxa_u32x4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    const int each = f32 ? 4 : 8;
    MXA_UNROLL
    for (int j = 0; j < each; j += 2) {
        const int r = each * i + j;
        uint32_t a = f32 ? w[j % 4] : bits_f32(f32_from_f16_low(w[j / 2]));
        uint32_t b = f32 ? w[j % 4 + 1] : bits_f32(f32_from_f16_high(w[j / 2]));
        dev_store_shared_u32x2(
            finish_at(shared, head_dim, row + 8 * (r >> 1 & 1), 8 * (r >> 2) + column), a, b);
    }
}

/* The tile's sums to rows in shared memory, four loads in flight. */
MXA_DEVICE void read_sums(const mxa_backward_prepare_params *params, mxa_shared shared, int f32,
                          int head_dim, uint64_t block)
{
    const int warp = dev_thread() >> 5, lane = dev_thread() & 31;
    const int row = 16 * warp + (lane >> 2), column = 2 * (lane & 3);
    const int loads = head_dim / 2 / (f32 ? 4 : 8);
    const mxa_global from =
        params->dq + 512 * ((block * 4 + (uint64_t)warp) * (uint64_t)loads) + 16 * (uint64_t)lane;
    MXA_UNROLL
    for (int i = 0; i < loads; i += 4) {
        mxa_u32x4 v[4];
        MXA_UNROLL
        for (int k = 0; k < 4; k++) {
            v[k] = dev_load_global_u32x4(from + 512 * (uint64_t)(i + k));
        }
        MXA_UNROLL
        for (int k = 0; k < 4; k++) {
            place_sums(shared, head_dim, row, column, f32, i + k, v[k]);
        }
    }
}

MXA_DEVICE void store_row(const mxa_backward_prepare_params *params, mxa_global at, const float *x)
{
    if (params->dq_type == MXA_GPU_F32) {
        mxa_u32x4 a = {bits_f32(x[0]), bits_f32(x[1]), bits_f32(x[2]), bits_f32(x[3])};
        mxa_u32x4 b = {bits_f32(x[4]), bits_f32(x[5]), bits_f32(x[6]), bits_f32(x[7])};
        dev_store_global_u32x4(at, a);
        dev_store_global_u32x4(at + 16, b);
    } else if (params->dq_type == MXA_GPU_BF16) {
        mxa_u32x4 a = {bf16x2_from_f32x2(x[0], x[1]), bf16x2_from_f32x2(x[2], x[3]),
                       bf16x2_from_f32x2(x[4], x[5]), bf16x2_from_f32x2(x[6], x[7])};
        dev_store_global_u32x4(at, a);
    } else {
        mxa_u32x4 a = {f16x2_from_f32x2(x[0], x[1]), f16x2_from_f32x2(x[2], x[3]),
                       f16x2_from_f32x2(x[4], x[5]), f16x2_from_f32x2(x[6], x[7])};
        dev_store_global_u32x4(at, a);
    }
}

/* Until the main kernel has added up dQ of the (sequence, kv head) pair of the tile at `place`. */
MXA_DEVICE void wait_done(const mxa_backward_prepare_params *params, const load_place *place,
                          int head)
{
    const int keys =
        params->batch.sequences
            ? dev_load_global_i32(params->batch.sequences + 64 * (uint64_t)place->sequence + 24)
            : params->batch.seqlen_k;
    const int most = (keys + params->tile_keys - 1) / params->tile_keys * params->done_each;
    const uint64_t pair = (uint64_t)((place->sequence * params->heads + head) / params->group);
    if (dev_thread() == 0) {
        while ((int)dev_load_acquire_global_u32(params->done + 4 * pair) != most) {
        }
    }
    cta_sync();
}

/* Which tile of which head, once its sums are there; 0: there is none. With `done` a dense batch's
 * grid is a line of the tiles of each pair, as the main kernel completes them, and every grid
 * begins while it works on its last ones, on multiprocessors that it has left. */
MXA_DEVICE int find_tile(const mxa_backward_prepare_params *params, load_place *place, int *tile,
                         int *head)
{
    int q_row;
    *tile = dev_block_x();
    *head = dev_block_y();
    if (!params->done) {
        grid_dependency_wait();
    }
    /* WHY before words of the main kernel are waited for: it writes none for a malformed batch. */
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return 0;
    }
    if (params->done && !params->batch.sequences) {
        const int tiles = params->q_tiles_most / params->batch.batch, each = tiles * params->heads;
        const int sequence = *tile / each, inside = *tile % each;
        *tile = sequence * tiles + inside % tiles;
        *head = inside / tiles;
    }
    if (!backward_find_queries(&params->batch, *tile, place, &q_row)) {
        return 0;
    }
    if (params->done) {
        wait_done(params, place, *head);
    }
    return 1;
}

/* head_dim: of one of the `parts` that the dimensions come in; heads are that many more. */
MXA_DEVICE void finish_queries(const mxa_backward_prepare_params *params, int head_dim, int parts)
{
    const mxa_shared shared = dev_shared();
    const int chunks = head_dim / 8;
    load_place place;
    int tile, head;
    if (!find_tile(params, &place, &tile, &head)) {
        return;
    }
    const int part = head % parts;
    head /= parts;
    const uint64_t whole = (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)tile;
    const uint64_t block = whole * (uint64_t)parts + (uint64_t)part;
    if (params->dq_f32) {
        read_sums(params, shared, 1, head_dim, block);
    } else {
        read_sums(params, shared, 0, head_dim, block);
    }
    const uint64_t pair = (uint64_t)(place.sequence * params->heads + head);
    const int log2 = dev_load_global_i32(params->dq_log2 + 4 * pair);
    /* In two steps: 2^-log2 alone may be beyond FP32. */
    const float half = backward_power(-(log2 / 2)), rest = backward_power(-(log2 - log2 / 2));
    const float factor = mul_rn(mul_rn(params->scale, half), rest);
    cta_sync();
    const int bytes = params->dq_type == MXA_GPU_F32 ? 4 : 2;
    const int d = dev_thread() % chunks * 8;
    const int dims = params->head_dim - part * head_dim;
    for (int row = dev_thread() / chunks; d < dims && row < MXA_BACKWARD_TILE_Q;
         row += 128 / chunks) {
        const int position = place.position + row;
        float x[8];
        if (position >= place.used) {
            break;
        }
        mxa_u32x4 a = dev_load_shared_u32x4(finish_at(shared, head_dim, row, d));
        mxa_u32x4 b = dev_load_shared_u32x4(finish_at(shared, head_dim, row, d + 4));
        uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        MXA_UNROLL
        for (int j = 0; j < 8; j++) {
            x[j] = mul_rn(f32_bits(w[j]), factor);
        }
        const int64_t index = place.outer * params->dq_batch +
                              (place.first + (int64_t)position) * params->dq_token +
                              head * params->dq_head + part * head_dim + d;
        store_row(params, params->dq_out + (uint64_t)(bytes * index), x);
    }
}

/* The grid ends after the main kernel: one CTA sees to that. */
MXA_DEVICE void end_last(const mxa_backward_prepare_params *params)
{
    if (params->done && dev_block_x() == dev_grid_x() - 1 && dev_block_y() == 0) {
        grid_dependency_wait();
    }
}

MXA_KERNEL_SMALL(mxa_sm90_backward_finish_d64, 128, mxa_backward_prepare_params, parameters)
{
    finish_queries(&parameters, 64, 1);
    end_last(&parameters);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_finish_d128, 128, mxa_backward_prepare_params, parameters)
{
    finish_queries(&parameters, 128, 1);
    end_last(&parameters);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_finish_d256, 128, mxa_backward_prepare_params, parameters)
{
    finish_queries(&parameters, 128, 2);
    end_last(&parameters);
}

MXA_KERNEL_SMALL(mxa_sm90_backward_sinks, 256, mxa_backward_prepare_params, parameters)
{
    const mxa_backward_prepare_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    grid_dependency_wait();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int head = dev_block_x();
    float sum = 0.0f;
    for (int i = dev_thread(); i < 2 * params->q_tiles_most; i += 256) {
        sum = add_rn(sum, dev_load_global_f32(
                              params->partial_sink +
                              4 * (2 * (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)i)));
    }
    dev_store_shared_f32(shared + 4 * (uint32_t)dev_thread(), sum);
    for (int step = 128; step > 0; step /= 2) {
        cta_sync();
        if (dev_thread() < step) {
            const mxa_shared at = shared + 4 * (uint32_t)dev_thread();
            dev_store_shared_f32(
                at, add_rn(dev_load_shared_f32(at), dev_load_shared_f32(at + 4 * (uint32_t)step)));
        }
    }
    if (dev_thread() == 0) {
        dev_store_global_f32(params->dsink + 4 * (uint64_t)head, dev_load_shared_f32(shared));
    }
}
