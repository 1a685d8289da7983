/* sm100_model.c: see sm100_model.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "sm100_model.h"

#include "emu/product.h"
#include "mx/element.h"

#include <math.h>
#include <string.h>

enum { ROWS = MXT_SM100_ROWS, BLOCK = 128, GROUP = 32, DIM_MOST = 128, P_LOG2 = 8, HEADROOM = 3 };

typedef struct model_row {
    float m, l;
    uint32_t *o; /* (DIM_MOST) accumulators */
} model_row;

/* A tile of rows and a block of keys. */
typedef struct model_tile {
    model_row row[ROWS];
    uint32_t o[ROWS][DIM_MOST];
    uint32_t s[ROWS][BLOCK];
    uint8_t p[ROWS][BLOCK];
    uint16_t p_bf16[ROWS][BLOCK];
} model_tile;

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

/* S of `rows` rows from `first` on: one sum for each group of 32 dims. */
static void tile_scores(const mxt_sm100_head *h, int64_t first, int rows, int64_t block,
                        model_tile *t)
{
    const int64_t groups = h->head_dim / GROUP;
    const int64_t left = h->seqlen_k - block * BLOCK, keys = left < BLOCK ? left : BLOCK;
    for (int64_t g = 0; g < groups; g++) {
        uint8_t a[ROWS][GROUP], b[BLOCK][GROUP], scale_a[ROWS], scale_b[BLOCK];
        for (int i = 0; i < rows; i++) {
            memcpy(a[i], h->q + (first + i) * h->stride_q + g * GROUP, GROUP);
            scale_a[i] = h->q_scale[(first + i) * groups + g];
        }
        for (int64_t j = 0; j < keys; j++) {
            memcpy(b[j], h->k + (block * BLOCK + j) * h->stride_k + g * GROUP, GROUP);
            scale_b[j] = h->k_scale[(block * BLOCK + j) * groups + g];
        }
        const mxa_emu_product product = {{MXA_TENSOR_CORE_BLACKWELL, h->q_type, h->k_type, GROUP},
                                         rows,
                                         (int)keys,
                                         a,
                                         b,
                                         GROUP,
                                         1,
                                         scale_a,
                                         scale_b,
                                         t->s[0],
                                         BLOCK,
                                         0,
                                         g > 0};
        mxa_emu_product_run(&product);
    }
}

/* Scores of block `block` as the softmax has them; returns the factor to logits. */
static float row_scores(const mxt_sm100_head *h, int64_t i, int64_t block, const uint32_t *scores,
                        float *s)
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
            s[c] = from_bits(scores[c]);
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

/* bf16 NULL: P goes to p in E4M3. */
static void row_probs(const float *s, float scale, model_row *row, uint8_t *p, uint16_t *bf16)
{
    const float base = row->m == -INFINITY ? 0.0F : (float)P_LOG2 - row->m;
    float sum[4] = {0, 0, 0, 0}; /* [pair of four keys][half] */
    for (int c = 0; c < BLOCK; c++) {
        const float x = fmaf(s[c], scale, base);
        const float e = !bf16 && c / 2 % 4 == 3 ? polynomial_exp2(x) : nearest_exp2(x);
        sum[c % 4] += e;
        if (bf16) {
            bf16[c] = mxa_bf16_from_f32(e);
        } else {
            p[c] = mxa_e4m3_from_f32(e);
        }
    }
    row->l += (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void tile_values(const mxt_sm100_head *h, int rows, int64_t block, model_tile *t)
{
    for (int64_t g = 0; g < BLOCK / GROUP; g++) {
        const int64_t first = block * BLOCK + g * GROUP, left = h->seqlen_k - first;
        uint8_t a[ROWS][GROUP], b[GROUP][DIM_MOST] = {{0}};
        for (int i = 0; i < rows; i++) {
            memcpy(a[i], t->p[i] + g * GROUP, GROUP);
        }
        for (int64_t j = 0; j < GROUP && j < left; j++) {
            memcpy(b[j], h->v + (first + j) * h->stride_v, (size_t)h->head_dim);
        }
        const mxa_emu_product product = {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, h->v_type, GROUP},
                                         rows,
                                         (int)h->head_dim,
                                         a,
                                         b,
                                         1,
                                         DIM_MOST,
                                         NULL,
                                         left > 0 ? h->v_scale + first / GROUP * h->head_dim : NULL,
                                         t->o[0],
                                         DIM_MOST,
                                         0,
                                         1};
        if (left > 0) {
            mxa_emu_product_run(&product);
        }
    }
}

/* The same in BF16: sums of 16 keys, no scales. */
static void tile_values_bf16(const mxt_sm100_head *h, int rows, int64_t block, model_tile *t)
{
    for (int64_t g = 0; g < BLOCK / 16; g++) {
        const int64_t first = block * BLOCK + g * 16, left = h->seqlen_k - first;
        uint16_t a[ROWS][16], b[16][DIM_MOST] = {{0}};
        for (int i = 0; i < rows; i++) {
            memcpy(a[i], t->p_bf16[i] + g * 16, sizeof a[i]);
        }
        for (int64_t j = 0; j < 16 && j < left; j++) {
            memcpy(b[j], h->v_bf16 + (first + j) * h->stride_v, (size_t)(2 * h->head_dim));
        }
        const mxa_emu_product product = {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_BF16, MXATTN_BF16, 16},
                                         rows,
                                         (int)h->head_dim,
                                         a,
                                         b,
                                         1,
                                         DIM_MOST,
                                         NULL,
                                         NULL,
                                         t->o[0],
                                         DIM_MOST,
                                         0,
                                         1};
        if (left > 0) {
            mxa_emu_product_run(&product);
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

void mxt_sm100_rows(const mxt_sm100_head *h, int64_t first, int rows, float *o, int64_t o_step,
                    float *lse)
{
    static model_tile t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < rows; i++) {
        t.row[i].m = -INFINITY;
        t.row[i].o = t.o[i];
    }
    for (int64_t block = 0; block * BLOCK < h->seqlen_k; block++) {
        tile_scores(h, first, rows, block, &t);
        for (int i = 0; i < rows; i++) {
            float s[BLOCK];
            const float scale = row_scores(h, first + i, block, t.s[i], s);
            raise_row(s, scale, &t.row[i]);
            row_probs(s, scale, &t.row[i], t.p[i], h->v_bf16 ? t.p_bf16[i] : NULL);
        }
        if (h->v_bf16) {
            tile_values_bf16(h, rows, block, &t);
        } else {
            tile_values(h, rows, block, &t);
        }
    }
    for (int i = 0; i < rows; i++) {
        finish_row(h, &t.row[i], o + i * o_step, &lse[i]);
    }
}
