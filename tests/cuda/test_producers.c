/* test_producers.c: the GPU's producers on a GPU: the same bytes as their meanings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/producers.h"
#include "device_memory.h"
#include "device_run.h"
#include "report.h"

#include <stdlib.h>

static void place_tensor(const mxt_mirror *mirror, mxattn_tensor *t)
{
    t->data = mxt_mirror_at(mirror, t->data);
    t->centre = mxt_mirror_at(mirror, t->centre);
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        t->scales[axis].data = mxt_mirror_at(mirror, t->scales[axis].data);
        t->scales[axis].cu_scale = mxt_mirror_at(mirror, t->scales[axis].cu_scale);
    }
}

static void place_batch(const mxt_mirror *mirror, mxa_batch *batch)
{
    batch->cu_seqlens = mxt_mirror_at(mirror, batch->cu_seqlens);
    batch->seqused = mxt_mirror_at(mirror, batch->seqused);
}

static mxattn_status run_quantize(mxattn_status (*operation)(const mxattn_context *context,
                                                             const mxa_quantize_call *call),
                                  const mxa_quantize_call *call, const mxt_memory *memory,
                                  int count)
{
    mxt_mirror mirror;
    mxa_quantize_call placed = *call;
    mxt_mirror_make(&mirror, memory, count);
    place_tensor(&mirror, &placed.wide);
    place_tensor(&mirror, &placed.quantized);
    place_tensor(&mirror, &placed.transposed);
    place_batch(&mirror, &placed.batch);
    placed.device_status = mxt_mirror_at(&mirror, call->device_status);
    if (!mirror.status) {
        mirror.status = operation(NULL, &placed);
    }
    return mxt_mirror_take(&mirror);
}

static mxattn_status quantize(const mxa_quantize_call *call, const mxt_memory *memory, int count)
{
    return run_quantize(mxa_cuda_quantize, call, memory, count);
}

static mxattn_status dequantize(const mxa_quantize_call *call, const mxt_memory *memory, int count)
{
    return run_quantize(mxa_cuda_dequantize, call, memory, count);
}

static mxattn_status scales(const mxa_scales_call *call, const mxt_memory *memory, int count)
{
    mxt_mirror mirror;
    mxa_scales_call placed = *call;
    mxt_mirror_make(&mirror, memory, count);
    mxattn_scales *arrays[] = {&placed.from, &placed.to};
    for (int i = 0; i < 2; i++) {
        arrays[i]->data = mxt_mirror_at(&mirror, arrays[i]->data);
        arrays[i]->cu_scale = mxt_mirror_at(&mirror, arrays[i]->cu_scale);
    }
    place_batch(&mirror, &placed.batch);
    if (!mirror.status) {
        mirror.status = call->from_axis == call->to_axis ? mxa_cuda_scales_scatter(NULL, &placed)
                                                         : mxa_cuda_scales_transform(NULL, &placed);
    }
    return mxt_mirror_take(&mirror);
}

static mxattn_status merge(const mxa_merge_call *call, const mxt_memory *memory, int count)
{
    mxt_mirror mirror;
    mxa_merge_call placed = *call;
    mxt_mirror_make(&mirror, memory, count);
    mxattn_tensor *tensors[] = {&placed.o_a,   &placed.lse_a, &placed.o_b,
                                &placed.lse_b, &placed.o,     &placed.lse};
    for (int i = 0; i < 6; i++) {
        place_tensor(&mirror, tensors[i]);
    }
    if (!mirror.status) {
        mirror.status = mxa_cuda_states_merge(NULL, &placed);
    }
    return mxt_mirror_take(&mirror);
}

/* With a word on the command line, the cases that begin with it; with a number too, so many seeds.
 */
int main(int argc, char **argv)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_CUDA);
    const mxt_producer_runner runner = {quantize, dequantize, scales, merge,
                                        argc > 2 ? atoi(argv[2]) : 300};
    if (missing) {
        mxt_case("cuda producers");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    mxt_producer_cases(&runner, argc > 1 ? argv[1] : NULL);
    return mxt_finish();
}
