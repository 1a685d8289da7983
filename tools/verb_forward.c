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
    mxc_parse_input *input = state->input;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    mxc_parse_children(state, CHILDREN);
    state->child_inputs[0] = input->own;
    return 0;
}

static const struct argp_child children[CHILDREN + 1] = {{&mxc_argp_operand_files, 0, NULL, 0},
                                                         {&mxc_argp_attention, 0, NULL, 0},
                                                         {&mxc_argp_operands, 0, NULL, 0},
                                                         {&mxc_argp_run, 0, NULL, 0},
                                                         {0}};
static const struct argp argp = {
    .parser = parse,
    .children = children,
    .doc =
        "Attention with operands quantized to MXFP8 on the way in.\v"
        "Example: mxattn forward --q q.npy --k k.npy --v v.npy --causal --out o.npy --lse l.npy"};

int mxc_verb_forward(int argc, char **argv)
{
    mxc_options options;
    mxc_operands files = {0};
    mxc_run run = {0};
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &files);
    if (!files.out_path && !files.lse_path)
        mxc_die("--out and --lse are both missing; there is nothing to write");
    mxattn_context *context = mxc_run_context(&options, 0);
    mxc_operands_load(&files, &options, &run);
    mxc_progress_begin("forward", 0, 1);
    mxc_run_attention(context, &run);
    mxc_progress_end();
    mxc_operands_store(&files, &run);
    mxc_outputs_commit();
    mxc_operands_free(&files, &run);
    mxattn_context_destroy(context);
    return MXC_EXIT_OK;
}
