/* device.c: see device.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device.h"

#include "error.h"

int mxc_on_device(mxattn_backend backend)
{
    return backend == MXATTN_BACKEND_CUDA || backend == MXATTN_BACKEND_EMU_SM90 ||
           backend == MXATTN_BACKEND_EMU_SM100;
}

/* Device memory with `bytes` of `from`; NULL where from is NULL. */
static void *copy_in(mxc_device_copies *c, const void *from, size_t bytes)
{
    void *memory = NULL;
    if (!from)
        return NULL;
    mxc_need(mxattn_device_alloc(NULL, c->backend, 0, bytes, &memory));
    c->memory[c->count++] = memory;
    mxc_need(mxattn_device_copy(NULL, c->backend, 0, memory, from, bytes));
    return memory;
}

/* Of a contiguous tensor of wide elements, as the verbs make them. */
static size_t tensor_bytes(const mxattn_tensor *t)
{
    size_t bytes = t->tags.dtype == MXATTN_F32 ? 4 : 2;
    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

/* Everything a run may point to, in the order of mxc_device_copies.tensors. */
static void list_tensors(const mxc_run *run, const mxattn_tensor *list[MXC_DEVICE_TENSORS])
{
    const mxattn_tensor *const all[MXC_DEVICE_TENSORS] = {
        &run->q,    &run->k,    &run->v,  &run->o,  &run->lse,
        &run->dout, &run->dlse, &run->dq, &run->dk, &run->dv};
    for (int i = 0; i < MXC_DEVICE_TENSORS; i++)
        list[i] = all[i];
}

static void begin_gradients(mxc_device_copies *copies, mxattn_attention_args *args,
                            const mxc_run *run, size_t saved_bytes)
{
    args->dout = &copies->tensors[5];
    args->dlse = run->dlse.data ? &copies->tensors[6] : NULL;
    args->dq = &copies->tensors[7];
    args->dk = &copies->tensors[8];
    args->dv = &copies->tensors[9];
    args->dsink = copy_in(copies, run->dsink, (size_t)run->problem.heads * sizeof *run->dsink);
    if (saved_bytes) {
        mxc_need(mxattn_device_alloc(NULL, copies->backend, 0, saved_bytes, &args->saved));
        copies->memory[copies->count++] = args->saved;
    }
}

void mxc_device_begin(mxc_device_copies *copies, mxattn_attention_args *args, const mxc_run *run,
                      size_t saved_bytes)
{
    const mxattn_tensor *from[MXC_DEVICE_TENSORS];
    const size_t batch = (size_t)run->batch;
    list_tensors(run, from);
    copies->backend = run->problem.backend;
    copies->count = 0;
    for (int i = 0; i < MXC_DEVICE_TENSORS; i++) {
        copies->tensors[i] = *from[i];
        if (from[i]->data)
            copies->tensors[i].data = copy_in(copies, from[i]->data, tensor_bytes(from[i]));
    }
    args->q = &copies->tensors[0];
    args->k = &copies->tensors[1];
    args->v = &copies->tensors[2];
    args->o = &copies->tensors[3];
    args->lse = &copies->tensors[4];
    args->sink = copy_in(copies, run->sink, (size_t)run->problem.heads * sizeof *run->sink);
    args->host_cu_seqlens_q = run->cu_seqlens_q;
    args->host_cu_seqlens_k = run->cu_seqlens_k;
    args->cu_seqlens_q = copy_in(copies, run->cu_seqlens_q, (batch + 1) * sizeof(int32_t));
    args->cu_seqlens_k = copy_in(copies, run->cu_seqlens_k, (batch + 1) * sizeof(int32_t));
    args->host_seqused_q = run->seqused_q;
    args->host_seqused_k = run->seqused_k;
    args->seqused_q = copy_in(copies, run->seqused_q, batch * sizeof(int32_t));
    args->seqused_k = copy_in(copies, run->seqused_k, batch * sizeof(int32_t));
    mxc_need(
        mxattn_device_alloc(NULL, copies->backend, 0, args->workspace_bytes, &args->workspace));
    copies->memory[copies->count++] = args->workspace;
    if (run->problem.mode == MXATTN_TRAINING)
        begin_gradients(copies, args, run, saved_bytes);
}

void mxc_device_end(mxc_device_copies *copies, const mxattn_attention_args *args,
                    const mxc_run *run)
{
    static const int written[] = {3, 4, 7, 8, 9};
    const mxattn_tensor *to[MXC_DEVICE_TENSORS];
    list_tensors(run, to);
    mxc_need(mxattn_device_synchronise(NULL, copies->backend, 0, NULL));
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        const mxattn_tensor *t = to[written[i]];
        if (t->data)
            mxc_need(mxattn_device_copy(NULL, copies->backend, 0, t->data,
                                        copies->tensors[written[i]].data, tensor_bytes(t)));
    }
    if (run->dsink)
        mxc_need(mxattn_device_copy(NULL, copies->backend, 0, run->dsink, args->dsink,
                                    (size_t)run->problem.heads * sizeof *run->dsink));
    for (int i = 0; i < copies->count; i++)
        mxc_need(mxattn_device_free(NULL, copies->backend, 0, copies->memory[i]));
}
