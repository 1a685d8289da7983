/* api_fused.c: front door of the producers that fuse arithmetic with quantization: RMSNorm, its
 * backward, and GEMM.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

static int is_empty(const mxattn_tensor *tensor)
{
    return tensor->shape[0] == 0 || tensor->shape[1] == 0 || tensor->shape[2] == 0 ||
           tensor->shape[3] == 0;
}

static void clear_device_status(uint32_t *device_status)
{
    if (device_status)
        *device_status = 0; /* this build computes on the host, where everything was checked */
}

/* Reads a caller's struct and finds its backend, which must have the operation. */
#define BEGIN(user, args, backend, operation)                                                      \
    do {                                                                                           \
        mxattn_status begun = mxa_struct_read(&(args), sizeof(args), user, "args");                \
        if (!begun)                                                                                \
            begun = mxa_backend_take((args).backend, (args).device, &(backend));                   \
        if (!begun && !(backend)->operation)                                                       \
            begun = mxa_backend_lacks(backend, #operation);                                        \
        if (begun)                                                                                 \
            return begun;                                                                          \
    } while (0)

static mxattn_status null_bytes(void)
{
    return mxa_fail(MXATTN_ARGUMENT, "workspace_bytes is NULL; it is required");
}

mxattn_status mxattn_rmsnorm_quantize(const mxattn_context *context,
                                      const mxattn_rmsnorm_quantize_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_quantize_args args;
    mxa_rmsnorm_call call;
    mxattn_rmsnorm_quantize_args_init(&args);
    BEGIN(user, args, backend, rmsnorm_quantize);
    context = mxa_context_or_default(context);
    mxattn_status status = mxa_rmsnorm_take(&args, &call);
    if (!status)
        status = mxa_check_workspace(args.workspace, args.workspace_bytes,
                                     backend->rmsnorm_quantize_workspace(context, &call));
    if (status)
        return status;
    clear_device_status(call.device_status);
    return is_empty(&call.x) ? MXATTN_OK : backend->rmsnorm_quantize(context, &call);
}

mxattn_status mxattn_rmsnorm_quantize_workspace(const mxattn_context *context,
                                                const mxattn_rmsnorm_quantize_args *user,
                                                size_t *workspace_bytes)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_quantize_args args;
    mxa_rmsnorm_call call;
    if (!workspace_bytes)
        return null_bytes();
    mxattn_rmsnorm_quantize_args_init(&args);
    BEGIN(user, args, backend, rmsnorm_quantize);
    mxattn_status status = mxa_rmsnorm_take(&args, &call);
    if (!status)
        *workspace_bytes =
            (size_t)backend->rmsnorm_quantize_workspace(mxa_context_or_default(context), &call);
    return status;
}

mxattn_status mxattn_rmsnorm_backward(const mxattn_context *context,
                                      const mxattn_rmsnorm_backward_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_backward_args args;
    mxa_rmsnorm_backward_call call;
    mxattn_rmsnorm_backward_args_init(&args);
    BEGIN(user, args, backend, rmsnorm_backward);
    context = mxa_context_or_default(context);
    mxattn_status status = mxa_rmsnorm_backward_take(&args, &call);
    if (!status)
        status = mxa_check_workspace(args.workspace, args.workspace_bytes,
                                     backend->rmsnorm_backward_workspace(context, &call));
    if (status)
        return status;
    clear_device_status(call.device_status);
    if (is_empty(&call.x)) {
        for (int64_t d = 0; call.dweight && !call.accumulate && d < call.x.shape[3]; d++)
            call.dweight[d] = 0.0F; /* the sum over no token */
        return MXATTN_OK;
    }
    return backend->rmsnorm_backward(context, &call);
}

mxattn_status mxattn_rmsnorm_backward_workspace(const mxattn_context *context,
                                                const mxattn_rmsnorm_backward_args *user,
                                                size_t *workspace_bytes)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_backward_args args;
    mxa_rmsnorm_backward_call call;
    if (!workspace_bytes)
        return null_bytes();
    mxattn_rmsnorm_backward_args_init(&args);
    BEGIN(user, args, backend, rmsnorm_backward);
    mxattn_status status = mxa_rmsnorm_backward_take(&args, &call);
    if (!status)
        *workspace_bytes =
            (size_t)backend->rmsnorm_backward_workspace(mxa_context_or_default(context), &call);
    return status;
}

mxattn_status mxattn_gemm_quantize(const mxattn_context *context,
                                   const mxattn_gemm_quantize_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_gemm_quantize_args args;
    mxa_gemm_call call;
    mxattn_gemm_quantize_args_init(&args);
    BEGIN(user, args, backend, gemm_quantize);
    context = mxa_context_or_default(context);
    mxattn_status status = mxa_gemm_take(&args, &call);
    if (!status)
        status = mxa_check_workspace(args.workspace, args.workspace_bytes,
                                     backend->gemm_quantize_workspace(context, &call));
    if (status)
        return status;
    clear_device_status(call.device_status);
    return is_empty(&call.c) ? MXATTN_OK : backend->gemm_quantize(context, &call);
}

mxattn_status mxattn_gemm_quantize_workspace(const mxattn_context *context,
                                             const mxattn_gemm_quantize_args *user,
                                             size_t *workspace_bytes)
{
    const mxa_backend *backend = NULL;
    mxattn_gemm_quantize_args args;
    mxa_gemm_call call;
    if (!workspace_bytes)
        return null_bytes();
    mxattn_gemm_quantize_args_init(&args);
    BEGIN(user, args, backend, gemm_quantize);
    mxattn_status status = mxa_gemm_take(&args, &call);
    if (!status)
        *workspace_bytes =
            (size_t)backend->gemm_quantize_workspace(mxa_context_or_default(context), &call);
    return status;
}
