/* device_args.h: calls whose arguments are in host memory, run on device 0 of a backend: everything
 * that the arguments name is copied there, and what the call may write back. So the tests of the
 * contract run on any backend.
 *
 * A call's status word, when it is not 0, becomes the status that it stands for. Bytes behind each
 * array on the device must be untouched afterwards; a check says so otherwise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_DEVICE_ARGS_H
#define MXT_DEVICE_ARGS_H

#include "mxattn/mxattn.h"

/* 1 for backends whose pointers are a device's. */
int mxt_on_device(mxattn_backend backend);

/* Leaves the case that runs, where a runner of cases (cases.h) is below. */
extern void (*mxt_case_leave)(void);

/* Ends the case, skipped, where a device lacks what it asks for, or wants its strides in multiples
 * of 16 bytes; elsewhere nothing. */
void mxt_leave_where_lacking(mxattn_backend backend, mxattn_status status);

/* args->workspace is not looked at; workspace_bytes is. */
mxattn_status mxt_device_run_forward(mxattn_backend backend, const mxattn_plan *plan,
                                     const mxattn_attention_args *args);
mxattn_status mxt_device_run_backward(mxattn_backend backend, const mxattn_plan *plan,
                                      const mxattn_attention_args *args);

/* Of args->backend, which is a device's or not. */
mxattn_status mxt_quantize(const mxattn_context *context, const mxattn_quantize_args *args);
mxattn_status mxt_dequantize(const mxattn_context *context, const mxattn_quantize_args *args);
mxattn_status mxt_states_merge(const mxattn_context *context, const mxattn_states_merge_args *args);

#endif
