/* verb_check.c: mxattn check: the error of MXFP8 attention, against thresholds.
 *
 * For each kind of data the same operands go through float64 ("truth": not quantized), through the
 * float64 model that rounds where the kernels round, and through the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device.h"
#include "error.h"
#include "fill.h"
#include "options.h"
#include "progress.h"
#include "run.h"
#include "sizes.h"
#include "thresholds.h"
#include "verbs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_LIMITS = 0x100, CHILDREN = 4 };
enum { TRUTH, MODEL, KERNEL, PATHS };
enum { O, LSE, DQ, DK, DV, RESULTS };
enum { Q, K, V, DOUT, OPERANDS };

static const char *const result_names[RESULTS] = {"O", "LSE", "dQ", "dK", "dV"};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_parse_input *input = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_LIMITS:
        *(double *)input->own = mxc_parse_real("--limits", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[CHILDREN + 1] = {{&mxc_argp_sizes, 0, NULL, 0},
                                                         {&mxc_argp_attention, 0, NULL, 0},
                                                         {&mxc_argp_gradient, 0, NULL, 0},
                                                         {&mxc_argp_run, 0, NULL, 0},
                                                         {0}};
static const struct argp_option own_options[] = {
    {"limits", KEY_LIMITS, "X", 0, "Multiplies every limit (default 1)", 0}, {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .doc = "Compares the kernels' O, LSE, dQ, dK and dV with unquantized float64 and with the "
           "float64 model that rounds where they round, on Gaussian, outlier and long-tail data. "
           "Exit status 1 where an error is past its limit.\v"
           "Example: mxattn check --batch 2 --seqlen 1024 --heads 8 --kv-heads 2 --head-dim 128 "
           "--causal"};

/* Everything one kind of data needs. */
typedef struct check {
    const mxattn_context *context;
    const mxc_sizes *sizes;
    double factor; /* of every limit */
    mxattn_attention_problem problems[PATHS];
    int64_t counts[RESULTS];
    float *operands[OPERANDS];
    float *results[PATHS][RESULTS];
} check;

static void set_problems(check *c, const mxc_options *options)
{
    static const char *const precisions[PATHS] = {"f64", "model", "mxfp8"};
    for (int path = 0; path < PATHS; path++) {
        mxc_options choice = *options;
        choice.precision = precisions[path];
        if (path != KERNEL)
            choice.backend = MXATTN_BACKEND_REF;
        mxc_options_problem(&choice, MXATTN_F32, &c->problems[path]);
        mxc_sizes_problem(c->sizes, &c->problems[path]);
        c->problems[path].mode = MXATTN_TRAINING;
    }
    /* What the kernels' plan chose is what the model must model. */
    mxattn_plan *plan;
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    mxc_need(mxattn_plan_create(c->context, &c->problems[KERNEL], &plan));
    mxc_need(mxattn_plan_query(plan, &info));
    c->problems[MODEL].intermediates = info.intermediates;
    c->problems[MODEL].dq_reduce = info.dq_reduce;
    (void)printf("forward %s, backward %s, intermediates %s\n", info.kernel_forward,
                 info.kernel_backward,
                 info.intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16");
    mxattn_plan_destroy(plan);
}

static float *floats(int64_t count)
{
    return mxc_tool_alloc((size_t)count * sizeof(float));
}

static void allocate(check *c)
{
    const mxc_sizes *s = c->sizes;
    c->counts[O] = s->total_q * s->heads * s->head_dim_v;
    c->counts[LSE] = s->total_q * s->heads;
    c->counts[DQ] = s->total_q * s->heads * s->head_dim;
    c->counts[DK] = s->total_k * s->kv_heads * s->head_dim;
    c->counts[DV] = s->total_k * s->kv_heads * s->head_dim_v;
    c->operands[Q] = floats(c->counts[DQ]);
    c->operands[K] = floats(c->counts[DK]);
    c->operands[V] = floats(c->counts[DV]);
    c->operands[DOUT] = floats(c->counts[O]);
    for (int path = 0; path < PATHS; path++)
        for (int r = 0; r < RESULTS; r++)
            c->results[path][r] = floats(c->counts[r]);
}

static void release(check *c)
{
    for (int i = 0; i < OPERANDS; i++)
        free(c->operands[i]);
    for (int path = 0; path < PATHS; path++)
        for (int r = 0; r < RESULTS; r++)
            free(c->results[path][r]);
}

/* Outliers are in k and v: in q as well they would leave a softmax of one key. */
static void fill_operands(check *c, mxc_data kind, uint64_t seed)
{
    const mxc_sizes *s = c->sizes;
    mxc_data of_rows = kind == MXC_DATA_OUTLIERS ? MXC_DATA_GAUSSIAN : kind;
    mxc_fill(of_rows, seed, 1, s->total_q, s->heads, s->head_dim, c->operands[Q]);
    mxc_fill(kind, seed, 2, s->total_k, s->kv_heads, s->head_dim, c->operands[K]);
    mxc_fill(kind, seed, 3, s->total_k, s->kv_heads, s->head_dim_v, c->operands[V]);
    mxc_fill(of_rows, seed, 4, s->total_q, s->heads, s->head_dim_v, c->operands[DOUT]);
}

static void run_path(check *c, int path)
{
    const mxc_sizes *s = c->sizes;
    mxattn_attention_problem *p = &c->problems[path];
    float **out = c->results[path];
    mxc_run run = {.problem = *p,
                   .batch = s->batch,
                   .cu_seqlens_q = s->cu_seqlens,
                   .cu_seqlens_k = s->cu_seqlens};
    for (int r = 0; r < RESULTS; r++) /* what is not written shows */
        for (int64_t i = 0; i < c->counts[r]; i++)
            out[r][i] = NAN;
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim, p->q, c->operands[Q], &run.q);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim, p->k, c->operands[K], &run.k);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim_v, p->v, c->operands[V], &run.v);
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim_v, p->dout, c->operands[DOUT], &run.dout);
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim_v, p->o, out[O], &run.o);
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim, p->dq, out[DQ], &run.dq);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim, p->dk, out[DK], &run.dk);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim_v, p->dv, out[DV], &run.dv);
    mxc_sizes_view_lse(s, out[LSE], &run.lse);
    mxc_run_attention(c->context, &run);
}

/* Gaussian data of an ordinary shape is held to fixed limits. */
static int is_ordinary(const check *c, mxc_data kind)
{
    const mxc_sizes *s = c->sizes;
    const mxattn_attention_problem *p = &c->problems[KERNEL];
    int64_t shortest = s->seqlen_q < s->seqlen_k ? s->seqlen_q : s->seqlen_k;
    for (int64_t b = 0; s->cu_seqlens && b < s->batch; b++)
        if (s->cu_seqlens[b + 1] - s->cu_seqlens[b] < shortest)
            shortest = s->cu_seqlens[b + 1] - s->cu_seqlens[b];
    int64_t dim = s->head_dim < s->head_dim_v ? s->head_dim : s->head_dim_v;
    return kind == MXC_DATA_GAUSSIAN && p->q.rounding == MXATTN_RCEIL && !p->q.flags &&
           p->window[0] < 0 && p->window[1] < 0 && shortest >= MXC_ORDINARY_SEQLEN &&
           dim >= MXC_ORDINARY_HEAD_DIM;
}

typedef struct limit {
    double rms, cosine;
} limit;

static limit fixed_limit(const check *c, int result)
{
    int e4m3 = c->problems[MODEL].intermediates == MXATTN_INTERMEDIATES_E4M3;
    switch (result) {
    case O:
        return (limit){e4m3 ? MXC_LIMIT_O_E4M3 : MXC_LIMIT_O_BF16, MXC_LIMIT_O_COSINE};
    case LSE:
        return (limit){MXC_LIMIT_LSE, MXC_LIMIT_LSE_COSINE};
    case DV:
        return (limit){MXC_LIMIT_DV, MXC_LIMIT_DV_COSINE};
    default:
        return (limit){MXC_LIMIT_DQ_DK, MXC_LIMIT_DQ_DK_COSINE};
    }
}

static double largest(const float *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

/* About the size of the terms whose sum a result is: what FP32 rounds. */
static double term_size(const check *c, int result)
{
    double q = largest(c->operands[Q], c->counts[DQ]), k = largest(c->operands[K], c->counts[DK]);
    double v = largest(c->operands[V], c->counts[DV]);
    double dout = largest(c->operands[DOUT], c->counts[O]);
    double dp = dout * v * sqrt((double)c->sizes->head_dim_v);
    double root = sqrt((double)c->sizes->head_dim);
    const double sizes[RESULTS] = {v, q * k, dp * k / root, dp * q / root, dout};
    return sizes[result];
}

/* Prints one row of the table; returns 1 where it is past a limit. */
static int judge(const check *c, mxc_data kind, int result)
{
    int64_t count = c->counts[result];
    const float *truth = c->results[TRUTH][result], *model = c->results[MODEL][result];
    const float *kernel = c->results[KERNEL][result];
    mxc_error model_truth = mxc_compare(model, truth, count);
    mxc_error kernel_truth = mxc_compare(kernel, truth, count);
    mxc_error kernel_model = mxc_compare(kernel, model, count);

    const int device = mxc_on_device(c->problems[KERNEL].backend);
    const double share = device ? MXC_DEVICE_SHARE : MXC_MODEL_SHARE;
    limit against_truth = {(device ? MXC_DEVICE_FACTOR : MXC_MODEL_FACTOR) * model_truth.rms, -1};
    double against_model = share * fmin(model_truth.rms, 1);
    if (is_ordinary(c, kind)) {
        against_truth = fixed_limit(c, result);
        against_model = share * against_truth.rms;
    }
    if (result == LSE)
        against_model = device ? MXC_DEVICE_LIMIT_MODEL : MXC_LIMIT_LSE_MODEL;
    against_truth.rms *= c->factor;
    against_model *= c->factor;
    double noise = MXC_NOISE_UNITS * 0x1p-24 * term_size(c, result);
    int past = (!(kernel_truth.rms <= against_truth.rms) && kernel_truth.absolute > noise) ||
               (!(kernel_truth.cosine >= against_truth.cosine) && kernel_truth.absolute > noise) ||
               (!(kernel_model.rms <= against_model) && kernel_model.absolute > noise);
    (void)printf("%-10s%-4s %9.3e %9.3e %8.6f <= %8.2e   %9.3e %9.3e %8.6f <= %8.2e   %s\n",
                 mxc_data_name(kind), result_names[result], kernel_truth.rms, kernel_truth.max,
                 kernel_truth.cosine, against_truth.rms, kernel_model.rms, kernel_model.max,
                 kernel_model.cosine, against_model, past ? "PAST" : "ok");
    return past;
}

static int check_data(check *c, mxc_data kind, uint64_t seed)
{
    static const char *const names[PATHS] = {"float64", "model", "kernels"};
    static const double ends[PATHS] = {0.4, 0.97, 1}; /* about their shares of the time */
    int past = 0;
    fill_operands(c, kind, seed);
    for (int path = 0; path < PATHS; path++) {
        char what[64];
        double before = path ? ends[path - 1] : 0;
        (void)snprintf(what, sizeof what, "%s data, %s", mxc_data_name(kind), names[path]);
        mxc_progress_begin(what, ((double)kind + before) / MXC_DATA_KINDS,
                           ((double)kind + ends[path]) / MXC_DATA_KINDS);
        run_path(c, path);
        mxc_progress_end();
    }
    for (int r = 0; r < RESULTS; r++)
        past += judge(c, kind, r);
    (void)fflush(stdout);
    return past;
}

int mxc_verb_check(int argc, char **argv)
{
    mxc_options options;
    mxc_sizes sizes;
    double factor = 1;
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &factor);
    mxc_sizes_resolve(&options, &sizes);
    mxattn_context *context = mxc_run_context(&options, 0);
    check c = {.context = context, .sizes = &sizes, .factor = factor};
    set_problems(&c, &options);
    allocate(&c);

    char shape[256];
    int past = 0;
    mxc_sizes_describe(&sizes, &c.problems[KERNEL], shape, sizeof shape);
    (void)printf("%s\n\n%-14s %-42s   %s\n%-14s %9s %9s %8s    %8s   %9s %9s %8s    %8s\n", shape,
                 "", "against unquantized float64", "against the model", "data", "rms", "max",
                 "cosine", "limit", "rms", "max", "cosine", "limit");
    for (int kind = 0; kind < MXC_DATA_KINDS; kind++)
        past += check_data(&c, (mxc_data)kind, options.seed);
    if (past)
        (void)printf("\n%d of %d errors are past their limits\n", past, MXC_DATA_KINDS * RESULTS);
    else
        (void)printf("\nall %d errors are within their limits\n", MXC_DATA_KINDS * RESULTS);
    release(&c);
    free(sizes.cu_seqlens);
    mxattn_context_destroy(context);
    return past ? MXC_EXIT_THRESHOLD : MXC_EXIT_OK;
}
