/* verb_forward.c: mxattn forward: attention of .npy arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "operands.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "verbs.h"

enum { CHILDREN = 4 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    mxa_parse_input *input = state->input;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    mxa_parse_children(state, CHILDREN);
    state->child_inputs[0] = input->own;
    return 0;
}

static const struct argp_child children[CHILDREN + 1] = {{&mxa_argp_operand_files, 0, NULL, 0},
                                                         {&mxa_argp_attention, 0, NULL, 0},
                                                         {&mxa_argp_operands, 0, NULL, 0},
                                                         {&mxa_argp_run, 0, NULL, 0},
                                                         {0}};
static const struct argp argp = {
    .parser = parse,
    .children = children,
    .doc =
        "Attention with operands quantized to MXFP8 on the way in.\v"
        "Example: mxattn forward --q q.npy --k k.npy --v v.npy --causal --out o.npy --lse l.npy"};

int mxa_verb_forward(int argc, char **argv)
{
    mxa_options options;
    mxa_operands files = {0};
    mxa_run run = {0};
    mxa_options_init(&options);
    mxa_parse(&argp, argc, argv, &options, &files);
    if (!files.out_path && !files.lse_path)
        mxa_die("--out and --lse are both missing; there is nothing to write");
    mxattn_context *context = mxa_run_context(&options, 0);
    mxa_operands_load(&files, &options, &run);
    mxa_progress_begin("forward");
    mxa_run_attention(context, &run);
    mxa_progress_end();
    mxa_operands_store(&files, &run);
    mxa_outputs_commit();
    mxa_operands_free(&files, &run);
    mxattn_context_destroy(context);
    return MXA_EXIT_OK;
}
