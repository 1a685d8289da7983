/* run.c: contexts and attention runs, as verbs use them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "run.h"

#include "device.h"
#include "error.h"
#include "progress.h"

#include <stdlib.h>
#include <string.h>

uint32_t mxc_isa_mask(const char *name)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } isas[] = {{"portable", MXATTN_ISA_PORTABLE},
                {"avx2", MXATTN_ISA_AVX2},
                {"avx512", MXATTN_ISA_AVX512},
                {"avx512bf16", MXATTN_ISA_AVX512_BF16 | MXATTN_ISA_AVX512_VBMI},
                {"amx", MXATTN_ISA_AMX_BF16}};
    uint32_t mask = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        mask |= isas[i].bits;
        if (strcmp(name, isas[i].name) == 0)
            break;
    }
    return mask;
}

static void query_cpu(const mxattn_context *context, mxattn_backend_info *info)
{
    mxattn_backend_info_init(info);
    mxc_need(mxattn_backend_query(context, MXATTN_BACKEND_CPU, info));
}

int32_t mxc_run_threads(const mxc_options *options)
{
    mxattn_backend_info info;
    if (options->threads)
        return options->threads;
    query_cpu(NULL, &info);
    return info.threads;
}

mxattn_context *mxc_run_context(const mxc_options *options, int own_threads)
{
    static int32_t threads;
    mxattn_context *context;
    mxattn_context_options choices;
    mxattn_context_options_init(&choices);
    threads = mxc_run_threads(options);
    choices.threads = threads;
    if (options->isa)
        choices.isa_mask = mxc_isa_mask(options->isa);
    if (!own_threads) {
        choices.parallel_for = mxc_progress_parallel_for;
        choices.parallel_user = &threads;
    }
    mxc_need(mxattn_context_create(&choices, &context));
    mxattn_backend_info info;
    query_cpu(context, &info);
    if (options->isa && (info.isa & choices.isa_mask) != choices.isa_mask)
        mxc_die("--isa is %s; this machine and build have no more than %s", options->isa,
                info.isa_name);
    return context;
}

int64_t mxc_longest(const int32_t *cu_seqlens, int64_t batch)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t length = (int64_t)cu_seqlens[b + 1] - cu_seqlens[b];
        if (length > longest)
            longest = length;
    }
    return longest;
}

static void need(const mxc_run *run, mxattn_status status)
{
    if (run->status)
        *run->status = status;
    else
        mxc_need(status);
}

void mxc_run_attention(const mxattn_context *context, const mxc_run *run)
{
    mxattn_plan *plan;
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    mxc_need(mxattn_plan_create(context, &run->problem, &plan));
    mxc_need(mxattn_plan_query(plan, &info));
    int backward = run->problem.mode == MXATTN_TRAINING;
    int64_t bytes = info.workspace_forward_bytes;
    if (backward && info.workspace_backward_bytes > bytes)
        bytes = info.workspace_backward_bytes;

    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &run->q;
    args.k = &run->k;
    args.v = &run->v;
    args.o = &run->o;
    args.lse = &run->lse;
    args.sink = run->sink;
    args.batch = run->cu_seqlens_q ? run->batch : -1;
    args.cu_seqlens_q = run->cu_seqlens_q;
    args.cu_seqlens_k = run->cu_seqlens_k;
    args.seqused_q = run->seqused_q;
    args.seqused_k = run->seqused_k;
    args.workspace_bytes = (size_t)bytes;
    if (mxc_on_device(info.backend)) {
        mxc_device_copies copies;
        mxc_device_begin(&copies, &args, run, (size_t)info.saved_bytes);
        need(run, mxattn_attention_forward(plan, &args));
        if (backward)
            need(run, mxattn_attention_backward(plan, &args));
        mxc_device_end(&copies, &args, run);
        mxattn_plan_destroy(plan);
        return;
    }
    args.workspace = mxc_tool_alloc((size_t)bytes);
    mxc_need(mxattn_attention_forward(plan, &args));
    if (backward) {
        args.dout = &run->dout;
        args.dlse = run->dlse.data ? &run->dlse : NULL;
        args.dq = &run->dq;
        args.dk = &run->dk;
        args.dv = &run->dv;
        args.dsink = run->dsink;
        mxc_need(mxattn_attention_backward(plan, &args));
    }
    free(args.workspace);
    mxattn_plan_destroy(plan);
}
