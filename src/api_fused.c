/* api_fused.c: front door of the producers that fuse arithmetic with quantization: finds the
 * backend that has them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "structs.h"

mxattn_status mxattn_rmsnorm_quantize(const mxattn_context *context,
                                      const mxattn_rmsnorm_quantize_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_quantize_args args;
    mxattn_rmsnorm_quantize_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, &backend);
    if (status)
        return status;
    if (!backend->rmsnorm_quantize)
        return mxa_backend_lacks(backend, "rmsnorm_quantize");
    return backend->rmsnorm_quantize(mxa_context_or_default(context), &args);
}

mxattn_status mxattn_rmsnorm_backward(const mxattn_context *context,
                                      const mxattn_rmsnorm_backward_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_rmsnorm_backward_args args;
    mxattn_rmsnorm_backward_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, &backend);
    if (status)
        return status;
    if (!backend->rmsnorm_backward)
        return mxa_backend_lacks(backend, "rmsnorm_backward");
    return backend->rmsnorm_backward(mxa_context_or_default(context), &args);
}

mxattn_status mxattn_gemm_quantize(const mxattn_context *context,
                                   const mxattn_gemm_quantize_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_gemm_quantize_args args;
    mxattn_gemm_quantize_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, &backend);
    if (status)
        return status;
    if (!backend->gemm_quantize)
        return mxa_backend_lacks(backend, "gemm_quantize");
    return backend->gemm_quantize(mxa_context_or_default(context), &args);
}
