/* prepare.cu: makes Hopper's private operand copies from any caller's tensors.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels.md (Hopper forward). One CTA makes 32
 * tokens of one head: thread t holds 32 elements of token t / (D/32), so D threads in all.
 *   wide operands are first quantized as their block says (docs/format.md), as a producer would;
 *   then every value is folded to one exponent per 32 tokens. The fold is exact but for elements
 *   about 2^10 (q, k) or 2^14 (v) below the group's largest, which lose trailing bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"

/* Shared memory: reduction words, then v's transposed tile with rows of 48 bytes. */
enum { AT_REDUCE = 0, AT_TILE = 256, TILE_STRIDE = 48 };

#define NOT_FINITE 0x7F800000u

/* Largest of `x` over the threads whose lane agrees modulo `step` in all warps. */
MXA_DEVICE uint32_t reduce_max(mxa_shared shared, uint32_t x, int step)
{
    int lane = dev_thread() & 31, warp = dev_thread() >> 5, warps = dev_threads() >> 5;
    for (int mask = step; mask < 32; mask <<= 1) {
        uint32_t y = shuffle_xor_u32(x, mask);
        x = x > y ? x : y;
    }
    cta_sync();
    if (lane < step) {
        dev_store_shared_u32(shared + AT_REDUCE + 4 * (uint32_t)(warp * step + lane), x);
    }
    cta_sync();
    for (int w = 0; w < warps; w++) {
        uint32_t y = dev_load_shared_u32(shared + AT_REDUCE +
                                         4 * (uint32_t)(w * step + (lane & (step - 1))));
        x = x > y ? x : y;
    }
    return x;
}

MXA_DEVICE uint32_t chunk_max(const float *x)
{
    uint32_t top = 0;
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        uint32_t bits = bits_f32(x[i]) & 0x7FFFFFFFu;
        top = bits > top ? bits : top;
    }
    return top;
}

/* E8M0 byte of a block: docs/format.md, rounding. */
MXA_DEVICE uint32_t scale_byte(uint32_t amax, int e5m2, int floor_rule)
{
    if (amax > NOT_FINITE) {
        return 255;
    }
    if (amax == NOT_FINITE) {
        return 254;
    }
    int byte = (int)(amax >> 23) - (e5m2 ? 15 : 8) + (!floor_rule && (amax & 0x7FFFFF) > 0x600000);
    return byte < 0 ? 0 : (uint32_t)byte;
}

/* x * 2^-exponent, exact while the result is normal; exponent in [-127, 127]. */
MXA_DEVICE float scale_down(float x, int exponent)
{
    int half = exponent / 2;
    return mul_rn(mul_rn(x, f32_bits((uint32_t)(127 - half) << 23)),
                  f32_bits((uint32_t)(127 - (exponent - half)) << 23));
}

/* What the chunk's values become when its blocks are quantized to E4M3 (square or row). */
MXA_DEVICE void quantize_chunk(mxa_shared shared, const mxa_gpu_operand *from, int chunks, float *x)
{
    uint32_t amax = chunk_max(x);
    if (from->block == MXA_GPU_SQUARE) {
        amax = reduce_max(shared, amax, chunks);
    }
    uint32_t byte = scale_byte(amax, 0, from->rounding);
    float power = load_power(byte);
    int exponent = (int)byte - 127;
    MXA_UNROLL
    for (int i = 0; i < 32; i += 4) {
        uint32_t codes =
            e4m3x4_from_f32(scale_down(x[i], exponent), scale_down(x[i + 1], exponent),
                            scale_down(x[i + 2], exponent), scale_down(x[i + 3], exponent));
        uint32_t low = f16x2_from_fp8x2(codes, 0), high = f16x2_from_fp8x2(codes >> 16, 0);
        x[i] = mul_rn(f32_from_f16_low(low), power);
        x[i + 1] = mul_rn(f32_from_f16_high(low), power);
        x[i + 2] = mul_rn(f32_from_f16_low(high), power);
        x[i + 3] = mul_rn(f32_from_f16_high(high), power);
    }
}

/* One group's place, and its 32 elements a thread; zeros beyond the sequence. */
typedef struct prepare_group {
    load_place place;
    int head, chunks, chunk, row; /* row inside the group */
    int64_t group;
} prepare_group;

MXA_DEVICE void prepare_load(const mxa_prepare_params *params, mxa_shared shared, prepare_group *g,
                             float *x)
{
    g->group = dev_block_x();
    g->head = dev_block_y();
    g->chunks = dev_threads() / 32;
    g->chunk = dev_thread() % g->chunks;
    g->row = dev_thread() / g->chunks;
    load_find(&params->batch, params->is_k_side, (int)(g->group * MXA_PREPARE_GROUP), &g->place);
    int position = g->place.position + g->row;
    if (position < g->place.used) {
        load_chunk(&params->from, &g->place, position, g->head, 32 * g->chunk, x);
    } else {
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = 0.0f;
        }
    }
    if (params->from.type <= MXA_GPU_BF16 && params->mean == 0) {
        quantize_chunk(shared, &params->from, g->chunks, x);
    }
}

/* Smallest exponent e with amax / 2^e <= 1.75 * 2^8 (v), or <= 1.875 * 2^3 = 15 (q, k). */
MXA_DEVICE int fold_exponent(uint32_t amax, int is_v)
{
    int e = (int)(amax >> 23) - 127;
    e += is_v ? -8 + ((amax & 0x7FFFFF) > 0x600000) : -3 + ((amax & 0x7FFFFF) > 0x700000);
    return e < -126 ? -126 : e;
}

MXA_DEVICE void fold_chunk(const float *x, int exponent, uint32_t *codes)
{
    MXA_UNROLL
    for (int i = 0; i < 32; i += 4) {
        codes[i / 4] =
            e4m3x4_from_f32(scale_down(x[i], exponent), scale_down(x[i + 1], exponent),
                            scale_down(x[i + 2], exponent), scale_down(x[i + 3], exponent));
    }
}

/* q and k: payload rows, exponent, and the largest norm of a row. */
MXA_KERNEL_SMALL(128) mxa_sm90_prepare_rows(MXA_PARAMETERS(mxa_prepare_params, parameters))
{
    const mxa_prepare_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    float x[32];
    prepare_group g;
    prepare_load(params, shared, &g, x);
    uint32_t amax = reduce_max(shared, chunk_max(x), 1);
    int exponent = amax >= NOT_FINITE ? MXA_EXPONENT_NAN : fold_exponent(amax, 0);
    uint32_t codes[8];
    if (exponent == MXA_EXPONENT_NAN) {
        MXA_UNROLL
        for (int i = 0; i < 8; i++) {
            codes[i] = 0x7F7F7F7Fu;
        }
    } else {
        fold_chunk(x, exponent, codes);
    }
    int64_t row = g.group * MXA_PREPARE_GROUP + g.row;
    mxa_global at =
        params->payload + (uint64_t)((g.head * params->rows + row) * dev_threads() + 32 * g.chunk);
    mxa_u32x4 first = {codes[0], codes[1], codes[2], codes[3]};
    mxa_u32x4 second = {codes[4], codes[5], codes[6], codes[7]};
    dev_store_global_u32x4(at, first);
    dev_store_global_u32x4(at + 16, second);

    float square = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        square = fma_rn(x[i], x[i], square);
    }
    for (int mask = 1; mask < g.chunks; mask <<= 1) {
        square = add_rn(square, shuffle_xor_f32(square, mask));
    }
    uint32_t largest = reduce_max(shared, bits_f32(square), g.chunks);
    if (dev_thread() == 0) {
        uint64_t group = (uint64_t)(g.head * (params->rows / MXA_PREPARE_GROUP) + g.group);
        dev_store_global_u32(params->exponent + 4 * group, (uint32_t)exponent);
        float norm = sqrt_rn(f32_bits(largest));
        dev_max_global_u32(
            params->norm +
                4 * ((uint64_t)g.place.sequence * (uint64_t)params->heads + (uint64_t)g.head),
            bits_f32(norm) & 0x7FFFFFFFu);
    }
}

/* Column sums of 128 tokens of v: one thread a dimension. */
MXA_KERNEL_SMALL(128) mxa_sm90_prepare_sums(MXA_PARAMETERS(mxa_prepare_params, parameters))
{
    const mxa_prepare_params *params = &parameters;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    int head = dev_block_y(), d = dev_thread(), head_dim = dev_threads();
    load_place place;
    load_find(&params->batch, 1, dev_block_x() * MXA_PREPARE_CHUNK, &place);
    int end = place.used - place.position;
    end = end > MXA_PREPARE_CHUNK ? MXA_PREPARE_CHUNK : end;
    float sum = 0.0f;
    for (int i = 0; i < end; i++) {
        sum = add_rn(sum, load_element(&params->from, &place, place.position + i, head, d));
    }
    dev_store_global_f32(params->partial +
                             4 * (uint64_t)((dev_block_x() * params->heads + head) * head_dim + d),
                         sum);
}

/* The mean from those sums, in order. */
MXA_KERNEL_SMALL(128) mxa_sm90_prepare_mean(MXA_PARAMETERS(mxa_prepare_params, parameters))
{
    const mxa_prepare_params *params = &parameters;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    int sequence = dev_block_x(), head = dev_block_y(), d = dev_thread(), head_dim = dev_threads();
    int row, used;
    if (params->batch.sequences == 0) {
        row = sequence * params->batch.padded_k;
        used = params->batch.seqlen_k;
    } else {
        mxa_global record = params->batch.sequences + 64 * (uint64_t)sequence;
        row = dev_load_global_i32(record + 36);
        used = dev_load_global_i32(record + 24);
    }
    float sum = 0.0f;
    for (int i = 0; i < used; i += MXA_PREPARE_CHUNK) {
        int chunk = (row + i) / MXA_PREPARE_CHUNK;
        sum = add_rn(sum, dev_load_global_f32(
                              params->partial +
                              4 * (uint64_t)((chunk * params->heads + head) * head_dim + d)));
    }
    float mean = used > 0 ? sum / (float)used : 0.0f;
    if ((bits_f32(mean) & 0x7FFFFFFFu) >= NOT_FINITE) {
        mean = 0.0f;
    }
    dev_store_global_f32(
        params->mean + 4 * (uint64_t)((sequence * params->heads + head) * head_dim + d), mean);
}

/* v: transposed payload with permuted keys, exponent, and the sequence's largest exponent. */
MXA_KERNEL_SMALL(128) mxa_sm90_prepare_values(MXA_PARAMETERS(mxa_prepare_params, parameters))
{
    const mxa_prepare_params *params = &parameters;
    const mxa_shared shared = dev_shared();
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    float x[32];
    prepare_group g;
    prepare_load(params, shared, &g, x);
    int head_dim = dev_threads();
    if (params->mean && params->partial && g.place.position + g.row < g.place.used) {
        mxa_global mean =
            params->mean +
            4 * (uint64_t)((g.place.sequence * params->heads + g.head) * head_dim + 32 * g.chunk);
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = add_rn(x[i], -dev_load_global_f32(mean + 4 * (uint64_t)i));
        }
    }
    uint32_t amax = reduce_max(shared, chunk_max(x), 1);
    int exponent = amax >= NOT_FINITE ? MXA_EXPONENT_NAN : fold_exponent(amax, 1);
    uint32_t codes[8];
    if (exponent != MXA_EXPONENT_NAN) {
        fold_chunk(x, exponent, codes);
    }
    /* Key k of a group of 16 goes to slot 4*((k%8)/2) + 2*(k/8) + k%2. */
    int k = g.row & 15;
    int slot = (g.row & 16) + 4 * ((k & 7) >> 1) + 2 * (k >> 3) + (k & 1);
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        uint32_t code =
            exponent == MXA_EXPONENT_NAN ? 0x7Fu : codes[i / 4] >> (8 * (i % 4)) & 0xFFu;
        dev_store_shared_u8(shared + AT_TILE + (uint32_t)((32 * g.chunk + i) * TILE_STRIDE + slot),
                            code);
    }
    cta_sync();
    int d = dev_thread();
    mxa_global at = params->payload + (uint64_t)((g.head * (int64_t)head_dim + d) * params->rows +
                                                 g.group * MXA_PREPARE_GROUP);
    dev_store_global_u32x4(at,
                           dev_load_shared_u32x4(shared + AT_TILE + (uint32_t)(d * TILE_STRIDE)));
    dev_store_global_u32x4(
        at + 16, dev_load_shared_u32x4(shared + AT_TILE + (uint32_t)(d * TILE_STRIDE + 16)));
    if (dev_thread() == 0) {
        uint64_t group = (uint64_t)(g.head * (params->rows / MXA_PREPARE_GROUP) + g.group);
        dev_store_global_u32(params->exponent + 4 * group, (uint32_t)exponent);
        if (exponent != MXA_EXPONENT_NAN && amax != 0) {
            dev_max_global_u32(
                params->top +
                    4 * ((uint64_t)g.place.sequence * (uint64_t)params->heads + (uint64_t)g.head),
                (uint32_t)(exponent + 1024));
        }
    }
}

/* Records of 32 groups' keys: one warp a CTA, one thread a group. y: kv_heads, then q heads. */
MXA_KERNEL_SMALL(32) mxa_sm90_prepare_records(MXA_PARAMETERS(mxa_record_params, parameters))
{
    const mxa_record_params *params = &parameters;
    if (params->batch.status && dev_load_global_u32(params->batch.status)) {
        return;
    }
    int64_t group = 32 * (int64_t)dev_block_x() + dev_thread(); /* of 32 rows */
    if (dev_block_y() >= params->kv_heads) {
        int64_t groups = params->q_rows / MXA_PREPARE_GROUP;
        if (group < groups) {
            uint64_t at = (uint64_t)((dev_block_y() - params->kv_heads) * groups + group);
            int exponent = dev_load_global_i32(params->q_exponent + 4 * at);
            dev_store_global_u32(params->q_scale + 4 * at, exponent == MXA_EXPONENT_NAN
                                                               ? 0x7FC00000u
                                                               : (uint32_t)(exponent + 127) << 23);
        }
        return;
    }
    int64_t groups = params->rows / MXA_PREPARE_GROUP;
    if (group >= groups) {
        return;
    }
    int head = dev_block_y();
    uint64_t at = (uint64_t)(head * groups + group);
    load_place place;
    load_find(&params->batch, 1, (int)(group * MXA_PREPARE_GROUP), &place);
    uint64_t pair = (uint64_t)place.sequence * (uint64_t)params->kv_heads + (uint64_t)head;
    int top = dev_load_global_i32(params->top + 4 * pair) - 1024;
    if (top == -1024) {
        top = 0; /* every finite value is zero */
    }
    int k = dev_load_global_i32(params->k_exponent + 4 * at);
    int v = dev_load_global_i32(params->v_exponent + 4 * at);
    int shift = v == MXA_EXPONENT_NAN ? 0 : v - top;
    if (shift < -14) {
        /* WHY -14: P's exponent and the undoing factor stay within FP16. The payload moves down by
         * the rest; what it loses is below 2^-14 of the sequence's largest value. */
        float factor = shift + 14 < -126 ? 0.0f : f32_bits((uint32_t)(shift + 14 + 127) << 23);
        for (int d = 0; d < params->head_dim_v; d++) {
            mxa_global row =
                params->v + (uint64_t)((head * (int64_t)params->head_dim_v + d) * params->rows +
                                       group * MXA_PREPARE_GROUP);
            for (int i = 0; i < 32; i += 4) {
                uint32_t codes = dev_load_global_u32(row + (uint64_t)i);
                uint32_t a = f16x2_from_fp8x2(codes, 0), b = f16x2_from_fp8x2(codes >> 16, 0);
                dev_store_global_u32(row + (uint64_t)i,
                                     e4m3x4_from_f32(mul_rn(f32_from_f16_low(a), factor),
                                                     mul_rn(f32_from_f16_high(a), factor),
                                                     mul_rn(f32_from_f16_low(b), factor),
                                                     mul_rn(f32_from_f16_high(b), factor)));
            }
        }
        shift = -14;
    }
    mxa_u32x4 record;
    record.x = k == MXA_EXPONENT_NAN ? 0x7FC00000u : (uint32_t)(k + 127) << 23;
    record.y = bits_f32((float)shift);
    record.z = f16x2_from_f32((float)shift);
    record.w = f16x2_from_f32(f32_bits((uint32_t)(127 - shift) << 23));
    dev_store_global_u32x4(params->records + 16 * at, record);
    if (place.position == 0) {
        float most = mul_rn(dev_load_global_f32(params->k_norm + 4 * pair), params->scale_log2e);
        int group = params->q_heads / params->kv_heads;
        for (int h = head * group; h < (head + 1) * group; h++) {
            float logit = mul_rn(
                most, dev_load_global_f32(params->q_norm + 4 * ((uint64_t)place.sequence *
                                                                    (uint64_t)params->q_heads +
                                                                (uint64_t)h)));
            if (!(logit < params->bound && logit > -params->bound)) {
                dev_max_global_u32(params->wide, 1);
            }
        }
        dev_store_global_u32(params->v_scale + 4 * pair, (uint32_t)(top + 127) << 23);
    }
}
