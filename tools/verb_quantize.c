/* verb_quantize.c: mxattn quantize: a .npy array to an MXFP8 payload and its scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "producer.h"
#include "progress.h"
#include "quantized.h"
#include "run.h"
#include "verbs.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_BLOCK = 0x100, KEY_SCALES, KEY_DTYPE, KEY_CU_SEQLENS, KEY_SEQUSED, KEY_OUT };
enum { CHILDREN = 2 };

typedef struct arguments {
    const char *input, *out, *cu_seqlens, *seqused;
    mxattn_tags tags;
    mxattn_scale_layout layout;
} arguments;

static void set_block(arguments *a, const char *text)
{
    static const char *const choices[] = {"row", "column", "square", "folded", NULL};
    static const mxattn_block blocks[] = {MXATTN_BLOCK_ROW, MXATTN_BLOCK_COLUMN,
                                          MXATTN_BLOCK_SQUARE, MXATTN_BLOCK_SQUARE};
    int i = mxc_parse_choice("--block", text, choices);
    a->tags.block = blocks[i];
    a->tags.flags = i == 3 ? MXATTN_FOLDED : 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const layouts[] = {"linear", "compact", "tiled", NULL};
    static const char *const dtypes[] = {"e4m3", "e5m2", NULL};
    mxc_parse_input *input = state->input;
    arguments *a = input->own;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_BLOCK:
        set_block(a, arg);
        return 0;
    case KEY_SCALES: /* the order of the enum */
        a->layout = (mxattn_scale_layout)mxc_parse_choice("--scales", arg, layouts);
        return 0;
    case KEY_DTYPE:
        a->tags.dtype = (mxattn_dtype)(MXATTN_E4M3 + mxc_parse_choice("--dtype", arg, dtypes));
        return 0;
    case KEY_CU_SEQLENS:
        a->cu_seqlens = arg;
        return 0;
    case KEY_SEQUSED:
        a->seqused = arg;
        return 0;
    case KEY_OUT:
        a->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->input)
            mxc_die("'%s' is one array too many; one X.npy is quantized", arg);
        a->input = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[CHILDREN + 1] = {
    {&mxc_argp_rounding, 0, NULL, 0}, {&mxc_argp_run, 0, NULL, 0}, {0}};
static const struct argp_option own_options[] = {
    {"block", KEY_BLOCK, "X", 0, "What shares a scale: row, column, square or folded", 0},
    {"scales", KEY_SCALES, "X", 0,
     "Layout of the scales: linear, compact (square blocks) or tiled (default linear)", 0},
    {"dtype", KEY_DTYPE, "X", 0, "e4m3 or e5m2 (default e4m3)", 0},
    {"cu-seqlens", KEY_CU_SEQLENS, "CU.npy", 0,
     "Where sequences of (T, H, D) or (rows, cols) start, and the end: blocks restart with each",
     0},
    {"seqused", KEY_SEQUSED, "U.npy", 0, "Tokens of each sequence that count", 0},
    {"out", KEY_OUT, "P", 0,
     "Writes P.payload.npy, P.scales.npy, for square blocks P.scales_seq.npy, and P.json", 0},
    {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .args_doc = "X.npy",
    .doc = "Quantizes an array of shape (rows, cols), (T, H, D) or (B, S, H, D) to 8-bit elements "
           "and power-of-two scales.\v"
           "Example: mxattn quantize x.npy --block square --out x"};

static void read_sequences(const arguments *a, mxc_quantized *q)
{
    int64_t bounds = -1;
    q->batch = q->ndim == 4 ? q->shape[0] : 1;
    if (a->cu_seqlens) {
        if (q->ndim == 4)
            mxc_die("--cu-seqlens is given for an array of four dimensions; (B, S, H, D) has "
                    "sequences of its own");
        q->cu_seqlens = mxc_input_int32("--cu-seqlens", a->cu_seqlens, &bounds);
        if (bounds < 1)
            mxc_die("--cu-seqlens %s is empty; it must hold batch+1 numbers", a->cu_seqlens);
        q->batch = bounds - 1;
    }
    if (a->seqused) {
        int64_t count = q->batch;
        q->seqused = mxc_input_int32("--seqused", a->seqused, &count);
    }
}

/* The size of a scale array, after the library has checked tags and sequences. */
static size_t scales_bytes(const mxc_quantized *q, mxattn_axis axis)
{
    int64_t bytes = 0;
    int64_t head_count = q->ndim == 2 ? 1 : q->shape[q->ndim - 2];
    int64_t seqlen = q->ndim == 4 ? q->shape[1] : q->shape[0];
    mxc_need(mxattn_scales_bytes(&q->tags, axis, q->layout, q->batch, seqlen, q->cu_seqlens,
                                 head_count, q->shape[q->ndim - 1], &bytes));
    int64_t shape[MXC_NPY_DIMS], product = 1;
    int ndim = mxc_quantized_scales_shape(q, axis, shape);
    for (int i = 0; i < ndim; i++)
        product *= shape[i];
    return (size_t)(product > bytes ? product : bytes);
}

static void quantize(const mxc_options *options, const mxc_quantized *q, const mxattn_tensor *wide,
                     const mxattn_tensor *quantized)
{
    mxattn_context *context = mxc_run_context(options, 0);
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = options->backend;
    args.wide = wide;
    args.quantized = quantized;
    args.sequences.cu_seqlens = q->cu_seqlens;
    args.sequences.seqused = q->seqused;
    args.sequences.batch = q->batch;
    mxc_progress_begin("quantize", 0, 1);
    mxc_producer_run(context, MXC_QUANTIZE, q, &args);
    mxc_progress_end();
    mxattn_context_destroy(context);
}

int mxc_verb_quantize(int argc, char **argv)
{
    mxc_options options;
    arguments a = {.tags.dtype = MXATTN_E4M3};
    mxc_quantized q = {0};
    mxc_npy x;
    mxattn_tensor wide, quantized;
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &a);
    if (!a.input || !a.out || a.tags.block == MXATTN_BLOCK_NONE)
        mxc_die("%s is missing; see mxattn quantize --help", !a.input ? "X.npy"
                                                             : !a.out ? "--out"
                                                                      : "--block");
    if (!*a.out || a.out[strlen(a.out) - 1] == '/')
        mxc_die("--out '%s' names no file; the names written begin with it", a.out);
    mxc_input_wide("X", a.input, 2, 4, &x, &wide);
    q.tags = a.tags;
    q.tags.rounding = options.rounding;
    q.layout = a.layout;
    q.ndim = x.ndim;
    memcpy(q.shape, x.shape, sizeof q.shape);
    read_sequences(&a, &q);

    static const char *const suffixes[] = {".payload.npy", ".scales.npy", ".scales_seq.npy",
                                           ".json"};
    char *paths[4];
    FILE *files[4] = {0};
    int square = q.tags.block == MXATTN_BLOCK_SQUARE;
    for (int i = 0; i < 4; i++) {
        paths[i] = mxc_quantized_path(a.out, suffixes[i]);
        if (i != 2 || square)
            files[i] = mxc_output_open("--out", paths[i]);
    }
    uint8_t *payload = mxc_tool_alloc((size_t)x.count), *scales[2] = {NULL, NULL};
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (mxc_quantized_has(&q, (mxattn_axis)axis)) {
            size_t bytes = scales_bytes(&q, (mxattn_axis)axis);
            scales[axis] = mxc_tool_alloc(bytes);
            memset(scales[axis], 0, bytes);
        }
    mxc_quantized_view(&q, payload, scales[MXATTN_HDIM], scales[MXATTN_SEQ], &quantized);
    quantize(&options, &q, &wide, &quantized);

    mxc_output_npy(files[0], MXC_NPY_U8, q.ndim, q.shape, payload);
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (scales[axis]) {
            int64_t shape[MXC_NPY_DIMS];
            int ndim = mxc_quantized_scales_shape(&q, (mxattn_axis)axis, shape);
            mxc_output_npy(files[square && axis == MXATTN_SEQ ? 2 : 1], MXC_NPY_U8, ndim, shape,
                           scales[axis]);
        }
    char *tags = mxc_quantized_to_json(&q);
    (void)fprintf(files[3], "%s\n", tags);
    mxc_outputs_commit();
    free(tags);
    for (int i = 0; i < 4; i++)
        free(paths[i]);
    free(payload);
    free(scales[0]);
    free(scales[1]);
    free(q.cu_seqlens);
    free(q.seqused);
    mxc_npy_free(&x);
    return MXC_EXIT_OK;
}
