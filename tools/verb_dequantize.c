/* verb_dequantize.c: mxattn dequantize: an MXFP8 payload and its scales back to float32.
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

enum { KEY_OUT = 0x100, CHILDREN = 1 };

typedef struct arguments {
    const char *stem, *out;
} arguments;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_parse_input *input = state->input;
    arguments *a = input->own;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_OUT:
        a->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->stem)
            mxc_die("'%s' is one tensor too many; one P is dequantized", arg);
        a->stem = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[CHILDREN + 1] = {{&mxc_argp_run, 0, NULL, 0}, {0}};
static const struct argp_option own_options[] = {
    {"out", KEY_OUT, "X.npy", 0, "The values, float32", 0}, {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .args_doc = "P",
    .doc = "Reads what mxattn quantize --out P wrote, and writes the values it stands for.\v"
           "Example: mxattn dequantize x --out x_again.npy"};

/* A byte array beside P.json, of the shape its tags ask for. */
static void read_bytes(const char *path, int ndim, const int64_t *shape, mxc_npy *array)
{
    mxc_input_read("file", path, array);
    if (array->type != MXC_NPY_U8)
        mxc_die("%s holds %s; uint8 is needed", path, mxc_npy_type_name(array->type));
    mxc_input_shape(path, array, ndim, shape, "what the tags of P.json ask for");
}

/* cu_seqlens of P.json have no library call before their use: sizes are taken from them here. */
static void check_sequences(const char *path, const mxc_quantized *q)
{
    for (int64_t b = 0; q->cu_seqlens && b < q->batch; b++)
        if (q->cu_seqlens[b + 1] < q->cu_seqlens[b])
            mxc_die("%s: \"cu_seqlens\" decreases at place %lld", path, (long long)(b + 1));
}

int mxc_verb_dequantize(int argc, char **argv)
{
    mxc_options options;
    arguments a = {0};
    mxc_quantized q;
    mxc_npy payload, scales;
    mxattn_tensor quantized, wide;
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &a);
    if (!a.stem || !a.out)
        mxc_die("%s is missing; see mxattn dequantize --help", a.stem ? "--out" : "P");
    char *json_path = mxc_quantized_path(a.stem, ".json");
    char *payload_path = mxc_quantized_path(a.stem, ".payload.npy");
    char *scales_path = mxc_quantized_path(a.stem, ".scales.npy");
    mxc_quantized_from_json(json_path, &q);
    check_sequences(json_path, &q);
    mxattn_axis axis = mxc_quantized_has(&q, MXATTN_HDIM) ? MXATTN_HDIM : MXATTN_SEQ;
    int64_t shape[MXC_NPY_DIMS];
    int ndim = mxc_quantized_scales_shape(&q, axis, shape);
    read_bytes(payload_path, q.ndim, q.shape, &payload);
    read_bytes(scales_path, ndim, shape, &scales);
    FILE *out = mxc_output_open("--out", a.out);

    mxc_quantized_view(&q, payload.data, axis == MXATTN_HDIM ? scales.data : NULL,
                       axis == MXATTN_SEQ ? scales.data : NULL, &quantized);
    float *values = mxc_tool_alloc((size_t)payload.count * sizeof *values);
    mxattn_tensor_view(&wide, MXATTN_F32, values, q.ndim, q.shape);
    mxattn_context *context = mxc_run_context(&options, 0);
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = options.backend;
    args.wide = &wide;
    args.quantized = &quantized;
    args.sequences.cu_seqlens = q.cu_seqlens;
    args.sequences.seqused = q.seqused;
    args.sequences.batch = q.batch;
    mxc_progress_begin("dequantize", 0, 1);
    mxc_producer_run(context, MXC_DEQUANTIZE, &q, &args);
    mxc_progress_end();

    mxc_output_npy(out, MXC_NPY_F32, q.ndim, q.shape, values);
    mxc_outputs_commit();
    mxattn_context_destroy(context);
    free(values);
    mxc_npy_free(&payload);
    mxc_npy_free(&scales);
    free(q.cu_seqlens);
    free(q.seqused);
    free(json_path);
    free(payload_path);
    free(scales_path);
    return MXC_EXIT_OK;
}
