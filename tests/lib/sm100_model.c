/* sm100_model.c: see sm100_model.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "sm100_model.h"

#include "mx/element.h"
#include "mx/tensor_core.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 128, GROUP = 32, DIM_MOST = 128, P_LOG2 = 8, HEADROOM = 3 };

typedef struct model_row {
    float m, l;
    uint32_t o[DIM_MOST]; /* accumulators */
} model_row;

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float nearest_exp2(float x)
{
    return (float)exp2((double)x);
}

static float polynomial_exp2(float x)
{
    const float magic = 12582912.0F;
    x = x > -126.0F ? x : -126.0F;
    const float t = x + magic, f = x + fmaf(t, -1.0F, magic);
    const float p =
        fmaf(fmaf(fmaf(0.0551716685F, f, 0.242611125F), f, 0.693260968F), f, 0.999928057F);
    return from_bits(to_bits(p) + (to_bits(t) << 23));
}

static float row_score(const mxt_sm100_head *h, int64_t i, int64_t j)
{
    const mxa_tensor_core_step step = {MXA_TENSOR_CORE_BLACKWELL, h->q_type, h->k_type, GROUP};
    const int64_t groups = h->head_dim / GROUP;
    uint32_t sum = 0;
    for (int64_t g = 0; g < groups; g++) {
        sum = mxa_tensor_core_f32(&step, h->q + i * h->stride_q + g * GROUP,
                                  h->k + j * h->stride_k + g * GROUP, h->q_scale[i * groups + g],
                                  h->k_scale[j * groups + g], sum);
    }
    return from_bits(sum);
}

/* Scores of block `block` as the softmax has them; returns the factor to logits. */
static float block_scores(const mxt_sm100_head *h, int64_t i, int64_t block, float *s)
{
    const float scale = (float)(h->softmax_scale * 1.4426950408889634);
    const float cap = (float)(h->softcap * 1.4426950408889634);
    const int64_t low = h->left < 0 ? 0 : i + h->diagonal - h->left;
    const int64_t high = h->right < 0 ? h->seqlen_k - 1 : i + h->diagonal + h->right;
    const int plain = scale > 0.0F && !(cap > 0.0F);
    for (int c = 0; c < BLOCK; c++) {
        const int64_t j = block * BLOCK + c;
        s[c] = -INFINITY;
        if (j >= low && j <= high && j < h->seqlen_k) {
            s[c] = row_score(h, i, j);
            s[c] = plain ? s[c] : s[c] * scale;
            if (cap > 0.0F) {
                s[c] = cap * (float)tanh((double)(s[c] * (1.0F / cap)));
            }
        }
    }
    return plain ? scale : 1.0F;
}

static void raise_row(const float *s, float scale, model_row *row)
{
    float most = -INFINITY;
    int nan = isnan(row->m);
    for (int c = 0; c < BLOCK; c++) {
        nan |= isnan(s[c]);
        most = s[c] > most ? s[c] : most;
    }
    most *= scale;
    if (!nan && most <= row->m) {
        return;
    }
    const float m = nan || isinf(most) ? (float)NAN : ceilf(most) + (float)HEADROOM;
    const float power = row->m - m; /* integer, -inf or NaN */
    const float factor = power >= -126.0F ? ldexpf(1.0F, (int)power) : 0.0F;
    row->l *= factor;
    for (int d = 0; d < DIM_MOST; d++) {
        row->o[d] = to_bits(from_bits(row->o[d]) * factor);
    }
    row->m = m;
}

static void block_probs(const float *s, float scale, model_row *row, uint8_t *p)
{
    const float base = row->m == -INFINITY ? 0.0F : (float)P_LOG2 - row->m;
    float sum[4] = {0, 0, 0, 0}; /* [pair of four keys][half] */
    for (int c = 0; c < BLOCK; c++) {
        const float x = fmaf(s[c], scale, base);
        const float e = c / 2 % 4 == 3 ? polynomial_exp2(x) : nearest_exp2(x);
        sum[c % 4] += e;
        p[c] = mxa_e4m3_from_f32(e);
    }
    row->l += (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void block_values(const mxt_sm100_head *h, int64_t block, const uint8_t *p, model_row *row)
{
    const mxa_tensor_core_step step = {MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, h->v_type, GROUP};
    for (int64_t g = 0; g < BLOCK / GROUP; g++) {
        const int64_t first = block * BLOCK + g * GROUP;
        for (int64_t d = 0; d < h->head_dim && first < h->seqlen_k; d++) {
            uint8_t column[GROUP] = {0};
            for (int64_t j = 0; j < GROUP && first + j < h->seqlen_k; j++) {
                column[j] = h->v[(first + j) * h->stride_v + d];
            }
            row->o[d] = mxa_tensor_core_f32(&step, p + g * GROUP, column, 127,
                                            h->v_scale[first / GROUP * h->head_dim + d], row->o[d]);
        }
    }
}

static void finish_row(const mxt_sm100_head *h, const model_row *row, float *o, float *lse)
{
    const float ln2 = 0.69314718055994531F, log2e = 1.44269504088896341F, unit = (float)P_LOG2;
    const int empty = row->m == -INFINITY;
    float inverse = 1.0F / row->l, weight = 1.0F;
    *lse = empty ? -INFINITY : ((row->m + (float)log2((double)row->l)) - unit) * ln2;
    if (h->sink) {
        const float sink = *h->sink * log2e;
        const float top = isnan(row->m) || row->m > ceilf(sink) ? row->m : ceilf(sink);
        const float shrink = empty ? 0.0F : nearest_exp2(row->m - top);
        const float own = row->l * shrink;
        const float total = own + nearest_exp2((sink - top) + unit);
        inverse = shrink / total;
        weight = own / total;
        *lse = ((top + (float)log2((double)total)) - unit) * ln2;
    }
    for (int64_t d = 0; d < h->head_dim; d++) {
        const float mean = h->mean && isfinite(h->mean[d]) ? h->mean[d] : 0.0F;
        o[d] = empty ? 0.0F : fmaf(from_bits(row->o[d]), inverse, mean * weight);
    }
}

void mxt_sm100_row(const mxt_sm100_head *h, int64_t i, float *o, float *lse)
{
    model_row row;
    memset(&row, 0, sizeof row);
    row.m = -INFINITY;
    for (int64_t block = 0; block * BLOCK < h->seqlen_k; block++) {
        float s[BLOCK];
        uint8_t p[BLOCK];
        const float scale = block_scores(h, i, block, s);
        raise_row(s, scale, &row);
        block_probs(s, scale, &row, p);
        block_values(h, block, p, &row);
    }
    finish_row(h, &row, o, lse);
}
