/* test_sm100_producers.c: quantize, scatter and transform through the public header on the emulated
 * Blackwell: the CPU's bytes, padding too, whatever the schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "device_run.h"
#include "emu/driver.h"
#include "fill.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 10, TOKENS = 1376, SPARE = 5, HEADS = 2 };
#define DEVICE MXATTN_BACKEND_EMU_SM100

static const int32_t cu_seqlens[BATCH + 1] = {0, 0, 1, 32, 64, 97, 224, 352, 481, 736, TOKENS};

typedef struct producer_case {
    mxattn_dtype wide, type;
    mxattn_block block;
    mxattn_rounding rounding;
    int64_t head_dim;
} producer_case;

/* Memory of a backend, `bytes` of it a copy of `from`. */
static void *place(mxattn_backend backend, const void *from, size_t bytes)
{
    void *memory = NULL;
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backend, 0, bytes, &memory));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, backend, 0, memory, from, bytes));
    return memory;
}

static void *place_nan(mxattn_backend backend, size_t bytes)
{
    void *nan = malloc(bytes), *memory;
    mxt_fill_nan(nan, bytes);
    memory = place(backend, nan, bytes);
    free(nan);
    return memory;
}

/* Both memories hold the same bytes; frees them. */
static void same(const char *what, void *cpu, void *device, size_t bytes)
{
    uint8_t *a = malloc(bytes), *b = malloc(bytes);
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CPU, 0, a, cpu, bytes));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, DEVICE, 0, b, device, bytes));
    mxt_check_bytes(what, b, a, 1, mxt_shape1((int64_t)bytes));
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, MXATTN_BACKEND_CPU, 0, cpu));
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, DEVICE, 0, device));
    free(a);
    free(b);
}

static size_t scale_bytes(const mxattn_tags *tags, int axis, mxattn_scale_layout layout, int64_t d)
{
    int64_t bytes = 0;
    CHECK_STATUS(MXATTN_OK, mxattn_scales_bytes(tags, (mxattn_axis)axis, layout, BATCH,
                                                TOKENS + SPARE, cu_seqlens, HEADS, d, &bytes));
    return (size_t)bytes;
}

/* A scale array with the strides that the host cannot derive from lengths on a device. */
static mxattn_scales scales_at(void *data, int axis, mxattn_scale_layout layout, int64_t d)
{
    const mxa_batch batch = {BATCH, 0, cu_seqlens, NULL};
    const mxa_scale_extent extent = mxa_scales_extent(&batch, HEADS, d);
    mxattn_scales scales;
    memset(&scales, 0, sizeof scales);
    scales.data = data;
    scales.layout = layout;
    mxa_scales_resolve(&scales, (mxattn_axis)axis, &extent);
    return scales;
}

static int has(mxattn_block block, int axis)
{
    return block == MXATTN_BLOCK_SQUARE || (block == MXATTN_BLOCK_ROW) == (axis == MXATTN_HDIM);
}

static void quantize(const producer_case *c, uint64_t seed)
{
    const int64_t d = c->head_dim, shape[3] = {TOKENS + SPARE, HEADS, d};
    const size_t count = (size_t)(shape[0] * HEADS * d);
    const mxattn_tags tags = {c->type, c->block, c->rounding, 0};
    void *payload[2], *scales[2][2] = {{NULL, NULL}, {NULL, NULL}};
    size_t bytes[2] = {0, 0};
    float *values = malloc(count * sizeof *values), *wide = malloc(count * sizeof *wide);
    mxt_fill_f32(values, shape[0] * HEADS, d, MXT_SPECIAL, seed);
    for (size_t i = 0; i < count; i++) {
        mxa_store(wide, c->wide, (int64_t)i, values[i]);
    }
    for (int i = 0; i < 2; i++) {
        const mxattn_backend backend = i ? DEVICE : MXATTN_BACKEND_CPU;
        void *from = place(backend, wide, count * (c->wide == MXATTN_F32 ? 4 : 2));
        void *cu = place(backend, cu_seqlens, sizeof cu_seqlens);
        mxattn_tensor x, y;
        mxattn_quantize_args args;
        payload[i] = place_nan(backend, count);
        mxattn_tensor_view(&x, c->wide, from, 3, shape);
        mxattn_tensor_view(&y, c->type, payload[i], 3, shape);
        y.tags = tags;
        for (int axis = 0; axis < 2; axis++) {
            if (has(c->block, axis)) {
                bytes[axis] = scale_bytes(&tags, axis, MXATTN_TILED, d);
                scales[i][axis] = place_nan(backend, bytes[axis]);
                y.scales[axis] = scales_at(scales[i][axis], axis, MXATTN_TILED, d);
            }
        }
        mxattn_quantize_args_init(&args);
        args.backend = backend;
        args.wide = &x;
        args.quantized = &y;
        args.sequences.cu_seqlens = cu;
        args.sequences.batch = BATCH;
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &args));
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, from));
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, cu));
    }
    same("payload", payload[0], payload[1], count);
    for (int axis = 0; axis < 2; axis++) {
        if (has(c->block, axis)) {
            same(axis ? "seq scales" : "hdim scales", scales[0][axis], scales[1][axis],
                 bytes[axis]);
        }
    }
    free(values);
    free(wide);
}

/* One array of a square tensor to another layout or axis. */
static void move(int from_axis, mxattn_scale_layout from, int to_axis, mxattn_scale_layout to,
                 int64_t d, uint64_t seed)
{
    const mxattn_tags tags = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
    const size_t bytes = scale_bytes(&tags, to_axis, to, d);
    const size_t from_bytes = scale_bytes(&tags, from_axis, from, d);
    uint8_t *source = malloc(from_bytes);
    void *result[2];
    mxt_random random = {seed};
    for (size_t i = 0; i < from_bytes; i++) {
        source[i] = (uint8_t)mxt_random_u64(&random);
    }
    for (int i = 0; i < 2; i++) {
        const mxattn_backend backend = i ? DEVICE : MXATTN_BACKEND_CPU;
        void *at = place(backend, source, from_bytes);
        void *cu = place(backend, cu_seqlens, sizeof cu_seqlens);
        mxattn_scales_args args;
        result[i] = place_nan(backend, bytes);
        mxattn_scales_args_init(&args);
        args.backend = backend;
        args.tags = tags;
        args.from_axis = (mxattn_axis)from_axis;
        args.to_axis = (mxattn_axis)to_axis;
        args.from = scales_at(at, from_axis, from, d);
        args.to = scales_at(result[i], to_axis, to, d);
        args.sequences.cu_seqlens = cu;
        args.sequences.batch = BATCH;
        args.seqlen = TOKENS + SPARE;
        args.heads = HEADS;
        args.head_dim = d;
        CHECK_STATUS(MXATTN_OK, from_axis == to_axis ? mxattn_scales_scatter(NULL, &args)
                                                     : mxattn_scales_transform(NULL, &args));
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, at));
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, cu));
    }
    same("scales", result[0], result[1], bytes);
    free(source);
}

static void begin(uint64_t seed)
{
    mxa_emu_session_clear();
    mxa_emu_session_now()->options.seed = seed;
}

static void clean(void)
{
    const mxa_emu_session *session = mxa_emu_session_now();
    CHECK(session->errors + session->warnings == 0 && session->launches > 0, "%d errors:\n%s",
          session->errors, session->text ? session->text : "");
}

int main(void)
{
    static const int64_t dims[] = {64, 128, 256, 80};
    static const char *const layouts[] = {"linear", "compact", "tiled"};
    const char *missing = mxt_device_missing(DEVICE);
    if (missing) {
        mxt_case("producers of the emulated Blackwell");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    for (int i = 0; i < 36; i++) {
        const producer_case c = {(mxattn_dtype)(MXATTN_F32 + i % 3),
                                 i / 3 % 2 ? MXATTN_E5M2 : MXATTN_E4M3,
                                 (mxattn_block)(MXATTN_BLOCK_ROW + i / 6 % 3),
                                 i / 18 ? MXATTN_FLOOR : MXATTN_RCEIL, dims[i % 4]};
        mxt_case("quantize: wide %d, type %d, block %d, rounding %d, head_dim %lld", (int)c.wide,
                 (int)c.type, (int)c.block, (int)c.rounding, (long long)c.head_dim);
        begin(1 + (uint64_t)i);
        quantize(&c, 100 + (uint64_t)i);
        clean();
    }
    for (int n = 0; n < 36 * 4; n++) { /* with each head_dim: kernels are chosen by it */
        const int i = n / 4;
        const int64_t dim = dims[n % 4];
        const int from_axis = i % 2, to_axis = i / 2 % 2, scatter = from_axis == to_axis;
        const mxattn_scale_layout from = (mxattn_scale_layout)(i / 4 % 3);
        const mxattn_scale_layout to = (mxattn_scale_layout)(i / 12);
        if (scatter && from == MXATTN_TILED) {
            continue; /* not what scatter takes */
        }
        mxt_case("%s: axis %d %s to axis %d %s, head_dim %lld", scatter ? "scatter" : "transform",
                 from_axis, layouts[from], to_axis, layouts[to], (long long)dim);
        begin(50 + (uint64_t)n);
        move(from_axis, from, to_axis, to, dim, 200 + (uint64_t)n);
        clean();
    }
    return mxt_finish();
}
