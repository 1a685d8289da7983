/* api_merge.c: front door of states_merge: validates, never computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "context.h"
#include "mx/element.h"
#include "status.h"
#include "structs.h"
#include "validate.h"

#include <string.h>

/* One partial result, or the merged one: o and, unless it is NULL, lse. */
static mxattn_status take_state(const char *o_name, const mxattn_tensor *o, const char *lse_name,
                                const mxattn_tensor *lse, const mxattn_tensor *like, int written,
                                mxattn_tensor *o_out, mxattn_tensor *lse_out)
{
    const int dense = like->ndim == 4;
    const int64_t *s = like->shape;
    const mxattn_tags f32 = {.dtype = MXATTN_F32};
    mxa_tensor_rule values = {.name = o_name,
                              .letters = dense ? "(B, S, H, Dv)" : "(T, H, Dv)",
                              .ndim = like->ndim,
                              .shape = {s[0], s[1], s[2], s[3]},
                              .written = written};
    mxa_tensor_rule rows = {.name = lse_name,
                            .letters = dense ? "(B, H, S)" : "(H, T)",
                            .ndim = like->ndim - 1,
                            .shape = {dense ? s[0] : s[1], dense ? s[2] : s[0], dense ? s[1] : 0},
                            .written = written,
                            .any_stride = 1};
    mxattn_status status = mxa_tensor_read(o, o_name, 3, 4, o_out);
    if (!status)
        status = mxa_check_wide(o_name, &o_out->tags);
    if (!status)
        status = mxa_tensor_take(&values, o_out);
    if (status || (written && !lse))
        return status;
    status = mxa_tensor_read(lse, lse_name, 2, 3, lse_out);
    if (!status)
        status = mxa_check_tags_equal(lse_name, &lse_out->tags, &f32);
    if (!status)
        status = mxa_tensor_take(&rows, lse_out);
    return status;
}

mxattn_status mxattn_states_merge(const mxattn_context *context,
                                  const mxattn_states_merge_args *user)
{
    const mxa_backend *backend = NULL;
    mxattn_states_merge_args args;
    mxa_merge_call call;
    mxattn_tensor like;
    memset(&call, 0, sizeof call);
    mxattn_states_merge_args_init(&args);
    mxattn_status status = mxa_struct_read(&args, sizeof args, user, "args");
    if (!status)
        status = mxa_backend_take(args.backend, args.device, &backend);
    if (!status)
        status = mxa_tensor_read(args.o_a, "o_a", 3, 4, &like);
    if (!status)
        status = take_state("o_a", args.o_a, "lse_a", args.lse_a, &like, 0, &call.o_a, &call.lse_a);
    if (!status)
        status = take_state("o_b", args.o_b, "lse_b", args.lse_b, &like, 0, &call.o_b, &call.lse_b);
    if (!status)
        status = take_state("o", args.o, "lse", args.lse, &like, 1, &call.o, &call.lse);
    if (status)
        return status;
    if (!backend->states_merge)
        return mxa_backend_lacks(backend, "states_merge");
    call.device = backend->first_device + args.device;
    call.stream = args.stream;
    if (call.o.shape[0] == 0 || call.o.shape[1] == 0 || call.o.shape[2] == 0)
        return MXATTN_OK;
    return backend->states_merge(mxa_context_or_default(context), &call);
}
