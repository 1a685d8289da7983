/* tensors.c: the tensors of one attention call, several times over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tensors.h"

#include "error.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, BLOCK = 32 };

uint16_t mxc_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float mxc_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

mxc_tensor_kind mxc_tensor_kind_of(const mxc_sizes *s, const mxattn_attention_problem *p,
                                   int tensor)
{
    const mxattn_tags f32 = {.dtype = MXATTN_F32};
    switch (tensor) {
    case MXC_Q:
        return (mxc_tensor_kind){s->total_q, s->heads, s->head_dim, p->q};
    case MXC_K:
        return (mxc_tensor_kind){s->total_k, s->kv_heads, s->head_dim, p->k};
    case MXC_V:
        return (mxc_tensor_kind){s->total_k, s->kv_heads, s->head_dim_v, p->v};
    case MXC_DOUT:
        return (mxc_tensor_kind){s->total_q, s->heads, s->head_dim_v, p->dout};
    case MXC_O:
        return (mxc_tensor_kind){s->total_q, s->heads, s->head_dim_v, p->o};
    case MXC_LSE:
        return (mxc_tensor_kind){s->total_q, s->heads, 1, f32};
    case MXC_DQ:
        return (mxc_tensor_kind){s->total_q, s->heads, s->head_dim, p->dq};
    case MXC_DK:
        return (mxc_tensor_kind){s->total_k, s->kv_heads, s->head_dim, p->dk};
    default:
        return (mxc_tensor_kind){s->total_k, s->kv_heads, s->head_dim_v, p->dv};
    }
}

static int64_t element_bytes(mxattn_dtype dtype)
{
    return dtype == MXATTN_F32 ? 4 : dtype == MXATTN_BF16 || dtype == MXATTN_F16 ? 2 : 1;
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Linear scales along the head dimension, where elements are 8 bits. */
static int64_t scale_bytes(const mxc_tensor_kind *kind)
{
    int64_t blocks = (kind->dim + BLOCK - 1) / BLOCK;
    return element_bytes(kind->tags.dtype) == 1 ? kind->total * kind->heads * blocks : 0;
}

static int64_t data_bytes(const mxc_tensor_kind *kind)
{
    return kind->total * kind->heads * kind->dim * element_bytes(kind->tags.dtype);
}

int64_t mxc_tensor_set_bytes(const mxc_sizes *s, const mxattn_attention_problem *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < MXC_TENSORS; i++) {
        mxc_tensor_kind kind = mxc_tensor_kind_of(s, p, i);
        bytes += aligned(data_bytes(&kind)) + aligned(scale_bytes(&kind));
    }
    return bytes;
}

void mxc_tensor_set_make(const mxc_sizes *s, const mxattn_attention_problem *p, mxc_tensor_set *set)
{
    set->memory = mxc_tool_alloc((size_t)mxc_tensor_set_bytes(s, p));
    char *at = set->memory;
    for (int i = 0; i < MXC_TENSORS; i++) {
        mxc_tensor_kind kind = mxc_tensor_kind_of(s, p, i);
        mxattn_tensor *t = &set->t[i];
        if (i == MXC_LSE)
            mxc_sizes_view_lse(s, (float *)(void *)at, t);
        else
            mxc_sizes_view(s, kind.total, kind.heads, kind.dim, kind.tags, at, t);
        at += aligned(data_bytes(&kind));
        if (scale_bytes(&kind))
            t->scales[MXATTN_HDIM].data = (uint8_t *)at;
        at += aligned(scale_bytes(&kind));
    }
}

static mxattn_quantize_args quantize_args(const mxc_sizes *s, const mxattn_tensor *wide,
                                          const mxattn_tensor *quantized)
{
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.wide = wide;
    args.quantized = quantized;
    args.sequences.cu_seqlens = s->cu_seqlens;
    args.sequences.batch = s->batch;
    return args;
}

void mxc_tensor_set_fill(const mxattn_context *context, const mxc_sizes *s,
                         const mxattn_attention_problem *p, uint64_t seed, mxc_tensor_set *set)
{
    for (int i = MXC_Q; i <= MXC_DOUT; i++) {
        mxc_tensor_kind kind = mxc_tensor_kind_of(s, p, i);
        int64_t count = kind.total * kind.heads * kind.dim;
        float *values = mxc_tool_alloc((size_t)count * sizeof *values);
        mxc_fill(MXC_DATA_GAUSSIAN, seed, (uint64_t)i, kind.total, kind.heads, kind.dim, values);
        if (element_bytes(kind.tags.dtype) == 1) {
            mxattn_tensor wide;
            mxc_sizes_view(s, kind.total, kind.heads, kind.dim, (mxattn_tags){.dtype = MXATTN_F32},
                           values, &wide);
            mxattn_quantize_args args = quantize_args(s, &wide, &set->t[i]);
            mxc_need(mxattn_quantize(context, &args));
        } else {
            for (int64_t j = 0; j < count; j++)
                ((uint16_t *)set->t[i].data)[j] = mxc_bf16(values[j]);
        }
        free(values);
    }
}

float *mxc_tensor_values(const mxattn_context *context, const mxc_sizes *s,
                         const mxattn_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    float *values = mxc_tool_alloc((size_t)count * sizeof *values);
    if (tensor->scales[MXATTN_HDIM].data) {
        mxattn_tensor wide;
        mxattn_tensor_view(&wide, MXATTN_F32, values, tensor->ndim, tensor->shape);
        mxattn_quantize_args args = quantize_args(s, &wide, tensor);
        mxc_need(mxattn_dequantize(context, &args));
    } else if (tensor->tags.dtype == MXATTN_BF16) {
        for (int64_t i = 0; i < count; i++)
            values[i] = mxc_from_bf16(((const uint16_t *)tensor->data)[i]);
    } else {
        memcpy(values, tensor->data, (size_t)count * sizeof *values);
    }
    return values;
}
