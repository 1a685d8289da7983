/* test_forward_fp8_o.c: O of the Hopper forward as MXFP8, on the emulator: the bytes that the CPU
 * backend's quantizer makes of the same O in FP32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device_run.h"
#include "fill.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQLEN = 70, HEADS = 2, HEAD_DIM = 64 };
enum { ELEMENTS = BATCH * SEQLEN * HEADS * HEAD_DIM };

#define DEVICE MXATTN_BACKEND_EMU_SM90

static void *placed(const void *from, size_t bytes)
{
    void *memory = NULL;
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, DEVICE, 0, bytes, &memory));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, DEVICE, 0, memory, from, bytes));
    return memory;
}

/* A run with o of these tags. All memory of the device. */
static void run(const mxattn_tags *tags, const mxattn_tensor operands[3], const mxattn_tensor *o)
{
    mxattn_attention_problem problem;
    mxattn_plan_info info;
    mxattn_plan *plan = NULL;
    mxattn_attention_args args;
    mxattn_attention_problem_init(&problem);
    problem.backend = DEVICE;
    problem.batch = BATCH;
    problem.max_seqlen_q = problem.max_seqlen_k = SEQLEN;
    problem.heads = problem.kv_heads = HEADS;
    problem.head_dim = HEAD_DIM;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_F32;
    problem.o = *tags;
    if (!CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &problem, &plan))) {
        return;
    }
    mxattn_plan_info_init(&info);
    mxattn_plan_query(plan, &info);
    mxattn_attention_args_init(&args);
    args.q = &operands[0];
    args.k = &operands[1];
    args.v = &operands[2];
    args.o = o;
    args.workspace_bytes = (size_t)info.workspace_forward_bytes;
    void *nan = malloc(args.workspace_bytes);
    mxt_fill_nan(nan, args.workspace_bytes);
    args.workspace = placed(nan, args.workspace_bytes);
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(plan, &args));
    CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, DEVICE, 0, NULL));
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, DEVICE, 0, args.workspace));
    free(nan);
    mxattn_plan_destroy(plan);
}

static void check(mxattn_block block)
{
    const int64_t shape[4] = {BATCH, SEQLEN, HEADS, HEAD_DIM};
    const mxattn_tags wide_tags = {.dtype = MXATTN_F32};
    const mxattn_tags tags = {.dtype = MXATTN_E4M3, .block = block};
    const mxattn_axis axis = block == MXATTN_BLOCK_COLUMN ? MXATTN_SEQ : MXATTN_HDIM;
    float *values = malloc(sizeof(float) * ELEMENTS), *o_f32 = malloc(sizeof(float) * ELEMENTS);
    mxattn_tensor operands[3], o, wide, host_wide, host;
    int64_t scale_bytes = 0;
    mxt_case("o as MXFP8, block %d", (int)block);
    for (int i = 0; i < 3; i++) {
        mxt_fill_f32(values, ELEMENTS / HEAD_DIM, HEAD_DIM, MXT_GAUSSIAN, 40 + (uint64_t)i);
        mxattn_tensor_view(&operands[i], MXATTN_F32, placed(values, sizeof(float) * ELEMENTS), 4,
                           shape);
    }
    mxt_fill_nan(values, sizeof(float) * ELEMENTS);
    mxattn_tensor_view(&wide, MXATTN_F32, placed(values, sizeof(float) * ELEMENTS), 4, shape);
    run(&wide_tags, operands, &wide);
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_copy(NULL, DEVICE, 0, o_f32, wide.data, sizeof(float) * ELEMENTS));

    CHECK_STATUS(MXATTN_OK, mxattn_scales_bytes(&tags, axis, MXATTN_LINEAR, BATCH, SEQLEN, NULL,
                                                HEADS, HEAD_DIM, &scale_bytes));
    uint8_t *payload = malloc(ELEMENTS), *scales = malloc((size_t)scale_bytes);
    uint8_t *got = malloc(ELEMENTS), *got_scales = malloc((size_t)scale_bytes);
    mxattn_quantize_args quantize;
    mxattn_quantize_args_init(&quantize);
    quantize.backend = MXATTN_BACKEND_CPU;
    mxattn_tensor_view(&host_wide, MXATTN_F32, o_f32, 4, shape);
    mxattn_tensor_view(&host, MXATTN_E4M3, payload, 4, shape);
    host.tags = tags;
    host.scales[axis].data = scales;
    quantize.wide = &host_wide;
    quantize.quantized = &host;
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &quantize));

    memset(got, 0xFF, ELEMENTS);
    memset(got_scales, 0xEE, (size_t)scale_bytes);
    mxattn_tensor_view(&o, MXATTN_E4M3, placed(got, ELEMENTS), 4, shape);
    o.tags = tags;
    o.scales[axis].data = placed(got_scales, (size_t)scale_bytes);
    run(&tags, operands, &o);
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, DEVICE, 0, got, o.data, ELEMENTS));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, DEVICE, 0, got_scales, o.scales[axis].data,
                                               (size_t)scale_bytes));
    (void)mxt_check_bytes("payload", got, payload, 1, mxt_shape1(ELEMENTS));
    (void)mxt_check_bytes("scales", got_scales, scales, 1, mxt_shape1(scale_bytes));
    void *const device[] = {operands[0].data, operands[1].data, operands[2].data,
                            wide.data,        o.data,           o.scales[axis].data};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, DEVICE, 0, device[i]));
    }
    free(values);
    free(o_f32);
    free(payload);
    free(scales);
    free(got);
    free(got_scales);
}

int main(void)
{
    const char *missing = mxt_device_missing(DEVICE);
    if (missing) {
        mxt_case("o as MXFP8");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    check(MXATTN_BLOCK_ROW);
    check(MXATTN_BLOCK_COLUMN);
    check(MXATTN_BLOCK_SQUARE);
    return mxt_finish();
}
