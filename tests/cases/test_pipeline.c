/* test_pipeline.c: attention between producers: it reads what GEMM and RMSNorm wrote, where they
 * wrote it, and emits O, dQ, dK and dV as the next GEMM reads them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "guard.h"
#include "matrix.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 150, HEADS = 4, KV_HEADS = 2, ALL = HEADS + 2 * KV_HEADS, D = 64, WIDTH = 96, B = 4 };

static const int32_t cu[B + 1] = {0, 40, 40, 137, 145};
static const mxattn_sequences sequences = {.cu_seqlens = cu, .batch = B};
static const mxattn_tags square = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
static const int absent[2] = {MXT_ABSENT, MXT_ABSENT}, both[2] = {MXATTN_LINEAR, MXATTN_COMPACT};
static float cosine[T * D / 2], sine[T * D / 2];
static const mxattn_rope rope = {.cosine = cosine, .sine = sine, .positions = T};

/* Everything of one run. */
typedef struct layer {
    mxt_matrix qkv; /* (T, ALL, D), MXFP8, written by one GEMM */
    mxt_matrix dout, o, o_wide, lse;
    mxt_matrix dq, dk, dv;
    mxattn_plan *plan;
    void *workspace, *saved;
    mxattn_plan_info info;
    mxattn_attention_args args;
    mxattn_tensor q, k, v;
} layer;

static void make(mxt_matrix *m, int64_t heads, mxattn_tags tags)
{
    mxt_matrix_make(m, tags, both, 3, (int64_t[]){T, heads, D}, 0, &sequences);
}

/* Heads first to first+count-1 of a packed tensor. */
static mxattn_tensor view(const mxt_matrix *packed, int64_t first, int64_t count)
{
    mxattn_tensor t = packed->t;
    t.shape[1] = count;
    t.data = (uint8_t *)t.data + first * D;
    t.scales[MXATTN_HDIM].data += first * (D / 32);
    t.scales[MXATTN_HDIM].stride_head = D / 32;
    t.scales[MXATTN_HDIM].stride_row = ALL * (D / 32);
    t.scales[MXATTN_HDIM].stride_k = 1;
    t.scales[MXATTN_SEQ].data = NULL;
    return t;
}

static mxattn_tensor *keep(mxattn_tensor *at, mxattn_tensor value)
{
    *at = value;
    return at;
}

/* qkv = rope(head_norm(x Wqkv^T)), x from RMSNorm: two calls. */
static void produce(mxattn_backend backend, mxt_matrix *qkv)
{
    mxt_matrix x, norm, weight;
    size_t bytes = 0, gemm_bytes = 0;
    mxt_matrix_make(&x, (mxattn_tags){.dtype = MXATTN_BF16}, absent, 2, (int64_t[]){T, WIDTH}, 0,
                    NULL);
    mxt_matrix_fill(&x, MXT_GAUSSIAN, 1, NULL);
    mxt_matrix_make(&norm, square, both, 2, (int64_t[]){T, WIDTH}, 0, &sequences);
    mxt_matrix_make(&weight, square, both, 2, (int64_t[]){ALL * D, WIDTH}, 0, NULL);
    mxt_matrix_fill(&weight, MXT_GAUSSIAN, 2, NULL);
    mxattn_rmsnorm_quantize_args first;
    mxattn_gemm_quantize_args second;
    mxattn_rmsnorm_quantize_args_init(&first);
    mxattn_gemm_quantize_args_init(&second);
    first.backend = second.backend = backend;
    first.x = &x.t;
    first.y = second.a = &norm.t;
    first.sequences = second.sequences = sequences;
    second.b = &weight.t;
    second.c = &qkv->t;
    second.head_norm = 1;
    second.norm_heads = HEADS + KV_HEADS;
    second.rope = rope;
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize_workspace(NULL, &first, &bytes));
    CHECK_STATUS(MXATTN_OK, mxattn_gemm_quantize_workspace(NULL, &second, &gemm_bytes));
    first.workspace_bytes = second.workspace_bytes = bytes > gemm_bytes ? bytes : gemm_bytes;
    first.workspace = second.workspace = mxt_guard_end_aligned(first.workspace_bytes, 256);
    CHECK_STATUS(MXATTN_OK, mxattn_rmsnorm_quantize(NULL, &first));
    CHECK_STATUS(MXATTN_OK, mxattn_gemm_quantize(NULL, &second));
    mxt_guard_free(first.workspace);
    mxt_matrix_free(&x);
    mxt_matrix_free(&norm);
    mxt_matrix_free(&weight);
}

static void *aligned(int64_t bytes)
{
    return mxt_guard_end_aligned(bytes ? (size_t)bytes : 1, 256);
}

/* narrow: O and the gradients leave as MXFP8; else as FP32. */
static void open_layer(layer *l, mxattn_backend backend, int narrow)
{
    const mxattn_tags f32 = {.dtype = MXATTN_F32}, out = narrow ? square : f32;
    mxattn_attention_problem problem;
    memset(l, 0, sizeof *l);
    make(&l->qkv, ALL, square);
    l->qkv.t.scales[MXATTN_HDIM].layout = MXATTN_COMPACT;
    l->qkv.t.scales[MXATTN_SEQ].data = NULL;
    produce(backend, &l->qkv);
    mxattn_attention_problem_init(&problem);
    problem.backend = backend;
    problem.mode = MXATTN_TRAINING;
    problem.format = MXATTN_JAGGED;
    problem.batch = B;
    problem.total_q = problem.total_k = T;
    problem.max_seqlen_q = problem.max_seqlen_k = T;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.head_dim = D;
    problem.causal = 1;
    problem.o = problem.dq = problem.dk = problem.dv = out;
    problem.dout = square;
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &l->plan));
    mxattn_plan_info_init(&l->info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(l->plan, &l->info));
    l->workspace = aligned(l->info.workspace_forward_bytes + l->info.workspace_backward_bytes);
    l->saved = aligned(l->info.saved_bytes);
    make(&l->dout, HEADS, square);
    mxt_matrix_fill(&l->dout, MXT_GAUSSIAN, 3, &sequences);
    make(&l->o, HEADS, out);
    make(&l->o_wide, HEADS, f32);
    mxt_matrix_make(&l->lse, f32, absent, 2, (int64_t[]){HEADS, T}, 0, NULL);
    make(&l->dq, HEADS, out);
    make(&l->dk, KV_HEADS, out);
    make(&l->dv, KV_HEADS, out);
    mxattn_attention_args_init(&l->args);
    l->args.q = keep(&l->q, view(&l->qkv, 0, HEADS));
    l->args.k = keep(&l->k, view(&l->qkv, HEADS, KV_HEADS));
    l->args.v = keep(&l->v, view(&l->qkv, HEADS + KV_HEADS, KV_HEADS));
    l->args.o = &l->o.t;
    l->args.lse = &l->lse.t;
    l->args.dout = &l->dout.t;
    l->args.dq = &l->dq.t;
    l->args.dk = &l->dk.t;
    l->args.dv = &l->dv.t;
    l->args.batch = B;
    l->args.cu_seqlens_q = l->args.cu_seqlens_k = cu;
    l->args.workspace = l->workspace;
    l->args.workspace_bytes =
        (size_t)(l->info.workspace_forward_bytes + l->info.workspace_backward_bytes);
    l->args.saved = l->saved;
}

static void close_layer(layer *l)
{
    mxt_matrix *const all[] = {&l->qkv, &l->dout, &l->o,  &l->o_wide,
                               &l->lse, &l->dq,   &l->dk, &l->dv};
    l->qkv.t.scales[MXATTN_SEQ].data = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mxt_matrix_free(all[i]);
    mxt_guard_free(l->workspace);
    mxt_guard_free(l->saved);
    mxattn_plan_destroy(l->plan);
}

static void attend(layer *l)
{
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(l->plan, &l->args));
    CHECK_STATUS(MXATTN_OK, mxattn_attention_backward(l->plan, &l->args));
}

/* wide -> MXFP8 by mxattn_quantize, turned back first if asked. */
static void expect_quantized(const char *what, mxattn_backend backend, const mxt_matrix *wide,
                             const mxt_matrix *got)
{
    mxt_matrix want;
    mxattn_quantize_args args;
    mxt_matrix_like(&want, got);
    mxattn_quantize_args_init(&args);
    args.backend = backend;
    args.wide = &wide->t;
    args.quantized = &want.t;
    args.sequences = sequences;
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
    mxt_matrix_same(what, got, &want);
    mxt_matrix_free(&want);
}

static void turn_back(const mxt_matrix *m)
{
    for (int b = 0; b < B; b++)
        for (int64_t t = cu[b]; t < cu[b + 1]; t++)
            for (int64_t h = 0; h < m->t.shape[1]; h++)
                for (int64_t i = 0; i < D / 2; i++) {
                    float *row = (float *)m->memory + (t * m->t.shape[1] + h) * D;
                    const float c = cosine[(t - cu[b]) * (D / 2) + i];
                    const float s = -sine[(t - cu[b]) * (D / 2) + i];
                    const float x = row[i], y = row[i + D / 2];
                    row[i] = x * c - y * s;
                    row[i + D / 2] = y * c + x * s;
                }
}

static void test_narrow_outputs(mxattn_backend backend)
{
    layer wide, narrow;
    open_layer(&wide, backend, 0);
    open_layer(&narrow, backend, 1);
    mxt_case("%s: O, dQ, dK, dV as MXFP8 are the wide ones quantized",
             backend == MXATTN_BACKEND_REF ? "ref" : "cpu");
    attend(&wide);
    attend(&narrow);
    expect_quantized("o", backend, &wide.o, &narrow.o);
    expect_quantized("dq", backend, &wide.dq, &narrow.dq);
    expect_quantized("dk", backend, &wide.dk, &narrow.dk);
    expect_quantized("dv", backend, &wide.dv, &narrow.dv);
    mxt_case("%s: dQ and dK turned back before they are quantized",
             backend == MXATTN_BACKEND_REF ? "ref" : "cpu");
    narrow.args.rope_q = narrow.args.rope_k = &rope;
    attend(&narrow);
    turn_back(&wide.dq);
    turn_back(&wide.dk);
    if (backend == MXATTN_BACKEND_CPU) { /* ref turns them in float64 */
        expect_quantized("dq", backend, &wide.dq, &narrow.dq);
        expect_quantized("dk", backend, &wide.dk, &narrow.dk);
    }
    expect_quantized("dv", backend, &wide.dv, &narrow.dv);
    close_layer(&wide);
    close_layer(&narrow);
}

static void test_turned_wide(mxattn_backend backend)
{
    layer plain, turned;
    open_layer(&plain, backend, 0);
    open_layer(&turned, backend, 0);
    mxt_case("%s: wide dQ and dK turned back", backend == MXATTN_BACKEND_REF ? "ref" : "cpu");
    turned.args.rope_q = turned.args.rope_k = &rope;
    attend(&plain);
    attend(&turned);
    turn_back(&plain.dq);
    turn_back(&plain.dk);
    CHECK(mxt_matrix_distance(&turned.dq, &plain.dq) < MXT_EXACT_INPUT, "dq is off");
    CHECK(mxt_matrix_distance(&turned.dk, &plain.dk) < MXT_EXACT_INPUT, "dk is off");
    close_layer(&plain);
    close_layer(&turned);
}

/* Backward from a wide O beside the MXFP8 one, in place of saved memory. */
static void test_o_wide(mxattn_backend backend)
{
    layer saved, beside;
    open_layer(&saved, backend, 1);
    open_layer(&beside, backend, 1);
    mxt_case("%s: o_wide in place of saved", backend == MXATTN_BACKEND_REF ? "ref" : "cpu");
    beside.args.saved = NULL;
    beside.args.o_wide = &beside.o_wide.t;
    attend(&saved);
    attend(&beside);
    mxt_matrix_same("o", &beside.o, &saved.o);
    expect_quantized("o_wide", backend, &beside.o_wide, &saved.o);
    mxt_matrix_same("dv", &beside.dv, &saved.dv);
    mxt_matrix_same("dq", &beside.dq, &saved.dq);
    mxt_matrix_same("dk", &beside.dk, &saved.dk);
    mxt_case("%s: o_wide and rotations that are refused",
             backend == MXATTN_BACKEND_REF ? "ref" : "cpu");
    beside.args.o_wide = NULL;
    CHECK_STATUS(MXATTN_WORKSPACE, mxattn_attention_forward(beside.plan, &beside.args));
    CHECK_STATUS(MXATTN_WORKSPACE, mxattn_attention_backward(beside.plan, &beside.args));
    beside.args.o_wide = &beside.o.t;
    CHECK_STATUS(MXATTN_DTYPE, mxattn_attention_forward(beside.plan, &beside.args));
    beside.args.o_wide = &beside.o_wide.t;
    beside.o_wide.t.shape[0] = T - 1;
    CHECK_STATUS(MXATTN_SHAPE, mxattn_attention_forward(beside.plan, &beside.args));
    beside.o_wide.t.shape[0] = T;
    mxattn_rope bad = rope;
    bad.positions = 96;
    beside.args.rope_k = &bad;
    CHECK_STATUS(MXATTN_SHAPE, mxattn_attention_backward(beside.plan, &beside.args));
    close_layer(&saved);
    close_layer(&beside);
    open_layer(&saved, backend, 0);
    saved.args.o_wide = &saved.o_wide.t;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_attention_forward(saved.plan, &saved.args));
    close_layer(&saved);
}

int main(void)
{
    static const mxattn_backend backends[] = {MXATTN_BACKEND_REF, MXATTN_BACKEND_CPU};
    for (int i = 0; i < T * D / 2; i++) {
        const double angle = i / (D / 2) * pow(500, -(double)(i % (D / 2)) / (D / 2));
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    for (int i = 0; i < 2; i++) {
        test_narrow_outputs(backends[i]);
        test_turned_wide(backends[i]);
        test_o_wide(backends[i]);
    }
    return mxt_finish();
}
