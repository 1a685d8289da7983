/* prepare_token.cu: the private operand copies of the BF16 form, where no token shapes another.
 *
 * Layouts: sm90/forward_params.h. q and k: every value of a token is brought to one exponent; v:
 * BF16, exact, a NaN as 0 and marked, so that 0 times it is 0 in rows that do not see its token.
 * Wide operands are first quantized as their block says.
 *
 * One warp makes 32 tokens of one head, four at a time; a lane holds 8 elements of each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/sm90/forward_params.h"
#include "cuda/sm90/prepare_fold.h"

enum { WARPS = 4 };

/* Four tokens at position + 4*turn. */
MXA_DEVICE void load_four(const mxa_prepare_params *params, const load_place *place, int head,
                          int turn, float *x)
{
    int first = place->position + 4 * turn;
    int position[4] = {first, first + 1, first + 2, first + 3};
    int d = 8 * (dev_thread() & 31);
    load_rows(&params->from, params->from.type, place, position, head, d, params->head_dim, x);
}

/* Largest of the four lanes that hold one block of 32 dimensions. */
MXA_DEVICE uint32_t block_max(uint32_t amax)
{
    amax = max_u32(amax, shuffle_xor_u32(amax, 1));
    return max_u32(amax, shuffle_xor_u32(amax, 2));
}

/* Eight values as their block of largest magnitude `amax` holds them. */
MXA_DEVICE void requantize(const mxa_gpu_operand *from, uint32_t amax, float *x)
{
    float inverse;
    uint32_t most, h[4];
    int exponent = block_scale(amax, from->rounding, &inverse, &most);
    float power = load_power((uint32_t)(exponent + 127));
    block_round(x, inverse, h);
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        x[2 * j] = mul_rn(f32_from_f16_low(h[j]), power);
        x[2 * j + 1] = mul_rn(f32_from_f16_high(h[j]), power);
    }
}

/* The next four tokens, wide ones quantized. square: amax of this lane's 32 x 32 block. */
MXA_DEVICE void load_quantized(const mxa_prepare_params *params, const load_place *place, int head,
                               int turn, uint32_t square, float *x)
{
    load_four(params, place, head, turn, x);
    if (params->from.type <= MXA_GPU_BF16) {
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t amax = square;
            if (params->from.block != MXA_GPU_SQUARE) {
                amax = block_max(largest(x + 8 * i, 8));
            }
            requantize(&params->from, amax, x + 8 * i);
        }
    }
}

/* A token of q or k: payload with its own exponent; its scale at `scale`. */
MXA_DEVICE void store_token(const mxa_prepare_params *params, int64_t row, mxa_global scale,
                            const float *x)
{
    const int d = 8 * (dev_thread() & 31), stride = (params->head_dim + 15) & ~15;
    uint32_t top = warp_max_u32(largest(x, 8));
    const int finite = top < NOT_FINITE;
    int exponent = fold_exponent(top, 1);
    float inverse = inverse_power(exponent);
    uint32_t code[2];
    MXA_UNROLL
    for (int j = 0; j < 2; j++) {
        const float *y = x + 4 * j;
        code[j] = e4m3x4_from_f32(mul_rn(y[0], inverse), mul_rn(y[1], inverse),
                                  mul_rn(y[2], inverse), mul_rn(y[3], inverse));
    }
    if (d < stride) {
        dev_store_global_u32x2(params->payload + (uint64_t)(row * stride + d),
                               finite ? code[0] : 0x7F7F7F7Fu, finite ? code[1] : 0x7F7F7F7Fu);
    }
    if (d == 0) {
        dev_store_global_u32(scale, finite ? (uint32_t)(exponent + 127) << 23 : 0x7FC00000u);
    }
}

/* A token of v in BF16; returns whether it has a NaN. */
MXA_DEVICE int store_value(const mxa_prepare_params *params, int64_t row, const float *x)
{
    const int d = 8 * (dev_thread() & 31);
    int nan = 0;
    uint32_t w[4];
    MXA_UNROLL
    for (int j = 0; j < 4; j++) {
        int a = bits_f32(fold_abs(x[2 * j])) > NOT_FINITE;
        int b = bits_f32(fold_abs(x[2 * j + 1])) > NOT_FINITE;
        w[j] = bf16x2_from_f32x2(a ? 0.0f : x[2 * j], b ? 0.0f : x[2 * j + 1]);
        nan |= a | b;
    }
    if (d < params->head_dim) {
        mxa_u32x4 v = {w[0], w[1], w[2], w[3]};
        dev_store_global_u32x4(params->payload + 2 * (uint64_t)(row * params->head_dim + d), v);
    }
    return warp_any(nan);
}

/* 32 tokens. params->scale: of q FP32 [head][row], of k and v the records. */
MXA_DEVICE void prepare_tokens(const mxa_prepare_params *params, int is_v, int head)
{
    const int group = dev_block_x() * WARPS + (dev_thread() >> 5);
    if (group >= params->groups) {
        return;
    }
    load_place place;
    load_find(&params->batch, params->is_k_side, group * MXA_PREPARE_GROUP, &place);
    const int64_t row = head * params->rows + group * MXA_PREPARE_GROUP;
    const mxa_global record =
        params->scale + (uint64_t)(row / MXA_FORWARD_GROUP) * MXA_FORWARD_TOKEN_RECORD;
    float x[32];
    uint32_t square = 0, nan = 0;
    if (params->from.type <= MXA_GPU_BF16 && params->from.block == MXA_GPU_SQUARE) {
        MXA_NO_UNROLL
        for (int turn = 0; turn < 8; turn++) {
            load_four(params, &place, head, turn, x);
            square = max_u32(square, largest(x, 32));
        }
        square = block_max(square);
    }
    MXA_NO_UNROLL
    for (int turn = 0; turn < 8; turn++) {
        load_quantized(params, &place, head, turn, square, x);
        MXA_UNROLL
        for (int i = 0; i < 4; i++) {
            const int token = 4 * turn + i;
            if (is_v) {
                nan |= (uint32_t)store_value(params, row + token, x + 8 * i) << token;
            } else {
                mxa_global scale = params->is_k_side ? record + 4 * (uint64_t)token
                                                     : params->scale + 4 * (uint64_t)(row + token);
                store_token(params, row + token, scale, x + 8 * i);
            }
        }
    }
    if (is_v && (dev_thread() & 31) == 0) {
        dev_store_global_u32(record + 128, nan);
    }
}

/* y: q heads, kv heads of k, kv heads of v. */
MXA_KERNEL_SMALL(mxa_sm90_prepare_tokens, 128, mxa_prepare_all_params, parameters)
{
    const mxa_prepare_all_params *all = &parameters;
    const mxa_gpu_batch *batch = &all->q.batch;
    if (batch->status && dev_load_global_u32(batch->status)) {
        return;
    }
    const int y = dev_block_y(), q = all->q.heads, k = all->k.heads;
    if (y < q) {
        prepare_tokens(&all->q, 0, y);
    } else if (y < q + k) {
        prepare_tokens(&all->k, 0, y - q);
    } else {
        prepare_tokens(&all->v, 1, y - q - k);
    }
}
