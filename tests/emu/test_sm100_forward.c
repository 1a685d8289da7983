/* test_sm100_forward.c: the Blackwell forward on the emulator: bit for bit the arithmetic that it
 * documents, close to ref's float64, and clean under an adversary's schedules.
 *
 * Arguments: seeds of each case (default 3), then the beginning of a case's name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device_run.h"
#include "emu/driver.h"
#include "fill.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "report.h"
#include "sm100_case.h"
#include "sm100_model.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define E4M3   MXATTN_E4M3
#define E5M2   MXATTN_E5M2
#define F32    MXATTN_F32
#define NONE   MXATTN_BLOCK_NONE
#define ROW    MXATTN_BLOCK_ROW
#define COLUMN MXATTN_BLOCK_COLUMN
#define SQUARE MXATTN_BLOCK_SQUARE

static const int32_t used_some[] = {32, 0, 129, 0, 5}, used_dense[] = {130};

/* clang-format off */
static const mxt_sm100_case cases[] = {
    {"one block", {128, -1}, {128, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"two tiles", {256, -1}, {256, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"several items", {384, -1}, {384, -1}, 0, 3, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"d64", {256, -1}, {320, -1}, 0, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"ragged edge", {130, -1}, {161, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"causal", {384, -1}, {384, -1}, 0, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"causal, more queries", {300, -1}, {100, -1}, 0, 1, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"causal, more keys", {100, -1}, {300, -1}, 0, 1, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"causal top left", {300, -1}, {200, -1}, 0, 1, 1, 128, 1, 1, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"window", {700, -1}, {700, -1}, 0, 1, 1, 64, 0, 0, 100, 30, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"narrow window", {520, -1}, {520, -1}, 0, 1, 1, 64, 0, 0, 0, 0, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"row and column blocks", {160, -1}, {300, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, F32, NONE, .kind = MXT_OUTLIER},
    {"e5m2", {128, -1}, {256, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E5M2, F32, NONE, .kind = MXT_GAUSSIAN},
    {"sink", {160, -1}, {200, -1}, 0, 2, 2, 64, 1, 0, -1, -1, 0, 0, 1, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"softcap", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 3.0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"negative scale", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, -0.05, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"wide logits", {128, -1}, {384, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 2.0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"long tail", {128, -1}, {384, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_LONG_TAIL},
    {"centred", {128, -1}, {200, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 1, 1, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"no keys", {128, -1}, {0, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"o bf16", {140, -1}, {128, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, MXATTN_BF16, NONE, .kind = MXT_GAUSSIAN},
    {"o f16", {140, -1}, {128, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, MXATTN_F16, NONE, .kind = MXT_GAUSSIAN},
    {"o mxfp8 square", {140, -1}, {128, -1}, 0, 2, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, SQUARE, .kind = MXT_GAUSSIAN},
    {"o mxfp8 row", {200, -1}, {128, -1}, 0, 1, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, ROW, .kind = MXT_GAUSSIAN},
    {"o mxfp8 column", {200, -1}, {128, -1}, 0, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E5M2, COLUMN, .kind = MXT_GAUSSIAN},
    {"jagged", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, 1, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"jagged, causal", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {640, 255, 129, 128, 127, 33, 32, 31, 1, 0, -1}, 1, 2, 1, 64, 1, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"jagged, o mxfp8", {33, 0, 129, -1}, {129, 31, 5, -1}, 1, 2, 2, 128, 0, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, E4M3, SQUARE, .kind = MXT_GAUSSIAN},
    {"jagged, causal top left", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {33, 640, 0, 1, 31, 32, 127, 128, 129, 255, -1}, 1, 2, 1, 128, 1, 1, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN},
    {"bf16, one block", {128, -1}, {128, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, F32, NONE, .kind = MXT_GAUSSIAN, .bf16 = 1},
    {"bf16, several items", {384, -1}, {640, -1}, 0, 3, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, F32, NONE, .kind = MXT_OUTLIER, .bf16 = 1},
    {"bf16, centred, e5m2", {140, -1}, {700, -1}, 0, 1, 1, 128, 0, 0, -1, -1, 0, 0, 1, 1, SQUARE, E5M2, F32, NONE, .kind = MXT_LONG_TAIL, .bf16 = 1},
    {"strict", {384, -1}, {384, -1}, 0, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, F32, NONE, .kind = MXT_GAUSSIAN, .strict = 1},
    {"strict, softcap, sink", {100, -1}, {300, -1}, 0, 2, 2, 64, 1, 0, 150, -1, 0, 3.0, 1, 0, ROW, E5M2, MXATTN_BF16, NONE, .kind = MXT_GAUSSIAN, .strict = 1},
    {"strict, wide logits", {300, -1}, {300, -1}, 0, 1, 1, 128, 1, 1, -1, -1, 2.0, 0, 0, 0, ROW, E4M3, F32, NONE, .kind = MXT_GAUSSIAN, .strict = 1},
    {"strict, jagged", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, 1, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, F32, NONE, .kind = MXT_GAUSSIAN, .strict = 1},
    {"strict, jagged, top left", {0, 1, 31, 32, 33, 127, 128, 129, 255, 640, -1}, {640, 255, 129, 128, 127, 33, 32, 31, 1, 0, -1}, 1, 2, 2, 64, 1, 1, -1, -1, 0, 0, 0, 0, ROW, E4M3, E4M3, ROW, .kind = MXT_GAUSSIAN, .strict = 1},
    {"seqused, o mxfp8 square", {33, 300, 129, 7, 140, -1}, {129, 31, 5, 40, 128, -1}, 1, 2, 2, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, SQUARE, .kind = MXT_GAUSSIAN, .used_q = used_some},
    {"seqused, o mxfp8 row", {33, 300, 129, 7, 140, -1}, {129, 31, 5, 40, 128, -1}, 1, 2, 1, 128, 1, 0, -1, -1, 0, 0, 0, 0, ROW, E4M3, E4M3, ROW, .kind = MXT_GAUSSIAN, .used_q = used_some},
    {"seqused, o mxfp8 in other layouts", {33, 300, 129, 7, 140, -1}, {129, 31, 5, 40, 128, -1}, 1, 2, 1, 128, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E4M3, SQUARE, .kind = MXT_GAUSSIAN, .used_q = used_some, .o_layouts = MXT_SM100_O_LINEAR_TILED},
    {"seqused, o mxfp8 compact", {33, 300, 129, 7, 140, -1}, {129, 31, 5, 40, 128, -1}, 1, 1, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E5M2, SQUARE, .kind = MXT_GAUSSIAN, .used_q = used_some, .o_layouts = MXT_SM100_O_COMPACT},
    {"seqused, dense, o mxfp8 column", {400, -1}, {140, -1}, 0, 2, 1, 64, 0, 0, -1, -1, 0, 0, 0, 0, SQUARE, E4M3, E5M2, COLUMN, .kind = MXT_GAUSSIAN, .used_q = used_dense},
};
/* clang-format on */

/* ---- what it must be ---- */

/* V in BF16, where the case holds it so; NULL otherwise. */
static uint16_t *values_of(const mxt_sm100_setup *s)
{
    const mxt_sm100_case *c = s->c;
    if (!c->bf16 && !c->strict) {
        return NULL;
    }
    uint16_t *values = mxt_sm100_take(2 * s->v.payload_bytes);
    mxattn_tensor wide;
    mxattn_quantize_args args;
    mxattn_tensor_view(&wide, MXATTN_BF16, values, s->v.linear.ndim, s->v.linear.shape);
    mxattn_tensor quantized = s->v.linear;
    quantized.tags.flags = 0;
    quantized.centre = NULL;
    mxattn_quantize_args_init(&args);
    args.backend = MXATTN_BACKEND_CPU;
    args.wide = &wide;
    args.quantized = &quantized;
    args.sequences.cu_seqlens = mxt_sm100_cu(s, &s->v);
    args.sequences.batch = c->jagged ? s->batch : 0;
    CHECK_STATUS(MXATTN_OK, mxattn_dequantize(NULL, &args));
    return values;
}

/* Head h of sequence b for the model; scales is memory for the head's own copies, values what
 * values_of gave. */
static mxt_sm100_head head_of(const mxt_sm100_setup *s, int64_t b, int64_t h, uint8_t *scales,
                              const uint16_t *values)
{
    const mxt_sm100_case *c = s->c;
    const int64_t d = c->head_dim, kv = h / (c->heads / c->kv_heads), groups = d / 32;
    const int64_t sq = mxt_sm100_used_q(c, b), sk = c->lengths_k[b], blocks = (sk + 31) / 32;
    int64_t block = 0;
    mxt_sm100_head m = {.q_type = c->type,
                        .k_type = c->type,
                        .v_type = c->type,
                        .seqlen_q = sq,
                        .seqlen_k = sk,
                        .head_dim = d};
    for (int64_t i = 0; i < b; i++) {
        block += (c->lengths_k[i] + 31) / 32;
    }
    m.q = (const uint8_t *)s->q.tensor.data + (s->cu_q[b] * c->heads + h) * d;
    m.k = (const uint8_t *)s->k.tensor.data + (s->cu_k[b] * c->kv_heads + kv) * d;
    m.v = (const uint8_t *)s->v.tensor.data + (s->cu_k[b] * c->kv_heads + kv) * d;
    m.v_bf16 = values ? values + (s->cu_k[b] * c->kv_heads + kv) * d : NULL;
    m.stride_q = c->heads * d;
    m.stride_k = m.stride_v = c->kv_heads * d;
    for (int64_t t = 0; t < sq; t++) {
        memcpy(scales + t * groups,
               s->q.linear.scales[MXATTN_HDIM].data + ((s->cu_q[b] + t) * c->heads + h) * groups,
               (size_t)groups);
    }
    m.q_scale = scales;
    scales += sq * groups;
    for (int64_t t = 0; t < sk; t++) {
        memcpy(scales + t * groups,
               s->k.linear.scales[MXATTN_HDIM].data +
                   ((s->cu_k[b] + t) * c->kv_heads + kv) * groups,
               (size_t)groups);
    }
    m.k_scale = scales;
    scales += sk * groups;
    for (int64_t t = 0; t < blocks && !values; t++) {
        memcpy(scales + t * d,
               s->v.linear.scales[MXATTN_SEQ].data + ((block + t) * c->kv_heads + kv) * d,
               (size_t)d);
    }
    m.v_scale = scales;
    m.left = c->left;
    m.right = c->causal ? 0 : c->right;
    m.diagonal = c->top_left ? 0 : sk - sq;
    m.softmax_scale = c->scale != 0 ? c->scale : 1.0 / sqrt((double)d);
    m.softcap = c->softcap;
    m.sink = c->sink ? s->sink + h : NULL;
    m.mean = c->centred ? s->centre + (b * c->kv_heads + kv) * d : NULL;
    return m;
}

/* O in FP32 and LSE by the model; rows of no sequence 0 and -inf. */
static void run_model(const mxt_sm100_setup *s, float *o, float *lse)
{
    const mxt_sm100_case *c = s->c;
    const int64_t d = c->head_dim, tokens = s->q.tokens;
    uint8_t *scales = malloc((size_t)((s->q.tokens + 3 * s->k.tokens + 64) * d));
    uint16_t *values = values_of(s);
    memset(o, 0, (size_t)(4 * tokens * c->heads * d));
    for (int64_t i = 0; i < tokens * c->heads; i++) {
        lse[i] = -INFINITY;
    }
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < c->heads; h++) {
            const mxt_sm100_head m = head_of(s, b, h, scales, values);
            for (int64_t i = 0; i < m.seqlen_q; i += MXT_SM100_ROWS) {
                const int64_t t = s->cu_q[b] + i, left = m.seqlen_q - i;
                mxt_sm100_rows(&m, i, left < MXT_SM100_ROWS ? (int)left : MXT_SM100_ROWS,
                               o + (t * c->heads + h) * d, c->heads * d, &lse[h * tokens + t]);
            }
        }
    }
    free(scales);
    free(values);
}

/* The kernel's O must be the model's, converted once, as a producer would. */
static void check_output(const mxt_sm100_setup *s, const mxt_sm100_result *r, const float *o)
{
    const mxt_sm100_case *c = s->c;
    const int64_t n = r->rows * c->head_dim;
    const mxt_shape shape = mxt_shape3(s->q.tokens, c->heads, c->head_dim);
    mxt_sm100_result want;
    mxt_sm100_result_take(s, &want);
    if (mxa_dtype_is_wide(c->o)) {
        for (int64_t i = 0; i < n; i++) {
            /* A sum of nothing is 0 of either sign. */
            mxa_store(want.o, c->o, i, o[i] + 0.0F);
            mxa_store(r->o, c->o, i, mxa_load(r->o, c->o, i) + 0.0F);
        }
    } else {
        mxattn_tensor quantized = mxt_sm100_output(s, &want), wide;
        const int64_t *size = quantized.shape;
        mxattn_tensor_view(&wide, MXATTN_F32, mxt_sm100_take(4 * n), quantized.ndim, size);
        memcpy(wide.data, o, (size_t)(4 * n));
        mxattn_quantize_args args;
        mxattn_quantize_args_init(&args);
        args.backend = MXATTN_BACKEND_CPU;
        args.wide = &wide;
        args.quantized = &quantized;
        args.sequences.cu_seqlens = mxt_sm100_cu(s, &s->q);
        args.sequences.batch = c->jagged ? s->batch : 0;
        args.sequences.seqused = c->used_q;
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
        free(wide.data);
        for (int axis = 0; axis < 2; axis++) {
            if (want.o_scales[axis]) {
                mxt_check_bytes(axis ? "scales of o, seq" : "scales of o, hdim", r->o_scales[axis],
                                want.o_scales[axis], 1, mxt_shape1(want.o_scales_bytes[axis]));
            }
        }
        for (int64_t i = 0; i < n; i++) { /* -0 of the model may be 0 */
            r->o[i] = r->o[i] == 0x80 ? 0 : r->o[i];
            want.o[i] = want.o[i] == 0x80 ? 0 : want.o[i];
        }
    }
    mxt_check_bytes("o", r->o, want.o, (size_t)mxa_dtype_bytes(c->o), shape);
    mxt_sm100_result_free(&want);
}

/* Close to ref, which computes in float64. */
static void check_reference(mxt_sm100_setup *s, const float *o, const float *lse)
{
    const mxt_sm100_case *c = s->c;
    const int64_t n = s->q.tokens * c->heads * c->head_dim, rows = s->q.tokens * c->heads;
    float *want = mxt_sm100_take(4 * n), *want_lse = mxt_sm100_take(4 * rows);
    const int64_t shape[4] = {1, s->q.tokens, c->heads, c->head_dim};
    const int64_t lse_shape[3] = {1, c->heads, s->q.tokens};
    mxattn_attention_problem problem = s->problem;
    mxattn_attention_args args;
    mxattn_tensor to, to_lse;
    problem.backend = MXATTN_BACKEND_REF;
    problem.precision = MXATTN_PRECISION_MODEL;
    problem.intermediates =
        c->bf16 || c->strict ? MXATTN_INTERMEDIATES_BF16 : MXATTN_INTERMEDIATES_E4M3;
    problem.o.dtype = MXATTN_F32;
    problem.o.block = NONE;
    mxattn_tensor_view(&to, MXATTN_F32, want, c->jagged ? 3 : 4, c->jagged ? shape + 1 : shape);
    mxattn_tensor_view(&to_lse, MXATTN_F32, want_lse, c->jagged ? 2 : 3,
                       c->jagged ? lse_shape + 1 : lse_shape);
    mxattn_attention_args_init(&args);
    args.q = &s->q.linear;
    args.k = &s->k.linear;
    args.v = &s->v.linear;
    args.o = &to;
    args.lse = &to_lse;
    args.sink = c->sink ? s->sink : NULL;
    args.batch = c->jagged ? s->batch : -1;
    args.cu_seqlens_q = mxt_sm100_cu(s, &s->q);
    args.cu_seqlens_k = mxt_sm100_cu(s, &s->k);
    args.seqused_q = c->used_q;
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward_once(NULL, &problem, &args));
    mxt_check_rms("model's o against ref", o, want, mxt_shape1(n), MXT_SM100_O);
    mxt_check_close("model's lse against ref", lse, want_lse, mxt_shape1(rows),
                    MXT_SM100_LSE_ABSOLUTE, MXT_SM100_LSE_RELATIVE);
    free(want);
    free(want_lse);
}

/* The least number of tensor-core instructions: for each tile of 128 queries and each block of 128
 * keys that some of its rows see, one for 32 dims of scores and one for 32 keys of values, or for
 * 16 in BF16. */
static int64_t least_products(const mxt_sm100_setup *s)
{
    const mxt_sm100_case *c = s->c;
    const int64_t step = c->bf16 || c->strict ? 16 : 32;
    int64_t count = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t sq = mxt_sm100_used_q(c, b), sk = c->lengths_k[b];
        const int64_t diagonal = c->top_left ? 0 : sk - sq, right = c->causal ? 0 : c->right;
        for (int64_t first = 0; first < sq; first += 128) {
            const int64_t last = first + 128 < sq ? first + 127 : sq - 1;
            const int64_t low = c->left < 0 ? 0 : first + diagonal - c->left;
            const int64_t high = right < 0 ? sk - 1 : last + diagonal + right;
            for (int64_t j = 0; j * 128 < sk; j++) {
                const int64_t keys = sk - j * 128 < 128 ? sk - j * 128 : 128;
                if (j * 128 + 127 >= low && j * 128 <= high) {
                    count += c->heads * (c->head_dim / 32 + (keys + step - 1) / step);
                }
            }
        }
    }
    return count;
}

/* Instructions carried out whose name begins with `word`. */
static int64_t counted(const char *word)
{
    int64_t sum = 0, count = 0;
    const char *name;
    for (int64_t i = 0; (name = mxattn_emulator_counted(i, &count)) != NULL; i++) {
        sum += strncmp(name, word, strlen(word)) == 0 ? count : 0;
    }
    return sum;
}

static void check_case(const mxt_sm100_case *c, uint64_t seeds)
{
    mxt_sm100_setup s;
    mxt_sm100_result r;
    mxt_sm100_build(&s, c, 1);
    const int64_t rows = s.q.tokens * c->heads;
    float *o = mxt_sm100_take(4 * rows * c->head_dim), *lse = mxt_sm100_take(4 * rows);
    mxt_case("%s", c->name);
    run_model(&s, o, lse);
    check_reference(&s, o, lse);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        mxt_case("%s, schedule %llu", c->name, (unsigned long long)seed);
        mxa_emu_session *session = mxa_emu_session_now();
        mxa_emu_session_clear();
        session->options.seed = seed;
        mxt_sm100_result_take(&s, &r);
        CHECK_STATUS(MXATTN_OK, mxt_sm100_run(&s, &r));
        CHECK(session->errors == 0, "%d errors:\n%s", session->errors,
              session->text ? session->text : "");
        CHECK(session->warnings == 0, "%d warnings:\n%s", session->warnings,
              session->text ? session->text : "");
        CHECK(counted("tcgen05.mma") == least_products(&s), "%lld products, the least is %lld",
              (long long)counted("tcgen05.mma"), (long long)least_products(&s));
        if (!session->errors) {
            check_output(&s, &r, o);
            mxt_check_bytes("lse", r.lse, lse, 4, mxt_shape1(rows));
        }
        mxt_sm100_result_free(&r);
    }
    free(o);
    free(lse);
    mxt_sm100_free(&s);
}

/* The approximations may be any within the bounds that the ISA states (ex2 and lg2 2 ulp, tanh
 * 2^-11): P then rounds to its other neighbour now and then, and nothing else may show. */
static void approximations(void)
{
    static const char *const names[] = {"several items", "wide logits", "strict", "softcap"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const mxt_sm100_case *c = cases;
        mxt_sm100_setup s;
        mxt_sm100_result r;
        while (strcmp(c->name, names[i]) != 0) {
            c++;
        }
        mxt_sm100_build(&s, c, 1);
        const int64_t rows = s.q.tokens * c->heads, n = rows * c->head_dim;
        float *o = mxt_sm100_take(4 * n), *lse = mxt_sm100_take(4 * rows);
        run_model(&s, o, lse);
        for (uint64_t seed = 1; seed <= 3; seed++) {
            mxt_case("%s, approximations %llu", c->name, (unsigned long long)seed);
            mxa_emu_session_clear();
            mxa_emu_session_now()->options.approximations = seed;
            mxt_sm100_result_take(&s, &r);
            CHECK_STATUS(MXATTN_OK, mxt_sm100_run(&s, &r));
            mxa_emu_session_now()->options.approximations = 0;
            const float *got = (const float *)(const void *)r.o;
            CHECK(memcmp(got, o, (size_t)(4 * n)) != 0, "the seed changed nothing");
            mxt_check_rms("o", got, o, mxt_shape1(n),
                          c->softcap != 0 ? MXT_SM100_APPROXIMATE_TANH : MXT_SM100_APPROXIMATE);
            mxt_check_close("lse", r.lse, lse, mxt_shape1(rows),
                            c->softcap != 0 ? MXT_SM100_LSE_TANH : 2.0e-6, 4.0e-7);
            mxt_sm100_result_free(&r);
        }
        free(o);
        free(lse);
        mxt_sm100_free(&s);
    }
}

/* ---- operands that are not as the kernel reads them ---- */

/* form: 0 P in E4M3, 1 in BF16, 2 causal_strict. */
static void options_of(mxt_attention *a, int form)
{
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = form ? MXATTN_INTERMEDIATES_BF16 : MXATTN_INTERMEDIATES_E4M3;
    a->problem.mode = MXATTN_INFERENCE;
    if (form == 2) {
        a->problem.causal = a->problem.causal_strict = 1;
        a->problem.q.block = a->problem.k.block = a->problem.v.block = ROW;
    }
}

/* Wide ones are quantized in the call, linear scales arranged; the kernel's arithmetic is checked
 * above, so it is ref that says whether the operands were right. */
static void check_arranged(mxt_attention *a, mxattn_dtype operands, int prepared)
{
    const int64_t n = mxt_size_o(a), rows = mxt_size_lse(a);
    const mxt_device_options given = {prepared, operands, F32, MXATTN_BACKEND_EMU_SM100};
    float *want = mxt_sm100_take(4 * n), *want_lse = mxt_sm100_take(4 * rows);
    mxa_emu_session *session = mxa_emu_session_now();
    mxa_emu_session_clear();
    session->options.seed = 7;
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    memcpy(want, a->o, (size_t)(4 * n));
    memcpy(want_lse, a->lse, (size_t)(4 * rows));
    if (CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, &given))) {
        mxt_check_rms("o", a->o, want, mxt_shape1(n), MXT_SM100_O);
        mxt_check_close("lse", a->lse, want_lse, mxt_shape1(rows), MXT_SM100_LSE_ABSOLUTE,
                        MXT_SM100_LSE_RELATIVE);
    }
    CHECK(session->errors + session->warnings == 0, "%d errors, %d warnings:\n%s", session->errors,
          session->warnings, session->text ? session->text : "");
    free(want);
    free(want_lse);
}

static void arranged(void)
{
    static const mxattn_dtype types[] = {F32, E4M3, F32, E4M3};
    static const int32_t cu_q[] = {0, 5, 5, 205, 206}, cu_k[] = {0, 17, 40, 300, 300};
    static const int32_t used_q[] = {5, 0, 199, 1}, used_k[] = {16, 20, 129, 0};
    for (int i = 0; i < 8; i++) {
        mxt_attention a;
        const int form = i < 4 ? 0 : i < 6 ? 1 : 2;
        mxt_case("arranged: %s, dense, variant %d", mxa_dtype_name(types[i % 4]), i);
        mxt_attention_dense(&a, 2, 140, 200, 2, 1, i % 4 < 2 ? 128 : 64);
        a.problem.causal = i & 1;
        options_of(&a, form);
        a.problem.v.flags = form < 2 && types[i % 4] == F32 ? MXATTN_CENTRED : 0;
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 40 + (uint64_t)i);
        for (int64_t j = 0; a.problem.v.flags && j < mxt_size_v(&a); j++) {
            a.v[j] += 3;
        }
        check_arranged(&a, types[i % 4], i % 4 >= 2);
        mxt_attention_free(&a);
        mxt_case("arranged: %s, jagged, variant %d", mxa_dtype_name(types[i % 4]), i);
        mxt_attention_jagged(&a, 4, cu_q, 210, cu_k, 310, 2, 2, i % 4 < 2 ? 64 : 128);
        options_of(&a, form);
        if (i % 4 >= 2) {
            a.used_q = used_q;
            a.used_k = used_k;
        }
        mxt_attention_alloc(&a);
        mxt_attention_fill(&a, MXT_GAUSSIAN, 50 + (uint64_t)i);
        check_arranged(&a, types[i % 4], i % 4 == 1 || i % 4 == 2);
        mxt_attention_free(&a);
    }
}

/* ---- causal_strict: later tokens and NaN ---- */

static int emulate(mxt_attention *a, mxattn_dtype operands, uint64_t seed)
{
    const mxt_device_options given = {0, operands, F32, MXATTN_BACKEND_EMU_SM100};
    mxa_emu_session *session = mxa_emu_session_now();
    mxa_emu_session_clear();
    session->options.seed = seed;
    const int ran = CHECK_STATUS(MXATTN_OK, mxt_device_forward(a, &given));
    return CHECK(session->errors + session->warnings == 0, "%d errors, %d warnings:\n%s",
                 session->errors, session->warnings, session->text ? session->text : "") &&
           ran;
}

static void strict_build(mxt_attention *a, int64_t seqlen, uint64_t seed)
{
    mxt_attention_dense(a, 1, seqlen, seqlen, 4, 2, 64);
    options_of(a, 2);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, MXT_GAUSSIAN, seed);
}

/* The bits of a row are those it had before later tokens became NaN, infinite or huge. */
static void strict_rows(void)
{
    enum { SEQLEN = 200, HEADS = 4, DIM = 64, FROM = 77 };
    static const float later[] = {NAN, INFINITY, 3e38F};
    static float before[SEQLEN * HEADS * DIM], lse[HEADS * SEQLEN];
    mxt_attention a;
    strict_build(&a, SEQLEN, 8);
    mxt_case("strict: before");
    if (emulate(&a, F32, 1)) {
        memcpy(before, a.o, sizeof before);
        memcpy(lse, a.lse, sizeof lse);
        for (int i = 0; i < 3; i++) {
            mxt_case("strict: later tokens are %g", (double)later[i]);
            for (int64_t j = (int64_t)FROM * DIM; j < SEQLEN * DIM; j++) {
                for (int h = 0; h < HEADS; h++) {
                    a.q[(j / DIM * HEADS + h) * DIM + j % DIM] = later[i];
                }
                for (int h = 0; h < HEADS / 2; h++) {
                    const int64_t at = (j / DIM * (HEADS / 2) + h) * DIM + j % DIM;
                    a.k[at] = a.v[at] = later[i];
                }
            }
            if (!emulate(&a, F32, 2 + (uint64_t)i)) {
                continue;
            }
            CHECK(memcmp(before, a.o, sizeof(float) * FROM * HEADS * DIM) == 0,
                  "rows before token %d changed", FROM);
            for (int h = 0; h < HEADS; h++) {
                CHECK(memcmp(lse + h * SEQLEN, a.lse + h * SEQLEN, sizeof(float) * FROM) == 0,
                      "lse of head %d changed", h);
                CHECK(i == 2 || isnan(a.o[(FROM * HEADS + h) * DIM]), "row %d is %g", FROM,
                      (double)a.o[(FROM * HEADS + h) * DIM]);
            }
        }
    }
    mxt_attention_free(&a);
}

/* A NaN in V alone: rows of its heads that see its token are NaN, no others; LSE knows no V. */
static void strict_value(void)
{
    enum { SEQLEN = 300, HEADS = 4, DIM = 64, AT = 201, KV_HEAD = 1 };
    static const mxattn_dtype types[] = {F32, E4M3};
    for (int i = 0; i < 2; i++) {
        mxt_attention a;
        strict_build(&a, SEQLEN, 9);
        mxt_case("strict: one value is NaN, operands %s", mxa_dtype_name(types[i]));
        a.v[(AT * 2 + KV_HEAD) * DIM + 5] = NAN;
        if (emulate(&a, types[i], 1)) {
            for (int j = 0; j < SEQLEN * HEADS; j++) {
                const int bad = j / HEADS >= AT && j % HEADS / 2 == KV_HEAD;
                CHECK(isnan(a.o[j * DIM + 5]) == bad, "row %d of head %d is %g", j / HEADS,
                      j % HEADS, (double)a.o[j * DIM + 5]);
                CHECK(!isnan(a.lse[j]), "lse %d is NaN", j);
            }
        }
        mxt_attention_free(&a);
    }
}

/* ---- what there is no kernel for ---- */

static void refusal(const char *what, mxattn_status expected, const char *word,
                    const mxattn_attention_problem *problem)
{
    mxattn_plan *plan = NULL;
    mxt_case("refused: %s", what);
    CHECK_STATUS(expected, mxattn_plan_create(NULL, problem, &plan));
    CHECK(strstr(mxattn_last_error(), word) != NULL, "\"%s\" lacks \"%s\"", mxattn_last_error(),
          word);
    mxattn_plan_destroy(plan);
}

static void refusals(void)
{
    mxattn_attention_problem base, p;
    mxattn_attention_problem_init(&base);
    base.backend = MXATTN_BACKEND_EMU_SM100;
    base.batch = base.heads = base.kv_heads = 1;
    base.max_seqlen_q = base.max_seqlen_k = base.head_dim = 128;
    p = base;
    p.mode = MXATTN_TRAINING;
    refusal("training", MXATTN_UNSUPPORTED, "problem.mode", &p);
    p = base;
    p.head_dim = 96;
    refusal("head_dim 96", MXATTN_UNSUPPORTED, "problem.head_dim", &p);
    p = base;
    p.head_dim_v = 64;
    refusal("head_dim_v 64", MXATTN_UNSUPPORTED, "head_dim_v", &p);
    p = base;
    p.causal = p.causal_strict = 1;
    p.q.block = p.k.block = p.v.block = ROW;
    p.intermediates = MXATTN_INTERMEDIATES_E4M3;
    refusal("causal_strict with E4M3", MXATTN_UNSUPPORTED, "problem.intermediates", &p);
    p = base;
    p.k.block = COLUMN;
    refusal("column k", MXATTN_UNSUPPORTED, "problem.k.block", &p);
    p = base;
    p.v.block = ROW;
    refusal("row v", MXATTN_UNSUPPORTED, "problem.v.block", &p);
    p = base;
    p.device = 1;
    refusal("no such device", MXATTN_NO_BACKEND, "device is 1", &p);
}

/* What a run is given and may not be: nothing is written, and a sentence says why. */
static void bad_arguments(void)
{
    static const struct {
        const char *what, *word;
        mxattn_status status;
        int operand;         /* 0 q, 1 k, 2 v, 3 o, 4 workspace */
        int address, stride; /* added */
        mxattn_block block;  /* NONE: as planned */
    } faults[] = {{"q misaligned", "args.q", MXATTN_ALIGNMENT, 0, 8, 0, NONE},
                  {"k misaligned", "args.k", MXATTN_ALIGNMENT, 1, 1, 0, NONE},
                  {"v misaligned", "args.v", MXATTN_ALIGNMENT, 2, 4, 0, NONE},
                  {"stride of k", "args.k", MXATTN_ALIGNMENT, 1, 0, 8, NONE},
                  {"o misaligned", "args.o", MXATTN_ALIGNMENT, 3, 4, 0, NONE},
                  {"q of another block", "q.block is row", MXATTN_LAYOUT, 0, 0, 0, ROW},
                  {"v of another block", "v.block is column", MXATTN_LAYOUT, 2, 0, 0, COLUMN},
                  {"small workspace", "workspace_bytes is 64", MXATTN_WORKSPACE, 4, 0, 0, NONE}};
    const mxattn_backend backend = MXATTN_BACKEND_EMU_SM100;
    const int64_t shape[4] = {1, 32, 1, 64}, o_shape[4] = {1, 32, 1, 64};
    mxattn_attention_problem problem;
    mxattn_plan *plan = NULL;
    void *memory = NULL;
    mxattn_attention_problem_init(&problem);
    problem.backend = backend;
    problem.batch = problem.heads = problem.kv_heads = 1;
    problem.max_seqlen_q = problem.max_seqlen_k = 32;
    problem.head_dim = 64;
    problem.q = problem.k = problem.v = (mxattn_tags){.dtype = E4M3, .block = SQUARE};
    problem.o = (mxattn_tags){.dtype = F32};
    mxt_case("bad arguments");
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &plan));
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backend, 0, 1 << 20, &memory));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        mxattn_tensor t[4];
        mxattn_attention_args args;
        mxt_case("bad arguments: %s", faults[i].what);
        for (int k = 0; k < 4; k++) {
            uint8_t *at = (uint8_t *)memory + (k << 14);
            mxattn_tensor_view(&t[k], k < 3 ? E4M3 : F32, at, 4, k < 3 ? shape : o_shape);
            if (k < 3) {
                t[k].tags.block = SQUARE;
                t[k].scales[0].data = at + 4096;
                t[k].scales[1].data = at + 8192;
            }
            if (k == faults[i].operand) {
                t[k].data = at + faults[i].address;
                t[k].stride[1] += faults[i].stride;
                t[k].tags.block = faults[i].block ? faults[i].block : t[k].tags.block;
            }
        }
        mxattn_attention_args_init(&args);
        args.q = &t[0];
        args.k = &t[1];
        args.v = &t[2];
        args.o = &t[3];
        args.workspace = (uint8_t *)memory + (1 << 17);
        args.workspace_bytes = faults[i].operand == 4 ? 64 : (1 << 19);
        mxa_emu_session_clear();
        CHECK_STATUS(faults[i].status, mxattn_attention_forward(plan, &args));
        CHECK(strstr(mxattn_last_error(), faults[i].word) != NULL, "\"%s\" lacks \"%s\"",
              mxattn_last_error(), faults[i].word);
        CHECK(mxa_emu_session_now()->launches == 0, "something ran");
    }
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, memory));
    mxattn_plan_destroy(plan);
}

int main(int argc, char **argv)
{
    const uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM100);
    if (missing) {
        mxt_case("emulated forward");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc < 3 || strncmp(cases[i].name, argv[2], strlen(argv[2])) == 0) {
            check_case(&cases[i], seeds);
        }
    }
    if (argc < 3 || strcmp(argv[2], "approximations") == 0) {
        approximations();
    }
    if (argc < 3 || strcmp(argv[2], "arranged") == 0) {
        arranged();
    }
    if (argc < 3 || strncmp(argv[2], "strict", 6) == 0) {
        strict_rows();
        strict_value();
    }
    if (argc < 3 || strcmp(argv[2], "refused") == 0) {
        refusals();
        bad_arguments();
    }
    return mxt_finish();
}
