/* test_driver.c: emulated devices through the public header: memory, launches that fail, what was
 * found, counted and seen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"
#include "device_run.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const mxattn_backend backends[] = {MXATTN_BACKEND_EMU_SM90, MXATTN_BACKEND_EMU_SM100};

/* What a processor without AVX2 is told. In a process of its own, which believes to be on one: the
 * compiler's own record of the processor has AVX2 in bit 10 (gcc's and clang's ABI). */
static void without_avx2(void)
{
#if defined(__x86_64__) && defined(MXA_BUILD_AVX2)
    extern struct {
        unsigned vendor, type, subtype, features[1];
    } __cpu_model;
    mxt_case("a processor without AVX2");
    __builtin_cpu_init();
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        int told = 0;
        __cpu_model.features[0] &= ~(1U << 10);
        for (int i = 0; i < 2; i++) {
            mxattn_device_info device;
            mxattn_device_info_init(&device);
            told += mxattn_device_query(NULL, backends[i], 0, &device) == MXATTN_NO_BACKEND &&
                    strstr(mxattn_last_error(), "need AVX2") != NULL;
        }
        _exit(told == 2 ? 0 : 1);
    }
    int status = -1;
    (void)waitpid(child, &status, 0);
    CHECK(status == 0, "emulated devices were not refused: status 0x%x", (unsigned)status);
#endif
}

static void devices(void)
{
    for (int i = 0; i < 2; i++) {
        mxattn_device_info device;
        void *memory = NULL;
        unsigned char bytes[64], back[64];
        mxt_case("device and memory, backend %d", (int)backends[i]);
        mxattn_device_info_init(&device);
        CHECK_STATUS(MXATTN_OK, mxattn_device_query(NULL, backends[i], 0, &device));
        CHECK(device.arch == (i ? 100 : 90) && strstr(device.name, "emulated"), "arch %d, \"%s\"",
              (int)device.arch, device.name);
        CHECK_STATUS(MXATTN_NO_BACKEND, mxattn_device_query(NULL, backends[i], 1, &device));
        CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backends[i], 0, sizeof bytes, &memory));
        memset(bytes, 7, sizeof bytes);
        CHECK_STATUS(MXATTN_OK,
                     mxattn_device_copy(NULL, backends[i], 0, memory, bytes, sizeof bytes));
        CHECK_STATUS(MXATTN_OK,
                     mxattn_device_copy(NULL, backends[i], 0, back, memory, sizeof bytes));
        CHECK(memcmp(bytes, back, sizeof bytes) == 0, "a copy changed bytes");
        CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, backends[i], 0, NULL));
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backends[i], 0, memory));
    }
}

static int64_t counted(const char *name)
{
    int64_t count = 0;
    for (int64_t i = 0;; i++) {
        const char *found = mxattn_emulator_counted(i, &count);
        if (!found) {
            return -1;
        }
        if (strcmp(found, name) == 0) {
            return count;
        }
    }
}

/* A forward, then what the emulator tells of it. */
static void findings(void)
{
    mxattn_emulator_options options;
    mxattn_emulator_result result;
    mxt_attention a;
    int64_t events = 0, kinds[3] = {0, 0, 0};
    const mxt_device_options given = {0, MXATTN_F32, MXATTN_F32, MXATTN_BACKEND_EMU_SM90};
    mxt_case("settings, findings, counts, events");
    mxt_attention_dense(&a, 1, 64, 128, 1, 1, 64);
    a.problem.backend = MXATTN_BACKEND_REF;
    a.problem.precision = MXATTN_PRECISION_MODEL;
    a.problem.mode = MXATTN_INFERENCE;
    mxt_attention_alloc(&a);
    mxt_attention_fill(&a, MXT_GAUSSIAN, 1);
    mxattn_emulator_options_init(&options);
    options.trace = 1;
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_begin(&options));
    CHECK_STATUS(MXATTN_OK, mxt_device_forward(&a, &given));
    mxattn_emulator_result_init(&result);
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_query(&result));
    CHECK(result.launches >= 4 && result.errors == 0 && result.hazards == 0 && !result.report[0],
          "%lld launches, %lld errors: %s", (long long)result.launches, (long long)result.errors,
          result.report);
    CHECK(counted("wgmma.mma_async") > 0, "no product was counted");
    CHECK(counted("no such") == -1, "an instruction of no name was counted");
    const mxattn_emulator_event *event = mxattn_emulator_events(&events);
    for (int64_t i = 0; i < events; i++) {
        kinds[event[i].kind]++;
        CHECK(event[i].first_step <= event[i].last_step, "event %lld ends before it begins",
              (long long)i);
    }
    CHECK(kinds[MXATTN_EVENT_WAIT] > 0 && kinds[MXATTN_EVENT_ASYNC] > 0, "%lld waits, %lld async",
          (long long)kinds[MXATTN_EVENT_WAIT], (long long)kinds[MXATTN_EVENT_ASYNC]);
    options.trace = 0;
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_begin(&options));
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_query(&result));
    CHECK(result.launches == 0 && !mxattn_emulator_events(&events) && events == 0,
          "begin left something of the run before");
    mxt_attention_free(&a);
}

/* Memory that is too small: the first access beyond it is named, and the call fails. */
static void out_of_bounds(void)
{
    mxattn_quantize_args args;
    mxattn_emulator_options options;
    mxattn_emulator_result result;
    mxattn_tensor wide, quantized;
    void *values = NULL, *payload = NULL, *scales = NULL;
    const int64_t shape[] = {1, 64, 1, 128};
    const mxattn_backend backend = MXATTN_BACKEND_EMU_SM100;
    mxt_case("a launch beyond its memory");
    mxattn_emulator_options_init(&options);
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_begin(&options));
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backend, 0, 64 * 128 * 4 - 64, &values));
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backend, 0, 64 * 128, &payload));
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, backend, 0, 64 * 4, &scales));
    mxattn_tensor_view(&wide, MXATTN_F32, values, 4, shape);
    mxattn_tensor_view(&quantized, MXATTN_E4M3, payload, 4, shape);
    quantized.tags.block = MXATTN_BLOCK_ROW;
    quantized.scales[MXATTN_HDIM].data = scales;
    mxattn_quantize_args_init(&args);
    args.backend = backend;
    args.wide = &wide;
    args.quantized = &quantized;
    CHECK_STATUS(MXATTN_DEVICE, mxattn_quantize(NULL, &args));
    CHECK(strstr(mxattn_last_error(), "global access out of bounds") != NULL, "\"%s\"",
          mxattn_last_error());
    mxattn_emulator_result_init(&result);
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_query(&result));
    CHECK(result.errors > 0 && (result.hazards & 1) && strstr(result.report, "out of bounds"),
          "%lld errors: %s", (long long)result.errors, result.report);
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_begin(&options));
    void *const all[] = {values, payload, scales};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, backend, 0, all[i]));
    }
}

int main(void)
{
    without_avx2();
    const char *missing = mxt_device_missing(MXATTN_BACKEND_EMU_SM90);
    if (missing) {
        mxt_case("emulated devices");
        mxt_skip("%s", missing);
        return mxt_finish();
    }
    devices();
    findings();
    out_of_bounds();
    return mxt_finish();
}
