/* quantize.cu: the quantizer on every arch, and V's mean.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/tile.h"

#define QUANTIZE_ENTRY(name) mxa_quantize_##name

/* docs/format.md, rounding. */
MXA_DEVICE uint32_t quantize_scale_byte(uint32_t amax, int e5m2, int floor_rule)
{
    const uint32_t not_finite = 0x7F800000u;
    int byte = (int)(amax >> 23) - (e5m2 ? 15 : 8) + (!floor_rule && (amax & 0x7FFFFF) > 0x600000);
    byte = byte < 0 ? 0 : byte;
    return amax > not_finite ? 255 : amax == not_finite ? 254 : (uint32_t)byte;
}

MXA_DEVICE uint32_t quantize_warp_largest(float x)
{
    return warp_max_u32(bits_f32(x));
}

#include "cuda/common/quantize_body.h"

/* The centre: each thread adds up one dim of one sequence and head in float64, in order, as every
 * backend does. Grid x: head * chunks + chunk; y and z: sequence. */
MXA_KERNEL_SMALL(mxa_quantize_mean, 128, mxa_quantize_params, parameters)
{
    const mxa_quantize_params *p = &parameters;
    const int b = sequence_tile_number(&p->batch);
    tile t;
    sequence_side s = {0, 0, 0, 0};
    if (b >= p->batch.batch || !sequence_find(&p->batch, dev_shared(), 0, &t.at)) {
        return;
    }
    sequence_read(p->batch.cu_seqlens, p->batch.seqused, p->batch.seqlen, p->batch.total,
                  0x7FFFFFFF, b, &s);
    t.at.outer = p->batch.cu_seqlens ? 0 : b;
    t.at.first = s.first;
    t.at.position = 0;
    t.head = divide(dev_block_x(), p->chunks);
    t.chunk = dev_block_x() - t.head * (int)p->chunks.divisor;
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
