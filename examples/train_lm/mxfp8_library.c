/* mxfp8_library.c: mxattn as the example uses it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mxfp8_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mxfp8_need(mxattn_status status)
{
    if (status == MXATTN_OK)
        return;
    fprintf(stderr, "train_lm: %s: %s\n", mxattn_status_name(status), mxattn_last_error());
    exit(1);
}

static mxattn_backend backend_named(const char *name)
{
    static const char *const names[] = {"auto", "ref", "cpu", "cuda", "emu-sm90"};
    static const mxattn_backend values[] = {MXATTN_BACKEND_AUTO, MXATTN_BACKEND_REF,
                                            MXATTN_BACKEND_CPU, MXATTN_BACKEND_CUDA,
                                            MXATTN_BACKEND_EMU_SM90};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return values[i];
    fprintf(stderr, "train_lm: --backend is '%s'; it must be auto, cpu, ref, cuda or emu-sm90\n",
            name);
    exit(2);
}

static void parallel_for(void *user, int64_t count, mxattn_task task, void *arg)
{
    pool_for(user, count, task, arg);
}

void mxfp8_library_open(mxfp8_library *library, pool *p, const char *backend, mxfp8_variant variant)
{
    mxattn_context_options options;
    *library = (mxfp8_library){.backend = backend_named(backend), .variant = variant};
    library->on_device =
        library->backend == MXATTN_BACKEND_CUDA || library->backend == MXATTN_BACKEND_EMU_SM90;
    mxattn_context_options_init(&options);
    options.threads = pool_threads(p);
    options.parallel_for = parallel_for;
    options.parallel_user = p;
    mxfp8_need(mxattn_context_create(&options, &library->context));
}

void mxfp8_library_close(mxfp8_library *library)
{
    mxfp8_memory_free(library, library->workspace);
    mxattn_context_destroy(library->context);
}

mxattn_tags mxfp8_tags(const mxfp8_library *library, mxattn_block block)
{
    return (mxattn_tags){.dtype = MXATTN_E4M3,
                         .block = block,
                         .rounding =
                             library->variant == VARIANT_FLOOR ? MXATTN_FLOOR : MXATTN_RCEIL};
}

void mxfp8_problem(const mxfp8_library *library, const attention_shape *shape,
                   mxattn_attention_problem *problem)
{
    const int pairs = library->variant == VARIANT_PAIRS;
    mxattn_attention_problem_init(problem);
    problem->q = problem->k = problem->v =
        mxfp8_tags(library, pairs ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_SQUARE);
    if (pairs)
        problem->q_seq = problem->k_seq = problem->v_seq = mxfp8_tags(library, MXATTN_BLOCK_COLUMN);
    if (library->variant == VARIANT_FP16_DQ) {
        problem->dq_reduce = MXATTN_DQ_REDUCE_FP16;
        problem->dq_scale_log2 = 12;
    }
    problem->backend = library->backend;
    problem->mode = MXATTN_TRAINING;
    problem->format = MXATTN_JAGGED;
    problem->batch = shape->max_sequences;
    problem->total_q = problem->total_k = shape->max_tokens;
    problem->max_seqlen_q = problem->max_seqlen_k = shape->max_length;
    problem->heads = shape->heads;
    problem->kv_heads = shape->kv_heads;
    problem->head_dim = shape->head_dim;
    problem->causal = !shape->sees_all;
}

void mxfp8_workspace(mxfp8_library *library, size_t bytes)
{
    if (bytes <= library->workspace_bytes)
        return;
    mxfp8_memory_free(library, library->workspace);
    library->workspace_bytes = (bytes + 255) / 256 * 256;
    library->workspace = mxfp8_memory(library, library->workspace_bytes);
}

void *mxfp8_memory(const mxfp8_library *library, size_t bytes)
{
    void *memory = NULL;
    bytes = (bytes + 255) / 256 * 256;
    if (library->on_device) {
        mxfp8_need(mxattn_device_alloc(library->context, library->backend, 0, bytes, &memory));
        return memory;
    }
    memory = aligned_alloc(256, bytes);
    if (!memory && bytes) {
        fprintf(stderr, "train_lm: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

void mxfp8_memory_free(const mxfp8_library *library, void *memory)
{
    if (!library->on_device)
        free(memory);
    else if (memory)
        mxfp8_need(mxattn_device_free(library->context, library->backend, 0, memory));
}

const void *mxfp8_given(const mxfp8_library *library, void *device, const void *host, size_t bytes)
{
    if (!library->on_device)
        return host;
    mxfp8_need(mxattn_device_copy(library->context, library->backend, 0, device, host, bytes));
    return device;
}

void *mxfp8_written_at(const mxfp8_library *library, void *device, void *host)
{
    return library->on_device ? device : host;
}

void mxfp8_fetch(const mxfp8_library *library, void *host, const void *device, size_t bytes)
{
    if (!library->on_device)
        return;
    mxfp8_need(mxattn_device_synchronise(library->context, library->backend, 0, NULL));
    mxfp8_need(mxattn_device_copy(library->context, library->backend, 0, host, device, bytes));
}

static int is_narrow(const mxattn_tensor *t)
{
    return t && (t->tags.dtype == MXATTN_E4M3 || t->tags.dtype == MXATTN_E5M2);
}

static struct mxfp8_range range_of(const mxattn_tensor *t)
{
    const uint8_t *first = t->data;
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++)
        last += (t->shape[i] - 1) * t->stride[i];
    return (struct mxfp8_range){first, first + last + 1};
}

void mxfp8_wrote(mxfp8_library *library, const mxattn_tensor *tensor)
{
    if (!is_narrow(tensor))
        return;
    const struct mxfp8_range range = range_of(tensor);
    for (int i = 0; i < library->ranges; i++)
        if (library->written[i].first == range.first) {
            library->written[i] = range;
            return;
        }
    if (library->ranges < MXFP8_RANGES_MOST)
        library->written[library->ranges++] = range;
}

void mxfp8_reads(mxfp8_library *library, const mxattn_tensor *tensor)
{
    if (!is_narrow(tensor))
        return;
    const struct mxfp8_range range = range_of(tensor);
    int found = 0;
    for (int i = 0; i < library->ranges && !found; i++)
        found = library->written[i].first <= range.first && range.first < library->written[i].end;
    library->operands++;
    library->foreign += !found;
}

/* Sizes the workspace with the call's own query, then calls. */
#define CALL(library, args, function)                                                              \
    do {                                                                                           \
        size_t bytes = 0;                                                                          \
        (args)->backend = (library)->backend;                                                      \
        mxfp8_need(function##_workspace((library)->context, args, &bytes));                        \
        mxfp8_workspace(library, bytes);                                                           \
        (args)->workspace = (library)->workspace;                                                  \
        (args)->workspace_bytes = (library)->workspace_bytes;                                      \
        mxfp8_need(function((library)->context, args));                                            \
    } while (0)

void mxfp8_norm(mxfp8_library *library, mxattn_rmsnorm_quantize_args *args)
{
    CALL(library, args, mxattn_rmsnorm_quantize);
    mxfp8_wrote(library, args->y);
}

void mxfp8_norm_backward(mxfp8_library *library, mxattn_rmsnorm_backward_args *args)
{
    mxfp8_reads(library, args->x);
    mxfp8_reads(library, args->dy);
    CALL(library, args, mxattn_rmsnorm_backward);
    mxfp8_wrote(library, args->dx_quantized);
}

void mxfp8_gemm(mxfp8_library *library, mxattn_gemm_quantize_args *args)
{
    mxfp8_reads(library, args->a);
    mxfp8_reads(library, args->b);
    mxfp8_reads(library, args->activated);
    CALL(library, args, mxattn_gemm_quantize);
    mxfp8_wrote(library, args->c);
}

void mxfp8_quantize(mxfp8_library *library, const mxattn_tensor *wide, const mxattn_tensor *narrow)
{
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.wide = wide;
    args.quantized = narrow;
    CALL(library, &args, mxattn_quantize);
    mxfp8_wrote(library, narrow);
    library->quantizations++;
}

mxattn_tensor mxfp8_matrix(mxattn_tensor heads)
{
    const int64_t columns = heads.shape[1] * heads.shape[2];
    heads.ndim = 2;
    heads.shape[1] = columns;
    heads.shape[2] = 0;
    heads.stride[1] = 1;
    heads.stride[2] = 0;
    heads.scales[MXATTN_HDIM].stride_head = 0; /* there is one head; blocks follow each other */
    return heads;
}
