/* report.c: counts cases and prints failures, one line each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MXT_SHOWN = 5 };

static struct {
    int open, failures, skipped;
    char name[512];
} current;

static int passed_cases, failed_cases, skipped_cases;

static void close_case(void)
{
    if (!current.open)
        return;
    if (current.failures > MXT_SHOWN)
        printf("FAIL [%s] and %d more\n", current.name, current.failures - MXT_SHOWN);
    if (current.failures)
        failed_cases++;
    else if (current.skipped)
        skipped_cases++;
    else
        passed_cases++;
    memset(&current, 0, sizeof current);
}

void mxt_case(const char *format, ...)
{
    close_case();
    current.open = 1;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(current.name, sizeof current.name, format, args);
    va_end(args);
}

void mxt_skip(const char *format, ...)
{
    char reason[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    printf("SKIP [%s] %s\n", current.name, reason);
    current.open = 1;
    current.skipped = 1;
}

int mxt_check(int ok, const char *file, int line, const char *format, ...)
{
    current.open = 1;
    if (ok)
        return 1;
    if (++current.failures <= MXT_SHOWN) {
        const char *base = strrchr(file, '/');
        printf("FAIL %s:%d [%s] ", base ? base + 1 : file, line, current.name);
        va_list args;
        va_start(args, format);
        (void)vprintf(format, args);
        va_end(args);
        printf("\n");
        (void)fflush(stdout);
    }
    return 0;
}

int mxt_check_status(mxattn_status wanted, mxattn_status status, const char *file, int line,
                     const char *call)
{
    if (status != wanted)
        return mxt_check(0, file, line, "%s: %s, want %s; last error: %s", call,
                         mxattn_status_name(status), mxattn_status_name(wanted),
                         mxattn_last_error());
    if (wanted != MXATTN_OK)
        return mxt_check(mxattn_last_error()[0] != 0, file, line, "%s: %s without a sentence", call,
                         mxattn_status_name(status));
    return mxt_check(1, file, line, "%s", call);
}

int mxt_failures(void)
{
    return current.failures;
}

void mxt_reset(void)
{
    memset(&current, 0, sizeof current);
    passed_cases = failed_cases = skipped_cases = 0;
}

int mxt_finish(void)
{
    close_case();
    printf("%d passed, %d failed", passed_cases, failed_cases);
    if (skipped_cases)
        printf(", %d skipped", skipped_cases);
    printf("\n");
    if (failed_cases || !(passed_cases || skipped_cases))
        return 1;
    return passed_cases ? 0 : MXT_EXIT_SKIPPED;
}
