/* merge.cu: two attention results over disjoint sets of keys become one.
 *
 * Meaning: src/ref/states_merge.c: weights e^LSE / (e^LSE_a + e^LSE_b) in float64, the larger LSE
 * taken out first. A side of weight 0 (LSE -inf, or far below) is not read. exp and log are the
 * device's own, so a result may differ from the CPU's in its last bit.
 *
 * One warp a row; neighbouring lanes take neighbouring dims.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/tile.h"

#define INFINITE 0x7F800000u

typedef struct merge_weights {
    double a, b, lse;
} merge_weights;

MXA_DEVICE int is_nan(float x)
{
    return (bits_f32(x) & 0x7FFFFFFFu) > INFINITE;
}

MXA_DEVICE merge_weights weigh(float lse_a, float lse_b)
{
    const int a_none = bits_f32(lse_a) == (0x80000000u | INFINITE);
    const int b_none = bits_f32(lse_b) == (0x80000000u | INFINITE);
    merge_weights w = {1.0, 0.0, 0.0};
    if (b_none && !is_nan(lse_a)) {
        w.a = a_none ? 0.0 : 1.0;
        w.lse = (double)lse_a;
        return w;
    }
    if (a_none && !is_nan(lse_b)) {
        w.a = 0.0;
        w.b = 1.0;
        w.lse = (double)lse_b;
        return w;
    }
    const double most = lse_a > lse_b ? (double)lse_a : (double)lse_b;
    const double a = exp_f64((double)lse_a - most), b = exp_f64((double)lse_b - most);
    w.a = a / (a + b);
    w.b = b / (a + b);
    w.lse = most + log_f64(a + b);
    return w;
}

/* Element (outer, token, head, 0) of a view. */
MXA_DEVICE mxa_global row_of(const mxa_gpu_view *view, int64_t outer, int64_t token, int64_t head,
                             int bytes)
{
    return view->data + (uint64_t)(bytes * (outer * view->stride_outer +
                                            token * view->stride_token + head * view->stride_head));
}

MXA_DEVICE void store_element(mxa_global at, int type, float x)
{
    if (type == MXA_GPU_F32) {
        dev_store_global_f32(at, x);
    } else {
        const uint32_t pair =
            type == MXA_GPU_BF16 ? bf16x2_from_f32x2(x, x) : f16x2_from_f32x2(x, x);
        dev_store_global_u16(at, (uint16_t)(pair & 0xFFFF));
    }
}

MXA_KERNEL_SMALL(mxa_states_merge, 256, mxa_merge_params, parameters)
{
    const mxa_merge_params *p = &parameters;
    const int64_t row = (int64_t)dev_block_x() * (dev_threads() / 32) + dev_thread() / 32;
    if (row >= p->rows) {
        return;
    }
    const int64_t of_head = row / p->heads, head = row - of_head * p->heads;
    const int64_t outer = of_head / p->seqlen, token = of_head - outer * p->seqlen;
    const merge_weights w = weigh(dev_load_global_f32(row_of(&p->lse_a, outer, token, head, 4)),
                                  dev_load_global_f32(row_of(&p->lse_b, outer, token, head, 4)));
    warp_sync(); /* lse may be one of them, and is written at the end */
    mxa_global a = row_of(&p->a, outer, token, head, bytes_of(p->type_a));
    mxa_global b = row_of(&p->b, outer, token, head, bytes_of(p->type_b));
    mxa_global o = row_of(&p->o, outer, token, head, bytes_of(p->type_o));
    MXA_NO_UNROLL
    for (int d = dev_thread() & 31; d < p->head_dim; d += 32) {
        double sum = 0.0;
        if (w.a != 0.0) {
            const float x = tile_element(a + (uint64_t)(d * bytes_of(p->type_a)), p->type_a);
            sum = add_rn_f64(sum, mul_rn_f64(w.a, (double)x));
        }
        if (w.b != 0.0) {
            const float x = tile_element(b + (uint64_t)(d * bytes_of(p->type_b)), p->type_b);
            sum = add_rn_f64(sum, mul_rn_f64(w.b, (double)x));
        }
        store_element(o + (uint64_t)(d * bytes_of(p->type_o)), p->type_o, (float)sum);
    }
    if (p->lse.data && (dev_thread() & 31) == 0) {
        dev_store_global_f32(row_of(&p->lse, outer, token, head, 4), (float)w.lse);
    }
}
