/* verb_backward.c: mxattn backward: the gradients of attention of .npy arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "input.h"
#include "operands.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "verbs.h"

#include <stdlib.h>

enum { KEY_DOUT = 0x100, KEY_DLSE, KEY_DQ, KEY_DK, KEY_DV, KEY_DSINK };
enum { CHILDREN = 5, GRADIENTS = 3 };

typedef struct arguments {
    mxc_operands files;
    const char *dout_path, *dlse_path, *dsink_path;
    const char *gradient_paths[GRADIENTS]; /* dq, dk, dv */
} arguments;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_parse_input *input = state->input;
    arguments *a = input->own;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        state->child_inputs[0] = &a->files;
        return 0;
    case KEY_DOUT:
        a->dout_path = arg;
        return 0;
    case KEY_DLSE:
        a->dlse_path = arg;
        return 0;
    case KEY_DQ:
    case KEY_DK:
    case KEY_DV:
        a->gradient_paths[key - KEY_DQ] = arg;
        return 0;
    case KEY_DSINK:
        a->dsink_path = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[CHILDREN + 1] = {
    {&mxc_argp_operand_files, 0, NULL, 0}, {&mxc_argp_attention, 0, NULL, 0},
    {&mxc_argp_operands, 0, NULL, 0},      {&mxc_argp_gradient, 0, NULL, 0},
    {&mxc_argp_run, 0, NULL, 0},           {0}};
static const struct argp_option own_options[] = {
    {0, 0, 0, 0, "Files (float32, float16, or bfloat16 as uint16):", 1},
    {"dout", KEY_DOUT, "DO.npy", 0, "Gradient of the output, of its shape", 0},
    {"dlse", KEY_DLSE, "X.npy", 0, "Gradient of log-sum-exp, float32, of its shape", 0},
    {"dq", KEY_DQ, "DQ.npy", 0, "Written: gradient of q, float32", 0},
    {"dk", KEY_DK, "DK.npy", 0, "Written: gradient of k, float32", 0},
    {"dv", KEY_DV, "DV.npy", 0, "Written: gradient of v, float32", 0},
    {"dsink", KEY_DSINK, "DS.npy", 0, "Written: gradient of the sink, float32, (Hq,)", 0},
    {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .doc = "Gradients of attention with operands quantized to MXFP8 on the way in; runs the "
           "forward it needs.\v"
           "Example: mxattn backward --q q.npy --k k.npy --v v.npy --dout do.npy --causal --dq "
           "dq.npy --dk dk.npy --dv dv.npy"};

static void load_gradients_in(const arguments *a, mxc_run *run, mxc_npy *dout, mxc_npy *dlse)
{
    mxc_input_wide("--dout", a->dout_path, 3, 4, dout, &run->dout);
    mxc_input_shape("--dout", dout, run->o.ndim, run->o.shape, "the shape of the output");
    run->problem.dout.dtype = run->dout.tags.dtype;
    run->dout.tags = run->problem.dout;
    if (!a->dlse_path)
        return;
    mxc_input_read("--dlse", a->dlse_path, dlse);
    if (dlse->type != MXC_NPY_F32)
        mxc_die("--dlse %s holds %s; float32 is needed", a->dlse_path,
                mxc_npy_type_name(dlse->type));
    mxc_input_shape("--dlse", dlse, run->lse.ndim, run->lse.shape, "the shape of log-sum-exp");
    mxattn_tensor_view(&run->dlse, MXATTN_F32, dlse->data, dlse->ndim, dlse->shape);
}

/* Memory for all gradients; files for those asked for. */
static void open_gradients_out(const arguments *a, mxc_run *run, FILE *files[GRADIENTS],
                               FILE **dsink)
{
    static const char *const names[GRADIENTS] = {"--dq", "--dk", "--dv"};
    const mxattn_tensor *like[GRADIENTS] = {&run->q, &run->k, &run->v};
    mxattn_tensor *gradients[GRADIENTS] = {&run->dq, &run->dk, &run->dv};
    int any = a->dsink_path != NULL;
    for (int i = 0; i < GRADIENTS; i++) {
        size_t count = 1;
        for (int d = 0; d < like[i]->ndim; d++)
            count *= (size_t)like[i]->shape[d];
        mxattn_tensor_view(gradients[i], MXATTN_F32, mxc_tool_alloc(count * sizeof(float)),
                           like[i]->ndim, like[i]->shape);
        if (a->gradient_paths[i])
            files[i] = mxc_output_open(names[i], a->gradient_paths[i]);
        any |= files[i] != NULL;
    }
    if (!any)
        mxc_die("--dq, --dk, --dv and --dsink are all missing; there is nothing to write");
    if (a->dsink_path) {
        if (!run->sink)
            mxc_die("--dsink is given without --sink; there is no sink to differentiate");
        run->dsink = mxc_tool_alloc((size_t)run->problem.heads * sizeof *run->dsink);
        *dsink = mxc_output_open("--dsink", a->dsink_path);
    }
}

int mxc_verb_backward(int argc, char **argv)
{
    mxc_options options;
    arguments a = {0};
    mxc_run run = {0};
    mxc_npy dout, dlse = {0};
    FILE *files[GRADIENTS] = {0}, *dsink = NULL;
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &a);
    if (!a.dout_path)
        mxc_die("--dout is missing; gradients need the gradient of the output");
    mxattn_context *context = mxc_run_context(&options, 0);
    mxc_operands_load(&a.files, &options, &run);
    load_gradients_in(&a, &run, &dout, &dlse);
    open_gradients_out(&a, &run, files, &dsink);
    run.problem.mode = MXATTN_TRAINING;
    mxc_progress_begin("forward and backward", 0, 1);
    mxc_run_attention(context, &run);
    mxc_progress_end();

    const mxattn_tensor *gradients[GRADIENTS] = {&run.dq, &run.dk, &run.dv};
    mxc_operands_store(&a.files, &run);
    for (int i = 0; i < GRADIENTS; i++)
        if (files[i])
            mxc_output_npy(files[i], MXC_NPY_F32, gradients[i]->ndim, gradients[i]->shape,
                           gradients[i]->data);
    if (dsink)
        mxc_output_npy(dsink, MXC_NPY_F32, 1, &run.problem.heads, run.dsink);
    mxc_outputs_commit();
    for (int i = 0; i < GRADIENTS; i++)
        free(gradients[i]->data);
    free(run.dsink);
    mxc_npy_free(&dout);
    mxc_npy_free(&dlse);
    mxc_operands_free(&a.files, &run);
    mxattn_context_destroy(context);
    return MXC_EXIT_OK;
}
