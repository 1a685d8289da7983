/* producers.h: the CUDA backend's quantize, dequantize, scatter, transform and merge.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_PRODUCERS_H
#define MXA_CUDA_PRODUCERS_H

#include "backend.h"

mxattn_status mxa_cuda_quantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_cuda_dequantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_cuda_quantize_workspace(const mxattn_context *context,
                                          const mxa_quantize_call *call, size_t *workspace_bytes);
mxattn_status mxa_cuda_scales_scatter(const mxattn_context *context, const mxa_scales_call *call);
mxattn_status mxa_cuda_scales_transform(const mxattn_context *context, const mxa_scales_call *call);
mxattn_status mxa_cuda_states_merge(const mxattn_context *context, const mxa_merge_call *call);

#endif
