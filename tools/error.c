/* error.c: how the command gives up: one sentence, exit status 2, nothing half-written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"

#include "output.h"
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *error_name = "mxattn";

void mxc_error_name(const char *name)
{
    error_name = name;
}

void mxc_die(const char *format, ...)
{
    char sentence[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    mxc_progress_end();
    mxc_outputs_discard();
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s: %s\n", error_name, sentence);
    exit(MXC_EXIT_REFUSED);
}

void mxc_need(mxattn_status status)
{
    if (status != MXATTN_OK)
        mxc_die("%s", mxattn_last_error());
}

void *mxc_tool_alloc(size_t bytes)
{
    enum { ALIGNMENT = 256 };
    if (bytes > SIZE_MAX / 2)
        mxc_die("a buffer of %zu bytes is more than can be addressed", bytes);
    size_t rounded = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded);
    if (!memory)
        mxc_die("out of memory: a buffer of %zu bytes was refused", bytes);
    return memory;
}
