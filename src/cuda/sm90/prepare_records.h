/* prepare_records.h: V's part of the records, once the exponents of a (sequence, kv head) are
 * there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_RECORDS_H
#define MXA_CUDA_SM90_PREPARE_RECORDS_H

#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"

/* Moves a group's payload of v down by 2^excess (negative); the whole warp. */
MXA_DEVICE void shift_values(const mxa_record_params *params, int head, int64_t group, int excess)
{
    float factor = excess < -126 ? 0.0f : f32_bits((uint32_t)(excess + 127) << 23);
    for (int d = dev_thread_again() & 31; d < params->head_dim_v; d += 32) {
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
}

/* A sequence and kv head whose scores may exceed the FP16 bound set `wide`. */
MXA_DEVICE void mark_wide(const mxa_record_params *params, int sequence, int head)
{
    uint64_t pair = (uint64_t)sequence * (uint64_t)params->kv_heads + (uint64_t)head;
    float most = mul_rn(dev_load_global_f32(params->k_norm + 4 * pair), params->scale_log2e);
    int heads = params->q_heads / params->kv_heads;
    for (int h = head * heads; h < (head + 1) * heads; h++) {
        uint64_t at = (uint64_t)sequence * (uint64_t)params->q_heads + (uint64_t)h;
        float logit = mul_rn(most, dev_load_global_f32(params->q_norm + 4 * at));
        if (!(logit < params->bound && logit > -params->bound)) {
            dev_max_global_u32(params->wide, 1);
        }
    }
}

/* Whether a (sequence, head) of `used` keys leans: then its counter of items is one more. */
MXA_DEVICE int pair_leans(mxa_global counters, uint64_t pair, int used)
{
    const uint32_t items = ((uint32_t)used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK;
    return dev_load_global_u32(counters + 4 * pair) > items;
}

/* Of 32 groups of keys from `first` on, below `end`, a thread each; the whole warp. leaning: 0, or
 * where those of a (sequence, head) that leans are counted; its groups are left out. */
MXA_DEVICE void records_make(const mxa_record_params *params, int head, int64_t first, int64_t end,
                             mxa_global leaning)
{
    const int64_t groups = params->rows / MXA_PREPARE_GROUP;
    const int64_t group = first + (dev_thread_again() & 31);
    int shift = 0, is_mine = group < end;
    load_place place;
    uint64_t pair = 0;
    if (is_mine) {
        load_find(&params->batch, 1, (int)(group * MXA_PREPARE_GROUP), &place);
        pair = (uint64_t)place.sequence * (uint64_t)params->kv_heads + (uint64_t)head;
        is_mine = !leaning || !pair_leans(leaning, pair, place.used);
    }
    if (is_mine) {
        uint64_t at = (uint64_t)(head * groups + group);
        int top = dev_load_global_i32(params->top + 4 * pair) - 1024;
        if (top == -1024) {
            top = 0; /* every finite value is zero */
        }
        int v = dev_load_global_i32(params->v_exponent + 4 * at);
        shift = v == MXA_EXPONENT_NONE ? 0 : v - top;
        /* WHY -14: P's exponent and the undoing factor stay within FP16. The payload moves down by
         * the rest; what it loses is below 2^-14 of the sequence's largest value. */
        int kept = shift < -14 ? -14 : shift;
        mxa_global record = params->records + 16 * at;
        dev_store_global_f32(record + 4, (float)kept);
        dev_store_global_u32x2(record + 8, f16x2_from_f32((float)kept),
                               f16x2_from_f32(f32_bits((uint32_t)(127 - kept) << 23)));
        if (place.position == 0) {
            mark_wide(params, place.sequence, head);
            dev_store_global_u32(params->v_scale + 4 * pair, (uint32_t)(top + 127) << 23);
        }
    }
    if (warp_any(shift < -14)) {
        for (int lane = 0; lane < 32; lane++) {
            int of_lane = shuffle_i32(shift, lane);
            if (of_lane < -14) {
                shift_values(params, head, first + lane, of_lane + 14);
            }
        }
    }
}

#endif
