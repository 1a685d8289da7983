/* quantize_body.h: a wide tensor to MXFP8 payload, scales of either axis and layout, and the
 * payload transposed, in one pass.
 *
 * Meaning: mxa_quantize_tensor (mx/tensor.c), equalled byte for byte. An element times the inverse
 * of its scale, a power of two, is exact or so small that FP8 holds it as 0; one conversion rounds
 * and saturates it. The inverse of scale 0xFF is NaN, and makes every element of the block 0x7F.
 *
 * Takes F32, F16, BF16; E4M3, E5M2; row, column, square, folded, folded-token; centre; jagged
 * batches with seqused; any head_dim. One CTA takes a tile (tile.h), a warp a block or two; folded
 * blocks look at all dims of the tile's tokens first. Traffic: the input once (folded beyond 128
 * dims: twice, the second time mostly from L2), each output once.
 *
 * The including file defines, for its arch,
 *   QUANTIZE_ENTRY(name)   the name of an entry
 *   uint32_t quantize_scale_byte(uint32_t amax, int e5m2, int floor_rule)
 *                          E8M0 byte of a block, from the bits of its largest magnitude
 *   uint32_t quantize_warp_largest(float x)
 *                          those bits of the warp's largest; x is not negative, NaN is above
 * infinity
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

/* 2^(127 - byte); NaN for 0xFF. */
MXA_DEVICE float quantize_inverse(uint32_t byte)
{
    return byte == 255 ? f32_bits(0x7FC00000u) : load_power(254 - byte);
}

/* Loads block (g, c); elements that do not count are 0. 8 divides head_dim, and there is no centre.
 */
MXA_DEVICE void quantize_load(const mxa_quantize_params *p, const tile *t, int type, int g, int c,
                              uint32_t *raw)
{
    const int lane = dev_thread() & 31, first = 32 * g + lane / 4 * 4, d = 32 * c + lane % 4 * 8;
    const int words = type == MXA_GPU_F32 ? 8 : 4;
    if (32 * g >= t->used || 32 * c >= t->dims) {
        MXA_UNROLL
        for (int i = 0; i < 4 * words; i++) {
            raw[i] = 0;
        }
        return;
    }
    tile_load(p, t, type, g, c, raw);
    if (32 * g + 32 > t->used || 32 * c + 32 > t->dims) {
        MXA_UNROLL
        for (int i = 0; i < 4 * words; i++) {
            raw[i] = first + i / words < t->used && d < t->dims ? raw[i] : 0;
        }
    }
}

/* The same for any tensor, widened to FP32 and less the centre. */
MXA_DEVICE void quantize_load_any(const mxa_quantize_params *p, const tile *t, int g, int c,
                                  uint32_t *raw)
{
    const int lane = dev_thread() & 31, first = 32 * g + lane / 4 * 4, d = 32 * c + lane % 4 * 8;
    const int count = 32 * c < t->dims ? t->dims - d : 0, bytes = bytes_of(p->wide_type);
    float mean[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (p->centre && count > 0) {
        const int64_t row = (int64_t)t->at.sequence * p->heads + t->head;
        tile_load_part(p->centre + 4 * (uint64_t)(row * p->head_dim + 128 * t->chunk + d),
                       MXA_GPU_F32, count, mean);
    }
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float x[8];
        const int there = first + i < t->used ? count : 0;
        tile_load_part(t->wide + (uint64_t)(((first + i) * p->wide.stride_token + d) * bytes),
                       p->wide_type, there, x);
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            raw[8 * i + n] = bits_f32(p->centre && n < there ? add_rn(x[n], -mean[n]) : x[n]);
        }
    }
}

/* Larger magnitudes of packed pairs; NaN is above infinity, and signs are anyone's. */
MXA_DEVICE uint32_t larger_pair(int type, uint32_t a, uint32_t b)
{
    return type == MXA_GPU_BF16 ? max_abs_nan_bf16x2(a, b) : max_abs_nan_f16x2(a, b);
}

/* Bits of one of a pair's magnitudes as FP32. */
MXA_DEVICE uint32_t pair_low(int type, uint32_t pair)
{
    return type == MXA_GPU_BF16 ? pair << 16 & 0x7FFF0000u
                                : bits_f32(f32_from_f16_low(pair & 0x7FFF));
}

MXA_DEVICE uint32_t pair_high(int type, uint32_t pair)
{
    return type == MXA_GPU_BF16 ? pair & 0x7FFF0000u
                                : bits_f32(f32_from_f16_high(pair & 0x7FFF0000u));
}

/* Bits of the largest magnitude of token i's 8 values; NaN is above infinity. */
MXA_DEVICE uint32_t largest_of_8(const uint32_t *raw, int type, int i)
{
    if (type == MXA_GPU_F32) {
        float top = 0.0f;
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            top = max_abs_nan_f32(top, f32_bits(raw[8 * i + n]));
        }
        return bits_f32(top);
    }
    const uint32_t *w = raw + 4 * i;
    const uint32_t pair =
        larger_pair(type, larger_pair(type, w[0], w[1]), larger_pair(type, w[2], w[3]));
    return larger(pair_low(type, pair), pair_high(type, pair));
}

/* Bits of the largest magnitude of token 32*g + lane among the block's dims. */
MXA_DEVICE uint32_t largest_of_token(const uint32_t *raw, int type)
{
    const int j = dev_thread_again() & 3;
    uint32_t most[4];
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        most[i] = largest_of_8(raw, type, i);
    }
    /* Lane bit 0 picks an even or odd token while it is compared, then bit 1 likewise. */
    uint32_t a = larger(j & 1 ? most[1] : most[0], shuffle_xor_u32(j & 1 ? most[0] : most[1], 1));
    uint32_t b = larger(j & 1 ? most[3] : most[2], shuffle_xor_u32(j & 1 ? most[2] : most[3], 1));
    return larger(j & 2 ? b : a, shuffle_xor_u32(j & 2 ? a : b, 2));
}

/* The same of dim 32*c + 8*(lane%4) + lane/4 among the block's tokens. */
MXA_DEVICE uint32_t largest_of_dim(const uint32_t *raw, int type)
{
    const int q = (dev_thread_again() & 31) / 4;
    uint32_t most[8];
    MXA_UNROLL
    for (int n = 0; n < (type == MXA_GPU_F32 ? 8 : 4); n++) {
        if (type == MXA_GPU_F32) {
            float top = 0.0f;
            MXA_UNROLL
            for (int i = 0; i < 4; i++) {
                top = max_abs_nan_f32(top, f32_bits(raw[8 * i + n]));
            }
            most[n] = bits_f32(top);
        } else {
            const uint32_t pair = larger_pair(type, larger_pair(type, raw[n], raw[4 + n]),
                                              larger_pair(type, raw[8 + n], raw[12 + n]));
            most[2 * n] = pair_low(type, pair);
            most[2 * n + 1] = pair_high(type, pair);
        }
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
MXA_DEVICE uint32_t largest_of_block(const uint32_t *raw, int type)
{
    uint32_t most = 0;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        most = larger(most, largest_of_8(raw, type, i));
    }
    return quantize_warp_largest(f32_bits(most));
}

/* Folded blocks of tensors wider than a tile: the largest of each token of group warp % 4 over all
 * dims. */
MXA_DEVICE void fold_tokens(const mxa_quantize_params *p, const tile *t, mxa_shared shared,
                            int type)
{
    const int warp = dev_thread() / 32, g = warp % 4;
    uint32_t most = 0;
    tile part = *t;
    MXA_NO_UNROLL
    for (int column = warp / 4; 32 * column < p->head_dim; column += tile_warps() / 4) {
        uint32_t raw[TILE_RAW];
        part.chunk = column / 4;
        part.dims = smaller(p->head_dim - 128 * part.chunk, 128);
        part.wide = t->wide + (uint64_t)(128 * (part.chunk - t->chunk) * bytes_of(p->wide_type));
        if (type) {
            quantize_load(p, &part, type, g, column % 4, raw);
            most = larger(most, largest_of_token(raw, type));
        } else {
            quantize_load_any(p, &part, g, column % 4, raw);
            most = larger(most, largest_of_token(raw, MXA_GPU_F32));
        }
    }
    dev_store_shared_u32(shared + AT_FOLD + 4 * (uint32_t)dev_thread(), most);
    cta_sync();
}

/* The same of others, from the blocks that the CTA has loaded: columns of shared words as above. */
MXA_DEVICE void fold_blocks(const tile *t, mxa_shared shared, int type, int blocks,
                            const uint32_t *raw)
{
    MXA_UNROLL
    for (int i = 0; i < blocks; i++) {
        int g, c;
        tile_block(t, dev_thread() / 32 + i * tile_warps(), &g, &c);
        dev_store_shared_u32(shared + AT_FOLD +
                                 4 * (uint32_t)(128 * c + 32 * g + (dev_thread() & 31)),
                             largest_of_token(raw + 16 * i, type ? type : MXA_GPU_F32));
    }
    cta_sync();
}

/* The folded maximum that goes with token 32*g + lane, of it or of its whole group. */
MXA_DEVICE uint32_t folded_largest(const mxa_quantize_params *p, mxa_shared shared, int g)
{
    const int words = p->head_dim > 128 ? dev_threads() : 128 * ceil_div(p->head_dim, 32);
    uint32_t most = 0;
    MXA_NO_UNROLL
    for (int i = 32 * g + (dev_thread() & 31); i < words; i += 128) {
        most = larger(most, dev_load_shared_u32(shared + AT_FOLD + 4 * (uint32_t)i));
    }
    return p->block == MXA_GPU_SQUARE ? warp_max_u32(most) : most;
}

/* Eight elements of one token, each under its inverse. */
MXA_DEVICE void quantize_codes(int e5m2, const float *x, const float *inverse, uint32_t *codes)
{
    MXA_UNROLL
    for (int h = 0; h < 2; h++) {
        const float a = mul_rn(x[4 * h], inverse[4 * h]);
        const float b = mul_rn(x[4 * h + 1], inverse[4 * h + 1]);
        const float c = mul_rn(x[4 * h + 2], inverse[4 * h + 2]);
        const float d = mul_rn(x[4 * h + 3], inverse[4 * h + 3]);
        codes[h] = e5m2 ? e5m2x4_from_f32(a, b, c, d) : e4m3x4_from_f32(a, b, c, d);
    }
}

/* All 32, inverses by dim. */
MXA_DEVICE void codes_of_dims(int e5m2, const uint32_t *raw, int type, const float *inverse,
                              uint32_t *codes)
{
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float x[8];
        tile_widen(raw, type, i, x);
        quantize_codes(e5m2, x, inverse, codes + 2 * i);
    }
}

/* All 32, this lane holding the inverse of token 32*g + lane (row) or of the block (square). */
MXA_DEVICE void codes_of_tokens(int e5m2, const uint32_t *raw, int type, int block, float own,
                                uint32_t *codes)
{
    const int first = (dev_thread_again() & 31) / 4 * 4;
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        float x[8], inverse[8];
        inverse[0] = block == MXA_GPU_SQUARE
                         ? own
                         : f32_bits((uint32_t)shuffle_i32((int)bits_f32(own), first + i));
        MXA_UNROLL
        for (int n = 1; n < 8; n++) {
            inverse[n] = inverse[0];
        }
        tile_widen(raw, type, i, x);
        quantize_codes(e5m2, x, inverse, codes + 2 * i);
    }
}

/* Keeps the compiler from keeping what was made of raw: it is widened again. */
MXA_DEVICE void forget(uint32_t *raw, int type)
{
    MXA_UNROLL
    for (int i = 0; i < (type == MXA_GPU_F32 ? 0 : 16); i++) {
        hold_u32(&raw[i]);
    }
}

/* Scale of the block for this lane (a token's, a dim's or the block's), written to the units, and
 * the codes of its 32 elements. */
MXA_DEVICE void quantize_block(const mxa_quantize_params *p, const tile *t, mxa_shared shared,
                               int type, int block, int folded, int g, int c, uint32_t *raw,
                               uint32_t *codes)
{
    const int lane = dev_thread_again() & 31, dim = lane % 4 * 8 + lane / 4;
    const mxa_shared hdim = shared + AT_UNITS + (uint32_t)(4 * g + c);
    const mxa_shared seq = shared + AT_UNITS + UNIT_BYTES + (uint32_t)(4 * c + g);
    const int of_token = 32 * g + lane < t->tokens && 32 * c < t->dims;
    const int of_dim = 32 * g < t->tokens;
    if (block == MXA_GPU_COLUMN) {
        float inverse[8];
        const uint32_t byte =
            quantize_scale_byte(largest_of_dim(raw, type), p->type == MXA_GPU_E5M2, p->floor_rule);
        dev_store_shared_u8(seq + 16 * (uint32_t)dim, of_dim && 32 * c + dim < t->dims ? byte : 0);
        MXA_UNROLL
        for (int n = 0; n < 8; n++) {
            inverse[n] = quantize_inverse((uint32_t)shuffle_i32((int)byte, 4 * n + lane % 4));
        }
        forget(raw, type);
        if (p->type == MXA_GPU_E5M2) {
            codes_of_dims(1, raw, type, inverse, codes);
        } else {
            codes_of_dims(0, raw, type, inverse, codes);
        }
        return;
    }
    uint32_t most;
    if (folded) {
        most = folded_largest(p, shared, g);
    } else {
        most = block == MXA_GPU_SQUARE ? largest_of_block(raw, type) : largest_of_token(raw, type);
    }
    const uint32_t byte = quantize_scale_byte(most, p->type == MXA_GPU_E5M2, p->floor_rule);
    dev_store_shared_u8(hdim + 16 * (uint32_t)lane, of_token ? byte : 0);
    dev_store_shared_u8(seq + 16 * (uint32_t)lane, of_dim && 32 * c + lane < t->dims ? byte : 0);
    const float own = quantize_inverse(byte);
    forget(raw, type);
    if (p->type == MXA_GPU_E5M2) {
        codes_of_tokens(1, raw, type, block, own, codes);
    } else {
        codes_of_tokens(0, raw, type, block, own, codes);
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

/* Some of 16 tokens of one dim. */
MXA_DEVICE void store_turned_part(mxa_global to, const uint32_t *w, int count)
{
    MXA_UNROLL
    for (int i = 0; i < 4; i++) {
        if (count >= 4 * i + 4 && to % 4 == 0) {
            dev_store_global_u32(to + (uint64_t)(4 * i), w[i]);
            continue;
        }
        MXA_NO_UNROLL
        for (int n = 0; n < 4 && 4 * i + n < count; n++) {
            dev_store_global_u8(to + (uint64_t)(4 * i + n), w[i] >> (8 * n));
        }
    }
}

/* Rows of the transposed payload: eight lanes write 128 tokens of a dim. */
MXA_DEVICE void store_turned(const mxa_quantize_params *p, const tile *t, mxa_shared shared)
{
    const int part = dev_thread_again() & 7, count = t->tokens - 16 * part;
    mxa_global to =
        p->transposed +
        (uint64_t)(t->at.outer * p->transposed_outer + t->head * p->transposed_head +
                   128 * t->chunk * p->transposed_dim + t->at.first + t->at.position + 16 * part);
    MXA_NO_UNROLL
    for (int d = dev_thread_again() / 8; d < t->dims; d += dev_threads() / 8) {
        const mxa_shared from = shared + AT_TURNED + 4 * (uint32_t)(TURNED_WORDS * d + 4 * part);
        const mxa_global at = to + (uint64_t)(d * p->transposed_dim);
        const mxa_u32x4 v = {dev_load_shared_u32(from), dev_load_shared_u32(from + 4),
                             dev_load_shared_u32(from + 8), dev_load_shared_u32(from + 12)};
        if (count >= 16 && at % 16 == 0) {
            dev_store_global_u32x4(at, v);
        } else {
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
            store_turned_part(at, w, count);
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
MXA_DEVICE void pad_units(const tile *t, mxa_shared shared, int blocks)
{
    const uint32_t lane = 16 * (uint32_t)(dev_thread_again() & 31);
    MXA_NO_UNROLL
    for (int n = dev_thread_again() / 32 + blocks * tile_warps(); n < 16; n += tile_warps()) {
        int g, c;
        tile_block(t, n, &g, &c);
        dev_store_shared_u8(shared + AT_UNITS + (uint32_t)(4 * g + c) + lane, 0);
        dev_store_shared_u8(shared + AT_UNITS + UNIT_BYTES + (uint32_t)(4 * c + g) + lane, 0);
    }
}

/* The tile's units into the arrays that are there: a warp for each axis. A tile of no sequence only
 * clears gaps. */
MXA_DEVICE void store_scales(const mxa_quantize_params *p, const sequence_tile *at,
                             mxa_shared shared)
{
    const int axis = dev_thread_again() / 32;
    scale_unit unit;
    if (axis > 1 || !p->scales[axis].data) {
        return;
    }
    scale_unit_begin(&unit, &p->batch, at, shared + AT_UNITS + (uint32_t)(UNIT_BYTES * axis),
                     dev_block_x(), p->chunks, p->head_dim);
    if (at->sequence >= 0) {
        scale_unit_store(&unit, &p->scales[axis], axis);
    }
    scale_gaps_clear(&unit, &p->batch, &p->scales[axis], axis, at);
}

/* Block n, loaded: scales into the units, payload out, codes into the transposed tile. */
MXA_DEVICE void quantize_one(const mxa_quantize_params *p, const tile *t, mxa_shared shared,
                             int type, int block, int folded, int n, uint32_t *raw)
{
    int g, c;
    uint32_t codes[8];
    tile_block(t, n, &g, &c);
    quantize_block(p, t, shared, type ? type : MXA_GPU_F32, block, folded, g, c, raw, codes);
    /* What lies past seqused is 0, also where its block is NaN. */
    if (32 * g + 32 > t->used) {
        MXA_UNROLL
        for (int i = 0; i < 8; i++) {
            codes[i] = 32 * g + (dev_thread_again() & 31) / 4 * 4 + i / 2 < t->used ? codes[i] : 0;
        }
    }
    quantize_store(p, t, type == 0, g, c, codes);
    if (p->transposed) {
        quantize_turn(shared, g, c, codes);
    }
}

/* type 0: any, widened on the way in. blocks: of a warp; the loads of all are in flight at once. */
MXA_DEVICE void quantize(const mxa_quantize_params *p, int type, int block, int folded, int blocks)
{
    const mxa_shared shared = dev_shared();
    tile t;
    if (!tile_begin(p, shared, type ? type : p->wide_type, &t)) {
        return;
    }
    if (t.at.sequence < 0) {
        clear_rows(p, &t);
        store_scales(p, &t.at, shared);
        return;
    }
    if (folded && p->head_dim > 128) {
        fold_tokens(p, &t, shared, type);
    }
    uint32_t raw[TILE_RAW];
    MXA_UNROLL
    for (int i = 0; i < blocks; i++) {
        int g, c;
        tile_block(&t, dev_thread() / 32 + i * tile_warps(), &g, &c);
        if (type) {
            quantize_load(p, &t, type, g, c, raw + 16 * i);
        } else {
            quantize_load_any(p, &t, g, c, raw);
        }
    }
    if (folded && p->head_dim <= 128) {
        fold_blocks(&t, shared, type, blocks, raw);
    }
    MXA_UNROLL
    for (int i = 0; i < blocks; i++) {
        forget(raw + 16 * i, type); /* one block after the other */
        quantize_one(p, &t, shared, type, block, folded, dev_thread_again() / 32 + i * tile_warps(),
                     raw + 16 * i);
    }
    pad_units(&t, shared, blocks);
    cta_sync();
    sequence_again(&p->batch, shared, sequence_tile_number(&p->batch), &t.at);
    store_scales(p, &t.at, shared);
    if (p->transposed) {
        store_turned(p, &t, shared);
    }
}

MXA_KERNEL(QUANTIZE_ENTRY(any), TILE_THREADS, mxa_quantize_params, parameters)
{
    quantize(&parameters, 0, parameters.block, parameters.folded, 1);
}

/* Neither centre nor fold, 8 dividing head_dim. Two blocks a warp of 16-bit types. WHY: 128 bytes
 * of loads in flight a thread; with 64 as many threads moved half the bytes in the same time. */
#define QUANTIZE(name, threads, ctas, type, block)                                                 \
    MXA_KERNEL_MANY(name, threads, ctas, mxa_quantize_params, parameters)                          \
    {                                                                                              \
        quantize(&parameters, type, block, 0, (type) == MXA_GPU_F32 ? 1 : 2);                      \
    }

QUANTIZE(QUANTIZE_ENTRY(f32_row), TILE_THREADS, 2, MXA_GPU_F32, MXA_GPU_ROW)
QUANTIZE(QUANTIZE_ENTRY(f32_column), TILE_THREADS, 2, MXA_GPU_F32, MXA_GPU_COLUMN)
QUANTIZE(QUANTIZE_ENTRY(f32_square), TILE_THREADS, 2, MXA_GPU_F32, MXA_GPU_SQUARE)
QUANTIZE(QUANTIZE_ENTRY(f16_row), TILE_THREADS / 2, 3, MXA_GPU_F16, MXA_GPU_ROW)
QUANTIZE(QUANTIZE_ENTRY(f16_column), TILE_THREADS / 2, 3, MXA_GPU_F16, MXA_GPU_COLUMN)
QUANTIZE(QUANTIZE_ENTRY(f16_square), TILE_THREADS / 2, 3, MXA_GPU_F16, MXA_GPU_SQUARE)
QUANTIZE(QUANTIZE_ENTRY(bf16_row), TILE_THREADS / 2, 3, MXA_GPU_BF16, MXA_GPU_ROW)
QUANTIZE(QUANTIZE_ENTRY(bf16_column), TILE_THREADS / 2, 3, MXA_GPU_BF16, MXA_GPU_COLUMN)
QUANTIZE(QUANTIZE_ENTRY(bf16_square), TILE_THREADS / 2, 3, MXA_GPU_BF16, MXA_GPU_SQUARE)

/* Folded blocks of BF16, both kinds. */
MXA_KERNEL_MANY(QUANTIZE_ENTRY(bf16_folded), TILE_THREADS / 2, 3, mxa_quantize_params, parameters)
{
    quantize(&parameters, MXA_GPU_BF16, parameters.block, 1, 2);
}
