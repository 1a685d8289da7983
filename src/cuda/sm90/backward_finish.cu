/* backward_finish.cu: dQ out of the sums of the Hopper backward, and dsink.
 *
 * queries: one CTA for 64 queries of a q head, and of up to 128 dimensions (y), 128 threads, one
 * for each lane of the four warps that made the tile: the sums lie in accumulator order, 16 bytes a
 * lane, whose columns are eight dimensions in a row. sinks: one CTA a q head, 256 threads: the sum
 * over tiles, in a fixed order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/backward_place.h"

/* 32 columns of a lane's two rows, 16 accumulators from `from` on. */
MXA_DEVICE void read_sums(mxa_global from, int f32, uint32_t *w)
{
    MXA_UNROLL
    for (int i = 0; i < (f32 ? 4 : 2); i++) {
        const mxa_u32x4 v = dev_load_global_u32x4(from + 512 * (uint64_t)i);
        w[4 * i] = v.x;
        w[4 * i + 1] = v.y;
        w[4 * i + 2] = v.z;
        w[4 * i + 3] = v.w;
    }
}

/* Of them, those of row r times `factor`, to memory. */
MXA_DEVICE void store_sums(mxa_global to, int type, int f32, int r, float factor, const uint32_t *w)
{
    float sums[16], x[8];
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        sums[2 * j] = f32 ? f32_bits(w[2 * j]) : f32_from_f16_low(w[j]);
        sums[2 * j + 1] = f32 ? f32_bits(w[2 * j + 1]) : f32_from_f16_high(w[j]);
    }
    backward_eight(sums, 0, r, x);
    MXA_UNROLL
    for (int j = 0; j < 8; j++) {
        x[j] = mul_rn(x[j], factor);
    }
    backward_store_eight(to, type, x);
}

/* What one thread has of dQ. */
typedef struct own_sums {
    mxa_global from, to; /* sums; the first row's first dimension */
    uint64_t step;       /* bytes to the eighth row further on */
    int rows[2];         /* whether the sequence has them */
    int dims;            /* from the thread's first on */
    float factor;
} own_sums;

/* All of them, two blocks of columns at a time: eight loads in flight, or four. */
MXA_DEVICE void finish_sums(const own_sums *own, int type, int f32, int head_dim)
{
    const uint64_t block_bytes = f32 ? 4 * 512 : 2 * 512;
    MXA_UNROLL
    for (int b = 0; b < head_dim / 32; b += 2) {
        uint32_t w[2][16];
        MXA_UNROLL
        for (int k = 0; k < 2; k++) {
            read_sums(own->from + (uint64_t)(b + k) * block_bytes, f32, w[k]);
        }
        MXA_UNROLL
        for (int k = 0; k < 2; k++) {
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                if (own->rows[r] && 32 * (b + k) < own->dims) {
                    const mxa_global to = own->to + (uint64_t)r * own->step +
                                          (uint64_t)(32 * (b + k) * (type == MXA_GPU_F32 ? 4 : 2));
                    store_sums(to, type, f32, r, own->factor, w[k]);
                }
            }
        }
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
    load_place place;
    int tile, head;
    if (!find_tile(params, &place, &tile, &head)) {
        return;
    }
    const int part = head % parts;
    head /= parts;
    const int warp = dev_thread() >> 5, lane = dev_thread() & 31, d = 8 * (lane & 3);
    const int position = place.position + 16 * warp + (lane >> 2);
    const int bytes = params->dq_type == MXA_GPU_F32 ? 4 : 2;
    const uint64_t whole = (uint64_t)head * (uint64_t)params->q_tiles + (uint64_t)tile;
    const uint64_t block = (whole * (uint64_t)parts + (uint64_t)part) * 4 + (uint64_t)warp;
    const int64_t index = place.outer * params->dq_batch +
                          (place.first + (int64_t)position) * params->dq_token +
                          head * params->dq_head + part * head_dim + d;
    const uint64_t pair = (uint64_t)(place.sequence * params->heads + head);
    const int log2 = dev_load_global_i32(params->dq_log2 + 4 * pair);
    /* In two steps: 2^-log2 alone may be beyond FP32. */
    const float half = backward_power(-(log2 / 2)), rest = backward_power(-(log2 - log2 / 2));
    const own_sums own = {
        params->dq + block * (uint64_t)(16 * head_dim * (params->dq_f32 ? 4 : 2)) +
            16 * (uint64_t)lane,
        params->dq_out + (uint64_t)(bytes * index),
        (uint64_t)(8 * bytes * params->dq_token),
        {position < place.used, position + 8 < place.used},
        params->head_dim - part * head_dim - d,
        mul_rn(mul_rn(params->scale, half), rest),
    };
    if (params->dq_f32) {
        finish_sums(&own, params->dq_type, 1, head_dim);
    } else {
        finish_sums(&own, params->dq_type, 0, head_dim);
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
