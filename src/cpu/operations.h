/* operations.h: the operations of the CPU backend's table that live in files of their own.
 *
 * Calls are validated and normalised as backend.h says; batch bounds and cu_seqlens hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_OPERATIONS_H
#define MXA_CPU_OPERATIONS_H

#include "backend.h"

mxattn_status mxa_cpu_quantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_cpu_dequantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_cpu_quantize_workspace(const mxattn_context *context,
                                         const mxa_quantize_call *call, size_t *workspace_bytes);
mxattn_status mxa_cpu_scales_scatter(const mxattn_context *context, const mxa_scales_call *call);
mxattn_status mxa_cpu_scales_transform(const mxattn_context *context, const mxa_scales_call *call);
mxattn_status mxa_cpu_states_merge(const mxattn_context *context, const mxa_merge_call *call);

/* The fused producers and their workspace bytes. */
mxattn_status mxa_cpu_rmsnorm_quantize(const mxattn_context *context, const mxa_rmsnorm_call *call);
int64_t mxa_cpu_rmsnorm_workspace(const mxattn_context *context, const mxa_rmsnorm_call *call);
mxattn_status mxa_cpu_rmsnorm_backward(const mxattn_context *context,
                                       const mxa_rmsnorm_backward_call *call);
int64_t mxa_cpu_rmsnorm_backward_workspace(const mxattn_context *context,
                                           const mxa_rmsnorm_backward_call *call);
mxattn_status mxa_cpu_gemm_quantize(const mxattn_context *context, const mxa_gemm_call *call);
int64_t mxa_cpu_gemm_workspace(const mxattn_context *context, const mxa_gemm_call *call);

#endif
