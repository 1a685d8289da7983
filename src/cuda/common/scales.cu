/* scales.cu: scale bytes from one arrangement to another.
 *
 * Meaning: mxa_scales_offset (mx/scales.h): for each byte of the target, the source byte of the
 * same element. Scatter stays on one axis, transform goes to the other (square blocks).
 *
 * A CTA takes 128 tokens by sixteen units, four a warp.
 *   move     any arrays: in shared memory they are units, whatever they were. Linear hdim rows that
 *            hold sixteen units side by side are read 16 bytes at a time by the whole CTA: a warp
 *            alone would use 4 bytes of each sector
 *   spread   square blocks to tiled units, from one byte of each block: a transform, or compact
 *            scales. A unit has sixteen blocks, and its rows repeat them
 *   repeat   the same where a block's words are read at once: tiled units, whose first row has
 *            them, or compact scales of whole units. 32 units a CTA, eight a warp
 *   runs     tiled units of a dense batch, turned: neighbours in memory are tiles of one head
 *   seq      linear seq scales whose units lie side by side to tiled ones: byte matrices are turned
 *            in registers
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/scale_unit.h"

enum {
    THREADS = 128,
    EACH = 4,                      /* units of a warp */
    RUN = MXA_SCALES_REPEATED / 4, /* and of mxa_scales_repeat, and tiles of mxa_scales_runs */
    AT_FROM = SEQUENCE_BYTES + 64, /* 256: units are read 16 bytes at a time */
    AT_TO = AT_FROM + UNIT_BYTES * MXA_SCALES_UNITS,
    SHARED_BYTES = AT_TO + UNIT_BYTES * MXA_SCALES_UNITS /* device.c */
};

MXA_STATIC_ASSERT(SHARED_BYTES == 256 + 2 * 512 * 16, "device.c gives the kernel this much");

/* The sixteen units' rows, four units in 16 bytes. */
MXA_DEVICE void load_rows_of_units(const mxa_scales_params *p, const scale_unit *first)
{
    mxa_u32x4 v[EACH];
    MXA_UNROLL
    for (int j = 0; j < EACH; j++) {
        const int i = dev_thread() + THREADS * j, row = smaller(i / 4, first->tokens - 1);
        v[j] = dev_load_global_u32x4(p->from.data +
                                     (uint64_t)((first->token + row) * p->from.stride_row +
                                                first->head * p->from.stride_head +
                                                4 * first->chunk + 16 * (i % 4)));
    }
    MXA_UNROLL
    for (int j = 0; j < EACH; j++) {
        const int i = dev_thread() + THREADS * j, row = i / 4;
        const uint32_t w[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
        MXA_UNROLL
        for (int m = 0; m < 4; m++) {
            dev_store_shared_u32(scale_row_at(first, row) +
                                     UNIT_BYTES * (uint32_t)(4 * (i % 4) + m),
                                 row < first->tokens ? w[m] : 0);
        }
    }
}

/* Unit i of this warp; 0 where there are no more. */
MXA_DEVICE int unit_of_warp(const mxa_scales_params *p, const sequence_tile *at, int i,
                            scale_unit *u)
{
    const int n = EACH * (dev_thread_again() / 32) + i;
    const int number = dev_block_x() * MXA_SCALES_UNITS + n;
    scale_unit_begin(u, &p->batch, at, dev_shared() + AT_FROM + UNIT_BYTES * (uint32_t)n, number,
                     p->chunks, p->head_dim);
    return number < p->units;
}

/* The warp's units, all their loads in flight before one is looked at. */
MXA_DEVICE void load_units(const mxa_scales_params *p, const sequence_tile *at)
{
    uint32_t w[4 * EACH];
    scale_unit u;
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (unit_of_warp(p, at, i, &u)) {
            scale_unit_fetch(&u, &p->from, p->from_axis, w + 4 * i);
        }
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (unit_of_warp(p, at, i, &u)) {
            scale_unit_put(&u, &p->from, p->from_axis, w + 4 * i);
        }
    }
    warp_sync();
}

MXA_KERNEL_MANY(mxa_scales_move, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_shared shared = dev_shared();
    sequence_tile at;
    if (!sequence_find(&p->batch, shared, sequence_tile_number(&p->batch), &at)) {
        return;
    }
    scale_unit u;
    if (at.sequence >= 0 && p->rows_of_units) {
        scale_unit_begin(&u, &p->batch, &at, shared + AT_FROM, dev_block_x() * MXA_SCALES_UNITS,
                         p->chunks, p->head_dim);
        load_rows_of_units(p, &u);
        cta_sync();
    } else if (at.sequence >= 0) {
        load_units(p, &at);
    }
    MXA_NO_UNROLL
    for (int i = 0; i < EACH && unit_of_warp(p, &at, i, &u); i++) {
        if (at.sequence >= 0) {
            if (p->from_axis != p->to_axis) {
                const mxa_shared to = u.at + (uint32_t)(AT_TO - AT_FROM);
                scale_unit_turn(&u, p->from_axis, to);
                u.at = to;
                warp_sync();
            }
            scale_unit_store(&u, &p->to, p->to_axis);
        }
        scale_gaps_clear(&u, &p->batch, &p->to, p->to_axis, &at);
    }
}

/* The byte of a unit's block of tokens j and dims k, at its first token and dim; 0 where there is
 * none. */
MXA_DEVICE uint32_t block_byte(const scale_unit *u, const mxa_gpu_scales *scales, int axis, int j,
                               int k)
{
    mxa_global at = scales->data;
    if (32 * j >= u->tokens || 32 * k >= u->dims) {
        return 0;
    }
    if (scales->layout == MXA_GPU_TILED) {
        at = scale_tiled_at(u, scales, axis, 0) + (uint64_t)(axis ? 4 * k + j : 4 * j + k);
    } else {
        const int compact = scales->layout == MXA_GPU_COMPACT;
        const int64_t row = axis || compact ? u->block + j : u->token + 32 * j;
        const int64_t column = axis && !compact ? 128 * u->chunk + 32 * k : 4 * u->chunk + k;
        at += (uint64_t)(row * scales->stride_row + u->head * scales->stride_head +
                         column * scales->stride_k);
    }
    return dev_load_global_u8(at);
}

/* Lane 16*i + 4*j + k of a warp has block (j, k) of units i and, in its second byte, 2 + i. */
MXA_KERNEL_MANY(mxa_scales_spread, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_shared shared = dev_shared();
    const int lane = dev_thread() & 31, j = lane / 4 % 4, k = lane % 4, to_seq = p->to_axis;
    sequence_tile at;
    scale_unit u;
    uint32_t byte[2] = {0, 0};
    if (!sequence_find(&p->batch, shared, sequence_tile_number(&p->batch), &at)) {
        return;
    }
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        if (at.sequence >= 0 && unit_of_warp(p, &at, 2 * i + lane / 16, &u)) {
            byte[i] = block_byte(&u, &p->from, p->from_axis, j, k);
        }
    }
    /* The words that every row repeats: byte k of word j (hdim), byte j of word k (seq). */
    MXA_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t word = byte[i] << (8 * (to_seq ? j : k));
        word |= shuffle_xor_u32(word, to_seq ? 4 : 1);
        byte[i] = word | shuffle_xor_u32(word, to_seq ? 8 : 2);
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int there = unit_of_warp(p, &at, i, &u), rows = to_seq ? u.dims : u.tokens;
        uint32_t w[4];
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            const int from = 16 * (i % 2) + (to_seq ? n : 4 * n);
            const uint32_t word = (uint32_t)shuffle_i32((int)byte[i / 2], from);
            w[n] = lane + 32 * n < rows ? word : 0;
        }
        if (there && at.sequence >= 0) {
            const mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
            dev_store_global_u32x4(scale_tiled_at(&u, &p->to, p->to_axis, lane), v);
        }
        if (there) {
            scale_gaps_clear(&u, &p->batch, &p->to, p->to_axis, &at);
        }
    }
}

/* From unit to unit of a scale array: bytes to the next chunk of a head, and from a head's last one
 * to the next head. */
typedef struct unit_steps {
    mxa_global at;
    uint64_t chunk, head;
} unit_steps;

MXA_DEVICE unit_steps unit_steps_begin(const mxa_gpu_scales *scales, int axis, const scale_unit *u,
                                       int chunks)
{
    unit_steps s;
    int64_t chunk = 4, head = scales->stride_head; /* compact: four blocks of a unit side by side */
    if (scales->layout == MXA_GPU_TILED) {
        s.at = scale_tiled_at(u, scales, axis, 0);
        chunk = UNIT_BYTES * (axis ? scales->stride_row : scales->stride_k);
        head *= UNIT_BYTES;
    } else {
        s.at = scales->data +
               (uint64_t)(u->block * scales->stride_row + u->head * head + u->chunk * chunk);
    }
    s.chunk = (uint64_t)chunk;
    s.head = (uint64_t)(head - (chunks - 1) * chunk);
    return s;
}

/* A unit's sixteen blocks as they lie: by blocks of tokens, or of tiled seq scales by blocks of
 * dims. Tokens beyond the sequence's last read its first block. */
MXA_DEVICE mxa_u32x4 unit_blocks(const mxa_gpu_scales *scales, mxa_global at, int tokens)
{
    if (scales->layout == MXA_GPU_TILED) {
        return dev_load_global_u32x4(at);
    }
    const uint64_t step = (uint64_t)scales->stride_row;
    const mxa_u32x4 v = {dev_load_global_u32(at),
                         dev_load_global_u32(at + (tokens > 32 ? step : 0)),
                         dev_load_global_u32(at + (tokens > 64 ? 2 * step : 0)),
                         dev_load_global_u32(at + (tokens > 96 ? 3 * step : 0))};
    return v;
}

/* What lane `lane` writes of them. */
MXA_DEVICE mxa_u32x4 unit_row(mxa_u32x4 v, int turned, int to_seq, int tokens, int lane)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};
    if (turned && !to_seq) {
        turn_bytes(w);
    }
    if (tokens < 128) {
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            w[n] = 32 * n + (to_seq ? 0 : lane) < tokens ? w[n] : 0;
        }
    }
    if (to_seq) {
        turn_bytes(w);
    }
    const mxa_u32x4 row = {w[0], w[1], w[2], w[3]};
    return row;
}

MXA_KERNEL_MANY(mxa_scales_repeat, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const int lane = dev_thread() & 31, chunks = (int)p->chunks.divisor;
    const int first = RUN * (4 * dev_block_x() + dev_thread() / 32);
    sequence_tile at;
    scale_unit u;
    if (!sequence_find(&p->batch, dev_shared(), sequence_tile_number(&p->batch), &at)) {
        return;
    }
    const int count = smaller(p->units - first, RUN);
    if (at.sequence >= 0) {
        mxa_u32x4 v[RUN];
        scale_unit_begin(&u, &p->batch, &at, 0, first, p->chunks, p->head_dim);
        unit_steps from = unit_steps_begin(&p->from, p->from_axis, &u, chunks);
        int left = chunks - u.chunk;
        MXA_UNROLL
        for (int i = 0; i < RUN; i++) {
            if (i < count) {
                v[i] = unit_blocks(&p->from, from.at, u.tokens);
            }
            from.at += --left ? from.chunk : from.head;
            left = left ? left : chunks;
        }
        unit_steps to = unit_steps_begin(&p->to, p->to_axis, &u, chunks);
        left = chunks - u.chunk;
        MXA_UNROLL
        for (int i = 0; i < RUN; i++) {
            if (i < count) {
                /* compact bytes lie by blocks of tokens, whichever axis they are given for */
                const int turned = p->from_axis != p->to_axis && p->from.layout == MXA_GPU_TILED;
                dev_store_global_u32x4(to.at + 16 * (uint64_t)lane,
                                       unit_row(v[i], turned, p->to_axis, u.tokens, lane));
            }
            to.at += --left ? to.chunk : to.head;
            left = left ? left : chunks;
        }
    }
    MXA_NO_UNROLL
    for (int i = 0; p->batch.cu_scale[p->to_axis] && i < count; i++) {
        scale_unit_begin(&u, &p->batch, &at, 0, first + i, p->chunks, p->head_dim);
        scale_gaps_clear(&u, &p->batch, &p->to, p->to_axis, &at);
    }
}

/* A warp takes units of one head and chunk, tile after tile of tokens: lines side by side in both
 * arrays, where the next head's lie as far away as a head is long. Grid x: tiles; y and z: units.
 */
MXA_KERNEL_MANY(mxa_scales_runs, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const mxa_gpu_sequences *batch = &p->batch;
    const int lane = dev_thread() & 31, unit = 65535 * dev_block_z() + dev_block_y();
    const int first = RUN * (4 * dev_block_x() + dev_thread() / 32);
    const int count = smaller(batch->tiles - first, RUN);
    if (unit >= p->units) {
        return;
    }
    if (batch->status && unit == 0 && first == 0 && lane == 0) {
        dev_store_global_u32(batch->status, 0);
    }
    scale_unit u;
    u.head = divide(unit, p->chunks);
    u.chunk = unit - u.head * (int)p->chunks.divisor;
    u.tile_hdim = u.tile_seq = first;
    const mxa_global from = scale_tiled_at(&u, &p->from, p->from_axis, 0);
    const mxa_global to = scale_tiled_at(&u, &p->to, p->to_axis, lane);
    const uint64_t from_step =
        UNIT_BYTES * (uint64_t)(p->from_axis ? p->from.stride_k : p->from.stride_row);
    const uint64_t to_step =
        UNIT_BYTES * (uint64_t)(p->to_axis ? p->to.stride_k : p->to.stride_row);
    const int each = (int)batch->tiles_each.divisor, last = batch->seqlen - 128 * (each - 1);
    const int position = first - divide(first, batch->tiles_each) * each; /* in its sequence */
    mxa_u32x4 v[RUN];
    if (count == RUN && (last == 128 || position + RUN < each)) { /* all of 128 tokens */
        MXA_UNROLL
        for (int i = 0; i < RUN; i++) {
            v[i] = dev_load_global_u32x4(from + (uint64_t)i * from_step);
        }
        MXA_UNROLL
        for (int i = 0; i < RUN; i++) {
            dev_store_global_u32x4(to + (uint64_t)i * to_step,
                                   unit_row(v[i], 1, p->to_axis, 128, lane));
        }
        return;
    }
    MXA_NO_UNROLL
    for (int i = 0; i < count; i++) {
        const int tile = first + i;
        const int is_last = tile - divide(tile, batch->tiles_each) * each == each - 1;
        dev_store_global_u32x4(to + (uint64_t)i * to_step,
                               unit_row(dev_load_global_u32x4(from + (uint64_t)i * from_step), 1,
                                        p->to_axis, is_last ? last : 128, lane));
    }
}

/* Slot of a unit's row of 16 bytes. WHY: eight lanes write rows four apart, and read neighbours,
 * without meeting in a bank. */
MXA_DEVICE mxa_shared turned_slot(const scale_unit *u, int row)
{
    return u->at + 16 * (uint32_t)(row / 4 * 4 + ((row ^ row / 8) & 3));
}

/* Lane 8*i + l of a warp turns dims 4*l .. 4*l+3 of each 32 of its unit i. */
MXA_KERNEL_MANY(mxa_scales_seq, THREADS, 8, mxa_scales_params, parameters)
{
    const mxa_scales_params *p = &parameters;
    const int lane = dev_thread() & 31, l = lane % 8;
    sequence_tile at;
    scale_unit u;
    if (!sequence_find(&p->batch, dev_shared(), sequence_tile_number(&p->batch), &at)) {
        return;
    }
    (void)unit_of_warp(p, &at, lane / 8, &u);
    if (at.sequence >= 0) {
        uint32_t w[16];
        MXA_UNROLL
        for (int i = 0; i < 16; i++) { /* dims 32*(i/4).. of block of tokens i%4 */
            const int j = 32 * (i % 4) < u.tokens ? i % 4 : 0;
            w[i] = dev_load_global_u32(p->from.data +
                                       (uint64_t)((u.block + j) * p->from.stride_row +
                                                  u.head * p->from.stride_head + 128 * u.chunk +
                                                  32 * (i / 4) + 4 * l));
        }
        MXA_UNROLL
        for (int c = 0; c < 4; c++) {
            MXA_UNROLL
            for (int j = 1; j < 4; j++) {
                w[4 * c + j] = 32 * j < u.tokens ? w[4 * c + j] : 0;
            }
            turn_bytes(w + 4 * c); /* word n: dim 4*l + n, its four blocks of tokens */
        }
        MXA_UNROLL
        for (int n = 0; n < 4; n++) {
            const mxa_u32x4 row = {w[n], w[4 + n], w[8 + n], w[12 + n]};
            dev_store_shared_u32x4(turned_slot(&u, 4 * l + n), row);
        }
        warp_sync();
    }
    MXA_UNROLL
    for (int i = 0; i < EACH; i++) {
        (void)unit_of_warp(p, &at, i, &u);
        if (at.sequence >= 0) {
            dev_store_global_u32x4(scale_tiled_at(&u, &p->to, 1, lane),
                                   dev_load_shared_u32x4(turned_slot(&u, lane)));
        }
        scale_gaps_clear(&u, &p->batch, &p->to, 1, &at);
    }
}
