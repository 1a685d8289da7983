/* verb_bench.c: mxattn bench: the speed of the kernels, beside what the machine can do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"
#include "device_time.h"
#include "error.h"
#include "output.h"
#include "producers.h"
#include "progress.h"
#include "run.h"
#include "verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x100, KEY_SWEEP, KEY_MIN_TIME, KEY_NO_BASELINE, CHILDREN = 4 };
/* Producers, lengths and shapes have sizes of their own, and take their time: only when asked for,
 * by name or with all the rest by an `all` that names no sizes. */
enum {
    FORWARD = 1,
    BACKWARD = 2,
    QUANTIZE = 4,
    ALL = 7,
    PRODUCERS = 8,
    SHAPES = 16,
    LENGTHS = 32,
    OWN = PRODUCERS | SHAPES | LENGTHS,
    WHOLE = 64
};

typedef struct arguments {
    int ops; /* a mask; 0: not given */
    const char *json;
    int sweep, no_baseline;
    double min_seconds;
} arguments;

static void set_op(arguments *a, const char *text)
{
    static const char *const names[] = {"all",       "forward", "backward", "quantize",
                                        "producers", "shapes",  "lengths",  NULL};
    static const int masks[] = {ALL | WHOLE, FORWARD, BACKWARD, QUANTIZE,
                                PRODUCERS,   SHAPES,  LENGTHS};
    a->ops |= masks[mxc_parse_choice("the operation", text, names)];
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_parse_input *input = state->input;
    arguments *a = input->own;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_JSON:
        a->json = arg;
        return 0;
    case KEY_SWEEP:
        a->sweep = 1;
        return 0;
    case KEY_MIN_TIME:
        a->min_seconds = mxc_parse_real("--min-time", arg);
        if (a->min_seconds < 0 || a->min_seconds > 3600)
            mxc_die("--min-time is %s; it must be from 0 to 3600 seconds", arg);
        return 0;
    case KEY_NO_BASELINE:
        a->no_baseline = 1;
        return 0;
    case ARGP_KEY_ARG:
        set_op(a, arg);
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
    {"json", KEY_JSON, "F", 0, "Writes every row to F as well", 0},
    {"sweep", KEY_SWEEP, 0, 0,
     "Lengths 512 to 8192, with and without a causal mask, and to 65536 without", 0},
    {"min-time", KEY_MIN_TIME, "SECONDS", 0, "Least time spent on each row (default 1)", 0},
    {"no-baseline", KEY_NO_BASELINE, 0, 0, "Times no other library", 0},
    {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .args_doc = "[forward|backward|quantize|producers|lengths|shapes|all]",
    .doc =
        "Verifies each operation, then times it: median, least and most, and the share of what "
        "this machine can do, measured in the same run; then each baseline's time over ours. `all` "
        "without "
        "lengths takes `producers`, `lengths` and `shapes` too. With "
        "--backend cuda: on device 0, sustained (0.1 s of calls, then 40), by the device's clock.\v"
        "Example: mxattn bench all --seqlen 2048 --heads 8 --head-dim 128 --causal --json "
        "bench.json"};

/* A block the bench quantizes to: what --block says, or both of the usual ones. */
static void bench_quantize(mxc_bench *b)
{
    static const mxattn_dtype wide[] = {MXATTN_BF16, MXATTN_F32};
    const char *block = b->options->block;
    for (int i = 0; i < 2; i++) {
        if (!block || strcmp(block, "row") != 0)
            mxc_bench_quantize(b, wide[i], MXATTN_BLOCK_SQUARE);
        if (!block || strcmp(block, "row") == 0)
            mxc_bench_quantize(b, wide[i], MXATTN_BLOCK_ROW);
    }
}

static void bench_shape(mxc_bench *b, int ops, const mxc_options *options)
{
    mxc_sizes sizes;
    mxc_sizes_resolve(options, &sizes);
    b->options = options;
    b->sizes = &sizes;
    memset(b->baseline_seconds, 0, sizeof b->baseline_seconds);
    mxc_bench_head(b);
    if (ops & QUANTIZE)
        bench_quantize(b);
    for (int backward = 0; backward <= 1; backward++)
        for (int in_call = 0; in_call <= 1 && (ops & (backward ? BACKWARD : FORWARD)); in_call++)
            mxc_bench_attention(b, backward, in_call);
    (void)printf("\n");
    free(sizes.cu_seqlens);
}

static void bench_sweep(mxc_bench *b, int ops, const mxc_options *options)
{
    static const int64_t lengths[] = {512, 1024, 2048, 4096, 8192};
    mxc_options choice = *options;
    if (options->seqlen || options->seqlen_q || options->seqlen_k || options->lengths)
        mxc_die("--sweep is given beside lengths; it has lengths of its own");
    for (int causal = 0; causal <= 1; causal++) {
        choice.causal = causal;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            choice.seqlen = lengths[i];
            bench_shape(b, ops, &choice);
        }
    }
    mxc_bench_long(b, options, ops & FORWARD, ops & BACKWARD);
    if (ops & FORWARD)
        mxc_bench_fit(b, "forward");
    if (ops & BACKWARD)
        mxc_bench_fit(b, "backward");
}

static void open_baselines(mxc_bench *b)
{
    static const mxc_baseline *const known[] = {&mxc_baseline_openblas, &mxc_baseline_onednn};
    char why[256];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i]->open(why, sizeof why))
            b->baselines[b->baseline_count++] = known[i];
        else
            (void)printf("no baseline %s: %s\n", known[i]->name, why);
}

int mxc_verb_bench(int argc, char **argv)
{
    mxc_options options;
    arguments a = {.min_seconds = 1};
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &a);
    const int sized = options.seqlen || options.seqlen_q || options.seqlen_k || options.lengths;
    int ops = a.ops ? a.ops : ALL;
    FILE *json = a.json ? mxc_output_open("--json", a.json) : NULL;
    mxattn_context *context = mxc_run_context(&options, 1);
    mxattn_context *checker = mxc_run_context(&options, 0);
    mxc_bench b = {.context = context,
                   .checker = checker,
                   .options = &options,
                   .threads = mxc_run_threads(&options),
                   .min_seconds = a.min_seconds,
                   .rows = cJSON_CreateArray()};
    const int on_device = mxc_bench_on_device(options.backend);
    if ((ops & WHOLE) && !sized && !on_device && !a.sweep)
        ops |= OWN;
    if (on_device && (ops & OWN))
        mxc_die("producers, lengths or shapes is given beside --backend cuda; bench/gpu.py times "
                "producers on a "
                "device");
    if (!a.no_baseline && !on_device && (ops & (FORWARD | BACKWARD | SHAPES | LENGTHS)))
        open_baselines(&b);
    if (a.sweep)
        bench_sweep(&b, ops, &options);
    else if (ops & ALL)
        bench_shape(&b, ops, &options);
    if (ops & PRODUCERS)
        mxc_bench_producers(&b);
    if (ops & LENGTHS)
        mxc_bench_lengths(&b, &options);
    if (ops & SHAPES)
        mxc_bench_shapes(&b, &options);
    if (json) {
        mxc_json_print(b.rows, json);
        mxc_outputs_commit();
    } else {
        cJSON_Delete(b.rows);
    }
    mxattn_context_destroy(context);
    mxattn_context_destroy(checker);
    return MXC_EXIT_OK;
}
