/* test_emulator.c: the emulated backends through the public header: there, or, in a build without
 * the emulator (MXA_EMU=OFF, as the sanitizers' builds are), refused with a status and a sentence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mxattn/mxattn.h"
#include "report.h"

#include <string.h>

static const struct {
    mxattn_backend id;
    const char *name;
} backends[] = {{MXATTN_BACKEND_EMU_SM90, "emu-sm90"}, {MXATTN_BACKEND_EMU_SM100, "emu-sm100"}};

/* The emulator is in this build; its status for the calls below. */
#if defined(MXA_EMULATOR)
enum { PRESENT = 1, EXPECTED = MXATTN_OK };
#else
enum { PRESENT = 0, EXPECTED = MXATTN_NO_BACKEND };
#endif

static void check(mxattn_status status, const char *call, const char *name)
{
    CHECK(status == (mxattn_status)EXPECTED, "%s: %s", call, mxattn_status_name(status));
    CHECK(PRESENT || (strstr(mxattn_last_error(), "this build has no emulator (MXA_EMU=OFF)") &&
                      strstr(mxattn_last_error(), name)),
          "%s: \"%s\"", call, mxattn_last_error());
}

static void check_backend(mxattn_backend id, const char *name)
{
    mxattn_backend_info info;
    mxattn_device_info device;
    mxattn_attention_problem problem;
    mxattn_plan *plan = NULL;
    void *memory = NULL;
    mxt_case("backend %s", name);
    mxattn_backend_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, id, &info));
    CHECK(info.available == PRESENT, "available is %d", (int)info.available);
    CHECK(PRESENT || strstr(info.reason, "MXA_EMU=OFF"), "reason \"%s\"", info.reason);
    mxattn_device_info_init(&device);
    check(mxattn_device_query(NULL, id, 0, &device), "mxattn_device_query", name);
    check(mxattn_device_alloc(NULL, id, 0, 64, &memory), "mxattn_device_alloc", name);
    CHECK(PRESENT == (memory != NULL), "memory");
    if (memory) {
        CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, id, 0, memory));
    }
    mxattn_attention_problem_init(&problem);
    problem.backend = id;
    problem.batch = 1;
    problem.max_seqlen_q = problem.max_seqlen_k = 128;
    problem.heads = problem.kv_heads = 1;
    problem.head_dim = 64;
    check(mxattn_plan_create(NULL, &problem, &plan), "mxattn_plan_create", name);
    CHECK(PRESENT == (plan != NULL), "a plan");
    mxattn_plan_destroy(plan);
}

int main(void)
{
    mxattn_emulator_options options;
    mxattn_emulator_result result;
    int64_t count = -1;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        check_backend(backends[i].id, backends[i].name);
    }
    mxt_case("settings and findings");
    mxattn_emulator_options_init(&options);
    check(mxattn_emulator_begin(&options), "mxattn_emulator_begin", "emulator");
    mxattn_emulator_result_init(&result);
    CHECK_STATUS(MXATTN_OK, mxattn_emulator_query(&result));
    CHECK(result.launches == 0 && result.errors == 0, "%d launches", (int)result.launches);
    CHECK(mxattn_emulator_events(&count) == NULL && count == 0, "%d events", (int)count);
    return mxt_finish();
}
