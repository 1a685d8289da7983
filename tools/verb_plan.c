/* verb_plan.c: mxattn plan: which kernel would run a shape, and the memory it needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "options.h"
#include "run.h"
#include "sizes.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEY_INFERENCE = 0x100, CHILDREN = 4 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    mxc_parse_input *input = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_INFERENCE:
        *(int *)input->own = 1;
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
    {"inference", KEY_INFERENCE, 0, 0, "Forward alone, without what backward needs", 0}, {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .doc = "Tells which kernel would run a shape and how much memory it needs beside the tensors, "
           "or the sentence that says why none would.\v"
           "Example: mxattn plan --batch 2 --seqlen 4096 --heads 32 --kv-heads 8 --head-dim 128 "
           "--causal"};

int mxc_verb_plan(int argc, char **argv)
{
    int inference = 0;
    mxc_options options;
    mxc_sizes sizes;
    mxattn_attention_problem problem;
    mxattn_plan *plan;
    mxattn_plan_info info;
    mxc_options_init(&options);
    mxc_parse(&argp, argc, argv, &options, &inference);
    mxc_sizes_resolve(&options, &sizes);
    mxc_options_problem(&options, MXATTN_E4M3, &problem);
    mxc_sizes_problem(&sizes, &problem);
    problem.mode = inference ? MXATTN_INFERENCE : MXATTN_TRAINING;
    mxattn_context *context = mxc_run_context(&options, 0);
    mxc_need(mxattn_plan_create(context, &problem, &plan));
    mxattn_plan_info_init(&info);
    mxc_need(mxattn_plan_query(plan, &info));

    mxattn_backend_info backend;
    mxattn_backend_info_init(&backend);
    mxc_need(mxattn_backend_query(context, info.backend, &backend));
    char shape[256];
    mxc_sizes_describe(&sizes, &problem, shape, sizeof shape);
    (void)printf("%-20s%s\n", "shape", shape);
    (void)printf("%-20s%s\n", "backend", backend.name);
    (void)printf("%-20s%s\n", "kernel forward", info.kernel_forward);
    if (!inference)
        (void)printf("%-20s%s\n", "kernel backward", info.kernel_backward);
    if (info.isa_name[0])
        (void)printf("%-20s%s\n", "isa", info.isa_name);
    (void)printf("%-20s%d\n", "threads", info.threads);
    (void)printf("%-20s%s\n", "intermediates",
                 info.intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16");
    if (!inference)
        (void)printf("%-20s%s\n", "dq reduce",
                     info.dq_reduce == MXATTN_DQ_REDUCE_FP16 ? "fp16" : "fp32");
    (void)printf("%-20s%.9g\n", "softmax scale", info.softmax_scale);
    (void)printf("%-20s%" PRId64 " bytes\n", "workspace forward", info.workspace_forward_bytes);
    if (!inference)
        (void)printf("%-20s%" PRId64 " bytes\n%-20s%" PRId64 " bytes\n", "workspace backward",
                     info.workspace_backward_bytes, "saved", info.saved_bytes);
    if (info.prepared_bytes)
        (void)printf("%-20s%" PRId64 " bytes\n", "prepared", info.prepared_bytes);
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    free(sizes.cu_seqlens);
    return MXC_EXIT_OK;
}
