/* status.c: version, statuses, and the sentence of this thread's last fault.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static _Thread_local char last_error[1024];

mxattn_status mxa_fail(mxattn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char *mxattn_last_error(void)
{
    return last_error;
}

int32_t mxattn_version(void)
{
    return MXATTN_VERSION;
}

const char *mxattn_version_string(void)
{
    return TEXT(MXATTN_VERSION_MAJOR) "." TEXT(MXATTN_VERSION_MINOR) "." TEXT(MXATTN_VERSION_PATCH);
}

const char *mxattn_status_name(mxattn_status status)
{
    switch (status) {
    case MXATTN_OK:
        return "MXATTN_OK";
    case MXATTN_ARGUMENT:
        return "MXATTN_ARGUMENT";
    case MXATTN_SHAPE:
        return "MXATTN_SHAPE";
    case MXATTN_DTYPE:
        return "MXATTN_DTYPE";
    case MXATTN_LAYOUT:
        return "MXATTN_LAYOUT";
    case MXATTN_ALIGNMENT:
        return "MXATTN_ALIGNMENT";
    case MXATTN_CU_SEQLENS:
        return "MXATTN_CU_SEQLENS";
    case MXATTN_UNSUPPORTED:
        return "MXATTN_UNSUPPORTED";
    case MXATTN_NO_BACKEND:
        return "MXATTN_NO_BACKEND";
    case MXATTN_WORKSPACE:
        return "MXATTN_WORKSPACE";
    case MXATTN_MEMORY:
        return "MXATTN_MEMORY";
    case MXATTN_DEVICE:
        return "MXATTN_DEVICE";
    case MXATTN_VERSION_MISMATCH:
        return "MXATTN_VERSION_MISMATCH";
    }
    return "MXATTN_?";
}

mxattn_status mxattn_device_status_check(uint32_t word)
{
    static const char *const reasons[] = {
        [MXA_FAULT_CU_START] = "does not start at 0",
        [MXA_FAULT_CU_ORDER] = "is less than the entry before it",
        [MXA_FAULT_CU_TOTAL] = "lies past the tensor's last token",
        [MXA_FAULT_CU_LENGTH] = "makes a sequence longer than the plan's max_seqlen",
        [MXA_FAULT_SEQUSED] = "lies outside [0, length of its sequence]",
        [MXA_FAULT_CU_SCALE] =
            "or the entry after it is no multiple of 128, or leaves its sequence "
            "too little room",
    };
    if (word == 0)
        return MXATTN_OK;
    const uint32_t fault = word & 0x3f;
    const char *side = word & MXA_FAULT_PLAIN ? "" : word & MXA_FAULT_SIDE_K ? "_k" : "_q";
    if (fault < MXA_FAULT_CU_START || fault > MXA_FAULT_CU_SCALE)
        return mxa_fail(MXATTN_ARGUMENT, "device status word is 0x%08x; no call writes that", word);
    /* An offset is named by its own place: sequence b ends at entry b + 1. */
    const int offset = fault >= MXA_FAULT_CU_ORDER && fault <= MXA_FAULT_CU_LENGTH;
    const char *array = fault == MXA_FAULT_SEQUSED    ? "seqused"
                        : fault == MXA_FAULT_CU_SCALE ? "cu_scale"
                                                      : "cu_seqlens";
    return mxa_fail(MXATTN_CU_SEQLENS, "%s%s[%u] %s", array, side, (word >> 8) + (uint32_t)offset,
                    reasons[fault]);
}
