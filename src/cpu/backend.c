/* backend.c: the operation table of the CPU backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backend.h"
#include "cpu/attention_backward.h"
#include "cpu/attention_forward.h"
#include "cpu/dispatch.h"
#include "cpu/fpenv.h"
#include "cpu/operand.h"
#include "cpu/operations.h"
#include "host_device.h"
#include "status.h"

#include <string.h>

/* The names of plans start so. */
static const char *kernel_names(uint32_t isa)
{
    const char *name = mxa_cpu_isa_name(isa);

    if (strcmp(name, "amx") == 0)
        return "mxa_amx_attention_forward\nmxa_amx_attention_decode\nmxa_amx_attention_backward";
    if (strcmp(name, "avx512bf16") == 0)
        return "mxa_avx512bf16_attention_forward\nmxa_avx512bf16_attention_decode\n"
               "mxa_avx512bf16_attention_backward";
    if (strcmp(name, "avx512") == 0)
        return "mxa_avx512_attention_forward\nmxa_avx512_attention_decode\n"
               "mxa_avx512_attention_backward";
    if (strcmp(name, "avx2") == 0)
        return "mxa_avx2_attention_forward\nmxa_avx2_attention_decode\n"
               "mxa_avx2_attention_backward";
    return "mxa_portable_attention_forward\nmxa_portable_attention_decode\n"
           "mxa_portable_attention_backward";
}

static void cpu_query(const mxattn_context *context, mxattn_backend_info *info)
{
    info->available = 1;
    info->devices = 1;
    info->threads = context->options.threads;
    info->isa = context->isa;
    info->isa_name = mxa_cpu_isa_name(context->isa);
    info->kernels = kernel_names(context->isa);
}

/* What the kernels cannot do, apart from what no backend can. */
static mxattn_status check_supported(const mxattn_attention_problem *problem)
{
    if (problem->head_dim % 8 != 0 || problem->head_dim > MXA_DIMS_MOST)
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.head_dim is %lld; backend cpu takes multiples of 8 up to %d",
                        (long long)problem->head_dim, MXA_DIMS_MOST);
    if (problem->head_dim_v > MXA_DIMS_MOST)
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.head_dim_v is %lld; backend cpu takes up to %d",
                        (long long)problem->head_dim_v, MXA_DIMS_MOST);
    if (problem->max_seqlen_q > INT32_MAX || problem->max_seqlen_k > INT32_MAX)
        return mxa_fail(MXATTN_UNSUPPORTED,
                        "problem.max_seqlen_q is %lld and max_seqlen_k is %lld; backend cpu takes "
                        "sequences of up to %ld tokens",
                        (long long)problem->max_seqlen_q, (long long)problem->max_seqlen_k,
                        (long)INT32_MAX);
    return MXATTN_OK;
}

static mxattn_status cpu_plan(mxattn_plan *plan)
{
    const mxattn_status status = check_supported(&plan->problem);

    if (status != MXATTN_OK)
        return status;
    if (plan->info.intermediates == MXATTN_INTERMEDIATES_AUTO)
        plan->info.intermediates = MXATTN_INTERMEDIATES_BF16;
    if (plan->info.dq_reduce == MXATTN_DQ_REDUCE_AUTO)
        plan->info.dq_reduce = MXATTN_DQ_REDUCE_FP32;
    plan->problem.intermediates = plan->info.intermediates;
    plan->problem.dq_reduce = plan->info.dq_reduce;
    plan->info.isa_name = mxa_cpu_isa_name(plan->context->isa);
    plan->info.threads = mxa_parallel_workers(plan->context);
    mxa_cpu_attention_forward_plan(plan);
    if (plan->problem.mode == MXATTN_TRAINING)
        mxa_cpu_attention_backward_plan(plan);
    return MXATTN_OK;
}

/* The kernels read operands as they are: there is nothing to prepare. */
static mxattn_status cpu_prepare(const mxattn_plan *plan, const mxa_attention_call *call)
{
    (void)plan;
    (void)call;
    return MXATTN_OK;
}

/* What a call computes outside its tasks, too, is in IEEE arithmetic. */
static mxattn_status cpu_forward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    mxa_fpenv before = mxa_fpenv_enter();
    mxattn_status status = mxa_cpu_attention_forward(plan, call);

    mxa_fpenv_leave(before);
    return status;
}

static mxattn_status cpu_backward(const mxattn_plan *plan, const mxa_attention_call *call)
{
    mxa_fpenv before = mxa_fpenv_enter();
    mxattn_status status = mxa_cpu_attention_backward(plan, call);

    mxa_fpenv_leave(before);
    return status;
}

const mxa_backend mxa_cpu_backend = {
    .name = "cpu",
    .id = MXATTN_BACKEND_CPU,
    .query = cpu_query,
    .device_query = mxa_host_device_query,
    .device_alloc = mxa_host_device_alloc,
    .device_free = mxa_host_device_free,
    .device_copy = mxa_host_device_copy,
    .device_clear = mxa_host_device_clear,
    .stream_create = mxa_host_stream_create,
    .stream_destroy = mxa_host_stream_destroy,
    .synchronise = mxa_host_synchronise,
    .plan = cpu_plan,
    .forward = cpu_forward,
    .backward = cpu_backward,
    .prepare = cpu_prepare,
    .quantize = mxa_cpu_quantize,
    .dequantize = mxa_cpu_dequantize,
    .quantize_workspace = mxa_cpu_quantize_workspace,
    .scales_scatter = mxa_cpu_scales_scatter,
    .scales_transform = mxa_cpu_scales_transform,
    .states_merge = mxa_cpu_states_merge,
    .rmsnorm_quantize = mxa_cpu_rmsnorm_quantize,
    .rmsnorm_quantize_workspace = mxa_cpu_rmsnorm_workspace,
    .rmsnorm_backward = mxa_cpu_rmsnorm_backward,
    .rmsnorm_backward_workspace = mxa_cpu_rmsnorm_backward_workspace,
    .gemm_quantize = mxa_cpu_gemm_quantize,
    .gemm_quantize_workspace = mxa_cpu_gemm_workspace,
};
