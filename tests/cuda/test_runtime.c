/* test_runtime.c: what a call on a GPU promises beside its result: it can be captured in a graph,
 * leaves the current device alone, runs on the caller's stream and device, and refuses host memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/device.h"
#include "device_run.h"
#include "driver_calls.h"
#include "fill.h"
#include "mx/element.h"
#include "mx/tensor.h"
#include "report.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 300, HEADS = 2, DIMS = 64, COUNT = TOKENS * HEADS * DIMS, SCALES = COUNT / 32 };

/* One quantization of jagged FP32 on a device, and what the host expects. */
typedef struct job {
    int32_t device;
    float wide[COUNT];
    int32_t cu[3];
    uint8_t payload[COUNT], scales[SCALES]; /* of the reference */
    void *d_wide, *d_cu, *d_payload, *d_scales, *d_word;
    mxattn_tensor x, q;
    mxattn_quantize_args args;
} job;

static void upload(job *j, void *to, const void *from, size_t bytes)
{
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_copy(NULL, MXATTN_BACKEND_CUDA, j->device, to, from, bytes));
}

static void *room(job *j, size_t bytes)
{
    void *memory = NULL;
    CHECK_STATUS(MXATTN_OK,
                 mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, j->device, bytes, &memory));
    return memory;
}

static void set(job *j, uint64_t seed)
{
    mxa_batch batch = {2, 0, j->cu, NULL};
    mxattn_tensor wide, quantized;
    mxt_fill_f32(j->wide, TOKENS * HEADS, DIMS, MXT_GAUSSIAN, seed);
    j->cu[0] = 0;
    j->cu[1] = 77;
    j->cu[2] = TOKENS;
    memset(&wide, 0, sizeof wide);
    wide.tags.dtype = MXATTN_F32;
    wide.data = j->wide;
    memcpy(wide.shape, (int64_t[4]){1, TOKENS, HEADS, DIMS}, sizeof wide.shape);
    memcpy(wide.stride, (int64_t[4]){0, HEADS * DIMS, DIMS, 1}, sizeof wide.stride);
    quantized = wide;
    quantized.tags = (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0};
    quantized.data = j->payload;
    quantized.scales[MXATTN_HDIM] =
        (mxattn_scales){j->scales, MXATTN_LINEAR, 0, DIMS / 32, HEADS * DIMS / 32, 1, NULL};
    mxa_quantize_tensor(&wide, &quantized, &batch);
    upload(j, j->d_wide, j->wide, sizeof j->wide);
    upload(j, j->d_cu, j->cu, sizeof j->cu);
}

static job *make(int32_t device)
{
    const int64_t shape[] = {TOKENS, HEADS, DIMS};
    job *j = calloc(1, sizeof *j);
    j->device = device;
    j->d_wide = room(j, sizeof j->wide);
    j->d_cu = room(j, sizeof j->cu);
    j->d_payload = room(j, sizeof j->payload);
    j->d_scales = room(j, sizeof j->scales);
    j->d_word = room(j, sizeof(uint32_t));
    set(j, 1);
    mxattn_tensor_view(&j->x, MXATTN_F32, j->d_wide, 3, shape);
    mxattn_tensor_view(&j->q, MXATTN_E4M3, j->d_payload, 3, shape);
    j->q.tags.block = MXATTN_BLOCK_ROW;
    j->q.scales[MXATTN_HDIM].data = j->d_scales;
    mxattn_quantize_args_init(&j->args);
    j->args.backend = MXATTN_BACKEND_CUDA;
    j->args.device = device;
    j->args.wide = &j->x;
    j->args.quantized = &j->q;
    j->args.sequences.cu_seqlens = j->d_cu;
    j->args.sequences.batch = 2;
    j->args.device_status = j->d_word;
    return j;
}

static void drop(job *j)
{
    void *all[] = {j->d_wide, j->d_cu, j->d_payload, j->d_scales, j->d_word};
    for (int i = 0; i < 5; i++) {
        (void)mxattn_device_free(NULL, MXATTN_BACKEND_CUDA, j->device, all[i]);
    }
    free(j);
}

static void spoil(job *j)
{
    uint8_t *bytes = malloc(COUNT);
    memset(bytes, 0xAA, COUNT);
    upload(j, j->d_payload, bytes, COUNT);
    upload(j, j->d_scales, bytes, SCALES);
    free(bytes);
}

static uint32_t word_of(job *j)
{
    uint32_t word = 0xFFFFFFFF;
    upload(j, &word, j->d_word, sizeof word);
    return word;
}

static void compare(job *j)
{
    uint8_t *got = malloc(COUNT);
    upload(j, got, j->d_payload, COUNT);
    CHECK(memcmp(got, j->payload, COUNT) == 0, "payload differs");
    upload(j, got, j->d_scales, SCALES);
    CHECK(memcmp(got, j->scales, SCALES) == 0, "scales differ");
    CHECK(word_of(j) == 0, "status word 0x%08x", word_of(j));
    free(got);
}

/* B122, B106: captured once, run on new data; then on offsets that have become malformed. */
static void captured(const mxt_driver_calls *d)
{
    void *stream = NULL, *graph = NULL, *run = NULL;
    mxt_case("B122 quantize in a graph");
    job *j = make(0);
    const mxa_cuda_device *device;
    CHECK_STATUS(MXATTN_OK, mxa_cuda_device_take(0, &device));
    CHECK_STATUS(MXATTN_OK, mxattn_device_stream_create(NULL, MXATTN_BACKEND_CUDA, 0, &stream));
    j->args.stream = stream;
    CHECK(mxa_cuda_enter(device) == MXATTN_OK && d->begin_capture(stream, 0) == 0, "begin");
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &j->args));
    CHECK(d->end_capture(stream, &graph) == 0 && d->instantiate(&run, graph, 0) == 0,
          "instantiate");
    for (uint64_t seed = 2; seed < 4; seed++) {
        set(j, seed);
        spoil(j);
        CHECK(d->launch(run, stream) == 0, "launch");
        CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, stream));
        compare(j);
    }
    mxt_case("B106 malformed offsets in a graph");
    spoil(j);
    j->cu[1] = TOKENS + 5;
    upload(j, j->d_cu, j->cu, sizeof j->cu);
    CHECK(d->launch(run, stream) == 0, "launch");
    CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, 0, stream));
    CHECK(word_of(j) == (MXA_FAULT_CU_TOTAL | MXA_FAULT_PLAIN), "word 0x%08x", word_of(j));
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_device_status_check(word_of(j)));
    uint8_t first = 0;
    upload(j, &first, j->d_payload, 1);
    CHECK(first == 0xAA, "payload was written");
    mxa_cuda_leave(device);
    CHECK_STATUS(MXATTN_OK, mxattn_device_stream_destroy(NULL, MXATTN_BACKEND_CUDA, 0, stream));
    drop(j);
}

/* B124, B125: devices in turn in one thread; the current context is as it was after each call. */
static void devices_in_turn(const mxt_driver_calls *d)
{
    mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_CUDA, &info));
    const int count = info.devices < 2 ? 1 : 2;
    mxt_case("B124 B125 %d device%s in turn, none current", count, count > 1 ? "s" : "");
    job *jobs[2];
    for (int i = 0; i < count; i++) {
        jobs[i] = make(i);
    }
    for (int round = 0; round < 4; round++) {
        job *j = jobs[round % count];
        void *before = NULL, *after = NULL;
        spoil(j);
        CHECK(d->context_get(&before) == 0, "current");
        CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &j->args));
        CHECK(d->context_get(&after) == 0 && before == after, "another context is current");
        CHECK_STATUS(MXATTN_OK,
                     mxattn_device_synchronise(NULL, MXATTN_BACKEND_CUDA, j->device, NULL));
        compare(j);
    }
    for (int i = 0; i < count; i++) {
        drop(jobs[i]);
    }
}

static void host_memory(void)
{
    static _Alignas(16) uint8_t payload[COUNT];
    mxt_case("host memory is refused");
    job *j = make(0);
    j->q.data = payload;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_quantize(NULL, &j->args));
    CHECK(strstr(mxattn_last_error(), "quantized") != NULL, "\"%s\"", mxattn_last_error());
    drop(j);
}

int main(void)
{
    const char *missing = mxt_device_missing(MXATTN_BACKEND_CUDA);
    mxt_driver_calls driver;
    mxt_case("cuda runtime");
    if (missing) {
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    missing = mxt_driver_load(&driver);
    if (CHECK(!missing, "no %s", missing)) {
        captured(&driver);
        devices_in_turn(&driver);
        host_memory();
    }
    return mxt_finish();
}
