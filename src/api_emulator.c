/* api_emulator.c: front door of the emulator's settings and findings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emulator.h"
#include "status.h"
#include "structs.h"

mxattn_status mxattn_emulator_begin(const mxattn_emulator_options *options)
{
    mxattn_emulator_options given;
    mxattn_emulator_options_init(&given);
    mxattn_status status = mxa_struct_read(&given, sizeof given, options, "options");
    if (status)
        return status;
#if defined(MXA_EMULATOR)
    return mxa_emu_begin(&given);
#else
    return mxa_fail(MXATTN_NO_BACKEND, "this build has no emulator (MXA_EMU=OFF)");
#endif
}

mxattn_status mxattn_emulator_query(mxattn_emulator_result *result)
{
    mxattn_emulator_result filled;
    mxattn_emulator_result_init(&filled);
#if defined(MXA_EMULATOR)
    mxa_emu_sum(&filled);
#endif
    return mxa_struct_write(result, &filled, sizeof filled, "result");
}

const char *mxattn_emulator_counted(int64_t i, int64_t *count)
{
#if defined(MXA_EMULATOR)
    int64_t counted = 0;
    const char *name = mxa_emu_counted(i, &counted);
#else
    const int64_t counted = 0;
    const char *name = NULL;
    (void)i;
#endif
    if (count)
        *count = counted;
    return name;
}

const mxattn_emulator_event *mxattn_emulator_events(int64_t *count)
{
    int64_t kept = 0;
#if defined(MXA_EMULATOR)
    const mxattn_emulator_event *events = mxa_emu_events(&kept);
#else
    const mxattn_emulator_event *events = NULL;
#endif
    if (count)
        *count = kept;
    return events;
}
