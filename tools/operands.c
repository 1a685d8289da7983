/* operands.c: the files of an attention call: q, k, v, sequences, sink; o and lse.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "operands.h"

#include "error.h"
#include "input.h"
#include "output.h"

#include <stdlib.h>

enum {
    KEY_Q = 0x300,
    KEY_K,
    KEY_V,
    KEY_CU_SEQLENS_Q,
    KEY_CU_SEQLENS_K,
    KEY_SEQUSED_Q,
    KEY_SEQUSED_K,
    KEY_SINK,
    KEY_OUT,
    KEY_LSE
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_operands *f = state->input;
    switch (key) {
    case KEY_Q:
        f->q_path = arg;
        return 0;
    case KEY_K:
        f->k_path = arg;
        return 0;
    case KEY_V:
        f->v_path = arg;
        return 0;
    case KEY_CU_SEQLENS_Q:
        f->cu_seqlens_q_path = arg;
        return 0;
    case KEY_CU_SEQLENS_K:
        f->cu_seqlens_k_path = arg;
        return 0;
    case KEY_SEQUSED_Q:
        f->seqused_q_path = arg;
        return 0;
    case KEY_SEQUSED_K:
        f->seqused_k_path = arg;
        return 0;
    case KEY_SINK:
        f->sink_path = arg;
        return 0;
    case KEY_OUT:
        f->out_path = arg;
        return 0;
    case KEY_LSE:
        f->lse_path = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Files (float32, float16, or bfloat16 as uint16):", 1},
    {"q", KEY_Q, "Q.npy", 0, "Queries (B, Sq, Hq, D), or (Tq, Hq, D) of a jagged batch", 0},
    {"k", KEY_K, "K.npy", 0, "Keys (B, Sk, Hkv, D) or (Tk, Hkv, D)", 0},
    {"v", KEY_V, "V.npy", 0, "Values (B, Sk, Hkv, Dv) or (Tk, Hkv, Dv)", 0},
    {"cu-seqlens-q", KEY_CU_SEQLENS_Q, "A.npy", 0,
     "Where the sequences of a jagged batch start in q, and the end (int32 or int64)", 0},
    {"cu-seqlens-k", KEY_CU_SEQLENS_K, "B.npy", 0, "And in k and v (default: as in q)", 0},
    {"seqused-q", KEY_SEQUSED_Q, "U.npy", 0, "Tokens of each sequence that count, in q", 0},
    {"seqused-k", KEY_SEQUSED_K, "U.npy", 0, "And in k and v", 0},
    {"sink", KEY_SINK, "S.npy", 0, "A score per query head that every row also attends to", 0},
    {"out", KEY_OUT, "O.npy", 0, "Written: the output, float32, (.., Hq, Dv)", 0},
    {"lse", KEY_LSE, "L.npy", 0, "Written: log-sum-exp, float32, (B, Hq, Sq) or (Hq, Tq)", 0},
    {0}};
const struct argp mxc_argp_operand_files = {.options = options, .parser = parse};

static void need_paths(const mxc_operands *f)
{
    const char *missing = !f->q_path ? "--q" : !f->k_path ? "--k" : !f->v_path ? "--v" : NULL;
    if (missing)
        mxc_die("%s is missing; q, k and v are all needed", missing);
}

static void read_sequences(mxc_operands *f, mxc_run *run)
{
    int jagged = f->q.ndim == 3;
    if (!jagged && (f->cu_seqlens_q_path || f->cu_seqlens_k_path))
        mxc_die("--cu-seqlens is given beside --q of four dimensions; a jagged batch is (T, H, D)");
    if (jagged && !f->cu_seqlens_q_path)
        mxc_die("--cu-seqlens-q is missing; --q of three dimensions is a jagged batch");
    run->batch = f->q.shape[0];
    if (jagged) {
        int64_t bounds = -1;
        f->cu_seqlens_q = mxc_input_int32("--cu-seqlens-q", f->cu_seqlens_q_path, &bounds);
        if (bounds < 1)
            mxc_die("--cu-seqlens-q %s is empty; it must hold batch+1 numbers",
                    f->cu_seqlens_q_path);
        if (f->cu_seqlens_k_path)
            f->cu_seqlens_k = mxc_input_int32("--cu-seqlens-k", f->cu_seqlens_k_path, &bounds);
        run->batch = bounds - 1;
    }
    int64_t count = run->batch;
    if (f->seqused_q_path)
        f->seqused_q = mxc_input_int32("--seqused-q", f->seqused_q_path, &count);
    if (f->seqused_k_path)
        f->seqused_k = mxc_input_int32("--seqused-k", f->seqused_k_path, &count);
    run->cu_seqlens_q = f->cu_seqlens_q;
    run->cu_seqlens_k = f->cu_seqlens_k ? f->cu_seqlens_k : f->cu_seqlens_q;
    run->seqused_q = f->seqused_q;
    run->seqused_k = f->seqused_k;
}

/* Sizes of the plan: what q, k and v say. That they fit together is the library's to check. */
static void set_bounds(const mxc_operands *f, mxc_run *run)
{
    mxattn_attention_problem *p = &run->problem;
    int jagged = f->q.ndim == 3, head = f->q.ndim - 2;
    p->format = jagged ? MXATTN_JAGGED : MXATTN_DENSE;
    p->batch = run->batch;
    p->heads = f->q.shape[head];
    p->kv_heads = f->k.shape[head];
    p->head_dim = f->q.shape[head + 1];
    p->head_dim_v = f->v.shape[head + 1];
    if (jagged) {
        p->total_q = f->q.shape[0];
        p->total_k = f->k.shape[0];
        p->max_seqlen_q = mxc_longest(run->cu_seqlens_q, run->batch);
        p->max_seqlen_k = mxc_longest(run->cu_seqlens_k, run->batch);
    } else {
        p->max_seqlen_q = f->q.shape[1];
        p->max_seqlen_k = f->k.shape[1];
    }
}

static void allocate_outputs(const mxc_operands *f, mxc_run *run)
{
    int64_t shape[MXC_NPY_DIMS], rows = 1;
    int ndim = f->q.ndim;
    for (int i = 0; i < ndim - 1; i++)
        rows *= shape[i] = f->q.shape[i];
    shape[ndim - 1] = f->v.shape[ndim - 1];
    float *o = mxc_tool_alloc((size_t)(rows * shape[ndim - 1]) * sizeof *o);
    float *lse = mxc_tool_alloc((size_t)rows * sizeof *lse);
    mxattn_tensor_view(&run->o, MXATTN_F32, o, ndim, shape);
    if (ndim == 3)
        mxattn_tensor_view(&run->lse, MXATTN_F32, lse, 2, (int64_t[]){shape[1], shape[0]});
    else
        mxattn_tensor_view(&run->lse, MXATTN_F32, lse, 3,
                           (int64_t[]){shape[0], shape[2], shape[1]});
}

void mxc_operands_load(mxc_operands *f, const mxc_options *chosen, mxc_run *run)
{
    char text[MXC_SHAPE_TEXT];
    need_paths(f);
    mxc_input_wide("--q", f->q_path, 3, 4, &f->q, &run->q);
    mxc_input_wide("--k", f->k_path, 3, 4, &f->k, &run->k);
    mxc_input_wide("--v", f->v_path, 3, 4, &f->v, &run->v);
    if (f->k.ndim != f->q.ndim || f->v.ndim != f->q.ndim)
        mxc_die("--%s has shape %s; it must have the %d dimensions of --q",
                f->k.ndim != f->q.ndim ? "k" : "v",
                f->k.ndim != f->q.ndim ? mxc_shape_text(f->k.ndim, f->k.shape, text)
                                       : mxc_shape_text(f->v.ndim, f->v.shape, text),
                f->q.ndim);
    read_sequences(f, run);
    mxc_options_problem(chosen, MXATTN_F32, &run->problem);
    run->problem.q.dtype = run->q.tags.dtype;
    run->problem.k.dtype = run->k.tags.dtype;
    run->problem.v.dtype = run->v.tags.dtype;
    run->q.tags = run->problem.q;
    run->k.tags = run->problem.k;
    run->v.tags = run->problem.v;
    set_bounds(f, run);
    if (f->sink_path) {
        f->sink = mxc_input_vector("--sink", f->sink_path, run->problem.heads,
                                   "one number per query head");
        run->problem.has_sink = 1;
        run->sink = f->sink;
    }
    if (f->out_path)
        f->out = mxc_output_open("--out", f->out_path);
    if (f->lse_path)
        f->lse = mxc_output_open("--lse", f->lse_path);
    allocate_outputs(f, run);
}

void mxc_operands_store(const mxc_operands *f, const mxc_run *run)
{
    if (f->out)
        mxc_output_npy(f->out, MXC_NPY_F32, run->o.ndim, run->o.shape, run->o.data);
    if (f->lse)
        mxc_output_npy(f->lse, MXC_NPY_F32, run->lse.ndim, run->lse.shape, run->lse.data);
}

void mxc_operands_free(mxc_operands *f, mxc_run *run)
{
    mxc_npy_free(&f->q);
    mxc_npy_free(&f->k);
    mxc_npy_free(&f->v);
    free(f->cu_seqlens_q);
    free(f->cu_seqlens_k);
    free(f->seqused_q);
    free(f->seqused_k);
    free(f->sink);
    free(run->o.data);
    free(run->lse.data);
}
