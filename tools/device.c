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

void mxc_device_begin(mxc_device_copies *copies, mxattn_attention_args *args, const mxc_run *run)
{
    const mxattn_tensor *const from[] = {&run->q, &run->k, &run->v, &run->o, &run->lse};
    const size_t batch = (size_t)run->batch;
    copies->backend = run->problem.backend;
    copies->count = 0;
    for (int i = 0; i < 5; i++) {
        copies->tensors[i] = *from[i];
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
}

void mxc_device_end(mxc_device_copies *copies, const mxc_run *run)
{
    const mxattn_tensor *const to[] = {&run->o, &run->lse};
    mxc_need(mxattn_device_synchronise(NULL, copies->backend, 0, NULL));
    for (int i = 0; i < 2; i++) {
        if (to[i]->data)
            mxc_need(mxattn_device_copy(NULL, copies->backend, 0, to[i]->data,
                                        copies->tensors[3 + i].data, tensor_bytes(to[i])));
    }
    for (int i = 0; i < copies->count; i++)
        mxc_need(mxattn_device_free(NULL, copies->backend, 0, copies->memory[i]));
}
