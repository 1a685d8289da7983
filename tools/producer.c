/* producer.c: quantize and dequantize of host arrays on any backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producer.h"

#include "device.h"
#include "error.h"

enum { WIDE, PAYLOAD, HDIM, SEQ, CU_SEQLENS, SEQUSED, ARRAYS };

/* One array of the host and its copy. */
typedef struct array {
    void *host;
    size_t bytes;
    void *device;
} array;

static void run(const mxattn_context *context, mxc_producer what, const mxattn_quantize_args *args)
{
    mxc_need(what == MXC_QUANTIZE ? mxattn_quantize(context, args)
                                  : mxattn_dequantize(context, args));
}

static size_t scales_bytes(const mxc_quantized *q, mxattn_axis axis)
{
    int64_t shape[MXC_NPY_DIMS], bytes = 1;
    int ndim = mxc_quantized_scales_shape(q, axis, shape);
    for (int i = 0; i < ndim; i++)
        bytes *= shape[i];
    return (size_t)bytes;
}

/* The host arrays of a call, by their places above. */
static void list(const mxc_quantized *q, const mxattn_quantize_args *args, array arrays[ARRAYS])
{
    size_t elements = 1;
    for (int i = 0; i < q->ndim; i++)
        elements *= (size_t)q->shape[i];
    const mxattn_tensor *to = args->quantized;
    const size_t batch = (size_t)q->batch;
    arrays[WIDE] =
        (array){args->wide->data, elements * (args->wide->tags.dtype == MXATTN_F32 ? 4 : 2), NULL};
    arrays[PAYLOAD] = (array){to->data, elements, NULL};
    arrays[HDIM] = (array){to->scales[MXATTN_HDIM].data, scales_bytes(q, MXATTN_HDIM), NULL};
    arrays[SEQ] = (array){to->scales[MXATTN_SEQ].data, scales_bytes(q, MXATTN_SEQ), NULL};
    arrays[CU_SEQLENS] = (array){q->cu_seqlens, (batch + 1) * sizeof(int32_t), NULL};
    arrays[SEQUSED] = (array){q->seqused, batch * sizeof(int32_t), NULL};
}

void mxc_producer_run(const mxattn_context *context, mxc_producer what, const mxc_quantized *q,
                      const mxattn_quantize_args *args)
{
    if (!mxc_on_device(args->backend)) {
        run(context, what, args);
        return;
    }
    array arrays[ARRAYS];
    list(q, args, arrays);
    for (int i = 0; i < ARRAYS; i++) {
        if (!arrays[i].host || !arrays[i].bytes)
            continue;
        mxc_need(
            mxattn_device_alloc(context, args->backend, 0, arrays[i].bytes, &arrays[i].device));
        mxc_need(mxattn_device_copy(context, args->backend, 0, arrays[i].device, arrays[i].host,
                                    arrays[i].bytes));
    }
    mxattn_tensor wide = *args->wide, quantized = *args->quantized;
    mxattn_quantize_args placed = *args;
    wide.data = arrays[WIDE].device;
    quantized.data = arrays[PAYLOAD].device;
    quantized.scales[MXATTN_HDIM].data = arrays[HDIM].device;
    quantized.scales[MXATTN_SEQ].data = arrays[SEQ].device;
    placed.wide = &wide;
    placed.quantized = &quantized;
    placed.sequences.cu_seqlens = arrays[CU_SEQLENS].device;
    placed.sequences.seqused = arrays[SEQUSED].device;
    placed.sequences.host_cu_seqlens = q->cu_seqlens;
    placed.sequences.host_seqused = q->seqused;
    run(context, what, &placed);
    mxc_need(mxattn_device_synchronise(context, args->backend, 0, NULL));
    for (int i = 0; i < ARRAYS; i++) {
        const int written = what == MXC_QUANTIZE ? i != WIDE && i <= SEQ : i == WIDE;
        if (written && arrays[i].device)
            mxc_need(mxattn_device_copy(context, args->backend, 0, arrays[i].host, arrays[i].device,
                                        arrays[i].bytes));
        if (arrays[i].device)
            mxc_need(mxattn_device_free(context, args->backend, 0, arrays[i].device));
    }
}
