/* quantize.cu: a wide tensor to MXFP8 payload, scales of either axis and layout, and the payload
 * transposed, in one pass.
 *
 * Meaning: mxa_quantize_tensor (mx/tensor.c), equalled byte for byte. An element times the inverse
 * of its scale, a power of two, is exact or so small that FP8 holds it as 0; one conversion rounds
 * and saturates it. The inverse of scale 0xFF is NaN, and makes every element of the block 0x7F.
 *
 * Takes F32, F16, BF16; E4M3, E5M2; row, column, square, folded, folded-token; centre; jagged
 * batches with seqused; any head_dim. One CTA takes a tile (tile.h), a warp a block; folded blocks
 * look at all dims of the tile's tokens first. Traffic: the input once (folded: twice, the second
 * time mostly from L2), each output once.
 *
 * Shared memory: sequence_find, maxima of folded blocks, two units of scales, the transposed tile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/tile.h"

enum {
    AT_FOLD = 256,                         /* [warp][token of its group] */
    AT_UNITS = AT_FOLD + 4 * TILE_THREADS, /* hdim, seq */
    AT_TURNED = AT_UNITS + 2 * UNIT_BYTES,
    TURNED_WORDS = 33, /* of a dim's 128 tokens. WHY 33: no two lanes share a bank */
    SHARED_BYTES = AT_TURNED + 4 * TURNED_WORDS * 128
};

MXA_STATIC_ASSERT(SHARED_BYTES == 256 + 2048 + 1024 + 4 * 33 * 128, "device.c gives it this much");

#define NOT_FINITE 0x7F800000u

MXA_DEVICE uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* E8M0 byte of a block: docs/format.md, rounding. */
MXA_DEVICE uint32_t quantize_scale(const mxa_quantize_params *p, uint32_t amax)
{
    const int top = p->type == MXA_GPU_E5M2 ? 15 : 8;
    int byte = (int)(amax >> 23) - top + (!p->floor_rule && (amax & 0x7FFFFF) > 0x600000);
    byte = byte < 0 ? 0 : byte;
    return amax > NOT_FINITE ? 255 : amax == NOT_FINITE ? 254 : (uint32_t)byte;
}

/* 2^(127 - byte); NaN for 0xFF. */
MXA_DEVICE float quantize_inverse(uint32_t byte)
{
    return byte == 255 ? f32_bits(0x7FC00000u) : load_power(254 - byte);
}

/* Loads block (g, c), less the centre; elements that do not count are 0. `any` 0 promises that
 * there is no centre and that 8 divides head_dim. */
MXA_DEVICE void quantize_load(const mxa_quantize_params *p, const tile *t, int type, int any, int g,
                              int c, float *x)
{
    const int lane = dev_thread() & 31, first = 32 * g + lane / 4 * 4, d = 32 * c + lane % 4 * 8;
    if (32 * g >= t->used || 32 * c >= t->dims) {
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = 0.0f;
        }
        return;
    }
    tile_load(p, t, type, any, g, c, x);
    if (any && p->centre) {
        float mean[8];
        const int64_t row = (int64_t)t->at.sequence * p->heads + t->head;
        tile_load_part(p->centre + 4 * (uint64_t)(row * p->head_dim + 128 * t->chunk + d),
                       MXA_GPU_F32, t->dims - d, mean);
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = add_rn(x[i], -mean[i & 7]);
        }
    }
    if (32 * g + 32 > t->used || 32 * c + 32 > t->dims) {
        MXA_UNROLL
        for (int i = 0; i < 32; i++) {
            x[i] = first + i / 8 < t->used && d + i % 8 < t->dims ? x[i] : 0.0f;
        }
    }
}

/* Bits of the largest magnitude of token 32*g + lane among the block's dims. NaN is above infinity.
 */
MXA_DEVICE uint32_t largest_of_token(const float *x)
{
    const int j = dev_thread() & 3;
    uint32_t most[4];
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float top = 0.0f;
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            top = max_abs_nan_f32(top, x[8 * i + n]);
        }
        most[i] = bits_f32(top);
    }
    /* Lane bit 0 picks an even or odd token while it is summed over, then bit 1 likewise. */
    uint32_t a = larger(j & 1 ? most[1] : most[0], shuffle_xor_u32(j & 1 ? most[0] : most[1], 1));
    uint32_t b = larger(j & 1 ? most[3] : most[2], shuffle_xor_u32(j & 1 ? most[2] : most[3], 1));
    return larger(j & 2 ? b : a, shuffle_xor_u32(j & 2 ? a : b, 2));
}

/* The same of dim 32*c + 8*(lane%4) + lane/4 among the block's tokens. */
MXA_DEVICE uint32_t largest_of_dim(const float *x)
{
    const int q = (dev_thread() & 31) / 4;
    uint32_t most[8];
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        float top = max_abs_nan_f32(0.0f, x[n]);
        top = max_abs_nan_f32(top, x[8 + n]);
        top = max_abs_nan_f32(top, x[16 + n]);
        most[n] = bits_f32(max_abs_nan_f32(top, x[24 + n]));
    }
    /* Each step sends away the half that the partner keeps. */
    MXA_UNROLL
    for (int step = 4; step >= 1; step >>= 1) {
        const int keep_high = (q & step) != 0;
        MXA_UNROLL
        for (int n = 0; n < step; n++) {
            const uint32_t mine = keep_high ? most[n + step] : most[n];
            const uint32_t theirs = keep_high ? most[n] : most[n + step];
            most[n] = larger(mine, shuffle_xor_u32(theirs, 4 * step));
        }
    }
    return most[0];
}

/* The largest of a whole block. */
MXA_DEVICE uint32_t largest_of_block(const float *x)
{
    float top = 0.0f;
    MXA_UNROLL
    for (int i = 0; i < 32; i++) {
        top = max_abs_nan_f32(top, x[i]);
    }
    return warp_max_u32(bits_f32(top));
}

/* Folded blocks: the largest of each token of group warp % 4 over all dims. */
MXA_DEVICE void fold_tokens(const mxa_quantize_params *p, const tile *t, mxa_shared shared,
                            int type)
{
    const int warp = dev_thread() / 32, g = warp % 4;
    uint32_t most = 0;
    tile part = *t;
    MXA_NO_UNROLL
    for (int column = warp / 4; 32 * column < p->head_dim; column += tile_warps() / 4) {
        float x[32];
        part.chunk = column / 4;
        part.dims = smaller(p->head_dim - 128 * part.chunk, 128);
        part.wide = t->wide + (uint64_t)(128 * (part.chunk - t->chunk) * bytes_of(type));
        quantize_load(p, &part, type, 1, g, column % 4, x);
        most = larger(most, largest_of_token(x));
    }
    dev_store_shared_u32(shared + AT_FOLD + 4 * (uint32_t)dev_thread(), most);
    cta_sync();
}

/* The folded maximum that goes with token 32*g + lane, of it or of its whole group. */
MXA_DEVICE uint32_t folded_largest(const mxa_quantize_params *p, mxa_shared shared, int g)
{
    uint32_t most = 0;
    MXA_NO_UNROLL
    for (int i = 32 * g + (dev_thread() & 31); i < dev_threads(); i += 128) {
        most = larger(most, dev_load_shared_u32(shared + AT_FOLD + 4 * (uint32_t)i));
    }
    return p->block == MXA_GPU_SQUARE ? warp_max_u32(most) : most;
}

/* Eight elements of one token, each under its inverse. */
MXA_DEVICE void quantize_codes(const mxa_quantize_params *p, const float *x, const float *inverse,
                               uint32_t *codes)
{
    MXA_UNROLL
    for (int h = 0; h < 2; h++) {
        const float a = mul_rn(x[4 * h], inverse[4 * h]);
        const float b = mul_rn(x[4 * h + 1], inverse[4 * h + 1]);
        const float c = mul_rn(x[4 * h + 2], inverse[4 * h + 2]);
        const float d = mul_rn(x[4 * h + 3], inverse[4 * h + 3]);
        codes[h] =
            p->type == MXA_GPU_E5M2 ? e5m2x4_from_f32(a, b, c, d) : e4m3x4_from_f32(a, b, c, d);
    }
}

/* Scale of the block for this lane (a token's, a dim's or the block's), written to the units, and
 * the codes of its 32 elements. */
MXA_DEVICE void quantize_block(const mxa_quantize_params *p, const tile *t, mxa_shared shared,
                               int block, int any, int g, int c, const float *x, uint32_t *codes)
{
    const int lane = dev_thread() & 31, dim = lane % 4 * 8 + lane / 4;
    const mxa_shared hdim = shared + AT_UNITS + (uint32_t)(4 * g + c);
    const mxa_shared seq = shared + AT_UNITS + UNIT_BYTES + (uint32_t)(4 * c + g);
    const int of_token = 32 * g + lane < t->tokens && 32 * c < t->dims;
    const int of_dim = 32 * g < t->tokens;
    if (block == MXA_GPU_COLUMN) {
        const uint32_t byte = quantize_scale(p, largest_of_dim(x));
        dev_store_shared_u8(seq + 16 * (uint32_t)dim, of_dim && 32 * c + dim < t->dims ? byte : 0);
        float inverse[8];
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            inverse[n] = quantize_inverse((uint32_t)shuffle_i32((int)byte, 4 * n + lane % 4));
        }
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            quantize_codes(p, x + 8 * i, inverse, codes + 2 * i);
        }
        return;
    }
    uint32_t most;
    if (any && p->folded) {
        most = folded_largest(p, shared, g);
    } else {
        most = block == MXA_GPU_SQUARE ? largest_of_block(x) : largest_of_token(x);
    }
    const uint32_t byte = quantize_scale(p, most);
    dev_store_shared_u8(hdim + 16 * (uint32_t)lane, of_token ? byte : 0);
    dev_store_shared_u8(seq + 16 * (uint32_t)lane, of_dim && 32 * c + lane < t->dims ? byte : 0);
    const float own = quantize_inverse(byte);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float inverse[8];
        inverse[0] = block == MXA_GPU_SQUARE
                         ? own
                         : f32_bits((uint32_t)shuffle_i32((int)bits_f32(own), lane / 4 * 4 + i));
        MXA_UNROLL
        for (int n = 1; n < 8; n++) {
            inverse[n] = inverse[0];
        }
        quantize_codes(p, x + 8 * i, inverse, codes + 2 * i);
    }
}

/* Rows of the payload. */
MXA_DEVICE void quantize_store(const mxa_quantize_params *p, const tile *t, int any, int g, int c,
                               const uint32_t *codes)
{
    const int lane = dev_thread_again() & 31, first = 32 * g + lane / 4 * 4,
              d = 32 * c + lane % 4 * 8;
    const int count = smaller(t->dims - d, 8);
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        if (first + i >= t->tokens || count <= 0) {
            continue;
        }
        mxa_global to = t->payload + (uint64_t)((first + i) * p->payload.stride_token + d);
        if (!any || count == 8) {
            dev_store_global_u32x2(to, codes[2 * i], codes[2 * i + 1]);
            continue;
        }
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            if (n < count) {
                dev_store_global_u8(to + (uint64_t)n, codes[2 * i + n / 4] >> (8 * (n % 4)));
            }
        }
    }
}

/* Byte n of four words, the first word's lowest. */
MXA_DEVICE uint32_t column_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int n)
{
    const uint32_t low = permute_bytes(a, b, (uint32_t)(n | (n + 4) << 4));
    const uint32_t high = permute_bytes(c, d, (uint32_t)(n | (n + 4) << 4));
    return permute_bytes(low, high, 0x5410);
}

/* The block's codes into the transposed tile: a word is four tokens of one dim. */
MXA_DEVICE void quantize_turn(mxa_shared shared, int g, int c, const uint32_t *codes)
{
    const int lane = dev_thread_again() & 31;
    MXA_UNROLL
    for (int n = 0; n < 8; n++) {
        const uint32_t word =
            column_of(codes[n / 4], codes[2 + n / 4], codes[4 + n / 4], codes[6 + n / 4], n % 4);
        const int at = TURNED_WORDS * (32 * c + lane % 4 * 8 + n) + 8 * g + lane / 4;
        dev_store_shared_u32(shared + AT_TURNED + 4 * (uint32_t)at, word);
    }
}

/* Rows of the transposed payload: a warp writes 128 tokens of a dim. */
MXA_DEVICE void store_turned(const mxa_quantize_params *p, const tile *t, mxa_shared shared)
{
    const int lane = dev_thread_again() & 31, count = smaller(t->tokens - 4 * lane, 4);
    MXA_NO_UNROLL
    for (int d = dev_thread_again() / 32; d < t->dims; d += tile_warps()) {
        const uint32_t word =
            dev_load_shared_u32(shared + AT_TURNED + 4 * (uint32_t)(TURNED_WORDS * d + lane));
        mxa_global to = p->transposed + (uint64_t)(t->at.outer * p->transposed_outer +
                                                   t->head * p->transposed_head +
                                                   (128 * t->chunk + d) * p->transposed_dim +
                                                   t->at.first + t->at.position + 4 * lane);
        if (count == 4 && to % 4 == 0) {
            dev_store_global_u32(to, word);
            continue;
        }
        MXA_NO_UNROLL
        for (int n = 0; n < count; n++) {
            dev_store_global_u8(to + (uint64_t)n, word >> (8 * n));
        }
    }
}

/* Payload and transposed payload of rows that belong to no sequence. */
MXA_DEVICE void clear_rows(const mxa_quantize_params *p, const tile *t)
{
    tile_clear_rows(p, t, &p->payload, 1);
    if (!p->transposed) {
        return;
    }
    MXA_NO_UNROLL
    for (int d = 0; d < t->dims; d++) {
        mxa_global row = p->transposed + (uint64_t)(t->head * p->transposed_head +
                                                    (128 * t->chunk + d) * p->transposed_dim);
        MXA_NO_UNROLL
        for (int s = t->at.tail + dev_threads() * t->at.share + dev_thread(); s < p->batch.total;
             s += dev_threads() * t->at.shares) {
            dev_store_global_u8(row + (uint64_t)s, 0);
        }
    }
}

/* Blocks of dims that the units have and the tile has not, nor a warp of its own: bytes of 0. */
MXA_DEVICE void pad_units(const tile *t, mxa_shared shared)
{
    const uint32_t lane = 16 * (uint32_t)(dev_thread_again() & 31);
    MXA_NO_UNROLL
    for (int n = dev_thread_again() / 32 + tile_warps(); n < 16; n += tile_warps()) {
        int g, c;
        tile_block(t, n, &g, &c);
        dev_store_shared_u8(shared + AT_UNITS + (uint32_t)(4 * g + c) + lane, 0);
        dev_store_shared_u8(shared + AT_UNITS + UNIT_BYTES + (uint32_t)(4 * c + g) + lane, 0);
    }
}

/* The tile's units into the arrays that are there, or, for a tile of no sequence, only zeros. */
MXA_DEVICE void store_scales(const mxa_quantize_params *p, const tile *t, mxa_shared shared)
{
    scale_units units;
    scale_units_begin(&units, &p->batch, &t->at, shared + AT_UNITS, t->head * p->chunks + t->chunk,
                      1, p->chunks, p->head_dim);
    MXA_NO_UNROLL
    for (int axis = 0; axis < 2; axis++) {
        if (p->scales[axis].data && t->at.sequence >= 0) {
            scale_units_store(&units, &p->scales[axis], axis);
        }
        scale_gaps_clear(&units, &p->batch, &p->scales[axis], axis, &t->at);
        units.at += UNIT_BYTES;
    }
}

MXA_DEVICE void quantize(const mxa_quantize_params *p, int type, int block, int any)
{
    const mxa_shared shared = dev_shared();
    tile t;
    if (!tile_begin(p, shared, type, &t)) {
        return;
    }
    if (t.at.sequence < 0) {
        clear_rows(p, &t);
        store_scales(p, &t, shared);
        return;
    }
    if (any && p->folded) {
        fold_tokens(p, &t, shared, type);
    }
    int g, c;
    float x[32];
    uint32_t codes[8];
    tile_block(&t, dev_thread() / 32, &g, &c);
    quantize_load(p, &t, type, any, g, c, x);
    quantize_block(p, &t, shared, block, any, g, c, x, codes);
    /* What lies past seqused is 0, also where its block is NaN. */
    if (32 * g + 32 > t.used) {
        MXA_UNROLL
        for (int i = 0; i < 8; i++) {
            codes[i] = 32 * g + (dev_thread() & 31) / 4 * 4 + i / 2 < t.used ? codes[i] : 0;
        }
    }
    quantize_store(p, &t, any, g, c, codes);
    if (p->transposed) {
        quantize_turn(shared, g, c, codes);
    }
    tile_again(p, shared, type, &t);
    pad_units(&t, shared);
    cta_sync();
    store_scales(p, &t, shared);
    if (p->transposed) {
        store_turned(p, &t, shared);
    }
}

MXA_KERNEL_SMALL(mxa_quantize_any, TILE_THREADS, mxa_quantize_params, parameters)
{
    quantize(&parameters, parameters.wide_type, parameters.block, 1);
}

/* Without centre or fold, 8 dividing head_dim. WHY instances of their own: half the registers, so
 * that twice as many loads are in flight. */
#define QUANTIZE(name, type, block)                                                                \
    MXA_KERNEL_MANY(name, TILE_THREADS, 2, mxa_quantize_params, parameters)                        \
    {                                                                                              \
        quantize(&parameters, type, block, 0);                                                     \
    }

QUANTIZE(mxa_quantize_f32_row, MXA_GPU_F32, MXA_GPU_ROW)
QUANTIZE(mxa_quantize_f32_column, MXA_GPU_F32, MXA_GPU_COLUMN)
QUANTIZE(mxa_quantize_f32_square, MXA_GPU_F32, MXA_GPU_SQUARE)
QUANTIZE(mxa_quantize_f16_row, MXA_GPU_F16, MXA_GPU_ROW)
QUANTIZE(mxa_quantize_f16_column, MXA_GPU_F16, MXA_GPU_COLUMN)
QUANTIZE(mxa_quantize_f16_square, MXA_GPU_F16, MXA_GPU_SQUARE)
QUANTIZE(mxa_quantize_bf16_row, MXA_GPU_BF16, MXA_GPU_ROW)
QUANTIZE(mxa_quantize_bf16_column, MXA_GPU_BF16, MXA_GPU_COLUMN)
QUANTIZE(mxa_quantize_bf16_square, MXA_GPU_BF16, MXA_GPU_SQUARE)

/* The centre: each thread adds up one dim of one sequence and head in float64, in order, as every
 * backend does. Grid x: sequence, head, 128 dims, the last fastest. */
MXA_KERNEL_SMALL(mxa_quantize_mean, 128, mxa_quantize_params, parameters)
{
    const mxa_quantize_params *p = &parameters;
    const int per = p->heads * p->chunks, b = dev_block_x() / per, unit = dev_block_x() - b * per;
    tile t;
    sequence_side s = {0, 0, 0, 0};
    if (!sequence_find(&p->batch, dev_shared(), 0, &t.at)) {
        return;
    }
    sequence_read(p->batch.cu_seqlens, p->batch.seqused, p->batch.seqlen, p->batch.total,
                  0x7FFFFFFF, b, &s);
    t.at.outer = p->batch.cu_seqlens ? 0 : b;
    t.at.first = s.first;
    t.at.position = 0;
    t.head = unit / p->chunks;
    t.chunk = unit - t.head * p->chunks;
    const int d = dev_thread();
    if (128 * t.chunk + d >= p->head_dim) {
        return;
    }
    const int bytes = bytes_of(p->wide_type);
    const uint64_t step = (uint64_t)(bytes * p->wide.stride_token);
    mxa_global from = tile_address(&p->wide, &t, bytes) + (uint64_t)(bytes * d);
    double sum = 0.0;
    int token = 0;
    MXA_NO_UNROLL
    for (; token + 16 <= s.used; token += 16) {
        float x[16];
        MXA_UNROLL
        for (int i = 0; i < 16; i++) {
            x[i] = tile_element(from, p->wide_type);
            from += step;
        }
        MXA_UNROLL
        for (int i = 0; i < 16; i++) {
            sum += (double)x[i];
        }
    }
    MXA_NO_UNROLL
    for (; token < s.used; token++) {
        sum += (double)tile_element(from, p->wide_type);
        from += step;
    }
    float mean = s.used ? (float)(sum / (double)s.used) : 0.0f;
    if ((bits_f32(mean) & NOT_FINITE) == NOT_FINITE) {
        mean = 0.0f;
    }
    const int64_t to = ((int64_t)b * p->heads + t.head) * p->head_dim + 128 * t.chunk + d;
    dev_store_global_f32(p->centre + 4 * (uint64_t)to, mean);
}
