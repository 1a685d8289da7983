/* dequantize.c: dequantization on the CPU: strips and tasks.
 *
 * Meaning: mxa_dequantize_tensor (mx/tensor.c), equalled byte for byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dequantize.h"

#include "cpu/operations.h"
#include "cpu/parallel_blocks.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/tensor.h"

#include <string.h>

typedef struct dequantize_job {
    const mxa_quantize_call *call;
    mxa_dequantize_kernel kernel;
} dequantize_job;

mxa_dequantize_kernel mxa_dequantize_kernel_for(uint32_t isa)
{
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return mxa_dequantize_strip_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return mxa_dequantize_strip_avx2;
#endif
    (void)isa;
    return mxa_dequantize_strip_portable;
}

static void write_zeros(const mxattn_tensor *wide, int64_t index, int64_t rows)
{
    int64_t bytes = mxa_dtype_bytes(wide->tags.dtype);
    for (int64_t row = 0; row < rows; row++) {
        memset((char *)wide->data + (index + row * wide->stride[1]) * bytes, 0,
               (size_t)(wide->shape[3] * bytes));
    }
}

static void write_strip(const dequantize_job *job, const mxa_block_at *at, int64_t head)
{
    const mxattn_tensor *from = &job->call->quantized, *wide = &job->call->wide;
    const mxa_sequence *seq = &at->sequence;
    mxattn_axis axis = from->scales[MXATTN_HDIM].data ? MXATTN_HDIM : MXATTN_SEQ;
    int64_t s = at->block * MXA_BLOCK, index = mxa_tensor_index(wide, seq, s, head, 0);
    int64_t tokens = seq->length - s < MXA_BLOCK ? seq->length - s : MXA_BLOCK;
    int64_t used = seq->used - s < tokens ? seq->used - s : tokens;
    mxa_dequantize_strip strip = {
        .payload = (const uint8_t *)from->data + mxa_tensor_index(from, seq, s, head, 0),
        .payload_stride = from->stride[1],
        .wide = (char *)wide->data + index * mxa_dtype_bytes(wide->tags.dtype),
        .wide_stride = wide->stride[1],
        .tokens = used < 0 ? 0 : used,
        .dims = from->shape[3],
        .axis = axis,
        .place = mxa_scale_place_of(&from->scales[axis], axis, seq, at->b, at->block, head),
        .dtype = from->tags.dtype,
        .wide_dtype = wide->tags.dtype,
    };
    if (from->tags.flags & MXATTN_CENTRED) {
        strip.centre = from->centre + (at->b * from->shape[2] + head) * from->shape[3];
    }
    job->kernel(&strip);
    write_zeros(wide, index + strip.tokens * wide->stride[1], tokens - strip.tokens);
}

static void write_strips(void *arg, const mxa_block_at *at, int64_t head, int64_t head_end)
{
    for (; head < head_end; head++) {
        write_strip(arg, at, head);
    }
}

mxattn_status mxa_cpu_dequantize(const mxattn_context *context, const mxa_quantize_call *call)
{
    dequantize_job job = {call, mxa_dequantize_kernel_for(context->isa)};
    const mxattn_tensor *wide = &call->wide;
    mxa_parallel_blocks(context, &call->batch, wide->shape[2], wide->shape[3], write_strips, &job);
    if (call->batch.cu_seqlens) {
        int64_t first = call->batch.cu_seqlens[call->batch.batch];
        for (int64_t head = 0; head < wide->shape[2]; head++) {
            write_zeros(wide, first * wide->stride[1] + head * wide->stride[2],
                        wide->shape[1] - first);
        }
    }
    return MXATTN_OK;
}
